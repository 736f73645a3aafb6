"""The registry, and what every data set promises."""

import warnings

import numpy as np
import pytest
from sklearn import datasets

from lessvfl.data import DataConfig, describe, load, names, prepare
from lessvfl.errors import ConfigError, DataError, LessVFLWarning

BUILT_IN = [name for name in names() if describe(name)["where"] == "built in"]
SMALL = {"synthetic": {"n_samples": 500, "n_test": 100}}


def test_names():
    assert names() == (
        "synthetic",
        "digits",
        "breast-cancer",
        "phishing",
        "gina",
        "sylva",
        "activity",
        "mimic3",
        "sylva_train",
        "gina_reconstruction",
        "activity_time265",
        "isolet1",
        "pcmac",
        "tox171",
        "arcene",
        "rosmap",
        "mfeat",
        "credit",
    )


@pytest.mark.parametrize("name", names())
def test_describe(name):
    facts = describe(name)
    assert facts["name"] == name
    assert facts["where"] in ("built in", "download", "local folder")
    assert facts["source"].endswith(".")
    assert "\n" not in facts["summary"]
    assert facts["rows"] > 0
    assert facts["features"] >= facts["parties"]
    assert facts["paper"] == (
        name in ("phishing", "gina", "sylva", "activity", "mimic3")
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_conformance(name):
    data = load(name, options=SMALL.get(name))
    facts = describe(name)
    assert data.name == name
    assert data.X.numeric.shape[1] == facts["features"] == len(data.X.names)
    assert len(data.label_names) == facts["classes"]
    assert data.n_parties == facts["parties"]
    if name not in SMALL:
        assert data.X.n_rows == facts["rows"]
    again = load(name, options=SMALL.get(name))
    np.testing.assert_array_equal(data.X.numeric, again.X.numeric)
    np.testing.assert_array_equal(data.y, again.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)  # constant pixels
        one, two = (prepare(data, DataConfig(), spurious=0.5) for _ in range(2))
    n_rows = len(one.y_train) + len(one.y_test)
    assert n_rows == data.X.n_rows + (data.X_test.n_rows if data.X_test else 0)
    if one.task == "regression":
        assert one.y_train.dtype == np.float64
    else:
        assert one.y_train.dtype == np.int64
        assert set(one.y_train) == set(range(one.n_classes))
    for party, same in zip(one.parties, two.parties, strict=True):
        assert party.X_train.dtype == np.float64
        assert np.isfinite(party.X_train).all()
        assert np.isfinite(party.X_test).all()
        assert party.X_train.shape == (len(one.y_train), len(party.groups))
        assert party.spurious.shape == (len(party.features),)
        np.testing.assert_array_equal(party.X_train, same.X_train)
        np.testing.assert_array_equal(party.X_test, same.X_test)


def test_unknown_names():
    with pytest.raises(ConfigError, match=r"Unknown data set 'digit'.*mean 'digits'"):
        load("digit")
    with pytest.raises(ConfigError, match="Unknown data set 'iris'"):
        describe("iris")


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(DataError, match="folder of data sets must exist"):
        load("phishing", data_dir=tmp_path / "nowhere")


def test_arguments_without_effect_are_refused():
    with pytest.raises(
        ConfigError, match="'options' must be left out for the data set"
    ):
        load("digits", options={"sigma": 1.0})
    with pytest.raises(ConfigError, match="'label' must be left out"):
        load("digits", label="y")


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_built_in_data_are_those_of_scikit_learn(name):
    data, bunch = load(name), getattr(datasets, f"load_{name.replace('-', '_')}")()
    np.testing.assert_array_equal(data.X.numeric, bunch.data)
    np.testing.assert_array_equal(data.y, bunch.target)
    assert list(data.X.names) == list(bunch.feature_names)
    assert list(data.label_names) == [str(label) for label in bunch.target_names]
