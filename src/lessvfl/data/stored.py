"""Tables larger than memory: read by batches, and encoded rows kept in a file.

A party's file (Parquet, one file or a folder of them, Arrow IPC, or a ``.npy`` array)
is read in batches of rows. What its columns hold is told by rows spaced evenly over it.
Encoded rows are written once, in the order of the run, to a file without a name that
ends with the process, and mapped into memory: whatever takes rows of a tensor reads
just these.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lessvfl.data.columns import apply_columns
from lessvfl.data.files import load_columns, load_ids
from lessvfl.data.frame import (
    Frame,
    Places,
    are_all,
    are_in_order,
    join_columns,
    stack_rows,
)
from lessvfl.data.learn import CHUNK
from lessvfl.data.readers import (
    ARROW,
    ArrowFile,
    RawTable,
    arrow_files,
    check_file,
    is_array,
    read_array,
    release_unused,
    same_columns,
)
from lessvfl.data.table import checked_names, frame_of
from lessvfl.errors import DataError

AT_ONCE = 1 << 21  # cells of a table that are read together
LEAST_ROWS = 1000  # that tell what columns hold, however many these are
LARGE = 1 << 27  # cells from which on a table stays on disk: 1 GiB in memory
BLOCK_BYTES = 1 << 20  # that are written together; fewer stay in memory


class _ArrowFiles:
    """Parquet or Arrow IPC files whose rows follow each other."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        schemas, self.n_rows = [], 0
        for path in paths:
            with ArrowFile(path) as file:
                schemas.append(file.schema)
                self.n_rows += file.n_rows
        same_columns(paths, schemas)
        self.names = checked_names(RawTable(schemas[0].empty_table()).names, None)

    def frames(self, names: Sequence[str], n_rows: int) -> Iterator[Frame]:
        """Yield raw rows, file by file."""
        for path in self.paths:
            with ArrowFile(path) as file:
                for table in file.batches(names, n_rows):
                    yield RawTable(table).frame(names)


class _Array:
    """A ``.npy`` file of numbers, mapped into memory; its columns are x0, x1, ..."""

    def __init__(self, path: Path) -> None:
        self._cells = read_array(path)
        self.names = frame_of(self._cells[:0]).names
        self.n_rows = len(self._cells)

    def frames(self, names: Sequence[str], n_rows: int) -> Iterator[Frame]:
        """Yield raw rows."""
        columns = [self.names.index(name) for name in names]
        for start in range(0, self.n_rows, n_rows):
            cells = self._cells[start : start + n_rows, columns]
            yield frame_of(cells, names)


_Source = _ArrowFiles | _Array


