"""Frames: lossless, and whatever is wrong with one is a ProtocolError."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import tracemalloc

import numpy as np
import pytest
import torch
from tests.conftest import decode

from lessvfl.core.plans import SelectPlan, TrainPlan
from lessvfl.errors import ProtocolError
from lessvfl.wire import codec, control
from lessvfl.wire.codec import WireFrame, encode, exchange_of, kind_of
from lessvfl.wire.coding import Coded
from lessvfl.wire.control import (
    Agreed,
    Align,
    Ask,
    Busy,
    Declined,
    Explain,
    Explained,
    Farewell,
    Finish,
    Hello,
    Open,
    Prepare,
    Refusal,
    Restore,
    Save,
    Welcome,
)
from lessvfl.wire.messages import (
    Begin,
    Block,
    Descend,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Query,
    QueryReply,
    Select,
)

BLOCK = Block(torch.arange(12.0).view(3, 4))
LEVELS = Block.in_bits(torch.randn(3, 4), 8, 0, "a test")
TRAIN = TrainPlan("train", 1.5, 100, "file", "adam", 0.01, None)
LASSO = TrainPlan("joint_lasso", 3, 100, "shuffle", "sgd", 0.01, 0.1)
PARTY = SelectPlan("select_features", 150, 100, "shuffle", 0.01, 1.0, 10.0, "mean")
WELCOME = Welcome("r", (0,), "plain", {}, ("a",), "none")
ROWS = Prepare.of(3, np.arange(3, 9), np.arange(3))
BLOCKS = np.array([0, 1, 0])
WHY = Explain(np.array([4, 0]), np.ones((2, 3), dtype=np.float32), 5)
BECAUSE = Explained(
    ("age", "town"),
    ("Your age", ""),
    np.array([[1, 0], [0, -1]], dtype=np.int32),
    np.array([[0.5, -2.0], [1.0, 0.0]], dtype=np.float32),
)
MESSAGES = [
    Describe(),
    Description("clinic", 10, 16),
    Begin(TRAIN),
    Begin(LASSO, 7),
    Descend("train", BLOCK),
    Descend("train", BLOCK, 0.1, last=True),
    Embed("evaluate", "test"),
    Embed("evaluate", "train", part=3),
    Select(None, PARTY),
    Select((0, 3), PARTY),
    Select((), PARTY),
    Embedding("train", BLOCK, ahead=True),
    Embedding("train", LEVELS, ahead=True),
    Embedding("embed", Block(torch.zeros(0, 3, dtype=torch.float64))),
    Done("train"),
    Done("train", silent=True, constant=Block(torch.ones(4))),
    Hello("clinic", 1, "cpu", {"torch": "2"}),
    Welcome("r1", (0, 1), "plain", {"hidden": 64, "party_net": None}, ("a",), "psi"),
    Align(b"\x00\xffabc"),
    Align(b""),
    Prepare.of(3, np.arange(5), np.arange(0)),
    ROWS,
    Prepare.of(3, np.arange(1, 4), np.arange(1), BLOCKS),
    Save("train-150"),
    Restore("select_features-1"),
    Restore(None),
    Finish("0" * 64),
    Open("r1", (3, 4), "0f" * 16, "0" * 64, "psi"),
    Ask(np.array([4, 0, 4])),
    Ask(np.empty(0, dtype=np.int64)),
    Declined("not so many"),
    WHY,
    BECAUSE,
    Farewell(),
    Busy(),
    Agreed({"n_kept": 3}),
    Refusal("policy", "no", final=False),
    Query("select_features", 2),
    Query("select_features", 0, (torch.ones(2, 3), torch.zeros(2, 1).byte())),
    QueryReply("select_features", (torch.ones(2, 3).short().to(torch.uint16),)),
    QueryReply("select_features", (torch.tensor(0.5),)),
]


def same(a, b):
    """Compare two messages, arrays bit for bit."""
    assert type(a) is type(b)
    for field in dataclasses.fields(a):
        mine, theirs = getattr(a, field.name), getattr(b, field.name)
        if isinstance(mine, Block):
            assert mine.bits == theirs.bits
            assert mine.values.dtype == theirs.values.dtype
            assert torch.equal(mine.values, theirs.values)
        elif isinstance(mine, np.ndarray):
            assert mine.tolist() == theirs.tolist()
        elif field.name == "arrays":
            for array, other in zip(mine, theirs, strict=True):
                assert array.dtype == other.dtype
                assert torch.equal(array, other)
        else:
            assert mine == theirs


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_frame_comes_back_as_it_was(message):
    frame = decode(codec.encode(WireFrame(message, 41, b"r" * 16)))
    assert (frame.number, frame.run) == (41, b"r" * 16)
    same(message, frame.message)


@pytest.mark.parametrize("n_rows", [1, 9, 64, 2 * 64 + 13])
def test_rows_come_back_sorted_whatever_order_they_had(n_rows, monkeypatch):
    monkeypatch.setattr(control, "AT_ONCE", 64)
    order = np.random.default_rng(n_rows).permutation(n_rows)
    train, test = order[: n_rows // 2], order[n_rows // 2 :]
    message = Prepare.of(3, train, test)
    got = decode(codec.encode(WireFrame(message, 1))).message
    for name, own in (("train", train), ("test", test)):
        parts = [np.empty(0, dtype=np.int64), *got.places(name)]
        assert np.concatenate(parts).tolist() == sorted(own)
    assert got.rows.nbytes == -(-n_rows // 8)
    assert got.digest() == message.digest()
    assert got.digest() == Prepare.of(3, np.sort(train), np.sort(test)).digest()


def test_every_kind_is_tried():
    assert {type(m) for m in MESSAGES} == {kind.cls for kind in codec.KINDS}


def test_the_head_is_small():
    """A block's frame is a few dozen bytes longer than its values."""
    data = codec.encode(WireFrame(Embedding("train", BLOCK), 1))
    assert len(data) - BLOCK.values.numel() * 4 < 200


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_frame_cut_short_or_lengthened_is_refused(message):
    data = codec.encode(WireFrame(message, 1))
    for n in {0, 1, 10, codec.HEAD_BYTES, len(data) // 2, len(data) - 1}:
        if n < len(data):
            with pytest.raises(ProtocolError, match="must be a frame of lessvfl"):
                decode(data[:n])
    with pytest.raises(ProtocolError):
        decode(data + b"\x00")


def test_every_flipped_bit_is_found():
    data = bytearray(codec.encode(WireFrame(Descend("train", BLOCK), 3)))
    for place in range(len(data)):
        for bit in (1, 128):
            data[place] ^= bit
            with pytest.raises(ProtocolError):
                decode(bytes(data))
            data[place] ^= bit


def forged(message, change):
    """Return a frame whose fields were changed, with a right checksum."""
    place = codec._PLACES[type(message)]
    original = codec.KINDS[place]

    class Forged(codec.MessageKind):
        def write(self, message):
            return change(*original.write(message))

    # What is forged is not kept in mind.
    codec.KINDS[place] = Forged(**(vars(original) | {"repeats": False}))
    try:
        return codec.encode(WireFrame(message, 1))
    finally:
        codec.KINDS[place] = original


def with_field(name, value):
    return lambda fields, arrays: (fields | {name: value}, arrays)


def without_field(name):
    return lambda fields, arrays: (
        {k: v for k, v in fields.items() if k != name},
        arrays,
    )


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (Descend("train", BLOCK), with_field("stage", "lunch")),
        (Descend("train", BLOCK), with_field("coded", "8")),
        (Descend("train", BLOCK), with_field("coded", [8, "float32", [3, 4]])),
        (Descend("train", BLOCK), without_field("coded")),
        (Descend("train", LEVELS), with_field("coded", None)),
        (Descend("train", LEVELS), with_field("coded", [5, "float32", [3, 4]])),
        (Descend("train", LEVELS), with_field("coded", [8, "int64", [3, 4]])),
        (Descend("train", LEVELS), with_field("coded", [8, "float32", [3, 5]])),
        (Descend("train", LEVELS), with_field("coded", [8, "float32", [-3, -4]])),
        (Descend("train", LEVELS), with_field("coded", [8, "float32", [12]])),
        (Descend("train", LEVELS), with_field("coded", [8, "float32", [1, 3, 4]])),
        (Descend("train", LEVELS), lambda f, a: (f, [a[0], a[1][:1], a[2]])),
        (Embedding("train", BLOCK, True), with_field("ahead", 1)),
        (Descend("train", BLOCK), lambda f, a: (f, [])),
        (Descend("train", BLOCK), lambda f, a: (f, [*a, *a])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0].long(), a[1]])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0].unsqueeze(0), a[1]])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0].sum(), a[1]])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0] * math.nan, a[1]])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0] / 0, a[1]])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0], a[1].float()])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0], a[1] * 1.5])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0], -a[1]])),
        (Descend("train", BLOCK), lambda f, a: (f, [a[0], a[1] * math.nan])),
        (Embed("evaluate", "test"), with_field("rows", "all")),
        (Begin(TRAIN), with_field("plan", {})),
        (Begin(TRAIN), with_field("plan", None)),
        (Begin(TRAIN), with_field("done", -1)),
        (Begin(TRAIN), with_field("done", True)),
        (Begin(TRAIN), lambda f, a: (f, [BLOCK.values])),
        (Done("train", True, BLOCK), lambda f, a: (f, [a[0].long()])),
        (Done("train", True, BLOCK), lambda f, a: (f, [*a, *a])),
        (Done("train", True, BLOCK), without_field("coded")),
        (Select((0,), PARTY), with_field("components", 3)),
        (Select((0,), PARTY), with_field("components", [True])),
        (Select((0,), PARTY), with_field("components", [[0]])),
        (Done("train", True), with_field("silent", 1)),
        (Done("train", True), with_field("silent", [True])),
        (Hello("a", 1, "cpu", {}), with_field("threads", -3)),
        (Hello("a", 1, "cpu", {}), with_field("party", "x" * 5000)),
        (Hello("a", 1, "cpu", {}), with_field("versions", ["1"])),
        (Save("train-1"), with_field("tag", "../../etc/passwd")),
        (Save("train-1"), with_field("tag", 5)),
        (ROWS, lambda f, a: (f, [a[0].int()])),
        (ROWS, lambda f, a: (f, [a[0].long()])),
        (ROWS, lambda f, a: (f, [])),
        (ROWS, with_field("n_test", -1)),
        (ROWS, lambda f, a: (f, [a[0][:1]])),
        (ROWS, with_field("n_train", 2**62)),
        (ROWS, with_field("n_train", 20)),
        (Ask(np.arange(3)), lambda f, a: (f, [a[0] - 1])),
        (Ask(np.arange(3)), lambda f, a: (f, [a[0].reshape(1, 3)])),
        (Ask(np.arange(3)), lambda f, a: (f, [a[0].double()])),
        (WHY, lambda f, a: (f, [a[0] - 1, a[1]])),
        (WHY, lambda f, a: (f, [a[0], a[1].double()])),
        (WHY, lambda f, a: (f, [a[0], a[1][:1]])),
        (WHY, lambda f, a: (f, [a[0], a[1] * math.nan])),
        (WHY, lambda f, a: (f, [a[0]])),
        (WHY, with_field("most", -1)),
        (BECAUSE, lambda f, a: (f, [a[0] + 1, a[1]])),
        (BECAUSE, lambda f, a: (f, [a[0] - 1, a[1]])),
        (BECAUSE, lambda f, a: (f, [a[0].long(), a[1]])),
        (BECAUSE, lambda f, a: (f, [a[0][0], a[1][0]])),
        (BECAUSE, lambda f, a: (f, [a[0], a[1][:, :1]])),
        (BECAUSE, lambda f, a: (f, [a[0], a[1] / 0])),
        (BECAUSE, with_field("texts", ["Your age"])),
        (BECAUSE, with_field("names", ["x" * 5000, "town"])),
        (Align(b"abc"), lambda f, a: (f, [a[0].double()])),
        (Refusal("policy", "no"), with_field("final", "yes")),
        (Refusal("policy", "no"), with_field("kind", "a column")),
        (WELCOME, with_field("seeds", ["0"])),
        (WELCOME, with_field("method", None)),
        (WELCOME, without_field("method")),
        (Embed("evaluate", "test"), without_field("part")),  # it has a default
        (Embed("evaluate", "test"), with_field("more", 1)),
        (Begin(TRAIN), with_field("plan", {**vars(TRAIN), "more": 1})),
        (Begin(TRAIN), with_field("plan", {**vars(TRAIN), "bits": True})),
        (Begin(TRAIN), with_field("plan", {**vars(TRAIN), "bits": 32.0})),
        (Begin(TRAIN), with_field("plan", {**vars(TRAIN), "bits": 10**400})),
        (Begin(TRAIN), with_field("plan", vars(PARTY))),
        (Select(None, PARTY), with_field("plan", vars(TRAIN))),
        (Save("train-1"), with_field("tag", "train-1\n")),
        (Save("train-1"), with_field("tag", "train-\u0661")),
        (Hello("a", 1, "cpu", {}), with_field("versions", {"x" * 5000: "1"})),
    ],
)
def test_fields_that_do_not_fit_are_refused(message, change):
    with pytest.raises(ProtocolError, match="must be a frame of lessvfl"):
        decode(forged(message, change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (with_field("threads", -3), "'threads' of Hello must be a whole number >= 0. "),
        (
            with_field("party", 7),
            "'party' of Hello must be a name of 1 to 64 letters. Got 7 instead.",
        ),
        (without_field("device"), r"'fields' of Hello must be party, .* Got \['party'"),
        (with_field("party", "\n" * 5000), r"Got '\\n\\n.{,300}\.\.\. instead\.$"),
    ],
)
def test_a_field_that_does_not_fit_is_named_and_shown_in_short(change, sentence):
    with pytest.raises(ProtocolError, match=sentence) as caught:
        decode(forged(Hello("a", 1, "cpu", {}), change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "parties", [("a", *(f"p{i}" for i in range(1000))), ("a", "b" * 65), ("a", ""), ()]
)
def test_parties_are_few_and_have_short_names(parties):
    """A server had a party agree to 30,000 names."""
    must = "must be a list of 1 to 1000 different names, each of 1 to 64 letters"
    message = encode(WireFrame(dataclasses.replace(WELCOME, parties=parties), 1))
    with pytest.raises(ProtocolError, match=must):
        decode(message)


def test_fields_that_nest_without_end_are_refused():
    deep = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    text = b'{"run":"r","settings":' + deep + b',"arrays":[]}'
    place = codec._PLACES[Welcome]
    head = codec.HEAD.pack(
        codec.MAGIC, codec.VERSION, place, 0, bytes(16), len(text), 0
    )
    with pytest.raises(ProtocolError, match="must be a frame of lessvfl"):
        decode(head + codec._checksum(head, text) + text)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "1" * 400])
