"""Columns that matter only together: products of two of them, beside what is linear."""

from __future__ import annotations

import torch
from torch import Tensor

from lessvfl.select.moments import ENOUGH_ROWS, Moments, dimension, scramble

MARGIN = 12.0  # how far above chance a pair must be: e^-6 as likely
MOST_COLUMNS = 1024  # whose products are looked at: those that say most alone
MOST_ROWS = 50_000  # of all, which are in random order
FAR = 3.0  # deviations; beyond them a few rows would outweigh all others in a square
AT_ONCE = 256  # columns whose products are formed together


def pairs(
    moments: Moments, kept: Tensor, n_copies: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return how strongly each group acts together with another, and with which.

    Both are (n_groups,). A group may also act together with itself: squared. Strength
    is a share of the mark: from 1 on it counts. The mark is the largest statistic of
    all where the rows of r are scrambled, in `n_copies` ways, and `MARGIN` more.

    The statistic of two columns is (sum_i r_i x_ij x_ik)^2 / sum_i (r_i x_ij x_ik)^2,
    r the responses without the columns' own linear part: about 1 by chance, however
    the columns are distributed. Values beyond `FAR` deviations count as that far.
    `kept` (n_groups,) are the groups whose linear part is taken out where rows are too
    few to take out everybody's. Of rows that belong together one is looked at.
    """
    if moments.blocks is not None:
        moments = moments.rows(_one_of_each(moments.blocks, generator))
    if moments.n_rows > MOST_ROWS:
        first = torch.arange(moments.n_rows).to(moments.group) < MOST_ROWS
        moments = moments.rows(first)
    r = _beside_linear(moments, kept)
    some = torch.arange(moments.X.shape[1]).to(moments.group)
    if len(some) > MOST_COLUMNS:
        strongest = torch.linalg.vector_norm(moments.C, dim=1).topk(MOST_COLUMNS)
        some = strongest.indices.sort().values
    X, group = moments.X[:, some].clamp(-FAR, FAR), moments.group[some]
    in_file = moments.in_file
    scrambled = [scramble(r, None, generator, in_file) for _ in range(n_copies)]
    margin = MARGIN / dimension(r)
    if in_file:  # where rows are alike, all of chance is larger
        alone = _together(X, scramble(r, None, generator), None)[0].mean()
        margin *= max(1.0, float(_together(X, scrambled[0], None)[0].mean() / alone))
    strength, other = _beyond_chance(X, r, scrambled, margin, None)
    is_above = strength >= 1
    if bool(is_above.any()):  # with these alone chance has fewer pairs to choose from
        known = torch.zeros_like(is_above)
        known[torch.cat([is_above.nonzero()[:, 0], other[is_above]])] = True
        some = known.nonzero()[:, 0]
        more, partner = _beyond_chance(X, r, scrambled, margin, some)
        other = torch.where(more > strength, partner, other)
        strength = torch.maximum(strength, more)
    order = strength.argsort()  # the strongest last
    best = strength.new_zeros(len(moments.weights))
    best.scatter_reduce_(0, group, strength, "amax")
    last = order[strength[order] == best[group[order]]]
    partners = dict(zip(group[last].tolist(), group[other[last]].tolist(), strict=True))
    with_whom = [partners.get(g, 0) for g in range(len(best))]
    return best, torch.tensor(with_whom).to(group)


def _one_of_each(blocks: Tensor, generator: torch.Generator) -> Tensor:
    """Return a mask (n,) of one random row of every block; blocks are (n,)."""
    order = torch.randperm(len(blocks), generator=generator).to(blocks)
    last = blocks.new_full((int(blocks.max()) + 1,), -1)
    last.scatter_reduce_(0, blocks, order, "amax")
    return order == last[blocks]


def _beside_linear(moments: Moments, kept: Tensor) -> Tensor:
    """Return the responses (n, E) less their linear regression on columns.

    The columns are all; where rows are few, those of the groups `kept`, a mask.
    """
    n, X = moments.n_rows, moments.X
    if n < ENOUGH_ROWS * X.shape[1]:
        X = X[:, moments.columns_of(kept)]
    G = X.T @ X / n
    ridge = 1e-3 * torch.eye(len(G)).to(G)
    linear: Tensor = X @ torch.linalg.solve(G + ridge, X.T @ moments.Z / n)
    return moments.Z - linear


def _beyond_chance(
    X: Tensor, r: Tensor, scrambled: list[Tensor], margin: float, among: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return each column's strength in its best pair, and its partner, (columns,).

    Strength is its largest statistic with a column `among` others (None: all) as a
    share of the mark: the largest of the same pairs by residuals `scrambled`, plus
    `margin`.
    """
    strength, partner = _together(X, r, among)
    mark = torch.zeros_like(strength[0])
    for other in scrambled:
        by_chance = _together(X, other, among)[0].max() + margin
        mark = torch.maximum(mark, by_chance)
        if not bool((strength >= mark).any()):  # the next can but raise the mark
            break
    return strength / mark, partner


def _together(X: Tensor, r: Tensor, among: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each column's largest statistic with another, and that one's place.

    Both are (columns,). X is (n, columns), `r` (n, E) what is to be explained. The
    other is one of those `among`, by their places; None: any column.
    """
    others = X if among is None else X[:, among]
    weighted = others.square() * r.square().sum(dim=1, keepdim=True)
    tiny = torch.finfo(X.dtype).tiny
    best = X.new_full((X.shape[1],), -1.0)
    with_whom = torch.zeros_like(best, dtype=torch.long)
    for start in range(0, X.shape[1], AT_ONCE):
        first = start if among is None else 0  # of the others
        some, rest = X[:, start : start + AT_ONCE], others[:, first:]
        top = sum((some.T @ (rest * r[:, [e]])).square() for e in range(r.shape[1]))
        statistic = top / (some.square().T @ weighted[:, first:]).clamp_min(tiny)
        most = statistic.max(dim=1)
        here = slice(start, start + len(statistic))
        _take_larger(best, with_whom, here, most.values, first + most.indices)
        if among is None:
            most = statistic.max(dim=0)
            here = slice(first, None)
            _take_larger(best, with_whom, here, most.values, start + most.indices)
    return best, with_whom if among is None else among[with_whom]


def _take_larger(
    best: Tensor, with_whom: Tensor, where: slice, values: Tensor, places: Tensor
) -> None:
    """Put larger statistics, and with whom, in the place of smaller ones."""
    with_whom[where] = torch.where(values > best[where], places, with_whom[where])
    best[where] = torch.maximum(values, best[where])
