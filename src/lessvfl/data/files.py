"""Tables of the user: .npz, .npy, .csv, Parquet, Arrow and Excel files."""

from __future__ import annotations

import csv
import importlib
import io
import logging
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import table as tables
from lessvfl.data.blocks import check_units, take_units
from lessvfl.data.frame import Dataset, Finding, Frame
from lessvfl.data.labels import take_weights
from lessvfl.data.readings import find_reading, read_texts
from lessvfl.errors import DataError
from lessvfl.settings import near
from lessvfl.terms import listed, plural

EXCEL = (".xlsx", ".xls")
ARROW = (".parquet", ".arrow", ".feather")
SUFFIXES = (".npz", ".csv", ".parquet", *EXCEL, ".arrow", ".feather", ".npy")
LABELS = ("label", "y", "target", "class")
# Names that a label often has, for advice alone.
LIKELY = (
    "label|target|class|outcome|diagnos|risk|response|result|status|churn|default"
    "|disease|surviv|died|death|mortality|fraud|readmi|score|price"
)

DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
HEAD = 1 << 16  # bytes that tell how a file of texts is written


def load_file(
    path: Path,
    label: str | None = None,
    sample_weight: str | None = None,
    group_column: str | None = None,
    task: str | None = None,
) -> Dataset:
    """Load a table from a file, under the file's name.

    A ``.npz`` file has the arrays ``X`` and ``y``, and perhaps ``feature_names``,
    ``label_names``, ``X_test``, ``y_test`` and ``informative``. The row weights are one
    of its columns, which is then no feature, or an array of their own in such a file;
    so are the groups of its rows. What the labels are is told by their look, unless a
    `task` is given.
    """
    check_file(path)
    if not _is_npz(path):
        raw = read_table(path)
        frame, labels = _labelled(raw, label, path)
        table = tables.from_arrays(frame, labels, name=path.stem, task=task)
        return with_roles(table, sample_weight, group_column, raw)
    label = label or "y"
    arrays = read_npz(path, ["X", label])
    frame = tables.frame_of(arrays["X"], _texts(arrays.get("feature_names")))
    X_test, y_test = arrays.get("X_test"), arrays.get(f"{label}_test")
    own = sample_weight in arrays and sample_weight not in frame.names
    data = tables.from_arrays(
        frame,
        arrays[label],
        name=path.stem,
        task=task,
        X_test=X_test,
        y_test=y_test,
        sample_weight=arrays[str(sample_weight)] if own else None,
        label_names=_texts(arrays.get("label_names")),
    )
    if (mask := arrays.get("informative")) is not None:
        data = _with_informative(data, mask, path)
    if group_column in arrays and group_column not in frame.names:
        owner = f"'{data.name}' (array '{group_column}')"
        units = check_units(arrays[str(group_column)], frame.n_rows, owner)
        data, group_column = replace(data, units=units), None
    return with_roles(data, None if own else sample_weight, group_column)


def with_roles(
    data: Dataset,
    sample_weight: str | None,
    group_column: str | None,
    raw: RawTable | None = None,
) -> Dataset:
    """Return a data set whose row weights and groups of rows are no features.

    Groups are taken from the `raw` table, where there is one: numbers beyond 2^53 are
    not rounded there.
    """
    if sample_weight is not None:
        data = take_weights(data, sample_weight)
    if group_column is None:
        return data
    return take_units(data, group_column, None if raw is None else raw.cells)


def _with_informative(data: Dataset, mask: NDArray[Any], path: Path) -> Dataset:
    """Return a data set that knows which of its columns matter."""
    names = data.X.names
    if mask.shape != (len(names),):
        raise DataError(
            f"The array 'informative' of '{path}' must have one entry per column, "
            f"{len(names)}. Got shape {mask.shape}."
        )
    return replace(data, significant=mask.astype(bool))


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _texts(names: NDArray[Any] | None) -> list[str] | None:
    return None if names is None else [str(name) for name in names]


def is_array(path: Path) -> bool:
    """Tell whether a file is one array, without names."""
    return path.suffix.lower() == ".npy"


def arrow_files(path: Path) -> list[Path]:
    """Return the files of a table: itself, or those of a folder in order of names."""
    if not path.is_dir():
        return [path]
    found = (one for one in path.iterdir() if one.suffix.lower() in ARROW)
    return sorted(one for one in found if one.is_file())


