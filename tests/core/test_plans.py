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
    return torch.cat(rows, dim=1)


def test_batches_cover_every_row_once_an_epoch():
    batches = Batches(10, 4, (3, 4), ("train",), "shuffle")
    assert batches.n_per_epoch == 3
    rows = shuffled(batches, 0)
    assert rows.shape == (2, 10)
    assert rows.sort().values.tolist() == [list(range(10))] * 2
    assert rows[0].tolist() != rows[1].tolist()
    again = shuffled(batches, 0)
    assert torch.equal(rows, again)
    assert not torch.equal(rows, shuffled(batches, 1))
    fixed = Batches(10, 4, (3, 4), ("train",), "file")
    assert fixed.epoch(0, CPU) == [slice(0, 4), slice(4, 8), slice(8, 10)]


@pytest.mark.parametrize(
    ("n_epochs", "n_steps"), [(0, 0), (0.01, 1), (0.5, 2), (1, 3), (2.5, 8)]
)
def test_fractional_epochs_are_steps(n_epochs, n_steps):
    batches = Batches(10, 4, (0,), ("train",), "file")
    assert batches.n_steps(n_epochs) == n_steps
    assert len(list(batches.steps(n_epochs, CPU))) == n_steps


def test_take_picks_rows_of_every_replica():
    shared = torch.arange(12.0).view(1, 4, 3)
    own = torch.stack([shared[0], -shared[0]])
    rows = torch.tensor([[1, 0], [3, 2]])
    assert torch.equal(take(own, rows)[1], -shared[0, [3, 2]])
    assert torch.equal(take(shared, rows)[1], shared[0, [3, 2]])
    assert torch.equal(take(own, rows[:1])[1], -shared[0, [1, 0]])
    assert torch.equal(take(own, slice(1, 3)), own[:, 1:3])


def test_a_sample_is_drawn_once_a_row_and_alike_by_everybody():
    drawn = sample_rows(20, 8, (0, 1))
    assert drawn.shape == (2, 8)
    assert all(len(set(row)) == 8 for row in drawn.tolist())
    assert torch.equal(drawn[1:], sample_rows(20, 8, (1,)))
    assert drawn[0].tolist() != drawn[1].tolist()


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
    monkeypatch.setattr(plans, "BLOCK", 16)
    batches = Batches(n_samples, 7, (3, 4), ("train",), "blocks")
    first = shuffled(batches, 0)
    assert [sorted(order) for order in first.tolist()] == [[*range(n_samples)]] * 2
    for order in first.tolist():
        visits = [block for block, _ in itertools.groupby(row // 16 for row in order)]
        assert sorted(visits) == [*range(-(-n_samples // 16))]
    assert torch.equal(first, shuffled(batches, 0))
    if n_samples > 5:
        assert not torch.equal(first, shuffled(batches, 1))
        assert not torch.equal(first[0], first[1])
    sizes = [
        take(torch.empty(1, n_samples), rows).shape[1] for rows in batches.epoch(0, CPU)
    ]
    assert sizes == [7] * (n_samples // 7) + [n_samples % 7] * (n_samples % 7 > 0)
    alone = Batches(n_samples, 7, (4,), ("train",), "blocks")
    assert torch.equal(shuffled(alone, 0)[0], first[1])


def test_a_few_of_very_many_rows_are_drawn_one_by_one(monkeypatch):
    monkeypatch.setattr(plans, "MANY_ROWS", 100)
    drawn = sample_rows(1000, 200, (0, 1))
    assert drawn.shape == (2, 200)
    assert all(len(set(rows)) == 200 for rows in drawn.tolist())
    assert set(drawn.flatten().tolist()) <= set(range(1000))


def blocks_of(n_rows: int = 400, size: int = 5) -> torch.Tensor:
    return (torch.arange(n_rows) // size).flip(0).unsqueeze(0)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_rows_are_held_out_in_whole_blocks(size):
    order = torch.stack([torch.randperm(400, generator=stream(s)) for s in range(3)])
    blocks = blocks_of(size=size)
    held, rest = hold_out(order, 82, blocks)
    assert held.shape[1] == 82 // size * size
    assert held.shape[1] + rest.shape[1] == 400
    for one, other in zip(held, rest, strict=True):
        assert not torch.isin(blocks[0, one], blocks[0, other]).any()
    assert not torch.equal(held[0].sort().values, held[1].sort().values)


def test_blocks_of_many_sizes_leave_none_on_both_sides_in_any_replica():
    sizes = torch.randint(1, 60, (30,), generator=stream(0))
    blocks = torch.repeat_interleave(sizes).unsqueeze(0)
    n = blocks.shape[1]
    order = torch.stack([torch.randperm(n, generator=stream(s)) for s in range(4)])
    held, rest = hold_out(order, n // 5, blocks)
    assert n // 10 < held.shape[1] <= n // 5
    assert rest.shape[1] > n // 2
    for one, other in zip(held, rest, strict=True):
        assert not torch.isin(blocks[0, one], blocks[0, other]).any()


def test_where_no_block_fits_the_smallest_is_held_out_and_one_alone_is_divided():
    order = torch.randperm(100, generator=stream(0)).unsqueeze(0)
    two = (torch.arange(100) < 40).long().unsqueeze(0)
    held, rest = hold_out(order, 10, two)
    assert (held.sort().values == torch.arange(40)).all()
    assert rest.shape[1] == 60
    one = torch.zeros(1, 100, dtype=torch.long)
    assert torch.equal(hold_out(order, 10, one)[0], order[:, :10])


def test_blocks_of_one_row_each_change_nothing_about_what_is_held_out():
    order = torch.randperm(50, generator=stream(0)).unsqueeze(0)
    alone = torch.arange(50).unsqueeze(0)
    for given, usual in zip(hold_out(order, 9, alone), hold_out(order, 9), strict=True):
        assert torch.equal(given, usual)


@pytest.mark.parametrize("row_order", ["shuffle", "file", "blocks"])
def test_an_epoch_has_no_row_of_a_block_that_is_held_out(row_order):
    blocks = blocks_of(size=7)
    batches = Batches(400, 32, (3, 4), ("train",), row_order, 40, blocks)
    rows = shuffled(batches, 0)
    assert batches.held_out.shape == (2, 35)
    assert rows.shape == (2, batches.n_used) == (2, 365)
    for used, held in zip(rows, batches.held_out, strict=True):
        assert len(used.unique()) == 365
        assert not torch.isin(blocks[0, used], blocks[0, held]).any()
