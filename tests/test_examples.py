"""The examples run, here with small settings, and show what they say they show."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lessvfl import methods

FOLDER = Path(__file__).parent.parent / "examples"

TESTED = {"own_table", "own_network", "compare_methods", "prepare_with_duckdb"}
ON_FLARE = {"simulator", "provisioned"}
SHARED = {"sides", "federation"}  # what those two are made of


def load(name: str) -> Callable[..., Any]:
    """Return an example's main."""
    main: Callable[..., Any] = runpy.run_path(str(FOLDER / f"{name}.py"))["main"]
    return main


def test_every_example_is_tested_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == TESTED
    found = {path.stem for path in (FOLDER / "nvflare").glob("*.py")}
    assert found == ON_FLARE | SHARED


def test_own_table_keeps_what_the_label_depends_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = load("own_table")(n_rows=1000, epochs=8)
    assert kept == {"clinic": ("age", "smoker"), "insurer": ("plan", "claims")}
    printed = capsys.readouterr().out
    assert "missing cells were filled in" in printed
    assert "Test accuracy" in printed


def test_aggregates_of_raw_tables_are_kept_and_noise_is_not() -> None:
    kept = load("prepare_with_duckdb")(n_patients=1000)
    assert kept == {
        "clinic": ("age", "glucose_mean", "crp_spread"),
        "insurer": ("claims",),
    }


def test_own_network_keeps_the_significant_features() -> None:
    truth, kept = load("own_network")(n_samples=1000, epochs=6)
    assert truth <= kept
    assert len(kept - truth) <= 4  # of 14


@pytest.mark.filterwarnings("ignore:Selection removed")
def test_compare_methods_prints_a_line_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = {"pretrain_epochs": 2, "party_epochs": 2, "lam_party": 30.0}
    sent = load("compare_methods")(
        train_epochs=2,
        settings={
            "less-vfl-auto": {"pairs": False, "refit_epochs": 1},
            "less-vfl": {**few, "server_epochs": 2, "lam_server": 1.0},
            "local-lasso": few,
            "group-lasso": {"joint_epochs": 2, "lam_party": 2.0},
            "plain": {},
        },
    )
    assert {"less-vfl-auto", "plain"} < set(sent) <= set(methods.METHODS)
    assert min(sent.values()) > 0
    assert "compare.html" in capsys.readouterr().out


def flare(name: str) -> Callable[..., bool]:
    """Return the main of an example with FLARE."""
    pytest.importorskip("nvflare")
    main: Callable[..., bool] = importlib.import_module(f"examples.nvflare.{name}").main
    return main


FEW = {"pretrain_epochs": 1, "train_epochs": 1, "server_epochs": 2, "party_epochs": 2}


def test_a_run_in_flares_simulator_is_that_of_one_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert flare("simulator")(settings=FEW)
    assert "same to the bit" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what FLARE uses
def test_a_run_in_a_provisioned_system_is_that_of_one_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert flare("provisioned")(settings=FEW)
    printed = capsys.readouterr().out
    assert "FINISHED:COMPLETED" in printed
    assert "same to the bit" in printed
