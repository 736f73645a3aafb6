"""The values of this room: a table, a data set, and how it becomes a problem."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.column import Column, ColumnKind, Finding
from lessvfl.errors import DataError
from lessvfl.settings import (
    Kind,
    Section,
    a_flag,
    a_float,
    an_int,
    one_of,
    or_none,
    setting,
)
from lessvfl.terms import Task

Floats = NDArray[np.float64]
Places = NDArray[np.int64]  # of rows in a table
AT_ONCE = 1 << 16  # places that are looked at together


def are_in_order(rows: Places) -> bool:
    """Tell whether rows come as they stand in their table, each once."""
    starts = range(0, len(rows), AT_ONCE)
    return all((np.diff(rows[at : at + AT_ONCE + 1]) > 0).all() for at in starts)


def are_all(rows: Places, n_rows: int) -> bool:
    """Tell whether rows are all of a table, as they stand."""
    is_last = rows[-1:] == n_rows - 1
    return len(rows) == n_rows and bool(is_last.all()) and are_in_order(rows)


@dataclass(frozen=True)
class Frame:
    """A table of named columns.

    `numeric` holds every column as float64, NaN where a cell is missing. A column of
    texts is all NaN there and stands in `text`, by its index, as an object array of str
    (None where missing). `decimal` is the decimal mark of the file, where it has its
    own, and `findings` are about that file.
    """

    columns: tuple[Column, ...]
    numeric: Floats  # (N, d)
    text: Mapping[int, NDArray[np.object_]] = field(default_factory=dict)
    decimal: str = ""
    findings: tuple[Finding, ...] = ()
    source: str = ""  # a digest of the files that it was read from, where they may stay

    @classmethod
    def of_numbers(
        cls, names: Sequence[str], numeric: Floats, kind: ColumnKind = "numeric"
    ) -> Frame:
        """Return a table whose columns are all of one kind, and no texts."""
        return cls(tuple(Column(name, kind) for name in names), numeric)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.numeric.shape[0])

    @functools.cached_property
    def unused(self) -> frozenset[str]:
        """Return the names of the columns that are left out."""
        return frozenset(column.name for column in self.columns if column.left_out)

    @property
    def used(self) -> list[int]:
        """Return the columns that are not left out, by index."""
        return [i for i, column in enumerate(self.columns) if not column.left_out]

    def take(self, rows: Places | slice) -> Frame:
        """Return the table of these rows, in this order."""
        text = {index: cells[rows] for index, cells in self.text.items()}
        return replace(self, numeric=self.numeric[rows], text=text)

    def select(self, names: Sequence[str]) -> Frame:
        """Return the table of these columns, in this order."""
        index_of = {name: index for index, name in enumerate(self.names)}
        chosen = [index_of[name] for name in names]
        places: list[int] | slice = chosen
        if chosen and chosen == [*range(chosen[0], chosen[-1] + 1)]:
            places = slice(chosen[0], chosen[-1] + 1)
        return replace(
            self,
            columns=tuple(self.columns[index] for index in chosen),
            numeric=self.numeric[:, places],  # of neighbours without a copy
            text={i: self.text[at] for i, at in enumerate(chosen) if at in self.text},
            source="",
        )

    def as_texts(self, indices: Iterable[int]) -> Frame:
        """Return the table with columns at `indices` as texts, numbers as written."""
        others = [index for index in indices if index not in self.text]
        if not others:
            return self
        numeric, columns, text = self.numeric.copy(), [*self.columns], {**self.text}
        for index in others:
            cells = numeric[:, index].tolist()
            texts = [None if math.isnan(cell) else f"{cell:.17g}" for cell in cells]
            text[index] = np.array(texts, dtype=object)
            numeric[:, index] = np.nan
            columns[index] = replace(columns[index], kind="text")
        return replace(self, columns=tuple(columns), numeric=numeric, text=text)

    @property
    def look(self) -> Frame:
        """Return the table itself."""
        return self

    def with_look(self, look: Frame) -> Frame:
        """Return the look, which is the whole table."""
        return look

    def digest(self) -> str:
        """Return a digest of all cells, or of the files that hold them."""
        if self.source:
            return self.source
        content = hashlib.sha256(np.ascontiguousarray(self.numeric).view(np.uint8).data)
        for place in sorted(self.text):
            content.update(digest_of(self.text[place]))
        return content.hexdigest()

    def together(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield the columns that may be read together: all, which are in memory."""
        yield names

    def batches(
        self, names: Sequence[str], n_rows: int
    ) -> Iterator[tuple[Places, Frame]]:
        """Yield the places and cells of `n_rows` rows at a time, in order."""
        chosen = self.select(names)
        places = np.arange(self.n_rows, dtype=np.int64)
        for start in range(0, self.n_rows, n_rows):
            some = places[start : start + n_rows]
            yield some, chosen if len(some) == self.n_rows else chosen.take(some)

    def cells(self, index: int) -> NDArray[Any]:
        """Return the cells of a column: texts, or numbers."""
        return self.text.get(index, self.numeric[:, index])

    def texts(self, index: int) -> NDArray[np.object_]:
        """Return the texts of a column, all missing where it has none."""
        return self.text.get(index, np.full(self.n_rows, None, dtype=object))


