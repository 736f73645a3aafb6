"""What every column of a table is, and what is done about it."""

import datetime
import logging
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tests.data.rules import of_kind

from lessvfl.data import (
    DataConfig,
    Encoding,
    frame_of,
    from_arrays,
    load,
    load_columns,
    load_rows,
    prepare,
)
from lessvfl.data.advice import remarks
from lessvfl.data.column import Reading
from lessvfl.data.columns import apply_columns, changes, infer_columns
from lessvfl.data.leaks import giveaways
from lessvfl.data.learn import calendar
from lessvfl.data.readings import find_reading, find_reading_of_most, read_texts
from lessvfl.errors import DataError

NAN = np.nan
ENGLISH = Reading("number", decimal=".", thousands=",")
GERMAN = Reading("number", decimal=",", thousands=".")
FRENCH = Reading("number", decimal=",", thousands=" ")
PLAIN = Reading("number")
DAY = datetime.date(2024, 2, 29)
DAY_NUMBER = float((DAY - datetime.date(1970, 1, 1)).days)
DAYS_FIRST, MONTHS_FIRST = (
    f"{first} first, years of two digits" for first in ("day", "month")
)


def texts(*cells):
    return np.array(cells, dtype=object)


@pytest.mark.parametrize(
    ("cells", "reading", "values"),
    [
        (["1,234.50", "950"], ENGLISH, [1234.5, 950]),
        (["1.234,50", "-3"], GERMAN, [1234.5, -3]),
        (["1\u00a0234,5", "2 000 000"], FRENCH, [1234.5, 2e6]),
        (["1'234.5", "1’000"], Reading("number", thousands="'"), [1234.5, 1000]),
        (["1,5", "2"], GERMAN, [1.5, 2]),
        (["-$5.00", "$ 3", "$-1"], PLAIN, [-5, 3, -1]),
        (["12 %", "5%", "\u22121"], PLAIN, [12, 5, -1]),
        (["3,50 EUR", "1.000 EUR"], GERMAN, [3.5, 1000]),
        ([" 5. ", ".5", "+1e3"], PLAIN, [5, 0.5, 1000]),
        (["yes", "No", " YES "], Reading("truth"), [1, 0, 1]),
        (["off", "on"], Reading("truth"), [0, 1]),
        (["2024-02-29", "2024-2-29T23:59:59.5Z"], Reading("date"), [DAY_NUMBER] * 2),
        (["2024/02/29"], Reading("date"), [DAY_NUMBER]),
        (
            ["29/02/2024", "1/2/1969 7:30 PM"],
            Reading("date", order="day first"),
            [DAY_NUMBER, -334],
        ),
        (["2/29/2024"], Reading("date", order="month first"), [DAY_NUMBER]),
        (["1.2.1970"], Reading("date", order="day first"), [31]),
        (["29/02/24", "1/2/69"], Reading("date", order=DAYS_FIRST), [DAY_NUMBER, -334]),
        (["2/29/24", "2-1-24"], Reading("date", order=MONTHS_FIRST), [19782, 19754]),
        (
            ["29-Feb-2024", "1 feb. 69", "29february24"],
            Reading("date", order="months in words"),
            [DAY_NUMBER, -334, DAY_NUMBER],
        ),
        (
            ["Feb 29, 2024"],
            Reading("date", order="months in words first"),
            [DAY_NUMBER],
        ),
        (
            ["2024-02", "1970/01"],
            Reading("date", order="months without days"),
            [19754, 0],
        ),
        (["(5.00)", "1.5", "(1e3)"], PLAIN, [-5, 1.5, -1000]),
        (["<0.3", "7.5", "≥ 12", "3"], PLAIN, [0.3, 7.5, 12, 3]),
    ],
)
def test_texts_that_are_numbers_truth_values_and_dates(cells, reading, values):
    assert find_reading(cells, "") == reading
    marks = ["", "NA", "n/a", "null", "None", "-", "?", "nan", None]
    found = read_texts(texts(*cells, *marks), reading)
    np.testing.assert_array_equal(found, values + [NAN] * len(marks))
    assert read_texts(texts(*cells, "other"), reading) is None


