"""Tables and labels from whatever the user has: arrays, or frames of any library."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.columns import follow, settle
from lessvfl.data.frame import Dataset, Floats, Frame
from lessvfl.data.labels import (
    CLASSES,
    MAX_CLASSES,
    TASKS,
    check_weights,
    look_like_classes,
)
from lessvfl.errors import DataError
from lessvfl.settings import refuse
from lessvfl.terms import Task, plural


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
    frame, findings = settle(frame_of(X, feature_names))
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
        frame_test = follow(raw, frame, f"the test rows of '{name}'")
        cells_test = label_cells(y_test, frame_test, name)
    whole = cells if X_test is None else [*cells, *cells_test]
    labels = _code_labels(whole, name, task, label_names)
    n = frame.n_rows
    y_test = None if X_test is None else labels.y[n:]
    own = (labels.y[:n], labels.task, labels.names, frame_test, y_test)
    data = Dataset(name, frame, *own, task_reason=labels.reason)
    return replace(_finished(data, sample_weight), findings=findings)


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
    labels = _code_labels(cells, name, task, label_names)
    frame = Frame((), np.empty((len(labels.y), 0)))
    data = Dataset(name, frame, labels.y, labels.task, labels.names)
    data = replace(data, task_reason=labels.reason)
    return _finished(data, sample_weight)


def _finished(data: Dataset, sample_weight: Any) -> Dataset:
    """Return a user's own data set, with its row weights."""
    weight = sample_weight
    if weight is not None:
        weight = check_weights(weight, len(data.y), f"'{data.name}'")
    return replace(data, weight=weight, scale="standardize")


def frame_of(X: Any, feature_names: Sequence[str] | None = None) -> Frame:
    """Read a table: a two-dimensional array, a pandas or polars frame, an Arrow table.

    `feature_names` take the place of its own. A Frame comes back as it is.
    """
    if isinstance(X, Frame):
        return X
    X = in_memory(X)
    if hasattr(X, "column_names"):  # arrow
        names = X.column_names
        columns: Iterable[Cells] = map(arrow_cells, X.columns)
    elif hasattr(X, "get_columns"):  # polars
        series = X.get_columns()
        names = [column.name for column in series]
        columns = (_polars_cells(column) for column in series)
    elif hasattr(X, "dtypes") and hasattr(X, "columns"):  # pandas
        names = [str(column) for column in X.columns]
        columns = (_pandas_cells(X.iloc[:, i]) for i in range(len(names)))
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
        if matrix.dtype.kind not in "iufbOUSM":
            raise DataError(
                f"A table must hold numbers, truth values, dates or texts. "
                f"Got {matrix.dtype}."
            )
        names = [f"x{i}" for i in range(matrix.shape[1])]
        if matrix.dtype.kind in "iufb":
            boolean = frozenset(range(len(names)) if matrix.dtype.kind == "b" else ())
            numbers = np.ascontiguousarray(matrix, dtype=np.float64)
            return Frame(checked_names(names, feature_names), numbers, {}, boolean)
        columns = map(cells_of, matrix.T)
    frame = frame_of_columns(checked_names(names, feature_names), columns)
    return frame if names else replace(frame, numeric=np.empty((X.shape[0], 0)))


def in_memory(X: Any) -> Any:
    """Return a table as it came; a polars query is run, an Arrow batch is a table."""
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
        own = [_pandas_array(X.iloc[:, i]) for i in range(X.shape[1])]
    else:
        is_polars = hasattr(X, "get_columns")
        own = [_plain_array(one) for one in (X.get_columns() if is_polars else X)]
    if any(cells.dtype.kind not in "iufb" for cells in own):
        own = [cells.astype(object) for cells in own]
    return np.column_stack(own) if own else np.empty((X.shape[0], 0))


def _pandas_array(series: Any) -> NDArray[Any]:
    if getattr(series.dtype, "kind", "O") not in "iufb":
        return np.asarray(series.to_numpy(dtype=object, na_value=np.nan))
    cells = np.asarray(series.to_numpy())
    if cells.dtype != object:
        return cells
    return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))


