"""prepare: from a data set to what each party trains and tests on."""

import dataclasses
import math

import numpy as np
import pytest
from tests.data.rules import of_kind

from lessvfl import data
from lessvfl.data import DataConfig, frame_of, from_arrays, prepare
from lessvfl.errors import ConfigError, DataError, LessVFLWarning

RNG = np.random.default_rng(7)
AS_RELEASED = DataConfig(split="first", scale="global", noise="range", uneven="drop")


def table(n=200, d=8, **options):
    X = np.random.default_rng(1).normal(3, 2, size=(n, d))
    return from_arrays(X, np.arange(n) % 2, **options)


def test_shapes_names_and_labels():
    problem = prepare(table(), DataConfig(split="stratified"))
    assert [party.name for party in problem.parties] == [f"party{i}" for i in range(4)]
    assert [party.features for party in problem.parties][1] == ("x2", "x3")
    assert {party.X_train.shape for party in problem.parties} == {(160, 2)}
    assert {party.X_test.shape for party in problem.parties} == {(40, 2)}
    assert (problem.n_real, problem.n_features, problem.n_classes) == (8, 8, 2)
    assert np.bincount(problem.y_test).tolist() == [20, 20]
    assert problem.notes == ()
    assert problem.parties[0].significant is None


def test_rows_of_all_parties_and_labels_stay_together():
    X = np.repeat(np.arange(2.0, 52.0)[:, None], 4, axis=1)
    problem = prepare(from_arrays(X, np.arange(50) % 2), DataConfig(scale="none"))
    first = problem.parties[0].X_train[:, 0]
    for party in problem.parties:
        np.testing.assert_array_equal(party.X_train[:, 0], first)
    np.testing.assert_array_equal(first % 2, problem.y_train)
    np.testing.assert_array_equal(problem.parties[3].X_test[:, 0] % 2, problem.y_test)


def test_same_seed_same_bits_other_seed_other_bits():
    one, again, other = (
        prepare(table(), DataConfig(), spurious=0.5, seed=seed) for seed in (3, 3, 4)
    )
    for a, b, c in zip(one.parties, again.parties, other.parties, strict=True):
        np.testing.assert_array_equal(a.X_train, b.X_train)
        np.testing.assert_array_equal(a.X_test, b.X_test)
        assert not np.array_equal(a.X_train[:, -1], c.X_train[:, -1])


def test_own_test_rows_are_used_as_they_are():
    own = table(n=20, X_test=RNG.normal(size=(6, 8)), y_test=[0, 1] * 3)
    problem = prepare(own, DataConfig(scale="none"))
    np.testing.assert_array_equal(problem.parties[0].X_train, own.X.numeric[:, :2])
    np.testing.assert_array_equal(problem.parties[0].X_test, own.X_test.numeric[:, :2])
    assert problem.y_test.tolist() == [0, 1, 0, 1, 0, 1]


def test_no_test_rows():
    problem = prepare(table(), DataConfig(test_share=0.0, noise="range"), spurious=1.0)
    assert problem.parties[0].X_test.shape == (0, 4)
    assert problem.y_test.shape == (0,)


def test_scaling_of_parties_is_fitted_on_training_rows_alone():
    X = np.arange(20.0).reshape(10, 2)
    problem = prepare(from_arrays(X, [0, 1] * 5), DataConfig(split="first"), parties=2)
    train = X[:8, 0]
    np.testing.assert_allclose(
        problem.parties[0].X_test[:, 0], (X[8:, 0] - train.mean()) / train.std()
    )


def test_global_scale_is_one_minimum_and_maximum_of_train_and_test():
    X = np.array([[0.0, 10.0], [2.0, 4.0], [6.0, 1.0], [3.0, 3.0], [-10.0, 5.0]])
    problem = prepare(from_arrays(X, [0, 1, 0, 1, 0]), AS_RELEASED, parties=2)
    expected = (X + 10.0) / 20.0
    np.testing.assert_array_equal(problem.parties[0].X_train, expected[:4, :1])
    np.testing.assert_array_equal(problem.parties[1].X_test, expected[4:, 1:])
    for party in problem.parties:
        assert party.encoding.columns[0].shift == -10.0
        assert party.encoding.columns[0].scale == 20.0


def test_global_scale_without_numbers_and_with_one_value():
    cells = np.array([["a"], ["b"]] * 8, dtype=object)
    data = from_arrays(cells, [0, 1] * 8)
    problem = prepare(data, DataConfig(scale="global"), parties=1)
    assert set(problem.parties[0].X_train.ravel()) == {0.0, 1.0}
    flat = from_arrays(np.full((10, 2), 5.0), [0, 1] * 5)
    with pytest.warns(LessVFLWarning, match="2 columns have one value"):
        problem = prepare(flat, DataConfig(scale="global"), parties=1)
    assert (problem.parties[0].X_train == 0.0).all()


