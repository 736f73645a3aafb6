"""Rare classes: what weights of classes and the decision threshold do.

Two classes with a linear logit, 3 parties of 20 columns of which 5 matter, 20,000 test
rows. Printed: balanced accuracy, true features kept and others kept, mean over seeds.

    python benchmarks/imbalance.py --method less-vfl-auto --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import warnings

import numpy as np
import smoke

from lessvfl import data
from lessvfl.errors import LessVFLWarning
from lessvfl.run import profiles, simulate
from lessvfl.run.fitted import FittedModel

N_PARTIES, WIDTH, N_TRUE, N_TEST = 3, 20, 5, 20_000
CASES = ((4000, 0.035), (6000, 0.01))  # training rows, share of the rare class
STRENGTH = 2.0  # standard deviation of the logit


def make(n_rows: int, share: float, seed: int) -> data.Dataset:
    """Return rows whose second class has that share."""
    rng = np.random.default_rng(seed + 100)
    n_columns = N_PARTIES * WIDTH
    X = rng.standard_normal((n_rows + N_TEST, n_columns))
    matters = np.zeros(n_columns, dtype=bool)
    for party in range(N_PARTIES):
        matters[party * WIDTH + rng.permutation(WIDTH)[:N_TRUE]] = True
    slopes = np.zeros(n_columns)
    n_true = int(matters.sum())
    slopes[matters] = rng.uniform(0.5, 1.5, n_true) * rng.choice([-1, 1], n_true)
    score = X @ slopes
    score *= STRENGTH / score.std()
    low, high = -40.0, 40.0
    for _ in range(60):  # the offset that gives the share
        middle = (low + high) / 2
        too_many = (1 / (1 + np.exp(-middle - score))).mean() > share
        low, high = (low, middle) if too_many else (middle, high)
    y = (rng.random(len(score)) < 1 / (1 + np.exp(-middle - score))).astype(np.int64)
    train, test = (data.frame_of(part) for part in (X[:n_rows], X[n_rows:]))
    return data.Dataset(
        "rare",
        train,
        y[:n_rows],
        "binary",
        ("0", "1"),
        test,
        y[n_rows:],
        N_PARTIES,
        significant=matters,
    )


def balanced_accuracy(model: FittedModel, dataset: data.Dataset) -> float:
    """Return the mean share of every class of the test rows predicted right."""
    y = dataset.y_test
    assert y is not None
    right = model.predict(dataset.X_test).astype(int) == y
    return float(np.mean([right[y == label].mean() for label in (0, 1)]))


def main() -> None:
    """Run every case and print its line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="less-vfl-auto")
    parser.add_argument("--seeds", default="0,1,2")
    options = smoke.parse(parser, seeds="0")
    warnings.simplefilter("ignore", LessVFLWarning)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print("rows  share  class_weight  threshold  balanced  true  others")
    for n_rows, share in CASES[: 1 if options.smoke else None]:
        for weight in (None, "balanced"):
            found: dict[str, list[float]] = {"none": [], "balanced": []}
            kept: list[tuple[int, int]] = []
            for seed in seeds:
                dataset = make(n_rows, share, seed)
                own = {"class_weight": weight, "threshold": "balanced"}
                chosen = profiles.resolve(options.method, "default", dataset, own)
                job = simulate.Job(dataset, chosen, curve=False)
                (run,) = simulate.simulate(job, [seed])
                off = dataclasses.replace(run.model, threshold=None)
                found["none"].append(balanced_accuracy(off, dataset))
                found["balanced"].append(balanced_accuracy(run.model, dataset))
                truth = run.numbers["truth"]
                others = truth["other"] - truth["other_removed"]
                kept.append((truth["significant_kept"], others))
            true, others = (statistics.mean(some) for some in zip(*kept, strict=True))
            for threshold, values in found.items():
                print(
                    f"{n_rows:<5} {share:<6} {weight!s:<13} {threshold:<10} "
                    f"{statistics.mean(values):<9.3f} {true:<5.1f} {others:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
