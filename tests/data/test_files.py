"""Tables from .npz, .csv and .parquet files."""

import decimal
import re

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
    Column,
    Frame,
    frame_of,
    from_arrays,
    load,
    load_columns,
    write_columns,
)
from lessvfl.errors import ConfigError, DataError

TABLE = pd.DataFrame(
    {
        "age": [1.5, 2.0, None, 4.0],
        "count": [1, 2, 3, 4],
        "sick": [True, False, True, True],
        "colour": ["red", None, "blue", "red"],
        "label": ["yes", "no", "no", "yes"],
    }
)


def same(one, two):
    assert one.X.names == two.X.names
    np.testing.assert_array_equal(one.X.numeric, two.X.numeric)
    assert of_kind(one.X, "boolean") == of_kind(two.X, "boolean")
    assert {i: list(c) for i, c in one.X.text.items()} == {
        i: list(c) for i, c in two.X.text.items()
    }
    assert one.y.tolist() == two.y.tolist()
    assert (one.task, one.label_names) == (two.task, two.label_names)


def test_csv_parquet_pandas_and_polars_give_the_same_data_set(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    TABLE.to_parquet(tmp_path / "t.parquet")
    X = TABLE.drop(columns="label")
    expected = from_arrays(X, TABLE["label"])
    same(load(str(tmp_path / "t.csv")), expected)
    same(load(str(tmp_path / "t.parquet")), expected)
    polar = pl.from_pandas(TABLE)
    same(from_arrays(polar.drop("label"), polar["label"]), expected)
    assert load(str(tmp_path / "t.csv")).name == "t"


def test_npz_gives_the_same_data_set_as_csv(tmp_path):
    X = np.array([[0.1, 2.0], [3.0, -4.5]])
    np.savez(tmp_path / "t.npz", X=X, y=[1, 0], feature_names=["a", "b"])
    pd.DataFrame(X, columns=["a", "b"]).assign(y=[1, 0]).to_csv(
        tmp_path / "t.csv", index=False
    )
    same(load(str(tmp_path / "t.npz")), load(str(tmp_path / "t.csv")))


def test_npz_with_test_rows_names_and_truth(tmp_path):
    np.savez(
        tmp_path / "t.npz",
        X=np.eye(3),
        y=[0, 1, 2],
        label_names=["a", "b", "c"],
        X_test=np.ones((1, 3)),
        y_test=[1],
        informative=[True, False, True],
    )
    data = load(str(tmp_path / "t.npz"))
    assert data.label_names == ("a", "b", "c")
    assert data.X_test is not None
    assert data.y_test is not None
    assert data.significant is not None
    assert data.X_test.n_rows == 1
    assert data.y_test.tolist() == [1]
    assert data.significant.tolist() == [True, False, True]


def test_npz_of_texts_and_another_label(tmp_path):
    X = [["a", "b"], ["c", "b"], ["e", "d"], ["g", "d"]]
    np.savez(tmp_path / "t.npz", X=X, z=[5, 7, 5, 7])
    data = load(str(tmp_path / "t.npz"), label="z")
    assert list(data.X.text[1]) == ["b", "b", "d", "d"]
    assert data.X.unused == {"x0"}
    assert data.label_names == ("5", "7")


def test_label_names_are_left_out_where_they_do_not_fit(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.eye(2), y=[-1, 1], label_names=["a", "b"])
    assert load(str(tmp_path / "t.npz")).label_names == ("-1", "1")


def write(path, columns):
    parquet.write_table(pa.table(columns), path)
    return str(path)


def test_arrow_types(tmp_path):
    path = write(
        tmp_path / "t.parquet",
        {
            "money": pa.array([decimal.Decimal("1.50"), None]),
            "kind": pa.array(["1", None]).dictionary_encode(),
            "small": pa.array([1, None], pa.int8()),
            "none": pa.nulls(2),
            "Target": pa.array(["u", "v"]).dictionary_encode(),
        },
    )
    X = load(path).X
    np.testing.assert_array_equal(X.numeric[:, 0], [1.5, np.nan])
    np.testing.assert_array_equal(X.numeric[:, 2], [1, np.nan])
    assert list(X.text[1]) == ["1", None]  # declared a category
    assert X.unused == {"none"}


def test_missing_texts_of_csv(tmp_path):
    """Only among numbers NA means that a cell is missing."""
    path = csv_file(tmp_path / "t.csv", "land,n,y\nNA,1,a\nDE,NA,b\n,3,a\nNA,4,b\n")
    frame = load(path).X
    assert frame.texts(0).tolist() == ["NA", "DE", None, "NA"]
    assert np.isnan(frame.numeric[1, 1])
    path = csv_file(tmp_path / "t.csv", "a,y\nu,0\nnone,1\nu,1\nnone,0\n")
    assert list(load(path).X.text[0]) == ["u", "none"] * 2  # may be a category


def test_the_label_may_be_any_column(tmp_path):
    TABLE.to_parquet(tmp_path / "t.parquet")
    data = load(tmp_path / "t.parquet", label="sick")
    assert data.label_names == ("False", "True")
    assert data.X.names == ("age", "count", "colour", "label")


def test_the_unnamed_index_of_pandas_is_no_feature(tmp_path):
    TABLE.iloc[[0, 1, 3]].to_parquet(tmp_path / "t.parquet")
    assert "__index_level_0__" not in load(str(tmp_path / "t.parquet")).X.names


def csv_file(path, text):
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "label", "fragment"),
    [
        ("", None, "must be readable.*Empty"),
        ("a,y\n", None, "must have rows"),
        ("a,b\n1,2\n", None, "one of its columns: a, b. Got no label"),
        ("a,y,target\n1,2,3\n", None, "Got y and target"),
        ("a,b\n1,2\n", "c", "one of its columns: a, b. Got 'c'"),
        ("y\n1\n2\n", None, "columns besides the label 'y'"),
        ("a,a,y\n1,2,3\n", None, "Got 'a' more than once"),
        ("a,y\n1,2\n3\n", None, "must be readable.*Expected 2 columns"),
        ("a,y\n1,2020-01-01\n2,2020-01-02\n", None, "'y'.*Got dates"),
        ("a,y\n1,0\n2,\n3,NA\n", None, "Got 2 rows without a label"),
        ("a,y\n1,0\n2,0\n", None, "Got '0' in every row"),
    ],
)
def test_refused_csv(tmp_path, text, label, fragment):
    path = csv_file(tmp_path / "t.csv", text)
    with pytest.raises(DataError, match=fragment):
        load(path, label=label)


