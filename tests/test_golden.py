"""The comparison of two commits sees what changed, and knows the declared names."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "golden.py"

BEFORE: dict[str, Any] = {
    "lessvfl": "0.1.0",
    "method": "less-vfl",
    "config": {
        "batch_size": 128,
        "drain": False,
        "selector": "shadows",
        "aim": "time",
        "pretrain_batch_size": None,
    },
    "runs": [
        {
            "accuracy": {"final": 0.95},
            "features": {"party0": {"kept": ["a"], "removed": ["b"]}},
            "selection": {"party0": {"lam": 0.25, "frequency": None}},
            "communication": {"by_stage": {"settle": {"up": 10}}},
            "curve": [{"stage": "settle", "epoch": 1}],
            "seconds": {"settle": 0.2},
        }
    ],
}
AFTER: dict[str, Any] = {
    "lessvfl": "0.2.0",
    "method": "less-vfl-auto",
    "config": {
        "batch_size": 128,
        "stepwise_removal": False,
        "pretrain_batch_size": 1000,
    },
    "runs": [
        {
            "accuracy": {"final": 0.95},
            "features": {"party0": {"kept": ["a"], "removed": ["b"]}},
            "selection": {"party0": {"lam": 0.25}},
            "communication": {"by_stage": {"train_first": {"up": 10}}},
            "curve": [{"stage": "train_first", "epoch": 1}],
            "seconds": {"train_first": 0.1},
        }
    ],
}


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module  # its dataclasses look themselves up there
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)  # what it shares with other benchmarks
        spec.loader.exec_module(module)
    return module


def changed(golden: ModuleType, after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs from BEFORE, by path."""
    found = golden.compare(BEFORE, after, "less-vfl-auto").differences
    return {one.path: (one.before, one.after) for one in found}


def test_declared_names_are_equal(golden: ModuleType) -> None:
    found = golden.compare(BEFORE, AFTER, "less-vfl-auto")
    assert found.differences == []
    assert found.before_alone == {"selector": "shadows", "aim": "time"}
    assert found.after_alone == {}


def test_an_object_equals_itself(golden: ModuleType) -> None:
    assert golden.compare(BEFORE, BEFORE, "less-vfl").differences == []


def test_a_changed_number_is_found(golden: ModuleType) -> None:
    after = copy.deepcopy(AFTER)
    after["runs"][0]["selection"]["party0"]["lam"] = 0.25 + 2**-54
    assert list(changed(golden, after)) == ["runs.0.selection.party0.lam"]
    (one,) = golden.compare(BEFORE, after, "less-vfl-auto").differences
    assert one.relative == pytest.approx(2**-52)


def test_a_missing_field_is_found(golden: ModuleType) -> None:
    after = copy.deepcopy(AFTER)
    del after["runs"][0]["accuracy"]["final"]
    after["runs"][0]["features"]["party0"]["removed"] = []
    assert changed(golden, after) == {
        "runs.0.accuracy.final": (0.95, golden.MISSING),
        "runs.0.features.party0.removed.length": (1, 0),
    }


def test_only_what_is_declared_is_accepted(golden: ModuleType) -> None:
    """Another method, another batch of pre-training, or a lost option of the case."""
    assert [one.path for one in golden.compare(BEFORE, AFTER, "plain").differences] == [
        "method"
    ]
    after = copy.deepcopy(AFTER)
    after["config"]["pretrain_batch_size"] = 32
    assert changed(golden, after) == {"config.pretrain_batch_size": (1000, 32)}
    lost = golden.compare(BEFORE, AFTER, "less-vfl-auto", ["selector"]).differences
    assert [one.path for one in lost] == ["config.selector"]


def test_cases_are_many_and_named_once(golden: ModuleType, tmp_path: Path) -> None:
    cases = golden.all_cases(tmp_path, None)
    assert len({case.name for case in cases}) == len(cases) >= 40
    assert sum(case.command == "try" for case in cases) >= 8


def test_a_case_is_told_in_the_names_of_the_tree(
    golden: ModuleType, tmp_path: Path
) -> None:
    old = golden.Tree("old", tmp_path, "less-vfl drain")
    new = golden.Tree("new", tmp_path, "less-vfl-auto stepwise_removal")
    given = {"stepwise_removal": True}
    lasso = golden.Case("x", "digits", method="less-vfl", sets=given)
    auto = golden.Case("x", "digits", method="less-vfl-auto")
    assert "drain=True" in lasso.arguments(old)
    assert "selector=network" in lasso.arguments(old)
    assert "selector=network" not in lasso.arguments(new)
    assert "stepwise_removal=True" in lasso.arguments(new)
    assert "less-vfl" in auto.arguments(old)
    assert "less-vfl-auto" in auto.arguments(new)
