"""Frames on their way: short where the last one of their kind said the same."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import decode

from lessvfl.errors import ProtocolError
from lessvfl.wire import codec, shorthand
from lessvfl.wire.codec import WireFrame, encode
from lessvfl.wire.control import Align, Busy, Finish
from lessvfl.wire.messages import Block, Descend, Embedding
from lessvfl.wire.shorthand import Shorthand

RUN = bytes(range(16))
BODY = 3 * 4 * 4 + 8  # with the rate


def step(n, n_rows=3, run=RUN):
    values = torch.full((n_rows, 4), float(n))
    return encode(WireFrame(Descend("train", Block(values)), n, run))


def carried(frames):
    """Return how frames travel, once they have come back whole."""
    said, heard = Shorthand(), Shorthand()
    short = [said.shorten(frame) for frame in frames]
    back = [bytes(heard.whole(memoryview(some))) for some in short]
    assert back == frames
    return short


def test_a_step_costs_its_values_and_fourteen_bytes():
    first, *others = carried([step(n) for n in range(4)])
    assert first == step(0)
    assert [len(some) for some in others] == [BODY + 14] * 3


@pytest.mark.parametrize(
    "other",
    [
        step(9, n_rows=2),  # as the last batch of an epoch
        step(9, run=bytes(16)),
        step(1 << 32),
        encode(WireFrame(Embedding("train", Block(torch.ones(3, 4))), 9, RUN)),
    ],
)
def test_what_is_said_for_the_first_time_travels_whole(other):
    *_, last = carried([step(1), step(2), other])
    assert last == other


def test_the_last_few_of_a_kind_are_remembered():
    """As the last batch of an epoch, or rows held out, which come now and then."""
    few = [step(n, n_rows=n) for n in range(1, shorthand.MOST + 1)]
    for frames, n_short in (
        ([*few, *few], shorthand.MOST),
        ([*few, step(9, n_rows=9), *few[1:]], shorthand.MOST - 1),
        ([*few, step(9, n_rows=9), few[0]], 0),
    ):
        short = carried(frames)
        assert sum(some[:1] == b"l" for some in short) == n_short


def test_kinds_are_remembered_apart():
    beat = encode(WireFrame(Busy(), 1, RUN))
    short = carried([step(1), beat, step(2), beat, step(3)])
    assert [len(some) for some in short[2:]] == [BODY + 14, 14, BODY + 14]


def test_long_frames_and_long_fields_travel_whole():
    rows = encode(WireFrame(Align(bytes(shorthand.LONGEST)), 1, RUN))
    text = encode(WireFrame(Finish("x" * 4000), 1, RUN))
    assert carried([rows, rows, text, text]) == [rows, rows, text, text]


def test_every_flipped_bit_of_a_short_frame_is_found():
    said = Shorthand()
    said.shorten(step(1))
    data = bytearray(said.shorten(step(2)))
    assert len(data) == BODY + 14
    for place in range(len(data)):
        for bit in (1, 128):
            data[place] ^= bit
            heard = Shorthand()
            heard.whole(memoryview(step(1)))
            with pytest.raises(ProtocolError):
                decode(heard.whole(memoryview(bytes(data))))
            data[place] ^= bit


def test_ends_that_remember_different_things_notice():
    said, heard = Shorthand(), Shorthand()
    said.shorten(step(1))
    heard.whole(memoryview(step(1, run=bytes(16))))
    with pytest.raises(ProtocolError, match="checksum is wrong"):
        decode(heard.whole(memoryview(said.shorten(step(2)))))
    with pytest.raises(ProtocolError, match="must follow a whole one of its kind"):
        Shorthand().whole(memoryview(said.shorten(step(3))))


@pytest.mark.parametrize("data", [b"", b"l", b"l" + bytes(12), b"LVFL", bytes(60)])
def test_what_is_no_frame_is_left_to_who_reads_it(data):
    """Nothing is kept of a kind that there is not."""
    heard = Shorthand()
    assert bytes(heard.whole(memoryview(data))) == data
    heard.whole(memoryview(codec.HEAD.pack(b"LVFL", 8, 999, 1, RUN, 0, 0) + bytes(8)))
    assert set(heard._known) <= {0}
