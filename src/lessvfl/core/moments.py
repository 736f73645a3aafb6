"""What features say of responses, out of their second moments.

Columns that are one feature are one group. Every group is put on one scale: its columns
are replaced by uncorrelated ones of variance 1 that span the same, so that neither its
size nor the frequency of its levels matters. What a useless group says by chance is
measured on *shadows*: the same columns, their rows scrambled. Everything here is local
to a party.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.prox import GroupLasso

MOST_ITERATIONS = 500
PRECISION = 1e-4  # of a group's optimality condition, as a share of lambda
LEVEL = 0.98  # of chance, at which groups of different sizes weigh the same
MARGIN = 12.0  # how far above chance a pair must be: e^-6 as likely
AT_ONCE = 512  # columns whose pairs are looked at together
RIDGE = 1e-6


@dataclass(frozen=True)
class Moments:
    """Centred rows and responses, groups of columns on one scale, and their moments."""

    X: Tensor  # (n, columns)
    Z: Tensor  # (n, E)
    group: Tensor  # (columns,), the group of every column
    weights: Tensor  # (n_groups,), what a useless group says by chance
    G: Tensor  # X'X / n, (columns, columns)
    C: Tensor  # X'Z / n, (columns, E)

    @classmethod
    def of(cls, X: Tensor, Z: Tensor, group: Tensor) -> Moments:
        """Centre rows (n, columns) and responses, and put the groups on one scale."""
        Z = Z - Z.mean(dim=0)
        X, kept = on_one_scale(X, group)
        n_groups = int(group.max()) + 1 if len(group) else 0
        size = torch.zeros(n_groups).to(X).index_add_(0, kept, torch.ones_like(X[0]))
        return cls._of_centred(X, Z, kept, chance(size * _dimension(Z)).sqrt())

    @classmethod
    def _of_centred(
        cls, X: Tensor, Z: Tensor, group: Tensor, weights: Tensor
    ) -> Moments:
        return cls(X, Z, group, weights, X.T @ X / len(X), X.T @ Z / len(X))

    @property
    def n_rows(self) -> int:
        """Return n."""
        return len(self.X)

    def norms(self, columns: Tensor) -> Tensor:
        """Return the norms of the groups of (..., columns, E), (..., n_groups)."""
        squares = columns.square().sum(dim=-1)
        found = squares.new_zeros(*squares.shape[:-1], len(self.weights))
        return found.index_add_(-1, self.group, squares).sqrt()

    def scores(self, columns: Tensor) -> Tensor:
        """Return the norms of the groups, as multiples of what chance says."""
        return self.norms(columns) / self.weights

    def rows(self, which: Tensor) -> Moments:
        """Return the moments of some rows, on the scale of all of them."""
        X, Z = self.X[which], self.Z[which]
        X, Z = X - X.mean(dim=0), Z - Z.mean(dim=0)
        return self._of_centred(X, Z, self.group, self.weights)

    def left(self, B: Tensor, slopes: Tensor) -> float:
        """Return the share of the responses' variance that coefficients leave.

        `slopes` are C - GB, which a path has at hand.
        """
        whole = self.Z.square().sum() / self.n_rows
        explained = (B * (self.C + slopes)).sum()
        return float(1 - explained / whole.clamp_min(torch.finfo(B.dtype).tiny))


def on_one_scale(X: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return uncorrelated columns of variance 1 that span every group, and its number.

    A constant column stays as zeros; a group of several columns has as many as it has
    dimensions.
    """
    X = X - X.mean(dim=0)
    spread = X.square().mean(dim=0).sqrt()
    X = X / torch.where(spread > RIDGE, spread, torch.inf)
    sizes = torch.bincount(group)
    if not bool((sizes > 1).any()):
        return X, group
    alone = sizes[group] == 1
    columns, owners = [X[:, alone]], [group[alone]]
    for number in (sizes > 1).nonzero()[:, 0].tolist():
        own = X[:, group == number].double()
        values, vectors = torch.linalg.eigh(own.T @ own / len(own))
        some = values > 1e-4 * values[-1].clamp_min(RIDGE)
        columns.append((own @ (vectors[:, some] / values[some].sqrt())).to(X))
        owners.append(group.new_full((int(some.sum()),), number))
    return torch.cat(columns, dim=1), torch.cat(owners)


