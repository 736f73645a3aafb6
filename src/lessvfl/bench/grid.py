"""The paper's grid as one batched program.

Seeds x pre-training lengths x lambda_s x lambda_m are replicas of one set of tensors:
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lessvfl import data, profiles
from lessvfl.bench.loop import Loop
from lessvfl.bench.nets import ALIGNED, Stack, leaf, pick
from lessvfl.data import Dataset, Problem
from lessvfl.errors import ConfigError
from lessvfl.models import DTYPES, MLP
from lessvfl.profiles import Settings
from lessvfl.prox import GroupLasso
from lessvfl.types import Batches, Rows, Stage, Tensor, stream

Arrays = dict[str, np.ndarray[Any, Any]]
Part = Callable[[str], AbstractContextManager[None]]

VALIDATION_SHARE = 0.2  # of the training rows, where settings are chosen on them


@dataclass(frozen=True, order=True)
class Spec:
    """One run of every seed: a method and the settings that the grid varies."""

    method: str
    lam_party: float = 0.0
    lam_server: float = 0.0  # less-vfl alone
    pretrain_epochs: int = 0  # less-vfl and local-lasso


class Tables:
    """The rows of all parties and seeds as a few tensors.

    Parameters
    ----------
    problems : sequence of Problem
        One a seed, of equal shapes.
    dtype, device
        Of the tensors.
    """

    def __init__(
        self, problems: Sequence[Problem], dtype: torch.dtype, device: torch.device
    ) -> None:
        first = problems[0]
        self.task = first.task
        self.n_classes = first.n_classes
        self.widths = [party.X_train.shape[1] for party in first.parties]
        self.names = [party.name for party in first.parties]
        D = -(-max(self.widths) // ALIGNED) * ALIGNED
        self.planted = np.zeros((len(self.widths), D), dtype=bool)
        self.present = np.zeros_like(self.planted)
        for p, party in enumerate(first.parties):
            self.planted[p, : self.widths[p]] = party.spurious
            self.present[p, : self.widths[p]] = True
        self.X = self._stack([[t.X_train for t in p.parties] for p in problems], D)
        self.X_test = self._stack([[t.X_test for t in p.parties] for p in problems], D)
        self.X, self.X_test = (x.to(device, dtype) for x in (self.X, self.X_test))
        y, y_test = (
            torch.as_tensor(np.stack(labels)).to(device)
            for labels in (
                [p.y_train for p in problems],
                [p.y_test for p in problems],
            )
        )
        self.classes, self.classes_test = y.long(), y_test.long()
        self.joint, self.joint_test = _side_by_side(self.X), _side_by_side(self.X_test)

    def _stack(
        self, tables: Sequence[Sequence[np.ndarray[Any, Any]]], n_columns: int
    ) -> Tensor:
        """Return (P, S, N, D + ALIGNED): columns, zeros for those a party lacks, one."""
        shape = (len(self.widths), len(tables), len(tables[0][0]), n_columns + ALIGNED)
        X = np.zeros(shape, np.float32)
        X[..., n_columns] = 1.0
        for s, parties in enumerate(tables):
            for p, table in enumerate(parties):
                X[p, s, :, : table.shape[1]] = table
        return torch.as_tensor(X)

    @property
    def n_outputs(self) -> int:
        """Return the width of the fusion network's output."""
        return self.n_classes if self.task == "multiclass" else 1


def _side_by_side(X: Tensor) -> Tensor:
    """Return the parties' columns beside each other, (S, N, P (D + ALIGNED))."""
    return X.permute(1, 2, 0, 3).flatten(2).contiguous()


