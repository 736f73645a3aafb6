"""Pages of a run of trees: trees, splits and bytes, and no word on embeddings."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.test_predict_trees import people, train

from lessvfl import data
from lessvfl.report import measures, operator, server
from lessvfl.report.page import run_page
from lessvfl.report.ratings import ratings_csv
from lessvfl.run import experiment, profiles, simulate
from lessvfl.run.record import RunRecord


def text_of(page: str) -> str:
    """Return the words of a page, without its scripts, styles and tags."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def a_run(method: str, **settings: Any) -> simulate.Run:
    dataset = data.load("breast-cancer")
    own = profiles.resolve(method, "default", dataset, settings)
    (run,) = simulate.simulate(simulate.Job(dataset, own, parties=3), [0])
    return run


@pytest.fixture(scope="module")
def between_machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    train(folder, "vertical-boost", "two classes")
    return folder


def test_a_run_counts_its_trees() -> None:
    run = a_run("vertical-boost", trees=3, select_trees=0, leaves=4)
    found = run.numbers["trees"]
    fusion: Any = run.model.fusion
    assert found["count"] == 3 == len(fusion.roots)
    nets: dict[str, Any] = {party.name: party.net for party in run.model.parties}
    own = {name: len(net.rules) for name, net in nets.items()}
    assert found["splits"] == own
    assert min(own.values()) == 0
    assert found["leaves"] == sum(own.values()) + 3
    assert "trees" not in a_run("plain", train_epochs=1).numbers


def test_a_run_counts_trees_at_one_party_each() -> None:
    run = a_run("vprf", trees=6, select_trees=0, leaves=4)
    nets: dict[str, Any] = {party.name: party.net for party in run.model.parties}
    own = {name: len(net.splits.rules) for name, net in nets.items()}
    found = run.numbers["trees"]
    assert found == {"count": 6, "leaves": sum(own.values()) + 6, "splits": own}
    assert min(own.values()) > 0


def test_pages_speak_of_trees_and_splits(between_machines) -> None:
    record = RunRecord.read(between_machines / "server")
    words = text_of(run_page(record))
    for present in ("Trees", "Splits", "MB both ways", "leaves"):
        assert present in words
    for absent in ("Embedding components", "Paper MiB", "MiB as the paper counts"):
        assert absent not in words
    paths = {measure.path for measure in measures.measures(record.runs)}
    assert {"trees.count", "trees.splits.*", "trees.leaves"} <= paths
    assert not paths & set(measures.OF_NETWORKS)
    rows = server.party_rows(record)
    own = record.runs[0]["trees"]["splits"]
    assert {row["party"]: row["splits"] for row in rows} == {
        name: str(n) for name, n in own.items()
    }
    assert own["lab"] == 0


def test_the_operators_page_has_features_by_gain(between_machines) -> None:
    record = RunRecord.read(between_machines / "clinic")
    words = text_of(operator.operator_page(record))
    assert "Gain of your features" in words
    rated = record.runs[0]["ratings"]["clinic"]["features"]
    gains = {one["feature"]: one["score"] for one in rated}
    lines = csv.DictReader(ratings_csv(record).splitlines())
    assert {line["feature"]: line["gain"] for line in lines} == {
        feature: f"{gain:.6g}" for feature, gain in gains.items()
    }
    assert set(gains) == {"age", "town"} <= set(people())
    assert min(gains.values()) > 0
    for feature, gain in gains.items():
        assert f"{feature} kept {gain:.3f}" in words
    assert "No message tells these numbers" not in words
    for other in ("server", "bank", "lab"):
        whole = (between_machines / other / "record.jsonl").read_text()
        assert not any(str(gain) in whole for gain in gains.values())


@pytest.mark.parametrize(
    ("labels", "settings", "advice"),
    [
        ("noise", {"select_trees": 2}, "everything (seed 0): a larger 'false_share'"),
        ("noise", {"select_trees": 0, "least_rows": 90}, "everything (seed 0)."),
        (
            "clear",
            {"select_trees": 20, "copies": 20, "false_share": 1.0, "trees": 30},
            "nothing (seed 0): a smaller 'false_share'",
        ),
    ],
)
def test_what_to_do_where_selection_left_all_or_nothing(labels, settings, advice):
    random = np.random.default_rng(0)
    X = random.normal(size=(160, 4))
    y = X.sum(axis=1) > 0 if labels == "clear" else random.random(160) > 0.5
    dataset = data.from_arrays(X, y.astype(int))
    own = profiles.resolve(
        "vertical-boost", "default", dataset, {"trees": 2} | settings
    )
    with pytest.warns(UserWarning, match="Selection removed") as said:
        experiment.run(simulate.Job(dataset, own, parties=2), [0])
    assert any(advice in str(warning.message) for warning in said)
