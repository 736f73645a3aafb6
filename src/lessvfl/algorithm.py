"""The paper: Algorithm 2 (VFL) and Algorithm 1 (LESS-VFL), top to bottom.

The server is the code you are reading. Symbols as in the paper; every tensor has a
leading replica axis R, and the gradient of the *sum* of the replicas' losses is each
one's own gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from lessvfl.errors import DivergenceError
from lessvfl.models import Network
from lessvfl.protocol import Parties, concatenate
from lessvfl.prox import GroupLasso, per_replica
from lessvfl.types import (
    Batches,
    Event,
    FitPlan,
    Keeper,
    Observer,
    Rows,
    SelectPlan,
    ShadowPlan,
    Stage,
    Task,
    Tensor,
    TrainPlan,
    sample_rows,
    stream,
    take,
)

Seeds = tuple[int, ...]
NOTHING = Keeper()


@dataclass(frozen=True)
class Labels:
    """What the server holds: labels (S, N), the task, and the seeds of the replicas."""

    y: Tensor
    task: Task
    seeds: Seeds


OPTIMIZERS: dict[str, Callable[[list[Tensor], float], torch.optim.Optimizer]] = {
    "adam": lambda params, lr: torch.optim.Adam(params, lr=lr, fused=True),
    "adamw": lambda params, lr: torch.optim.AdamW(params, lr=lr, fused=True),
    "adagrad": lambda params, lr: torch.optim.Adagrad(params, lr=lr),
    "nadam": lambda params, lr: torch.optim.NAdam(params, lr=lr),
    "rmsprop": lambda params, lr: torch.optim.RMSprop(params, lr=lr),
    "sgd": lambda params, lr: torch.optim.SGD(params, lr=lr),
}


def risk(z: Tensor, y: Tensor, task: Task) -> Tensor:
    """Return R_B of every replica, (R,): the mean over the rows of a batch."""
    return row_losses(z, y, task).mean(dim=1)


def row_losses(z: Tensor, y: Tensor, task: Task) -> Tensor:
    """Return the loss of every row, (R, b).

    Parameters
    ----------
    z : Tensor (R, b, 1) or (R, b, C)
        What the fusion network gives: one logit, C logits, or one value.
    y : Tensor (S, b)
        Labels: 0/1 as floats (binary), class indices (multi-class), or values.
    """
    if task == "multiclass":
        rows = y.expand(z.shape[0], -1)
        losses = F.cross_entropy(z.flatten(0, 1), rows.flatten(), reduction="none")
        return losses.view(z.shape[0], -1)
    z = z.squeeze(2)
    y = y.expand_as(z)
    if task == "binary":
        return F.binary_cross_entropy_with_logits(z, y, reduction="none")
    return (z - y).square()


def proxy_loss(h: Tensor, target: Tensor, divisor: Tensor | int) -> Tensor:
    """Return H_B of every replica, (R,): squared differences, mean over the rows.

    Sum over the components in K_m as in the paper (`divisor` 1), or their mean as in
    the released code (`divisor` |K_m|).
    """
    return (h - target).square().sum(dim=(1, 2)) / (h.shape[1] * divisor)


def gradients(
    output: Tensor, inputs: Sequence[Tensor], along: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the gradient of an output by each input; zeros where it has no part."""
    return torch.autograd.grad(
        output, inputs, along, allow_unused=True, materialize_grads=True
    )


class Watch:
    """Looks at every step's numbers, and stops the run where one is not finite.

    Sums are collected without waiting for the device and examined once an epoch.

    Parameters
    ----------
    stage : str
        Where the run is.
    names : sequence of str
        Whose number each value that :meth:`look` is given is.
    """

    def __init__(self, stage: Stage, names: Sequence[str]) -> None:
        self.stage = stage
        self.names = names
        self.step = 0
        self._seen: list[Tensor] = []

    def look(self, *values: Tensor) -> None:
        """Remember one number for every name."""
        self._seen += [value.detach().sum() for value in values]

    def check(self) -> None:
        """Raise naming who, stage and step, where a number was not finite."""
        finite = torch.stack(self._seen).isfinite().cpu().view(-1, len(self.names))
        if not bool(finite.all()):
            step = int((~finite.all(dim=1)).nonzero()[0])
            who = self.names[int((~finite[step]).nonzero()[0])]
            raise DivergenceError(
                f"The loss of {who} must stay finite. It diverged in stage "
                f"'{self.stage}' at step {self.step + step}; a smaller step size or "
                "learning rate, or scaled columns, may help."
            )
        self.step += len(finite)
        self._seen.clear()


