"""The commands for a model of a run folder: export and evaluate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import typer.main
from tests.report.conftest import fake_record
from tests.test_docs import read, rows

from lessvfl.cli import app
from lessvfl.report import card
from lessvfl.run.folder import load

SHORT = ("--set", "train_epochs=2", "--set", "batch_size=40", "--quiet")
N, N_TRAIN = 150, 120


def a_table(task="binary") -> pd.DataFrame:
    rng = np.random.default_rng(7)
    table = pd.DataFrame({f"lab_{i}": rng.normal(size=N) for i in range(3)})
    table["city"] = rng.choice(["Aix", "Bonn", "Cork"], N)
    table["on"] = rng.random(N) < 0.5
    table.loc[2::9, "lab_1"] = np.nan
    score = table["lab_0"] + table["on"]
    table["label"] = 5 + score if task == "regression" else score > 0.5
    if task == "binary":
        table["label"] = np.where(table["label"], "ill", "well")
    return table


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for runs that several tests look at, one for every task."""
    return tmp_path_factory.mktemp("done")


@pytest.fixture
def a_run(run_cli, done: Path, tmp_path: Path):
    """Return a function that runs the table, or copies the folder of such a run.

    The last rows are the test rows, in a file of their own.
    """

    def run(task="binary", *more: str) -> Path:
        folder = tmp_path / task if more else done / task
        if not folder.exists():
            folder.mkdir()
            table = a_table(task)
            table.to_csv(folder / "all.csv", index=False)
            table[N_TRAIN:].to_csv(folder / "test.csv", index=False)
            first = ("--set", "split=first", "--parties", "2", "--method", "plain")
            command = ("run", folder / "all.csv", *SHORT, *first, *more)
            result = run_cli(*command, "--out", folder / "run")
            assert result.code == 0, result.err
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        return tmp_path / "run"

    return run


# ------------------------------------------------------------------------------- export


def test_export(run_cli, a_run):
    folder = a_run()
    result = run_cli("export", folder)
    assert result.code == 0, result.err
    names = ["party0.onnx", "party1.onnx", "fusion.onnx", "MODEL_CARD.md"]
    lines = result.out.splitlines()
    assert [Path(line.partition(":")[0]).name for line in lines] == names
    assert {path.name for path in (folder / "export").iterdir()} == set(names)
    graph = onnxruntime.InferenceSession(folder / "export" / "party0.onnx")
    model = load(folder)
    inputs = [one.name for one in graph.get_inputs()]
    assert inputs == list(model.parties[0].encoding.names)


def test_export_of_another_seed(run_cli, a_run, tmp_path):
    folder = a_run("binary", "--seeds", "0,3")
    out = tmp_path / "out"
    options = ("--format", "safetensors", "--seed", "3", "--out", out)
    assert run_cli("export", folder, *options).code == 0
    text = (out / "MODEL_CARD.md").read_text()
    assert "- seed: 3; the run also has 0" in text
    assert (out / "fusion.safetensors").is_file()
    first = load(folder, 0).fusion.state()["layer0.weight"]
    from safetensors.torch import load_file

    found = load_file(out / "fusion.safetensors")["layer0.weight"]
    assert not np.array_equal(found, first)
    assert np.array_equal(found, load(folder, 3).fusion.state()["layer0.weight"])


def test_networks_named_by_the_folder_need_trust(run_cli, a_run, tmp_path):
    nets = tmp_path / "nets.py"
    nets.write_text(
        "from torch import nn\n\n\ndef small(n_in, n_out):\n"
        "    return nn.Sequential(nn.Linear(n_in, 4), nn.Tanh(), nn.Linear(4, n_out))\n"
    )
    folder = a_run("binary", "--set", f"party_net={nets}:small")
    for command in (["export", folder], ["evaluate", folder, tmp_path / "test.csv"]):
        assert "trust_code=True" in run_cli(*command).err
        assert run_cli(*command, "--trust-code").code == 0


# --------------------------------------------------------------------------------- card


