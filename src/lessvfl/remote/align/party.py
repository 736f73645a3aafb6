"""A party's side of alignment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import AlignmentError
from lessvfl.remote.align import messages, psi
from lessvfl.remote.align.ids import DIGEST_BYTES, TYPES, Ids
from lessvfl.remote.align.messages import AlignReader, Mode


class PartyAligner:
    """A party's side.

    Send back what :meth:`answer` makes of the hello, then give the last message to
    :meth:`order`. The party agrees to one `mode` alone.
    """

    def __init__(self, mode: Mode, ids: Ids | None, n_rows: int) -> None:
        messages.check_table(mode, ids, n_rows)
        self._mode: Mode = mode
        self._ids = ids
        self._n_rows = n_rows
        self._run: bytes | None = None

    def answer(self, hello: bytes) -> bytes:
        """Answer the label holder's hello."""
        reader = messages.open_message(hello, messages.HELLO, "the label holder")
        if reader.mode != self._mode:
            raise messages.other_mode(reader.mode, self._mode)
        id_type, key = reader.take(1)[0], reader.take(messages.KEY_BYTES)
        if id_type >= len(TYPES) or (id_type == 0 and self._mode != "none"):
            raise reader.error("names no type of ids")
        theirs = TYPES[id_type]
        if self._ids is not None and theirs not in ("absent", self._ids.type):
            raise AlignmentError(
                f"The label holder's ids are {theirs}, the party's are "
                f"{self._ids.type}; both must be of one type."
            )
        if self._mode == "none":
            parts = self._count(reader, key, theirs)
        elif self._mode == "plain":
            assert self._ids is not None
            reader.end()
            # Sorted: the order of the party's rows is its own.
            digests = self._ids.digests(key) + messages.padding(self._n_rows)
            parts = [messages.block(sorted(digests))]
        else:
            assert self._ids is not None
            asked = reader.block(psi.POINT_BYTES)
            reader.end()
            try:
                points = psi.answer(messages.padded_items(self._ids), asked)
            except ValueError as error:
                raise reader.error(str(error)) from None
            parts = [messages.block(part) for part in points]
        self._run = reader.run
        return messages.seal(messages.OFFER, self._mode, self._run, *parts)

    def _count(self, reader: AlignReader, key: bytes, theirs: str) -> list[bytes]:
        reader.end()
        digests = [] if self._ids is None else [self._ids.digest(key)]
        if theirs == "absent" or not digests:
            messages.warn_unchecked("the party")
        return [messages.COUNT.pack(self._n_rows), messages.block(digests)]

    def order(self, final: bytes) -> NDArray[np.int64]:
        """Return the party's rows in the common order."""
        reader = messages.open_message(final, messages.FINAL, "the label holder")
        if reader.mode != self._mode or reader.run != self._run:
            raise reader.error("belongs to another run")
        if self._mode == "none":
            n_rows = reader.count()
            reader.end()
            if n_rows != self._n_rows:
                raise reader.error("has another number of rows than was agreed")
            return np.arange(n_rows)
        assert self._ids is not None
        key, names = reader.take(messages.KEY_BYTES), reader.block(DIGEST_BYTES)
        reader.end()
        row_of = {digest: row for row, digest in enumerate(self._ids.digests(key))}
        rows = [row_of.pop(name, None) for name in names]
        if not rows or None in rows:
            raise reader.error("names rows that the party does not have")
        return np.array(rows, dtype=np.int64)
