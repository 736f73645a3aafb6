"""The stages of the paper for many runs at once, and the points of their curves.

Axes: parties P, seeds S, settings G or tasks T, rows N, components E, classes C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lessvfl.bench.paper.loop import Loop
from lessvfl.bench.paper.model import Model, losses
from lessvfl.bench.paper.nets import Stack, leaf
from lessvfl.bench.paper.scene import Scene
from lessvfl.core.plans import Batches, Rows
from lessvfl.core.prox import GroupLasso
from lessvfl.errors import ConfigError
from lessvfl.terms import Stage

Arrays = dict[str, np.ndarray[Any, Any]]


def _take(table: Tensor, rows: Rows) -> Tensor:
    """Return rows of a table (S, N, ...) or, by (P, S, b), of one (P, S, N, ...)."""
    if isinstance(rows, slice):
        return table[:, rows]
    S = torch.arange(table.shape[0], device=table.device).unsqueeze(1)
    return table[S, rows]


def _take_each(tables: Tensor, rows: Rows) -> Tensor:
    """Return rows of every party's table, (P, S, N, ...)."""
    if isinstance(rows, slice):
        return tables[:, :, rows]
    P, S = tables.shape[:2]
    p = torch.arange(P, device=tables.device).view(-1, 1, 1)
    s = torch.arange(S, device=tables.device).view(1, -1, 1)
    return tables[p, s, rows]


# --------------------------------------------------------------------------- evaluation


class Points:
    """The curve: rows predicted right, and balanced accuracy, of test and train rows.

    Collected on the device, point by point; every array is (points, S, G).
    """

    def __init__(self, scene: Scene) -> None:
        self.tables = scene.tables
        linear = scene.settings("plain").net.activation == "none"
        self.block = None if linear else scene.config("plain").batch_size
        self.seen: dict[str, list[Tensor]] = {}

    def add(self, model: Model) -> None:
        """Evaluate a model."""
        t = self.tables
        for name, rows, classes in (
            ("test", t.joint_test, t.classes_test),
            ("train", t.joint, t.classes),
        ):
            counts = self._right(model, rows, classes)  # (S, C, G)
            members = F.one_hot(classes, t.n_classes).sum(dim=1).unsqueeze(2)
            shares = counts.double() / members.clamp_min(1)
            present = (members > 0).double()
            balanced = (shares * present).sum(dim=1) / present.sum(dim=1)
            self.seen.setdefault(f"right_{name}", []).append(counts.sum(dim=1).int())
            self.seen.setdefault(f"balanced_{name}", []).append(balanced)

    def add_features(self, kept: Tensor) -> None:
        """Remember how many planted features are gone, (S, G), of masks."""
        planted = torch.as_tensor(self.tables.planted).to(kept.device)
        gone = (~kept & planted[:, None, None]).sum(dim=(0, 3))
        self.seen.setdefault("planted_gone", []).append(gone.int())

    def _right(self, model: Model, rows: Tensor, classes: Tensor) -> Tensor:
        """Return how many rows of every class are predicted right."""
        n_rows = rows.shape[1]
        step = self.block or max(n_rows, 1)
        total: Tensor | None = None
        with torch.no_grad():
            for start in range(0, n_rows, step):
                cut = slice(start, start + step)
                z = model.logits(rows[:, cut])
                y = classes[:, cut]
                if z.shape[3] == 1:
                    right = (z.squeeze(3) > 0) == y.unsqueeze(2).bool()
                else:
                    right = z.argmax(dim=3) == y.unsqueeze(2)
                members = F.one_hot(y, self.tables.n_classes).to(z.dtype)
                counts = members.mT @ right.to(z.dtype)  # (S, C, G), whole numbers
                total = counts if total is None else total + counts
        assert total is not None
        return total

    def arrays(self) -> Arrays:
        """Return everything seen, on the host."""
        return {k: torch.stack(v).cpu().numpy() for k, v in self.seen.items()}


# ------------------------------------------------------------------------------- stages


def _optimizer(name: str, params: list[Tensor], lr: float) -> torch.optim.Optimizer:
    on_cuda = params[0].device.type == "cuda"
    if name == "adam":
        return torch.optim.Adam(params, lr=lr, fused=True, capturable=on_cuda)
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr)
    raise ConfigError(
        "The 'optimizer' setting of the paper's benchmark must be adam or sgd. "
        f"Got {name!r} instead."
    )