def stack_rows(frames: Sequence[Frame]) -> Frame:
    """Return the rows of tables with the same columns, one below the other."""
    if len(frames) == 1:
        return frames[0]
    indices = sorted({index for frame in frames for index in frame.text})
    alike = [frame.as_texts(indices) for frame in frames]
    numeric = np.concatenate([frame.numeric for frame in alike])
    text = {i: np.concatenate([frame.text[i] for frame in alike]) for i in indices}
    return replace(alike[0], numeric=numeric, text=text)


def join_columns(frames: Sequence[Frame]) -> Frame:
    """Return the columns of tables with the same rows, side by side."""
    columns = tuple(column for frame in frames for column in frame.columns)
    starts = np.cumsum([0, *(len(frame.names) for frame in frames)]).tolist()
    text = {
        start + index: cells
        for frame, start in zip(frames, starts, strict=False)
        for index, cells in frame.text.items()
    }
    return Frame(columns, np.concatenate([f.numeric for f in frames], axis=1), text)


def is_missing(cell: Any) -> bool:
    """Tell whether a cell holds nothing: None, NaN, or a frame library's own mark."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating) and math.isnan(cell)


def check_texts(texts: Iterable[Any], what: str) -> None:
    """Refuse texts with a lone surrogate, which no file can hold; None is no text."""
    for text in set(texts):
        try:
            if text is not None and not text.isascii():
                text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{what} must be valid Unicode. Got {text!a}, which has a "
                "surrogate without its pair."
            ) from None


def digest_of(values: NDArray[Any] | None) -> bytes:
    """Return a digest of an array of numbers, or of objects by how they print."""
    if values is None:
        return b"none"
    if values.dtype == object or values.dtype.kind in "US":
        text = json.dumps([None if v is None else str(v) for v in values.tolist()])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return hashlib.sha256(np.ascontiguousarray(values).view(np.uint8).data).digest()


OF_ROWS = ("y", "randomised", "weight", "units", "times", "is_test")  # of a data set


@dataclass(frozen=True)
class Dataset:
    """Raw data: a table, its labels, and what may be said of them."""

    name: str
    X: Frame
    y: NDArray[Any]  # int64 0..C-1 for classification, float64 for regression
    task: Task
    label_names: tuple[str, ...] = ()
    randomised: NDArray[np.int64] | None = None  # (N,), y as training may know it
    X_test: Frame | None = None
    y_test: NDArray[Any] | None = None
    n_parties: int = 4  # what the paper used, and what a user gets unless told
    scale: str = "global"  # what the released code did to this data set
    split: str = "first"  # how published settings split it where it brings no test rows
    significant: NDArray[np.bool_] | None = None  # (d,), where the truth is known
    notes: tuple[str, ...] = ()  # sentences the user must read with the numbers
    weight: Floats | None = None  # (N,), how much every row counts in the loss
    units: Places | None = None  # (N,), the person or the like that a row is of
    times: NDArray[Any] | None = None  # (N,), days or numbers: the latest are the test
    is_test: NDArray[np.bool_] | None = None  # (N,), where the test rows are named
    named_by: str = ""  # what names them, where a user says it
    findings: tuple[Finding, ...] = ()  # what was done to read its columns
    task_reason: str = ""  # why its labels are classes, or numbers to regress on
    # Who holds which columns (names or globs), where the data are vertical by nature.
    parties: Mapping[str, Sequence[str]] | None = None
    origin: str = ""  # the file or the catalogue that it was read from
    # What columns of it are that are no features, by name: labels, row weights, ids.
    taken: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_parties(self) -> int | Mapping[str, Sequence[str]]:
        """Return who shares the columns unless a user says otherwise."""
        return self.parties or self.n_parties

    @property
    def training_labels(self) -> NDArray[Any]:
        """Return the labels that training may know, and whoever takes part in it."""
        return self.y if self.randomised is None else self.randomised

    @property
    def checksum(self) -> str:
        """Return the SHA-256 of its cells and labels, test rows after the others."""
        content = hashlib.sha256()
        for table, labels in ((self.X, self.y), (self.X_test, self.y_test)):
            if table is not None and labels is not None:
                content.update(np.ascontiguousarray(table.numeric).tobytes())
                content.update(np.ascontiguousarray(labels).tobytes())
        return content.hexdigest()

    def take(self, rows: Places) -> Dataset:
        """Return the data set of these rows, in this order; test rows stay."""
        arrays = {name: getattr(self, name) for name in OF_ROWS}
        some = {name: a[rows] for name, a in arrays.items() if a is not None}
        return replace(self, X=self.X.take(rows), **some)


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a named data set before it is loaded, and how to load it."""

    load: Callable[[Path | None, Mapping[str, Any]], Dataset]  # local folder, options
    summary: str
    source: str
    where: Literal["built in", "download", "local folder"]
    rows: int
    features: int
    classes: int  # 0 for regression
    parties: int = 4
    paper: bool = False  # one of the paper's five
    takes_options: bool = False


