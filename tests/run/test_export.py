"""Exported networks give, on raw rows, what the model gives."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from torch import nn

from lessvfl import data
from lessvfl.core.passes import ACTIVATIONS
from lessvfl.data import Encoding, learn
from lessvfl.errors import ConfigError, NetworkError
from lessvfl.run import simulate
from lessvfl.run.build import Networks
from lessvfl.run.export import export_model, fusion_file, party_file
from lessvfl.run.fitted import FittedParty
from lessvfl.run.network_files import Shape
from lessvfl.run.profiles import resolve
from lessvfl.run.simulate import Job

# Selection of everything or nothing is what some tests here ask for.
pytestmark = pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")


@pytest.fixture(autouse=True)
def _flags_of_few_cells(monkeypatch):
    """Have flags in a table of a hundred rows."""
    monkeypatch.setattr(learn, "FEWEST", 5)


# Few of the 120 rows are of the rarest class, and it must be among those for testing.
ROWS: dict[str, Any] = {"split": "stratified"}
SHORT: dict[str, Any] = ROWS | {"train_epochs": 2, "batch_size": 40, "hidden": 8}
SELECT: dict[str, Any] = {
    "pretrain_batch_size": 40,
    "pretrain_epochs": 1,
    "shadows": 20,
}
PARTIES = {"clinic": ["sex", "lab_*", "tail"], "../bank of A": ["time", "age", "city"]}
PARTIES["class"] = ["on", "embedding", "step0", "constant1", "seen", "amount", "yes"]
TASKS = ("binary", "uneven", "three", "multiclass", "regression")
N = 120


def a_table() -> pd.DataFrame:
    """Make columns of every kind, some cells missing, some names those of a graph."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({f"lab_{i}": rng.normal(size=N) for i in range(3)})
    table["tail"] = np.exp(3 * rng.normal(size=N))
    table["time"] = 1.7e9 + 1e4 * rng.normal(size=N)
    table["age"] = rng.normal(50, 10, N)
    table["sex"] = rng.choice(["f", "m", "other | none"], N)
    table["city"] = rng.choice(["Aix", "Bonn", "Çorum"], N)
    table["on"] = rng.random(N) < 0.5
    for name in ("embedding", "step0", "constant1"):
        table[name] = rng.integers(0, 9, N)
    for name in ("tail", "age", "sex", "on"):
        table[name] = table[name].astype(object)
        table.loc[rng.random(N) < 0.1, name] = None
    table["tail"] = table["tail"].astype(float)
    table["age"] = table["age"].astype(float)
    days = np.datetime64("1955-02-27") + rng.integers(0, 40_000, N)
    table["seen"] = days.astype(str)
    table["amount"] = [f"{value:,.2f}" for value in rng.normal(0, 9e5, N)]
    table["yes"] = rng.choice(["Yes", "no"], N)
    for name in ("seen", "amount", "yes"):
        table[name] = table[name].astype(object)
        table.loc[rng.random(N) < 0.1, name] = None
    return table


def labels_of(table: pd.DataFrame, task: str) -> Any:
    score = table["lab_0"] + (table["sex"] == "f") + 0.1 * table["embedding"]
    if task == "regression":
        return 1e6 + 1000 * score
    if task == "uneven":
        return np.where(score > 2.2, "rare", "often")
    cuts = {"binary": [0.8], "three": [0.4, 1.0], "multiclass": [0.4, 0.9, 2.5]}[task]
    return np.array(["low", "mid", "high", "top"])[np.digitize(score, cuts)]


def fit(task="binary", method="plain", job=None, **more):
    """Return the model of a short run; where no job is given, one for all tests."""
    if job is None:
        return _fit(task, method, **more)
    return _fit.__wrapped__(task, method, job, **more)


@functools.cache
def _fit(task, method, job=None, **more):
    table = a_table()
    dataset = data.from_arrays(table, labels_of(table, task))
    if task != "regression":
        more = {"threshold": "balanced"} | more
    settings = resolve(method, "default", dataset, SHORT | more)
    fields = {"parties": PARTIES, "curve": False} | (job or {})
    (one,) = simulate.simulate(Job(dataset, settings, **fields), [0])
    return one.model


