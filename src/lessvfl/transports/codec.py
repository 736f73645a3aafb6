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
44      4     CRC-32 of everything before it and after it
======= ===== ===========================================================

Whatever does not fit is a ProtocolError that says what was wrong and never shows what
was sent.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch

from lessvfl.errors import ProtocolError
from lessvfl.protocol import (
    Begin,
    Block,
    Descend,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Select,
)
from lessvfl.session import (
    Agreed,
    Align,
    Farewell,
    Finish,
    Hello,
    Prepare,
    Refusal,
    Restore,
    Save,
    Welcome,
)
from lessvfl.types import SelectPlan, Stage, Tensor, TrainPlan

VERSION = 1
MAGIC = b"LVFL"
HEAD = struct.Struct("<4sHHQ16sIQ")
CHECKSUM = struct.Struct("<I")
HEAD_BYTES = HEAD.size + CHECKSUM.size
MAX_FIELDS = 1 << 20
MAX_BODY = 1 << 31
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
STAGES = get_args(Stage)

Parts = tuple[dict[str, Any], list[Tensor]]


@dataclass(frozen=True)
class Frame:
    """A message with its number and its run."""

    message: Any
    number: int
    run: bytes = bytes(16)


# ------------------------------------------------------------------------- each message


def _write_block(block: Block) -> Parts:
    return {"widths": list(block.widths)}, [block.values]


def _read_block(fields: Mapping[str, Any], arrays: Sequence[Tensor]) -> Block:
    (values,) = arrays
    widths = _ints(fields["widths"])
    shape = values.shape
    if values.dim() not in (2, 3) or len(widths) != shape[0]:
        raise ValueError("a block of another shape")
    if any(not 0 <= width <= shape[-1] for width in widths):
        raise ValueError("a width that the block does not have")
    # numpy, not torch: one thread is enough, and does not wait for others.
    if not values.dtype.is_floating_point or not np.isfinite(values.numpy()).all():
        raise ValueError("a block with values that are not finite")
    return Block(values, widths)


def _write_plan(plan: TrainPlan | SelectPlan) -> dict[str, Any]:
    return dataclasses.asdict(plan)


def _read_plan(cls: Any, values: Any) -> Any:
    names = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(values, dict) or set(values) != names:
        raise ValueError("a plan with other settings")
    if values["lam"] is not None:
        values = values | {"lam": tuple(_floats(values["lam"]))}
    for name in ("n_epochs", "batch_size", "learning_rate", "step_size", "patience"):
        if name in values and not _is_number(values[name]):
            raise ValueError(f"a plan whose {name} is no number")
    _stage(values["stage"])
    return cls(**values)


def _stage(value: Any) -> Stage:
    if value not in STAGES:
        raise ValueError("an unknown stage")
    stage: Stage = value
    return stage


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _floats(values: Any) -> list[float]:
    if not isinstance(values, list) or not all(_is_number(v) for v in values):
        raise ValueError("a list with something else than numbers")
    return [float(v) for v in values]


def _ints(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(v) is not int for v in values):
        raise ValueError("a list with something else than whole numbers")
    return tuple(values)


def _flags(values: Any) -> tuple[bool, ...]:
    if not isinstance(values, list) or any(type(v) is not bool for v in values):
        raise ValueError("a list with something else than truth values")
    return tuple(values)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a number that is not whole")
    return value


def _text(value: Any, limit: int = 4096) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError("a text that is none, or too long")
    return value


def _read_begin(f: Mapping[str, Any], a: Sequence[Tensor]) -> Begin:
    return Begin(_read_plan(TrainPlan, f["plan"]), _whole(f["done"]))


def _read_select(f: Mapping[str, Any], a: Sequence[Tensor]) -> Select:
    components = f["components"]
    if components is not None:
        if not isinstance(components, list):
            raise ValueError("components that are no list")
        components = tuple(_ints(some) for some in components)
    return Select(components, _read_plan(SelectPlan, f["plan"]))


def _write_done(m: Done) -> Parts:
    fields: dict[str, Any] = {"stage": m.stage, "silent": list(m.silent)}
    if m.constant is None:
        return fields | {"widths": None}, []
    more, arrays = _write_block(m.constant)
    return fields | more, arrays


def _read_done(f: Mapping[str, Any], a: Sequence[Tensor]) -> Done:
    constant = None if f["widths"] is None else _read_block(f, a)
    if constant is None and a:
        raise ValueError("arrays without widths")
    return Done(_stage(f["stage"]), _flags(f["silent"]), constant)


