"""What features say of responses, out of their second moments.

Columns that are one feature are one group. Every group is put on one scale: its columns
are replaced by uncorrelated ones of variance 1 that span the same, so that neither its
size nor the frequency of its levels matters. What a useless group says by chance is
measured on *shadows*: the same columns, their rows scrambled. Everything here is local
to a party.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEVEL = 0.98  # of chance, at which groups of different sizes weigh the same
AT_ONCE = 64  # scrambled responses that are multiplied together
COLUMNS_AT_ONCE = 1024  # that are made double
# Added to the variance of every column of a regression, which is 1: what a column says
# beside its own copy is then next to nothing, and no number is without bounds.
RIDGE = 1e-6
RANK = 1e-4  # of a group's largest variance, below which a direction is not one of it
CONSTANT = 1e-6  # a spread below that share of the mean is rounding
TIE = 1e-3  # groups whose strength differs by less say the same, as copies do
NEAR = 0.05  # of a ring, that a row moves at least
ENOUGH_ROWS = 4  # for every column, to tell what it says beside the others


@dataclass(frozen=True)
class Moments:
    """Centred rows and responses, groups of columns on one scale, and what they say.

    The moments of all columns with all are never formed: memory is that of the rows.
    Moments of columns with each other are double, and formed of doubles: where columns
    depend on each other, rounding would otherwise make variances negative.
    """

    X: Tensor  # (n, columns)
    Z: Tensor  # (n, E)
    group: Tensor  # (columns,), the group of every column
    weights: Tensor  # (n_groups,), what a useless group says by chance
    blocks: Tensor | None = None  # (n,), rows that are scrambled together; None: each
    in_file: bool = False  # rows are in the order of a file, which scrambling keeps

    @classmethod
    def of(
        cls,
        X: Tensor,
        Z: Tensor,
        group: Tensor,
        blocks: Tensor | None = None,
        in_file: bool = False,
    ) -> Moments:
        """Centre rows (n, columns) and responses, and put the groups on one scale."""
        Z = Z - Z.mean(dim=0)
        X, owner = on_one_scale(X, group)
        n_groups = int(group.max()) + 1 if len(group) else 0
        size = torch.zeros(n_groups).to(X).index_add_(0, owner, torch.ones_like(X[0]))
        weights = chance(size * dimension(Z)).sqrt()
        return cls(X, Z, owner, weights, _renumbered(blocks), in_file)

    @functools.cached_property
    def C(self) -> Tensor:
        """Return the moments of columns with responses, X'Z / n, (columns, E)."""
        return self.X.T @ self.Z / len(self.X)

    @property
    def n_rows(self) -> int:
        """Return how many rows there are, n."""
        return len(self.X)

    def norms(self, columns: Tensor) -> Tensor:
        """Return the norm of each group's entries in (..., columns, E).

        They are (..., n_groups): over the group's columns and all E responses.
        """
        squares = columns.square().sum(dim=-1)
        sums = squares.new_zeros(*squares.shape[:-1], len(self.weights))
        return sums.index_add_(-1, self.group, squares).sqrt()

    def scores(self, columns: Tensor) -> Tensor:
        """Return `norms` as multiples of what a useless group says by chance."""
        return self.norms(columns) / self.weights

    def rows(self, which: Tensor) -> Moments:
        """Return the moments of the rows `which`, on the scale of all rows."""
        X, Z = self.X[which], self.Z[which]
        X, Z = X - X.mean(dim=0), Z - Z.mean(dim=0)
        blocks = None if self.blocks is None else self.blocks[which]
        return replace(self, X=X, Z=Z, blocks=_renumbered(blocks))

    def gram(self, columns: Tensor, others: Tensor | slice | None = None) -> Tensor:
        """Return X'X / n, in double, of `columns` with `others`, or with each other.

        Columns are given by their places.
        """
        some = self.X[:, columns].double()
        if others is None:
            return some.T @ some / self.n_rows
        rest = torch.split(self.X[:, others], COLUMNS_AT_ONCE, dim=1)
        return torch.cat([some.T @ part.double() for part in rest], 1) / self.n_rows

    def with_responses(self, columns: Tensor) -> Tensor:
        """Return X'Z / n of some columns, (columns, E), in double."""
        return self.X[:, columns].double().T @ self.Z.double() / self.n_rows

    def columns_of(self, groups: Tensor) -> Tensor:
        """Return the places of the columns of some groups, a mask (n_groups,)."""
        return groups[self.group].nonzero()[:, 0]

    def regression(self, columns: Tensor) -> Tensor:
        """Return the least-squares coefficients of some columns, (columns, E)."""
        G = self.gram(columns)
        ridge = RIDGE * torch.eye(len(G)).to(G)
        B: Tensor = torch.linalg.solve(G + ridge, self.with_responses(columns))
        return B

    def left(self, B: Tensor, slopes: Tensor) -> float:
        """Return the share of the responses' variance that a fit leaves unexplained.

        `B` (columns, E) are coefficients, `slopes` (columns, E) X'(Z - XB) / n.
        """
        whole = self.Z.square().sum() / self.n_rows
        explained = (B * (self.C + slopes)).sum()
        return float(1 - explained / whole.clamp_min(torch.finfo(B.dtype).tiny))


