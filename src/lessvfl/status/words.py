"""A snapshot in words, the same on the page and in the terminal."""

from __future__ import annotations

from lessvfl.status.snapshot import (
    PartySnapshot,
    RunPlace,
    Score,
    Snapshot,
    TrafficSnapshot,
)
from lessvfl.terms import SCORE_TEXTS, bytes_text, plural, stage_text, time_text

TRAINING = ("pretrain", "joint_lasso", "train_first", "train")  # told in epochs


def left_text(seconds: float | None) -> str:
    """Write how long something takes; a dash where nobody knows."""
    return "–" if seconds is None else time_text(seconds)


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
        return place["doing"] or "starting"
    stage = _stage_text(place)
    step, n_steps = place["step"], place["n_steps"]
    epoch, n_epochs = place["epoch"], place["n_epochs"]
    if step and n_steps and n_steps > 1:
        return f"{stage}: step {step:,} of {n_steps:,}"
    if epoch is None or n_epochs is None:
        return stage
    if n_epochs == 1 and place["stage"] not in TRAINING:
        return stage
    if epoch in (0, n_epochs):
        return f"{stage}: {plural(n_epochs, 'epoch')}"
    return f"{stage}: epoch {epoch:.3g} of {n_epochs:g}"


def end_text(place: RunPlace, planned: float, score: Score | None) -> str:
    """Say what came out of a stage that is over; nothing where nothing is known."""
    end, epoch = "done", place["epoch"]
    if place["stage"] in TRAINING and epoch and epoch < planned:
        done = f"{round(epoch, 2):g}"
        end = f"ended after {done} of at most {plural(planned, 'epoch')}"
    elif score is None:
        return ""
    if score is not None:
        end += f", {score_text(score)}"
    return f"{_stage_text(place)}: {end}"


def _stage_text(place: RunPlace) -> str:
    stage = str(place["stage"])
    text = stage_text(stage)
    if (place["n_seeds"] or 1) > 1:
        which = f"{place['seed_number']} of {place['n_seeds']}"
        text = f"seed {place['seed']} ({which}), {text}"
    return text


def score_text(score: Score) -> str:
    """Write a score on test rows."""
    name = SCORE_TEXTS.get(score["name"], score["name"])
    return f"test {name} {score['value']:.3f}"


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
    name = SCORE_TEXTS.get(scores[0]["name"], scores[0]["name"])
    return f": {name} {mean:.4f}{of}"


def title(snapshot: Snapshot) -> str:
    """Say what is run, and at a party who this is."""
    parts = [f"party {snapshot['side']}"] if snapshot["side"] else []
    on = f" on {snapshot['data']}" if snapshot["data"] else ""
    parts.append(f"{snapshot['method'] or 'a run'}{on}")
    if snapshot["run"] not in ("", "run"):  # the usual folder says nothing
        parts.append(f"run {snapshot['run']}")
    return " · ".join(parts)


def party_state(party: PartySnapshot, state: str) -> str:
    """Say how a party is, in a run of this state: one that left at its end is done."""
    if party["connected"]:
        return "connected"
    return "done" if state == "done" else "away"


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
