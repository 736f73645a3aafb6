"""What a run spends of privacy, in words: before it begins, at its end, on its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lessvfl.run.record import RunRecord

HEADS = (
    "Of",
    "Mechanism",
    "Epsilon",
    "Delta",
    "Epsilon of each release",
    "Releases",
    "What is hidden: whether",
    "What is counted",
)
MEANING = (
    "Epsilon bounds how much surer anybody gets: the odds of one guess against another "
    "change by a factor of e to its power at most (2.7 for 1, 20 for 3, 3,000 for 8), "
    "but for a chance of delta."
)
NOT_COVERED = (
    "Not counted: how long messages take and are, true labels of test rows, by which "
    "the server scores, and predictions after the run."
)
NOT_BY_NOISE = (
    "Nor do epsilons of noise count which components and features stay, and when "
    "training ends."
)


def lines(privacy: Mapping[str, Any] | None, spends: str = "spends") -> list[str]:
    """Say what a run spends of each protected side, by `privacy` of its numbers.

    Also what all runs so far have spent, where a side was told of more than this one.
    """
    if not privacy:
        return []
    priced, together = list(_sides(privacy)), []
    if priced and "all_runs" in privacy:
        (of, first), epsilon = priced[0], privacy["all_runs"]
        if epsilon != first["epsilon"]:
            words = _epsilon_words(epsilon)
            together.append(f"all runs so far have spent {words} of {of}")
    return [
        *(
            f"this run {spends} {_epsilon_words(one['epsilon'], one['delta'])} of {of}"
            for of, one in priced
        ),
        *together,
        *(f"{name} has no epsilon" for name in privacy["unpriced"]),
    ]


def spent(record: RunRecord) -> list[str]:
    """Say what all seeds of a record spend together, if anything is protected."""
    privacy = record.runs[0].get("privacy") if record.runs else None
    return [f"Privacy: {line}." for line in lines(privacy)]


def section(record: RunRecord) -> dict[str, Any] | None:
    """Return what a page says: a table by side, and sentences.

    None where no defence is on, and none was asked for.
    """
    privacy = record.runs[0].get("privacy") if record.runs else None
    bundle = record.header.get("privacy_bundle")
    if not privacy:
        if bundle is None:
            return None
        privacy = {"labels": None, "columns": {}, "unpriced": []}
    rows = []
    for of, one in _sides(privacy):
        epsilon, each = (
            "infinite" if one[name] is None else f"{one[name]:.3g}"
            for name in ("epsilon", "each")
        )
        counts = (f"{one['delta']:g}", each, f"{one['releases']:,}")
        rows.append(
            (of, one["mechanism"], epsilon, *counts, one["adjacency"], one["covers"])
        )
    sentences = [f"{line[0].upper()}{line[1:]}." for line in lines(privacy)]
    if bundle is not None:
        changes = ", ".join(record.header.get("privacy_changes", ()))
        changed = f"; --set changes it: {changes}" if changes else ""
        sentences.insert(0, f"Chosen by --privacy {bundle}{changed}.")
    if not privacy["labels"] and record.side != "party":
        sentences.append("Labels have no epsilon.")
    if not any(privacy["columns"].values()) and record.side != "server":
        sentences.append("Columns have no epsilon.")
    if rows:
        sentences += [MEANING, NOT_COVERED]
    if any(row[1].startswith("noise") for row in rows):
        sentences.append(NOT_BY_NOISE)
    return {"sentences": sentences, "heads": HEADS, "rows": rows}


def _sides(privacy: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield of what something is spent, and what; parties that agree are one."""
    if labels := privacy["labels"]:
        yield "every label", labels
    columns = privacy["columns"]
    first = next(iter(columns.values()), None)
    if len(columns) > 1 and first and all(one == first for one in columns.values()):
        yield "every row at each party", first
        return
    for name, one in columns.items():
        if one:
            yield f"every row at {name}", one


def _epsilon_words(epsilon: float | None, delta: float | None = None) -> str:
    if epsilon is None:
        return "more than any epsilon"
    beside = "" if delta is None else f" (delta {delta:g})"
    return f"epsilon {epsilon:.3g}{beside}"
