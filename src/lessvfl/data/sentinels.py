"""Values that stand for a missing cell: -999, 99999, 9999-12-31.

They count as missing where a user says so (`marks_of`, `blank`); `suspects` names what
looks like one.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lessvfl.data.column import EncodedColumn, Finding
from lessvfl.data.dealing import match_columns
from lessvfl.data.frame import Floats, Frame
from lessvfl.errors import ConfigError, warn
from lessvfl.terms import written

Mark = float | str  # a date by its days since 1970-01-01
MarksByColumn = Mapping[str, Sequence[Mark]]  # by column

EPOCH = datetime.date(1970, 1, 1).toordinal()
# Days that programs write for none, where the others are at least a year away.
EMPTY_DAYS = {
    float(datetime.date(*day).toordinal() - EPOCH)
    for day in ((1, 1, 1), (1900, 1, 1), (1970, 1, 1), (2999, 12, 31), (9999, 12, 31))
}
YEAR = 365.0
FEWEST_CELLS, OFTEN = 5, 0.002  # that have a value, and of all cells which share
FEWEST_OTHERS = 3  # different ones, among which something is at the edge


def marks_of(
    frame: Frame, given: Mapping[str, Any] | None
) -> dict[str, tuple[Mark, ...]]:
    """Return by column of an inferred table which values stand for a missing cell.

    `given` has them by name or glob, as a user writes them. What a glob finds besides
    columns that can hold its value is left alone; a column named must be one that can.
    """
    by_column: dict[str, tuple[Mark, ...]] = {}
    for pattern, values in (given or {}).items():
        names = match_columns(frame.names, pattern, "the 'missing_values' setting")
        places = [frame.names.index(name) for name in names]
        used = [index for index in places if not frame.columns[index].left_out]
        for value in values if isinstance(values, list | tuple) else (values,):
            marks = {index: _mark(frame, index, value) for index in used}
            if used and all(mark is None for mark in marks.values()):
                must = "of a kind that one of the columns has"
                if names == [pattern]:
                    is_date = frame.columns[used[0]].kind == "date"
                    kind = "a date as in 9999-12-31" if is_date else "a number"
                    must = f"{kind}, as the cells are"
                raise ConfigError(
                    f"The 'missing_values' setting of '{pattern}' must be {must}. "
                    f"Got {written(value)}."
                )
            for index, mark in marks.items():
                name = frame.names[index]
                if mark is not None:
                    by_column[name] = (*by_column.get(name, ()), mark)
    return by_column


def warn_of_absent(frame: Frame, given: Mapping[str, Any] | None) -> None:
    """Warn of values in `given` for a missing cell that no cell of their column has.

    `given` has values by name or glob of columns; those of globs are not looked at.
    """
    named = {name: v for name, v in (given or {}).items() if name in frame.names}
    for name, marks in marks_of(frame, named).items():
        index = frame.names.index(name)
        present = set(frame.cells(index).tolist())
        if absent := [mark for mark in marks if mark not in present]:
            shown = _written(absent[0], frame.columns[index].kind == "date")
            warn(
                f"The 'missing_values' setting names {shown} of column '{name}', which "
                "is in none of its cells."
            )


def _mark(frame: Frame, index: int, value: float | str) -> Mark | None:
    """Return a value as a column holds it, None where the column cannot."""
    if index in frame.text:
        return value if isinstance(value, str) else f"{value:.17g}"
    try:
        if frame.columns[index].kind == "date":
            day = datetime.date.fromisoformat(str(value))
            return float(day.toordinal() - EPOCH)
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def blank(frame: Frame, marks: MarksByColumn) -> Frame:
    """Return a table whose cells are empty where a value stands for a missing one."""
    numeric, text = frame.numeric, dict(frame.text)
    for index, name in enumerate(frame.names):
        wanted = {*marks.get(name, ())}
        if not wanted:
            continue
        if any(isinstance(mark, str) for mark in wanted):
            cells = [None if cell in wanted else cell for cell in frame.texts(index)]
            text[index] = np.array(cells, dtype=object)
        elif (places := np.isin(numeric[:, index], [*wanted])).any():
            numeric = numeric.copy() if numeric is frame.numeric else numeric
            numeric[places, index] = np.nan
    return replace(frame, numeric=numeric, text=text)


def written_marks(columns: Sequence[EncodedColumn]) -> dict[str, list[float | str]]:
    """Return as a user writes them which values stand for a missing cell."""
    return {
        column.name: [_written(mark, column.kind == "date") for mark in column.missing]
        for column in columns
        if column.missing
    }


def _written(mark: Mark, is_date: bool) -> float | str:
    if is_date:
        return datetime.date.fromordinal(int(mark) + EPOCH).isoformat()
    return mark


# ------------------------------------------------------------------------------ advice


def suspects(frame: Frame, index: int, present: Floats) -> Iterator[Finding]:
    """Yield the values at the edge of a column that may stand for a missing cell.

    Such a value is frequent and far from all others: further than these are from each
    other, and not of as many digits; or, if it is made of nines, than the middle half
    of them, or alone below zero; or a day that programs write for none, a year away.
    """
    column = frame.columns[index]
    if column.kind not in ("numeric", "date") or not np.isfinite(present).all():
        return
    is_date = column.kind == "date"
    values, counts = np.unique(present, return_counts=True)
    if len(values) <= FEWEST_OTHERS:
        return
    for edge, others in ((0, values[1:]), (-1, values[:-1])):
        value, count = values[edge], int(counts[edge])
        if count < max(FEWEST_CELLS, OFTEN * len(present)):
            continue
        gap = float(np.abs(others - value).min())
        low, high = np.quantile(present[present != value], [0.25, 0.75])
        lengths = {len(f"{one:.17g}") for one in (value, others[0], others[-1])}
        is_code = len(lengths) == 1 and not is_date  # as of a town: 10001, 10003, 90210
        is_far = gap > others[-1] - others[0] and not is_code
        if is_date:
            is_far |= value in EMPTY_DAYS and gap >= YEAR
        elif {*f"{abs(value):.17g}"} <= {"9", "."}:
            is_far |= gap > high - low or value < 0 <= others[0]
        if is_far:
            shown = _written(value, True) if is_date else f"{value:.17g}"
            what = f"{shown} in {count:,} cells, far from all others"
            option = f"--missing-values '{column.name}={shown}'"
            done = f"kept; if it stands for a missing cell: {option}"
            yield Finding(None, what, done, "kept")
