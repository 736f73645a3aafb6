"""Runs in MLflow and TensorBoard: what is written, by whom, and what a failure does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.report.conftest import fake_record

import lessvfl
from lessvfl import data
from lessvfl.errors import ConfigError, LessVFLWarning
from lessvfl.report import tracking
from lessvfl.run.record import RunRecord
from lessvfl.status import Status
from lessvfl.terms import Progress

SHORT = ("--method", "less-vfl", "--seeds", "0,1", "-q", "--set", "train_epochs=2")
FEW = [f"{name}_epochs=1" for name in ("pretrain", "server", "party")]


class Listed:
    """A store in memory."""

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}
        self.points: list[tuple[str, float, int]] = []
        self.kept: list[str] = []
        self.ends: list[bool] = []

    def set_parameters(self, values: Any) -> None:
        self.parameters |= values

    def add_point(self, name: str, value: float, step: int) -> None:
        self.points.append((name, value, step))

    def keep(self, path: Path) -> None:
        self.kept.append(path.name)

    def close(self, *, failed: bool) -> None:
        self.ends.append(failed)


@pytest.fixture
def store(monkeypatch) -> Listed:
    """Have runs tracked by 'mlflow' written into memory."""
    store = Listed()
    monkeypatch.setitem(tracking.STORES, "mlflow", lambda title, folder: store)
    return store


def run_words(out: Path) -> list[object]:
    some = [word for pair in FEW for word in ("--set", pair)]
    return ["run", "breast-cancer", "--out", out, *SHORT, *some]


def test_a_run_is_written_down_as_it_goes_on_and_at_its_end(
    store, run_cli, tmp_path
) -> None:
    out = tmp_path / "run"
    assert run_cli(*run_words(out), "--track", "mlflow").code == 0
    record = RunRecord.read(out)
    assert store.ends == [False]
    assert store.parameters["method"] == "less-vfl"
    assert store.parameters["train_epochs"] == "2.0"
    assert store.parameters["seeds"] == "[0, 1]"
    networks = record.header["networks"]
    files = ["record.jsonl", "report.html", "features.csv", "run.yaml", networks]
    assert store.kept == files
    at = {(name, step): value for name, value, step in store.points}
    for run in record.runs:
        final = run["accuracy"]["final"]
        assert at[f"final/accuracy/seed-{run['seed']}", 0] == final
        curve = [point["accuracy"] for point in run["curve"]]
        name = f"curve/accuracy/seed-{run['seed']}"
        assert [at[name, step + 1] for step in range(len(curve))] == curve
    finals = [run["accuracy"]["final"] for run in record.runs]
    assert at["final/accuracy/mean", 0] == pytest.approx(sum(finals) / 2)
    assert any(name == "progress/accuracy" for name, _ in at)
    assert any(name == "progress/payload_bytes" for name, _ in at)


def test_a_run_that_fails_is_written_down_as_failed(store, run_cli, tmp_path) -> None:
    words = [*run_words(tmp_path / "run"), "--set", "learning_rate=1e30"]
    assert run_cli(*words, "--track", "mlflow").code == 2
    assert store.ends == [True]


def test_a_store_that_fails_does_not_end_a_run(store) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("the server is away")

    store.add_point = fail
    with tracking.tracked("mlflow", "t", Path()) as follower:
        with pytest.warns(LessVFLWarning, match="without being tracked: the server is"):
            follower.scored(0.5, "accuracy")
        follower.finish(fake_record(), None)
    assert (store.parameters, store.ends) == ({}, [])


def test_what_a_side_does_not_know_is_not_written_down() -> None:
    """A record without scores and without others' features, as a party's is."""
    record = fake_record()
    for run in record.runs:
        for name in ("accuracy", "balanced_accuracy", "auc", "curve"):
            run.pop(name, None)
        first = next(iter(run["features"]))
        run["features"] = {first: run["features"][first]}
    names = {name for name, *_ in tracking.points(record)}
    assert not any("accuracy" in name or "auc" in name for name in names)
    assert {name.split("/")[1] for name in names if name.startswith("kept/")} == {first}


def test_an_ensemble_is_tracked_and_what_split_the_rows() -> None:
    record = fake_record(n_seeds=2)
    record.header["config"]["split"] = "stratified"
    record.header["data"]["split"] = "the latest by 'day'"
    record.ensemble = {"seeds": [0, 1], "scores": {"accuracy": 0.875}}
    assert tracking.parameters(record)["split"] == "the latest by 'day'"
    assert ("final/accuracy/ensemble", 0.875, 0) in list(tracking.points(record))


def test_names_and_missing_packages_are_one_sentence(run_cli, monkeypatch) -> None:
    said = run_cli("run", "digits", "--track", "paper")
    assert "A run is tracked by one of mlflow, tensorboard. Got 'paper'." in said.err
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install 'lessvfl\[mlflow\]'"):
        tracking.tracked("mlflow", "t", Path()).__enter__()


class Heard:
    """Somebody's own progress, in five methods."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin_seed(self, seed: int, number: int, n_seeds: int) -> None:
        self.calls.append(f"seed {seed}, {number} of {n_seeds}")

    def observe(self, event: Any) -> None:
        self.calls.append(event.stage)

    def stepped(self, stage: str, step: int, n_steps: int) -> None:
        self.calls.append("steps")

    def scored(self, value: float, name: str) -> None:
        self.calls.append(name)

    def sent(self, up: int, down: int, rounds: int) -> None:
        self.calls.append("bytes")


