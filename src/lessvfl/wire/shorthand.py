"""Frames without what the last one of their kind has said on the same connection.

Step after step a message has the same fields and the same run, and with few bits a
value these are as long as its values. A frame that differs from the last of its kind,
in the same direction of a connection, in its number and its arrays alone travels as

======= ===== ===========================================
offset  bytes what
======= ===== ===========================================
0       1     ``l``; a whole frame begins with ``L``
1       1     kind of the message
2       4     number
6       8     checksum, that of the whole frame
14            the arrays
======= ===== ===========================================

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


class Shorthand:
    """What one direction of a connection has said: run and fields, by kind."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[bytes, bytes]] = {}

    def shorten(self, data: bytes) -> bytes:
        """Return a whole frame as it travels."""
        _, _, place, number, _, n_fields, _ = codec.HEAD.unpack_from(data)
        before, now = self._said.get(place), self._remember(data)
        is_known = now is not None and now == before
        if not is_known or len(data) > LONGEST or number >= MOST_NUMBER:
            return data
        told = data[codec.HEAD.size : codec.HEAD_BYTES]
        body = data[codec.HEAD_BYTES + n_fields :]
        return HEAD.pack(MARK, place, number, told) + body

    def whole(self, data: memoryview) -> memoryview:
        """Return the whole frame of what came; one that is none comes back as it is."""
        if bytes(data[:1]) != MARK or len(data) < HEAD.size:
            if len(data) >= codec.HEAD_BYTES:
                self._remember(data)
            return data
        _, place, number, told = HEAD.unpack_from(data)
        if place not in self._said:
            raise ProtocolError(
                "A short frame must follow a whole one of its kind. Got it without."
            )
        run, text = self._said[place]
        body = data[HEAD.size :]
        fixed = (codec.MAGIC, codec.VERSION, place, number, run, len(text), len(body))
        return memoryview(b"".join((codec.HEAD.pack(*fixed), told, text, body)))

    def _remember(self, data: bytes | memoryview) -> tuple[bytes, bytes] | None:
        """Keep run and fields of a whole frame in mind, unless they are long."""
        _, _, place, _, run, n_fields, _ = codec.HEAD.unpack_from(data)
        if n_fields > codec.LONG_FIELDS or place >= len(codec.KINDS):
            self._said.pop(place, None)
            return None
        start = codec.HEAD_BYTES
        self._said[place] = run, bytes(data[start : start + n_fields])
        return self._said[place]
