"""Run folders that survive a crash."""

from __future__ import annotations

import copy
import math
import os

import numpy as np
import pytest
from tests.run.jobs import a_dataset, a_job

from lessvfl.errors import ConfigError, DivergenceError, RecordError
from lessvfl.run import experiment
from lessvfl.run.fitted import load_model
from lessvfl.run.folder import claim, load, save, save_unfinished
from lessvfl.run.record import RunRecord


@pytest.fixture(scope="module")
def both():
    """Return two finished runs of different shape."""
    return experiment.run(a_job(), [0, 1]), experiment.run(a_job(hidden=5), [2])


@pytest.fixture
def finished(both):
    """Return them with records that a test may change."""
    return [(copy.deepcopy(record), runs) for record, runs in both]


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def failing_at(moment):
    """Return what fails when a file is put in its place for that time."""
    replace, calls = os.replace, 0

    def fail(source, target):
        nonlocal calls
        calls += 1
        if calls == moment:
            raise OSError(28, "No space left on device")
        replace(source, target)

    return fail


N_FILES = 2 * 5  # network and description of four parties and a server


@pytest.mark.parametrize("moment", [1, N_FILES, N_FILES + 1, 2 * N_FILES])
def test_a_network_that_cannot_be_written_takes_no_other_with_it(
    finished, tmp_path, monkeypatch, moment
):
    (old, runs), (new, new_runs) = finished
    save(tmp_path, new, new_runs)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing_at(moment))
        with pytest.raises(RecordError) as caught:
            save(tmp_path, old, runs)
    lost = (moment - 1) // N_FILES
    record = RunRecord.read(tmp_path)
    kept = f"{record.header['networks']}/seed-{1 - lost}"
    for words in (str(tmp_path), "No space left", "record.jsonl", kept):
        assert words in str(caught.value)
    assert (record.status, record.message) == (
        "failed",
        "[Errno 28] No space left on device",
    )
    assert [run["seed"] for run in record.runs] == [0, 1]
    X = a_dataset().X.numeric
    expected = runs[1 - lost].model.decide(X)
    assert np.array_equal(load(tmp_path, seed=1 - lost).decide(X), expected)
    with pytest.raises(RecordError):
        load(tmp_path, seed=lost)


def test_a_record_that_cannot_be_written_leaves_old_run_and_new_networks(
    finished, tmp_path, monkeypatch
):
    (old, old_runs), (new, new_runs) = finished
    save(tmp_path, old, old_runs)
    before = files_of(tmp_path)
    X = a_dataset().X.numeric
    expected = load(tmp_path).decide(X)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing_at(N_FILES + 1))
        with pytest.raises(RecordError) as caught:
            save(tmp_path, new, new_runs)
    assert before.items() <= files_of(tmp_path).items()
    assert np.array_equal(load(tmp_path).decide(X), expected)
    (more,) = {*tmp_path.glob("networks-*/seed-2")}
    assert f"The record of '{tmp_path}' cannot be written: No" in str(caught.value)
    assert str(more.relative_to(tmp_path)) in str(caught.value)
    found = load_model(more).decide(X)
    assert np.array_equal(found, new_runs[0].model.decide(X))
    save(tmp_path, new, new_runs)
    assert not before.keys() & (files_of(tmp_path).keys() - {tmp_path / "record.jsonl"})
    assert np.array_equal(load(tmp_path, seed=2).decide(X), new_runs[0].model.decide(X))


def test_a_number_that_is_none_loses_no_network(finished, tmp_path):
    (old, runs), _ = finished
    old.runs[1]["importance"]["party0"]["x0"] = math.nan
    with pytest.raises(RecordError, match=r"nan at 'importance.party0.x0'.* holds"):
        save(tmp_path, old, runs)
    assert RunRecord.read(tmp_path).status == "failed"
    X = a_dataset().X.numeric
    for seed in (0, 1):
        found = load(tmp_path, seed).decide(X)
        assert np.array_equal(found, runs[seed].model.decide(X))