@dataclass(frozen=True)
class StoredTable:
    """A table on disk: some of its rows, in the order asked for.

    `look` are rows that tell what its columns hold; texts are read as these were.
    """

    path: Path
    source: _Source
    look: Frame
    rows: Places | None = None  # None: all, as they stand

    @classmethod
    def open(
        cls, path: Path, without: str | None = None, source: _Source | None = None
    ) -> StoredTable:
        """Open a table on disk, without the column of that name (its ids)."""
        source = source or _source(path)
        if source.n_rows == 0:
            raise DataError(f"The data file '{path}' must have rows. Got none.")
        names = tuple(name for name in source.names if name != without)
        if not names:
            raise DataError(f"The data file '{path}' must have columns. Got none.")
        whole = cls(path, source, Frame.of_numbers(names, np.empty((0, len(names)))))
        n_rows = max(LEAST_ROWS, min(CHUNK, AT_ONCE // len(names)))  # spaced evenly
        stride = -(-source.n_rows // n_rows)
        rows = np.arange(0, source.n_rows, stride, dtype=np.int64)
        parts = []
        for some in whole.together(names):
            few = replace(whole, rows=rows).batches(some, CHUNK)
            parts.append(stack_rows([frame for _, frame in few]))
        return replace(whole, look=join_columns(parts))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its columns."""
        return self.look.names

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return self.source.n_rows if self.rows is None else len(self.rows)

    def with_look(self, look: Frame) -> StoredTable:
        """Return the same table, its columns as they were inferred from its look."""
        return replace(self, look=look)

    def take(self, rows: Places) -> StoredTable:
        """Return the table of these rows, in this order."""
        if are_all(rows, self.n_rows):
            return self
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def together(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield columns, few enough to have many rows of them in memory."""
        size = max(1, AT_ONCE // min(CHUNK, self.source.n_rows))
        for start in range(0, len(names), size):
            yield names[start : start + size]

    def batches(
        self, names: Sequence[str], n_rows: int
    ) -> Iterator[tuple[Places, Frame]]:
        """Yield places and cells of `n_rows` rows at a time, as they are on disk."""
        for _, places, frame in read_together([self], names, n_rows):
            yield places, frame

    def among(self, start: int, frame: Frame) -> tuple[Places, Frame]:
        """Return its own rows among some of the file, which begin at `start`."""
        end = start + frame.n_rows
        order, rows = self._in_file_order
        first, last = start, end
        if rows is not None:
            first, last = np.searchsorted(rows, [start, end])
            frame = frame.take(rows[first:last] - start)
        if self.look.n_rows:  # texts are read as those of the look were; before it, raw
            where = f"rows {start + 1:,} to {end:,} of '{self.path.name}'"
            known = {column.name: column for column in self.look.columns}
            short = [  # whole numbers, too long for a double elsewhere
                index
                for index, column in enumerate(frame.columns)
                if column.kind == "numeric" and known[column.name].is_text
            ]
            frame = apply_columns(frame.as_texts(short), self.look.columns, where)
        places = np.arange(first, last, dtype=np.int64)
        return places if order is None else order[places], frame

    @functools.cached_property
    def _in_file_order(self) -> tuple[Places | None, Places | None]:
        """Return the rows as they stand on disk, and the places that these have."""
        if self.rows is None or are_in_order(self.rows):
            return None, self.rows
        order = np.argsort(self.rows, kind="stable")
        return order, self.rows[order]

    def digest(self) -> str:
        """Return a digest of the files that hold it."""
        return _digest(self.path)


Table = Frame | StoredTable  # in memory, or read from disk by batches of rows


def read_together(
    tables: Sequence[StoredTable], names: Sequence[str], n_rows: int
) -> Iterator[tuple[int, Places, Frame]]:
    """Yield a table's number and the places and cells of its next `n_rows` rows.

    The tables are rows of the same file, which is read once.
    """
    waiting: list[list[tuple[Places, Frame]]] = [[] for _ in tables]
    n_waiting = [0 for _ in tables]
    source, end = tables[0].source, 0
    for frame in source.frames(names, n_rows):
        start, end = end, end + frame.n_rows
        if end > source.n_rows:
            break
        for number, table in enumerate(tables):
            places, cells = table.among(start, frame)
            if len(places):
                waiting[number].append((places, cells))
                n_waiting[number] += len(places)
            if n_waiting[number] >= n_rows:
                places, cells = _joined(waiting[number])
                yield number, places[:n_rows], cells.take(slice(n_rows))
                waiting[number] = [(places[n_rows:], cells.take(slice(n_rows, None)))]
                n_waiting[number] -= n_rows
    if end != source.n_rows:
        raise DataError(
            f"The data file '{tables[0].path}' must keep its {source.n_rows} rows "
            f"during a run. Got {'more' if end > source.n_rows else 'fewer'}."
        )
    for number, pieces in enumerate(waiting):
        if n_waiting[number]:
            yield number, *_joined(pieces)
    release_unused()


def open_columns(
    path: Path, id_column: str | None, storage: str
) -> tuple[Table, NDArray[Any] | None]:
    """Open a party's own table in memory or on disk, with its ids.

    With `storage` auto it stays on disk where its cells would take a gigabyte or more.
    """
    check_file(path)
    readable = path.is_dir() or is_array(path) or path.suffix.lower() in ARROW
    if storage == "disk" and not readable:
        raise DataError(
            f"The 'storage' setting must be memory or auto for '{path.name}': on disk "
            f"stay folders and files that end in {', '.join(ARROW)} or .npy. Got disk."
        )
    if not readable:
        return load_columns(path, id_column)
    source = None if storage == "memory" else _source(path)
    n_cells = source.n_rows * len({*source.names} - {id_column}) if source else 0
    if source is None or (storage == "auto" and n_cells < LARGE):
        frame, ids = load_columns(path, id_column)
        return replace(frame, source=_digest(path)), ids
    table = StoredTable.open(path, id_column, source)
    return table, None if id_column is None else load_ids(path, id_column)


def _digest(path: Path) -> str:
    """Return a digest of the bytes of a file, or of all files of a folder."""
    content = hashlib.sha256()
    for file_path in arrow_files(path):
        content.update(file_path.name.encode())
        with file_path.open("rb") as file:
            content.update(hashlib.file_digest(file, "sha256").digest())
    return content.hexdigest()


def _source(path: Path) -> _Source:
    return _Array(path) if is_array(path) else _ArrowFiles(arrow_files(path))


def _joined(pieces: Sequence[tuple[Places, Frame]]) -> tuple[Places, Frame]:
    if len(pieces) == 1:
        return pieces[0]
    places = np.concatenate([places for places, _ in pieces])
    return places, stack_rows([frame for _, frame in pieces])


# ------------------------------------------------------------------------- encoded rows


class Scratch:
    """Room on disk for rows in use, in files without a name in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @overload
    def keep(self, values: None) -> None: ...

    @overload
    def keep(self, values: NDArray[Any]) -> NDArray[Any]: ...

    def keep(self, values: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return values mapped from disk; few ones, or no numbers, as they are."""
        if values is None or values.nbytes < BLOCK_BYTES or values.dtype == object:
            return values
        kept = self.zeros(values.shape, values.dtype)
        kept[:] = values
        return kept

    def collect(self, parts: Iterable[NDArray[Any]], n_values: int) -> Places:
        """Return places that come in parts; many are mapped from disk."""
        is_small = n_values * np.dtype(np.int64).itemsize < BLOCK_BYTES
        places = (np.zeros if is_small else self.zeros)((n_values,), np.int64)
        start = 0
        for part in parts:
            places[start : start + len(part)] = part
            start += len(part)
        return places

    def cut(self, rows: NDArray[Any], used: NDArray[np.bool_]) -> NDArray[Any]:
        """Return some columns of rows (N, columns), mapped from disk."""
        n_rows, columns = len(rows), np.flatnonzero(used)
        kept = self.zeros((n_rows, len(columns)), rows.dtype)
        step = max(1, BLOCK_BYTES // max(1, rows[:1].nbytes))
        for start in range(0, n_rows, step):
            kept[start : start + step] = rows[start : start + step, columns]
        return kept

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return zeros in a new file; there is room for all of them."""
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if n_bytes == 0:
            return np.zeros(shape, dtype)
        with tempfile.TemporaryFile(dir=self.folder, prefix="rows-") as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, n_bytes)
                else:  # as on macOS: what is missing is noticed on the way
                    file.truncate(n_bytes)
            except OSError as error:
                raise DataError(
                    f"The run folder '{self.folder}' must have room for "
                    f"{n_bytes / 2**20:,.0f} MiB of rows. Got this: "
                    f"{error.strerror}."
                ) from None
            return np.memmap(file, dtype, "r+", shape=shape)
