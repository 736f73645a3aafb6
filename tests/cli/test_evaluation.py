"""What a model is worth and how it decides: the command, its page, what is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from tests.report import reader
from tests.test_docs import named_rows, read

import lessvfl
from lessvfl.errors import RecordError

N, N_TRAIN = 1300, 500
COST = ("--cost", "fp=1,fn=20")


def a_table(task: str) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    table = pd.DataFrame({f"lab_{i}": rng.normal(size=N) for i in range(4)})
    table["place"] = rng.choice(["north", "south"], N)
    table.loc[N_TRAIN : N_TRAIN + 40, "place"] = "west"
    score = table["lab_0"] + table["lab_3"] + rng.normal(size=N)
    names = np.array(["low", "mid", "high"])
    labels: dict[str, Any] = {
        "binary": np.where(score > 1.8, "ill", "well"),
        "multiclass": names[np.digitize(score, [-1, 1])],
        "regression": 100 + 20 * score,
    }
    return table.assign(label=labels[task])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for runs that several tests look at, one for every task."""
    return tmp_path_factory.mktemp("done")


@pytest.fixture
def a_run(run_cli, done: Path, tmp_path: Path):
    """Return a function that gives a run's folder, and one of later rows."""

    def run(task: str = "binary") -> tuple[Path, Path]:
        own = done / task
        if not own.exists():
            own.mkdir()
            table = a_table(task)
            table[:N_TRAIN].drop(columns="place").to_csv(own / "all.csv", index=False)
            table[N_TRAIN:].to_csv(own / "late.csv", index=False)
            how = ("--method", "plain", "--set", "train_epochs=4", "--quiet")
            command = ("run", own / "all.csv", *how, "--parties", "2")
            result = run_cli(*command, "--out", own / "run")
            assert result.code == 0, result.err
        shutil.copytree(own, tmp_path, dirs_exist_ok=True)
        return tmp_path / "run", tmp_path / "late.csv"

    return run


def scored(folder: Path, path: Path) -> tuple[Any, Any]:
    """Return which rows are positive, and their probabilities as trained."""
    model, table = lessvfl.load(folder, as_trained=True), pd.read_csv(path)
    p = model.predict_proba(table)[:, list(model.label_names).index("ill")]
    return (table["label"] == "ill").to_numpy(), p


def test_numbers_of_two_classes(run_cli, a_run):
    folder, path = a_run()
    found = run_cli("evaluate", folder, path, "--json", *COST, "--by", "place").json
    hits, p = scored(folder, path)
    area = metrics.roc_auc_score(hits, p)
    assert found["auc"] == pytest.approx(area)
    assert found["gini"] == pytest.approx(2 * area - 1)
    assert found["positive"] == "ill"
    costs = [
        (p[~hits] > cut).sum() + 20 * (p[hits] <= cut).sum()
        for cut in (0, *np.unique(p))
    ]
    cut = found["cut_off"]
    assert min(costs) <= cut["cost"] <= 1.2 * min(costs)
    assert cut["cost_of_nobody"] == 20 * hits.sum()
    taken = p > cut["at"]
    assert (~hits & taken).sum() + 20 * (hits & ~taken).sum() == min(costs)
    groups = {one["group"]: one for one in found["groups"]["groups"]}
    own = (pd.read_csv(path)["place"] == "south").to_numpy()
    assert groups["south"]["auc"] == pytest.approx(
        metrics.roc_auc_score(hits[own], p[own])
    )
    assert found["groups"]["few"] == ["west"]
    assert (found["kept"], found["applied"], found["joined"]) == (None, None, None)


