"""What is not due is refused by its head: nothing of it is unpacked, or even kept."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import flight as arrow

from lessvfl.errors import PartyLostError, ProtocolError
from lessvfl.wire import codec, coding, control, dial, due, flight, messages
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.connection import GoneError
from lessvfl.wire.due import BlockShape, Bound, Due, NotDueError
from lessvfl.wire.line import HubRules

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MIB = 1 << 20
SIDES = ("server", "party")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def memory() -> ModuleType:
    return load("wire_memory")


def frame(message: object) -> bytes:
    return codec.encode(WireFrame(message, 1))


def a_block(n_rows: int = 4, bits: int = 32) -> messages.Block:
    return messages.Block.in_bits(torch.rand(n_rows, 2), bits, 0, "due")


def rude(memory, mib: int = 16) -> bytes:
    """Return levels of 4 bits, in place of whatever is due."""
    data: bytes = memory.levels(mib, 1, bytes(16))
    return data


def test_levels_where_an_offer_of_ids_is_due_are_not_unpacked(memory):
    """Once, 110 MiB of them took 2,825 MiB of a server before it refused them."""
    data = rude(memory)
    offer = due.replies(control.Align(b""), {control.Align: Bound(len(data))})
    peak = memory.peak_of(lambda: codec.decode(data, offer.accept))
    assert peak.refusal.startswith("A reply must be Align")
    assert peak.mib < 2


@pytest.fixture
def lengths(monkeypatch) -> list[int]:
    """Note how long the frames are that are looked at, and unpack no levels."""
    seen: list[int] = []
    decode = codec.decode

    def look(data: memoryview, accept: codec.Accept) -> WireFrame:
        seen.append(len(data))
        return decode(data, accept)

    def unpack(*levels: object) -> None:
        raise AssertionError("levels that were not due are unpacked")

    monkeypatch.setattr(codec, "decode", look)
    monkeypatch.setattr(coding, "unpack", unpack)
    return seen


def test_a_hub_cuts_off_who_sends_what_is_not_due(memory, lengths):
    offer: dict[type, Bound] = {control.Align: Bound(20 * MIB)}
    rules = HubRules(due=lambda party, request: due.replies(request, offer))
    hub = flight.FlightHub("127.0.0.1:0", ("a",), None, rules=rules)

    def answer() -> None:
        stream = flight.Address(f"127.0.0.1:{hub.port}", None).connect()
        stream.write(frame(control.Hello("a", 1, "cpu", {})))
        stream.read()
        with contextlib.suppress(GoneError):
            stream.write(rude(memory))
            stream.read()
        stream.close()

    with contextlib.closing(hub):
        threading.Thread(target=answer, daemon=True).start()
        hub.wait(20)
        with pytest.raises(PartyLostError, match=r"must be Align or Agreed.*\w\.$"):
            hub.send({"a": control.Align(b"")})
    assert lengths[-1] < 17 * MIB


def test_a_party_keeps_no_more_than_a_mebibyte_before_a_run(memory, lengths):
    """Once, a first message of 64 MiB took 1,655 MiB of it."""
    hub = flight.FlightHub("127.0.0.1:0", ("a",), None)
    errors: list[Exception] = []

    def take_part() -> None:
        try:
            dial.serve(
                flight.Address(f"127.0.0.1:{hub.port}", None),
                control.Hello("a", 1, "cpu", {}),
                lambda message: control.Agreed(),
                patience=5.0,
                due=lambda: due.requests("before a run", {}),
            )
        except ProtocolError as error:
            errors.append(error)

    with contextlib.closing(hub):
        party = threading.Thread(target=take_part, daemon=True)
        party.start()
        hub.wait(20)
        with pytest.raises(ProtocolError, match="stops"):
            hub.send({"a": control.Align(bytes(16 * MIB))})
        party.join(20)
    (error,) = errors
    assert str(error) == "A request must be Welcome. Got Align."
    assert max(lengths) <= flight.PART


def test_a_batch_of_arrow_in_place_of_a_frame_is_not_unpacked_by_a_party():
    """Compressed, a gibibyte of zeros has 33,096 bytes on the wire."""

    class Rude(arrow.FlightServerBase):
        def do_exchange(
            self, _: object, what: object, reader: Any, writer: Any
        ) -> None:
            column = pyarrow.array(np.zeros(4 * MIB, dtype=np.uint8))
            batch = pyarrow.record_batch([column], names=["x"])
            how = pyarrow.ipc.IpcWriteOptions(compression="zstd")
            reader.read_chunk()
            writer.begin(batch.schema, options=how)
            writer.write_with_metadata(batch, frame(control.Busy()))

    with Rude("grpc+tcp://127.0.0.1:0") as server:
        stream = flight.Address(f"127.0.0.1:{server.port}", None).connect()
        stream.write(frame(control.Hello("a", 1, "cpu", {})))
        with pytest.raises(GoneError):
            stream.read()
        stream.close()


def test_what_follows_a_frame_that_was_too_long_is_read():
    """A party that declines goes on: the rest of the frame is dropped."""
    hub = flight.FlightHub("127.0.0.1:0", ("a",), None)

    def take_part() -> None:
        with contextlib.suppress(PartyLostError, ProtocolError):
            dial.serve(
                flight.Address(f"127.0.0.1:{hub.port}", None),
                control.Hello("a", 1, "cpu", {}),
                lambda message: control.Agreed(),
                patience=5.0,
                due=lambda: due.requests("before a model", {}),
                decline=lambda error: control.Declined(str(error)),
            )

    with contextlib.closing(hub):
        threading.Thread(target=take_part, daemon=True).start()
        hub.wait(20)
        for _ in range(2):
            said = hub.send({"a": control.Align(bytes(3 * MIB))})["a"]
            assert said == control.Declined("A request must be Open. Got Align.")
        session = control.Open("r", (0,), "0f" * 16, "0" * 64, "psi")
        assert hub.send({"a": session}) == {"a": control.Agreed()}


def test_every_kind_takes_at_most_three_times_what_is_due():
    # A process of its own: what is free in this one would not count.
    command = [
        sys.executable,
        str(BENCHMARKS / "wire_memory.py"),
        "--kinds",
        "--mib",
        "8",
    ]
    table = subprocess.run(command, capture_output=True, text=True, check=False)
    assert table.returncode == 0, table.stdout + table.stderr
    rows = table.stdout.splitlines()[1:]
    assert len(rows) == 18  # every kind with arrays, blocks in all bits


def test_a_kind_with_arrays_that_is_not_measured_is_found(memory):
    arrays = {type(message) for _, _, message in memory.kinds(MIB)}
    for kind in codec.KINDS:
        fields = {field.name for field in dataclasses.fields(kind.fields)}
        plain = kind.fields is kind.cls or "plan" in fields
        assert plain or kind.cls in arrays, kind.cls


def test_what_is_not_due_is_said_before_a_checksum_is_looked_at():
    damaged = bytearray(frame(messages.Embedding("train", a_block())))
    damaged[-1] ^= 1
    with pytest.raises(NotDueError, match=r"must be Done\. Got Embedding"):
        codec.decode(bytes(damaged), Due({messages.Done: Bound()}).accept)
    with pytest.raises(ProtocolError, match="checksum is wrong"):
        codec.decode(bytes(damaged), Due({messages.Embedding: Bound(MIB)}).accept)


def test_a_beginning_is_enough_to_refuse_a_frame():
    whole = frame(control.Align(bytes(5000)))
    beginning = whole[: len(whole) - 4000]
    with pytest.raises(
        NotDueError, match=r"than are due\. Got Align with arrays of 5,0"
    ):
        codec.decode(beginning, Due({control.Align: Bound(4999)}).accept)
    with pytest.raises(ProtocolError, match="must be a frame of lessvfl"):
        codec.decode(beginning, Due({control.Align: Bound(5000)}).accept)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_levels_count_as_the_values_that_they_stand_for(bits):
    block = a_block(8, bits)
    data, n_bytes = frame(messages.Descend("train", block)), 4 * 8 * 2
    assert codec.decode(data, Due({messages.Descend: Bound(n_bytes)}).accept)
    with pytest.raises(NotDueError, match="no more bytes than are due"):
        codec.decode(data, Due({messages.Descend: Bound(n_bytes - 1)}).accept)


def test_a_lie_about_the_shape_of_levels_is_no_way_around_the_bound():
    """The bytes that travel count as well as what they are said to become."""
    data = frame(messages.Descend("train", a_block(64, 8)))
    head = codec.HEAD.unpack_from(data)
    cut = codec.HEAD_BYTES + head[5]
    fields = json.loads(data[codec.HEAD_BYTES : cut])
    fields["coded"][2] = [1, 2]
    text = json.dumps(fields).encode()
    start = codec.HEAD.pack(*head[:5], len(text), head[6])
    forged = start + codec._checksum(start, text, data[cut:]) + text + data[cut:]
    with pytest.raises(NotDueError, match="no more bytes than are due"):
        codec.decode(forged, Due({messages.Descend: Bound(100)}).accept)


@pytest.mark.parametrize("kind", [messages.Descend, messages.Done])
def test_levels_of_a_shape_with_many_sides_are_refused_like_any_frame(kind):
    """Once, the product of 600 sides had too many digits to be told, and ended both."""
    fields: dict[str, Any] = {"stage": "train", "arrays": []}
    fields |= {"coded": [4, "float32", [1 << 31] * 600]}
    fields |= {"last" if kind is messages.Descend else "silent": False}
    text, place = json.dumps(fields).encode(), codec._PLACES[kind]
    head = codec.HEAD.pack(
        codec.MAGIC, codec.VERSION, place, 1, bytes(16), len(text), 0
    )
    data = head + codec._checksum(head, text) + text
    with pytest.raises(ProtocolError, match="a shape of up to 4 sides"):
        codec.decode(data, Due({kind: Bound()}).accept)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (messages.Embedding("train", a_block(), True), None),
        (messages.Embedding("embed", a_block(), True), "must be of stage train"),
        (messages.Embedding("train", a_block(), False), "must be of the next step"),
        (messages.Embedding("train", a_block(5), True), r"of shape \(4, 2\)"),
        (messages.Embedding("train", a_block(4, 8), True), "must be in 32 bits"),
        (messages.Done("train"), r"must be Embedding\. Got Done"),
        (control.Align(b""), r"must be Embedding\. Got Align"),
    ],
)
def test_an_embedding_is_exactly_the_block_that_was_asked_for(reply, sentence):
    shape = BlockShape((4, 2), torch.float32, 32)
    asked = Due({messages.Embedding: due.embedding(shape, "train", True)})
    if sentence is None:
        codec.decode(frame(reply), asked.accept)
        return
    with pytest.raises(NotDueError, match=sentence):
        codec.decode(frame(reply), asked.accept)


def test_a_refusal_is_short_whatever_is_refused():
    """Once, a mebibyte of numbers was a line of a server's log, a hundred times."""
    asked = Due({messages.Done: Bound(MIB, lambda *what: "not due, " * 100_000)})
    with pytest.raises(NotDueError, match="not due, ") as error:
        codec.decode(frame(messages.Done("train")), asked.accept)
    assert len(str(error.value)) < 1100
    assert error.value.public == str(error.value)


