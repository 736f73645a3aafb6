"""The best split of a node, from the sums of all parties by bin.

A split into L and R gains G_L² / (H_L + l2) + G_R² / (H_R + l2) - G² / (H + l2), summed
over gradients where a row has several. Numbers are cut between bins, with missing cells
on either side; categories are put in the order of G / (H + smoothing) and cut alike,
which finds the best of all subsets (Fisher, 1958). Of equal gains the first column
wins, then missing cells on the right, then the first bin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.trees.holders import BinLayout, Truths
from lessvfl.core.trees.sums import Sums


@dataclass(frozen=True)
class SplitRules:
    """What makes a split, in the units of a loss."""

    min_samples_leaf: int = 20
    min_hessian: float = 1e-3  # of a leaf
    l2: float = 0.0
    category_smoothing: float = 10.0
    min_gain: float = 0.0  # a split must gain more


@dataclass(frozen=True)
class Chosen:
    """The best split of one node."""

    gain: float
    column: int  # among those in use, of all parties
    cuts: _Cuts
    node: int  # by its place among nodes that were looked at

    def left(self) -> Truths:
        """Return which bins go left, (values + 1,)."""
        return self.cuts.left(self.node, self.column)


@dataclass(frozen=True)
class NodeUnits:
    """What whole numbers of nodes stand for, (nodes,) each."""

    gradient: NDArray[np.float64]
    hessian: NDArray[np.float64]


def choose(
    sums: Sums,
    layout: BinLayout,
    totals: Sums,
    units: NodeUnits,
    rules: SplitRules,
    allowed: Truths | None = None,
) -> list[Chosen | None]:
    """Return the best split of every node, None where none gains.

    `sums` (Q + 2, nodes, T) are by bin, of all parties side by side, `totals` (Q + 2,
    nodes) of nodes, and `allowed` (nodes, F) says which columns a node may use.
    """
    if not layout.n_bins:
        return [None] * totals.shape[1]
    cuts = _Search(totals, units, rules).over(sums, layout, allowed)
    both = zip(cuts.gain.tolist(), layout.column_of[cuts.place].tolist(), strict=True)
    return [
        Chosen(gain, column, cuts, node) if gain > rules.min_gain else None
        for node, (gain, column) in enumerate(both)
    ]


@dataclass(frozen=True)
class _Cuts:
    """The best cut of every node."""

    gain: NDArray[np.float64]  # (nodes,)
    place: NDArray[np.int64]  # (nodes,), the last bin that goes left, of all T
    missing_left: Truths  # (nodes,)
    layout: BinLayout
    sums: Sums  # (Q + 2, nodes, T), as they came
    order: NDArray[np.int64] | None  # (nodes, T), which bin is where; None: as they are

    def left(self, node: int, column: int) -> Truths:
        """Return which bins of the column go left, (values + 1,)."""
        layout, place = self.layout, int(self.place[node])
        start, size = int(layout.starts[column]), int(layout.sizes[column])
        n_values = size - int(layout.missing[column])
        sums = self.sums[:, node, start : start + size]
        left = np.zeros(size, dtype=np.bool_)
        if layout.categorical[column] and self.order is not None:
            left[self.order[node, start : place + 1] - start] = True
        else:
            left[: place + 1 - start] = True
            left[n_values:] = self.missing_left[node]
        # What no row of the node has goes where most rows go.
        mostly_left = bool(2 * sums[-1, left].sum() >= sums[-1].sum())
        empty = sums[-1] == 0
        whole = np.append(left[:n_values], mostly_left)
        if size > n_values and not empty[-1]:
            whole[-1] = left[-1]
        if layout.categorical[column]:
            whole[:n_values][empty[:n_values]] = mostly_left
        return whole


class _Search:
    """The search for splits of some nodes, in their own units."""

    def __init__(self, totals: Sums, units: NodeUnits, rules: SplitRules) -> None:
        self.totals, self.units = totals, units
        self.min_rows = max(1, rules.min_samples_leaf)
        per_unit = (1 / units.hessian)[:, None]
        self.l2 = rules.l2 * per_unit  # (nodes, 1), as those below
        self.smoothing = rules.category_smoothing * per_unit
        self.min_hessian = np.maximum(1.0, rules.min_hessian * per_unit)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.before = _squares(totals) / (totals[-2] + self.l2[:, 0])  # (nodes,)

    def over(self, sums: Sums, layout: BinLayout, allowed: Truths | None) -> _Cuts:
        """Return the best cut of every node."""
        order = self._order(sums, layout) if layout.categorical.any() else None
        ordered = sums if order is None else np.take_along_axis(sums, order[None], 2)
        running = np.cumsum(ordered, axis=2)
        starts = layout.starts
        before = running.take(starts, axis=2) - ordered.take(starts, axis=2)
        running -= before.take(layout.column_of, axis=2)
        gains = self._gains(running)
        if allowed is not None:
            gains[~allowed[:, layout.column_of]] = -np.inf
        nodes = np.arange(len(gains))
        place = gains.argmax(axis=1)
        gain, missing_left = gains[nodes, place], np.zeros(len(gains), dtype=np.bool_)
        either = layout.missing & ~layout.categorical
        if either.any():
            bins = np.flatnonzero(either[layout.column_of])
            owner = layout.column_of[bins]
            last = layout.starts + layout.sizes - 1
            others = self._gains(running[:, :, bins] + sums[:, :, last[owner]])
            if allowed is not None:
                others[~allowed[:, owner]] = -np.inf
            at = others.argmax(axis=1)
            other = others[nodes, at]
            sooner = owner[at] < layout.column_of[place]
            missing_left = (other > gain) | ((other == gain) & sooner)
            gain = np.where(missing_left, other, gain)
            place = np.where(missing_left, bins[at], place)
        unit = np.square(self.units.gradient) / self.units.hessian
        gain = (gain - self.before) * unit
        return _Cuts(gain, place, missing_left, layout, sums, order)

    def _order(self, sums: Sums, layout: BinLayout) -> NDArray[np.int64]:
        """Return bins in order of G / (H + smoothing) within categories, (nodes, T)."""
        of_category = np.flatnonzero(layout.categorical[layout.column_of])
        most = np.abs(self.totals[:-2]).argmax(axis=0)  # of several gradients, one
        g = sums[most, np.arange(len(most))][:, of_category]
        h = sums[-2][:, of_category]
        ratio = g / np.maximum(h + self.smoothing, 1.0)
        column = np.broadcast_to(layout.column_of[of_category], ratio.shape)
        order = np.tile(np.arange(layout.n_bins), (len(most), 1))
        order[:, of_category] = of_category[np.lexsort((ratio, column), axis=1)]
        return order

    def _gains(self, left: Sums) -> NDArray[np.float64]:
        """Return G_L² / (H_L + l2) + G_R² / (H_R + l2) of cuts (Q + 2, nodes, cuts).

        -inf where a side would have too few rows or too small a hessian.
        """
        right = self.totals[:, :, None] - left
        fits = (left[-1] >= self.min_rows) & (right[-1] >= self.min_rows)
        fits &= (left[-2] >= self.min_hessian) & (right[-2] >= self.min_hessian)
        with np.errstate(divide="ignore", invalid="ignore"):
            gains: NDArray[np.float64] = _squares(left) / (left[-2] + self.l2)
            gains += _squares(right) / (right[-2] + self.l2)
        gains[~fits] = -np.inf
        return gains


def _squares(sums: Sums) -> NDArray[np.float64]:
    """Return the sum of the squares of all gradients."""
    found: NDArray[np.float64] = np.square(sums[0])
    for gradient in sums[1:-2]:
        found += np.square(gradient)
    return found
