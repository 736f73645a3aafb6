"""The recorder: curves, measures that are undefined, times, and diverged networks."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from lessvfl import data
from lessvfl.errors import DivergenceError
from lessvfl.run import profiles, simulate
from lessvfl.run.recorder import Recorder
from lessvfl.run.simulate import Job
from lessvfl.terms import Event

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


def test_a_point_after_every_epoch():
    (numbers,) = run_job(a_dataset(), train_epochs=3)
    assert [point["epoch"] for point in numbers["curve"]] == [1, 2, 3]


def test_a_point_after_part_of_an_epoch():
    (numbers,) = run_job(a_dataset(), train_epochs=1.5)
    assert [point["epoch"] for point in numbers["curve"]] == [1, 1.5]


def test_stages_without_a_point():
    """Networks do not fit each other between stage 2 and the end of stage 3."""
    own = {"party_epochs": 2, "server_epochs": 2, "lam_party": 1}
    (numbers,) = run_job(a_dataset(), "less-vfl", **own)
    stages = [point["stage"] for point in numbers["curve"]]
    assert stages == ["pretrain", "select_features", "train", "train"]
    seconds = numbers["seconds"]
    assert seconds.keys() >= {"embed", "select_components", "evaluate", "total"}
    assert all(value >= 0 for value in seconds.values())


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
    assert numbers["accuracy"]["final"] == numbers["balanced_accuracy"]["final"]
    json.dumps(numbers, allow_nan=False)


def test_regression():
    (numbers,) = run_job(a_dataset("regression"))
    assert numbers["accuracy"] is None
    assert numbers["balanced_accuracy"] is None
    assert "auc" not in numbers
    assert numbers["r2"]["final"] == numbers["curve"][-1]["r2"]
    assert numbers["curve"][-1]["train_r2"] <= 1
    assert numbers["curve"][-1]["train_accuracy"] is None


def test_regression_with_equal_test_labels():
    whole = a_dataset("regression")
    rows = np.arange(4)
    dataset = dataclasses.replace(whole, X_test=whole.X.take(rows), y_test=np.ones(4))
    (numbers,) = run_job(dataset)
    assert numbers["r2"]["final"] == 0
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


def test_replicas_have_curves_of_their_own():
    together = run_job(a_dataset(), seeds=(0, 1), dtype="float64")
    for numbers in together:
        (alone,) = run_job(a_dataset(), seeds=(numbers["seed"],), dtype="float64")
        assert numbers["curve"] == alone["curve"]
    assert together[0]["curve"] != together[1]["curve"]


class Answering:
    """Parties that answer with given blocks, for a recorder to look at."""

    names = ("a", "b")

    def __init__(self, *blocks):
        self.blocks = blocks

    def embed(self, stage, rows):
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
    y = torch.zeros(1, 3)
    problem = data.prepare(a_dataset(), data.DataConfig(), parties=2)
    recorder = Recorder([problem], y, y, lambda event: None, evaluation="epochs")
    values = [torch.full((1, 3, 1), value) for value in blocks]
    answering: object = Answering(*values)
    recorder._server = answering  # type: ignore[assignment]
    event = Event("train", 2, 5, lambda H: H[:, :, :1] * factor + H[:, :, 1:])
    with pytest.raises(DivergenceError) as error:
        recorder(event)
    assert str(error.value).startswith(f"The output of {who} must stay finite.")
    assert "stage 'train' at the last step of epoch 2;" in str(error.value)
