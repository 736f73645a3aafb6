"""Encoding: fill, scale, one-hot, round trips."""

import json
import math
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lessvfl.data import frame_of
from lessvfl.data.column import EncodedColumn, Reading
from lessvfl.data.encode import CellCounts, Encoding
from lessvfl.errors import ConfigError, DataError

NAN = math.nan


def mixed():
    cells = np.array(
        [
            [1.0, True, "red"],
            [3.0, True, "blue"],
            [None, False, "red"],
            [5.0, None, None],
            [7.0, True, "red"],
            [4.0, False, "blue"],
        ],
        dtype=object,
    )
    return frame_of(cells, ["age", "sick", "colour"])


def fit(frame, **options):
    return Encoding.fit("clinic", frame, frame.names, **options)


def test_fill_is_mean_or_most_frequent_of_training_rows():
    encoding = fit(mixed(), scale="none")
    assert [column.fill for column in encoding.columns] == [4.0, 1.0, "red"]
    matrix, counts = encoding.apply(mixed())
    assert counts == CellCounts(imputed=3, unseen=0)
    assert matrix[2, 0] == 4.0  # (1 + 3 + 5 + 7 + 4) / 5
    assert matrix[3].tolist() == [5.0, 1.0, 0.0, 1.0]  # blue, red


def test_ties_are_filled_with_false_and_the_first_category():
    cells = np.array(
        [[True, "b"], [False, "a"], [None, "b"], [None, "a"]], dtype=object
    )
    encoding = fit(frame_of(cells))
    assert [column.fill for column in encoding.columns] == [0.0, "a"]


def test_standardise_by_hand():
    encoding = fit(frame_of([[1.0], [3.0], [NAN]]))
    column = encoding.columns[0]
    assert column.shift == 2.0
    assert column.scale == pytest.approx(math.sqrt(2 / 3))  # of 1, 3 and the filled 2
    assert encoding.apply(frame_of([[2.0], [NAN]]))[0].tolist() == [[0.0], [0.0]]


def cauchy(n=2000, seed=0):
    return np.random.default_rng(seed).standard_cauchy(size=(n, 1))


def test_a_column_of_heavy_tails_becomes_a_bell_curve():
    X = cauchy()
    matrix, _ = fit(frame_of(X)).apply(frame_of(X))
    order = np.argsort(X[:, 0])
    assert (np.diff(matrix[order, 0]) >= 0).all()
    middle = order[20:-20]
    assert (np.diff(matrix[middle, 0]) > 0).all()  # no two become one
    assert matrix.mean() == pytest.approx(0, abs=1e-9)
    assert matrix.std() == pytest.approx(1)
    assert stats.kstest(matrix[:, 0], "norm").pvalue > 0.5
    assert np.abs(matrix).max() < 5
    as_it_was, _ = fit(frame_of(X), scale="standardize").apply(frame_of(X))
    np.testing.assert_allclose(as_it_was, (X - X.mean()) / X.std())
    assert np.abs(as_it_was).max() > 20


def test_values_beyond_those_seen_are_as_the_last_and_others_lie_between():
    X = cauchy(500)
    encoding = fit(frame_of(X))
    known, _ = encoding.apply(frame_of([[X.min()], [X.max()]]))
    beyond, _ = encoding.apply(frame_of([[X.min() - 1e9], [X.max() + 1e9]]))
    np.testing.assert_array_equal(beyond, known)
    (column,) = encoding.columns
    assert len(column.knots) == len(column.levels) <= 256
    assert (np.diff(column.knots) > 0).all()
    assert (np.diff(column.levels) > 0).all()
    half = (column.knots[3] + column.knots[4]) / 2
    raw = (column.levels[3] + column.levels[4]) / 2
    found, _ = encoding.apply(frame_of([[half]]))
    assert found[0, 0] == pytest.approx((raw - column.shift) / column.scale)
    with pytest.raises(DataError, match="finite"):
        encoding.apply(frame_of([[math.inf]]))


def test_missing_cells_of_a_heavy_column_are_its_median():
    """Its mean may lie anywhere."""
    X = cauchy(401)
    X[7] = 1e9
    X[::4] = NAN
    encoding = fit(frame_of(X))
    assert encoding.columns[0].fill == np.nanmedian(X)
    matrix, counts = encoding.apply(frame_of(X))
    assert counts.imputed == 101
    assert np.isfinite(matrix).all()
    assert np.abs(matrix[::4, 0]).max() < 0.1
    assert matrix[:, 0].mean() == pytest.approx(0, abs=1e-9)


