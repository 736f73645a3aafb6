"""Tables and labels from whatever the user has: arrays, pandas or polars frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, Floats, Frame
from lessvfl.data.labels import check_weights
from lessvfl.errors import DataError
from lessvfl.settings import refuse
from lessvfl.terms import Task, plural

MAX_CLASSES = 100  # more different whole numbers than this are amounts, not classes


def from_arrays(
    X: Any,
    y: Any,
    *,
    name: str = "table",
    feature_names: Sequence[str] | None = None,
    task: Task | None = None,
    X_test: Any = None,
    y_test: Any = None,
    sample_weight: Any = None,
) -> Dataset:
    """Make a data set of a table and its labels.

    Parameters
    ----------
    X : array, pandas or polars frame of shape (n_samples, n_features)
        Numbers, truth values, and texts or categories; missing cells are allowed.
    y : array of shape (n_samples,)
        Text, truth values and up to 100 different whole numbers are classes; other
        numbers are amounts to regress on.
    name : str
        What the data set is called in records.
    feature_names : sequence of str, optional
        Names of the columns; those of the frame, or ``x0``, ``x1``, ... unless given.
    task : {"binary", "multiclass", "regression"}, optional
        What the labels are, where the rule above is not what you want.
    X_test, y_test : like `X` and `y`, optional
        The data set's own test rows.
    sample_weight : array of shape (n_samples,), optional
        How much every row counts in the loss; no feature, and no party's.

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
    frame = frame_of(X, feature_names)
    if frame.n_rows == 0 or not frame.names:
        raise DataError(
            f"The data set '{name}' must have rows and columns. "
            f"Got {frame.n_rows} rows and {len(frame.names)} columns."
        )
    if (X_test is None) != (y_test is None):
        raise DataError(f"The test rows of '{name}' need both X_test and y_test.")
    cells = label_cells(y, frame, name)
    frame_test, cells_test = None, []
    if X_test is not None:
        named = isinstance(X_test, Frame) or hasattr(X_test, "columns")
        frame_test = frame_of(X_test, None if named else frame.names)
        cells_test = label_cells(y_test, frame_test, name)
    codes, task, label_names = _code_labels([*cells, *cells_test], name, task)
    n = frame.n_rows
    y_test = None if X_test is None else codes[n:]
    data = Dataset(name, frame, codes[:n], task, label_names, frame_test, y_test)
    if sample_weight is not None:
        weight = check_weights(sample_weight, n, f"'{name}'")
        data = replace(data, weight=weight)
    return replace(data, scale="standardize")


def frame_of(X: Any, feature_names: Sequence[str] | None = None) -> Frame:
    """Read a table: a two-dimensional array, a pandas or a polars frame.

    `feature_names` take the place of its own. A Frame comes back as it is.
    """
    if isinstance(X, Frame):
        return X
    if hasattr(X, "get_columns"):  # polars
        series = X.get_columns()
        names = [column.name for column in series]
        cells: Iterable[Any] = (_polars_cells(column) for column in series)
    elif hasattr(X, "dtypes") and hasattr(X, "columns"):  # pandas
        names = [str(column) for column in X.columns]
        cells = (_pandas_cells(X.iloc[:, i], name) for i, name in enumerate(names))
    else:
        try:
            matrix = np.asarray(X)
        except ValueError:
            raise DataError("A table must have rows of equal length.") from None
        if matrix.ndim != 2:
            raise DataError(
                f"A table must have two dimensions, rows and columns. "
                f"Got shape {matrix.shape}."
            )
        if matrix.dtype.kind not in "iufbOUS":
            raise DataError(
                f"A table must hold numbers, truth values or texts. Got {matrix.dtype}."
            )
        names = [f"x{i}" for i in range(matrix.shape[1])]
        if matrix.dtype.kind in "iufb":
            boolean = frozenset(range(len(names)) if matrix.dtype.kind == "b" else ())
            numbers = np.ascontiguousarray(matrix, dtype=np.float64)
            return Frame(checked_names(names, feature_names), numbers, {}, boolean)
        cells = matrix.T
    return frame_of_columns(checked_names(names, feature_names), cells)


def frame_of_columns(names: Sequence[str], columns: Iterable[Any]) -> Frame:
    """Make a table of columns, each an array of numbers, truth values or objects."""
    numeric: list[Floats] = []
    text: dict[int, NDArray[np.object_]] = {}
    boolean: set[int] = set()
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        kind, cells = _column(np.asarray(column), name)
        if kind == "text":
            text[index] = cells
            numeric.append(np.full(len(cells), np.nan))
            continue
        numeric.append(cells)
        if kind == "boolean":
            boolean.add(index)
    matrix = np.column_stack(numeric) if numeric else np.empty((0, 0))
    return Frame(tuple(names), matrix, text, frozenset(boolean))


