"""Configs, checkpoints, own tables, and the commands between machines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from lessvfl import data
from lessvfl.cli import remote
from lessvfl.data import Roles, stored
from lessvfl.errors import ConfigError, DataError, RecordError
from lessvfl.remote import config, identity, localhost, spent, tables
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import Policy, PolicyChecker
from lessvfl.remote.seed import SERVER
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.spent import PredictionBudget
from lessvfl.remote.tables import LabelTable
from lessvfl.run import profiles, simulate, verdicts
from lessvfl.run.record import RunRecord, write_atomically
from lessvfl.status import Status, terminal, words
from lessvfl.wire.flight import Address

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
        (
            "parties: []\n",
            "'parties' setting must be a list of 1 to 1000 different names",
        ),
        (
            "parties: [a, a]\n",
            "'parties' setting must be a list of 1 to 1000 different names",
        ),
        ("align: maybe\n", "'align' setting must be"),
        ("save_every: 0\n", "'save_every' setting must be a whole number >= 1"),
        ("settings: 3\n", "'settings' setting must be names and values"),
        ("wait: -1\n", "'wait' setting must be a float"),
        ("seed: 3\n", "Unknown setting 'seed'.*Did you mean 'seeds'"),
        *(
            (f"seeds: {seeds}\n", "'seeds' setting must be a whole number >= 0, or a")
            for seeds in ("[]", "[1, 1]", "-1", "true", "[0.5]", "one", 2**63)
        ),
        ("task: guess\n", "'task' setting must be one of auto, classification"),
    ],
)
def test_bad_configs(tmp_path, text, sentence):
    path = tmp_path / "server.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        config.read(ServerConfig, path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("scale_range: 3\n", "'scale_range' setting must be two numbers, the lower"),
        ("scale_range: [1]\n", "'scale_range' setting must be two numbers"),
        ("scale_range: [2, 1]\n", "'scale_range' setting must be two numbers"),
        ("scale_range: [1, 1]\n", "'scale_range' setting must be two numbers"),
        ("scale_range: [0, .inf]\n", "'scale_range' setting must be two numbers"),
        ("scale_range: [a, b]\n", "'scale_range' setting must be two numbers"),
        ("scale_range: {low: 0, high: 1}\n", "'scale_range' setting must be two"),
        ("as_is: 3\n", "'as_is' setting must be a list of different names, or null"),
        ("as_is: []\n", "'as_is' setting must be a list of different names"),
        ("as_is: [a, a]\n", "'as_is' setting must be a list of different names"),
        ("as_is: [1]\n", "'as_is' setting must be a list of different names"),
        ("groups: [a, b]\n", "'groups' setting must be feature names with their"),
        ("groups: {size: 3}\n", "'groups' setting must be feature names with their"),
        ("groups: {size: []}\n", "'groups' setting must be feature names with their"),
        ("groups: {1: [a]}\n", "'groups' setting must be feature names with their"),
        ("policy: {epsilon: none}\n", r"\(0, inf\), or null. Got 'none' instead"),
        ("missing: none\n", "'missing' setting must be one of flag, fill. Got 'none'"),
        ("missing_values: [-999]\n", "'missing_values' setting must be values by col"),
        ("missing_values: {a: {b: 1}}\n", "'missing_values' setting must be values by"),
    ],
)
def test_bad_configs_of_a_party(tmp_path, text, sentence):
    path = tmp_path / "party.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        config.read(PartyConfig, path)
    assert "\n" not in str(caught.value)


def test_good_configs_of_a_party(tmp_path):
    path = tmp_path / "party.yaml"
    path.write_text(
        "scale_range: [-1, 2.5]\nas_is: [noise]\n"
        "groups: {size: [height, weight], lab: 'lab_*'}\n"
        "missing_values: {income: [-999, 99999], '*': -9, until: 9999-12-31}\n"
    )
    found = config.read(PartyConfig, path)
    assert found.scale_range == pytest.approx((-1, 2.5))
    assert found.as_is == ("noise",)
    assert found.groups == {"size": ["height", "weight"], "lab": "lab_*"}
    marks = {"income": [-999, 99999], "*": -9, "until": "9999-12-31"}
    assert (found.missing, found.missing_values) == ("flag", marks)


@pytest.mark.parametrize(
    ("text", "seeds"), [("", (0,)), ("seeds: 3\n", (3,)), ("seeds: [2, 0]\n", (2, 0))]
)
def test_seeds_are_one_number_or_several(tmp_path, text, seeds):
    path = tmp_path / "server.yaml"
    path.write_text(f"label: y\n{text}")
    assert config.read(ServerConfig, path).seeds == seeds


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
    write_atomically(path, content, mode=0o600)
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
    dataset, ids = data.load_labels(path, "risk", "who")
    assert dataset.label_names == ("low", "high") or len(dataset.label_names) == 2
    assert ids is not None
    assert ids.tolist() == ["1", "2", "3"]
    assert dataset.is_test is None


def test_what_labels_are_can_be_said(tmp_path):
    """Few whole numbers look like classes, and may be amounts."""
    np.savez(tmp_path / "labels.npz", y=np.array([0, 1, 2] * 4))
    path = tmp_path / "labels.npz"
    assert data.load_labels(path)[0].task == "multiclass"
    assert data.load_labels(path, task="regression")[0].task == "regression"


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


@pytest.mark.parametrize(
    ("marks", "got"),
    [
        ([0, 1, 0], "int64 of shape (3,)"),
        ([False, True], "bool of shape (2,)"),
        ([[False], [True], [False]], "bool of shape (3, 1)"),
    ],
)
def test_test_rows_are_marked_by_a_truth_value_each(tmp_path, marks, got):
    path = tmp_path / "labels.npz"
    np.savez(path, y=[0, 1, 1], is_test=marks)
    sentence = "must hold a truth value for each of 3 rows. Got " + got
    with pytest.raises(DataError, match=re.escape(sentence)):
        data.load_labels(path)
    np.savez(path, y=[0, 1, 1], is_test=[False, True, False])
    is_test = data.load_labels(path)[0].is_test
    assert is_test is not None
    assert is_test.tolist() == [False, True, False]


def test_weights_in_the_file_of_labels(tmp_path):
    (tmp_path / "labels.csv").write_text("who,w,risk\n1,0,low\n2,3,high\n3,,low\n")
    with pytest.raises(DataError, match="Got nothing in row 3"):
        data.load_labels(tmp_path / "labels.csv", "risk", "who", Roles("w"))
    with pytest.raises(DataError, match=r"The row weights of .* Got 'v'"):
        data.load_labels(tmp_path / "labels.csv", "risk", "who", Roles("v"))
    (tmp_path / "labels.csv").write_text("who,w,y\n1,0,low\n2,3,high\n")
    dataset, _ = data.load_labels(tmp_path / "labels.csv", None, "who", Roles("w"))
    assert dataset.weight is not None
    assert dataset.weight.tolist() == [0.0, 3.0]


def test_groups_in_the_file_of_labels(tmp_path):
    (tmp_path / "labels.csv").write_text("who,home,y\n1,b,low\n2,a,high\n3,b,low\n")
    where = (tmp_path / "labels.csv", None, "who")
    dataset, _ = data.load_labels(*where, Roles(group_column="home"))
    assert dataset.units is not None
    assert dataset.units.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"The groups of rows of .* Got 'house'"):
        data.load_labels(*where, Roles(group_column="house"))


def test_an_empty_table_is_refused(tmp_path):
    (tmp_path / "columns.csv").write_text("who\n1\n")
    with pytest.raises(DataError, match="Got none; are its columns separated"):
        data.load_columns(tmp_path / "columns.csv", "who")


def test_npz_columns_may_have_names_and_ids(tmp_path):
    path = tmp_path / "columns.npz"
    np.savez(path, X=np.eye(2), feature_names=np.array(["a", "b"]), who=[5, 6])
    frame, ids = data.load_columns(path, "who")
    assert frame.names == ("a", "b")
    assert ids is not None
    assert ids.tolist() == [5, 6]


# ----------------------------------------------------------------------------- commands


@pytest.fixture
def in_threads(monkeypatch):
    """Have the sides of `try` run in threads; a process each takes seconds to start."""

    def serve(folder):
        own = config.read(PartyConfig, folder / "party.yaml")
        name, credentials = identity.party_identity(own, insecure=False)
        process = PartyProcess.load(name, own, Status("run", "", "numbers", [SERVER]))
        process.serve(Address(own.server, credentials, own.server_name))

    def run_sides(base, parties, *options):
        own = config.read(ServerConfig, base / "server" / "server.yaml")
        credentials = identity.server_credentials(own, insecure=False)
        status = Status("run", own.method, "numbers", own.parties)
        with ThreadPoolExecutor(len(parties)) as pool:
            sides = [pool.submit(serve, base / name) for name in parties]
            with remote.listening(own, credentials) as hub:
                ServerProcess(own, LabelTable.load(own), hub, status).run()
            for side in sides:
                side.result()

    monkeypatch.setattr("lessvfl.cli.ending.threads_hang", lambda hang: None)
    monkeypatch.setattr(localhost, "_run_sides", run_sides)


def both_ways(run_cli, out, *command):
    """Return the JSON of a run in one process and of one between processes."""
    plain = run_cli("run", *command, "--device", "cpu", "--quiet", "--json")
    assert plain.code == 0, plain.err
    tried = run_cli("try", *command, "--quiet", "--json", "--out", out)
    assert tried.code == 0, tried.err
    return plain.json, tried.json


def assert_alike(plain, tried):
    """Compare field by field; seconds and what was on the wire are a run's own."""
    assert list(tried) == list(plain)
    for name, value in plain.items():
        if name != "runs":
            assert tried[name] == value, name
    for mine, theirs in zip(tried["runs"], plain["runs"], strict=True):
        assert list(mine) == list(theirs)
        bill = mine["communication"]
        assert bill.pop("resent_bytes") == 0
        assert bill.pop("wire_bytes").keys() == {"up", "down"}
        assert bill.pop("frames").keys() == bill.pop("socket").keys()
        for name, value in theirs.items():
            if name != "seconds":
                assert mine[name] == value, name


