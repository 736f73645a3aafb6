"""The numbers of the comparison: means over seeds, paired differences, factors."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lessvfl import methods
from lessvfl.report.finding import PairedGap
from lessvfl.report.tables import spread
from lessvfl.run import target
from lessvfl_bench.equal.cells import SCORES, STEPS, TRANSPORTS, Cell

ORIGINAL = "original"  # plain training without planted noise: where targets come from
BROKEN_DOWN = "less-vfl"  # the method whose bytes the breakdown begins with
RULE = "removed"  # how its lambdas were chosen
MIB = 2**20
# Name of a factor of the breakdown -> where it begins and ends: method, transport.
FACTORS = {
    **{
        name: ((BROKEN_DOWN, before), (BROKEN_DOWN, after))
        for name, before, after in zip(
            ("bits", "components", "epochs"), STEPS, STEPS[1:], strict=False
        )
    },
    "method": ((BROKEN_DOWN, STEPS[-1]), (methods.DEFAULT, STEPS[-1])),
}


@dataclass(frozen=True)
class CellRuns:
    """A cell's runs, and by which rule its lambdas were chosen."""

    cell: Cell
    rule: str
    trial: Mapping[str, Any]  # of the rows held out, which gave it; may be empty
    runs: Sequence[Mapping[str, Any]]  # one for each seed

    @property
    def fell_back(self) -> bool:
        """Tell whether no lambdas removed enough noise, and these stand in for them."""
        if self.rule != RULE:
            return False
        return bool(self.trial["removed_share"] < target.REMOVED_SHARE)

    def mean(self, number: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        """Return the mean of a number over the seeds that have it."""
        found = spread([number(run) for run in self.runs])
        return None if found is None else found.mean


def rows(found: Sequence[CellRuns]) -> list[dict[str, Any]]:
    """Return a row for every data set, transport, method and rule."""
    return [
        {
            "data": one.cell.data,
            "transport": one.cell.transport,
            "method": one.cell.method,
            "rule": one.rule or None,
            "lambdas": one.trial.get("lambdas", {}),
            "fell_back": one.fell_back,
            **{name: one.mean(number) for name, number in NUMBERS.items()},
            "by_seed": {
                n: list(map(number, one.runs)) for n, number in NUMBERS.items()
            },
            "target": _to_target(one, _same(found, one, "plain", ORIGINAL), "accuracy"),
            "balanced_target": _to_target(
                one, _same(found, one, "plain", ORIGINAL), "balanced_accuracy"
            ),
            "ahead": {score: _ahead(found, one, score) for score in SCORES},
        }
        for one in found
        if one.rule != ORIGINAL and one.cell.transport in TRANSPORTS
    ]


def _mib(run: Mapping[str, Any]) -> float:
    return float(sum(run["bytes"].values()) / MIB)


NUMBERS: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    **{
        name: operator.itemgetter(name)
        for name in (*SCORES, "removed_share", "real_kept_share", "rounds")
    },
    "mib": _mib,
    "seconds": operator.itemgetter("seconds"),
}


def _same(
    found: Sequence[CellRuns], like: CellRuns, method: str, rule: str = ""
) -> CellRuns | None:
    """Return the cell of another method on the same data, under the same transport."""
    key = (like.cell.data, like.cell.transport, method, rule)
    for one in found:
        if (one.cell.data, one.cell.transport, one.cell.method, one.rule) == key:
            return one
    return None


def _to_target(
    one: CellRuns, original: CellRuns | None, score: str
) -> dict[str, Any] | None:
    """Return who reached 90 % of the best without noise, and at what cost.

    The best is that of the same seed, in any epoch, with 80 % of the noise removed.
    A target that the most frequent class reaches is degenerate: it counts for nothing.
    """
    if original is None:
        return None
    hits, thresholds = [], []
    for run, base in zip(one.runs, original.runs, strict=True):
        threshold = target.ACCURACY_SHARE * base["best"][score]
        thresholds.append(threshold)
        scores, removed = (
            [point[key] for point in run["curve"]] for key in (score, "removed_share")
        )
        place = target.first_hit(scores, removed, threshold, strict=False)
        if place >= 0:
            hits.append(run["curve"][place])
    constant = one.runs[0]["majority"] if score == "accuracy" else 0.0
    return {
        "score": statistics.fmean(thresholds),
        "degenerate": constant >= min(thresholds),
        "hits": len(hits),
        "seeds": len(one.runs),
        "mib": statistics.fmean(p["payload_bytes"] / MIB for p in hits)
        if hits
        else None,
        "rounds": statistics.fmean(p["rounds"] for p in hits) if hits else None,
    }


def _ahead(
    found: Sequence[CellRuns], one: CellRuns, score: str
) -> dict[str, Any] | None:
    """Return by how much ``less-vfl-auto`` is ahead, seed by seed: mean and error."""
    ours = _same(found, one, methods.DEFAULT)
    if ours is None or ours is one or len(one.runs) < 2:
        return None
    pairs = [(a[score], b[score]) for a, b in zip(ours.runs, one.runs, strict=True)]
    if any(None in pair for pair in pairs):
        return None
    return asdict(PairedGap.of([a - b for a, b in pairs]))


def verdicts(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Count, by transport, rival and rule, on which data ``less-vfl-auto`` is ahead."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in table:
        for score, gap in row["ahead"].items():
            if gap is None:
                continue
            about = {
                "transport": row["transport"],
                "method": row["method"],
                "rule": row["rule"],
                "score": score,
            }
            one = found.setdefault(
                tuple(about.values()), about | {"ahead": [], "equal": [], "behind": []}
            )
            one[gap["verdict"]].append(row["data"])
    return list(found.values())


# -- from the paper's bytes to ours ----------------------------------------------------


def breakdown(found: Sequence[CellRuns]) -> list[dict[str, Any]]:
    """Return, by data set, the factors between the paper's bytes and ours.

    Each factor is that of two runs which differ in one thing; their product is the
    whole. Bytes of a whole run, both ways.
    """
    names = dict.fromkeys(one.cell.data for one in found)
    return [row for name in names if (row := _factors(found, name)) is not None]


def _factors(found: Sequence[CellRuns], name: str) -> dict[str, Any] | None:
    """Return the chain of one data set; None where a link of it was not run."""
    by_place: dict[tuple[str, str], CellRuns] = {}
    for one in found:
        if one.cell.data == name and one.rule in (RULE, ""):
            by_place[one.cell.method, one.cell.transport] = one
    chain = [FACTORS["bits"][0], *(after for _, after in FACTORS.values())]
    if any(place not in by_place for place in chain):
        return None
    mib = [by_place[place].mean(_mib) or math.nan for place in chain]
    accuracy = [by_place[p].mean(lambda run: run["accuracy"]) for p in chain]
    return {
        "data": name,
        "mib": mib,
        "accuracy": accuracy,
        "factors": {
            factor: before / after
            for factor, before, after in zip(FACTORS, mib, mib[1:], strict=False)
        },
        "whole": mib[0] / mib[-1],
    }
