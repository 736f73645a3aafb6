"""Data sets of a local folder: stand-ins, others, and the real files where they are."""

import os
from pathlib import Path

import numpy as np
import pytest

from lessvfl.data import DataConfig, build, describe, load, prepare
from lessvfl.data.check import held_columns
from lessvfl.data.sets import published
from lessvfl.errors import DataError, LessVFLWarning

BESIDE = Path(__file__).parents[3] / "shared" / "data"
FOLDER = Path(os.environ.get("LESSVFL_DATA", BESIDE))
LOCAL = [*published.STAND_INS, *published.LITERATURE]
REAL = [*LOCAL, "phishing"]


@pytest.mark.parametrize("name", list(published.STAND_INS))
def test_a_stand_in_is_called_what_it_is(tmp_path, name):
    np.savez(tmp_path / f"{name}.npz", X=np.eye(4), y=[0, 1, 0, 1])
    data = load(name, data_dir=tmp_path)
    assert data.name == name
    assert "not the paper's" in data.notes[0]
    assert "checksum" in data.notes[1]
    assert data.scale == ("none" if name.startswith("activity") else "global")


@pytest.mark.parametrize("name", list(published.LITERATURE))
def test_others_are_split_stratified(tmp_path, name):
    np.savez(tmp_path / f"{name}.npz", X=np.eye(4), y=[0, 0, 1, 1])
    data = load(name, data_dir=tmp_path)
    assert (data.name, data.split, data.scale) == (name, "stratified", "standardize")
    assert len(data.notes) == 1
    assert "checksum" in data.notes[0]
    assert "not the paper's" not in data.notes[0]


@pytest.mark.parametrize("name", LOCAL)
def test_missing_folder_or_file(tmp_path, name, monkeypatch):
    monkeypatch.delenv("LESSVFL_DATA", raising=False)
    with pytest.raises(DataError, match=f"{name}.npz; give its folder.*Got no folder"):
        load(name)
    with pytest.raises(DataError, match=r"LESSVFL_DATA. Got '"):
        load(name, data_dir=tmp_path)


def real(name):
    if not any((FOLDER / f"{name}{kind}").is_file() for kind in (".npz", ".csv")):
        pytest.skip(f"{name} is not in a local folder (LESSVFL_DATA)")
    return load(name, data_dir=FOLDER)


@pytest.mark.parametrize("name", REAL)
def test_real_files(name):
    data = real(name)
    facts = describe(name)
    n_rows = data.X.n_rows + (data.X_test.n_rows if data.X_test else 0)
    assert (n_rows, len(data.X.names)) == (facts["rows"], facts["features"])
    assert len(data.label_names) == facts["classes"]
    assert not any("checksum" in note for note in data.notes)
    assert np.isfinite(data.X.numeric).all()


def test_real_gina_stand_in_has_its_truth():
    data = real("gina_reconstruction")
    assert data.significant.sum() == 485
    matter = [name.startswith("unit_") for name in data.X.names]
    assert data.significant.tolist() == matter


def test_real_phishing_as_released():
    """Three parties of ten, five planted each, 8844 rows to train on (A2)."""
    data = real("phishing")
    config = DataConfig(split="first", scale="global", noise="range", uneven="drop")
    problem = prepare(data, config, spurious=0.5)
    assert [party.X_train.shape for party in problem.parties] == [(8844, 15)] * 3
    assert set(problem.parties[0].X_train[:, :10].ravel()) <= {0.0, 0.5, 1.0}
    X = data.X.numeric[:8844] / 2 + 0.5
    noise = np.hstack([party.X_train[:, 10:] for party in problem.parties])
    assert noise.mean() == pytest.approx(X.mean(), abs=0.01)
    assert noise.std() == pytest.approx(0.5, abs=0.01)


def test_real_sylva_warns_of_constant_columns():
    data = real("sylva_train")
    with pytest.warns(LessVFLWarning, match="columns have one value"):
        problem = prepare(data, DataConfig(split="first"))
    assert [len(party.features) for party in problem.parties] == [54] * 4


def test_real_activity_keeps_its_own_test_rows():
    data = real("activity_time265")
    problem = prepare(data, DataConfig(scale="none", uneven="drop"), spurious=0.5)
    assert [party.X_train.shape for party in problem.parties] == [(7352, 99)] * 4
    assert len(problem.y_test) == 2947
    assert data.label_names[0] == "WALKING"


def test_real_views_are_parties():
    """Where data are vertical by nature, `load` says who holds which columns."""
    held = {
        name: list(map(len, held_columns(real(name), None, DataConfig()).values()))
        for name in ("rosmap", "mfeat", "credit")
    }
    assert held == {
        "rosmap": [200] * 3,
        "mfeat": [216, 76, 64, 6, 240, 47],
        "credit": [7, 6, 4, 6],
    }


def test_real_phishing_is_built_of_its_arff(tmp_path):
    """The recipe gives the cells and labels whose checksum is known."""
    given = real("phishing")
    values = "".join(f"@attribute {name} {{ -1,0,1 }}\n" for name in given.X.names)
    rows = np.column_stack([given.X.numeric, 2 * given.y - 1]).astype(int)
    path = tmp_path / "Training Dataset.arff"
    head = f"@relation phishing\n{values}@attribute Result {{ -1,1 }}\n@data\n"
    path.write_text(head + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    assert build("phishing", path, data_dir=tmp_path).is_known
    assert load("phishing", data_dir=tmp_path).notes == ()
