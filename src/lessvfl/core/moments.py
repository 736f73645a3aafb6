"""What features say of responses, out of their second moments.

Rows enter as G = X'X / n and C = X'Z / n, columns and responses centred. Columns that
are one feature are one group. Everything here is local to a party.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.prox import GroupLasso

N_ITERATIONS = 300
LAMBDAS_AT_ONCE = 4
MARGIN = 2.0  # how far above the best shadow a statistic must be to count
AT_ONCE = 512  # columns whose pairs are looked at together
RIDGE = 1e-6


@dataclass(frozen=True)
class Moments:
    """Centred rows and responses, and their moments."""

    X: Tensor  # (n, columns)
    Z: Tensor  # (n, E)
    membership: Tensor  # (columns, n_groups), 1 where a column belongs to a group
    G: Tensor  # X'X / n, (columns, columns)
    C: Tensor  # X'Z / n, (columns, E)

    @classmethod
    def of(cls, X: Tensor, Z: Tensor, membership: Tensor) -> Moments:
        """Centre rows and responses, and take their moments."""
        X, Z = X - X.mean(dim=0), Z - Z.mean(dim=0)
        return cls(X, Z, membership, X.T @ X / len(X), X.T @ Z / len(X))

    def group_norms(self, columns: Tensor) -> Tensor:
        """Return the norms of the groups of (..., columns, E)."""
        return (columns.square().sum(dim=-1) @ self.membership).sqrt()


def group_path(
    moments: Moments,
    lams: Tensor,
    weights: Tensor,
    is_enough: Callable[[Tensor], bool] = lambda norms: False,
) -> Tensor:
    """Solve min 1/2 tr(B'GB) - tr(C'B) + lam sum_j weights_j ||B_j|| along lambdas.

    A few lambdas at a time, from the largest on. Groups that the strong rule
    (Tibshirani et al., 2012) discards are left out; whoever violates its optimality
    condition then is taken in, and the step repeated, so that the solution is exact.
    `lams` (L,) fall. `is_enough` is given the norms (l, n_groups) of the last lambdas;
    True: the rest is not solved. Returns the groups' norms, (L or fewer, n_groups).
    """
    G, C = moments.G, moments.C
    B, before, found = torch.zeros_like(C), lams[0], []
    active = torch.zeros(len(weights), dtype=torch.bool, device=C.device)
    for some in torch.split(lams, LAMBDAS_AT_ONCE):
        active |= moments.group_norms(C - G @ B) >= (2 * some[-1] - before) * weights
        while True:
            whole = _solve(moments, some, weights, active, B)
            slopes = moments.group_norms(C - G @ whole)
            wrong = (slopes > some[:, None] * weights * (1 + 1e-4)).any(dim=0) & ~active
            if not bool(wrong.any()):
                break
            active |= wrong
        B, before = whole[-1], some[-1]
        found.append(moments.group_norms(whole))
        if is_enough(found[-1]):
            break
    return torch.cat(found)


def _solve(
    moments: Moments, lams: Tensor, weights: Tensor, active: Tensor, start: Tensor
) -> Tensor:
    """Return the coefficients (L, columns, E) where only `active` groups take part.

    Accelerated proximal gradient steps (FISTA), all lambdas at once.
    """
    columns = active[moments.membership.argmax(dim=1)].nonzero()[:, 0]
    whole = moments.C.new_zeros(len(lams), *moments.C.shape)
    if len(columns) == 0:
        return whole
    G, C = moments.G[columns][:, columns], moments.C[columns]
    penalty = GroupLasso(lams, moments.membership[columns][:, active], weights[active])
    rate = 1 / (torch.linalg.matrix_norm(G, 2) * (1 + 1e-6))
    B = start[columns].expand(len(lams), -1, -1)
    V, t = B, 1.0
    for _ in range(N_ITERATIONS):
        new = V - rate * (G @ V - C)
        penalty.prox(new.mT, rate)
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        V, B, t = new + ((t - 1) / t_new) * (new - B), new, t_new
    whole[:, columns] = B
    return whole


def prune(moments: Moments, kept: Tensor, is_shadow: Tensor, exempt: Tensor) -> Tensor:
    """Remove, one at a time, the group that says least beside the others kept.

    What a group says is the Wald statistic of its coefficients in the regression on
    all groups kept, a column; what a shadow would say, were it added, is the measure:
    elimination ends when the weakest group is `MARGIN` times above the best shadow. All
    are masks (n_groups,): `kept` is where to begin, `exempt` stay whatever they say. At
    least one group of `kept` stays.
    """
    size = moments.membership.sum(dim=0).double()
    group = moments.membership.argmax(dim=1)  # of every column
    inside, outside = kept[group].nonzero()[:, 0], is_shadow[group].nonzero()[:, 0]
    G, C = moments.G.double(), moments.C.double()
    own, across = G[inside][:, inside], G[inside][:, outside]
    P = torch.linalg.inv(
        own + RIDGE * own.diagonal().mean() * torch.eye(len(own)).to(own)
    )
    B, W = P @ C[inside], P @ across
    whole, owner = G.diagonal()[outside], group[inside]
    free = whole - (across * W).sum(dim=0)  # of a shadow's variance
    slope = C[outside] - across.T @ B
    kept = kept.clone()
    while int(kept.sum()) > 1:
        said = slope.square().sum(dim=1) / free.clamp_min(RIDGE)
        said = torch.where(free > 1e-3 * whole.clamp_min(RIDGE), said, 0.0)
        of_shadows = torch.zeros_like(size).index_add(0, group[outside], said)
        statistics = torch.where(kept & ~exempt, _wald(P, B, owner, size), torch.inf)
        weakest = int(statistics.argmin())
        if float(statistics[weakest]) >= MARGIN * float((of_shadows / size).max()):
            break
        J, rest = (owner == weakest).nonzero()[:, 0], (owner != weakest).nonzero()[:, 0]
        inner = torch.linalg.inv(P[J][:, J])
        free = free + (W[J] * (inner @ W[J])).sum(dim=0)
        slope = slope + W[J].T @ (inner @ B[J])
        across_J = P[rest][:, J] @ inner
        B, W = B[rest] - across_J @ B[J], W[rest] - across_J @ W[J]
        P, owner = P[rest][:, rest] - across_J @ P[J][:, rest], owner[rest]
        kept[weakest] = False
    return kept


def _wald(P: Tensor, B: Tensor, owner: Tensor, size: Tensor) -> Tensor:
    """Return the Wald statistic of every group, a column, up to the noise's variance.

    `P` is the inverse of the moments of the columns in the regression, `B` their
    coefficients, `owner` their groups.
    """
    alone = B.square().sum(dim=1) / P.diagonal()
    found = torch.zeros_like(size).index_add(0, owner, alone)
    for number in (size[owner] > 1).nonzero()[:, 0].tolist():
        J = (owner == owner[number]).nonzero()[:, 0]
        if int(J[0]) == number:
            found[owner[number]] = (B[J] * torch.linalg.solve(P[J][:, J], B[J])).sum()
    return found / size


def pairs(moments: Moments, is_shadow: Tensor) -> tuple[Tensor, Tensor]:
    """Find how strongly every group acts together with another one, or squared.

    The statistic of two columns is (sum_i r_i x_ij x_ik)^2 / sum_i (r_i x_ij x_ik)^2,
    r the responses without the columns' own linear part: about 1 by chance, however
    the columns are distributed. Returns the largest statistic of every group, as a
    share of `MARGIN` times the largest that any shadow reaches (from 1 on it counts),
    and with which group.
    """
    X = moments.X
    scale = X.square().mean(dim=0).sqrt()
    X = X / torch.where(scale > RIDGE, scale, torch.inf)
    ridge = 1e-3 * moments.G.diagonal().mean() * torch.eye(X.shape[1]).to(X)
    linear = torch.linalg.solve(moments.G + ridge, moments.C)
    r = moments.Z - moments.X @ linear
    squares = X.square()
    weighted = squares * r.square().sum(dim=1, keepdim=True)
    tiny = torch.finfo(X.dtype).tiny
    best, with_whom = [], []
    for start in range(0, X.shape[1], AT_ONCE):
        some = slice(start, start + AT_ONCE)
        top = sum((X[:, some].T @ (X * r[:, [e]])).square() for e in range(r.shape[1]))
        found = top / (squares[:, some].T @ weighted).clamp_min(tiny)
        most = found.max(dim=1)
        best.append(most.values)
        with_whom.append(most.indices)
    group = moments.membership.argmax(dim=1)
    of_columns = torch.cat(best)
    strength = torch.where(
        moments.membership.bool(), of_columns[:, None], of_columns.new_zeros(())
    )
    most = strength.max(dim=0)
    mark = MARGIN * most.values[is_shadow].max()
    return most.values / mark.clamp_min(tiny), group[torch.cat(with_whom)[most.indices]]
