"""The comparison of two commits sees what changed."""

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
    "method": "less-vfl-auto",
    "config": {"batch_size": 128},
    "runs": [
        {
            "accuracy": {"final": 0.95},
            "features": {"party0": {"kept": ["a"], "removed": ["b"]}},
            "selection": {"party0": {"lam": 0.25}},
            "seconds": {"train": 0.2},
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
    spec.loader.exec_module(module)
    return module


def test_what_is_no_result_is_not_compared(golden: ModuleType) -> None:
    after = copy.deepcopy(BEFORE) | {"lessvfl": "0.2.0"}
    after["runs"][0]["seconds"] = {"train": 0.1}
    assert golden.compare(BEFORE, after) == []


def test_a_changed_number_is_found(golden: ModuleType) -> None:
    after = copy.deepcopy(BEFORE)
    after["runs"][0]["selection"]["party0"]["lam"] = 0.25 + 2**-54
    (one,) = golden.compare(BEFORE, after)
    assert one.path == "runs.0.selection.party0.lam"
    assert one.relative == pytest.approx(2**-52)


def test_fractions_may_differ_within_a_bound_and_nothing_else(
    golden: ModuleType,
) -> None:
    after = copy.deepcopy(BEFORE)
    after["runs"][0]["accuracy"]["final"] += 0.0009
    assert golden.compare(BEFORE, after, within=1e-3) == []
    after["config"]["batch_size"] += 1
    after["runs"][0]["accuracy"]["final"] += 0.0009
    found = [one.path for one in golden.compare(BEFORE, after, within=1e-3)]
    assert found == ["config.batch_size", "runs.0.accuracy.final"]


def test_a_missing_field_is_found(golden: ModuleType) -> None:
    after = copy.deepcopy(BEFORE)
    del after["runs"][0]["accuracy"]["final"]
    del after["config"]["batch_size"]
    after["runs"][0]["features"]["party0"]["removed"] = []
    assert golden.compare(BEFORE, after) == [
        ("config.batch_size", 128, golden.MISSING),
        ("runs.0.accuracy.final", 0.95, golden.MISSING),
        ("runs.0.features.party0.removed.length", 1, 0),
    ]


def test_cases_are_many_and_named_once(golden: ModuleType, tmp_path: Path) -> None:
    cases = golden.all_cases(tmp_path)
    assert len({case.name for case in cases}) == len(cases) >= 40
    assert sum(case.command == "try" for case in cases) >= 8


def test_a_case_is_run_with_both_trees(
    golden: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(tree: Any, words: list[str], folder: Path) -> Any:
        assert words[:4] == ["-m", "lessvfl.cli", "run", "digits"]
        accuracy, failed = tree
        bad = golden.Answer(2, "", "No data.", 1.0)
        good = golden.Answer(0, f'{{"accuracy": {accuracy}}}', "", 1.0)
        return bad if failed else good

    monkeypatch.setattr(golden, "ask", ask)
    case = golden.Case("run/plain/x", "digits")

    def verdict(before: Any, after: Any) -> str:
        return str(golden.run_case(case, before, after, tmp_path).verdict)

    assert verdict((0.5, False), (0.5, False)) == "equal"
    assert verdict((0.5, False), (0.25, False)) == "differs"
    assert verdict((0.5, False), (0.5, True)) == "failed"
    assert verdict((0.5, True), (0.5, True)) == "skipped"


def test_a_new_field_is_named_and_no_difference(
    golden: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(tree: str, words: list[str], folder: Path) -> Any:
        return golden.Answer(0, tree, "", 1.0)

    monkeypatch.setattr(golden, "ask", ask)
    case = golden.Case("run/plain/x", "digits")
    pair = ('{"config": {}}', '{"config": {"clip": 1}}')
    result = golden.run_case(case, *pair, tmp_path)
    assert (result.verdict, result.new) == ("equal", ["config.clip"])
    lost = golden.run_case(case, *pair[::-1], tmp_path)
    assert (lost.verdict, lost.new) == ("differs", [])