def test_a_farewell_is_no_reply_and_a_sign_of_life_no_request():
    """Once, a party that said farewell in place of a reply ended the server."""
    for request in (control.Finish("0f"), control.Save("train-1"), messages.Describe()):
        with pytest.raises(NotDueError, match="Got Farewell"):
            codec.decode(frame(control.Farewell()), due.replies(request, {}).accept)
    asked = due.requests("before a run", {})
    with pytest.raises(NotDueError, match="Got Busy"):
        codec.decode(frame(control.Busy()), asked.accept)
    assert codec.decode(frame(control.Farewell()), asked.accept)


def test_every_request_has_replies_and_comes_at_some_time():
    asked = {kind for kinds in due.REQUESTS.values() for kind in kinds}
    assert asked == set(due.REPLIES)
    replies = {kind for kinds in due.REPLIES.values() for kind in kinds}
    known = {kind.cls for kind in codec.KINDS}
    assert known == asked | replies | {*due.FROM_PARTY, *due.FROM_SERVER, control.Hello}


def test_until_a_run_is_agreed_no_message_is_longer_than_a_mebibyte():
    for when in ("before a run", "before a model"):
        assert due.requests(when, {}).most_bytes == MIB + codec.HEAD_BYTES
    assert flight.PART == MIB + codec.HEAD_BYTES  # a longer one comes in parts


def test_a_mutated_frame_takes_no_more_than_is_due():
    """Whatever is in a frame, it is refused or read, within a limit on memory."""
    load("golden")
    counts = load("fuzz").read_frames(2000, seed=1)
    assert counts.keys() <= {f"{w}: {h}" for w in SIDES for h in ("read", "refused")}
    assert sum(counts.values()) == 2000
    assert min(counts.values()) > 20
