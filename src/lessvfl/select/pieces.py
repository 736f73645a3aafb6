"""Columns whose effect is a curve, and the pieces of which a network can draw it.

A column is encoded piecewise linearly, as by Gorishniy, Rubachev and Babenko (On
Embeddings for Numerical Features, NeurIPS 2022): beside its value stand shares, each of
which goes from 0 to 1 between two neighbouring quantiles. A party does so at home for
the last fit of its network, and only for columns that need it, so that what is linear
stays linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lessvfl.core.passes import with_pieces
from lessvfl.select.alike import as_they_come
from lessvfl.select.moments import ENOUGH_ROWS, chance, dimension

MOST_PIECES = 16
ROWS_PER_PIECE = 60
LEVEL = 0.9999  # of chance, and how many times more than that makes a column curved:
TELLING = 2.5  # of a rare class, responses to straight lines are bent a little, too
DEPENDENT = 1e-3  # of the largest singular value, below which a direction is none


def pieces_for_curves(
    X: Tensor, Z: Tensor, blocks: Tensor | None = None
) -> Tensor | None:
    """Return the pieces (in, k, 2) of columns X (n, in) that act by a curve on Z.

    Z are the responses (n, E); of rows of one block (n,) the first counts. A piece is
    where it starts, and 1 / its width; zeros stand for no piece. A column is curved
    where its shares explain more of the responses, beside all columns' straight lines,
    than chance would. None: no column is, or rows are too few to tell.
    """
    if blocks is not None:
        _, first = as_they_come(blocks)
        X, Z = X[first], Z[first]
    n_rows, n_columns = X.shape
    pieces = X.new_zeros(n_columns, MOST_PIECES, 2)
    k = min(MOST_PIECES, n_rows // ROWS_PER_PIECE)
    if k < 2 or n_rows < ENOUGH_ROWS * (n_columns + k):
        return None
    lines, _ = torch.linalg.qr(torch.nn.functional.pad(X, (0, 1), value=1.0).double())
    r = Z.double()
    r = r - lines @ (lines.T @ r)
    width = dimension(r)
    noise = r.square().sum() / (len(r) - lines.shape[1]) / width
    for column, x in enumerate(X.T):
        of_column = _quantile_pieces(x, k)
        some = of_column[:, 1] > 0
        if int(some.sum()) < 2:  # two values make a line
            continue
        shares = with_pieces(x.view(-1, 1), of_column[some].unsqueeze(0))[:, 1:]
        shares = shares.double() - lines @ (lines.T @ shares.double())
        U, size, _ = torch.linalg.svd(shares, full_matrices=False)
        U = U[:, size > DEPENDENT * len(r) ** 0.5]
        explained = (U.T @ r).square().sum() / noise
        if explained > TELLING * chance(torch.tensor(U.shape[1] * width), LEVEL):
            pieces[column, :k] = of_column
    return pieces if bool(pieces.any()) else None


def _quantile_pieces(x: Tensor, k: int) -> Tensor:
    """Return pieces (k, 2) between quantiles of values (n,), or between all values."""
    ends: Tensor = torch.unique(x)
    if len(ends) > k + 1:
        shares = torch.linspace(0, 1, k + 1).to(x)
        often = torch.unique(torch.quantile(x, shares))
        ends = often if len(often) > k // 2 else torch.quantile(ends, shares)
    widths = ends.diff()
    pieces = x.new_zeros(k, 2)
    pieces[: len(widths), 0], pieces[: len(widths), 1] = ends[:-1], 1 / widths
    return pieces
