"""Rows to test on: later ones, those of some ids, folds; people stay on one side."""

import dataclasses
import datetime

import numpy as np
import pytest

from lessvfl import data
from lessvfl.data import DataConfig, Roles, from_arrays, held_out, prepare
from lessvfl.data.roles import HeldOutIds, check_times, with_roles
from lessvfl.data.split import fold_seeds, split_rows
from lessvfl.errors import ConfigError, DataError, LessVFLWarning
from lessvfl.run import profiles

N = 60


def table(n=N, n_classes=2, **more):
    rng = np.random.default_rng(0)
    y = rng.normal(size=n) if n_classes is None else rng.permutation(n) % n_classes
    X = rng.normal(size=(n, 3))
    names = list(more)
    cells = np.column_stack([X, *more.values()]) if more else X
    return from_arrays(cells, y, feature_names=["a", "b", "c", *names])


def days(*texts):
    return np.array(texts, dtype="M8[D]")


TWO_DAYS = days("2024-01-02", "2024-01-03")


def settle_test_rows(source, config):
    found, rows = held_out.settle_test_rows(source, config)
    same = source.y if rows is None else source.y[rows]
    assert (found.y == same).all()
    return found


def timed(times, units=None, n_classes=2):
    source = table(len(times), n_classes)
    return dataclasses.replace(source, times=np.asarray(times), units=units)


# -------------------------------------------------------------------------------- times


def test_the_latest_rows_are_the_test_whatever_the_seed():
    when = np.random.default_rng(1).permutation(N).astype(float)
    source = with_roles(table(when=when), Roles(time_column="when"))
    assert source.X.names == ("a", "b", "c")
    assert prepare(table(), DataConfig(), parties=1).split == "random"
    problems = [
        prepare(source, DataConfig(test_share=0.25), parties=1, seed=s) for s in (0, 1)
    ]
    assert {problem.split for problem in problems} == {"the latest by 'when'"}
    marked = settle_test_rows(source, DataConfig(test_share=0.25))
    train, test = split_rows(marked, DataConfig(), seed=7)
    assert set(when[test]) == set(range(45, 60))
    assert set(when[train]) == set(range(45))
    for problem in problems:
        assert (problem.y_test == source.y[when >= 45]).all()
        assert problem.notes == (
            "Test rows are the latest 15 of 60, from 45 on; training rows end at 44.",
        )


@pytest.mark.parametrize(
    ("counts", "n_test"),
    [
        ([40, 10, 10], 10),  # 0.2 of 60 is 12: 10 is nearer than 20
        ([30, 18, 12], 12),
        ([30, 10, 20], 20),  # 0 rows are no test
        ([5, 55], 55),
    ],
)
def test_rows_of_one_time_are_on_one_side(counts, n_test):
    times = np.repeat(np.arange(len(counts), dtype=float), counts)
    marked = settle_test_rows(timed(times), DataConfig(test_share=0.2))
    assert marked.is_test.sum() == n_test
    assert not set(times[marked.is_test]) & set(times[~marked.is_test])


def test_rows_in_the_gap_are_left_out():
    start = np.datetime64("2024-01-01")
    source = timed(start + np.arange(N))
    config = DataConfig(test_share=0.25, gap=5)
    marked = settle_test_rows(source, config)
    assert len(marked.y) == N - 5
    assert (marked.y == np.delete(source.y, range(40, 45))).all()
    assert marked.is_test.sum() == 15
    assert marked.notes == (
        "Test rows are the latest 15 of 60, from 2024-02-15 on; training rows end at "
        "2024-02-09.",
        "5 rows in the gap of 5 days left out.",
    )


def test_training_rows_of_people_with_test_rows_are_left_out():
    units = np.r_[np.arange(50), np.arange(5), np.arange(50, 55)]  # 0 to 4 come again
    marked = settle_test_rows(timed(np.arange(N), units), DataConfig(test_share=1 / 6))
    assert marked.is_test.sum() == 10
    assert len(marked.y) == N - 5
    assert not set(marked.units[marked.is_test]) & set(marked.units[~marked.is_test])
    assert marked.notes[-1] == (
        "5 training rows of people who have test rows too left out."
    )
    with pytest.raises(DataError, match="somebody without a test row to train on"):
        settle_test_rows(timed(np.arange(N), np.arange(N) % 2), DataConfig())