def _write_with_block(m: Any, block: Block, **more: Any) -> Parts:
    fields, arrays = _write_block(block)
    return fields | {"stage": m.stage} | more, arrays


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _only(arrays: Sequence[Tensor]) -> Tensor:
    (array,) = arrays
    if array.dtype != torch.uint8 or array.dim() != 1:
        raise ValueError("something else than bytes")
    return array


def _positions(array: Tensor) -> Any:
    if array.dtype != torch.int64 or array.dim() != 1 or bool((array < 0).any()):
        raise ValueError("something else than positions")
    return array.numpy()


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("something else than an object")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {_text(k): _text(v) for k, v in _object(value).items()}


def _names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError("something else than names")
    return tuple(_text(value) for value in values)


def _tag(value: Any) -> str:
    if not re.fullmatch(r"[a-z_]{1,32}-\d{1,12}", _text(value)):
        raise ValueError("a mark of another form")
    return str(value)


def _rows(value: Any) -> Any:
    if value not in ("train", "test"):
        raise ValueError("rows of another kind")
    return value


@dataclass(frozen=True)
class Kind:
    """How one kind of message is written and read."""

    cls: type
    write: Callable[[Any], Parts]
    read: Callable[[Mapping[str, Any], Sequence[Tensor]], Any]


KINDS: list[Kind] = [
    Kind(
        Describe,
        lambda m: ({"version": m.version}, []),
        lambda f, a: Describe(_whole(f["version"])),
    ),
    Kind(
        Description,
        lambda m: (dataclasses.asdict(m), []),
        lambda f, a: Description(
            _text(f["party"]),
            _whole(f["n_samples"]),
            _whole(f["embedding_size"]),
            _whole(f["version"]),
        ),
    ),
    Kind(
        Begin,
        lambda m: ({"plan": _write_plan(m.plan), "done": m.done}, []),
        _read_begin,
    ),
    Kind(
        Descend,
        lambda m: _write_with_block(m, m.gradient),
        lambda f, a: Descend(_stage(f["stage"]), _read_block(f, a)),
    ),
    Kind(
        Embed,
        lambda m: ({"stage": m.stage, "rows": m.rows}, []),
        lambda f, a: Embed(_stage(f["stage"]), _rows(f["rows"])),
    ),
    Kind(
        Select,
        lambda m: (
            {
                "components": None
                if m.components is None
                else [list(some) for some in m.components],
                "plan": _write_plan(m.plan),
            },
            [],
        ),
        _read_select,
    ),
    Kind(
        Embedding,
        lambda m: _write_with_block(m, m.block, ahead=m.ahead),
        lambda f, a: Embedding(
            _stage(f["stage"]), _read_block(f, a), *_flags([f["ahead"]])
        ),
    ),
    Kind(Done, _write_done, _read_done),
    Kind(
        Hello,
        lambda m: (dataclasses.asdict(m), []),
        lambda f, a: Hello(
            _text(f["party"]),
            _whole(f["n_rows"]),
            _whole(f["threads"]),
            _text(f["device"]),
            _texts(f["versions"]),
        ),
    ),
    Kind(
        Welcome,
        lambda m: (
            dataclasses.asdict(m)
            | {"seeds": list(m.seeds), "parties": list(m.parties)},
            [],
        ),
        lambda f, a: Welcome(
            _text(f["run"]),
            _ints(f["seeds"]),
            _object(f["settings"]),
            _names(f["parties"]),
            _text(f["align"]),
        ),
    ),
    Kind(
        Align,
        lambda m: ({}, [_bytes(m.data)]),
        lambda f, a: Align(_only(a).numpy().tobytes()),
    ),
    Kind(
        Prepare,
        lambda m: ({}, [torch.from_numpy(m.train), torch.from_numpy(m.test)]),
        lambda f, a: Prepare(*(_positions(t) for t in a)),
    ),
    Kind(Save, lambda m: ({"tag": m.tag}, []), lambda f, a: Save(_tag(f["tag"]))),
    Kind(
        Restore,
        lambda m: ({"tag": m.tag}, []),
        lambda f, a: Restore(None if f["tag"] is None else _tag(f["tag"])),
    ),
    Kind(Finish, lambda m: ({}, []), lambda f, a: Finish()),
    Kind(Farewell, lambda m: ({}, []), lambda f, a: Farewell()),
    Kind(
        Agreed,
        lambda m: ({"revealed": m.revealed}, []),
        lambda f, a: Agreed(_object(f["revealed"])),
    ),
    Kind(
        Refusal,
        lambda m: ({"reason": m.reason, "final": m.final}, []),
        lambda f, a: Refusal(_text(f["reason"]), *_flags([f["final"]])),
    ),
]
WITH_ARRAYS = (Descend, Embedding, Done, Align, Prepare)
_PLACES = {kind.cls: place for place, kind in enumerate(KINDS)}


