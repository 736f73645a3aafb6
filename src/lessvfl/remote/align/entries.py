"""Points and digests in one piece of memory, as a message has them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.remote.align.ids import AT_ONCE

COUNT = struct.Struct(">Q")

Positions = NDArray[np.int64]  # rows, or places in an offer


class Entries(Sequence[bytes]):
    """Entries of one width behind their count: a block of a message.

    A list of them as ``bytes`` would take two to four times the memory.
    """

    def __init__(self, block: bytes | bytearray | memoryview, width: int) -> None:
        self.block = memoryview(block)
        # To sort and compare: an element that is read from here lacks its last zeros.
        self.array: NDArray[np.bytes_] = np.frombuffer(
            block, f"S{width}", offset=COUNT.size
        )

    @classmethod
    def of(cls, entries: Iterable[bytes], width: int) -> Entries:
        """Put entries together."""
        block = bytearray(COUNT.size)
        for entry in entries:
            block += entry
        COUNT.pack_into(block, 0, (len(block) - COUNT.size) // width)
        return cls(block, width)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> Any:
        width = self.array.itemsize
        start = COUNT.size + width * range(len(self))[at]
        return self.block[start : start + width].tobytes()

    def sort(self) -> Positions:
        """Put them in order, which hides their order; return the old place of each."""
        order = np.argsort(self.array, kind="stable")
        self.array.sort()
        return order

    @property
    def are_sorted(self) -> bool:
        """Tell whether they are in order and all different."""
        return bool((self.array[:-1] < self.array[1:]).all())

    def find(self, wanted: Entries) -> Positions:
        """Return for each wanted entry its place in these sorted ones; -1: nowhere."""
        places = np.empty(len(wanted), dtype=np.int64)
        for start in range(0, len(wanted), AT_ONCE):
            some = wanted.array[start : start + AT_ONCE]
            first = np.searchsorted(self.array, some)
            is_there = first < np.searchsorted(self.array, some, "right")
            places[start : start + AT_ONCE] = np.where(is_there, first, -1)
        return places
