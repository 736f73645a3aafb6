"""When training ends by itself."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lessvfl.core.ending import LOOK_EVERY, PATIENCE, TrainingEnd, fewest_steps
from lessvfl.core.plans import Batches, TrainPlan, sample_rows


def walk(losses, n_steps):
    """Return the rate of every step, with the losses that looks see, in turn."""
    ending, rates, left = TrainingEnd(n_steps), [], iter(losses)
    for step in range(1, n_steps + 1):
        if ending.is_due(step):
            ending.see(next(left), step)
        rates.append(ending.rate(step))
        if ending.is_last(step):
            return rates
    raise AssertionError("it never ends")


def test_the_rate_falls_once_the_loss_improves_no_more():
    rates = walk([1.0, 0.8, *[0.81] * 20], 10_000)
    falls = (2 + PATIENCE) * LOOK_EVERY
    assert rates[: falls - 1] == [1.0] * (falls - 1)
    assert len(rates) == falls + falls // 2
    after = rates[falls - 1 :]
    assert all(b < a for a, b in itertools.pairwise(after))
    assert 0 < rates[-1] < 0.05


def test_it_ends_with_the_steps_that_are_allowed_while_the_loss_still_improves():
    rates = walk([0.5**n for n in range(100)], 300)
    assert len(rates) == 300
    assert rates[:199] == [1.0] * 199
    assert rates[-1] < 0.05


def test_an_improvement_that_is_none_does_not_count():
    slow = walk([1 - 0.001 * n for n in range(100)], 10_000)
    fast = walk([0.9**n for n in range(400)], 10_000)
    assert len(slow) < 400 < len(fast)


@pytest.mark.parametrize("n_steps", range(1, 20))
def test_few_steps_are_all_done(n_steps):
    rates = walk([], n_steps)
    assert len(rates) == n_steps
    assert all(rate > 0 for rate in rates)


def test_its_state_is_all_there_is_to_take_up():
    one = TrainingEnd(1000)
    for step in range(20, 140, 20):
        one.see(1.0, step)
    other = TrainingEnd(1000)
    other.state.copy_(one.state)
    steps = range(1, 400)
    assert [one.rate(s) for s in steps] == [other.rate(s) for s in steps]
    assert [one.is_last(s) for s in steps] == [other.is_last(s) for s in steps]


@pytest.mark.parametrize("row_order", ["file", "shuffle", "blocks"])
def test_rows_held_out_are_in_no_step_and_the_first_of_a_sample(row_order):
    plan = TrainPlan("train", 8, 64, row_order, "adam", 0.1, schedule="watched")
    batches = plan.batches(2000, 3)
    assert batches.n_held_out == 200
    held = sample_rows(2000, 200, 3)
    seen: list[torch.Tensor] = []
    for _, rows in batches.steps(2, torch.device("cpu")):
        assert isinstance(rows, torch.Tensor)
        seen.append(rows)
    assert len(seen) == 2 * -(-1800 // 64)
    used = torch.cat(seen)
    assert len(used) == 2 * 1800
    everything = torch.cat([used.unique(), held])
    assert torch.equal(everything.sort().values, torch.arange(2000))


def test_few_rows_are_all_trained_with_and_many_are_not_all_watched():
    plan = TrainPlan("train", 20, 64, "shuffle", "adam", 0.1, schedule="watched")
    assert plan.n_held_out(999) == 100
    assert plan.n_held_out(900) == 0
    assert plan.n_held_out(10**6) == 1000
    usual = Batches(900, 64, 0, ("train",), "shuffle")
    assert plan.batches(900, 0) == usual


def test_no_rows_are_held_out_where_a_watch_could_not_end_training():
    """Its earliest end is that of losses that never improve."""
    n_steps = fewest_steps()
    earliest = len(walk([1.0] * 99, 10_000))
    assert earliest == n_steps
    for n_epochs, n_rows in ((n_steps, 200), (n_steps - 1, 0)):
        plan = TrainPlan(
            "train", n_epochs, 2000, "shuffle", "adam", 0.1, schedule="watched"
        )
        assert plan.n_held_out(2000) == n_rows


def test_a_party_takes_what_an_honest_server_says_and_nothing_else():
    flat, falling = [1.0, 0.8, *[0.81] * 20], [0.5**n for n in range(90)]
    for losses, n_steps in ((flat, 900), (falling, 300)):
        server, party, left = TrainingEnd(n_steps), TrainingEnd(n_steps), iter(losses)
        for step in range(1, n_steps + 1):
            if server.is_due(step):
                server.see(next(left), step)
            rate, last = server.rate(step), server.is_last(step)
            for odd in (0.0, 0.97 * rate):
                copy = TrainingEnd(n_steps)
                copy.state.copy_(party.state)
                if (step - 1) % LOOK_EVERY or not copy.is_due(step - 1):
                    assert not copy.agrees(step, odd, last, True)
                assert not copy.agrees(step, rate, not last, True)
            assert party.agrees(step, rate, last, True)
            if last:
                break
        assert torch.equal(server.state[2], party.state[2])


def test_a_server_that_rounds_otherwise_is_believed():
    """On another kind of processor: its rates differ in their last bit."""
    losses = [1.0, 0.8, *[0.81] * 20]
    for towards in (0.0, math.inf):
        server, party, left = TrainingEnd(900), TrainingEnd(900), iter(losses)
        for step in range(1, 901):
            if server.is_due(step):
                server.see(next(left), step)
            rate, last = server.rate(step), server.is_last(step)
            assert party.agrees(step, math.nextafter(rate, towards), last, True)
            assert party.rate(step) == rate
            if last:
                break
        assert torch.equal(server.state[2], party.state[2])


def test_the_rate_of_a_party_falls_after_looks_enough_or_not_at_all():
    falls = PATIENCE * LOOK_EVERY
    honest = TrainingEnd(1000)
    honest.state[2] = falls
    rate = honest.rate(falls + 1)
    assert TrainingEnd(1000).agrees(falls + 1, rate, False, True)
    assert not TrainingEnd(1000).agrees(falls + 1, rate, False, False)  # nothing to see
    early = TrainingEnd(1000)
    early.state[2] = falls - LOOK_EVERY
    sooner = early.rate(falls - LOOK_EVERY + 1)
    assert not TrainingEnd(1000).agrees(falls - LOOK_EVERY + 1, sooner, False, True)