def test_long_lists_of_columns_are_cut(tmp_path):
    header = ",".join(f"c{i}" for i in range(30))
    path = csv_file(tmp_path / "t.csv", f"{header}\n{header}\n")
    with pytest.raises(DataError, match=r"c19 and 10 more\. Got no label"):
        load(path)


@pytest.mark.parametrize("name", ["t.csv", "t.npz", "t.parquet"])
def test_missing_files(tmp_path, name):
    with pytest.raises(DataError, match=r"must exist. Got no such file"):
        load(str(tmp_path / name))


@pytest.mark.parametrize("content", [b"", b"no archive at all"])
@pytest.mark.parametrize("name", ["t.npz", "t.parquet"])
def test_files_of_other_content(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="must be readable"):
        load(str(tmp_path / name))


def test_a_file_that_does_not_fit_into_memory(tmp_path, monkeypatch):
    TABLE.to_parquet(tmp_path / "t.parquet")

    def fail(self, **how):
        raise pa.lib.ArrowMemoryError("malloc of size 33322880 failed")

    monkeypatch.setattr(parquet.ParquetFile, "read", fail)
    with pytest.raises(DataError, match=r"t\.parquet' must fit into memory.*'storage'"):
        load(str(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    ("arrays", "fragment"),
    [
        ({"X": np.eye(2)}, "the arrays 'X' and 'y'. Got X"),
        ({}, "Got none"),
        ({"X": np.eye(2), "y": [0, 1, 1]}, "Got 2 rows and 3 labels"),
        ({"X": np.eye(2), "y": [0, 1], "X_test": np.eye(2)}, "both X_test and y_test"),
        ({"X": np.eye(2), "y": [0, 1], "informative": [True]}, "one entry per column"),
        ({"X": np.array([[{}]]), "y": [0]}, "must be readable.*pickle"),
    ],
)
def test_refused_npz(tmp_path, arrays, fragment):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(DataError, match=fragment):
        load(str(tmp_path / "t.npz"))


def test_what_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="must exist"):
        load("digit.csv")
    with pytest.raises(
        DataError, match=r"must end in .npz, .csv, .parquet, .xlsx, .xls"
    ):
        load("folder/digit")
    (tmp_path / "digit").write_text("")
    with pytest.raises(DataError, match="must end in"):
        load("digit")
    with pytest.raises(ConfigError, match="'options' must be left out for the file"):
        load("t.csv", options={"sigma": 1.0})


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
cells = st.tuples(
    st.floats(), st.none() | texts, st.none() | st.booleans(), st.integers(0, 10**15)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(cells, min_size=1, max_size=6))
