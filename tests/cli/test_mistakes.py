"""Plausible mistakes of a newcomer: one sentence that says what to do, code 2.

Those of tables and settings are in ``test_bad_input.py``; here are command lines,
folders, configs and keys.
"""

from __future__ import annotations

import csv
import re
import socket

import numpy as np
import pytest
import torch

from lessvfl.cli import ending

SERVER = "listen: 127.0.0.1:0\nparties: [a, b]\ndata: fine.csv\nlabel: y\nid: id\n"
PARTY = "server: 127.0.0.1:9\nname: a\ndata: fine.csv\nid: id\n"

CONFIGS = {
    "server": SERVER,
    "typo": SERVER.replace("parties", "partys"),
    "broken": "listen: [127.0.0.1:0\nparties: [a]\n",
    "list": "- a\n- b\n",
    "text": "hello\n",
    "no-file": SERVER.replace("fine.csv", "fin.csv"),
    "no-label": SERVER.replace("label: y", "label: lable"),
    "no-id": SERVER.replace("id: id", "id: ident"),
    "id-twice": SERVER.replace("id: id", "id: sex"),
    "method": SERVER + "method: less-vfl-atuo\n",
    "setting": SERVER + "settings: {train_epoch: 3}\n",
    "negative": SERVER + "settings: {train_epochs: -3}\n",
    "seeds": SERVER + "seeds: [0, 0]\n",
    "profile": SERVER + "profile: officialcode\n",
    "nobody": SERVER.replace("[a, b]", "[]"),
    "open-page": SERVER + "status: 0.0.0.0:8080\n",
    "no-keys": SERVER + "certificate: no.pem\nkey: no.pem\nca: no.pem\n",
    "wait": SERVER + "wait: soon\n",
    "party": PARTY,
    "nameless": PARTY.replace("name: a\n", ""),
    "columns": PARTY + "columns: [agee]\n",
    "no-port": PARTY.replace(":9", ""),
    "ids": PARTY.replace("id: id", "id: idd"),
    "no-table": PARTY.replace("fine.csv", "fin.csv"),
    "align": PARTY + "align: spi\n",
    "reveal": PARTY + "reveal: all\n",
    "policy": PARTY + "policy: {min_row: 5}\n",
    "far": PARTY.replace("127.0.0.1", "198.51.100.7"),
}


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Work in a folder with a table, configs, and a file that is no run."""
    monkeypatch.chdir(tmp_path)
    with open("fine.csv", "w", newline="") as stream:
        rows = [[f"p{i}", i % 7, i + 0.5, "mf"[i % 2], i % 2] for i in range(60)]
        csv.writer(stream).writerows([["id", "age", "x", "sex", "y"], *rows])
    for name, text in CONFIGS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    for name in ("folder", "other", "old", "kit/server"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "other" / "record.jsonl").write_text("[1, 2]\n")
    (tmp_path / "old" / "record.jsonl").write_text('{"method": "plain"}\n')
    (tmp_path / "kit" / "server" / "key.pem").write_text("")
    return tmp_path


def server(config, *more):
    """Return the command of a server."""
    return ["server", "--config", f"{config}.yaml", "--insecure", *more]


def party(config, *more):
    """Return the command of a party."""
    return ["party", "--config", f"{config}.yaml", "--insecure", *more]


# What was done: the command, and what its sentence must say.
MISTAKES = {
    # The command line itself.
    "a command with a typo": (["rnu", "digits"], "'rnu'", "Did you mean 'run'?"),
    "a command of nobody": (["fly"], "'fly'", "See 'lessvfl --help'."),
    "a subcommand with a typo": (["data", "lst"], "Did you mean 'list'?"),
    "an option with a typo": (
        ["run", "digits", "--seds", "1"],
        "--seds",
        "Did you mean --seeds?",
        "See 'lessvfl run --help'.",
    ),
    "an option of another command": (["try", "digits", "--device", "cpu"], "--device"),
    "no data": (["run"], "Missing argument 'data'"),
    "no config": (["server"], "Missing option '--config'"),
    "an option without a value": (["run", "digits", "--seeds"], "--seeds"),
    "two tables": (["run", "a.csv", "b.csv"], "extra argument", "b.csv"),
    "a port of letters": (["try", "digits", "--port", "http"], "--port", "integer"),
    "a port too large": (["try", "digits", "--port", 99999], "--port", "65535"),
    "a seed of letters": (["export", "other", "--seed", "first"], "--seed", "integer"),
    "certificates for no days": (
        ["kit", "init", "new", "--parties", "a", "--days", 0],
        "[1, 36500]",
        "Got 0",
    ),
    # Names.
    "a data set with a typo": (["try", "digit"], "'digit'", "Did you mean 'digits'?"),
    "a data set to show": (["data", "show", "phish"], "Did you mean 'phishing'?"),
    "a method to show": (["methods", "less_vfl"], "Did you mean 'less-vfl'?"),
    "a setting with a typo": (
        ["run", "digits", "--set", "trian_epochs=3"],
        "Did you mean 'train_epochs'?",
    ),
    "a profile to show": (
        ["methods", "plain", "--profile", "papr"],
        "Did you mean 'paper'?",
    ),
    "seeds as a range": (["run", "digits", "--seeds", "0-4"], "0,1,2", "'0-4'"),
    "a format with a typo": (["export", "other", "--format", "onx"], "onnx", "'onx'"),
    # Files and folders.
    "a table that is not there": (["try", "fin.csv"], "'fin.csv'", "must exist"),
    "a file as out": (
        ["run", "fine.csv", "--label", "y", "--parties", "2", "--out", "fine.csv"],
        "'fine.csv'",
        "written",
    ),
    "demo into a file": (["demo", "--out", "fine.csv"], "fine.csv", "written"),
    "out in a read-only place": (
        ["run", "digits", "--out", "/proc/lessvfl"],
        "'/proc/lessvfl'",
        "written",
    ),
    "report of a file": (["report", "fine.csv"], "not a run folder", "record.jsonl"),
    "report of another JSON": (["report", "other"], "not a record of lessvfl"),
    "report of an old run": (["report", "old"], "'old' must have format", "again"),
    "compare an empty folder": (["compare", "folder"], "'folder'", "record.jsonl"),
    "export an empty folder": (["export", "folder"], "'folder'", "record.jsonl"),
    "evaluate an empty folder": (["evaluate", "folder", "fine.csv"], "'folder'"),
    # Kits.
    "a kit over another": (
        ["kit", "init", "kit", "--parties", "a"],
        "'kit'",
        "new folder",
    ),
    "a party twice": (["kit", "init", "new", "--parties", "a,a"], "different names"),
    "a party called server": (["kit", "init", "new", "--parties", "server"], "server"),
    "a party that is a path": (["kit", "init", "new", "--parties", "../a"], "'../a'"),
    "a number of parties": (
        ["kit", "init", "new", "--parties", "3"],
        "names as in clinic,insurer",
        "'3'",
    ),
    "no party": (["kit", "init", "new", "--parties", ","], "party"),
    "a certificate that is none": (["kit", "show", "fine.csv"], "PEM certificate"),
    "a certificate not there": (["kit", "show", "no.pem"], "'no.pem'"),
    "a request not there": (
        ["kit", "sign", "kit", "r.pem", "--out", "c.pem", "--name", "a"],
        "kit",
    ),
    "a request of any name": (
        ["kit", "sign", "kit", "r.pem", "--out", "c.pem"],
        "--name",
    ),
    # The server's config.
    "a config not there": (server("nowhere"), "'nowhere.yaml'", "No such file"),
    "a folder as config": (["server", "--config", "folder"], "Is a directory"),
    "a config with a typo": (server("typo"), "'partys'", "Did you mean 'parties'?"),
    "a config that is no YAML": (server("broken"), "must be YAML", "in line 2"),
    "a config that is a list": (server("list"), "names and values", "Got list"),
    "a config that is a text": (server("text"), "names and values", "Got str"),
    "a party's config": (server("party"), "that of the server", "a party"),
    "labels not there": (server("no-file"), "fin.csv' must exist"),
    "a label with a typo": (server("no-label"), "age, x, sex, y", "'lable'"),
    "an id with a typo": (server("no-id"), "'ident'"),
    "ids that repeat": (server("id-twice"), "'sex'", "one row only"),
    "a method with a typo": (server("method"), "Did you mean 'less-vfl-auto'?"),
    "a setting in a config": (server("setting"), "Did you mean 'train_epochs'?"),
    "negative epochs": (server("negative"), "'train_epochs'", "[0, inf)", "-3"),
    "a seed twice": (server("seeds"), "'seeds'", "different ones"),
    "a profile with a typo": (server("profile"), "Did you mean 'official-code'?"),
    "no parties": (server("nobody"), "'parties'", "names"),
    "a page for everybody": (server("open-page"), "this machine", "0.0.0.0:8080"),
    "a wait of words": (server("wait"), "'wait'", "'soon'"),
    "no certificate": (["server", "--config", "server.yaml"], "--insecure", "kit"),
    "missing certificate": (["server", "--config", "no-keys.yaml"], "no.pem"),
    "an option of predictions": (server("server", "--rows", "r.csv"), "--rows"),
    "predictions of no run": (["predict", *server("server", "--out", "p.csv")], "run"),
    # A party's config.
    "the server's config": (party("server"), "that of a party", "the server"),
    "a party without a name": (party("nameless"), "'name'"),
    "a column with a typo": (party("columns"), "'agee'", "'a'"),
    "an address without port": (party("no-port"), "HOST:PORT", "'127.0.0.1'"),
    "a party's id with a typo": (party("ids"), "id, age, x, sex, y", "'idd'"),
    "a party's table not there": (party("no-table"), "fin.csv' must exist"),
    "an alignment with a typo": (party("align"), "'align'", "psi, plain", "'spi'"),
    "revealing too much": (party("reveal"), "'reveal'", "counts", "'all'"),
    "a policy with a typo": (party("policy"), "'min_row'", "Did you mean 'min_rows'?"),
    "far and unencrypted": (party("far"), "Without encryption", "198.51.100.7"),
    "a party's table, no predict": (party("party", "--data", "fine.csv"), "--data"),
}


def sentence_of(result):
    """Return the one sentence of a refused command."""
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("lessvfl: ")
    assert line.endswith((".", "?"))
    assert not line.endswith("..")
    assert "Traceback" not in line
    assert len(line) <= 300
    return line


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(room, run_cli, mistake):
    command, *words = MISTAKES[mistake]
    sentence = sentence_of(run_cli(*command))
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("line", ["listen", "status"])
def test_a_port_that_is_taken(room, run_cli, line):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        rest = SERVER.removeprefix("listen: 127.0.0.1:0\n")
        addresses = {"listen": "127.0.0.1:0", line: address}
        lines = [f"{name}: {where}\n" for name, where in addresses.items()]
        (room / "taken.yaml").write_text(rest + "".join(lines))
        sentence = sentence_of(run_cli(*server("taken")))
    assert address in sentence
    assert "another" in sentence


@pytest.mark.parametrize("group", [[], ["data"], ["kit"]])
def test_no_command_prints_the_help_alone(run_cli, group):
    result = run_cli(*group)
    assert result.code == 2
    assert "Usage: lessvfl" in result.out
    assert result.err == ""


@pytest.mark.parametrize(
    "ask",
    [lambda: np.empty(1 << 55), lambda: torch.empty(1 << 55)],
    ids=["numpy", "torch"],
)
def test_too_little_memory_is_one_sentence(ask):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        ask()
    text = ending.sentence(caught.value)
    assert text is not None
    assert re.fullmatch(
        r"There must be memory .* Got too little \(.*allocate.*\); .*", text
    )
    assert ending.exit_code(caught.value) == 2
    assert ending.sentence(RuntimeError("another bug")) is None