def _plain_array(column: Any) -> NDArray[Any]:
    """Return the cells of a polars or Arrow column."""
    kind = str(getattr(column, "dtype", None) or column.type).lower()
    if kind.startswith(("int", "uint", "float", "bool", "double", "halffloat")):
        if not kind.endswith("128"):  # numpy has none
            return np.asarray(column.to_numpy())
    to_list = column.to_list if hasattr(column, "to_list") else column.to_pylist
    return np.fromiter(to_list(), dtype=object)


@dataclass(frozen=True)
class Cells:
    """One column as it came, and what it holds."""

    kind: Literal["numeric", "boolean", "date", "text", "category", "other"]
    values: NDArray[Any]  # floats, or texts with None where missing
    what: str = ""  # of a kind that cannot be used: its name

    @classmethod
    def other(cls, n_rows: int, what: str) -> Cells:
        """Return a column that cannot be used."""
        return cls("other", np.full(n_rows, np.nan), what)


def frame_of_columns(names: Sequence[str], columns: Iterable[Cells]) -> Frame:
    """Make a table of columns."""
    numeric: list[Floats] = []
    text: dict[int, NDArray[np.object_]] = {}
    marked: dict[str, set[int]] = {"boolean": set(), "date": set(), "category": set()}
    left_out: dict[int, str] = {}
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        cells = column.values
        if column.kind in ("text", "category"):
            check_texts(cells, f"The texts of column {name!r}")
            text[index] = cells
            cells = np.full(len(cells), np.nan)
        numeric.append(cells)
        if column.kind in marked:
            marked[column.kind].add(index)
        if column.kind == "other":
            left_out[index] = column.what
    return Frame(
        tuple(names),
        np.column_stack(numeric) if numeric else np.empty((0, 0)),
        text,
        frozenset(marked["boolean"]),
        frozenset(marked["date"]),
        frozenset(marked["category"]),
        left_out=left_out,
    )