def strange_rows() -> pd.DataFrame:
    """Return the table, and below it rows of what no training row has."""
    table = a_table()
    far = table[:4].copy()
    far["sex"], far["city"] = ["x", "F", "f ", None], ["Zürich", None, "", "aix"]
    far["seen"] = ["2000-02-29", "1900-03-01", "0001-01-01", "9999-12-31T23:59"]
    far["amount"], far["yes"] = ["950", "-", "1,234", ".5"], ["YES", "?", "no", "No"]
    far["tail"], far["time"] = [1e30, -1e30, 0.0, np.nan], [0.0, 1.7e9, np.nan, 2e9]
    nothing = table[:1].astype(object)
    nothing[:] = None
    rows = pd.concat([table.astype(object), far.astype(object), nothing])
    return rows.reset_index(drop=True)


def session(file: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


# What texts stand for, by other means than those of lessvfl.
READ = {
    "seen": lambda text: (
        None
        if text is None
        else (date.fromisoformat(text[:10]) - date(1970, 1, 1)).days
    ),
    "amount": lambda text: (
        None if text in (None, "-") else float(text.replace(",", ""))
    ),
    "yes": lambda text: None if text in (None, "?") else text.lower() == "yes",
}


def feed(graph: onnxruntime.InferenceSession, rows: pd.DataFrame) -> dict[str, Any]:
    """Return raw columns as the graph wants them: "" or NaN where one is missing."""
    found = {}
    for one in graph.get_inputs():
        cells = rows[one.name]
        if one.type == "tensor(string)":
            column = np.array([c if isinstance(c, str) else "" for c in cells], object)
        else:
            assert one.type == "tensor(double)"
            cells = cells.map(READ[one.name]) if one.name in READ else cells
            column = pd.to_numeric(cells).to_numpy(dtype=np.float64, na_value=np.nan)
        found[one.name] = column[:, None]
    return found


def embeddings(model, rows: pd.DataFrame) -> dict[str, Any]:
    """Return what every party's graph gives, equal to what the party gives."""
    frame = data.frame_of(rows)
    found = {}
    for party in model.parties:
        graph = session(party_file(party, "onnx"))
        if not party.kept:
            (found[party.name],) = graph.run(None, {"rows": np.array([len(rows)])})
            continue
        assert [one.name for one in graph.get_inputs()] == list(party.encoding.names)
        assert {tuple(one.shape) for one in graph.get_inputs()} <= {("N", 1)}
        (h,) = graph.run(None, feed(graph, rows))
        expected = party.embed(frame).numpy()
        assert h.dtype == expected.dtype
        np.testing.assert_allclose(h, expected, rtol=1e-5, atol=1e-5)
        found[party.name] = h
    return found


def check(model, rows: pd.DataFrame) -> None:
    """Compare all graphs of a model with the model."""
    graph = session(fusion_file(model, "onnx"))
    given = embeddings(model, rows)
    names = [one.name.rstrip("_") for one in graph.get_outputs()]
    found = dict(zip(names, graph.run(None, given), strict=True))
    if model.task == "regression":
        expected = model.predict(rows)
        np.testing.assert_allclose(found["value"], expected, rtol=1e-6, atol=1e-5)
        return
    expected = model.predict_proba(rows)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    assert found["label"].tolist() == model.predict(rows).tolist()
    classes = np.array(model.label_names)
    assert classes[found["class"]].tolist() == found["label"].tolist()


@pytest.mark.parametrize(
    ("task", "dtype"), [*((task, "float32") for task in TASKS), ("binary", "float64")]
)
def test_graphs_give_what_the_model_gives(task, dtype):
    model = fit(task, dtype=dtype)
    assert (model.threshold is not None) == (task != "regression")
    knots = [c.name for p in model.parties for c in p.encoding.columns if c.knots]
    assert "tail" in knots
    check(model, strange_rows())


def test_days_of_the_calendar():
    """Leap years, centuries, and years before 1970, whatever the training rows had."""
    model = fit()
    party = model.parties[2]
    assert {c.kind for c in party.encoding.columns if c.name == "seen"} == {"date"}
    graph = session(party_file(party, "onnx"))
    assert json.loads(
        graph.get_modelmeta().custom_metadata_map["days_since_1970_01_01"]
    ) == ["seen"]
    days = np.random.default_rng(0).integers(1, date.max.toordinal(), 3000)
    edges = [f"{y}-{d}" for y in (1899, 1900, 1972, 2000) for d in ("02-28", "03-01")]
    texts = [date.fromordinal(day).isoformat() for day in days] + edges
    rows = pd.concat([a_table()[:1]] * len(texts), ignore_index=True)
    rows["seen"] = texts
    (h,) = graph.run(None, feed(graph, rows))
    expected = party.embed(data.frame_of(rows)).numpy()
    np.testing.assert_allclose(h, expected, rtol=1e-5, atol=1e-5)
    assert len(np.unique(h.round(5), axis=0)) > 1000


def test_a_threshold_decides():
    """What is predicted is not the class with the largest probability."""
    model = fit("uneven")
    rows = a_table()
    graph = session(fusion_file(model, "onnx"))
    p, place, _ = graph.run(None, embeddings(model, rows))
    assert (place != p.argmax(axis=1)).any()
    assert np.array(model.label_names)[place].tolist() == model.predict(rows).tolist()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation):
    check(fit(activation=activation, fusion_depth=2), strange_rows())