def chance(degrees: Tensor, level: float = LEVEL) -> Tensor:
    """Return what a chi-square of that many degrees stays below (Wilson, Hilferty)."""
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * level - 1)))
    part = 2 / (9 * degrees.clamp_min(1.0))
    return degrees.clamp_min(1.0) * (1 - part + z * part.sqrt()).pow(3)


def _dimension(Z: Tensor) -> float:
    """Return how many dimensions responses have in effect, from 1 to E."""
    S = Z.T @ Z
    return max(1.0, float(S.trace().square() / S.square().sum().clamp_min(1e-30)))


def shadow_scores(
    moments: Moments, residual: Tensor, n_copies: int, generator: torch.Generator
) -> Tensor:
    """Return what scrambled copies of every group say of a residual, (copies, groups).

    All columns of a copy share one order of the rows, so that a copy's largest score is
    what chance makes of the largest.
    """
    found, n = [], moments.n_rows
    for start in range(0, n_copies, 10):
        orders = [
            torch.randperm(n, generator=generator).to(residual.device)
            for _ in range(start, min(start + 10, n_copies))
        ]
        scrambled = torch.cat([residual[order] for order in orders], dim=1)
        slopes = (moments.X.T @ scrambled / n).view(-1, len(orders), residual.shape[1])
        found.append(moments.scores(slopes.transpose(0, 1)))
    return torch.cat(found)


