"""The methods solved by full-batch steps, for the check of the theory.

Networks of one kind are a stack, one for every party of every seed, for parties are
split evenly: weights (R M, out, in). In stage 3 they act alone; in joint training their
outputs meet in the fusion networks, weights (R, out, in).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessvfl.core.linear import Quadratic
from lessvfl.core.losses import proxy_loss, row_losses
from lessvfl.core.network import MLP
from lessvfl.core.passes import gradients
from lessvfl.core.plans import TrainPlan
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import OPTIMIZERS, Watch, optimizer_step, prox_step
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
    """Give every party of every seed its columns, (R M, n, columns / M)."""
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
    """Draw party networks (R M, ...) and fusion networks (R, ...)."""
    width = N_BLOCKS // n_parties
    hidden = (width * UNITS,) * (family.n_layers - 1)
    widths, kind = (width * BLOCK, *hidden, n_components), family.activation
    drawn = [
        MLP.create(widths, kind, seed, f"party{m}", family.dtype, device)
        for seed in seeds
        for m in range(n_parties)
    ]
    layers = range(family.n_layers)
    weights = [torch.stack([net.weights[i].detach() for net in drawn]) for i in layers]
    biases = [torch.stack([net.biases[i].detach() for net in drawn]) for i in layers]
    weights[0] *= FIRST_LAYER
    ones = weights[0].new_ones(len(seeds), 1, n_parties * n_components)
    zero = weights[0].new_zeros(len(seeds), 1)
    return trainable(MLP(weights, biases, kind)), trainable(MLP([ones], [zero], "none"))


def trainable(net: MLP) -> MLP:
    """Return networks of their own with these values."""
    weights = [w.detach().clone().requires_grad_() for w in net.weights]
    biases = [b.detach().clone().requires_grad_() for b in net.biases]
    return MLP(weights, biases, net.activation)


def fused(net: MLP, fusion: MLP, n_parties: int) -> MLP:
    """Return party networks whose outputs add up to what the fusion network gives.

    A linear fusion network is one with the last layers before it. The penalty of Eq. 2
    acts on first layers alone, so that its minimisers stay what they are where a party
    has several; where it has one, this is the lasso on what feature and server make of
    it together, which server weights cannot evade by growing.
    """
    a = fusion.weights[0].detach().view(len(net.input_weights), -1, 1)  # (R M, E, 1)
    share = fusion.biases[0].detach().repeat_interleave(n_parties, 0) / n_parties
    last = (net.weights[-1].detach() * a).sum(dim=1, keepdim=True)
    bias = (net.biases[-1].detach() * a.squeeze(2)).sum(dim=1, keepdim=True) + share
    weights, biases = [*net.weights[:-1], last], [*net.biases[:-1], bias]
    return trainable(MLP(weights, biases, net.activation))


# -- solving ---------------------------------------------------------------------------


def _take_steps(
    stage: Stage,
    lam: float,
    net: MLP,
    loss: Callable[[], Tensor],
    *,
    n_steps: int,
    step_size: float,
) -> Tensor:
    """Take proximal steps on a stack of networks, in place.

    Every step takes all rows: noise would bring features back. `loss` returns the
    losses of all networks. Returns a mask (R, in), True: the input has weights left.
    """
    params, w = net.parameters(), net.input_weights
    penalty = GroupLasso(w.new_full(w.shape[:1], lam))
    watch = Watch(stage, ["all networks"])
    for step in range(1, n_steps + 1):
        value = loss().sum()
        prox_step(params, gradients(value, params), step_size, penalty, w)
        watch.add(value.view(1))
        if step % PASSES == 0:
            watch.check()
    with torch.no_grad():
        return penalty.norms(w) > 0


def _with_ones(H: Tensor) -> Tensor:
    """Put a constant beside embeddings, in double precision."""
    return torch.nn.functional.pad(H, (0, 1), value=1.0).double()


def _moments(H: Tensor) -> Tensor:
    table = _with_ones(H)
    return table.mT @ table / H.shape[1]


def pretrain(net: MLP, fusion: MLP, X: Tensor, y: Tensor) -> None:
    """Minimise R_N by Adam, in place: stage 1, Eq. 3."""
    params = [*net.parameters(), *fusion.parameters()]
    n_rows, n_steps = X.shape[1], sum(PRETRAIN_STEPS)
    plan = TrainPlan(
        "pretrain", n_steps, n_rows, "file", "adam", LEARNING_RATE, schedule="cosine"
    )
    optimizer = OPTIMIZERS[plan.optimizer](params, plan.learning_rate)
    for step in range(n_steps):
        rows = slice(0, FEW_ROWS if step < PRETRAIN_STEPS[0] else n_rows)
        plan.set_rate(optimizer, step, n_steps)
        z = fusion(join(net(X[:, rows]), len(X) // len(y)))
        loss = row_losses(z, y[:, rows], "regression").mean(dim=-1).sum()
        optimizer_step(optimizer, params, gradients(loss, params))


def joint_lasso(net: MLP, X: Tensor, y: Tensor, lam: float) -> None:
    """Minimise R_N + λ Σ_m G(θ_m) of fused networks, in place: Eq. 2."""

    def loss() -> Tensor:
        z = join(net(X), len(X) // len(y)).sum(dim=2, keepdim=True)
        return row_losses(z, y, "regression").mean(dim=-1)

    _take_steps(
        "joint_lasso",
        lam,
        net,
        loss,
        n_steps=JOINT_STEPS,
        step_size=JOINT_STEP_SIZE,
    )


def match_embeddings(net: MLP, X: Tensor, lam: float, kept: Tensor | None) -> MLP:
    """Solve stage 3, Eq. 5, at all parties of all seeds; (R M, E) masks are K_m."""
    matched = trainable(net)
    _take_steps(
        "select_features",
        lam,
        matched,
        _matching(matched, X, kept),
        n_steps=PARTY_STEPS,
        step_size=PARTY_STEP_SIZE,
    )
    if kept is not None:  # nothing to match: the minimiser of λ_m G is 0
        with torch.no_grad():
            matched.input_weights.mul_(kept.any(dim=1).view(-1, 1, 1))
    return matched


def _matching(net: MLP, X: Tensor, kept: Tensor | None) -> Callable[[], Tensor]:
    """Return H_N as a function of the networks as they are, (R M,)."""
    if net.is_linear:  # its rows enter by their moments alone
        table = torch.nn.functional.pad(X, (0, 1), value=1.0)
        moments = table.mT @ table / X.shape[1]
        start = net.collapse().detach()

        def by_moments() -> Tensor:
            squares: Tensor = Quadratic.apply(  # type: ignore[no-untyped-call]
                net.collapse() - start, moments
            )
            return (squares if kept is None else squares * kept).sum(dim=1)

        return by_moments

    def embed() -> Tensor:
        h = net(X)
        return h if kept is None else h * kept.unsqueeze(1)

    with torch.no_grad():
        target = embed()
    return lambda: proxy_loss(embed(), target, 1)


def match_labels(fusion: MLP, H: Tensor, y: Tensor, lam: float) -> Tensor:
    """Solve stage 2, Eq. 4, of all seeds in place; return K as a mask (R, E)."""
    curvature = 2 * torch.linalg.eigvalsh(_moments(H)).max()

    def loss() -> Tensor:
        return row_losses(fusion(H), y, "regression").mean(dim=-1)

    return _take_steps(
        "select_components",
        lam,
        fusion,
        loss,
        n_steps=SERVER_STEPS,
        step_size=1 / float(curvature),
    )


def rematch(local: MLP, net: MLP, X: Tensor, lam: float, kept: Tensor) -> MLP:
    """Solve stage 3 for K_m, given its solution without stage 2.

    The two are the same where K_m is everything, so only the other parties run again.
    """
    less = trainable(local)
    again = ~kept.all(dim=1)
    if bool(again.any()):
        weights = [weight[again] for weight in net.weights]
        biases = [bias[again] for bias in net.biases]
        picked = MLP(weights, biases, net.activation)
        matched = match_embeddings(picked, X[again], lam, kept[again])
        with torch.no_grad():
            for old, new in zip(less.parameters(), matched.parameters(), strict=True):
                old[again] = new
    return less


def least_squares(H: Tensor, y: Tensor) -> MLP:
    """Return the linear server network of least R_N, where stage 2 starts."""
    target = _with_ones(H).mT @ y.double().unsqueeze(2) / H.shape[1]
    solution = torch.linalg.solve(_moments(H), target)
    weights = solution.to(H.dtype).squeeze(2)
    return trainable(MLP([weights[:, None, :-1]], [weights[:, -1:]], "none"))