def a_table(folder, n_rows=150, n_copies=0):
    """Write numbers, some rows twice, three rows a person; return the command of it."""
    rng = np.random.default_rng(0)
    rows = np.r_[np.arange(n_rows), rng.integers(0, n_rows, n_copies)]
    X = rng.normal(size=(n_rows, 6))[rows].round(6)
    lines = ["who,a,b,c,d,e,f,label"]
    for i, cells in enumerate(X):
        label = int(cells[0] + cells[3] > 0)
        lines.append(",".join(map(str, (f"p{i // 3}", *cells, label))))
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return [str(folder / "table.csv"), "--label", "label", "--parties", "2"]


@pytest.mark.usefixtures("in_threads")
def test_try_keeps_rows_together_as_run_does(run_cli, tmp_path):
    """Copies of rows, which no side sees whole, and the rows of one person."""
    command = [*a_table(tmp_path, 120, n_copies=30), "--group-column", "who"]
    command += settings_of(batch_size=40, train_epochs=3, second_look=0)
    plain, tried = both_ways(run_cli, tmp_path / "out", *command)
    assert_alike(plain, tried)
    assert plain["data"]["n_equal_rows"] > 30
    assert plain["data"]["n_blocks"] < 80  # a copy may be of another person


def settings_of(**values):
    return [word for k, v in values.items() for word in ("--set", f"{k}={v}")]


