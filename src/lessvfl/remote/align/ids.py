"""Ids of rows: checked when they are read, shown to nobody.

Every use of an id begins with :func:`canonical`. Rows are matched by it alone; whoever
counts or draws something for a person goes by the coarser :func:`account_name`.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import is_missing
from lessvfl.data.id_kinds import PLAIN, kind_of, without_zeros
from lessvfl.data.roles import canonical
from lessvfl.errors import AlignmentError
from lessvfl.terms import plural

MAX_IDS = 30_000_000  # of one table; a message of two points each stays under 2 GiB
AT_ONCE = 1 << 12  # ids that are written out, or entries that are found, together
DIGEST_BYTES = 16  # half of SHA-256: no two of MAX_IDS ids will collide

LONGEST = 2**53  # of a float that is an id: above it others are rounded to it


def account_name(value: object) -> str:
    """Return the name by which a person is counted, and labels are drawn.

    Another way to write an id must not begin a new account, nor draw a second answer:
    whole numbers lose leading zeros, and texts blanks around them and other ways to
    write a character. Two persons whose ids differ in nothing else share an account,
    which then has what was told of both.

    >>> [account_name(value) for value in ("007", 7, "7.0", " Ada")]
    ['7', '7', '7', 'Ada']
    """
    return without_zeros(unicodedata.normalize("NFC", canonical(value)).strip())


class Ids:
    """A column of ids, each in one row only.

    An id is a text as it is written: nothing is trimmed, folded or normalised. A whole
    number is its decimal digits, so 7 and "7" are one id, and "007" is another.
    """

    def __init__(
        self, values: Iterable[object] | NDArray[Any], column: str = "id"
    ) -> None:
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise AlignmentError(
                f"Column '{column}' must be one column. Got {values.ndim} dimensions."
            )
        masked = isinstance(values, np.ma.MaskedArray)
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and not masked:
            self._cells: Sequence[Any] | NDArray[Any] = values.view()  # 8 bytes a row
            self._cells.flags.writeable = False
        elif isinstance(values, np.ndarray) and values.dtype.kind not in "mM":
            self._cells = values.tolist()  # times would turn into numbers
        else:
            self._cells = list(values)
        n_rows = len(self._cells)
        if not 1 <= n_rows <= MAX_IDS:
            raise AlignmentError(
                f"Column '{column}' must hold 1 to {MAX_IDS} ids. Got {n_rows} instead."
            )
        self.column = column
        self.kind = "whole numbers"
        if isinstance(self._cells, np.ndarray):
            in_order = bool((self._cells[1:] > self._cells[:-1]).all())
            n_different = n_rows if in_order else len(np.unique(self._cells))
        else:
            self._cells = _checked(self._cells, column)
            self.kind = kind_of(self._cells)
            n_different = len(set(self._cells))
        if n_different < n_rows:
            raise AlignmentError(
                f"Column '{column}' has {plural(n_rows - n_different, 'duplicate id')} "
                f"in {plural(n_rows, 'row')}; an id must stand in one row only."
            )

    @property
    def items(self) -> list[str]:
        """Return the id of every row, after w for a plain whole number, t for others.

        The letter is of the time when the type of a cell was part of its id: folders of
        that time are known by these texts.
        """
        return [*itertools.chain.from_iterable(self.parts())]

    def parts(self) -> Iterator[list[str]]:
        """Yield the same in parts, which take little memory."""
        for start in range(0, len(self), AT_ONCE):
            some = self._cells[start : start + AT_ONCE]
            cells = some.tolist() if isinstance(some, np.ndarray) else some
            yield [*map(self._item, cells)]

    def item(self, row: int) -> str:
        """Return the id of a row, after its letter."""
        return self._item(self._cells[row])

    def _item(self, cell: object) -> str:
        text = str(cell)
        return f"{'w' if PLAIN.fullmatch(text) else 't'}:{text}"

    def take(self, rows: NDArray[np.int64]) -> Ids:
        """Return the ids of some rows."""
        if isinstance(self._cells, np.ndarray):
            return Ids(self._cells[rows], self.column)
        return Ids([self._cells[row] for row in rows.tolist()], self.column)

    def account_names(self, rows: NDArray[np.int64] | None = None) -> Iterator[str]:
        """Yield the name of each row's account, of all rows unless some are given."""
        if isinstance(self._cells, np.ndarray):  # written without leading zeros
            return map(
                str, (self._cells if rows is None else self._cells[rows]).tolist()
            )
        cells = self._cells
        return map(account_name, cells if rows is None else (cells[i] for i in rows))

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        """Tell everything but the ids."""
        return f"Ids(column={self.column!r}, kind={self.kind!r}, rows={len(self)})"

    def fingerprint(self) -> str:
        """Return a digest of these ids in this order, which must not be sent."""
        return hashlib.sha256(json.dumps(self.items).encode()).hexdigest()

    def digests(self, key: bytes) -> Iterator[bytes]:
        """Yield a keyed digest of the id of every row."""
        for item in itertools.chain.from_iterable(self.parts()):
            yield hmac.digest(key, item.encode(), "sha256")[:DIGEST_BYTES]

    def digest(self, key: bytes) -> bytes:
        """Return one keyed digest of all ids in order, each after its length."""
        whole = hmac.new(key, digestmod="sha256")
        for items in self.parts():
            whole.update("".join([f"{len(item)} {item}" for item in items]).encode())
        return whole.digest()[:DIGEST_BYTES]


def _checked(cells: Sequence[Any], column: str) -> list[str]:
    """Return ids as texts, or refuse cells that are none; no sentence shows a cell."""
    missing = sum(is_missing(cell) or cell == "" for cell in cells)
    if missing:
        raise AlignmentError(
            f"Column '{column}' lacks an id in {missing} of "
            f"{plural(len(cells), 'row')}; every row needs one."
        )
    odd = sorted({type(cell).__name__ for cell in cells if not _is_id(cell)})
    if odd:
        raise AlignmentError(
            f"Column '{column}' must hold ids: texts or whole numbers. "
            f"Got {', '.join(odd)} instead."
        )
    texts = list(map(canonical, cells))
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:  # its own sentence shows the ids
        raise AlignmentError(
            f"Column '{column}' holds text that is not valid Unicode."
        ) from None
    return texts


def _is_id(cell: object) -> bool:
    if isinstance(cell, float | np.floating):
        return cell.is_integer() and abs(float(cell)) <= LONGEST
    return isinstance(cell, str | int | np.integer) and not isinstance(cell, bool)