def test_columns_come_back_from_a_file_as_they_were_written(tmp_path_factory, rows):
    """Floats to the bit; texts and truth values, with their missing cells."""
    rows.append((0.5, "a", True, 1))  # no column is missing altogether
    numbers, words, truths, ids = zip(*rows, strict=True)
    numeric = np.full((len(rows), 3), np.nan)
    numeric[:, 0] = numbers
    numeric[:, 2] = [np.nan if truth is None else truth for truth in truths]
    columns = (Column("n.0"), Column("w", "text"), Column("t", "boolean"))
    frame = Frame(columns, numeric, {1: np.array(words, object)})
    path = tmp_path_factory.mktemp("columns") / "columns.parquet"
    write_columns(path, frame, np.array(ids))
    back, back_ids = load_columns(path, "row")
    assert back.names == frame.names
    assert back.numeric.tobytes() == numeric.tobytes()
    assert {i: list(c) for i, c in back.text.items()} == {1: list(words)}
    assert of_kind(back, "boolean") == of_kind(frame, "boolean")
    assert back_ids is not None
    assert back_ids.tolist() == list(ids)


def test_columns_that_cannot_be_written_are_refused(tmp_path):
    path, ids = tmp_path / "t.parquet", np.arange(2)
    with pytest.raises(DataError, match="Got 'row' more than once"):
        write_columns(path, frame_of([[1.0], [2.0]], ["row"]), ids)
    truths = Frame.of_numbers(["a"], np.array([[0.5], [1.0]]), "boolean")
    with pytest.raises(DataError, match="'a' must hold truth values"):
        write_columns(path, truths, ids)
    assert not path.exists()


@pytest.mark.parametrize(
    ("head", "options", "hint"),
    [
        ("age,outcome,ward", {}, "Got no label; name it, perhaps with --label 'outc"),
        ("a,b,c", {}, "--label 'c'"),
        ("a,Diagnosis,risky", {}, "--label 'Diagnosis'"),
        ("age,outcome_code,risk", {}, "--label 'risk'"),
        ("age,outcome_code,z", {}, "--label 'outcome_code'"),
        ("age,risk", {"label": "Risk"}, "Did you mean 'risk'?"),
    ],
)
def test_the_likely_label_is_named(tmp_path, head, options, hint):
    ones = ",".join("1" for _ in head.split(","))
    path = csv_file(tmp_path / "t.csv", f"{head}\n{ones}\n")
    with pytest.raises(DataError, match=re.escape(hint)):
        load(path, **options)


def test_groups_are_a_column_or_an_array_of_their_own(tmp_path):
    X, who = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) // 4
    path = tmp_path / "people.npz"
    np.savez(path, X=X, y=np.arange(20) % 2, who=who.astype(str))
    found = load(path, group_column="who")
    assert found.units is not None
    assert found.units.tolist() == who.tolist()
    assert found.X.names == ("x0", "x1")
    large = 2**53 + 1  # a number that a float rounds
    lines = [f"{X[i, 0]},{large + who[i]},{i % 2}" for i in range(20)]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["a,who,y", *lines]))
    found = load(path, group_column="who")
    assert found.units is not None
    assert found.units.tolist() == who.tolist()
    assert found.X.names == ("a",)


def test_the_index_that_pandas_writes_into_a_csv_file_is_left_out(tmp_path):
    path = tmp_path / "t.csv"
    table = pd.DataFrame({"a": np.arange(90) % 7, "y": np.arange(90) % 2})
    table[table["a"] > 1].to_csv(path)
    data = load(path)
    assert data.X.names == ("", "a")
    assert data.X.unused == {""}