@pytest.mark.usefixtures("in_threads")
def test_try_as_real_machines_do_says_the_whole_bill(run_cli, tmp_path):
    out, n_rows = tmp_path / "out", 100
    command = [*a_table(tmp_path, n_rows), "--quiet", "--out", out]
    command += settings_of(batch_size=40, train_epochs=2, second_look=0)
    tried = run_cli("try", *command, "--align", "psi", "--evaluation", "end")
    assert tried.code == 0, tried.err
    assert "At the socket, both ways: " in tried.out
    (run,) = RunRecord.read(out).runs
    assert len(run["curve"]) == 1
    bill = run["communication"]
    assert bill["frames"]["align"]["up"] > 2 * (32 + 96) * n_rows
    assert sum(bill["by_stage"]["evaluate"].values()) < n_rows * 8
    assert "Whole bill" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("in_threads")
def test_try_with_several_seeds_is_one_session(run_cli, tmp_path):
    """Each seed to the bit that of `run`, and the same answer from all of them."""
    out = tmp_path / "out"
    common = ["breast-cancer", "--parties", "2"]
    common += settings_of(batch_size=100, train_epochs=2, second_look=0)
    tried = run_cli("try", *common, "--seeds", "2,0", "--quiet", "--json", "--out", out)
    assert tried.code == 0, tried.err
    run = ["run", *common, "--device", "cpu", "--quiet", "--json"]
    plain = run_cli(*run, "--seeds", "2,0").json
    assert_alike(plain, tried.json)
    assert tried.json["consensus"] == verdicts.agreed(plain["runs"])
    assert tried.json["runs"][0]["features"] != tried.json["runs"][1]["features"]
    sides = out / "sides" / "all-seeds"
    for name in ("party0", "party1"):
        own = RunRecord.read(sides / name / "run")
        assert own.consensus == {name: tried.json["consensus"][name]}
    assert run_cli("report", sides / "server" / "run").code == 0


