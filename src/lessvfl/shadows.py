"""A party's selection without a lambda: group lasso on what the server asked for.

During pre-training the gradient dL/dh of a row says where the server wants that row's
embedding. So a party knows, for every row it exchanged, a *response*: its embedding,
one step further. The features that predict the responses are those that matter. A party

1. plants *shadows* before pre-training, permuted copies of its own columns, which go
   through everything like any other column and carry nothing;
2. solves the group lasso of the responses on its columns for a whole path of lambdas, a
   convex problem on its matrix of moments;
3. takes the smallest lambda at which at most a share q of the shadows is kept, and as
   many of its own features as shadows would be at most a share `fdr` of those kept;
4. fits its network to the responses again, on the kept features, without a penalty.

All of it is local; nothing of it is sent.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lessvfl.algorithm import gradients
from lessvfl.models import Network
from lessvfl.prox import per_replica
from lessvfl.types import ShadowPlan, Tensor, stream, take

N_ITERATIONS = 300
SMALLEST = 10**-2.5  # the end of the path, as a share of the lambda that keeps nothing


@dataclass(frozen=True)
class Choice:
    """What one replica of a party decided, for its own eyes.

    Parameters
    ----------
    kept : Tensor (n_groups,)
        Which groups stay; shadows never do.
    lam : float
        The lambda that was taken, as a share of the one that keeps nothing.
    shadow_share : float
        Share of the shadows that lambda keeps: the estimate of the share of useless
        features that are kept.
    false_share : float
        The estimated share of useless features among those kept, were all useless.
    path : list of (lambda, features kept, share of shadows kept)
        The whole path.
    scores : Tensor (n_groups,)
        The largest lambda, as a share, at which a group is kept.
    frequency : Tensor (n_groups,) or None
        The share of subsamples that keep a group, where there were any.
    """

    kept: Tensor
    lam: float
    shadow_share: float
    false_share: float
    path: list[tuple[float, int, float]]
    scores: Tensor
    frequency: Tensor | None = None

    def report(self, owner: Tensor) -> dict[str, Any]:
        """Return it as plain values; `owner` is the group of every own feature."""
        return {
            "lam": self.lam,
            "shadow_share": self.shadow_share,
            "false_share": self.false_share,
            "path": [list(point) for point in self.path],
            "scores": self.scores[owner].tolist(),
            "frequency": None
            if self.frequency is None
            else self.frequency[owner].tolist(),
        }


def plant(X: Tensor, groups: Tensor, n_least: int, seeds: Sequence[int]) -> Tensor:
    """Return which row every shadow takes, (S, N, copies x n_features).

    The columns of one feature are permuted together, so they share a shadow.
    """
    n_features = int(groups.max()) + 1
    n_copies = max(1, -(-n_least // n_features))
    order = [
        torch.stack(
            [
                torch.randperm(X.shape[1], generator=stream(seed, "shadow", copy, f))
                for copy in range(n_copies)
                for f in range(n_features)
            ],
            dim=1,
        )
        for seed in seeds
    ]
    return torch.stack(order).to(X.device)


def with_shadows(
    tables: tuple[Tensor, Tensor], groups: Tensor, n_least: int, seeds: Sequence[int]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Append shadows to a party's training columns, and zeros to its test columns.

    Parameters
    ----------
    tables : pair of Tensor (S, N, columns)
        Training and test rows.
    groups : Tensor (columns,)
        The feature of every column.
    n_least : int
        How many shadow features there must be at least.
    seeds : sequence of int
        One a replica.

    Returns
    -------
    tables, groups
        With shadows behind the own columns; their features are numbered on.
    """
    X, X_test = tables
    order = plant(X, groups, n_least, seeds)
    n_features = int(groups.max()) + 1
    n_copies = order.shape[2] // n_features
    X = X.expand(len(order), -1, -1)
    shadows, owners = [X], [groups]
    for copy in range(n_copies):
        rows = order[:, :, copy * n_features + groups]  # (S, N, columns)
        shadows.append(torch.gather(X, 1, rows))
        owners.append(groups + (copy + 1) * n_features)
    zeros = X_test.new_zeros(*X_test.shape[:2], n_copies * len(groups))
    whole = torch.cat(shadows, dim=2), torch.cat([X_test, zeros], dim=2)
    return whole, torch.cat(owners)


