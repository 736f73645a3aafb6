"""Missing cells that tell something: people without a record at the bureau."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

import lessvfl
from lessvfl import data
from lessvfl.run import experiment, simulate
from lessvfl.run.export import party_file
from lessvfl.run.folder import save
from lessvfl.run.profiles import PROFILES, resolve
from lessvfl.run.simulate import Job
from lessvfl.select.moments import Moments, shadow_scores

N = 2000
BUREAU = ("late", "refused", "insolvent")  # counts, most of them 0
PARTIES = {"bank": ["income", "age", "noise_*"], "bureau": [*BUREAU, "other_*"]}


def no_record(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Make applicants: three columns are empty together, mostly of those who fail.

    What is written there tells nothing.
    """
    rng = np.random.default_rng(seed)
    names = ["income", "age", *(f"noise_{i}" for i in range(4))]
    names += [f"other_{i}" for i in range(4)]
    table = pd.DataFrame(rng.normal(size=(N, len(names))), columns=names)
    for name in BUREAU:
        table[name] = rng.poisson(0.15, N).astype(float)
    absent = rng.random(N) < 0.25
    chance = -1.2 + 2.4 * absent + 0.6 * table["income"] - 0.4 * table["age"]
    y = rng.random(N) < 1 / (1 + np.exp(-chance))
    table.loc[absent, list(BUREAU)] = np.nan
    return table, np.where(y, "fails", "pays")


def job_of(**given: Any) -> Job:
    dataset = data.from_arrays(*no_record())
    own = {"split": "stratified"} | given
    settings = resolve("less-vfl-auto", "default", dataset, own)
    return Job(dataset, settings, parties=PARTIES)


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """Run the same table with flags, as is usual, and without.

    Squares are off there, since they find that a column has its mean in many rows.
    """
    fill = {"missing": "fill", "pairs": False}
    ways: dict[str, dict[str, Any]] = {"flag": {}, "fill": fill}
    return {way: simulate.simulate(job_of(**own), [0])[0] for way, own in ways.items()}


def test_what_is_missing_tells_something(runs):
    flag, fill = (runs[way].numbers["auc"]["final"] for way in ("flag", "fill"))
    assert fill < 0.7
    assert flag > 0.78


def test_columns_missing_together_are_found_and_every_score_is_finite(runs):
    """Their flags are equal: one of the three is enough, and none breaks anything."""
    kept = runs["flag"].model.features["bureau"]
    assert kept
    assert set(kept) <= set(BUREAU)
    assert not set(runs["fill"].model.features["bureau"]) & set(BUREAU)
    scores = runs["flag"].numbers["selection"]["bureau"]["scores"]
    assert np.isfinite(list(scores.values())).all()
    assert min(scores[name] for name in BUREAU) > 0


def test_a_flag_is_kept_and_removed_with_its_feature(runs):
    party = runs["flag"].model.parties[1]
    before = runs["flag"].problem.parties[1]
    assert before.X_train.shape[1] == len(before.features) + 3 == 7 + 3
    assert np.bincount(before.groups).tolist() == [2, 2, 2, 1, 1, 1, 1]
    assert [column.flag for column in party.encoding.columns] == [True] * len(
        party.kept
    )
    assert len(party.net.column_slots) == 2 * len(party.kept)


def test_shadows_scramble_value_and_flag_together():
    """A shadow of a group is that of the same columns in one other order of rows."""
    rng = torch.Generator().manual_seed(0)
    value = torch.randn(400, 1, generator=rng)
    flag = (torch.rand(400, 1, generator=rng) < 0.2).float()
    X, Z = torch.hstack([value * (1 - flag), flag]), torch.randn(400, 2, generator=rng)
    moments = Moments.of(X, Z, torch.zeros(2, dtype=torch.long))
    found = shadow_scores(moments, moments.Z, 5, torch.Generator().manual_seed(1))
    again = torch.Generator().manual_seed(1)
    for one in found[:, 0]:
        rows = torch.randperm(400, generator=again).argsort()
        own = Moments.of(X[rows], Z, torch.zeros(2, dtype=torch.long))
        assert one == pytest.approx(float(own.scores(own.C)[0]), rel=1e-4)


def test_all_bytes_are_the_same_where_steps_are():
    found = []
    for missing in ("flag", "fill"):
        dataset = data.from_arrays(*no_record())
        given = {"train_epochs": 1, "missing": missing, "batch_size": 200}
        job = Job(dataset, resolve("plain", "default", dataset, given), PARTIES)
        found.append(simulate.simulate(job, [0])[0].numbers["communication"])
    assert found[0] == found[1]


def test_published_profiles_fill_in_alone():
    dataset = data.from_arrays(*no_record())
    ways = [resolve("less-vfl", profile, dataset).data.missing for profile in PROFILES]
    assert ways == ["flag", "fill", "fill"]


def marked() -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Make the same applicants, with numbers and words where cells were empty."""
    table, y = no_record()
    table["late"] = table["late"].fillna(-999)
    table["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(N) % 500, "D")
    table.loc[table["refused"].isna(), "day"] = pd.Timestamp("2200-01-01")
    table["grade"] = np.where(table["refused"].isna(), "unknown", "A")
    return table[["income", "age", "late", "day", "grade"]], y


MARKS = {"*": -999, "day": "2200-01-01", "grade": ["unknown"]}


def test_a_saved_model_and_its_graph_read_marks_as_missing(tmp_path):
    table, y = marked()
    dataset = data.from_arrays(table, y)
    given = {"missing_values": MARKS, "train_epochs": 1, "batch_size": 200}
    settings = resolve("plain", "default", dataset, given)
    record, runs = experiment.run(Job(dataset, settings, parties={"all": ["*"]}), [0])
    assert record.header["data"]["n_missing"] == record.header["data"]["n_flagged"] > 0
    assert record.header["config"]["missing_values"] == MARKS
    save(tmp_path, record, runs)
    model = lessvfl.load(tmp_path)
    empty = table.astype({"late": float, "grade": object})
    empty.loc[empty["late"] == -999, ["late", "day", "grade"]] = None
    expected = runs[0].model.predict_proba(table)
    np.testing.assert_array_equal(model.predict_proba(table), expected)
    np.testing.assert_array_equal(model.predict_proba(empty), expected)
    (party,) = model.parties
    assert {c.name for c in party.encoding.columns if c.flag} == {
        "late",
        "day",
        "grade",
    }
    graph = onnxruntime.InferenceSession(party_file(party, "onnx"))
    days = (table["day"] - pd.Timestamp(0)).dt.days.to_numpy(float)
    cells = {"day": days, "grade": table["grade"].to_numpy(object)}
    feed = {
        name: np.asarray(cells.get(name, table[name]))[:, None]
        for name in party.encoding.names
    }
    (h,) = graph.run(None, feed)
    own = party.embed(data.frame_of(table)).numpy()
    np.testing.assert_allclose(h, own, atol=1e-5)
    feed["late"] = np.where(feed["late"] == -999, np.nan, feed["late"])
    feed["grade"] = np.where(feed["grade"] == "unknown", "", feed["grade"])
    np.testing.assert_array_equal(graph.run(None, feed)[0], h)