@pytest.mark.parametrize("scale", ["standardize", "global"])
def test_constant_columns_warn_and_stay_finite(scale):
    X = RNG.normal(size=(30, 3))
    X[:, 1] = 0.1
    with pytest.warns(LessVFLWarning, match="1 column has.*'x1' of party0") as caught:
        problem = prepare(
            from_arrays(X, [0, 1] * 15), DataConfig(scale=scale), parties=1
        )
    assert caught[0].filename == __file__
    assert np.isfinite(problem.parties[0].X_train).all()
    assert len(np.unique(problem.parties[0].X_train[:, 1])) == 1


def test_encoding_of_a_party_rebuilds_its_own_rows():
    source = table()
    problem = prepare(source, AS_RELEASED, spurious=0.5)
    party = problem.parties[2]
    raw = np.hstack([source.X.numeric[160:, 4:6], party.X_test[:, 2:]])
    frame = frame_of(raw, party.features)
    np.testing.assert_array_equal(party.encoding.apply(frame)[0], party.X_test)


def test_planted_columns_number_place_and_names():
    problem = prepare(table(d=10), DataConfig(), parties=[3, 7], spurious=[1.0, 0.5])
    first, second = problem.parties
    assert first.features[3:] == tuple(f"spurious_party0_{i}" for i in range(3))
    assert first.spurious.tolist() == [False] * 3 + [True] * 3
    assert second.spurious.sum() == 3  # int(3.5)
    assert second.groups.tolist() == list(range(10))
    assert (problem.n_real, problem.n_features) == (10, 16)


def test_unit_noise_is_standard_normal_and_differs_between_parties():
    problem = prepare(table(n=5000), DataConfig(), spurious=2.0)
    noise = [party.X_train[:, party.spurious] for party in problem.parties]
    assert abs(np.mean(noise)) < 0.02
    assert np.std(noise) == pytest.approx(1.0, abs=0.02)
    assert not np.array_equal(noise[0], noise[1])


def test_range_noise_has_the_statistics_of_all_values_of_its_own_part():
    source = table(n=20000)
    source.X.numeric[16000:] *= 2  # the test rows are wider
    config = dataclasses.replace(AS_RELEASED, scale="none")
    problem = prepare(source, config, spurious=3.0)
    for part, rows in (("X_train", slice(0, 16000)), ("X_test", slice(16000, None))):
        real = source.X.numeric[rows]
        width = (real.max() - real.min()) / 2
        noise = np.hstack([getattr(p, part)[:, p.spurious] for p in problem.parties])
        assert noise.mean() == pytest.approx(real.mean(), abs=0.02 * width)
        assert noise.std() == pytest.approx(width, rel=0.02)


def test_noise_of_a_party_does_not_move_when_a_party_is_added():
    two = prepare(table(d=8), DataConfig(), parties=[2, 6], spurious=1.0)
    three = prepare(table(d=8), DataConfig(), parties=[2, 3, 3], spurious=1.0)
    np.testing.assert_array_equal(two.parties[0].X_train, three.parties[0].X_train)


def test_significant_features_follow_their_columns():
    truth = np.array([True, False, False, True, True, False, False, False])
    source = dataclasses.replace(table(), significant=truth)
    problem = prepare(
        source,
        DataConfig(),
        parties={"a": ["x3", "x0", "x1"], "b": ["x2", "x4", "x5", "x6", "x7"]},
        spurious=0.4,
        groups={"pair": ["x0", "x1"]},
    )
    first, second = problem.parties
    assert first.features == ("x3", "pair", "spurious_a_0")
    assert first.significant is not None
    assert second.significant is not None
    assert first.significant.tolist() == [True, True, False]
    assert second.significant.tolist() == [False, True] + [False] * 5


def test_groups_make_one_feature_of_columns():
    problem = prepare(table(), DataConfig(), parties=2, groups={"block": ["x[13]"]})
    assert problem.parties[0].features == ("x0", "block", "x2")
    assert problem.parties[0].groups.tolist() == [0, 1, 1, 2]
    assert problem.n_real == 7