def test_numbers_without_bounds_are_refused(number, monkeypatch):
    class Writer:
        def encode(self, fields):
            return json.dumps(fields).replace('"size"', number)

    monkeypatch.setattr(codec, "_ENCODER", Writer())
    plan = dataclasses.asdict(TRAIN) | {"learning_rate": "size"}
    data = forged(Begin(TRAIN), with_field("plan", plan))
    monkeypatch.undo()
    with pytest.raises(ProtocolError, match="must be a frame of lessvfl"):
        decode(data)


def test_what_is_kept_in_mind_is_bounded_and_still_checked():
    """The same fields come step after step; their arrays are looked at every time."""
    codec._known_reader.cache_clear()
    good = codec.encode(WireFrame(Descend("train", BLOCK), 1))
    bad = codec.encode(WireFrame(Descend("train", Block(BLOCK.values / 0)), 2))
    for _ in range(3):
        assert torch.equal(decode(good).message.gradient.values, BLOCK.values)
        with pytest.raises(ProtocolError, match="not finite"):
            decode(bad)
    assert codec._known_reader.cache_info().currsize == 1
    decode(padded(good, codec.LONG_FIELDS))
    assert codec._known_reader.cache_info().currsize == 1  # too long to keep


def padded(data, n_spaces):
    """Return a frame with spaces behind its fields."""
    *start, n_fields, n_body = codec.HEAD.unpack_from(data)
    text, body = data[codec.HEAD_BYTES :][:n_fields], data[len(data) - n_body :]
    head = codec.HEAD.pack(*start, n_fields + n_spaces, n_body)
    text += b" " * n_spaces
    return head + codec._checksum(head, text, body) + text + body


