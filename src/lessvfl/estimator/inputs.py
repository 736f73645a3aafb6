"""What a user hands to an estimator: tables, labels and columns by number, checked."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

from lessvfl import data
from lessvfl.errors import ConfigError, DataError
from lessvfl.terms import plural, written

DENSE_LIMIT = 2**30  # bytes that a sparse table may take as a dense one of float64


def densify(table: Any) -> NDArray[Any]:
    """Return a sparse table as an array, if that does not take too much memory."""
    n_rows, n_columns = table.shape
    n_bytes = 8 * n_rows * n_columns
    if n_bytes > DENSE_LIMIT:
        raise DataError(
            f"A sparse X must take at most {DENSE_LIMIT // 2**30} GiB as a dense table "
            f"of 8 bytes a cell. Got {n_rows:,} rows of {n_columns:,} columns: "
            f"{n_bytes / 2**30:,.1f} GiB."
        )
    dense: NDArray[Any] = table.toarray()
    return dense


def by_name(what: str, given: Any, names: Sequence[str]) -> Any:
    """Return parties or groups with all columns by name; one alone needs no list."""
    if not isinstance(given, Mapping):
        return given
    named: dict[str, list[str]] = {}
    numbered = range(-len(names), len(names))
    for owner, columns in given.items():
        alone = isinstance(columns, str) or not isinstance(columns, Iterable)
        named[owner] = []
        for column in [columns] if alone else columns:
            if isinstance(column, str):
                named[owner].append(column)
            elif column in numbered and not isinstance(column, bool | np.bool_):
                named[owner].append(names[int(column)])
            else:
                raise ConfigError(
                    f"The columns of '{owner}' in '{what}' must be names, or numbers "
                    f"from 0 to {len(names) - 1}. Got {written(column)}."
                )
    return named


def one_column(y: Any) -> NDArray[Any]:
    """Return the labels of the rows; refuse several of them for one row, or none."""
    if hasattr(getattr(y, "dtype", None), "na_value"):  # numbers of pandas with a mask
        y = y.to_numpy()
    table = y if hasattr(y, "shape") else np.asarray(y, dtype=object)
    shown = f"shape {tuple(table.shape)}"
    several = math.prod(table.shape[1:]) != 1
    if table is not y and isinstance(next(iter(table.flat), None), list | tuple | set):
        several, shown = True, "a list for each row"
    if several:
        raise ConfigError(
            "The labels y must be one column, a label for each row; for several, fit "
            f"one estimator each, as sklearn.multioutput does. Got {shown}."
        )
    if getattr(getattr(y, "dtype", None), "kind", "") == "c":
        return _checked_labels(y)
    column: NDArray[Any] = column_or_1d(y, warn=True)
    if column.dtype.kind not in "OU" or not len(column):
        return _checked_labels(column)
    # What a list held before it became texts.
    cells = np.asarray(table, dtype=object).ravel().tolist()
    if n_missing := sum(map(data.is_missing, cells)):
        raise ConfigError(
            "The labels y must have no missing cells. Got "
            f"{plural(n_missing, 'row')} without a label."
        )
    n_texts = sum(isinstance(cell, str) for cell in cells)
    if n_texts == len(cells):
        data.check_texts(cells, "The labels y")
        return column
    if n_texts:
        raise ConfigError("The labels y must be all texts or all numbers. Got both.")
    return _checked_labels(np.array(cells))


def _checked_labels(column: NDArray[Any]) -> NDArray[Any]:
    """Return labels that are numbers or truth values, or refuse them."""
    with contextlib.suppress(TypeError, ValueError):
        if column.dtype.kind == "O":  # decimals, as an example
            column = column.astype(np.float64)
    if column.dtype.kind not in "iufb":
        raise ConfigError(
            "The labels y must be texts, truth values or numbers. Got "
            f"{column.dtype if column.dtype.kind != 'O' else type(column[0]).__name__}."
        )
    return column


def holds_texts_or_dates(X: Any) -> bool:
    """Tell whether an array holds more than numbers and truth values."""
    if not isinstance(X, np.ndarray) or X.dtype.kind not in "OUM":
        return False
    kinds = (str, datetime.date)
    return X.dtype.kind != "O" or any(isinstance(cell, kinds) for cell in X.flat)
