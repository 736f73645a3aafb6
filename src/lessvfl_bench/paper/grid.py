"""The paper's grid as one batched program.

Seeds x pre-training lengths x lambda_s x lambda_m are axes of one set of tensors:
pre-training runs once a seed and is branched after every epoch; stage 2 runs for all
lambda_s at once; stage 3 for all (K_m, lambda_m) at once, equal ones once; joint
training for all survivors at once. The numbers are those of ``lessvfl run`` but for the
order of floating-point sums; there are no messages here, and costs are closed forms.

Axes: parties P, seeds S, settings G, rows N, columns D (+ ALIGNED, the first of them a
one), components E, classes C. This file needs torch and numpy alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessvfl_bench.paper import stages
from lessvfl_bench.paper.model import Model
from lessvfl_bench.paper.nets import ALIGNED, Stack, leaf, pick
from lessvfl_bench.paper.scene import Scene, Spec
from lessvfl_bench.paper.stages import Arrays, Points, Pretrained, select_features

TimePart = Callable[[str], AbstractContextManager[None]]

WORTHWHILE = 16  # columns: fewer are not worth a model of their own


def bytes_per_setting(scene: Scene) -> int:
    """Estimate the memory that one setting takes while all its seeds are trained."""
    tables, net = scene.tables, scene.settings("plain").net
    D = tables.X.shape[3] - ALIGNED
    widths = net.party_widths(D)
    n_params = sum((a + 1) * b for a, b in itertools.pairwise(widths))
    n_values = 5 * n_params  # with gradients and two moments
    if net.activation == "none":
        n_values += 6 * widths[-1] * tables.X.shape[3]
        n_rows = max(tables.X.shape[2], tables.X_test.shape[2])
    else:
        n_rows = scene.config("plain").batch_size
        n_values += 5 * n_rows * sum(widths[1:])
    parties = len(tables.widths) * n_values + 4 * n_rows * tables.n_outputs
    return len(scene.seeds) * parties * tables.X.element_size()


def _outcome(model: Model, points: Points) -> Arrays:
    """Return the arrays of a finished chunk."""
    assert model.features is not None
    assert model.components is not None
    finite = [p.isfinite().flatten(3).all(dim=3).all(dim=0) for p in model.nets.weights]
    finite.append(model.w.isfinite().flatten(2).all(dim=2))
    return points.arrays() | {
        "features": model.features.cpu().numpy(),
        "components": model.components.cpu().numpy(),
        "diverged": ~torch.stack(finite).all(dim=0).cpu().numpy(),
    }


def _tasks(
    K: np.ndarray[Any, Any], epochs: np.ndarray[Any, Any], lam: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Find the distinct (epochs, lambda_m, K_m) of every party and seed.

    `K` (P, S, G, E) are the kept components, `epochs` and `lam` (G,) those of every
    setting. Returns a setting that stands for each task, (P, S, T), where a party has
    fewer the first one again, and the task of every setting, (P, S, G).
    """
    P, S, G, _ = K.shape
    task = np.zeros((P, S, G), dtype=np.int64)
    firsts = {}
    for p in range(P):
        for s in range(S):
            rows = np.column_stack([epochs, lam, K[p, s]])
            _, first, inverse = np.unique(
                rows, axis=0, return_index=True, return_inverse=True
            )
            firsts[p, s], task[p, s] = first, inverse.reshape(-1)
    T = max(len(first) for first in firsts.values())
    chosen = np.zeros((P, S, T), dtype=np.int64)
    for (p, s), first in firsts.items():
        chosen[p, s] = first[0]
        chosen[p, s, : len(first)] = first
    return chosen, task


def run_selection(
    scene: Scene,
    start: Pretrained,
    fusion: stages.Fusion,
    kept: Tensor,
    specs: Sequence[Spec],
    curve: bool = True,
    part: TimePart = lambda name: nullcontext(),
) -> Arrays:
    """Run stage 3 and training of LESS-VFL and local lasso, all `specs` at once.

    `kept` (S, T, P E) are the components of stage 2's tasks; `part` takes the time.
    """
    config, tables = scene.config("less-vfl"), scene.tables
    device, dtype = tables.X.device, tables.X.dtype
    P, E, S, G = len(tables.widths), scene.n_components, len(scene.seeds), len(specs)
    epochs = np.array([spec.pretrain_epochs for spec in specs])
    lam = np.array([spec.lam_party for spec in specs])
    which = torch.as_tensor(epochs - 1).to(device)
    own_w, own_b = start.model.w[:, which].clone(), start.model.b[:, which].clone()
    K = torch.ones(S, G, P * E, dtype=torch.bool, device=device)
    for g, spec in enumerate(specs):
        if spec.method == "less-vfl":
            t = fusion.tasks.index((spec.pretrain_epochs, spec.lam_server))
            own_w[:, g], own_b[:, g] = fusion.w[:, t], fusion.b[:, t]
            K[:, g] = kept[:, t]
    components = K.view(S, G, P, E).permute(2, 0, 1, 3).contiguous()  # (P, S, G, E)

    chosen, task = _tasks(components.cpu().numpy(), epochs, lam)
    index = torch.as_tensor(chosen).to(device)
    nets = start.model.nets.take(which[index])
    weights = torch.as_tensor(lam).to(device, dtype)[index]
    with part("select_features"):
        features = select_features(scene, nets, pick(components, index), weights)

    place = torch.as_tensor(task).to(device)
    outcomes, order = [], []
    for some in _by_width(pick(features, place), nets):
        mine = place[:, :, some]
        model = Model(nets.take(mine), leaf(own_w[:, some]), leaf(own_b[:, some]))
        model.features, model.components = pick(features, mine), components[:, :, some]
        model.empty = ~model.features.any(dim=3) | ~model.components.any(dim=3)
        if config.empty_party == "frozen":
            model.rest = start.model.nets.take(which[some].expand(P, S, -1))
        else:
            model.constant = _constant(model.nets)
        if nets.is_linear:
            model.compact()
        with part("train"):
            outcomes.append(_train_on(scene, model, config, curve))
        order += some.tolist()
    return _merge(outcomes, order)