def same_columns(paths: Sequence[Path], schemas: Sequence[Any]) -> None:
    """Refuse files of one table whose columns differ in name or kind."""
    first = {field.name: _kind(field.type) for field in schemas[0]}
    for path, schema in zip(paths, schemas, strict=True):
        own = {field.name: _kind(field.type) for field in schema}
        pair = f"'{path.name}' and '{paths[0].name}' in '{path.parent}'"
        if odd := sorted(set(own) ^ set(first)):
            raise DataError(
                f"All files of a table must have the same columns. Got {pair}, of "
                f"which one alone has '{odd[0]}'."
            )
        for name, kind in own.items():
            if kind != first[name]:
                raise DataError(
                    f"Column '{name}' must be of one kind in all files of a table. Got "
                    f"{pair}, which have {kind} and {first[name]}."
                )


def _kind(kind: Any) -> str:
    """Say what an arrow column holds."""
    from pyarrow import types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "dates"
    texts = (types.is_string, types.is_large_string, types.is_dictionary)
    return "texts" if any(is_one(kind) for is_one in texts) else str(kind)


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


def release_unused() -> None:
    """Give back the memory that the reader of a file keeps for the next one."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


def unreadable(path: Path, error: Exception) -> DataError:
    """Return what is said of a file that cannot be read."""
    if isinstance(error, MemoryError):  # as that of Arrow is
        return DataError(
            f"The data file '{path}' must fit into memory. Got too little of it; a "
            "party between machines may leave its rows on disk, see 'storage' in its "
            "config."
        )
    line = " ".join(str(error).split()).rstrip(".")
    return DataError(f"The data file '{path}' must be readable. Got this: {line}.")


def load_rows(
    path: Path,
    columns: Collection[str],
    label: str | None = None,
    texts: Collection[str] = (),
) -> tuple[Frame, list[Any], list[str] | None]:
    """Load rows to score: the table, its labels as written, and names for them.

    Files are those of `load_file`, and of a ``.npz`` file ``X``, ``y`` and
    ``label_names`` are read. Only these `columns` are, as far as they are there, and
    `texts` among them as they are written, for the model to read.
    """
    check_file(path)
    if _is_npz(path):
        label = label or "y"
        arrays = read_npz(path, ["X", label])
        frame = tables.frame_of(arrays["X"], _texts(arrays.get("feature_names")))
        labels, names = arrays[label], _texts(arrays.get("label_names"))
    else:
        raw = read_table(path, texts)
        frame, labels = _labelled(raw, label, path, columns)
        names = None
    cells = tables.label_cells(labels, frame, path.stem)
    written = cells.tolist() if isinstance(cells, np.ndarray) else cells
    return frame, written, names


def _labelled(
    raw: RawTable,
    label: str | None,
    path: Path,
    columns: Collection[str] | None = None,
) -> tuple[Frame, NDArray[Any]]:
    """Return the columns of a file, or some of them, with its label column apart."""
    target = label_column(raw.names, label, path)
    features = [name for name in raw.names if name != target]
    if not features:
        raise DataError(
            f"The data file '{path}' must have columns besides the label '{target}'. "
            f"Got none{raw.lone}."
        )
    labels = label_cells(raw, target)
    if columns is not None:
        features = [name for name in features if name in columns]
    return raw.frame(features), labels


@dataclass(frozen=True)
class RawTable:
    """A file as it was read: its columns, its decimal mark, and what was found."""

    table: Any  # of arrow
    decimal: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the names of the columns, without the index that pandas writes."""
        index = re.compile(r"__index_level_\d+__")
        return [name for name in self.table.column_names if not index.fullmatch(name)]

    def cells(self, name: str) -> NDArray[Any]:
        """Return the cells of a column as they are."""
        return _values(self.table.column(name))

    @property
    def lone(self) -> str:
        """Say of a file of one column how columns are told apart."""
        if len(self.names) > 1:
            return ""
        known = ", ".join(DELIMITERS.values())
        return f"; are its columns separated by one of {known}?"

    def frame(self, names: Sequence[str]) -> Frame:
        """Return some of the columns, raw."""
        if not names:
            return Frame((), np.empty((self.table.num_rows, 0)))
        cells = map(tables.arrow_cells, map(self.table.column, names))
        frame = tables.frame_of_columns(names, cells)
        return replace(frame, decimal=self.decimal, findings=self.findings)


