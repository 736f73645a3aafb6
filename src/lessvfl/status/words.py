"""A snapshot in words, the same on the page and in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessvfl.terms import bytes_text

if TYPE_CHECKING:
    from lessvfl.status.value import RunPlace, Snapshot, TrafficSnapshot


def time_text(seconds: float | None) -> str:
    """Write a length of time in its two largest units.

    >>> time_text(7.2), time_text(125), time_text(7260), time_text(None)
    ('7 s', '2 min 5 s', '2 h 1 min', '–')
    """
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes == 0:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} min {whole % 60} s"
    if days == 0:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def ago_text(seconds: float | None) -> str:
    """Write how long ago something was."""
    return "never" if seconds is None else f"{time_text(seconds)} ago"


def rate_text(steps_per_second: float | None) -> str:
    """Write a rate to three digits.

    >>> rate_text(1234.5), rate_text(0.5), rate_text(None)
    ('1,234', '0.5', '–')
    """
    if steps_per_second is None:
        return "–"
    if steps_per_second >= 100:
        return f"{steps_per_second:,.0f}"
    return f"{steps_per_second:.3g}"


def place_text(place: RunPlace) -> str:
    """Say where in its stage a run is, and in which of its seeds."""
    if place["stage"] is None:
        return "starting"
    stage = place["stage"].replace("_", " ")
    if (place["n_seeds"] or 1) > 1:
        stage = f"seed {place['seed_number']} of {place['n_seeds']}, {stage}"
    if place["step"] is not None:
        return f"{stage}: step {place['step']:,} of {place['n_steps']:,}"
    return f"{stage}: epoch {place['epoch']:g} of {place['n_epochs']:g}"


def headline(snapshot: Snapshot) -> str:
    """Say in one line what a run is doing."""
    state, message = snapshot["state"], snapshot["message"]
    if state == "running":
        return place_text(snapshot)
    if state == "done":
        return f"complete in {time_text(snapshot['seconds'])}{result_text(snapshot)}"
    return message if state == "waiting" else f"{state}: {message}"


def result_text(snapshot: Snapshot) -> str:
    """Say what came out, the mean of all seeds; nothing where nothing is known."""
    scores = snapshot["scores"]
    if not scores:
        return ""
    mean = sum(score["value"] for score in scores) / len(scores)
    of = f" (mean of {len(scores)} seeds)" if len(scores) > 1 else ""
    return f": {scores[0]['name'].replace('_', ' ')} {mean:.4f}{of}"


def connected_text(snapshot: Snapshot) -> str:
    """Say how many of the parties are connected."""
    parties = snapshot["parties"].values()
    return f"{sum(party['connected'] for party in parties)} of {len(parties)}"


def sent_text(traffic: TrafficSnapshot) -> str:
    """Say how many bytes of payload went up and down."""
    payload = traffic["payload_bytes"]
    return f"{bytes_text(payload['up'])} up, {bytes_text(payload['down'])} down"


def wire_text(traffic: TrafficSnapshot) -> str:
    """Say how many bytes there were on the wire."""
    return bytes_text(sum(traffic["wire_bytes"].values()))


def printable(text: str) -> str:
    r"""Replace what a terminal would obey rather than show.

    >>> printable("a\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
