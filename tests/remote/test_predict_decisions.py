"""A server's predictions and labels: joined, decided on, and applied afterwards."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from tests.remote.test_predict import (
    IDS,
    a_service,
    a_session,
    common,
    in_process,
    the_labels,
    train,
)

from lessvfl import load
from lessvfl.data import write_table
from lessvfl.errors import RecordError

COST = ("--cost", "fp=1,fn=5")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a run of two seeds, with predictions and labels."""
    out = train(tmp_path_factory.mktemp("trained"))
    predict(out, "predictions.csv")
    own = the_labels()
    places = np.array(["north", "south"])[np.arange(len(IDS)) % 2]
    found = {"id": IDS, "label": np.array(own.label_names)[own.y], "place": places}
    pd.DataFrame(found)[::-1].to_csv(out / "labels.csv", index=False)
    return out


@pytest.fixture
def folder(trained, tmp_path):
    """Return a copy of it that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def predict(folder: Path, name: str, **more: Any) -> pd.DataFrame:
    """Predict all ids in a batch, between threads, as the command does."""
    with a_session(folder, **more) as (predictor, _):
        table, _, _ = predictor.answer(IDS.tolist())
    write_table(folder / "server" / name, table)
    return pd.read_csv(folder / "server" / name)


def evaluate(run_cli: Any, folder: Path, *more: object) -> Any:
    command = ("evaluate", folder / "server", folder / "labels.csv", "--json")
    result = run_cli(*command, *more)
    assert result.code == 0, result.err
    return result.json


def right_of(folder: Path) -> tuple[Any, Any]:
    """Return which common rows are ill, and their probability as trained."""
    own = the_labels()
    hits = np.array(own.label_names)[own.y[common()]] == "ill"
    server = load(folder / "server", as_trained=True)
    p = server.probabilities(in_process(folder, common()))
    return hits, p[:, server.label_names.index("ill")]


def test_predictions_and_labels_are_joined_by_their_ids(run_cli, folder, tmp_path):
    found = evaluate(run_cli, folder, "--by", "place", "--out", tmp_path / "to", *COST)
    hits, p = right_of(folder)
    assert found["data"] == {"name": "labels", "n_rows": len(common())}
    assert found["model"]["seed"] == 0
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(hits, p))
    assert found["accuracy"] == pytest.approx(((p > 0.5) == hits).mean())
    assert found["joined"] == {
        "predictions": "predictions.csv",
        "without_prediction": len(IDS) - len(common()),
        "without_label": 0,
        "partial": 0,
    }
    assert found["imputed"] is found["unseen"] is None
    groups = found["groups"]["groups"]
    assert [one["group"] for one in groups] == ["north", "south"]
    north = np.array(common()) % 2 == 0
    area = metrics.roc_auc_score(hits[north], p[north])
    assert groups[0]["auc"] == pytest.approx(area)
    assert (tmp_path / "to" / "evaluation.html").is_file()
    assert "as the run had" in found["warnings"][0]  # they are its own


def test_classes_that_are_numbers_are_joined(run_cli, folder, tmp_path):
    """Counts of them were NumPy's, which no record and no JSON has."""
    path = folder / "server" / "predictions.csv"
    table = pd.read_csv(path)
    table["prediction"] = table["prediction"].map({"ill": 1.0, "well": 0.0})
    table.to_csv(path, index=False)
    found = evaluate(run_cli, folder, "--out", tmp_path / "to")
    assert found["joined"]["without_label"] == 0
    assert (tmp_path / "to" / "evaluation.html").is_file()


