"""Files of rows and columns as they are: .csv, Parquet, Arrow, Excel and arrays."""

from __future__ import annotations

import csv
import importlib
import io
import logging
import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.column import Column, Finding
from lessvfl.data.frame import Floats, Frame
from lessvfl.data.table import (
    ColumnAndCells,
    arrow_column,
    checked_names,
    frame_of,
    frame_of_columns,
)
from lessvfl.errors import DataError
from lessvfl.settings import near
from lessvfl.terms import listed

EXCEL = (".xlsx", ".xls")
ARROW = (".parquet", ".arrow", ".feather")
SUFFIXES = (".npz", ".csv", ".parquet", *EXCEL, ".arrow", ".feather", ".npy")
DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
HEAD = 1 << 16  # bytes that tell how a file of texts is written


def check_file(path: Path) -> None:
    """Refuse a path without a file, or with an ending of no format that can be read."""
    if path.is_dir():
        if not arrow_files(path):
            allowed = f"{', '.join(ARROW[:-1])} or {ARROW[-1]}"
            raise DataError(
                f"A folder of data must hold {allowed} files. Got none in '{path}'."
            )
        return
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"A data file must end in {', '.join(SUFFIXES)}, or be a folder of Parquet "
            f"or Arrow files. Got '{path}'."
        )
    if not path.is_file():
        raise DataError(f"The data file '{path}' must exist. Got no such file.")


def is_array(path: Path) -> bool:
    """Tell whether a file is one array, without names."""
    return path.suffix.lower() == ".npy"


def arrow_files(path: Path) -> list[Path]:
    """Return the files of a table: itself, or those of a folder in order of names."""
    if not path.is_dir():
        return [path]
    files = (file for file in path.iterdir() if file.suffix.lower() in ARROW)
    return sorted(file for file in files if file.is_file())


def same_columns(paths: Sequence[Path], schemas: Sequence[Any]) -> None:
    """Refuse files of one table whose columns differ in name or kind."""
    first = {field.name: _kind(field.type) for field in schemas[0]}
    for path, schema in zip(paths, schemas, strict=True):
        kinds = {field.name: _kind(field.type) for field in schema}
        pair = f"'{path.name}' and '{paths[0].name}' in '{path.parent}'"
        if odd := sorted(set(kinds) ^ set(first)):
            raise DataError(
                f"All files of a table must have the same columns. Got {pair}, of "
                f"which one alone has '{odd[0]}'."
            )
        for name, kind in kinds.items():
            if kind != first[name]:
                raise DataError(
                    f"Column '{name}' must be of one kind in all files of a table. Got "
                    f"{pair}, which have {kind} and {first[name]}."
                )


def _kind(kind: Any) -> str:
    """Return what an Arrow data type holds: numbers, dates, texts, or else its name."""
    from pyarrow import types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "dates"
    texts = (types.is_string, types.is_large_string, types.is_dictionary)
    return "texts" if any(is_one(kind) for is_one in texts) else str(kind)


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error to raise for a data file that cannot be read, from its cause."""
    if isinstance(error, MemoryError):  # as that of Arrow is
        return DataError(
            f"The data file '{path}' must fit into memory. Got too little of it; a "
            "party between machines may leave its rows on disk, see 'storage' in its "
            "config."
        )
    line = " ".join(str(error).split()).rstrip(".")
    return DataError(f"The data file '{path}' must be readable. Got this: {line}.")


def release_unused() -> None:
    """Give back the memory that the reader of a file keeps for the next one."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


@dataclass(frozen=True)
class RawTable:
    """A file as it was read: its columns, its decimal mark, and what was found."""

    table: Any  # of arrow
    decimal: str = ""
    findings: tuple[Finding, ...] = ()
    is_written: bool = False  # of texts alone, as a .csv file is
    texts: Collection[str] = ()  # columns of such a table that are no numbers

    @property
    def names(self) -> list[str]:
        """Return the names of the columns, without the index that pandas writes."""
        index = re.compile(r"__index_level_\d+__")
        return [name for name in self.table.column_names if not index.fullmatch(name)]

    def cells(self, name: str) -> NDArray[Any]:
        """Return the cells of a column, numbers as such."""
        numbers = self._plain_numbers(name)
        return self.written(name) if numbers is None else numbers

    def written(self, name: str) -> NDArray[Any]:
        """Return the cells (N,) of column `name` as the file has them.

        Whole numbers and floats come as numbers where none is missing, else as objects.
        """
        from pyarrow import types

        from lessvfl.data.arrow_cells import numbers_of

        column = self.table.column(name)
        is_number = types.is_integer(column.type) or types.is_floating(column.type)
        if is_number and column.null_count == 0:
            return numbers_of(column)
        return np.array(column.to_pylist(), dtype=object)

    def column_of(
        self, name: str, path: Path, what: str, setting: str = ""
    ) -> NDArray[Any]:
        """Return the cells of a column that was named as the ids or the like.

        `setting` is the one that names it, where one does.
        """
        if name not in self.names:
            named = f" as '{setting}'" if setting else ""
            raise DataError(
                f"The {what} of '{path}' must be one of its columns: "
                f"{listed(self.names, 20)}. Got '{name}'{named}."
                f"{near(name, self.names)}"
            )
        return self.written(name)

    @property
    def lone(self) -> str:
        """Say of a file of one column how columns are told apart."""
        if len(self.names) > 1:
            return ""
        known = ", ".join(DELIMITERS.values())
        return f"; are its columns separated by one of {known}?"

    def frame(self, names: Sequence[str]) -> Frame:
        """Return some of the columns, raw."""
        shape = (self.table.num_rows, len(names))
        frame = frame_of_columns(map(self._column, names), shape)
        return replace(frame, decimal=self.decimal, findings=self.findings)

    def _column(self, name: str) -> ColumnAndCells:
        numbers = None if name in self.texts else self._plain_numbers(name)
        if numbers is None:
            return arrow_column(name, self.table.column(name))
        return Column(name), numbers

    def _plain_numbers(self, name: str) -> Floats | None:
        """Return a column of a file of texts as numbers; None where it has others."""
        from lessvfl.data.readings import plain_numbers

        if not self.is_written:
            return None
        return plain_numbers(self.table.column(name), self.decimal)


