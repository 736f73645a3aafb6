"""Bad input: one clear sentence on standard error, exit code 2, no traceback."""

from __future__ import annotations

import csv
from typing import Any

import pytest
import torch

from lessvfl.errors import DataError
from lessvfl.run.record import RunRecord
from lessvfl.terms import STAGE_TEXTS

# Settings under which a run that is not refused ends at once.
SHORT = ("train_epochs=2", "batch_size=100")

NETWORKS = """
from torch import nn

class NoGroups(nn.Module):
    def forward(self, x):
        return x[:, :16]

class Skip(nn.Module):
    def __init__(self, n_inputs, n_outputs):
        super().__init__()
        self.first = nn.Linear(n_inputs, n_outputs)

    def forward(self, x):
        return self.first(x) + x.sum(dim=1, keepdim=True)

def no_groups(n_inputs, n_outputs):
    return NoGroups()

def skip(n_inputs, n_outputs):
    return Skip(n_inputs, n_outputs)

def nothing(n_inputs, n_outputs):
    return None

def embedding(n_inputs, n_outputs):
    return nn.Sequential(nn.BatchNorm1d(n_inputs), nn.Linear(n_inputs, n_outputs))

def too_wide(n_inputs, n_outputs):
    return nn.Sequential(nn.Linear(n_inputs, 4), nn.Linear(4, n_outputs + 1))
"""

PARTIES = {
    "empty": "clinic: ['mean*']\nlab: []\n",
    "null": "clinic: ['mean*']\nlab:\n",
    "both": "clinic: ['mean*']\nlab: ['mean radius', 'worst*']\n",
    "glob": "clinic: ['mean*']\nlab: ['blood*']\n",
    "column": "clinic: ['mean*']\nlab: [blood]\n",
    "list": "- clinic\n- lab\n",
    "broken": "clinic: ['mean*'\n",
}


def a_table(path, column, header=("age", "x", "sex", "label")):
    """Write 40 rows whose second column is `column(row number)`."""
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        for i in range(40):
            writer.writerow([i % 7, column(i), "mf"[i % 2], i % 2])


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Work in a folder that holds one file for every kind of bad input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "empty.npz").touch()
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "header.csv").write_text("age,label\n")
    (tmp_path / "nets.py").write_text(NETWORKS)
    (tmp_path / "a_file").touch()
    for name, text in PARTIES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    a_table(tmp_path / "text.csv", lambda i: f"a sentence, the {i}th")
    a_table(tmp_path / "missing.csv", lambda i: "")
    a_table(tmp_path / "infinite.csv", lambda i: "inf" if i == 3 else i + 0.5)
    a_table(tmp_path / "fine.csv", lambda i: i + 0.5)
    a_table(tmp_path / "negative.csv", lambda i: 3 - i)
    a_table(tmp_path / "zero.csv", lambda i: 0)
    a_table(tmp_path / "unlabelled.csv", lambda i: i, ("age", "x", "sex", "z"))
    (tmp_path / "equal.csv").write_text("age,label\n" + "1,yes\n2,yes\n" * 9)
    (tmp_path / "hole.csv").write_text("age,label\n" + "1,yes\n2,no\n3,\n" * 9)
    return tmp_path


def run_of(data="breast-cancer", *options, **settings):
    """Return a command line that would be short if it were not refused."""
    pairs = [*SHORT, *(f"{key}={value}" for key, value in settings.items())]
    return ["run", data, *options, *(w for p in pairs for w in ("--set", p))]


def with_lambdas(data="breast-cancer", **settings):
    """Return a short command line of a method that reads lambdas."""
    epochs = {"party_epochs": 3, "server_epochs": 3}
    return run_of(data, "--method", "less-vfl", **epochs | settings)


