"""Support recovery beside selectors that see all data."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from lessvfl import data
from lessvfl.core import metrics
from lessvfl.data import Dataset
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl_bench.peers import pooled
from lessvfl_bench.shapes import made
from lessvfl_bench.shapes.run import kept_of
from lessvfl_bench.study import BY_CLASS, NameList, NumberList, Study, option

N_PARTIES = 4
SHAPES = (
    *("linear", "tanh network", "interactions", "correlated", "copies"),
    *("20 of 2000", "madelon"),
)
PEERS = {
    "LassoNet": pooled.lassonet,
    "STG": pooled.stochastic_gates,
    "Boruta": pooled.boruta,
}
OURS = ("less-vfl-auto", "less-vfl")


def make(shape: str, seed: int, n_rows: int) -> tuple[Dataset, list[int]]:
    """Return labelled rows, the truth known, and how many columns each party has."""
    rng = np.random.default_rng([seed, SHAPES.index(shape)])
    if shape == "madelon":
        own = made.madelon(rng)
        return dataclasses.replace(own.dataset, name=shape), own.sizes
    n_each = 500 if shape == "20 of 2000" else 20
    d = N_PARTIES * n_each
    X = rng.normal(size=(n_rows, d))
    if shape == "correlated":  # neighbours 0.7, the next ones 0.49, ...
        for j in range(1, d):
            X[:, j] = 0.7 * X[:, j - 1] + math.sqrt(1 - 0.49) * X[:, j]
    n_true = 4 if shape == "interactions" else 5
    significant = made.deal(rng, [n_true] * N_PARTIES, n_each)
    S = X[:, significant]
    if shape == "interactions":
        score = (S[:, 0::2] * S[:, 1::2]).sum(axis=1)
    elif shape == "tanh network":
        inner = np.tanh(S @ rng.normal(size=(S.shape[1], 16)) / 2)
        score = inner @ rng.normal(size=16)
    else:
        score = made.linear(S, rng)
    if shape == "copies":  # of every second significant feature, at the next party
        for j in np.flatnonzero(significant)[::2]:
            free = np.flatnonzero(~significant)
            party = (j // n_each + 1) % N_PARTIES
            place = free[free // n_each == party][0]
            X[:, place] = X[:, j] + 0.1 * rng.normal(size=n_rows)
            significant[place] = True
    noise = 0.1 * score.std() * rng.normal(size=n_rows)
    y = (score + noise > np.median(score)).astype(int)
    table = data.from_arrays(X, y, name=shape)
    table = dataclasses.replace(table, significant=significant, n_parties=N_PARTIES)
    return table, [n_each] * N_PARTIES


@dataclass(frozen=True)
class Support(Study):
    """Support recovery beside selectors that see all data.

    Seven shapes of a known truth at four parties: F1 of the support of less-vfl-auto
    and of the published less-vfl with its lambdas, beside LassoNet, stochastic gates
    and Boruta on the pooled columns, set as in bench peers (pip install
    lessvfl[peers]); mean and standard error over seeds. Where a feature has a copy at
    another party, both count as significant.
    """

    seeds: NumberList = option((0, 1, 2), "One run each.")
    shapes: NameList = option(SHAPES, "Of these.")
    methods: NameList = option((*OURS, *PEERS), "Of these.")
    rows: int = option(5000, "Rows of a table, but for madelon.")
    smallest: ClassVar = {
        "seeds": (0,),
        "shapes": ("linear",),
        "rows": 300,
        "methods": OURS,
    }

    def cases(self) -> list[tuple[str, int, str]]:
        """Return shape, seed and method, those that take longest first."""
        shapes = reversed(self.shapes)
        return [
            (s, seed, m) for s in shapes for m in self.methods for seed in self.seeds
        ]

    def measure(self, case: tuple[str, int, str]) -> dict[str, float]:
        """Return F1, and the share of significant features found."""
        shape, seed, method = case
        dataset, sizes = make(shape, seed, self.rows)
        assert dataset.significant is not None
        own = method if method in OURS else OURS[0]
        settings = profiles.resolve(own, "default", dataset, BY_CLASS)
        job = simulate.Job(dataset, settings, sizes, curve=False)
        if method == own:
            (run,) = simulate.simulate(job, [seed])
            kept = kept_of(run, dataset.X.names)
        else:
            table = pooled.pool(job.problem(seed), seed, torch.device("cpu"))
            kept = np.asarray(PEERS[method](table).kept)
        f1 = metrics.support_f1(kept.tolist(), dataset.significant.tolist())
        found = (kept & dataset.significant).sum() / dataset.significant.sum()
        return {"F1": f1, "found": float(found)}

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every shape."""

        def cell(shape: str, method: str) -> str:
            scores = [found[shape, seed, method]["F1"] for seed in self.seeds]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            error = spread / math.sqrt(len(scores))
            return f"{statistics.mean(scores):.3f} ± {error:.3f}"

        rows = ([s, *(cell(s, m) for m in self.methods)] for s in self.shapes)
        return markdown_table(["shape", *self.methods], rows)
