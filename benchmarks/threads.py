"""From which size on a second thread pays: seconds of a step of joint training.

Four parties with the default network (64, 64, 16) train jointly; one process alone, and
two at once as on a machine that is shared. ``core/device.py`` takes its limit from it.

    python benchmarks/threads.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time

import smoke
import torch

from lessvfl import algorithm, data
from lessvfl.core.losses import Labels
from lessvfl.run import profiles
from lessvfl.run.build import Builder
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties

SHAPES = ((128, 60), (1000, 60), (1000, 250), (1000, 1000), (4000, 1000))


def seconds(batch: int, columns: int, n_threads: int, n_steps: int = 30) -> float:
    """Return the seconds of one step."""
    torch.set_num_threads(n_threads)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(1, batch, columns, generator=generator)
    y = (X[..., 0] > 0).float()
    dataset = data.from_arrays([[0.0], [1.0]], [0, 1])
    own = {"batch_size": batch, "train_epochs": n_steps}
    settings = profiles.resolve("plain", "default", dataset, own)
    build = Builder(settings, [0], "cpu")
    groups = torch.arange(columns).numpy()
    names = [f"f{i}" for i in range(columns)]
    parties = [build.party(f"p{m}", (X, X[:, :0]), groups, names) for m in range(4)]
    transport = InProcess({party.name: party.handle for party in parties})
    server = Parties(transport, [party.name for party in parties], Ledger(1))
    fusion = build.fusion_network(sum(server.sizes.values()), 1)
    labels = Labels(y, "binary", (0,))
    plan = settings.config.plan("train", n_steps)
    algorithm.train_jointly(server, fusion, labels, plan, lambda event: None)
    start = time.perf_counter()
    algorithm.train_jointly(server, fusion, labels, plan, lambda event: None)
    return (time.perf_counter() - start) / n_steps


def _job(given: tuple[int, int, int]) -> float:
    return seconds(*given)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = smoke.parse(parser)
    print(
        "rows, columns | products a step | 1 thread, ms | ratio | two processes: ratio"
    )
    for batch, columns in SHAPES[: 1 if given.smoke else None]:
        products = batch * 4 * ((columns + 1) * 64 + 65 * 64 + 65 * 16)
        alone = [seconds(batch, columns, n) for n in (1, given.threads)]
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            two = [
                max(pool.map(_job, [(batch, columns, n)] * 2))
                for n in (1, given.threads)
            ]
        print(
            f"{batch}, {columns} | {products:.2g} | {1000 * alone[0]:.2f} | "
            f"{alone[1] / alone[0]:.2f} | {two[1] / two[0]:.2f}"
        )


if __name__ == "__main__":
    main()