def read_table(
    path: Path, texts: Collection[str] = (), only: str | None = None
) -> RawTable:
    """Read a file of rows and columns; of a .csv file `texts` as they are written.

    Of Parquet and Arrow files the column `only` is read, where it is named and there.
    """
    import pyarrow

    suffix = path.suffix.lower()
    try:
        if suffix in EXCEL:
            raw = _read_excel(path)
        elif suffix in ARROW or path.is_dir():
            raw = _read_arrow(path, only)
        elif is_array(path):
            frame = tables.frame_of(read_array(path))
            columns = map(pyarrow.array, frame.numeric.T)
            raw = RawTable(pyarrow.table(list(columns), list(frame.names)))
        else:
            raw = _read_csv(path, texts)
    except DataError:
        raise
    except (pyarrow.ArrowException, csv.Error, OSError, ValueError) as error:
        raise unreadable(path, error) from None
    tables.checked_names(raw.names, None)
    if raw.table.num_rows == 0:
        raise DataError(f"The data file '{path}' must have rows. Got none.")
    return raw


def _read_arrow(path: Path, only: str | None) -> RawTable:
    """Read a Parquet or Arrow file, or a folder of them, or one column."""
    import pyarrow
    from pyarrow import feather, ipc, parquet

    tables, paths = [], arrow_files(path)
    for one in paths:
        if one.suffix.lower() == ".parquet":
            file = parquet.ParquetFile(one)
            names = [only] if only in file.schema_arrow.names else None
            tables.append(file.read(columns=names))
        else:
            with pyarrow.memory_map(str(one)) as mapped:
                names = ipc.open_file(mapped).schema.names
            chosen = [only] if only in names else None
            tables.append(feather.read_table(one, columns=chosen))
    if len(tables) == 1:
        return RawTable(tables[0])
    same_columns(paths, [table.schema for table in tables])
    return RawTable(pyarrow.concat_tables(tables, promote_options="permissive"))


def _read_csv(path: Path, texts: Collection[str]) -> RawTable:
    """Read a file of texts: whatever its delimiter, decimal mark and encoding."""
    import pyarrow
    from pyarrow import csv as arrow

    with path.open("rb") as file:
        head = file.read(HEAD)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf8"
    delimiter = _delimiter(head.decode(encoding, errors="replace"))

    def read(encoding: str, decimal: str) -> Any:
        return arrow.read_csv(
            path,
            arrow.ReadOptions(encoding=encoding),
            arrow.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in head),
            arrow.ConvertOptions(
                strings_can_be_null=False,
                decimal_point=decimal,
                column_types=dict.fromkeys(texts, pyarrow.string()),
            ),
        )

    try:
        table = read(encoding, ".")
        names, kinds = table.column_names, table.schema.types  # names are decoded here
        is_utf8 = bool(names) and not any(map(pyarrow.types.is_binary, kinds))
    except UnicodeDecodeError:
        is_utf8 = False
    if not is_utf8:
        encoding = "cp1252"
        table = read(encoding, ".")
    decimal = ""
    if delimiter != "," and _has_decimal_commas(table):
        table, decimal = read(encoding, ","), ","
    said = []
    if delimiter != ",":
        said.append((f"columns separated by {DELIMITERS[delimiter]}", "read as such"))
    if decimal:
        said.append(("numbers with ',' for decimals", "read as numbers"))
    if encoding != "utf8":
        said.append((f"texts encoded in {encoding}, not UTF-8", "read as such"))
    found = (Finding(None, what, done, "changed") for what, done in said)
    return RawTable(table, decimal, tuple(found))


def _delimiter(head: str) -> str:
    """Return what separates columns: the most often, in the first rows alike."""
    counts = {}
    for delimiter in DELIMITERS:
        rows = csv.reader(io.StringIO(head), delimiter=delimiter)
        first = [len(row) for row, _ in zip(rows, range(5), strict=False) if row]
        whole = first[:-1] if len(first) > 2 else first  # the last may be cut
        counts[delimiter] = whole[0] if len({*whole}) == 1 else 0
    return max(counts, key=lambda delimiter: counts[delimiter])


