"""A snapshot as one self-contained HTML document, in the look of the report.

It is written here alone: the script fetches the document again and takes over what
changed, so that page and script cannot disagree. Every text is escaped.
"""

from __future__ import annotations

import functools
import hashlib
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template
from typing import get_args

from lessvfl.status import words
from lessvfl.status.snapshot import PartySnapshot, Snapshot, TrafficSnapshot, Way
from lessvfl.terms import bytes_text, time_text


def render(snapshot: Snapshot) -> str:
    """Return the page of a snapshot."""
    headline = words.headline(snapshot)
    if snapshot["state"] == "failed":  # its sentence is in the banner
        headline = f"failed at {words.place_text(snapshot)}"
    since = snapshot["started"][:16].replace("T", " ")
    line = f"{words.title(snapshot)} · started {since} UTC"
    body = [
        _banner(snapshot),
        f'<header><p class="soft">{escape(line)}</p>'
        f"<h1>{escape(headline)}</h1></header>",
        _cards(snapshot),
        _result(snapshot),
        _parties(snapshot),
        _events(snapshot),
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
    hashes = (hashlib.sha256(_read(name).encode()) for name in ("page.css", "page.js"))
    style, script = (f"sha256-{b64encode(h.digest()).decode()}" for h in hashes)
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


@functools.cache
def _read(name: str) -> str:
    return (resources.files("lessvfl.status") / name).read_text(encoding="utf-8")


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


# -- key numbers -----------------------------------------------------------------------


def _cards(snapshot: Snapshot) -> str:
    traffic = snapshot["traffic"]
    cards = [
        ("Parties", words.connected_text(snapshot), "connected"),
        ("Steps a second", words.rate_text(snapshot["steps_per_second"]), "lately"),
        ("Time left", words.left_text(snapshot["stage_seconds_left"]), "of the stage"),
        ("Time so far", time_text(snapshot["seconds"]), snapshot["state"]),
        ("Up", *_ways(traffic, "up")),
        ("Down", *_ways(traffic, "down")),
    ]
    if score := snapshot["score"]:
        cards.append(("Score", f"{score['value']:.4f}", f"{score['name']} so far"))
    if n_refused := sum(snapshot["refused"].values()):
        reasons = (f"{reason} {n:,}" for reason, n in snapshot["refused"].items())
        cards.append(("Refused connections", f"{n_refused:,}", ", ".join(reasons)))
    items = (
        f'<div><dt>{name}</dt><dd class="value">{escape(value)}</dd>'
        f'<dd class="detail">{escape(detail)}</dd></div>'
        for name, value, detail in cards
    )
    return f'<dl class="numbers">{"".join(items)}</dl>'


def _ways(traffic: TrafficSnapshot, way: Way) -> tuple[str, str]:
    """Return the bytes of one direction and, beside them, those on the wire."""
    payload, wire = traffic["payload_bytes"][way], traffic["wire_bytes"][way]
    return bytes_text(payload), f"wire {bytes_text(wire)}"


# -- tables ----------------------------------------------------------------------------


def _parties(snapshot: Snapshot) -> str:
    heads = ("Party", "State", "#Up", "#Down", "#Rounds", "#Last heard")
    state = snapshot["state"]
    rows = (_party(name, party, state) for name, party in snapshot["parties"].items())
    return _section("Parties", heads, rows)


def _party(name: str, party: PartySnapshot, of_run: str) -> str:
    state = words.party_state(party, of_run)
    cells = [
        f'<th scope="row" class="name">{escape(name)}</th>',
        f'<td><span class="tag {state}">{state}</span>'
        f"<small>for {time_text(party['since_seconds'])}</small></td>",
    ]
    for way in get_args(Way):
        payload, wire = _ways(party["traffic"], way)
        cells.append(f'<td class="number">{payload}<small>{wire}</small></td>')
    heard = words.ago_text(party["heard_seconds"])
    cells.append(f'<td class="number">{party["traffic"]["rounds"]:,}</td>')
    cells.append(f'<td class="number">{heard}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _result(snapshot: Snapshot) -> str:
    """Return the score of every seed, once the run is complete."""
    rows = [
        f'<tr><th scope="row" class="name">{score["seed"]}</th>'
        f"<td>{escape(score['name'])}</td>"
        f'<td class="number">{score["value"]:.4f}</td></tr>'
        for score in snapshot["scores"]
    ]
    return _section("Result", ("Seed", "Measure", "#Score"), rows) if rows else ""


def _events(snapshot: Snapshot) -> str:
    rows = [
        f'<tr><td class="when">{event["time"][11:19]}</td>'
        f"<td>{escape(event['text'])}</td></tr>"
        for event in reversed(snapshot["events"][-8:])
    ]
    return _section("Lately", ("UTC", "What"), rows) if rows else ""


def _section(title: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table that scrolls alone; a head with # stands over numbers."""
    cells = "".join(
        f'<th scope="col"{" class=number" if head[0] == "#" else ""}>'
        f"{head.removeprefix('#')}</th>"
        for head in heads
    )
    return (
        f'<section class="card"><h2>{title}</h2>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table>'
        f"<thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        "</section>"
    )