def _renumbered(blocks: Tensor | None) -> Tensor | None:
    """Return blocks (n,) by numbers from 0 on, of which each has a row."""
    return None if blocks is None else torch.unique(blocks, return_inverse=True)[1]


def on_one_scale(X: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return uncorrelated columns of variance 1 that span each group of columns.

    `X` (n, columns) are the columns, `group` (columns,) the group of each; returned are
    new columns (n, fewer), and the group of each. A constant column stays as zeros. A
    group of several columns gets as many as it has dimensions: directions of less than
    `RANK` of its largest variance are left out.
    """
    mean = X.mean(dim=0, dtype=torch.float64).to(X)  # double: equal columns stay equal
    X = X - mean
    spread = torch.linalg.vector_norm(X, dim=0, dtype=torch.float64)
    spread = (spread / math.sqrt(max(1, len(X)))).to(X)
    X /= torch.where(spread > CONSTANT * mean.abs(), spread, torch.inf)
    sizes = torch.bincount(group)
    if not bool((sizes > 1).any()):
        return X, group
    alone = sizes[group] == 1
    columns, owners = [X[:, alone]], [group[alone]]
    by_group = torch.split(group.argsort(stable=True), sizes.tolist())
    for number in (sizes > 1).nonzero()[:, 0].tolist():
        part = X[:, by_group[number]].double()
        values, vectors = torch.linalg.eigh(part.T @ part / len(part))
        some = values > RANK * values[-1].clamp_min(RIDGE)
        columns.append((part @ (vectors[:, some] / values[some].sqrt())).to(X))
        owners.append(group.new_full((int(some.sum()),), number))
    return torch.cat(columns, dim=1), torch.cat(owners)


def chance(degrees: Tensor, level: float = LEVEL) -> Tensor:
    """Return the quantile `level` of chi-squares of some degrees (Wilson, Hilferty)."""
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * level - 1)))
    part = 2 / (9 * degrees.clamp_min(1.0))
    return degrees.clamp_min(1.0) * (1 - part + z * part.sqrt()).pow(3)


def dimension(Z: Tensor) -> float:
    """Return how many dimensions responses (n, E) have in effect, from 1 to E."""
    S = Z.T @ Z
    return max(1.0, float(S.trace().square() / S.square().sum().clamp_min(1e-30)))


def shadow_scores(
    moments: Moments, residual: Tensor, n_copies: int, generator: torch.Generator
) -> Tensor:
    """Return the scores of scrambled copies of all groups, (n_copies, n_groups).

    Scores are against `residual` (n, E), what is to be explained. All columns of a copy
    share one order of the rows, so that a copy's largest score is what chance makes of
    the largest.
    """
    scores, n = [], moments.n_rows
    step = max(1, AT_ONCE // residual.shape[1])
    for start in range(0, n_copies, step):
        copies = [
            scramble(residual, moments.blocks, generator, moments.in_file)
            for _ in range(start, min(start + step, n_copies))
        ]
        slopes = moments.X.T @ torch.cat(copies, dim=1) / n
        slopes = slopes.view(-1, len(copies), residual.shape[1])
        scores.append(moments.scores(slopes.transpose(0, 1)))
    return torch.cat(scores)


def scramble(
    residual: Tensor,
    blocks: Tensor | None,
    generator: torch.Generator,
    in_file: bool = False,
) -> Tensor:
    """Return W (n, E), so that X'W is X'R with the rows of the columns X scrambled.

    R is the residual (n, E). Rows of one block belong together (copies of a row, a
    person's visits): a scrambled column has in all of them the values of another block,
    in their order, repeated or cut where that one is smaller or larger. So chance has
    as few blocks to work with as it has in the table. Without blocks every row gets the
    value of another row.

    Rows (or blocks) that are `in_file` order are moved along by a random number of
    places, as a ring, or also turned round: neighbours stay neighbours.
    """
    order_of = moved if in_file else torch.randperm
    if blocks is None:
        order = order_of(len(residual), generator=generator)
        return residual[order.to(residual.device)]
    members = blocks.argsort(stable=True)  # rows, block by block
    size = torch.bincount(blocks)
    start = size.cumsum(0) - size
    of_member = blocks[members]
    place = torch.arange(len(blocks)).to(blocks) - start[of_member]  # within its block
    other = order_of(len(size), generator=generator).to(blocks)[of_member]
    source = members[start[other] + place % size[other]]
    return torch.zeros_like(residual).index_add_(0, source, residual[members])


def moved(n: int, generator: torch.Generator) -> Tensor:
    """Return n places moved along a ring, not by a few, and half of the time turned."""
    few = round(NEAR * n)
    far = int(torch.randint(few, n - few, (1,), generator=generator)) if n > 1 else 0
    order = (torch.arange(n) + far) % n
    turned = bool(torch.randint(2, (1,), generator=generator))
    return order.flip(0) if turned else order


@dataclass(frozen=True)
class Rule:
    """How high a limit on scores must be, by the scores of shadows.

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
        false = self.false_share(limit, n_kept)
        return false is None or (self.share(limit) <= self.q and false <= self.fdr)

    def least(self, n_kept: int) -> float:
        """Return the lowest limit at which `n_kept` features may be kept."""
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
    *,
    n_copies: int,
    generator: torch.Generator,
    q: float,
    fdr: float,
) -> tuple[Tensor, Tensor, Rule]:
    """Remove, one at a time, the group that says least beside the others kept.

    What a group says is the root of its Wald statistic in the regression on all groups
    kept; what a shadow would say, were it added, is the measure. Elimination ends where
    the rule allows as many groups as are left at the score of the weakest; of groups
    that say the same, as exact copies do, the last goes and the first stays. All are
    masks (n_groups,): `kept` is where to begin, `exempt` stay whatever they say. The
    rule, of `n_copies` scrambled copies, allows the shares `q` and `fdr` (`Rule`).
    Returns the groups left, what each group says beside them, and the rule on the scale
    of that.
    """
    group, n = moments.group, moments.n_rows
    inside = moments.columns_of(kept)
    G = moments.gram(inside)
    P = torch.linalg.inv(G + RIDGE * torch.eye(len(G)).to(G))
    B, owner = P @ moments.with_responses(inside), group[inside]
    residual = moments.Z - moments.X[:, inside] @ B.to(moments.X)
    left = float(residual.double().square().sum() / n)
    spent = 1 - len(inside) / n
    first = shadow_scores(moments, residual, n_copies, generator) / math.sqrt(spent)
    whole = Rule.of(first, q, fdr)
    kept, start = kept.clone(), left * (1 / spent)
    while True:
        noise = left / (1 - len(owner) / n)
        scale = math.sqrt(noise / start) if start > 0 else 1.0
        inside_scores = _wald(P, B, owner, len(kept)).sqrt() / moments.weights
        at_stake = torch.where(kept & ~exempt, inside_scores, torch.inf)
        least = float(at_stake.min())
        weakest = int((at_stake <= least * (1 + TIE)).nonzero()[-1])
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
    across = moments.gram(moments.columns_of(kept), slice(None))  # (kept, columns)
    slopes = moments.C.double() - across.T @ B
    by_kept = (across * (P @ across)).sum(dim=0)
    variance = torch.linalg.vector_norm(moments.X, dim=0).square() / n
    free = (variance - by_kept).clamp_min(1e-3).unsqueeze(1)
    outside_scores = moments.scores(slopes / free.sqrt())
    return kept, torch.where(kept, inside_scores, outside_scores).to(moments.X), rule


def _wald(P: Tensor, B: Tensor, owner: Tensor, n_groups: int) -> Tensor:
    """Return the Wald statistic of each group times the noise's variance, (n_groups,).

    `P` is the inverse of the moments of the columns in the regression, `B` (columns, E)
    their coefficients, `owner` (columns,) their groups.
    """
    size = torch.bincount(owner, minlength=n_groups)
    alone = B.square().sum(dim=1) / P.diagonal()
    wald = alone.new_zeros(n_groups).index_add_(0, owner, alone)
    for number in (size > 1).nonzero()[:, 0].tolist():
        J = (owner == number).nonzero()[:, 0]
        wald[number] = (B[J] * torch.linalg.solve(P[J][:, J], B[J])).sum()
    return wald


def explained(moments: Moments, part: Moments, kept: Tensor) -> float:
    """Return how much variance of responses a fit explains on other rows.

    The fit is least squares on `moments`, on the groups of a mask `kept` (n_groups,);
    the other rows are those of `part`, on the same scale.
    """
    inside = moments.columns_of(kept)
    B = moments.regression(inside)
    by_slopes = 2 * part.with_responses(inside) - part.gram(inside) @ B
    return float((B * by_slopes).sum())
