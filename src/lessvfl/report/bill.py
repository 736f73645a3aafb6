"""The whole bill of a run between machines: every part of it, at the server's socket.

The payload is what the method sends, a frame what a message is with all that says what
it is (:mod:`lessvfl.wire.codec`), and the socket has the engine's frames, TLS and its
handshakes besides. Each byte of it is one of a party's socket, too. The party of the
server's own columns has none, and its payload passes no wire.
"""

from __future__ import annotations

from collections import Counter

from lessvfl import terms
from lessvfl.report import tables
from lessvfl.run.record import RunRecord

PARTS = {  # as a reader calls it: its stages, and what is none
    "alignment": ("align",),
    "training": ("pretrain", "joint_lasso", "train_first", "train"),
    "selection": ("embed", "select_components", "select_features", "select_again"),
    "evaluation": ("evaluate",),
    "signs of life": ("alive",),
    "joining and marks": ("around",),
}
PartSums = dict[str, tuple[int, int, int]]  # by part
PARTIAL = "only what passed since the server was started again"
MEASURES = ("by_stage", "frames", "socket")


def sums(record: RunRecord) -> PartSums:
    """Return by part the bytes of payload, of frames and at the socket.

    Both directions, all parties that dial, all seeds, which share an alignment; nothing
    where no socket is known. Payload that stayed in the server's process passed none.
    """
    bills = [run.get("communication") or {} for run in record.runs]
    if not any(bill.get("socket") for bill in bills):
        return {}
    inside = Counter[str]()  # the payload of the server's own columns, by stage
    for line in (line for run in record.runs for line in run.get("bill") or []):
        if line["party"] == record.header.get("own"):
            inside[line["stage"]] += line["payload_bytes"]
    by_part = {}
    for part, stages in PARTS.items():
        payload, frames, socket = (
            sum(
                int(tables.number(bill, of, stage, way) or 0)
                for bill in bills
                for stage in stages
                for way in ("up", "down")
            )
            for of in MEASURES
        )
        if socket:
            payload -= sum(inside[stage] for stage in stages)
            by_part[part] = (payload, frames, socket)
    return by_part


def whose(record: RunRecord) -> str:
    """Say of how many runs the bill is, where there are several."""
    n_runs = len(record.runs)
    return f"all {n_runs} runs together" if n_runs > 1 else ""


def rows(record: RunRecord) -> list[dict[str, str]]:
    """Return a row for each part that a run has, and one for all."""
    by_part = sums(record)
    partial = is_partial(by_part)
    if by_part:
        payload, frames, socket = map(sum, zip(*by_part.values(), strict=True))
        by_part["all"] = (payload, frames, socket)
    return [
        {
            "part": part,
            "payload": terms.bytes_text(payload),
            "frames": terms.bytes_text(frames),
            "at the socket": terms.bytes_text(socket),
            "socket / payload": (
                f"{socket / payload:.2f}" if payload and not partial else ""
            ),
        }
        for part, (payload, frames, socket) in by_part.items()
    ]


def is_partial(by_part: PartSums) -> bool:
    """Tell whether a server that broke off took some bytes with it, not of payload."""
    return any(frames < payload for payload, frames, _ in by_part.values())


def words(record: RunRecord) -> str:
    """Say in a sentence what went over the server's socket; of which part how much."""
    by_part = sums(record)
    if not by_part:
        return ""
    total = terms.bytes_text(sum(socket for *_, socket in by_part.values()))
    each = ", ".join(f"{p} {terms.bytes_text(n)}" for p, (*_, n) in by_part.items())
    runs = f", {of}" if (of := whose(record)) else ""
    sentence = f"At the socket, both ways{runs}: {total} ({each})"
    if is_partial(by_part):
        return f"{sentence}; {PARTIAL}"
    payload, _, socket = by_part.get("training", (0, 0, 0))
    if payload:
        sentence += f"; training {socket / payload:.2f} x its payload"
    return sentence
