"""Values in fewer bits: what is lost, what is not, and what it costs."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import decode

from lessvfl.wire import codec, coding
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.messages import Block, Embedding
from lessvfl.wire.parties import bill_line


def encode(values, bits, name="a test"):
    coded, rounded = coding.encode(values, bits, 0, name)
    assert torch.equal(rounded, coded.values(values.dtype))
    return coded


def encode_values(values, bits):
    return coding.encode(values, bits, 0, "a test")[1]


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("shape", [(7, 3), (1, 1), (4, 5)])
def test_packed_levels_come_back(bits, shape):
    values = torch.randn(shape)
    coded = encode(values, bits)
    packed = coded.packed()
    assert len(packed) == coding.n_bytes(values.numel(), bits)
    back = coding.unpack(packed.numpy(), shape, coded.low, coded.step, bits)
    assert torch.equal(back.levels, coded.levels)
    assert torch.equal(back.values(values.dtype), coded.values(values.dtype))


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_no_value_moves_by_more_than_a_level(bits):
    values = torch.randn(50, 4)
    coded = encode(values, bits)
    step = (values.max() - values.min()) / (2**bits - 1)
    assert (coded.values(values.dtype) - values).abs().max() <= step * 1.01


def test_rounding_has_no_bias():
    values = torch.tensor([[0.0, 0.3, 0.5, 0.9, 15.0]])
    found = [encode(values, 4, name=str(i)).values(values.dtype) for i in range(4000)]
    assert torch.stack(found).mean(dim=0) == pytest.approx(values, abs=0.03)


@pytest.mark.parametrize("bits", [4, 8])
def test_errors_of_a_column_do_not_add_up(bits):
    values = torch.randn(5000, 3, dtype=torch.float64).float()
    coded = encode(values, bits)
    errors = (coded.values(torch.float64) - values.double()).cumsum(dim=0)
    assert errors.abs().max() <= 1.01 * float(coded.step)
    assert errors.abs().max() > 0.5 * float(coded.step)


def test_the_draws_come_from_the_seed_and_the_name_alone():
    values = torch.randn(20, 4)
    one, same, other, elsewhere = (
        coding.encode(values, 8, seed, name)[0].levels
        for seed, name in ((0, "a"), (0, "a"), (0, "b"), (1, "a"))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, elsewhere)


@pytest.mark.parametrize("shape", [(0, 3), (5, 0)])
def test_a_block_without_values_is_empty_and_costs_nothing(shape):
    block = Block.in_bits(torch.zeros(shape), 8, 0, "x")
    assert block.values.shape == shape
    assert block.coded is None
    line = bill_line("a", Embedding("train", block))
    assert line is not None
    assert (line.payload_bytes, line.n_values) == (0, 0)


def test_what_is_not_finite_is_not_made_finite():
    values = torch.randn(6, 2)
    for bad in (float("inf"), float("nan")):
        values[3, 1] = bad
        assert not encode_values(values, 8).isfinite().all()


def test_a_constant_block_stays_what_it_is():
    values = torch.full((6, 2), 3.25)
    assert torch.equal(encode(values, 8).values(values.dtype), values)


def test_32_bits_are_the_values_themselves():
    values = torch.randn(4, 2)
    block = Block.in_bits(values, 32, 0)
    assert block.coded is None
    assert block.values is values
    assert block.bits == 32


@pytest.mark.parametrize(("bits", "paid"), [(4, 14), (8, 20), (16, 32), (32, 48)])
def test_the_bill_counts_what_travels(bits, paid):
    values = torch.randn(4, 3)
    block = Block.in_bits(values, bits, 0)
    ledger = Ledger()
    line = bill_line("a", Embedding("train", block))
    assert line is not None
    ledger.bill(line)
    assert ledger.direction_bytes("up") == paid


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_wire_carries_the_levels_and_gives_the_same_bits(bits, dtype):
    values = torch.randn(33, 3, dtype=dtype)
    block = Block.in_bits(values, bits, 0)
    data = codec.encode(WireFrame(Embedding("train", block), 1))
    n_body = codec.HEAD.unpack_from(data)[-1]
    assert n_body == coding.n_bytes(99, bits) + coding.END_BYTES
    back = decode(data).message.block
    assert back.bits == bits
    assert torch.equal(back.values, block.values)
    assert back.values.dtype is dtype
