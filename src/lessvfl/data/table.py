"""Tables and labels from whatever the user has: arrays, or frames of any library."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.column import Column, ColumnKind
from lessvfl.data.columns import apply_columns, infer_columns
from lessvfl.data.frame import Dataset, Floats, Frame, check_texts, is_missing
from lessvfl.data.labels import code_labels, label_cells
from lessvfl.data.roles import check_weights
from lessvfl.errors import DataError


def from_arrays(
    X: Any,
    y: Any,
    *,
    name: str = "table",
    feature_names: Sequence[str] | None = None,
    task: str | None = None,
    X_test: Any = None,
    y_test: Any = None,
    sample_weight: Any = None,
    label_names: Sequence[str] | None = None,
) -> Dataset:
    """Make a data set of a table and its labels.

    Parameters
    ----------
    X : array, pandas or polars frame of shape (n_samples, n_features)
        Numbers, truth values, dates, and texts or categories; missing cells are
        allowed. Texts that are numbers, dates, or yes and no are read as such; ids
        and free text are left out.
    y : array of shape (n_samples,)
        Texts, truth values and whole numbers that look like codes (docs/data.md) are
        classes; other numbers are amounts to regress on.
    name : str
        What the data set is called in records.
    feature_names : sequence of str, optional
        Names of the columns; those of the frame, or ``x0``, ``x1``, ... unless given.
    task : {"auto", "classification", "binary", "multiclass", "regression"}, optional
        What the labels are, where the rule above is not what you want.
    X_test, y_test : like `X` and `y`, optional
        The data set's own test rows.
    sample_weight : array of shape (n_samples,), optional
        How much every row counts in the loss; no feature, and no party's.
    label_names : sequence of str, optional
        Names of the classes, for labels that are coded 0, 1, ...

    Returns
    -------
    Dataset
        The raw data; nothing is scaled or filled in yet.

    Examples
    --------
    >>> data = from_arrays([[0.5, 1.0], [2.0, 3.0]], ["no", "yes"])
    >>> data.task, data.label_names, data.X.names
    ('binary', ('no', 'yes'), ('x0', 'x1'))
    """
    frame, findings = infer_columns(frame_of(X, feature_names))
    if frame.n_rows == 0 or not frame.names:
        raise DataError(
            f"The data set '{name}' must have rows and columns. "
            f"Got {frame.n_rows} rows and {len(frame.names)} columns."
        )
    if (X_test is None) != (y_test is None):
        raise DataError(f"The test rows of '{name}' need both X_test and y_test.")
    cells = label_cells(y, frame, name)
    frame_test, cells_test = None, cells[:0]
    if X_test is not None:
        named = isinstance(X_test, Frame) or hasattr(X_test, "columns")
        raw = frame_of(X_test, None if named else frame.names)
        frame_test = apply_columns(raw, frame.columns, f"the test rows of '{name}'")
        cells_test = label_cells(y_test, frame_test, name)
    whole = cells if X_test is None else [*cells, *cells_test]
    data = _with_labels(name, frame, whole, task, label_names, sample_weight)
    if frame_test is None:
        return replace(data, findings=findings)
    n, y = frame.n_rows, data.y
    return replace(data, y=y[:n], X_test=frame_test, y_test=y[n:], findings=findings)


def from_labels(
    y: Any,
    name: str,
    task: str | None = None,
    sample_weight: Any = None,
    label_names: Sequence[str] | None = None,
) -> Dataset:
    """Make a data set of labels alone, whose rows have no columns here."""
    cells = label_cells(y, None, name)
    if len(cells) == 0:
        raise DataError(f"The data set '{name}' must have rows. Got none.")
    frame = Frame((), np.empty((len(cells), 0)))
    return _with_labels(name, frame, cells, task, label_names, sample_weight)


def _with_labels(
    name: str,
    frame: Frame,
    cells: Sequence[Any] | NDArray[Any],
    task: str | None,
    label_names: Sequence[str] | None,
    sample_weight: Any,
) -> Dataset:
    """Return a user's own data set, its labels coded and its row weights checked."""
    y, kind, names, reason = code_labels(cells, name, task, label_names)
    data = Dataset(name, frame, y, kind, names, scale="standardize", task_reason=reason)
    if sample_weight is None:
        return data
    weight = check_weights(sample_weight, frame.n_rows, f"'{name}'")
    return replace(data, weight=weight)


