"""How each kind of message is written as fields and arrays, and read again."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.plans import ROW_ORDERS, SelectPlan, ShadowPlan, TrainPlan
from lessvfl.terms import Stage
from lessvfl.wire import coding, control, messages

MAX_BODY = 1 << 31  # bytes of the arrays of a message
# Embeddings of scaled columns and their gradients are near 1; beyond this, sums of
# squares lose every digit in float32, and one reply would decide the whole run.
LARGEST = 1e6
LARGEST_SQUARE = LARGEST**2 / 2  # half: squares and their sum are rounded
ONE_THREAD = 10_000  # values up to which the BLAS of numpy multiplies in one thread
DTYPES = {
    name: np.dtype(name)
    for name in ("float32", "float64", "int64", "int32", "uint16", "uint8")
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
STAGES = get_args(Stage)
NUMBERS = {
    field.name
    for plan in (TrainPlan, SelectPlan, ShadowPlan)
    for field in dataclasses.fields(plan)
    if field.type in ("int", "float")
}

Parts = tuple[dict[str, Any], list[Tensor]]
Fields = Mapping[str, Any]
ArrayList = Sequence[NDArray[Any]]
ReadArrays = Callable[[ArrayList], Any]


class ArraySpec(NamedTuple):
    """What the fields say of one array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    n_values: int


Specs = Sequence[ArraySpec]


# ------------------------------------------------------------------------ single fields

Reader = Callable[[Any], Any]  # of a field as JSON has it


def _must(fits: Callable[[Any], bool], what: str, make: Reader | None = None) -> Reader:
    """Return what reads a field; `what` says what it is where it does not fit."""

    def read(value: Any) -> Any:
        if not fits(value):
            raise ValueError(what)
        return value if make is None else make(value)

    return read


def _formed(pattern: str, what: str) -> Reader:
    """Read a text of one form."""
    return _must(lambda v: re.fullmatch(pattern, _text(v)) is not None, what)


def _each(read: Reader, what: str) -> Reader:
    """Read a list, entry by entry."""
    return _must(lambda v: isinstance(v, list), what, lambda v: tuple(map(read, v)))