def test_equal_values_of_a_heavy_column_share_one_score():
    X = np.concatenate([np.repeat([0.0, 1.0, 2.0], 100), [1e6, 1e7]])[:, None]
    encoding = fit(frame_of(X))
    assert encoding.columns[0].knots
    matrix, _ = encoding.apply(frame_of(X))
    assert len(np.unique(matrix[:300, 0])) == 3
    assert (np.diff(matrix[:, 0]) >= 0).all()


@pytest.mark.parametrize("draw", ["normal", "uniform", "logistic", "exponential"])
def test_a_usual_column_is_encoded_as_by_standardisation(draw):
    X = getattr(np.random.default_rng(0), draw)(size=(500, 3))
    X[::9, 0] = NAN
    assert fit(frame_of(X)) == fit(frame_of(X), scale="standardize")


def test_truth_values_and_constants_are_never_heavy():
    rare = np.zeros((200, 2))
    rare[:3, 0] = 1
    cells = np.array([[bool(i < 60), 4.0] for i in range(200)], dtype=object)
    for frame in (frame_of(rare), frame_of(cells)):
        assert not any(column.knots for column in fit(frame).columns)


def mostly_zero(n=1000, outliers=(999999.0,) * 8):
    """Return a column that tells something in the few cells that are not zero."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(n) < 0.8, 0.0, rng.exponential(2.0, n))
    x[: len(outliers)] = outliers
    return x[:, None]


@pytest.mark.parametrize("share", [0.8, 0.9, 0.97])
def test_a_column_of_mostly_one_value_is_not_flattened_by_gross_outliers(share):
    """Its middle half has no spread, so that none can be compared with it."""
    rng = np.random.default_rng(1)
    x = np.where(rng.random(4000) < share, 7.0, 7 + rng.exponential(2.0, 4000))
    x[:20] = 999999.0
    matrix, _ = fit(frame_of(x[:, None])).apply(frame_of(x[:, None]))
    few = (x > 7) & (x < 999999)
    assert (matrix[few, 0] - matrix[x == 7, 0].max() > 0.1).all()
    order = np.argsort(x[few])
    assert (np.diff(matrix[few, 0][order]) > 0).all()
    assert np.ptp(matrix[few, 0]) > 0.3
    assert matrix.mean() == pytest.approx(0, abs=1e-9)
    assert matrix.std() == pytest.approx(1)


def test_rare_values_and_sparse_counts_keep_their_encoding():
    rng = np.random.default_rng(0)
    rare = rng.random(2000) < 0.004
    counts = np.where(rng.random(2000) < 0.03, rng.geometric(0.3, 2000), 0)
    burst = counts.copy()
    burst[:2] = 60  # a word that two texts repeat
    X = np.column_stack(
        [rare, counts, burst, mostly_zero(2000, ())[:, 0], rng.poisson(0.1, 2000)]
    ).astype(float)
    assert fit(frame_of(X)) == fit(frame_of(X), scale="standardize")


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e-30, 1e30, 1e170, 1e300])
@pytest.mark.parametrize("scale", ["auto", "standardize"])
def test_a_column_of_any_size_is_scaled_as_its_twin_of_size_one(size, scale):
    """Squares of 1e-170 are zero and those of 1e170 infinite, their ratios neither."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=200), mostly_zero(200)[:, 0], cauchy(200)])
    X[::9, 0] = NAN
    right, _ = fit(frame_of(X), scale=scale).apply(frame_of(X))
    found, _ = fit(frame_of(X * size), scale=scale).apply(frame_of(X * size))
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


def test_a_mark_at_the_end_of_all_numbers_is_one_more_outlier():
    """-1.8e308 stands for no data in many rasters."""
    X = np.random.default_rng(0).normal(size=(300, 1))
    right, _ = fit(frame_of(X)).apply(frame_of(X))
    marked = X.copy()
    marked[:4] = -np.finfo(float).max
    found, _ = fit(frame_of(marked)).apply(frame_of(marked))
    assert np.corrcoef(found[4:, 0], right[4:, 0])[0, 1] > 0.98
    assert np.abs(found).max() < 5