def test_progress_of_ones_own_hears_the_same_from_a_run_and_from_a_status() -> None:
    dataset = data.load("breast-cancer")
    settings = lessvfl.resolve("plain", "default", dataset, {"train_epochs": 1})
    job = lessvfl.Job(dataset, settings, parties=2)
    alone, following = Heard(), Heard()
    follower: Progress = following
    lessvfl.simulate(job, [3], alone)
    status = Status("", "plain", "d")
    status.followers.append(follower)
    lessvfl.simulate(job, [3], status)
    steps = {"steps", "bytes"}  # told some times a second
    heard = [[c for c in one.calls if c not in steps] for one in (alone, following)]
    assert heard[0] == heard[1]
    assert heard[0][0] == "seed 3, 1 of 1"
    assert {"train", "accuracy"} <= {*heard[0]}


# ---------------------------------------------------------------------- the real stores


@pytest.mark.long
def test_mlflow_has_parameters_curves_and_files(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    (tmp_path / "report.html").write_text("a page", encoding="utf-8")
    record = fake_record()
    with tracking.tracked("mlflow", "fake", tmp_path) as follower:
        follower.scored(0.5, "accuracy")
        follower.finish(record, tmp_path)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("lessvfl")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == record.header["method"]
    assert run.data.metrics["progress/accuracy"] == 0.5
    final = record.runs[0]["accuracy"]["final"]
    seed = record.runs[0]["seed"]
    assert run.data.metrics[f"final/accuracy/seed-{seed}"] == final
    curve = client.get_metric_history(run.info.run_id, f"curve/accuracy/seed-{seed}")
    assert len(curve) == len(record.runs[0]["curve"])
    assert "report.html" in [f.path for f in client.list_artifacts(run.info.run_id)]


def test_tensorboard_has_parameters_and_curves(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import event_accumulator

    record = fake_record()
    with tracking.tracked("tensorboard", "fake", tmp_path / "tb") as follower:
        follower.scored(0.5, "accuracy")
        follower.finish(record, None)
    found = event_accumulator.EventAccumulator(str(tmp_path / "tb"), {"tensors": 0})
    found.Reload()
    assert found.summary_metadata["_hparams_/session_start_info"]
    seed = record.runs[0]["seed"]
    name = f"curve/accuracy/seed-{seed}"
    points = found.Tensors(name)
    assert [point.step for point in points] == list(range(1, len(points) + 1))
    assert "progress/accuracy" in found.Tags()["tensors"]


def test_an_evaluation_is_written_down(store, run_cli, tmp_path) -> None:
    X, y = np.random.default_rng(0).normal(size=(90, 4)), ["ill", "well"] * 45
    pd.DataFrame(X).assign(label=y).to_csv(tmp_path / "all.csv", index=False)
    model, page = tmp_path / "run", tmp_path / "decided"
    words = ("run", tmp_path / "all.csv", "--parties", "2", "--out", model, *SHORT)
    assert run_cli(*words).code == 0
    command = ("evaluate", model, tmp_path / "all.csv", "--out", page, "--json")
    result = run_cli(*command, "--cost", "fp=1,fn=5", "--track", "mlflow")
    assert result.code == 0, result.err
    assert store.parameters["data.name"] == "all"
    assert store.parameters["cut_off.class"] in ("ill", "well")
    at = {name: value for name, value, _ in store.points}
    assert at["evaluated/auc"] == result.json["auc"]
    low = result.json["intervals"]["auc"]["low"]
    assert at["evaluated/intervals/auc/low"] == low
    assert at["evaluated/cut_off/at"] == result.json["cut_off"]["at"]
    assert store.kept == ["evaluation.html", "evaluation.json"]
    assert store.ends == [False]
