"""Cells from Arrow and to it, against what pyarrow gives itself."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow
import pytest

from lessvfl.data.arrow_cells import arrow_of, numbers_of, texts_of

CELLS = {
    "texts": ["a", None, "ü", ""],
    "whole numbers": [1, None, -(2**62)],
    "floats": [0.5, None, -1e300],
    "truths": [True, None, False] * 5,
    "nothing": [None, None],
    "no cell": [],
    "an array of floats": np.array([1.0, -2.0]),
    "every other one": np.arange(6)[::2],
    "an array of truths": np.array([True, False]),
    "an array of texts": np.array(["a", "bc"]),
    "days": [datetime.date(2024, 1, 31), None],
}


@pytest.mark.parametrize("cells", CELLS.values(), ids=CELLS)
def test_an_array_is_that_of_pyarrow(cells):
    array = arrow_of(cells)
    array.validate(full=True)
    assert array.equals(pyarrow.array(cells))


@pytest.mark.parametrize("kind", ["int8", "int64", "float32", "float64"])
def test_numbers_are_those_of_pyarrow(kind):
    whole = pyarrow.chunked_array([[1, 2, 3], [], [4]], kind)
    for column in (whole, whole.slice(1, 3), whole[:0], whole.chunk(0)[1:]):
        mine, theirs = numbers_of(column), column.to_numpy()
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()


def test_a_missing_number_is_what_is_asked_for():
    column = pyarrow.chunked_array([[1.5, None], [None, 2.5, None]])
    np.testing.assert_array_equal(numbers_of(column), column.to_numpy())
    assert numbers_of(column.slice(1, 3), -1.0).tolist() == [-1.0, -1.0, 2.5]


def test_texts_are_those_of_pyarrow():
    column = pyarrow.chunked_array([["b", None, "a", "b"], [None], []])
    for some in (column, column.slice(1, 3), column[:0], column.chunk(0)[2:]):
        assert texts_of(some).tolist() == some.to_pylist()
        assert texts_of(some).dtype == object
