"""Cells from Arrow and to it without pandas.

``pyarrow.array`` and ``to_numpy`` import pandas where it is installed, only to ask
whether they were given something of it. That takes longer than to read most tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

LONG = 2**63  # a whole number that no 64 bits hold
DTYPES: dict[type, type[np.generic]] = {
    bool: np.bool_,
    float: np.float64,
    int: np.int64,
}


def numbers_of(column: Any, missing: float = math.nan) -> NDArray[Any]:
    """Return the cells of numbers, `missing` for one that is not there."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    none = np.empty(0, column.type.to_pandas_dtype())
    return np.concatenate([none, *(_numbers(chunk, missing) for chunk in chunks)])


def texts_of(column: Any) -> NDArray[np.object_]:
    """Return the cells of an Arrow column of texts as str, None for a missing cell."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    parts = [np.empty(0, dtype=object)]
    for chunk in chunks:
        coded = chunk.dictionary_encode()
        known = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
        parts.append(known[_numbers(coded.indices, len(known) - 1)])
    return np.concatenate(parts)


def _numbers(array: Any, missing: float) -> NDArray[Any]:
    if array.null_count:
        array = array.fill_null(arrow_of([missing])[0].cast(array.type))
    return np.from_dlpack(array)


def arrow_of(cells: Iterable[Any]) -> Any:
    """Return texts, whole numbers, floats or truth values as an Arrow array.

    None stands for a missing one. Cells of other types, or of several, are left to
    ``pyarrow.array``.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
        return _from(pyarrow.from_numpy_dtype(cells.dtype), len(cells), None, cells)
    values = cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
    kinds = {type(cell) for cell in values} - {type(None)}
    there = np.array([cell is not None for cell in values], dtype=np.bool_)
    mask = None if there.all() else _bits(there)
    if not kinds:
        return pyarrow.nulls(len(values))
    kind = kinds.pop()
    if kinds or (
        kind is int and max(map(abs, filter(None, values)), default=0) >= LONG
    ):
        return pyarrow.array(cells)
    if kind is str:
        encoded = [b"" if cell is None else cell.encode() for cell in values]
        ends = np.cumsum([0, *map(len, encoded)])
        body = np.frombuffer(b"".join(encoded), np.uint8)
        whole = _from(pyarrow.large_string(), len(values), mask, ends, body)
        return whole.cast(pyarrow.string())
    if kind not in DTYPES:
        return pyarrow.array(cells)
    filled = [kind() if cell is None else cell for cell in values]
    numbers = np.array(filled, dtype=DTYPES[kind])
    body = _bits(numbers) if kind is bool else numbers
    return _from(pyarrow.from_numpy_dtype(numbers.dtype), len(values), mask, body)


def _bits(truths: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(truths, bitorder="little")


def _from(kind: Any, n_cells: int, *parts: NDArray[Any] | None) -> Any:
    """Return an array of memory: a bit for every cell that is there, and its values."""
    buffers = [None if p is None else pyarrow.py_buffer(p.tobytes()) for p in parts]
    return pyarrow.Array.from_buffers(kind, n_cells, buffers)
