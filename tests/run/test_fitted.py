"""A model from a run folder predicts what the run predicted."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from tests.conftest import PUBLISHED
from torch import nn

from lessvfl import data
from lessvfl.errors import ConfigError, DataError, RecordError
from lessvfl.run import experiment, profiles, simulate
from lessvfl.run.build import Networks
from lessvfl.run.fitted import FittedServer
from lessvfl.run.folder import load, save
from lessvfl.run.simulate import Job

# Selection of everything or nothing is what some tests here ask for.
pytestmark = pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")

METHODS = ("less-vfl", "local-lasso", "group-lasso", "plain", "less-vfl-auto")
STAGE_2 = {"server_epochs": 5, "server_step_size": 0.2, "lam_server": 0.05}
STAGE_3 = {"party_epochs": 20, "party_step_size": 0.02, "lam_party": 3}
OWN: dict[str, dict[str, Any]] = {
    "less-vfl": PUBLISHED | STAGE_2 | STAGE_3,
    "local-lasso": STAGE_3,
    "group-lasso": {"joint_epochs": 4, "learning_rate": 0.1, "lam_party": 1.2},
    "plain": {},
    "less-vfl-auto": {"pretrain_batch_size": 40, "pretrain_epochs": 1, "shadows": 20},
}
PARTIES = {"server": ["age", "sex"], "../lab/of A": ["lab_*"], "rest": ["city", "on"]}
N, N_TRAIN = 150, 120


def a_table(n_rows=N) -> pd.DataFrame:
    """Make numbers, truth values and categories, some of them missing."""
    rng = np.random.default_rng(3)
    age, lab = rng.normal(50, 10, n_rows), rng.normal(size=(n_rows, 4))
    table = pd.DataFrame({f"lab_{i}": lab[:, i] for i in range(4)})
    table["age"] = np.where(rng.random(n_rows) < 0.1, np.nan, age)
    sex = rng.choice(["f", "m", ""], n_rows, p=[0.5, 0.4, 0.1])
    table["sex"] = [letter or None for letter in sex]
    table["city"] = rng.choice(["Aix", "Bonn", "Cork", "Dax"], n_rows)
    table["on"] = rng.random(n_rows) < 0.5
    score = (age - 50) / 10 + lab[:, 0] + 0.5 * table["on"]
    table["label"] = np.where(score > 0.2, "ill", "well")
    return table


@pytest.fixture
def table():
    return a_table()


@pytest.fixture
def dataset(table, tmp_path):
    path = tmp_path / "patients.csv"
    table.to_csv(path, index=False)
    return data.load(path)


def run(dataset, method="less-vfl", profile="default", seeds=(0,), job=None, **more):
    """Run a method whose test rows are the last ones of the table."""
    base = {"split": "first", "train_epochs": 3, "batch_size": 40}
    own = OWN[method] | base | more
    settings = profiles.resolve(method, profile, dataset, own)
    fields = {"parties": PARTIES} | (job or {})
    return experiment.run(Job(dataset, settings, **fields), list(seeds))


def check(model, numbers, rows, labels):
    """Compare a model with the test measures at the end of its run."""
    predicted = model.predict(rows)
    final = numbers["accuracy"]["final"]
    assert accuracy_score(labels, predicted) == pytest.approx(final)
    p = model.predict_proba(rows)
    assert p.shape == (len(labels), 2)
    assert p.sum(axis=1) == pytest.approx(1)
    area = roc_auc_score(labels == model.label_names[1], p[:, 1])
    assert area == pytest.approx(numbers["auc"]["final"], abs=1e-3)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [*((method, "float32") for method in METHODS), ("less-vfl", "float64")],
)
def test_loaded_model_predicts_as_the_run(table, dataset, tmp_path, method, dtype):
    record, runs = run(dataset, method, seeds=(0, 1), dtype=dtype)
    folder = tmp_path / "run"
    save(folder, record, runs)
    rows = table[N_TRAIN:].drop(columns="label")
    labels = table["label"][N_TRAIN:].to_numpy()
    for one in runs:
        model = load(folder, one.numbers["seed"])
        check(model, one.numbers, rows, labels)
        assert model.features == {
            party: tuple(names["kept"])
            for party, names in one.numbers["features"].items()
        }
        assert np.array_equal(model.decide(rows), one.model.decide(rows))
    assert [path.name for path in tmp_path.rglob("party*")].count("party0") == 2


def test_a_model_is_printed_in_a_line(dataset):
    _, runs = run(dataset, "plain")
    model = runs[0].model
    first, lab, _ = model.parties
    server = FittedServer(**about_server(model))
    first = replace(first, kept=("age",), removed=("sex",))
    model = replace(model, parties=(first, lab))
    assert str(model) == (
        "<FittedModel: binary; features kept: server 1 of 2 (age), "
        "../lab/of A 4 of 4 (lab_0, lab_1, lab_2, ...)>"
    )
    assert repr(replace(lab, kept=(), removed=lab.kept)) == (
        "<FittedParty: ../lab/of A; features kept: 0 of 4>"
    )
    assert repr(lab) == (
        "<FittedParty: ../lab/of A; features kept: 4 of 4 (lab_0, lab_1, lab_2, ...)>"
    )
    assert repr(server) == "<FittedServer: binary; parties: server, ../lab/of A, rest>"


def about_server(model):
    return {one.name: getattr(model, one.name) for one in fields(FittedServer)}


@pytest.mark.parametrize("method", METHODS[:3])
def test_networks_on_disk_are_really_smaller(dataset, tmp_path, method):
    record, runs = run(dataset, method)
    save(tmp_path, record, runs)
    numbers = runs[0].numbers
    assert any(party["removed"] for party in numbers["features"].values())
    folder = tmp_path / record.header["networks"] / "seed-0"
    n_columns = {"sex": 2, "city": 4}  # one-hot categories
    widths = []
    for index, (party, features) in enumerate(numbers["features"].items()):
        tensors = load_file(folder / f"party{index}" / "network.safetensors")
        kept = numbers["components"][party]["kept"]
        width = sum(n_columns.get(name, 1) for name in features["kept"])
        assert tensors["layer0.weight"].shape == (64, width)
        assert tensors["layer2.weight"].shape == (kept, 64)
        about = json.loads((folder / f"party{index}" / "party.json").read_text())
        assert about["name"] == party
        assert about["kept"] == features["kept"]
        assert about["removed"] == features["removed"]
        columns = [column["name"] for column in about["encoding"]["columns"]]
        assert set(columns) == set(features["kept"])
        widths.append(kept)
    fusion = load_file(folder / "server" / "network.safetensors")
    assert fusion["layer0.weight"].shape == (1, sum(widths))
    if method == "less-vfl":
        assert sum(widths) < 48


EMPTY = {"lam_party": 1e6}


@pytest.mark.parametrize(
    ("method", "profile"),
    [
        *((method, "official-code") for method in METHODS[:3]),
        ("less-vfl", "default"),
        ("group-lasso", "paper"),
    ],
)
def test_parties_that_keep_nothing(table, dataset, tmp_path, method, profile):
    """A constant, or frozen embeddings of all columns: as in the run."""
    record, runs = run(dataset, method, profile, **EMPTY)
    save(tmp_path, record, runs)
    numbers = runs[0].numbers
    assert not any(party["kept"] for party in numbers["features"].values())
    model = load(tmp_path)
    rows = table[N_TRAIN:].drop(columns="label")
    check(model, numbers, rows, table["label"][N_TRAIN:].to_numpy())
    frozen = profile == "official-code" and method != "group-lasso"
    assert (len(np.unique(model.decide(rows))) > 1) == frozen  # to the last bit
    for party in model.parties:
        assert bool(party.encoding.columns) == frozen


@pytest.mark.parametrize("profile", ["default", "official-code"])
def test_some_parties_keep_nothing(table, dataset, tmp_path, profile):
    own = {"lam_scale": 1, "party_step_size": 0.02, "reduction": "sum"}
    record, runs = run(dataset, "less-vfl", profile, seeds=(1,), **own)
    save(tmp_path, record, runs)
    kept = [bool(party["kept"]) for party in runs[0].numbers["features"].values()]
    assert len(set(kept)) == 2
    rows = table[N_TRAIN:].drop(columns="label")
    labels = table["label"][N_TRAIN:].to_numpy()
    model = load(tmp_path)
    check(model, runs[0].numbers, rows, labels)
    assert model.decide(rows[:0]).shape == (0, 1)


def test_planted_columns_are_columns_of_the_model(table, dataset, tmp_path):
    """Noise that was kept must be given; in a table by name, in an array at the end."""
    record, runs = run(dataset, "plain", job={"spurious": 1.0})
    save(tmp_path, record, runs)
    rows = table[N_TRAIN:].drop(columns="label").reset_index(drop=True)
    planted = {
        name: party.X_test[:, party.groups == index][:, 0]
        for party in runs[0].problem.parties
        for index, name in enumerate(party.features)
        if party.spurious[index]
    }
    assert len(planted) == 8
    rows = rows.assign(**planted)
    model = load(tmp_path)
    assert model.feature_names == tuple(rows.columns)
    check(model, runs[0].numbers, rows, table["label"][N_TRAIN:].to_numpy())
    with pytest.raises(DataError, match="spurious_"):
        model.predict(rows.drop(columns="spurious_rest_0"))


def test_tables_of_any_kind(table, dataset):
    _, runs = run(dataset, "plain")
    model, rows = runs[0].model, table.drop(columns="label")
    expected = model.decide(rows)
    shuffled = rows[sorted(rows.columns)].assign(other=1)
    assert np.array_equal(model.decide(shuffled), expected)
    assert np.array_equal(model.decide(pl.from_pandas(rows)), expected)
    array = rows.to_numpy(dtype=object)
    assert np.array_equal(model.decide(array), expected)
    with pytest.raises(DataError, match=r"the 8 columns.*Got shape \(150, 7\)"):
        model.predict(array[:, 1:])
    with pytest.raises(DataError, match="'age'"):
        model.predict(rows.drop(columns="age"))


def test_frames_of_any_dtype(table, dataset):
    """Categories, missing cells and truth values, however pandas holds them."""
    _, runs = run(dataset, "plain")
    model, rows = runs[0].model, table.drop(columns="label")
    assert rows[["age", "sex"]].isna().any().all()
    expected = model.decide(rows)
    for dtypes in (
        {"sex": "category", "city": "category"},
        {"sex": "string", "age": "Float64", "on": "boolean"},
        {"on": object, "age": object},
        {"on": float},
    ):
        assert np.array_equal(model.decide(rows.astype(dtypes)), expected)
    assert np.array_equal(model.decide(rows.convert_dtypes()), expected)
    alone = rows[rows["sex"].isna()][:1]  # its one category is missing
    place = int(alone.index[0])
    assert model.decide(alone) == pytest.approx(expected[[place]], abs=1e-5)


def test_other_columns_may_hold_anything(table, dataset, tmp_path):
    record, runs = run(dataset, "plain")
    save(tmp_path, record, runs)
    model, rows = load(tmp_path), table.drop(columns="label")
    expected = model.predict(rows)
    more = rows.assign(when=pd.Timestamp("2020-02-02"), list=[[1]] * N)
    assert np.array_equal(model.predict(more), expected)
    dates = pl.from_pandas(rows.assign(when=pd.Timestamp("2020-02-02")))
    assert np.array_equal(model.predict(dates), expected)
    with pytest.raises(DataError, match="must have the columns it was fitted on"):
        model.predict(more[["when"]])


def test_only_columns_in_use_are_needed(table, dataset, tmp_path):
    record, runs = run(dataset, "less-vfl")
    save(tmp_path, record, runs)
    model = load(tmp_path)
    used = [name for names in model.features.values() for name in names]
    assert 0 < len(used) < 8
    rows = table.drop(columns="label")
    assert np.array_equal(model.decide(rows[used]), model.decide(rows))


def test_multiclass(tmp_path):
    dataset = data.load("digits")
    record, runs = run(dataset, "plain", job={"parties": 4}, batch_size=300)
    save(tmp_path, record, runs)
    model = load(tmp_path)
    rows = dataset.X.numeric[1437:]
    labels = np.asarray(dataset.label_names)[dataset.y[1437:]]
    accuracy = runs[0].numbers["accuracy"]["final"]
    assert accuracy_score(labels, model.predict(rows)) == accuracy
    assert model.predict_proba(rows).shape == (360, 10)
    assert model.predict_proba(rows).sum(axis=1) == pytest.approx(1)


def test_regression(tmp_path):
    options = {"n_samples": 100, "n_test": 50, "task": "regression"}
    dataset = data.load("synthetic", options=options)
    assert dataset.X_test is not None
    assert dataset.y_test is not None
    record, runs = run(dataset, "plain", job={"parties": 2}, dtype="float64")
    save(tmp_path, record, runs)
    model = load(tmp_path)
    found = r2_score(dataset.y_test, model.predict(dataset.X_test.numeric))
    assert found == pytest.approx(runs[0].numbers["r2"]["final"])
    with pytest.raises(ConfigError, match="Got a regression model"):
        model.predict_proba(dataset.X_test.numeric)


# ---------------------------------------------------------------- networks of the user

MODULES = """
from torch import nn

