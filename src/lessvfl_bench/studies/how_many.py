"""How many rows selection needs, what more parties change, and who would be missed."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from lessvfl import data, methods
from lessvfl.data import Dataset
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl.terms import MEASURES
from lessvfl_bench.study import (
    BY_CLASS,
    DATA,
    NameList,
    NumberList,
    Study,
    mean,
    option,
)

TEST_SHARE = 0.2
SIZES = {"rows": (100, 200, 500, 1000, 2000, 5000), "parties": (2, 4, 8, 16)}
COLUMNS = {
    "noise": "noise removed",
    "real": "real kept",
    "balanced": "balanced accuracy",
    "pooled": "logistic regression on all pooled columns",
    "megabytes": "MB both ways",
    "rounds": "rounds",
}


def first_rows(dataset: Dataset, n_rows: int | None, seed: int) -> Dataset:
    """Return some training rows, none of which is a test row; test rows are kept.

    A data set without test rows of its own gives a fifth of all rows to test on.
    """
    order = np.random.default_rng(seed).permutation(len(dataset.y))
    n_test = 0 if dataset.X_test is not None else round(TEST_SHARE * len(order))
    test, train = order[:n_test], order[n_test:][:n_rows]
    own = dataclasses.replace(dataset, X=dataset.X.take(train), y=dataset.y[train])
    if dataset.X_test is not None:
        return own
    X_test, y_test = dataset.X.take(test), dataset.y[test]
    return dataclasses.replace(own, X_test=X_test, y_test=y_test)


@dataclass(frozen=True)
class HowMany(Study):
    """How many rows selection needs (rows), and what more parties change (parties).

    less-vfl-auto with 50 % planted noise on the first n training rows, scored on the
    same test rows whatever n is, beside a logistic regression on the same pooled rows
    and columns, noise included; or the same table dealt to more parties, with all
    training rows. Means over seeds.
    """

    what: str = option("rows", "rows or parties.", positional=True)
    data: NameList = option(DATA, "Data sets.")
    sizes: NumberList = option((), "Rows or parties; several unless given.")
    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each.")
    data_dir: Path | None = option(None, "Folder of local data sets.")
    smallest: ClassVar = {"data": ("breast-cancer",), "sizes": (4,), "seeds": (0,)}

    def cases(self) -> list[tuple[str, int, int]]:
        """Return data set, size and seed."""
        sizes = self.sizes or SIZES[self.what]
        return [(n, size, s) for n in self.data for size in sizes for s in self.seeds]

    def measure(self, case: tuple[str, int, int]) -> dict[str, float]:
        """Run one; nothing where the data set has too few rows for it."""
        name, size, seed = case
        whole = data.load(name, data_dir=self.data_dir)
        dataset = first_rows(whole, size if self.what == "rows" else None, seed)
        if self.what == "rows" and size > len(dataset.y):
            return {}
        settings = profiles.resolve(methods.DEFAULT, "default", dataset, BY_CLASS)
        parties = size if self.what == "parties" else None
        job = simulate.Job(dataset, settings, parties, spurious=0.5)
        (run,) = simulate.simulate(job, [seed])
        numbers, problem = run.numbers, run.problem
        found = {
            "noise": numbers["spurious"]["removed_share"],
            "real": numbers["spurious"]["real_kept_share"],
            "balanced": numbers["balanced_accuracy"]["final"],
            "megabytes": sum(numbers["communication"]["payload_bytes"].values()) / 1e6,
            "rounds": numbers["communication"]["rounds"],
        }
        if self.what == "rows":
            X_train = np.hstack([party.X_train for party in problem.parties])
            X_test = np.hstack([party.X_test for party in problem.parties])
            pooled = LogisticRegression(max_iter=2000).fit(X_train, problem.y_train)
            right = balanced_accuracy_score(problem.y_test, pooled.predict(X_test))
            found["pooled"] = float(right)
        return found

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every data set and size."""
        runs: dict[Any, list[dict[str, float]]] = {}
        for (name, size, _), one in found.items():
            if one:
                runs.setdefault((name, size), []).append(one)
        shown = [key for key in COLUMNS if key != "pooled" or self.what == "rows"]
        rows = (
            [name, f"{size:,}", *(f"{mean(some, key):.3f}" for key in shown)]
            for (name, size), some in runs.items()
        )
        heads = ["data", self.what, *(COLUMNS[key] for key in shown)]
        return markdown_table(heads, rows)


@dataclass(frozen=True)
class Missed(Study):
    """Who would be missed: what a run says, beside runs without each party.

    A run of less-vfl-auto says at its end what its score would be without each party.
    Here every party is really left out: the same seed, settings and columns, with all
    parties but that one. A line for each data set, seed and party with both losses of
    the score, then for each data set their rank correlation and means.
    """

    data: NameList = option(DATA, "Data sets.")
    seeds: NumberList = option((0, 1, 2), "One run each.")
    data_dir: Path | None = option(None, "Folder of local data sets.")
    smallest: ClassVar = {"data": ("breast-cancer",), "seeds": (0,)}

    def cases(self) -> list[tuple[str, int]]:
        """Return data set and seed."""
        return [(name, seed) for name in self.data for seed in self.seeds]

    def measure(self, case: tuple[str, int]) -> list[dict[str, Any]]:
        """Return by party what one seed loses without it, as it says and as it is."""
        name, seed = case
        dataset = data.load(name, data_dir=self.data_dir)
        settings = profiles.resolve(methods.DEFAULT, "default", dataset, BY_CLASS)
        (run,) = simulate.simulate(simulate.Job(dataset, settings), [seed])
        score = MEASURES[dataset.task][0]
        final = run.numbers[score]["final"]
        held = {table.name: table.features for table in run.problem.parties}
        found = []
        for party in held:
            others = {other: names for other, names in held.items() if other != party}
            job = simulate.Job(dataset, settings, others)
            (trained,) = simulate.simulate(job, [seed])
            without = run.numbers["without"][party][score]
            real = trained.numbers[score]["final"]
            line = {"data": name, "seed": seed, "party": party, score: final}
            line |= {"without": without, "trained_without": real}
            line["loss"] = round(final - without, 9)  # so that ties are ties
            line["trained_loss"] = round(final - real, 9)
            found.append(line)
        return found

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a line for each party, then how far the losses of a data set agree."""
        for name in self.data:
            own = [
                line for case, some in found.items() if case[0] == name for line in some
            ]
            yield from map(json.dumps, own)
            said, real = ([line[k] for line in own] for k in ("loss", "trained_loss"))
            summary = {
                "data": name,
                "n": len(own),
                "spearman": float(stats.spearmanr(said, real).statistic),
                "mean_loss": statistics.fmean(said),
                "mean_trained_loss": statistics.fmean(real),
            }
            yield json.dumps(summary)