@pytest.mark.parametrize(
    "cells",
    [
        ["1.5", "about 2"],
        ["007", "12"],  # codes
        ["$5", "€5"],  # no common unit
        ["1,23,4"],
        ["12.34.56"],
        ["yes", "no", "maybe"],
        ["yes", "false"],
        ["2024-02-30"],
        ["31/12/2024", "12/31/2024"],
        ["2024-01-01", "01/01/2024"],
        ["20-12-31"],  # or the day first
        ["31-Foo-2024"],
        ["2024-13"],
        ["30-Feb-2024"],
        ["--5"],
        ["(5)(6)"],
        ["<5", ">5"],  # names of ranges
        ["1e5", "23", "4e07"],  # codes
        ["12345678901234567891", "5"],  # codes: no double tells it from its neighbours
        [],
        ["-", "NA"],
    ],
)
def test_texts_that_stay_texts(cells):
    assert find_reading(cells, "") is None


def test_a_few_words_among_numbers_are_missing_cells():
    tally = {f"{number}.5": 3 for number in range(40)} | {"missing": 3, " n.d.": 2}
    reading = find_reading_of_most(tally, "")
    assert reading == Reading("number", missing=("missing", "n.d."))
    values = read_texts(texts("1.5", "Missing", "n.d. ", None), reading)
    np.testing.assert_array_equal(values, [1.5, NAN, NAN, NAN])
    assert read_texts(texts("unknown"), reading) is None
    dates = {f"2024-01-{day:02}": 1 for day in range(1, 31)}
    assert find_reading_of_most(dates | {"never": 1}, "") == Reading(
        "date", missing=("never",)
    )


@pytest.mark.parametrize(
    "more",
    [
        {"missing": 7},  # too many cells
        {"low": 1, "high": 1, "none given": 1, "unknown": 1},  # too many words
        {"E10": 1},  # a code
    ],
)
def test_other_words_leave_a_column_texts(more):
    assert find_reading_of_most({f"{n}.5": 1 for n in range(100)} | more, "") is None


def test_a_mark_that_could_be_either_is_the_files_own():
    assert find_reading(["1,234", "2,345"], "") == ENGLISH
    assert find_reading(["1,234", "2,345"], ",") == GERMAN
    assert find_reading(["1.234"], ",") == GERMAN
    assert find_reading(["0,123", "1,234"], "") == GERMAN  # 0,123 is no group


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5), st.sampled_from(".,"))
def test_numbers_come_back_as_they_were_written(numbers, decimal):
    written = [f"{number:,.2f}" for number in numbers]
    if decimal == ",":
        written = [text.translate(str.maketrans(",.", ".,")) for text in written]
    reading = find_reading(written, "")
    assert reading is not None
    assert reading.decimal == decimal
    expected = [float(f"{number:.2f}") for number in numbers]
    np.testing.assert_array_equal(read_texts(texts(*written), reading), expected)


@settings(max_examples=50, deadline=None)
@given(st.dates())
def test_parts_of_a_date_are_those_of_the_calendar(day):
    number = np.array([float((day - datetime.date(1970, 1, 1)).days)])
    expected = [day.day, day.month, day.weekday(), number[0] - 100]
    assert calendar(number, 100.0)[0].tolist() == expected


# ---------------------------------------------------------------------------- findings


def found(table):
    """Return what is said of each column, and the inferred table."""
    inferred, findings = infer_columns(frame_of(pd.DataFrame(table)))
    said = changes(inferred, findings, inferred.names, 64)
    return {one.column: (one.what, one.level) for one in said}, inferred


N = 200
WORDS = "the patient was seen on the ward, was stable, and went home after day"