def normed(n_inputs, n_outputs):
    return nn.Sequential(
        nn.Linear(n_inputs, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, n_outputs)
    )

def deep(n_inputs, n_outputs):
    return nn.Sequential(nn.Linear(n_inputs, 8), nn.Tanh(), nn.Linear(8, n_outputs))
"""


def test_modules_named_by_settings(table, dataset, tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(MODULES)
    nets = {"party_net": f"{path}:normed", "fusion_net": f"{path}:deep"}
    record, runs = run(dataset, "less-vfl", **nets)
    save(tmp_path / "run", record, runs)
    path.write_text("raise SystemExit('code of the folder was run')")
    with pytest.raises(ConfigError, match="must be given trust_code=True to run it"):
        load(tmp_path / "run")
    path.write_text(MODULES)
    model = load(tmp_path / "run", trust_code=True)
    rows = table[N_TRAIN:].drop(columns="label")
    check(model, runs[0].numbers, rows, table["label"][N_TRAIN:].to_numpy())
    assert any(c["kept"] < 16 for c in runs[0].numbers["components"].values())


def small(n_inputs: int, n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_inputs, 4), nn.Tanh(), nn.Linear(4, n_outputs))


def test_modules_given_from_python(table, dataset, tmp_path):
    """The functions are not saved: load must be given them again."""
    networks = Networks(party=small, fusion=small)
    record, runs = run(dataset, "less-vfl", job={"networks": networks})
    save(tmp_path, record, runs)
    with pytest.raises(ConfigError, match="network of the server was given from"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="network of party 'server' was given from"):
        load(tmp_path, fusion_net=small)
    model = load(tmp_path, party_net=small, fusion_net=small)
    rows = table[N_TRAIN:].drop(columns="label")
    check(model, runs[0].numbers, rows, table["label"][N_TRAIN:].to_numpy())


# ---------------------------------------------------------------------- damaged folders


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a run that no test changes."""
    folder = tmp_path_factory.mktemp("saved")
    a_table().to_csv(folder / "patients.csv", index=False)
    record, runs = run(data.load(folder / "patients.csv"), "plain")
    save(folder / "run", record, runs)
    return folder / "run"


