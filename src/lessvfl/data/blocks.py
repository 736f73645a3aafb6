"""Rows that belong together: copies of one row, or the rows of one person.

Such rows say the same thing more than once. Split or scrambled one by one they tell of
each other, and chance looks like a finding; so they stay together, as one *block*.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.column import Finding
from lessvfl.data.frame import DataConfig, Dataset, Floats, Frame, Places
from lessvfl.data.sentinels import MarksByColumn, blank
from lessvfl.errors import DataError
from lessvfl.terms import plural

Bits = NDArray[np.uint64]
FEW = 10  # values that a count may have
CHANCE = 0.1  # of the rows that equal another, the most that may do so by chance
_ODD, _START = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Blocks:
    """Which rows of a table belong together."""

    of_row: Places  # (N,), the block of every row, numbered as they first come
    n_equal: int = 0  # rows that equal another one
    n_units: int = 0  # that the group column names

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks, rows alone included."""
        return int(self.of_row.max()) + 1

    def finding(self) -> Finding | None:
        """Return a finding on how many rows equal another row; None where none do."""
        if not self.n_equal:
            return None
        share = 100 * self.n_equal / len(self.of_row)
        rows = plural(self.n_equal, "row")
        who = f"{share:.0f} % of the rows" if share >= 1 else f"{rows} of the table"
        done = "they are split, held out and scrambled together"
        return Finding(None, f"{who} equal another row", done, "kept")

    def sentences(self) -> tuple[str, ...]:
        """Return sentences for a record on equal rows and on rows of one unit."""
        copies = self.finding()
        sentences = [f"{copies.what}: {copies.done}."] if copies else []
        if self.n_units:
            rows = plural(len(self.of_row), "row")
            sentences.append(
                f"{rows} are of {self.n_units:,} units, each kept together."
            )
        return tuple(sentences)


def find_blocks(dataset: Dataset, config: DataConfig) -> Blocks | None:
    """Return the blocks of a data set's rows; None where every row is alone."""
    units = None if dataset.units is None else in_order(dataset.units)
    equal = None
    if config.equal_rows == "together":  # parties are told: not by labels kept secret
        y = dataset.y if dataset.randomised is None else None
        equal = equal_rows(dataset.X, y)
    n_units = 0 if units is None else int(units.max()) + 1
    if equal is None:
        if units is None or n_units == len(units):
            return None
        return Blocks(units, 0, n_units)
    n_equal = int((np.bincount(equal) > 1)[equal].sum())
    return Blocks(equal if units is None else _joined(units, equal), n_equal, n_units)


def in_order(numbers: NDArray[Any]) -> Places:
    """Return the same parts of the rows, numbered from 0 as they first come."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def some_blocks(blocks: Places, rows: Places) -> Places | None:
    """Return the blocks of some rows, numbered anew; None where all are alone."""
    numbers = in_order(blocks[rows])
    return None if len(numbers) == 0 or numbers.max() + 1 == len(numbers) else numbers


def _joined(first: Places, second: Places) -> Places:
    """Return the parts of rows that are connected by either of two kinds of parts."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_first = int(first.max()) + 1
    n = n_first + int(second.max()) + 1
    edges = coo_array((np.ones(len(first)), (first, n_first + second)), shape=(n, n))
    _, parts = connected_components(edges, directed=False)
    return in_order(parts[first])


# --------------------------------------------------------------------------- equal rows


def equal_rows(frame: Frame, y: NDArray[Any] | None = None) -> Places | None:
    """Return which rows equal each other in all cells and the label, as numbers.

    None where no rows do, or where they may do so by chance: rows of categories and
    small counts are often equal and yet of different people. So one column must be a
    measurement: numbers with more values than half of the different rows; and if
    columns had nothing to do with each other, few of the rows would be equal.
    """
    used = [name for name in frame.names if name not in frame.unused]
    if not used:
        return None
    label = [] if y is None else [(_bits(y), False)]
    numbers = _numbered(lambda: itertools.chain(label, _columns([frame], used)))
    first = np.unique(numbers, return_index=True)[1]
    n_distinct, n_copies = len(first), len(numbers) - len(first)
    if not n_copies:
        return None
    is_measured, n_pairs = False, n_distinct * (n_distinct - 1) / 2
    for column, is_number in itertools.chain(label, _columns([frame], used)):
        counts = np.unique(column[first], return_counts=True)[1]
        is_measured |= is_number and len(counts) > max(FEW, n_distinct / 2)
        n_pairs *= float(np.square(counts / n_distinct).sum())
        if is_measured and n_pairs <= CHANCE * n_copies:
            return numbers
    return None


