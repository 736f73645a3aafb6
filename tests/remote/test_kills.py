"""Sides that are killed, a few of them: `benchmarks/kills.py` kills more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"
SMALL = {"trees": 6, "select_trees": 3, "tree_depth": 3, "copies": 20}


@pytest.fixture(scope="module")
def kills() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kills", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kills"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def new(kills, forks, tmp_path) -> Any:
    """Return what makes the sides of a run with boosted trees."""

    def make(name: str) -> Any:
        words = (tmp_path / name, "vertical-boost", SMALL)
        return kills.Sides(*words, lambda command: forks.start(*command))

    return make


def test_a_boosted_run_whose_sides_are_killed_is_the_same(kills, new):
    killed, are_equal = kills.killed_runs(new, 3, seed=2)
    assert killed.total() == 3
    assert are_equal
    assert all(are_equal)


def test_a_service_with_trees_whose_sides_are_killed_says_nothing_wrong(kills, new):
    sides = new("service")
    killed, heard = kills.killed_service(sides, 2, seed=1)
    assert killed.total() == 2
    assert heard["right"] > 2
    assert heard["wrong"] == 0
    asker = kills.Asker(sides, 0)
    shares = [{**asker._right[row]} for row in (3, 4)]
    said = [
        {"id": f"person-{row}", "probabilities": own}
        for row, own in zip((3, 4), shares, strict=True)
    ]
    assert asker._is_right([3, 4], said)
    assert not asker._is_right([4, 3], said)
    shares[0]["ill"] += 1e-3
    assert not asker._is_right([3, 4], said)
