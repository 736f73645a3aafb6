"""Boosted trees across parties beside scikit-learn's on pooled columns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lessvfl import data
from lessvfl.core import metrics
from lessvfl.core.trees.cells import CellColumns
from lessvfl.core.trees.columns import ColumnHolder, LocalHolders
from lessvfl.core.trees.ensemble import EnsembleGrower, fit
from lessvfl.core.trees.targets import TreeTargets
from lessvfl.data import Problem
from lessvfl.methods.tree_queries import Phase
from lessvfl.methods.trees import GrowthConfig
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl_bench.equal.cells import PARTIES
from lessvfl_bench.study import (
    BY_CLASS,
    NameList,
    NumberList,
    Study,
    mean,
    number,
    option,
)

DATA = (
    *("phishing", "credit", "sylva_train", "gina_reconstruction", "activity_time265"),
    *("mfeat", "rosmap", "pcmac", "arcene", "tox171", "isolet1"),
)
ORDERS = ("gain", "depth")
N_LEAVES, N_BINS, LEAST_ROWS, RATE = 31, 64, 20, 0.1
DEEPEST = 30  # more than 31 leaves need
MIB = 2**20
TINY = 1e-300  # where a probability is none


@dataclass(frozen=True)
class TreeComparison(Study):
    """Boosted trees across parties beside HistGradientBoosting on pooled columns.

    Both grow as many trees of 31 leaves over 64 bins, with the same rate, from all
    columns, on one thread. Scikit-learn's splits the leaf that gains most; across
    parties trees grow so (gain), and level by level (depth). Of every data set: AUC
    (of many classes the mean of one against the others), the difference with its
    standard error over seeds, seconds as a multiple of scikit-learn's, MiB and rounds;
    and the seconds of one holder of all columns who is asked without messages.
    """

    data: NameList = option(DATA, "By name or file.")
    seeds: NumberList = option((0, 1, 2), "One split of rows each.")
    trees: int = option(100, "Of a model; of many classes each.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    smallest: ClassVar = {"data": ("breast-cancer",), "seeds": (0, 1), "trees": 5}

    def cases(self) -> list[tuple[str, int]]:
        """Return data set and seed."""
        return [(name, seed) for name in self.data for seed in self.seeds]

    def measure(self, case: tuple[str, int]) -> dict[str, Any]:
        """Grow trees of one split of rows, both ways across parties, and pooled."""
        name, seed = case
        dataset = data.load(name, data_dir=self.data_dir)
        found: dict[str, Any] = {}
        for order in ORDERS:
            given = {"trees": self.trees, "select_trees": 0, "order": order}
            given |= {"leaves": N_LEAVES, "bins": N_BINS, "least_rows": LEAST_ROWS}
            given |= {"shrinkage": RATE, "tree_depth": DEEPEST, **BY_CLASS}
            own = profiles.resolve("vertical-boost", "default", dataset, given)
            job = simulate.Job(dataset, own, PARTIES.get(name))
            (run,) = simulate.simulate(job, [seed])
            sent, took = run.numbers["communication"], run.numbers["seconds"]
            score = "r2" if run.problem.task == "regression" else "auc"
            found[order] = {
                "score": run.numbers[score]["final"],
                "seconds": took["total"] - took.get("evaluate", 0.0),
                "mib": sum(sent["payload_bytes"].values()) / MIB,
                "rounds": sent["rounds"],
            }
        problem, config = run.problem, own.config
        assert isinstance(config, GrowthConfig)
        found["alone"] = {"seconds": alone(problem, config, seed)}
        out, seconds = pooled(problem, self.trees)
        y = torch.as_tensor(problem.y_test)
        y = y if problem.task == "regression" else y.long()
        scores = metrics.measure(out, y, problem.task, names=(score,))
        found["pooled"] = {"score": float(scores[score]), "seconds": seconds}
        n_rows, n_columns = len(problem.y_train), problem.n_features
        return {**found, "rows": n_rows, "columns": n_columns, "name": score}

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every data set."""
        rows = []
        for name in self.data:
            runs = [found[name, seed] for seed in self.seeds]
            pooled = [run["pooled"] for run in runs]
            row = [name, f"{runs[0]['rows']:,} x {runs[0]['columns']:,}"]
            row += [
                number(mean(pooled, "score"), 4),
                number(mean(pooled, "seconds"), 1),
            ]
            for order in ORDERS:
                own = [run[order] for run in runs]
                score = _difference(own, pooled)
                row += [number(mean(own, "score"), 4), score, _ratio(own, pooled)]
                row += [number(mean(own, "mib"), 1), number(mean(own, "rounds"), 0)]
            rows.append([*row, _ratio([run["alone"] for run in runs], pooled)])
        of_order = ("AUC", "less pooled", "times its seconds", "MiB", "rounds")
        heads = [f"{order}: {what}" for order in ORDERS for what in of_order]
        first = ["data", "rows x columns", "pooled AUC", "seconds"]
        return markdown_table([*first, *heads, "depth, alone: times"], rows)


