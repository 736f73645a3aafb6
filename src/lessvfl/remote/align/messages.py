"""Messages of alignment as bytes: versioned, bounded, checked before they are read."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import AlignmentError, ConfigError, ProtocolError, warn
from lessvfl.remote.align import keys, psi
from lessvfl.remote.align.entries import COUNT, Entries
from lessvfl.remote.align.ids import DIGEST_BYTES, MAX_IDS, Ids

Mode = Literal["psi", "plain", "none"]
MODES: tuple[Mode, ...] = get_args(Mode)

VERSION = 4  # psi: the party counts before it answers; common rows are proven
PAD_TO = 256  # tables are padded to a multiple of it with random entries
KEY_BYTES = 32
RUN_BYTES = 16
MAX_BYTES = 2 * psi.POINT_BYTES * (MAX_IDS + PAD_TO) + 1024  # of any message

# A message: this head, the body, and the SHA-256 of both.
HEAD = struct.Struct(">4sHBB16sQ")  # magic, version, kind, mode, run, length of body
POSITION = np.dtype(">u4")  # in what a party offered
CHECKSUM_BYTES = 32
MAGIC = b"LVAL"
HELLO, OFFER, ECHO, ANSWER, FINAL = 1, 2, 3, 4, 5


def seal(
    kind: int, mode: Mode, run: bytes, parts: Iterable[bytes | memoryview]
) -> bytes:
    """Return a message; each part of its body is written before the next is made."""
    file = io.BytesIO()  # what is written to it is not copied at the end
    file.seek(HEAD.size)
    file.writelines(parts)
    n_body, number = file.tell() - HEAD.size, MODES.index(mode) + 1
    file.seek(0)
    file.write(HEAD.pack(MAGIC, VERSION, kind, number, run, n_body))
    checksum = hashlib.sha256(file.getbuffer()).digest()
    file.seek(0, io.SEEK_END)
    file.write(checksum)
    return file.getvalue()


def block(entries: Sequence[bytes]) -> bytes:
    """Return entries of one width behind their count."""
    return COUNT.pack(len(entries)) + b"".join(entries)


def positions(places: NDArray[np.int64]) -> bytes:
    """Return positions behind their count."""
    return COUNT.pack(len(places)) + places.astype(POSITION).tobytes()


@dataclass
class AlignReader:
    """The body of a message, read from front to back."""

    who: str
    mode: Mode
    run: bytes
    body: memoryview

    def take(self, n_bytes: int) -> bytes:
        """Return the next bytes, and go on behind them."""
        if n_bytes > len(self.body):
            raise self.error("ends too early")
        taken, self.body = self.body[:n_bytes], self.body[n_bytes:]
        return bytes(taken)

    def count(self) -> int:
        """Return the next number of rows or ids."""
        (count,) = COUNT.unpack(self.take(COUNT.size))
        if count > padded(MAX_IDS):
            raise self.error(f"announces more than {MAX_IDS} ids")
        return int(count)

    def block(self, width: int) -> Entries:
        """Return as many entries of `width` bytes as the next count says."""
        whole, n_bytes = self.body, COUNT.size + width * self.count()
        if n_bytes > len(whole):
            raise self.error("ends too early")
        self.body = whole[n_bytes:]
        return Entries(whole[:n_bytes], width)

    def sorted_block(self, width: int) -> Entries:
        """Return a block whose entries must be sorted and all different."""
        entries = self.block(width)
        if not entries.are_sorted:
            raise self.error("holds entries that are not in order")
        return entries

    def positions(self) -> NDArray[np.int64]:
        """Return as many positions as the next count says."""
        taken = self.take(POSITION.itemsize * self.count())
        return np.frombuffer(taken, POSITION).astype(np.int64)

    def check_points(self, points: Sequence[bytes]) -> None:
        """Refuse what X25519 would take for another point, and zero."""
        if not all(0 < int.from_bytes(one, "little") < psi.PRIME for one in points):
            raise self.error("holds a point that is not on the curve")

    def multiplied(
        self, key: psi.Key, points: Sequence[bytes], count: psi.OnCount = lambda n: None
    ) -> Entries:
        """Check points of the message, and return them multiplied by a key."""
        self.check_points(points)
        try:
            return key.multiply(points, count)
        except ValueError:  # the result is zero
            raise self.error("holds a point that is not on the curve") from None

    def end(self) -> None:
        """Refuse a message that goes on."""
        if self.body:
            raise self.error("goes on after its end")

    def error(self, what: str) -> ProtocolError:
        """Build the error about this message; `what` names no side and no id."""
        return ProtocolError(
            f"The alignment message of {self.who} {what}.",
            public=f"An alignment message {what}.",
        )


def open_message(message: bytes, kind: int, who: str) -> AlignReader:
    """Check a message of the other side."""
    reader = AlignReader(who, "none", b"", memoryview(message))
    if len(message) > MAX_BYTES:
        raise reader.error(f"is larger than {MAX_BYTES} bytes")
    magic, version, got, mode, reader.run, n_bytes = HEAD.unpack(reader.take(HEAD.size))
    if magic != MAGIC:
        raise reader.error("is not an alignment message")
    if version != VERSION:
        raise reader.error(
            f"is of version {version}, but this side speaks version {VERSION}; "
            "both sides need the same version of lessvfl"
        )
    if len(reader.body) != n_bytes + CHECKSUM_BYTES:
        raise reader.error("is cut short or too long")
    checksum = hashlib.sha256(memoryview(message)[:-CHECKSUM_BYTES]).digest()
    if message[-CHECKSUM_BYTES:] != checksum:
        raise reader.error("is damaged: its checksum is wrong")
    reader.body = reader.body[:-CHECKSUM_BYTES]
    if got != kind or not 1 <= mode <= len(MODES):
        raise reader.error("is not the one expected now")
    reader.mode = MODES[mode - 1]
    return reader


def most_offered(mode: Mode, n_rows: int, most_ids: int) -> int:
    """Return the largest size of an offer to a label holder of `n_rows`."""
    listed = {
        "psi": psi.POINT_BYTES * (padded(most_ids) + padded(n_rows)),
        "plain": DIGEST_BYTES * padded(most_ids),
        "none": 0,
    }
    return min(listed[mode] + 1024, MAX_BYTES)


def most_asked(mode: Mode, n_rows: int, most_ids: float, is_first: bool) -> int:
    """Return the largest message of a label holder to a party of `n_rows`.

    The first one offers up to `most_ids` ids, later ones are about the party's rows.
    """
    if mode == "psi" and is_first:
        listed = psi.POINT_BYTES * padded(math.ceil(min(most_ids, MAX_IDS)))
    else:  # its own points, twice; or for each common row two places and a proof
        listed = 2 * psi.POINT_BYTES * padded(n_rows)
    return min(listed + 1024, MAX_BYTES)


def padded(count: int) -> int:
    """Return the number of entries that a table of this many rows sends."""
    return -(-count // PAD_TO) * PAD_TO


def padding(key: bytes, count: int) -> list[bytes]:
    """Return entries that no other side has, up to the padded count."""
    n_more = padded(count) - count
    return [keys.derive(key, f"padding/{i}")[:DIGEST_BYTES] for i in range(n_more)]


def padded_items(key: bytes, ids: Ids) -> Iterator[str]:
    """Yield ids and padding as text."""
    yield from itertools.chain.from_iterable(ids.parts())
    # An id starts with the letter of its type, so that padding is never an id.
    for entry in padding(key, len(ids)):
        yield f"padding:{entry.hex()}"


def names(key: bytes, ids: Ids, rows: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield proofs, by a key, of knowing the ids of these rows."""
    for row in rows:
        yield keys.derive(key, "name", ids.item(row).encode())


