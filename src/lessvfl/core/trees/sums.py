"""Gradients as whole numbers, and their sums by node and bin.

A gradient is a multiple of a unit, a power of two. Sums of whole numbers are exact in
float64 up to 2^53: they are the same in any order, over any split of the columns,
under additive sharing, and after the sums of one child were subtracted from those of
its parent. Of a row three things are summed by bin: gradient (or Q of them), hessian,
and 1. The hessian and the 1 travel in one float64, and with the gradient in a complex
number, so that one pass sums them all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.core.plans import stream

Sums = NDArray[np.float64]  # whole numbers: Q gradients, then the hessian, then rows
RowIds = NDArray[np.int64]
CellCodes = NDArray[np.uint8]  # (F, N), the bin of every cell

CHUNK = 1 << 15  # rows that are summed in one float64
HESSIAN_BITS = 20
ONE_ROW = float(1 << 36)  # a row beside hessians: more than a chunk of them adds up to
BLOCK_CELLS = 1 << 20  # cells that are summed at once
EXACT_BITS = 52  # of whole numbers in float64
MOST_CELLS = 1 << 29  # of all sums that are asked for at once


def check_size(n_sums: int, n_nodes: int, n_bins: int) -> None:
    """Refuse with a ValueError to make more sums at once than memory is there for."""
    if n_sums * n_nodes * n_bins > MOST_CELLS:
        raise ValueError(f"{n_sums} sums of {n_nodes} nodes and {n_bins} bins")


@dataclass(frozen=True)
class FixedPoint:
    """Gradients (K, Q, N) and hessians (K, N) of K trees as multiples of units."""

    gradient: Sums
    hessian: Sums
    gradient_unit: NDArray[np.float64]  # (K,)
    hessian_unit: NDArray[np.float64]  # (K,)

    @classmethod
    def of(
        cls,
        gradient: NDArray[np.float64],
        hessian: NDArray[np.float64],
        bits: int = 32,
        seeds: Sequence[int] = (),
    ) -> FixedPoint:
        """Round to numbers of 32, 16 or 8 bits; less than 32 up or down by chance.

        A value between two numbers then goes up as often as it is near the upper one:
        no sum has a bias. Chance has a seed for every tree.
        """
        n_rows = hessian.shape[1]
        most = min(bits - 1, EXACT_BITS - max(1, n_rows - 1).bit_length())
        g_unit = _units(np.abs(gradient).max(axis=(1, 2)), most)
        h_unit = _units(hessian.max(axis=1), min(bits - 1, HESSIAN_BITS))
        g = gradient / g_unit[:, None, None]
        h = hessian / h_unit[:, None]
        if bits == 32:
            return cls(np.rint(g), np.rint(h), g_unit, h_unit)
        for seed, *both in zip(seeds, g, h, strict=True):
            chance = stream(seed, "round")
            for part in both:
                drawn = torch.rand(part.shape, generator=chance, dtype=torch.double)
                part += drawn.numpy()
        return cls(np.floor(g), np.floor(h), g_unit, h_unit)

    @property
    def n_gradients(self) -> int:
        """Return how many gradients a row has in one tree, Q."""
        return int(self.gradient.shape[1])

    @functools.cached_property
    def largest(self) -> float:
        """Return the largest absolute value, at least 1."""
        return float(max(np.abs(self.gradient).max(), self.hessian.max(), 1))

    @functools.cached_property
    def packed(self) -> NDArray[np.complex128]:
        """Return complex numbers (P, K x N), P = Q // 2 + 1, for :func:`sum_by_bin`."""
        g, h = self.gradient, self.hessian
        n_trees, n_gradients, n_rows = g.shape
        packed = np.zeros((n_gradients // 2 + 1, n_trees, n_rows), dtype=np.complex128)
        packed[0].real, packed[0].imag = g[:, 0], h + ONE_ROW
        for place in range(1, n_gradients):
            pair = packed[(place + 1) // 2]
            part = pair.real if place % 2 else pair.imag
            part[:] = g[:, place]
        return packed.reshape(len(packed), -1)

    def total(self, tree: int, rows: RowIds) -> Sums:
        """Return the sums over some rows, (Q + 2,)."""
        each = [*self.gradient[tree], self.hessian[tree]]
        return np.array([*(values.take(rows).sum() for values in each), len(rows)])


def _units(largest: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Return powers of two of which `largest` are at most 2^bits - 1."""
    at_least = np.where(largest > 0, largest, 1.0) / (2**bits - 1)
    mantissa, exponent = np.frexp(at_least)
    return np.asarray(np.ldexp(1.0, exponent - (mantissa == 0.5)))


def sum_by_bin(
    codes: CellCodes,
    width: int,
    packed: NDArray[np.complex128],
    n_gradients: int,
    nodes: Sequence[tuple[int, RowIds]],
) -> Sums:
    """Return the sums of every node (tree, rows), (Q + 2, nodes, F, width).

    `codes` are below `width`. Nodes with few rows are summed together.
    """
    n_columns, n_rows = codes.shape
    sums = np.zeros((n_gradients + 2, len(nodes), n_columns, width))
    for first, last, part in _batches([len(rows) for _, rows in nodes]):
        each = [(tree, rows[part]) for tree, rows in nodes[first:last]]
        rows = np.concatenate([some for _, some in each])
        lengths = [len(some) for _, some in each]
        offsets = np.repeat([tree * n_rows for tree, _ in each], lengths)
        values = torch.from_numpy(np.take(packed, offsets + rows, axis=1))
        slots = np.repeat(np.arange(len(each)) * width, lengths)
        is_everyone = len(rows) == n_rows and bool((np.diff(rows) == 1).all())
        block = max(1, BLOCK_CELLS // len(rows))
        for start in range(0, n_columns, block):
            some_codes = codes[start : start + block]
            if not is_everyone:
                some_codes = np.take(some_codes, rows, axis=1)
            index = torch.from_numpy(np.add(some_codes, slots))
            pairs = torch.zeros(
                (len(values), len(index), len(each) * width), dtype=torch.complex128
            )
            for pair, value in zip(pairs, values, strict=True):
                pair.scatter_add_(1, index, value.expand(index.shape))
            _add_pairs(pairs.numpy(), sums[:, first:last, start : start + block])
    return sums


def _batches(sizes: Sequence[int]) -> Iterator[tuple[int, int, slice]]:
    """Yield nodes, from one to before another, and which of their rows to sum."""
    first, total = 0, 0
    for place, size in enumerate(sizes):
        if total and total + size > CHUNK:
            yield first, place, slice(None)
            first, total = place, 0
        if size > CHUNK:
            for begin in range(0, size, CHUNK):
                yield place, place + 1, slice(begin, begin + CHUNK)
            first = place + 1
        else:
            total += size
    if total:
        yield first, len(sizes), slice(None)


def _add_pairs(pairs: NDArray[np.complex128], sums: Sums) -> None:
    """Add sums of complex numbers (P, F, nodes x width) to (Q + 2, nodes, F, width)."""
    n_pairs, n_columns, _ = pairs.shape
    shape = (n_pairs, n_columns, sums.shape[1], sums.shape[3], 2)
    parts = pairs.view(np.float64).reshape(shape).transpose(0, 4, 2, 1, 3)
    first, second, *others = parts.reshape(2 * n_pairs, *sums.shape[1:])
    n_rows = np.floor(second / ONE_ROW)
    sums[0] += first
    sums[-1] += n_rows
    n_rows *= ONE_ROW
    sums[-2] += second - n_rows
    for gradient, other in zip(sums[1:-2], others, strict=False):
        gradient += other


def pack(
    sums: Sums, bits: int, sizes: NDArray[np.int64]
) -> tuple[NDArray[np.signedinteger], NDArray[np.float64]]:
    """Round sums (Q + 2, nodes, T) to whole numbers of 32, 16 or 8 `bits`, to be sent.

    `sizes` (F,) is how many of the T bins each column has. Small enough sums stay
    exact. Returns levels (Q + 2, nodes, T), and the units (Q + 2, nodes, F), powers of
    two, that they are multiples of.

    >>> two_columns = np.array([2, 3])
    >>> sums = np.array([[[3.0, -100.0, 1000.0, 7.0, 4.0]]])
    >>> unpack(*pack(sums, 8, two_columns), two_columns)
    array([[[   3., -100., 1000.,    8.,    0.]]])
    """
    starts = np.cumsum(sizes) - sizes
    largest = np.maximum.reduceat(np.abs(sums), starts, axis=2)
    units = np.maximum(1.0, _units(largest, bits - 1))
    each = np.repeat(units, sizes, axis=2)
    return np.rint(sums / each).astype(np.dtype(f"int{bits}")), units


def unpack(
    levels: NDArray[np.signedinteger],
    units: NDArray[np.float64],
    sizes: NDArray[np.int64],
) -> Sums:
    """Return the sums (Q + 2, nodes, T) that :func:`pack` made levels and units of."""
    return np.asarray(levels * np.repeat(units, sizes, axis=2))
