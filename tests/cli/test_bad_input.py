"""Bad input: one clear sentence on standard error, exit code 2, no traceback.

Most sentences are proven where they are made; here is one of every kind.
"""

from __future__ import annotations

import csv
from typing import Any

import pytest
import torch
from tests.conftest import after_start
from tests.report import real
from tests.report.sides import party_record, server_record

from lessvfl.errors import DataError
from lessvfl.run.record import RunRecord
from lessvfl.terms import STAGE_TEXTS

# Settings under which a run that is not refused ends at once.
SHORT = ("train_epochs=2", "batch_size=100")

NETWORKS = """
from torch import nn

class Skip(nn.Module):
    def __init__(self, n_inputs, n_outputs):
        super().__init__()
        self.first = nn.Linear(n_inputs, n_outputs)

    def forward(self, x):
        return self.first(x) + x.sum(dim=1, keepdim=True)

def skip(n_inputs, n_outputs):
    return Skip(n_inputs, n_outputs)
"""


def a_table(path, column):
    """Write 40 rows whose second column is `column(row number)`."""
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["age", "x", "sex", "label"])
        for i in range(40):
            writer.writerow([i % 7, column(i), "mf"[i % 2], i % 2])


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Work in a folder that holds one file for every kind of bad input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "a_file").touch()
    (tmp_path / "nets.py").write_text(NETWORKS)
    (tmp_path / "null.yaml").write_text("clinic: ['mean*']\nlab:\n")
    a_table(tmp_path / "missing.csv", lambda i: "")
    a_table(tmp_path / "infinite.csv", lambda i: "inf" if i == 3 else i + 0.5)
    a_table(tmp_path / "fine.csv", lambda i: i + 0.5)
    a_table(tmp_path / "negative.csv", lambda i: 3 - i)
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
    "unknown method": (run_of("digits", "--method", "lasso"), "Unknown method 'lasso'"),
    "unknown profile": (
        run_of("digits", "--profile", "papper"),
        "Unknown profile 'papper'",
        "Did you mean 'paper'?",
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
    "all missing": (
        run_of("missing.csv", "--parties", "3"),
        "3 parties",
        "1 more is left out",
    ),
    "infinite": (run_of("infinite.csv", "--parties", "2"), "'x'", "party0", "finite"),
    "negative party": (run_of("digits", "--parties", "-2"), "parties", "Got -2"),
    "parties not understood": (
        run_of("digits", "--parties", "many"),
        "--parties",
        "'many'",
    ),
    "digits that are no number": (run_of("digits", "--parties", "²"), "'²'"),
    "missing file of parties": (run_of("digits", "--parties", "no.yaml"), "no.yaml"),
    "party with nothing": (run_of("breast-cancer", "--parties", "null.yaml"), "'lab'"),
    "groups without file": (run_of("breast-cancer", "--groups", "no.yaml"), "no.yaml"),
    "negative lambda": (with_lambdas(lam_party=-1), "'lam_party'", "[0, inf)", "-1"),
    "lambda where there is none": (
        run_of("breast-cancer", "--method", "plain", lam_party=4),
        "'lam_party'",
        "not read by method plain",
        "less-vfl, local-lasso, group-lasso",
    ),
    "lambda in a run between processes": (
        ["try", *run_of(lam_party=4)[1:]],
        "'lam_party'",
        "not read by method less-vfl-auto",
    ),
    "no lambda in a published profile": (
        run_of("digits", "--method", "less-vfl-auto", "--profile", "paper"),
        "less-vfl-auto",
        "default alone",
        "'paper'",
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
    "no such threshold": (run_of(threshold="0.5"), "'threshold'", "balanced", "'0.5'"),
    "no such weight column": (
        run_of("fine.csv", "--sample-weight", "w"),
        "row weights of 'fine' must be one of its columns: age, x, sex",
        "Got 'w'",
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
    "batch of nothing": (run_of(batch_size=0), "'batch_size'", ">= 1", "Got 0"),
    "half a step": (with_lambdas(party_epochs=0.5), "'party_epochs'", "whole", "'0.5'"),
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
    "no function": (run_of(party_net="nets.py:nobody"), "'nets.py:nobody'"),
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
    "a negative seed": (run_of("digits", "--seeds=-1"), "seed", "-1"),
    "noise of words": (run_of("digits", "--spurious", "half"), "--spurious", "'half'"),
    "noise of nan": (run_of("digits", "--spurious", "nan"), "spurious", "nan"),
    "no such folder of data": (run_of("digits", "--data-dir", "no"), "'no'"),
    "data not in the folder": (
        run_of("sylva_train", "--data-dir", "."),
        "sylva_train.npz",
    ),
    "report of no run": (["report", "."], "not a run folder", "record.jsonl"),
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
    assert "--overwrite replaces it" in one_line(run_cli(*command))
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    again = run_cli(*command, "--overwrite")
    assert again.code == 0
    assert f"The earlier run in '{folder}' is replaced." in again.err.splitlines()


@pytest.mark.parametrize("side", ["server", "party"])
def test_a_run_between_machines_is_never_replaced(side, run_cli, tmp_path):
    """Its folder has secrets, accounts and networks of its own."""
    folder = tmp_path / "run"
    whole = real.shadows()
    made = server_record(whole) if side == "server" else party_record(whole)
    made.write(folder)
    sentence = (
        f"lessvfl: The run folder '{folder}' must be new or empty. Got one that holds "
        f"the run of a {side} between machines, which nothing replaces."
    )
    for more in ([], ["--overwrite"]):
        line = one_line(run_cli(*run_of("breast-cancer", "--out", folder, *more)))
        assert line == sentence
    (folder / "record.jsonl").write_bytes(b"torn")
    (folder / "side.safetensors").touch()
    line = one_line(run_cli(*run_of("breast-cancer", "--out", folder, "--overwrite")))
    assert "the run of a side between machines" in line


@pytest.mark.parametrize("command", ["run", "try", "demo", "bench"])
def test_a_folder_of_something_else_is_left_alone(command, run_cli, tmp_path):
    (tmp_path / "key.pem").write_bytes(b"secret")
    words = {
        "run": [*run_of("breast-cancer"), "--overwrite"],
        "try": ["try", *run_of("breast-cancer")[1:]],
        "demo": ["demo"],
        "bench": ["bench", "shapes", "--smoke"],
    }[command]
    sentence = one_line(run_cli(*words, "--quiet", "--out", tmp_path))
    assert f"'{tmp_path}' must be new or empty. Got one that holds" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]


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
    (line,) = after_start(err).splitlines()
    assert line.startswith("lessvfl: ")
    assert all(word in line for word in words)