@dataclass(eq=False, repr=False)
class Side:
    """One side of an alignment: its table, and how few common rows it accepts.

    With the same `secret` and table everything is the same again.
    """

    mode: Mode
    ids: Ids | None
    n_rows: int
    _: KW_ONLY
    secret: bytes
    min_common: int = 1
    min_share: float = 0.0
    tell: Callable[[str], None] = lambda text: None  # hears how far it is

    def __post_init__(self) -> None:
        """Refuse a secret of the wrong length, or ids that do not fit mode and rows."""
        if not isinstance(self.secret, bytes) or len(self.secret) != keys.SECRET_BYTES:
            raise ConfigError(  # it is never shown
                f"The secret of alignment must be {keys.SECRET_BYTES} bytes."
            )
        if self.mode != "none" and self.ids is None:
            sentence = f"The mode '{self.mode}' of alignment needs a column of ids."
            raise AlignmentError(sentence, public=sentence)
        if self.ids is not None and len(self.ids) != self.n_rows:
            raise AlignmentError(
                f"Column '{self.ids.column}' must hold one id for each of "
                f"{self.n_rows} rows. Got {len(self.ids)} instead."
            )
        self._rows: NDArray[np.int64] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """Its rows in the common order, once all is said."""
        if self._rows is None:
            raise AlignmentError("The rows are not aligned yet.")
        return self._rows

    def _counter(self, what: str, total: int) -> psi.OnCount:
        """Return what tells how many of all entries something is done with."""
        return lambda done: self.tell(f"alignment: {what}, {done:,} of {total:,}")


def other_mode(holder: Mode, party: Mode) -> AlignmentError:
    """Build the error about two sides with different modes."""
    sentence = (
        f"The label holder aligns by '{holder}', the party by '{party}'; "
        "both must set the same mode."
    )
    return AlignmentError(sentence, public=sentence)


def warn_unchecked(who: str) -> None:
    """Warn that two tables were compared by their number of rows alone."""
    warn(
        f"The rows of the label holder and {who} are taken as aligned by their number "
        "alone: without ids on both sides their order cannot be checked."
    )