def test_what_is_kept_is_applied_from_then_on(run_cli, a_run, tmp_path):
    folder, path = a_run()
    hits, p = scored(folder, path)
    how = ("--recalibrate", "isotonic", *COST)
    kept = run_cli("evaluate", folder, path, *how, "--keep", "--json").json
    assert kept["applied"] is None
    said = {"recalibration": "isotonic", "class": "ill", "aim": "cost fp=1, fn=20"}
    said["cut_off"] = kept["cut_off"]["at"]
    file = Path(kept["kept"].pop("file"))
    assert kept["kept"] == said
    # In Python, in another evaluation, but not in an export.
    model, table = lessvfl.load(folder), pd.read_csv(path)
    now = model.predict_proba(table)[:, list(model.label_names).index("ill")]
    assert not np.allclose(now, p)
    assert metrics.brier_score_loss(hits, now) < metrics.brier_score_loss(hits, p)
    taken = model.predict(table) == "ill"
    assert np.array_equal(taken, now > said["cut_off"])
    again = run_cli("evaluate", folder, path, "--json")
    assert again.json["applied"] == said
    assert again.json["decisions"]["tp"] == (taken & hits).sum()
    assert again.json["decisions"]["at"] == pytest.approx(said["cut_off"])
    assert again.json["brier"] == pytest.approx(metrics.brier_score_loss(hits, now))
    assert "was chosen on these very rows" in again.warnings[0]
    table[:400].to_csv(tmp_path / "others.csv", index=False)
    others = run_cli("evaluate", folder, tmp_path / "others.csv")
    assert "Applied as kept: a recalibration (isotonic) and a cut-off" in others.out
    assert "was chosen on these very rows" in others.warnings[0]
    moved = table[:400].assign(**{table.columns[0]: table[table.columns[0]][:400] + 1})
    pd.concat([moved, table[:3]]).to_csv(tmp_path / "others.csv", index=False)
    some = run_cli("evaluate", folder, tmp_path / "others.csv")
    assert "was chosen on 3 of these 403 rows" in some.warnings[0]
    moved.to_csv(tmp_path / "others.csv", index=False)
    assert run_cli("evaluate", folder, tmp_path / "others.csv").warnings == []
    assert (model.threshold, model.rule is None) == (None, False)
    export = run_cli("export", folder, "--format", "safetensors")
    assert "not in these files: a recalibration (isotonic)" in export.err
    # A new cut-off leaves the recalibration; a new one takes the place of both.
    more = run_cli("evaluate", folder, path, "--rate", "0.1", "--keep", "--json").json
    assert more["kept"]["recalibration"] == "isotonic"
    last = ("--recalibrate", "platt", "--keep", "--json")
    fresh = run_cli("evaluate", folder, path, *last).json
    assert (fresh["kept"]["recalibration"], fresh["kept"]["aim"]) == ("platt", None)
    assert fresh["brier"] == pytest.approx(metrics.brier_score_loss(hits, p))
    file.unlink()
    assert np.allclose(lessvfl.load(folder).predict_proba(table), _both(model, p))


def test_a_cut_off_of_other_classes_is_refused(run_cli, a_run):
    folder, path = a_run()
    kept = run_cli("evaluate", folder, path, *COST, "--keep", "--json").json["kept"]
    file = Path(kept["file"])
    found = json.loads(file.read_text()) | {"threshold": [0.2, 0.3, 0.5]}
    file.write_text(json.dumps(found))
    wrong = "must be of the 2 classes of its model. Got one of 3."
    refused = run_cli("evaluate", folder, path)
    assert (refused.code, wrong in refused.err) == (2, True)
    with pytest.raises(RecordError, match=wrong):
        lessvfl.load(folder)


def _both(model: Any, p: Any) -> Any:
    """Return the probabilities of both classes."""
    first = list(model.label_names).index("ill") == 0
    return np.stack([p, 1 - p] if first else [1 - p, p], axis=1)


def test_what_is_kept_is_of_one_network(run_cli, a_run):
    """All parts count: another party's network is another model."""
    folder, path = a_run()
    assert run_cli("evaluate", folder, path, "--rate", "0.1", "--keep").code == 0
    (other,) = folder.glob("networks-*/seed-0/party1/party.json")
    other.write_text(f"{other.read_text()} ")
    refused = run_cli("evaluate", folder, path)
    assert refused.code == 2
    assert "kept for another network: remove the file" in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_other_tasks(run_cli, a_run, tmp_path, task):
    folder, path = a_run(task)
    out = ("--out", tmp_path / "page", "--by", "place")
    more = ("--recalibrate", "platt", "--keep") if task == "multiclass" else ()
    result = run_cli("evaluate", folder, path, "--json", *out, *more)
    assert result.code == 0, result.err
    found = result.json
    assert len(found["calibration"]) == 10
    assert found["groups"]["few"] == ["west"]
    assert "decisions" not in found
    assert (tmp_path / "page" / "evaluation.html").is_file()
    refused = run_cli("evaluate", folder, path, *COST)
    assert refused.code == 2
    assert "A cut-off needs" in refused.err
    if task == "multiclass":
        means = [one["gini"] for one in found["classes"]]
        assert found["gini"] == pytest.approx(np.mean(means))
        model, table = lessvfl.load(folder), pd.read_csv(path)
        before = lessvfl.load(folder, as_trained=True).predict_proba(table)
        y = table["label"]
        now = model.predict_proba(table)
        names = list(model.label_names)
        after = metrics.log_loss(y, now, labels=names)
        assert after < metrics.log_loss(y, before, labels=names)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--keep"], "With --keep there must be something to keep"),
        (["--rate", "2"], "The 'rate' option must be between 0 and 1. Got 2."),
        (["--cost", "20"], "must be two costs above 0, as in fp=1,fn=20"),
        (["--rate", "0.1", "--precision", "0.5"], "Got --rate and --precision."),
        (["--recalibrate", "beta"], "must be one of isotonic, platt. Got 'beta'."),
        (["--by", "town"], "The groups of"),
        (["--by", "lab_0"], "must have at most 20 values to be scored by. Got 800."),
        (["--predictions", "x.csv"], "whose model predicts by itself"),
        (["--precision", "0.9999"], "must have a precision of 0.9999 on the rows"),
        (["--out", "late.csv/page"], "must be a folder that can be written to"),
    ],
)
def test_evaluate_refuses(run_cli, a_run, monkeypatch, tmp_path, options, sentence):
    folder, path = a_run()
    monkeypatch.chdir(tmp_path)
    if "--precision" in options[:1]:  # the most likely rows are of the other class
        table = pd.read_csv(path)
        _, p = scored(folder, path)
        table.loc[np.argsort(p)[-5:], "label"] = "well"
        table.to_csv(path, index=False)
    result = run_cli("evaluate", folder, path, *options)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1