# What is wrong: the command, and what its sentence must say.
REFUSED: dict[str, tuple[Any, ...]] = {
    "unknown data set": (run_of("brest-cancer"), "Unknown data set", "breast-cancer"),
    "unknown data set shown": (["data", "show", "iris"], "Unknown data set 'iris'"),
    "unknown method": (run_of("digits", "--method", "lasso"), "Unknown method 'lasso'"),
    "unknown profile": (
        run_of("digits", "--profile", "papper"),
        "Unknown profile 'papper'",
        "Did you mean 'paper'?",
    ),
    "unknown setting": (
        with_lambdas(lam_serv=1),
        "Unknown setting 'lam_serv' of method less-vfl. Did you mean 'lam_server'?",
    ),
    "setting without value": (
        ["run", "digits", "--set", "lam_party"],
        "KEY=VALUE",
        "'lam_party'",
    ),
    "unknown option of data": (
        ["run", "synthetic", "--set", "data.rows=5"],
        "'rows'",
        "n_samples",
    ),
    "option of other data": (run_of(**{"data.n_samples": 5}), "breast-cancer"),
    "missing file": (run_of("nowhere.csv"), "nowhere.csv", "must exist"),
    "empty csv": (run_of("empty.csv"), "empty.csv"),
    "empty npz": (run_of("empty.npz"), "empty.npz"),
    "empty parquet": (run_of("empty.parquet"), "empty.parquet"),
    "no rows": (run_of("header.csv"), "header.csv", "rows"),
    "other file": (run_of("nets.py"), "must end in", "nets.py"),
    "no label column": (run_of("unlabelled.csv"), "unlabelled.csv", "age, x, sex, z"),
    "wrong label column": (
        run_of("fine.csv", "--label", "blood"),
        "fine.csv",
        "'blood'",
    ),
    "label of a known data set": (run_of("digits", "--label", "y"), "label", "digits"),
    "labels all equal": (run_of("equal.csv"), "equal", "'yes'"),
    "missing label": (run_of("hole.csv"), "hole", "9 rows"),
    "texts alone": (
        run_of("text.csv", "--parties", "1,1,1"),
        "'x' (free text)",
        "'party1'",
    ),
    "all missing": (
        run_of("missing.csv", "--parties", "3"),
        "3 parties",
        "1 more is left out",
    ),
    "infinite": (run_of("infinite.csv", "--parties", "2"), "'x'", "party0", "finite"),
    "more parties than features": (
        run_of("fine.csv", "--parties", 4),
        "4 parties",
        "3",
    ),
    "no party": (run_of("digits", "--parties", 0), "parties", "Got 0"),
    "negative party": (run_of("digits", "--parties", "-2"), "parties", "Got -2"),
    "sizes that do not add up": (run_of("fine.csv", "--parties", "1,1"), "[1, 1]", "3"),
    "parties not understood": (
        run_of("digits", "--parties", "many"),
        "--parties",
        "'many'",
    ),
    "digits that are no number": (run_of("digits", "--parties", "²"), "'²'"),
    "missing file of parties": (run_of("digits", "--parties", "no.yaml"), "no.yaml"),
    "party with no column": (
        run_of("breast-cancer", "--parties", "empty.yaml"),
        "'lab'",
    ),
    "party with nothing": (run_of("breast-cancer", "--parties", "null.yaml"), "'lab'"),
    "two parties, one column": (
        run_of("breast-cancer", "--parties", "both.yaml"),
        "'mean radius'",
        "'clinic'",
        "'lab'",
    ),
    "glob without match": (
        run_of("breast-cancer", "--parties", "glob.yaml"),
        "'blood*'",
        "'lab'",
    ),
    "column without match": (
        run_of("breast-cancer", "--parties", "column.yaml"),
        "'blood'",
        "'lab'",
    ),
    "parties as a list": (run_of("breast-cancer", "--parties", "list.yaml"), "list"),
    "broken YAML": (run_of("breast-cancer", "--parties", "broken.yaml"), "YAML"),
    "groups without file": (run_of("breast-cancer", "--groups", "no.yaml"), "no.yaml"),
    "groups of two parties": (
        run_of("breast-cancer", "--groups", "glob.yaml"),
        "'clinic'",
        "party",
    ),
    "negative lambda": (with_lambdas(lam_party=-1), "'lam_party'", "[0, inf)", "-1"),
    "negative server lambda": (with_lambdas(lam_server=-0.1), "'lam_server'", "-0.1"),
    "infinite lambda": (with_lambdas(lam_party="inf"), "'lam_party'", "inf"),
    "lambda of no number": (with_lambdas(lam_party="nan"), "'lam_party'", "nan"),
    "lambda of words": (with_lambdas(lam_party="big"), "'lam_party'", "'big'"),
    "lambda where there is none": (
        run_of("breast-cancer", "--method", "plain", lam_party=4),
        "'lam_party'",
        "not read by method plain",
        "less-vfl, local-lasso, group-lasso",
    ),
    "lambda of no method": (
        run_of(lam_party=4),
        "'lam_party'",
        "not read by method less-vfl-auto",
        "less-vfl, local-lasso, group-lasso",
    ),
    "server's lambda of no method": (
        run_of(lam_server=0.1),
        "'lam_server'",
        "not read by method less-vfl-auto",
        "It is one of less-vfl.",
    ),
    "lambda in a run between processes": (
        ["try", *run_of(lam_party=4)[1:]],
        "'lam_party'",
        "not read by method less-vfl-auto",
    ),
    "shadows of another method": (
        with_lambdas(shadows=100),
        "'shadows'",
        "not read by method less-vfl",
        "It is one of less-vfl-auto.",
    ),
    "no lambda in a published profile": (
        run_of("digits", "--method", "less-vfl-auto", "--profile", "paper"),
        "less-vfl-auto",
        "default alone",
        "'paper'",
    ),
    "no method in a published profile": (
        run_of("digits", "--profile", "official-code"),
        "less-vfl-auto",
        "default alone",
        "'official-code'",
    ),
    "settings of no method": (["methods", "lasso"], "Unknown method 'lasso'"),
    "settings of no profile": (
        ["methods", "plain", "--profile", "papper"],
        "Did you mean 'paper'?",
    ),
    "settings on no data": (
        ["methods", "plain", "--data", "brest-cancer"],
        "Unknown data set",
    ),
    "no such class weight": (
        run_of(class_weight="even"),
        "'class_weight' setting must be balanced, weights by class as in",
        "'even'",
    ),
    "negative class weight": (run_of(class_weight="0:1,1:-2"), "'class_weight'", "-2"),
    "weight of no class": (
        run_of(class_weight="benign:1,2:5"),
        "'class_weight' setting must name classes of 'breast-cancer'",
        "malignant, benign",
        "Got '2'",
    ),
    "class weights of nothing": (
        run_of(class_weight="malignant:0,benign:0"),
        "must not all be zero",
    ),
    "class weights of a regression": (
        run_of("synthetic", class_weight="balanced", **{"data.n_samples": 50}),
        "'class_weight' setting must be none for 'synthetic'",
        "'balanced'",
    ),
    "robust loss of classes": (
        run_of(loss="huber"),
        "'loss' setting must be squared or auto for 'breast-cancer'",
        "'huber'",
    ),
    "no such loss": (run_of(loss="absolute"), "'loss'", "squared, huber"),
    "no such threshold": (run_of(threshold="0.5"), "'threshold'", "balanced", "'0.5'"),
    "no such weight column": (
        run_of("fine.csv", "--sample-weight", "w"),
        "row weights of 'fine' must be one of its columns: age, x, sex",
        "Got 'w'",
    ),
    "weights of texts": (
        run_of("fine.csv", "--sample-weight", "sex"),
        "row weights of 'fine' (column 'sex') must be finite numbers >= 0",
        "Got 'm' in row 1",
    ),
    "missing weights": (
        run_of("missing.csv", "--sample-weight", "x"),
        "row weights of 'missing'",
        "Got nothing in row 1",
    ),
    "negative weights": (
        run_of("negative.csv", "--sample-weight", "x"),
        "row weights of 'negative'",
        "Got -1.0 in row 5",
    ),
    "weights of nothing": (
        run_of("zero.csv", "--sample-weight", "x"),
        "row weights of 'zero'",
        "Got zero in every row",
    ),
    "weights between processes": (
        ["try", *run_of("negative.csv", "--sample-weight", "x")[1:]],
        "row weights of 'negative'",
    ),
    "no such group column": (
        run_of("fine.csv", "--group-column", "who"),
        "groups of rows of 'fine' must be one of its columns: age, x, sex",
        "Got 'who'",
    ),
    "groups of no rows": (
        run_of("zero.csv", "--group-column", "x"),
        "groups of rows of 'zero' (column 'x')",
        "Got one for all rows",
    ),
    "batch of nothing": (run_of(batch_size=0), "'batch_size'", ">= 1", "Got 0"),
    "half a step": (with_lambdas(party_epochs=0.5), "'party_epochs'", "whole", "'0.5'"),
    "no such activation": (run_of(activation="sine"), "'activation'", "tanh", "'sine'"),
    "no such optimiser": (run_of(optimizer="lbfgs"), "'optimizer'", "adam"),
    "no widths": (run_of(hidden="64,wide"), "'hidden'", "64,32", "'64,wide'"),
    "no flag": (run_of(pairs="maybe"), "'pairs'", "true or false"),
    "module without input groups": (
        run_of(party_net="nets.py:no_groups"),
        "input groups",
        "party0",
        "Linear or Conv",
    ),
    "module with another first layer": (
        run_of(party_net="nets.py:embedding"),
        "input groups",
        "BatchNorm1d",
    ),
    "module with a skip": (
        run_of(party_net="nets.py:skip"),
        "party0",
        "second time",
        "'first'",
    ),
    "fusion module with a skip": (
        run_of(fusion_net="nets.py:skip"),
        "the server",
        "second time",
    ),
    "no module": (run_of(party_net="nets.py:nothing"), "party0", "torch.nn.Module"),
    "module too wide": (run_of(party_net="nets.py:too_wide"), "2", "3"),
    "no function": (run_of(party_net="nets.py:nobody"), "'nets.py:nobody'"),
    "no module file": (run_of(party_net="no.py:make"), "'no.py:make'"),
    "no function name": (run_of(party_net="nets"), "FILE.py:FUNCTION", "'nets'"),
    "no such device": (run_of("digits", "--device", "tpu"), "device", "cpu", "'tpu'"),
    "no such target": (run_of("digits", "--target", "best"), "--target", "'best'"),
    "target without noise": (run_of("digits", "--target", "paper"), "spurious", "0"),
    "target of a regression": (
        run_of(
            "synthetic",
            *("--target", "paper", "--spurious", "0.5"),
            **{"data.task": "regression", "data.n_samples": 50},
        ),
        "classification",
        "regression",
    ),
    "target without test rows": (
        run_of("digits", "--target", "paper", "--spurious", "0.5", test_share="0"),
        "'test_share'",
    ),
    "seeds of words": (run_of("digits", "--seeds", "a,b"), "--seeds", "'a,b'"),
    "no seeds": (run_of("digits", "--seeds", ""), "--seeds", "''"),
    "a seed twice": (run_of("digits", "--seeds", "1,1"), "seed", "[1, 1]"),
    "a negative seed": (run_of("digits", "--seeds=-1"), "seed", "-1"),
    "a seed too large": (run_of("digits", "--seeds", 2**63), "seed", str(2**63)),
    "noise of words": (run_of("digits", "--spurious", "half"), "--spurious", "'half'"),
    "negative noise": (run_of("digits", "--spurious", "-1"), "spurious", "-1"),
    "noise of nan": (run_of("digits", "--spurious", "nan"), "spurious", "nan"),
    "noise for other parties": (
        run_of("breast-cancer", "--spurious", "0.5,0.5"),
        "spurious",
        "4",
        "Got 2",
    ),
    "no such folder of data": (run_of("digits", "--data-dir", "no"), "'no'"),
    "data not in the folder": (
        run_of("sylva_train", "--data-dir", "."),
        "sylva_train.npz",
    ),
    "report of no run": (["report", "."], "not a run folder", "record.jsonl"),
    "report of nothing": (["report", "nowhere"], "'nowhere'", "not a run folder"),
    "report of a file": (["report", "a_file"], "'a_file'", "not a run folder"),
    "compare no runs": (["compare", ".", "nowhere"], "not a run folder"),
    "out is a file": (run_of("digits", "--out", "a_file"), "'a_file'", "written"),
    "out below a file": (run_of("digits", "--out", "a_file/runs"), "'a_file/runs'"),
}


