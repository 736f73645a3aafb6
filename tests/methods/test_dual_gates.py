"""Dual gates: what they keep, where they start, and what is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lessvfl
from lessvfl import data
from lessvfl.core import binning, gates

FEW: dict[str, Any] = {"train_epochs": 1, "gate_epochs": 3, "batch_size": 64}


def simulate(seeds: list[int], **more: Any) -> list[Any]:
    options = {"n_samples": 300, "n_test": 60, "task": "binary"}
    dataset = data.load("synthetic", options=options)
    own = lessvfl.resolve("dual-gates", "default", dataset, FEW | more)
    return lessvfl.simulate(lessvfl.Job(dataset, own, parties=3), seeds)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return where the gates of every side start, (n_groups,)."""
    found: dict[str, Any] = {}
    make = gates.Gates.of

    def watched(plan: Any, start: Any, owner: Any, **how: Any) -> gates.Gates | None:
        made = make(plan, start, owner, **how)
        if made is not None:
            found[how["who"]] = made.mu.clone()
        return made

    monkeypatch.setattr(gates.Gates, "of", watched)
    return found


def test_gates_start_in_proportion_to_one_over_gini(
    starts: dict[str, Any],
) -> None:
    (run,) = simulate([0])
    y = torch.from_numpy(run.problem.y_train).long()
    for table in run.problem.parties:
        X, n = torch.from_numpy(table.X_train), table.X_train.shape[1]
        bins = binning.bin_features(X.float(), torch.arange(n), n, 10)
        gini = binning.impurity(bins.counts(y, 2), bins.owner, n)
        mu = starts[table.name]
        torch.testing.assert_close(
            mu * gini.to(mu), mu.new_full((n,), float(mu[0] * gini[0]))
        )
        assert float(mu.mean()) == pytest.approx(0.5, rel=1e-5)


def test_half_open_gates_need_no_count(starts: dict[str, Any]) -> None:
    (run,) = simulate([0], start="half")
    assert "select_features" not in run.numbers["communication"]["by_stage"]
    assert len(starts) == 4
    assert all((mu == gates.HALF_OPEN).all() for mu in starts.values())


def test_a_high_price_shuts_all_gates_and_none_keeps_more() -> None:
    def n_kept(lam: float) -> int:
        (run,) = simulate([0], lam=lam, gate_epochs=12, start="half")
        return sum(len(own["kept"]) for own in run.numbers["features"].values())

    counts = [n_kept(lam) for lam in (0.0, 0.03, 3.0)]
    assert counts[2] == 0
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1] > 0


def test_under_sharing_and_in_the_clear_gates_end_alike() -> None:
    (shared,), (clear,) = (simulate([0], secret=how) for how in ("sharing", "none"))
    assert shared.numbers["features"] == clear.numbers["features"]
    assert shared.numbers["accuracy"] == clear.numbers["accuracy"]


def test_planted_noise_goes() -> None:
    dataset = data.load("breast-cancer")
    few = {"train_epochs": 2, "start": "half", "lam": 0.01}
    own = lessvfl.resolve("dual-gates", "default", dataset, few)
    job = lessvfl.Job(dataset, own, parties=3, spurious=1.0)
    (run,) = lessvfl.simulate(job, [0])
    assert run.numbers["spurious"]["removed_share"] >= 0.8
    assert run.numbers["balanced_accuracy"]["final"] > 0.9
