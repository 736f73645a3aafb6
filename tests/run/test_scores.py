"""Scores of other rows: those of a run's own test rows are the run's."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from lessvfl import data
from lessvfl.core.metrics import DECIDED
from lessvfl.errors import DataError
from lessvfl.run import simulate
from lessvfl.run.decide.scored import rows_of_model
from lessvfl.run.decide.scores import calibration_error, count_cells, scores_of
from lessvfl.run.profiles import resolve
from lessvfl.run.simulate import Job
from lessvfl.terms import MEASURES

SHORT: dict[str, Any] = {"train_epochs": 2, "batch_size": 40, "hidden": 8}
N, N_TRAIN = 200, 120


def a_table() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    table = pd.DataFrame({f"lab_{i}": rng.normal(size=N) for i in range(4)})
    table["city"] = rng.choice(["Aix", "Bonn", "Cork"], N)
    table.loc[3::7, "lab_1"] = np.nan
    table.loc[N_TRAIN::9, "city"] = "Dax"  # in no training row
    return table


def labels_of(table: pd.DataFrame, task: str) -> Any:
    score = table["lab_0"] + (table["city"] == "Aix") + 0.3 * table["lab_2"]
    if task == "regression":
        return (1000 + 50 * score).to_numpy()
    cuts = {"binary": [0.3], "uneven": [1.6], "multiclass": [-0.4, 0.3, 1.8]}[task]
    return np.array(["low", "mid", "high", "top"])[np.digitize(score, cuts)]


def score_rows(model, frame, labels, name="table", label_names=None):
    """Score a model on a table and its labels."""
    rows = rows_of_model(model, frame, labels, name, label_names)
    return scores_of(rows) | count_cells(model, frame)


@functools.cache
def fit(task="binary", **more):
    """Run with test rows of the table's own; return the run, these rows and labels."""
    table = a_table()
    y = labels_of(table, task)
    dataset = data.from_arrays(
        table[:N_TRAIN],
        y[:N_TRAIN],
        X_test=table[N_TRAIN:],
        y_test=y[N_TRAIN:],
    )
    if task != "regression":
        more = {"threshold": "balanced"} | more
    settings = resolve("plain", "default", dataset, SHORT | more)
    (one,) = simulate.simulate(Job(dataset, settings, parties=2), [0])
    return one, data.frame_of(table[N_TRAIN:]), y[N_TRAIN:].tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("task", ["binary", "uneven", "multiclass", "regression"])
def test_scores_of_test_rows_are_those_of_the_run(task, dtype):
    run, rows, labels = fit(task, dtype=dtype)
    found = score_rows(run.model, rows, labels)
    assert found["task"] == run.model.task
    for name in MEASURES[run.model.task]:
        assert found[name] == pytest.approx(run.numbers[name]["final"], abs=1e-6), name
    if task == "uneven":
        assert run.model.threshold is not None
    assert found["unseen"] == 9
    assert found["imputed"] == int(np.isnan(rows.numeric[:, 1]).sum())


@pytest.mark.parametrize("task", ["binary", "uneven", "multiclass"])
def test_scores_of_classes_are_scikit_learns(task):
    run, rows, labels = fit(task)
    found = score_rows(run.model, rows, labels)
    names = list(run.model.label_names)
    p, predicted = run.model.predict_proba(rows), run.model.predict(rows)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    assert found["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(labels, predicted)
    )
    y = np.array([names.index(label) for label in labels])
    if task == "multiclass":
        area = metrics.roc_auc_score(y, p, multi_class="ovr", labels=range(4))
        brier = ((p - np.eye(4)[y]) ** 2).sum(axis=1).mean()
    else:
        area, brier = (
            metrics.roc_auc_score(y, p[:, 1]),
            metrics.brier_score_loss(y, p[:, 1]),
        )
        rare = 1 if (y == 1).sum() <= (y == 0).sum() else 0
        assert run.model.positive == rare
        assert found["average_precision"] == pytest.approx(
            metrics.average_precision_score(y == rare, p[:, rare])
        )
    assert found["auc"] == pytest.approx(area)
    most = max(np.bincount(y)) / len(y)
    assert found["baseline"]["accuracy"] == pytest.approx(most)
    assert found["brier"] == pytest.approx(brier)


