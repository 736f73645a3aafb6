"""Columns that are no features: how much rows weigh, whose they are, which test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, is_missing
from lessvfl.data.row_cells import canonical, check_times, check_units, check_weights
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.settings import near
from lessvfl.terms import listed, plural


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
    cells_of: Callable[[str], NDArray[Any]] | None = None,
) -> Dataset:
    """Return a data set whose columns with a role are no features, but say it of rows.

    `cells_of` gives the cells of a column as they came, where that is known: groups,
    times and ids are taken from it, since numbers beyond 2^53 are not rounded there.
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
        if cells_of is not None:
            cells = cells_of(column)
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
