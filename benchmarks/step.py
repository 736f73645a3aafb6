"""What a step of joint training costs, beside a plain PyTorch loop.

    OMP_NUM_THREADS=1 python benchmarks/step.py

A table of 8,844 training rows and 45 columns as large as phishing's, three parties,
networks of three layers with 64 hidden units and 16 components, batches of 256, Adam.
Measured is what six more epochs take, by turns with each way; the least of all turns
counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lessvfl import data
from lessvfl.run import profiles, simulate

N_TRAIN, N_TEST, N_COLUMNS, N_PARTIES = 8844, 2211, 45, 3
WIDTH = N_COLUMNS // N_PARTIES
BATCH, HIDDEN, COMPONENTS = 256, 64, 16
FEW, MANY = 2, 8  # epochs
STEPS = (MANY - FEW) * -(-N_TRAIN // BATCH)


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return columns and two classes of a line through them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_TRAIN + N_TEST, N_COLUMNS))
    return X, (X[:, :9].sum(axis=1) + rng.standard_normal(len(X)) > 0).astype(int)


def plain_loop(epochs: int) -> None:
    """Train the same networks as one model, by autograd and torch.optim."""
    X, y = (torch.as_tensor(part[:N_TRAIN]).float() for part in table())
    parties = nn.ModuleList(
        nn.Sequential(
            *(nn.Linear(WIDTH, HIDDEN), nn.Tanh()),
            *(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()),
            nn.Linear(HIDDEN, COMPONENTS),
        )
        for _ in range(N_PARTIES)
    )
    fusion = nn.Linear(N_PARTIES * COMPONENTS, 1)
    optimizer = torch.optim.Adam([*parties.parameters(), *fusion.parameters()], 0.01)
    columns: list[Tensor] = list(X.split(WIDTH, dim=1))
    for _ in range(epochs):
        for rows in torch.randperm(N_TRAIN).split(BATCH):
            h = [net(x[rows]) for net, x in zip(parties, columns, strict=True)]
            z = fusion(torch.cat(h, dim=1)).squeeze(1)
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(z, y[rows]).backward()
            optimizer.step()


def lessvfl_run(bits: int) -> Callable[[int], None]:
    """Return a run of as many epochs, with values in so many bits."""
    X, y = table()
    dataset = data.from_arrays(X, y, name="step", task="binary")

    def run(epochs: int) -> None:
        given = {
            "bits": bits,
            "train_epochs": epochs,
            "batch_size": BATCH,
            "activation": "tanh",
            "embedding_size": COMPONENTS,
            "hidden": HIDDEN,
        }
        settings = profiles.resolve("plain", "default", dataset, given)
        job = simulate.Job(dataset, settings, parties=N_PARTIES, curve=False)
        simulate.simulate(job, [0])

    return run


def main() -> None:
    """Measure the three by turns, and print milliseconds a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="least of how many")
    turns = parser.parse_args().turns
    ways: dict[str, Callable[[int], None]] = {
        "plain PyTorch loop": plain_loop,
        "lessvfl, 32 bits": lessvfl_run(32),
        "lessvfl, 4 bits": lessvfl_run(4),
    }
    least = {(name, n): float("inf") for name in ways for n in (FEW, MANY)}
    for _ in range(turns):
        for (name, n), before in least.items():
            begin = time.process_time()
            ways[name](n)
            least[name, n] = min(before, time.process_time() - begin)
    for name in ways:
        milliseconds = 1e3 * (least[name, MANY] - least[name, FEW]) / STEPS
        print(f"{name:20} {milliseconds:.2f} ms a step")


if __name__ == "__main__":
    main()
