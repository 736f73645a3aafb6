"""Encoded columns as cells of trees: numbers and categories, NaN where one is missing.

What a party's table was encoded to is taken back as far as trees need it: the columns
of a category are one column without an order, and a number with a flag for missing
cells is one column with missing cells.
"""

from __future__ import annotations

from dataclasses import dataclass
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
        found: list[tuple[list[int], int, int]] = []
        for group in np.unique(groups).tolist():
            own = np.flatnonzero(groups == group)
            binary = own[is_binary[own]]
            if 1 < len(own) == len(binary) and is_on[:, own].sum(axis=1).max() < 2:
                found.append((own.tolist(), NONE, group))
                continue
            if len(own) == 2 and len(binary) == 1:
                (flag,), (value,) = binary, own[~is_binary[own]]
                filled = X[is_on[:, flag], value]
                if filled.min() == filled.max():
                    found.append(([int(value)], int(flag), group))
                    continue
            found += [([column], NONE, group) for column in own.tolist()]
        most = max((len(own) for own, _, _ in found), default=1)
        sources = [own + [NONE] * (most - len(own)) for own, _, _ in found]
        return cls(
            np.array(sources, dtype=np.int64).reshape(-1, most),
            np.array([flag for _, flag, _ in found], dtype=np.int64),
            middles,
            np.array([group for _, _, group in found], dtype=np.int64),
        )

    @property
    def categorical(self) -> NDArray[np.bool_]:
        """Return which columns have no order, (F,)."""
        return np.asarray((self.sources != NONE).sum(axis=1) > 1)

    def cells(self, X: Encoded) -> NDArray[np.float64]:
        """Return the cells of encoded rows, (N, F)."""
        found = X[:, self.sources[:, 0]].astype(np.float64)
        for place in np.flatnonzero(self.categorical):
            own = self.sources[place][self.sources[place] != NONE]
            is_on = X[:, own] > self.middles[own]
            code = is_on.argmax(axis=1).astype(np.float64)
            found[:, place] = np.where(is_on.any(axis=1), code, np.nan)
        flagged = np.flatnonzero(self.flags != NONE)
        flags = self.flags[flagged]
        is_missing = X[:, flags] > self.middles[flags]
        found[:, flagged] = np.where(is_missing, np.nan, found[:, flagged])
        return found

    def of_columns(self, places: NDArray[np.int64]) -> CellColumns:
        """Return some of the columns of cells."""
        own = (self.sources[places], self.flags[places])
        return CellColumns(*own, self.middles, self.groups[places])

    def only(self, columns: NDArray[np.bool_]) -> tuple[CellColumns, NDArray[np.bool_]]:
        """Cut encoded columns (columns,); return what is left, and which of (F,)."""
        new = np.append(np.where(columns, np.cumsum(columns) - 1, NONE), NONE)
        sources, flags = new[self.sources], new[self.flags]
        whole = ((sources == NONE) == (self.sources == NONE)).all(axis=1)
        whole &= (flags == NONE) == (self.flags == NONE)
        cut = CellColumns(
            sources[whole], flags[whole], self.middles[columns], self.groups[whole]
        )
        return cut, whole