@pytest.mark.parametrize(
    ("own", "spurious", "stay"),
    [
        ({}, 0.0, True),
        ({}, 0.5, False),
        ({}, [0.0, 0.5], False),
        ({"columns": "random"}, 0.0, False),
    ],
)
def test_seeds_share_processes_where_the_parties_columns_stay(own, spurious, stay):
    dataset = data.load("breast-cancer")
    settings = profiles.resolve("less-vfl-auto", "default", dataset, own)
    job = simulate.Job(dataset, settings, parties=2, spurious=spurious)
    assert localhost._tables_stay(job) == stay


def test_try_says_that_it_starts_processes(tmp_path, monkeypatch):
    dataset = data.load("breast-cancer")
    settings = profiles.resolve("less-vfl-auto", "default", dataset)
    job, seen = simulate.Job(dataset, settings, parties=2), []
    for name in ("write_folders", "_run_sides", "collect"):
        monkeypatch.setattr(localhost, name, lambda *_, **__: None)

    def watch(status):
        seen.append(status.snapshot())
        return contextlib.nullcontext()

    localhost.run(job, [0], tmp_path, 1, watch=watch)
    (shown,) = seen
    assert words.title(shown) == "less-vfl-auto on breast-cancer"
    assert words.headline(shown) == "starting the server and 2 parties"
    assert shown["parties"] == {}  # nobody is away yet


def test_a_party_shows_the_file_it_was_given(run_cli, tmp_path, monkeypatch):
    (tmp_path / "lab.csv").write_text(
        "who,a\n" + "".join(f"{i},{i}\n" for i in range(9))
    )
    text = "data: lab.csv\nid: who\nout: run\nserver: 127.0.0.1:1\nname: clinic\n"
    (tmp_path / "party.yaml").write_text(text)

    def show(status, **more):
        raise ConfigError(words.title(status.snapshot()))

    monkeypatch.setattr(terminal, "show", show)
    said = run_cli("party", "--config", tmp_path / "party.yaml", "--insecure")
    assert said.err.splitlines()[-1] == "lessvfl: party clinic · a run on lab.csv"


@pytest.mark.usefixtures("forked_python")
def test_try_gives_the_numbers_of_run(run_cli, tmp_path):
    """Processes, mutual TLS and all: features, accuracy, bytes and curve."""
    out = tmp_path / "out"
    common = ["breast-cancer", "--parties", "2", "--spurious", "0.5"]
    common += settings_of(batch_size=100, train_epochs=2, second_look=0)
    plain, tried = both_ways(run_cli, out, *common)
    assert_alike(plain, tried)
    assert tried["method"] == "less-vfl-auto"
    sides = out / "sides" / "seed-0"
    assert RunRecord.read(sides / "party0" / "run").side == "party"
    assert RunRecord.read(sides / "server" / "run").side == "server"
    assert_sides_have_pages(sides, out)
    again = run_cli("try", *common, "--quiet", "--out", out)
    assert again.code == 2
    assert "must be new or empty" in again.err