def test_every_kind_of_column_is_told():
    plain = ["a", "b"] * (N // 2)
    said, inferred = found(
        {
            "age": np.arange(N) % 7,
            "ward": plain,
            "amount": [f"{i},50" for i in range(N)],
            "smoker": ["yes", "NO"] * (N // 2),
            "day": ["2024-01-31"] * N,
            "when": [DAY] * N,
            "either": ["01/02/2024"] * N,
            "code": [f"A-{i}" for i in range(N)],
            "note": [f"{WORDS} {i}" for i in range(N)],
            "remark": [f"{WORDS} {i % 90}" for i in range(N)],
            "patient_id": np.arange(N) + 5000,
            "rowId": [str(i) for i in range(N)],
            "city": [f"c{i % 70}" for i in range(N)],
            "empty": [None] * N,
            "dashes": ["-", "?"] * (N // 2),
            "nested": [[1, 2]] * N,
            "mixed": ["a", b"b"] * (N // 2),
            "level": ["missing" if i % 50 == 0 else i / 7 for i in range(N)],
        }
        | {"n": [float(i + 7) for i in range(N)], "valid": np.arange(N)[::-1]}
    )
    assert said == {
        "amount": ("numbers in text, '.' for thousands, ',' for decimals", "changed"),
        "smoker": ("yes and no in words", "changed"),
        "day": ("dates", "changed"),
        "when": ("dates", "changed"),
        "either": ("dates whose day and month cannot be told apart", "left out"),
        "code": ("ids or names: most cells differ", "left out"),
        "note": ("free text", "left out"),
        "remark": ("free text", "left out"),
        "patient_id": ("ids: another number in every row", "left out"),
        "rowId": ("ids: another number in every row", "left out"),
        "city": ("70 different texts", "changed"),
        "empty": ("no value in any row", "left out"),
        "dashes": ("no value in any row", "left out"),
        "nested": ("list cells", "left out"),
        "mixed": ("bytes and str cells", "left out"),
        "level": (
            "numbers in text, '.' for decimals, and 'missing' in 4 cells",
            "changed",
        ),
    }
    assert inferred.unused == {
        c for c, (_, level) in said.items() if level == "left out"
    }
    assert of_kind(inferred, "boolean") == {inferred.names.index("smoker")}
    assert of_kind(inferred, "date") == {
        inferred.names.index(name) for name in ("day", "when")
    }


SHUFFLED = np.random.default_rng(0).permutation(N)


@pytest.mark.parametrize(
    "name",
    "ID|Id|id|CUST_ID|customerId|Index|Customer ID|Order No.|Unnamed: 0|".split("|"),
)
def test_whole_numbers_that_all_differ_under_a_name_of_ids_are_left_out(name):
    said, _ = found({name: SHUFFLED, "age": np.arange(N) % 7})
    assert said == {name: ("ids: another number in every row", "left out")}


@pytest.mark.parametrize("name", ["grid", "paid", "GRID", "Paid", "turkey", "void"])
def test_a_name_that_only_ends_as_that_of_ids_does_is_a_feature(name):
    assert found({name: SHUFFLED})[0] == {}
    assert found({"ID": SHUFFLED // 2})[0] == {}  # not all differ
    assert found({"ID": SHUFFLED + 0.5})[0] == {}  # not whole


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_counts_the_rows_is_left_out_under_any_name(first):
    counter = np.arange(N) + first
    what = ("a count of the rows: one more in each", "left out")
    table = {"n": counter, "texts": counter.astype(str), "shuffled": SHUFFLED}
    assert found(table)[0] == {"n": what, "texts": what}
    assert found({"n": counter[:49]})[0] == {}  # few rows are so by chance
    assert found({"year": counter + 1950})[0] == {}
    assert found({"n": np.where(counter == 30, np.nan, counter)})[0] == {}
    assert found({"n": np.where(counter >= 30, np.inf, counter)})[0] == {}


def test_what_is_declared_a_category_stays_one():
    kinds = pd.DataFrame({"a": pd.Categorical(["1", "2", "3", "1"])})
    for X in (kinds, pl.from_pandas(kinds)):
        inferred, findings = infer_columns(frame_of(X))
        assert list(inferred.text[0]) == ["1", "2", "3", "1"]
        assert findings == ()


def test_numbers_are_left_alone():
    X = np.random.default_rng(0).normal(size=(30, 3))
    frame = frame_of(X, ["id", "index", "x"])  # amounts, whatever their name
    inferred, findings = infer_columns(frame)
    assert inferred.numeric is frame.numeric
    assert findings == ()


def test_remarks_on_columns_that_are_used():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, N)
    table = {
        "noise": rng.normal(size=N),
        "twin": rng.integers(0, 5, N),
        "same": None,
        "one": [3.0] * N,
        "after": y + 0.001 * rng.normal(size=N),
        "code": [f"{'zq'[label]}{i % 3}" for i, label in enumerate(y)],
        "holes": [None if i % 4 == 0 else i % 3 for i in range(N)],
        "ward": ["a", "b"] * (N // 2 - 1) + ["c", "d"],
        "far": [np.inf] + [0.0, 1.0] * (N // 2 - 1) + [2.0],
    }
    table["same"] = table["twin"]
    inferred, _ = infer_columns(frame_of(pd.DataFrame(table)))
    said = {(one.column, one.what) for one in remarks(inferred, y, True)}
    assert said == {
        ("same", "equal to column 'twin'"),
        ("one", "one value in every row"),
        ("after", "tells the label on its own (AUC 1.000)"),
        ("code", "tells the label on its own (AUC 1.000)"),
        ("holes", "50 of 200 cells missing"),
        ("ward", "2 categories in fewer than 5 rows"),
        ("far", "infinite cells"),
    }
    amounts = np.array(table["noise"]) * 3
    told = [
        one.column for one in remarks(inferred, amounts, False) if "label" in one.what
    ]
    assert told == ["noise"]


def test_texts_in_order_of_one_are_not_equal_to_those_of_another():
    frame = frame_of(pd.DataFrame({"a": ["x", "y"] * 9, "b": ["p", "q"] * 9}))
    assert remarks(frame, None, True) == []


# ------------------------------------------------------------------- encoding by name


def test_a_few_rows_are_read_as_the_training_rows_were():
    table = pd.DataFrame(
        {
            "amount": [f"1.{i:03d},50" for i in range(20)],
            "smoker": ["ja", "nein"] * 10,
            "on": ["y", "n"] * 10,
            "seen": [f"{i + 10}/03/2024" for i in range(20)],
        }
    )
    frame, _ = infer_columns(frame_of(table))
    encoding = Encoding.fit("p", frame, frame.names, scale="none")
    assert encoding.features == ("amount", "smoker", "on", "seen")
    assert encoding.groups.tolist() == [0, 1, 1, 2, 3, 3, 3, 3]
    encoding = Encoding.from_json(encoding.to_json())
    few = table[:3].assign(
        amount=["950", "-", "2.000"], on=["N", None, "yes"], seen=["1/2/2024", "", "?"]
    )
    matrix, counts = encoding.apply(frame_of(few))
    middle = 1000.5 + 9.5
    assert matrix[:, 0].tolist() == [950, middle, 2000]
    assert matrix[:, 3].tolist() == [0, 0, 1]
    assert matrix[0, 4:].tolist() == [1, 2, 3, -38]
    assert matrix[1, 4:].tolist() == [20, 3, 2, 10]  # the mean, to the day
    assert counts.imputed == 4
    plain = few.assign(amount=["39.5", "1.234", ""], seen="2024-02-29")
    matrix, _ = encoding.apply(frame_of(plain))  # not of training, but of one mind
    assert matrix[:, 0].tolist() == [39.5, 1.234, middle]
    assert matrix[0, 4:6].tolist() == [29, 2]
    numbers = few.assign(amount=[950.0, 1.5, 2e3], seen=[DAY] * 3)
    matrix, _ = encoding.apply(frame_of(numbers))
    assert matrix[:, 0].tolist() == [950, 1.5, 2000]
    assert matrix[0, 4:6].tolist() == [29, 2]
    for wrong, sentence in (
        ({"amount": "much"}, "'amount' of party 'p' must hold numbers"),
        ({"seen": 17.0}, "'seen' of party 'p' must hold dates.*Got numbers"),
        ({"amount": [DAY] * 3}, "'amount' of party 'p' must hold num.*Got dates"),
        ({"on": "maybe"}, "'on' of party 'p' must hold truth values"),
        ({"seen": [[1]] * 3}, "'seen' of party 'p' must hold dates.*list cells"),
    ):
        with pytest.raises(DataError, match=sentence):
            encoding.apply(frame_of(few.assign(**wrong)))


DIGITS = [20240101 + i for i in range(30)]


@pytest.mark.parametrize("cells", [DIGITS, list(map(str, DIGITS)), [*DIGITS, None]])
def test_numbers_that_are_all_days_are_dates(cells):
    frame, findings = infer_columns(frame_of(pd.DataFrame({"day": cells})))
    assert frame.numeric[:2, 0].tolist() == [19723, 19724]
    assert findings[0].what == "dates, as one number of eight digits"
    encoding = Encoding.fit("p", frame, ["day"], scale="none")
    encoding = Encoding.from_json(encoding.to_json())
    for later in (20240229, 20240229.0, "20240229"):  # read by the rule of training
        matrix, _ = encoding.apply(frame_of(pd.DataFrame({"day": [later]})))
        assert matrix[0, :2].tolist() == [29, 2]
    with pytest.raises(DataError, match=r"must hold dates.*Got numbers"):
        encoding.apply(frame_of(pd.DataFrame({"day": [20240230]})))
    another = frame_of(pd.DataFrame({"day": [20240229]}))
    rows = apply_columns(another, frame.columns, "the rows")
    assert rows.numeric[0, 0] == DAY_NUMBER
    odd = frame_of(pd.DataFrame({"day": [7]}))
    with pytest.raises(DataError, match="'day' of the rows must hold dates"):
        apply_columns(odd, frame.columns, "the rows")


@pytest.mark.parametrize("cell", [20240230, 18991231, 21000101, 20240131.5, 5])
def test_numbers_of_which_one_is_no_day_stay_numbers(cell):
    frame, findings = infer_columns(frame_of(pd.DataFrame({"n": [*DIGITS, cell]})))
    assert frame.columns[0].kind == "numeric"
    assert findings == ()


def test_errors_about_kinds_quote_no_cell():
    frame, _ = infer_columns(frame_of(pd.DataFrame({"a": ["1,5", "2,5", "3"]})))
    later = frame_of(pd.DataFrame({"a": ["4,5", "secret"]}))
    with pytest.raises(DataError, match="Got another cell in row 2") as caught:
        apply_columns(later, frame.columns, "the rows")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scale", ["auto", "standardize", "global", "none"])
def test_every_part_of_a_date_is_scaled(scale):
    X = np.array([[DAY + datetime.timedelta(days=int(i))] for i in range(300)])
    frame = frame_of(X)
    matrix, _ = Encoding.fit("p", frame, frame.names, scale=scale).apply(frame)
    if scale == "none":
        assert matrix[0].tolist() == [29, 2, 3, 0]
    elif scale == "global":
        assert matrix.min(axis=0).tolist() == [0] * 4
        assert matrix.max(axis=0).tolist() == [1] * 4
    else:
        np.testing.assert_allclose(matrix.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(matrix.std(axis=0), 1)


def test_dates_do_not_move_the_range_of_all_numbers():
    days = [DAY + datetime.timedelta(days=i) for i in range(20)]
    table = pd.DataFrame({"a": np.linspace(0, 5, 20), "day": days})
    source = from_arrays(table, [0, 1] * 10)
    assert prepare(source, DataConfig(scale="global"), parties=2).bounds == (0.0, 5.0)


def test_test_rows_are_read_as_the_others_were():
    table = pd.DataFrame({"a": ["1,5", "2,5"] * 9, "b": np.arange(18.0)})
    test = pd.DataFrame({"a": ["3"], "b": [0.0]})
    found = from_arrays(table, [0, 1] * 9, X_test=test, y_test=[1])
    assert found.X_test is not None
    assert found.X_test.numeric.tolist() == [[3.0, 0.0]]
    with pytest.raises(DataError, match=r"'a' of the test rows.*must hold numbers"):
        from_arrays(table, [0, 1] * 9, X_test=test.assign(a="x"), y_test=[1])


# ------------------------------------------------------------------------------- files

ROWS = [("Müller; K.", "1,5", "2024-01-31", "ja"), ("Ole", "22,25", "2023-12-01", "no")]


def csv_of(delimiter):
    quoted = [[f'"{name}"', *rest] for name, *rest in ROWS * 4]
    lines = [["name", "wert", "tag", "y"], *quoted]
    return "\n".join(delimiter.join(line) for line in lines) + "\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiters_and_encodings(tmp_path, delimiter, encoding):
    path = tmp_path / "t.csv"
    path.write_text(csv_of(delimiter), encoding=encoding)
    data = load(path)
    assert data.X.names == ("name", "wert", "tag")
    assert data.X.text[0][0] == "Müller; K."
    assert data.X.numeric[:2, 1].tolist() == [1.5, 22.25]
    assert of_kind(data.X, "date") == {2}
    assert data.label_names == ("ja", "no")
    said = [one.what for one in data.findings if one.column is None]
    assert said[:2] == [said[0], "numbers with ',' for decimals"]
    assert said[0].startswith("columns separated by a")
    assert ("not UTF-8" in said[-1]) == (encoding in ("cp1252", "utf-16"))


def test_dots_are_thousands_where_commas_are_decimals(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b;y\n" + "1.234;0,5;0\n2.000;1,5;1\n" * 3)
    X = load(path).X
    assert X.numeric[:2].tolist() == [[1234, 0.5], [2000, 1.5]]


def test_rows_to_score_are_left_for_the_model_to_read(tmp_path):
    """A few rows alone may look like other numbers than the column has."""
    path = tmp_path / "t.csv"
    path.write_text("amount;kind;n;y\n1.234;3;7;a\n")
    frame, _, _ = load_rows(path, ["amount", "kind", "n"], "y", ["amount", "kind"])
    found = {frame.names[i]: list(cells) for i, cells in frame.text.items()}
    assert found == {"amount": ["1.234"], "kind": ["3"]}
    assert frame.numeric[0, 2] == 7


def test_labels_may_be_numbers_in_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,y\n1,"1,234.50"\n2,950\n3,20\n')
    found = load(path)
    assert (found.task, found.y.tolist()) == ("regression", [1234.5, 950, 20])
    path.write_text('a,y\n1,"1,234.50"\n2,-\n3,20\n')
    with pytest.raises(DataError, match="Got 1 row without a label"):
        load(path)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40), st.sampled_from([b"", b"a;b\n", b"\xff\xfea,\x00"]))
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path_factory, body, head):
    path = tmp_path_factory.mktemp("files") / "t.csv"
    path.write_bytes(head + body)
    try:
        frame, _ = load_columns(path)
        infer_columns(frame)
    except DataError:
        pass


@pytest.mark.parametrize("head", ["a;b;y", "a;b;y;", '"a";"b";"y";;'])
def test_a_delimiter_at_the_end_of_rows_is_no_column(tmp_path, head):
    path = tmp_path / "t.csv"
    end = ";" * max(1, head.count(";") - 2)
    path.write_text(f"{head}\n" + "".join(f"{i},5;u;{i % 2}{end}\n" for i in range(9)))
    found = load(path, label="y")
    assert found.X.names == ("a", "b")
    assert found.X.numeric[:2, 0].tolist() == [0.5, 1.5]


def test_one_column_may_be_another_delimiter(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a:y\n1:2\n")
    with pytest.raises(DataError, match="separated by one of a comma, a semicolon"):
        load(path, label="a:y")


def test_types_of_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    moment = datetime.datetime(1970, 1, 2, 3, tzinfo=datetime.UTC)
    columns = {
        "day": pa.array([DAY, None]),
        "local": pa.array([moment] * 2, pa.timestamp("us", tz="America/New_York")),
        "raw": pa.array([b"a", b"b"]),
        "took": pa.array([datetime.timedelta(1)] * 2),
        "y": pa.array([0, 1]),
    }
    parquet.write_table(pa.table(columns), path)
    X = load(path).X
    np.testing.assert_array_equal(X.numeric[:, 0], [DAY_NUMBER, NAN])
    assert X.numeric[:, 1].tolist() == [0, 0]  # the evening before
    assert X.unused == {"raw", "took"}


def test_the_first_sheet_of_a_workbook(tmp_path):
    path = tmp_path / "t.xlsx"
    table = pd.DataFrame({"a": [1.5, None], "day": [DAY, DAY], "y": ["u", "v"]})
    with pd.ExcelWriter(path, engine="xlsxwriter") as book:
        table.to_excel(book, sheet_name="main", index=False)
        table.to_excel(book, sheet_name="old", index=False)
    found = load(path)
    np.testing.assert_array_equal(
        found.X.numeric, [[1.5, DAY_NUMBER], [NAN, DAY_NUMBER]]
    )
    assert of_kind(found.X, "date") == {1}
    assert found.findings[0].done == "the first one, 'main', is read"
    path.write_bytes(b"no workbook")
    with pytest.raises(DataError, match="must be readable") as caught:
        load(path)
    assert str(caught.value).count("t.xlsx") == 1  # no "Context: 0: Could not open"
    assert "Context" not in str(caught.value)


def test_a_workbook_is_read_in_silence(tmp_path, caplog):
    path = tmp_path / "t.xlsx"
    table = pd.DataFrame({"a": [1.5, 2, 3], "gap": [None] * 3, "y": ["u", "v", "u"]})
    table.to_excel(path, engine="xlsxwriter", index=False)
    assert load(path).X.names == ("a", "gap")
    assert caplog.messages == []
    logging.getLogger("fastexcel.types.dtype").warning("later")
    assert caplog.messages == ["later"]


def test_a_workbook_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    (tmp_path / "t.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"extra 'excel'.*lessvfl\[excel\]"):
        load(tmp_path / "t.xlsx")


def test_ids_for_alignment_are_no_finding(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("who;a\n" + "".join(f"p{i};{i},5\n" for i in range(9)))
    frame, ids = load_columns(path, "who")
    inferred, findings = infer_columns(frame)
    assert ids is not None
    assert inferred.unused == frozenset()
    assert {one.column for one in findings} == {None}


def test_cells_and_labels_of_any_size_are_judged_alike():
    """A tree knows single precision alone, and its squares of labels overflow."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 400))
    x[:2] = -np.finfo(float).max, 1e300
    frame = frame_of(np.column_stack([x, y, 1e-300 * y]), ["noise", "told", "tiny"])
    for size in (1.0, 1e200, 1e-200):
        found = giveaways(frame, size * y, is_class=False)
        assert [one.column for one in found] == ["told", "tiny"]
    found = giveaways(frame, (y > 0).astype(int), is_class=True)
    assert [one.column for one in found] == ["told", "tiny"]


@pytest.mark.parametrize(
    ("cells", "done"),
    [
        (["(5.00)", "1.5", "7"], "read as numbers, (5.00) as -5"),
        (["<0.3", "7.5", "8", "9"], "read as numbers, <0.3 as 0.3"),
        (
            ["(5.00)", "<0.3", "7.5", "8", "9"],
            "read as numbers, (5.00) as -5, <0.3 as 0.3",
        ),
        (["5 %", "7 %"], "read as numbers"),
    ],
)
def test_how_parentheses_and_limits_are_read_is_said(cells, done):
    frame = frame_of(pd.DataFrame({"amount": (cells * N)[:N]}))
    _, (finding,) = infer_columns(frame)
    assert finding.done == done


@pytest.mark.parametrize(
    ("cells", "are_codes"),
    [
        (["007", "010", "200"], True),
        (["1e5", "2e5", "12"], True),
        (["A07", "007"], False),
        (["red", "blue"], False),
    ],
)
def test_texts_of_digits_are_said_to_be_codes(cells, are_codes):
    _, inferred = found({"code": (cells * N)[:N]})
    said = [one.what for one in remarks(inferred, None, True)]
    assert ("codes of digits, such as 007 or 1e5" in said) == are_codes