def read_table(
    path: Path, texts: Collection[str] = (), only: str | None = None
) -> RawTable:
    """Read a file of rows and columns; of a .csv file `texts` as they are written.

    Of Parquet and Arrow files the column `only` is read, where it is named and there.
    """
    import pyarrow

    check_file(path)
    suffix = path.suffix.lower()
    try:
        if suffix in EXCEL:
            raw = _read_excel(path)
        elif suffix in ARROW or path.is_dir():
            raw = _read_arrow(path, only)
        elif is_array(path):
            frame = frame_of(read_array(path))
            columns = map(pyarrow.array, frame.numeric.T)
            raw = RawTable(pyarrow.table(list(columns), list(frame.names)))
        else:
            raw = _read_csv(path, texts)
    except DataError:
        raise
    except (pyarrow.ArrowException, csv.Error, OSError, ValueError) as error:
        raise unreadable(path, error) from None
    checked_names(raw.names, None)
    if raw.table.num_rows == 0:
        raise DataError(f"The data file '{path}' must have rows. Got none.")
    return raw


def _read_arrow(path: Path, only: str | None) -> RawTable:
    """Read a Parquet or Arrow file, or a folder of them, or one column."""
    import pyarrow

    tables, paths = [], arrow_files(path)
    for part in paths:
        with ArrowFile(part, path) as file:
            names = [only] if only and only in file.schema.names else None
            tables.append(file.read(names))
    if len(tables) == 1:
        return RawTable(tables[0])
    same_columns(paths, [table.schema for table in tables])
    return RawTable(pyarrow.concat_tables(tables, promote_options="permissive"))


class ArrowFile:
    """One Parquet or Arrow IPC file, mapped into memory.

    Errors name `owner`, the folder that it is of, where one is given. A scanner of
    ``pyarrow.dataset`` holds whole row groups, which by default are a million rows;
    this reads pages as they are asked for.
    """

    def __init__(self, path: Path, owner: Path | None = None) -> None:
        import pyarrow
        from pyarrow import ipc, parquet

        self._path, self._owner = path, owner or path
        self._is_parquet = path.suffix.lower() == ".parquet"
        try:
            if self._is_parquet:
                self._file: Any = parquet.ParquetFile(path, memory_map=True)
                self.schema = self._file.schema_arrow
                self.n_rows = self._file.metadata.num_rows
            else:
                self._file = ipc.open_file(pyarrow.memory_map(str(path)))
                self.schema = self._file.schema
                sizes = range(self._file.num_record_batches)
                self.n_rows = sum(self._file.get_batch(i).num_rows for i in sizes)
        except (pyarrow.ArrowException, OSError) as error:
            raise unreadable(self._owner, error) from None

    def __enter__(self) -> ArrowFile:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_parquet:
            self._file.close()

    def read(self, names: list[str] | None) -> Any:
        """Return a table of some columns, or of all, in memory."""
        from pyarrow import feather

        if self._is_parquet:
            return self._file.read(columns=names)
        return feather.read_table(self._path, columns=names)

    def batches(self, names: Sequence[str], n_rows: int) -> Iterator[Any]:
        """Yield Arrow tables of the columns `names`, at most `n_rows` rows each."""
        import pyarrow

        try:
            for batch in self._record_batches(list(names), n_rows):
                yield pyarrow.Table.from_batches([batch]).select(list(names))
        except (pyarrow.ArrowException, OSError) as error:
            raise unreadable(self._owner, error) from None

    def _record_batches(self, names: list[str], n_rows: int) -> Iterator[Any]:
        if self._is_parquet:
            yield from self._file.iter_batches(n_rows, columns=names, use_threads=False)
            return
        for number in range(self._file.num_record_batches):
            batch = self._file.get_batch(number).select(names)
            for start in range(0, batch.num_rows, n_rows):
                yield batch.slice(start, n_rows)