def assert_sides_have_pages(sides, out):
    """Each side's page says what is its own; the CSV of all is that of the parties."""
    server, party = (sides / name for name in ("server", "party0"))
    page = (party / "run" / "report.html").read_text("utf-8")
    assert "Not needed by this model" in page
    assert "mean radius" in page
    assert "worst radius" not in page
    assert "eeded: " in (party / "log.txt").read_text()
    assert "mean radius" not in (server / "run" / "report.html").read_text("utf-8")
    assert "accuracy 0." in (server / "log.txt").read_text()
    assert not (server / "run" / "features.csv").exists()
    own = [
        (sides / name / "run" / "features.csv").read_text().splitlines()
        for name in ("party0", "party1")
    ]
    both = [own[0][0], *own[0][1:], *own[1][1:]]
    assert (out / "features.csv").read_text().splitlines() == both


def test_try_with_a_party_that_keeps_nothing(run_cli, in_threads, tmp_path):
    """It is asked no more, and its part of the curve was once taken for missing."""
    X = np.random.default_rng(0).normal(size=(200, 4))
    path = tmp_path / "half.npz"
    np.savez(path, X=X, y=(X[:, 0] > 0).astype(int))
    command = [path, "--parties", "2", *settings_of(train_epochs=3)]
    plain, tried = both_ways(run_cli, tmp_path / "out", *command)
    assert_alike(plain, tried)
    assert tried["runs"][0]["features"]["party1"]["kept"] == []


def test_try_scales_the_labels_of_a_regression(run_cli, in_threads, tmp_path):
    """The server has amounts as they are, and learns their scale by itself."""
    plain, tried = both_ways(
        run_cli,
        tmp_path / "out",
        *("synthetic", "--parties", "2", "--method", "less-vfl"),
        *settings_of(**{"data.n_samples": 200, "data.task": "regression"}),
        *settings_of(batch_size=50, train_epochs=1, party_epochs=2, server_epochs=2),
        *settings_of(lam_party=0.01),  # a party that keeps nothing sends more between
    )
    assert_alike(plain, tried)
    side = tmp_path / "out" / "sides" / "seed-0" / "server"
    assert yaml.safe_load((side / "server.yaml").read_text())["task"] == "regression"


PARTIES = "clinic: [age, height, weight, smoker]\ninsurer: [plan, city]\n"


def a_mixed_table(folder, n_rows=200):
    """Write numbers, truth values and categories; of each kind some cells are empty."""
    rng = np.random.default_rng(7)
    lines = ["age,smoker,plan,height,weight,city,risk"]
    for i in range(n_rows):
        age, height, weight = rng.normal([50, 170, 70], [15, 10, 12])
        smoker = rng.random() < 0.4
        plan = ("basic", "plus", "full")[rng.integers(3)]
        city = "seen once" if i == 17 else ("a", "b, or c")[rng.integers(2)]
        score = (age - 50) / 15 + 2 * smoker + 3 * (plan == "full")
        cells = [f"{age:.1f}", str(smoker).lower(), plan, f"{height:.3f}"]
        cells += [f"{weight:.3f}", f'"{city}"', "high" if score > 1.5 else "low"]
        hole = rng.integers(30)
        if hole < 6:
            cells[hole] = ""
        lines.append(",".join(cells))
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    (folder / "parties.yaml").write_text(PARTIES)