def frame_of(X: Any, feature_names: Sequence[str] | None = None) -> Frame:
    """Read a table: a two-dimensional array, a pandas or polars frame, an Arrow table.

    `feature_names` take the place of its own. A Frame comes back as it is.
    """
    if isinstance(X, Frame):
        return X
    X = in_memory(X)
    read: Callable[[str, Any], ColumnAndCells]
    if hasattr(X, "column_names"):  # arrow
        names_of_X, columns, read = X.column_names, X.columns, arrow_column
    elif hasattr(X, "get_columns"):  # polars
        columns, read = X.get_columns(), _polars_column
        names_of_X = [column.name for column in columns]
    elif hasattr(X, "dtypes") and hasattr(X, "columns"):  # pandas
        names_of_X, read = [str(column) for column in X.columns], _pandas_column
        columns = (X.iloc[:, i] for i in range(len(names_of_X)))
    else:
        try:
            X = np.asarray(X)
        except ValueError:
            raise DataError("A table must have rows of equal length.") from None
        if X.ndim != 2:
            raise DataError(
                f"A table must have two dimensions, rows and columns. "
                f"Got shape {X.shape}."
            )
        if X.dtype.kind not in "iufbOUSM":
            raise DataError(
                f"A table must hold numbers, truth values, dates or texts. "
                f"Got {X.dtype}."
            )
        names_of_X, columns = [f"x{i}" for i in range(X.shape[1])], X.T
        read = array_column
    names = checked_names(names_of_X, feature_names)
    is_plain = read is array_column and X.dtype.kind in "iufb"
    if is_plain and not (X.dtype.kind in "iu" and _may_be_long(X)):
        kind: ColumnKind = "boolean" if X.dtype.kind == "b" else "numeric"
        numbers = np.ascontiguousarray(X, dtype=np.float64)
        return Frame.of_numbers(names, numbers, kind)
    return frame_of_columns(map(read, names, columns), (X.shape[0], len(names)))


def in_memory(X: Any) -> Any:
    """Return a polars query's result, an Arrow batch as a table, others unchanged."""
    if hasattr(X, "collect_schema") and hasattr(X, "collect"):
        return X.collect()
    if hasattr(X, "column_names") and not hasattr(X, "combine_chunks"):
        import pyarrow

        return pyarrow.Table.from_batches([X])
    return X


def columns_at(X: Any, places: Sequence[int]) -> Any:
    """Return some columns of a frame, as they came."""
    if hasattr(X, "iloc"):
        return X.iloc[:, places]
    return X.select([X.columns[i] if hasattr(X, "get_columns") else i for i in places])


def array_of(X: Any) -> NDArray[Any]:
    """Return the cells of a frame: numbers as such, or objects where some are none."""
    if hasattr(X, "iloc"):
        columns = [_pandas_array(X.iloc[:, i]) for i in range(X.shape[1])]
    else:
        whole = X.get_columns() if hasattr(X, "get_columns") else X
        columns = [_plain_array(column) for column in whole]
    if any(cells.dtype.kind not in "iufb" for cells in columns):
        columns = [cells.astype(object) for cells in columns]
    return np.column_stack(columns) if columns else np.empty((X.shape[0], 0))


def _pandas_array(series: Any) -> NDArray[Any]:
    if getattr(series.dtype, "kind", "O") not in "iufb":
        return np.asarray(series.to_numpy(dtype=object, na_value=np.nan))
    cells = np.asarray(series.to_numpy())
    if cells.dtype != object:
        return cells
    return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))


