"""Joint prediction with trees: in-process numbers, and the run's own test scores."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from tests.remote.test_predict import Side, a_hub

from lessvfl import data, load
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import Policy
from lessvfl.remote.predict import PredictingParty, Predictor
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable
from lessvfl.run import profiles, simulate
from lessvfl.run.record import RunRecord
from lessvfl.status import Status

N = 240
IDS = np.array([f"person-{i}" for i in range(N)])
HELD = {"clinic": ("age", "town"), "bank": ("income", "noise"), "lab": ("dust",)}
POLICY = Policy(
    methods=("vertical-boost", "vertical-forest"),
    components_per_column=500,
    values=100_000,
    limits={"bits": None},
)
SMALL = {"trees": 4, "select_trees": 4, "copies": 20, "least_rows": 5, "tree_depth": 4}
TASKS = ("two classes", "five classes", "amounts")


@functools.cache
def people() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    towns = np.array(["Ulm", "Bonn", "Jena", "Kiel"], dtype=object)
    found = {
        "age": rng.normal(50, 15, N),
        "town": rng.choice(towns, N),
        "income": rng.standard_t(2, N) * 1000,
        "noise": rng.normal(size=N),
        "dust": np.where(np.arange(N) < SMALL["least_rows"] - 1, 1.0, 0.0),  # no split
    }
    found["age"][::7] = np.nan
    found["town"][5::19] = None
    return pd.DataFrame(found)


def strangers() -> pd.DataFrame:
    """Return the same people with cells as no training row has them."""
    found = people().copy()
    found.loc[::3, "town"] = "Trier"
    found.loc[1::5, "income"] = np.nan
    found.loc[2::9, "age"] = 1e9
    return found


def told(task: str) -> Any:
    """Return the labels: age, town and income act on them; dust and noise do not."""
    own = people()
    score = np.nan_to_num((own["age"] - 50) / 15) + 2.0 * (own["town"] == "Bonn")
    score = np.asarray(score + np.clip(own["income"] / 1000, -2, 2))
    if task == "amounts":
        return score
    classes = np.digitize(score, np.quantile(score, [0.2, 0.4, 0.6, 0.8]))
    return np.where(classes > 2, "ill", "well") if task == "two classes" else classes


def frame(table: pd.DataFrame, name: str) -> data.Frame:
    return data.frame_of(table[list(HELD[name])])


def config_of(name: str, out: Path) -> PartyConfig:
    return PartyConfig(out=str(out / name), align="none", policy=POLICY)


def train(out: Path, method: str, task: str) -> RunRecord:
    """Train between a server and three parties, whose folders are in `out`."""
    labels = data.from_arrays(np.zeros((N, 1)), told(task), name="people")
    with a_hub(HELD) as hub:
        sides = [
            Side(
                PartyProcess(name, config_of(name, out), frame(people(), name), IDS),
                hub.port,
            )
            for name in HELD
        ]
        status = Status("run", method, "people", tuple(HELD))
        server = ServerProcess(
            server_config(out, method), LabelTable(labels, ids=IDS), hub, status
        )
        record = server.run()
        server.close()
    for side in sides:
        side.end()
    return record


def server_config(out: Path, method: str) -> ServerConfig:
    own: dict[str, Any] = {"align": "none", "wait": 20.0}
    own |= {"method": method, "settings": SMALL, "seeds": (0,)}
    return ServerConfig(parties=tuple(HELD), out=str(out / "server"), **own)


def predicted(out: Path, method: str, table: pd.DataFrame) -> Any:
    """Return what a server and three parties say of all rows together."""
    with a_hub(HELD) as hub:
        sides = [
            Side(
                PredictingParty(name, config_of(name, out), frame(table, name), IDS),
                hub.port,
            )
            for name in HELD
        ]
        predictor = Predictor(server_config(out, method), IDS, hub)
        try:
            predictor.begin()
            places, missing = predictor.places([str(name) for name in IDS])
            assert missing == []
            return predictor.predict(places).z
        finally:
            predictor.close()
            hub.close()
            for side in sides:
                side.end()


def in_process(out: Path, table: pd.DataFrame) -> Any:
    """Return what the parts of all sides say, loaded into this process."""
    blocks = [load(out / name, 0).embed(frame(table, name)) for name in HELD]
    return load(out / "server", 0).fuse(blocks, N)


def rows_of_test(task: str, method: str) -> Any:
    """Return which rows a run with this seed tests on."""
    labels = told(task)
    dataset = data.from_arrays(people(), labels, name="people")
    own = profiles.resolve(method, "default", dataset, SMALL)
    problem = simulate.Job(dataset, own, parties=HELD).problem(0)
    assert problem.frames is not None
    tested = problem.frames[1]
    held = set(tested.numeric[:, tested.names.index("noise")])
    return np.flatnonzero(people()["noise"].isin(held))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", ["vertical-boost", "vertical-forest"])
def test_trees_predict_as_in_one_process(tmp_path, method, task):
    """Missing cells, categories never seen, and a party without any split."""
    record = train(tmp_path, method, task)
    assert load(tmp_path / "lab", 0).kept == ()
    for table in (people(), strangers()):
        z = predicted(tmp_path, method, table)
        np.testing.assert_array_equal(z, in_process(tmp_path, table))
        assert len(np.unique(z)) > 10
    server = load(tmp_path / "server", 0)
    answers = server.answers(in_process(tmp_path, people()))
    rows = rows_of_test(task, method)
    score = metrics.r2_score if task == "amounts" else metrics.accuracy_score
    name = "r2" if task == "amounts" else "accuracy"
    right = np.asarray(told(task)).astype(answers.dtype)
    assert score(right[rows], answers[rows]) == pytest.approx(
        record.runs[0][name]["final"], abs=1e-6
    )
