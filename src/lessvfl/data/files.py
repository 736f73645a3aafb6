"""Tables of the user: .npz, .csv and .parquet files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import table as tables
from lessvfl.data.frame import Dataset, Frame
from lessvfl.data.labels import take_weights
from lessvfl.errors import DataError
from lessvfl.terms import Task

SUFFIXES = (".npz", ".csv", ".parquet")
LABELS = ("label", "y", "target", "class")


def load_file(
    path: Path, label: str | None = None, sample_weight: str | None = None
) -> Dataset:
    """Load a table from a file, under the file's name.

    A ``.npz`` file has the arrays ``X`` and ``y``, and perhaps ``feature_names``,
    ``label_names``, ``X_test``, ``y_test`` and ``informative``. The row weights are one
    of its columns, which is then no feature, or an array of their own in such a file.
    """
    _check_file(path)
    if not _is_npz(path):
        table = _load_table(path, label)
        return table if sample_weight is None else take_weights(table, sample_weight)
    label = label or "y"
    arrays = _read_npz(path, ["X", label])
    frame = tables.frame_of(arrays["X"], _texts(arrays.get("feature_names")))
    X_test, y_test = arrays.get("X_test"), arrays.get(f"{label}_test")
    own = sample_weight in arrays and sample_weight not in frame.names
    data = tables.from_arrays(
        frame,
        arrays[label],
        name=path.stem,
        X_test=X_test,
        y_test=y_test,
        sample_weight=arrays[str(sample_weight)] if own else None,
    )
    data = _with_label_names(data, arrays)
    if (mask := arrays.get("informative")) is not None:
        data = _with_informative(data, mask, path)
    return data if own or sample_weight is None else take_weights(data, sample_weight)


def _with_label_names(data: Dataset, arrays: Mapping[str, NDArray[Any]]) -> Dataset:
    """Return a data set whose classes have the names that its file gives them."""
    coded = [str(code) for code in range(len(data.label_names))]
    names = _texts(arrays.get("label_names"))
    if names and list(data.label_names) == coded and len(names) == len(coded):
        return replace(data, label_names=tuple(names))
    return data


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


def _unreadable(path: Path, error: Exception) -> DataError:
    line = " ".join(str(error).split()).rstrip(".")
    return DataError(f"The data file '{path}' must be readable. Got this: {line}.")


def load_rows(
    path: Path, columns: Collection[str], label: str | None = None
) -> tuple[Frame, list[Any], list[str] | None]:
    """Load rows to score: the table, its labels as written, and names for them.

    Files are those of `load_file`, and of a ``.npz`` file ``X``, ``y`` and
    ``label_names`` are read. Only these `columns` are, as far as they are there.
    """
    _check_file(path)
    if _is_npz(path):
        label = label or "y"
        arrays = _read_npz(path, ["X", label])
        frame = tables.frame_of(arrays["X"], _texts(arrays.get("feature_names")))
        labels, names = arrays[label], _texts(arrays.get("label_names"))
    else:
        frame, labels = _read_labelled(path, label, columns)
        names = None
    return frame, tables.label_cells(labels, frame, path.stem), names


def _load_table(path: Path, label: str | None) -> Dataset:
    """Load a .csv or .parquet file as a data set."""
    frame, labels = _read_labelled(path, label)
    return tables.from_arrays(frame, labels, name=path.stem)


def _read_labelled(
    path: Path, label: str | None, columns: Collection[str] | None = None
) -> tuple[Frame, NDArray[Any]]:
    """Read a .csv or .parquet file, its label column apart, or some of its columns."""
    table = _read_arrow(path)
    index = re.compile(r"__index_level_\d+__")  # what pandas writes of its own
    names = [name for name in table.column_names if not index.fullmatch(name)]
    tables.checked_names(names, None)
    if table.num_rows == 0:
        raise DataError(f"The data file '{path}' must have rows. Got none.")
    target = _label_column(names, label, path)
    features = [name for name in names if name != target]
    if not features:
        raise DataError(
            f"The data file '{path}' must have columns besides the label '{target}'. "
            f"Got none."
        )
    labels = _arrow_labels(table.column(target), target)
    if columns is not None:
        features = [name for name in features if name in columns]
    return _arrow_frame(table, features), labels


def _arrow_frame(table: Any, names: Sequence[str]) -> Frame:
    cells = [_arrow_cells(table.column(name), name) for name in names]
    if not cells:
        return Frame((), np.empty((table.num_rows, 0)))
    return tables.frame_of_columns(names, cells)


def _read_arrow(path: Path) -> Any:
    """Read the file with pyarrow."""
    import pyarrow
    from pyarrow import csv, parquet

    try:
        if path.suffix.lower() == ".parquet":
            return parquet.ParquetFile(path).read()
        options = csv.ConvertOptions(strings_can_be_null=True)
        return csv.read_csv(path, convert_options=options)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _label_column(names: Sequence[str], label: str | None, path: Path) -> str:
    """Return the label column that was named, or the one that is named like one."""
    if label is not None:
        if label in names:
            return label
        problem = f"Got '{label}'"
    else:
        found = [name for name in names if name.lower() in LABELS]
        if len(found) == 1:
            return found[0]
        problem = f"Got {' and '.join(found)}" if found else "Got no label"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    raise DataError(
        f"The label of '{path}' must be one of its columns: {shown}. {problem}."
    )


def _arrow_cells(column: Any, name: str) -> NDArray[Any]:
    """Return one arrow column as an array of numbers, truth values or objects."""
    import pyarrow

    kind = column.type
    types = pyarrow.types
    if types.is_dictionary(kind):
        values = column.cast(kind.value_type).to_pylist()
        return np.array([None if v is None else str(v) for v in values], dtype=object)
    if types.is_integer(kind) or types.is_floating(kind):
        return np.asarray(column.cast(pyarrow.float64(), safe=False).to_numpy())
    usable = (types.is_boolean, types.is_string, types.is_large_string, types.is_null)
    if types.is_decimal(kind) or any(is_kind(kind) for is_kind in usable):
        return np.array(column.to_pylist(), dtype=object)
    raise tables.unusable(name, str(kind))


def _arrow_labels(column: Any, name: str) -> NDArray[Any]:
    """Return the label column as it is written, classes not yet coded."""
    import pyarrow

    if pyarrow.types.is_temporal(column.type) or pyarrow.types.is_nested(column.type):
        raise tables.unusable(name, str(column.type))
    return np.array(column.to_pylist(), dtype=object)


# ----------------------------------------------------------------- one side's own table


def load_columns(
    path: Path, id_column: str | None = None
) -> tuple[Frame, NDArray[Any] | None]:
    """Load a party's own table: its columns, and its ids (texts or whole numbers).

    A ``.npz`` file has the columns in ``X`` and perhaps ``feature_names``.
    """
    _check_file(path)
    if _is_npz(path):
        arrays = _read_npz(path, ["X"] + ([id_column] if id_column else []))
        ids = None if id_column is None else arrays[id_column]
        return tables.frame_of(arrays["X"], _texts(arrays.get("feature_names"))), ids
    table = _read_arrow(path)
    ids = _column_of(table, id_column, path, "ids")
    names = [name for name in table.column_names if name != id_column]
    tables.checked_names(names, None)
    if table.num_rows == 0 or not names:
        raise DataError(f"The data file '{path}' must have rows and columns. Got none.")
    return _arrow_frame(table, names), ids


def load_ids(path: Path, id_column: str) -> NDArray[Any]:
    """Load a column of ids alone."""
    _check_file(path)
    if _is_npz(path):
        return _read_npz(path, [id_column])[id_column]
    ids = _column_of(_read_arrow(path), id_column, path, "ids")
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


def _cells_to_write(frame: Frame, index: int) -> NDArray[Any]:
    """Return a column as floats, or as truth values or texts with None for missing."""
    if index in frame.text:
        return frame.text[index]
    values = frame.numeric[:, index]
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
    task: Task | None = None,
) -> tuple[Dataset, NDArray[Any] | None, NDArray[np.bool_] | None]:
    """Load the label holder's own table: labels, ids, and rows marked for testing.

    A ``.npz`` file has the labels in the array ``y`` (or `label`), and may mark test
    rows in the array ``is_test`` and name classes in ``label_names``. `sample_weight`
    is the column or array of row weights. What the labels are is told by their look,
    unless a `task` is given.
    """
    _check_file(path)
    weight, is_test, arrays = None, None, {}
    if _is_npz(path):
        name = label or "y"
        more = [other for other in (id_column, sample_weight) if other]
        arrays = _read_npz(path, [name, *more])
        y, ids = arrays[name], None if id_column is None else arrays[id_column]
        is_test = arrays.get("is_test")
        weight = None if sample_weight is None else arrays[sample_weight]
    else:
        table = _read_arrow(path)
        ids = _column_of(table, id_column, path, "ids")
        weight = _column_of(table, sample_weight, path, "row weights")
        others = (id_column, sample_weight)
        names = [name for name in table.column_names if name not in others]
        target = _label_column(names, label, path)
        y = _arrow_labels(table.column(target), target)
    nothing = np.zeros((len(y), 1))
    dataset = tables.from_arrays(
        nothing, y, name=path.stem, task=task, sample_weight=weight
    )
    return _with_label_names(dataset, arrays), ids, is_test


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"A data file must end in {', '.join(SUFFIXES)}. Got '{path}'.")
    if not path.is_file():
        raise DataError(f"The data file '{path}' must exist. Got no such file.")


def _read_npz(path: Path, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file; nothing in it is run."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None
    if not set(needed) <= set(arrays):
        wanted = " and ".join(f"'{name}'" for name in needed)
        many = "arrays" if len(needed) > 1 else "array"
        raise DataError(
            f"The data file '{path}' must hold the {many} {wanted}. "
            f"Got {', '.join(sorted(arrays)) or 'none'}."
        )
    return arrays


def _column_of(
    table: Any, column: str | None, path: Path, what: str
) -> NDArray[Any] | None:
    """Return a column that was named as the ids or the row weights."""
    if column is None:
        return None
    if column not in table.column_names:
        raise DataError(
            f"The {what} of '{path}' must be one of its columns: "
            f"{', '.join(table.column_names[:20])}. Got '{column}'."
        )
    return np.array(table.column(column).to_pylist(), dtype=object)
