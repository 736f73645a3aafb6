"""The paper: Algorithm 2 (VFL) and Algorithm 1 (LESS-VFL), top to bottom.

The server is the code you are reading. Symbols as in the paper.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lessvfl.core.keeper import Keeper
from lessvfl.core.linear import BatchMoments
from lessvfl.core.losses import Labels, proxy_loss
from lessvfl.core.network import MLP, Network
from lessvfl.core.passes import gradients
from lessvfl.core.plans import Rows, SelectPlan, ShadowPlan, TrainPlan, parts, take
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import (
    Plateau,
    Schedule,
    Step,
    Watch,
    in_order,
    minimise,
    prox_step,
)
from lessvfl.core.stage import JointStage, narrow_to_kept, run_once
from lessvfl.terms import Event, Observer
from lessvfl.wire.parties import Parties, concatenate

NOTHING = Keeper()
LAMBDA_ROWS = 1 << 16  # that tell which lambda removes every feature


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
    Checkpoints, events and the rows held out are in ``core/stage.py``.
    """
    owners = [f"party '{m}'" for m in parties.names for _ in range(parties.sizes[m])]
    stage = JointStage(plan, fusion, labels, owners, observe, keeper)
    if stage.is_over:
        return
    held_out = functools.partial(_risk_held_out, parties, fusion, labels, plan)
    h = parties.begin(plan, stage.begin())  # lines 4-6 of the first batch
    for step, rows in stage.steps():  # lines 2, 3
        batch = labels.at(rows)
        H = concatenate(h).expand(len(batch.y), -1)  # line 7: (b, E)
        z = stage.passes.forward(H).requires_grad_()
        loss = batch.risk(z)  # R_B
        stage.watch(H, loss)
        (slope,) = gradients(loss, [z])
        slope = batch.released(slope, plan.stage, step)
        *grads, down = stage.passes.back(slope)
        if plan.record:  # less-vfl-auto: parties select by these gradients
            down = batch.of_log_likelihood(down, z.detach())
        widths = [parties.sizes[name] for name in parties.names]
        down = batch.blurred(down, widths, plan.stage, step)
        rate, last = stage.pace(held_out)
        stage.update(grads, rate)  # line 8
        h = parties.descend(plan, step, labels.seed, down, rate, last)  # lines 9-13


def _risk_held_out(
    parties: Parties, fusion: Network, labels: Labels, plan: TrainPlan, rows: Tensor
) -> float:
    """Ask parties to embed the training rows of these numbers; return the mean loss."""
    H = concatenate(parties.embed(plan.stage, "train", len(rows), plan.bits))
    fusion.train(False)
    with torch.no_grad():
        held_out = labels.at(rows.to(labels.y.device))
        risk = held_out.risk(fusion(H.expand(len(rows), -1)))
    fusion.train(True)
    return float(risk)


# ---------------------------------------------------------------- Algorithm 1: LESS-VFL


def prox_sgd(
    net: Network,
    loss: Step,
    penalty: GroupLasso,
    plan: SelectPlan,
    schedule: Schedule,
    observe: Observer,
    who: str,
) -> None:
    """Minimise loss + penalty on the input groups of `net` by proximal SGD."""
    params, w = net.parameters(), net.input_weights
    plateau = Plateau(w.new_full((), torch.inf), plan.patience, plan.tolerance)
    watch = Watch(plan.stage, [who])

    def after_epoch(epoch: int, losses: list[Tensor]) -> bool:
        for value in losses:
            watch.add(value.view(1))
        watch.check()
        observe(Event(plan.stage, epoch, plan.n_epochs))
        if plan.tolerance == 0:
            return False
        with torch.no_grad():
            plateau.improves(sum(losses) / len(losses) + penalty.value(w))
        return plateau.reached

    net.train(True)
    minimise(
        params,
        loss,
        lambda grads: prox_step(params, grads, plan.step_size, penalty, w),
        schedule,
        plan.n_epochs,
        after_epoch,
    )
    net.train(False)


def select_components(
    fusion: Network,
    loss: Step,
    plan: SelectPlan,
    schedule: Schedule,
    observe: Observer,
) -> Tensor:
    """Find the components that matter, at the server alone: stage 2, Eq. 4.

    `loss` is R_B of the fusion network on the stored embeddings. Returns K as a mask
    (E,): True where ‖π(θ_s)^k‖ > 0 (line 12).
    """
    penalty = GroupLasso(plan.weight(fusion.input_weights))
    prox_sgd(fusion, loss, penalty, plan, schedule, observe, "the server")  # lines 5-10
    with torch.no_grad():
        return penalty.norms(fusion.input_weights) > 0


def stored_risk(fusion: Network, H: Tensor, labels: Labels) -> Step:
    """Return R_B on stored embeddings (N, E) as a function of the rows."""

    def loss(rows: Rows) -> Tensor:
        return labels.at(rows).risk(fusion(take(H, rows)))

    return loss