def _plain_array(column: Any) -> NDArray[Any]:
    """Return the cells (N,) of a polars or Arrow column, as numbers or as objects."""
    kind = str(getattr(column, "dtype", None) or column.type).lower()
    if kind.startswith(("int", "uint", "float", "bool", "double", "halffloat")):
        if not kind.endswith("128"):  # numpy has none
            return np.asarray(column.to_numpy())
    to_list = column.to_list if hasattr(column, "to_list") else column.to_pylist
    return np.fromiter(to_list(), dtype=object)


EXACT = 2**53  # up to which a double holds every whole number
LARGEST = int(np.finfo(np.float64).max)
WHOLE = (int, np.integer, decimal.Decimal)
SCALARS = (str, float, np.floating, np.bool_, datetime.date, *WHOLE)
ColumnAndCells = tuple[Column, NDArray[Any]]  # floats, or texts with None for missing


def frame_of_columns(
    columns: Iterable[ColumnAndCells], shape: tuple[int, int]
) -> Frame:
    """Make a table of so many rows and columns."""
    matrix = np.full(shape, np.nan)
    text: dict[int, NDArray[np.object_]] = {}
    described: list[Column] = []
    for index, (column, cells) in enumerate(columns):
        described.append(column)
        if column.is_text:
            check_texts(cells, f"The texts of column {column.name!r}")
            text[index] = cells
        else:
            matrix[:, index] = cells
    return Frame(tuple(described), matrix, text)


