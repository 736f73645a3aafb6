"""Encoded columns as cells of trees: numbers and categories, NaN where one is missing.

What a party's table was encoded to is taken back as far as trees need it: the columns
of a category are one column without an order, and a number with a flag for missing
cells is one column with missing cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Encoded = NDArray[np.floating[Any]]  # (N, columns)
NONE = -1


@dataclass(frozen=True)
class CellColumns:
    """Which encoded columns make which column of cells."""

    sources: NDArray[np.int64]  # (F, most), encoded columns of each; NONE beyond
    flags: NDArray[np.int64]  # (F,), the column that flags missing cells, or NONE
    middles: NDArray[np.float64]  # (columns,), above which a flag or category is on
    groups: NDArray[np.int64]  # (F,), the feature group of each

    @classmethod
    def fit(cls, X: Encoded, groups: NDArray[np.int64]) -> CellColumns:
        """Learn it from training rows and the group of every encoded column."""
        low, high = X.min(axis=0), X.max(axis=0)
        middles = low.astype(np.float64) / 2 + high.astype(np.float64) / 2
        is_on = X > middles
        is_binary = (low < high) & ((X == low) | (X == high)).all(axis=0)
        cells: list[tuple[list[int], int, int]] = []  # sources, flag and group of each
        for group in np.unique(groups).tolist():
            columns = np.flatnonzero(groups == group)
            binary = columns[is_binary[columns]]
            if 1 < len(columns) == len(binary) and is_on[:, columns].sum(1).max() < 2:
                cells.append((columns.tolist(), NONE, group))
                continue
            if len(columns) == 2 and len(binary) == 1:
                (flag,), (value,) = binary, columns[~is_binary[columns]]
                filled = X[is_on[:, flag], value]
                if filled.min() == filled.max():
                    cells.append(([int(value)], int(flag), group))
                    continue
            cells += [([column], NONE, group) for column in columns.tolist()]
        most = max((len(sources) for sources, _, _ in cells), default=1)
        padded = [sources + [NONE] * (most - len(sources)) for sources, _, _ in cells]
        return cls(
            np.array(padded, dtype=np.int64).reshape(-1, most),
            np.array([flag for _, flag, _ in cells], dtype=np.int64),
            middles,
            np.array([group for _, _, group in cells], dtype=np.int64),
        )

    @property
    def categorical(self) -> NDArray[np.bool_]:
        """Return which columns have no order, (F,)."""
        return np.asarray((self.sources != NONE).sum(axis=1) > 1)

    def cells(self, X: Encoded) -> NDArray[np.float64]:
        """Return the cells of encoded rows, (N, F)."""
        cells = X[:, self.sources[:, 0]].astype(np.float64)
        for place in np.flatnonzero(self.categorical):
            columns = self.sources[place][self.sources[place] != NONE]
            is_on = X[:, columns] > self.middles[columns]
            code = is_on.argmax(axis=1).astype(np.float64)
            cells[:, place] = np.where(is_on.any(axis=1), code, np.nan)
        for place in np.flatnonzero(self.flags != NONE):
            flag = self.flags[place]
            cells[X[:, flag] > self.middles[flag], place] = np.nan
        return cells

    def of_columns(self, places: NDArray[np.int64]) -> CellColumns:
        """Return the columns of cells of these numbers, in this order."""
        return replace(
            self,
            sources=self.sources[places],
            flags=self.flags[places],
            groups=self.groups[places],
        )

    def only(self, columns: NDArray[np.bool_]) -> tuple[CellColumns, NDArray[np.bool_]]:
        """Cut encoded columns (columns,); return what is left, and which of (F,)."""
        new = np.append(np.where(columns, np.cumsum(columns) - 1, NONE), NONE)
        cut = CellColumns(
            new[self.sources], new[self.flags], self.middles[columns], self.groups
        )
        whole = ((cut.sources == NONE) == (self.sources == NONE)).all(axis=1)
        whole &= (cut.flags == NONE) == (self.flags == NONE)
        return cut.of_columns(np.flatnonzero(whole)), whole
