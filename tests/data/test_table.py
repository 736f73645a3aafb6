"""Tables and labels from arrays, pandas and polars frames."""

import datetime
import decimal
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tests.data.rules import of_kind

from lessvfl.data import Column, Frame, frame_of, from_arrays
from lessvfl.data.table import array_column, frame_of_columns
from lessvfl.errors import ConfigError, DataError

NAN = math.nan


def same(one, two):
    """Compare two tables cell by cell."""
    assert one.names == two.names
    np.testing.assert_array_equal(one.numeric, two.numeric)
    assert of_kind(one, "boolean") == of_kind(two, "boolean")
    assert {i: list(c) for i, c in one.text.items()} == {
        i: list(c) for i, c in two.text.items()
    }


def test_arrays_of_numbers_and_truth_values():
    frame = frame_of(np.array([[1, 2], [3, 4]], dtype=np.int8))
    assert frame.names == ("x0", "x1")
    assert frame.numeric.dtype == np.float64
    assert of_kind(frame_of([[True], [False]]), "boolean") == {0}
    assert frame_of(frame) is frame


def test_texts_of_an_array_become_text_columns():
    frame = frame_of(np.array([["a", "1"], ["", "2"]]))
    assert list(frame.text[0]) == ["a", None]
    assert list(frame.text[1]) == ["1", "2"]
    assert np.isnan(frame.numeric).all()


COLUMNS = {
    "whole": [1, 2, 3],
    "part": [0.5, None, 1.5],
    "truth": [True, False, None],
    "word": ["a", None, "b"],
    "kind": ["u", "v", None],
    "none": [None, None, None],
}

EXPECTED = Frame(
    columns=tuple(
        Column(name, "boolean" if name == "truth" else "numeric") for name in COLUMNS
    ),
    numeric=np.array(
        [
            [1, 0.5, 1, NAN, NAN, NAN],
            [2, NAN, 0, NAN, NAN, NAN],
            [3, 1.5, NAN, NAN, NAN, NAN],
        ]
    ),
    text={
        3: np.array(["a", None, "b"], dtype=object),
        4: np.array(["u", "v", None], dtype=object),
    },
)


def test_pandas_polars_and_objects_give_the_same_table():
    objects = np.array(list(COLUMNS.values()), dtype=object).T
    same(frame_of(objects, list(COLUMNS)), EXPECTED)
    plain = pd.DataFrame(COLUMNS).astype({"kind": "category"})
    same(frame_of(plain), EXPECTED)
    nullable = pd.DataFrame(COLUMNS).astype(
        {"whole": "Int64", "part": "Float64", "truth": "boolean", "word": "string"}
    )
    same(frame_of(nullable), EXPECTED)
    polar = pl.DataFrame(COLUMNS).with_columns(pl.col("kind").cast(pl.Categorical))
    same(frame_of(polar), EXPECTED)


def test_categories_of_numbers_are_texts():
    numbers = pd.DataFrame({"a": pd.Categorical([3, 1, None])})
    assert list(frame_of(numbers).text[0]) == ["3", "1", None]


def test_decimals_are_numbers():
    frame = frame_of(pl.DataFrame({"a": [decimal.Decimal("1.5"), None]}))
    np.testing.assert_array_equal(frame.numeric[:, 0], [1.5, NAN])


def test_columns_of_arrays():
    arrays = [np.array([1, 2]), np.array([True, False])]
    frame = frame_of_columns(map(array_column, ["a", "b"], arrays), (2, 2))
    assert of_kind(frame, "boolean") == {1}


def test_names_of_columns_that_are_no_texts():
    assert frame_of(pd.DataFrame(np.eye(2))).names == ("0", "1")


DAY = datetime.date(2020, 1, 1)


@pytest.mark.parametrize(
    ("X", "names", "fragment"),
    [
        ([1.0, 2.0], None, "two dimensions.*Got shape"),
        ([[1.0], [1.0, 2.0]], None, "rows of equal length"),
        (np.array([[1j]]), None, "Got complex128"),
        ([[1.0, 2.0]], ["a"], "Got 1 names for 2 columns"),
        ([[1.0, 2.0]], ["a", "a"], "Got 'a' more than once"),
    ],
)
def test_refused_tables(X, names, fragment):
    with pytest.raises(DataError, match=fragment):
        frame_of(X, names)


