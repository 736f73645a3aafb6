"""The stages of the paper for many runs at once, and the points of their curves.

The formulas are those of :mod:`lessvfl.algorithm` and its core; here are parties as an
axis, and the moments of linear networks. Axes: parties P, seeds S, settings G or tasks
T, rows N, components E, classes C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessvfl.core import metrics
from lessvfl.core.linear import Quadratic
from lessvfl.core.losses import proxy_loss, row_losses
from lessvfl.core.plans import Batches, Rows, SelectPlan
from lessvfl.core.prox import GroupLasso, leading
from lessvfl.core.solve import Schedule, Step, minimise, optimizer_step, prox_step
from lessvfl.terms import Stage
from lessvfl_bench.paper.loop import captured, first_of
from lessvfl_bench.paper.model import Model
from lessvfl_bench.paper.nets import Stack, leaf, side_by_side
from lessvfl_bench.paper.scene import Scene

Arrays = dict[str, np.ndarray[Any, Any]]


def _take(table: Tensor, rows: Rows) -> Tensor:
    """Return rows (S, b) of a table (S, N, ...), or (P, S, b) of (P, S, N, ...)."""
    if isinstance(rows, slice):
        return table[..., rows, :]
    places = [
        torch.arange(size, device=table.device).view(-1, *[1] * (rows.dim() - 1 - axis))
        for axis, size in enumerate(rows.shape[:-1])
    ]
    return table[(*places, rows)]


def _risk(scene: Scene, z: Tensor, rows: Rows) -> Tensor:
    """Return R_B, (S, G), of logits (S, b, G, C)."""
    labels = _take(scene.tables.labels.unsqueeze(2), rows)
    return row_losses(z, labels, scene.tables.task).mean(dim=1)


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
            hits, step = [], self.block or rows.shape[1]
            with torch.no_grad():
                for start in range(0, rows.shape[1], step):
                    cut = slice(start, start + step)
                    some = classes[:, cut]
                    right = metrics.is_right(model.logits(rows[:, cut]), some)
                    hits.append(metrics.class_hits(right, some, t.n_classes))
            counts = torch.stack(hits).sum(dim=0)  # (S, C, G)
            sizes = metrics.class_sizes(classes, t.n_classes)
            balanced = metrics.balanced_accuracy(counts, sizes)
            self.seen.setdefault(f"right_{name}", []).append(counts.sum(dim=1).int())
            self.seen.setdefault(f"balanced_{name}", []).append(balanced)

    def add_features(self, kept: Tensor) -> None:
        """Remember how many planted features are gone, (S, G), of masks."""
        planted = torch.as_tensor(self.tables.planted).to(kept.device)
        gone = (~kept & planted[:, None, None]).sum(dim=(0, 3))
        self.seen.setdefault("planted_gone", []).append(gone.int())

    def arrays(self) -> Arrays:
        """Return everything seen, on the host."""
        return {k: torch.stack(v).cpu().numpy() for k, v in self.seen.items()}


# ------------------------------------------------------------------------------- stages


def _optimizer(name: str, params: list[Tensor], lr: float) -> torch.optim.Optimizer:
    """Return the optimiser in a form that a graph can capture."""
    if name == "adam":
        on_cuda = params[0].device.type == "cuda"
        return torch.optim.Adam(params, lr=lr, fused=True, capturable=on_cuda)
    return torch.optim.SGD(params, lr=lr)


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
    params, w = model.parameters(), model.nets.weights[0]
    optimizer = _optimizer(config.optimizer, params, config.learning_rate)
    shrink: Callable[[], object] | None = None
    if lam is not None:
        penalty = GroupLasso(lam.expand(w.shape[:3]))
        shrink = functools.partial(penalty.prox, w, config.learning_rate)

    model.prepare()

    def loss(rows: Rows) -> Tensor:
        return _risk(scene, model.logits(_take(scene.tables.joint, rows)), rows)

    minimise(
        params,
        loss,
        lambda grads: optimizer_step(optimizer, params, grads, shrink),
        captured(scene.batches(config, stage), params, optimizer),
        n_epochs,
        lambda epoch, losses: after_epoch(epoch),
    )
    for param in params:
        param.grad = None


def _take_steps(
    params: Sequence[Tensor],
    w: Tensor,
    loss: Step,
    lam: Tensor,
    plan: SelectPlan,
    schedule: Schedule,
) -> None:
    """Take the proximal steps of a plan, in place; no plateau ends them.

    `w` (..., out, in) are the input weights among `params`, `lam` (...) the weights of
    the penalty, in the place of the plan's.
    """
    penalty = GroupLasso(lam * plan.lam_scale)
    minimise(
        params,
        loss,
        lambda grads: prox_step(params, grads, plan.step_size, penalty, w),
        schedule,
        plan.n_epochs,
        lambda epoch, losses: None,
    )


def features_left(nets: Stack) -> Tensor:
    """Return which features have any input weights, (P, S, G, D)."""
    return _inputs_left(nets.weights[0])


def _inputs_left(w: Tensor) -> Tensor:
    """Return which inputs of networks (..., out, in) have any weights, (..., in)."""
    norms: Tensor = torch.linalg.vector_norm(w.detach(), dim=-2)
    return norms > 0


@dataclass(frozen=True)
class Pretrained:
    """Models after every epoch of pre-training: setting e is epoch e + 1."""

    model: Model
    H: Tensor  # (S, e, N, P E), the embeddings of all rows
    arrays: Arrays


def pretrain(scene: Scene, n_epochs: int) -> Pretrained:
    """Run stage 1 once, and keep the model after every epoch."""
    model, points = Model.create(scene), Points(scene)
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
    """Linear fusion networks of every task: (pre-training epochs, lambda_s)."""

    tasks: Sequence[tuple[int, float]]
    w: Tensor  # (S, T, C, P E)
    b: Tensor  # (S, T, C)


def select_components(
    scene: Scene, start: Pretrained, tasks: Sequence[tuple[int, float]]
) -> tuple[Fusion, Tensor]:
    """Run stage 2 for all (pre-training epochs, lambda_s) at once.

    Returns the fusion networks, and the components kept as a mask (S, T, P E).
    """
    config, device = scene.config("less-vfl"), scene.tables.X.device
    which = torch.tensor([e - 1 for e, _ in tasks], dtype=torch.long, device=device)
    H = start.H[:, which]  # (S, T, N, P E)
    fusion = Fusion(tasks, leaf(start.model.w[:, which]), leaf(start.model.b[:, which]))
    S, T = fusion.w.shape[:2]
    if not tasks:
        return fusion, H.new_zeros(S, 0, H.shape[3]).bool()

    def loss(rows: Rows) -> Tensor:
        each = rows if isinstance(rows, slice) else rows.unsqueeze(1).expand(-1, T, -1)
        z = _take(H, each) @ fusion.w.mT + fusion.b.unsqueeze(2)  # (S, T, b, C)
        return _risk(scene, z.transpose(1, 2), rows)

    lam = fusion.w.new_tensor([lam for _, lam in tasks]).expand(S, -1)
    params, plan = [fusion.w, fusion.b], config.server_plan()
    schedule = captured(scene.batches(config, "select_components"), params)
    _take_steps(params, fusion.w, loss, lam, plan, schedule)
    return fusion, _inputs_left(fusion.w)


def select_features(
    scene: Scene, nets: Stack, components: Tensor, lam: Tensor
) -> Tensor:
    """Run stage 3 of all parties, seeds and tasks at once, in place.

    `nets` (P, S, T) are pre-trained, and their embeddings at the start the target;
    `components` (P, S, T, E) is K_m as masks, `lam` (P, S, T) lambda_m. Returns the
    features kept, as masks (P, S, T, D).
    """
    config, tables = scene.config("less-vfl"), scene.tables
    who = [f"party '{name}'" for name in tables.names]
    batches = [scene.batches(config, "select_features", name) for name in who]
    n_components = components.sum(dim=3)
    mean = config.reduction == "mean"
    divisor = n_components.clamp_min(1).to(tables.X.dtype) if mean else 1
    matching = _matching(scene, nets, components, first_of(batches))

    def loss(rows: Rows) -> Tensor:
        return matching(rows) / divisor

    plan, params, w = config.party_plan(), nets.parameters(), nets.weights[0]
    _take_steps(params, w, loss, lam, plan, captured(batches, params))
    if not plan.stepwise_removal:  # nothing to match: the minimiser of λ_m G is 0
        idle = (n_components == 0) & (lam > 0)
        with torch.no_grad():
            w.mul_(leading(~idle, w))
    return features_left(nets)


def _matching(scene: Scene, nets: Stack, components: Tensor, batches: Batches) -> Step:
    """Return H_B as a function of the rows, (P, S, T): summed over K_m, mean of rows.

    A linear network's loss is quadratic in its collapsed map A: with the batch's moment
    matrix X'X, |X (A - A₀)'|² needs no row at all. Where batches change from epoch to
    epoch, or have fewer rows than half the columns, the rows meet A - A₀ instead.
    """
    X = scene.tables.X
    P, S, T = components.shape[:3]
    if not nets.is_linear:
        frozen, mask = nets.copy(), components.unsqueeze(3)

        def by_network(rows: Rows) -> Tensor:
            X_b = _take(X, rows)
            with torch.no_grad():
                target = frozen.embed(X_b) * mask
            return proxy_loss(nets.embed(X_b) * mask, target, 1)

        return by_network
    keep = components.to(X.dtype).unsqueeze(4)

    def collapse() -> tuple[Tensor, Tensor]:
        last, added = nets.last
        return nets.collapse((last * keep, added * keep))

    with torch.no_grad():
        start, start_added = collapse()
    E, D = start.shape[3:]

    def gap() -> tuple[Tensor, Tensor]:
        whole, added = collapse()
        return whole - start, added - start_added

    if batches.row_order != "file" or 2 * batches.batch_size < X.shape[3]:

        def by_rows(rows: Rows) -> Tensor:
            X_b = _take(X, rows)[..., :D].flatten(0, 1)
            whole, added = gap()
            left = torch.baddbmm(
                added.view(P * S, 1, T * E), X_b, whole.view(P * S, T * E, D).mT
            )  # (P S, b, T E)
            n_rows = X_b.shape[1]
            return left.view(P, S, n_rows, T, E).square().sum(dim=(2, 4)) / n_rows

        return by_rows
    moments = {}
    for rows in batches.epoch(0, X.device):
        assert isinstance(rows, slice)
        X_b = _take(X, rows)
        moments[rows.start] = X_b.mT @ X_b / X_b.shape[2]

    def by_moments(rows: Rows) -> Tensor:
        assert isinstance(rows, slice)
        change = side_by_side(*gap()).view(P, S, T * E, -1)
        squares: Tensor = Quadratic.apply(  # type: ignore[no-untyped-call]
            change, moments[rows.start]
        )
        return squares.view(P, S, T, E).sum(dim=3)

    return by_moments
