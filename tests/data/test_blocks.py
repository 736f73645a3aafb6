"""Rows that belong together: copies of one row, the rows of one person."""

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine

from lessvfl.data import (
    DataConfig,
    Dataset,
    Frame,
    check_units,
    find_blocks,
    frame_of,
    from_arrays,
    prepare,
)
from lessvfl.data.blocks import equal_rows, in_order, seen_share
from lessvfl.data.roles import Roles, with_roles
from lessvfl.data.split import split_rows
from lessvfl.errors import DataError, LessVFLWarning

TOGETHER = DataConfig()


def numbers(n=300, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def oversampled(n=600, share=0.2, seed=0):
    """A minority class drawn again until it is one half."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, 5)), (rng.random(n) < share).astype(int)
    few = np.flatnonzero(y == 1)
    rows = np.concatenate([np.arange(n), rng.choice(few, n - 2 * len(few))])
    return from_arrays(X[rows], y[rows]), rows


def panel(n_people=50, n_rows=8, seed=0):
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(n_people), n_rows)
    X = rng.normal(size=(len(person), 4))
    table = np.column_stack([X, person])
    y = (X[:, 0] + rng.normal(size=len(person)) > 0).astype(int)
    return with_roles(from_arrays(table, y), Roles(group_column="x4")), person


def found_in(data, config=TOGETHER) -> Any:
    return find_blocks(data, config)


def parts(numbers):
    return in_order(np.asarray(numbers)).tolist()


def test_a_table_of_different_rows_has_no_blocks():
    assert find_blocks(from_arrays(numbers(), np.arange(300) % 2), TOGETHER) is None


def test_copies_of_rows_are_blocks():
    data, rows = oversampled()
    found = found_in(data)
    assert found.of_row.tolist() == parts(rows)
    assert found.n_blocks == 600
    assert found.n_equal == int((np.bincount(rows)[rows] > 1).sum())


def test_missing_cells_zeros_of_both_signs_and_texts_are_equal_to_themselves():
    X = numbers(40).astype(object)
    X[0, 1], X[1, 1], X[2, 1] = np.nan, 0.0, "a"
    X[:, 2] = [f"word {i % 5}" for i in range(40)]
    X[3, 2] = None
    twice = np.vstack([X[:5], X])
    twice[1, 1] = -0.0
    twice[2, 1] = twice[7, 1] = 1.5
    data = from_arrays(twice, np.r_[np.arange(5) % 2, np.arange(40) % 2])
    found = found_in(data)
    assert found.of_row.tolist() == [*range(5), *range(40)]


def test_equal_rows_of_another_label_are_different():
    X = np.vstack([numbers(), numbers()])
    y = np.r_[np.arange(300) % 2, (np.arange(300) + 1) % 2]
    assert find_blocks(from_arrays(X, y), TOGETHER) is None


def test_equal_rows_of_categories_may_be_different_people():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(2000, 8))
    assert len(np.unique(X, axis=0)) < 2000
    assert find_blocks(from_arrays(X, rng.integers(0, 2, 2000)), TOGETHER) is None


@pytest.mark.parametrize("n_rows", [1000, 3000])
def test_one_rounded_number_is_equal_by_chance(n_rows):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 600, size=(n_rows, 1))
    assert find_blocks(from_arrays(X, rng.integers(0, 2, n_rows)), TOGETHER) is None
    assert equal_rows(from_arrays(X, np.arange(n_rows) % 2).X) is None


def test_rows_are_told_apart_by_the_columns_in_use():
    X = np.vstack([numbers()] * 2).astype(object)
    ids = np.array([f"id-{i:04}-x" for i in range(600)], dtype=object)
    data = from_arrays(np.column_stack([ids, X]), np.arange(600) % 2)
    assert data.X.unused == {"x0"}
    assert found_in(data).n_blocks == 300


def test_the_setting_apart_leaves_equal_rows_alone_and_people_together():
    apart = DataConfig(equal_rows="apart")
    assert find_blocks(oversampled()[0], apart) is None
    data, person = panel()
    assert found_in(data, apart).of_row.tolist() == parts(person)


def test_people_and_copies_are_joined():
    data, person = panel(n_people=40)
    rows = np.r_[np.arange(320), 0, 16]  # copies of rows of persons 0 and 2
    other = np.r_[person, 1, 99]
    X = data.X.take(rows)
    joined = replace(data, X=X, y=data.y[rows], units=other)
    found = found_in(joined)
    expected = np.where(other == 1, 0, np.where(other == 99, 2, other))
    assert found.of_row.tolist() == parts(expected)
    assert (found.n_equal, found.n_units) == (4, 41)


def test_equal_rows_of_a_large_table_are_found_fast():
    X = np.vstack([numbers(30_000, 50), numbers(20_000, 50)])
    frame = Frame.of_numbers([f"x{i}" for i in range(50)], X)
    began = time.process_time()
    copies: Any = equal_rows(frame, np.arange(50_000) % 2)
    assert copies.max() + 1 == 30_000
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("groups", "fragment"),
    [
        ([1, 2, 3], "named in every row. Got 3 for 4 rows"),
        ([1, None, 2, 2], "Got 1 row without a name"),
        (["a", "", "", "b"], "Got 2 rows without a name"),
        ([1.0, np.nan, 2.0, 2.0], "Got 1 row without a name"),
        ([7, 7, 7, 7], "two names or more. Got one for all rows"),
        (np.zeros((4, 2)), "Got a table"),
    ],
)
def test_groups_that_name_nobody(groups, fragment):
    with pytest.raises(DataError, match=fragment):
        check_units(groups, 4, "'table'")


def test_the_group_column_is_no_feature():
    data, _ = panel()
    assert data.X.names == ("x0", "x1", "x2", "x3")
    with pytest.raises(DataError, match="groups of rows of 'table' must be one of"):
        with_roles(data, Roles(group_column="person"))


# -------------------------------------------------------------------------------- split


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_no_block_is_on_both_sides_and_shares_are_near(seed, share):
    for data, blocks in (oversampled(seed=seed), panel(seed=seed)):
        config = DataConfig(split="stratified", test_share=share)
        train, test = split_rows(data, config, seed, blocks=in_order(blocks))
        assert not set(blocks[train]) & set(blocks[test])
        assert sorted([*train, *test]) == list(range(len(blocks)))
        assert abs(len(test) / len(blocks) - share) < 0.04
        ratio = data.y[test].mean() / data.y.mean()
        assert 0.85 < ratio < 1.15


def test_the_split_follows_the_seed_and_the_blocks_alone():
    data, rows = oversampled()
    one = split_rows(data, TOGETHER, 1, blocks=in_order(rows))
    again = split_rows(data, TOGETHER, 1, blocks=in_order(rows))
    other = split_rows(data, TOGETHER, 2, blocks=in_order(rows))
    assert one[1].tolist() == again[1].tolist() != other[1].tolist()
    assert one[1].tolist() == sorted(one[1])


def test_one_large_group_does_not_take_the_test_rows():
    units = np.r_[np.zeros(600, int), 1 + np.arange(400) // 10]
    data = from_arrays(numbers(1000), np.arange(1000.0) ** 1.1)
    for seed in range(5):
        _, test = split_rows(data, TOGETHER, seed, blocks=units)
        assert 150 <= len(test) <= 250
        assert 0 not in units[test]


def test_many_rare_classes_together_have_their_share():
    units = np.arange(600) // 2
    data = from_arrays(numbers(600), np.arange(600) // 6)
    _, test = split_rows(data, DataConfig(split="stratified"), 0, blocks=units)
    assert abs(len(test) - 120) <= 2


def test_the_first_rows_are_cut_where_a_block_ends():
    data, person = panel(n_people=10, n_rows=7)
    config = DataConfig(split="first", test_share=0.25)
    train, test = split_rows(data, config, 0, blocks=person)
    assert train.tolist() == list(range(56))
    assert test.tolist() == list(range(56, 70))


def test_last_rows_that_are_all_copies_leave_nothing_to_test():
    data, rows = oversampled()
    config = DataConfig(split="first")
    with pytest.raises(DataError, match="Got 964 rows and 0; change test_share or sp"):
        split_rows(data, config, 0, blocks=in_order(rows))


# ------------------------------------------------------------------------------ problem


def test_a_warning_names_the_share_and_the_problem_knows_its_blocks():
    data, _ = oversampled()
    with pytest.warns(LessVFLWarning, match="% of the rows equal another row: they"):
        problem: Any = prepare(data, TOGETHER, parties=2)
    assert len(problem.blocks) == len(problem.y_train)
    assert problem.n_blocks == 600
    assert problem.n_equal > 300
    assert any("equal another row" in note for note in problem.notes)
    train, test = problem.frames
    seen = {cells.tobytes() for cells in train.numeric}
    assert not any(cells.tobytes() in seen for cells in test.numeric)
    assert len(np.unique(train.numeric, axis=0)) == problem.blocks.max() + 1


def test_a_few_copies_are_counted(recwarn):
    X, y = numbers(400), np.arange(402) % 2
    prepare(from_arrays(np.vstack([X, X[:2]]), y), TOGETHER, parties=2)
    said = [str(one.message) for one in recwarn]
    assert any("4 rows of the table equal another row" in text for text in said)


def test_without_blocks_a_problem_is_as_it_was(recwarn):
    data = from_arrays(numbers(), np.arange(300) % 2)
    problem = prepare(data, TOGETHER, parties=2)
    apart = prepare(data, DataConfig(equal_rows="apart"), parties=2)
    assert (problem.blocks, problem.n_blocks, len(recwarn)) == (None, None, 0)
    assert np.array_equal(problem.parties[0].X_train, apart.parties[0].X_train)


# ---------------------------------------------------------------- test rows seen before


def cells_of(frame, names):
    """Return every row as a tuple of texts, the slow and plain way."""
    part = frame.select(names)
    columns = [part.text.get(i, part.numeric[:, i] + 0.0) for i in range(len(names))]
    return [tuple(map(str, row)) for row in zip(*columns, strict=True)]


def counted(problem):
    """Count the test rows that are among the training rows, one by one."""
    train, test = problem.frames
    names = [name for party in problem.parties for name in party.encoding.names]
    real = [name for name in names if not name.startswith("spurious_")]
    known, rows = set(cells_of(train, real)), cells_of(test, real)
    return sum(row in known for row in rows) / len(rows)


@pytest.mark.parametrize("table", [load_iris, load_wine, load_diabetes, load_digits])
@pytest.mark.parametrize("n_columns", [1, 2, None])
def test_the_share_of_test_rows_seen_is_that_of_a_plain_count(table, n_columns):
    X, y = table(return_X_y=True)
    data = from_arrays(X[:, :n_columns], y)
    how = DataConfig(equal_rows="apart", test_share=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)  # of constant pixels
        problem: Any = prepare(data, how, parties=1, spurious=1.0)
    assert problem.test_rows_seen == counted(problem)
    assert problem.test_rows_seen > 0 or n_columns != 1


def test_rows_are_seen_by_the_columns_of_all_parties_and_no_label():
    X, n = numbers(50), 50
    data = Dataset(
        "own", frame_of(X), np.arange(n) % 2, "binary", ("a", "b"), n_parties=2
    )
    test = X[:10].copy()
    test[:4, 5] += 1.0  # of the last party alone
    own = replace(data, X_test=frame_of(test), y_test=1 - data.y[:10])
    assert prepare(own, DataConfig()).test_rows_seen == 0.6
    with pytest.warns(LessVFLWarning, match="belongs to no party"):
        few = prepare(own, DataConfig(), parties={"a": ["x0"], "b": ["x[1-4]"]})
    assert few.test_rows_seen == 1.0


def test_missing_cells_and_marks_of_them_are_equal():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), np.arange(60) % 3])
    X[:40, 0] = np.nan
    test = X[:10].copy()
    test[:5, 0] = -999
    data = replace(
        from_arrays(X, np.arange(60) % 2),
        X_test=frame_of(test),
        y_test=np.arange(10) % 2,
    )
    assert prepare(data, DataConfig(), parties=1).test_rows_seen == 0.5
    marked = DataConfig(missing_values={"x0": -999})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)  # no training row has it
        assert prepare(data, marked, parties=1).test_rows_seen == 1.0


def test_without_test_rows_none_is_seen():
    data = from_arrays(numbers(), np.arange(300) % 2)
    assert prepare(data, DataConfig(test_share=0.0)).test_rows_seen is None


def test_different_rows_of_one_hash_are_different(monkeypatch):
    monkeypatch.setattr("lessvfl.data.blocks._ODD", np.uint64(0))
    frame = frame_of(numbers(20))
    train, test = frame.take(slice(12)), frame.take(slice(10, None))
    assert seen_share(train, frame.take(slice(1)), frame.names) == 1.0
    assert seen_share(train, test.take(slice(2, None)), frame.names) == 0.0


def test_rows_seen_of_a_million_are_found_fast():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 9, size=(1_000_000, 8)).astype(float)
    frame = Frame.of_numbers("abcdefgh", X)
    train, test = frame.take(slice(800_000)), frame.take(slice(800_000, None))
    began = time.process_time()
    share: Any = seen_share(train, test, frame.names)
    assert time.process_time() - began < 5
    chance = 1 - np.exp(-800_000 / 9**8)
    assert abs(share - chance) < 0.002


# ------------------------------------------------------------------------ distinct rows

DISTINCT = DataConfig(equal_rows="distinct")


def test_of_equal_rows_the_first_is_kept_with_its_label_and_weight():
    X = np.vstack([numbers(40), numbers(40)[:10], numbers(40)[:10]])
    y = np.r_[np.arange(40) % 2, np.arange(10) % 2, 1 - np.arange(10) % 2]
    data = from_arrays(X, y)
    data = replace(data, weight=np.arange(1.0, 61.0), units=np.arange(60))
    problem: Any = prepare(data, DISTINCT, parties=2)
    assert len(problem.y_train) + len(problem.y_test) == 40
    assert problem.test_rows_seen == 0.0
    assert problem.n_blocks is None
    label = dict(zip(X[:40, 0].tolist(), y[:40].tolist(), strict=True))
    train, test = problem.frames
    assert [label[v] for v in train.numeric[:, 0].tolist()] == problem.y_train.tolist()
    assert [label[v] for v in test.numeric[:, 0].tolist()] == problem.y_test.tolist()
    place = {v: i + 1.0 for i, v in enumerate(X[:40, 0].tolist())}
    own = [place[v] for v in train.numeric[:, 0].tolist()]
    assert problem.sample_weight.tolist() == own
    said = (
        "20 of 60 rows equal an earlier one and are left out; 10 of them have another"
    )
    assert any(note.startswith(said) for note in problem.notes)


def test_rows_of_categories_are_distinct_too():
    """Which stay single otherwise: they may be different people."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 3, size=(2000, 6)), rng.integers(0, 2, 2000)
    data = from_arrays(X, y)
    apart: Any = prepare(data, DataConfig(), parties=2)
    problem = prepare(data, DISTINCT, parties=2)
    assert apart.test_rows_seen > 0.5
    assert problem.test_rows_seen == 0.0
    n_rows = len(problem.y_train) + len(problem.y_test)
    assert n_rows == len(np.unique(X, axis=0))


def test_own_test_rows_that_are_in_training_are_left_out():
    X = numbers(60)
    data = from_arrays(X[:50], np.arange(50) % 2)
    own = replace(data, X_test=frame_of(X[40:]), y_test=np.arange(20) % 2)
    problem: Any = prepare(own, DISTINCT, parties=2)
    assert (len(problem.y_train), problem.y_test.tolist()) == (50, [0, 1] * 5)
    assert np.array_equal(problem.frames[1].numeric, X[50:])
    none_left = replace(own, X_test=frame_of(X[:5]), y_test=np.arange(5) % 2)
    with pytest.raises(DataError, match="must differ from its training rows"):
        prepare(none_left, DISTINCT, parties=2)


def test_a_table_of_distinct_rows_is_as_it_was():
    data = from_arrays(numbers(), np.arange(300) % 2)
    one, two = (prepare(data, how, parties=2) for how in (DataConfig(), DISTINCT))
    assert np.array_equal(one.parties[0].X_train, two.parties[0].X_train)
    assert one.notes == two.notes
