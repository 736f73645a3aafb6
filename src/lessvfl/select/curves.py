"""What removed features may do in ways that no path of lambdas sees.

A path sees effects that are straight in a column as it is scaled. A removed feature may
act along a curve, in the ranks of heavy tails, or together with another feature of its
party. Each of these is a correlation of a function of columns with what is left of the
responses, n times whose square is a chi-square. No message says anything of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lessvfl.select.moments import RIDGE, Moments, chance, dimension
from lessvfl.select.pairs import AT_ONCE, MOST_COLUMNS, MOST_ROWS

SIGN = 0.1  # share of useless columns with a sign of a curve, and with one of a pair
WAVES = 5  # half periods of cosines of the rank: the first is up or down, the next a U


def largest_shares(
    seen: Moments, *, X: Tensor, group: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Return by group what its best curve or product explains: three results.

    First the share of the variance of the responses, (n_groups,), without the linear
    part of the groups of a mask `kept` (n_groups,). Functions are curves of a column of
    X (n, columns), whose groups are `group` (columns,), and products with the columns
    that say most. Second the share as a multiple of one that is beyond chance, over n,
    (n_groups,). Third the degrees of the chi-square that n times a share is where a
    group does nothing.
    """
    X = X[:MOST_ROWS]
    linear = seen.columns_of(kept)
    r = seen.Z - seen.X[:, linear] @ seen.regression(linear).to(seen.X)
    r = r[:MOST_ROWS]
    r = (r - r.mean(dim=0)) / r.square().sum(dim=1).mean().sqrt().clamp_min(RIDGE)
    degrees = dimension(r)
    r = r * math.sqrt(degrees) / len(r)
    ranks = _ranks(X)
    normal = torch.special.ndtri(ranks)
    curved = torch.stack([_share(one, r) for one in _curves(X, ranks, normal)])
    levels = [1 - SIGN / len(curved), 1 - SIGN / min(X.shape[1], MOST_COLUMNS)]
    both = torch.stack([curved.amax(dim=0), _in_pairs(_standard(normal), r)])
    marks = torch.stack([chance(torch.tensor(degrees), level) for level in levels])
    best, signs = (
        part.new_zeros(len(seen.weights)).scatter_reduce(0, group, part, "amax")
        for part in (both.amax(dim=0), (both / marks.to(both).unsqueeze(1)).amax(dim=0))
    )
    return best, signs, degrees


def _ranks(X: Tensor) -> Tensor:
    """Return the rank of each cell in its column, 0 to 1; equal cells share one."""
    order, place = X.T.contiguous().sort(dim=1)
    below = torch.searchsorted(order, order)
    upto = torch.searchsorted(order, order, right=True)
    ranks = ((below + upto) / (2 * len(X))).to(X)
    return torch.empty_like(ranks).scatter_(1, place, ranks).T.contiguous()


def _curves(X: Tensor, ranks: Tensor, normal: Tensor) -> Iterator[Tensor]:
    """Yield curves of every column, (n, columns) each: two squares, then cosines.

    `ranks` are those of the cells, `normal` what a normal column has at these ranks.
    """
    yield (X - X.mean(dim=0)).square()
    yield normal.square()
    for n in range(1, WAVES + 1):
        yield (n * math.pi * ranks).cos()


def _standard(values: Tensor) -> Tensor:
    """Return columns (n, columns) of mean 0 and variance 1; constant ones are zeros."""
    values = values - values.mean(dim=0)
    spread = values.square().mean(dim=0).sqrt()
    return values / torch.where(spread > RIDGE, spread, torch.inf)


def _share(curve: Tensor, r: Tensor) -> Tensor:
    """Return the share of r (n, E) that each column of a curve explains, (columns,)."""
    return (_standard(curve).T @ r).square().sum(dim=1)


def _in_pairs(H: Tensor, r: Tensor) -> Tensor:
    """Return the largest share of `r` that a product with each column explains.

    `H` (n, columns) are standardised columns, `r` (n, E) scaled responses; the result
    is (columns,). Of many columns the other factors are those that say most alone.
    """
    others = H
    if H.shape[1] > MOST_COLUMNS:
        others = H[:, _share(H, r).topk(MOST_COLUMNS).indices]
    best = []
    for start in range(0, H.shape[1], AT_ONCE):
        some = H[:, start : start + AT_ONCE]
        size = sum((some.T @ (others * r[:, [e]])).square() for e in range(r.shape[1]))
        middle = some.T @ others / len(H)
        spread = some.square().T @ others.square() / len(H) - middle.square()
        most = size / torch.where(spread > RIDGE, spread, torch.inf)
        best.append(most.max(dim=1).values)
    return torch.cat(best)
