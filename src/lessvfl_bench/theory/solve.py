"""The methods solved by full-batch steps, for the check of the theory.

Everything is batched: a replica is a party of a seed, for parties are split evenly. In
stage 3 they act alone; in joint training their outputs meet in the fusion network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl import algorithm
from lessvfl.core.losses import Labels, risk
from lessvfl.core.network import MLP
from lessvfl.core.passes import gradients
from lessvfl.core.plans import Batches, Rows, SelectPlan, TrainPlan
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import OPTIMIZERS, Schedule, in_order, optimizer_step
from lessvfl.terms import Stage
from lessvfl_bench.theory.problem import BLOCK, N_BLOCKS, UNITS, Family

# λ = constant * N^(-1/4), the same constants for all N and M. Chosen once by looking at
# seeds 100 to 102, none of them a seed of the programme, at N up to 1,000,000 (tanh:
# 30,000), so that recovery begins and ends within these N.
LAMBDA = {
    "linear": {"server": 0.1, "party": 0.15, "joint": 0.15},
    "deep-linear": {"server": 0.1, "party": 0.3, "joint": 0.3},
    "tanh": {"server": 0.1, "party": 0.3, "joint": 0.2},
}
FIRST_LAYER = 0.3  # first-layer weights start at this share of Glorot's
LEARNING_RATE = 0.03  # of Adam, at the start of half a cosine
FEW_ROWS = 100_000  # the first steps of pre-training see no more rows than this ...
PRETRAIN_STEPS = (1000, 300)  # ... and the last ones all of them
SERVER_STEPS = 2000  # of size 1/L, L the Lipschitz constant of the gradient
PARTY_STEPS, PARTY_STEP_SIZE = 1500, 0.05
JOINT_STEPS, JOINT_STEP_SIZE = 1500, 0.05
PASSES = 100  # steps between two looks at the loss, for each look waits for the device


def lambdas(network: str, n: int) -> dict[str, float]:
    """Return the penalty weights at N samples, constants times N^(-1/4)."""
    return {kind: float(c * n**-0.25) for kind, c in LAMBDA[network].items()}


# -- networks --------------------------------------------------------------------------


def split(X: Tensor, n_parties: int) -> Tensor:
    """Give every party its columns, parties as replicas: (R * M, n, columns / M)."""
    n_seeds, n, n_columns = X.shape
    parts = X.view(n_seeds, n, n_parties, n_columns // n_parties)
    return parts.transpose(1, 2).flatten(0, 1)


def join(h: Tensor, n_parties: int) -> Tensor:
    """Put the embeddings of a seed's parties side by side: (R, n, M * E)."""
    parts = h.view(-1, n_parties, *h.shape[1:])
    return parts.transpose(1, 2).flatten(2)


def start(
    seeds: Sequence[int],
    n_parties: int,
    n_components: int,
    family: Family,
    device: torch.device,
) -> tuple[MLP, MLP]:
    """Draw party networks, a replica for every seed and party, and fusion networks."""
    width = N_BLOCKS // n_parties
    hidden = (width * UNITS,) * (family.n_layers - 1)
    widths, kind = (width * BLOCK, *hidden, n_components), family.activation
    drawn = [
        MLP.create(widths, kind, (seed,), f"party{m}", family.dtype, device)
        for seed in seeds
        for m in range(n_parties)
    ]
    layers = range(family.n_layers)
    weights = [torch.cat([net.weights[i].detach() for net in drawn]) for i in layers]
    biases = [torch.cat([net.biases[i].detach() for net in drawn]) for i in layers]
    weights[0] *= FIRST_LAYER
    ones = weights[0].new_ones(len(seeds), 1, n_parties * n_components)
    zero = weights[0].new_zeros(len(seeds), 1)
    return trainable(MLP(weights, biases, kind)), trainable(MLP([ones], [zero], "none"))


def trainable(net: MLP, outputs: Tensor | None = None) -> MLP:
    """Return a network of its own with these values and, maybe, a mask of outputs."""
    weights = [w.detach().clone().requires_grad_() for w in net.weights]
    biases = [b.detach().clone().requires_grad_() for b in net.biases]
    return MLP(weights, biases, net.activation, None, outputs)


def fused(net: MLP, fusion: MLP, n_parties: int) -> MLP:
    """Return party networks whose outputs add up to what the fusion network gives.

    A linear fusion network is one with the last layers before it. The penalty of Eq. 2
    acts on first layers alone, so that its minimisers stay what they are where a party
    has several; where it has one, this is the lasso on what feature and server make of
    it together, which server weights cannot evade by growing.
    """
    a = fusion.weights[0].detach().view(net.n_replicas, -1, 1)  # (R * M, E, 1)
    share = fusion.biases[0].detach().repeat_interleave(n_parties, 0) / n_parties
    last = (net.weights[-1].detach() * a).sum(dim=1, keepdim=True)
    bias = (net.biases[-1].detach() * a.squeeze(2)).sum(dim=1, keepdim=True) + share
    weights, biases = [*net.weights[:-1], last], [*net.biases[:-1], bias]
    return trainable(MLP(weights, biases, net.activation))


# -- solving ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Passes(Batches):
    """Epochs of many steps, every step over all rows."""

    @property
    def n_per_epoch(self) -> int:
        return PASSES

    def epoch(self, index: int, device: torch.device) -> list[Rows]:
        return [slice(0, self.n_samples)] * PASSES


