"""Ids of rows: read once, checked at the door, shown to nobody."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.table import is_missing
from lessvfl.errors import AlignmentError
from lessvfl.terms import plural

MAX_IDS = 30_000_000  # of one table; a message of two points each stays under 2 GiB
TYPES = ("absent", "text", "whole numbers")
DIGEST_BYTES = 16  # half of SHA-256: no two of MAX_IDS ids will meet


class Ids:
    """A column of ids, each in one row only.

    Text stays as it is: nothing is trimmed, folded or normalised. Whole numbers are
    written in decimal. 1 and "1" are different ids.
    """

    def __init__(
        self, values: Iterable[object] | NDArray[Any], column: str = "id"
    ) -> None:
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise AlignmentError(
                f"Column '{column}' must be one column. Got {values.ndim} dimensions."
            )
        if isinstance(values, np.ndarray) and values.dtype.kind not in "mM":
            values = values.tolist()  # times would turn into numbers
        cells: list[Any] = list(values)
        if not 1 <= len(cells) <= MAX_IDS:
            raise AlignmentError(
                f"Column '{column}' must hold 1 to {MAX_IDS} ids. "
                f"Got {len(cells)} instead."
            )
        missing = sum(is_missing(cell) or cell == "" for cell in cells)
        if missing:
            raise AlignmentError(
                f"Column '{column}' lacks an id in {missing} of {len(cells)} rows; "
                "every row needs one."
            )
        self.column = column
        self.type = _type_of(cells, column)
        self.items = [f"{self.type[0]}:{cell}" for cell in cells]
        repeated = len(cells) - len(set(self.items))
        if repeated:
            raise AlignmentError(
                f"Column '{column}' has {plural(repeated, 'duplicate id')} in "
                f"{len(cells)} rows; "
                "an id must stand in one row only."
            )
        try:
            "".join(self.items).encode()
        except UnicodeEncodeError:  # its own sentence shows the ids
            raise AlignmentError(
                f"Column '{column}' holds text that is not valid Unicode."
            ) from None

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        """Tell everything but the ids."""
        return f"Ids(column={self.column!r}, type={self.type!r}, rows={len(self)})"

    def fingerprint(self) -> str:
        """Return what tells these ids, in this order, from others; stays at home."""
        return hashlib.sha256(json.dumps(self.items).encode()).hexdigest()

    def digests(self, key: bytes) -> list[bytes]:
        """Return a keyed digest of the id of every row."""
        return [
            hmac.digest(key, item.encode(), "sha256")[:DIGEST_BYTES]
            for item in self.items
        ]

    def digest(self, key: bytes) -> bytes:
        """Return one keyed digest of all ids in order."""
        return hmac.digest(key, b"".join(self.digests(key)), "sha256")[:DIGEST_BYTES]


def _type_of(cells: Sequence[Any], column: str) -> str:
    kinds = set(map(type, cells))
    if all(issubclass(kind, str) for kind in kinds):
        return "text"
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        return "whole numbers"
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise AlignmentError(
        f"Column '{column}' must hold ids of one type, text or whole numbers. "
        f"Got {names} instead."
    )