def _has_decimal_commas(table: Any) -> bool:
    """Tell whether some column of texts is numbers with a comma for decimals."""
    from pyarrow import compute, types

    for column in table.columns:
        if types.is_string(column.type):
            texts = compute.unique(column).drop_null().to_pylist()
            reading = find_reading(texts, "")
            if reading is not None and reading.kind == "number":
                if reading.decimal == ",":
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
    others = len(book.sheet_names) - 1
    if not others:
        return RawTable(table)
    what = f"{others + 1} sheets"
    done = f"the first one, '{sheet.name}', is read"
    return RawTable(table, "", (Finding(None, what, done, "changed"),))


def label_column(names: Sequence[str], label: str | None, path: Path) -> str:
    """Return the label column that was named, or the one that is named like one."""
    if label is not None:
        if label in names:
            return label
        problem = f"Got '{label}'"
    else:
        found = own_labels(names)
        if len(found) == 1:
            return found[0]
        problem = f"Got {' and '.join(found)}" if found else "Got no label"
    hint = "" if label is None else near(label, names)
    if label is None:
        problem += f"; name it, perhaps with --label '{likely_label(names)}'"
    raise DataError(
        f"The label of '{path}' must be one of its columns: {listed(names, 20)}. "
        f"{problem}.{hint}"
    )


def own_labels(names: Sequence[str]) -> list[str]:
    """Return the columns that are named as a label is, of which one is the label."""
    return [name for name in names if name.lower() in LABELS]


def likely_label(names: Sequence[str]) -> str:
    """Return the column that is named most like a label."""
    whole = own_labels(names) or [n for n in names if re.fullmatch(LIKELY, n, re.I)]
    partly = [n for n in names if re.search(LIKELY, n, re.I)]
    return (whole or partly or names[-1:])[0]


def label_cells(raw: RawTable, name: str) -> NDArray[Any]:
    """Return the label column as it is written, classes not yet coded."""
    import pyarrow

    column = raw.table.column(name)
    kind = column.type
    if pyarrow.types.is_temporal(kind) or pyarrow.types.is_nested(kind):
        raise DataError(
            f"The label '{name}' must hold classes or numbers. Got {kind} cells."
        )
    cells = _values(column)
    if not pyarrow.types.is_string(kind):
        return cells
    reading = find_reading({cell for cell in cells if cell is not None}, raw.decimal)
    if reading is not None and reading.kind == "date":
        raise DataError(f"The label '{name}' must hold classes or numbers. Got dates.")
    if reading is None or reading.kind == "truth":
        return cells
    numbers = read_texts(cells, reading)
    assert numbers is not None, "the reading was found on these texts"
    return numbers


# ----------------------------------------------------------------- one side's own table


def load_columns(
    path: Path, id_column: str | None = None, texts: Collection[str] = ()
) -> tuple[Frame, NDArray[Any] | None]:
    """Load a party's own table: its columns, and its ids (texts or whole numbers).

    A ``.npz`` file has the columns in ``X`` and perhaps ``feature_names``. Columns
    among `texts` come as they are written, for a model to read.
    """
    check_file(path)
    if _is_npz(path):
        arrays = read_npz(path, ["X"] + ([id_column] if id_column else []))
        ids = None if id_column is None else arrays[id_column]
        return tables.frame_of(arrays["X"], _texts(arrays.get("feature_names"))), ids
    raw = read_table(path, texts)
    ids = _column_of(raw, id_column, path, "ids")
    names = [name for name in raw.names if name != id_column]
    if not names:
        raise DataError(
            f"The data file '{path}' must have columns. Got none{raw.lone}."
        )
    return raw.frame(names), ids


def load_ids(path: Path, id_column: str) -> NDArray[Any]:
    """Load a column of ids alone."""
    check_file(path)
    if _is_npz(path):
        return read_npz(path, [id_column])[id_column]
    ids = _column_of(read_table(path, only=id_column), id_column, path, "ids")
    assert ids is not None
    return ids