def test_runs_that_were_over_are_kept_where_a_later_one_fails(finished, tmp_path):
    (old, runs), _ = finished
    header = experiment.full_header(a_job(), {}, runs[0].problem)
    save_unfinished(tmp_path, header, DivergenceError("It diverged."), runs[:1])
    record = RunRecord.read(tmp_path)
    assert (record.status, record.message) == ("failed", "It diverged.")
    assert [run["seed"] for run in record.runs] == [0]
    assert set(record.consensus) == set(old.consensus)
    X = a_dataset().X.numeric
    assert np.array_equal(load(tmp_path).decide(X), runs[0].model.decide(X))


def test_an_interrupt_while_networks_are_written_keeps_those_before(
    finished, tmp_path, monkeypatch
):
    (old, runs), _ = finished
    original = type(runs[0].model).save

    def interrupted_at_the_second(model, folder):
        if model is runs[1].model:
            raise KeyboardInterrupt
        return original(model, folder)

    monkeypatch.setattr(type(runs[0].model), "save", interrupted_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, old, runs)
    assert RunRecord.read(tmp_path).status == "interrupted"
    load(tmp_path, seed=0)


class Killed(BaseException):
    """The end of the process, as far as a test can have it."""


def test_a_kill_leaves_the_old_run(finished, tmp_path, monkeypatch):
    """No clean-up runs when a process is killed; the next save cleans up."""
    (old, old_runs), (new, new_runs) = finished
    save(tmp_path, old, old_runs)

    def kill(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        patch.setattr("shutil.rmtree", kill)
        with pytest.raises(Killed):
            save(tmp_path, new, new_runs)
    assert len(list(tmp_path.glob("networks-*"))) == 2
    assert RunRecord.read(tmp_path).runs[0]["seed"] == 0
    load(tmp_path)
    save(tmp_path, new, new_runs)
    assert len(list(tmp_path.glob("networks-*"))) == 1


def test_load_by_seed(finished, tmp_path):
    (old, runs), _ = finished
    save(tmp_path, old, runs)
    X = a_dataset().X.numeric
    for seed in (0, 1):
        found = load(str(tmp_path), seed).decide(X)
        assert np.array_equal(found, runs[seed].model.decide(X))
    assert np.array_equal(load(tmp_path).decide(X), runs[0].model.decide(X))
    with pytest.raises(ConfigError, match=r"must be one of \[0, 1\]. Got 7 instead"):
        load(tmp_path, seed=7)


def test_load_knows_the_consensus_of_all_seeds(finished, tmp_path):
    (old, runs), _ = finished
    save(tmp_path, old, runs)
    for seed in (0, 1):
        found = load(tmp_path, seed).consensus
        assert found == old.consensus
        assert set(found) == set(load(tmp_path, seed).features)
    assert runs[0].model.consensus == {}


def test_load_from_what_is_no_run_folder(finished, tmp_path):
    with pytest.raises(RecordError, match="is not a run folder"):
        load(tmp_path)
    (old, _), _ = finished
    old.write(tmp_path)  # a record whose networks were never saved
    with pytest.raises(RecordError, match="Got a record that names none"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("ending", "status"),
    [(KeyboardInterrupt(), "interrupted"), (ValueError("no"), "failed")],
)
def test_an_unfinished_run_takes_the_place_of_an_old_one(
    finished, tmp_path, ending, status
):
    (old, runs), _ = finished
    save(tmp_path, old, runs)
    (tmp_path / "report.html").touch()
    (tmp_path / "notes.txt").touch()
    save_unfinished(tmp_path, experiment.bare_header(a_job(), {}), ending)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "record.jsonl"]
    assert RunRecord.read(tmp_path).status == status
    with pytest.raises(RecordError, match=f"Got {status}"):
        load(tmp_path)


def test_claim(tmp_path):
    claim(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    claim(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="must be a folder that can be written"):
            claim(path)