# --------------------------------------------------------------------- Algorithm 2: VFL


def train_jointly(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    plan: TrainPlan,
    observe: Observer,
    keeper: Keeper = NOTHING,
) -> None:
    """Train fusion and party networks together: Algorithm 2.

    h up, dL/dh down. Both gradients are taken at the same embeddings and server
    weights. With `plan.lam` the parties follow each step by a proximal step (Eq. 2).
    With `plan.check` the stage ends one step after all parties said they are stable.
    """
    y = labels.y
    batches = plan.batches(y.shape[1], labels.seeds)
    n_steps = batches.n_steps(plan.n_epochs)
    if n_steps == 0:
        return
    optimizer = OPTIMIZERS[plan.optimizer](fusion.parameters(), plan.learning_rate)
    watch = Watch(plan.stage, [*(f"party '{m}'" for m in parties.names), "the server"])
    done = keeper.enter(plan.stage, n_steps, fusion.parameters(), optimizer)
    if done == n_steps:
        return
    fusion.train(True)
    h: list[Tensor] | None = parties.begin(plan, done)  # line 5
    left = itertools.islice(batches.steps(plan.n_epochs, y.device), done, None)
    for step, (_, rows) in enumerate(left, start=done + 1):
        target = take(y, rows)
        assert h is not None
        h = [block.detach().requires_grad_() for block in h]
        H = concatenate(h).expand(-1, target.shape[1], -1)  # (R, b, E)
        loss = risk(fusion(H), target, labels.task)  # line 7
        watch.look(*h, loss)
        params = fusion.parameters()
        grads = gradients(loss.sum(), [*params, *h])
        for param, grad in zip(params, grads, strict=False):
            param.grad = grad.contiguous()  # fused steps read memory in order
        plan.set_rate(optimizer, step - 1, n_steps)
        optimizer.step()  # line 8
        down = grads[len(params) :]
        stops = parties.is_stable
        is_last = stops or step == n_steps
        h = parties.descend(plan, step, labels.seeds, down, stops)  # lines 9-12, then 5
        if step % batches.n_per_epoch == 0 or is_last:
            watch.check()
            fusion.train(False)
            epoch = step / batches.n_per_epoch
            observe(Event(plan.stage, epoch, plan.n_epochs, fusion))
            fusion.train(True)
        keeper.reached(plan.stage, n_steps if is_last else step, n_steps)
        if stops:
            break
    fusion.train(False)


# ---------------------------------------------------------------- Algorithm 1: LESS-VFL


def prox_sgd(
    net: Network,
    loss: Callable[[Rows], Tensor],
    penalty: GroupLasso,
    plan: SelectPlan,
    batches: Batches,
    observe: Observer,
    who: str,
) -> None:
    """Minimise loss + penalty on the input groups of `net` by proximal SGD, in place.

    θ ← prox_{λ,η}(θ − η ∇loss(θ)): one η for both. A replica whose objective has
    reached a plateau keeps still from then on (η = 0).
    """
    params, w = net.parameters(), net.input_weights
    device, R = w.device, w.shape[0]
    eta = torch.full((R,), plan.step_size, device=device, dtype=w.dtype)
    best = torch.full((R,), float("inf"), device=device, dtype=w.dtype)
    waited = torch.zeros(R, device=device)
    watch = Watch(plan.stage, [who])
    net.train(True)
    for epoch in range(plan.n_epochs):
        total = torch.zeros(R, device=device, dtype=w.dtype)
        for rows in batches.epoch(epoch, device):
            value = loss(rows)  # (R,)
            watch.look(value)
            total += value.detach()
            grads = gradients(value.sum(), params)
            with torch.no_grad():
                for param, grad in zip(params, grads, strict=True):
                    param.addcmul_(grad, per_replica(eta, param), value=-1)
                penalty.prox(w, eta)
        watch.check()
        observe(Event(plan.stage, epoch + 1, plan.n_epochs))
        if plan.tolerance > 0:
            with torch.no_grad():
                objective = total / batches.n_per_epoch + penalty.value(w)
            improved = objective < best * (1 - plan.tolerance)
            waited = torch.where(improved, torch.zeros_like(waited), waited + 1)
            best = torch.minimum(best, objective)
            eta = torch.where(waited >= plan.patience, torch.zeros_like(eta), eta)
            if not bool(eta.any()):
                break
    net.train(False)