def test_one_layer():
    check(fit(depth=1, activation="none"), strange_rows())


@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
def test_curves_are_drawn_alike(kind, tmp_path):
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(600, 4)), columns=[*"abcd"])
    y = np.sin(3 * x["a"]) + x["a"] + x["c"] + 0.3 * rng.normal(size=600)
    dataset = data.from_arrays(x, y)
    settings = resolve("less-vfl-auto", "default", dataset, {"train_epochs": 3})
    (run,) = simulate.simulate(Job(dataset, settings, 2), [0])
    model = run.model
    assert "pieces" in model.parties[0].net.state()
    if kind == "onnx":
        check(model, x)
        return
    files = export_model(model, tmp_path, kind)
    party = model.parties[0]
    again = rebuilt(party, files[f"party '{party.name}'"])
    assert torch.equal(again.embed(data.frame_of(x)), party.embed(data.frame_of(x)))


def test_single_rows_and_none():
    model = fit()
    graph = session(party_file(model.parties[0], "onnx"))
    for n_rows in (1, 0):
        (h,) = graph.run(None, feed(graph, a_table()[:n_rows]))
        assert h.shape == (n_rows, model.parties[0].net.n_outputs)


def test_only_columns_in_use_are_inputs():
    model = fit(method="less-vfl-auto", **SELECT)
    kept = [len(party.kept) for party in model.parties]
    assert 0 < sum(kept) < 15
    check_all_but_constants(model, strange_rows())


def check_all_but_constants(model, rows) -> None:
    """Compare graphs of a model some of whose parties may give a constant."""
    given = {}
    for party in model.parties:
        graph = session(party_file(party, "onnx"))
        if party.constant is None:
            (given[party.name],) = graph.run(None, feed(graph, rows))
        else:
            (rows_input,) = graph.get_inputs()
            assert (rows_input.name, rows_input.type) == ("rows", "tensor(int64)")
            count = np.array([len(rows)])
            (given[party.name],) = graph.run(None, {"rows": count})
            expected = party.constant.expand(len(rows), -1).numpy()
            np.testing.assert_allclose(given[party.name], expected)
    p = session(fusion_file(model, "onnx")).run(None, given)[0]
    np.testing.assert_allclose(p, model.predict_proba(rows), atol=1e-5)


