"""How the explained output moves with one column: curves for its owner's page.

Of some rows of the table all cells of one column are set to a value, and the output is
followed through the party's network alone, by given slopes of its components. What is
drawn is the mean change over the rows.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from lessvfl.data import Encoding, Frame

ROWS = 200  # of the table, the most
POINTS = 11  # of a curve of numbers, at quantiles
MOST_VALUES = 12  # categories of a column, the most frequent ones
EPOCH = datetime.date(1970, 1, 1).toordinal()


def effect_curves(
    encoding: Encoding, embed: Callable[[Frame], Tensor], frame: Frame, slopes: Tensor
) -> list[dict[str, Any]]:
    """Return a curve for each column in use: its values, and the mean change at each.

    Parameters
    ----------
    encoding : Encoding
        How the party's columns become inputs of its network.
    embed : callable
        Returns the party's embedding of rows, (n, E).
    frame : Frame
        The party's table.
    slopes : Tensor
        Change of the explained output by each component of the embedding, (E,).
    """
    table = frame.select(encoding.names)
    places = np.linspace(0, table.n_rows - 1, min(ROWS, table.n_rows)).round()
    rows = table.take(places.astype(np.int64))

    def mean_output(rows: Frame) -> Tensor:
        """Return the explained output in the mean over rows, up to a constant."""
        return (embed(rows).double().cpu() @ slopes.double()).mean()

    before = mean_output(rows)
    curves = []
    for index, column in enumerate(encoding.columns):
        values = _grid(table, index, column.kind, column.categories)
        if len(values) < 2:
            continue
        moved = (_with(rows, index, value) for value in values)
        curves.append(
            {
                "feature": column.feature,
                "column": column.name,
                "kind": column.kind,
                "values": [_shown(value, column.kind) for value in values],
                "effects": [float(mean_output(rows) - before) for rows in moved],
            }
        )
    return curves


def _grid(
    frame: Frame, index: int, kind: str, categories: tuple[str, ...]
) -> list[float] | list[str]:
    """Return the values of a column to look at; none where its cells are others."""
    if kind == "categorical":
        cells = frame.texts(index).tolist()
        often = sorted(categories, key=lambda text: -cells.count(text))
        return often[:MOST_VALUES]
    numbers = frame.numeric[:, index]
    known = numbers[np.isfinite(numbers)]
    if kind != "boolean" and len(known):
        known = np.quantile(known, np.linspace(0.05, 0.95, POINTS))
    if kind == "date":
        known = np.floor(known)
    values: list[float] = np.unique(known).tolist()
    return values


def _with(rows: Frame, index: int, value: float | str) -> Frame:
    """Return the rows with one value in all cells of a column."""
    if isinstance(value, str):
        text = {**rows.text, index: np.full(rows.n_rows, value, dtype=object)}
        return replace(rows, text=text, source="")
    numeric = rows.numeric.copy()
    numeric[:, index] = value
    return replace(rows, numeric=numeric, source="")


def _shown(value: float | str, kind: str) -> float | str | bool:
    """Return a value as the table has it."""
    if kind == "date":
        return datetime.date.fromordinal(EPOCH + round(float(value))).isoformat()
    return bool(value) if kind == "boolean" else value
