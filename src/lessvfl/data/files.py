"""Tables of the user: .npz, .npy, .csv, Parquet, Arrow and Excel files."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, Frame
from lessvfl.data.labels import label_cells
from lessvfl.data.readers import (
    RawTable,
    read_npz,
    read_table,
    release_unused,
)
from lessvfl.data.roles import (
    NO_ROLES,
    ROW_ROLES,
    HeldOutIds,
    Roles,
    with_cells,
    with_roles,
)
from lessvfl.data.table import checked_names, frame_of, from_arrays, from_labels
from lessvfl.errors import DataError
from lessvfl.settings import near
from lessvfl.terms import listed, plural

LABELS = ("label", "y", "target", "class")
# Names that a label often has, for advice alone.
LIKELY = (
    "label|target|class|outcome|diagnos|risk|response|result|status|churn|default"
    "|disease|surviv|died|death|mortality|fraud|readmi|score|price"
)


def load_file(
    path: Path,
    label: str | None = None,
    roles: Roles = NO_ROLES,
    task: str | None = None,
) -> Dataset:
    """Load a table from a file, under the file's name.

    A ``.npz`` file has the arrays ``X`` and ``y``, and perhaps ``feature_names``,
    ``label_names``, ``X_test``, ``y_test`` and ``informative``. What has a role is one
    of its columns, which is then no feature, or an array of its own in such a file.
    What the labels are is told by their look, unless a `task` is given.
    """
    if not _is_npz(path):
        raw = read_table(path)
        frame, y, target = _labelled(raw, label, path)
        names = [name for name in roles.columns.values() if name in raw.names]
        cells = {name: raw.written(name) for name in names}
        del raw  # the rest is in memory
        release_unused()
        table = from_arrays(frame, y, name=path.stem, task=task)
        return with_roles(replace(table, taken={target: "labels"}), roles, cells)
    label = label or "y"
    arrays = read_npz(path, ["X", label])
    frame = _npz_frame(arrays)
    apart = {
        setting: arrays[name]
        for setting, name in roles.columns.items()
        if name in arrays and name not in frame.names
    }
    data = from_arrays(
        frame,
        arrays[label],
        name=path.stem,
        task=task,
        X_test=arrays.get("X_test"),
        y_test=arrays.get(f"{label}_test"),
        sample_weight=apart.get("sample_weight"),
        label_names=_texts(arrays.get("label_names")),
    )
    if (mask := arrays.get("informative")) is not None:
        if mask.shape != (len(data.X.names),):
            raise DataError(
                f"The array 'informative' of '{path}' must have one entry per column, "
                f"{len(data.X.names)}. Got shape {mask.shape}."
            )
        data = replace(data, significant=mask.astype(bool))
    data = with_cells(data, roles, apart)
    columns = {name: None for name in apart}
    return with_roles(data, replace(roles, **columns))


def _npz_frame(arrays: Mapping[str, NDArray[Any]]) -> Frame:
    return frame_of(arrays["X"], _texts(arrays.get("feature_names")))


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _texts(names: NDArray[Any] | None) -> list[str] | None:
    return None if names is None else [str(name) for name in names]


def load_rows(
    path: Path,
    columns: Collection[str],
    label: str | None = None,
    texts: Collection[str] = (),
) -> tuple[Frame, list[Any], list[str] | None]:
    """Load rows to score: the table, its labels as written, and names of classes.

    Files are those of `load_file`; of a ``.npz`` file ``X``, ``y`` and ``label_names``
    are read. Only columns among `columns` are loaded, where the file has them, and
    those among `texts` stay texts, for the model to read.
    """
    if _is_npz(path):
        label = label or "y"
        arrays = read_npz(path, ["X", label])
        frame, y = _npz_frame(arrays), arrays[label]
        names = _texts(arrays.get("label_names"))
    else:
        frame, y, _ = _labelled(read_table(path, texts), label, path, columns)
        names = None
    cells = label_cells(y, frame, path.stem)
    written = cells.tolist() if isinstance(cells, np.ndarray) else cells
    return frame, written, names


def _labelled(
    raw: RawTable,
    label: str | None,
    path: Path,
    columns: Collection[str] | None = None,
) -> tuple[Frame, NDArray[Any], str]:
    """Return the columns of a file, or some of them; its labels, and their name."""
    target = label_column(raw.names, label, path)
    features = [name for name in raw.names if name != target]
    if not features:
        raise DataError(
            f"The data file '{path}' must have columns besides the label '{target}'. "
            f"Got none{raw.lone}."
        )
    y = read_labels(raw, target)
    if columns is not None:
        features = [name for name in features if name in columns]
    return raw.frame(features), y, target


def label_column(names: Sequence[str], label: str | None, path: Path) -> str:
    """Return the label column that was named, or the one that is named like one."""
    if label is None:
        likely = own_labels(names)
        if len(likely) == 1:
            return likely[0]
        got = " and ".join(likely) or "no label"
        problem = f"{got}; name it, perhaps with --label '{likely_label(names)}'."
    else:
        if label in names:
            return label
        problem = f"'{label}'.{near(label, names)}"
    raise DataError(
        f"The label of '{path}' must be one of its columns: {listed(names, 20)}. "
        f"Got {problem}"
    )


def own_labels(names: Sequence[str]) -> list[str]:
    """Return the columns that are named as a label is, of which one is the label."""
    return [name for name in names if name.lower() in LABELS]


def likely_label(names: Sequence[str]) -> str:
    """Return the column that is named most like a label."""
    whole = own_labels(names) or [n for n in names if re.fullmatch(LIKELY, n, re.I)]
    partly = [n for n in names if re.search(LIKELY, n, re.I)]
    return (whole or partly or names[-1:])[0]


def read_labels(raw: RawTable, name: str) -> NDArray[Any]:
    """Return the label column as it is written, classes not yet coded."""
    import pyarrow

    from lessvfl.data.readings import find_reading, read_texts

    kind = raw.table.column(name).type
    if pyarrow.types.is_temporal(kind) or pyarrow.types.is_nested(kind):
        raise DataError(
            f"The label '{name}' must hold classes or numbers. Got {kind} cells."
        )
    cells = raw.cells(name)
    if cells.dtype != object or not pyarrow.types.is_string(kind):
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
    if _is_npz(path):
        arrays = read_npz(path, ["X"] + ([id_column] if id_column else []))
        return _npz_frame(arrays), None if id_column is None else arrays[id_column]
    raw = read_table(path, texts)
    ids = None if id_column is None else raw.column_of(id_column, path, "ids", "id")
    names = [name for name in raw.names if name != id_column]
    if not names:
        raise DataError(
            f"The data file '{path}' must have columns. Got none{raw.lone}."
        )
    return raw.frame(names), ids


def load_ids(path: Path, id_column: str, what: str = "ids") -> NDArray[Any]:
    """Load a column of ids alone, or one that is `what` else is said."""
    if _is_npz(path):
        return read_npz(path, [id_column])[id_column]
    return read_table(path, only=id_column).column_of(id_column, path, what)


def load_cells(path: Path, texts: Collection[str]) -> dict[str, NDArray[Any]]:
    """Load all columns of a file, `texts` as they are written, others typed."""
    raw = read_table(path)
    return {
        name: raw.written(name) if name in texts else raw.cells(name)
        for name in raw.names
    }


def write_columns(
    path: Path, frame: Frame, ids: NDArray[Any], id_column: str = "row"
) -> None:
    """Write a table and its ids as Parquet, for `load_columns` to give back."""
    import pyarrow
    from pyarrow import parquet

    from lessvfl.data.arrow_cells import arrow_of

    names = checked_names((id_column, *frame.names), None)
    cells = [_cells_to_write(frame, index) for index in range(len(frame.names))]
    arrays = [arrow_of(ids), *cells]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, names=names), path)


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as ``.csv`` or ``.parquet``, None for a missing cell."""
    import pyarrow
    from pyarrow import csv, parquet

    from lessvfl.data.arrow_cells import arrow_of

    table = pyarrow.table({name: arrow_of(cells) for name, cells in columns.items()})
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)