def test_in_words(run_cli, a_run):
    folder, path = a_run()
    how = ("--recalibrate", "platt", *COST, "--by", "place")
    result = run_cli("evaluate", folder, path, *how)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "800 rows of 'late'"
    for start in ("KS: 0.", "Gini: 0.", "lift of the first tenth: ", "as it is: "):
        assert any(line.startswith(start) for line in lines), start
    assert any(
        line.startswith("cut-off for 'ill' by cost fp=1, fn=20") for line in lines
    )
    assert "Brier score, platt: " in result.out
    assert "chosen on 4 of 5 folds of the rows and reported on the other" in result.out
    assert result.warnings == [
        "Groups of 'place' with fewer than 100 rows, whose numbers say little: 'west'."
    ]


def test_rows_of_the_run_are_noticed(run_cli, a_run):
    """A cut-off by training rows is of no use; later rows are not suspected."""
    folder, path = a_run()
    own = run_cli("evaluate", folder, path.with_name("all.csv"))
    assert [line[:41] for line in own.warnings] == [
        "There are as many rows of each class as t"
    ]
    assert run_cli("evaluate", folder, path).warnings == []
    amounts, path = a_run("regression")
    own = run_cli("evaluate", amounts, path.with_name("all.csv"))
    assert (own.code, own.warnings) == (0, [])


def test_a_page_with_its_numbers(run_cli, a_run, tmp_path):
    folder, path = a_run()
    how = ("--recalibrate", "platt", *COST, "--by", "place", "--out", tmp_path / "to")
    result = run_cli("evaluate", folder, path, *how, "--json")
    text = (tmp_path / "to" / "evaluation.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "to" / "evaluation.json").read_text()) == result.json
    reader.read_whole(text)
    for title in ("ROC curve", "Lift", "Calibration", "Cost", "Precision and recall"):
        assert f"<h2>{title}</h2>" in text
    assert text.count("<svg") == 5
    for sentence in (*result.json["notes"], *result.json["warnings"]):
        assert sentence.replace("'", "&#39;") in text
    assert f"{result.json['cut_off']['cost']:,.0f}" in text


def test_names_in_a_page_are_words(run_cli, a_run, tmp_path):
    folder, path = a_run()
    odd = "<script>alert(1)</script> $x$"
    pd.read_csv(path).rename(columns={"place": odd}).replace("west", odd).to_csv(
        path, index=False
    )
    out = tmp_path / "to"
    result = run_cli("evaluate", folder, path, "--by", odd, "--out", out)
    assert result.code == 0, result.err
    assert "<script>alert" not in (out / "evaluation.html").read_text()


def test_the_documentation_has_every_field(run_cli, a_run):
    found = {"joined.predictions", "joined.without_prediction"}
    found |= {"joined.without_label", "joined.partial"}  # those of a server
    asked = ("--recalibrate", "platt", *COST, "--by", "place", "--keep")
    for task in ("binary", "multiclass", "regression"):
        folder, path = a_run(task)
        for more in (asked, ()) if task == "binary" else ((),):
            told = run_cli("evaluate", folder, path, "--json", *more).json
            for name, value in told.items():
                if isinstance(value, dict) and value:
                    found |= {f"{name}.{key}" for key in value}
                elif value is not None:
                    found.add(name)
    section = read("evaluate.md").split("| field |")[1]
    assert found == set(named_rows(section))


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_scores_come_with_intervals_around_them(run_cli, a_run, task):
    folder, path = a_run(task)
    found = run_cli("evaluate", folder, path, "--json").json
    assert found["intervals"]
    for name, ends in found["intervals"].items():
        assert ends["low"] <= found[name] <= ends["high"]
        assert ends["low"] < ends["high"]
    name = "r2" if task == "regression" else "auc"
    ends = found["intervals"][name]
    said = run_cli("evaluate", folder, path).out
    assert f"({ends['low']:.4f} to {ends['high']:.4f})" in said