def test_scores_of_numbers_are_in_their_own_unit():
    run, rows, labels = fit("regression")
    found = score_rows(run.model, rows, labels)
    predicted = run.model.predict(rows)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(labels, predicted))
    assert found["r2"] == pytest.approx(metrics.r2_score(labels, predicted))
    assert "accuracy" not in found


def test_calibration_error_by_hand():
    """Bins of 0.1; a probability of 1 is in the last one."""
    p = np.array([[0.55, 0.45], [0.55, 0.45], [0.0, 1.0], [0.95, 0.05], [0.62, 0.38]])
    y = np.array([0, 1, 1, 1, 0])
    by_bin = [2 * abs(0.55 - 0.5), 2 * abs(0.975 - 0.5), abs(0.62 - 1)]
    assert calibration_error(p, y) == pytest.approx(sum(by_bin) / 5)
    sure = np.eye(2)[y]
    assert calibration_error(sure, y) == 0
    assert calibration_error(sure, 1 - y) == 1


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_rows_of_one_class(task):
    """There is no area under a curve; everything else there is."""
    run, rows, labels = fit(task)
    low = np.flatnonzero(np.array(labels) == "low")
    found = score_rows(run.model, rows.take(low), ["low"] * len(low))
    assert found["auc"] is None
    names = [name for name in MEASURES[run.model.task] if name not in DECIDED]
    assert found["undefined"] == dict.fromkeys(names, "the rows are all of one class")
    assert found["accuracy"] == pytest.approx(found["balanced_accuracy"])


def test_a_class_without_rows_is_left_out():
    run, rows, labels = fit("multiclass")
    some = np.flatnonzero(np.array(labels) != "top")
    kept = [labels[i] for i in some]
    found = score_rows(run.model, rows.take(some), kept)
    y = np.array([run.model.label_names.index(label) for label in kept])
    p = run.model.predict_proba(rows.take(some))
    areas = [metrics.roc_auc_score(y == k, p[:, k]) for k in np.unique(y)]
    assert len(areas) == 3
    assert found["auc"] == pytest.approx(np.mean(areas))


def test_one_row_of_a_number():
    run, rows, labels = fit("regression")
    found = score_rows(run.model, rows.take(np.array([0])), labels[:1])
    assert found["r2"] is None
    assert found["undefined"] == {"r2": "the labels of the rows are all equal"}
    assert found["mae"] >= 0


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e305])
def test_scores_of_numbers_of_any_size_are_finite(size):
    """Squares of 1e-200 are zero, and those of 1e200 infinite."""
    table = a_table()
    y = labels_of(table, "regression")
    dataset = data.from_arrays(table, size * y)
    settings = resolve("plain", "default", dataset, SHORT)
    (one,) = simulate.simulate(Job(dataset, settings, parties=2), [0])
    found = score_rows(one.model, data.frame_of(table), (size * y).tolist())
    assert found["undefined"] == {}
    assert -100 < found["r2"] < 1
    assert 0 < found["mae"] < 1000 * size


def test_numbers_that_stand_for_names():
    run, rows, labels = fit("binary")
    names = ["mid", "low"]
    codes = [names.index(label) for label in labels]
    expected = score_rows(run.model, rows, labels)
    assert score_rows(run.model, rows, codes, label_names=names) == expected


def test_labels_that_are_none_of_the_models():
    run, rows, labels = fit("binary")
    with pytest.raises(DataError, match=r"classes of the model: .*low.*\. Got 'sick'"):
        score_rows(run.model, rows, ["sick", *labels[1:]], name="new")
    with pytest.raises(DataError, match="Got '3'"):
        score_rows(run.model, rows, [3] * len(labels), label_names=["low", "mid"])
    amounts, rows, labels = fit("regression")
    for wrong in ("1", "high", float("inf"), None):
        with pytest.raises(DataError, match="must be finite numbers, as in training"):
            score_rows(amounts.model, rows, [wrong, *labels[1:]])


def test_columns_that_do_not_fit():
    run, rows, labels = fit("binary")
    with pytest.raises(DataError, match="Got none named 'city'"):
        score_rows(run.model, rows.select([f"lab_{i}" for i in range(4)]), labels)
    other = a_table()[N_TRAIN:].assign(city=1.0)
    with pytest.raises(DataError, match=r"'city' .*must hold texts, as in training"):
        score_rows(run.model, data.frame_of(other), labels)
    with pytest.raises(DataError, match="must have rows to score"):
        score_rows(run.model, rows.take(np.array([], dtype=np.int64)), [])