def _cells_to_write(frame: Frame, index: int) -> Any:
    """Return a column as it is to be read again; texts are categories by then."""
    import pyarrow

    from lessvfl.data.arrow_cells import arrow_of

    if index in frame.text:
        return arrow_of(frame.text[index]).cast(pyarrow.string()).dictionary_encode()
    values, kind = frame.numeric[:, index], frame.columns[index].kind
    if kind == "date":
        days = [None if math.isnan(day) else int(day) for day in values.tolist()]
        return arrow_of(days).cast(pyarrow.int32()).cast(pyarrow.date32())
    if kind != "boolean":
        return arrow_of(values)
    empty = np.isnan(values)
    others = values[~empty & ~np.isin(values, (0.0, 1.0))]
    if len(others):
        name = frame.names[index]
        raise DataError(f"Column '{name}' must hold truth values. Got {others[0]:g}.")
    truths = [None if math.isnan(value) else value == 1.0 for value in values.tolist()]
    return arrow_of(truths)


def load_labels(
    path: Path,
    label: str | None = None,
    id_column: str | None = None,
    roles: Roles = NO_ROLES,
    task: str | None = None,
) -> tuple[Dataset, NDArray[Any] | None]:
    """Load the label holder's table: labels, which rows are for tests, ids or None.

    `label` and `id_column` name columns, and `roles` those of weights, groups, times or
    test ids. A ``.npz`` file has the labels in the array ``y`` (or `label`), and may
    mark test rows in ``is_test`` and name classes in ``label_names``. Unless `task` is
    given, it is told by the labels' look.
    """
    arrays: dict[str, NDArray[Any]] = {}
    named = {s: name for s, name in roles.columns.items() if s in ROW_ROLES}
    if id_column is not None:
        named = {"id": id_column, **named}
    if _is_npz(path):
        label = label or "y"
        arrays = read_npz(path, [label, *named.values()])
        y, cells = arrays[label], {s: arrays[name] for s, name in named.items()}
    else:
        raw, words = read_table(path), {"id": "ids", **ROW_ROLES}
        cells = {s: raw.column_of(n, path, words[s], s) for s, n in named.items()}
        if "sample_weight" in named:
            cells["sample_weight"] = raw.cells(named["sample_weight"])
        columns = [name for name in raw.names if name not in named.values()]
        y = read_labels(raw, label_column(columns, label, path))
    for setting, name in named.items():
        if name == roles.columns.get("test_ids"):
            cells["test_ids"] = cells[setting]
    is_test, names = arrays.get("is_test"), _texts(arrays.get("label_names"))
    dataset = from_labels(y, path.stem, task, cells.get("sample_weight"), names)
    if is_test is not None and (
        is_test.dtype != np.bool_ or is_test.shape != dataset.y.shape
    ):
        raise DataError(
            f"The array 'is_test' of '{path}' must hold a truth value for each of "
            f"{plural(len(dataset.y), 'row')}. Got {is_test.dtype} of shape "
            f"{is_test.shape}."
        )
    release_unused()
    dataset = replace(dataset, is_test=is_test)
    return with_cells(dataset, roles, cells), cells.get("id")


def load_roles(
    sample_weight: str | None = None,
    group_column: str | None = None,
    time_column: str | None = None,
    test_ids: str | Path | None = None,
    id_column: str | None = None,
) -> Roles:
    """Return the roles of columns; ids of test rows are read from the file `test_ids`.

    Its column is `id_column`, or its only one unless that is given.
    """
    if test_ids is None:
        return Roles(sample_weight, group_column, time_column)
    path = Path(test_ids).expanduser()
    if id_column is None:
        names = [] if _is_npz(path) else read_table(path).names
        if len(names) != 1:
            raise DataError(
                f"The file of test ids '{path}' must have one column, named as the "
                f"column of ids is in the table. Got {listed(names, 5) or 'arrays'}."
            )
        (id_column,) = names
    ids = HeldOutIds.of(id_column, load_ids(path, id_column), path.name)
    return Roles(sample_weight, group_column, time_column, ids)