def _read_csv(path: Path, texts: Collection[str]) -> RawTable:
    """Read a file of texts, all as written: whatever its delimiter and encoding."""
    import pyarrow
    from pyarrow import compute
    from pyarrow import csv as arrow

    with path.open("rb") as file:
        head = file.read(HEAD)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf8"
    text = head.decode(encoding, errors="replace").lstrip("\ufeff")
    delimiter, ends_so = _delimiter(text)

    def read(encoding: str) -> Any:
        how = arrow.ReadOptions(encoding=encoding)
        parse = arrow.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in head)
        if ends_so:  # every row but that of the names
            names = [*next(csv.reader(io.StringIO(text), delimiter=delimiter)), ""]
            how = arrow.ReadOptions(encoding=encoding, column_names=names, skip_rows=1)
        with arrow.open_csv(path, how, parse) as some:
            names = some.schema.names
        kinds = dict.fromkeys(names, pyarrow.string())
        table = arrow.read_csv(
            path, how, parse, arrow.ConvertOptions(column_types=kinds)
        )
        while len(names) > 1 and names[-1] == "":
            lengths = compute.binary_length(table.column(-1))
            if compute.any(compute.greater(lengths, 0)).as_py():
                break
            table, names = table.remove_column(len(names) - 1), names[:-1]
        return table

    try:
        table = read(encoding)
    except (UnicodeDecodeError, pyarrow.ArrowInvalid) as error:  # of names, of cells
        if isinstance(error, pyarrow.ArrowInvalid) and "UTF8" not in str(error):
            raise
        encoding = "cp1252"
        table = read(encoding)
    decimal = "," if delimiter != "," and _has_decimal_commas(table) else ""
    changes = []
    if delimiter != ",":
        what = f"columns separated by {DELIMITERS[delimiter]}"
        changes.append((what, "read as such"))
    if decimal:
        changes.append(("numbers with ',' for decimals", "read as numbers"))
    if encoding != "utf8":
        changes.append((f"texts encoded in {encoding}, not UTF-8", "read as such"))
    findings = (Finding(None, what, done, "changed") for what, done in changes)
    return RawTable(table, decimal, tuple(findings), True, texts)


def _delimiter(head: str) -> tuple[str, bool]:
    """Return what separates columns: the most often, in the first rows alike.

    And whether all rows but that of the names end in one.
    """
    counts, ends = {}, {}
    for delimiter in DELIMITERS:
        rows = csv.reader(io.StringIO(head), delimiter=delimiter)
        first = [row for row, _ in zip(rows, range(5), strict=False) if row]
        whole = first[:-1] if len(first) > 2 else first  # the last may be cut
        sizes = [len(row) for row in whole]
        more = [size - sizes[0] for size in sizes[1:] if len(whole[0]) > 1]
        ends[delimiter] = {*more} == {1} and not any(row[-1] for row in whole[1:])
        alike = len({*sizes}) == 1 or ends[delimiter]
        counts[delimiter] = sizes[0] if alike else 0
    most = max(counts, key=lambda delimiter: counts[delimiter])
    return most, ends[most]


def _has_decimal_commas(table: Any) -> bool:
    """Tell whether some column of texts in an Arrow table has numbers such as 3,5."""
    from pyarrow import compute

    from lessvfl.data.readings import find_reading

    for column in table.columns:
        if compute.any(compute.match_substring(column, ",")).as_py():
            reading = find_reading(compute.unique(column).to_pylist(), "")
            if reading is not None and reading.decimal == ",":
                return True
    return False


def _read_excel(path: Path) -> RawTable:
    """Read the first sheet of a workbook."""
    import pyarrow

    try:
        fastexcel = importlib.import_module("fastexcel")
    except ImportError:
        raise DataError(
            f"To read '{path}' takes the package 'fastexcel' of the extra 'excel', as "
            "in pip install 'lessvfl[excel]'. Got no such package."
        ) from None
    theirs = logging.getLogger("fastexcel.types.dtype")
    was_off, theirs.disabled = theirs.disabled, True  # it warns of empty columns
    try:
        book = fastexcel.read_excel(path)
        sheet = book.load_sheet(0)
        table = pyarrow.table(sheet.to_arrow())
    except fastexcel.FastExcelError as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    finally:
        theirs.disabled = was_off
    n_sheets = len(book.sheet_names)
    if n_sheets == 1:
        return RawTable(table)
    done = f"the first one, '{sheet.name}', is read"
    finding = Finding(None, f"{n_sheets} sheets", done, "changed")
    return RawTable(table, findings=(finding,))


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, mapped from disk; its columns are x0, x1."""
    try:
        cells: NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise unreadable(path, error) from None
    if cells.ndim != 2:
        raise DataError(
            f"The array of '{path}' must have two dimensions, rows and columns. Got "
            f"shape {cells.shape}."
        )
    return cells


def read_npz(path: Path, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file; nothing in it is run."""
    check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise unreadable(path, error) from None
    if not set(needed) <= set(arrays):
        wanted = " and ".join(f"'{name}'" for name in needed)
        many = "arrays" if len(needed) > 1 else "array"
        raise DataError(
            f"The data file '{path}' must hold the {many} {wanted}. "
            f"Got {', '.join(sorted(arrays)) or 'none'}."
        )
    return arrays