class _FullBatch(SelectPlan):
    """A plan whose every step takes all rows: noise would bring features back."""

    def batches(self, n_samples: int, seeds: tuple[int, ...], *who: str) -> Batches:
        return _Passes(n_samples, n_samples, seeds, (self.stage, *who), "file")


def _plan(
    stage: Stage, lam: float, X: Tensor, n_steps: int, step_size: float
) -> SelectPlan:
    weights = (lam,) * X.shape[0]
    return _FullBatch(stage, n_steps // PASSES, X.shape[1], "file", step_size, weights)


def _with_ones(H: Tensor) -> Tensor:
    """Put a constant beside embeddings, in double precision."""
    return torch.nn.functional.pad(H, (0, 1), value=1.0).double()


def _moments(H: Tensor) -> Tensor:
    table = _with_ones(H)
    return table.mT @ table / H.shape[1]


def pretrain(net: MLP, fusion: MLP, X: Tensor, y: Tensor) -> None:
    """Minimise R_N by Adam, in place: stage 1, Eq. 3."""
    n_parties = net.n_replicas // fusion.n_replicas
    params = [*net.parameters(), *fusion.parameters()]
    n_rows, n_steps = X.shape[1], sum(PRETRAIN_STEPS)
    plan = TrainPlan(
        "pretrain", n_steps, n_rows, "file", "adam", LEARNING_RATE, schedule="cosine"
    )
    optimizer = OPTIMIZERS[plan.optimizer](params, plan.learning_rate)
    for step in range(n_steps):
        rows = slice(0, FEW_ROWS if step < PRETRAIN_STEPS[0] else n_rows)
        plan.set_rate(optimizer, step, n_steps)
        z = fusion(join(net(X[:, rows]), n_parties))
        loss = risk(z, y[:, rows], "regression").sum()
        optimizer_step(optimizer, params, gradients(loss, params))


def joint_lasso(net: MLP, X: Tensor, y: Tensor, lam: float) -> None:
    """Minimise R_N + λ Σ_m G(θ_m) of fused networks, in place: Eq. 2."""
    n_parties = net.n_replicas // y.shape[0]
    plan = _plan("joint_lasso", lam, X, JOINT_STEPS, JOINT_STEP_SIZE)

    def loss(rows: Rows) -> Tensor:
        z = join(net(X[:, rows]), n_parties).sum(dim=2, keepdim=True)
        shared = risk(z, y[:, rows], "regression") / n_parties
        return shared.repeat_interleave(n_parties)  # a replica is a party

    penalty = GroupLasso(plan.weights(X))
    how = (plan, _schedule(plan, X), lambda event: None)
    algorithm.prox_sgd(net, loss, penalty, *how, "all")


def match_embeddings(net: MLP, X: Tensor, lam: float, kept: Tensor | None) -> MLP:
    """Solve stage 3, Eq. 5, at all parties of all seeds; (R * M, E) masks are K_m."""
    found = trainable(net, kept)
    plan = _plan("select_features", lam, X, PARTY_STEPS, PARTY_STEP_SIZE)
    loss, counts = algorithm.matching_loss(found, X, plan), found.output_mask.sum(dim=1)
    how = (plan, _schedule(plan, X), lambda event: None)
    algorithm.select_features(found, loss, counts, None, *how, "all parties")
    return found


def match_labels(fusion: MLP, H: Tensor, y: Tensor, lam: float) -> Tensor:
    """Solve stage 2, Eq. 4, of all seeds in place; return K as a mask (R, E)."""
    curvature = 2 * torch.linalg.eigvalsh(_moments(H)).max()
    plan = _plan("select_components", lam, H, SERVER_STEPS, 1 / float(curvature))
    loss = algorithm.stored_risk(fusion, H, Labels(y, "regression", (0,)))
    how = (plan, _schedule(plan, H), lambda event: None)
    return algorithm.select_components(fusion, loss, *how)


def _schedule(plan: SelectPlan, X: Tensor) -> Schedule:
    return in_order(plan.batches(X.shape[1], (0,)), X.device)


def rematch(local: MLP, net: MLP, X: Tensor, lam: float, kept: Tensor) -> MLP:
    """Solve stage 3 for K_m, given its solution without stage 2.

    The two are the same where K_m is everything, so only the other parties run again.
    """
    less = trainable(local, kept)
    again = ~kept.all(dim=1)
    if bool(again.any()):
        weights = [weight[again] for weight in net.weights]
        biases = [bias[again] for bias in net.biases]
        picked = MLP(weights, biases, net.activation)
        found = match_embeddings(picked, X[again], lam, kept[again])
        with torch.no_grad():
            for old, new in zip(less.parameters(), found.parameters(), strict=True):
                old[again] = new
    return less


def least_squares(H: Tensor, y: Tensor) -> MLP:
    """Return the linear server network of least R_N, where stage 2 starts."""
    target = _with_ones(H).mT @ y.double().unsqueeze(2) / H.shape[1]
    solution = torch.linalg.solve(_moments(H), target)
    weights = solution.to(H.dtype).squeeze(2)
    return trainable(MLP([weights[:, None, :-1]], [weights[:, -1:]], "none"))