@pytest.mark.parametrize("kind", ["isotonic", "platt"])
def test_later_predictions_apply_what_was_kept(run_cli, folder, caplog, kind):
    """In a batch and by the service; the file tells what the network itself says."""
    options = ("--recalibrate", kind, *COST, "--keep")
    kept = evaluate(run_cli, folder, *options)["kept"]
    before = pd.read_csv(folder / "server" / "predictions.csv")
    with caplog.at_level(logging.INFO):
        after = predict(folder, "later.csv")
    assert f"applies a recalibration ({kind}) and a cut-off" in caplog.text
    at = common()
    both = [f"uncalibrated_{name}" for name in ("ill", "well")]
    shown = [f"probability_{name}" for name in ("ill", "well")]
    assert np.allclose(after[both].iloc[at], before[shown].iloc[at], atol=1e-5)
    assert not np.allclose(after[shown].iloc[at], before[shown].iloc[at], atol=1e-3)
    model = load(folder / "server")
    share = model.probabilities(in_process(folder, at))
    place = model.label_names.index("ill")
    assert np.allclose(after["probability_ill"].iloc[at], share[:, place], atol=1e-5)
    taken = after["probability_ill"].iloc[at] > kept["cut_off"]
    assert np.array_equal(after["prediction"].iloc[at] == "ill", taken)
    with a_service(folder) as (client, _):
        said = client.post("/predict", json={"ids": IDS[at[:5]].tolist()}).json()
        schema = client.get("/openapi.json").json()["components"]["schemas"]
    (own,) = [schema["Predictions"]["properties"]["decision"]]
    assert set(own["required"]) == set(own["properties"]) == set(said["decision"])
    assert said["decision"] == {k: v for k, v in kept.items() if k != "file"}
    for one, row in zip(said["predictions"], at, strict=False):
        close = pytest.approx(after["probability_ill"][row], abs=1e-5)
        assert one["probabilities"]["ill"] == close
        assert one["prediction"] == after["prediction"][row]


def test_files_of_before_and_after_are_evaluated_alike(run_cli, folder):
    """What the network says is in both, and what is kept is applied to it."""
    first = evaluate(run_cli, folder, "--recalibrate", "isotonic", *COST, "--keep")
    predict(folder, "later.csv")
    late = ("--predictions", folder / "server" / "later.csv")
    found = [evaluate(run_cli, folder, *more) for more in ((), late)]
    for name in ("auc", "brier", "accuracy"):
        assert found[0][name] == pytest.approx(found[1][name], abs=1e-3)
    said = {name: one for name, one in first["kept"].items() if name != "file"}
    assert found[0]["applied"] == found[1]["applied"] == said
    again = evaluate(run_cli, folder, "--recalibrate", "isotonic", *COST, *late)
    assert again["cut_off"]["cost"] == first["cut_off"]["cost"]
    assert again["brier"] == pytest.approx(first["brier"], abs=1e-5)


def test_rows_that_a_cut_off_was_chosen_on_are_known_again(run_cli, folder):
    """By digests of their ids, which are not in the file that is kept."""
    labels, at = pd.read_csv(folder / "labels.csv"), IDS[common()]
    first, rest = at[: len(at) // 2], at[len(at) // 2 :]
    command = ("evaluate", folder / "server", folder / "labels.csv", "--json")

    def told(*ids, more=()):
        own = labels[labels["id"].isin([one for some in ids for one in some])]
        own.to_csv(folder / "labels.csv", index=False)
        return " ".join(run_cli(*command, *more).json["warnings"])

    told(first, more=(*COST, "--keep"))
    (file,) = (folder / "server").rglob("decision.json")
    text = file.read_text()
    assert not any(f'"{one}"' in text for one in at)
    assert f"chosen on 9 of these {9 + len(rest)} rows" in told(first[:9], rest)
    assert "chosen on these very rows" in told(first[:9])
    assert "chosen on" not in told(rest)
    found = json.loads(text)
    del found["rows"]  # as an earlier version kept it
    file.write_text(json.dumps(found))
    assert "chosen on" not in told(first[:9])
    assert "chosen on these very rows" in told(first)
    file.write_text(json.dumps(found | {"rows": "AAAA"}))
    assert "Got this: 3 bytes of rows" in run_cli(*command).err


def test_ids_that_lost_their_zeros_are_not_left_out(run_cli, folder):
    for name, column, width in (
        ("labels.csv", "id", 1),
        ("server/predictions.csv", "id", 3),
    ):
        table = pd.read_csv(folder / name, dtype=str)
        table[column] = [f"{i:0{width}}" for i in range(95, 95 + len(table))]
        table.to_csv(folder / name, index=False)
    result = run_cli("evaluate", folder / "server", folder / "labels.csv")
    assert result.code == 2
    assert "Got 5 ids with other zeros before" in result.err
    assert "write its ids out again as texts." in result.err


def test_rows_that_cannot_be_joined_are_counted(run_cli, folder):
    at, away = common(), len(IDS) - len(common())
    path = folder / "server" / "predictions.csv"
    table = pd.read_csv(path)
    table["partial"] = table["partial"].astype(object)
    table.loc[at[:3], "partial"] = True
    table.to_parquet(path.with_suffix(".parquet"))
    table.to_csv(path, index=False)
    labels = pd.read_csv(folder / "labels.csv")
    labels[~labels["id"].isin(IDS[at[3:8]])].to_csv(folder / "labels.csv", index=False)
    for more in ((), ("--predictions", path.with_suffix(".parquet"))):
        found = evaluate(run_cli, folder, *more)
        assert found["joined"] | {"predictions": ""} == {
            "predictions": "",
            "without_prediction": away,
            "without_label": 5,
            "partial": 3,
        }
        assert found["notes"] == [
            f"{away} rows with a label and no prediction left out.",
            "5 predictions without a label left out.",
            "3 predictions partial: the mean of a party stands for it.",
        ]


def test_another_network_refuses_what_was_kept(run_cli, folder):
    file = Path(evaluate(run_cli, folder, *COST, "--keep")["kept"]["file"])
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found | {"model": "0" * 64}))
    command = ("evaluate", folder / "server", folder / "labels.csv")
    refused = run_cli(*command)
    assert (refused.code, refused.out) == (2, "")
    assert "kept for another network: remove the file" in refused.err
    with (
        pytest.raises(RecordError, match="kept for another network"),
        a_session(folder),
    ):
        pass
    file.unlink()
    assert run_cli(*command).code == 0


