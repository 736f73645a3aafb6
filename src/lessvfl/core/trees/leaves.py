"""Leaves of trees side by side, and those that one party's splits do not rule out.

Leaves stand in an order in which those below a split are neighbours: a split is known
by three places, its first leaf, the first that is reached on the right, and the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.trees.holders import Truths
from lessvfl.core.trees.networks import TreeSum

LeafPlaces = NDArray[np.int64]
MOST_VALUES = 1 << 24  # of all leaves
MOST_OUTPUTS = 1 << 16
EVERY_OUTPUT = -1  # in the place of the one output that a tree adds to


@dataclass(frozen=True)
class LeafOrder:
    """What whoever takes part knows of trees: leaves, and which sums they are for."""

    sizes: LeafPlaces  # (trees,), leaves of each
    outputs: LeafPlaces  # (trees,), the one that a tree adds to, or EVERY_OUTPUT
    n_outputs: int

    def __post_init__(self) -> None:
        """Raise ValueError where sizes or outputs are too many, or of no trees."""
        fits = len(self.sizes) == len(self.outputs) <= MOST_VALUES
        fits = fits and 0 < self.n_outputs <= MOST_OUTPUTS
        # Each by itself: a sum of large ones may come out small.
        fits = fits and bool(((self.sizes > 0) & (self.sizes <= MOST_VALUES)).all())
        fits = fits and bool((self.outputs >= EVERY_OUTPUT).all())
        fits = fits and self.n_leaves * self.n_outputs <= MOST_VALUES
        if not fits or not bool((self.outputs < self.n_outputs).all()):
            raise ValueError("numbers of leaves or outputs that no trees have")

    @property
    def n_leaves(self) -> int:
        """Return how many leaves all trees have."""
        return int(self.sizes.sum())

    @property
    def starts(self) -> LeafPlaces:
        """Return the first leaf of every tree."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def terms(self) -> list[LeafPlaces]:
        """Return for each output the numbers of the leaves that add to it."""
        tree_of = np.repeat(self.outputs, self.sizes)
        return [
            np.flatnonzero((tree_of == k) | (tree_of == EVERY_OUTPUT))
            for k in range(self.n_outputs)
        ]

    @property
    def n_terms(self) -> int:
        """Return how many weights of leaves there are, over all outputs."""
        return sum(map(len, self.terms))


@dataclass(frozen=True)
class LeafSplits:
    """The splits of one party, by its components, as places among all leaves."""

    order: LeafOrder
    places: LeafPlaces  # (components, 3): first leaf, first on the right, end

    def __post_init__(self) -> None:
        """Refuse places that no split has."""
        ends = np.cumsum(self.order.sizes)
        first, middle, end = self.places.T
        is_split = (0 <= first) & (first < middle) & (middle < end)
        tree = np.searchsorted(ends, first, side="right")
        within = end <= np.append(ends, 0)[tree]
        if not bool((is_split & within | (self.places == 0).all(axis=1)).all()):
            raise ValueError("splits with places that no leaves have")

    def candidates(self, says_left: Truths) -> Truths:
        """Return the leaves (leaves, n) that answers (components, n) leave possible."""
        possible = np.ones((self.order.n_leaves, says_left.shape[1]), dtype=np.bool_)
        for (first, middle, end), left in zip(self.places, says_left, strict=True):
            possible[first:middle] &= left
            possible[middle:end] &= ~left
        return possible

    @property
    def complexity(self) -> int:
        """Return in how many ways rows can pass the trees by this party's splits.

        The product over trees of the leaves below a split of this party, as FATE counts
        them (``count_complexity`` of its predictor); a tree without its splits counts
        as one way.
        """
        below = np.zeros(self.order.n_leaves, dtype=np.bool_)
        for first, _, end in self.places:
            below[first:end] = True
        counts = np.add.reduceat(below, self.order.starts, dtype=np.int64)
        return math.prod(max(1, n_leaves) for n_leaves in counts.tolist())


@dataclass(frozen=True)
class LeafTable:
    """The server's trees by their leaves."""

    order: LeafOrder
    splits: tuple[LeafSplits, ...]  # of every party
    values: NDArray[np.float64]  # (leaves, K)

    @classmethod
    def of(cls, trees: TreeSum, sizes: Sequence[int]) -> Self:
        """Return the leaves of the server's trees; `sizes` are parties' components."""
        children = trees.children.cpu().numpy()
        nodes = np.arange(len(children))
        is_leaf = (children == nodes[:, None]).all(axis=1)
        n_leaves = is_leaf.astype(np.int64)
        for node in nodes[~is_leaf][::-1]:  # children come after their parents
            n_leaves[node] = n_leaves[children[node]].sum()
        roots = trees.roots.cpu().numpy()
        first = np.zeros(len(nodes), dtype=np.int64)
        first[roots] = np.cumsum(n_leaves[roots]) - n_leaves[roots]
        places = np.zeros((sum(sizes), 3), dtype=np.int64)
        asked = trees.components.cpu().numpy()
        for node in nodes[~is_leaf]:
            left, right = children[node]
            middle = first[node] + n_leaves[left]
            first[left], first[right] = first[node], middle
            places[asked[node]] = first[node], middle, first[node] + n_leaves[node]
        sizes_of = n_leaves[roots]
        values = np.zeros((int(sizes_of.sum()), trees.n_outputs))
        values[first[is_leaf]] = trees.values.cpu().numpy()[is_leaf]
        starts = np.cumsum(sizes_of) - sizes_of
        adds = (
            np.logical_or.reduceat(values != 0, starts) if len(starts) else values > 0
        )
        outputs = np.asarray(adds.argmax(axis=1))
        if (adds.sum(axis=1) > 1).any():
            outputs = np.full(len(sizes_of), EVERY_OUTPUT)
        order = LeafOrder(sizes_of, outputs, trees.n_outputs)
        each = np.split(places, np.cumsum(sizes)[:-1])
        return cls(order, tuple(LeafSplits(order, part) for part in each), values)
