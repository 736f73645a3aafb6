"""Networks without activations: all layers are one linear map.

The layers are multiplied together, last ones first (they are the narrow ones), and rows
meet the map that comes out: a step never forms the hidden units of a row. Where only
squares of what the map gives are asked for, rows enter by their moments alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lessvfl.core.plans import Rows

LinearMap = tuple[Tensor, Tensor]  # weights (..., out, in), what it adds (..., out, 1)


def collapse(
    weights: Sequence[Tensor], biases: Sequence[Tensor], last: LinearMap | None = None
) -> LinearMap:
    """Return the one map of all layers, `last` in the place of the last of them.

    Weights are (..., out, in) and biases (..., out), from the first layer to the last.
    The fewer rows `last` has, the less there is to multiply.

    >>> double, add = torch.tensor([[2.0]]), torch.tensor([1.0])
    >>> collapse([double, double], [add, add])
    (tensor([[4.]]), tensor([[3.]]))
    """
    whole, added = last or (weights[-1], biases[-1].unsqueeze(-1))
    for w, b in zip(weights[-2::-1], biases[-2::-1], strict=True):
        added = whole @ b.unsqueeze(-1) + added
        whole = whole @ w
    return whole, added


class BatchMoments:
    """X'X / n of batches that are slices, each computed when it is first asked for.

    They are asked for where a batch has at least half as many rows as columns, so those
    of one epoch take at most twice the memory of the table (..., N, columns).
    """

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self._known: dict[tuple[int, int], Tensor] = {}  # by start and stop

    def serve(self, rows: Rows) -> bool:
        """Tell whether a batch is to enter by its moments."""
        if not isinstance(rows, slice):
            return False
        n_rows: int = rows.stop - rows.start
        return 2 * n_rows >= self._table.shape[-1]

    def squares(self, maps: Tensor, rows: slice) -> Tensor:
        """Return the mean over rows of |map x|², one for each map (..., columns)."""
        if (rows.start, rows.stop) not in self._known:
            X = self._table[..., rows, :]
            self._known[rows.start, rows.stop] = X.mT @ X / X.shape[-2]
        moment = self._known[rows.start, rows.stop]
        squares: Tensor = Quadratic.apply(maps, moment)  # type: ignore[no-untyped-call]
        return squares


class Quadratic(torch.autograd.Function):
    """The form v M v' of every row v, M symmetric.

    Its gradient 2 v M is a product that the value has made already.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, M: Tensor) -> Tensor:
        """Return the values, (..., n) for rows (..., n, D)."""
        product = rows @ M
        ctx.save_for_backward(product)
        return (rows * product).sum(dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient by the rows; M is given."""
        (product,) = ctx.saved_tensors
        return 2 * grads[0].unsqueeze(-1) * product, None
