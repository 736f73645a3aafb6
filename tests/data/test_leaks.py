"""Columns that give the label away, ids among numbers, copies, dummies, rare labels."""

import time

import numpy as np
import pandas as pd
import pytest

from lessvfl.data.advice import rare_classes, relations
from lessvfl.data.columns import infer_columns
from lessvfl.data.leaks import giveaways
from lessvfl.data.table import frame_of

N = 2_000


def frame(table):
    inferred, _ = infer_columns(frame_of(pd.DataFrame(table)))
    return inferred


def given_away(table, y, is_class=True):
    return [one.column for one in giveaways(frame(table), np.asarray(y), is_class)]


def said(table):
    return {one.column: one.what for one in relations(frame(table))}


# ---------------------------------------------------------------------------- giveaways


@pytest.mark.parametrize("share", [0.5, 0.03])
def test_a_column_is_told_by_its_auc_however_rare_the_class(share):
    """Of 3 % positives a guess is right 97 times of 100; AUC does not care."""
    rng = np.random.default_rng(0)
    y = (rng.random(N) < share).astype(int)
    leak = 3.15 * y + rng.normal(size=N)  # AUC 0.987
    weak = 1.8 * y + rng.normal(size=N)  # AUC 0.90
    table = {"leak": leak, "down": -leak, "weak": weak, "noise": rng.normal(size=N)}
    assert given_away(table, y) == ["leak", "down"]
    (one, _) = giveaways(frame(table), y, is_class=True)
    assert one.what.startswith("tells the label on its own (AUC 0.9")
    assert one.level == "kept"


def test_what_tells_the_label_in_no_order_does_so_too():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, N)
    days = np.where(y == 1, 700, 704) + 7 * rng.integers(0, 90, N)
    table = {
        "middle": np.where(y == 1, 0.1, 2.0) * rng.choice([-1, 1], N),
        "code": [f"{'zqab'[2 * (i % 2) + label]}{i % 3}" for i, label in enumerate(y)],
        "weekday": pd.Timestamp("2020-01-01") + pd.to_timedelta(days, "D"),
        "missing": np.where(y == 1, np.nan, rng.normal(size=N)),
        "truth": y == 1,
        "many": [f"c{i % 400}" for i in range(N)],
        "noise": rng.normal(size=N),
    }
    found = given_away(table, y)
    assert found == ["middle", "code", "weekday", "missing", "truth"]


def test_many_classes_are_judged_one_against_the_rest():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, N)
    table = {
        "order": y + 0.15 * rng.normal(size=N),
        "code": [f"{'fbacde'[label]}" for label in y],
        "one": (y == 3) + 0.01 * rng.normal(size=N),  # tells one class alone
        "noise": rng.normal(size=N),
    }
    assert given_away(table, y) == ["order", "code"]


def test_amounts_are_judged_by_the_share_of_their_variance():
    rng = np.random.default_rng(0)
    y = rng.normal(size=N)
    table = {
        "same": 3 * y,
        "near": y + 0.15 * rng.normal(size=N),  # R² 0.978
        "far": y + 0.4 * rng.normal(size=N),  # R² 0.86
        "bent": np.where(rng.random(N) < 0.5, y, 20 - y),
        "noise": rng.normal(size=N),
    }
    assert given_away(table, y, is_class=False) == ["same", "near", "bent"]
    heavy = np.exp(3 * y)
    assert given_away({"same": heavy, "far": table["far"]}, heavy, False) == ["same"]


@pytest.mark.parametrize("n_rare", [2, 9])
def test_noise_is_no_giveaway_of_few_rows(n_rare):
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=300) for i in range(400)}
    table |= {f"c{i}": rng.choice(list("abcdefgh"), 300) for i in range(20)}
    y = (np.arange(300) < n_rare).astype(int)
    assert given_away(table, y) == []
    assert given_away(table, rng.normal(size=300), is_class=False) == []


def test_constant_infinite_and_few_rows_say_nothing():
    y = np.arange(N) % 2
    far = y.astype(float)
    far[0] = np.inf
    assert given_away({"one": [1.0] * N, "far": far}, y) == []
    assert given_away({"leak": y[:40]}, y[:40]) == []
    assert given_away({"leak": y}, np.zeros(N, dtype=int)) == []


