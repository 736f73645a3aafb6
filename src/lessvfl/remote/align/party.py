"""A party's side of alignment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import AlignmentError
from lessvfl.remote.align import messages, psi
from lessvfl.remote.align.ids import DIGEST_BYTES, TYPES, Ids
from lessvfl.remote.align.messages import Mode, Reader


class PartyAligner:
    """A party's side.

    Send back what :meth:`answer` makes of the hello, then give the last message to
    :meth:`order`. If one of these raises, send :func:`refuse` back.

    Parameters
    ----------
    mode : {"psi", "plain", "none"}
        The one mode the party agrees to.
    ids : Ids or None
        The party's ids; None only in mode ``none``.
    n_rows : int
        Rows of the party's table.

    Examples
    --------
    >>> from lessvfl.align import Aligner
    >>> holder = Aligner("plain", Ids(["a", "b", "c"]), 3, min_common=1, seed=0)
    >>> party = PartyAligner("plain", Ids(["c", "x", "b"]), 3)
    >>> holder.take_offer("bank", party.answer(holder.hello()))
    >>> rows = party.order(holder.finish()["bank"])
    >>> holder.rows, rows, party.outside
    (array([1, 2]), array([2, 0]), array([1]))
    """

    def __init__(self, mode: Mode, ids: Ids | None, n_rows: int) -> None:
        messages.check_table(mode, ids, n_rows)
        self._mode: Mode = mode
        self._ids = ids
        self._n_rows = n_rows
        self._run: bytes | None = None
        self._rows: NDArray[np.int64] | None = None

    def answer(self, hello: bytes) -> bytes:
        """Answer the label holder's hello.

        Raises
        ------
        AlignmentError
            If mode or type of the ids differ, or the label holder refused.
        ProtocolError
            If the message does not fit.
        """
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
            parts = self._digests(reader, key)
        else:
            parts = self._points(reader)
        self._run, self._rows = reader.run, None
        return messages.seal(messages.OFFER, self._mode, self._run, *parts)

    def _count(self, reader: Reader, key: bytes, theirs: str) -> list[bytes]:
        reader.end()
        digests = [] if self._ids is None else [self._ids.digest(key)]
        if theirs == "absent" or not digests:
            messages.warn_unchecked("the party")
        return [messages.COUNT.pack(self._n_rows), messages.block(digests)]

    def _digests(self, reader: Reader, key: bytes) -> list[bytes]:
        assert self._ids is not None
        reader.end()
        # Sorted: the order of the party's rows is its own.
        digests = self._ids.digests(key) + messages.padding(self._n_rows)
        return [messages.block(sorted(digests))]

    def _points(self, reader: Reader) -> list[bytes]:
        assert self._ids is not None
        asked = reader.block(psi.POINT_BYTES)
        reader.end()
        try:
            points = psi.answer(messages.padded_items(self._ids), asked)
        except ValueError as error:
            raise reader.error(str(error)) from None
        return [messages.block(part) for part in points]

    def order(self, final: bytes) -> NDArray[np.int64]:
        """Return the party's rows in the common order.

        Raises
        ------
        AlignmentError
            If the label holder refused.
        ProtocolError
            If the message does not fit.
        """
        reader = messages.open_message(final, messages.FINAL, "the label holder")
        if reader.mode != self._mode or reader.run != self._run:
            raise reader.error("belongs to another run")
        if self._mode == "none":
            n_rows = reader.count()
            reader.end()
            if n_rows != self._n_rows:
                raise reader.error("has another number of rows than was agreed")
            self._rows = np.arange(n_rows)
            return self._rows
        assert self._ids is not None
        key, names = reader.take(messages.KEY_BYTES), reader.block(DIGEST_BYTES)
        reader.end()
        row_of = {digest: row for row, digest in enumerate(self._ids.digests(key))}
        rows = [row_of.pop(name, None) for name in names]
        if not rows or None in rows:
            raise reader.error("names rows that the party does not have")
        self._rows = np.array(rows, dtype=np.int64)
        return self._rows

    @property
    def outside(self) -> NDArray[np.int64]:
        """The party's rows outside the common ones, in its own order."""
        if self._rows is None:
            raise AlignmentError("The party's rows are not aligned yet.")
        return np.setdiff1d(np.arange(self._n_rows), self._rows)