def select_features(
    net: Network,
    loss: Step,
    n_components: int,
    membership: Tensor | None,
    plan: SelectPlan,
    schedule: Schedule,
    observe: Observer,
    who: str,
) -> Tensor:
    """Find the features that party m needs, at the party alone: stage 3, Eq. 5.

    `loss` is H_B on the components K_m, of which there are `n_components`; `net` starts
    from the pre-trained weights. Returns a mask (n_groups,), True = kept.
    """
    w = net.input_weights
    penalty = GroupLasso(plan.weight(w), membership)
    if plan.adaptive > 0:
        weights = adaptive_weights(penalty.norms(w.detach()), plan.adaptive)
        penalty = GroupLasso(penalty.lam, membership, weights)
    prox_sgd(net, loss, penalty, plan, schedule, observe, who)  # lines 15-20
    with torch.no_grad():
        if not (n_components or plan.stepwise_removal) and penalty.lam > 0:
            w.zero_()  # nothing to match: the minimiser of λ_m G is 0
        return penalty.norms(w) > 0


def largest_lambda(
    net: Network, loss: Step, membership: Tensor | None, rows: Rows
) -> Tensor:
    """Return the least λ at which no feature of a party helps to match.

    That is the largest norm of a group's gradient of H where π(θ) = 0, the other
    weights as pre-trained: at a larger λ zero is where proximal steps stay.
    """
    w = net.input_weights
    with torch.no_grad():
        start = w.clone()
        w.zero_()
    (slope,) = gradients(loss(rows), [w])
    with torch.no_grad():
        w.copy_(start)
        return GroupLasso(w.new_zeros(()), membership).norms(slope).max()


def with_lambda(
    plan: SelectPlan, net: Network, loss: Step, membership: Tensor | None, n_rows: int
) -> SelectPlan:
    """Return a plan with the λ of this party, where it has a share of the largest."""
    some = slice(0, min(n_rows, LAMBDA_ROWS))
    largest = largest_lambda(net, loss, membership, some)
    return replace(plan, lam=float(largest * plan.weight(largest)), lam_scale=1.0)


def adaptive_weights(norms: Tensor, power: float) -> Tensor:
    """Return 1 / (norm / median norm)^power of every group, (n_groups,), within bounds.

    The adaptive group lasso (Section 6 of the paper, future work): what is large after
    pre-training is penalised less.
    """
    relative = norms / norms.median()
    return relative.clamp(0.05, 20.0).pow(-power)


def matching_loss(net: Network, X: Tensor, plan: SelectPlan) -> Step:
    """Return H_B as a function of the rows: how far `net` is from where it starts."""
    divisor = max(1, net.n_outputs) if plan.reduction == "mean" else 1
    if isinstance(net, MLP) and net.is_linear:
        return _linear_matching_loss(net, X, divisor)
    with torch.no_grad():  # h_m(θ̂_m; X_m), (N, |K_m|)
        target = torch.cat([net(X[part]) for part in parts(len(X))])

    def loss(rows: Rows) -> Tensor:
        return proxy_loss(net(take(X, rows)), take(target, rows), divisor)

    return loss


def _linear_matching_loss(net: MLP, X: Tensor, divisor: int) -> Step:
    """Return the same of a network that is one linear map A: |X_B (A - A₀)'|² / |B|."""
    table = torch.nn.functional.pad(X, (0, 1), value=1.0)  # A adds by its last column
    moments = BatchMoments(table)
    with torch.no_grad():
        start = net.collapse()  # A₀

    def loss(rows: Rows) -> Tensor:
        change = net.collapse() - start
        if isinstance(rows, slice) and moments.serve(rows):
            return moments.squares(change, rows).sum(dim=-1) / divisor
        h = take(table, rows) @ change.mT
        return proxy_loss(h, torch.zeros_like(h), divisor)

    return loss


@dataclass(frozen=True)
class Stages:
    """The plans of Algorithm 1; without `server` (stage 2) this is local lasso."""

    pretrain: TrainPlan
    server: SelectPlan | None
    party: SelectPlan
    train: TrainPlan


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
    if stages.server is not None:  # stage 2, lines 1-12
        bits = stages.pretrain.bits
        find = functools.partial(
            _stage_2, parties, fusion, labels, stages.server, bits, observe
        )
        kept, fusion = narrow_to_kept(fusion, find, keeper)

    plan = stages.party  # stage 3, lines 13-20
    select = functools.partial(select_at_parties, parties, kept, plan)
    run_once(plan.stage, plan.n_epochs, select, fusion, observe, keeper)

    train_jointly(parties, fusion, labels, stages.train, observe, keeper)
    return fusion


def _stage_2(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    plan: SelectPlan,
    bits: int,
    observe: Observer,
) -> Tensor:
    """Gather the embeddings of all rows, once; return K as a mask (E,)."""
    observe(Event("embed", 0, 1))
    H = parties.embed_all(bits)  # lines 2-4
    observe(Event("embed", 1, 1))
    loss = stored_risk(fusion, H, labels)
    schedule = in_order(plan.batches(len(labels.y), labels.seed), H.device)
    observe(Event(plan.stage, 0, plan.n_epochs))
    return select_components(fusion, loss, plan, schedule, observe)  # lines 5-12


def select_at_parties(
    parties: Parties, kept: Tensor | None, plan: SelectPlan | ShadowPlan
) -> None:
    """Send every party its K_m, or that all components stay; each selects alone."""
    if kept is None:
        parties.charge_pass()  # the paper bills the stored pass to local lasso too
    parties.select_features(kept, plan)