def is_missing(cell: Any) -> bool:
    """Tell whether a cell holds nothing: None, NaN, or a frame library's own mark."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating) and math.isnan(cell)


def label_cells(y: Any, frame: Frame | None, name: str) -> list[Any] | NDArray[Any]:
    """Return the labels of a table, numbers as an array, or refuse a missing one."""
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"The labels of '{name}' must be one column. Got shape {array.shape}."
        )
    cells: list[Any] | NDArray[Any] = array
    if array.dtype.kind in "iuf" and not isinstance(array, np.ma.MaskedArray):
        n_missing = int(np.isnan(array).sum())
    else:
        cells = array.tolist()
        n_missing = sum(is_missing(cell) or cell == "" for cell in cells)
    if n_missing:
        raise DataError(
            f"The labels of '{name}' must have no missing cells. "
            f"Got {plural(n_missing, 'row')} without a label."
        )
    if frame is not None and frame.n_rows != len(cells):
        raise DataError(
            f"The table and the labels of '{name}' must have as many rows. "
            f"Got {plural(frame.n_rows, 'row')} and {plural(len(cells), 'label')}."
        )
    return cells


@dataclass(frozen=True)
class CodedLabels:
    """Labels as a run takes them, and why they are what they are."""

    y: NDArray[Any]  # codes 0..C-1, or floats for regression
    task: Task
    names: tuple[str, ...]
    reason: str


def _code_labels(
    cells: Sequence[Any] | NDArray[Any],
    name: str,
    task: str | None,
    given_names: Sequence[str] | None,
) -> CodedLabels:
    """Code labels as 0..C-1, or as floats for regression.

    Both numbers and texts are coded in sorted order.
    """
    if task not in (None, *TASKS):
        raise refuse("task", "argument", f"one of {', '.join(TASKS)}", task)
    asked = None if task == "auto" else task
    reason = "as was asked for"
    numbers = _numbers(cells)
    if numbers is None and asked == "regression":
        raise DataError(f"The labels of '{name}' must be numbers for regression.")
    if numbers is not None and not np.isfinite(numbers).all():
        raise DataError(f"The labels of '{name}' must be finite numbers.")
    if numbers is None:
        distinct: Sequence[Any] | Floats = sorted(set(cells))
        check_texts(distinct, f"The labels of '{name}'")
    else:
        values, rows = np.unique(numbers, return_counts=True)
        amounts, place = np.unique(values.astype(np.float64), return_inverse=True)
        distinct, counts = amounts, np.bincount(place, rows)
    if len(distinct) < 2:
        raise DataError(
            f"The labels of '{name}' must have two different values or more. "
            f"Got {str(cells[0])!r} in every row."
        )
    of_truth = isinstance(cells[0], bool)
    if asked is None and numbers is None:
        reason = f"{len(distinct)} different texts"
    elif asked is None and of_truth:
        reason = "truth values"
    elif asked is None:
        is_class, reason = look_like_classes(amounts, counts, bool(given_names))
        asked = CLASSES if is_class else "regression"
    if asked == "regression":
        assert numbers is not None
        y = numbers.astype(np.float64)  # not the array of the caller
        return CodedLabels(y, "regression", (), reason)
    if asked is None and len(distinct) > MAX_CLASSES:
        raise DataError(
            f"The labels of '{name}' must have at most {MAX_CLASSES} different texts. "
            f"Got {len(distinct)}; is it the right column?"
        )
    if asked == "binary" and len(distinct) != 2:
        raise DataError(
            f"The labels of '{name}' must have two values for the task 'binary'. "
            f"Got {len(distinct)}."
        )
    if numbers is None:
        code = {value: index for index, value in enumerate(distinct)}
        codes = np.array([code[cell] for cell in cells], dtype=np.int64)
    else:
        codes = np.searchsorted(distinct, numbers).astype(np.int64, copy=False)
    names = [label_name(bool(value) if of_truth else value) for value in distinct]
    coded = [str(code) for code in range(len(names))]
    if given_names is not None and names == coded and len(given_names) == len(coded):
        check_texts(given_names, f"The names of the classes of '{name}'")
        names = list(given_names)
    kind: Task = "binary" if len(distinct) == 2 else "multiclass"
    return CodedLabels(codes, kind, tuple(names), reason)


def label_name(cell: Any) -> str:
    """Return the name of a class that a label stands for.

    >>> label_name("ill"), label_name(True), label_name(2), label_name(2.0)
    ('ill', 'True', '2', '2')
    """
    return str(cell) if isinstance(cell, str | bool) else f"{float(cell):.17g}"


def _numbers(cells: Sequence[Any] | NDArray[Any]) -> NDArray[Any] | None:
    """Return labels as numbers, or None where one of them is a text."""
    if isinstance(cells, np.ndarray):  # wider ones differ by less
        return cells if cells.itemsize <= 8 else cells.astype(np.float64)
    if any(isinstance(cell, str) for cell in cells):
        if all(isinstance(cell, str) for cell in cells):
            return None
        raise DataError("Labels must be all texts or all numbers. Got both.")
    try:
        if any(isinstance(cell, bytes) for cell in cells):
            raise TypeError
        return np.array([float(cell) for cell in cells], dtype=np.float64)
    except OverflowError:
        raise DataError("Labels must be numbers below 1.8e308. Got others.") from None
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
    check_texts(names, "Column names")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"Column names must differ. Got {twice!r} more than once.")
    return names


def check_texts(texts: Iterable[Any], what: str) -> None:
    """Refuse texts with a lone surrogate, which no file can hold; None is no text."""
    for text in texts:
        try:
            if text is not None and not text.isascii():
                text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{what} must be valid Unicode. Got {text!a}, which has a "
                "surrogate without its pair."
            ) from None


def cells_of(cells: NDArray[Any]) -> Cells:
    """Return one column of an array, and what it holds."""
    kind = cells.dtype.kind
    if kind in "iufb":
        return Cells("boolean" if kind == "b" else "numeric", cells.astype(np.float64))
    if kind == "M":
        return Cells("date", days_of(cells))
    if kind not in "OUS":
        return Cells.other(len(cells), str(cells.dtype))
    plain = cells.tolist()
    values = [None if is_missing(cell) or cell == "" else cell for cell in plain]
    present = [cell for cell in values if cell is not None]
    if all(isinstance(cell, str) for cell in present) and present:
        return Cells("text", np.array(values, dtype=object))
    if present and all(isinstance(cell, bool | np.bool_) for cell in present):
        return Cells("boolean", _floats(values))
    if present and all(isinstance(cell, datetime.date) for cell in present):
        epoch = datetime.date(1970, 1, 1).toordinal()
        days = [None if cell is None else cell.toordinal() - epoch for cell in values]
        return Cells("date", _floats(days))
    try:
        if any(isinstance(cell, str | bytes) for cell in present):
            raise TypeError
        return Cells("numeric", _floats(values))
    except OverflowError:
        return Cells.other(len(cells), "numbers beyond 1.8e308")
    except (TypeError, ValueError):
        kinds = sorted({type(cell).__name__ for cell in present})
        return Cells.other(len(cells), f"{' and '.join(kinds)} cells")


def days_of(moments: NDArray[Any]) -> Floats:
    """Return dates as days since 1970-01-01, NaN where one is missing."""
    days = moments.astype("M8[D]")
    return np.where(np.isnat(days), np.nan, days.astype(np.float64))


def _floats(values: Sequence[Any]) -> Floats:
    cells = [math.nan if cell is None else float(cell) for cell in values]
    return np.array(cells, dtype=np.float64)


def _pandas_cells(series: Any) -> Cells:
    """Return one pandas column."""
    dtype = series.dtype
    if str(dtype) == "category":
        return Cells("category", _texts(series.tolist()))
    kind = getattr(dtype, "kind", "O")
    if kind in "iuf":
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return Cells("numeric", np.asarray(numbers))
    if kind == "M":
        local = series if getattr(dtype, "tz", None) is None else _local(series)
        return Cells("date", days_of(local.to_numpy(dtype="M8[us]")))
    if kind in "mc":
        return Cells.other(len(series), str(dtype))
    return cells_of(np.fromiter(series.tolist(), dtype=object))


def _local(series: Any) -> Any:
    """Return moments as a clock on the wall shows them."""
    return series.dt.tz_localize(None)


def _polars_cells(series: Any) -> Cells:
    """Return one polars column."""
    kind = str(series.dtype)
    if kind.startswith(("Int", "UInt", "Float")):
        return Cells("numeric", np.asarray(series.cast(float).to_numpy()))
    if kind.startswith(("Categorical", "Enum")):
        return Cells("category", _texts(series.to_list()))
    if kind.startswith("Date"):  # and Datetime
        return Cells("date", days_of(series.dt.date().to_numpy()))
    if kind.startswith(("Boolean", "String", "Decimal", "Null", "Object")):
        return cells_of(np.fromiter(series.to_list(), dtype=object))
    return Cells.other(len(series), kind)


def arrow_cells(column: Any) -> Cells:
    """Return one arrow column."""
    import pyarrow

    kind = column.type
    types = pyarrow.types
    if types.is_dictionary(kind):
        values = column.cast(kind.value_type).to_pylist()
        texts = [None if v is None else str(v) for v in values]
        return Cells("category", np.array(texts, dtype=object))
    if types.is_integer(kind) or types.is_floating(kind):
        numbers = column.cast(pyarrow.float64(), safe=False).to_numpy()
        return Cells("numeric", np.asarray(numbers))
    if types.is_string(kind) or types.is_large_string(kind):
        texts = column.to_numpy(zero_copy_only=False)
        texts[texts == ""] = None
        return Cells("text", texts)
    if types.is_timestamp(kind) or types.is_date(kind):
        # Of moments with a time zone, the day that its clocks show.
        days = column.cast(pyarrow.date32(), safe=False).cast(pyarrow.int32())
        return Cells("date", np.asarray(days.cast(pyarrow.float64())))
    if types.is_decimal(kind) or types.is_boolean(kind) or types.is_null(kind):
        return cells_of(np.array(column.to_pylist(), dtype=object))
    return Cells.other(len(column), f"{kind} cells")


def _texts(cells: Iterable[Any]) -> NDArray[np.object_]:
    """Return categories as texts, whatever they were made of."""
    texts = [None if is_missing(cell) else str(cell) for cell in cells]
    return np.array(texts, dtype=object)