def matches(patterns: str | None, features: Sequence[str]) -> list[bool]:
    """Tell which features are named by patterns separated by commas.

    >>> matches("age, lab_*", ["age", "sex", "lab_1"])
    [True, False, True]
    """
    wanted = [part.strip() for part in (patterns or "").split(",") if part.strip()]
    return [any(fnmatch.fnmatchcase(name, p) for p in wanted) for name in features]


def responses(h: Tensor, gradient: Tensor) -> Tensor:
    """Return where the server wants each row's embedding, (R, n, E).

    A step of a linear head w on a loss whose curvature is at most 1: the gradient of a
    row is w times a residual below 1, so that its largest norm stands for |w|.
    """
    scale = gradient.norm(dim=2).quantile(0.95, dim=1).square()
    tiny = torch.finfo(h.dtype).tiny
    return h - gradient / per_replica(scale.clamp_min(tiny), gradient)


def group_path(
    G: Tensor, C: Tensor, lams: Tensor, weights: Tensor, membership: Tensor
) -> Tensor:
    """Solve min 1/2 tr(B'GB) - tr(C'B) + lam sum_j weights_j ||B_j|| for every lambda.

    Accelerated proximal gradient steps (FISTA), all lambdas at once. Returns the norms
    of the groups, (L, n_groups).
    """
    rate = 1 / (torch.linalg.matrix_norm(G, 2) * (1 + 1e-6))
    B = C.new_zeros(len(lams), *C.shape)
    V, t = B, 1.0
    threshold = rate * lams[:, None] * weights

    def norms(U: Tensor) -> Tensor:
        return (U.square().sum(dim=2) @ membership).sqrt()

    tiny = torch.finfo(C.dtype).tiny
    for _ in range(N_ITERATIONS):
        U = V - rate * (G @ V - C)
        scale = torch.relu(1 - threshold / norms(U).clamp_min(tiny))
        new = U * (scale @ membership.T)[..., None]
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        V, B, t = new + ((t - 1) / t_new) * (new - B), new, t_new
    return norms(B)


