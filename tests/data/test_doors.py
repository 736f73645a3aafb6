"""One rule of types for every door: files of texts, Parquet, frames and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pytest
from pyarrow import parquet

from lessvfl import data

N = 60
ROWS = range(N)
# Cells as they are written, and what the column is.
WRITTEN: dict[str, tuple[list[str], str]] = {
    "amount": ([f"{i}.25" for i in ROWS], "numeric"),
    "count": ([str(i % 7) for i in ROWS], "numeric"),
    "power": ([f"{i}.5e+03" for i in ROWS], "numeric"),
    "gap": (["" if i % 9 == 0 else str(i % 5) for i in ROWS], "numeric"),
    "level": (["missing" if i == 3 else f"{i}.5" for i in ROWS], "numeric"),
    "paid": (["(5.00)" if i % 2 else "7.50" for i in ROWS], "numeric"),
    "zip": ([f"{i % 6:05}" for i in ROWS], "categorical"),
    "sector": (["1e5" if i % 2 else "12" for i in ROWS], "categorical"),
    "card": ([f"{10**21 + i % 4}" for i in ROWS], "categorical"),
    "smoker": (["yes" if i % 3 else "no" for i in ROWS], "boolean"),
    "day": ([f"2024-01-{1 + i % 28:02}" for i in ROWS], "date"),
    "town": (["Bonn" if i % 2 else "Trier" for i in ROWS], "categorical"),
}
LABEL = ["ill" if i % 2 else "well" for i in ROWS]
TABLE = {name: cells for name, (cells, _) in WRITTEN.items()}


def of_file(path: Any) -> data.Dataset:
    return data.load(str(path), label="label")


def by_csv(folder: Any) -> data.Dataset:
    pd.DataFrame(TABLE | {"label": LABEL}).to_csv(folder / "t.csv", index=False)
    return of_file(folder / "t.csv")


def by_semicolons(folder: Any) -> data.Dataset:
    table = pd.DataFrame(TABLE | {"label": LABEL})
    table.to_csv(folder / "t.csv", index=False, sep=";")
    return of_file(folder / "t.csv")


def by_parquet(folder: Any) -> data.Dataset:
    parquet.write_table(pyarrow.table(TABLE | {"label": LABEL}), folder / "t.parquet")
    return of_file(folder / "t.parquet")


def by_pandas(folder: Any) -> data.Dataset:
    return data.from_arrays(pd.DataFrame(TABLE), LABEL)


def by_polars(folder: Any) -> data.Dataset:
    return data.from_arrays(pl.DataFrame(TABLE), LABEL)


def by_array(folder: Any) -> data.Dataset:
    cells = np.array(list(TABLE.values()), dtype=object).T
    return data.from_arrays(cells, LABEL, feature_names=list(TABLE))


DOORS = (by_csv, by_semicolons, by_parquet, by_pandas, by_polars, by_array)


@pytest.mark.parametrize("door", DOORS)
def test_a_cell_is_the_same_by_whichever_door_it_comes(door, tmp_path):
    X = door(tmp_path).X
    kinds = {column.name: column.kind for column in X.columns if not column.left_out}
    assert kinds == {name: kind for name, (_, kind) in WRITTEN.items()}
    right = by_pandas(tmp_path).X
    np.testing.assert_array_equal(X.numeric, right.numeric)
    for index in right.text:
        assert X.texts(index).tolist() == right.texts(index).tolist()


def test_codes_of_a_csv_file_are_categories_as_they_are_written(tmp_path):
    X = by_csv(tmp_path).X
    assert X.texts(X.names.index("zip"))[:3].tolist() == ["00000", "00001", "00002"]
    assert X.texts(X.names.index("card"))[0] == "1" + "0" * 21


def test_numbers_that_a_double_holds_stay_numbers(tmp_path):
    cells = [str(2**53 - i) for i in range(N)] + [str(10**17 + 1024 * i) for i in ROWS]
    table = pd.DataFrame({"n": cells, "label": LABEL * 2})
    table.to_csv(tmp_path / "t.csv", index=False)
    X = of_file(tmp_path / "t.csv").X
    np.testing.assert_array_equal(X.numeric[:, 0], np.array(cells, dtype=float))
