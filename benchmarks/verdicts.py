"""Needed, not needed, undecided: what becomes of the lists with ten times the rows.

Tables of two parties with 20 columns each: 4 of each party matter, by 1, 0.5, 0.25 and
0.12 of a logit, the others are noise. The first rows of a table are run with
``less-vfl-auto``, then ten times as many. For every size and share of positives: how
many columns each list has, how many of them are real, and how many of those undecided
(real and useless) the larger run keeps.

    python benchmarks/verdicts.py --jobs 16
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import smoke
import torch

from lessvfl import data
from lessvfl.report.verdicts import NEEDED, NOT_NEEDED, UNDECIDED, verdicts
from lessvfl.run import experiment, profiles, simulate

EFFECTS = (1.0, 0.5, 0.25, 0.12)
N_EACH, TIMES = 20, 10
SHARES = (0.5, 0.05)
Cell = tuple[int, float, int]


def lists(X: np.ndarray, y: np.ndarray, seed: int) -> dict[str, str]:
    """Return the verdict on every column."""
    dataset = data.from_arrays(X, y)
    settings = profiles.resolve("less-vfl-auto", "default", dataset)
    job = simulate.Job(dataset, settings, parties=2)
    record, _ = experiment.run(job, [seed])
    return {one.feature: one.verdict for one in verdicts(record)}


def task(cell: Cell) -> Counter[str]:
    """Count the columns of one table by verdict and truth."""
    n, share, seed = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(TIMES * n, 2 * N_EACH))
    effects = np.zeros(2 * N_EACH)
    effects[: len(EFFECTS)] = effects[N_EACH : N_EACH + len(EFFECTS)] = EFFECTS
    score = X @ effects + rng.logistic(size=len(X))
    y = (score > np.quantile(score, 1 - share)).astype(int)
    small, large = lists(X[:n], y[:n], seed), lists(X, y, seed)
    found: Counter[str] = Counter()
    for i, effect in enumerate(effects):
        truth = "real" if effect else "useless"
        verdict = small[f"x{i}"]
        found[f"{verdict} {truth}"] += 1
        found[f"{verdict} {truth} later"] += large[f"x{i}"] == NEEDED
    return found


def main() -> None:
    """Run every table and print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="300,1000,3000")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    given = smoke.parse(parser, rows="100", seeds=1)
    sizes = [int(part) for part in given.rows.split(",")]
    cells = [(n, s, i) for n in sizes for s in SHARES for i in range(given.seeds)]
    with ProcessPoolExecutor(given.jobs) as pool:
        results = dict(zip(cells, pool.map(task, cells), strict=True))
    print(
        "| rows | positive | needed: real, useless | not needed: real, useless | "
        "undecided: real, useless | needed with ten times the rows, of undecided real "
        "| of undecided useless | of not needed real |\n|" + "---|" * 8
    )
    for n in sizes:
        for share in SHARES:
            sums = sum((results[n, share, i] for i in range(given.seeds)), Counter())
            pairs = [
                f"{sums[f'{v} real']}, {sums[f'{v} useless']}"
                for v in (NEEDED, NOT_NEEDED, UNDECIDED)
            ]
            later = [
                f"{sums[f'{kind} later']} of {sums[kind]}"
                for kind in (
                    f"{UNDECIDED} real",
                    f"{UNDECIDED} useless",
                    f"{NOT_NEEDED} real",
                )
            ]
            print(f"| {n:,} | {share:g} | " + " | ".join([*pairs, *later]) + " |")


if __name__ == "__main__":
    main()