@pytest.fixture
def saved(finished, tmp_path):
    """Return a copy of that folder, and the networks in it."""
    shutil.copytree(finished, tmp_path / "run")
    (networks,) = (tmp_path / "run").glob("networks*/seed-0")
    return tmp_path / "run", networks


@pytest.mark.parametrize(
    "name",
    [
        "server/server.json",
        "server/network.safetensors",
        "party1/party.json",
        "party2/network.safetensors",
    ],
)
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage"])
def test_damaged_files(saved, name, damage):
    folder, networks = saved
    path = networks / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else b"\x00{}[]" * 9)
    with pytest.raises(RecordError, match=r"must hold .*as a finished run writes them"):
        load(folder)


def test_weights_of_another_shape(saved):
    folder, networks = saved
    shutil.copy(
        networks / "party0" / "network.safetensors",
        networks / "party1" / "network.safetensors",
    )
    with pytest.raises(RecordError, match=r"party1.*as a finished run writes them"):
        load(folder)


def test_curve_can_be_left_out(dataset):
    settings = profiles.resolve("plain", "default", dataset, {"train_epochs": 1.0})
    job = Job(dataset, settings, parties=2, curve=False)
    (one,) = simulate.simulate(job, [0])
    assert one.numbers["curve"] == []
    assert one.numbers["without"] is None
    assert one.numbers["accuracy"] == dict.fromkeys(
        ("pretrained", "selected", "final", "best")
    )
    assert len(one.model.predict(a_table().drop(columns="label"))) == N