def one_line(result):
    """Return the sentence of a refused command."""
    assert result.code == 2
    assert result.out == ""
    lines = [
        line
        for line in result.err.splitlines()
        if not line.startswith(
            ("lessvfl: warning: ", "The labels are ", *STAGE_TEXTS.values())
        )
    ]
    assert len(lines) == 1, result.err
    assert lines[0].startswith("lessvfl: ")
    assert "Traceback" not in result.err
    return lines[0]


@pytest.mark.parametrize("wrong", REFUSED)
def test_bad_input_is_one_sentence(room, run_cli, wrong):
    command, *words = REFUSED[wrong]
    sentence = one_line(run_cli(*command))
    for word in words:
        assert word in sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(run_cli):
    sentence = one_line(run_cli(*run_of("breast-cancer", "--device", "cuda")))
    assert "cuda" in sentence
    assert "cpu or auto" in sentence


DIVERGING: dict[str, tuple[Any, ...]] = {
    "a party in stage 3": (
        with_lambdas(
            activation="none", party_step_size=1e3, party_epochs=20, lam_party=1e-3
        ),
        "party 'party0'",
        "'select_features'",
    ),
    "the server in stage 2": (
        with_lambdas(
            "synthetic",
            server_step_size=1e3,
            server_epochs=40,
            lam_server=0.05,
            pretrain_epochs=1,
            **{"data.n_samples": 200, "data.task": "regression"},
        ),
        "the server",
        "'select_components'",
    ),
    "joint lasso": (
        run_of(
            "synthetic",
            *("--method", "group-lasso"),
            activation="none",
            learning_rate=10,
            joint_epochs=40,
            **{"data.n_samples": 200, "data.task": "regression"},
        ),
        "'joint_lasso'",
    ),
    "the very last step": (
        run_of(
            "breast-cancer",
            *("--method", "plain"),
            learning_rate=1e30,
            batch_size=455,
            train_epochs=1,
        ),
        "'train'",
        "epoch 1",
    ),
}