def select_components(
    fusion: Network,
    H: Tensor,
    labels: Labels,
    plan: SelectPlan,
    observe: Observer,
) -> Tensor:
    """Find the components that matter, at the server alone: stage 2, Eq. 4.

    Returns K as a mask (R, E): True where ‖π(θ_s)^k‖ > 0 (line 12).
    """
    y = labels.y
    penalty = GroupLasso(plan.weights(H))

    def loss(rows: Rows) -> Tensor:
        return risk(fusion(take(H, rows)), take(y, rows), labels.task)

    batches = plan.batches(y.shape[1], labels.seeds)
    prox_sgd(fusion, loss, penalty, plan, batches, observe, "the server")  # lines 6-10
    with torch.no_grad():
        return penalty.norms(fusion.input_weights) > 0


def select_features(
    net: Network,
    X: Tensor,
    membership: Tensor | None,
    plan: SelectPlan,
    seeds: Seeds,
    observe: Observer,
    who: str,
) -> Tensor:
    """Find the features that party m needs, at the party alone: stage 3, Eq. 5.

    `net` is narrowed to K_m and starts from the pre-trained weights; its own embeddings
    at the start are the target. Returns a mask (R, n_groups), True = kept.
    """
    penalty = GroupLasso(plan.weights(X), membership)
    n_components = net.output_mask.sum(dim=1)
    divisor = n_components.clamp_min(1) if plan.reduction == "mean" else 1
    with torch.no_grad():
        target = net(X)  # h_m(θ̂_m; X_m), (R, N, |K_m|)

    def loss(rows: Rows) -> Tensor:
        return proxy_loss(net(take(X, rows)), take(target, rows), divisor)

    batches = plan.batches(X.shape[1], seeds, who)
    prox_sgd(net, loss, penalty, plan, batches, observe, who)  # lines 15-20
    with torch.no_grad():
        if not plan.drain:  # nothing to match: the exact minimiser of λ_m G is zero
            idle = (n_components == 0) & (penalty.lam > 0)
            net.input_weights.mul_(per_replica(~idle, net.input_weights))
        return penalty.norms(net.input_weights) > 0


def fit_held_out(
    net: Network,
    loss: Callable[[Tensor], Tensor],
    n_samples: int,
    plan: FitPlan,
    seeds: Sequence[int],
    fold: int = 0,
) -> Tensor:
    """Fit a network alone, in place, on all replicas at once.

    A share of the rows is held out; every replica ends with the weights that predict it
    best, the first ones included. Returns the losses of the rows held out, (R, n).

    Parameters
    ----------
    net : Network
        What `loss` uses.
    loss : callable
        Maps rows (R, b) to their losses (R, b).
    n_samples : int
        Rows in all.
    fold : int
        Which share of the rows is held out, counted from 0.
    """
    params = net.parameters()
    device = params[0].device

    def shuffled(n: int, *name: str | int) -> Tensor:
        orders = [torch.randperm(n, generator=stream(s, *name)) for s in seeds]
        return torch.stack(orders).to(device)

    def score() -> Tensor:
        net.train(False)
        with torch.no_grad():
            return loss(held)

    n_held = max(1, round(plan.held_out * n_samples))
    order = shuffled(n_samples, "refit").roll(-fold * n_held, dims=1)
    held, rest = order[:, :n_held], order[:, n_held:]
    optimizer = torch.optim.AdamW(params, lr=plan.rate, weight_decay=plan.decay)
    best, kept = score().mean(dim=1), [param.detach().clone() for param in params]
    waited = torch.zeros(len(best), device=device)
    for epoch in range(plan.n_epochs):
        net.train(True)
        places = torch.gather(rest, 1, shuffled(rest.shape[1], "refit", epoch))
        for rows in places.split(plan.batch_size, dim=1):  # type: ignore[no-untyped-call]
            grads = gradients(loss(rows).mean(dim=1).sum(), params)
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.contiguous()
            optimizer.step()
        now = score().mean(dim=1)
        better = (now < best) & (waited < plan.patience)  # each as if it were alone
        best = torch.where(better, now, best)
        waited = torch.where(better, torch.zeros_like(waited), waited + 1)
        kept = [
            torch.where(per_replica(better, old), param.detach(), old)
            for param, old in zip(params, kept, strict=True)
        ]
        if bool((waited >= plan.patience).all()):
            break
    with torch.no_grad():
        for param, value in zip(params, kept, strict=True):
            param.copy_(value)
    return score()