def test_thousands_of_columns_are_looked_at_in_seconds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5_000, 1_000))
    y = (rng.random(5_000) < 0.03).astype(int)
    X[:, 234] += 3.15 * y
    table = frame_of(X)
    start = time.process_time()
    (one,) = giveaways(table, y, is_class=True)
    assert time.process_time() - start < 10  # about 0.4 on one core
    assert one.column == "x234"


# ---------------------------------------------------------------------------- relations


def test_numbers_that_look_like_ids():
    rng = np.random.default_rng(0)
    found = said(
        {
            "insured": rng.integers(10**14, 10**15, N),
            "counter": np.arange(N) + 17,
            "income": np.round(np.exp(rng.normal(10, 1.5, N)) * 1_000),
            "measured": rng.normal(size=N) * 1e12,
            "large": rng.normal(size=N) * 1e18,
            "huge": rng.normal(size=N) * 3e307,
            "age": rng.integers(18, 90, N),
            "town": rng.choice(rng.integers(10**8, 10**9, 50), N),
        }
    )
    assert found == {
        "insured": "whole numbers of 15 digits that nearly all differ: ids?",
        "counter": "one whole number after the other: a count of the rows?",
    }


def test_a_column_that_follows_from_another():
    rng = np.random.default_rng(0)
    inch, kelvin = rng.normal(68, 4, N), rng.normal(290, 9, N)
    holes = np.where(rng.random(N) < 0.1, np.nan, rng.normal(size=N))
    found = said(
        {
            "inch": inch,
            "kelvin": kelvin,
            "cm": np.round(2.54 * inch, 2),
            "fahrenheit": 1.8 * kelvin - 459.67,
            "down": -inch,
            "holes": holes,
            "halves": holes / 2,
            "filled": np.nan_to_num(holes),
            "near": inch + 0.05 * rng.normal(size=N),
            "same": inch,
            "one": np.ones(N),
            "huge": 1e300 * kelvin,
            "word": rng.choice(["u", "v"], N),
            "rare": np.eye(N)[7],
            "scarce": 3 * np.eye(N)[7],
        }
    )
    assert found == {
        "cm": "column 'inch' times 2.54",
        "fahrenheit": "exactly linear in column 'kelvin'",
        "down": "column 'inch' times -1",
        "halves": "column 'holes' times 0.5",
        "huge": "column 'kelvin' times 1e+300",
    }


def test_blocks_of_dummies():
    rng = np.random.default_rng(0)
    region, colour = rng.integers(0, 4, N), rng.integers(0, 3, N)
    table = {"flag": (rng.random(N) < 0.2).astype(int)}
    table |= {f"region_{i}": (region == i).astype(int) for i in range(4)}
    table["x"] = rng.normal(size=N)
    table |= {f"colour_{i}": colour == i for i in range(3)}
    table |= {f"rest_{i}": (region == i).astype(int) for i in range(3)}  # one dropped
    found = relations(frame(table))
    assert [(one.column, one.what) for one in found] == [
        ("region_0", "dummies: of 4 columns up to 'region_3' one is 1 in every row"),
        ("colour_0", "dummies: of 3 columns up to 'colour_2' one is 1 in every row"),
    ]
    assert all("--groups" in one.done for one in found)


def test_relations_of_very_many_columns_take_seconds():
    X = np.random.default_rng(0).normal(size=(1_000, 3_000))
    X[:, 2_999] = 7 * X[:, 3]
    start = time.process_time()
    (one,) = relations(frame_of(X))
    assert time.process_time() - start < 20
    assert (one.column, one.what) == ("x2999", "column 'x3' times 7")


# ---------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        ([970, 30], "class 'k1' has 30 of 1,000 rows (3 %)"),
        ([997, 3], "class 'k1' has 3 of 1,000 rows (0.3 %)"),
        ([300, 12, 9], "2 classes have few rows: 'k1' (12), 'k2' (9) of 321"),
        ([500, 500], None),
        ([80, 20], None),
    ],
)
def test_rare_labels(counts, what):
    y = np.repeat(np.arange(len(counts)), counts)
    one = rare_classes(y, [f"k{i}" for i in range(len(counts))], "ill")
    assert (one and one.what) == what
    if one is not None:
        assert (one.column, one.level) == ("ill", "kept")
