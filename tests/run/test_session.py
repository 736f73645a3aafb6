"""What a seed is run with, over any channel."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.run.jobs import a_job

from lessvfl.core.keeper import Keeper
from lessvfl.run import session, simulate


@pytest.mark.parametrize("goes_on", [False, True])
def test_torchs_own_state_is_of_the_seed_or_that_of_a_break(goes_on, monkeypatch):
    """A user's dropout goes on where it was, and leaves no trace behind a run."""
    before = torch.get_rng_state()
    saved = torch.Generator().manual_seed(99).get_state()
    fresh = torch.Generator().manual_seed(7).get_state()
    states: list[torch.Tensor] = []

    class Over(Exception):
        """The method has begun."""

    def keeper_of():
        if goes_on:
            torch.set_rng_state(saved)
        return Keeper()

    def method(*what):
        states.append(torch.get_rng_state())
        raise Over

    def run_seed(build, labels, recorder, _):
        return session.run_seed(build, labels, recorder, keeper_of)

    methods = SimpleNamespace(get=lambda name: SimpleNamespace(run=method))
    monkeypatch.setattr(simulate, "run_seed", run_seed)
    monkeypatch.setattr(session, "methods", methods)
    with pytest.raises(Over):
        simulate.simulate(a_job(), [7])
    (state,) = states
    assert torch.equal(state, saved if goes_on else fresh)
    assert torch.equal(torch.get_rng_state(), before)