def test_without_a_share_nothing_is_tested_on_and_nothing_left_out():
    source = timed(np.arange(N))
    marked = settle_test_rows(source, DataConfig(test_share=0.0, gap=9))
    assert marked.is_test is None
    assert len(marked.y) == N


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        (["2024-01-31", "2024-02-01 10:30"], days("2024-01-31", "2024-02-01")),
        (["31.12.2023", "01.01.2024"], days("2023-12-31", "2024-01-01")),
        ([datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 3, 4)], TWO_DAYS),
        (np.array(["2024-01-02T23:59", "2024-01-03"], dtype="M8[s]"), TWO_DAYS),
        (["1,5", "2,25"], [1.5, 2.25]),
        ([202401, 202402], [202401.0, 202402.0]),
    ],
)
def test_times_are_read_as_those_of_any_column(cells, first):
    found = check_times(cells, 2, "'t'")
    assert found.dtype == np.asarray(first).dtype
    assert (found == first).all()


@pytest.mark.parametrize(
    ("cells", "got"),
    [
        (["2024-01-31", "soon"], "Got another text in row 2."),
        (["2024-01-31", None], "Got 1 row without one."),
        (["2024-01-31", ""], "Got 1 row without one."),
        (["2024-01-31", "n/a"], "Got 1 row without one."),
        ([1.0, np.nan], "Got 1 row without one."),
        ([1, "2024-01-01"], "Got another cell in row 2."),
        (["01/02/2024", "03/04/2024"], "Got dates whose day and month cannot"),
        (["2024-01-01", "yes"], "Got another text in row 2."),
        ([[1, 2], [3, 4]], "Got a table."),
    ],
)
def test_what_is_no_time_is_refused_in_a_sentence(cells, got):
    with pytest.raises(DataError) as caught:
        check_times(np.array(cells, dtype=object), 2, "'t' (column 'when')")
    said = str(caught.value)
    assert said.startswith("The times of 't' (column 'when') must be dates or numbers")
    assert got in said


def test_times_that_do_not_differ_and_gaps_that_leave_nothing():
    with pytest.raises(DataError, match=r"two or more.* Got 3 in every row"):
        settle_test_rows(timed(np.full(N, 3.0)), DataConfig())
    with pytest.raises(DataError, match="none more than 100 days before 1970-02-18"):
        settle_test_rows(timed(np.arange(N).astype("M8[D]")), DataConfig(gap=100))
    with pytest.raises(ConfigError, match="at most 1000000 days"):
        settle_test_rows(timed(np.arange(N).astype("M8[D]")), DataConfig(gap=1e300))


# ---------------------------------------------------------------------------------- ids


def test_rows_of_some_ids_are_the_test(tmp_path):
    where = tmp_path / "t.csv"
    rows = [f"{i},{i % 7},{i % 2}" for i in range(N)]
    where.write_text("\n".join(["client,x,y", *rows]))
    ids = tmp_path / "ids.csv"
    ids.write_text("client\n3\n5\n58\n")
    source = data.load(where, test_ids=ids)
    assert source.X.names == ("x",)
    train, test = split_rows(source, DataConfig(), seed=1)
    assert test.tolist() == [3, 5, 58]
    assert len(train) == N - 3
    assert held_out.split_words(source, DataConfig()) == "the ids of 'ids.csv'"
    assert held_out.split_words(table(), DataConfig(folds=3)) == "3 folds"
    own = dataclasses.replace(table(), is_test=np.arange(N) > 50)
    assert held_out.split_words(own, DataConfig()) == "test rows of the data"
    assert source.notes == ("Test rows are the 3 rows whose 'client' is in 'ids.csv'.",)
    ids.write_text("client\n3\n99\n")
    with pytest.warns(LessVFLWarning, match=r"1 of 2 test ids of 'ids.csv' are in no"):
        data.load(where, test_ids=ids)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("client\n999\n", "Got 0 of 60 rows with such an id"),
        ("a,b\n1,2\n", "must have one column, .* Got a, b"),
        ("other\n1\n", "The ids of 't' must be one of its columns.*Got 'other'"),
        ("client\n" + "\n".join(map(str, range(N))), "Got 60 of 60 rows"),
    ],
)
def test_ids_of_no_use_are_refused(tmp_path, text, got):
    (tmp_path / "t.csv").write_text(
        "\n".join(["client,x,y", *(f"{i},{i % 7},{i % 2}" for i in range(N))])
    )
    (tmp_path / "ids.csv").write_text(text)
    with pytest.raises(DataError, match=got):
        data.load(tmp_path / "t.csv", test_ids=tmp_path / "ids.csv")