def test_card_says_what_the_record_says(run_cli, tmp_path):
    table = a_table()
    table.to_csv(tmp_path / "a|b_c.csv", index=False)
    out = tmp_path / "run"
    more = ("--spurious", "0.5", "--seeds", "0,1", "--out", out)
    result = run_cli("run", tmp_path / "a|b_c.csv", *SHORT, *more, "--json")
    assert run_cli("export", out, "--format", "safetensors").code == 0
    text = (out / "export" / "MODEL_CARD.md").read_text()
    run = result.json["runs"][0]
    assert text.startswith("# less-vfl-auto on a\\|b\\_c\n")
    assert "- rows: 120 for training, 30 held out for the test" in text
    n_features = result.json["data"]["n_features"]
    assert f"- features: {n_features}, {n_features - 5} of them planted noise" in text
    assert f"| Test accuracy | {run['accuracy']['final']:.4f} |" in text
    assert r"train\_epochs=2.0" in text
    assert f"- rounds: {run['communication']['rounds']}" in text
    for party, names in run["features"].items():
        n_held = len(names["kept"]) + len(names["removed"])
        assert f"| {party} | {len(names['kept'])} of {n_held} |" in text
    said = any(how["false_share"] is not None for how in run["selection"].values())
    assert ("may be useless" in text) == said
    assert "Probabilities were not calibrated" in text


def test_card_leaves_out_what_nobody_knows():
    """Between machines a record has no features, and here no test rows either."""
    record = fake_record(scored=False, n_planted=0, task="regression", n_seeds=1)
    for run in record.runs:
        run["features"] = dict.fromkeys(run["features"])
    record.header["data"]["n_features"] = None
    text = card.card(record, 0, {}, {"the server": "fusion.onnx"})
    heads = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["Data", "Method", "Communication", "Files", "Limits"]
    assert "Nothing was scored" in text
    assert "calibrated" not in text
    assert "None" not in text


def test_card_names_some_of_very_many_features():
    record = fake_record(n_real=60, kept_share=1.0, n_seeds=1)
    text = card.card(record, 0, {}, {})
    assert "bank\\_39 and 20 more |" in text


# ----------------------------------------------------------------------------- evaluate


@pytest.mark.parametrize(
    ("task", "suffix"), [("binary", "csv"), ("truth", "parquet"), ("regression", "csv")]
)
def test_scores_of_the_test_rows_are_the_runs(run_cli, a_run, tmp_path, task, suffix):
    folder = a_run(task)
    path = tmp_path / f"test.{suffix}"
    if suffix == "parquet":
        a_table(task)[N_TRAIN:].to_parquet(path)
    found = run_cli("evaluate", folder, path, "--json").json
    record = (folder / "record.jsonl").read_text().splitlines()
    run = json.loads(record[1])
    names = ["r2"] if task == "regression" else ["accuracy", "balanced_accuracy", "auc"]
    for name in names:
        assert found[name] == pytest.approx(run[name]["final"], abs=1e-6), name
    assert found["data"] == {"name": "test", "n_rows": N - N_TRAIN}
    assert found["model"] == {"data": "all", "method": "plain", "seed": 0}


@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("method", ["vertical-boost", "vertical-forest"])
def test_trees_of_a_run_folder_are_scored_and_exported(run_cli, a_run, task, method):
    folder = a_run(task, "--method", method, "--set", "trees=3", "--set", "copies=20")
    found = run_cli("evaluate", folder, folder.parent / "test.csv", "--json").json
    run = json.loads((folder / "record.jsonl").read_text().splitlines()[1])
    for name in ["r2"] if task == "regression" else ["accuracy", "auc"]:
        assert found[name] == pytest.approx(run[name]["final"], abs=1e-6), name
    assert found["model"]["method"] == method
    for format in ("onnx", "safetensors", "json"):
        result = run_cli("export", folder, "--format", format)
        assert result.code == 0, result.err
        assert (folder / "export" / f"fusion.{format}").is_file()


