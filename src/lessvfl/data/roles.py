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
        found = [canonical(cell) for cell in cells.tolist()]
        is_test = np.array([one in self.ids for one in found], dtype=np.bool_)
        known = len(self.ids.intersection(found))
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

    def each(self) -> list[tuple[str, Roles]]:
        """Return the roles that are given one by one, each after its column."""
        found = [
            (column, Roles(**{n: column}))
            for n in ROW_ROLES
            if (column := getattr(self, n))
        ]
        if self.test_ids is not None:
            found.append((self.test_ids.column, Roles(test_ids=self.test_ids)))
        return found

    def __post_init__(self) -> None:
        """Refuse two ways to say which rows are for testing."""
        if self.time_column is not None and self.test_ids is not None:
            raise ConfigError(
                "Test rows must be said by a time column or by test ids. Got both: "
                f"'{self.time_column}' and '{self.test_ids.source}'."
            )


NO_ROLES = Roles()

CellsOf = Callable[[str], NDArray[Any]]


def with_roles(data: Dataset, roles: Roles, cells_of: CellsOf | None = None) -> Dataset:
    """Return a data set whose columns with such a role are no features.

    `cells_of` gives the cells of a column as they came, where that is known: groups,
    times and ids are taken from it, since numbers beyond 2^53 are not rounded there.
    """
    if roles.sample_weight is not None:
        data = take_weights(data, roles.sample_weight)
    if roles.group_column is not None:
        data = take_units(data, roles.group_column, cells_of)
    if roles.time_column is not None:
        data = take_times(data, roles.time_column, cells_of)
    if roles.test_ids is not None:
        data = take_test_ids(data, roles.test_ids, cells_of)
    return data


def with_cells(
    data: Dataset, roles: Roles, cells: Mapping[str | None, NDArray[Any]]
) -> Dataset:
    """Return a data set with what cells besides its columns say of its rows.

    `cells` are by the name that the roles have for them; weights are not among them.
    """
    n_rows = data.X.n_rows
    if (units := cells.get(roles.group_column)) is not None:
        owner = _owner(data, "group_column", roles.group_column)
        data = replace(data, units=check_units(units, n_rows, owner))
    if (times := cells.get(roles.time_column)) is not None:
        _refuse_own_test_rows(data, f"the time column '{roles.time_column}'")
        owner = _owner(data, "time_column", roles.time_column)
        own_times = check_times(times, n_rows, owner)
        latest = f"the latest by '{roles.time_column}'"
        data = replace(data, times=own_times, named_by=latest)
    ids = roles.test_ids
    if ids is not None and (own := cells.get(ids.column)) is not None:
        _refuse_own_test_rows(data, f"the test ids of '{ids.source}'")
        is_test = ids.mark(own, f"'{data.name}'")
        rows = plural(int(is_test.sum()), "row")
        note = f"Test rows are the {rows} whose '{ids.column}' is in '{ids.source}'."
        named_by = f"the ids of '{ids.source}'"
        notes = (*data.notes, note)
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


def take_weights(dataset: Dataset, column: str) -> Dataset:
    """Return a data set whose rows weigh what a column says, which is no feature."""
    left, cells = take_role(dataset, column, "sample_weight")
    owner = _owner(dataset, "sample_weight", column)
    return replace(
        left,
        weight=check_weights(cells, dataset.X.n_rows, owner),
        notes=(*dataset.notes, f"Rows weigh what column '{column}' says."),
    )


def take_role(
    dataset: Dataset, column: str, setting: str
) -> tuple[Dataset, NDArray[Any]]:
    """Take the column that a setting names out of the features."""
    return take_column(dataset, column, ROW_ROLES[setting], f" as '{setting}'")


def take_column(
    dataset: Dataset, column: str, what: str, named: str
) -> tuple[Dataset, NDArray[Any]]:
    """Take a column out of the features; `what` says what it holds instead.

    `named` says where it was named, after its name.
    """
    names = dataset.X.names
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


def take_units(
    dataset: Dataset, column: str, cells_of: CellsOf | None = None
) -> Dataset:
    """Return a data set whose rows are grouped by a column, which is no feature.

    `cells_of` gives the cells of a column as they came, where that is known.
    """
    left, cells = take_role(dataset, column, "group_column")
    own = cells if cells_of is None else cells_of(column)
    return with_cells(left, Roles(group_column=column), {column: own})


def take_times(
    dataset: Dataset, column: str, cells_of: CellsOf | None = None
) -> Dataset:
    """Return a data set whose rows are of the times in a column, which is no feature.

    `cells_of` gives the cells of a column as they came, where that is known.
    """
    left, cells = take_role(dataset, column, "time_column")
    kinds = {own.name: own.kind for own in dataset.X.columns}
    if cells_of is not None:
        cells = cells_of(column)
    elif kinds[column] == "date":
        cells = cells.astype("M8[D]")
    return with_cells(left, Roles(time_column=column), {column: cells})


def take_test_ids(
    dataset: Dataset, test_ids: HeldOutIds, cells_of: CellsOf | None = None
) -> Dataset:
    """Return a data set whose test rows are named by ids, which are no feature.

    `cells_of` gives the cells of a column as they came, where that is known.
    """
    column = test_ids.column
    named = f", the column of '{test_ids.source}'"
    left, cells = take_column(dataset, column, "ids", named)
    own = cells if cells_of is None else cells_of(column)
    return with_cells(left, Roles(test_ids=test_ids), {column: own})
