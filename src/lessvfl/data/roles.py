"""Columns that are no features: how much rows weigh, whose they are, which test."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.days import days_of_digits
from lessvfl.data.frame import Dataset, Floats, Places, is_missing
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.settings import near
from lessvfl.terms import listed, plural, written


@dataclass(frozen=True)
class HeldOutIds:
    """The ids of the rows to test on, and the column of a table that has such ids."""

    column: str
    ids: frozenset[str]
    source: str  # the file that they are from

    @classmethod
    def of(cls, column: str, cells: NDArray[Any], source: str) -> HeldOutIds:
        """Take ids as they were read from a file."""
        present = [cell for cell in cells.tolist() if not is_missing(cell)]
        ids = frozenset(map(canonical, present)) - {""}
        if not ids:
            raise DataError(f"The file of test ids '{source}' must hold ids. Got none.")
        return cls(column, ids, source)

    def mark(self, cells: NDArray[Any], owner: str) -> NDArray[np.bool_]:
        """Tell which rows are for testing by the ids of all rows."""
        of_rows = [canonical(cell) for cell in cells.tolist()]
        is_test = np.array([row_id in self.ids for row_id in of_rows], dtype=np.bool_)
        known = len(self.ids.intersection(of_rows))
        ids = f"The {plural(len(self.ids), 'test id')} of '{self.source}'"
        if not known or is_test.all():
            raise DataError(
                f"{ids} must be those of some rows of {owner} and not of all. Got "
                f"{is_test.sum():,} of {len(is_test):,} rows with such an id."
            )
        if known < len(self.ids):
            warn(
                f"{len(self.ids) - known:,} of {len(self.ids):,} test ids of "
                f"'{self.source}' are in no row of {owner}."
            )
        return is_test


# What the column that a setting names says of rows.
ROW_ROLES = {
    "sample_weight": "row weights",
    "group_column": "groups of rows",
    "time_column": "times of rows",
}


@dataclass(frozen=True)
class Roles:
    """What columns say of rows that is no feature of them."""

    sample_weight: str | None = None
    group_column: str | None = None
    time_column: str | None = None
    test_ids: HeldOutIds | None = None

    def __post_init__(self) -> None:
        """Refuse two ways to say which rows are for testing."""
        if self.time_column is not None and self.test_ids is not None:
            raise ConfigError(
                "Test rows must be said by a time column or by test ids. Got both: "
                f"'{self.time_column}' and '{self.test_ids.source}'."
            )

    @property
    def columns(self) -> dict[str, str]:
        """Return the column of each setting that names one, test ids last."""
        named = {name: getattr(self, name) for name in ROW_ROLES}
        if self.test_ids is not None:
            named["test_ids"] = self.test_ids.column
        return {name: column for name, column in named.items() if column is not None}


NO_ROLES = Roles()


def with_roles(
    data: Dataset,
    roles: Roles,
    cells_in_file: Mapping[str, NDArray[Any]] | None = None,
) -> Dataset:
    """Return a data set whose columns with a role are no features, but say it of rows.

    `cells_in_file` are cells of columns as they came, where these are known: groups,
    times and ids are taken from them, since numbers beyond 2^53 are not rounded there.
    """
    for setting, column in roles.columns.items():
        kinds = {source.name: source.kind for source in data.X.columns}
        data, cells = _take_column(data, column, setting, roles)
        if setting == "sample_weight":
            owner = _owner(data, setting, column)
            weight = check_weights(cells, data.X.n_rows, owner)
            note = f"Rows weigh what column '{column}' says."
            data = replace(data, weight=weight, notes=(*data.notes, note))
            continue
        if cells_in_file is not None:
            cells = cells_in_file[column]
        elif setting == "time_column" and kinds[column] == "date":
            cells = cells.astype("M8[D]")
        data = with_cells(data, roles, {setting: cells})
    return data


def _take_column(
    dataset: Dataset, column: str, setting: str, roles: Roles
) -> tuple[Dataset, NDArray[Any]]:
    """Take the column that a setting names out of the features; return its cells."""
    names, what, named = dataset.X.names, "ids", f" as '{setting}'"
    if setting in ROW_ROLES:
        what = ROW_ROLES[setting]
    elif roles.test_ids is not None:
        named = f", the column of '{roles.test_ids.source}'"
    if column not in names:
        shown = listed(names, 20)
        raise DataError(
            f"The {what} of '{dataset.name}' must be one of its columns: {shown}. "
            f"Got '{column}'{named}.{near(column, names)}"
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
        taken={**dataset.taken, column: what},
    )
    return rest, dataset.X.cells(index)


def with_cells(
    data: Dataset, roles: Roles, cells: Mapping[str, NDArray[Any]]
) -> Dataset:
    """Return a data set with what cells besides its columns say of its rows.

    `cells` are by the setting that names them; weights are not among them.
    """
    n_rows = data.X.n_rows
    if (units := cells.get("group_column")) is not None:
        owner = _owner(data, "group_column", roles.group_column)
        data = replace(data, units=check_units(units, n_rows, owner))
    if (times := cells.get("time_column")) is not None:
        _refuse_own_test_rows(data, f"the time column '{roles.time_column}'")
        owner = _owner(data, "time_column", roles.time_column)
        times = check_times(times, n_rows, owner)
        latest = f"the latest by '{roles.time_column}'"
        data = replace(data, times=times, named_by=latest)
    held_out = roles.test_ids
    if held_out is not None and (ids := cells.get("test_ids")) is not None:
        _refuse_own_test_rows(data, f"the test ids of '{held_out.source}'")
        is_test = held_out.mark(ids, f"'{data.name}'")
        rows = plural(int(is_test.sum()), "row")
        source, column = f"'{held_out.source}'", held_out.column
        note = f"Test rows are the {rows} whose '{column}' is in {source}."
        notes, named_by = (*data.notes, note), f"the ids of {source}"
        data = replace(data, is_test=is_test, notes=notes, named_by=named_by)
    return data


def _owner(dataset: Dataset, setting: str, column: str | None) -> str:
    """Say whose cells are refused: of which table, by which setting."""
    return f"'{dataset.name}' by '{setting}' (column '{column}')"


def _refuse_own_test_rows(dataset: Dataset, what: str) -> None:
    if dataset.X_test is not None or dataset.is_test is not None:
        raise ConfigError(
            f"The data set '{dataset.name}' brings test rows of its own. Got {what}."
        )


# --------------------------------------------------------------- cells of every row


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
    if array.dtype.kind == "M":
        times: NDArray[Any] = array.astype("M8[D]")
    elif array.dtype.kind in "iuf":
        times = array.astype(np.float64)
    else:
        times = _times([None if is_missing(c) else c for c in array.tolist()], allowed)
    # Some numbers are days, such as 20240131.
    if times.dtype.kind == "f" and (days := days_of_digits(times)) is not None:
        times = _moments(days)
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
        return numbers
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
    return values if reading.kind == "number" else _moments(values)


def _moments(values: Floats) -> NDArray[Any]:
    none, known = np.datetime64("NaT", "D"), values.astype("M8[D]")
    return np.where(np.isnan(values), none, known)


def _is_time(text: str) -> bool:
    """Tell whether a text alone is a date, a number, or a mark of a missing cell."""
    from lessvfl.data.readings import find_reading, is_mark

    reading = find_reading({text}, "")
    return is_mark(text) or (reading is not None and reading.kind != "truth")
