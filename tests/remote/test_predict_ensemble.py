"""Seeds that predict together, between a server and its parties."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tests.remote.test_predict import (
    HELD,
    a_party,
    a_session,
    alike,
    common,
    everybody,
    in_process,
    policy,
    the_labels,
    train,
)

from lessvfl.errors import ConfigError, PolicyError
from lessvfl.run.fitted import digest_together
from lessvfl.run.folder import load
from lessvfl.run.record import EFFECTS, RunRecord
from lessvfl.wire.control import Open

SEEDS = (0, 4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("together"), ensemble=True)


@pytest.fixture
def folder(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def mean_of_seeds(out: Path, rows):
    return np.mean([in_process(out, rows, seed) for seed in SEEDS], axis=0)


def test_seeds_answer_together(folder):
    with a_session(folder) as (predictor, _):
        assert predictor.seeds == SEEDS
        found = predictor.predict(everybody(predictor))
        assert alike(found.z, mean_of_seeds(folder, common()))
    journal = (folder / "bank" / "predictions.jsonl").read_text()
    asked = [json.loads(line) for line in journal.splitlines()]
    assert [one["seeds"] for one in asked if one.get("asked") == "predict"] == [[0, 4]]
    with a_session(folder, seed=4) as (predictor, _):  # or one of them alone
        found = predictor.predict(everybody(predictor))
        assert alike(found.z, in_process(folder, common(), 4))


def test_reasons_of_seeds_together_add_up(folder):
    """What a feature adds is the sum over seeds; the curves are of all of them."""
    every = {name: policy(reasons="features") for name in HELD}
    with a_session(folder, parties=every) as (predictor, _):
        answers, columns = predictor.explain(everybody(predictor), 2)
        means = predictor.model.means
    parts = [columns[f"contribution_{name}"] for name in HELD]
    odds = np.sum([columns["base"], *parts], axis=0)
    sign = 1 if predictor.model.positive == 1 else -1
    assert np.allclose(odds, sign * answers.z[:, 0], atol=1e-4)
    assert set(means) == set(HELD)
    for name, share in zip(HELD, parts, strict=True):
        home = pd.read_csv(folder / name / "reasons-seed-0-4.csv")
        added = home.drop(columns=["time", "id"]).sum(axis=1)
        assert np.allclose(added, share, atol=0.05)
        effects = json.loads((folder / name / EFFECTS).read_text())
        assert effects["seeds"] == [*SEEDS]
        assert effects["curves"]


def test_the_record_has_the_scores_of_all_together(trained):
    record = RunRecord.read(trained / "server")
    found = record.ensemble
    assert found is not None
    assert found["seeds"] == [*SEEDS]
    first, second = (run["auc"]["final"] for run in record.runs)
    assert min(first, second) - 0.1 < found["scores"]["auc"] <= 1
    low, high = (found["intervals"]["auc"][end] for end in ("low", "high"))
    assert low <= found["scores"]["auc"] <= high
    z = mean_of_seeds(trained, common())
    y = np.asarray(the_labels().y)[common()]
    assert roc_auc_score(y, z[:, 0]) > 0.8  # mostly training rows
    assert RunRecord.read(trained / "bank").ensemble is None


def test_a_row_counts_for_every_seed_that_predicts_it(folder):
    parties = {"bank": policy(predict_rows=10)}
    with a_session(folder, parties=parties) as (predictor, _):
        places = everybody(predictor)
        predictor.predict(places[:5])
        with pytest.raises(PolicyError, match=r"policy\.predict_rows"):
            predictor.predict(places[5:6])


def test_rows_of_a_minute_count_for_every_seed_after_a_restart(folder):
    """The journal has a row once, whoever predicts it."""
    slow = {"bank": policy(predict_rate=10)}
    with a_session(folder, parties=slow) as (predictor, _):
        places = everybody(predictor)
        predictor.predict(places[:5])
    with a_session(folder, parties=slow) as (predictor, _):
        with pytest.raises(PolicyError, match=r"policy\.predict_rate"):
            predictor.predict(places[5:6])


@pytest.mark.parametrize("seeds", [(), (0, 0), (0, 1), (4, 0)])
def test_a_party_answers_for_seeds_that_it_was_trained_with(trained, seeds):
    party = a_party("bank", trained)
    try:
        known = {one["seed"]: one["models"]["server"] for one in party.record.runs}
        digest = digest_together([known.get(seed, "") for seed in seeds])
        run = party.record.header["run"]
        with pytest.raises(ConfigError, match="'bank' must be used with the run fol"):
            party.handle(Open(run, seeds, "0" * 32, digest, "psi"))
    finally:
        party.close()


def test_the_model_of_a_server_is_that_of_all_seeds(trained):
    whole, first = (load(trained / "server", seed) for seed in (None, 0))
    assert sum(whole.sizes) > sum(first.sizes)
    assert whole.party_names == (*HELD,)
