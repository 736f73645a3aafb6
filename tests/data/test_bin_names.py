"""Bins of encoded columns in the units of a party's own table."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from lessvfl.data import BinNames, Encoding, frame_of


def encoded(groups=None, **columns):
    """Return the encoding of a table and its encoded cells."""
    frame = frame_of(pd.DataFrame(columns))
    encoding = Encoding.fit("bank", frame, frame.names, groups=groups)
    cells, _ = encoding.apply(frame)
    return encoding, cells.astype(np.float32).astype(float)


def name_of(encoding, row, columns=None):
    """Name the bin whose ranges are the values of one row."""
    columns = range(len(row)) if columns is None else columns
    ranges = {i: (row[i], row[i]) for i in columns if row[i] != 0}
    return BinNames(encoding).name(columns, ranges)


def test_ends_of_a_number_are_those_of_the_table():
    """Scaled in single precision and back; the shortest number that is as near."""
    ages = np.array([18.0, 25.0, 0.0, 40.0, 64.25] * 8)
    encoding, cells = encoded(age=ages)
    low, high = cells[0, 0], cells[1, 0]
    assert BinNames(encoding).name([0], {0: (low, high)}).text == "[18.0, 25.0)"
    assert BinNames(encoding).name([0], {0: (None, low)}).text == "(-inf, 18.0)"
    assert BinNames(encoding).name([0], {0: (cells[4, 0], None)}).text == "[64.25, inf)"
    assert [name_of(encoding, row).text for row in cells[:3]] == [
        "18.0",
        "25.0",
        "0.0",
    ]


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e12])
def test_so_are_those_of_heavy_tails_and_of_any_size(factor):
    values = np.random.default_rng(0).standard_cauchy(400).round(3) * factor
    encoding, cells = encoded(x=values)
    assert encoding.columns[0].knots
    for value, row in zip(values[:50], cells[:50], strict=True):
        found = float(name_of(encoding, row).text)
        assert found == pytest.approx(value, rel=1e-4, abs=1e-4 * factor)


def test_categories_truth_values_and_missing_cells_have_names():
    colour = ["red", "blue", None, "red"] * 40
    amount = [1.0, 2.0, None, 3.0] * 40
    is_new = [True, False, True, True] * 40
    encoding, cells = encoded(colour=colour, amount=amount, is_new=is_new)
    of = {"colour": [0, 1, 2], "amount": [3, 4], "is_new": [5]}
    assert len(cells[0]) == 6
    names = {
        key: [name_of(encoding, row, columns).text for row in cells[:4]]
        for key, columns in of.items()
    }
    assert names == {
        "colour": ["red", "blue", "missing", "red"],
        "amount": ["1.0", "2.0", "missing", "3.0"],
        "is_new": ["true", "false", "true", "true"],
    }
    amounts = sorted(
        (name_of(encoding, row, [3, 4]) for row in cells[:4]), key=by_place
    )
    assert [one.text for one in amounts] == ["1.0", "2.0", "3.0", "missing"]


def by_place(name):
    return name.place


def test_a_category_that_is_too_rare_is_another():
    frame = frame_of(pd.DataFrame({"town": ["a", "a", "b", "b", "c"]}))
    encoding = Encoding.fit("bank", frame, ("town",), max_categories=2)
    cells, _ = encoding.apply(frame)
    names = [name_of(encoding, row).text for row in cells]
    assert names == ["a", "a", "b", "b", "other"]


def test_a_date_has_the_ranges_of_its_parts():
    days = [
        datetime.date(2021, 3, 1) + datetime.timedelta(days=40 * i) for i in range(9)
    ]
    encoding, cells = encoded(since=pd.to_datetime(days))
    found = name_of(encoding, cells[1]).text
    assert found == "day 10, month 4, weekday 5, 2021-04-10"


def test_columns_of_one_feature_are_named():
    encoding, cells = encoded(
        groups={"a": "both", "b": "both"},
        a=[1.0, 2.0] * 9,
        c=[5.0, 6.0] * 9,
        b=["x", "y"] * 9,
    )
    assert encoding.names == ("a", "b", "c")
    assert name_of(encoding, cells[0], [0, 1, 2]).text == "a: 1.0; b: x"
    assert name_of(encoding, cells[1], [3]).text == "6.0"