@dataclass(frozen=True)
class Scene:
    """What all runs over one data set share: rows, settings, seeds, device.

    Parameters
    ----------
    dataset : Dataset
        A classification task whose features are numbers.
    profile : str
        ``official-code`` or ``paper``.
    seeds : sequence of int
        One run of every setting each.
    spurious : float or sequence of float
        Planted noise.
    device : str
        ``cpu`` or ``cuda``.
    overrides : mapping
        Settings that differ from the profile's.
    holdout : bool
        Hold out a share of the training rows, and test on those instead.
    """

    dataset: Dataset
    profile: str
    seeds: tuple[int, ...]
    spurious: float | tuple[float, ...]
    device: str = "cpu"
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    holdout: bool = False
    tables: Tables = dataclasses.field(init=False, repr=False)
    problem: Problem = dataclasses.field(init=False, repr=False)  # of the first seed

    def __post_init__(self) -> None:
        """Prepare the rows of every seed."""
        if self.dataset.task == "regression":
            raise ConfigError(
                "The paper's benchmark needs a data set with classes. Got "
                f"'{self.dataset.name}', a regression."
            )
        config = self.settings("plain")
        parties = len(self.spurious) if isinstance(self.spurious, tuple) else None
        spurious = self.spurious if parties is None else list(self.spurious)  # type: ignore[arg-type]
        problems = [
            data.prepare(
                self.dataset, config.data, parties=parties, spurious=spurious, seed=seed
            )
            for seed in self.seeds
        ]
        for party in problems[0].parties:
            if len(party.features) != party.X_train.shape[1]:
                raise ConfigError(
                    "The paper's benchmark needs features of one column each. Got "
                    f"{len(party.features)} features in {party.X_train.shape[1]} "
                    f"columns at party '{party.name}' of '{self.dataset.name}'."
                )
        if self.holdout:
            problems = [
                _hold_out(problem, seed)
                for problem, seed in zip(problems, self.seeds, strict=True)
            ]
        tables = Tables(problems, DTYPES[config.net.dtype], torch.device(self.device))
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "problem", problems[0])

    def settings(self, method: str) -> Settings:
        """Return the settings of a method."""
        known = profiles.settings.fields_of(profiles.sections(method))
        own = {name: v for name, v in self.overrides.items() if name in known}
        return profiles.resolve(method, self.profile, self.dataset, own)

    def config(self, method: str) -> Any:
        """Return the method's own settings, its batches no larger than the table."""
        config: Any = self.settings(method).config
        n_rows = self.tables.X.shape[2]
        size = min(config.batch_size, n_rows)
        return dataclasses.replace(config, batch_size=size)

    @property
    def n_components(self) -> int:
        """Return the components of a party's embedding."""
        return self.settings("plain").net.embedding_size

    def batches(self, config: Any, stage: Stage, *who: str) -> Batches:
        """Return the mini-batches of a stage."""
        name = (stage, *who)
        n_rows = self.tables.X.shape[2]
        return Batches(n_rows, config.batch_size, self.seeds, name, config.shuffle)


def _hold_out(problem: Problem, seed: int) -> Problem:
    """Return the problem with a random share of its training rows as test rows."""
    n_rows = len(problem.y_train)
    order = torch.randperm(n_rows, generator=stream(seed, "validation")).numpy()
    cut = int(n_rows * VALIDATION_SHARE)
    held, left = np.sort(order[:cut]), np.sort(order[cut:])
    parties = tuple(
        dataclasses.replace(t, X_train=t.X_train[left], X_test=t.X_train[held])
        for t in problem.parties
    )
    y = problem.y_train
    return dataclasses.replace(
        problem, parties=parties, y_train=y[left], y_test=y[held]
    )


# ------------------------------------------------------------------------------- models