def test_a_party_that_kept_nothing():
    own = {"pretrain_epochs": 1, "lam_party": 1e6, "lam_server": 0.01}
    model = fit(method="less-vfl", **own, party_epochs=9, server_epochs=3)
    assert all(party.constant is not None for party in model.parties)
    check_all_but_constants(model, strange_rows())


def test_a_party_without_components():
    own = {"pretrain_epochs": 1, "lam_party": 0.1, "lam_server": 1e6}
    model = fit(method="less-vfl", **own, party_epochs=3, server_epochs=30)
    assert {party.net.n_outputs for party in model.parties} == {0}
    check_all_but_constants(model, strange_rows())


def test_grouped_features():
    groups = {"place": ["time", "city"], "labs": ["lab_0", "lab_2"]}
    model = fit(job={"groups": groups})
    assert "place" in model.parties[1].kept
    check(model, strange_rows())


def test_planted_columns_are_inputs():
    model = fit(job={"spurious": 0.5})
    rows = strange_rows()
    rng = np.random.default_rng(0)
    for party in model.parties:
        for name in party.kept:
            if name.startswith("spurious_"):
                rows[name] = rng.normal(size=len(rows))
    check(model, rows)


@pytest.mark.parametrize("scale", ["standardize", "global", "none"])
def test_every_scale(scale):
    check(fit(scale=scale), a_table())


def test_knots_are_met_exactly():
    model = fit(dtype="float64")
    party = model.parties[0]
    (column,) = [c for c in party.encoding.columns if c.name == "tail"]
    knots = np.array(column.knots)
    between = np.concatenate([knots, (knots[1:] + knots[:-1]) / 2, knots[:1] - 9])
    rows = a_table().iloc[np.arange(len(between)) % N].reset_index(drop=True)
    rows["tail"] = between
    graph = session(party_file(party, "onnx"))
    (h,) = graph.run(None, feed(graph, rows))
    expected = party.embed(data.frame_of(rows)).numpy()
    np.testing.assert_allclose(h, expected, rtol=1e-12, atol=1e-12)


def test_files_say_what_they_are(tmp_path):
    model = fit("multiclass")
    files = export_model(model, tmp_path / "out", "onnx")
    assert [path.name for path in files.values()] == [
        "party0.onnx",
        "party1.onnx",
        "party2.onnx",
        "fusion.onnx",
    ]
    assert list(files)[1:] == ["party '../bank of A'", "party 'class'", "the server"]
    first = onnx.load(files["party 'clinic'"])
    about = {entry.key: json.loads(entry.value) for entry in first.metadata_props}
    assert about == {"party": "clinic", "features": list(model.parties[0].kept)}
    last = onnx.load(files["the server"])
    about = {entry.key: json.loads(entry.value) for entry in last.metadata_props}
    assert about["label_names"] == list(model.label_names)
    assert about["parties"] == ["clinic", "../bank of A", "class"]


def test_each_side_alone():
    """The server knows no party, and a party no other."""
    model = fit()
    server = replace(model, parties=())
    assert fusion_file(server, "onnx") == fusion_file(model, "onnx")
    assert fusion_file(server, "safetensors")


# ------------------------------------------------------------------------- safetensors


def test_safetensors_hold_all_that_is_needed(tmp_path):
    model = fit("uneven", method="plain", dtype="float64")
    files = export_model(model, tmp_path, "safetensors")
    for party in model.parties:
        again = rebuilt(party, files[f"party '{party.name}'"])
        assert again.encoding == party.encoding
        frame = data.frame_of(a_table())
        assert torch.equal(again.embed(frame), party.embed(frame))
    with safe_open(files["the server"], "pt") as file:
        about = {key: json.loads(value) for key, value in file.metadata().items()}
    assert tuple(about["threshold"]) == model.threshold
    assert about["components"] == {p.name: p.net.n_outputs for p in model.parties}


