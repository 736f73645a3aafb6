"""Weights of rows and classes, and the Huber loss, from data to a fitted model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lessvfl import data
from lessvfl.algorithm import stored_risk
from lessvfl.core.losses import Labels
from lessvfl.core.network import MLP
from lessvfl.core.passes import gradients
from lessvfl.data import LabelConfig
from lessvfl.errors import ConfigError
from lessvfl.run import profiles, simulate
from lessvfl.run.fitted import load_model

# Whole batches in float64: nothing depends on the order or the number of rows.
WHOLE: dict[str, Any] = {
    "batch_size": 10000,
    "row_order": "file",
    "dtype": "float64",
    "scale": "none",
    "scale_labels": False,
    "test_share": 0.0,
    "equal_rows": "apart",  # copies stand for weights here
    "train_epochs": 8,
    "hidden": 4,
    "embedding_size": 2,
}
SHORT: dict[str, Any] = {
    "less-vfl-auto": {"pretrain_epochs": 1, "server_rows": 60},
    "less-vfl": {"party_epochs": 5, "server_epochs": 5, "lam_party": 0.5},
    "local-lasso": {"party_epochs": 5},
    "group-lasso": {"joint_epochs": 5},
    "plain": {},
}
TIMES = np.arange(90) % 3 + 1


def a_dataset(task="binary", repeated=False, **more):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 6))
    y: Any = X[:, 0] - X[:, 4] + 0.3 * rng.normal(size=90)
    if task == "binary":
        y = (y > 0.8).astype(int)
    if task == "multiclass":
        y = np.digitize(y, [-1.0, 1.0])
    rows = np.repeat(np.arange(90), TIMES) if repeated else np.arange(90)
    return data.from_arrays(X[rows], y[rows], task=task, **more)


def run(dataset, method="plain", seeds=(0,), **settings):
    own = {"train_epochs": 3, "batch_size": 30} | SHORT[method] | settings
    resolved = profiles.resolve(method, "default", dataset, own)
    job = simulate.Job(dataset, resolved, parties=2, curve=False)
    return simulate.simulate(job, seeds)


@pytest.mark.filterwarnings("ignore:The 'batch_size' setting")
@pytest.mark.parametrize("method", ["plain", "group-lasso"])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_weight_of_k_is_a_row_k_times(method, task):
    """In the loss at the server and in what the parties make of its gradients."""
    rows = a_dataset(task).X
    (weighted,) = run(a_dataset(task, sample_weight=TIMES), method, **WHOLE)
    (repeated,) = run(a_dataset(task, repeated=True), method, **WHOLE)
    (alike,) = run(a_dataset(task), method, **WHOLE)
    found = weighted.model.decide(rows)
    assert found == pytest.approx(repeated.model.decide(rows), abs=1e-9)
    assert found != pytest.approx(alike.model.decide(rows), abs=1e-3)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_weight_of_k_is_a_row_k_times_in_stage_2(task):
    n_outputs = 3 if task == "multiclass" else 1
    names = ("the server", torch.float64, torch.device("cpu"))
    fusion = MLP.create((4, n_outputs), "tanh", 0, *names)
    H = torch.randn(90, 4, dtype=torch.float64)
    y = torch.as_tensor(a_dataset(task).y)
    y = y if task == "multiclass" else y.double()
    rows = torch.arange(90).repeat_interleave(torch.as_tensor(TIMES))
    weight = torch.as_tensor(TIMES / TIMES.mean())
    huber_delta = 0.7 if task == "regression" else None
    found, expected = (
        gradients(loss(slice(None)), fusion.parameters())
        for loss in (
            stored_risk(fusion, H, Labels(y, task, 0, weight, huber_delta)),
            stored_risk(fusion, H[rows], Labels(y[rows], task, 0, None, huber_delta)),
        )
    )
    assert all(map(torch.allclose, found, expected))


def same(one, other):
    """Tell whether two runs have the same numbers and the same model, to the bit."""
    rows = a_dataset().X
    numbers = [
        {k: v for k, v in found.numbers.items() if k != "seconds"}
        for found in (one, other)
    ]
    decided = [found.model.decide(rows) for found in (one, other)]
    return numbers[0] == numbers[1] and np.array_equal(*decided)


@pytest.mark.parametrize("method", SHORT)
def test_weights_of_classes_are_those_of_their_rows(method):
    """Weights of one change nothing, others do, in every method."""
    dataset = a_dataset()
    (alike,) = run(dataset, method)
    (ones,) = run(replace(dataset, weight=np.ones(90)), method)
    assert same(ones, alike)
    rows = np.where(dataset.y == 1, 5.0, 1.0)
    (by_row,) = run(replace(dataset, weight=rows), method)
    (by_class,) = run(dataset, method, class_weight={"1": 5.0})
    assert same(by_row, by_class)
    assert not same(by_class, alike)


def test_every_seed_weighs_its_own_rows():
    dataset = a_dataset(sample_weight=TIMES)
    both = run(dataset, class_weight="balanced", seeds=(0, 1))
    for seed in (0, 1):
        (alone,) = run(dataset, class_weight="balanced", seeds=(seed,))
        assert same(both[seed], alone)


# ---------------------------------------------------------------------------- threshold


def uneven(n_classes=2, n_rows=800, seed=0):
    """Return rows with one class of about 5 %, linear in two columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 6))
    score = X[:, 0] - X[:, 4] + rng.normal(size=n_rows)
    y: Any = (score > 2.8).astype(int)
    if n_classes == 3:
        y = np.digitize(score, [-0.5, 2.8])
    return data.from_arrays(X, y)


