"""Frames without what an earlier one of their kind has said on the same connection.

Step after step a message has the same fields and the same run, and with few bits a
value these are as long as its values. Both ends of a connection remember them by kind,
in each direction the last few; a frame of which they are known travels as

======= ===== ==================================================
offset  bytes what
======= ===== ==================================================
0       1     ``l``; a whole frame begins with ``L``
1       1     8 x kind of the message + place of what is known
2       4     number
6       8     checksum, that of the whole frame
14            the arrays
======= ===== ==================================================

The other end puts the whole frame together again before anything looks at it. Its
checksum is of all that it has, so that ends which remember different things notice.
Long frames travel whole: they have little to gain.
"""

from __future__ import annotations

import struct

from lessvfl.errors import ProtocolError
from lessvfl.wire import codec

MARK = b"l"
HEAD = struct.Struct("<cBI8s")
LONGEST = 1 << 16  # of a whole frame that may be shortened
MOST_NUMBER = 1 << 32
MOST = 8  # runs and fields of a kind that are remembered


class Shorthand:
    """The runs and fields that went one way over a connection, by kind."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[bytes, bytes]]] = {}

    def shorten(self, data: bytes) -> bytes:
        """Return a whole frame as it is sent, without fields that were sent before."""
        place, number, header = _read(data)
        known = self._known.get(place, ())
        if header not in known or len(data) > LONGEST or number >= MOST_NUMBER:
            self._remember(place, header)
            return data
        checksum = data[codec.HEAD.size : codec.HEAD_BYTES]
        body = data[codec.HEAD_BYTES + len(header[1]) :]
        return (
            HEAD.pack(MARK, MOST * place + known.index(header), number, checksum) + body
        )

    def whole(self, data: memoryview) -> memoryview:
        """Return the whole frame for the bytes that came, shortened or not."""
        if bytes(data[:1]) != MARK or len(data) < HEAD.size:
            if len(data) >= codec.HEAD_BYTES:
                place, _, header = _read(data)
                self._remember(place, header)
            return data
        _, code, number, checksum = HEAD.unpack_from(data)
        place, which = divmod(code, MOST)
        known = self._known.get(place, ())
        if which >= len(known):
            raise ProtocolError(
                "A short frame must follow a whole one of its kind. Got number "
                f"{which} of {len(known)}."
            )
        run, text = known[which]
        body = data[HEAD.size :]
        fixed = (codec.MAGIC, codec.VERSION, place, number, run, len(text), len(body))
        return memoryview(b"".join((codec.HEAD.pack(*fixed), checksum, text, body)))

    def _remember(self, place: int, header: tuple[bytes, bytes]) -> None:
        """Remember run and fields, unless they are long or of an unknown kind."""
        if len(header[1]) > codec.LONG_FIELDS or place >= len(codec.KINDS):
            return
        known = self._known.setdefault(place, [])
        if header not in known:
            known.append(header)
            del known[:-MOST]


def _read(data: bytes | memoryview) -> tuple[int, int, tuple[bytes, bytes]]:
    """Return kind and number of a whole frame, and what may be remembered of it."""
    _, _, place, number, run, n_fields, _ = codec.HEAD.unpack_from(data)
    start = codec.HEAD_BYTES
    return place, number, (run, bytes(data[start : start + n_fields]))
