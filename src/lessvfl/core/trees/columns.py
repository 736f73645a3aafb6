"""A party's columns in bins, and what the party does for trees with them.

A number with many values has bins of about equally many rows; one with few values has a
bin for each, as every category has. A missing cell is in a bin of its own. Thresholds
and categories stay in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.trees.holders import BinLayout, Cut, NodeRows, Truths
from lessvfl.core.trees.sums import (
    CellCodes,
    FixedPoint,
    Sums,
    check_size,
    sum_by_bin,
)

MOST_BINS = 255  # of values in one column; one code is for missing cells
CellValues = NDArray[np.floating[Any]]  # (N, F), NaN where a cell is missing


@dataclass(frozen=True)
class PartyRule:
    """A split of a party's own rows: which bins of a column go left."""

    column: int
    left: Truths  # (values + 1,); the last: missing cells, and categories never seen


def joined_rules(rules: Sequence[PartyRule]) -> dict[str, NDArray[Any]]:
    """Return rules as arrays: their columns, and bins one after the other."""
    return {
        "columns": np.array([rule.column for rule in rules], dtype=np.int64),
        "n_left": np.array([len(rule.left) for rule in rules], dtype=np.int64),
        "left": np.concatenate([np.zeros(0, np.bool_), *(r.left for r in rules)]),
    }


def parted_rules(arrays: Mapping[str, NDArray[Any]]) -> list[PartyRule]:
    """Return the rules that :func:`joined_rules` put together."""
    left = np.split(arrays["left"], np.cumsum(arrays["n_left"])[:-1])
    return list(map(PartyRule, arrays["columns"].tolist(), left))


@dataclass(frozen=True)
class ColumnBins:
    """The bins of a party's columns, as learnt from training rows."""

    ends: tuple[NDArray[np.float64], ...]  # of bins of numbers; categories in order
    categorical: Truths  # (F,)
    missing: Truths  # (F,), whether a training cell is missing, or of a rare category

    @classmethod
    def fit(
        cls, X: CellValues, n_bins: int = 64, categorical: Iterable[int] = ()
    ) -> ColumnBins:
        """Learn at most `n_bins` bins of values for every column.

        Of a category with more values the rarest ones are taken for missing cells.
        """
        if not 2 <= n_bins <= MOST_BINS:
            raise ValueError(f"bins must be from 2 to {MOST_BINS}, not {n_bins}")
        has_no_order = np.zeros(X.shape[1], dtype=np.bool_)
        has_no_order[list(categorical)] = True
        ends, missing = [], np.zeros(X.shape[1], dtype=np.bool_)
        for column, of_category in enumerate(has_no_order):
            x = X[:, column].astype(np.float64)
            x = x[~np.isnan(x)]
            if of_category:
                values, counts = np.unique(x, return_counts=True)
                frequent = values[np.argsort(-counts, kind="stable")[:n_bins]]
                ends.append(np.sort(frequent))
                x = x[np.isin(x, frequent)]
            else:
                ends.append(_ends(x, n_bins))
            missing[column] = len(x) < len(X)
        return cls(tuple(ends), has_no_order, missing)

    @property
    def n_values(self) -> NDArray[np.int64]:
        """Return how many bins of values each column has, (F,)."""
        n_ends = np.array([len(ends) for ends in self.ends], dtype=np.int64)
        return n_ends + ~self.categorical

    @property
    def layout(self) -> BinLayout:
        """Return what the label holder may know."""
        return BinLayout(self.n_values + self.missing, self.missing, self.categorical)

    def codes(self, X: CellValues) -> CellCodes:
        """Return the bin of every cell in its column, (F, N), the last if missing."""
        codes = np.empty(X.shape[::-1], dtype=np.uint8)
        n_values = self.n_values
        for column, ends in enumerate(self.ends):
            x = X[:, column].astype(np.float64)
            places = np.searchsorted(ends, x)
            absent = np.isnan(x)
            if self.categorical[column]:
                known = np.append(ends, np.nan)[np.minimum(places, len(ends))]
                absent = known != x
            codes[column] = np.where(absent, n_values[column], places)
        return codes

    def of_columns(self, places: NDArray[np.int64]) -> ColumnBins:
        """Return the bins of some of the columns."""
        ends = tuple(self.ends[place] for place in places)
        return ColumnBins(ends, self.categorical[places], self.missing[places])

    def last_left(self, rule: PartyRule) -> float:
        """Return up to which number of its column a rule sends cells left.

        NaN where it sends others left, as no label holder asks for that follows ours.
        """
        ends, left = self.ends[rule.column], rule.left[:-1]
        n_left = int(left.sum())
        if not left[:n_left].all():
            return float("nan")
        return float(np.concatenate([[-np.inf], ends, [np.inf]])[n_left])