def rebuilt(party: FittedParty, path: Path) -> FittedParty:
    """Return a party with what its file alone says."""
    with safe_open(path, "pt") as file:
        about = {key: json.loads(value) for key, value in file.metadata().items()}
        state = {key: file.get_tensor(key) for key in file.keys()}
    shape = Shape(**{k: _tuple(v) for k, v in about["shape"].items()})
    net = shape.restore(state, party.name, None, False)
    return replace(party, encoding=Encoding.from_json(about["encoding"]), net=net)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_safetensors_of_a_constant(tmp_path):
    own = {"pretrain_epochs": 1, "lam_party": 1e6, "lam_server": 0.01}
    model = fit(method="less-vfl", **own, party_epochs=9, server_epochs=3)
    files = export_model(model, tmp_path, "safetensors")
    with safe_open(files["party 'clinic'"], "pt") as file:
        found = file.get_tensor("constant")
    assert torch.equal(found, model.parties[0].constant)


# ----------------------------------------------------------------- networks of the user


def normed(n_inputs: int, n_outputs: int) -> nn.Module:
    inner = (nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(), nn.LayerNorm(8))
    return nn.Sequential(nn.Linear(n_inputs, 8), *inner, nn.Linear(8, n_outputs))


class Fixed(nn.Module):
    """A module whose inputs cannot be cut, nor its outputs."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.width = n_inputs
        self.first = nn.Linear(n_inputs, 8)
        self.last = nn.Linear(8, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, self.width)
        return torch.tanh(self.last(torch.tanh(self.first(x))))


class Undecided(nn.Module):
    """A module whose way depends on how many rows there are."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_inputs, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)
        return h if len(x) < 3 else 2 * h


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_modules_of_the_user(dtype):
    networks = Networks(party=normed, fusion=normed)
    check(fit(job={"networks": networks}, dtype=dtype), strange_rows())


@pytest.mark.parametrize("module", [normed, Fixed])
def test_modules_cut_to_what_they_kept(module):
    networks = Networks(party=module, fusion=None)
    model = fit(method="less-vfl-auto", job={"networks": networks}, **SELECT)
    assert any(party.kept and party.removed for party in model.parties)
    check_all_but_constants(model, strange_rows())