def checked_names(
    original: Sequence[str], given: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the names of columns, or refuse a wrong number or one that comes twice."""
    names = tuple(str(name) for name in (original if given is None else given))
    if len(names) != len(original):
        raise DataError(
            f"The 'feature_names' must name every column. "
            f"Got {len(names)} names for {len(original)} columns."
        )
    check_texts(names, "Column names")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"Column names must differ. Got {twice!r} more than once.")
    return names


# ------------------------------------------------------- one column of each library


def array_column(name: str, cells: NDArray[Any]) -> ColumnAndCells:
    """Return what one column of an array holds, and its cells as numbers or texts."""
    kind = cells.dtype.kind
    if kind in "iufb" and not (kind in "iu" and _may_be_long(cells)):
        of_truth = kind == "b"
        return Column(name, "boolean" if of_truth else "numeric"), cells.astype(float)
    if kind == "M":
        return Column(name, "date"), days_of(cells)
    if kind not in "OUSiu":
        return _unusable(name, len(cells), str(cells.dtype))
    plain = cells.tolist()
    values = [None if is_missing(cell) or cell == "" else cell for cell in plain]
    present = [cell for cell in values if cell is not None]
    are_texts = any(isinstance(cell, str) for cell in present)
    if (are_texts or any(map(_is_long, present))) and all(
        isinstance(cell, SCALARS) for cell in present
    ):
        texts = [None if cell is None else str(cell) for cell in values]
        return Column(name, "text"), np.array(texts, dtype=object)
    if present and all(isinstance(cell, bool | np.bool_) for cell in present):
        return Column(name, "boolean"), _floats(values)
    if present and all(isinstance(cell, datetime.date) for cell in present):
        epoch = datetime.date(1970, 1, 1).toordinal()
        days = [None if cell is None else cell.toordinal() - epoch for cell in values]
        return Column(name, "date"), _floats(days)
    try:
        if any(isinstance(cell, bytes) for cell in present):
            raise TypeError
        return Column(name), _floats(values)
    except OverflowError:
        return _unusable(name, len(cells), "numbers beyond 1.8e308")
    except (TypeError, ValueError):
        kinds = sorted({type(cell).__name__ for cell in present})
        return _unusable(name, len(cells), f"{' and '.join(kinds)} cells")


def _may_be_long(numbers: NDArray[Any]) -> bool:
    """Tell whether some number may be one that no double holds."""
    return numbers.size > 0 and max(-int(numbers.min()), int(numbers.max())) > EXACT


def _is_long(cell: Any) -> bool:
    """Tell whether a cell is a whole number that no double holds, as long ids are."""
    if isinstance(cell, bool) or not isinstance(cell, WHOLE):
        return False
    if isinstance(cell, decimal.Decimal) and not (
        cell.is_finite() and cell == cell.to_integral_value()
    ):
        return False
    whole = int(cell)
    return abs(whole) > EXACT and (abs(whole) > LARGEST or float(whole) != whole)


def _unusable(name: str, n_rows: int, why: str) -> ColumnAndCells:
    """Return a column whose cells no network can take."""
    return Column(name, left_out=why), np.full(n_rows, np.nan)


def days_of(moments: NDArray[Any]) -> Floats:
    """Return dates as days since 1970-01-01, NaN where one is missing."""
    days = moments.astype("M8[D]")
    return np.where(np.isnat(days), np.nan, days.astype(np.float64))


def _floats(values: Sequence[Any]) -> Floats:
    cells = [math.nan if cell is None else float(cell) for cell in values]
    return np.array(cells, dtype=np.float64)


def _pandas_column(name: str, series: Any) -> ColumnAndCells:
    dtype = series.dtype
    if str(dtype) == "category":
        return Column(name, "categorical"), _texts(series.tolist())
    kind = getattr(dtype, "kind", "O")
    if kind in "iuf":
        numbers = np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        if kind == "f" or not (np.abs(numbers) > EXACT).any():
            return Column(name), numbers
    if kind == "M":
        if getattr(dtype, "tz", None) is not None:  # as a clock on the wall shows them
            series = series.dt.tz_localize(None)
        return Column(name, "date"), days_of(series.to_numpy(dtype="M8[us]"))
    if kind in "mc":
        return _unusable(name, len(series), str(dtype))
    return array_column(name, np.fromiter(series.tolist(), dtype=object))


def _polars_column(name: str, series: Any) -> ColumnAndCells:
    kind = str(series.dtype)
    if kind.startswith(("Int", "UInt", "Float")):
        numbers = np.asarray(series.cast(float).to_numpy())
        if kind.startswith("Float") or not (np.abs(numbers) > EXACT).any():
            return Column(name), numbers
    if kind.startswith(("Categorical", "Enum")):
        return Column(name, "categorical"), _texts(series.to_list())
    if kind.startswith("Date"):  # and Datetime
        return Column(name, "date"), days_of(series.dt.date().to_numpy())
    if kind.startswith(
        ("Int", "UInt", "Boolean", "String", "Decimal", "Null", "Object")
    ):
        return array_column(name, np.fromiter(series.to_list(), dtype=object))
    return _unusable(name, len(series), kind)


def arrow_column(name: str, column: Any) -> ColumnAndCells:
    """Return what an Arrow column holds, and its cells as numbers or texts (N,)."""
    import pyarrow

    from lessvfl.data.arrow_cells import numbers_of, texts_of

    kind = column.type
    types = pyarrow.types
    if types.is_dictionary(kind):
        values = column.cast(kind.value_type).to_pylist()
        labels = [None if v is None else str(v) for v in values]
        return Column(name, "categorical"), np.array(labels, dtype=object)
    if types.is_integer(kind) or types.is_floating(kind):
        numbers = numbers_of(column.cast(pyarrow.float64(), safe=False))
        if types.is_floating(kind) or not (np.abs(numbers) > EXACT).any():
            return Column(name), numbers
    if types.is_string(kind) or types.is_large_string(kind):
        texts = texts_of(column)
        texts[texts == ""] = None
        return Column(name, "text"), texts
    if types.is_timestamp(kind) or types.is_date(kind):
        # Of moments with a time zone, the day that its clocks show.
        days = column.cast(pyarrow.date32(), safe=False).cast(pyarrow.int32())
        return Column(name, "date"), numbers_of(days.cast(pyarrow.float64()))
    listed = (types.is_integer, types.is_decimal, types.is_boolean, types.is_null)
    if any(is_one(kind) for is_one in listed):
        return array_column(name, np.array(column.to_pylist(), dtype=object))
    return _unusable(name, len(column), f"{kind} cells")


def _texts(cells: Iterable[Any]) -> NDArray[np.object_]:
    """Return categories as texts, whatever they were made of."""
    texts = [None if is_missing(cell) else str(cell) for cell in cells]
    return np.array(texts, dtype=object)