@dataclass(frozen=True)
class PathPlan:
    """How the server selects components without a lambda.

    It asks for the embeddings of `n_rows` rows in `bits` bits, fits the group lasso of
    a linear head for `n_lambdas` on `1 - held_out` of them, and takes the largest
    lambda whose loss on the others is within `n_errors` standard errors of the best.
    With `refit` it then fits its network to these rows for at most so many epochs.
    """

    n_rows: int
    bits: int = 32
    n_errors: float = 1.0
    refit: int = 0
    held_out: float = 0.25
    n_lambdas: int = 20
    n_steps: int = 300


def choose_components(
    H: Tensor, y: Tensor, labels: Labels, plan: PathPlan, sizes: Sequence[int]
) -> Tensor:
    """Find the components that matter along a path of lambdas, at the server alone.

    `H` (R, n, E) and `y` (S, n) are of the rows that were asked for, `sizes` the number
    of components of every party. Returns K as a mask (R, E). One component of every
    party stays, its strongest: whether a party matters is for its features to say,
    which a short pre-training may not have got to.
    """
    masks = []
    for r in range(H.shape[0]):
        h, target = H[r], y[min(r, y.shape[0] - 1)].unsqueeze(0)
        h = (h - h.mean(dim=0)) / h.std(dim=0).clamp_min(torch.finfo(h.dtype).tiny)
        n_fit = round((1 - plan.held_out) * len(h))
        n_outputs = int(labels.y.max()) + 1 if labels.task == "multiclass" else 1
        weights, offsets = _head_path(
            h[:n_fit], target[:, :n_fit], labels.task, n_outputs, plan
        )
        z = h[n_fit:] @ weights.mT + offsets.unsqueeze(1)  # (L, n, outputs)
        losses = row_losses(z, target[:, n_fit:], labels.task)
        means = losses.mean(dim=1)
        best = int(means.argmin())
        error = losses[best].std() / math.sqrt(losses.shape[1])
        within = means <= means[best] + plan.n_errors * error
        kept = weights[int(within.float().argmax())].norm(dim=0) > 0
        strengths = weights[-1].norm(dim=0).split(list(sizes))
        for own, strength in zip(kept.split(list(sizes)), strengths, strict=True):
            if len(own) and not bool(own.any()):
                own[strength.argmax()] = True
        masks.append(kept)
    return torch.stack(masks)