def train_jointly(
    scene: Scene,
    model: Model,
    config: Any,
    stage: Stage,
    n_epochs: int,
    after_epoch: Callable[[int], None],
    lam: Tensor | None = None,
) -> None:
    """Train all models at once: Algorithm 2, with proximal steps by `lam` (G,)."""
    if n_epochs == 0:
        return
    tables, params = scene.tables, model.parameters()
    optimizer = _optimizer(config.optimizer, params, config.learning_rate)
    first = model.nets.weights[0]
    R = first.shape[:3].numel()
    eta = torch.tensor([config.learning_rate], device=first.device, dtype=first.dtype)
    model.prepare()

    def step(number: int, rows: Rows) -> None:
        z = model.logits(_take(tables.joint, rows))
        loss = losses(z, _take(tables.classes, rows), tables.task).sum()
        for param, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
            param.grad = grad.contiguous()
        optimizer.step()
        if lam is not None:
            with torch.no_grad():
                each = lam.expand(first.shape[:3]).reshape(R)
                GroupLasso(each).prox(first.view(R, *first.shape[3:]), eta)

    loop = Loop([scene.batches(config, stage)], step, params, optimizer)
    for epoch in range(n_epochs):
        loop.epoch(epoch)
        after_epoch(epoch + 1)
    for param in params:
        param.grad = None


def feature_norms(nets: Stack) -> Tensor:
    """Return the norm of every feature's input weights, (P, S, G, D)."""
    with torch.no_grad():
        norms: Tensor = torch.linalg.vector_norm(nets.weights[0], dim=3)
        return norms


@dataclass(frozen=True)
class Pretrained:
    """Models after every epoch of pre-training, side by side: setting e = epoch e + 1.

    `H` are the embeddings of all rows, (S, e, N, P E).
    """

    model: Model
    H: Tensor
    arrays: Arrays


def pretrain(scene: Scene, n_epochs: int) -> Pretrained:
    """Run stage 1 once, and keep the model after every epoch."""
    model = Model.create(scene)
    points = Points(scene)
    kept: list[Model] = []

    def after_epoch(epoch: int) -> None:
        points.add(model)
        kept.append(model.copy())

    config = scene.config("less-vfl")
    train_jointly(scene, model, config, "pretrain", n_epochs, after_epoch)
    whole = Model(
        Stack.join([m.nets for m in kept]),
        torch.cat([m.w for m in kept], dim=1),
        torch.cat([m.b for m in kept], dim=1),
    )
    tables, size = scene.tables, config.batch_size
    with torch.no_grad():
        blocks = [
            whole.nets.embed(tables.X[:, :, start : start + size])
            for start in range(0, tables.X.shape[2], size)
        ]
        H = torch.cat(blocks, dim=3).permute(1, 2, 3, 0, 4).flatten(3)
    return Pretrained(whole, H, points.arrays())


@dataclass(frozen=True)
class Fusion:
    """What stage 2 leaves of every task: (pre-training epochs, lambda_s)."""

    tasks: Sequence[tuple[int, float]]
    w: Tensor  # (S, T, C, P E)
    b: Tensor  # (S, T, C)
    kept: Tensor  # (S, T, P E)


def select_components(
    scene: Scene, start: Pretrained, tasks: Sequence[tuple[int, float]]
) -> Fusion:
    """Run stage 2 for all (pre-training epochs, lambda_s) at once."""
    config, tables = scene.config("less-vfl"), scene.tables
    device, dtype = tables.X.device, tables.X.dtype
    which = torch.tensor([e - 1 for e, _ in tasks], dtype=torch.long, device=device)
    lam = torch.tensor([lam for _, lam in tasks], device=device, dtype=dtype)
    H = start.H[:, which]  # (S, T, N, P E)
    w, b = leaf(start.model.w[:, which]), leaf(start.model.b[:, which])
    S, T = w.shape[:2]
    penalty = GroupLasso(lam.expand(S, T).reshape(S * T))
    eta = torch.tensor([config.server_step_size], device=device, dtype=dtype)
    classes = tables.classes

    def step(number: int, rows: Rows) -> None:
        if isinstance(rows, slice):
            H_b = H[:, :, rows]
        else:
            s = torch.arange(S, device=device).view(-1, 1, 1)
            t = torch.arange(T, device=device).view(1, -1, 1)
            H_b = H[s, t, rows.unsqueeze(1)]
        z = (H_b @ w.mT + b.unsqueeze(2)).transpose(1, 2)  # (S, b, T, C)
        loss = losses(z, _take(classes, rows), tables.task).sum()
        grads = torch.autograd.grad(loss, [w, b])
        with torch.no_grad():
            torch._foreach_add_([w, b], grads, alpha=-config.server_step_size)
            penalty.prox(w.view(S * T, *w.shape[2:]), eta)

    if tasks:
        loop = Loop([scene.batches(config, "select_components")], step, [w, b])
        for epoch in range(config.server_epochs):
            loop.epoch(epoch)
    with torch.no_grad():
        kept = torch.linalg.vector_norm(w, dim=2) > 0
    return Fusion(tasks, w.detach(), b.detach(), kept)


