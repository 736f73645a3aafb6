"""Sums of gradients by bin that no party can read, by additive sharing with a dealer.

A party holds X (N, T), 1 where a row is in a bin, and the label holder g (V, N), the
gradients and hessians of N rows. The label holder is to learn X'g of the rows of a
node, which all know, and the party nothing. Whole numbers mod 2^bits::

    X'g = X'(g - b) + (X - A)'b + A'b

A dealer shares the mask A with the party and the mask b, a new one for every g, with
the label holder. X - A, which the label holder sees once, and g - b, which the party
sees, are uniformly random to them. The party takes a mask off X'(g - b) which the
dealer, too, can draw and adds to A'b: one alone says nothing, both together are what
the label holder lacks. The last bin of a column has the rest of a node's total, so
that X does without it.

Elements are kept as they travel: sums of them go round beyond the ends of their number
format, which is what the ring does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.sharing import Ring
from lessvfl.core.trees.holders import BinLayout, NodeRows, Truths
from lessvfl.core.trees.sums import CellCodes, FixedPoint, Sums, check_size

BLOCK_CELLS = 1 << 22  # of a table that are multiplied at once
MOST_BYTES = 1 << 29  # of a table
MOST_ROWS = 1 << 21  # of which 32 bits each are summed exactly in float64


def free_bins(layout: BinLayout) -> Truths:
    """Return which bins (T,) are not the last of their column."""
    free = np.ones(layout.n_bins, dtype=np.bool_)
    free[layout.starts + layout.sizes - 1] = False
    return free


def most_bins(ring: Ring, n_rows: int) -> int:
    """Return how many bins a table of so many rows may have."""
    return 8 * MOST_BYTES // (ring.bits * max(1, n_rows))


def masked_table(mask: Tensor, codes: CellCodes, layout: BinLayout) -> Tensor:
    """Return X - A of rows in bins (F, N)."""
    table, first = mask.neg(), 0
    for bins, size in zip(codes, layout.sizes.tolist(), strict=True):
        rows = np.flatnonzero(bins < size - 1)
        table[rows, bins[rows].astype(np.int64) + first] += 1
        first += size - 1
    return table


def times(table: Tensor, values: Tensor, nodes: Sequence[NodeRows]) -> Tensor:
    """Return table' values summed over the rows of every node, (V, nodes, T).

    `table` (N, T) is by row and bin, `values` (K, V, N) by tree; a node names its tree.
    """
    n_bins = table.shape[1]
    check_size(values.shape[1], len(nodes), n_bins)
    sums = table.new_zeros(values.shape[1], len(nodes), n_bins)
    step = max(1, BLOCK_CELLS // max(1, n_bins))
    for place, node in enumerate(nodes):
        for rows in torch.split(torch.from_numpy(node.rows), step):
            some = values[node.tree].index_select(1, rows)
            sums[:, place] += some @ table.index_select(0, rows)
    return sums


def in_parts(values: Tensor) -> FixedPoint:
    """Return elements (K, V, N) as gradients whose sums are exact: 32 bits each."""
    parts = [values]
    if values.dtype == torch.int64:
        parts = [values & (1 << 32) - 1, values >> 32]
    gradients = torch.cat(parts, dim=1).double().numpy()
    ones = np.ones(len(values))
    return FixedPoint(gradients, np.zeros_like(gradients[:, 0]), ones, ones)


def put_together(sums: Sums, ring: Ring) -> Tensor:
    """Return sums (V, nodes, T) of ring elements, given those of their 32-bit parts."""
    whole = torch.from_numpy(sums).long()
    if ring.bits == 64:
        low, high = whole.chunk(2)
        whole = low + (high << 32)
    return whole.to(ring.dtype)


def with_last(sums: Sums, totals: Sums, layout: BinLayout) -> Sums:
    """Return sums (Q + 2, nodes, T) of all bins, given those of all but last ones.

    `totals` (Q + 2, nodes) are of whole nodes: the last bin of a column has the rest.
    """
    free = free_bins(layout)
    whole = np.zeros((*sums.shape[:2], layout.n_bins))
    whole[:, :, free] = sums
    by_column = np.add.reduceat(whole, layout.starts, axis=2)
    whole[:, :, ~free] = totals[:, :, None] - by_column
    return whole