# ------------------------------------------------------------ a folder of somebody else


def changed(text: str, change) -> str:
    about = json.loads(text)
    change(about)
    return json.dumps(about)


HUGE = 2**40
DEEP = "[" * 100_000
CHANGES: dict[str, Any] = {
    "wide": lambda about: about["shape"].update(widths=[HUGE, HUGE]),
    "wide within": lambda about: about["shape"]["widths"].__setitem__(1, HUGE),
    "one more layer": lambda about: about["shape"]["widths"].append(1),
    "no widths": lambda about: about["shape"].update(widths=[]),
    "widths in words": lambda about: about["shape"].update(widths="wide"),
    "no shape": lambda about: about.pop("shape"),
    "a list for a shape": lambda about: about.update(shape=[]),
}


@pytest.mark.parametrize("file", ["server/server.json", "party0/party.json"])
@pytest.mark.parametrize("change", [*CHANGES, "deep"])
def test_a_model_that_cannot_be_is_one_sentence_and_no_memory(saved, file, change):
    folder, networks = saved
    path = networks / file
    text = path.read_text()
    path.write_text(DEEP if change == "deep" else changed(text, CHANGES[change]))
    with pytest.raises(RecordError, match="as a finished run writes them"):
        load(folder)


@pytest.mark.parametrize("name", ["name", "kept", "removed", "encoding"])
@pytest.mark.parametrize("value", [None, 3, {"a": 1}, [[]]])
def test_what_a_party_says_of_itself_must_fit(saved, name, value):
    folder, networks = saved
    path = networks / "party0" / "party.json"
    path.write_text(
        changed(path.read_text(), lambda about: about.update({name: value}))
    )
    with pytest.raises(RecordError, match="as a finished run writes them"):
        load(folder)


@pytest.mark.parametrize(
    "seed", ["0/../../../other", "../x", "0", 0.5, True, None, -1, [0]]
)
def test_a_seed_of_a_record_is_no_path(saved, seed):
    """It would name a folder of networks elsewhere."""
    folder, _ = saved
    path = folder / "record.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line | {"seed": seed} if "seed" in line else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match="is not a record of lessvfl"):
        load(folder)


def test_a_record_that_is_nested_deeply_is_one_sentence(saved):
    folder, _ = saved
    path = folder / "record.jsonl"
    path.write_text(path.read_text() + DEEP + "\n")
    with pytest.raises(RecordError, match="is not a record of lessvfl"):
        load(folder)
