"""Which rows something was chosen on, to know them again: a short digest of each.

A digest is of a row's id, or of its cells and its label where rows have no ids. It
takes 6 bytes: among a million rows and a million others, one is taken for another once
in 280 times.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import Frame

SIZE = 6  # bytes of a digest

# Digests of rows, without those that equal another of the same table.
RowMarks = frozenset[bytes]


def of_keys(keys: Iterable[bytes]) -> RowMarks:
    """Mark rows by a key of each."""
    digests = Counter(hashlib.blake2b(k, digest_size=SIZE).digest() for k in keys)
    return frozenset(digest for digest, n in digests.items() if n == 1)


def of_ids(ids: Iterable[str]) -> RowMarks:
    """Mark rows by their ids."""
    return of_keys(b"id " + text.encode("utf-8", "surrogatepass") for text in ids)


def of_rows(frame: Frame, y: NDArray[Any]) -> RowMarks:
    """Mark rows by their cells and their labels.

    Numbers count to seven digits: whoever writes a file anew may change the last one.
    """
    with np.errstate(over="ignore"):
        numbers, y = (
            part.astype(np.float32) + np.float32(0) if part.dtype.kind == "f" else part
            for part in (frame.numeric, y)
        )
    numbers = np.where(np.isnan(numbers), np.float32("nan"), numbers)
    texts = [frame.text[index] for index in sorted(frame.text)]
    return of_keys(
        row.tobytes() + json.dumps([str(label), *map(str, cells)]).encode()
        for row, label, *cells in zip(numbers, y.tolist(), *texts, strict=True)
    )


def marks_text(marks: RowMarks) -> str:
    """Return marks as a text, in no order of the rows."""
    return base64.b64encode(b"".join(sorted(marks))).decode()


def read_marks(text: str) -> RowMarks:
    """Read what :func:`marks_text` wrote."""
    whole = base64.b64decode(text, validate=True)
    if len(whole) % SIZE:
        raise ValueError(f"{len(whole)} bytes of rows")
    return frozenset(whole[at : at + SIZE] for at in range(0, len(whole), SIZE))
