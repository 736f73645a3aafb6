"""The numbers of the comparison: means over seeds, the best, paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lessvfl.report.finding import PairedGap
from lessvfl_bench.rivals.columns import COLUMNS, RivalColumn
from lessvfl_bench.rivals.places import RivalCell

Numbers = Mapping[str, Any]  # of one run
RivalRow = dict[str, Any]
BySeed = Sequence[float | None]


@dataclass(frozen=True)
class RivalRuns:
    """The runs of a method at a place, one a seed."""

    cell: RivalCell
    runs: Sequence[Numbers]

    def by_seed(self, column: RivalColumn) -> list[float | None]:
        """Return a number of every run, in the order of the seeds."""
        return [run.get(column.key) for run in self.runs]


def rows(found: Sequence[RivalRuns], default: str) -> list[RivalRow]:
    """Return a row for every place and method."""
    made = []
    for place in dict.fromkeys(one.cell.place for one in found):
        own = [one for one in found if one.cell.place == place]
        ours = next((one for one in own if one.cell.name == default), None)
        best = {column.key: _best(own, column) for column in COLUMNS}
        made += [
            {
                "place": place.title,
                "data": place.data,
                "kind": place.kind,
                "method": one.cell.name,
                "refused": next((r["refused"] for r in one.runs if r["refused"]), None),
                "lambdas": dict(one.cell.lambdas),
                **{column.key: _mean(one.by_seed(column)) for column in COLUMNS},
                "best": [key for key, names in best.items() if one.cell.name in names],
                "error": {c.key: _error(one.by_seed(c)) for c in COLUMNS},
                "ahead": {c.key: _ahead(ours, one, c) for c in COLUMNS},
                "by_seed": {c.key: one.by_seed(c) for c in COLUMNS},
            }
            for one in own
        ]
    return made


def _mean(values: BySeed) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _error(values: BySeed) -> float | None:
    """Return the standard error of the mean."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    return statistics.stdev(known) / math.sqrt(len(known))


def _best(own: Sequence[RivalRuns], column: RivalColumn) -> set[str]:
    """Return the methods with the best mean, or not told apart from it.

    That is within two standard errors of the difference, paired by seed. Nothing is
    best where all are the same.
    """
    means = {one.cell.name: _mean(one.by_seed(column)) for one in own}
    known = {
        name: column.sign * mean for name, mean in means.items() if mean is not None
    }
    if len(set(known.values())) < 2:
        return set()
    first = max(known, key=lambda name: known[name])
    values = {one.cell.name: one.by_seed(column) for one in own}
    gaps = {name: _gap(values[first], values[name], column.sign) for name in known}
    return {
        name
        for name, gap in gaps.items()
        if known[name] == known[first] or (gap is not None and gap.verdict == "equal")
    }


def _gap(one: BySeed, other: BySeed, sign: int) -> PairedGap | None:
    """Return by how much one is better, by the seeds that both have: two or more."""
    pairs = zip(one, other, strict=True)
    gaps = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
    return PairedGap.of(gaps) if len(gaps) > 1 else None


def _ahead(
    ours: RivalRuns | None, one: RivalRuns, column: RivalColumn
) -> dict[str, Any] | None:
    """Return by how much the default method is better than a rival."""
    if ours is None or ours is one:
        return None
    gap = _gap(ours.by_seed(column), one.by_seed(column), column.sign)
    return None if gap is None else asdict(gap)


def verdicts(made: Sequence[RivalRow]) -> list[dict[str, Any]]:
    """Say by kind of place, rival and column where the default method is better."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in made:
        for key, gap in row["ahead"].items():
            if gap is None:
                continue
            about = {"kind": row["kind"], "method": row["method"], "column": key}
            empty: dict[str, Any] = {"ahead": [], "equal": [], "behind": []}
            one = found.setdefault((row["kind"], row["method"], key), about | empty)
            one[gap["verdict"]].append(row["place"])
    return list(found.values())


def behind(made: Sequence[RivalRow]) -> list[dict[str, Any]]:
    """Return, by place and column, the rival that is most ahead of the default.

    Those alone that are beyond two standard errors. Who removed nothing keeps
    everything, which counts for nothing.
    """
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for row in made:
        for key, gap in row["ahead"].items():
            if gap is None or gap["verdict"] != "behind":
                continue
            if key == "real_kept_share" and row["removed_share"] == 0:
                continue
            place = (row["place"], key)
            if place not in worst or gap["mean"] < worst[place]["mean"]:
                about = {"place": row["place"], "column": key, "method": row["method"]}
                worst[place] = about | {"mean": gap["mean"], "error": gap["error"]}
    return list(worst.values())