def _or_none(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


_flag = _must(lambda v: type(v) is bool, "something else than a truth value")
_flags = _each(_flag, "something else than truth values")
_whole = _must(lambda v: type(v) is int and v >= 0, "a number that is not whole")
_text = _must(
    lambda v: isinstance(v, str) and len(v) <= 4096, "a text that is none, or too long"
)
_names = _each(_text, "something else than names")
_stage = _must(lambda v: v in STAGES, "an unknown stage")
_rows = _must(lambda v: v in ("train", "test"), "rows of another kind")
_tag = _formed(r"[a-z_]{1,32}-\d{1,12}", "a mark of another form")
_key = _formed(r"[0-9a-f]{32}", "a key of another form")
_word = _formed(r"[a-z]{1,20}", "something else than a word")
an_object = _must(lambda v: isinstance(v, dict), "something else than an object")
_floats = _must(
    lambda v: isinstance(v, list) and all(map(_is_number, v)),
    "a list with something else than numbers",
    lambda v: tuple(map(float, v)),
)
whole_numbers = _must(
    lambda v: isinstance(v, list) and all(type(n) is int for n in v),
    "a list with something else than whole numbers",
    tuple,
)
_components = _each(whole_numbers, "components that are no list")


def _texts(value: Any) -> dict[str, str]:
    return {_text(k): _text(v) for k, v in an_object(value).items()}


# ------------------------------------------------------------------------- each message


def _write_block(block: messages.Block) -> Parts:
    coded = block.coded
    if coded is None:
        return {"widths": block.widths}, [block.values]
    shape = tuple(block.values.shape)
    kind = str(block.values.dtype).removeprefix("torch.")
    fields = {"widths": block.widths, "coded": (coded.bits, kind, shape)}
    return fields, [coded.packed(), torch.stack([coded.low, coded.step])]


def _check_block(widths: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if len(shape) not in (2, 3) or len(widths) != shape[0]:
        raise ValueError("a block of another shape")
    if any(not 0 <= width <= shape[-1] for width in widths):
        raise ValueError("a width that the block does not have")


def _check_values(values: NDArray[Any]) -> None:
    """Refuse a block that has a value which is no number, or beyond LARGEST.

    A sum of squares within bounds has every square within bounds, and is read off in
    one pass; where it is not (or is NaN), the ends decide. numpy, not torch: one thread
    is enough, and does not wait for others.
    """
    if values.size <= ONE_THREAD:
        total = np.vdot(values, values)
    else:
        flat = values.reshape(-1)
        total = np.einsum("i,i->", flat, flat)
    if float(total) <= LARGEST_SQUARE:
        return
    # The ends of an array with a NaN are NaN, and no NaN is within bounds.
    if not (values.min() >= -LARGEST and values.max() <= LARGEST):
        raise ValueError(
            f"a block with values that are not finite, or above {LARGEST:g}"
        )


def _coded_reader(
    fields: Fields, specs: Specs
) -> Callable[[ArrayList], messages.Block]:
    """Read a block whose values are levels (:mod:`lessvfl.wire.coding`)."""
    packed, ends = specs
    bits, kind, dims = fields["coded"]
    shape, widths = whole_numbers(dims), whole_numbers(fields["widths"])
    _check_block(widths, shape)
    if type(bits) is not int or bits not in coding.BITS[:-1]:
        raise ValueError("a block in another coding")
    if kind not in ("float32", "float64"):
        raise ValueError("a block in another coding")
    if shape[0] < 1 or any(not 0 <= n <= MAX_BODY for n in shape):
        raise ValueError("a block of another shape")
    if any(width != shape[-1] for width in widths):
        raise ValueError("a block of another shape")
    n_bytes = coding.n_bytes(math.prod(shape), bits)
    if packed != ArraySpec(DTYPES["uint8"], (n_bytes,), n_bytes):
        raise ValueError("levels that do not fill their block")
    if ends != ArraySpec(DTYPES["float32"], (2, shape[0]), 2 * shape[0]):
        raise ValueError("levels without their ends")

    def read(arrays: ArrayList) -> messages.Block:
        levels, (low, step) = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
        coded = coding.unpack(levels, shape, low, step, bits)
        values = coded.values(getattr(torch, kind))
        _check_values(values.numpy())
        return messages.Block(values, widths, coded)

    return read


def _block_reader(
    fields: Fields, specs: Specs
) -> Callable[[ArrayList], messages.Block]:
    if "coded" in fields:
        return _coded_reader(fields, specs)
    (spec,) = specs
    widths = whole_numbers(fields["widths"])
    _check_block(widths, spec.shape)
    if spec.dtype.kind != "f":
        raise ValueError("a block of something else than real numbers")

    def read(arrays: ArrayList) -> messages.Block:
        _check_values(arrays[0])
        return messages.Block(torch.from_numpy(arrays[0]), widths)

    return read


def _select_plan(values: Any) -> SelectPlan | ShadowPlan:
    cls = ShadowPlan if "q" in an_object(values) else SelectPlan
    plan: SelectPlan | ShadowPlan = _read_plan(cls, values)
    return plan


def _read_plan(cls: Any, values: Any) -> Any:
    names = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(values, dict) or set(values) != names:
        raise ValueError("a plan with other settings")
    if values.get("lam") is not None:
        values = values | {"lam": _floats(values["lam"])}
    for name in NUMBERS & set(values):
        if not _is_number(values[name]):
            raise ValueError(f"a plan whose {name} is no number")
    _stage(values["stage"])
    if values.get("row_order", ROW_ORDERS[0]) not in ROW_ORDERS:
        raise ValueError("a plan with another order of rows")
    return cls(**values)


def _write_done(m: messages.Done) -> Parts:
    fields: dict[str, Any] = {"stage": m.stage, "silent": m.silent}
    if m.constant is None:
        return fields | {"widths": None}, []
    more, arrays = _write_block(m.constant)
    return fields | more, arrays


def _read_done(f: Fields, specs: Specs) -> ReadArrays:
    stage, silent = _stage(f["stage"]), _flags(f["silent"])
    if f["widths"] is None:
        return _plain(lambda f: messages.Done(stage, silent))(f, specs)
    block = _block_reader(f, specs)
    return lambda arrays: messages.Done(stage, silent, block(arrays))


def _write_descend(m: messages.Descend) -> Parts:
    """Put the rate behind the block: it may be another one every step."""
    fields, arrays = _write_with_block(m, m.gradient, last=m.last)
    return fields, [*arrays, torch.tensor([m.rate], dtype=torch.float64)]


def _read_descend(f: Fields, specs: Specs) -> ReadArrays:
    *own, of_rate = specs
    stage, block, last = _stage(f["stage"]), _block_reader(f, own), _flag(f["last"])
    if of_rate != ArraySpec(DTYPES["float64"], (1,), 1):
        raise ValueError("a rate that is no number")

    def read(arrays: ArrayList) -> messages.Descend:
        *values, (rate,) = arrays
        if not 0 <= rate <= 1:
            raise ValueError("a rate that is no share")
        return messages.Descend(stage, block(values), float(rate), last)

    return read


def _read_embedding(f: Fields, specs: Specs) -> ReadArrays:
    stage, block = _stage(f["stage"]), _block_reader(f, specs)
    ahead = _flag(f["ahead"])
    return lambda arrays: messages.Embedding(stage, block(arrays), ahead)


def _plain(make: Callable[[Fields], Any]) -> Callable[[Fields, Specs], ReadArrays]:
    """Read a kind that has no arrays."""

    def read(fields: Fields, specs: Specs) -> ReadArrays:
        if specs:
            raise ValueError("arrays that this kind does not have")
        message = make(fields)
        return lambda arrays: message

    return read


def _write_with_block(m: Any, block: messages.Block, **more: Any) -> Parts:
    fields, arrays = _write_block(block)
    return fields | {"stage": m.stage} | more, arrays


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _read_align(f: Fields, specs: Specs) -> ReadArrays:
    (spec,) = specs
    if spec.dtype != np.uint8 or len(spec.shape) != 1:
        raise ValueError("something else than bytes")
    return lambda arrays: control.Align(arrays[0].tobytes())


def _read_prepare(f: Fields, specs: Specs) -> ReadArrays:
    spec, *more = specs
    seed, n_train, n_test = (_whole(f[name]) for name in ("seed", "n_train", "n_test"))
    n_bytes = spec.dtype.itemsize * (n_train + n_test)
    if spec.dtype == np.uint8:
        n_bytes = coding.n_bytes(n_train + n_test, 1)
    elif spec.dtype not in (np.int32, np.uint16):
        raise ValueError("something else than positions")
    if len(spec.shape) != 1 or spec.n_values * spec.dtype.itemsize != n_bytes:
        raise ValueError("other rows than it says")
    if len(more) > 1 or any(
        one.dtype != np.int32 or one.shape != (n_train,) for one in more
    ):
        raise ValueError("other blocks than it has rows")
    share = f["share"]
    if share is not None and not (isinstance(share, float) and 0 < share <= 0.5):
        raise ValueError("another share than one of a rarer class")

    def read(arrays: ArrayList) -> control.Prepare:
        rows, *blocks = arrays
        if any(one.dtype == np.int32 and (one < 0).any() for one in arrays):
            raise ValueError("something else than positions")
        own = next(iter(blocks), None)
        return control.Prepare(seed, n_train, n_test, rows, own, share)

    return read


def _read_ask(f: Fields, specs: Specs) -> ReadArrays:
    (spec,) = specs
    if spec.dtype != np.int64 or len(spec.shape) != 1:
        raise ValueError("something else than positions")

    def read(arrays: ArrayList) -> control.Ask:
        if (arrays[0] < 0).any():
            raise ValueError("something else than positions")
        return control.Ask(arrays[0])

    return read


@dataclass(frozen=True)
class MessageKind:
    """How one kind of message is written and read.

    `read` checks what the fields say, and returns what makes a message of the arrays.
    Fields of a kind that `repeats` are the same step after step and cached.
    """

    cls: type
    write: Callable[[Any], Parts]
    read: Callable[[Fields, Specs], ReadArrays]
    repeats: bool = False


def _plain_kind(cls: Any, **readers: Reader) -> MessageKind:
    """Write and read a kind without arrays, field by field."""

    def make(fields: Fields) -> Any:
        return cls(**{name: read(fields[name]) for name, read in readers.items()})

    return MessageKind(cls, lambda m: (dataclasses.asdict(m), []), _plain(make))


KINDS: list[MessageKind] = [
    _plain_kind(messages.Describe, version=_whole),
    _plain_kind(
        messages.Description,
        party=_text,
        n_samples=_whole,
        embedding_size=_whole,
        version=_whole,
    ),
    _plain_kind(messages.Begin, plan=partial(_read_plan, TrainPlan), done=_whole),
    MessageKind(
        messages.Descend,
        _write_descend,
        _read_descend,
        repeats=True,
    ),
    _plain_kind(
        messages.Embed,
        stage=_stage,
        rows=_rows,
        n_rows=_or_none(_whole),
        bits=_whole,
        part=_whole,
    ),
    _plain_kind(messages.Select, components=_or_none(_components), plan=_select_plan),
    MessageKind(
        messages.Embedding,
        lambda m: _write_with_block(m, m.block, ahead=m.ahead),
        _read_embedding,
        repeats=True,
    ),
    MessageKind(messages.Done, _write_done, _read_done),
    _plain_kind(
        control.Hello,
        party=_text,
        threads=_whole,
        device=_text,
        versions=_texts,
    ),
    _plain_kind(
        control.Welcome,
        run=_text,
        seeds=whole_numbers,
        method=_text,
        settings=an_object,
        parties=_names,
        align=_text,
    ),
    MessageKind(control.Align, lambda m: ({}, [_bytes(m.data)]), _read_align),
    MessageKind(
        control.Prepare,
        lambda m: (
            {
                "seed": m.seed,
                "n_train": m.n_train,
                "n_test": m.n_test,
                "share": m.share,
            },
            [torch.from_numpy(own) for own in (m.rows, m.blocks) if own is not None],
        ),
        _read_prepare,
    ),
    _plain_kind(control.Save, tag=_tag),
    _plain_kind(control.Restore, tag=_or_none(_tag)),
    _plain_kind(control.Finish, model=_text),
    _plain_kind(control.Farewell),
    _plain_kind(control.Agreed, revealed=an_object),
    _plain_kind(control.Refusal, kind=_word, reason=_text, final=_flag),
    _plain_kind(control.Busy),
    _plain_kind(
        control.Open, run=_text, seed=_whole, session=_key, model=_text, align=_text
    ),
    MessageKind(control.Ask, lambda m: ({}, [torch.from_numpy(m.rows)]), _read_ask),
    _plain_kind(control.Declined, reason=_text),
]
