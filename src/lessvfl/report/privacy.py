"""What a run spends of privacy, in words: before it begins, at its end, on its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def lines(found: Mapping[str, Any] | None, spends: str = "spends") -> list[str]:
    """Say what a run spends of each protected side, by `privacy` of its numbers."""
    if not found:
        return []
    priced = [(f"every {of}", one) for of, one in _sides(found)]
    return [
        *(f"this run {spends} {_epsilon(one)} of {of}" for of, one in priced),
        *_of_all_runs(found, priced),
        *(f"{name} has no epsilon" for name in found["unpriced"]),
    ]


def _of_all_runs(
    found: Mapping[str, Any], priced: Sequence[tuple[str, Mapping[str, Any]]]
) -> Sequence[str]:
    """Say what a side's runs have spent so far, where they are more than this one."""
    if "all_runs" not in found or not priced:
        return []
    (of, one), together = priced[0], found["all_runs"]
    if together == one["epsilon"]:
        return []
    spent = "more than any epsilon" if together is None else f"epsilon {together:.3g}"
    return [f"all runs so far have spent {spent} of {of}"]


def spent(record: RunRecord) -> list[str]:
    """Say what all seeds of a record spend together, if anything is protected."""
    return [f"Privacy: {line}." for line in lines(_of(record))]


def section(record: RunRecord) -> dict[str, Any] | None:
    """Return what a page says: a table by side, and sentences.

    None where no defence is on, and none was asked for.
    """
    found, bundle = _of(record), record.header.get("privacy_bundle")
    if not found:
        if bundle is None:
            return None
        found = {"labels": None, "columns": {}, "unpriced": []}
    rows = [
        (
            f"every {of}",
            one["mechanism"],
            _number(one["epsilon"]),
            f"{one['delta']:g}",
            _number(one["each"]),
            f"{one['releases']:,}",
            one["adjacency"],
            one["covers"],
        )
        for of, one in _sides(found)
    ]
    said = [f"{line[0].upper()}{line[1:]}." for line in lines(found)]
    if bundle is not None:
        changes = ", ".join(record.header.get("privacy_changes", ()))
        changed = f"; --set changes it: {changes}" if changes else ""
        said.insert(0, f"Chosen by --privacy {bundle}{changed}.")
    if not found["labels"] and record.side != "party":
        said.append("Labels have no epsilon.")
    if not any(found["columns"].values()) and record.side != "server":
        said.append("Columns have no epsilon.")
    if rows:
        said += [MEANING, NOT_COVERED]
    if any(row[1].startswith("noise") for row in rows):
        said.append(NOT_BY_NOISE)
    return {"sentences": said, "heads": HEADS, "rows": rows}


def _of(record: RunRecord) -> Mapping[str, Any] | None:
    """Return what all seeds together spend: every run says it."""
    return record.runs[0].get("privacy") if record.runs else None


def _sides(found: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return what is spent by what it is spent of; parties that agree are one."""
    own = [(name, one) for name, one in found["columns"].items() if one]
    alike = len(own) == len(found["columns"]) and all(o == own[0][1] for _, o in own)
    if own and alike and len(own) > 1:
        columns = [("row at each party", own[0][1])]
    else:
        columns = [(f"row at {name}", one) for name, one in own]
    labels = found["labels"]
    return [*([("label", labels)] if labels else []), *columns]


def _epsilon(one: Mapping[str, Any]) -> str:
    if one["epsilon"] is None:
        return "more than any epsilon"
    return f"epsilon {one['epsilon']:.3g} (delta {one['delta']:g})"


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3g}"
