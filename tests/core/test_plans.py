"""Mini-batches, their rows, and the streams that draw them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from lessvfl.core import plans
from lessvfl.core.plans import Batches, hold_out, sample_rows, stream, take
from lessvfl.terms import stream_seed

CPU = torch.device("cpu")


def shuffled(batches, epoch):
    rows = list(batches.epoch(epoch, CPU))
    assert all(isinstance(some, Tensor) for some in rows)
    return torch.cat(rows)


def test_batches_cover_every_row_once_an_epoch():
    batches = Batches(10, 4, 3, ("train",), "shuffle")
    assert batches.n_per_epoch == 3
    rows = shuffled(batches, 0)
    assert rows.sort().values.tolist() == list(range(10))
    other = Batches(10, 4, 4, ("train",), "shuffle")
    assert not torch.equal(rows, shuffled(other, 0))
    again = shuffled(batches, 0)
    assert torch.equal(rows, again)
    assert not torch.equal(rows, shuffled(batches, 1))
    fixed = Batches(10, 4, 3, ("train",), "file")
    assert fixed.epoch(0, CPU) == [slice(0, 4), slice(4, 8), slice(8, 10)]


@pytest.mark.parametrize(
    ("n_epochs", "n_steps"), [(0, 0), (0.01, 1), (0.5, 2), (1, 3), (2.5, 8)]
)
def test_fractional_epochs_are_steps(n_epochs, n_steps):
    batches = Batches(10, 4, 0, ("train",), "file")
    assert batches.n_steps(n_epochs) == n_steps
    assert len(list(batches.steps(n_epochs, CPU))) == n_steps


def test_take_picks_rows():
    table = torch.arange(12.0).view(4, 3)
    assert torch.equal(take(table, torch.tensor([3, 2])), table[[3, 2]])
    assert torch.equal(take(table[:, 0], torch.tensor([3, 2])), table[[3, 2], 0])
    assert torch.equal(take(table, slice(1, 3)), table[1:3])


def test_a_sample_is_drawn_once_a_row_and_alike_by_everybody():
    drawn = sample_rows(20, 8, 0)
    assert drawn.shape == (8,)
    assert len(set(drawn.tolist())) == 8
    assert torch.equal(drawn, sample_rows(20, 8, 0))
    assert not torch.equal(drawn, sample_rows(20, 8, 1))


def test_a_renamed_stage_keeps_its_stream():
    """Runs of earlier versions are drawn again as they were."""
    assert stream_seed(0, "train_first") == stream_seed(0, "settle")
    assert stream_seed(0, "train_first", "rows", 3) == stream_seed(0, "settle/rows/3")
    assert stream_seed(0, "train") != stream_seed(0, "train_first")
    drawn = [
        torch.rand(3, generator=stream(7, name)) for name in ("train_first", "settle")
    ]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("n_samples", [5, 16, 100])
def test_blocks_come_whole_and_hold_every_row_once(n_samples, monkeypatch):
    """Rows of a block stand together; the order of blocks and rows is the seed's."""
    monkeypatch.setattr(plans, "CHUNK", 16)
    batches = Batches(n_samples, 7, 3, ("train",), "blocks")
    first = shuffled(batches, 0)
    order = first.tolist()
    assert sorted(order) == [*range(n_samples)]
    visits = [block for block, _ in itertools.groupby(row // 16 for row in order)]
    assert sorted(visits) == [*range(-(-n_samples // 16))]
    assert torch.equal(first, shuffled(batches, 0))
    if n_samples > 5:
        other = Batches(n_samples, 7, 4, ("train",), "blocks")
        assert not torch.equal(first, shuffled(batches, 1))
        assert not torch.equal(first, shuffled(other, 0))
    sizes = [len(take(torch.empty(n_samples), rows)) for rows in batches.epoch(0, CPU)]
    assert sizes == [7] * (n_samples // 7) + [n_samples % 7] * (n_samples % 7 > 0)


def test_a_few_of_very_many_rows_are_drawn_one_by_one(monkeypatch):
    monkeypatch.setattr(plans, "MANY_ROWS", 100)
    drawn = sample_rows(1000, 200, 0)
    assert drawn.shape == (200,)
    assert len(set(drawn.tolist())) == 200
    assert set(drawn.tolist()) <= set(range(1000))


def blocks_of(n_rows: int = 400, size: int = 5) -> torch.Tensor:
    return (torch.arange(n_rows) // size).flip(0)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_rows_are_held_out_in_whole_blocks(size):
    blocks, chosen = blocks_of(size=size), set()
    for seed in range(3):
        order = torch.randperm(400, generator=stream(seed))
        held, rest = hold_out(order, 82, blocks)
        assert len(held) == 82 // size * size
        assert len(held) + len(rest) == 400
        assert not torch.isin(blocks[held], blocks[rest]).any()
        chosen.add(tuple(held.sort().values.tolist()))
    assert len(chosen) == 3


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_many_sizes_leave_none_on_both_sides(seed):
    sizes = torch.randint(1, 60, (30,), generator=stream(0))
    blocks = torch.repeat_interleave(sizes)
    n = len(blocks)
    order = torch.randperm(n, generator=stream(seed))
    held, rest = hold_out(order, n // 5, blocks)
    assert n // 10 < len(held) <= n // 5
    assert len(rest) > n // 2
    assert not torch.isin(blocks[held], blocks[rest]).any()


def test_where_no_block_fits_the_smallest_is_held_out_and_one_alone_is_divided():
    order = torch.randperm(100, generator=stream(0))
    two = (torch.arange(100) < 40).long()
    held, rest = hold_out(order, 10, two)
    assert (held.sort().values == torch.arange(40)).all()
    assert len(rest) == 60
    one = torch.zeros(100, dtype=torch.long)
    assert torch.equal(hold_out(order, 10, one)[0], order[:10])


def test_blocks_of_one_row_each_change_nothing_about_what_is_held_out():
    order = torch.randperm(50, generator=stream(0))
    alone = torch.arange(50)
    for given, usual in zip(hold_out(order, 9, alone), hold_out(order, 9), strict=True):
        assert torch.equal(given, usual)


@pytest.mark.parametrize("row_order", ["shuffle", "file", "blocks"])
def test_an_epoch_has_no_row_of_a_block_that_is_held_out(row_order):
    blocks = blocks_of(size=7)
    batches = Batches(400, 32, 3, ("train",), row_order, 40, blocks)
    used, held = shuffled(batches, 0), batches.held_out
    assert held.shape == (35,)
    assert len(used) == batches.n_used == 365
    assert len(used.unique()) == 365
    assert not torch.isin(blocks[used], blocks[held]).any()
