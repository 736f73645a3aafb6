"""Tables of the user: .npz, .csv and .parquet files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, Frame
from lessvfl.data.table import (
    checked_names,
    frame_of,
    frame_of_columns,
    from_arrays,
    unusable,
)
from lessvfl.errors import DataError

SUFFIXES = (".npz", ".csv", ".parquet")
LABELS = ("label", "y", "target", "class")


def load_file(path: Path, label: str | None = None) -> Dataset:
    """Load a table from a file.

    Parameters
    ----------
    path : Path
        A ``.npz`` file with arrays ``X`` and ``y`` (and perhaps ``feature_names``,
        ``label_names``, ``X_test``, ``y_test``, ``informative``), or a ``.csv`` or
        ``.parquet`` file.
    label : str, optional
        The label column (the label array of a ``.npz`` file). Unless given it is the
        column named label, y, target or class.

    Returns
    -------
    Dataset
        The table under the name of the file.
    """
    _check_file(path)
    if path.suffix.lower() == ".npz":
        return _load_npz(path, label or "y")
    return _load_table(path, label)


def _unreadable(path: Path, error: Exception) -> DataError:
    line = " ".join(str(error).split()).rstrip(".")
    return DataError(f"The data file '{path}' must be readable. Got this: {line}.")


def _load_npz(path: Path, label: str) -> Dataset:
    """Load arrays by name; nothing in the file is run."""
    arrays = _read_npz(path, ["X", label])
    names = arrays.get("feature_names")
    data = from_arrays(
        arrays["X"],
        arrays[label],
        name=path.stem,
        feature_names=None if names is None else [str(name) for name in names],
        X_test=arrays.get("X_test"),
        y_test=arrays.get(f"{label}_test"),
    )
    return replace(
        data,
        label_names=_label_names(data, arrays.get("label_names")),
        significant=_informative(data, arrays.get("informative"), path),
    )


def _label_names(data: Dataset, names: NDArray[Any] | None) -> tuple[str, ...]:
    """Return the file's names of classes where labels are coded 0..C-1."""
    coded = tuple(str(code) for code in range(len(data.label_names)))
    if names is None or data.label_names != coded or len(names) != len(coded):
        return data.label_names
    return tuple(str(name) for name in names)


def _informative(
    data: Dataset, mask: NDArray[Any] | None, path: Path
) -> NDArray[np.bool_] | None:
    """Return the file's mask of significant columns, where it has one."""
    if mask is None:
        return None
    if mask.shape != (len(data.X.names),):
        raise DataError(
            f"The array 'informative' of '{path}' must have one entry per column, "
            f"{len(data.X.names)}. Got shape {mask.shape}."
        )
    return mask.astype(bool)


def _load_table(path: Path, label: str | None) -> Dataset:
    """Load a .csv or .parquet file, its label column apart."""
    table = _read_arrow(path)
    names = [
        name
        for name in table.column_names
        if not re.fullmatch(r"__index_level_\d+__", name)
    ]
    checked_names(names, None)
    if table.num_rows == 0:
        raise DataError(f"The data file '{path}' must have rows. Got none.")
    target = _label_column(names, label, path)
    features = [name for name in names if name != target]
    if not features:
        raise DataError(
            f"The data file '{path}' must have columns besides the label '{target}'. "
            f"Got none."
        )
    cells = [_arrow_cells(table.column(name), name) for name in features]
    frame = frame_of_columns(features, cells)
    return from_arrays(
        frame, _arrow_labels(table.column(target), target), name=path.stem
    )


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
    usable = (
        types.is_boolean,
        types.is_string,
        types.is_large_string,
        types.is_decimal,
    )
    if types.is_null(kind) or any(is_kind(kind) for is_kind in usable):
        return np.array(column.to_pylist(), dtype=object)
    raise unusable(name, str(kind))


def _arrow_labels(column: Any, name: str) -> NDArray[Any]:
    """Return the label column as it is written, classes not yet coded."""
    import pyarrow

    if pyarrow.types.is_temporal(column.type) or pyarrow.types.is_nested(column.type):
        raise unusable(name, str(column.type))
    return np.array(column.to_pylist(), dtype=object)


# ----------------------------------------------------------------- one side's own table


Ids = NDArray[Any] | None  # texts or whole numbers, one a row


def load_columns(path: Path, id_column: str | None = None) -> tuple[Frame, Ids]:
    """Load a party's own table: its columns, and its ids apart.

    Parameters
    ----------
    path : Path
        A ``.npz`` file with the arrays ``X`` and perhaps ``feature_names`` (ids in the
        array of that name), or a ``.csv`` or ``.parquet`` file.
    id_column : str, optional
        The column of ids.
    """
    _check_file(path)
    if path.suffix.lower() == ".npz":
        arrays = _read_npz(path, ["X"] + ([id_column] if id_column else []))
        told = arrays.get("feature_names")
        given = None if told is None else [str(name) for name in told]
        ids = None if id_column is None else arrays[id_column]
        return frame_of(arrays["X"], given), ids
    table = _read_arrow(path)
    ids = _ids(table, id_column, path)
    names = [name for name in table.column_names if name != id_column]
    checked_names(names, None)
    if table.num_rows == 0 or not names:
        raise DataError(f"The data file '{path}' must have rows and columns. Got none.")
    cells = [_arrow_cells(table.column(name), name) for name in names]
    return frame_of_columns(names, cells), ids


def load_labels(
    path: Path, label: str | None = None, id_column: str | None = None
) -> tuple[Dataset, Ids, NDArray[np.bool_] | None]:
    """Load the label holder's own table: labels, ids, and rows marked for testing.

    A ``.npz`` file has the labels in the array ``y`` (or `label`), and may mark test
    rows in the array ``is_test``.
    """
    _check_file(path)
    if path.suffix.lower() == ".npz":
        name = label or "y"
        arrays = _read_npz(path, [name] + ([id_column] if id_column else []))
        y, ids = arrays[name], None if id_column is None else arrays[id_column]
        is_test = arrays.get("is_test")
    else:
        table = _read_arrow(path)
        ids, is_test = _ids(table, id_column, path), None
        names = [name for name in table.column_names if name != id_column]
        target = _label_column(names, label, path)
        y = _arrow_labels(table.column(target), target)
    nothing = np.zeros((len(y), 1))
    return from_arrays(nothing, y, name=path.stem), ids, is_test


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


def _ids(table: Any, column: str | None, path: Path) -> Ids:
    if column is None:
        return None
    if column not in table.column_names:
        raise DataError(
            f"The ids of '{path}' must be one of its columns: "
            f"{', '.join(table.column_names[:20])}. Got '{column}'."
        )
    return np.array(table.column(column).to_pylist(), dtype=object)