def test_a_number_too_large_for_a_network_is_named():
    encoding = fit(frame_of([[1.0], [2.0], [4.0]]))
    with pytest.raises(DataError, match=r"^Column 'x0' of party 'clinic' .* empty"):
        encoding.apply(frame_of([[1.0], [1e39]]))
    with pytest.raises(DataError, match=r"^Column 'x0' of party 'clinic' .* empty"):
        encoding.apply(frame_of([[1.0], [math.inf]]))


def test_one_hot_columns_are_left_unscaled_and_form_one_feature():
    encoding = fit(mixed())
    matrix, _ = encoding.apply(mixed())
    assert encoding.features == ("age", "sick", "colour")
    assert encoding.groups.tolist() == [0, 1, 2, 2]
    assert set(matrix[:, 2:].ravel()) == {0.0, 1.0}
    assert (matrix[:, 2:].sum(axis=1) == 1).all()


def test_unseen_category_is_zeros_and_counted():
    encoding = fit(mixed())
    new = frame_of(np.array([[1.0, True, "green"]], dtype=object), mixed().names)
    matrix, counts = encoding.apply(new)
    assert matrix[0, 2:].tolist() == [0.0, 0.0]
    assert counts.unseen == 1


def test_columns_are_found_by_name_in_any_order():
    X = np.arange(12.0).reshape(4, 3)
    encoding = Encoding.fit("a", frame_of(X, ["p", "q", "r"]), ["r", "p"])
    straight, _ = encoding.apply(frame_of(X, ["p", "q", "r"]))
    turned, _ = encoding.apply(frame_of(X[:, ::-1], ["r", "q", "p"]))
    np.testing.assert_array_equal(straight, turned)


def test_narrow_needs_just_its_own_columns():
    encoding = fit(mixed())
    narrow = encoding.narrow(["colour", "age"])
    assert narrow.features == ("age", "colour")
    full, _ = encoding.apply(mixed())
    few = frame_of(
        np.array([[1.0, "red"], [3.0, "blue"]], dtype=object), ["age", "colour"]
    )
    np.testing.assert_array_equal(narrow.apply(few)[0], full[:2][:, [0, 2, 3]])
    assert encoding.narrow([]).apply(mixed())[0].shape == (6, 0)
    with pytest.raises(ConfigError, match=r"party 'clinic'.*Got 'height'"):
        encoding.narrow(["height"])


def test_grouped_columns_stand_side_by_side():
    frame = frame_of(np.arange(12.0).reshape(4, 3), ["a", "b", "c"])
    encoding = fit(frame, scale="none", groups={"a": "both", "c": "both"})
    assert encoding.names == ("a", "c", "b")
    assert encoding.features == ("both", "b")
    assert encoding.groups.tolist() == [0, 0, 1]
    assert encoding.apply(frame)[0][0].tolist() == [0.0, 2.0, 1.0]


def test_planted_columns_are_taken_as_they_are():
    encoding = fit(frame_of([[1.0], [2.0]])).with_planted(["n0"])
    table = frame_of([[1.5, 7.25], [1.5, NAN]], ["x0", "n0"])
    assert encoding.apply(table)[0][:, 1].tolist() == [7.25, 0.0]


def test_columns_taken_as_they_are_are_neither_scaled_nor_filled_in():
    frame = frame_of([[1.0, 7.25], [3.0, -0.5]], ["a", "b"])
    encoding = fit(frame, as_is=["b"], groups={"b": "noise"})
    assert encoding.apply(frame)[0].tolist() == [[-1.0, 7.25], [1.0, -0.5]]
    assert encoding.features == ("a", "noise")
    with pytest.raises(DataError, match=r"^Column 'a' of party 'clinic'.*as it is"):
        fit(frame_of([[1.0], [NAN]], ["a"]), as_is=["a"])


def test_columns_of_huge_equal_or_tiny_values():
    constant = fit(frame_of([[0.1], [0.1], [0.1], [NAN]])).columns[0]
    assert constant.constant
    assert (constant.fill, constant.scale) == (0.1, 1.0)
    tiny = fit(frame_of([[0.0], [1e-200]]))
    assert tiny.apply(frame_of([[1e-200]]))[0] == pytest.approx(1.0)
    huge = frame_of([[1.7e308], [-1.7e308], [1.7e308]])
    with pytest.raises(DataError, match="'x0' of party 'clinic' must hold finite"):
        fit(huge).apply(huge)


