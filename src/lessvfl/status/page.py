"""A snapshot as one self-contained HTML document, in the look of the report.

It is written here alone: the script fetches the document again and takes over what
changed, so that page and script cannot disagree.
"""

from __future__ import annotations

import functools
from typing import Any, get_args

from lessvfl import templates
from lessvfl.status import words
from lessvfl.status.snapshot import PartySnapshot, Snapshot, TrafficSnapshot, Way
from lessvfl.terms import bytes_text, time_text

PACKAGE = "lessvfl.status"
MOST_EVENTS = 8


def render(snapshot: Snapshot) -> str:
    """Return the page of a snapshot."""
    state, headline = snapshot["state"], words.headline(snapshot)
    banner = ""  # what keeps the run from going on
    if state == "failed":  # its sentence is in the banner
        headline = f"failed at {words.place_text(snapshot)}"
        banner = snapshot["message"]
    elif state == "paused":
        place = words.place_text(snapshot)
        banner = f"Stands at {place}; goes on by itself when everybody is back."
    since = snapshot["started"][:16].replace("T", " ")
    parties = snapshot["parties"].items()
    return (
        templates.environment(PACKAGE)
        .get_template("page.html.j2")
        .render(
            headline=headline,
            run=snapshot["run"],
            state=state,
            banner=banner,
            line=f"{words.title(snapshot)} · started {since} UTC",
            cards=_cards(snapshot),
            scores=snapshot["scores"],
            parties=[_party(name, party, state) for name, party in parties],
            events=snapshot["events"][-MOST_EVENTS:][::-1],
            version=snapshot["lessvfl"],
        )
    )


@functools.cache
def policy() -> str:
    """Return the content security policy: our style, our script, this server."""
    style, script = (
        templates.digest(PACKAGE, name) for name in ("page.css", "page.js")
    )
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _cards(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """Return the key numbers: name, value, detail."""
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
    return cards


def _ways(traffic: TrafficSnapshot, way: Way) -> tuple[str, str]:
    """Return the bytes of one direction and, beside them, those on the wire."""
    payload, wire = traffic["payload_bytes"][way], traffic["wire_bytes"][way]
    return bytes_text(payload), f"wire {bytes_text(wire)}"


def _party(name: str, party: PartySnapshot, of_run: str) -> dict[str, Any]:
    return {
        "name": name,
        "state": words.party_state(party, of_run),
        "since": time_text(party["since_seconds"]),
        "ways": [_ways(party["traffic"], way) for way in get_args(Way)],
        "rounds": f"{party['traffic']['rounds']:,}",
        "heard": words.ago_text(party["heard_seconds"]),
    }