def seen_share(train: Frame, test: Frame, names: Collection[str]) -> float | None:
    """Return the share of test rows whose cells equal those of some training row.

    Of the columns `names` alone; missing cells equal missing ones. None where there is
    no test row.
    """
    if not test.n_rows:
        return None
    numbers = _numbered(lambda: _columns([train, test], names))
    known, rows = numbers[: train.n_rows], numbers[train.n_rows :]
    return float(np.isin(rows, known).mean())


def distinct(dataset: Dataset, names: Collection[str], marks: MarksByColumn) -> Dataset:
    """Return a data set with the first of every set of rows that are equal.

    Equal in the columns `names`, whatever their labels: the first has its own label and
    weight. A data set's own test rows come after all training rows. A note counts what
    is left out.
    """
    X_test, y_test = dataset.X_test, dataset.y_test
    frames, y = [blank(dataset.X, marks)], dataset.training_labels
    if X_test is not None and y_test is not None:
        frames, y = [*frames, blank(X_test, marks)], np.concatenate([y, y_test])
    numbers = _numbered(lambda: _columns(frames, names))
    first = np.unique(numbers, return_index=True)[1]
    if len(first) == len(numbers):
        return dataset
    n_train, n_other = dataset.X.n_rows, int((y != y[first[numbers]]).sum())
    kept = dataset.take(first[first < n_train])
    if X_test is not None and y_test is not None:
        rows = first[first >= n_train] - n_train
        if not len(rows):
            raise DataError(
                f"With equal_rows=distinct a test row of '{dataset.name}' must differ "
                "from its training rows. Got none that does."
            )
        kept = replace(kept, X_test=X_test.take(rows), y_test=y_test[rows])
    left = len(numbers) - len(first)
    note = (
        f"{left:,} of {plural(len(numbers), 'row')} equal an earlier one and are left "
        f"out; {n_other:,} of them have another label than the row that is kept."
    )
    return replace(kept, notes=(*dataset.notes, note))


def _numbered(columns: Callable[[], Iterable[tuple[Bits, bool]]]) -> Places:
    """Return a number for every row, from 0 as they first come, equal rows alike.

    Columns are asked for once, and once more where rows may be equal.
    """
    hashed: Bits | None = None
    for column, _ in columns():
        hashed = (_START if hashed is None else hashed) ^ column
        hashed *= _ODD
        hashed ^= hashed >> _HALF
    assert hashed is not None, "columns in use"
    _, first, inverse = np.unique(hashed, return_index=True, return_inverse=True)
    copies = np.flatnonzero(first[inverse] != np.arange(len(hashed)))
    originals = first[inverse[copies]]
    is_copy = np.ones(len(copies), dtype=np.bool_)  # where a hash says so
    for column, _ in columns() if len(copies) else ():
        is_copy &= column[copies] == column[originals]
    inverse[copies[~is_copy]] = len(first) + np.arange(int((~is_copy).sum()))
    return in_order(inverse)


def _columns(
    frames: Sequence[Frame], names: Collection[str]
) -> Iterator[tuple[Bits, bool]]:
    """Yield columns of tables, one below the other, as numbers that differ as cells do.

    With them goes whether they are numbers, and not texts or truth values.
    """
    head, wanted = frames[0], {*names}
    for index in (i for i, name in enumerate(head.names) if name in wanted):
        is_text = any(index in frame.text for frame in frames)
        cells: list[NDArray[Any]] = [
            frame.texts(index) if is_text else frame.numeric[:, index]
            for frame in frames
        ]
        is_number = not is_text and head.columns[index].kind != "boolean"
        yield _bits(np.concatenate(cells)), is_number


def _bits(cells: NDArray[Any]) -> Bits:
    if cells.dtype == object:
        code: dict[Any, int] = {}
        codes = (code.setdefault(cell, len(code)) for cell in cells.tolist())
        return np.fromiter(codes, dtype=np.uint64, count=len(cells))
    numbers: Floats = cells + 0.0  # one zero, and below one NaN
    numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.uint64)