def test_missing_and_unseen_cells_are_counted_and_said():
    X = np.array([[float(i), "ab"[i % 2]] for i in range(20)], dtype=object)
    X[3, 0] = None
    X[4, 1] = None
    X[19] = [math.nan, "c"]
    problem = prepare(from_arrays(X, [0, 1] * 10), DataConfig(split="first"), parties=1)
    assert (problem.imputed, problem.unseen) == (3, 1)
    assert problem.notes[0].startswith("3 missing cells were filled in")
    assert problem.notes[1].startswith("1 test cell holds a category")
    assert problem.parties[0].X_test[-1, 1:].tolist() == [0.0, 0.0]


def test_planted_columns_count_source_columns_not_encoded_ones():
    X = np.array([["abcd"[i % 4], "uv"[i % 2]] for i in range(40)], dtype=object)
    problem = prepare(
        from_arrays(X, [0, 1] * 20), DataConfig(), parties=1, spurious=0.5
    )
    assert problem.parties[0].X_train.shape[1] == 4 + 2 + 1
    assert problem.parties[0].groups.tolist() == [0, 0, 0, 0, 1, 1, 2]


def test_columns_that_do_not_divide_are_said():
    problem = prepare(table(d=10), DataConfig(uneven="drop"))
    assert problem.notes == (
        "2 of 10 columns do not divide evenly among 4 parties and were dropped.",
    )
    problem = prepare(table(d=9), DataConfig(uneven="drop"))
    assert problem.notes == (
        "1 of 9 columns does not divide evenly among 4 parties and was dropped.",
    )


def test_columns_of_nobody_are_said():
    with pytest.warns(LessVFLWarning, match="left out: x1, x2, x3, x4, x5 and 2 more"):
        problem = prepare(table(), DataConfig(), parties={"a": ["x0"]})
    assert problem.notes == ("7 columns belong to no party and were left out.",)
    with pytest.warns(LessVFLWarning, match="1 column belongs .* and is left out: x1"):
        problem = prepare(table(d=2), DataConfig(), parties={"a": ["x0"]})
    assert problem.notes == ("1 column belongs to no party and was left out.",)


def test_columns_that_are_left_out_are_dealt_to_nobody():
    X = np.array([[float(i), f"patient {i}", i % 3] for i in range(20)], dtype=object)
    source = from_arrays(X, [0, 1] * 10, feature_names=["age", "who", "ward"])

    def features(parties):
        found = prepare(source, DataConfig(), parties=parties)
        assert found.notes == (
            "Columns that cannot be used are left out: "
            "'who' (ids or names: most cells differ).",
        )
        return [party.features for party in found.parties]

    assert features(2) == [("age",), ("ward",)]
    assert features([2, 1]) == [("age",), ("ward",)]
    assert features({"a": ["who", "age"], "b": ["w*d"]}) == [("age",), ("ward",)]
    fragment = r"^Party 'b' must have a column that can be used. Got 'who' \(ids"
    with pytest.raises(DataError, match=fragment):
        features({"a": ["age", "ward"], "b": ["who"]})
    with pytest.raises(DataError, match="Party 'party1' must have a column"):
        features([1, 1, 1])
    with pytest.warns(LessVFLWarning, match="left out: who, ward"):
        prepare(source, DataConfig(), parties={"a": ["age"]})


@pytest.mark.parametrize(
    ("options", "error", "fragment"),
    [
        ({"parties": 9}, ConfigError, "Got 9 parties for n_features = 8"),
        ({"spurious": -0.1}, ConfigError, "'spurious' share must be a float in \\[0"),
        ({"spurious": 11}, ConfigError, "Got 11"),
        ({"spurious": "much"}, ConfigError, "Got 'much'"),
        ({"spurious": [0.5]}, ConfigError, "one per party, 4. Got 1"),
        ({"groups": {"g": ["x0", "x7"]}}, ConfigError, "'party0' and 'party3'"),
        ({"groups": {"g": ["y*"]}}, ConfigError, "feature 'g' must be in the table"),
        ({"groups": {"g": ["x0"], "h": ["x0"]}}, ConfigError, "one feature.*'g' and"),
        ({"groups": {"x1": ["x0"]}}, ConfigError, "'x1' must not be named like"),
    ],
)
def test_refusals(options, error, fragment):
    with pytest.raises(error, match=fragment):
        prepare(table(), DataConfig(), **options)


def test_training_rows_of_one_class_are_refused():
    sorted_rows = from_arrays(RNG.normal(size=(10, 4)), [0] * 8 + [1] * 2)
    with pytest.raises(DataError, match="split=random"):
        prepare(sorted_rows, DataConfig(split="first"))