# ------------------------------------------------------------------------------- frames


def encode(frame: Frame) -> bytes:
    """Write a frame."""
    place = _PLACES[type(frame.message)]
    kind = KINDS[place]
    fields, tensors = kind.write(frame.message)
    names = {dtype: name for name, dtype in DTYPES.items()}
    arrays = [t.detach().cpu().contiguous() for t in tensors]
    fields = fields | {"arrays": [[names[t.dtype], list(t.shape)] for t in arrays]}
    text = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode("ascii")
    bodies = [t.numpy().data.cast("B") if t.numel() else b"" for t in arrays]
    size = sum(len(body) for body in bodies)
    head = HEAD.pack(MAGIC, VERSION, place, frame.number, frame.run, len(text), size)
    check = zlib.crc32(text, zlib.crc32(head))
    for body in bodies:
        check = zlib.crc32(body, check)
    return b"".join((head, CHECKSUM.pack(check), text, *bodies))


def n_body(data: bytes) -> int:
    """Return the bytes of the arrays of a frame, as its head says; 0 of no frame."""
    if len(data) < HEAD_BYTES:
        return 0
    told: int = HEAD.unpack_from(data)[6]
    return min(told, len(data) - HEAD_BYTES)  # it may be anybody's


def stage_of(data: bytes) -> Stage | None:
    """Return the stage that a frame of our own making names, if it does."""
    n_fields = HEAD.unpack_from(data)[5]
    stage: Stage | None = json.loads(data[HEAD_BYTES : HEAD_BYTES + n_fields]).get(
        "stage"
    )
    return stage


def decode(data: bytes | memoryview, limit: int = MAX_BODY) -> Frame:
    """Read a frame; anything wrong with it is a ProtocolError.

    Parameters
    ----------
    data : bytes
        The whole frame.
    limit : int
        The most bytes its arrays may have.
    """
    view = memoryview(data)
    try:
        return _decode(view, limit)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        what = f"no field {problem}" if isinstance(problem, KeyError) else problem
        raise ProtocolError(
            f"A message must be a frame of lessvfl, format {VERSION}. Got {what}."
        ) from None


def _decode(view: memoryview, limit: int) -> Frame:
    if len(view) < HEAD_BYTES:
        raise ValueError(f"{len(view)} bytes")
    head = HEAD.unpack(view[: HEAD.size])
    magic, version, place, number, run, n_fields, n_body = head
    if magic != MAGIC:
        raise ValueError("something else")
    if version != VERSION:
        raise ValueError(f"format {version}")
    if n_fields > MAX_FIELDS or n_body > limit:
        raise ValueError(f"{n_fields} and {n_body} bytes, more than is allowed")
    if len(view) != HEAD_BYTES + n_fields + n_body:
        raise ValueError(f"{len(view)} bytes of {HEAD_BYTES + n_fields + n_body}")
    (told,) = CHECKSUM.unpack(view[HEAD.size : HEAD_BYTES])
    if told != zlib.crc32(view[HEAD_BYTES:], zlib.crc32(view[: HEAD.size])):
        raise ValueError("a frame whose checksum is wrong")
    if place >= len(KINDS):
        raise ValueError(f"kind {place}")
    text = bytes(view[HEAD_BYTES : HEAD_BYTES + n_fields])
    fields = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    if not isinstance(fields, dict):
        raise ValueError("fields that are no object")
    arrays = _read_arrays(fields["arrays"], view[HEAD_BYTES + n_fields :])
    kind = KINDS[place]
    if arrays and kind.cls not in WITH_ARRAYS:
        raise ValueError("arrays that this kind does not have")
    return Frame(kind.read(fields, arrays), number, bytes(run))


def _refuse_constant(name: str) -> None:
    raise ValueError("a number that is not finite")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number that is not finite")
    return value


def _read_arrays(shapes: Any, body: memoryview) -> list[Tensor]:
    """Cut the arrays out; together they must be the whole body."""
    if not isinstance(shapes, list):
        raise ValueError("arrays that are no list")
    found, start = [], 0
    for entry in shapes:
        name, shape = entry
        if name not in DTYPES:
            raise ValueError("an array of unknown numbers")
        dtype, dims = DTYPES[name], _ints(shape)
        if any(n < 0 for n in dims) or len(dims) > 4:
            raise ValueError("an array of another shape")
        size = math.prod(dims) * dtype.itemsize
        if start + size > len(body):
            raise ValueError("an array longer than its frame")
        part = np.frombuffer(body[start : start + size], np.dtype(name))
        found.append(torch.from_numpy(part.reshape(dims).copy()))
        start += size
    if start != len(body):
        raise ValueError("a frame longer than its arrays")
    return found