def test_a_buffer_of_another_sign_is_read_alike():
    """Flight hands out signed bytes."""
    data = codec.encode(WireFrame(Descend("train", BLOCK), 3))
    assert decode(memoryview(data).cast("b")).number == 3


def test_sizes_that_do_not_fit_the_frame_are_refused():
    data = codec.encode(WireFrame(Descend("train", BLOCK), 3))
    head = list(codec.HEAD.unpack_from(data))
    for n_fields, n_body in ((codec.MAX_FIELDS + 1, 0), (head[5], 1 << 62)):
        start = codec.HEAD.pack(*head[:5], n_fields, n_body)
        with pytest.raises(ProtocolError, match="must be a frame of lessvfl"):
            decode(start + data[codec.HEAD.size :])


def test_arrays_that_a_message_does_not_have_are_refused_before_they_are_copied():
    many = torch.zeros(1 << 22, dtype=torch.uint8)
    data = forged(Busy(), lambda fields, arrays: (fields, [many]))
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="arrays, which Busy does not have"):
        decode(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_more_arrays_than_any_message_has_are_refused():
    more = [torch.zeros(0)] * 1000
    data = forged(Embedding("train", BLOCK), lambda fields, own: (fields, own + more))
    with pytest.raises(ProtocolError, match="up to 3 shapes"):
        decode(data)


def test_a_format_of_the_future_is_named():
    head = codec.HEAD.pack(codec.MAGIC, 99, 3, 1, bytes(16), 0, 0)
    with pytest.raises(ProtocolError, match="Got format 99"):
        decode(head + bytes(8))


def test_random_bytes_are_refused():
    rng = random.Random(0)
    for _ in range(2000):
        data = rng.randbytes(rng.randrange(200))
        with pytest.raises(ProtocolError):
            decode(data)
        with pytest.raises(ProtocolError):
            decode(codec.MAGIC + data)


def test_nothing_of_a_bad_message_is_shown():
    secret = b"patient 4711" * 20
    with pytest.raises(ProtocolError) as caught:
        decode(secret)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("value", [1.1e6, -1.1e6, 1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("bits", [32, 8])
def test_values_beyond_bounds_are_refused(value, bits):
    values = torch.tensor([[0.0, 1.0], [2.0, value]])
    block = Block(values)
    if bits < 32:
        low, step = torch.tensor([0.0, value / 255])
        levels = torch.tensor([[0, 1], [2, 255]], dtype=torch.uint8)
        block = Block(values, Coded(levels, low, step, bits))
    data = encode(WireFrame(Embedding("train", block), 1))
    with pytest.raises(ProtocolError, match=r"not finite, or above 1e\+06"):
        decode(data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_rows", [3, codec.ONE_THREAD])
def test_large_blocks_and_large_values_are_read_as_closely(n_rows, dtype):
    """A sum of squares spares the look at every value only where it is small."""
    values = torch.full((n_rows, 2), 9e5, dtype=dtype)  # the sum is out of bounds
    data = encode(WireFrame(Embedding("train", Block(values)), 1))
    assert torch.equal(decode(data).message.block.values, values)
    for bad in (1.1e6, -1.1e6, np.inf, -np.inf, np.nan):
        values = torch.zeros(n_rows, 2, dtype=dtype)
        values[-1, 1] = bad
        data = encode(WireFrame(Embedding("train", Block(values)), 1))
        with pytest.raises(ProtocolError, match=r"not finite, or above 1e\+06"):
            decode(data)


@pytest.mark.parametrize("value", [1e6, -1e6, 0.0])
def test_values_at_the_bound_and_none_at_all_are_taken(value):
    block = Block(torch.full((3, 2), value))
    sent = decode(encode(WireFrame(Embedding("train", block), 1))).message
    assert torch.equal(sent.block.values, block.values)
    empty = Embedding("train", Block(torch.zeros(0, 2)))
    assert decode(encode(WireFrame(empty, 1))).message.block.values.shape == (0, 2)


def test_a_frame_says_what_it_is_before_it_is_read():
    data = encode(WireFrame(Busy(), 7, bytes(range(16))))
    assert kind_of(data) is Busy
    assert exchange_of(data) == (7, bytes(range(16)))
    assert kind_of(b"") is None
    assert kind_of(data[:6] + b"\xff\xff" + data[8:]) is None
    assert exchange_of(b"LVFL") == (0, bytes(16))


@pytest.mark.parametrize(
    ("bits", "shape"),
    [(8, [0, 2**40]), (8, [2**62, 0]), (8, [0, 2]), (8.0, [0, 0]), (8, [0, 0, 0])],
)
def test_a_coded_block_of_no_bytes_is_refused_whatever_its_shape(bits, shape):
    """Once, three hundred bytes ended a server: torch raises errors of its own."""
    fields = {"stage": "train", "ahead": True, "coded": [bits, "float32", shape]}
    fields |= {"arrays": [["uint8", [0]], ["float32", [2]]]}
    text, body = json.dumps(fields).encode(), bytes(8)
    place = codec._PLACES[Embedding]
    head = codec.HEAD.pack(
        codec.MAGIC, codec.VERSION, place, 0, bytes(16), len(text), len(body)
    )
    frame = head + codec._checksum(head, text, body) + text + body
    with pytest.raises(ProtocolError, match="must be a frame of lessvfl"):
        decode(frame)