def read_marks(pairs: Iterable[str]) -> dict[str, list[str]]:
    """Read pairs as income=-999: by name of a column, values for a missing cell."""
    marks: dict[str, list[str]] = {}
    for pair in pairs:
        name, _, value = (part.strip() for part in pair.rpartition("="))
        if not (name and value):
            raise ValueError(pair)
        marks.setdefault(name, []).append(value)
    return marks


def marks_by_column() -> Kind:
    """Allow none, or by column (name or glob) what stands for a missing cell."""

    def is_mark(value: Any) -> bool:
        return isinstance(value, int | float | str) and not isinstance(value, bool)

    def accepts(value: Any) -> bool:
        if not isinstance(value, Mapping):
            return False
        return all(
            isinstance(name, str)
            and all(map(is_mark, marks if isinstance(marks, list | tuple) else [marks]))
            for name, marks in value.items()
        )

    allowed = "values by column as in income=-999,born=1900-01-01"
    return or_none(Kind(allowed, accepts, lambda text: read_marks(text.split(","))))


@dataclass(frozen=True)
class DataConfig(Section):
    """How a table becomes a problem: columns to parties, rows to train and test."""

    columns: str = setting(
        one_of("blocks", "random"),
        "blocks",
        "which columns go together: neighbours, or a random deal by the seed",
    )
    uneven: str = setting(
        one_of("spread", "drop"),
        "spread",
        "columns that do not divide evenly among the parties: spread, or dropped",
    )
    split: str = setting(
        one_of("random", "stratified", "first"),
        "random",
        "test rows where the data bring none: drawn by the seed without labels, drawn "
        "class by class, which tells labels, or the last rows",
    )
    test_share: float = setting(
        a_float(0.0, 0.9), 0.2, "share of the rows used for test"
    )
    split_seed: int | None = setting(
        or_none(an_int()),
        None,
        "seed of rows and planted columns; none: each run's own; given: seeds differ "
        "in networks and steps alone, as those of an ensemble do",
    )
    folds: int = setting(
        an_int(1, 1000),
        1,
        "parts that the rows are divided into by the seed, each of them the test rows "
        "of one run; 1: a single split",
    )
    gap: float = setting(
        a_float(),
        0.0,
        "with a time column: how long before the first test row training ends, in days "
        "or in the unit of its numbers; rows in between are left out",
    )
    scale: str = setting(
        one_of("auto", "standardize", "global", "none"),
        "auto",
        "each party's own columns by mean and deviation, with auto those of heavy "
        "tails by the normal scores of their ranks; or one min and max of all values",
    )
    noise: str = setting(
        one_of("unit", "range"),
        "unit",
        "planted columns: standard normal, or as wide as half the range of all values",
    )
    scale_labels: bool = setting(
        a_flag(), True, "regression: the server standardises its own labels"
    )
    embedding_noise: float = setting(
        a_float(),
        0.0,
        "Gaussian noise on all embeddings that leave a party: its deviation, as a "
        "multiple of embedding_clip; 0: none",
    )
    embedding_epsilon: float | None = setting(
        or_none(a_float(open_low=True)),
        None,
        "as much noise as lets all embeddings of a row spend this epsilon in a run, in "
        "place of embedding_noise",
    )
    embedding_clip: float = setting(
        a_float(open_low=True),
        1.0,
        "the largest norm of a row's embedding, where there is noise on it",
    )
    noise_at: str = setting(
        one_of("embedding", "first-layer"),
        "embedding",
        "what that noise is on, and embedding_clip the norm of: a row's embedding, or "
        "the first layer's output, before its activation",
    )
    max_categories: int = setting(
        an_int(2), 64, "most different texts in a column of categories"
    )
    missing: str = setting(
        one_of("flag", "fill"),
        "flag",
        "missing cells: filled in, with a flag in the same feature that says where; or "
        "filled in alone",
    )
    missing_values: Mapping[str, Any] | None = setting(
        marks_by_column(),
        None,
        "numbers, dates or texts that stand for a missing cell, by column (names or "
        "globs)",
    )
    equal_rows: str = setting(
        one_of("together", "apart", "distinct"),
        "together",
        "rows that are copies of each other: split, held out and scrambled together, "
        "or as if they were different; or of all equal rows the first alone",
    )
    overlap: float = setting(
        a_float(0.0, 1.0, open_low=True),
        1.0,
        "share of the training rows that all parties have, drawn by the seed; of the "
        "others each has its own columns alone, without labels",
    )

    @property
    def has_noise(self) -> bool:
        """Tell whether noise is on what leaves a party."""
        return self.embedding_noise > 0 or self.embedding_epsilon is not None

    def row_seed(self, seed: int) -> int:
        """Return the seed that decides on the rows of a run."""
        return seed if self.split_seed is None else self.split_seed