def test_modules_that_cannot_be_traced(tmp_path):
    model = fit(job={"networks": Networks(party=Undecided, fusion=None)})
    with pytest.raises(NetworkError, match=r"party 'clinic' must be one that PyTorch"):
        export_model(model, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()
    export_model(model, tmp_path / "out", "safetensors")


# ----------------------------------------------------------------------------- refusals


def test_without_the_package(monkeypatch, tmp_path):
    model = fit()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install 'lessvfl\[onnx\]'"):
        export_model(model, tmp_path, "onnx")
    export_model(model, tmp_path, "safetensors")


def test_columns_without_a_name():
    table = a_table().rename(columns={"lab_0": ""})
    dataset = data.from_arrays(table, labels_of(a_table(), "binary"))
    settings = resolve("plain", "default", dataset, SHORT)
    (one,) = simulate.simulate(Job(dataset, settings, parties=2), [0])
    with pytest.raises(ConfigError, match=r"must have a name. Got ''"):
        party_file(one.model.parties[0], "onnx")


def test_formats(tmp_path):
    with pytest.raises(
        ConfigError, match=r"must be onnx, safetensors or json\. Got 'pickle'"
    ):
        export_model(fit(), tmp_path, "pickle")


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can be written to"):
        export_model(fit(), tmp_path / "file", "safetensors")


# -------------------------------------------------------------------------------- trees

TREES: dict[str, Any] = ROWS | {"trees": 3, "select_trees": 0, "least_rows": 4}
GROWN = ("vertical-boost", "vertical-forest")


def grown(task: str, method: str, **more: Any) -> Any:
    """Return trees that split columns of every kind."""
    table = a_table()
    dataset = data.from_arrays(table, labels_of(table, task))
    settings = resolve(method, "default", dataset, TREES | more)
    job = Job(dataset, settings, parties=PARTIES, curve=False)
    (one,) = simulate.simulate(job, [0])
    return one.model


@pytest.mark.parametrize("method", [*GROWN, "vprf"])
@pytest.mark.parametrize("task", TASKS)
def test_graphs_of_trees_give_what_trees_give(task, method):
    check(grown(task, method), strange_rows())


def test_trees_that_vote_are_no_json():
    model = grown("binary", "vprf")
    for write, owner in ((party_file, model.parties[0]), (fusion_file, model)):
        with pytest.raises(ConfigError, match=r"to be JSON.* Got trees that vote\."):
            write(owner, "json")


def is_left(split: dict[str, Any], cell: Any) -> Any:
    """Follow one split of a JSON file for one raw cell."""
    name = split["column"]
    if "one_of" in split:
        known = CITIES if name == "city" else SEXES
        if not isinstance(cell, str) or not cell:
            return split["missing_goes_left"]
        return cell in split["one_of"] if cell in known else split["unseen_goes_left"]
    value = READ[name](cell) if name in READ else cell
    if value is None or value != value:
        return split["missing_goes_left"]
    if "part" in split:
        day = date(1970, 1, 1).toordinal() + int(value)
        own = date.fromordinal(day)
        parts = {"day": own.day, "month": own.month, "weekday": own.weekday()}
        value = parts[split["part"]]
    if "others_go_left" in split:
        return split["others_go_left"]
    return value <= split["at_most"] if "at_most" in split else value > split["above"]


SEXES, CITIES = ("f", "m", "other | none"), ("Aix", "Bonn", "Çorum")


@pytest.mark.parametrize("method", GROWN)
def test_splits_as_json_send_raw_cells_the_same_way(method):
    """Numbers, heavy tails, truth values, dates and categories; missing, never seen."""
    rows = strange_rows()
    rows["tail"] = rows["tail"].astype(float)
    model = grown("three", method, trees=12)
    kinds = set()
    for party in model.parties:
        told = json.loads(party_file(party, "json"))
        assert told["party"] == party.name
        assert {split["column"] for split in told["splits"]} <= set(told["features"])
        expected = party.embed(data.frame_of(rows)).numpy() > 0
        assert len(told["splits"]) == expected.shape[1]
        for split in told["splits"]:
            if split.get("part") == "days":
                continue
            found = [is_left(split, cell) for cell in rows[split["column"]]]
            place = split["component"]
            assert found == expected[:, place].tolist(), split
            kinds |= set(split)
    assert {"at_most", "one_of", "part", "missing_goes_left"} <= kinds


@pytest.mark.parametrize("method", GROWN)
@pytest.mark.parametrize("task", TASKS)
def test_trees_as_json_lead_to_the_same_predictions(task, method):
    rows = strange_rows()
    model = grown(task, method)
    told = json.loads(fusion_file(model, "json"))
    frame = data.frame_of(rows)
    said = {p.name: p.embed(frame).expand(len(rows), -1) > 0 for p in model.parties}
    z = np.tile(told["start"], (len(rows), 1))
    for tree in told["trees"]:
        for row in range(len(rows)):
            node = tree[0]
            while "value" not in node:
                goes_left = said[node["party"]][row, node["component"]]
                node = tree[node["left" if goes_left else "right"]]
            z[row] += node["value"]
    if told["combine"] == "mean":
        z /= len(told["trees"])
    if task == "regression":
        value = z[:, 0] * told["label_scale"] + told["label_shift"]
        np.testing.assert_allclose(value, model.predict(rows), rtol=1e-6)
        return
    if told["link"] == "shares":
        p = np.clip(z, 1e-6, 1 - 1e-6)
    else:
        p = 1 / (1 + np.exp(-z)) if told["link"] == "sigmoid" else np.exp(z)
    p = np.concatenate([1 - p, p], axis=1) if p.shape[1] == 1 else p
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p, model.predict_proba(rows), atol=1e-5)


def test_a_network_is_not_json():
    model = fit()
    for file, part in ((party_file, model.parties[0]), (fusion_file, model)):
        with pytest.raises(ConfigError, match="must be of trees to be JSON"):
            file(part, "json")