def test_parties_of_try_encode_their_own_columns(run_cli, in_threads, tmp_path):
    """Categories, truth values, missing cells, groups, and noise as it was drawn."""
    a_mixed_table(tmp_path)
    (tmp_path / "groups.yaml").write_text("body: [height, weight]\n")
    plain, tried = both_ways(
        run_cli,
        tmp_path / "out",
        *(tmp_path / "table.csv", "--label", "risk", "--spurious", "1"),
        *("--parties", tmp_path / "parties.yaml"),
        *("--groups", tmp_path / "groups.yaml"),
        *("--missing-values", "city=a"),
        *settings_of(batch_size=40, train_epochs=2),
    )
    assert_alike(plain, tried)
    assert plain["data"]["n_missing"] >= plain["data"]["n_flagged"] > 100
    features = tried["runs"][0]["features"]
    names = [
        name for some in features.values() for own in some.values() for name in own
    ]
    assert {"age", "body", "smoker", "plan", "city"} <= set(names)
    assert "plan" in features["insurer"]["kept"]
    assert "city" in features["insurer"]["removed"]
    assert sum(name.startswith("spurious_") for name in names) == 6
    sides = tmp_path / "out" / "sides" / "seed-0"
    frame, rows = data.load_columns(sides / "insurer" / "columns.parquet", "row")
    assert rows is not None
    assert frame.names[:2] == ("plan", "city")
    assert set(frame.texts(0)) == {"basic", "plus", "full", None}
    party = yaml.safe_load((sides / "clinic" / "party.yaml").read_text())
    assert party["groups"] == {"body": ["height", "weight"]}
    assert party["as_is"] == [f"spurious_clinic_{i}" for i in range(4)]
    assert party["scale_range"] is None
    assert (party["missing"], party["missing_values"]) == ("flag", None)
    party = yaml.safe_load((sides / "insurer" / "party.yaml").read_text())
    assert party["missing_values"] == {"city": ["a"]}


def test_try_with_weights_by_class_and_by_row(run_cli, in_threads, tmp_path):
    a_mixed_table(tmp_path)
    text = (tmp_path / "table.csv").read_text().splitlines()
    rows = [f"{i % 3 + 1},{line}" for i, line in enumerate(text[1:])]
    (tmp_path / "table.csv").write_text("\n".join([f"counts,{text[0]}", *rows]) + "\n")
    plain, tried = both_ways(
        run_cli,
        tmp_path / "out",
        *(tmp_path / "table.csv", "--label", "risk", "--sample-weight", "counts"),
        *("--parties", tmp_path / "parties.yaml"),
        *settings_of(batch_size=40, train_epochs=2, class_weight="high:4,low:1"),
        *settings_of(second_look=0),
    )
    assert_alike(plain, tried)
    assert tried["config"]["class_weight"] == {"high": 4.0, "low": 1.0}
    assert "counts" not in str(tried["runs"][0]["features"])
    sides = tmp_path / "out" / "sides" / "seed-0"
    server = yaml.safe_load((sides / "server" / "server.yaml").read_text())
    assert server["sample_weight"] == "weight"
    where = sides / "server" / "labels.npz"
    dataset, _ = data.load_labels(where, None, "row", Roles("weight"))
    assert set(dataset.label_names) == {"low", "high"}
    assert dataset.weight is not None
    assert set(dataset.weight) == {1.0, 2.0, 3.0}


def test_try_with_a_robust_loss_and_with_a_threshold(run_cli, in_threads, tmp_path):
    """What the server makes of its labels is the same: scale, loss, shares."""
    small = {"data.n_samples": 200, "data.n_test": 50, "batch_size": 50}
    plain, tried = both_ways(
        run_cli,
        tmp_path / "huber",
        *("synthetic", "--parties", "2", "--method", "plain"),
        *settings_of(train_epochs=2, loss="huber", **small),
    )
    assert_alike(plain, tried)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.where(X[:, 0] + X[:, 2] > 2.2, "rare", "usual")
    np.savez(tmp_path / "uneven.npz", X=X, y=y)
    plain, tried = both_ways(
        run_cli,
        tmp_path / "uneven",
        *(tmp_path / "uneven.npz", "--parties", "2", "--method", "plain"),
        *settings_of(train_epochs=2, batch_size=50, threshold="balanced"),
    )
    assert_alike(plain, tried)
    shares = tried["runs"][0]["threshold"]
    assert shares.keys() == {"rare", "usual"}
    assert 0 < shares["rare"] < 0.125


def test_try_with_a_range_that_is_shared(run_cli, in_threads, tmp_path):
    """The published preparation of images: one range for the numbers of all."""
    plain, tried = both_ways(
        run_cli,
        tmp_path / "out",
        *("digits", "--method", "less-vfl", "--profile", "official-code"),
        *("--parties", "2", "--spurious", "0.5"),
        *settings_of(train_epochs=1, party_epochs=1, server_epochs=1),
    )
    assert_alike(plain, tried)
    assert tried["config"]["scale"] == "global"
    side = tmp_path / "out" / "sides" / "seed-0" / "party1"
    party = yaml.safe_load((side / "party.yaml").read_text())
    assert party["scale_range"] == [0.0, 16.0]


