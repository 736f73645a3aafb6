"""Message <-> bytes: lossless, versioned, bounded; nothing is ever executed.

A frame is a fixed head, a small JSON object (fields of the message, shapes and number
formats of its arrays), then the arrays, little-endian, one after the other:

======= ===== ===========================================================
offset  bytes what
======= ===== ===========================================================
0       4     ``LVFL``
4       2     version of this format
6       2     kind of the message, its place in ``KINDS``
8       8     number: which exchange of the connection it belongs to
16      16    run: what both sides agreed to compute
32      4     length of the JSON object
36      8     length of the arrays
44      8     XXH3 (64 bits) of everything before it and after it
======= ===== ===========================================================

On its way a frame may be shorter (:mod:`lessvfl.wire.shorthand`). A malformed frame is
a ProtocolError that says what was wrong: it may quote a field, never an array. Whether
a message may come at all is decided by its head, its fields and the shapes of its
arrays (:mod:`lessvfl.wire.due`): before that, neither checksum nor arrays are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
import torch
import xxhash
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from lessvfl import settings
from lessvfl.core.plans import SelectPlan, ShadowPlan, TrainPlan
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.settings import allowed_by
from lessvfl.terms import Stage
from lessvfl.wire import coding, control, messages

VERSION = 10
MAGIC = b"LVFL"
HEAD = struct.Struct("<4sHHQ16sIQ")
CHECKSUM = struct.Struct("<Q")
HEAD_BYTES = HEAD.size + CHECKSUM.size
MAX_FIELDS = 1 << 20
MAX_BODY = 1 << 31  # no number in a frame is larger
LONG_FIELDS = 1 << 10  # bytes; longer fields are not cached
KNOWN = 64  # fields that are cached
# Embeddings of scaled columns and their gradients are near 1; beyond this, sums of
# squares lose every digit in float32, and one reply would decide the whole run.
LARGEST = 1e6
LARGEST_SQUARE = LARGEST**2 / 2  # half: squares and their sum are rounded
ONE_THREAD = 10_000  # values up to which the BLAS of numpy multiplies in one thread
# What reading an arbitrary frame may raise, torch's own errors included.
FAULTS = (ValueError, TypeError, LookupError, OverflowError, RuntimeError, MemoryError)

# What the fields of a message hold, beside those of its dataclass.
Bounded = Annotated[int, Meta(ge=-MAX_BODY, le=MAX_BODY)]
PlanFields = dict[str, Bounded | float | str | bool | list[float] | None]
Dtype = Literal["float32", "float64", "int64", "int32", "uint16", "uint8"]
Sizes = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=MAX_BODY)], ...],
    Meta(description=f"a list of whole numbers from 0 to {MAX_BODY}"),
]
ArrayShape = Annotated[Sizes, Meta(max_length=4)]
Coding = Annotated[
    tuple[Literal[4, 8, 16], Literal["float32", "float64"], ArrayShape],
    Meta(description="bits, a format of numbers and a shape of up to 4 sides"),
]
ArrayFormats = Annotated[
    list[tuple[Dtype, ArrayShape]],
    Meta(
        max_length=3,
        description=f"up to 3 shapes of up to 4 sides, each with {allowed_by(Dtype)}",
    ),
]
DTYPES = {name: np.dtype(name) for name in get_args(Dtype)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Fields = Any  # with an attribute for each
Parts = tuple[dict[str, Any], list[Tensor]]
ArrayList = Sequence[NDArray[Any]]
Specs = Sequence[tuple[np.dtype[Any], tuple[int, ...]]]
# Raises a ProtocolError if a message of this kind, with these fields and arrays, must
# not come now.
Accept = Callable[[type, Fields, Specs], None]


class WireFrame(NamedTuple):
    """A message with its number and its run."""

    message: Any
    number: int
    run: bytes = bytes(16)


# ------------------------------------------------------------------------- each message


def _expect(array: NDArray[Any], dtype: str, *shape: int) -> None:
    """Refuse an array of another dtype or shape, and negative positions."""
    if array.dtype != DTYPES[dtype] or array.shape != shape:
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{got} instead of {dtype} of shape {shape}")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise ValueError("a position below 0")


def _read_block(f: Fields, arrays: ArrayList) -> messages.Block:
    """Read values, or the levels that they are coded in (:mod:`.coding`)."""
    coded = None
    if f.coded is None:
        (array,) = arrays
        if array.ndim not in (1, 2) or array.dtype.kind != "f":
            raise ValueError(f"a block of {array.dtype}, shape {array.shape}")
        values = torch.from_numpy(array.copy())
    else:
        bits, dtype, shape = f.coded
        levels, ends = arrays
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"levels of a block of shape {shape}")
        _expect(levels, "uint8", coding.n_bytes(math.prod(shape), bits))
        _expect(ends, "float32", 2)
        low, step = torch.from_numpy(ends.copy())
        coded = coding.unpack(levels, shape, low, step, bits)
        values = coded.values(getattr(torch, dtype))
    _check_values(values.numpy())
    return messages.Block(values, coded)


def _check_values(values: NDArray[Any]) -> None:
    """Refuse a block with a value that is not finite, or beyond LARGEST.

    Where the sum of squares is within bounds, so is every square, and one pass is
    enough; otherwise minimum and maximum decide. numpy rather than torch: one thread
    suffices and does not wait for others.
    """
    if values.size <= ONE_THREAD:
        total = np.vdot(values, values)
    else:
        flat = values.reshape(-1)
        total = np.einsum("i,i->", flat, flat)
    if float(total) <= LARGEST_SQUARE:
        return
    # With a NaN in the array both are NaN, which no comparison holds for.
    if not (values.min() >= -LARGEST and values.max() <= LARGEST):
        raise ValueError(
            f"a block with values that are not finite, or above {LARGEST:g}"
        )


def _tensors(value: Any) -> list[Tensor]:
    """Return the arrays that one field travels as, none where it is None."""
    match value:
        case None:
            return []
        case float() | int():
            return [torch.tensor([value], dtype=torch.float64)]
        case bytes():
            return [torch.from_numpy(np.frombuffer(value, np.uint8).copy())]
        case np.ndarray():
            return [torch.from_numpy(value)]
        case tuple():
            return [*value]
        case messages.Block(coded=None):
            return [value.values]
    return [value.coded.packed(), torch.stack([value.coded.low, value.coded.step])]


def _coding_of(block: messages.Block | None) -> Any:
    """Return bits, number format and shape of a block that travels in levels."""
    if block is None or block.coded is None:
        return None
    kind = str(block.values.dtype).removeprefix("torch.")
    return block.coded.bits, kind, tuple(block.values.shape)


def _read_nothing(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    """Refuse arrays of a message that has none."""
    if arrays:
        raise ValueError(f"arrays, which {type(f).__name__} does not have")
    return {}


def _read_begin(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    return _read_nothing(f, arrays) | {"plan": settings.build(TrainPlan, f.plan)}


def _read_select(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    plan = settings.build(ShadowPlan if "q" in f.plan else SelectPlan, f.plan)
    return _read_nothing(f, arrays) | {"plan": plan}


def _read_embedding(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    return {"block": _read_block(f, arrays)}


def _read_descend(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    *block, rate = arrays
    _expect(rate, "float64", 1)
    if not 0 <= rate[0] <= 1:
        raise ValueError("a rate that is not between 0 and 1")
    return {"gradient": _read_block(f, block), "rate": float(rate[0])}


def _read_done(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    return {"constant": _read_block(f, arrays) if arrays else None}


def _read_query(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    """Read arrays of a method's own protocol; real numbers are within bounds."""
    for array in arrays:
        if array.dtype.kind == "f":
            _check_values(array)
    return {"arrays": tuple(torch.from_numpy(array.copy()) for array in arrays)}


