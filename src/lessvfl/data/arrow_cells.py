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

PLUS, MINUS, ZERO, NINE = b"+-09"


def numbers_of(column: Any, missing: float = math.nan) -> NDArray[Any]:
    """Return the cells of numbers, `missing` for one that is not there."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    none = np.empty(0, column.type.to_pandas_dtype())
    return np.concatenate([none, *(_numbers(chunk, missing) for chunk in chunks)])


def texts_of(column: Any) -> NDArray[np.object_]:
    """Return the cells of texts, None for one that is not there."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    parts = [np.empty(0, dtype=object)]
    for chunk in chunks:
        coded = chunk.dictionary_encode()
        known = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
        parts.append(known[_numbers(coded.indices, len(known) - 1)])
    return np.concatenate(parts)


def may_be_codes(column: Any, long: int) -> bool:
    """Tell whether texts of numbers may be codes, in a tenth of a pattern's time.

    None is where no text begins with a zero and a digit, has an e before other than a
    minus, or is `long`.
    """
    for chunk in column.chunks if hasattr(column, "chunks") else [column]:
        _, ends, body = chunk.buffers()
        if body is None or not (len(chunk) and body.size):
            continue
        whole = np.frombuffer(ends, np.int32)[chunk.offset :][: len(chunk) + 1]
        cells, starts = np.frombuffer(body, np.uint8), whole[:-1]
        written = cells[whole[0] : whole[-1]].tobytes()
        first, second, third = (cells.take(starts + n, mode="clip") for n in range(3))
        is_signed = (first == PLUS) | (first == MINUS)
        has_zero = np.where(is_signed, second, first) == ZERO
        follows = np.where(is_signed, third, second)
        sizes = np.diff(whole)
        has_zero &= (follows >= ZERO) & (follows <= NINE) & (sizes > 1 + is_signed)
        has_power = any(
            e in written and written.count(e) > written.count(e + b"-")
            for e in (b"e", b"E")
        )
        if has_power or has_zero.any() or sizes.max() >= long:
            return True
    return False


def _numbers(array: Any, missing: float) -> NDArray[Any]:
    mask, body = array.buffers()
    kind, end = np.dtype(array.type.to_pandas_dtype()), array.offset + len(array)
    if body is None:
        return np.empty(0, kind)
    cells = np.frombuffer(body, kind, end)[array.offset :]
    if array.null_count:
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        cells = np.where(bits[array.offset : end] == 1, cells, missing)
    return cells


def arrow_of(cells: Iterable[Any]) -> Any:
    """Return texts, whole numbers, floats or truth values as an Arrow array.

    None stands for a missing one. Cells of other types, or of several, are left to
    ``pyarrow.array``.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
        return _from(pyarrow.from_numpy_dtype(cells.dtype), len(cells), None, cells)
    own = cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
    kinds = {type(cell) for cell in own} - {type(None)}
    there = np.array([cell is not None for cell in own], dtype=np.bool_)
    mask = None if there.all() else _bits(there)
    if kinds == {str}:
        encoded = [b"" if cell is None else cell.encode() for cell in own]
        ends = np.cumsum([0, *map(len, encoded)])
        body = np.frombuffer(b"".join(encoded), np.uint8)
        whole = _from(pyarrow.large_string(), len(own), mask, ends, body)
        return whole.cast(pyarrow.string())
    if kinds == {bool}:
        truths = np.array([bool(cell) for cell in own])
        return _from(pyarrow.bool_(), len(own), mask, _bits(truths))
    if kinds == {float}:
        floats = np.array([0.0 if cell is None else cell for cell in own])
        return _from(pyarrow.float64(), len(own), mask, floats)
    if kinds == {int} and max(map(abs, filter(None, own)), default=0) < 2**63:
        numbers = np.array([cell or 0 for cell in own], dtype=np.int64)
        return _from(pyarrow.int64(), len(own), mask, numbers)
    return pyarrow.array(cells) if kinds else pyarrow.nulls(len(own))


def _bits(truths: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(truths, bitorder="little")


def _from(kind: Any, n_cells: int, *parts: NDArray[Any] | None) -> Any:
    """Return an array of memory: a bit for every cell that is there, and its values."""
    buffers = [None if p is None else pyarrow.py_buffer(p.tobytes()) for p in parts]
    return pyarrow.Array.from_buffers(kind, n_cells, buffers)
