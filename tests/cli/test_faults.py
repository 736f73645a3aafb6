"""Whatever fails while a run is written: what was computed is there, and said so."""

from __future__ import annotations

import numpy as np
import pytest

from lessvfl.errors import ConfigError
from lessvfl.remote import localhost
from lessvfl.run import simulate
from lessvfl.run.folder import load
from lessvfl.run.record import RunRecord

N_ROWS = 60
SHORT = ("--set", "train_epochs=1")


@pytest.fixture
def table(tmp_path):
    """Return a small table of one's own."""
    X = np.random.default_rng(0).normal(size=(N_ROWS, 4))
    lines = [f"{a},{b},{c},{d},{'yes' if a > c else 'no'}" for a, b, c, d in X]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["a,b,c,d,label", *lines]))
    return path


def run_of(table, out, *options, command="run"):
    """Return the command line of a short run."""
    words = ["--parties", "2", "--method", "plain", *SHORT, *options]
    return [command, str(table), "--out", str(out), "--quiet", *words]


def breaks(*args, **kwargs):
    """Fail as no code of ours should."""
    raise ZeroDivisionError("it burnt")


def is_full(*args, **kwargs):
    """Fail as a full disk does."""
    raise OSError(28, "No space left on device")


def last_line(result):
    """Return what a command said last, and that it said no more than sentences."""
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    return result.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("where", "fault", "as_json"),
    [
        ("lessvfl.report.folder.page", breaks, False),
        ("lessvfl.report.figures.plot_bytes", breaks, False),
        ("lessvfl.report.folder.features_csv", breaks, True),
        ("lessvfl.report.parts.write", is_full, True),
    ],
)
def test_a_page_that_fails_loses_nothing(
    run_cli, table, tmp_path, monkeypatch, where, fault, as_json
):
    out = tmp_path / "run"
    monkeypatch.setattr(where, fault)
    result = run_cli(*run_of(table, out), *["--json"] * as_json)
    said = last_line(result)
    why = "No space left" if fault is is_full else "ZeroDivisionError: it burnt"
    for words in (f"The report of '{out}' cannot", why, "record.jsonl", "seed-0"):
        assert words in said
    assert RunRecord.read(out).status == "complete"
    assert len(load(out).predict(np.zeros((3, 4)))) == 3
    assert ("accuracy" in result.out) or as_json


@pytest.mark.parametrize("is_ours", [False, True])
def test_seeds_that_were_over_are_kept(run_cli, table, tmp_path, monkeypatch, is_ours):
    run_seed = simulate._run_seed

    def no_third(job, settings, seed, *more):
        if seed == 2:
            raise ConfigError("It must go on. Got no more.") if is_ours else KeyError(2)
        return run_seed(job, settings, seed, *more)

    monkeypatch.setattr(simulate, "_run_seed", no_third)
    out = tmp_path / "run"
    line = run_of(table, out, "--seeds", "0,1,2")
    if is_ours:
        result = run_cli(*line)
        assert last_line(result) == "lessvfl: It must go on. Got no more."
        assert f"Seeds 0, 1 had finished: kept in '{out}'." in result.err
    else:
        with pytest.raises(KeyError):
            run_cli(*line)
    record = RunRecord.read(out)
    assert record.status == "failed"
    assert [run["seed"] for run in record.runs] == [0, 1]
    assert record.header["data"]["n_features"] == 4
    load(out, seed=1)
    assert run_cli("report", str(out)).code == 0


def test_an_error_before_the_first_seed_leaves_the_run_before(
    run_cli, table, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    assert run_cli(*run_of(table, out)).code == 0
    monkeypatch.setattr(simulate, "_run_seed", breaks)
    with pytest.raises(ZeroDivisionError):
        run_cli(*run_of(table, out, "--overwrite"))
    assert RunRecord.read(out).status == "complete"
    load(out)


def test_seeds_of_a_try_that_were_over_are_kept(run_cli, table, tmp_path, monkeypatch):
    """Planted noise gives every seed processes of its own; here they are none."""

    def no_second(job, seeds, *_):
        if 1 in seeds:
            raise ConfigError("Party 'party0' ended early: it must not. Got it.")
        return [run.numbers for run in simulate.simulate(job, seeds)]

    monkeypatch.setattr(localhost, "run", no_second)
    out = tmp_path / "run"
    line = run_of(table, out, "--seeds", "0,1", "--spurious", "0.5", command="try")
    result = run_cli(*[word for word in line if word != "--quiet"])
    assert "Party 'party0' ended early" in last_line(result)
    assert f"Seed 0 had finished: kept in '{out}'." in result.err
    record = RunRecord.read(out)
    assert record.status == "failed"
    assert [run["seed"] for run in record.runs] == [0]


def test_a_page_of_a_try_that_fails_loses_nothing(
    run_cli, table, tmp_path, monkeypatch
):
    def in_one_process(job, seeds, *_):
        return [run.numbers for run in simulate.simulate(job, seeds)]

    monkeypatch.setattr(localhost, "run", in_one_process)
    monkeypatch.setattr("lessvfl.report.folder.page", breaks)
    out = tmp_path / "run"
    said = last_line(run_cli(*run_of(table, out, command="try")))
    assert f"The report of '{out}' cannot be written: ZeroDivisionError" in said
    assert RunRecord.read(out).status == "complete"
