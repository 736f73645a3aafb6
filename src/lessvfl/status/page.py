"""A snapshot as one self-contained HTML document, in the look of the report.

It is written here alone: the script fetches the document again and takes over what
changed, so that page and script cannot disagree. Every text is escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template
from typing import get_args

from lessvfl.status import words
from lessvfl.status.value import PartySnapshot, Snapshot, Traffic, Way


def render(snapshot: Snapshot) -> str:
    """Return the page of a snapshot."""
    headline = words.headline(snapshot)
    if snapshot["state"] == "failed":  # its sentence is in the banner
        headline = f"failed at {words.place_text(snapshot)}"
    body = [
        _banner(snapshot),
        f"<header>{_line(snapshot)}<h1>{escape(headline)}</h1></header>",
        _cards(snapshot),
        _parties(snapshot),
        _stages_and_events(snapshot),
    ]
    return Template(_read("page.html")).substitute(
        title=escape(f"{headline} · {snapshot['run']}"),
        style=_read("page.css"),
        body="\n".join(body),
        footer=f"lessvfl {escape(snapshot['lessvfl'])} · "
        '<a href="/status.json">status.json</a> · <a href="/metrics">metrics</a>',
        script=_read("page.js"),
    )


@functools.cache
def policy() -> str:
    """Return the content security policy: our style, our script, this server."""
    style, script = (_digest(_read(name)) for name in ("page.css", "page.js"))
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


@functools.cache
def _read(name: str) -> str:
    return (resources.files("lessvfl.status") / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _banner(snapshot: Snapshot) -> str:
    """Say what keeps the run from going on; hidden where nothing does."""
    state = snapshot["state"]
    if state == "failed":
        text = snapshot["message"]
    elif state == "paused":
        place = words.place_text(snapshot)
        text = f"Stands at {place}; goes on by itself when everybody is back."
    else:
        return '<p class="banner" role="status" hidden></p>'
    return f'<p class="banner {state}" role="status">{escape(text)}</p>'


def _line(snapshot: Snapshot) -> str:
    parts = [
        f"{snapshot['method']} on {snapshot['data']}",
        f"run {snapshot['run']}",
        f"started {snapshot['started'][:16].replace('T', ' ')} UTC",
    ]
    return f'<p class="soft">{escape(" · ".join(parts))}</p>'


# -- key numbers -----------------------------------------------------------------------


def _cards(snapshot: Snapshot) -> str:
    parties = snapshot["parties"].values()
    n_connected = sum(party["connected"] for party in parties)
    traffic = snapshot["traffic"]
    n_refused = sum(snapshot["refused"].values())
    cards = [
        ("Parties", f"{n_connected} of {len(parties)}", "connected"),
        ("Steps a second", words.rate_text(snapshot["steps_per_second"]), "lately"),
        (
            "Time left",
            words.time_text(snapshot["seconds_left"]),
            f"of the stage {words.time_text(snapshot['stage_seconds_left'])}",
        ),
        ("Time so far", words.time_text(snapshot["seconds"]), snapshot["state"]),
        ("Up", *_ways(traffic, "up")),
        ("Down", *_ways(traffic, "down")),
    ]
    if score := snapshot["score"]:
        cards.append(("Score", f"{score['value']:.4f}", f"{score['name']} so far"))
    if n_refused:
        reasons = (f"{reason} {n:,}" for reason, n in snapshot["refused"].items())
        cards.append(("Refused connections", f"{n_refused:,}", ", ".join(reasons)))
    items = (
        f'<div><dt>{name}</dt><dd class="value">{escape(value)}</dd>'
        f'<dd class="detail">{escape(detail)}</dd></div>'
        for name, value, detail in cards
    )
    return f'<dl class="numbers">{"".join(items)}</dl>'


def _ways(traffic: Traffic, way: Way) -> tuple[str, str]:
    """Return the bytes of one direction and, beside them, those on the wire."""
    payload, wire = traffic["payload_bytes"][way], traffic["wire_bytes"][way]
    return words.bytes_text(payload), f"wire {words.bytes_text(wire)}"


# -- tables ----------------------------------------------------------------------------


def _parties(snapshot: Snapshot) -> str:
    heads = ("Party", "State", "#Up", "#Down", "#Rounds", "#Last heard")
    rows = (_party(name, party) for name, party in snapshot["parties"].items())
    return _section("Parties", _table("Parties", heads, rows))


def _party(name: str, party: PartySnapshot) -> str:
    state = "connected" if party["connected"] else "away"
    heard = party["heard_seconds"]
    cells = [
        f'<th scope="row" class="name">{escape(name)}</th>',
        f'<td><span class="tag {state}">{state}</span>'
        f"<small>for {words.time_text(party['since_seconds'])}</small></td>",
    ]
    for way in get_args(Way):
        payload, wire = _ways(party["traffic"], way)
        cells.append(f'<td class="number">{payload}<small>{wire}</small></td>')
    last = "never" if heard is None else f"{words.time_text(heard)} ago"
    cells.append(f'<td class="number">{party["traffic"]["rounds"]:,}</td>')
    cells.append(f'<td class="number">{last}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _stages_and_events(snapshot: Snapshot) -> str:
    parts = []
    if snapshot["plan"]:
        rows = (_stage(stage, snapshot) for stage in snapshot["plan"])
        heads = ("Stage", "Done", "#Steps")
        parts.append(_section("Stages", _table("Stages", heads, rows)))
    if events := snapshot["events"]:
        rows = (
            f'<tr><td class="when">{event["time"][11:19]}</td>'
            f"<td>{escape(event['text'])}</td></tr>"
            for event in reversed(events[-8:])
        )
        parts.append(_section("Lately", _table("Lately", ("UTC", "What"), rows)))
    return f'<div class="pair">{"".join(parts)}</div>'


def _stage(stage: str, snapshot: Snapshot) -> str:
    """Return the row of a planned stage; one that is over has a full bar."""
    order, n_steps = list(snapshot["plan"]), snapshot["plan"][stage]
    place = order.index(snapshot["stage"]) if snapshot["stage"] in order else -1
    n_done = min(snapshot["steps"].get(stage, 0), n_steps)
    share = n_done / n_steps if n_steps else 0.0
    if order.index(stage) < place or snapshot["state"] == "done":
        share = 1.0
    elif order.index(stage) == place and (so_far := words.progress(snapshot)):
        share = so_far[0] / so_far[1]
    counted = stage in snapshot["steps"] or share == 0
    steps = f"{n_done:,} of {n_steps:,}" if counted else f"{share:.0%}"
    name = escape(words.stage_text(stage))
    return (
        f'<tr><th scope="row">{name}</th><td class="bar">'
        f'<progress value="{share:.4f}" aria-label="{name}"></progress></td>'
        f'<td class="number">{steps}</td></tr>'
    )


def _section(title: str, inner: str) -> str:
    return f'<section class="card"><h2>{title}</h2>{inner}</section>'


def _table(label: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table that scrolls alone; a head with # stands over numbers."""
    cells = "".join(
        f'<th scope="col"{" class=number" if head[0] == "#" else ""}>'
        f"{head.removeprefix('#')}</th>"
        for head in heads
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
