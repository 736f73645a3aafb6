"""What a label holder asks of those who hold columns, to grow trees and to use them.

Whoever grows a tree sees :class:`TreeHolders` alone: one holder of all columns, several
in one process, or some behind messages. Every call serves all nodes of a level, of all
trees that grow at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.trees.sums import FixedPoint, RowIds, Sums

Truths = NDArray[np.bool_]


@dataclass(frozen=True)
class BinLayout:
    """What the label holder knows of a party's columns: how many bins each has."""

    sizes: NDArray[np.int64]  # (F,), bins of every column, that of missing cells too
    missing: Truths  # (F,), whether the last bin is that of missing cells
    categorical: Truths  # (F,), whether bins have no order

    @property
    def n_columns(self) -> int:
        """Return how many columns there are, F."""
        return len(self.sizes)

    @property
    def n_bins(self) -> int:
        """Return how many bins there are in all, T."""
        return int(self.sizes.sum())

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """Return the first bin of every column, (F,)."""
        return np.cumsum(self.sizes) - self.sizes

    @functools.cached_property
    def column_of(self) -> NDArray[np.int64]:
        """Return the column of every bin, (T,)."""
        return np.repeat(np.arange(self.n_columns), self.sizes)

    def only(self, used: Truths) -> BinLayout:
        """Return the layout of the columns where the mask (F,) is True."""
        return BinLayout(self.sizes[used], self.missing[used], self.categorical[used])

    @classmethod
    def joined(cls, layouts: Sequence[BinLayout]) -> BinLayout:
        """Return the layout of all columns of several parties."""
        return cls(
            np.concatenate([layout.sizes for layout in layouts]),
            np.concatenate([layout.missing for layout in layouts]),
            np.concatenate([layout.categorical for layout in layouts]),
        )


@dataclass(frozen=True)
class NodeRows:
    """The training rows of a node, whose gradients are to be summed."""

    tree: int  # of those that grow at once
    node: int  # in its tree, numbered as nodes come up
    rows: RowIds


@dataclass(frozen=True)
class Cut:
    """A split that was chosen, of all rows of a node, those held out as well."""

    tree: int
    node: int
    children: tuple[int, int]
    owner: int  # the party, by its place
    rule: int  # the number by which its owner keeps the rule
    column: int  # of the owner
    left: Truths  # (values + 1,), bins that go left; the last: missing, never seen
    rows: RowIds


class TreeHolders(Protocol):
    """Those who hold the columns of the training rows."""

    @property
    def layouts(self) -> Sequence[BinLayout]:
        """Return what is known of every party's columns."""

    def begin(self, values: FixedPoint, used: Sequence[Truths]) -> None:
        """Take the gradients of trees that grow next, and columns that they may use."""

    def histograms(self, nodes: Sequence[NodeRows]) -> list[Sums]:
        """Return every party's sums by node and bin, (Q + 2, nodes, bins in use)."""

    def split(self, cuts: Sequence[Cut]) -> list[Truths]:
        """Return which rows go left at every cut; the owners remember the rules."""

    def keep(self, rules: Sequence[Sequence[int]]) -> None:
        """Forget all rules but these of every party."""
