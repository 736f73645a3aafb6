"""Run folders that survive a crash."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.run.jobs import a_dataset, a_job

from lessvfl.errors import ConfigError, RecordError
from lessvfl.run import experiment
from lessvfl.run.folder import claim, load, save, save_unfinished
from lessvfl.run.record import RunRecord


@pytest.fixture
def finished():
    """Return two finished runs of different shape."""
    old = experiment.run(a_job(), [0, 1])
    new = experiment.run(a_job(hidden=5), [2])
    return old, new


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_crash_at_any_moment_leaves_the_old_run(finished, tmp_path, monkeypatch):
    """Or the new one, once its record is in place; never a mixture."""
    (old, old_runs), (new, new_runs) = finished
    save(tmp_path, old, old_runs)
    before = files_of(tmp_path)
    X = a_dataset().X.numeric
    expected = load(tmp_path).decide(X)
    replace, calls = os.replace, 0

    def crash_at(moment):
        def crash(source, target):
            nonlocal calls
            calls += 1
            if calls == moment:
                raise OSError(28, "No space left on device")
            replace(source, target)

        return crash

    n_files = 2 * 5 + 1  # four parties and a server, and the record
    for moment in range(1, n_files + 1):
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", crash_at(moment))
            with pytest.raises(OSError, match="No space"):
                save(tmp_path, new, new_runs)
        assert files_of(tmp_path) == before
        assert np.array_equal(load(tmp_path).decide(X), expected)
    save(tmp_path, new, new_runs)
    assert not before.keys() & (files_of(tmp_path).keys() - {tmp_path / "record.jsonl"})
    assert np.array_equal(load(tmp_path, seed=2).decide(X), new_runs[0].model.decide(X))


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
