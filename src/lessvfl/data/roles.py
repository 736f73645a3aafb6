"""Columns that are no features: how much rows weigh, and whom they are of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, Floats, Places
from lessvfl.errors import DataError
from lessvfl.settings import near
from lessvfl.terms import listed, plural


def with_roles(
    data: Dataset,
    sample_weight: str | None,
    group_column: str | None,
    cells_of: Callable[[str], NDArray[Any]] | None = None,
) -> Dataset:
    """Return a data set whose row weights and groups of rows are no features.

    `cells_of` gives the cells of a column as they came, where that is known: groups
    are taken from it, since numbers beyond 2^53 are not rounded there.
    """
    if sample_weight is not None:
        data = take_weights(data, sample_weight)
    if group_column is not None:
        data = take_units(data, group_column, cells_of)
    return data


def one_cell_per_row(cells: Any, n_rows: int, allowed: str) -> NDArray[Any]:
    """Return a cell for each row, or refuse other ones by the sentence `allowed`."""
    array = np.asarray(cells)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (n_rows,):
        got = f"{len(array)} for {n_rows} rows" if array.ndim == 1 else "a table"
        raise DataError(f"{allowed} Got {got}.")
    return array


def check_weights(weights: Any, n_rows: int, owner: str) -> Floats:
    """Return row weights as numbers, or refuse what cannot be one."""
    allowed = (
        f"The row weights of {owner} must be finite numbers >= 0, one for each row."
    )
    checked = np.empty(n_rows)
    for row, cell in enumerate(one_cell_per_row(weights, n_rows, allowed).tolist()):
        checked[row] = as_number(cell)
        if not 0 <= checked[row] < math.inf:
            got = "nothing" if cell is None or cell != cell else repr(cell)
            raise DataError(f"{allowed} Got {got} in row {row + 1}.")
    if not checked.any():
        raise DataError(f"{allowed[:-1]}, and one above 0. Got zero in every row.")
    return checked


def as_number(cell: Any) -> float:
    """Return a cell as a number, NaN where it is none; a text is none."""
    try:
        return math.nan if isinstance(cell, str | bytes) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def take_weights(dataset: Dataset, column: str) -> Dataset:
    """Return a data set whose rows weigh what a column says, which is no feature."""
    left, cells = take_column(dataset, column, "row weights")
    owner = f"'{dataset.name}' (column '{column}')"
    return replace(
        left,
        weight=check_weights(cells, dataset.X.n_rows, owner),
        notes=(*dataset.notes, f"Rows weigh what column '{column}' says."),
    )


def take_column(
    dataset: Dataset, column: str, what: str
) -> tuple[Dataset, NDArray[Any]]:
    """Take a column out of the features; `what` says what it holds instead."""
    names = dataset.X.names
    if column not in names:
        shown = listed(names, 20)
        raise DataError(
            f"The {what} of '{dataset.name}' must be one of its columns: {shown}. "
            f"Got '{column}'.{near(column, names)}"
        )
    left = [name for name in names if name != column]
    if not left:
        raise DataError(
            f"The data set '{dataset.name}' must have columns besides the {what} "
            f"'{column}'. Got none."
        )
    known, X_test = dataset.significant, dataset.X_test
    index = names.index(column)
    rest = replace(
        dataset,
        X=dataset.X.select(left),
        X_test=None if X_test is None else X_test.select(left),
        significant=None if known is None else np.delete(known, index),
        findings=tuple(f for f in dataset.findings if f.column != column),
    )
    return rest, dataset.X.cells(index)


def check_units(cells: Any, n_rows: int, owner: str) -> Places:
    """Return whom every row is of as numbers, or refuse what names nobody."""
    allowed = f"The groups of rows of {owner} must be named in every row"
    named = one_cell_per_row(cells, n_rows, f"{allowed}.").tolist()
    n_missing = sum(cell is None or cell != cell or cell == "" for cell in named)
    if n_missing:
        raise DataError(f"{allowed}. Got {plural(n_missing, 'row')} without a name.")
    code: dict[Any, int] = {}
    numbers = [code.setdefault(cell, len(code)) for cell in named]
    if len(code) < 2:
        raise DataError(f"{allowed}, with two names or more. Got one for all rows.")
    return np.array(numbers, dtype=np.int64)


def take_units(
    dataset: Dataset,
    column: str,
    cells_of: Callable[[str], NDArray[Any]] | None = None,
) -> Dataset:
    """Return a data set whose rows are grouped by a column, which is no feature.

    `cells_of` gives the cells of a column as they came, where that is known.
    """
    left, cells = take_column(dataset, column, "groups of rows")
    if cells_of is not None:
        cells = cells_of(column)
    owner = f"'{dataset.name}' (column '{column}')"
    return replace(left, units=check_units(cells, dataset.X.n_rows, owner))