def test_a_config_without_credentials_needs_insecure(run_cli, tmp_path):
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
    config |= {"out": str(tmp_path / "run")}
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(config))
    result = run_cli(
        "server", "--config", tmp_path / "server.yaml", "--insecure", "--log-json"
    )
    assert result.code == 2
    assert "Party 'clinic' is missing" in result.err
    logs = [json.loads(x) for x in result.err.splitlines() if x.startswith("{")]
    assert any("status page" in line["message"] for line in logs)


def test_a_party_reads_its_own_messy_table_and_says_so_to_itself(tmp_path):
    rows = "".join(
        f"p{i};1.{i:03d},5;{'yes' if i % 3 else 'no'};{i % 28 + 1}.02.2024;X{i}\n"
        for i in range(40)
    )
    path = tmp_path / "columns.csv"
    path.write_text(f"who;amount;smoker;seen;code\n{rows}")
    frame, ids = data.load_columns(path, "who")

    def start(columns):
        out = str(tmp_path / "run")
        config = PartyConfig(out=out, id="who", align="psi", columns=columns)
        return PartyProcess("clinic", config, frame, ids)

    process = start(["*"])
    said = [(one.column, one.level) for one in process.table.changes()]
    expected = [(name, "changed") for name in (None, None, "amount", "smoker", "seen")]
    assert said == [*expected, ("code", "left out")]
    encoding = process.table.encoding(process.table.whole)
    assert encoding.features == ("amount", "smoker", "seen")
    assert [column.kind for column in encoding.columns] == [
        "numeric",
        "boolean",
        "date",
    ]
    process.close()
    fewer = start(["!seen", "!code"])
    assert fewer.table.encoding(fewer.table.whole).features == ("amount", "smoker")
    assert "seen" not in {one.column for one in fewer.table.changes()}
    fewer.close()
    hello = str(dataclasses.asdict(process.hello()))
    assert not any(name in hello for name in (*frame.names, "left out"))
    with pytest.raises(DataError, match=r"Party 'clinic' must have a column.*'code'"):
        start(["code"])


@pytest.mark.parametrize(("storage", "stays"), [("auto", "Frame"), ("disk", None)])
def test_a_gpu_computes_with_rows_in_memory(storage, stays, tmp_path, monkeypatch):
    """Rows on disk are mapped into the memory of the CPU."""
    path = tmp_path / "own.parquet"
    data.write_columns(path, data.frame_of(np.ones((60, 2))), np.arange(60))
    monkeypatch.setattr(stored, "LARGE", 1)
    monkeypatch.setattr(tables, "resolve_device", lambda name: torch.device("cuda"))
    own = PartyConfig(data=str(path), id="row", storage=storage, out=str(tmp_path))
    status = Status("", "", "", ["server"])
    if stays is None:
        with pytest.raises(ConfigError, match="must be memory or auto with a GPU"):
            PartyProcess.load("clinic", own, status)
        return
    process = PartyProcess.load("clinic", own, status)
    assert type(process.table.whole).__name__ == stays
    process.close()


def test_a_policy_from_python_is_a_policy():
    """A mapping would lose a name that is misspelt."""
    with pytest.raises(ConfigError, match="The 'policy' setting must be"):
        PartyConfig(policy={"ruonds": 5})  # type: ignore[arg-type]


def test_what_could_not_be_written_is_not_spent(tmp_path, monkeypatch):
    def full(*what):
        raise OSError("no space left")

    budget = PredictionBudget(tmp_path / "spent", PolicyChecker("clinic", Policy()))
    with monkeypatch.context() as patch:
        patch.setattr(spent, "write_state", full)
        for _ in range(3):
            with pytest.raises(OSError, match="no space"):
                budget.rows(1, 1)
    budget.rows(1, 1)
    assert read_state(tmp_path / "spent").values["rows"] >= 4
