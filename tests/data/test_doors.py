"""One rule of types for every door: files of texts, Parquet, frames and arrays."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pytest
from pyarrow import feather, parquet
from tests.data import rules

from lessvfl import data

N = 60
ROWS = range(N)
LABEL = ["ill" if i % 2 else "well" for i in ROWS]
COLUMNS = rules.columns_of(N)
TABLE = {name: cells for name, (_, cells) in COLUMNS.items()}
WHOLE = pd.DataFrame(TABLE | {"label": LABEL})


def of_file(path: Any) -> data.Dataset:
    return data.load(str(path), label="label")


def by_csv(folder: Any) -> data.Dataset:
    WHOLE.to_csv(folder / "t.csv", index=False)
    return of_file(folder / "t.csv")


def by_bars(folder: Any) -> data.Dataset:
    WHOLE.to_csv(folder / "t.csv", index=False, sep="|")
    return of_file(folder / "t.csv")


def by_excel(folder: Any) -> data.Dataset:
    pl.DataFrame(TABLE | {"label": LABEL}).write_excel(folder / "t.xlsx")
    return of_file(folder / "t.xlsx")


def by_parquet(folder: Any) -> data.Dataset:
    parquet.write_table(pyarrow.table(TABLE | {"label": LABEL}), folder / "t.parquet")
    return of_file(folder / "t.parquet")


def by_feather(folder: Any) -> data.Dataset:
    feather.write_feather(pyarrow.table(TABLE | {"label": LABEL}), folder / "t.arrow")
    return of_file(folder / "t.arrow")


def by_pandas(folder: Any) -> data.Dataset:
    return data.from_arrays(pd.DataFrame(TABLE), LABEL)


def by_polars(folder: Any) -> data.Dataset:
    return data.from_arrays(pl.DataFrame(TABLE), LABEL)


def by_arrow(folder: Any) -> data.Dataset:
    return data.from_arrays(pyarrow.table(TABLE), LABEL)


def by_array(folder: Any) -> data.Dataset:
    cells = np.array(list(TABLE.values()), dtype=object).T
    return data.from_arrays(cells, LABEL, feature_names=list(TABLE))


DOORS = (
    by_csv,
    by_bars,
    by_excel,
    by_parquet,
    by_feather,
    by_pandas,
    by_polars,
    by_arrow,
    by_array,
)


@pytest.mark.parametrize("door", DOORS)
def test_every_rule_is_true_at_every_door(door, tmp_path):
    X = door(tmp_path).X
    kinds = {c.name: None if c.left_out else c.kind for c in X.columns}
    assert kinds == {name: rule.kind for name, (rule, _) in COLUMNS.items()}
    right = by_pandas(tmp_path).X
    used = [X.columns[i].kind != "categorical" for i in range(len(X.names))]
    np.testing.assert_array_equal(X.numeric[:, used], right.numeric[:, used])
    assert X.text.keys() == right.text.keys()
    for index, cells in right.text.items():
        written = [cell or None for cell in TABLE[X.names[index]]]
        assert X.texts(index).tolist() == cells.tolist() == written


def test_the_page_has_the_rules():
    page = Path(__file__).parents[2] / "docs" / "data.md"
    assert rules.table() in page.read_text()


DAYS = [datetime.date(2024, 1, 1 + i % 28) for i in ROWS]
MIXED: dict[str, list[Any]] = {  # objects of Python beside what stands in a file
    "code": [i % 7 if i % 2 else f"00{i % 7}" for i in ROWS],
    "word": ["missing" if i == 3 else i + 0.5 for i in ROWS],
    "small": [np.float32(i + 0.5) if i % 2 else "3.5" for i in ROWS],
    "truth": [np.bool_(i % 2) if i % 3 else "True" for i in ROWS],
    "day": [day if i % 2 else "2024-02-01" for i, day in enumerate(DAYS)],
    "decimal": [decimal.Decimal(i) / 4 if i % 2 else "7.5" for i in ROWS],
    "long": [10**17 + 1 + i % 5 for i in ROWS],
    "longer": [None if i % 7 == 0 else 10**21 + 1 + i % 5 for i in ROWS],
    "whole": [2**53 - i for i in ROWS],
    "digits": [20240101 + i % 28 for i in ROWS],
}


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, None])
def test_objects_of_several_types_are_read_as_they_are_written(library, tmp_path):
    frame = pd.DataFrame(MIXED, dtype=object)
    frame.assign(label=LABEL).to_csv(tmp_path / "t.csv", index=False)
    right = of_file(tmp_path / "t.csv").X
    table: Any = frame.to_numpy(dtype=object)
    if library is pd.DataFrame:
        table = frame
    elif library is pl.DataFrame:
        table = pl.DataFrame(
            [pl.Series(n, own, dtype=pl.Object) for n, own in MIXED.items()]
        )
    X = data.from_arrays(table, LABEL, feature_names=list(MIXED)).X
    assert [c.kind for c in X.columns] == [c.kind for c in right.columns]
    np.testing.assert_array_equal(X.numeric, right.numeric)
    for index in right.text:
        assert X.texts(index).tolist() == right.texts(index).tolist()


LONG = [10**17 + 1 + i % 5 for i in ROWS]


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"n": LONG}),
        pd.DataFrame({"n": pd.array(LONG, dtype="Int64")}),
        pl.DataFrame({"n": LONG}),
        pyarrow.table({"n": LONG}),
        np.array(LONG)[:, None],
        np.array(LONG, dtype=np.uint64)[:, None],
    ],
)
def test_whole_numbers_that_no_double_holds_are_texts(table):
    X = data.from_arrays(table, LABEL).X
    assert X.columns[0].kind == "categorical"
    assert X.texts(0).tolist() == list(map(str, LONG))


def test_numbers_that_a_double_holds_stay_numbers(tmp_path):
    cells = [str(2**53 - i) for i in range(N)] + [str(10**17 + 1024 * i) for i in ROWS]
    table = pd.DataFrame({"n": cells, "label": LABEL * 2})
    table.to_csv(tmp_path / "t.csv", index=False)
    X = of_file(tmp_path / "t.csv").X
    np.testing.assert_array_equal(X.numeric[:, 0], np.array(cells, dtype=float))
