"""Support recovery beside selectors that see all data: seven shapes of a known truth.

Labels of two classes from features whose part in them is known, at four parties
(``madelon``: 500 columns at one party, 20 of noise at another); ``less-vfl-auto`` and
the published ``less-vfl``, both with the profile ``default`` and the second with its
lambdas, against LassoNet, stochastic gates and Boruta, which get the pooled columns of
all parties (``pip install lessvfl[peers]``). Printed:
F1 of the support, mean and standard error over seeds. Settings of all are those of
``lessvfl bench peers``.

    python benchmarks/support.py --seeds 0,1,2 --jobs 2

Where a feature has a copy at another party, both count as significant.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import shapes
import smoke
import torch

from lessvfl import data
from lessvfl.core import metrics
from lessvfl.data import Dataset
from lessvfl.errors import LessVFLWarning
from lessvfl.run import profiles, simulate
from lessvfl_bench.peers import pooled

N_PARTIES = 4
SHAPES = (
    "linear",
    "tanh network",
    "interactions",
    "correlated",
    "copies",
    "20 of 2000",
    "madelon",
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
        made = shapes.madelon(rng)
        return dataclasses.replace(made.dataset, name=shape), made.sizes
    n_each = 500 if shape == "20 of 2000" else 20
    d = N_PARTIES * n_each
    X = rng.normal(size=(n_rows, d))
    if shape == "correlated":  # neighbours 0.7, the next ones 0.49, ...
        for j in range(1, d):
            X[:, j] = 0.7 * X[:, j - 1] + math.sqrt(1 - 0.49) * X[:, j]
    significant = np.zeros(d, dtype=bool)
    for party in range(N_PARTIES):
        own = rng.choice(n_each, 4 if shape == "interactions" else 5, replace=False)
        significant[party * n_each + own] = True
    S = X[:, significant]
    if shape == "interactions":
        score = (S[:, 0::2] * S[:, 1::2]).sum(axis=1)
    elif shape == "tanh network":
        inner = np.tanh(S @ rng.normal(size=(S.shape[1], 16)) / 2)
        score = inner @ rng.normal(size=16)
    else:
        signs = rng.choice([-1, 1], S.shape[1])
        score = S @ (signs * rng.uniform(0.5, 1.5, S.shape[1]))
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


def task(which: tuple[str, int, str], n_rows: int) -> tuple[float, float, float]:
    """Return F1, the share of significant features found, and seconds."""
    shape, seed, method = which
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    warnings.simplefilter("ignore", LessVFLWarning)
    dataset, sizes = make(shape, seed, n_rows)
    assert dataset.significant is not None
    began = time.monotonic()
    own = method if method in OURS else OURS[0]
    settings = profiles.resolve(own, "default", dataset)
    job = simulate.Job(dataset, settings, sizes, curve=False)
    if method == own:
        (run,) = simulate.simulate(job, [seed])
        names = {n for party in run.numbers["features"].values() for n in party["kept"]}
        kept = np.array([name in names for name in dataset.X.names])
    else:
        table = pooled.pool(job.problem(seed), seed, torch.device("cpu"))
        kept = np.asarray(PEERS[method](table).kept)
    f1 = metrics.support_f1(kept.tolist(), dataset.significant.tolist())
    found = float((kept & dataset.significant).sum() / dataset.significant.sum())
    return f1, found, time.monotonic() - began


def main() -> None:
    """Run every shape, seed and method, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--methods", default=",".join((*OURS, *PEERS)))
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    few = {"seeds": "0", "shapes": "linear", "rows": 300}
    given = smoke.parse(parser, **few, methods=",".join(OURS))
    seeds = [int(part) for part in given.seeds.split(",")]
    names, chosen = given.methods.split(","), given.shapes.split(",")
    cells = [(s, seed, m) for s in reversed(chosen) for m in names for seed in seeds]
    found: dict[Any, tuple[float, float, float]] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for cell, result in zip(
            cells, pool.map(partial(task, n_rows=given.rows), cells), strict=True
        ):
            found[cell] = result
            print(*cell, *(round(value, 3) for value in result), flush=True)
            if given.out is not None:
                lines = {" / ".join(map(str, key)): v for key, v in found.items()}
                given.out.write_text(json.dumps(lines, indent=1))
    print("\n| shape | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for shape in chosen:
        line = []
        for method in names:
            scores = [found[shape, seed, method][0] for seed in seeds]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            error = spread / math.sqrt(len(scores))
            line.append(f"{statistics.mean(scores):.3f} ± {error:.3f}")
        print(f"| {shape} | " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