LONG = {"train_epochs": 20, "batch_size": 64}


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_threshold_finds_the_rare_class(n_classes):
    dataset = uneven(n_classes)
    (found,) = run(dataset, "less-vfl-auto", threshold="balanced", **LONG)
    (off,) = run(dataset, "less-vfl-auto", **LONG)
    assert off.model.threshold is None
    shares = np.bincount(found.problem.y_train) / len(found.problem.y_train)
    assert found.model.threshold == pytest.approx(tuple(shares))
    rows = dataset.X
    assert np.array_equal(found.model.decide(rows), off.model.decide(rows))
    proba = found.model.predict_proba(rows)
    assert np.array_equal(proba, off.model.predict_proba(rows))
    names = np.array(found.model.label_names)
    assert (found.model.predict(rows) == names[(proba / shares).argmax(axis=1)]).all()
    assert (off.model.predict(rows) == names[proba.argmax(axis=1)]).all()

    def recall(model):
        rare = dataset.y == n_classes - 1
        return (model.predict(rows) == names[-1])[rare].mean()

    assert recall(found.model) > recall(off.model) + 0.2


def test_a_threshold_is_saved_with_its_model(tmp_path):
    (found,) = run(uneven(), threshold="balanced")
    found.model.save(tmp_path)
    again = load_model(tmp_path)
    assert again.threshold == found.model.threshold is not None
    rows = uneven().X
    assert (again.predict(rows) == found.model.predict(rows)).all()
    about = json.loads((tmp_path / "server" / "server.json").read_text())
    del about["threshold"]  # as an earlier version wrote it
    (tmp_path / "server" / "server.json").write_text(json.dumps(about))
    assert load_model(tmp_path).threshold is None


def test_scores_use_the_threshold_of_the_model():
    dataset = uneven()
    given = LONG | {"threshold": "balanced"}
    resolved = profiles.resolve("plain", "default", dataset, given)
    (found,) = simulate.simulate(simulate.Job(dataset, resolved, parties=2), [0])
    problem = found.problem
    assert problem.threshold is not None
    assert problem.frames is not None
    share = problem.threshold[1]
    assert found.numbers["threshold"] == {"0": problem.threshold[0], "1": share}
    predicted = found.model.predict(problem.frames[1]).astype(int)
    shares = [(predicted == problem.y_test)[problem.y_test == k].mean() for k in (0, 1)]
    assert found.numbers["predicted"] == pytest.approx(
        {"0": (predicted == 0).mean(), "1": (predicted == 1).mean()}, abs=0.02
    )
    final = found.numbers["balanced_accuracy"]["final"]
    assert final == pytest.approx(np.mean(shares), abs=0.02)
    assert final == found.numbers["curve"][-1]["balanced_accuracy"]


BALANCED = LabelConfig(threshold="balanced")


