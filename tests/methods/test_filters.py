"""The filters: what they keep, what each side sees, and their bill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import lessvfl
from lessvfl import data
from lessvfl.core.sharing import Ring
from lessvfl.errors import ConfigError
from lessvfl.party import Party
from lessvfl.wire import messages

FILTERS = ("gini-filter", "iv-filter")
FEW = {"train_epochs": 1, "batch_size": 64}


def simulate(method: str, seeds: list[int], parties: int = 3, **more: Any) -> Any:
    options = {"n_samples": 300, "n_test": 60, "task": "binary"}
    dataset = data.load("synthetic", options=options)
    own = lessvfl.resolve(method, "default", dataset, FEW | more)
    return lessvfl.simulate(lessvfl.Job(dataset, own, parties=parties), seeds)


def kept(run: Any) -> dict[str, Any]:
    return {name: own["kept"] for name, own in run.numbers["features"].items()}


@pytest.mark.parametrize("method", FILTERS)
def test_under_sharing_and_in_the_clear_the_same_is_kept(method: str) -> None:
    shared, clear = (simulate(method, [0, 1], secret=s) for s in ("sharing", "none"))
    for one, other in zip(shared, clear, strict=True):
        assert kept(one) == kept(other)
        assert one.numbers["accuracy"] == other.numbers["accuracy"]
    assert kept(shared[0]) != kept(shared[1])


@pytest.mark.parametrize("method", FILTERS)
def test_a_batch_of_seeds_is_as_each_alone(method: str) -> None:
    together = simulate(method, [0, 1])
    for seed, run in enumerate(together):
        assert kept(run) == kept(simulate(method, [seed])[0])


def test_keep_is_how_many_each_party_keeps() -> None:
    (run,) = simulate("iv-filter", [0], keep=2)
    assert [len(names) for names in kept(run).values()] == [2, 2, 2]


def test_the_bill_in_closed_form() -> None:
    """16 bits an element: bins of every row up, labels and shares down."""
    (run,) = simulate("gini-filter", [0], parties=2, keep=1)
    stage = run.numbers["communication"]["by_stage"]["select_features"]
    n_rows, ring = len(run.problem.y_train), 2  # bytes of an element
    widths = [table.X_train.shape[1] * 10 for table in run.problem.parties]
    key, number = 32, 4
    up = sum(
        key + number + (key + ring * width) + ring * n_rows * width for width in widths
    )
    down = sum((key + 2 * number) + (key + ring * n_rows) + ring * w for w in widths)
    assert stage == {"up": up, "down": down, "rounds": 4}
    (clear,) = simulate("gini-filter", [0], parties=2, keep=1, secret="none")
    stage = clear.numbers["communication"]["by_stage"]["select_features"]
    assert stage == {"up": 0, "down": 2 * 4 * n_rows, "rounds": 1}


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """Return what every party is asked and answers in stages of queries."""
    seen: list[tuple[str, Any, Any]] = []
    answer = Party.handle

    def watched(party: Party, request: Any) -> Any:
        reply = answer(party, request)
        if isinstance(request, messages.Query):
            seen.append((party.name, request, reply))
        return reply

    monkeypatch.setattr(Party, "handle", watched)
    return seen


def is_uniform(values: torch.Tensor) -> bool:
    """Test the upper bytes of elements of the ring of 16 bits against chance."""
    cells = (Ring(16).unpack(values) >> 8).flatten().numpy()
    observed = np.bincount(cells, minlength=256)
    return float(stats.chisquare(observed).pvalue) > 1e-4


def test_the_server_sees_uniform_numbers_and_a_party_counts(
    traffic: list[tuple[str, Any, Any]],
) -> None:
    (run,) = simulate("gini-filter", [0], parties=2)
    tables = {table.name: table for table in run.problem.parties}
    y = torch.from_numpy(run.problem.y_train)
    assert len(traffic) == 2 * 4
    for name, query, reply in traffic:
        n_rows, width = len(y), tables[name].X_train.shape[1] * 10
        match query.step:
            case 0:  # the server learns the number of bins
                assert reply.arrays[1].tolist() == [[width]]
            case 1:  # a dealer learns sizes; the server's share of a'b is random
                assert is_uniform(reply.arrays[1])
            case 2:  # labels less their mask; bins of every row less theirs
                _, labels = query.arrays
                assert labels.shape == (1, n_rows, 1)
                assert not torch.equal(Ring(16).unpack(labels)[0, :, 0], y)
                (rows,) = reply.arrays
                assert rows.shape == (1, n_rows, width)
                assert is_uniform(rows)
            case 3:  # alone, the server's share of the counts is random, too
                assert is_uniform(query.arrays[0])
                assert isinstance(reply, messages.Done)


def test_masks_are_new_in_every_run(traffic: list[tuple[str, Any, Any]]) -> None:
    for _ in range(2):
        simulate("gini-filter", [0], parties=2)
    steps = [(name, q, r) for name, q, r in traffic if q.step == 2]
    first, again = steps[:2], steps[2:]
    for (name, query, reply), (other, query_again, reply_again) in zip(
        first, again, strict=True
    ):
        assert name == other
        assert not torch.equal(query.arrays[1], query_again.arrays[1])
        assert not torch.equal(reply.arrays[0], reply_again.arrays[0])


def test_in_the_clear_a_party_is_sent_the_labels(
    traffic: list[tuple[str, Any, Any]],
) -> None:
    (run,) = simulate("gini-filter", [0], parties=2, secret="none")
    for _, query, _ in traffic:
        assert query.arrays[0][0].tolist() == run.problem.y_train.astype(int).tolist()


def test_one_party_has_no_dealer() -> None:
    with pytest.raises(ConfigError, match="must be none with one party"):
        simulate("iv-filter", [0], parties=1)
    (run,) = simulate("iv-filter", [0], parties=1, secret="none")
    assert kept(run)


def test_useful_columns_stay_and_noise_goes() -> None:
    dataset = data.load("breast-cancer")
    own = lessvfl.resolve("iv-filter", "default", dataset, {"train_epochs": 2})
    job = lessvfl.Job(dataset, own, parties=3, spurious=1.0)
    (run,) = lessvfl.simulate(job, [0])
    assert run.numbers["spurious"]["removed_share"] >= 0.9
    assert run.numbers["spurious"]["real_kept_share"] >= 0.8
