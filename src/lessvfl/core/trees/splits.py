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

BinPlaces = NDArray[np.int64]


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
    left: Truths  # (values + 1,), bins that go left; the last: missing, never seen


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
    column_of, starts = layout.column_of, layout.starts
    order = np.broadcast_to(np.arange(layout.n_bins), sums.shape[1:])
    ordered = sums
    if layout.categorical.any():
        smoothing = rules.category_smoothing / units.hessian
        order = _bin_order(sums, layout, totals, smoothing)
        ordered = np.take_along_axis(sums, order[None], 2)
    running = np.cumsum(ordered, axis=2)
    before = running.take(starts, axis=2) - ordered.take(starts, axis=2)
    running -= before.take(column_of, axis=2)
    gains = _gains(running, totals, units, rules)
    if allowed is not None:
        gains[~allowed[:, column_of]] = -np.inf
    nodes = np.arange(len(gains))
    place = gains.argmax(axis=1)  # the last bin that goes left, of all T
    gain, missing_left = gains[nodes, place], np.zeros(len(gains), dtype=np.bool_)
    either = layout.missing & ~layout.categorical
    if either.any():
        bins = np.flatnonzero(either[column_of])
        owner = column_of[bins]
        last = starts + layout.sizes - 1
        with_missing = running[:, :, bins] + sums[:, :, last[owner]]
        others = _gains(with_missing, totals, units, rules)
        if allowed is not None:
            others[~allowed[:, owner]] = -np.inf
        at = others.argmax(axis=1)
        other = others[nodes, at]
        sooner = owner[at] < column_of[place]
        missing_left = (other > gain) | ((other == gain) & sooner)
        gain = np.where(missing_left, other, gain)
        place = np.where(missing_left, bins[at], place)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = _squares(totals) / (totals[-2] + rules.l2 / units.hessian)
    gain = (gain - whole) * (np.square(units.gradient) / units.hessian)
    chosen: list[Chosen | None] = [None] * len(nodes)
    for node in np.flatnonzero(gain > rules.min_gain):
        column, rows = int(column_of[place[node]]), sums[-1, node]
        first = order[node, starts[column] : place[node] + 1]
        left = _goes_left(layout, column, rows, first, bool(missing_left[node]))
        chosen[node] = Chosen(float(gain[node]), column, left)
    return chosen


def _goes_left(
    layout: BinLayout, column: int, rows: Sums, first: BinPlaces, missing_left: bool
) -> Truths:
    """Return which bins of a column go left, (values + 1,).

    `rows` (T,) are the rows of the node by bin, and `first` the bins up to the cut.
    """
    start, size = int(layout.starts[column]), int(layout.sizes[column])
    n_values = size - int(layout.missing[column])
    rows = rows[start : start + size]
    left = np.zeros(size, dtype=np.bool_)
    left[first - start] = True
    if not layout.categorical[column]:
        left[n_values:] = missing_left
    # What no row of the node has goes where most rows go.
    mostly_left = bool(2 * rows[left].sum() >= rows.sum())
    empty = rows == 0
    whole = np.append(left[:n_values], mostly_left)
    if size > n_values and not empty[-1]:
        whole[-1] = left[-1]
    if layout.categorical[column]:
        whole[:n_values][empty[:n_values]] = mostly_left
    return whole


def _bin_order(
    sums: Sums, layout: BinLayout, totals: Sums, smoothing: NDArray[np.float64]
) -> BinPlaces:
    """Return bins in order of G / (H + smoothing) within categories, (nodes, T).

    `smoothing` (nodes,) is in the units of nodes.
    """
    of_category = np.flatnonzero(layout.categorical[layout.column_of])
    most = np.abs(totals[:-2]).argmax(axis=0)  # of several gradients, one
    g = sums[most, np.arange(len(most))][:, of_category]
    h = sums[-2][:, of_category]
    ratio = g / np.maximum(h + smoothing[:, None], 1.0)
    column = np.broadcast_to(layout.column_of[of_category], ratio.shape)
    order = np.tile(np.arange(layout.n_bins), (len(most), 1))
    order[:, of_category] = of_category[np.lexsort((ratio, column), axis=1)]
    return order


def _gains(
    left: Sums, totals: Sums, units: NodeUnits, rules: SplitRules
) -> NDArray[np.float64]:
    """Return G_L² / (H_L + l2) + G_R² / (H_R + l2) of cuts (Q + 2, nodes, cuts).

    -inf where a side would have too few rows or too small a hessian.
    """
    right = totals[:, :, None] - left
    unit = units.hessian[:, None]
    min_rows = max(1, rules.min_samples_leaf)
    min_hessian, l2 = np.maximum(1.0, rules.min_hessian / unit), rules.l2 / unit
    fits = (left[-1] >= min_rows) & (right[-1] >= min_rows)
    fits &= (left[-2] >= min_hessian) & (right[-2] >= min_hessian)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains: NDArray[np.float64] = _squares(left) / (left[-2] + l2)
        gains += _squares(right) / (right[-2] + l2)
    gains[~fits] = -np.inf
    return gains


def _squares(sums: Sums) -> NDArray[np.float64]:
    """Return the sum of the squares of all gradients."""
    total: NDArray[np.float64] = np.square(sums[0])
    for gradient in sums[1:-2]:
        total += np.square(gradient)
    return total