def is_missing(cell: Any) -> bool:
    """Tell whether a cell holds nothing: None, NaN, or a frame library's own mark."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating) and math.isnan(cell)


def label_cells(y: Any, frame: Frame, name: str) -> list[Any]:
    """Return the labels of a table, or refuse where one is missing."""
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"The labels of '{name}' must be one column. Got shape {array.shape}."
        )
    cells: list[Any] = array.tolist()
    n_missing = sum(is_missing(cell) or cell == "" for cell in cells)
    if n_missing:
        raise DataError(
            f"The labels of '{name}' must have no missing cells. "
            f"Got {plural(n_missing, 'row')} without a label."
        )
    if frame.n_rows != len(cells):
        raise DataError(
            f"The table and the labels of '{name}' must have as many rows. "
            f"Got {plural(frame.n_rows, 'row')} and {plural(len(cells), 'label')}."
        )
    return cells


def _code_labels(
    cells: Sequence[Any], name: str, task: Task | None = None
) -> tuple[NDArray[Any], Task, tuple[str, ...]]:
    """Code labels as 0..C-1, or as floats for regression.

    Numbers are coded in sorted order, texts in order of first appearance.
    """
    if task not in (None, "binary", "multiclass", "regression"):
        raise refuse("task", "argument", "binary, multiclass, regression or None", task)
    numbers = _numbers(cells)
    if numbers is None and task == "regression":
        raise DataError(f"The labels of '{name}' must be numbers for regression.")
    if numbers is not None and not np.isfinite(numbers).all():
        raise DataError(f"The labels of '{name}' must be finite numbers.")
    distinct = list(dict.fromkeys(cells if numbers is None else np.unique(numbers)))
    if len(distinct) < 2:
        raise DataError(
            f"The labels of '{name}' must have two different values or more. "
            f"Got {str(cells[0])!r} in every row."
        )
    if numbers is not None and task is None:
        whole = bool((numbers == np.round(numbers)).all())
        task = None if whole and len(distinct) <= MAX_CLASSES else "regression"
    if task == "regression":
        assert numbers is not None
        return numbers, task, ()
    if task is None and len(distinct) > MAX_CLASSES:
        raise DataError(
            f"The labels of '{name}' must have at most {MAX_CLASSES} different texts. "
            f"Got {len(distinct)}; is it the right column?"
        )
    if task == "binary" and len(distinct) != 2:
        raise DataError(
            f"The labels of '{name}' must have two values for the task 'binary'. "
            f"Got {len(distinct)}."
        )
    keys = cells if numbers is None else numbers
    code = {value: index for index, value in enumerate(distinct)}
    codes = np.array([code[key] for key in keys], dtype=np.int64)
    of_truth = isinstance(cells[0], bool)
    names = [label_name(bool(value) if of_truth else value) for value in distinct]
    return codes, "binary" if len(distinct) == 2 else "multiclass", tuple(names)


def label_name(cell: Any) -> str:
    """Return the name of a class that a label stands for.

    >>> label_name("ill"), label_name(True), label_name(2), label_name(2.0)
    ('ill', 'True', '2', '2')
    """
    return str(cell) if isinstance(cell, str | bool) else f"{float(cell):.17g}"


def _numbers(cells: Sequence[Any]) -> Floats | None:
    """Return labels as floats, or None where one of them is a text."""
    if any(isinstance(cell, str | bytes) for cell in cells):
        if all(isinstance(cell, str) for cell in cells):
            return None
        raise DataError("Labels must be all texts or all numbers. Got both.")
    try:
        return np.array([float(cell) for cell in cells], dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"Labels must be texts, truth values or numbers. "
            f"Got {type(cells[0]).__name__}."
        ) from None


def checked_names(own: Sequence[str], given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of columns, or refuse a wrong number or one that comes twice."""
    names = tuple(str(name) for name in (own if given is None else given))
    if len(names) != len(own):
        raise DataError(
            f"The 'feature_names' must name every column. "
            f"Got {len(names)} names for {len(own)} columns."
        )
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"Column names must differ. Got {twice!r} more than once.")
    return names


def _column(cells: NDArray[Any], name: str) -> tuple[str, NDArray[Any]]:
    """Return what one column is (numeric, boolean or text) and its cells."""
    kind = cells.dtype.kind
    if kind in "iufb":
        return "boolean" if kind == "b" else "numeric", cells.astype(np.float64)
    if kind not in "OUS":
        raise unusable(name, str(cells.dtype))
    plain = cells.tolist()
    values = [None if is_missing(cell) or cell == "" else cell for cell in plain]
    present = [cell for cell in values if cell is not None]
    if present and all(isinstance(cell, bool | np.bool_) for cell in present):
        return "boolean", _floats(values)
    if all(isinstance(cell, str) for cell in present) and present:
        return "text", np.array(values, dtype=object)
    try:
        if any(isinstance(cell, str | bytes) for cell in present):
            raise TypeError
        return "numeric", _floats(values)
    except (TypeError, ValueError):
        kinds = sorted({type(cell).__name__ for cell in present})
        raise unusable(name, " and ".join(kinds)) from None


def _floats(values: Sequence[Any]) -> Floats:
    cells = [math.nan if cell is None else float(cell) for cell in values]
    return np.array(cells, dtype=np.float64)


def unusable(name: str, kind: str) -> DataError:
    """Build the sentence about a column of a kind that cannot be used."""
    return DataError(
        f"Column '{name}' must hold numbers, truth values, texts or categories. "
        f"Got {kind}."
    )


def _pandas_cells(series: Any, name: str) -> NDArray[Any]:
    """Return one pandas column as an array that `_column` understands."""
    dtype = series.dtype
    if str(dtype) == "category":
        return _texts(series.tolist())
    kind = getattr(dtype, "kind", "O")
    if kind in "iuf":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if kind in "mMc":
        raise unusable(name, str(dtype))
    return np.array(series.tolist(), dtype=object)


def _polars_cells(series: Any) -> NDArray[Any]:
    """Return one polars column as an array that `_column` understands."""
    kind = str(series.dtype)
    if kind.startswith(("Int", "UInt", "Float")):
        return np.asarray(series.to_numpy(), dtype=np.float64)
    if kind.startswith(("Categorical", "Enum")):
        return _texts(series.to_list())
    if kind.startswith(("Boolean", "String", "Decimal", "Null", "Object")):
        return np.array(series.to_list(), dtype=object)
    raise unusable(series.name, kind)


def _texts(cells: Iterable[Any]) -> NDArray[np.object_]:
    """Return categories as texts, whatever they were made of."""
    texts = [None if is_missing(cell) else str(cell) for cell in cells]
    return np.array(texts, dtype=object)
