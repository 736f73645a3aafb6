"""Cells that say something of every row, checked: weights, groups, times."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.days import days_of_digits
from lessvfl.data.frame import Floats, Places, is_missing
from lessvfl.errors import DataError
from lessvfl.terms import plural, written


def canonical(value: object) -> str:
    """Return the text of an id, as it is written.

    >>> [canonical(value) for value in ("007", 7, 7.0, " Ada")]
    ['007', '7', '7', ' Ada']
    """
    if isinstance(value, float | np.floating) and value.is_integer():
        return str(int(value))
    return str(value)


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
            got = "nothing" if cell is None or cell != cell else written(cell)
            got = "a text" if isinstance(cell, str) else got
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


def check_times(cells: Any, n_rows: int, owner: str) -> NDArray[Any]:
    """Return when every row is of, as days or as numbers, or refuse what is no time.

    Dates are read as those of any column; of a moment the day counts.
    """
    allowed = f"The times of {owner} must be dates or numbers, one in each row."
    array = one_cell_per_row(cells, n_rows, allowed)
    kind = array.dtype.kind
    if kind == "M":
        times: NDArray[Any] = array.astype("M8[D]")
    elif kind in "iuf":
        times = _of_numbers(array.astype(np.float64))
    else:
        times = _times([None if is_missing(c) else c for c in array.tolist()], allowed)
    is_there = ~np.isnat(times) if times.dtype.kind == "M" else np.isfinite(times)
    if not is_there.all():
        n_missing = int((~is_there).sum())
        raise DataError(f"{allowed} Got {plural(n_missing, 'row')} without one.")
    return times


def _times(cells: Sequence[Any], allowed: str) -> NDArray[Any]:
    """Read times that are texts or objects; NaN or NaT where one is missing."""
    from lessvfl.data.readings import find_reading, read_texts

    present = [cell for cell in cells if cell is not None]
    if present and all(isinstance(cell, datetime.date) for cell in present):
        days = [c.date() if isinstance(c, datetime.datetime) else c for c in cells]
        return np.array(days, dtype="M8[D]")
    if not all(isinstance(cell, str) for cell in present):
        numbers = np.array([as_number(cell) for cell in cells])
        for row, cell in enumerate(cells):
            if cell is not None and math.isnan(as_number(cell)):
                raise DataError(f"{allowed} Got another cell in row {row + 1}.")
        return _of_numbers(numbers)
    reading = find_reading(set(present), "")
    if reading is None or reading.kind == "truth":
        odd = (row for row, t in enumerate(cells) if t and not _is_time(t))
        raise DataError(f"{allowed} Got another text in row {next(odd, 0) + 1}.")
    if not reading.order:
        raise DataError(
            f"{allowed} Got dates whose day and month cannot be told apart."
        )
    values = read_texts(np.array(cells, dtype=object), reading)
    assert values is not None, "the reading was found on these texts"
    if reading.kind == "number":
        return _of_numbers(values)
    return _moments(values)


def _of_numbers(values: Floats) -> NDArray[Any]:
    """Return times that are numbers, or days as one number each, such as 20240131."""
    days = days_of_digits(values)
    return values if days is None else _moments(days)


def _moments(values: Floats) -> NDArray[Any]:
    none, known = np.datetime64("NaT", "D"), values.astype("M8[D]")
    return np.where(np.isnan(values), none, known)


def _is_time(text: str) -> bool:
    """Tell whether a text alone is a date, a number, or a mark of a missing cell."""
    from lessvfl.data.readings import find_reading, is_mark

    reading = find_reading({text}, "")
    return is_mark(text) or (reading is not None and reading.kind != "truth")
