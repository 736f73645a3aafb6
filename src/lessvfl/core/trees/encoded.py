"""From columns as networks take them to columns as trees do.

A feature of several encoded columns becomes a category where they are 0 or 1 with at
most one 1 in a row; otherwise its columns stay numbers. Where a last column of 0 and 1
marks rows that are alike in the others, with a value filled in, these are missing. What
is decided by training rows holds for later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.trees.columns import CellValues


@dataclass(frozen=True)
class TreeColumn:
    """Where a column for trees comes from."""

    feature: int
    places: tuple[int, ...]  # of encoded columns: one number, or those of a category
    mark: int | None = None  # the encoded column that is 1 where it is missing

    @property
    def is_category(self) -> bool:
        """Tell whether values have no order."""
        return len(self.places) > 1

    def values(self, X: CellValues) -> NDArray[np.float64]:
        """Return the column, (N,), NaN where it is missing."""
        if self.is_category:
            own = X[:, self.places]
            return np.where(own.any(axis=1), own.argmax(axis=1), np.nan)
        number: NDArray[np.float64] = X[:, self.places[0]].astype(np.float64)
        if self.mark is None:
            return number
        return np.where(X[:, self.mark] == 1, np.nan, number)


def tree_columns(X: CellValues, features: Sequence[int]) -> list[TreeColumn]:
    """Return the columns for trees, from training rows (N, encoded columns).

    `features` is the feature of every encoded column.
    """
    places: dict[int, list[int]] = {}
    for place, feature in enumerate(features):
        places.setdefault(feature, []).append(place)
    found = []
    for feature, own in sorted(places.items()):
        part = X[:, own]
        is_mark = ((part == 0) | (part == 1)).all(axis=0)
        if len(own) > 1 and is_mark.all() and (part.sum(axis=1) <= 1).all():
            found.append(TreeColumn(feature, tuple(own)))
            continue
        rest, marked = part[:, :-1], part[:, -1] == 1
        if len(own) > 1 and is_mark[-1] and (np.ptp(rest[marked], axis=0) == 0).all():
            found += [TreeColumn(feature, (place,), own[-1]) for place in own[:-1]]
        else:
            found += [TreeColumn(feature, (place,)) for place in own]
    return found


def table_of(columns: Sequence[TreeColumn], X: CellValues) -> NDArray[np.float64]:
    """Return rows as trees take them, (N, columns)."""
    values = [column.values(X) for column in columns]
    return np.stack(values, axis=1) if values else np.empty((len(X), 0))