def write_columns(
    path: Path, frame: Frame, ids: NDArray[Any], id_column: str = "row"
) -> None:
    """Write a table and its ids as Parquet, for `load_columns` to give back."""
    import pyarrow
    from pyarrow import parquet

    names = tables.checked_names((id_column, *frame.names), None)
    cells = [_cells_to_write(frame, index) for index in range(len(frame.names))]
    arrays = [pyarrow.array(ids), *map(pyarrow.array, cells)]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, names=names), path)


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as ``.csv`` or ``.parquet``, None for a missing cell."""
    import pyarrow
    from pyarrow import csv, parquet

    table = pyarrow.table(dict(columns))
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)


def _cells_to_write(frame: Frame, index: int) -> Any:
    """Return a column as it is to be read again; texts are categories by then."""
    import pyarrow

    if index in frame.text:
        return pyarrow.array(frame.text[index], pyarrow.string()).dictionary_encode()
    values = frame.numeric[:, index]
    if index in frame.dates:
        days = pyarrow.array(values, from_pandas=True).cast(pyarrow.int32())
        return days.cast(pyarrow.date32())
    if index not in frame.boolean:
        return values
    empty = np.isnan(values)
    if not np.isin(values[~empty], (0.0, 1.0)).all():
        raise DataError(
            f"Column '{frame.names[index]}' must hold truth values. Got other numbers."
        )
    truths: NDArray[Any] = (values == 1.0).astype(object)
    truths[empty] = None
    return truths


def load_labels(
    path: Path,
    label: str | None = None,
    id_column: str | None = None,
    sample_weight: str | None = None,
    task: str | None = None,
    group_column: str | None = None,
) -> tuple[Dataset, NDArray[Any] | None, NDArray[np.bool_] | None]:
    """Load the label holder's own table: labels, ids, and rows marked for testing.

    A ``.npz`` file has the labels in the array ``y`` (or `label`), and may mark test
    rows in the array ``is_test`` and name classes in ``label_names``. `sample_weight`
    is the column or array of row weights, `group_column` that of whom the rows are of.
    What the labels are is told by their look, unless a `task` is given.
    """
    check_file(path)
    weight, is_test, units, arrays = None, None, None, {}
    if _is_npz(path):
        name = label or "y"
        more = [other for other in (id_column, sample_weight, group_column) if other]
        arrays = read_npz(path, [name, *more])
        y, ids = arrays[name], None if id_column is None else arrays[id_column]
        is_test = arrays.get("is_test")
        weight = None if sample_weight is None else arrays[sample_weight]
        units = None if group_column is None else arrays[group_column]
    else:
        raw = read_table(path)
        ids = _column_of(raw, id_column, path, "ids")
        weight = _column_of(raw, sample_weight, path, "row weights")
        units = _column_of(raw, group_column, path, "groups of rows")
        others = (id_column, sample_weight, group_column)
        columns = [name for name in raw.names if name not in others]
        y = label_cells(raw, label_column(columns, label, path))
    names = _texts(arrays.get("label_names"))
    dataset = tables.from_labels(y, path.stem, task, weight, names)
    if units is not None:
        owner = f"'{path.stem}' (column '{group_column}')"
        dataset = replace(dataset, units=check_units(units, len(dataset.y), owner))
    if is_test is not None and (
        is_test.dtype != np.bool_ or is_test.shape != dataset.y.shape
    ):
        raise DataError(
            f"The array 'is_test' of '{path}' must hold a truth value for each of "
            f"{plural(len(dataset.y), 'row')}. Got {is_test.dtype} of shape "
            f"{is_test.shape}."
        )
    release_unused()
    return dataset, ids, is_test


def check_file(path: Path) -> None:
    """Refuse a file of another kind, or that is not there."""
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


def read_npz(path: Path, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file; nothing in it is run."""
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


def _column_of(
    raw: RawTable, column: str | None, path: Path, what: str
) -> NDArray[Any] | None:
    """Return a column that was named as the ids or the row weights."""
    if column is None:
        return None
    if column not in raw.names:
        raise DataError(
            f"The {what} of '{path}' must be one of its columns: "
            f"{listed(raw.names, 20)}. Got '{column}'."
        )
    return _values(raw.table.column(column))


def _values(column: Any) -> NDArray[Any]:
    """Return cells as they are; whole numbers and floats, none missing, as such."""
    import pyarrow

    types, kind = pyarrow.types, column.type
    is_plain = types.is_integer(kind) or types.is_floating(kind)
    if is_plain and column.null_count == 0:
        return np.asarray(column.to_numpy())
    return np.array(column.to_pylist(), dtype=object)