def _head_path(
    h: Tensor, y: Tensor, task: Task, n_outputs: int, plan: PathPlan
) -> tuple[Tensor, Tensor]:
    """Fit linear heads for a path of lambdas, largest first: (L, C, E) and (L, C)."""
    L, E = plan.n_lambdas, h.shape[1]
    W = h.new_zeros(L, n_outputs, E).requires_grad_()
    b = h.new_zeros(L, n_outputs).requires_grad_()
    curve = 2.0 if task == "regression" else 0.5
    ones = torch.cat([h, h.new_ones(len(h), 1)], dim=1)
    rate = 1 / (curve * torch.linalg.matrix_norm(ones, 2) ** 2 / len(h))

    def slopes() -> tuple[Tensor, ...]:
        z = h @ W.mT + b.unsqueeze(1)
        return gradients(risk(z, y, task).sum(), [W, b])

    for _ in range(plan.n_steps):  # the offsets alone: all lambdas start from there
        _, db = slopes()
        with torch.no_grad():
            b -= rate * db
    largest = slopes()[0][0].norm(dim=0).max()
    lams = largest * torch.logspace(0, -2.5, L).to(h)
    penalty, step = GroupLasso(lams), rate.expand(L)
    for _ in range(plan.n_steps):
        dW, db = slopes()
        with torch.no_grad():
            W -= rate * dW
            b -= rate * db
            penalty.prox(W, step)
    return W.detach(), b.detach()


@dataclass(frozen=True)
class Stages:
    """The plans of Algorithm 1; without `server` (stage 2) this is local lasso.

    With `settle` and `again` parties look a second time after some training.
    """

    pretrain: TrainPlan
    server: SelectPlan | PathPlan | None
    party: SelectPlan | ShadowPlan
    train: TrainPlan
    settle: TrainPlan | None = None
    again: ShadowPlan | None = None


def _components_by_path(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    plan: PathPlan,
    observe: Observer,
) -> tuple[Tensor, Network]:
    """Return the components kept, and the fusion network narrowed to them."""
    n_rows = min(plan.n_rows, labels.y.shape[1])
    H = concatenate(parties.embed("embed", "train", n_rows, plan.bits))
    observe(Event("embed", 1, 1))
    rows = sample_rows(labels.y.shape[1], n_rows, labels.seeds).to(H.device)
    y = take(labels.y, rows)
    sizes = [parties.sizes[name] for name in parties.names]
    kept = choose_components(H, y, labels, plan, sizes)
    fusion = fusion.narrow(slots=kept)
    if plan.refit:
        own = H[:, :, kept.any(dim=0)]

        def loss(rows: Tensor) -> Tensor:
            return row_losses(fusion(take(own, rows)), take(y, rows), labels.task)

        fit_held_out(fusion, loss, n_rows, FitPlan(plan.refit), labels.seeds)
    observe(Event("select_components", 1, 1))
    return kept, fusion


def less_vfl(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    stages: Stages,
    observe: Observer,
    keeper: Keeper = NOTHING,
) -> Network:
    """Run the three stages, then train on with what is left: Algorithm 1 and Section 5.

    Returns the narrowed fusion network.
    """
    train_jointly(parties, fusion, labels, stages.pretrain, observe, keeper)  # stage 1
    kept = None
    if stages.server is not None:
        kept = keeper.recall("select_components")
        if kept is None:
            if isinstance(stages.server, PathPlan):
                kept, fusion = _components_by_path(
                    parties, fusion, labels, stages.server, observe
                )
            else:
                H = concatenate(parties.embed("embed", "train"))  # lines 1-4
                observe(Event("embed", 1, 1))
                kept = select_components(fusion, H, labels, stages.server, observe)
                fusion = fusion.narrow(slots=kept)  # stage 2
            keeper.note("select_components", kept, fusion.parameters())
        else:
            fusion = fusion.narrow(slots=kept)
            keeper.put_back(fusion.parameters())
    if not keeper.is_behind("select_features"):
        if stages.server is None:
            parties.charge_pass()  # the paper bills the stored pass to local lasso too
        parties.select_features(kept, stages.party)  # stage 3
        n_epochs = getattr(stages.party, "n_epochs", 1)
        observe(Event("select_features", n_epochs, n_epochs, fusion))
        keeper.reached("select_features", 1, 1)
    if stages.settle is not None and stages.again is not None:
        train_jointly(parties, fusion, labels, stages.settle, observe, keeper)
        if not keeper.is_behind("select_again"):
            parties.look_again(stages.again)
            observe(Event("select_again", 1, 1, fusion))
            keeper.reached("select_again", 1, 1)
    train_jointly(parties, fusion, labels, stages.train, observe, keeper)
    return fusion