def choose(
    X: Tensor,
    Z: Tensor,
    membership: Tensor,
    is_shadow: Tensor,
    plan: ShadowPlan,
    seed: int = 0,
    pinned: Tensor | None = None,
) -> Choice:
    """Select features of one replica, on all rows or by the votes of subsamples.

    With `plan.subsamples` the selection is repeated on so many random halves of the
    rows, and what at least half of them keep is kept (stability selection). Parameters
    are those of :func:`choose_once`.
    """
    whole = choose_once(X, Z, membership, is_shadow, plan, pinned)
    if not plan.subsamples:
        return whole
    votes = []
    for number in range(plan.subsamples):
        order = torch.randperm(len(X), generator=stream(seed, "subsample", number))
        half = order[: len(X) // 2].to(X.device)
        found = choose_once(X[half], Z[half], membership, is_shadow, plan, pinned)
        votes.append(found.kept)
    frequency = torch.stack(votes).to(X).mean(dim=0)
    return replace(whole, kept=frequency >= 0.5, frequency=frequency)


def choose_once(
    X: Tensor,
    Z: Tensor,
    membership: Tensor,
    is_shadow: Tensor,
    plan: ShadowPlan,
    pinned: Tensor | None = None,
) -> Choice:
    """Select features of one replica.

    Parameters
    ----------
    X : Tensor (n, columns)
        Rows that were exchanged, shadows included.
    Z : Tensor (n, E)
        Their responses.
    membership : Tensor (columns, n_groups)
        1 where a column belongs to a group.
    is_shadow : Tensor (n_groups,)
        Which groups are shadows.
    pinned : Tensor (n_groups,) or None
        Which groups must stay: they are not penalised.
    """
    X, Z = X - X.mean(dim=0), Z - Z.mean(dim=0)
    G, C = X.T @ X / len(X), X.T @ Z / len(X)
    sizes = membership.sum(dim=0)
    weights = sizes.sqrt()
    if plan.adaptive > 0:
        weights = weights * _adaptive(G, C, membership, plan.adaptive)
    correlation = (C.square().sum(dim=1) @ membership).sqrt()
    largest = (correlation / weights).max() * (1 + 1e-6)  # keeps nothing, exactly
    if pinned is None:
        pinned = torch.zeros_like(is_shadow)
    weights = weights * ~pinned
    shares = torch.logspace(0, math.log10(SMALLEST), plan.n_lambdas).to(X)
    kept = group_path(G, C, largest * shares, weights, membership) > 0
    kept |= pinned
    n_shadows = int(is_shadow.sum())
    of_shadows = kept[:, is_shadow].sum(dim=1) / max(1, n_shadows)
    counts = kept[:, ~is_shadow].sum(dim=1)
    useless = of_shadows * int((~is_shadow).sum()) / counts.clamp_min(1)
    place = 0
    for next_place in range(1, len(shares)):
        within = plan.most is None or int(counts[next_place]) <= plan.most
        if float(of_shadows[next_place]) > plan.q or not within:
            break
        if float(useless[next_place]) <= plan.fdr:
            place = next_place
    first = torch.where(kept.any(dim=0), shares[kept.float().argmax(dim=0)], 0.0)
    path = list(zip(shares.tolist(), counts.tolist(), of_shadows.tolist(), strict=True))
    return Choice(
        kept[place] & ~is_shadow,
        float(shares[place]),
        float(of_shadows[place]),
        float(useless[place]),
        path,
        first,
    )


def _adaptive(G: Tensor, C: Tensor, membership: Tensor, gamma: float) -> Tensor:
    """Return 1 / norm^gamma of a ridge regression, the middle group's weight 1."""
    ridge = torch.linalg.solve(G + 0.1 * torch.eye(len(G)).to(G), C)
    norms = (ridge.square().sum(dim=1) @ membership).sqrt()
    relative: Tensor = norms / norms.median()
    return relative.clamp(0.05, 20.0).pow(-gamma)


def refit(
    net: Network, X: Tensor, Z: Tensor, plan: ShadowPlan, seeds: Sequence[int]
) -> None:
    """Fit a network to the responses, in place, on all replicas at once.

    A share of the rows is held out; every replica ends with the weights that predict it
    best, the first ones included.

    Parameters
    ----------
    net : Network
        Cut to the features that were kept.
    X : Tensor (R, n, columns)
        Rows that were exchanged.
    Z : Tensor (R, n, outputs)
        Their responses.
    """
    n = X.shape[1]
    order = torch.stack(
        [torch.randperm(n, generator=stream(s, "refit")) for s in seeds]
    ).to(X.device)
    n_held = max(1, round(plan.held_out * n))
    held, rest = order[:, :n_held], order[:, n_held:]
    params = net.parameters()
    optimizer = torch.optim.AdamW(
        params, lr=plan.refit_rate, weight_decay=plan.refit_decay
    )
    X_held, Z_held = take(X, held), take(Z, held)

    def mismatch(X: Tensor, Z: Tensor) -> Tensor:
        mask = net.output_mask.to(Z.dtype).unsqueeze(1)
        return ((net(X) - Z) * mask).square().mean(dim=(1, 2))

    def score() -> Tensor:
        net.train(False)
        with torch.no_grad():
            return mismatch(X_held, Z_held)

    best, kept = score(), [param.detach().clone() for param in params]
    waited = torch.zeros(len(best), device=X.device)
    for epoch in range(plan.refit_epochs):
        net.train(True)
        shuffled = torch.stack(
            [
                torch.randperm(rest.shape[1], generator=stream(s, "refit", epoch))
                for s in seeds
            ]
        ).to(X.device)
        places = torch.gather(rest, 1, shuffled)
        for start in range(0, places.shape[1], plan.refit_batch):
            rows = places[:, start : start + plan.refit_batch]
            loss = mismatch(take(X, rows), take(Z, rows)).sum()
            grads = gradients(loss, params)
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.contiguous()
            optimizer.step()
        now = score()
        better = now < best
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
    net.train(False)
