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


def free_bins_of(layout: BinLayout, used: Truths) -> Truths:
    """Return which of the free bins are of columns (F,) in use."""
    return np.repeat(used, layout.sizes - 1)


def most_bins(ring: Ring, n_rows: int) -> int:
    """Return how many bins a table of so many rows may have."""
    return 8 * MOST_BYTES // (ring.bits * max(1, n_rows))


def draw_table(ring: Ring, seed: bytes, n_rows: int, n_bins: int) -> Tensor:
    """Return A, the mask of a party's bins, (N, T)."""
    return ring.draw_packed(seed, "bins", n_rows, n_bins)


def draw_values(ring: Ring, seed: bytes, step: int, *shape: int) -> Tensor:
    """Return b, the mask of the gradients that are sent at a step."""
    return ring.draw_packed(seed, f"gradients {step}", *shape)


def draw_sums(ring: Ring, seed: bytes, step: int, *shape: int) -> Tensor:
    """Return the mask of the sums that are sent at a step."""
    return ring.draw_packed(seed, f"sums {step}", *shape)


def masked_table(mask: Tensor, codes: CellCodes, layout: BinLayout) -> Tensor:
    """Return X - A of rows in bins (F, N)."""
    found = mask.neg()
    first = 0
    for own, size in zip(codes, layout.sizes.tolist(), strict=True):
        rows = np.flatnonzero(own < size - 1)
        found[rows, own[rows].astype(np.int64) + first] += 1
        first += size - 1
    return found


def times(table: Tensor, values: Tensor, nodes: Sequence[NodeRows]) -> Tensor:
    """Return table' values of the rows of every node, (V, nodes, T).

    `table` is (N, T), `values` are those of K trees, (K, V, N).
    """
    n_bins = table.shape[1]
    check_size(values.shape[1], len(nodes), n_bins)
    found = table.new_zeros(values.shape[1], len(nodes), n_bins)
    step = max(1, BLOCK_CELLS // max(1, n_bins))
    for place, node in enumerate(nodes):
        for rows in torch.split(torch.from_numpy(node.rows), step):
            own = values[node.tree].index_select(1, rows)
            found[:, place] += own @ table.index_select(0, rows)
    return found


def in_parts(values: Tensor) -> FixedPoint:
    """Return elements (K, V, N) as gradients whose sums are exact: 32 bits each."""
    parts = [values]
    if values.dtype == torch.int64:
        parts = [values & (1 << 32) - 1, values >> 32]
    gradients = torch.cat(parts, dim=1).double().numpy()
    ones = np.ones(len(values))
    return FixedPoint(gradients, np.zeros_like(gradients[:, 0]), ones, ones)


def put_together(sums: Sums, ring: Ring) -> Tensor:
    """Return the sums (V, nodes, T) of elements from those of their parts."""
    whole = torch.from_numpy(sums).long()
    if ring.bits == 64:
        low, high = whole.chunk(2)
        whole = low + (high << 32)
    return whole.to(ring.dtype)


def with_last(sums: Sums, totals: Sums, layout: BinLayout) -> Sums:
    """Return sums (Q + 2, nodes, T) of all bins from those of the free ones.

    `totals` are those of nodes, (Q + 2, nodes).
    """
    free = free_bins(layout)
    found = np.zeros((*sums.shape[:2], layout.n_bins))
    found[:, :, free] = sums
    by_column = np.add.reduceat(found, layout.starts, axis=2)
    found[:, :, ~free] = totals[:, :, None] - by_column
    return found
