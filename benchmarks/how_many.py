"""How many rows selection needs, and what more parties change.

``rows``: ``less-vfl-auto`` with 50 % planted noise on the first n of a data set's
training rows, scored on the same test rows whatever n is, the data set's own or else a
fifth of all, beside a logistic regression on the same pooled rows and columns, noise
included. ``parties``: the same
table dealt to 2, 4, 8, ... parties, with all training rows. Printed: the share of the
noise removed and of the real columns kept, the balanced accuracy, megabytes in both
directions and rounds; means over seeds, as a table in Markdown.

    python benchmarks/how_many.py rows --data breast-cancer --sizes 100,200,400
    python benchmarks/how_many.py rows --data-dir DIR --jobs 16
    python benchmarks/how_many.py parties --data-dir DIR --jobs 16
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import smoke
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from lessvfl import data, methods
from lessvfl.data import Dataset
from lessvfl.run import profiles, simulate

TEST_SHARE = 0.2
DATA = "phishing,gina_reconstruction,activity_time265"
SIZES = {"rows": "100,200,500,1000,2000,5000", "parties": "2,4,8,16"}
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
    if dataset.X_test is not None:
        train = order[:n_rows]
        return dataclasses.replace(dataset, X=dataset.X.take(train), y=dataset.y[train])
    n_test = round(TEST_SHARE * len(order))
    test, train = order[:n_test], order[n_test:][:n_rows]
    return dataclasses.replace(
        dataset,
        X=dataset.X.take(train),
        y=dataset.y[train],
        X_test=dataset.X.take(test),
        y_test=dataset.y[test],
    )


def measure(cell: tuple[str, str, int, int, Path | None]) -> dict[str, float] | None:
    """Run one cell; None where the data set has too few rows for it."""
    what, name, size, seed, folder = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    whole = data.load(name, data_dir=folder)
    dataset = first_rows(whole, size if what == "rows" else None, seed)
    if what == "rows" and size > len(dataset.y):
        return None
    settings = profiles.resolve(methods.DEFAULT, "default", dataset)
    parties = size if what == "parties" else None
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
    if what == "rows":
        X_train = np.hstack([party.X_train for party in problem.parties])
        X_test = np.hstack([party.X_test for party in problem.parties])
        pooled = LogisticRegression(max_iter=2000).fit(X_train, problem.y_train)
        right = balanced_accuracy_score(problem.y_test, pooled.predict(X_test))
        found["pooled"] = float(right)
    return found


def main() -> None:
    """Run every data set, size and seed, and print a table for each data set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=SIZES)
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sizes")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--jobs", type=int, default=1)
    given = smoke.parse(parser, data="breast-cancer", seeds="0")
    names = given.data.split(",")
    sizes = [int(part) for part in (given.sizes or SIZES[given.what]).split(",")]
    sizes = sizes[:1] if given.smoke else sizes
    seeds = [int(part) for part in given.seeds.split(",")]
    cells = [
        (given.what, name, size, seed, given.data_dir)
        for name in names
        for size in sizes
        for seed in seeds
    ]
    found: dict[Any, list[dict[str, float]]] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for cell, numbers in zip(cells, pool.map(measure, cells), strict=True):
            if numbers is not None:
                found.setdefault(cell[1:3], []).append(numbers)
    shown = [key for key in COLUMNS if key != "pooled" or given.what == "rows"]
    head = ["data", given.what, *(COLUMNS[key] for key in shown)]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for (name, size), some in found.items():
        means = [f"{statistics.fmean(one[key] for one in some):.3f}" for key in shown]
        print("| " + " | ".join([name, f"{size:,}", *means]) + " |")


if __name__ == "__main__":
    main()
