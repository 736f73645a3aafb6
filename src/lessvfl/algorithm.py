"""The paper: Algorithm 2 (VFL) and Algorithm 1 (LESS-VFL), top to bottom.

The server is the code you are reading. Symbols as in the paper; every tensor has a
leading replica axis R, and the gradient of the *sum* of the replicas' losses is each
one's own gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.head_path import PathPlan, choose_components
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import proxy_loss, risk, row_losses
from lessvfl.core.network import Network
from lessvfl.core.plans import (
    Batches,
    FitPlan,
    Labels,
    Rows,
    Seeds,
    SelectPlan,
    ShadowPlan,
    TrainPlan,
    sample_rows,
    take,
)
from lessvfl.core.prox import GroupLasso, per_replica
from lessvfl.core.solve import OPTIMIZERS, Watch, fit_held_out, gradients
from lessvfl.terms import Event, Observer
from lessvfl.wire.parties import Parties, concatenate

NOTHING = Keeper()


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