def test_an_id_is_the_same_however_its_number_is_written():
    ids = HeldOutIds.of("a", np.array([2.0, 4.0, np.nan]), "ids.npz")
    assert ids.mark(np.array([1, 2, 3, 4]), "'t'").tolist() == [0, 1, 0, 1]
    texts = np.array(["1", "2", "x", "4"], dtype=object)
    assert ids.mark(texts, "'t'").tolist() == [0, 1, 0, 1]
    with pytest.raises(DataError, match=r"must hold ids. Got none"):
        HeldOutIds.of("a", np.array([None, ""], dtype=object), "ids.csv")


def test_arrays_of_their_own_in_a_file(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(N, 2)), np.arange(N) % 2
    np.savez(tmp_path / "t.npz", X=X, y=y, when=np.arange(N), who=np.arange(N) // 3)
    source = data.load(tmp_path / "t.npz", time_column="when", group_column="who")
    assert source.times is not None
    assert source.units is not None
    assert source.times.tolist() == list(range(N))
    assert source.units.tolist() == [row // 3 for row in range(N)]


# -------------------------------------------------------------------------------- folds


@pytest.mark.parametrize("n_classes", [2, 5, None])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_row_is_tested_once_and_people_stay_together(n_classes, grouped):
    source = table(200, n_classes)
    blocks = np.random.default_rng(2).integers(0, 70, 200) if grouped else None
    config = DataConfig(split="stratified", folds=4)
    seen = np.zeros(200, dtype=int)
    for seed in fold_seeds([3], 4):
        train, test = split_rows(source, config, seed, blocks=blocks)
        assert sorted([*train, *test]) == list(range(200))
        seen[test] += 1
        assert abs(len(test) - 50) <= (4 if grouped else 1)
        if blocks is not None:
            assert not set(blocks[train]) & set(blocks[test])
        if n_classes is not None:
            counts = np.bincount(source.y[test], minlength=n_classes)
            assert np.ptp(counts - np.bincount(source.y) / 4) <= (12 if grouped else 2)
    assert (seen == 1).all()


def test_folds_have_as_many_rows_where_classes_have_fewer_blocks_than_folds():
    y = np.repeat(np.arange(6), 6)
    source = from_arrays(np.random.default_rng(0).normal(size=(36, 2)), y)
    blocks = np.arange(36) // 2
    config = DataConfig(split="stratified", folds=4)
    sizes = [len(split_rows(source, config, f, blocks=blocks)[1]) for f in range(4)]
    assert sorted(sizes) == [8, 8, 10, 10]


def test_another_seed_divides_otherwise():
    source, config = table(), DataConfig(folds=3)
    first, same, other = (split_rows(source, config, s)[1] for s in (0, 0, 3))
    assert (first == same).all()
    assert (first.shape != other.shape) or (first != other).any()


def test_folds_of_no_use_are_refused():
    with pytest.raises(DataError, match=r"as many as its rows or fewer. Got 61 for 60"):
        split_rows(table(), DataConfig(folds=61), 0)
    with pytest.raises(DataError, match="change folds"):
        split_rows(table(), DataConfig(folds=3), 2, blocks=np.arange(N) // 30)
    with pytest.raises(ConfigError, match="With 4 folds every seed must be below"):
        fold_seeds([2**62], 4)


@pytest.mark.parametrize(
    ("source", "settings", "fragment"),
    [
        (timed(np.arange(N)), {"folds": 5}, "'folds' setting must be 1 with a time"),
        (
            dataclasses.replace(table(), is_test=np.arange(N) < 9),
            {"folds": 5},
            "'folds' setting must be 1 where test rows are named",
        ),
        (table(), {"gap": 3}, "'gap' setting must be 0 without a time column"),
    ],
)
def test_settings_that_contradict_each_other(source, settings, fragment):
    with pytest.raises(ConfigError, match=fragment):
        profiles.resolve("plain", "default", source, settings)


def test_two_ways_to_name_test_rows():
    ids = HeldOutIds.of("a", np.array([1, 2]), "ids.csv")
    with pytest.raises(ConfigError, match=r"Got both: 'when' and 'ids.csv'"):
        Roles(time_column="when", test_ids=ids)
    own = from_arrays([[1.0, 2], [2, 3]], [0, 1], X_test=[[1.0, 2]], y_test=[1])
    with pytest.raises(ConfigError, match=r"brings test rows of its own. Got the time"):
        with_roles(own, Roles(time_column="x0"))
