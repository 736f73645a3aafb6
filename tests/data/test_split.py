"""Columns to parties, rows to train and test, the file of parties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from lessvfl import data
from lessvfl.data import DataConfig, from_arrays, prepare, read_parties, split
from lessvfl.data.check import check_table
from lessvfl.data.dealing import deal_columns
from lessvfl.data.split import split_rows
from lessvfl.errors import ConfigError, DataError, LessVFLWarning
from lessvfl.terms import stream_seed

NAMES = ["age", "lab_a", "lab_b", "lab_c", "weight", "zip"]


def deal(parties, seed=0, names=NAMES, **config):
    return deal_columns(names, parties, DataConfig(**config), seed)


def table(n=100, n_classes=3, regression=False):
    rng = np.random.default_rng(0)
    y = rng.normal(size=n) if regression else np.arange(n) % n_classes
    return from_arrays(np.arange(2.0 * n).reshape(n, 2), y)


def test_equal_blocks_in_file_order():
    assert deal(3) == {
        "party0": ["age", "lab_a"],
        "party1": ["lab_b", "lab_c"],
        "party2": ["weight", "zip"],
    }


def test_uneven_columns_are_spread_over_the_first_or_dropped_at_the_end():
    assert [len(c) for c in deal(4).values()] == [2, 2, 1, 1]
    assert [len(c) for c in deal([1, 5]).values()] == [1, 5]
    dropped = deal(4, uneven="drop")
    assert [len(c) for c in dropped.values()] == [1, 1, 1, 1]
    assert [c for many in dropped.values() for c in many] == NAMES[:4]


def test_random_deal_holds_every_column_once_and_follows_the_seed():
    one, two = deal(2, columns="random"), deal(2, columns="random", seed=1)
    assert sorted(one["party0"] + one["party1"]) == sorted(NAMES)
    assert one == deal(2, columns="random")
    assert one != two


def test_names_and_globs():
    held = deal({"clinic": ["age", "weight", "zip"], "lab": "lab_*"})
    assert held == {
        "clinic": ["age", "weight", "zip"],
        "lab": ["lab_a", "lab_b", "lab_c"],
    }
    assert deal({"all": ["zip", "*"]})["all"][0] == "zip"


def test_a_column_whose_name_looks_like_a_glob():
    assert deal({"a": ["x[1]"], "b": ["x1"]}, names=["x[1]", "x1"])["a"] == ["x[1]"]


def test_columns_are_excluded_by_a_mark():
    held = deal({"a": ["lab_*", "age", "!lab_b"], "b": ["weight", "zip"]})
    assert held == {"a": ["lab_a", "lab_c", "age"], "b": ["weight", "zip"]}
    assert deal({"a": ["!lab_*"], "b": "lab_*"})["a"] == ["age", "weight", "zip"]
    assert deal({"a": ["!lab_*", "*", "!age"], "b": ["lab_*", "age"]})["a"] == [
        "weight",
        "zip",
    ]
    assert deal({"a": "!zip"})["a"] == NAMES[:-1]
    held = deal({"a": ["lab_*", "!zip"], "b": ["zip", "age", "weight"]})
    assert held["a"] == ["lab_a", "lab_b", "lab_c"]  # kept out, where it was not in


def test_what_a_party_excludes_is_no_column_that_was_forgotten():
    assert deal({"a": ["!zip", "!lab_*"]}) == {"a": ["age", "weight"]}
    with pytest.warns(LessVFLWarning, match="1 column belongs to no party.*: weight"):
        deal({"a": ["age", "lab_*", "!zip"]})
    source = from_arrays(np.arange(240.0).reshape(40, 6), [0, 1] * 20)
    problem = prepare(source, DataConfig(), parties={"a": ["!x5"]})
    assert problem.parties[0].features == ("x0", "x1", "x2", "x3", "x4")
    assert problem.notes == ("1 column is excluded by name: x5.",)


def test_a_column_whose_name_begins_with_the_mark():
    names = ["!age", "age", "!x", "y"]
    assert deal({"a": ["!age", "y"], "b": ["age", "\\!x"]}, names=names) == {
        "a": ["!age", "y"],
        "b": ["age", "!x"],
    }
    assert deal({"a": ["!!*", "!y"]}, names=names) == {"a": ["age"]}
    assert deal({"a": ["\\!*"], "b": ["!\\!*"]}, names=names) == {
        "a": ["!age", "!x"],
        "b": ["age", "y"],
    }


@pytest.mark.parametrize("text", ["a: [!zip, age]", "a:\n- age\n- !zip", "a: !zip"])
def test_a_mark_without_quotes_is_a_clear_mistake(tmp_path, text):
    path = tmp_path / "parties.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"'!zip' without quotes.*\"!zip\""):
        read_parties(path)


@pytest.mark.parametrize(
    ("parties", "fragment"),
    [
        ({"a": ["*", "!zap"]}, "party 'a' must be in the table. Got '!zap', which m"),
        ({"a": ["zip", "!*"]}, "party 'a' must be one or more. Got none after '!\\*'"),
        (0, "'parties' argument must be a whole number >= 1"),
        (True, "Got True"),
        ("3", "Got '3'"),
        (2.5, "Got 2.5"),
        ([], "Got \\[\\]"),
        ([3, 0, 3], "Got \\[3, 0, 3\\]"),
        ([2, 2], "must add up to the number of columns, 6.*add up to 4"),
        (7, "Got 7 parties for n_features = 6"),
        ({}, "must be one or more"),
        ({"a": []}, "party 'a' must be one or more. Got none"),
        ({"a": ["lab_*"], "b": ["lab_a"]}, "'lab_a' must belong to one.*'a' and 'b'"),
        ({"a": ["*"], "b": ["height"]}, "party 'b' must be in the table.*'height'"),
        ({"a": ["x_*"]}, "'x_\\*', which matches none"),
    ],
)
def test_refused_parties(parties, fragment):
    with pytest.raises(ConfigError, match=fragment):
        deal(parties)


@pytest.mark.parametrize(
    ("column", "role"), [("y", "labels"), ("!y", "labels"), ("w", "row weights")]
)
def test_a_party_that_names_a_column_that_is_no_feature(column, role, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,w,y\n" + "".join(f"{i},{-i},1,{i % 2}\n" for i in range(20)))
    dataset = data.load(path, label="y", sample_weight="w")
    words = f"'p' must be features, which a column of {role} is not. Got '{column}'"
    with pytest.raises(ConfigError, match=words):
        data.prepare(dataset, DataConfig(), parties={"p": ["a", column], "q": ["b"]})
    said = check_table(
        path, label="y", sample_weight="w", parties={"p": ["a", column], "q": ["b"]}
    )
    assert any(words in problem for problem in said.problems)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40))
def test_spread_loses_no_column_and_blocks_differ_by_one(parties, n):
    if parties > n:
        return
    held = deal(parties, names=[f"c{i}" for i in range(n)])
    sizes = [len(columns) for columns in held.values()]
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1


def test_first_rows_train_last_rows_test():
    train, test = split_rows(table(11), DataConfig(split="first"), 0)
    assert train.tolist() == list(range(8))
    assert test.tolist() == [8, 9, 10]


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("n", "n_classes"), [(23, 3), (100, 3), (60, 7), (31, 2)])
def test_rows_are_those_of_scikit_learn(n, n_classes, regression):
    data = table(n, n_classes, regression)
    for seed in range(5):
        config = DataConfig(split="stratified", test_share=0.4)
        train, test = split_rows(data, config, seed)
        expected = train_test_split(
            np.arange(n),
            train_size=len(train),
            test_size=len(test),
            stratify=None if regression else data.y,
            random_state=stream_seed(seed, "split") % 2**32,
        )
        assert train.tolist() == expected[0].tolist()
        assert test.tolist() == expected[1].tolist()


@pytest.fixture
def _many(monkeypatch):
    """Have few rows be drawn as very many are."""
    monkeypatch.setattr(split, "MANY_ROWS", 50)
    monkeypatch.setattr(split, "BLOCK", 16)


@pytest.mark.usefixtures("_many")
@pytest.mark.parametrize("counts", [(60, 30, 10), (57, 41, 2), (33, 33, 34)])
def test_of_many_rows_every_class_has_its_share(counts):
    config = DataConfig(split="stratified")
    y = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], counts))
    data = from_arrays(np.arange(100.0)[:, None], y)
    train, test = split_rows(data, config, 3)
    assert sorted([*train, *test]) == list(range(100))
    assert len(test) == 20
    assert np.bincount(y[test], minlength=3) == pytest.approx(np.array(counts) / 5, 1)
    assert (np.diff(train) > 0).all()
    again, _ = split_rows(data, config, 3)
    other, _ = split_rows(data, config, 4)
    assert train.tolist() == again.tolist()
    assert train.tolist() != other.tolist()


@pytest.mark.usefixtures("_many")
@pytest.mark.parametrize("regression", [False, True])
def test_many_rows_are_drawn_alike_wherever_they_stand(regression):
    data, n_seeds = table(64, regression=regression), 2000
    config = DataConfig(split="stratified", test_share=0.25)
    drawn = np.zeros(64)
    together = 0  # the first row with the last one
    for seed in range(n_seeds):
        _, test = split_rows(data, config, seed)
        drawn[test] += 1
        together += {0, 63} <= set(test.tolist())
    assert drawn / n_seeds == pytest.approx(0.25, abs=0.05)
    assert together / n_seeds == pytest.approx(0.25 * 15 / 63, abs=0.03)


@pytest.mark.usefixtures("_many")
@pytest.mark.parametrize("n_test", [1, 40, 99])
def test_rows_beyond_what_numpy_draws_from(n_test, monkeypatch):
    class Small(np.random.Generator):
        def hypergeometric(self, ngood, nbad, nsample, size=None):
            assert ngood + nbad < 30  # 10**9 in numpy, which refuses more
            return super().hypergeometric(ngood, nbad, nsample, size)

    monkeypatch.setattr(split, "MOST_DRAWN", 30)
    y = np.random.default_rng(1).permutation(np.repeat([0, 1], (70, 30)))
    for seed in range(50):
        rng = Small(np.random.PCG64(seed))
        is_test = split._draw_test_rows(100, n_test, y, rng)
        assert is_test.sum() == n_test
        assert abs(is_test[y == 1].sum() - 0.3 * n_test) < 1


@pytest.mark.parametrize(
    ("data", "config", "fragment"),
    [
        (
            from_arrays(np.zeros((5, 1)), [0, 0, 0, 0, 1]),
            DataConfig(split="stratified"),
            "Every class of 'table' must have 2 rows.*Got 1 of class '1'",
        ),
        (
            table(9, 3),
            DataConfig(split="stratified"),
            "as many as its 3 classes. Got 2",
        ),
        (
            from_arrays(np.zeros((9, 1)), [0] * 7 + [1] * 2),
            DataConfig(),
            "every class. Got 2 test rows, drawn without labels, and none of class "
            "'1'; name test rows by test_ids, or in one process set split=stratified",
        ),
        (
            from_arrays(np.zeros((9, 1)), [0] * 7 + [1] * 2),
            DataConfig(folds=9),
            "Got 1 test row, drawn without labels, and none of class '.'; take fewer "
            "folds, or in one process set split=stratified",
        ),
        (
            from_arrays(np.zeros((9, 1)), [0] * 8 + [1]),
            DataConfig(),
            "every class. Got 1 row of class '1' in all; leave the class out",
        ),
        (table(3), DataConfig(test_share=0.9), "leave a row to train on. Got 3 rows"),
    ],
)
def test_refused_rows(data, config, fragment):
    with pytest.raises(DataError, match=fragment):
        split_rows(data, config, 0)


@pytest.mark.parametrize("folds", [1, 4])
@pytest.mark.parametrize("n", [60, 200])
@pytest.mark.parametrize("grouped", [False, True])
def test_labels_move_no_row(folds, n, grouped, monkeypatch):
    """Drawn without labels, rows are the same whatever the labels are, and sorted."""
    monkeypatch.setattr(split, "MANY_ROWS", 100)
    blocks = np.arange(n) // 2 if grouped else None
    y = np.arange(n) % 2
    labels = (y, 1 - y, np.random.default_rng(0).permutation(y), y + np.arange(n) / n)
    for seed in (0, 1):
        rows = [
            split_rows(
                from_arrays(np.zeros((n, 1)), own),
                DataConfig(folds=folds),
                seed,
                blocks=blocks,
                secret=lambda purpose, seed: pytest.fail("no draw by class"),
            )
            for own in labels
        ]
        for train, test in rows:
            assert train.tolist() == rows[0][0].tolist()
            assert test.tolist() == rows[0][1].tolist()
            assert sorted([*train, *test]) == list(range(n))
            assert (np.diff(train) > 0).all()
            assert (np.diff(test) > 0).all()


def test_each_row_is_as_often_for_testing_as_any_other():
    data, drawn = table(50, regression=True), np.zeros(50)
    for seed in range(1000):
        drawn[split_rows(data, DataConfig(), seed)[1]] += 1
    assert drawn.sum() == 10 * 1000
    assert drawn / 1000 == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("folds", [1, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_secret_decides_on_a_draw_by_class(folds, grouped):
    data, config = table(60, 3), DataConfig(split="stratified", folds=folds)
    blocks = np.arange(60) // 2 if grouped else None

    def draw(seed, secret):
        rows = split_rows(data, config, seed, blocks=blocks, secret=secret)
        return [own.tolist() for own in rows]

    public = [own.tolist() for own in split_rows(data, config, 0, True, blocks)]
    one, again, other = (
        draw(0, lambda purpose, seed, key=key: 2**300 + 2 * seed + key)
        for key in (0, 0, 1)
    )
    assert one == again
    assert one != other
    assert public not in (one, other)
    assert one[0] == sorted(one[0])
    if not grouped:
        counts = np.bincount(data.y[one[1]])
        assert np.ptp(counts) <= 1


def test_read_parties(tmp_path):
    path = tmp_path / "parties.yaml"
    path.write_text("clinic: [age, zip]\nlab: 'lab_*'\n7: [1]\n")
    assert read_parties(path) == {
        "clinic": ["age", "zip"],
        "lab": ["lab_*"],
        "7": ["1"],
    }


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        ("", "must map party names to columns. Got NoneType"),
        ("- a\n- b\n", "Got list"),
        ("a: [1\n", "must be YAML"),
        ("a: {b: c}\n", "party 'a' in .* must be a list"),
        ("a: []\n", "Got \\[\\]"),
        (None, "must be readable"),
    ],
)
def test_refused_files_of_parties(tmp_path, content, fragment):
    path = tmp_path / "parties.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=fragment):
        read_parties(path)