def group_path(
    moments: Moments, lams: Tensor, weights: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Solve min 1/2 tr(B'GB) - tr(C'B) + lam sum_j weights_j ||B_j|| along lambdas.

    `lams` (L,) fall. Groups that the strong rule (Tibshirani et al., 2012) discards are
    left out; whoever violates its optimality condition then is taken in, and the step
    repeated, so that the solution is exact. Yields, for every lambda, the coefficients
    (columns, E) and the slopes C - GB.
    """
    G, C = moments.G, moments.C
    B, slopes, before = torch.zeros_like(C), C, lams[0]
    active = torch.zeros(len(weights), dtype=torch.bool, device=C.device)
    for lam in lams:
        active |= moments.norms(slopes) >= (2 * lam - before) * weights
        while True:
            B = _solve(moments, lam, weights, active, B)
            columns = active[moments.group].nonzero()[:, 0]
            slopes = C - G[:, columns] @ B[columns]
            wrong = (moments.norms(slopes) > lam * weights * (1 + 1e-3)) & ~active
            if not bool(wrong.any()):
                break
            active |= wrong
        before = lam
        yield B, slopes


def _solve(
    moments: Moments, lam: Tensor, weights: Tensor, active: Tensor, start: Tensor
) -> Tensor:
    """Return the coefficients (columns, E) where only `active` groups take part.

    Accelerated proximal gradient steps (FISTA), from `start` on, until no group moves.
    """
    columns = active[moments.group].nonzero()[:, 0]
    whole = torch.zeros_like(moments.C)
    if len(columns) == 0:
        return whole
    G, C = moments.G[columns][:, columns], moments.C[columns]
    place = torch.cumsum(active, dim=0) - 1
    one_hot = torch.nn.functional.one_hot(place[moments.group[columns]])
    penalty = GroupLasso(lam.view(1), one_hot.to(C), weights[active])
    rate = 1 / (torch.linalg.matrix_norm(G, 2) * (1 + 1e-6))
    B = start[columns]
    V, t = B, 1.0
    for step in range(MOST_ITERATIONS):
        new = V - rate * (G @ V - C)
        penalty.prox(new.T.unsqueeze(0), rate)
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        V = new + ((t - 1) / t_new) * (new - B)
        if step % 10 == 9 and bool((new - B).abs().max() <= PRECISION * rate * lam):
            B = new
            break
        B, t = new, t_new
    whole[columns] = B
    return whole


@dataclass(frozen=True)
class Rule:
    """How many shadows may pass where features do.

    Of N scrambled copies of d features V pass a limit that k of the features pass: the
    share of shadows that pass is V / N, and about (1 + V) d / N of the k are useless.
    """

    shadows: Tensor  # (N,), scores in order
    n_features: int
    q: float  # the largest share of shadows that may pass
    fdr: float  # the largest share of useless features

    @classmethod
    def of(cls, scores: Tensor, q: float, fdr: float) -> Rule:
        """Put scores (copies, n_groups) in order."""
        return cls(scores.flatten().sort().values, scores.shape[1], q, fdr)

    def share(self, limit: float) -> float:
        """Return the share of shadows that pass a limit."""
        return self._passing(limit) / max(1, len(self.shadows))

    def false_share(self, limit: float, n_kept: int) -> float | None:
        """Return the estimated share of useless features, None where none is kept."""
        if n_kept == 0:
            return None
        expected = (1 + self._passing(limit)) * self.n_features / len(self.shadows)
        return min(1.0, expected / n_kept)

    def allows(self, limit: float, n_kept: int) -> bool:
        """Tell whether as many features may be kept at that limit."""
        said = self.false_share(limit, n_kept)
        return said is None or (self.share(limit) <= self.q and said <= self.fdr)

    def least(self, n_kept: int) -> float:
        """Return the lowest limit that allows so many features."""
        most = self.q * len(self.shadows)
        if self.fdr < 1:
            false = self.fdr * max(1, n_kept) * len(self.shadows) / self.n_features
            most = min(most, false - 1)
        place = len(self.shadows) - math.floor(max(0.0, most)) - 1
        if place < 0:
            return 0.0
        last = self.shadows[place]  # the strongest that may not pass
        return float(torch.nextafter(last, torch.full_like(last, torch.inf)))

    def _passing(self, limit: float) -> int:
        return len(self.shadows) - int(torch.searchsorted(self.shadows, limit))


def eliminate(
    moments: Moments,
    kept: Tensor,
    exempt: Tensor,
    shadows: tuple[int, torch.Generator],
    q: float,
    fdr: float,
) -> tuple[Tensor, Tensor, Rule]:
    """Remove, one at a time, the group that says least beside the others kept.

    What a group says is the root of its Wald statistic in the regression on all groups
    kept; what a shadow would say, were it added, is the measure. Elimination ends where
    the rule allows as many groups as are left at the score of the weakest. All are
    masks (n_groups,): `kept` is where to begin, `exempt` stay whatever they say.
    `shadows` are how many copies to scramble, and by which stream. Returns what is
    left, what each group says beside it, and the rule on the scale of that.
    """
    group, n = moments.group, moments.n_rows
    inside = kept[group].nonzero()[:, 0]
    G, C = moments.G.double(), moments.C.double()
    own = G[inside][:, inside]
    P = torch.linalg.inv(own + RIDGE * torch.eye(len(own)).to(own))
    B, owner = P @ C[inside], group[inside]
    residual = moments.Z - moments.X[:, inside] @ B.to(moments.X)
    left = float(residual.double().square().sum() / n)
    spent = 1 - len(inside) / n
    first = shadow_scores(moments, residual, *shadows) / math.sqrt(spent)
    whole = Rule.of(first, q, fdr)
    kept, start = kept.clone(), left * (1 / spent)
    while True:
        noise = left / (1 - len(owner) / n)
        scale = math.sqrt(noise / start) if start > 0 else 1.0
        said = _wald(P, B, owner, len(kept)).sqrt() / moments.weights
        at_stake = torch.where(kept & ~exempt, said, torch.inf)
        weakest = int(at_stake.argmin())
        least = float(at_stake[weakest])
        if math.isinf(least) or whole.allows(least / scale, int(kept.sum())):
            break
        J, rest = (owner == weakest).nonzero()[:, 0], (owner != weakest).nonzero()[:, 0]
        inner = torch.linalg.inv(P[J][:, J])
        left += float((B[J] * (inner @ B[J])).sum())
        across = P[rest][:, J] @ inner
        B = B[rest] - across @ B[J]
        P, owner = P[rest][:, rest] - across @ P[J][:, rest], owner[rest]
        kept[weakest] = False
    rule = Rule(whole.shadows * scale, whole.n_features, q, fdr)
    inside = kept[group].nonzero()[:, 0]
    slopes = C - G[:, inside] @ B
    W = P @ G[inside]
    free = (G.diagonal() - (G[inside] * W).sum(dim=0)).clamp_min(1e-3).unsqueeze(1)
    outside = moments.scores((slopes / free.sqrt()).to(moments.X))
    scores = torch.where(kept, said.to(outside), outside)
    return kept, scores, rule


def _wald(P: Tensor, B: Tensor, owner: Tensor, n_groups: int) -> Tensor:
    """Return the Wald statistic of every group, up to the noise's variance.

    `P` is the inverse of the moments of the columns in the regression, `B` their
    coefficients, `owner` their groups.
    """
    size = torch.bincount(owner, minlength=n_groups)
    alone = B.square().sum(dim=1) / P.diagonal()
    found = alone.new_zeros(n_groups).index_add_(0, owner, alone)
    for number in (size > 1).nonzero()[:, 0].tolist():
        J = (owner == number).nonzero()[:, 0]
        found[number] = (B[J] * torch.linalg.solve(P[J][:, J], B[J])).sum()
    return found


def explained(moments: Moments, part: Moments, kept: Tensor) -> float:
    """Return what groups explain of rows that their coefficients have not seen.

    Coefficients are those of the least squares on `moments`; the rows are those of
    `part`, on the same scale.
    """
    inside = kept[moments.group].nonzero()[:, 0]
    G = moments.G[inside][:, inside].double()
    ridge = RIDGE * torch.eye(len(inside)).to(G)
    B = torch.linalg.solve(G + ridge, moments.C[inside].double())
    told = 2 * part.C[inside].double() - part.G[inside][:, inside].double() @ B
    return float((B * told).sum())


def pairs(
    moments: Moments, n_copies: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Find how strongly every group acts together with another one, or squared.

    The statistic of two columns is (sum_i r_i x_ij x_ik)^2 / sum_i (r_i x_ij x_ik)^2,
    r the responses without the columns' own linear part: about 1 by chance, however
    the columns are distributed. Returns the largest statistic of every group, as a
    share of the mark (from 1 on it counts), and with which group. The mark is the
    largest statistic of all where the rows of r are scrambled, and `MARGIN` more.
    """
    X = moments.X
    ridge = 1e-3 * torch.eye(X.shape[1]).to(X)
    r = moments.Z - X @ torch.linalg.solve(moments.G + ridge, moments.C)
    scrambled = [
        r[torch.randperm(len(r), generator=generator).to(r.device)]
        for _ in range(n_copies)
    ]
    strength, other = _beyond_chance(
        X, r, scrambled, torch.arange(X.shape[1]).to(r.device)
    )
    found = strength >= 1
    if bool(found.any()):  # with these alone chance has fewer pairs to choose from
        known = torch.zeros_like(found)
        known[torch.cat([found.nonzero()[:, 0], other[found]])] = True
        more, partner = _beyond_chance(X, r, scrambled, known.nonzero()[:, 0])
        other = torch.where(more > strength, partner, other)
        strength = torch.maximum(strength, more)
    best = strength.new_zeros(len(moments.weights))
    with_whom = torch.zeros_like(best, dtype=torch.long)
    for column in strength.argsort().tolist():  # the strongest last
        best[moments.group[column]] = strength[column]
        with_whom[moments.group[column]] = moments.group[other[column]]
    return best, with_whom


def _beyond_chance(
    X: Tensor, r: Tensor, scrambled: list[Tensor], among: Tensor
) -> tuple[Tensor, Tensor]:
    """Return every column's largest statistic with some others, and which of them.

    It is a share of the mark that the same pairs set where r is scrambled.
    """
    by_chance = [_together(X, other, among)[0].max() for other in scrambled]
    mark = torch.stack(by_chance).max() + MARGIN / _dimension(r)
    strength, partner = _together(X, r, among)
    return strength / mark, partner


def _together(X: Tensor, r: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return every column's largest statistic with one `among`, and which."""
    others = X[:, among]
    squares = others.square()
    weighted = squares * r.square().sum(dim=1, keepdim=True)
    tiny = torch.finfo(X.dtype).tiny
    best, with_whom = [], []
    for some in torch.split(X, AT_ONCE, dim=1):
        top = sum((some.T @ (others * r[:, [e]])).square() for e in range(r.shape[1]))
        found = top / (some.square().T @ weighted).clamp_min(tiny)
        most = found.max(dim=1)
        best.append(most.values)
        with_whom.append(among[most.indices])
    return torch.cat(best), torch.cat(with_whom)