def _ends(x: NDArray[np.float64], n_bins: int) -> NDArray[np.float64]:
    """Return the upper ends of all bins of numbers but the last."""
    values = np.unique(x)
    if len(values) > n_bins:
        shares = np.arange(1, n_bins) / n_bins
        return np.unique(np.quantile(x, shares, method="averaged_inverted_cdf"))
    lower, upper = values[:-1], values[1:]
    middle = lower / 2 + upper / 2
    return np.where(middle < upper, middle, lower)


@dataclass
class ColumnHolder:
    """A party in the growth of trees: its training rows in bins, and its rules."""

    bins: ColumnBins
    codes: CellCodes  # (F, N)
    rules: dict[int, PartyRule] = field(default_factory=dict)

    @classmethod
    def of(
        cls, X: CellValues, n_bins: int = 64, categorical: Iterable[int] = ()
    ) -> ColumnHolder:
        """Put training rows into bins learnt from them."""
        bins = ColumnBins.fit(X, n_bins, categorical)
        return cls(bins, bins.codes(X))

    def of_columns(self, places: NDArray[np.int64]) -> ColumnHolder:
        """Return some of the columns, without rules."""
        return ColumnHolder(self.bins.of_columns(places), self.codes[places])

    def begin(self, values: FixedPoint, used: Truths) -> None:
        """Take the gradients of the next trees, and a mask (F,) of usable columns."""
        self._packed, self._n_gradients = values.packed, values.n_gradients
        self._codes = self.codes if used.all() else self.codes[used]
        layout = self.bins.layout.only(used)
        self._width = int(layout.sizes.max(initial=1))
        first = np.arange(layout.n_columns) * self._width
        self._places = np.arange(layout.n_bins) + np.repeat(
            first - layout.starts, layout.sizes
        )

    def histograms(self, nodes: Sequence[NodeRows]) -> Sums:
        """Return gradients, hessians and rows by node and bin, (Q + 2, nodes, T)."""
        asked = [(node.tree, node.rows) for node in nodes]
        check_size(self._n_gradients + 2, len(nodes), len(self._codes) * self._width)
        whole = sum_by_bin(
            self._codes, self._width, self._packed, self._n_gradients, asked
        )
        flat = whole.reshape(*whole.shape[:2], -1)
        if flat.shape[2] == len(self._places):
            return flat
        return np.take(flat, self._places, axis=2)

    def split(self, cut: Cut) -> Truths:
        """Remember a rule; return which rows of the node it sends left."""
        self.rules[cut.rule] = PartyRule(cut.column, cut.left)
        left: Truths = cut.left.take(self.codes[cut.column].take(cut.rows))
        return left

    def keep(self, rules: Iterable[int]) -> None:
        """Forget all other rules."""
        self.rules = {number: self.rules[number] for number in rules}


class LocalHolders:
    """Holders of columns in this process, each asked in turn."""

    def __init__(self, parties: Sequence[ColumnHolder]) -> None:
        self.parties = parties
        self.layouts = [party.bins.layout for party in parties]

    def begin(self, values: FixedPoint, used: Sequence[Truths]) -> None:
        """Hand gradients and columns in use to every party."""
        for party, columns in zip(self.parties, used, strict=True):
            party.begin(values, columns)

    def histograms(self, nodes: Sequence[NodeRows]) -> list[Sums]:
        """Return the sums of every party."""
        return [party.histograms(nodes) for party in self.parties]

    def split(self, cuts: Sequence[Cut]) -> list[Truths]:
        """Ask the owner of every cut."""
        return [self.parties[cut.owner].split(cut) for cut in cuts]

    def keep(self, rules: Sequence[Sequence[int]]) -> None:
        """Have every party forget what no tree uses."""
        for party, numbers in zip(self.parties, rules, strict=True):
            party.keep(numbers)
