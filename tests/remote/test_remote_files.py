"""Configs, checkpoints, own tables, and the commands between machines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from lessvfl import data
from lessvfl.errors import ConfigError, DataError, RecordError
from lessvfl.remote import config
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import PartyConfig, ServerConfig

# ------------------------------------------------------------------------------ configs


def test_paths_are_relative_to_the_file(tmp_path):
    path = tmp_path / "party.yaml"
    path.write_text("data: columns.csv\nout: run\nserver: 127.0.0.1:1\n")
    found = config.read(PartyConfig, path)
    assert found.data == str(tmp_path / "columns.csv")
    assert found.out == str(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a\n- b\n", "must hold names and values. Got list"),
        ("a: [1\n", "must be YAML"),
        ("lable: y\n", "Unknown setting 'lable'.*Did you mean 'label'"),
        ("parties: []\n", "'parties' setting must be a list of different names"),
        ("parties: [a, a]\n", "'parties' setting must be a list of different names"),
        ("align: maybe\n", "'align' setting must be"),
        ("save_every: 0\n", "'save_every' setting must be a whole number >= 1"),
        ("settings: 3\n", "'settings' setting must be names and values"),
        ("wait: -1\n", "'wait' setting must be a float"),
    ],
)
def test_bad_configs(tmp_path, text, sentence):
    path = tmp_path / "server.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        config.read(ServerConfig, path)


def test_a_config_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="must be readable"):
        config.read(ServerConfig, tmp_path / "nothing.yaml")


# -------------------------------------------------------------------------- checkpoints


def test_a_state_comes_back_as_it_was(tmp_path):
    tensors = {"w": torch.randn(3, 2), "n": torch.tensor([1, 2], dtype=torch.uint8)}
    path = tmp_path / "deep" / "state.safetensors"
    write_state(path, State(tensors, {"step": 3, "names": ["a"]}))
    state = read_state(path)
    assert state.values["step"] == 3
    assert state.values["names"] == ["a"]
    for name, tensor in tensors.items():
        assert torch.equal(state.tensors[name], tensor)


@pytest.mark.parametrize("content", [b"", b"torn", b"\x10" * 100])
def test_a_torn_state_is_named(tmp_path, content):
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"state\.safetensors"):
        read_state(path)
    assert path.read_bytes() == content  # left as it is


def test_a_state_of_another_version_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "state.safetensors"
    monkeypatch.setattr("lessvfl.remote.checkpoint.__version__", "0.0.1")
    write_state(path, State({}, {}))
    monkeypatch.undo()
    with pytest.raises(RecordError, match=r"Got one of 0\.0\.1"):
        read_state(path)


# --------------------------------------------------------------------------- own tables


def test_ids_are_kept_apart(tmp_path):
    path = tmp_path / "columns.csv"
    path.write_text("who,age,dose\nb,3,1\na,4,2\n")
    frame, ids = data.load_columns(path, "who")
    assert frame.names == ("age", "dose")
    assert ids is not None
    assert ids.tolist() == ["b", "a"]
    _, nobody = data.load_columns(path)
    assert nobody is None


def test_labels_need_no_other_column(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("who,risk\n1,low\n2,high\n3,low\n")
    dataset, ids, is_test = data.load_labels(path, "risk", "who")
    assert dataset.label_names == ("low", "high") or len(dataset.label_names) == 2
    assert ids is not None
    assert ids.tolist() == [1, 2, 3]
    assert is_test is None


@pytest.mark.parametrize(
    ("name", "label", "who", "sentence"),
    [
        ("labels.txt", None, None, "must end in"),
        ("nothing.csv", None, None, "must exist"),
        ("labels.csv", "y", None, "The label of"),
        ("labels.csv", "risk", "id", "The ids of"),
        ("labels.npz", None, "id", "must hold the arrays 'y' and 'id'"),
    ],
)
def test_bad_label_files(tmp_path, name, label, who, sentence):
    (tmp_path / "labels.csv").write_text("who,risk\n1,low\n2,high\n")
    (tmp_path / "labels.txt").write_text("")
    np.savez(tmp_path / "labels.npz", y=np.array([0, 1]))
    with pytest.raises(DataError, match=sentence):
        data.load_labels(tmp_path / name, label, who)


def test_an_empty_table_is_refused(tmp_path):
    (tmp_path / "columns.csv").write_text("who\n1\n")
    with pytest.raises(DataError, match="must have rows and columns"):
        data.load_columns(tmp_path / "columns.csv", "who")


def test_npz_columns_may_have_names_and_ids(tmp_path):
    path = tmp_path / "columns.npz"
    np.savez(path, X=np.eye(2), feature_names=np.array(["a", "b"]), who=[5, 6])
    frame, ids = data.load_columns(path, "who")
    assert frame.names == ("a", "b")
    assert ids is not None
    assert ids.tolist() == [5, 6]


# ----------------------------------------------------------------------------- commands

QUICK = [
    "--set",
    "batch_size=100",
    "--set",
    "train_epochs=2",
    "--set",
    "party_epochs=5",
    "--set",
    "server_epochs=5",
]


def test_try_gives_the_numbers_of_run(run_cli, tmp_path):
    """Processes, mutual TLS and all: features, accuracy, bytes and curve."""
    common = ["breast-cancer", "--parties", "2", "--spurious", "0.5", *QUICK, "--json"]
    plain = run_cli("run", *common, "--device", "cpu", "--quiet").json
    tried = run_cli("try", *common, "--quiet", "--out", tmp_path / "out")
    assert tried.code == 0, tried.err
    tried = tried.json
    assert {k: v for k, v in tried.items() if k != "runs"} == {
        k: v for k, v in plain.items() if k != "runs"
    }
    (mine,), (theirs,) = tried["runs"], plain["runs"]
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        if name == "communication":
            assert mine[name] | value == mine[name]
        elif name != "seconds":
            assert mine[name] == value, name
    sides = tmp_path / "out" / "sides" / "seed-0"
    assert (sides / "party0" / "run" / "party.json").is_file()
    assert not (sides / "server" / "run" / "party.json").exists()
    again = run_cli("try", *common, "--quiet", "--out", tmp_path / "out")
    assert again.code == 2
    assert "must be new or empty" in again.err


def test_a_config_without_papers_needs_insecure(run_cli, tmp_path):
    np.savez(tmp_path / "labels.npz", y=np.array([0, 1] * 10))
    config = {"parties": ["clinic"], "data": "labels.npz", "listen": "127.0.0.1:0"}
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(config))
    result = run_cli("server", "--config", tmp_path / "server.yaml")
    assert result.code == 2
    assert "or --insecure must be given" in result.err


def test_a_party_needs_a_name(run_cli, tmp_path):
    (tmp_path / "party.yaml").write_text("data: columns.csv\n")
    result = run_cli("party", "--config", tmp_path / "party.yaml", "--insecure")
    assert result.code == 2
    assert "'name' setting must say who this is" in result.err


def test_a_server_whose_parties_stay_away(run_cli, tmp_path):
    np.savez(tmp_path / "labels.npz", y=np.array([0, 1] * 30))
    config: dict[str, Any] = {"parties": ["clinic"], "data": "labels.npz"}
    config |= {"listen": "127.0.0.1:0", "wait": 0.3, "status": "127.0.0.1:0"}
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(config))
    result = run_cli(
        "server", "--config", tmp_path / "server.yaml", "--insecure", "--log-json"
    )
    assert result.code == 2
    assert "The run needs 'clinic', who is missing" in result.err
    logs = [json.loads(x) for x in result.err.splitlines() if x.startswith("{")]
    assert any("status page" in line["message"] for line in logs)