def _by_width(features: Tensor, nets: Stack) -> list[Tensor]:
    """Put together settings that keep about as many features, (G',) indices each.

    A compact model is as wide as its widest setting: the few that keep nearly all
    should not make all others wide. Small or non-linear models stay together.
    """
    D = features.shape[3]
    everything = torch.arange(features.shape[2], device=features.device)
    if D < 4 * WORTHWHILE or not nets.is_linear:
        return [everything]
    most = features.sum(dim=3).amax(dim=(0, 1))  # (G,)
    level = (most > D // 4).long() + (most > D // 2).long()
    found = [everything[level == k] for k in range(3)]
    return [some for some in found if len(some)]


def _merge(outcomes: Sequence[Arrays], order: Sequence[int]) -> Arrays:
    """Join the arrays of parts along the settings, in the order of the settings."""
    back = np.argsort(order)
    merged = {}
    for name in outcomes[0]:
        axis = 1 if name == "diverged" else 2
        joined = np.concatenate([arrays[name] for arrays in outcomes], axis=axis)
        merged[name] = joined.take(back, axis=axis)
    return merged


def _constant(nets: Stack) -> Tensor:
    """Return the embedding of a row of zeros, (P, S, G, E)."""
    P, S, _, _, D = nets.weights[0].shape
    zeros = nets.weights[0].new_zeros(P, S, 1, D + ALIGNED)
    with torch.no_grad():
        return nets.embed(zeros).squeeze(3)


def _train_on(
    scene: Scene, model: Model, config: Any, curve: bool, points: Points | None = None
) -> Arrays:
    """Train on with what is left; evaluate after every epoch, or after the last."""
    n_epochs = int(config.train_epochs)
    points = Points(scene) if points is None else points
    if "right_test" not in points.seen and curve:
        model.prepare()
        points.add(model)  # straight after selection

    def after_epoch(epoch: int) -> None:
        if curve or epoch == n_epochs:
            points.add(model)

    stages.train_jointly(scene, model, config, "train", n_epochs, after_epoch)
    return _outcome(model, points)


def run_group_lasso(scene: Scene, specs: Sequence[Spec], curve: bool = True) -> Arrays:
    """Run group lasso for all lambdas at once: proximal joint training, then Adam."""
    config = scene.config("group-lasso")
    device, dtype = scene.tables.X.device, scene.tables.X.dtype
    one = Model.create(scene)
    P, S, G = len(scene.tables.widths), len(scene.seeds), len(specs)
    index = torch.zeros(P, S, G, dtype=torch.long, device=device)
    w, b = leaf(one.w.expand(-1, G, -1, -1)), leaf(one.b.expand(-1, G, -1))
    model = Model(one.nets.take(index), w, b)
    lam = torch.tensor([spec.lam_party for spec in specs], device=device, dtype=dtype)
    points = Points(scene)

    def after_epoch(epoch: int) -> None:
        if curve:
            points.add(model)
            points.add_features(stages.features_left(model.nets))

    n_epochs = int(config.joint_epochs)
    stages.train_jointly(
        scene, model, config, "joint_lasso", n_epochs, after_epoch, lam
    )
    model.features = stages.features_left(model.nets)
    shape = (P, S, G, scene.n_components)
    model.components = torch.ones(shape, dtype=torch.bool, device=device)
    model.empty = ~model.features.any(dim=3) | ~model.components.any(dim=3)
    model.constant = _constant(model.nets)
    if model.nets.is_linear:
        model.compact()
    after = dataclasses.replace(config, optimizer=config.train_optimizer)
    return _train_on(scene, model, after, curve, points)


def run_plain(scene: Scene) -> Arrays:
    """Run VFL without selection."""
    model, points, config = Model.create(scene), Points(scene), scene.config("plain")

    def after_epoch(epoch: int) -> None:
        points.add(model)

    n_epochs = int(config.train_epochs)
    stages.train_jointly(scene, model, config, "train", n_epochs, after_epoch)
    return points.arrays()