def test_weights_count_in_the_shares():
    """With weights that even classes out, the larger probability decides again."""
    y = np.arange(1000) < 50
    rows = np.where(y, 19.0, 1.0)
    dataset = data.from_arrays(np.arange(1000.0)[::-1, None], y, sample_weight=rows)
    config = data.DataConfig(test_share=0.0)
    found = data.prepare(dataset, config, parties=1, labels=BALANCED).threshold
    assert found == pytest.approx((0.5, 0.5))


def test_a_class_without_training_rows_gets_none_by_its_threshold():
    y = np.array([0] * 90 + [1] * 5 + [2] * 5)
    dataset = data.from_arrays(np.arange(100.0)[::-1, None], y)
    config = data.DataConfig(split="first", test_share=0.05)
    found = data.prepare(dataset, config, parties=1, labels=BALANCED).threshold
    assert found == pytest.approx((90 / 95, 5 / 95, 1.0))


# --------------------------------------------------------------------- what score leads


@pytest.mark.parametrize(
    ("counts", "score"),
    [
        ((71, 29), "auc"),
        ((70, 30), "accuracy"),
        ((29, 71), "auc"),
        ((42, 39, 19), "balanced_accuracy"),
        ((40, 40, 20), "accuracy"),
    ],
)
def test_the_score_that_leads_is_of_uneven_classes_another(counts, score):
    y = np.repeat(np.arange(len(counts)), counts)
    dataset = data.from_arrays(np.arange(100.0)[::-1, None], y)
    problem = data.prepare(dataset, data.DataConfig(), parties=1)
    assert problem.score == score
    assert problem.positive == int(counts[1] <= counts[0])


def test_a_score_that_the_labels_lack_is_refused():
    with pytest.raises(ConfigError, match=r"one of auto, accuracy.*Got 'r2'"):
        run(uneven(), score="r2")
    with pytest.raises(ConfigError, match="one of auto, r2 for"):
        run(a_dataset("regression"), score="auc")


def test_the_score_that_leads_may_be_set():
    resolved = profiles.resolve("plain", "default", uneven(), LONG | {"score": "auc"})
    (found,) = simulate.simulate(simulate.Job(uneven(), resolved, parties=2), [0])
    assert found.numbers["score"] == "auc"
    assert "train_auc" in found.numbers["curve"][-1]
    assert found.numbers["above_baseline"] is True


def test_a_model_of_pure_noise_is_not_above_its_baseline():
    rng = np.random.default_rng(0)
    dataset = data.from_arrays(rng.normal(size=(400, 4)), rng.integers(0, 2, 400))
    resolved = profiles.resolve("plain", "default", dataset, LONG)
    (found,) = simulate.simulate(simulate.Job(dataset, resolved, parties=2), [0])
    assert found.numbers["above_baseline"] is False
    problem = found.problem
    most = np.bincount(problem.y_train).argmax()
    level = (problem.y_test == most).mean()
    assert found.numbers["baseline"]["accuracy"] == pytest.approx(level)


# -------------------------------------------------------------------------------- Huber


def heavy_tailed(n_rows=600, seed=0):
    """Return rows whose labels are linear, one in fifty of them enormous."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 6))
    y = 5 + 2 * X[:, 0] - 2 * X[:, 4] + 0.3 * rng.normal(size=n_rows)
    clean = y.copy()
    wild = rng.random(n_rows) < 0.02
    y[wild] += 1e3 * rng.standard_cauchy(wild.sum())
    return data.from_arrays(X, y, task="regression"), clean


@pytest.mark.parametrize("method", ["less-vfl-auto", "plain"])
def test_enormous_labels_do_not_spoil_a_huber_fit(method):
    dataset, clean = heavy_tailed()
    rows = dataset.X

    def r2(model):
        return 1 - ((model.predict(rows) - clean) ** 2).sum() / clean.var() / len(clean)

    (huber,) = run(dataset, method, loss="huber", **LONG)
    (auto,) = run(dataset, method, **LONG)
    (squared,) = run(dataset, method, loss="squared", **LONG)
    assert r2(huber.model) > 0.9
    assert r2(auto.model) == r2(huber.model)
    assert r2(squared.model) < 0.5
