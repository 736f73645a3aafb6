"""What rows outside the common ones are worth to a party's own selection.

Stage 3 of the published method is local, so a party may use all its rows there
(``outside_rows`` of its config). Here only some training rows are common; the others
each party has to itself. Printed: noise removed, real features kept and accuracy,
without and with the rows outside, mean over seeds.

    python benchmarks/outside.py --data phishing --data-dir DIR --common 500
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import warnings
from typing import Any

import numpy as np
import torch

from lessvfl import data
from lessvfl.data import Problem
from lessvfl.errors import LessVFLWarning
from lessvfl.party import Party
from lessvfl.run import profiles, simulate

SEEDS = range(5)


class Batch(simulate._Batch):
    """A run in which every party has rows that the others lack."""

    outside: Problem | None = None

    def _party(self, index: int, config: Any) -> Party:
        party = super()._party(index, config)
        if self.outside is not None:
            rows = torch.as_tensor(self.outside.parties[index].X_train)
            party.X_more = rows.to(self.device, self.dtype).unsqueeze(0)
        return party


def cut(problem: Problem, rows: slice) -> Problem:
    """Return the problem with some of its training rows."""
    parties = tuple(
        dataclasses.replace(party, X_train=party.X_train[rows])
        for party in problem.parties
    )
    return dataclasses.replace(problem, parties=parties, y_train=problem.y_train[rows])


def main() -> None:
    """Run with and without the rows outside."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="phishing")
    parser.add_argument("--data-dir")
    parser.add_argument("--common", type=int, default=500)
    given = parser.parse_args()
    warnings.simplefilter("ignore", LessVFLWarning)
    torch.set_num_threads(1)
    dataset = data.load(given.data, data_dir=given.data_dir)
    own = profiles.without("less-vfl") | {"batch_size": 100, "train_epochs": 20}
    own |= {"lam_party": 4.0, "lam_server": 0.05, "pretrain_epochs": 5}
    settings = profiles.resolve("less-vfl", "default", dataset, own)
    job = simulate.Job(dataset, settings, spurious=0.5)
    print("rows outside | noise removed | real kept | accuracy")
    for use in (False, True):
        found = []
        for seed in SEEDS:
            whole = data.prepare(dataset, settings.data, spurious=0.5, seed=seed)
            common = cut(whole, slice(given.common))
            replica = simulate.Replica(seed)
            batch = Batch(job, [replica], [common], lambda event: None)
            batch.outside = cut(whole, slice(given.common, None)) if use else None
            found.append(batch.run()[0].numbers)
        rows = len(whole.y_train) - given.common if use else 0
        spurious = [numbers["spurious"] for numbers in found]
        shares = (
            [s["removed_share"] for s in spurious],
            [s["real_kept_share"] for s in spurious],
            [numbers["accuracy"]["final"] for numbers in found],
        )
        cells = [
            f"{statistics.mean(v):.3f} ± {np.std(v, ddof=1) / len(v) ** 0.5:.3f}"
            for v in shares
        ]
        print(f"{rows} | " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
