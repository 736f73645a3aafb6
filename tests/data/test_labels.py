"""How much rows and classes weigh, and the scale of a robust loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_sample_weight

from lessvfl import data
from lessvfl.data import DataConfig, LabelConfig
from lessvfl.data.labels import robust_deviation
from lessvfl.errors import ConfigError, DataError, LessVFLWarning
from lessvfl.settings import fields_of, read, value_of

FIELD = fields_of([LabelConfig])["class_weight"]


def listed(array):
    """Return an array as a list; None has none."""
    assert array is not None
    return array.tolist()


def a_dataset(y=("no",) * 6 + ("yes",) * 2, **more):
    rng = np.random.default_rng(0)
    return data.from_arrays(rng.normal(size=(len(y), 3)), list(y), name="t", **more)


def weights(dataset, **settings):
    """Return the weights of the training rows, all rows being that."""
    config = DataConfig(test_share=0.0)
    return data.prepare(
        dataset, config, parties=1, labels=LabelConfig(**settings)
    ).weight


def test_no_weights_unless_asked_for():
    assert weights(a_dataset()) is None


def test_balanced_is_scikit_learns():
    y = ["a"] * 5 + ["b"] * 2 + ["c"]
    found = weights(a_dataset(y), class_weight="balanced")
    assert found == pytest.approx(compute_sample_weight("balanced", y))
    assert found.mean() == pytest.approx(1)


def test_weights_of_classes_are_those_of_their_rows():
    by_class = weights(a_dataset(), class_weight={"yes": 3.0})
    rows = [1.0] * 6 + [3.0] * 2
    by_row = weights(a_dataset(sample_weight=rows))
    assert np.array_equal(by_class, by_row)
    assert by_class.mean() == pytest.approx(1)
    assert by_class[-1] / by_class[0] == pytest.approx(3)


def test_a_row_has_its_own_weight_times_that_of_its_class():
    rows = np.arange(1.0, 9.0)
    found = weights(a_dataset(sample_weight=rows), class_weight={"yes": 2, "no": 0})
    expected = rows * ([0] * 6 + [2] * 2)
    assert found == pytest.approx(expected / expected.mean())


def test_weights_that_are_all_alike_are_none():
    assert weights(a_dataset(sample_weight=[3.0] * 8)) is None
    assert weights(a_dataset(["a", "b"] * 4), class_weight="balanced") is None


def test_enormous_weights_do_not_overflow():
    found = weights(a_dataset(sample_weight=[1e308] * 8), class_weight={"yes": 1e308})
    assert np.isfinite(found).all()
    assert found.mean() == pytest.approx(1)


def test_balanced_counts_training_rows_alone():
    y = np.array([0] * 30 + [1] * 10 + [1] * 40)
    dataset = data.from_arrays(np.arange(80.0)[::-1, None], y)
    config = DataConfig(split="first", test_share=0.5)
    labels = LabelConfig(class_weight="balanced")
    found = data.prepare(dataset, config, parties=1, labels=labels).weight
    assert found == pytest.approx([2 / 3] * 30 + [2.0] * 10)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none", None),
        ("balanced", "balanced"),
        ("0:1,1:20", {"0": 1.0, "1": 20.0}),
        (" no : 1 , yes:2.5", {"no": 1.0, "yes": 2.5}),
        ("12:30:5", {"12:30": 5.0}),
    ],
)
def test_reading(text, value):
    assert read(text, FIELD) == value
    LabelConfig(class_weight=value)


@pytest.mark.parametrize("text", ["even", "0", "0:one", "0:1,0:2", "", "0:1,", ":"])
def test_what_cannot_be_read(text):
    with pytest.raises(ConfigError, match="'class_weight' setting must be balanced,"):
        read(text, FIELD)


@pytest.mark.parametrize("value", [{}, {"a": -1}, {"a": "1"}, {1: 1.0}, 3, ["a"]])
def test_what_is_no_class_weight(value):
    with pytest.raises(ConfigError, match="'class_weight' setting must be balanced,"):
        LabelConfig(class_weight=value)


def test_names_of_classes_from_python_become_texts():
    given = {0: 1, np.int64(1): np.float64(2.0), 2.0: 3, True: 4, "a": 5}
    expected = {"0": 1, "1": 2.0, "2": 3, "a": 5} | {"1": 4}  # True == 1 in Python
    assert value_of(given, FIELD) == expected
    assert value_of({False: 1}, FIELD) == {"False": 1}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([1.0] * 7, "one for each row. Got 7 for 8 rows"),
        (np.ones((8, 2)), "one for each row. Got a table"),
        ([1.0] * 7 + [-1.0], "Got -1.0 in row 8"),
        ([1.0] * 7 + [np.nan], "Got nothing in row 8"),
        ([None] + [1.0] * 7, "Got nothing in row 1"),
        ([1.0, np.inf] + [1.0] * 6, "Got inf in row 2"),
        (["1"] * 8, "Got a text in row 1"),
        ([0.0] * 8, "and one above 0. Got zero in every row"),
    ],
)
def test_refused_row_weights(rows, words):
    with pytest.raises(DataError, match="The row weights of 't' must be") as error:
        a_dataset(sample_weight=rows)
    assert words in str(error.value)


def test_training_rows_must_not_all_weigh_nothing():
    rows = [0.0] * 4 + [1.0] * 4
    dataset = a_dataset(["a", "b"] * 4, sample_weight=rows)
    config = DataConfig(split="first", test_share=0.5)
    with pytest.raises(DataError, match=r"must not all be zero\. Got zero for all 4"):
        data.prepare(dataset, config, parties=1)
    with pytest.raises(DataError, match="must not all be zero"):
        weights(a_dataset(), class_weight={"yes": 0.0, "no": 0.0})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"class_weight": {"maybe": 2.0}}, "name classes of 't': no, yes. Got 'maybe'"),
        ({"loss": "huber"}, "'loss' setting must be squared or auto for 't'"),
    ],
)
def test_settings_that_do_not_go_with_classes(settings, words):
    with pytest.raises(ConfigError, match=words):
        weights(a_dataset(), **settings)


def test_a_regression_has_no_classes_to_weigh():
    dataset = a_dataset(np.linspace(0.1, 0.9, 8))
    with pytest.raises(ConfigError, match="must be none for 't', whose labels are num"):
        weights(dataset, class_weight="balanced")


# ---------------------------------------------------------------------- a weight column


def test_a_weight_column_is_no_feature():
    known = np.random.default_rng(0).random(30) < 0.5
    dataset = replace(data.load("breast-cancer"), significant=known)
    column = dataset.X.names[4]
    found = data.roles.with_roles(dataset, data.Roles(column))
    assert column not in found.X.names
    assert len(found.X.names) == 29
    assert listed(found.weight) == listed(dataset.X.numeric[:, 4])
    assert listed(found.significant) == listed(np.delete(known, 4))
    assert f"'{column}'" in found.notes[-1]
    loaded = data.load("breast-cancer", sample_weight=column)
    assert listed(loaded.weight) == listed(found.weight)


def test_weight_columns_of_files(tmp_path):
    (tmp_path / "t.csv").write_text(
        "x,w,label\n" + "1.5,2,yes\n2.5,1,no\n3.5,0,no\n" * 3
    )
    found = data.load(tmp_path / "t.csv", sample_weight="w")
    assert found.X.names == ("x",)
    assert listed(found.weight) == [2.0, 1.0, 0.0] * 3
    X, y, w = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]), np.arange(4)
    np.savez(tmp_path / "t.npz", X=X, y=y, w=w, X_test=X, y_test=y)
    own = data.load(tmp_path / "t.npz", sample_weight="w")
    assert own.X.names == ("x0", "x1")
    assert listed(own.weight) == [0.0, 1.0, 2.0, 3.0]
    column = data.load(tmp_path / "t.npz", sample_weight="x1")
    assert column.X_test is not None
    assert column.X.names == column.X_test.names == ("x0",)
    assert listed(column.weight) == [1.0, 3.0, 5.0, 7.0]


@pytest.mark.parametrize(
    ("header", "cell", "weight", "words"),
    [
        ("x,w,label", "2", "v", "must be one of its columns: x, w. Got 'v'"),
        ("x,w,label", "2", "label", "must be one of its columns: x, w. Got 'label'"),
        ("x,w,label", "much", "w", "Got a text in row 1"),
        ("x,w,label", "", "w", "Got nothing in row 1"),
        ("x,w,label", "-2", "w", "Got -2.0 in row 1"),
    ],
)
def test_refused_weight_columns(tmp_path, header, cell, weight, words):
    rows = f"1.5,{cell},yes\n2.5,{cell},no\n" * 4
    (tmp_path / "t.csv").write_text(f"{header}\n{rows}")
    with pytest.raises(DataError) as error:
        data.load(tmp_path / "t.csv", sample_weight=weight)
    assert words in str(error.value)


def test_a_weight_column_leaves_features(tmp_path):
    (tmp_path / "t.csv").write_text("w,label\n" + "1.5,yes\n2.5,no\n" * 4)
    with pytest.raises(DataError, match="columns besides the row weights 'w'"):
        data.load(tmp_path / "t.csv", sample_weight="w")


# -------------------------------------------------------------------------- robust loss


def regression(y, **settings):
    dataset = data.from_arrays(
        np.arange(len(y), 0.0, -1)[:, None], y, task="regression"
    )
    config = DataConfig(test_share=0.0)
    return data.prepare(dataset, config, parties=1, labels=LabelConfig(**settings))


def test_the_robust_deviation_of_normal_numbers_is_their_own():
    y = np.random.default_rng(0).normal(3.0, 2.0, size=20001)
    assert robust_deviation(y) == pytest.approx(2.0, rel=0.03)
    assert robust_deviation(np.array([1.0, 1.0, 1.0, 5.0])) == pytest.approx(4.0)
    assert robust_deviation(np.ones(4)) == 1.0


def test_enormous_labels_do_not_move_the_scale_of_a_robust_loss():
    y = np.random.default_rng(0).normal(3.0, 2.0, size=2001)
    wild = np.where(np.arange(2001) % 50 == 0, 1e6, y)
    for loss in ("huber", "auto"):
        problem = regression(wild, loss=loss)
        assert problem.label_shift == pytest.approx(3.0, abs=0.2)
        assert problem.label_scale == pytest.approx(2.0, rel=0.1)
        assert problem.huber_delta == pytest.approx(1.345)
    assert regression(y, loss="auto").huber_delta is None
    squared = regression(wild, loss="squared")
    assert squared.label_scale > 1e5
    assert squared.huber_delta is None


def test_enormous_labels_among_mostly_equal_ones_do_not_move_the_scale():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(2000) < 0.7, 0.0, rng.normal(5.0, 1.0, 2000))
    assert regression(y).huber_delta is None  # nothing is enormous
    wild = np.where(np.arange(2000) % 100 == 0, 1e12, y)
    problem = regression(wild)
    assert problem.label_shift == 0
    assert problem.label_scale == pytest.approx(5.0, rel=0.1)
    assert problem.huber_delta == pytest.approx(1.345)


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_labels_of_any_size_are_scaled_as_those_of_size_one(size, loss):
    y = np.random.default_rng(0).normal(3.0, 2.0, size=500)
    right, found = regression(y, loss=loss), regression(size * y, loss=loss)
    np.testing.assert_allclose(found.y_train, right.y_train, rtol=1e-9, atol=1e-12)
    assert found.label_scale / size == pytest.approx(right.label_scale)


def test_labels_that_no_network_can_hold_are_as_large_as_it_can():
    y = np.random.default_rng(0).normal(3.0, 2.0, size=500)
    y[:3] = 1e308, -1e308, 1e40
    found = regression(y)
    assert found.label_scale == pytest.approx(2.0, rel=0.1)
    assert np.isfinite(np.square(found.y_train.astype(np.float32))).all()
    assert found.y_train[:3].tolist() == [1e15, -1e15, 1e15]


# ------------------------------------------------------------------- classes or amounts


def counts(n_rows=600):
    """Return how many of something there are: whole numbers with thin tails."""
    return np.random.default_rng(0).poisson(8, n_rows)


@pytest.mark.parametrize(
    ("y", "task", "words"),
    [
        (counts(), "regression", "different whole numbers, not in a row from 0 or 1"),
        (np.arange(340) % 17 + 3, "regression", "17 different whole numbers, not"),
        (np.arange(600) % 12 * 5, "regression", "12 different whole numbers, not"),
        (
            np.arange(100),
            "regression",
            "100 different whole numbers, not",
        ),  # 1 row each
        (np.arange(404) % 101, "regression", "more than 100 different whole numbers"),
        (np.arange(40) / 2, "regression", "not all are whole numbers"),
        (np.arange(1560) % 26, "multiclass", "26 different whole numbers in a row"),
        (
            np.arange(400) % 100 + 1,
            "multiclass",
            "100 different whole numbers in a row",
        ),
        (np.arange(100) % 10, "multiclass", "10 different whole numbers, not more"),
        ([-1.0, 1.0] * 5, "binary", "2 different whole numbers"),
        (["a", "b", "c"], "multiclass", "3 different texts"),
        ([True, False], "binary", "truth values"),
    ],
)
def test_what_labels_are_and_why(y, task, words):
    found = data.from_arrays(np.zeros((len(y), 1)), y)
    assert found.task == task
    assert words in found.task_reason
    said = data.task_sentence(found.task, found.task_reason)
    what = "numbers to regress on" if task == "regression" else "classes"
    assert said.startswith(f"The labels are {what}: {found.task_reason}.")
    is_open = "whole numbers" in words and len(found.label_names) != 2
    assert ("set the task" in said) == is_open


def test_what_labels_are_is_taken_as_it_is_asked_for():
    X, y = np.zeros((600, 1)), counts()
    assert data.from_arrays(X, y, task="auto").task == "regression"
    found = data.from_arrays(X, y, task="classification")
    assert (found.task, found.task_reason) == ("multiclass", "as was asked for")
    assert len(found.label_names) == len(np.unique(y))
    assert data.from_arrays(X, y % 2, task="classification").task == "binary"
    assert data.from_arrays(X, y % 2, task="regression").label_names == ()
    with pytest.raises(
        ConfigError, match=r"one of auto, classification, .*Got 'guess'"
    ):
        data.from_arrays(X, y, task="guess")


def test_names_of_classes_make_classes(tmp_path):
    y = np.repeat(np.arange(12), np.arange(1, 13) * 5)  # far from even
    names = np.array(list("abcdefghijkl"))
    np.savez(tmp_path / "t.npz", X=np.zeros((len(y), 1)), y=y, label_names=names)
    found = data.load(tmp_path / "t.npz")
    assert found.label_names == tuple(names)
    labels, _ = data.load_labels(tmp_path / "t.npz")
    assert labels.label_names == tuple(names)
    assert data.load(tmp_path / "t.npz", task="regression").task == "regression"
    with pytest.raises(ConfigError, match="'task' must be left out for the data set"):
        data.load("digits", task="regression")


@pytest.mark.parametrize("word", ["NA", " n/a", "null", "NaN", " "])
def test_words_for_a_missing_label_are_no_class(word):
    with pytest.raises(
        DataError, match=r"Got 1 row without a label; .* counts as none"
    ):
        data.from_arrays([[0.0], [1.0], [2.0]], ["yes", "no", word])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["Yes", "no", "yes"], "'Yes' and 'yes', which differ in case or outer blanks"),
        (["no", "no ", "on"], "'no' and 'no ', which differ"),
        (["a", "b", "?"], "have the class '\\?'; leave its rows out"),
        (["mild", "None", "severe"], "have the class 'None'; leave"),
    ],
)
def test_classes_that_may_be_one_or_none_are_named(names, words):
    with pytest.warns(LessVFLWarning, match=words):
        dataset = data.from_arrays([[0.0], [1.0], [2.0]], names)
    assert dataset.label_names == tuple(sorted(names))
