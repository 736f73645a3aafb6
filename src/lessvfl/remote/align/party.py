"""A party's side of alignment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lessvfl import settings
from lessvfl.errors import AlignmentError, PolicyError
from lessvfl.remote.align import keys, messages, psi
from lessvfl.remote.align.ids import TYPES, Ids
from lessvfl.remote.align.messages import AlignReader, Mode


class PartyAligner:
    """A party's side.

    Send back what :meth:`answer` makes of the hello, then give the last message to
    :meth:`order`. The party agrees to one `mode` alone, and to no fewer common rows
    than `min_common`. With the same `secret` the same hello gets the same answer;
    answers to different hellos have nothing in common. `tell` hears now and then how
    far it is.
    """

    def __init__(
        self,
        mode: Mode,
        ids: Ids | None,
        n_rows: int,
        *,
        secret: bytes,
        min_common: int = 1,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        messages.check_table(mode, ids, n_rows, secret)
        kind = settings.an_int(1)
        if not kind.accepts(min_common):
            raise settings.refuse("min_common", "of a party", kind.allowed, min_common)
        self._mode: Mode = mode
        self._tell = tell
        self._ids = ids
        self._n_rows = n_rows
        self._secret = secret
        self._min_common = min_common
        self._run: bytes | None = None
        self._n_asked = n_rows  # points of the label holder
        self._listed = np.zeros(0, dtype=np.int64)  # the row at each place of the offer

    def answer(self, hello: bytes) -> bytes:
        """Answer the label holder's hello."""
        reader = messages.open_message(hello, messages.HELLO, "the label holder")
        if reader.mode != self._mode:
            raise messages.other_mode(reader.mode, self._mode)
        id_type = reader.take(1)[0]
        if id_type >= len(TYPES) or (id_type == 0 and self._mode != "none"):
            raise reader.error("names no type of ids")
        theirs = TYPES[id_type]
        if self._ids is not None and theirs not in ("absent", self._ids.type):
            raise AlignmentError(
                f"The label holder's ids are {theirs}, the party's are "
                f"{self._ids.type}; both must be of one type.",
                public="The ids of all sides must be of one type.",
            )
        own = keys.derive(self._secret, "party", hashlib.sha256(hello).digest())
        if self._mode == "none":
            parts = self._count(reader, theirs)
        elif self._mode == "plain":
            assert self._ids is not None
            key = reader.take(messages.KEY_BYTES)
            reader.end()
            digests = self._ids.digests(key) + messages.padding(own, self._n_rows)
            parts = [self._list(digests)]
        else:
            assert self._ids is not None
            asked = reader.block(psi.POINT_BYTES)
            self._n_asked = len(asked)
            reader.end()
            scalar = psi.Key(keys.derive(own, "scalar"))
            try:
                psi.check_points(asked)
                what = "answering for the server's ids"
                count = messages.counter(self._tell, what, len(asked))
                answered = scalar.multiply(asked, count)
            except ValueError as error:
                raise reader.error(str(error)) from None
            items = messages.padded_items(own, self._ids)
            count = messages.counter(self._tell, "hiding our ids", len(items))
            points = scalar.hide(items, count)
            parts = [self._list(points), messages.block(answered)]
        self._run = reader.run
        return messages.seal(messages.OFFER, self._mode, self._run, *parts)

    def _list(self, entries: list[bytes]) -> bytes:
        """Offer entries in sorted order: the order of the party's rows is its own."""
        listed = sorted(range(len(entries)), key=entries.__getitem__)
        self._listed = np.array(listed, dtype=np.int64)
        return messages.block([entries[row] for row in listed])

    def _count(self, reader: AlignReader, theirs: str) -> list[bytes]:
        key = reader.take(messages.KEY_BYTES)
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
            rows = np.arange(n_rows)
        else:
            rows = self._rows_at(reader)
        if len(rows) < self._min_common:
            raise PolicyError(
                f"Party policy: at least {self._min_common} common rows are needed. "
                "Got fewer."
            )
        return rows

    def _rows_at(self, reader: AlignReader) -> NDArray[np.int64]:
        """Return the rows at the places that the last message names."""
        places = reader.positions()
        reader.end()
        if len(places) > self._n_asked or (places >= len(self._listed)).any():
            raise reader.error("names rows that the party does not have")
        rows = self._listed[places]
        if (rows >= self._n_rows).any() or len(np.unique(rows)) < len(rows):
            raise reader.error("names rows that the party does not have")
        return rows