def test_names_of_planted_columns_must_be_free():
    names = ["spurious_party0_0", "b"]
    source = from_arrays(RNG.normal(size=(10, 2)), [0, 1] * 5, feature_names=names)
    with pytest.raises(DataError, match="'spurious_party0_0' in the table"):
        prepare(source, DataConfig(), parties=1, spurious=1.0)


def mixed(n=60):
    """Numbers, truth values and categories, with missing cells in each."""
    rng = np.random.default_rng(5)
    cells = np.empty((n, 6), dtype=object)
    cells[:, 0] = rng.normal(40, 11, n)
    cells[:, 1] = rng.lognormal(0, 2, n)
    cells[:, 2] = rng.random(n) < 0.3
    cells[:, 3] = rng.choice(["a", "b", "ü c"], n)
    cells[:, 4] = rng.integers(0, 9, n).astype(float)
    cells[:, 5] = rng.choice(["left", "right"], n)
    cells[rng.random(cells.shape) < 0.1] = None
    return cells, np.arange(n) % 2


@pytest.mark.parametrize("own_test_rows", [False, True])
@pytest.mark.parametrize("scale", ["standardize", "global", "none"])
def test_a_party_with_the_raw_columns_gets_the_prepared_rows(
    tmp_path, scale, own_test_rows
):
    """The columns go through a file, are encoded anew, and are equal to the bit."""
    X, y = mixed()
    tests = {"X_test": X[45:], "y_test": y[45:]} if own_test_rows else {}
    n = 45 if own_test_rows else 60
    problem = prepare(
        from_arrays(X[:n], y[:n], **tests),
        DataConfig(scale=scale, noise="range", max_categories=3),
        parties=2,
        spurious=1.0,
        groups={"first": ["x0", "x2"], "x3": ["x3", "x5"]},
        seed=3,
    )
    train = np.arange(len(problem.y_train))
    test = len(train) + np.arange(len(problem.y_test))
    for table in problem.parties:
        data.write_columns(
            tmp_path / f"{table.name}.parquet",
            data.raw_frame(problem, table),
            np.arange(60),
        )
        frame, ids = data.load_columns(tmp_path / f"{table.name}.parquet", "row")
        assert ids is not None
        assert ids.tolist() == list(range(60))
        planted = [f"spurious_{table.name}_{i}" for i in range(3)]
        encoding = data.Encoding.fit(
            table.name,
            frame.take(train),
            frame.names,
            scale=scale,
            bounds=problem.bounds,
            max_categories=3,
            groups={"x0": "first", "x2": "first", "x5": "x3"},
            as_is=planted,
        )
        assert encoding == table.encoding
        assert encoding.features == table.features
        assert encoding.features[-3:] == tuple(planted)
        assert encoding.groups.tolist() == table.groups.tolist()
        for rows, prepared in ((train, table.X_train), (test, table.X_test)):
            assert encoding.apply(frame.take(rows))[0].tobytes() == prepared.tobytes()


def test_raw_columns_are_the_source_rows_in_the_order_of_the_labels():
    X, _ = mixed()
    X[:, 0] = np.arange(60.0) + 2  # the number of the row, and no count from 0 or 1
    source = from_arrays(X, np.arange(60) % 2)
    problem = prepare(source, DataConfig(), parties=2, spurious=0.5, seed=1)
    first, second = (data.raw_frame(problem, table) for table in problem.parties)
    rows = first.numeric[:, 0].astype(int) - 2
    assert sorted(rows) == list(range(60))
    assert (rows % 2).tolist() == [*problem.y_train, *problem.y_test]
    assert first.names == ("x0", "x1", "x2", "spurious_party0_0")
    assert (list(of_kind(first, "boolean")), list(first.text)) == ([2], [])
    assert (list(of_kind(second, "boolean")), list(second.text)) == ([], [0, 2])
    np.testing.assert_array_equal(first.numeric[:, 1:3], source.X.numeric[rows, 1:3])
    assert second.text[0].tolist() == source.X.text[3][rows].tolist()
    noise = np.concatenate([problem.parties[0].X_train, problem.parties[0].X_test])
    np.testing.assert_array_equal(first.numeric[:, 3], noise[:, -1])


def test_a_category_without_a_text_in_the_test_rows_is_raw_too():
    X = np.array([["ab"[i % 2], float(i)] for i in range(20)], dtype=object)
    X_test = np.array([[None, 1.0], [None, 2.0]], dtype=object)
    source = from_arrays(X, [0, 1] * 10, X_test=X_test, y_test=[0, 1])
    problem = prepare(source, DataConfig(), parties=1)
    frame = data.raw_frame(problem, problem.parties[0])
    assert frame.text[0].tolist() == ["a", "b"] * 10 + [None, None]
