"""Measures against scikit-learn, for generated predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference
from sklearn.dummy import DummyClassifier

from lessvfl.core import metrics
from lessvfl.terms import MEASURES


def draw(seed, n_rows, n_values):
    """Draw scores with many ties, (n, n_values), and a generator for labels."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, size=(n_rows, n_values)) / 2
    return torch.as_tensor(scores), rng


sizes = st.integers(2, 40)
seeds = st.integers(0, 10**6)


@given(seed=seeds, n_rows=sizes)
def test_binary(seed, n_rows):
    z, rng = draw(seed, n_rows, 1)
    y = rng.integers(0, 2, size=n_rows)
    y[:2] = [0, 1]
    found = metrics.measure(z, torch.as_tensor(y, dtype=torch.float32), "binary")
    assert list(found) == list(MEASURES["binary"])
    scores = z[:, 0].numpy()
    expected = (
        reference.accuracy_score(y, scores > 0),
        reference.balanced_accuracy_score(y, scores > 0),
        reference.roc_auc_score(y, scores),
        reference.average_precision_score(y, scores),
    )
    assert [float(value) for value in found.values()] == pytest.approx(expected)
    rows = torch.as_tensor(y)
    found = metrics.measure(z, rows, "binary", positive=0, names=["average_precision"])
    assert "auc" not in found
    other = reference.average_precision_score(1 - y, -scores)
    assert float(found["average_precision"]) == pytest.approx(other)


@given(seed=seeds, n_rows=sizes, n_classes=st.integers(3, 5))
def test_multiclass(seed, n_rows, n_classes):
    """A class without a row is left out of the balanced accuracy."""
    z, rng = draw(seed, n_rows, n_classes)
    y = rng.integers(0, n_classes - 1, size=n_rows)
    y[:2] = [0, 1]
    found = metrics.measure(z, torch.as_tensor(y), "multiclass")
    assert list(found) == list(MEASURES["multiclass"])
    p = z.softmax(dim=1).numpy()
    areas = [reference.roc_auc_score(y == k, p[:, k]) for k in np.unique(y)]
    assert float(found["auc"]) == pytest.approx(np.mean(areas))
    classes = z.argmax(dim=1).numpy()
    right = classes == y
    recall = [right[y == c].mean() for c in np.unique(y)]
    assert float(found["accuracy"]) == pytest.approx(
        reference.accuracy_score(y, classes)
    )
    assert float(found["balanced_accuracy"]) == pytest.approx(np.mean(recall))
    assert reference.recall_score(
        y, classes, labels=np.unique(y), average="macro"
    ) == pytest.approx(np.mean(recall))


@given(seed=seeds, n_rows=sizes, flat=st.booleans(), perfect=st.booleans())
def test_regression(seed, n_rows, flat, perfect):
    z, rng = draw(seed, n_rows, 1)
    y = np.full(n_rows, 0.5) if flat else rng.normal(size=n_rows)
    if perfect:
        z = torch.as_tensor(y).unsqueeze(1)
    found = metrics.measure(z, torch.as_tensor(y), "regression")
    assert list(found) == ["r2"]
    if flat:
        assert found["r2"].isnan()
    else:
        expected = reference.r2_score(y, z[:, 0].numpy())
        assert float(found["r2"]) == pytest.approx(expected)


@given(seed=seeds, n_rows=sizes, task=st.sampled_from(["binary", "multiclass"]))
def test_one_prediction_for_all_rows(seed, n_rows, task):
    """As scikit-learn's DummyClassifier of the most frequent class."""
    rng = np.random.default_rng(seed)
    n_classes = 2 if task == "binary" else 4
    train, test = rng.integers(0, n_classes, size=(2, n_rows))
    test[:2] = [0, 1]
    found = metrics.constant(
        torch.as_tensor(train), torch.as_tensor(test), task, n_classes, positive=0
    )
    guess = DummyClassifier().fit(train[:, None], train)
    accuracy = guess.score(test[:, None], test)
    n_present = len(np.unique(test))
    always = guess.predict(train[:1, None])[0]
    assert float(found["accuracy"]) == pytest.approx(accuracy)
    hit = always in test
    assert float(found["balanced_accuracy"]) == pytest.approx(hit / n_present)
    assert float(found["auc"]) == pytest.approx(0.5)
    if task == "binary":
        assert float(found["average_precision"]) == pytest.approx((test == 0).mean())


