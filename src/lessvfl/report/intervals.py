"""How far scores may be off by the choice of test rows, over all runs of a record.

A run's interval is that of its own test rows. Seeds test on rows of the same table, and
what one of them may be off by, their mean may be: its interval is the mean of theirs.
Folds test on different rows, so that their errors are independent, and the interval of
their mean is narrower by the root of their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from lessvfl.report import tables
from lessvfl.report.tables import number
from lessvfl.run.record import RunRecord

LEVEL = "95 %"
# The bias of what a score falls without a party (docs/benchmarks.md), said beside it.
OVERSTATED = "overstated 1.3 to 10 times where measured"
RUN_WITHOUT = "the others make up for some of it: only a run without the party tells"


class MeanInterval(NamedTuple):
    """The mean of something over runs, and where it may be."""

    mean: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """Say from where to where."""
        return f"{self.low:.3f} to {self.high:.3f}"


def of_score(record: RunRecord, name: str) -> MeanInterval | None:
    """Return the interval of a score at the end; None where a run has none.

    It is that of the ensemble, where seeds predict together.
    """
    ends = [("intervals", name, end) for end in ("low", "high")]
    if (whole := together(record, name)) is not None:
        low, high = (number(record.ensemble, *path) for path in ends)
        return None if low is None or high is None else MeanInterval(whole, low, high)
    paths = [(name, "final"), *ends]
    return _over_runs(record, [[number(run, *p) for p in paths] for run in record.runs])


def together(record: RunRecord, name: str) -> float | None:
    """Return a score of all seeds together, where they are an ensemble."""
    return number(record.ensemble, "scores", name)


def of_loss(record: RunRecord, party: str) -> MeanInterval | None:
    """Return how much the leading score falls without a party, and its interval."""
    paths = [("missed", party, name) for name in ("loss", "low", "high")]
    return _over_runs(record, [[number(run, *p) for p in paths] for run in record.runs])


def _over_runs(
    record: RunRecord, by_run: Sequence[Sequence[float | None]]
) -> MeanInterval | None:
    """Average value, low and high of every run; None unless all runs have all."""
    known = [[value for value in one if value is not None] for one in by_run]
    if not known or any(len(one) < 3 for one in known):
        return None
    values, lows, highs = zip(*known, strict=True)
    mean, folds = fmean(values), tables.n_folds(record)
    below = [value - low for value, low in zip(values, lows, strict=True)]
    above = [high - value for value, high in zip(values, highs, strict=True)]
    if folds == 1:
        return MeanInterval(mean, mean - fmean(below), mean + fmean(above))
    low, high = (math.sqrt(fmean([w * w for w in s]) / folds) for s in (below, above))
    return MeanInterval(mean, mean - low, mean + high)


def leading_words(record: RunRecord, name: str, mean: str) -> str:
    """Say a score with its interval: that of an ensemble before the mean of its seeds.

    `mean` is how the mean over all runs is written.
    """
    interval, whole = of_score(record, name), together(record, name)
    around = f" ({interval.words})" if interval else ""
    if whole is None:
        return f"{mean}{around}"
    return f"{whole:.3f}{around}; seeds: {mean}"


def loss_words(record: RunRecord, party: str) -> str:
    """Say how much the leading score falls without a party, and where it may be."""
    loss = of_loss(record, party)
    if loss is None:
        return tables.MISSING
    return f"{loss.mean:.3f} ({loss.words}){', overstated' * (loss.low > 0)}"


def bias(record: RunRecord, party: str) -> str:
    """Say that what the score falls without a party is overstated, if it falls."""
    loss = of_loss(record, party)
    without, whole = tables.missed(record)[party]
    falls = loss.low > 0 if loss else round(whole - without, 3) > 0
    return f", {OVERSTATED}" if falls else ""


def note(record: RunRecord) -> str:
    """Say what the intervals of scores are; nothing where there are none."""
    name, _ = tables.first_score(record)
    if of_score(record, name) is None:
        return ""
    of = "the mean of all folds" if tables.n_folds(record) > 1 else "one run"
    if together(record, name) is not None:
        of = "the ensemble (of what a party adds: of one run)"
    data = record.header.get("data") or {}
    n_rows = (data.get("n_train") or 0) + (data.get("n_test") or 0)
    n_blocks = data.get("n_blocks") or n_rows
    what = "rows" if n_blocks == n_rows else "rows that belong together"
    return (
        f"Intervals ({LEVEL}) are of {of} and say what the choice of test rows may "
        f"change (1,000 resamples of {what}), not what other training rows would."
    )
