"""Values that stand for a missing cell: read as such when asked, named when not."""

import warnings
from datetime import date

import numpy as np
import pandas as pd
import pytest

from lessvfl.data import DataConfig, Encoding, frame_of, from_arrays, learn, prepare
from lessvfl.data.advice import remarks
from lessvfl.data.columns import infer_columns
from lessvfl.data.sentinels import blank, marks_of, warn_of_absent, written_marks
from lessvfl.errors import ConfigError, LessVFLWarning
from lessvfl.settings import fields_of, value_of

# Rows to come may have what these have not.
pytestmark = pytest.mark.filterwarnings("ignore:The 'missing_values' setting names")

N = 200


@pytest.fixture(autouse=True)
def _flags_of_few_cells(monkeypatch):
    monkeypatch.setattr(learn, "FEWEST", 5)


DAY = "9999-12-31"


def a_table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "income": np.round(np.exp(rng.normal(8, 1, N))),
            "age": rng.integers(18, 90, N).astype(float),
            "code": rng.integers(1, 6, N).astype(float),
            "plan": rng.choice(["basic", "full"], N),
            "born": [date(1940 + i % 60, 1 + i % 12, 1 + i % 28) for i in range(N)],
            "until": [f"20{10 + i % 9}-05-{1 + i % 28:02d}" for i in range(N)],
            "amount": [f"{value:.2f}" for value in rng.normal(size=N)],
        }
    )
    table.loc[::10, "income"] = -999
    table.loc[::11, "age"] = -9
    table.loc[::12, "code"] = 99
    table.loc[::13, "plan"] = "unknown"
    table.loc[::14, "born"] = date(1900, 1, 1)
    table.loc[::15, "until"] = DAY
    table.loc[::16, "amount"] = "99999"
    return table


GIVEN = {
    "income": -999,
    "age": [-9, -8],
    "code": "99",
    "plan": "unknown",
    "born": date(1900, 1, 1),
    "until": DAY,
    "amount": 99999,
}
STEPS = dict(zip(GIVEN, range(10, 17), strict=True))


def marked(given):
    frame, _ = infer_columns(frame_of(a_table()))
    plain = value_of(given, fields_of([DataConfig])["missing_values"])
    return frame, marks_of(frame, plain)


def test_marks_are_read_as_missing():
    frame, marks = marked(GIVEN)
    found = blank(frame, marks)
    for index, name in enumerate(frame.names):
        expected = np.arange(N) % STEPS[name] == 0
        texts = [cell is None for cell in found.texts(index)]
        is_empty = texts if index in frame.text else np.isnan(found.numeric[:, index])
        assert np.array_equal(is_empty, expected), name
    assert not np.isnan(frame.numeric[:, :3]).any()  # the table itself stays


def test_an_encoding_knows_the_marks_of_later_rows():
    """What it learns and what it gives is as if the cells had been empty."""
    frame, marks = marked(GIVEN)
    empty = blank(frame, marks)
    own, plain = (
        Encoding.fit("clinic", one, one.names, marks=m)
        for one, m in ((frame, marks), (empty, None))
    )
    np.testing.assert_array_equal(own.apply(frame)[0], plain.apply(empty)[0])
    assert own.apply(frame)[1].flagged == sum(-(-N // step) for step in STEPS.values())
    later = frame_of(a_table()[:1])  # texts of numbers and dates as they are written
    np.testing.assert_array_equal(own.apply(later)[0], own.apply(frame)[0][:1])
    written = written_marks(own.columns)
    assert written["born"] == ["1900-01-01"]
    assert marks_of(frame, written) == marks


@pytest.mark.parametrize("scale", ["auto", "global"])
def test_a_problem_reads_marks_as_missing(scale):
    table, y = a_table(), np.arange(N) % 2
    given = value_of(
        {"*": -999, "plan": "unknown"}, fields_of([DataConfig])["missing_values"]
    )
    config = DataConfig(scale=scale, missing_values=given)
    problem = prepare(from_arrays(table, y), config, parties=2)
    assert problem.imputed == problem.flagged == N // 10 + -(-N // 13)
    assert problem.bounds[0] > -999
    assert "a flag says where" in problem.notes[0]


def test_a_glob_finds_columns_that_can_hold_its_value():
    _, marks = marked({"*": -999})
    assert set(marks) == {"income", "age", "code", "plan", "amount"}
    assert marks["plan"] == ("-999",)
    _, marks = marked({"*": DAY})
    assert set(marks) == {"born", "until", "plan"}
    _, marks = marked({"in*": -999, "income": [-9]})
    assert marks == {"income": (-999.0, -9.0)}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"incom": -999}, "Got 'incom', which matches none. Did you mean 'income'?"),
        ({"income": "none"}, "of 'income' must be a number, as the cells are. Got 'no"),
        ({"born": -999}, "must be a date as in 9999-12-31, as the cells are. Got -999"),
        (
            {"[ia]*": "x"},
            r"of '\[ia\]\*' must be of a kind that one of the columns has",
        ),
    ],
)
def test_bad_marks(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        marked(given)


@pytest.mark.parametrize("value", [{"income": None}, {"income": [True]}, [-999], -999])
def test_marks_of_a_wrong_kind(value):
    with pytest.raises(ConfigError, match="must be values by column as in income=-999"):
        DataConfig(missing_values=value)


def test_marks_as_the_text_of_a_setting():
    field = fields_of([DataConfig])["missing_values"]
    assert value_of("income=-999, *=-9,income=-1", field) == {
        "income": ["-999", "-1"],
        "*": ["-9"],
    }
    assert value_of("none", field) is None
    with pytest.raises(ConfigError, match="must be values by column"):
        value_of("income", field)


def said(table: pd.DataFrame) -> dict[str, str]:
    frame, _ = infer_columns(frame_of(table))
    found = remarks(frame, None, is_class=True)
    return {str(f.column): f.what for f in found if "far from all others" in f.what}


def test_values_that_look_like_marks_are_named():
    found = said(a_table())
    assert found == {
        "income": "-999 in 20 cells, far from all others",
        "age": "-9 in 19 cells, far from all others",
        "code": "99 in 17 cells, far from all others",
        "born": "1900-01-01 in 15 cells, far from all others",
        "until": f"{DAY} in 14 cells, far from all others",
        "amount": "99999 in 13 cells, far from all others",
    }
    frame, _ = infer_columns(frame_of(a_table()))
    (done,) = (f.done for f in remarks(frame, None, True) if f.column == "income")
    assert done.endswith("missing cell: --missing-values 'income=-999'")


def test_ordinary_columns_are_not_named():
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "number": rng.normal(size=N),
            "heavy": rng.standard_cauchy(N),
            "truth": rng.integers(0, 2, N),
            "three": rng.choice([-1, 0, 1], N),
            "counts": rng.poisson(0.3, N),
            "top": np.minimum(rng.normal(size=N), 1),
            "zeros": np.where(rng.random(N) < 0.8, 0, np.exp(rng.normal(8, 1, N))),
            "rare": np.where(np.arange(N) < 4, -999, rng.normal(size=N)),
            "day": [date(1900, 1, 1 + i % 28) for i in range(N)],
            "rating": rng.integers(1, 10, N),
        }
    )
    assert said(table) == {}


def test_a_value_that_no_cell_has_is_warned_of():
    frame = frame_of(np.arange(6.0).reshape(3, 2), ["a", "b"])
    with pytest.warns(LessVFLWarning, match="names -9.0 of column 'a', which is in no"):
        warn_of_absent(frame, {"a": -9})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_absent(frame, {"*": -9, "b": 5})