def test_the_mean_of_the_labels_explains_nothing():
    y = torch.linspace(0, 1, 9).double()
    assert float(metrics.constant(y, y, "regression", 0)["r2"]) == pytest.approx(0)


@pytest.mark.parametrize(
    ("name", "task", "level"),
    [
        ("auc", "binary", 0.5),
        ("balanced_accuracy", "multiclass", 1 / 3),
        ("accuracy", "multiclass", 1 / 3),
    ],
)
def test_guesses_are_seldom_two_errors_above_their_level(name, task, level):
    rng = np.random.default_rng(0)
    n_classes = 2 if task == "binary" else 3
    shares = [0.8, 0.2] if n_classes == 2 else [1 / 3] * 3
    y = rng.choice(n_classes, size=200, p=shares)
    z = torch.as_tensor(rng.normal(size=(800, 200, 1 if n_classes == 2 else 3)))
    labels = torch.as_tensor(y)
    scores = np.array([float(metrics.measure(one, labels, task)[name]) for one in z])
    error = metrics.chance_error(name, y, level)
    assert error == pytest.approx(scores.std(), rel=0.3)
    assert (scores > level + 2 * error).mean() < 0.06


def test_shares_of_what_is_predicted():
    z = torch.tensor([[[0.3], [-0.2], [0.1], [-0.4]]])
    assert metrics.predicted_shares(z).tolist() == [[0.5, 0.5]]
    moved = torch.tensor([[[0.3]]])
    assert metrics.predicted_shares(z, moved).tolist() == [[0.25, 0.75]]
    three = torch.tensor([[[1.0, 0, 0], [0, 0, 1.0]]])
    assert metrics.predicted_shares(three).tolist() == [[0.5, 0.0, 0.5]]


def test_r2_of_equal_labels_is_undefined():
    y = torch.full((3,), 0.1, dtype=torch.float64)  # whose mean is not 0.1
    assert metrics.measure(torch.ones(3, 1), y, "regression")["r2"].isnan()
    assert metrics.measure(y.unsqueeze(1), y, "regression")["r2"].isnan()


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e300])
def test_r2_of_labels_of_any_size(size):
    """Squares of 1e-200 are zero, those of 1e200 infinite; their ratio is neither."""
    y = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    z = torch.tensor([[0.5], [1.0], [2.0], [3.0]], dtype=torch.float64)
    right = metrics.measure(z, y, "regression")["r2"]
    found = metrics.measure(size * z, size * y, "regression")["r2"]
    torch.testing.assert_close(found, right)
    assert metrics.r2(torch.zeros(2), torch.tensor([0.0, 1.0])) == -1


@pytest.mark.parametrize(
    ("y", "task", "names"),
    [
        ([], "binary", set(MEASURES["binary"])),
        ([1, 1], "binary", {"auc", "average_precision"}),
        ([0, 0], "binary", {"auc", "average_precision"}),
        ([1, 0], "binary", set()),
        ([2, 2], "multiclass", {"auc"}),
        ([0.5, 0.5], "regression", {"r2"}),
        ([0.5], "regression", {"r2"}),
        ([0.5, 0.6], "regression", set()),
    ],
)
def test_reasons_are_given_where_a_measure_is_undefined(y, task, names):
    """And nowhere else: the measures themselves say the same."""
    assert set(metrics.undefined(np.array(y), task, "test rows")) == names
    if y:
        width = 3 if task == "multiclass" else 1
        z = torch.randn(len(y), width)
        dtype = torch.float64 if task == "regression" else torch.int64
        found = metrics.measure(z, torch.tensor(y, dtype=dtype), task)
        assert {name for name, value in found.items() if value.isnan()} == names


def test_r2_is_finite_for_any_finite_numbers():
    """Squares of float32 numbers need more room than float32 has."""
    z = torch.full((3, 1), 3e38)
    y = torch.tensor([-3e38, 0.0, 1.0])
    assert metrics.measure(z, y, "regression")["r2"].isfinite().all()


def test_auc_where_all_scores_are_equal():
    assert metrics.auc(torch.zeros(4), torch.tensor([0, 1, 1, 0])) == 0.5


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1).filter(
        lambda pairs: any(k or s for k, s in pairs)
    )
)
def test_support_f1(pairs):
    kept, significant = zip(*pairs, strict=True)
    expected = reference.f1_score(significant, kept, zero_division=0)
    assert metrics.support_f1(kept, significant) == pytest.approx(expected)


def test_support_f1_of_nothing():
    assert metrics.support_f1([False], [False]) == 1