@pytest.mark.parametrize(
    ("X", "what"),
    [
        (np.array([["a"], [b"b"]], dtype=object), "bytes and str cells"),
        (np.array([[b"a"], [b"b"]]), "bytes cells"),
        (pd.DataFrame({"t": [1j]}), "complex128"),
        (pd.DataFrame({"t": pd.to_timedelta([1], "D")}), "timedelta64"),
        (pl.DataFrame({"t": [[1]]}), "List"),
        (pd.DataFrame({"t": [[1], [2]]}), "list cells"),
    ],
)
def test_columns_that_nothing_can_be_done_with_are_left_out(X, what):
    frame = frame_of(X)
    assert frame.columns[0].left_out.startswith(what)


def test_dates_are_days_since_1970():
    days = [[0.0], [18262.0], [NAN]]
    moments = [datetime.date(1970, 1, 1), datetime.datetime(2020, 1, 1, 23, 59), None]
    late = [datetime.datetime(1970, 1, 1), datetime.datetime(2020, 1, 1, 23), None]
    for X in (
        np.array([[moment] for moment in moments], dtype=object),
        np.array([["1970-01-01"], ["2020-01-01"], ["NaT"]], dtype="M8[s]"),
        pd.DataFrame({"t": pd.to_datetime(late)}),
        pd.DataFrame({"t": pd.to_datetime(late).tz_localize("America/New_York")}),
        pl.DataFrame({"t": late}),
        pl.DataFrame({"t": [moments[0], DAY, None]}),
    ):
        frame = frame_of(X)
        assert of_kind(frame, "date") == {0}
        np.testing.assert_array_equal(frame.numeric, days)


def labels(y, **options):
    data = from_arrays(np.zeros((len(y), 1)), y, **options)
    return data.task, data.y.tolist(), data.label_names


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (["no", "yes", "no"], ("binary", [0, 1, 0], ("no", "yes"))),
        (["yes", "no", "no"], ("binary", [1, 0, 0], ("no", "yes"))),
        ([True, False, True], ("binary", [1, 0, 1], ("False", "True"))),
        ([1, -1, 1], ("binary", [1, 0, 1], ("-1", "1"))),
        ([3, 1, 2], ("multiclass", [2, 0, 1], ("1", "2", "3"))),
        ([2.0, 1.0], ("binary", [1, 0], ("1", "2"))),
        ([0.5, 1.0], ("regression", [0.5, 1.0], ())),
        (np.array([[1], [0]]), ("binary", [1, 0], ("0", "1"))),
        (pd.Series(["a", "b"], dtype="category"), ("binary", [0, 1], ("a", "b"))),
        (pl.Series(["a", "b"]), ("binary", [0, 1], ("a", "b"))),
        (pd.Series([1, 0], dtype="Int64"), ("binary", [1, 0], ("0", "1"))),
    ],
)
def test_labels(y, expected):
    assert labels(y) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_classes_are_coded_alike_in_whatever_format(dtype):
    y = np.array([2, 1, 0, 2]).astype(dtype) / 3  # no two formats have the same thirds
    assert labels(y, task="multiclass")[1] == [2, 1, 0, 2]


def test_whole_numbers_are_classes_up_to_a_hundred():
    assert labels([*range(100)] * 2)[0] == "multiclass"
    assert labels([*range(101)] * 2)[0] == "regression"
    assert labels(range(101), task="multiclass")[0] == "multiclass"
    assert labels([0, 1, 0], task="regression") == ("regression", [0.0, 1.0, 0.0], ())


def test_labels_of_train_and_test_share_their_codes():
    data = from_arrays(
        [[0.0], [1.0]], ["b", "a"], X_test=[[2.0], [3.0]], y_test=["c", "a"]
    )
    assert data.label_names == ("a", "b", "c")
    assert data.X_test is not None
    assert data.y_test is not None
    assert data.y_test.tolist() == [2, 0]
    assert data.X_test.names == data.X.names


