"""Networks without activations: all layers are one linear map.

The layers are multiplied together, last ones first (they are the narrow ones), and rows
meet the map that comes out: a step never forms the hidden units of a row. Where only
squares of what the map gives are asked for, rows enter by their moments alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lessvfl.core.plans import Rows, take


def collapse(
    weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the one map of all layers, (..., out, in), and what it adds (..., out, 1).

    Weights are (..., out, in) and biases (..., out), from the first layer to the last.

    >>> double, add = torch.tensor([[2.0]]), torch.tensor([1.0])
    >>> collapse([double, double], [add, add])
    (tensor([[4.]]), tensor([[3.]]))
    """
    whole, added = weights[-1], biases[-1].unsqueeze(-1)
    for w, b in zip(weights[-2::-1], biases[-2::-1], strict=True):
        added = whole @ b.unsqueeze(-1) + added
        whole = whole @ w
    return whole, added


class BatchMoments:
    """X'X / n of batches in file order, each computed when it is first asked for.

    They are asked for where a batch has at least half as many rows as columns, so all
    of them take at most twice the memory of the table (S, N, columns).
    """

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self._known: dict[int, Tensor] = {}  # by the first row

    def serve(self, rows: Rows) -> bool:
        """Tell whether a batch is to enter by its moments."""
        if not isinstance(rows, slice):
            return False
        n_rows: int = rows.stop - rows.start
        return 2 * n_rows >= self._table.shape[2]

    def squares(self, maps: Tensor, rows: slice) -> Tensor:
        """Return what sums to the mean over rows of |map x|², of maps (S, k, columns).

        (S, k, columns): the sum over the columns is that of one row of a map.
        """
        self.add(rows)
        return maps * (maps @ self._known[rows.start])

    def add(self, rows: slice) -> None:
        """Compute the moments of a batch, unless they are known."""
        if rows.start not in self._known:
            X = take(self._table, rows)
            self._known[rows.start] = X.mT @ X / X.shape[1]