@dataclass
class Model:
    """Party networks and fusion networks of all seeds and settings.

    `features` (P, S, G, D) and `components` (P, S, G, E) are masks of what is left,
    None where nothing was removed. Where `still` (P, S, G), a party kept nothing: it
    contributes `rest`, its pre-trained network, or that network's `constant`.
    """

    nets: Stack
    w: Tensor  # (S, G, C, P E)
    b: Tensor  # (S, G, C)
    features: Tensor | None = None
    components: Tensor | None = None
    still: Tensor | None = None
    rest: Stack | None = None
    constant: Tensor | None = None  # (P, S, G, E)
    _mask: Tensor | None = None
    _offset: Tensor | None = None

    @classmethod
    def create(cls, scene: Scene) -> Model:
        """Draw the networks of every seed, as ``lessvfl run`` does; G = 1."""
        tables, net = scene.tables, scene.settings("plain").net
        device, dtype = tables.X.device, tables.X.dtype
        parties = [
            MLP.create(
                net.party_widths(width), net.activation, scene.seeds, name, dtype,
                device,
            )
            for name, width in zip(tables.names, tables.widths, strict=True)
        ]  # fmt: skip
        widths = net.fusion_widths(
            len(parties) * net.embedding_size, tables.n_outputs
        )
        if len(widths) > 2:
            raise ConfigError(
                "The paper's benchmark needs a linear fusion network: 'fusion_depth' "
                f"must be 1. Got {len(widths) - 1}."
            )
        fusion = MLP.create(widths, "none", scene.seeds, "the server", dtype, device)
        D = tables.X.shape[3] - ALIGNED
        w, b = fusion.weights[0].detach(), fusion.biases[0].detach()
        return cls(Stack.of(parties, D), w.unsqueeze(1), b.unsqueeze(1)).copy()

    def copy(self) -> Model:
        """Return trainable copies of the networks."""
        return Model(self.nets.copy(), leaf(self.w), leaf(self.b))

    def parameters(self) -> list[Tensor]:
        """Return every parameter."""
        return [*self.nets.parameters(), self.w, self.b]

    def prepare(self) -> None:
        """Turn the masks of a linear model into one mask and one offset."""
        if self.features is None or not self.nets.is_linear:
            return
        assert self.components is not None
        assert self.still is not None
        outputs = self.components.unsqueeze(4)  # (P, S, G, E, 1)
        ones = torch.ones_like(self.features[..., :ALIGNED])
        inputs = torch.cat([self.features, ones], dim=3).unsqueeze(3)
        dtype = self.w.dtype
        awake = ~self.still.view(*self.still.shape, 1, 1)
        self._mask = (outputs & inputs & awake).to(dtype)
        with torch.no_grad():
            if self.rest is not None:
                whole = self.rest.collapse()
            else:
                assert self.constant is not None
                whole = torch.zeros_like(self._mask)
                whole[..., -ALIGNED] = self.constant
            self._offset = whole * (outputs & ~awake).to(dtype)

    def logits(self, rows: Tensor) -> Tensor:
        """Return (S, n, G, C) for rows (S, n, P (D + ALIGNED))."""
        S, G, C, _ = self.w.shape
        P = self.nets.weights[0].shape[0]
        if not self.nets.is_linear:
            h = self._embed(rows.view(S, -1, P, rows.shape[2] // P).permute(2, 0, 1, 3))
            H = h.permute(1, 2, 3, 0, 4).flatten(3)  # (S, G, n, P E)
            return (H @ self.w.mT + self.b.unsqueeze(2)).transpose(1, 2)
        A = self.nets.collapse()
        if self._mask is not None:
            assert self._offset is not None
            A = torch.addcmul(self._offset, A, self._mask)
        w = self.w.view(S, G, C, P, -1).permute(3, 0, 1, 2, 4)
        M = (w @ A).permute(1, 2, 3, 0, 4).reshape(S, G * C, -1)
        z = torch.baddbmm(self.b.view(S, 1, G * C), rows, M.mT)
        return z.view(S, -1, G, C)

    def _embed(self, X: Tensor) -> Tensor:
        """Return embeddings (P, S, G, n, E), what a still party contributes put in."""
        h = self.nets.embed(X, self.features)
        if self.features is None:
            return h
        assert self.components is not None
        assert self.still is not None
        if self.rest is not None:
            with torch.no_grad():
                other = self.rest.embed(X)
        else:
            assert self.constant is not None
            other = self.constant.unsqueeze(3)
        h = torch.where(self.still.view(*self.still.shape, 1, 1), other, h)
        return h * self.components.unsqueeze(3)


def _losses(z: Tensor, classes: Tensor, task: str) -> Tensor:
    """Return R_B of every seed and setting, (S, G), of logits (S, b, G, C)."""
    if task == "multiclass":
        chosen = F.one_hot(classes, z.shape[3]).to(z.dtype).unsqueeze(2)
        return -(z.log_softmax(dim=3) * chosen).sum(dim=3).mean(dim=1)
    z = z.squeeze(3)
    y = classes.to(z.dtype).unsqueeze(2).expand_as(z)
    losses = F.binary_cross_entropy_with_logits(z, y, reduction="none")
    return losses.mean(dim=1)


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
        loss = _losses(z, _take(tables.classes, rows), tables.task).sum()
        for param, grad in zip(
            params, torch.autograd.grad(loss, params), strict=True
        ):
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


def _feature_norms(nets: Stack) -> Tensor:
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
        loss = _losses(z, _take(classes, rows), tables.task).sum()
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
    return _feature_norms(nets) > 0


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


# ----------------------------------------------------------------------------- programs


def bytes_per_setting(scene: Scene) -> int:
    """Estimate the memory that one setting takes while all its seeds are trained.

    Parameters, gradients and two moments; the collapsed maps, or the hidden units of a
    batch; the logits of all rows.
    """
    tables, net = scene.tables, scene.settings("plain").net
    D = tables.X.shape[3] - ALIGNED
    widths = net.party_widths(D)
    n_params = sum((a + 1) * b for a, b in itertools.pairwise(widths))
    n_values = 5 * n_params
    if net.activation == "none":
        n_values += 6 * widths[-1] * tables.X.shape[3]
        n_rows = max(tables.X.shape[2], tables.X_test.shape[2])
    else:
        n_rows = scene.config("plain").batch_size
        n_values += 5 * n_rows * sum(widths[1:])
    parties = len(tables.widths) * n_values + 4 * n_rows * tables.n_outputs
    return len(scene.seeds) * parties * tables.X.element_size()


def _still(features: Tensor, components: Tensor) -> Tensor:
    """Tell which parties kept nothing, (P, S, G)."""
    return ~features.any(dim=3) | ~components.any(dim=3)


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

    Parameters
    ----------
    K : array (P, S, G, E)
        Kept components.
    epochs, lam : array (G,)
        Of every setting.

    Returns
    -------
    chosen : array (P, S, T)
        A setting that stands for each task; where a party has fewer than T, the first
        one again.
    task : array (P, S, G)
        The task of every setting.
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
    fusion: Fusion,
    specs: Sequence[Spec],
    curve: bool = True,
    part: Part = lambda name: nullcontext(),
) -> Arrays:
    """Run stage 3 and training of LESS-VFL and local lasso, all `specs` at once.

    `part` takes the time of the stages.
    """
    config, tables = scene.config("less-vfl"), scene.tables
    device, dtype = tables.X.device, tables.X.dtype
    P, E, S = len(tables.widths), scene.n_components, len(scene.seeds)
    G = len(specs)
    epochs = np.array([spec.pretrain_epochs for spec in specs])
    lam = np.array([spec.lam_party for spec in specs])
    which = torch.as_tensor(epochs - 1).to(device)
    own_w, own_b = start.model.w[:, which].clone(), start.model.b[:, which].clone()
    K = torch.ones(S, G, P * E, dtype=torch.bool, device=device)
    for g, spec in enumerate(specs):
        if spec.method == "less-vfl":
            t = fusion.tasks.index((spec.pretrain_epochs, spec.lam_server))
            own_w[:, g], own_b[:, g] = fusion.w[:, t], fusion.b[:, t]
            K[:, g] = fusion.kept[:, t]
    components = K.view(S, G, P, E).permute(2, 0, 1, 3).contiguous()  # (P, S, G, E)

    chosen, task = _tasks(components.cpu().numpy(), epochs, lam)
    index = torch.as_tensor(chosen).to(device)
    nets = start.model.nets.take(which[index])
    weights = torch.as_tensor(lam).to(device, dtype)[index]
    with part("select_features"):
        features = select_features(scene, nets, pick(components, index), weights)

    place = torch.as_tensor(task).to(device)
    model = Model(nets.take(place), leaf(own_w), leaf(own_b))
    model.features, model.components = pick(features, place), components
    model.still = _still(model.features, components)
    if config.empty_party == "frozen":
        model.rest = start.model.nets.take(which.expand(P, S, G))
    else:
        model.constant = _constant(model.nets)
    with part("train"):
        return _train_on(scene, model, config, curve)


def _constant(nets: Stack) -> Tensor:
    """Return the embedding of a row of zeros, (P, S, G, E)."""
    P, S, _, _, D = nets.weights[0].shape
    zeros = nets.weights[0].new_zeros(P, S, 1, D + ALIGNED)
    with torch.no_grad():
        return nets.embed(zeros).squeeze(3)


def _train_on(
    scene: Scene,
    model: Model,
    config: Any,
    curve: bool,
    points: Points | None = None,
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

    train_jointly(scene, model, config, "train", n_epochs, after_epoch)
    return _outcome(model, points)


def run_group_lasso(
    scene: Scene, specs: Sequence[Spec], curve: bool = True
) -> Arrays:
    """Run group lasso for all lambdas at once: proximal joint training, then Adam."""
    config = scene.config("group-lasso")
    device, dtype = scene.tables.X.device, scene.tables.X.dtype
    one = Model.create(scene)
    P, S, G = len(scene.tables.widths), len(scene.seeds), len(specs)
    index = torch.zeros(P, S, G, dtype=torch.long, device=device)
    model = Model(
        one.nets.take(index),
        leaf(one.w.expand(-1, G, -1, -1)),
        leaf(one.b.expand(-1, G, -1)),
    )
    lam = torch.tensor([spec.lam_party for spec in specs], device=device, dtype=dtype)
    points = Points(scene)

    def after_epoch(epoch: int) -> None:
        if curve:
            points.add(model)
            points.add_features(_feature_norms(model.nets) > 0)

    n_epochs = int(config.joint_epochs)
    train_jointly(scene, model, config, "joint_lasso", n_epochs, after_epoch, lam)
    model.features = _feature_norms(model.nets) > 0
    shape = (P, S, G, scene.n_components)
    model.components = torch.ones(shape, dtype=torch.bool, device=device)
    model.still = _still(model.features, model.components)
    model.constant = _constant(model.nets)
    after = dataclasses.replace(config, optimizer=config.train_optimizer)
    return _train_on(scene, model, after, curve, points)


def run_plain(scene: Scene) -> Arrays:
    """Run VFL without selection."""
    model, points = Model.create(scene), Points(scene)
    config = scene.config("plain")
    n_epochs = int(config.train_epochs)
    train_jointly(
        scene, model, config, "train", n_epochs, lambda epoch: points.add(model)
    )
    return points.arrays()
