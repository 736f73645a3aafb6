"""Trees on what less-vfl-auto kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lessvfl import data
from lessvfl.core.trees.networks import TreeSum
from lessvfl.errors import LessVFLWarning
from lessvfl.run import profiles, simulate

TREES = {"trees": 5, "leaves": 8, "tree_depth": 4}


def ran(dataset: data.Dataset, method: str, parties: Any, **settings: Any) -> Any:
    own = profiles.resolve(method, "default", dataset, settings)
    (run,) = simulate.simulate(simulate.Job(dataset, own, parties=parties), [0])
    return run


def kept(run: Any) -> dict[str, list[str]]:
    return {party.name: list(party.kept) for party in run.model.parties}


def test_trees_are_those_of_vertical_boost_on_the_columns_of_less_vfl_auto() -> None:
    dataset = data.load("breast-cancer")
    auto = ran(dataset, "less-vfl-auto", 3)
    found = ran(dataset, "auto-boost", 3, **TREES)
    columns = {name: some for name, some in kept(auto).items() if some}
    with pytest.warns(LessVFLWarning, match="belong to no party"):
        expected = ran(dataset, "vertical-boost", columns, select_trees=0, **TREES)
    y = found.model.decide(dataset.X)
    np.testing.assert_allclose(y, expected.model.decide(dataset.X), atol=1e-6)
    assert np.unique(y).size > 10
    for name, some in kept(found).items():
        assert set(some) <= set(columns.get(name, []))
    assert found.numbers["communication"]["rounds"] > 0


def test_a_party_that_kept_nothing_is_asked_nothing() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 8))
    dataset = data.from_arrays(X, (X[:, 0] + X[:, 1] > 0).astype(int))
    run = ran(dataset, "auto-boost", 2, **TREES)
    assert [len(some) for some in kept(run).values()] == [2, 0]
    asked = {line["party"] for line in run.bill if line["kind"] == "query"}
    assert asked == {"party0"}
    assert run.numbers["accuracy"]["final"] > 0.8


def test_where_nobody_keeps_anything_all_rows_are_alike() -> None:
    random = np.random.default_rng(0)
    dataset = data.from_arrays(random.normal(size=(200, 6)), random.integers(0, 2, 200))
    run = ran(dataset, "auto-boost", 2, **TREES)
    assert kept(run) == {"party0": [], "party1": []}
    assert isinstance(run.model.fusion, TreeSum)
    assert len(run.model.fusion.roots) == 0
    assert np.unique(run.model.decide(dataset.X)).size == 1