def test_npz_with_test_rows_of_its_own(run_cli, tmp_path):
    rng = np.random.default_rng(0)
    X, X_test = rng.normal(size=(2, 90, 4))
    y, y_test = ((part[:, 0] > 0).astype(int) for part in (X, X_test))
    names = np.array(["no", "yes"])
    whole = {"X": X, "y": y, "X_test": X_test, "y_test": y_test}
    np.savez(tmp_path / "all.npz", **whole, label_names=names)
    np.savez(tmp_path / "new.npz", X=X_test, y=y_test, label_names=names)
    result = run_cli(
        "run", tmp_path / "all.npz", *SHORT, "--out", tmp_path / "run", "--json"
    )
    run = result.json["runs"][0]
    found = run_cli("evaluate", tmp_path / "run", tmp_path / "new.npz", "--json").json
    for name in ("accuracy", "balanced_accuracy", "auc"):
        assert found[name] == pytest.approx(run[name]["final"], abs=1e-6)


def test_evaluate_in_words(run_cli, a_run, tmp_path):
    folder = a_run()
    table = a_table()[N_TRAIN:].assign(when=pd.Timestamp("2020-02-02"))
    table.loc[N_TRAIN : N_TRAIN + 2, "city"] = "Dax"
    path = tmp_path / "later.parquet"
    table.rename(columns={"label": "found"}).to_parquet(path)
    result = run_cli("evaluate", folder, path, "--label", "found")
    assert result.code == 0, result.err
    lines = dict(line.split(": ") for line in result.out.splitlines()[1:])
    assert result.out.startswith("30 rows of 'later'\n")
    assert list(lines)[:6] == [
        "accuracy",
        "balanced accuracy",
        "AUC",
        "average precision",
        "calibration error",
        "Brier score",
    ]
    most = table["label"].value_counts(normalize=True).max()
    said = lines["accuracy of always the most frequent class"]
    assert float(said) == pytest.approx(most, abs=1e-4)
    assert lines["cells of a category that no training row has"] == "3"
    assert "missing cells that were filled in" in lines


def test_evaluate_says_why(run_cli, a_run, tmp_path):
    folder = a_run()
    result = run_cli("evaluate", folder, tmp_path / "test.csv", "--reasons", 2)
    assert result.code == 0, result.err
    written = folder / "reasons.csv"
    assert result.err == f"{written}: why it is predicted\n"
    found, model = pd.read_csv(written), load(folder)
    table = a_table()[N_TRAIN:]
    assert found["prediction"].tolist() == model.predict(table).tolist()
    odds = found["base"] + found["contribution_party0"] + found["contribution_party1"]
    z = model.decide(table)[:, 0]
    assert odds.to_numpy() == pytest.approx(z if model.positive else -z, abs=1e-4)
    assert list(found)[-4:] == [
        "reason_1",
        "reason_1_contribution",
        "reason_2",
        "reason_2_contribution",
    ]
    assert found["reason_1"].str.contains(r"^party[01]: ").all()


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (lambda t: t.assign(label="sick"), [], "must be classes of the model"),
        (lambda t: t.assign(label=None), [], "must have no missing cells"),
        (lambda t: t.drop(columns="lab_0"), [], "Got none named 'lab_0'"),
        (lambda t: t.drop(columns="label"), [], "Got no label"),
        (lambda t: t.assign(lab_0="high"), [], "'lab_0' of party 'party0' must hold n"),
        (lambda t: t.assign(lab_0="2020-01-01"), [], "must hold numbers, as in tr"),
        (lambda t: t[:0], [], "must have rows"),
        (lambda t: t, ["--label", "city"], "must be classes of the model: "),
        (lambda t: t, ["--seed", "9"], "The 'seed' must be one of [0]"),
    ],
)
def test_evaluate_refuses(run_cli, a_run, tmp_path, change, options, sentence):
    folder = a_run()
    change(a_table()).to_csv(tmp_path / "new.csv", index=False)
    result = run_cli("evaluate", folder, tmp_path / "new.csv", *options)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1


