"""The recorder: curves, undefined measures, times, diverged networks, who is missed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from lessvfl import data
from lessvfl.core import plans
from lessvfl.core.plans import parts
from lessvfl.core.state import join_state, split_state
from lessvfl.errors import DivergenceError
from lessvfl.run import profiles, recorder, simulate
from lessvfl.run.numbers import Recorded
from lessvfl.run.recorder import Recorder, _joined, _mean
from lessvfl.run.simulate import Job
from lessvfl.terms import Event
from lessvfl.wire.ledger import Ledger

SHORT = {"train_epochs": 2, "batch_size": 20, "hidden": 8}


def a_dataset(task="binary"):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 6))
    y = X[:, 0] if task == "regression" else (X[:, 0] > 0).astype(int)
    return data.from_arrays(X, y, name="numbers")


def run_job(dataset, method="plain", seeds=(0,), spurious=0.0, **overrides):
    settings = profiles.resolve(method, "default", dataset, SHORT | overrides)
    job = Job(dataset, settings, parties=2, spurious=spurious)
    return [run.numbers for run in simulate.simulate(job, seeds)]


def test_a_point_after_part_of_an_epoch():
    (numbers,) = run_job(a_dataset(), train_epochs=1.5)
    assert [point["epoch"] for point in numbers["curve"]] == [1, 1.5]


def test_no_test_rows():
    """Test measures are null, those of the training rows stay."""
    (numbers,) = run_job(a_dataset(), test_share=0.0)
    nothing = dict.fromkeys(("pretrained", "selected", "final", "best"))
    for name in ("accuracy", "balanced_accuracy", "auc"):
        assert numbers[name] == nothing
    assert all(point["accuracy"] is None for point in numbers["curve"])
    assert all(0 <= point["train_accuracy"] <= 1 for point in numbers["curve"])


def test_test_rows_of_one_class():
    """The area under the curve is undefined there: null, and valid JSON."""
    whole = a_dataset()
    rows = np.flatnonzero(whole.y == 1)
    dataset = dataclasses.replace(
        whole, X_test=whole.X.take(rows), y_test=whole.y[rows]
    )
    (numbers,) = run_job(dataset)
    assert numbers["auc"] == dict.fromkeys(("pretrained", "selected", "final", "best"))
    balanced = numbers["balanced_accuracy"]["final"]
    assert numbers["accuracy"]["final"] == pytest.approx(balanced)
    json.dumps(numbers, allow_nan=False)


def test_regression_with_equal_test_labels():
    whole = a_dataset("regression")
    rows = np.arange(4)
    dataset = dataclasses.replace(whole, X_test=whole.X.take(rows), y_test=np.ones(4))
    (numbers,) = run_job(dataset)
    assert numbers["r2"]["final"] is None
    assert numbers["undefined"] == {"r2": "the labels of the test rows are all equal"}
    json.dumps(numbers, allow_nan=False)


def test_removed_share_step_by_step():
    """During joint proximal training the share grows before the stage has ended."""
    own = {"joint_epochs": 12, "lam_party": 0.8, "learning_rate": 0.1}
    (numbers,) = run_job(a_dataset(), "group-lasso", spurious=1.0, **own)
    shares = [point["removed_share"] for point in numbers["curve"]]
    assert shares[0] == 0
    assert 0 < shares[-1] <= 1
    assert len(set(shares)) > 2
    assert shares[-1] == numbers["spurious"]["removed_share"]


class Answering:
    """Parties that answer with given blocks, for a recorder to look at."""

    names = ("a", "b")

    def __init__(self, *blocks):
        self.blocks = blocks

    def embed(self, stage, rows, part=0, bits=32):
        return self.blocks


@pytest.mark.parametrize(
    ("blocks", "factor", "who"),
    [
        ((1.0, float("nan")), 1.0, "party 'b'"),
        ((float("inf"), float("nan")), 1.0, "party 'a'"),
        ((1.0, 1.0), float("inf"), "the server"),
    ],
)
def test_diverged_networks_are_named(blocks, factor, who):
    y = torch.zeros(3)
    problem = data.prepare(a_dataset(), data.DataConfig(), parties=2)
    values = [torch.full((3, 1), value) for value in blocks]
    answering: Any = Answering(*values)
    recorder = Recorder(problem, y, y, lambda event: None, "epochs", answering)
    event = Event("train", 2, 5, lambda H: H[:, :1] * factor + H[:, 1:])
    with pytest.raises(DivergenceError) as error:
        recorder(event)
    assert str(error.value).startswith(f"The output of {who} must stay finite.")
    assert "stage 'train' at the last step of epoch 2;" in str(error.value)


# ------------------------------------------------------------------ who would be missed

WEIGHTS = np.array([1.0, -2.0, 0.5])  # of the fusion network, (E,)
N_EPOCHS = 5


class Telling(Answering):
    """Parties with blocks of test and of training rows, who count what they are asked.

    Party a has two components, party b one; `silent` is what b always says.
    """

    def __init__(self, n_test=40, n_train=60, dtype=torch.float64, silent=None):
        rng = np.random.default_rng(3)
        self.rows = {"test": n_test, "train": n_train}
        self.ledger = Ledger()
        self.asked = []
        self.values = {
            rows: [rng.normal(1, 2, size=(n, size)) for size in (2, 1)]
            for rows, n in self.rows.items()
        }
        if silent is not None:
            for blocks in self.values.values():
                blocks[1][:] = silent
        self.dtype = dtype

    def embed(self, stage, rows, part=0, bits=32):
        self.asked.append((stage, rows))
        some = parts(self.rows[rows])[part]
        blocks = self.values[rows]
        return [torch.tensor(block[some], dtype=self.dtype) for block in blocks]


def fuse(H):
    """Return the logit or the prediction of a hand-made network, (n, 1)."""
    return (H * torch.tensor(WEIGHTS, dtype=H.dtype)).sum(1, keepdim=True)


def auc(z, y):
    wins = np.sign(np.subtract.outer(z[y == 1], z[y == 0]))
    return (wins.mean() + 1) / 2


def scores_of(z, y, task, offset=0.0):
    if task == "regression":
        return {"r2": 1 - ((y - z) ** 2).sum() / ((y - y.mean()) ** 2).sum()}
    right = (z + offset > 0) == (y == 1)
    shares = [right[y == label].mean() for label in (0, 1)]
    return {
        "accuracy": right.mean(),
        "balanced_accuracy": np.mean(shares),
        "auc": auc(z, y),
        "average_precision": average_precision_score(y, z),
    }


def watched(telling, task="binary", threshold=None, epoch=N_EPOCHS):
    """Return a recorder that saw an epoch of these parties, and the labels of rows."""
    problem = data.prepare(a_dataset(task), data.DataConfig(), parties=2)
    problem = dataclasses.replace(problem, parties=(), threshold=threshold)
    rng = np.random.default_rng(5)
    labels = {}
    for rows, n in telling.rows.items():
        drawn = rng.normal(size=n)
        labels[rows] = drawn if task == "regression" else (drawn > 0).astype(float)
    y_train, y_test = (torch.tensor(labels[rows]) for rows in ("train", "test"))
    recorder = Recorder(problem, y_train, y_test, lambda e: None, "epochs", telling)
    recorder(Event("train", epoch, N_EPOCHS, fuse))
    return recorder, labels


@pytest.fixture(params=[plans.PART, 7])
def _in_parts(request, monkeypatch):
    """Have rows come at once, or a few at a time."""
    monkeypatch.setattr(plans, "PART", request.param)


@pytest.mark.usefixtures("_in_parts")
@pytest.mark.parametrize("n_test", [40, 0])
@pytest.mark.parametrize(
    ("task", "threshold"),
    [("binary", None), ("binary", (0.8, 0.2)), ("regression", None)],
)
def test_the_score_without_a_party_by_its_definition(task, threshold, n_test):
    """Its components are at their mean over the training rows; all else is as it was.

    Without test rows the training rows are scored.
    """
    telling = Telling(n_test)
    recorder, labels = watched(telling, task, threshold)
    rows = "test" if n_test else "train"
    offset = 0.0 if threshold is None else np.log(threshold[0] / threshold[1])
    assert list(recorder.state.without) == ["a", "b"]
    for m, name in enumerate(("a", "b")):
        blocks = [block.copy() for block in telling.values[rows]]
        mean = telling.values["train"][m].mean(axis=0)
        assert recorder.state.means[name].numpy() == pytest.approx(mean)
        blocks[m][:] = mean
        z = np.concatenate(blocks, axis=1) @ WEIGHTS
        right = scores_of(z, labels[rows], task, offset)
        assert recorder.state.without[name] == pytest.approx(right)


def test_means_on_the_way_hold_no_rows():
    """Once, the first row of a part kept all of its rows in memory."""
    kept = [one.untyped_storage().nbytes() for one in _mean(torch.ones(1000, 3))]
    assert max(kept) <= 3 * 8


def test_the_value_of_parties_costs_no_message():
    telling = Telling()
    watched(telling)
    assert telling.asked == [("evaluate", "train"), ("evaluate", "test")]


def test_nobody_is_left_out_before_the_end():
    recorder, _ = watched(Telling(), epoch=4)
    assert recorder.state.means == {}
    assert recorder.state.without is None
    assert (recorder.state.intervals, recorder.state.missed) == (None, None)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_scores_and_losses_have_intervals_around_them(task):
    recorder, _ = watched(Telling(200), task)
    state = recorder.state
    last = state.curve[-1]
    score = "r2" if task == "regression" else "accuracy"
    for name, ends in state.intervals.items():
        assert ends["low"] < last[name] < ends["high"]
    assert list(state.missed) == ["a", "b"]
    for party, ends in state.missed.items():
        loss = last[score] - recorder.state.without[party][score]
        assert ends["loss"] == pytest.approx(loss)
        assert ends["low"] <= loss <= ends["high"]
    silent, _ = watched(Telling(silent=0.9), task)
    nothing = {"loss": 0.0, "low": 0.0, "high": 0.0}
    assert silent.state.missed["b"] == nothing


def test_intervals_are_wider_where_rows_are_of_few_people():
    rng = np.random.default_rng(4)
    X = np.repeat(rng.normal(size=(60, 6)), 5, axis=0) + 0.01 * rng.normal(
        size=(300, 6)
    )
    y = (X[:, 0] + np.repeat(rng.normal(size=60), 5) > 0).astype(int)
    dataset = data.from_arrays(X, y)
    people = dataclasses.replace(dataset, units=np.repeat(np.arange(60), 5))
    config = data.DataConfig()
    problem = data.prepare(people, config, parties=2)
    assert problem.test_blocks is not None
    assert len(problem.test_blocks) == len(problem.y_test)
    assert (np.bincount(problem.test_blocks) == 5).all()
    assert data.prepare(dataset, config, parties=2).test_blocks is None
    same = dataclasses.replace(people, is_test=np.arange(300) % 300 < 100)
    (grouped,) = run_job(same)
    (single,) = run_job(dataclasses.replace(same, units=None))
    widths = [
        one["intervals"]["accuracy"]["high"] - one["intervals"]["accuracy"]["low"]
        for one in (grouped, single)
    ]
    assert widths[0] > 1.3 * widths[1]


def test_without_test_rows_there_are_no_intervals():
    recorder, _ = watched(Telling(0))
    assert (recorder.state.intervals, recorder.state.missed) == (None, None)


@pytest.mark.usefixtures("_in_parts")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_who_always_says_the_same_is_not_missed(task, dtype):
    """To the bit, although the mean of equal numbers may be another number."""
    recorder, _ = watched(Telling(dtype=dtype, silent=0.9), task)
    said = torch.full((1,), 0.9, dtype=dtype)
    assert recorder.state.means["b"].equal(said.double())
    without, last = recorder.state.without, recorder.state.curve[-1]
    assert without["b"] == {name: last[name] for name in without["b"]}
    assert without["a"] != without["b"]


def test_the_value_of_parties_outlives_a_restart():
    """The last checkpoint is written after the last evaluation."""
    recorder, _ = watched(Telling())
    again, _ = watched(Telling(), epoch=4)
    tensors, values = split_state(recorder.state)
    written = json.loads(json.dumps(values, allow_nan=False))
    again.state = join_state(Recorded, tensors, written)
    assert again.state.without == recorder.state.without
    assert again.state.intervals == recorder.state.intervals
    assert again.state.means.keys() == recorder.state.means.keys()
    assert all(
        again.state.means[k].equal(mean) for k, mean in recorder.state.means.items()
    )


def test_parties_that_kept_nothing_are_not_missed():
    own = {"party_epochs": 5, "server_epochs": 2, "lam_party": 1e6}
    (numbers,) = run_job(a_dataset(), "less-vfl", **own)
    assert not any(party["kept"] for party in numbers["features"].values())
    for scores in numbers["without"].values():
        assert scores == {name: numbers[name]["final"] for name in scores}


@pytest.mark.parametrize("by_component", [True, False])
def test_many_components_are_looked_at_by_parts(monkeypatch, by_component):
    """As trees have them: 0 or 1, so that sums are exact in any order."""
    random = torch.Generator().manual_seed(0)
    shapes = (7, 4, 30)
    blocks = [(torch.rand(50, n, generator=random) < 0.4).float() for n in shapes]
    blocks[0][:, 2] = 1.0
    if by_component:
        blocks = [b.T.contiguous().T for b in blocks]
    whole, means = list(_joined(blocks)), [_mean(block) for block in blocks]
    assert len(whole) == 1
    for name, value in {"MANY": 3, "FEW": 2, "CELLS": 100}.items():
        monkeypatch.setattr(recorder, name, value)
    parts_ = list(_joined(blocks))
    assert [len(part) for part in parts_] == [2] * 25
    assert torch.equal(torch.cat(parts_), whole[0])
    for block, expected in zip(blocks, means, strict=True):
        for found, own in zip(_mean(block), expected, strict=True):
            assert torch.equal(found, own)
    assert bool(means[0][2][2])