def test_predictions_say_whose_model_they_are_of(run_cli, folder):
    predict(folder, "predictions.csv", seed=4)
    found = evaluate(run_cli, folder, *COST, "--keep")
    assert found["model"]["seed"] == 4
    assert load(folder / "server", 4).decision is not None
    assert load(folder / "server", 0).decision is None


def spoil(name: str, change: Any) -> Any:
    def make(folder: Path) -> None:
        path = folder / name
        change(pd.read_csv(path)).to_csv(path, index=False)

    return make


PREDICTIONS = "server/predictions.csv"


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (
            spoil(PREDICTIONS, lambda t: t.assign(model="f" * 16)),
            (),
            "must be of one model of",
        ),
        (
            spoil(PREDICTIONS, lambda t: t.drop(columns="model")),
            (),
            "Got a file without the column 'model'.",
        ),
        (
            spoil(PREDICTIONS, lambda t: t.assign(probability_ill=0.9)),
            (),
            "The probabilities of a row must add up to 1",
        ),
        (
            spoil(PREDICTIONS, lambda t: t.drop(columns="probability_ill")),
            (),
            "must have the column 'probability_ill'",
        ),
        (
            spoil(PREDICTIONS, lambda t: pd.concat([t, t[:1]])),
            (),
            "An id must stand in one row of",
        ),
        (
            spoil("labels.csv", lambda t: t.assign(id="x" + t["id"])),
            (),
            "must have a prediction in",
        ),
        (
            spoil("labels.csv", lambda t: t.assign(label="odd")),
            (),
            "must be classes of the model: ill, well. Got 'odd'.",
        ),
        (
            spoil("labels.csv", lambda t: t.drop(columns="id")),
            (),
            "The ids of",
        ),
        (lambda folder: (folder / PREDICTIONS).unlink(), (), "Got no such file."),
        (lambda folder: None, ("--seed", "4"), "that of the predictions, 0. Got 4"),
        (lambda folder: None, ("--inference", "fed-eini"), "'lessvfl predict server'"),
    ],
)
def test_a_server_is_refused(run_cli, folder, change, options, sentence):
    change(folder)
    command = ("evaluate", folder / "server", folder / "labels.csv", *options)
    result = run_cli(*command)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1


def test_a_party_has_no_labels_to_score(run_cli, folder):
    result = run_cli("evaluate", folder / "clinic", folder / "labels.csv")
    assert result.code == 2
    assert "Got that of a party." in result.err