def test_evaluate_refuses_files_that_are_none(run_cli, a_run, tmp_path):
    folder = a_run()
    for name, sentence in (("no.csv", "must exist"), ("digits", "must end in")):
        result = run_cli("evaluate", folder, tmp_path / name)
        assert result.code == 2
        assert sentence in result.err


# -------------------------------------------------------------------------------- pages


def test_the_page_has_every_option() -> None:
    top = typer.main.get_command(app.app)
    for name, page in (("export", "export.md"), ("evaluate", "evaluate.md")):
        section = read(page).split(f"\n## lessvfl {name}")[1].split("\n## ")[0]
        shown = {first.strip("`") for first, *_ in rows(section) if "--" in first}
        params = top.commands[name].params  # type: ignore[attr-defined]
        known = {opt for param in params for opt in param.opts if "--" in opt}
        assert shown == known


@pytest.mark.usefixtures("forked_python")
def test_each_side_exports_its_own_part(run_cli, tmp_path):
    """Between machines nobody has more; the cards say what that side knows."""
    out = tmp_path / "out"
    common = ["breast-cancer", "--parties", "2", "--out", out, "--method", "plain"]
    tried = run_cli("try", *common, "--set", "train_epochs=1")
    assert tried.code == 0
    assert tried.out.splitlines()[-1] == f"Sides: {out / 'sides'}"
    sides = out / "sides" / "seed-0"
    said = tried.err.splitlines()  # the server's progress, in the words of its view
    assert {"party0 connected", "training: 1 epoch"} <= {*said}
    assert "alignment: 569 common rows of your 569" in said
    own = run_cli("export", sides / "party1" / "run")
    assert own.code == 0
    folder = sides / "party1" / "run" / "export"
    assert {path.name for path in folder.iterdir()} == {"party.onnx", "MODEL_CARD.md"}
    assert "scores are the server's to know" in (folder / "MODEL_CARD.md").read_text()
    theirs = run_cli("export", sides / "server" / "run", "--format", "safetensors")
    assert theirs.code == 0
    folder = sides / "server" / "run" / "export"
    names = {path.name for path in folder.iterdir()}
    assert names == {"fusion.safetensors", "MODEL_CARD.md"}
    assert "Test accuracy" in (folder / "MODEL_CARD.md").read_text()
    refused = run_cli("evaluate", sides / "server" / "run", "labels.csv")
    assert refused.code == 2
    assert "as 'lessvfl predict server' writes them" in refused.err


@pytest.mark.parametrize("method", ["vertical-boost", "auto-boost", "pso-trees"])
def test_trees_are_scored_with_hidden_paths(run_cli, tmp_path, method):
    folder, path = tmp_path / "trees", tmp_path / "rows.csv"
    from sklearn.datasets import load_breast_cancer

    load_breast_cancer(as_frame=True).frame[:200].to_csv(path, index=False)
    fewer = {"vertical-boost": "select_trees=0", "pso-trees": "swarm_rounds=1"}
    given = ["trees=60", fewer.get(method, "train_epochs=2")]
    few = (*(word for one in given for word in ("--set", one)), "--parties", "2")
    how = ("--method", method, *few, "--label", "target", "--quiet")
    assert run_cli("run", path, *how, "--out", folder).code == 0
    both = [
        run_cli("evaluate", folder, path, "--label", "target", "--json", *more).json
        for more in ([], ["--inference", "fed-eini"])
    ]
    assert both[0]["accuracy"] == both[1]["accuracy"] > 0.9
    assert both[0]["brier"] == pytest.approx(both[1]["brier"], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hidden", "must be one of clear, fed-eini. Got 'hidden'."),
        ("fed-eini", "Paths are hidden in trees"),
    ],
)
def test_networks_have_no_paths_to_hide(run_cli, a_run, tmp_path, name, sentence):
    a_table().to_csv(tmp_path / "new.csv", index=False)
    told = ("evaluate", a_run(), tmp_path / "new.csv", "--inference", name)
    result = run_cli(*told)
    assert (result.code, sentence in result.err) == (2, True), result.err
