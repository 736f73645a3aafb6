"""Who would be missed: the measure of a run beside runs that a party takes no part in.

A run of ``less-vfl-auto`` says at its end what its score would be without each party
(``without`` in docs/json.md). Here every party is really left out: the same seed,
settings and columns, with all parties but that one. Printed: a JSON line for each data
set, seed and party, with both losses of the score, then a line for each data set with
the rank correlation of the two over seeds and parties, and their means.

    python benchmarks/missed.py --data breast-cancer
    python benchmarks/missed.py --data-dir DIR --jobs 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import smoke
import torch
from scipy import stats

from lessvfl import data, methods
from lessvfl.core.metrics import MEASURES
from lessvfl.errors import LessVFLWarning
from lessvfl.run import profiles, simulate

DATA = "phishing,gina_reconstruction,activity_time265"


def losses(cell: tuple[str, int], folder: Path | None) -> list[dict[str, Any]]:
    """Return by party what one seed loses without it, as it says and as it is."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LessVFLWarning)
    name, seed = cell
    dataset = data.load(name, data_dir=folder)
    settings = profiles.resolve(methods.DEFAULT, "default", dataset)
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
        found.append(
            {
                "data": name,
                "seed": seed,
                "party": party,
                score: final,
                "without": without,
                "trained_without": real,
                "loss": round(final - without, 9),  # so that ties are ties
                "trained_loss": round(final - real, 9),
            }
        )
    return found


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far the two losses of a data set agree."""
    said, real = ([line[k] for line in lines] for k in ("loss", "trained_loss"))
    return {
        "data": lines[0]["data"],
        "n": len(lines),
        "spearman": float(stats.spearmanr(said, real).statistic),
        "mean_loss": statistics.fmean(said),
        "mean_trained_loss": statistics.fmean(real),
    }


def main() -> None:
    """Run every data set and seed, with all parties and without each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1)
    given = smoke.parse(parser, data="breast-cancer", seeds="0")
    names = given.data.split(",")
    cells = [(name, int(seed)) for name in names for seed in given.seeds.split(",")]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with ProcessPoolExecutor(given.jobs) as pool:
        for lines in pool.map(partial(losses, folder=given.data_dir), cells):
            found[lines[0]["data"]] += lines
            for line in lines:
                print(json.dumps(line), flush=True)
    for lines in found.values():
        print(json.dumps(summary(lines)))


if __name__ == "__main__":
    main()
