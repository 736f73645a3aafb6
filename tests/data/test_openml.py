"""The paper's data sets from OpenML, without the network."""

import urllib.error
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets
from scipy import sparse

from lessvfl.data import DataConfig, load, prepare
from lessvfl.data.sets import published
from lessvfl.errors import DataError

NAMES = tuple(published.PAPER)


class Catalogue:
    """Stands for OpenML: gives out what it is told, or fails."""

    def __init__(self):
        self.change = lambda bunch: None
        self.error = None
        self.calls = []

    def fetch(self, *, data_id, as_frame, cache, parser):
        self.calls.append(data_id)
        if self.error is not None:
            raise self.error
        known = published.FACTS.items()
        (name,) = (name for name, one in known if one.data_id == data_id)
        info = published.INFOS[name]
        rng = np.random.default_rng(data_id)
        bunch = SimpleNamespace(
            data=rng.integers(0, 3, size=(info.rows, info.features)).astype(float),
            target=rng.integers(0, info.classes, size=info.rows).astype(str),
            feature_names=[f"V{i}" for i in range(info.features)],
            categories={},
        )
        self.change(bunch)
        return bunch


@pytest.fixture
def catalogue(monkeypatch, tmp_path):
    fake = Catalogue()
    monkeypatch.delenv("LESSVFL_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fake.fetch)
    return fake


@pytest.mark.parametrize("name", NAMES)
def test_download(catalogue, name):
    data = load(name)
    info = published.INFOS[name]
    assert catalogue.calls == [published.FACTS[name].data_id]
    assert data.name == name
    assert data.X.numeric.shape == (info.rows, info.features)
    assert data.n_parties == (3 if name == "phishing" else 4)
    assert data.scale == ("none" if name == "activity" else "global")
    assert data.split == ("stratified" if name == "activity" else "first")
    assert len(data.notes) == (1 if name in ("activity", "phishing") else 0)
    assert data.origin.startswith(f"OpenML {published.FACTS[name].data_id} (SHA-256")


def test_categories_and_labels_become_the_numbers_they_stand_for(catalogue):
    def change(bunch):
        bunch.data[0, 0] = np.nan
        bunch.data[1:, 0] = 1
        bunch.categories = {"V0": ["1", "-1"]}
        bunch.target = np.where(bunch.target == "0", "-1", "1").astype(object)

    catalogue.change = change
    data = load("phishing")
    assert np.isnan(data.X.numeric[0, 0])
    assert set(data.X.numeric[1:, 0]) == {-1.0}
    assert data.label_names == ("-1", "1")
    parts = prepare(data, DataConfig(split="first", scale="none", uneven="drop"))
    assert len(parts.parties) == 3


def test_sparse_tables_and_labels_of_text(catalogue):
    plain = load("phishing")

    def change(bunch):
        bunch.data = sparse.csr_array(bunch.data)
        bunch.target = np.where(bunch.target == "0", "no", "yes")

    catalogue.change = change
    data = load("phishing")
    np.testing.assert_array_equal(data.X.numeric, plain.X.numeric)
    assert sorted(data.label_names) == ["no", "yes"]


def test_checksum_is_kept_and_a_changed_download_refused(catalogue, tmp_path):
    load("phishing")
    kept = tmp_path / "lessvfl" / "phishing.sha256"
    assert kept.read_text().endswith(" 11055x30\n")
    load("phishing")

    def change(bunch):
        bunch.data[7, 7] += 1

    catalogue.change = change
    with pytest.raises(DataError, match="'phishing' must equal its first download"):
        load("phishing")
    kept.unlink()
    load("phishing")


def test_another_shape_is_refused(catalogue):
    def change(bunch):
        bunch.data = bunch.data[:, :29]
        bunch.feature_names = bunch.feature_names[:29]

    catalogue.change = change
    with pytest.raises(
        DataError, match=r"11055 rows, 30 features.*Got 11055, 29 and 2"
    ):
        load("phishing")


@pytest.mark.parametrize(
    "error",
    [
        urllib.error.URLError("no route to host"),
        OSError("disk full"),
        ValueError("no such id"),
        ImportError("no scikit-learn"),
    ],
)
def test_without_network(catalogue, error):
    catalogue.error = error
    with pytest.raises(DataError, match=r"'sylva'.*40992.*--data-dir or LESSVFL_DATA"):
        load("sylva")


def test_a_local_folder_comes_first(catalogue, tmp_path, monkeypatch):
    np.savez(tmp_path / "gina.npz", X=np.eye(4), y=[0, 1, 0, 1])
    assert load("gina", data_dir=tmp_path).X.n_rows == 4
    monkeypatch.setenv("LESSVFL_DATA", str(tmp_path))
    data = load("gina")
    assert (data.name, data.notes, data.scale) == ("gina", (), "global")
    assert catalogue.calls == []
    load("sylva")  # not in the folder
    assert catalogue.calls == [40992]


@pytest.mark.network
@pytest.mark.parametrize("name", NAMES)
def test_real_download(name, monkeypatch, tmp_path, pytestconfig):
    if "network" not in pytestconfig.getoption("markexpr"):
        pytest.skip("needs the internet: run with -m network")
    monkeypatch.delenv("LESSVFL_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    info = published.INFOS[name]
    assert load(name).X.numeric.shape == (info.rows, info.features)