def rows_of_text(*cells):
    return frame_of(np.array([[cell] for cell in cells], dtype=object))


def no_texts():
    """Training rows without a text, of a table whose other rows have some."""
    return rows_of_text(None, None, "a").take(np.array([0, 1]))


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (
            lambda: fit(frame_of([[NAN], [NAN]])),
            "^Column 'x0' of party 'clinic'.*only missing",
        ),
        (lambda: fit(no_texts()), "only missing cells"),
        (lambda: fit(frame_of([[1.0], [np.inf]])), "^Column 'x0' of party 'cl.*inf"),
        (
            lambda: fit(mixed()).apply(frame_of([[1.0]], ["age"])),
            "'clinic' must have the columns.*'sick', 'colour'",
        ),
        (
            lambda: fit(frame_of([[1.0], [2.0]])).apply(rows_of_text("a")),
            "^Column 'x0' of party 'clinic' must hold numbers.*Got texts",
        ),
        (
            lambda: fit(rows_of_text(*"aabb")).apply(frame_of([[1.0]])),
            "^Column 'x0' of party 'clinic' must hold texts.*Got numbers",
        ),
        (
            lambda: fit(frame_of([[1.0], [2.0]])).apply(frame_of([[-np.inf]])),
            "'x0' of party 'clinic'",
        ),
    ],
)
def test_refusals(call, fragment):
    with pytest.raises(DataError, match=fragment):
        call()


def test_encodings_saved_before_dates_and_readings_are_loaded():
    old = fit(mixed()).to_json()
    for column in old["columns"]:
        for name in ("first", "parts", "reading"):
            del column[name]
    assert Encoding.from_json(old) == fit(mixed())


def test_the_most_frequent_categories_stay_and_others_count_as_unseen():
    frame = rows_of_text(*"aaabbcde")
    encoding = fit(frame, max_categories=3)
    assert encoding.columns[0].categories == ("a", "b", "c")  # a tie: the first by name
    matrix, counts = encoding.apply(frame)
    assert matrix.sum(axis=1).tolist() == [1.0] * 6 + [0.0] * 2
    assert counts.unseen == 2


def test_wholly_missing_columns_at_prediction_are_filled_in():
    encoding = fit(rows_of_text(*"aab" * 2))
    matrix, counts = encoding.apply(frame_of([[NAN]]))
    assert matrix.tolist() == [[1.0, 0.0]]
    assert counts.imputed == 1


finite = st.floats(allow_nan=False, allow_infinity=False)
columns = st.builds(
    EncodedColumn,
    name=st.text(max_size=5),
    feature=st.text(max_size=5),
    kind=st.sampled_from(["numeric", "boolean", "date", "categorical"]),
    fill=finite | st.text(max_size=5),
    shift=finite,
    scale=finite,
    categories=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    constant=st.booleans(),
    knots=st.lists(finite, max_size=3).map(tuple),
    levels=st.lists(finite, max_size=3).map(tuple),
    flag=st.booleans(),
    missing=st.lists(finite | st.text(max_size=5), max_size=2).map(tuple),
    first=finite,
    parts=st.lists(st.tuples(finite, finite), max_size=4).map(tuple),
    reading=st.none() | st.builds(Reading, st.sampled_from(["number", "date"])),
)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=5), st.lists(columns, max_size=4))
def test_json_round_trip_is_exact(party, many):
    encoding = Encoding(party, tuple(many))
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6) | st.just(NAN), min_size=2, max_size=2),
        min_size=2,
        max_size=8,
    ),
    st.sampled_from(["standardize", "robust", "none"]),
)
def test_encoded_training_rows_are_finite_and_fills_land_on_the_fill(rows, scale):
    rows.append([0.5, 2.0])  # no column is missing altogether
    frame = frame_of(rows)
    matrix, counts = fit(frame, scale=scale).apply(frame)
    assert np.isfinite(matrix).all()
    assert counts.imputed == np.isnan(frame.numeric).sum()


# ------------------------------------------------------------------------------- flags


