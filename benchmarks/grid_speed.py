"""How near the grid's stages come to the bare matrix products inside them.

Times an epoch of stage 3 and of training for the whole grid of one data set, and the
matrix products of those steps alone (forward and backward, the same shapes, recorded in
the same way), in one run, and prints the ratio:

    python benchmarks/grid_speed.py --data gina_reconstruction --data-dir DIR
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import smoke
import torch
from torch import Tensor

from lessvfl import data
from lessvfl.core.device import resolve_device
from lessvfl.core.plans import Rows
from lessvfl.errors import LessVFLWarning
from lessvfl_bench.paper import stages
from lessvfl_bench.paper.loop import captured
from lessvfl_bench.paper.model import Model
from lessvfl_bench.paper.nets import leaf
from lessvfl_bench.paper.scene import Scene

SEEDS = (0, 1, 2, 3, 4)


def main() -> None:
    """Measure one data set and print two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="gina_reconstruction")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--settings", type=int, default=280, help="of every seed")
    parser.add_argument("--epochs", type=int, default=5)
    given = smoke.parse(parser, data="breast-cancer", settings=4, epochs=1)
    warnings.simplefilter("ignore", LessVFLWarning)
    device = resolve_device(given.device).type
    dataset = data.load(given.data, data_dir=given.data_dir)
    epochs = {"party_epochs": given.epochs, "train_epochs": given.epochs}
    scene = Scene(dataset, "official-code", SEEDS, 0.5, device, epochs)
    start = stages.pretrain(scene, 1).model
    P, S, G = len(scene.tables.widths), len(SEEDS), given.settings
    index = torch.zeros(P, S, G, dtype=torch.long, device=scene.tables.X.device)
    n_epochs = given.epochs

    def select() -> None:
        nets = start.nets.take(index)
        everything = torch.ones(P, S, G, scene.n_components, device=index.device).bool()
        lam = torch.full((P, S, G), 0.01, device=index.device)
        stages.select_features(scene, nets, everything, lam)

    def train() -> None:
        model = spread(start, index)
        config = scene.config("plain")
        stages.train_jointly(
            scene, model, config, "train", n_epochs, lambda epoch: None
        )

    for name, ours, bare in (
        ("select_features", select, bare_selection(scene, start, index, n_epochs)),
        ("train", train, bare_training(scene, start, index, n_epochs)),
    ):
        for warm in (ours, bare):
            warm()
        mine, products = seconds(ours, device), seconds(bare, device)
        print(
            f"{given.data} {name}: {P * S * G} networks, {n_epochs} epochs "
            f"{mine:.2f} s, bare products {products:.2f} s, ratio {mine / products:.2f}"
        )


def spread(model: Model, index: Tensor) -> Model:
    """Return copies of a model for all settings."""
    G = index.shape[2]
    w, b = model.w.expand(-1, G, -1, -1), model.b.expand(-1, G, -1)
    return Model(model.nets.take(index), leaf(w), leaf(b))


def seconds(work: Callable[[], None], device: str) -> float:
    """Return the time of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def collapse_products(layers: list[Tensor], change: Tensor) -> Tensor:
    """Multiply as collapsing the layers, the last first, and its backward pass do."""
    whole = layers[-1]
    behind = []
    for w in layers[-2::-1]:
        behind.append(whole)
        whole = whole @ w
    for w, after in zip(layers, reversed(behind), strict=False):
        after.mT @ change
        change = change @ w.mT
    return change


def bare_selection(
    scene: Scene, model: Model, index: Tensor, n_epochs: int
) -> Callable[[], None]:
    """Return the matrix products of stage 3 and nothing else."""
    nets, X = model.nets.take(index), scene.tables.X
    weights = [w.detach() for w in nets.weights]
    batches = scene.batches(scene.config("less-vfl"), "select_features", "bare")
    P, S, G = index.shape
    D, width, E = weights[0].shape[4], X.shape[3], scene.n_components
    gap = X.new_zeros(P * S, G * E, width)
    by_rows = 2 * batches.batch_size < width
    moment = X.new_zeros(P * S, width, width)

    def step(rows: Rows) -> Tensor:
        if by_rows:
            X_b = X[:, :, rows, :D].flatten(0, 1)
            left = X_b @ gap[..., :D].mT
            change = left.mT @ X_b
        else:
            change = gap @ moment
        narrow = change.view(P, S, G, E, -1)[..., :D]
        return collapse_products(weights, narrow)

    def work() -> None:
        run_epoch = captured([batches], [weights[0]])(step)
        for epoch in range(n_epochs):
            run_epoch(epoch)

    return work


def bare_training(
    scene: Scene, model: Model, index: Tensor, n_epochs: int
) -> Callable[[], None]:
    """Return the matrix products of joint training and nothing else."""
    whole = spread(model, index)
    weights = [w.detach() for w in whole.nets.weights]
    rows_of = scene.tables.joint
    batches = scene.batches(scene.config("plain"), "train")
    S, G, C, _ = whole.w.shape
    P, E = index.shape[0], scene.n_components
    width, D = scene.tables.X.shape[3], weights[0].shape[4]
    w = whole.w.detach().view(S, G, C, P, E).permute(3, 0, 1, 2, 4).contiguous()
    M = w.new_zeros(S, G * C, P * width)

    def step(rows: Rows) -> Tensor:
        X_b = rows_of[:, rows]
        z = X_b @ M.mT
        change = (z.mT @ X_b).view(S, G, C, P, width).permute(3, 0, 1, 2, 4)
        return collapse_products([*weights, w], change[..., :D])

    def work() -> None:
        run_epoch = captured([batches], [weights[0]])(step)
        for epoch in range(n_epochs):
            run_epoch(epoch)

    return work


if __name__ == "__main__":
    main()