def test_a_test_frame_keeps_its_own_names():
    frames = [pd.DataFrame({"a": [1, 2], "b": [3, 4]}) for _ in range(2)]
    data = from_arrays(frames[0], [0, 1], X_test=frames[1][["b", "a"]], y_test=[0, 1])
    assert data.X_test is not None
    assert data.X_test.names == ("b", "a")


@pytest.mark.parametrize(
    ("y", "options", "fragment"),
    [
        ([1, 1], {}, "'table' must have two different values.*Got '1' in every row"),
        ([1.0, NAN], {}, "Got 1 row without a label"),
        (["a", None], {}, "Got 1 row without a label"),
        (["a", ""], {}, "Got 1 row without a label"),
        (pd.Series([1, None], dtype="Int64"), {}, "Got 1 row without a label"),
        (np.eye(2), {}, "must be one column. Got shape"),
        ([0, 1, 0], {}, "Got 2 rows and 3 labels"),
        ([0.5, math.inf], {}, "must be finite"),
        ([10**400, 0], {}, "must be numbers below 1.8e308"),
        (["a", "b"], {"task": "regression"}, "must be numbers for regression"),
        (np.array(["a", 1], dtype=object), {}, "all texts or all numbers"),
        (np.array([DAY, DAY]), {}, "Got date"),
        ([0, 1], {"X_test": [[1.0]]}, "both X_test and y_test"),
    ],
)
def test_refused_labels(y, options, fragment):
    with pytest.raises(DataError, match=fragment):
        from_arrays([[0.0], [1.0]], y, **options)


def test_more_refused_labels():
    with pytest.raises(DataError, match=r"at most 100 different texts. Got 101"):
        labels([f"t{i}" for i in range(101)])
    with pytest.raises(DataError, match=r"two values for the task 'binary'. Got 3"):
        labels([0, 1, 2], task="binary")
    with pytest.raises(ConfigError, match="The 'task' argument"):
        labels([0, 1], task="sorting")
    with pytest.raises(DataError, match="Got 0 rows and 2 columns"):
        from_arrays(np.empty((0, 2)), [])
    with pytest.raises(DataError, match="Got 0 rows and 0 columns"):
        from_arrays(pd.DataFrame(), [])


@pytest.mark.parametrize("y", [[0.5, 1.25, 2.5], [0, 1, 1]])
def test_labels_are_the_data_sets_own(y):
    given = np.array(y)
    found = from_arrays(np.eye(3), given)
    right = found.y.tolist()
    given[:] = 0
    assert found.y.tolist() == right


@pytest.mark.parametrize(
    ("X", "y", "options", "words"),
    [
        ([["\ud800"], ["b"]], [0, 1], {}, r"column 'x0' must be valid Unicode"),
        ([[0.0], [1.0]], ["\ud800", "b"], {}, r"labels of 'table' must be valid"),
        ([[0.0], [1.0]], [0, 1], {"feature_names": ["\ud800"]}, r"Column names must"),
        ([[0.0], [1.0]], [0, 1], {"label_names": ["\ud800", "b"]}, r"names of the cl"),
        ([[0.0], [1.0]], [b"a", b"b"], {}, r"numbers\. Got bytes"),
        (pd.DataFrame(index=[0, 1]), [0, 1], {}, r"Got 2 rows and 0 columns"),
    ],
)
def test_tables_that_no_run_can_take_are_one_sentence(X, y, options, words):
    with pytest.raises(DataError, match=words):
        from_arrays(X, y, **options)


def test_polars_queries_and_arrow_tables_are_frames():
    lazy = pl.LazyFrame({"a": [1, 2], "b": ["u", None]})
    arrow = lazy.collect().to_arrow()
    for X in (lazy, arrow, arrow.to_batches()[0]):
        frame = frame_of(X)
        assert frame.names == ("a", "b")
        assert frame.text[1].tolist() == ["u", None]
        assert frame.numeric[:, 0].tolist() == [1, 2]