def gaps(n_missing: int, n_rows: int = 100):
    """Make a column of every kind, of which the first cells are missing."""
    rng = np.random.default_rng(0)
    cells = np.empty((n_rows, 5), dtype=object)
    cells[:, 0] = rng.normal(size=n_rows)
    cells[:, 1] = rng.random(n_rows) < 0.5
    cells[:, 2] = rng.choice(["red", "blue"], n_rows)
    cells[:, 3] = [date(2024, 1, 1 + i % 28) for i in range(n_rows)]
    cells[:, 4] = rng.standard_cauchy(n_rows) * 1e6
    cells[:n_missing] = None
    return frame_of(cells, ["number", "truth", "colour", "day", "tail"])


WIDTHS = {"number": 1, "truth": 1, "colour": 2, "day": 4, "tail": 1}


@pytest.mark.parametrize("scale", ["auto", "standardize", "none", "global"])
def test_a_flag_is_the_last_column_of_its_feature(scale):
    frame = gaps(40)
    flagged, filled = (fit(frame, scale=scale, missing=m) for m in ("flag", "fill"))
    assert flagged.features == filled.features
    assert [c.width for c in filled.columns] == list(WIDTHS.values())
    assert [c.width for c in flagged.columns] == [n + 1 for n in WIDTHS.values()]
    assert np.bincount(flagged.groups).tolist() == [n + 1 for n in WIDTHS.values()]
    (with_flags, counts), (without, plain) = (e.apply(frame) for e in (flagged, filled))
    last = np.cumsum([c.width for c in flagged.columns]) - 1
    expected = np.repeat(np.arange(100) < 40, 5).reshape(100, 5)
    np.testing.assert_array_equal(with_flags[:, last], expected)
    values = np.delete(with_flags, last, axis=1)
    np.testing.assert_array_equal(values[40:], without[40:])
    # A category that is missing is one of its own; others are filled in as before.
    of_colour = slice(2, 4)
    assert (values[:40, of_colour] == 0).all()
    values[:40, of_colour] = without[:40, of_colour]
    np.testing.assert_array_equal(values, without)
    assert (counts.imputed, counts.flagged) == (200, 200)
    assert (plain.imputed, plain.flagged) == (200, 0)


@pytest.mark.parametrize(("n_missing", "flag"), [(29, False), (30, True), (71, False)])
def test_a_flag_needs_thirty_rows_with_and_without_a_value(n_missing, flag):
    columns = fit(gaps(n_missing)).columns
    assert [column.flag for column in columns] == [flag] * 5


def test_cells_missing_only_later_are_filled_in_without_a_flag():
    encoding = fit(gaps(0))
    matrix, counts = encoding.apply(gaps(9))
    assert matrix.shape[1] == sum(WIDTHS.values())
    assert np.isfinite(matrix).all()
    assert (counts.imputed, counts.flagged) == (45, 0)
    (sentence,) = counts.sentences()
    assert "flag" not in sentence


def test_what_is_missing_is_said_in_words():
    def said(*counts):
        return CellCounts(*counts).sentences()[0].partition("training rows")[2]

    assert said(1200, 0, 1200) == ", and a flag says where."
    assert said(1200, 0, 1100) == "; of 1,100 of them a flag says where."
    assert said(1, 0, 0) == "."


def test_one_value_and_missing_cells_tell_something():
    cells = np.array([[None if i % 4 == 0 else "yes"] for i in range(200)])
    (text,) = fit(frame_of(cells)).columns
    (number,) = fit(
        frame_of(np.where(np.arange(200) % 4 == 0, NAN, 3.0)[:, None])
    ).columns
    assert (text.flag, text.constant) == (number.flag, number.constant) == (True, False)
    (plain,) = fit(frame_of(cells), missing="fill").columns
    assert plain.constant


def test_an_encoding_with_flags_and_marks_comes_back_from_json():
    frame = gaps(40)
    marks = {"number": (-999.0,), "colour": ("none",), "day": (2932896.0,)}
    encoding = fit(frame, marks=marks)
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert again == encoding
    narrow = again.narrow(["colour", "day"])
    assert narrow.apply(frame)[0].shape == (100, 3 + 5)
    old = encoding.to_json()
    for column in old["columns"]:
        del column["flag"], column["missing"]
    assert not any(column.flag for column in Encoding.from_json(old).columns)
