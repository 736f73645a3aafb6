"""What a run is worth where its test rows are drawn without labels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lessvfl import data, methods
from lessvfl.errors import DataError
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl_bench.equal.cells import PARTIES, SPURIOUS
from lessvfl_bench.equal.run import DATA
from lessvfl_bench.shapes import held_out
from lessvfl_bench.shapes.run import BY_SHARES
from lessvfl_bench.study import NameList, NumberList, Repeated, Study, number, option

RARE = ("3.5 % positive", "1 % positive")
SPLITS = ("stratified", "random")
WORTH = ("balanced accuracy", "AUC", "noise removed", "real kept")

SplitCase = tuple[str, str, int]  # data set or shape, split, seed
PairedRuns = list[tuple[Mapping[str, float], Mapping[str, float]]]


@dataclass(frozen=True)
class SplitComparison(Study):
    """Test rows drawn without labels, beside test rows drawn class by class.

    less-vfl-auto, in one process: data sets with 50 % planted noise, and made-up tables
    with a rare class, whose useless columns are the noise. Every cell holds the mean
    over seeds with split=stratified and with split=random, then the mean of the
    differences within a seed and its standard error. A seed that either split refuses
    is left out; 'seeds' counts the others.
    """

    data: NameList = option(DATA, "By name or file.")
    shapes: Repeated = option(RARE, "Made-up tables, as in 'lessvfl bench shapes'.")
    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each, with either split.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    smallest: ClassVar = {"data": ("breast-cancer",), "shapes": (), "seeds": (0, 1)}

    @property
    def places(self) -> tuple[str, ...]:
        """Return data sets and shapes by their names."""
        return (*self.data, *self.shapes)

    def cases(self) -> list[SplitCase]:
        """Return data set or shape, split and seed."""
        return [
            (place, split, seed)
            for place in self.places
            for seed in self.seeds
            for split in SPLITS
        ]

    def measure(self, case: SplitCase) -> dict[str, float]:
        """Run one; nothing where its split is refused."""
        place, split, seed = case
        if place in self.shapes:
            shape = held_out.make(place, seed)
            own = profiles.resolve(
                methods.DEFAULT, "default", shape.dataset, {"split": split, **BY_SHARES}
            )
            job = simulate.Job(shape.dataset, own, shape.sizes)
        else:
            dataset = data.load(place, data_dir=self.data_dir)
            own = profiles.resolve(
                methods.DEFAULT, "default", dataset, {"split": split}
            )
            job = simulate.Job(dataset, own, PARTIES.get(place), SPURIOUS)
        try:
            (run,) = simulate.simulate(job, [seed])
        except DataError:
            return {}
        scores = (run.numbers[name]["final"] for name in ("balanced_accuracy", "auc"))
        return dict(zip(WORTH, (*scores, *_selection(run.numbers)), strict=True))

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every data set and shape."""
        rows = []
        for place in self.places:
            both = [
                tuple(found[place, split, s] for split in SPLITS) for s in self.seeds
            ]
            pairs: PairedRuns = [(one, other) for one, other in both if one and other]
            rows.append([place, len(pairs), *(_cell(pairs, what) for what in WORTH)])
        return markdown_table(["data", "seeds", *WORTH], rows)


def _selection(numbers: Mapping[str, Any]) -> tuple[float, float]:
    """Return the share of noise removed and of real features kept."""
    planted, truth = numbers["spurious"], numbers["truth"]
    if planted is not None:
        return planted["removed_share"], planted["real_kept_share"]
    kept = truth["significant_kept"] / truth["significant"]
    return truth["other_removed"] / truth["other"], kept


def _cell(pairs: PairedRuns, what: str) -> str:
    """Write both means, and the mean difference with its standard error."""
    if not pairs:
        return ""
    sides = zip(*pairs, strict=True)
    means = [statistics.fmean(run[what] for run in side) for side in sides]
    each = [blind[what] - by_class[what] for by_class, blind in pairs]
    return f"{', '.join(map(number, means))}: {_with_error(each)}"


def _with_error(values: Sequence[float]) -> str:
    """Write a mean of differences with its standard error."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    error = spread / math.sqrt(len(values))
    return f"{statistics.fmean(values):+.3f} ± {error:.3f}"