@pytest.mark.parametrize("who", DIVERGING)
def test_divergence_names_who_stage_and_step_and_is_on_the_record(
    run_cli, tmp_path, who
):
    command, *words = DIVERGING[who]
    sentence = one_line(run_cli(*command, "--out", tmp_path))
    for word in (*words, "step", "diverged", "finite"):
        assert word in sentence
    record = RunRecord.read(tmp_path)
    assert record.status == "failed"
    assert record.message in sentence


def test_a_refused_run_leaves_an_earlier_one_alone(run_cli, tmp_path):
    """A typing mistake must not cost the numbers of hours."""
    folder = tmp_path / "run"
    command = run_of("breast-cancer", "--method", "plain", "--out", folder, "-q")
    assert run_cli(*command).code == 0
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    one_line(run_cli(*command, "--parties", "31"))
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    again = run_cli(*command)
    assert f"The earlier run in '{folder}' is replaced." in again.err.splitlines()


def test_a_message_of_many_lines_is_put_on_one(run_cli, monkeypatch):
    def refuse():
        raise DataError("It broke\n  here:\n\tthere.")

    monkeypatch.setattr("lessvfl.data.names", refuse)
    assert one_line(run_cli("data", "list")) == "lessvfl: It broke here: there."


def test_a_file_that_cannot_be_read(run_cli, monkeypatch):
    def refuse():
        raise PermissionError(13, "Permission denied", "secret.csv")

    monkeypatch.setattr("lessvfl.data.names", refuse)
    sentence = one_line(run_cli("data", "list"))
    assert "'secret.csv' cannot be read or written: Permission denied." in sentence


def test_bad_input_from_a_shell(room, forks):
    command, *words = REFUSED["negative lambda"]
    process = forks.start(*command)
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("lessvfl: ")
    assert all(word in line for word in words)
