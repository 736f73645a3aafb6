"""Experiments: the paper's target, and run folders that survive a crash."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest

from lessvfl import data
from lessvfl.errors import ConfigError, LessVFLWarning, RecordError
from lessvfl.run import experiment, profiles, simulate
from lessvfl.run.record import RunRecord
from lessvfl.run.simulate import Job

SHORT: dict[str, Any] = {"train_epochs": 2, "batch_size": 40, "hidden": 8}


def a_dataset():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(100, 8))
    return data.from_arrays(X, (X[:, 0] > 0).astype(int), name="numbers")


def a_job(method="plain", profile="default", spurious=0.0, **overrides):
    dataset = a_dataset()
    settings = profiles.resolve(method, profile, dataset, SHORT | overrides)
    return Job(dataset, settings, spurious=spurious)


# ----------------------------------------------------------------------- the target


def a_point(accuracy, removed, cost):
    return {
        "accuracy": accuracy,
        "removed_share": removed,
        "paper_mib": cost / 10,
        "payload_bytes": cost,
        "rounds": cost + 1,
    }


CURVES = [
    ([(0.95, 0.0), (0.5, 1.0)], None, None),  # never both together
    ([(0.5, 1.0), (0.91, 0.9), (0.99, 1.0)], 1, 1),  # the first time counts
    ([(0.91, 0.9), (0.1, 0.0)], 0, 0),  # though it does not last
    ([(0.9, 0.9)], 0, None),  # exactly the accuracy
    ([(0.95, 0.8)], 0, None),  # exactly the share
    ([], None, None),
]


@pytest.mark.parametrize(("points", "hit", "strict_hit"), CURVES)
def test_cost_to_target(points, hit, strict_hit):
    curve = [a_point(a, r, cost) for cost, (a, r) in enumerate(points)]
    for strict, at in ((False, hit), (True, strict_hit)):
        found = experiment.cost_to_target(curve, 0.9, strict)
        cost = {"paper_mib": None, "payload_bytes": None, "rounds": None}
        if at is not None:
            cost = {"paper_mib": at / 10, "payload_bytes": at, "rounds": at + 1}
        assert found == {"accuracy": 0.9, "reached": at is not None} | cost


def test_original_has_no_noise_and_the_profiles_own_training():
    settings = {"activation": "relu", "hidden": 8, "test_share": 0.3}
    job = a_job("less-vfl", "paper", spurious=0.5, batch_size=7, **settings)
    original = experiment.original(job)
    assert original.spurious == 0
    flat = original.settings.flat()
    assert original.settings.method == "plain"
    assert original.settings.profile == "paper"
    assert {name: flat[name] for name in settings} == settings
    assert flat["batch_size"] == 1000
    assert flat["train_epochs"] == 100


@pytest.mark.filterwarnings("ignore:The 'batch_size' setting")
def test_threshold_is_one_number_for_all_runs():
    job = a_job("plain", spurious=0.5)
    record, _ = experiment.run(job, [0, 1], target=True)
    best = experiment.best_original(job, [0, 1], lambda event: None)
    thresholds = [run["target"]["accuracy"] for run in record.runs]
    assert thresholds == [0.9 * best] * 2


def test_released_code_asks_for_more_than_the_share(monkeypatch):
    seen = []

    def cost(curve, threshold, strict):
        seen.append(strict)
        return {}

    monkeypatch.setattr(experiment, "cost_to_target", cost)
    monkeypatch.setattr(experiment, "best_original", lambda *args: 1.0)
    for profile in profiles.PROFILES:
        job = a_job("plain", profile, spurious=0.5)
        experiment.run(job, [0], target=True)
    assert dict(zip(profiles.PROFILES, seen, strict=True)) == {
        "default": False,
        "paper": False,
        "official-code": True,
    }


# ------------------------------------------------------------------------ what is run


def test_record_of_a_run():
    record, runs = experiment.run(a_job(spurious=0.5), [5, 3], options={"n": "1"})
    assert record.status == "complete"
    assert [run["seed"] for run in record.runs] == [5, 3]
    assert [run.numbers for run in runs] == record.runs
    header = record.header
    assert header["data"] == {
        "name": "numbers",
        "n_train": 80,
        "n_test": 20,
        "n_features": 12,
        "n_real": 8,
        "n_parties": 4,
        "n_classes": 2,
    }
    assert header["config"]["data.n"] == "1"
    assert header["config"]["batch_size"] == 40
    assert header["device"] == "cpu"
    assert header["versions"].keys() == {"lessvfl", "python", "torch", "numpy"}


@pytest.mark.parametrize("seeds", [[0, 0], [-1], [2**63]])
def test_seeds_must_make_sense(seeds):
    with pytest.raises(ConfigError, match="Every seed must be"):
        experiment.run(a_job(), seeds)


def test_no_seed():
    with pytest.raises(ConfigError, match="At least one seed"):
        experiment.run(a_job(), [])


@pytest.mark.filterwarnings("error::lessvfl.errors.LessVFLWarning")
def test_plain_is_not_warned_of_what_it_never_removes():
    experiment.run(a_job("plain"), [0])


def test_only_the_seeds_concerned_are_named(monkeypatch):
    """Everything removed with one seed, nothing with another, some with a third."""
    original = simulate.simulate
    lams = {0: 1e6, 1: 0.0, 2: 1.5}

    def each_its_own(job, seeds, progress):
        replicas = [simulate.Replica(seed, lam_party=lams[seed]) for seed in seeds]
        return original(job, replicas, progress)

    monkeypatch.setattr(simulate, "simulate", each_its_own)
    job = a_job("local-lasso", party_epochs=8, party_step_size=0.05)
    with pytest.warns(LessVFLWarning) as said:
        experiment.run(job, [0, 1, 2])
    assert [str(warning.message) for warning in said] == [
        "Selection removed everything (seed 0): a smaller 'lam_party' may be needed.",
        "Selection removed nothing (seed 1): a larger 'lam_party' may be needed.",
    ]


# -------------------------------------------------------------------------- run folders


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
    experiment.save(tmp_path, old, old_runs)
    before = files_of(tmp_path)
    X = a_dataset().X.numeric
    expected = experiment.load(tmp_path).decide(X)
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
                experiment.save(tmp_path, new, new_runs)
        assert files_of(tmp_path) == before
        assert np.array_equal(experiment.load(tmp_path).decide(X), expected)
    experiment.save(tmp_path, new, new_runs)
    assert not before.keys() & (files_of(tmp_path).keys() - {tmp_path / "record.jsonl"})
    assert np.array_equal(
        experiment.load(tmp_path, seed=2).decide(X), new_runs[0].model.decide(X)
    )


class Killed(BaseException):
    """The end of the process, as far as a test can have it."""


def test_a_kill_leaves_the_old_run(finished, tmp_path, monkeypatch):
    """No clean-up runs when a process is killed; the next save cleans up."""
    (old, old_runs), (new, new_runs) = finished
    experiment.save(tmp_path, old, old_runs)

    def kill(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        patch.setattr("shutil.rmtree", kill)
        with pytest.raises(Killed):
            experiment.save(tmp_path, new, new_runs)
    assert len(list(tmp_path.glob("networks-*"))) == 2
    assert RunRecord.read(tmp_path).runs[0]["seed"] == 0
    experiment.load(tmp_path)
    experiment.save(tmp_path, new, new_runs)
    assert len(list(tmp_path.glob("networks-*"))) == 1


def test_load_by_seed(finished, tmp_path):
    (old, runs), _ = finished
    experiment.save(tmp_path, old, runs)
    X = a_dataset().X.numeric
    for seed in (0, 1):
        found = experiment.load(str(tmp_path), seed).decide(X)
        assert np.array_equal(found, runs[seed].model.decide(X))
    assert np.array_equal(experiment.load(tmp_path).decide(X), runs[0].model.decide(X))
    with pytest.raises(ConfigError, match=r"must be one of \[0, 1\]. Got 7 instead"):
        experiment.load(tmp_path, seed=7)


def test_load_from_what_is_no_run_folder(finished, tmp_path):
    with pytest.raises(RecordError, match="is not a run folder"):
        experiment.load(tmp_path)
    (old, _), _ = finished
    old.write(tmp_path)  # a record whose networks were never saved
    with pytest.raises(RecordError, match="Got a record that names none"):
        experiment.load(tmp_path)


@pytest.mark.parametrize(
    ("ending", "status"),
    [(KeyboardInterrupt(), "interrupted"), (ValueError("no"), "failed")],
)
def test_an_unfinished_run_takes_the_place_of_an_old_one(
    finished, tmp_path, ending, status
):
    (old, runs), _ = finished
    experiment.save(tmp_path, old, runs)
    (tmp_path / "report.html").touch()
    (tmp_path / "notes.txt").touch()
    experiment.save_unfinished(tmp_path, a_job(), {}, ending)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["notes.txt", "record.jsonl"]
    assert RunRecord.read(tmp_path).status == status
    with pytest.raises(RecordError, match=f"Got {status}"):
        experiment.load(tmp_path)


def test_claim(tmp_path):
    experiment.claim(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    experiment.claim(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="must be a folder that can be written"):
            experiment.claim(path)


def test_a_job_is_not_changed_by_its_run():
    job = a_job("less-vfl", party_epochs=2, server_epochs=2, lam_party=0.3)
    before = dataclasses.replace(job)
    with pytest.warns(LessVFLWarning, match="nothing"):
        experiment.run(job, [0])
    assert job == before