def _read_align(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    (data,) = arrays
    _expect(data, "uint8", data.size)
    return {"data": data.tobytes()}


def _read_prepare(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    rows, *blocks = arrays
    _expect(rows, "uint8", coding.n_bytes(f.n_train + f.n_test, 1))
    if len(blocks) > 1:
        raise ValueError(f"{len(blocks)} arrays of blocks")
    for array in blocks:
        _expect(array, "int32", f.n_train)
    return {"rows": rows.copy(), "blocks": blocks[0].copy() if blocks else None}


def _read_ask(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    (rows,) = arrays
    _expect(rows, "int64", rows.size)
    return {"rows": rows.copy()}


def _read_explain(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    rows, slopes = arrays
    _expect(rows, "int64", rows.size)
    _expect(slopes, "float32", rows.size, slopes.shape[-1])
    _check_values(slopes)
    return {"rows": rows.copy(), "slopes": slopes.copy()}


def _read_explained(f: Fields, arrays: ArrayList) -> dict[str, Any]:
    places, values = arrays
    if places.ndim != 2 or len(f.texts) != len(f.names):
        raise ValueError(f"reasons of shape {places.shape}, {len(f.texts)} texts")
    if places.dtype != DTYPES["int32"] or (places < -1).any():
        raise ValueError("features that are no places")
    if (places >= len(f.names)).any():
        raise ValueError("features without a name")
    _expect(values, "float32", *places.shape)
    _check_values(values)
    return {"places": places.copy(), "values": values.copy()}


@dataclass(frozen=True)
class MessageKind:
    """How one kind of message is written and read.

    `fields`, a dataclass, are those that travel as JSON, and `arrays` names those
    that travel as arrays; `read` returns the values of the message that are not in its
    JSON. The fields of a kind that `repeats` are the same step after step and cached.
    """

    cls: type
    fields: Any
    arrays: tuple[str, ...]
    read: Callable[[Fields, ArrayList], dict[str, Any]]
    repeats: bool

    def write(self, message: Any) -> Parts:
        """Return the fields of a message that travel as JSON, and its arrays."""
        names = self.fields.__dataclass_fields__
        values = [getattr(message, name) for name in self.arrays]
        coded = {"coded": _coding_of(values[0])} if "coded" in names else {}
        fields = {n: coded[n] if n in coded else getattr(message, n) for n in names}
        return fields, [tensor for value in values for tensor in _tensors(value)]


def _kind(
    cls: type,
    fields: dict[str, Any] | None = None,
    *arrays: str,
    read: Callable[[Fields, ArrayList], dict[str, Any]] = _read_nothing,
    repeats: bool = False,
) -> MessageKind:
    """Return how a kind travels; `fields` are those of its class unless given."""
    as_json = cls
    if fields is not None:
        as_json = dataclasses.make_dataclass(cls.__name__, fields.items())
    return MessageKind(cls, as_json, arrays, read, repeats)


BLOCK = {"coded": Coding | None, "stage": Stage}
DESCEND, EMBEDDING = BLOCK | {"last": bool}, BLOCK | {"ahead": bool}
DONE = {"stage": Stage, "silent": bool, "coded": Coding | None}
BEGIN = settings.types_of(messages.Begin) | {"plan": PlanFields}
SELECT = settings.types_of(messages.Select) | {"plan": PlanFields}
QUERY = {"stage": Stage, "step": settings.Natural}
PREPARE = settings.types_of(control.Prepare)
del PREPARE["rows"], PREPARE["blocks"]
EXPLAIN = {"most": settings.Natural}
EXPLAINED = {"names": tuple[messages.Text, ...], "texts": tuple[messages.Text, ...]}
FRAME = dataclasses.make_dataclass("Frame", [("arrays", ArrayFormats)])
# The rate of a step is an array: fields are cached, and it changes every step.
KINDS: list[MessageKind] = [
    _kind(messages.Describe),
    _kind(messages.Description),
    _kind(messages.Begin, BEGIN, read=_read_begin),
    _kind(
        messages.Descend, DESCEND, "gradient", "rate", read=_read_descend, repeats=True
    ),
    _kind(messages.Embed),
    _kind(messages.Select, SELECT, read=_read_select),
    _kind(messages.Embedding, EMBEDDING, "block", read=_read_embedding, repeats=True),
    _kind(messages.Done, DONE, "constant", read=_read_done),
    _kind(control.Hello),
    _kind(control.Welcome),
    _kind(control.Align, {}, "data", read=_read_align),
    _kind(control.Prepare, PREPARE, "rows", "blocks", read=_read_prepare),
    _kind(control.Save),
    _kind(control.Restore),
    _kind(control.Finish),
    _kind(control.Farewell),
    _kind(control.Agreed),
    _kind(control.Refusal),
    _kind(control.Busy),
    _kind(control.Open),
    _kind(control.Ask, {}, "rows", read=_read_ask),
    _kind(control.Declined),
    _kind(messages.Query, QUERY, "arrays", read=_read_query),
    _kind(messages.QueryReply, {"stage": Stage}, "arrays", read=_read_query),
    _kind(control.Explain, EXPLAIN, "rows", "slopes", read=_read_explain),
    _kind(control.Explained, EXPLAINED, "places", "values", read=_read_explained),
]
_PLACES = {kind.cls: place for place, kind in enumerate(KINDS)}


# ------------------------------------------------------------------------------- frames


_ENCODER = json.JSONEncoder(
    allow_nan=False, separators=(",", ":"), default=dataclasses.asdict
)


def _write_fields(items: tuple[Any, ...], shapes: tuple[Any, ...]) -> bytes:
    return _ENCODER.encode(dict(items) | {"arrays": shapes}).encode("ascii")


_known_text = functools.lru_cache(maxsize=KNOWN)(_write_fields)


def encode(frame: WireFrame) -> bytes:
    """Return a frame (message, exchange number and run) as bytes to be sent."""
    message, number, run = frame
    place = _PLACES[type(message)]
    kind = KINDS[place]
    fields, tensors = kind.write(message)
    arrays = [t.contiguous().numpy(force=True) for t in tensors]
    shapes = tuple([(NAMES[a.dtype], a.shape) for a in arrays])
    write = _known_text if kind.repeats else _write_fields
    text = write(tuple(fields.items()), shapes)
    bodies = [a.data for a in arrays]
    size = sum([body.nbytes for body in bodies])
    head = HEAD.pack(MAGIC, VERSION, place, number, run, len(text), size)
    return b"".join((head, _checksum(head, text, *bodies), text, *bodies))


def _checksum(*parts: bytes | memoryview) -> bytes:
    """Return the checksum that shows damage; TLS proves who made a frame."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return CHECKSUM.pack(state.intdigest())


def length_of(data: memoryview) -> int:
    """Return how many bytes a frame claims to have, of which these are the first.

    Data without a whole head, or of another format, count as they are long.
    """
    if len(data) < HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        return len(data)
    *_, n_fields, n_body = HEAD.unpack_from(data)
    return int(HEAD_BYTES + n_fields + n_body)


def wire_bytes(specs: Specs) -> int:
    """Return the bytes of arrays of these formats."""
    return sum([dtype.itemsize * math.prod(shape) for dtype, shape in specs])


def decoded_bytes(fields: Fields, specs: Specs) -> int:
    """Return the bytes of a message's arrays once they are read; levels are values."""
    coded = getattr(fields, "coded", None)
    if coded is None:
        return wire_bytes(specs)
    _, dtype, shape = coded
    n_bytes: int = math.prod(shape) * DTYPES[dtype].itemsize
    return n_bytes


def kind_of(data: bytes | memoryview) -> type | None:
    """Return the kind that a frame claims to be, before it is read."""
    if len(data) < HEAD.size:
        return None
    place = HEAD.unpack_from(data)[2]
    return KINDS[place].cls if place < len(KINDS) else None


def exchange_of(data: bytes | memoryview) -> tuple[int, bytes]:
    """Return the number and the run that a frame claims, however bad the rest is."""
    if len(data) < HEAD.size:
        return 0, bytes(16)
    head = HEAD.unpack_from(data)
    return head[3], head[4]


def decode(data: bytes | memoryview, accept: Accept) -> WireFrame:
    """Read a frame, once `accept` has nothing against its kind, fields and shapes.

    Anything wrong with it is a ProtocolError.
    """
    view = memoryview(data).cast("B")
    with _malformed():
        if len(view) < HEAD_BYTES:
            raise ValueError(f"{len(view)} bytes")
        magic, version, place, number, run, n_fields, n_body = HEAD.unpack_from(view)
        if magic != MAGIC:
            raise ValueError(f"bytes that begin with {magic!r}")
        if version != VERSION:
            raise ValueError(f"format {version}")
        if n_fields > MAX_FIELDS:
            raise ValueError(f"{n_fields} bytes of fields, more than is allowed")
        if place >= len(KINDS):
            raise ValueError(f"kind {place}")
        start = HEAD_BYTES + n_fields
        if len(view) < start:
            raise ValueError(f"{len(view)} bytes of {start + n_body}")
        kind = KINDS[place]
        repeats = kind.repeats and n_fields <= LONG_FIELDS
        read_fields = _known_reader if repeats else _reader
        specs, fields = read_fields(place, bytes(view[HEAD_BYTES:start]), n_body)
    accept(kind.cls, fields, specs)
    with _malformed():
        if len(view) != start + n_body:
            raise ValueError(f"{len(view)} bytes of {start + n_body}")
        checksum = bytes(view[HEAD.size : HEAD_BYTES])
        if checksum != _checksum(view[: HEAD.size], view[HEAD_BYTES:]):
            raise ValueError("a frame whose checksum is wrong")
        arrays = []  # of the frame's own bytes; what is used of them is copied
        for dtype, shape in specs:
            arrays.append(np.ndarray(shape, dtype, view, start))
            start += arrays[-1].nbytes
        values = vars(fields) | kind.read(fields, arrays)
        values.pop("coded", None)
        return WireFrame(kind.cls(**values), number, run)


@contextlib.contextmanager
def _malformed() -> Iterator[None]:
    """Turn an error raised in the block, by a malformed frame, into a ProtocolError."""
    try:
        yield
    except FAULTS as problem:
        what = problem if isinstance(problem, ConfigError) else f"Got {problem}."
        raise ProtocolError(
            f"A message must be a frame of lessvfl, format {VERSION}. {what}"
        ) from None


def _reader(place: int, text: bytes, n_body: int) -> tuple[Specs, Fields]:
    """Return the arrays' formats and the fields of a message, once they are checked."""
    try:
        values = msgspec.json.decode(str(text, "ascii"), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"fields that cannot be read: {error}") from None
    frame = settings.build(FRAME, {"arrays": values.pop("arrays", None)})
    specs = [(DTYPES[name], shape) for name, shape in frame.arrays]
    if wire_bytes(specs) != n_body:
        raise ValueError("arrays that are not as long as their frame")
    return specs, settings.build(KINDS[place].fields, values)


_known_reader = functools.lru_cache(maxsize=KNOWN)(_reader)