def select_features(
    scene: Scene, nets: Stack, components: Tensor, lam: Tensor
) -> Tensor:
    """Run stage 3 of all parties, seeds and tasks at once, in place.

    Parameters
    ----------
    nets : Stack (P, S, T)
        Pre-trained networks; their embeddings at the start are the target.
    components : Tensor (P, S, T, E)
        K_m, as masks.
    lam : Tensor (P, S, T)
        lambda_m.

    Returns
    -------
    Tensor (P, S, T, D)
        The features kept, as masks.
    """
    config, tables = scene.config("less-vfl"), scene.tables
    X, first, params = tables.X, nets.weights[0], nets.parameters()
    R = first.shape[:3].numel()
    eta = config.party_step_size
    penalty = GroupLasso(lam.reshape(R) * config.lam_scale)
    threshold = torch.tensor([eta], device=X.device, dtype=X.dtype)
    who = [f"party '{name}'" for name in tables.names]
    batches = [scene.batches(config, "select_features", name) for name in who]
    n_kept = components.sum(dim=3).clamp_min(1).to(X.dtype)
    divisor = n_kept if config.reduction == "mean" else torch.ones_like(n_kept)
    loss_of = _matching(scene, nets, components, batches[0])

    def step(number: int, rows: Rows) -> None:
        loss = (loss_of(number, rows) / divisor).sum()
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-eta)
            penalty.prox(first.view(R, *first.shape[3:]), threshold)

    loop = Loop(batches if config.shuffle else batches[:1], step, params)
    for epoch in range(config.party_epochs):
        loop.epoch(epoch)
    if not config.drain:  # nothing to match: the exact minimiser of λ_m G is zero
        idle = (components.sum(dim=3) == 0) & (lam > 0)
        with torch.no_grad():
            first.mul_((~idle).view(*idle.shape, 1, 1))
    return feature_norms(nets) > 0


def _matching(
    scene: Scene, nets: Stack, components: Tensor, batches: Batches
) -> Callable[[int, Rows], Tensor]:
    """Return H_B as a function of the step, (P, S, T): summed over K_m, mean of rows.

    A linear network's loss is quadratic in its collapsed map A: with the batch's moment
    matrix X'X, |X (A - A₀)'|² needs no row at all. Where batches change from epoch to
    epoch, or have fewer rows than half the columns, the rows meet A - A₀ instead.
    """
    X = scene.tables.X
    keep = components.to(X.dtype).unsqueeze(4)
    P, S, T = components.shape[:3]
    if not nets.is_linear:
        with torch.no_grad():
            frozen = Stack(
                [w.detach().clone() for w in nets.weights],
                [b.detach().clone() for b in nets.biases],
                nets.activation,
            )

        def by_network(number: int, rows: Rows) -> Tensor:
            X_b = _take_each(X, rows)
            with torch.no_grad():
                target = frozen.embed(X_b)
            gap = (nets.embed(X_b) - target) * components.unsqueeze(3)
            return gap.square().sum(dim=(3, 4)) / X_b.shape[2]

        return by_network
    with torch.no_grad():
        start = nets.collapse()
    E, width = start.shape[3:]

    def gap() -> Tensor:
        return ((nets.collapse() - start) * keep).view(P * S, T * E, width)

    if batches.shuffle or 2 * batches.batch_size < width:

        def by_rows(number: int, rows: Rows) -> Tensor:
            X_b = _take_each(X, rows)
            n_rows = X_b.shape[2]
            left = X_b.reshape(P * S, n_rows, width) @ gap().mT  # (P S, b, T E)
            return left.view(P, S, n_rows, T, E).square().sum(dim=(2, 4)) / n_rows

        return by_rows
    moments = []
    for rows in batches.epoch(0, X.device):
        X_b = _take_each(X, rows).reshape(P * S, -1, width)
        moments.append(X_b.mT @ X_b / X_b.shape[1])

    def by_moments(number: int, rows: Rows) -> Tensor:
        change = gap()
        return (change * (change @ moments[number])).view(P, S, T, -1).sum(dim=3)

    return by_moments