def _ratio(own: list[Any], pooled: list[Any]) -> str:
    ours, theirs = (sum(run["seconds"] for run in runs) for runs in (own, pooled))
    return f"{ours / theirs:.1f}"


class PooledCells(NamedTuple):
    """The cells of all parties side by side, as trees see them."""

    train: NDArray[np.float64]
    test: NDArray[np.float64]
    categorical: NDArray[np.bool_]  # of every column

    @classmethod
    def of(cls, problem: Problem) -> PooledCells:
        """Put the columns of parties together."""
        own = [CellColumns.fit(p.X_train, p.groups) for p in problem.parties]
        both = list(zip(own, problem.parties, strict=True))
        return cls(
            np.hstack([cells.cells(p.X_train) for cells, p in both]),
            np.hstack([cells.cells(p.X_test) for cells, p in both]),
            np.concatenate([cells.categorical for cells in own]),
        )


def alone(problem: Problem, config: GrowthConfig, seed: int) -> float:
    """Return the seconds of trees of one holder of all columns, without messages."""
    table = PooledCells.of(problem)
    targets = TreeTargets.of(problem.y_train, problem.task, problem.weight)
    began = time.perf_counter()
    has_no_order = np.flatnonzero(table.categorical).tolist()
    holder = ColumnHolder.of(table.train, config.bins, has_no_order)
    growth = config.growth(Phase.TRAIN, seed)
    fit(EnsembleGrower(LocalHolders([holder]), targets, growth))
    return time.perf_counter() - began


def _difference(own: list[Any], pooled: list[Any]) -> str:
    """Return the mean difference of scores in points, and its standard error."""
    both = zip(own, pooled, strict=True)
    each = np.array([100 * (one["score"] - other["score"]) for one, other in both])
    if len(each) == 1:
        return f"{each[0]:+.2f}"
    return f"{each.mean():+.2f} ± {each.std(ddof=1) / np.sqrt(len(each)):.2f}"


def pooled(problem: Problem, n_trees: int) -> tuple[torch.Tensor, float]:
    """Return the logits of scikit-learn's trees, (n, K), and seconds of growth."""
    table = PooledCells.of(problem)
    is_number = problem.task == "regression"
    made = (
        HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    )
    model = made(
        max_iter=n_trees,
        max_leaf_nodes=N_LEAVES,
        max_bins=N_BINS,
        min_samples_leaf=LEAST_ROWS,
        learning_rate=RATE,
        early_stopping=False,
        categorical_features=table.categorical,
    )
    with threadpool_limits(1):
        began = time.perf_counter()
        model.fit(table.train, problem.y_train, sample_weight=problem.weight)
        seconds = time.perf_counter() - began
        if is_number:
            out = model.predict(table.test)[:, None]
        elif problem.task == "binary":
            out = model.decision_function(table.test)[:, None]
        else:
            out = np.full((len(table.test), problem.n_classes), np.log(TINY))
            shares = model.predict_proba(table.test).clip(TINY)
            out[:, model.classes_.astype(int)] = np.log(shares)
    return torch.as_tensor(out), seconds
