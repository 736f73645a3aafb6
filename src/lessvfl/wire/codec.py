"""Message <-> bytes: lossless, versioned, bounded; nothing is ever executed.

A frame is a fixed head, a small JSON object (fields of the message, shapes and number
formats of its arrays), then the arrays, little-endian, one after the other:

======= ===== ===========================================================
offset  bytes what
======= ===== ===========================================================
0       4     ``LVFL``
4       2     version of this format
6       2     kind of the message, its place in ``wire/kinds.py``
8       8     number: which exchange of the connection it belongs to
16      16    run: what both sides agreed to compute
32      4     length of the JSON object
36      8     length of the arrays
44      8     XXH3 (64 bits) of everything before it and after it
======= ===== ===========================================================

On its way a frame may be shorter (:mod:`lessvfl.wire.shorthand`). Whatever does not fit
is a ProtocolError that says what was wrong and never shows what was sent.
"""

from __future__ import annotations

import json
import math
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import xxhash

from lessvfl.errors import ProtocolError
from lessvfl.wire.kinds import (
    DTYPES,
    KINDS,
    MAX_BODY,
    NAMES,
    ArraySpec,
    ReadArrays,
    Specs,
    an_object,
    whole_numbers,
)

VERSION = 8
MAGIC = b"LVFL"
HEAD = struct.Struct("<4sHHQ16sIQ")
KIND = struct.Struct("<H")
CHECKSUM = struct.Struct("<Q")
HEAD_BYTES = HEAD.size + CHECKSUM.size
MAX_FIELDS = 1 << 20
LONG_FIELDS = 1 << 10  # longer ones are not cached
KNOWN = 64  # how many others are cached
# What reading a frame of whatever content may raise; torch has errors of its own.
FAULTS = (
    ValueError,
    KeyError,
    TypeError,
    RecursionError,
    OverflowError,
    RuntimeError,
    MemoryError,
)


class WireFrame(NamedTuple):
    """A message with its number and its run."""

    message: Any
    number: int
    run: bytes = bytes(16)


_PLACES = {kind.cls: place for place, kind in enumerate(KINDS)}


# ------------------------------------------------------------------------------- frames


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _write_fields(items: tuple[Any, ...], shapes: tuple[Any, ...]) -> bytes:
    return _ENCODER.encode(dict(items) | {"arrays": shapes}).encode("ascii")


_known_text = lru_cache(maxsize=KNOWN)(_write_fields)


def encode(frame: WireFrame) -> bytes:
    """Write a frame."""
    message, number, run = frame
    place = _PLACES[type(message)]
    kind = KINDS[place]
    fields, tensors = kind.write(message)
    arrays = [np.ascontiguousarray(t.numpy(force=True)) for t in tensors]
    shapes = tuple([(NAMES[a.dtype], a.shape) for a in arrays])
    write = _known_text if kind.repeats else _write_fields
    text = write(tuple(fields.items()), shapes)
    bodies = [a.data for a in arrays]
    size = sum([body.nbytes for body in bodies])
    head = HEAD.pack(MAGIC, VERSION, place, number, run, len(text), size)
    return b"".join((head, _checksum(head, text, *bodies), text, *bodies))


def _checksum(*parts: bytes | memoryview) -> bytes:
    """Return what tells a damaged frame; who made it is TLS's to tell."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return CHECKSUM.pack(state.intdigest())


def most_bytes(n_body: int) -> int:
    """Return the most bytes of a frame whose arrays have so many."""
    return HEAD_BYTES + MAX_FIELDS + n_body


def kind_of(data: bytes | memoryview) -> type | None:
    """Return of which kind a frame says that it is, before it is read."""
    if len(data) < HEAD.size:
        return None
    (place,) = KIND.unpack_from(data, 6)
    return KINDS[place].cls if place < len(KINDS) else None


def exchange_of(data: bytes | memoryview) -> tuple[int, bytes]:
    """Return the number and the run that a frame claims, however bad the rest is."""
    if len(data) < HEAD.size:
        return 0, bytes(16)
    head = HEAD.unpack_from(data)
    return head[3], head[4]


def decode(data: bytes | memoryview, limit: int = MAX_BODY) -> WireFrame:
    """Read a frame whose arrays have at most `limit` bytes.

    Anything wrong with it is a ProtocolError.
    """
    view = memoryview(data).cast("B")
    try:
        return _decode(view, limit)
    except FAULTS as problem:
        what = f"no field {problem}" if isinstance(problem, KeyError) else problem
        raise ProtocolError(
            f"A message must be a frame of lessvfl, format {VERSION}. Got {what}."
        ) from None


def _decode(view: memoryview, limit: int) -> WireFrame:
    if len(view) < HEAD_BYTES:
        raise ValueError(f"{len(view)} bytes")
    magic, version, place, number, run, n_fields, n_body = HEAD.unpack_from(view)
    if magic != MAGIC:
        raise ValueError("something else")
    if version != VERSION:
        raise ValueError(f"format {version}")
    if n_fields > MAX_FIELDS or n_body > limit:
        raise ValueError(f"{n_fields} and {n_body} bytes, more than is allowed")
    if len(view) != HEAD_BYTES + n_fields + n_body:
        raise ValueError(f"{len(view)} bytes of {HEAD_BYTES + n_fields + n_body}")
    told = bytes(view[HEAD.size : HEAD_BYTES])
    if told != _checksum(view[: HEAD.size], view[HEAD_BYTES:]):
        raise ValueError("a frame whose checksum is wrong")
    if place >= len(KINDS):
        raise ValueError(f"kind {place}")
    start = HEAD_BYTES + n_fields
    text = bytes(view[HEAD_BYTES:start])
    repeats = KINDS[place].repeats and n_fields <= LONG_FIELDS
    specs, read = (_known_reader if repeats else _reader)(place, text, n_body)
    arrays = []
    for spec in specs:
        array = np.ndarray(spec.shape, spec.dtype, view, start)
        arrays.append(array.copy())
        start += array.nbytes
    return WireFrame(read(arrays), number, run)


def _refuse_constant(name: str) -> None:
    raise ValueError("a number that is not finite")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number that is not finite")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _reader(place: int, text: bytes, n_body: int) -> tuple[Specs, ReadArrays]:
    """Check all that the fields say; return what makes a message of the arrays."""
    fields = an_object(_DECODER.decode(str(text, "ascii")))
    specs = _specs(fields["arrays"])
    if sum(spec.n_values * spec.dtype.itemsize for spec in specs) != n_body:
        raise ValueError("arrays that are not as long as their frame")
    return specs, KINDS[place].read(fields, specs)


_known_reader = lru_cache(maxsize=KNOWN)(_reader)


def _specs(shapes: Any) -> Specs:
    if not isinstance(shapes, list):
        raise ValueError("arrays that are no list")
    found = []
    for name, shape in shapes:
        if name not in DTYPES:
            raise ValueError("an array of unknown numbers")
        dims = whole_numbers(shape)
        if any(n < 0 for n in dims) or len(dims) > 4:
            raise ValueError("an array of another shape")
        found.append(ArraySpec(DTYPES[name], dims, math.prod(dims)))
    return found
