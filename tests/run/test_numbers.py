"""What several runs recommend, by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lessvfl import data
from lessvfl.run import numbers
from lessvfl.run.verdicts import consensus


def choices(masks, party="bank"):
    """Return what runs say of one party's features, out of masks (runs, features)."""
    names = [f"x{i}" for i in range(np.shape(masks)[1])]
    return [
        {
            party: {
                "kept": [n for n, on in zip(names, mask, strict=True) if on],
                "removed": [n for n, on in zip(names, mask, strict=True) if not on],
            }
        }
        for mask in masks
    ]


def test_kept_in_at_least_half_of_the_runs():
    masks = [
        [1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 0, 0],
    ]
    found = consensus(choices(masks))["bank"]
    assert found["share"] == {"x0": 1.0, "x1": 0.75, "x2": 0.5, "x4": 0.25}
    assert list(found["share"]) == ["x0", "x1", "x2", "x4"]
    assert found["recommended"] == ["x0", "x1", "x2"]


@given(arrays(bool, st.tuples(st.integers(1, 7), st.integers(0, 6))))
def test_shares_are_means_of_masks(masks):
    found = consensus(choices(masks))["bank"]
    means = {f"x{i}": mean for i, mean in enumerate(masks.mean(axis=0)) if mean}
    assert found["share"] == means
    recommended = {name for name, mean in means.items() if mean >= 0.5}
    assert set(found["recommended"]) == recommended
    assert len(found["recommended"]) == len(recommended)


def test_every_party_counts_for_itself():
    first = choices([[1, 0]])[0] | choices([[0, 0]], "clinic")[0]
    second = choices([[0, 1]])[0] | choices([[0, 0]], "clinic")[0]
    found = consensus([first, second])
    assert found["bank"]["recommended"] == ["x0", "x1"]
    assert found["clinic"] == {"recommended": [], "share": {}}


def test_only_runs_in_which_a_party_held_a_feature_count():
    """A random deal gives a party other columns with every seed."""
    runs = [
        {"bank": {"kept": ["a"], "removed": ["b"]}},
        {"bank": {"kept": ["c"], "removed": ["b"]}},
        {"bank": {"kept": [], "removed": ["b", "c"]}},
    ]
    assert consensus(runs)["bank"]["share"] == {"a": 1.0, "c": 0.5}


def test_no_run_recommends_nothing():
    assert consensus([]) == {}


def test_a_server_knows_by_its_rows_what_parties_would_find():
    y = np.repeat([0, 1], [4750, 250])
    dataset = data.from_arrays(np.zeros((5000, 1)) + np.arange(5000)[::-1, None], y)
    problem = data.prepare(dataset, data.DataConfig(), parties=1)
    about = {"data": {"name": "bank"}, "device": "cpu"}
    found = numbers.header(about, problem, n_parties=2)["data"]["power"]
    assert found["auc"] == 0.55
    # Of 4,000 training rows: a normal of mean 2.45 beyond 2.65.
    assert found["finds"] == pytest.approx(0.42, abs=0.01)
    assert numbers.header(about, problem)["data"]["power"] is None
