import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from lessvfl import LessVFLClassifier, LessVFLRegressor
from lessvfl.errors import ConfigError, LessVFLError, LessVFLWarning

QUICK: dict[str, Any] = {"train_epochs": 15, "random_state": 0}  # nothing to choose
LAMBDAS: dict[str, Any] = {  # the paper's, with a lambda to be given
    **QUICK,
    "method": "less-vfl",
    "party_epochs": 40,
    "server_epochs": 40,
}
CHECKED: dict[str, Any] = {  # the default, cheaper: it is fitted a few hundred times
    "train_epochs": 25,
    "random_state": 0,
    "settings": {"shadows": 20, "second_look": 0},
}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)
        yield


@pytest.mark.filterwarnings("ignore:No features were selected")  # some have none
@parametrize_with_checks(
    [LessVFLClassifier(**CHECKED), LessVFLRegressor(**CHECKED)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": (
            "batches, shadows and rows held out are drawn by the number of a row"
        )
    },
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(as_frame=True, return_X_y=True)


def noisy(cancer):
    X, y = cancer
    rng = np.random.default_rng(0)
    noise = {f"noise{i}": rng.standard_normal(len(X)) for i in range(10)}
    return pd.concat([X, pd.DataFrame(noise, index=X.index)], axis=1), y


def test_selects_predicts_and_keeps_names(cancer):
    X, y = noisy(cancer)
    parties = {"hospital": ["mean *", "noise*"], "insurer": ["worst *", "* error"]}
    model = LessVFLClassifier(parties=parties, lam_party=9.0, **LAMBDAS).fit(X, y)
    assert model.score(X, y) > 0.9
    kept = model.get_feature_names_out().tolist()
    assert kept == X.columns[model.get_support()].tolist()
    assert sorted(kept) == sorted(
        n for names in model.features_.values() for n in names
    )
    assert 0 < len(kept) < 40
    assert model.transform(X).shape == (569, len(kept))
    back = model.inverse_transform(model.transform(X))
    assert back.shape == X.shape
    assert ((model.feature_importances_ > 0) == model.support_).all()
    proba = model.predict_proba(X)
    assert np.allclose(proba.sum(axis=1), 1)
    assert (model.classes_[proba.argmax(axis=1)] == model.predict(X)).all()
    paid = model.run_["communication"]["payload_bytes"]
    billed = [line for line in model.ledger_ if line["stage"] != "evaluate"]
    total = sum(int(line["payload_bytes"]) for line in billed)
    assert total == paid["up"] + paid["down"]


def test_how_many_of_those_kept_may_be_useless(cancer):
    """By party, as in the numbers of the run; unknown where no shadow was planted."""
    X, y = cancer
    model = LessVFLClassifier(parties=2, train_epochs=1, random_state=0).fit(X, y)
    assert model.false_share_.keys() == model.features_.keys()
    for name, share in model.false_share_.items():
        assert share == model.run_["selection"][name]["false_share"]
    plain = LessVFLClassifier(method="plain", train_epochs=1, random_state=0).fit(X, y)
    assert plain.false_share_ == {"party0": None, "party1": None}


def test_set_output_gives_pandas(cancer):
    X, y = cancer
    model = LessVFLClassifier(lam_party=3.0, **LAMBDAS).set_output(transform="pandas")
    out = model.fit_transform(X, y)
    assert out.columns.tolist() == model.get_feature_names_out().tolist()


def test_works_in_pipelines_grids_and_pickles(cancer):
    X, y = cancer
    pipeline = make_pipeline(
        StandardScaler(), LessVFLClassifier(**LAMBDAS), LogisticRegression()
    )
    grid = GridSearchCV(pipeline, {"lessvflclassifier__lam_party": [0.0, 4.0]}, cv=2)
    grid.fit(X, y)
    assert grid.best_score_ > 0.9
    again = pickle.loads(pickle.dumps(grid.best_estimator_))
    assert (again.predict(X) == grid.predict(X)).all()
    copy = clone(pipeline)
    assert copy.get_params()["lessvflclassifier__party_epochs"] == 40


def test_text_classes_and_many_classes():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = LessVFLClassifier(lam_party=0.5, **LAMBDAS).fit(X, names)
    assert model.score(X, names) > 0.8
    assert model.decision_function(X).shape == (150, 3)


def test_categories_missing_cells_and_polars():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "colour": pd.Series(rng.choice(["red", "green"], 200), dtype="category"),
            "size": np.where(rng.random(200) < 0.1, np.nan, rng.standard_normal(200)),
            "age": rng.standard_normal(200),
        }
    )
    y = (frame["colour"] == "red").astype(int)
    model = LessVFLClassifier(parties=3, lam_party=0.1, **LAMBDAS).fit(frame, y)
    assert model.score(frame, y) > 0.95
    assert model.support_.shape == (3,)
    other = pl.DataFrame(
        {name: frame[name].astype(object).to_list() for name in frame.columns},
        strict=False,
    )
    assert (model.predict(other) == model.predict(frame)).all()


def test_a_regressor_copes_with_labels_of_any_scale():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    y = 1e4 + 500 * X[:, 0] - 300 * X[:, 3]
    model = LessVFLRegressor(lam_party=0.5, **LAMBDAS | {"train_epochs": 150}).fit(X, y)
    assert model.score(X, y) > 0.9
    assert 9_000 < model.predict(X).mean() < 11_000


def test_parties_by_number_and_sizes_and_own_networks(cancer):
    X, y = cancer
    by_number = LessVFLClassifier(parties={"a": [0, 1, 2], "b": [3, 4]}, **QUICK)
    assert by_number.fit(X.to_numpy(), y).support_[5:].sum() == 0

    def factory(n_in, n_out):
        return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out))

    sized = LessVFLClassifier(parties=[10, 20], party_net=factory, **QUICK)
    assert list(sized.fit(X, y).features_) == ["party0", "party1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lam_party": -1, "method": "less-vfl"}, "'lam_party' setting must be a"),
        ({"lam_party": 1.0}, "'lam_party' setting is not read by method less-vfl-auto"),
        ({"profile": "paper"}, "has the profile default alone"),
        ({"method": "lasso"}, "Unknown method 'lasso'"),
        ({"profile": "fast"}, "Unknown profile 'fast'"),
        ({"settings": {"no_such": 1}}, "Unknown setting"),
        ({"parties": 99}, "99 parties"),
        ({"device": "tpu"}, "'device' option"),
    ],
)
def test_bad_parameters_are_one_sentence_at_fit(cancer, arguments, words):
    X, y = cancer
    with pytest.raises(ConfigError, match=words):
        LessVFLClassifier(**{**QUICK, **arguments}).fit(X, y)


def test_one_class_is_refused(cancer):
    X, _ = cancer
    with pytest.raises(ConfigError, match="1 class"):
        LessVFLClassifier(**QUICK).fit(X, np.zeros(len(X)))
    with pytest.raises(ConfigError, match="finite"):
        LessVFLRegressor(**QUICK).fit(X, np.full(len(X), np.inf))


def test_plots_return_axes(cancer):
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    plt.switch_backend("Agg")
    X, y = cancer
    model = LessVFLClassifier(**QUICK).fit(X, y)
    plots = (
        model.plot_curve,
        model.plot_features,
        model.plot_components,
        model.plot_bytes,
    )
    for plot in plots:
        assert isinstance(plot(), Axes)
    plt.close("all")


def test_weights_of_classes_and_of_rows(cancer):
    X, y = cancer
    settings: dict[str, Any] = {**QUICK, "method": "plain", "train_epochs": 3}
    plain = LessVFLClassifier(**settings).fit(X, y).decision_function(X)
    ones = LessVFLClassifier(**settings).fit(X, y, sample_weight=np.ones(len(y)))
    assert np.array_equal(ones.decision_function(X), plain)
    rows = np.where(y == 1, 30.0, 1.0)
    by_row = LessVFLClassifier(**settings).fit(X, y, sample_weight=rows)
    found = by_row.decision_function(X)
    assert found.mean() > plain.mean()
    weights: list[dict[Any, Any]] = [{1: 30}, {1.0: 30.0, 0: 1}, {np.int64(1): 30}]
    for given in weights:
        model = LessVFLClassifier(class_weight=given, **settings)
        assert np.array_equal(model.fit(X, y).decision_function(X), found)
        assert model.get_params()["class_weight"] is given
    names = np.array(["bad", "good"])[y]
    model = LessVFLClassifier(class_weight={"good": 30}, **settings).fit(X, names)
    assert np.array_equal(model.decision_function(X), found)
    floats = LessVFLClassifier(class_weight={1: 30}, **settings).fit(X, y.astype(float))
    assert np.array_equal(floats.decision_function(X), found)


def test_balanced_weights_of_a_rare_class(cancer):
    X, y = cancer
    rare = np.r_[np.flatnonzero(y == 0)[:20], np.flatnonzero(y == 1)]
    X, y = X.iloc[rare], y.iloc[rare]
    settings: dict[str, Any] = {**QUICK, "method": "plain", "batch_size": 64}
    balanced = LessVFLClassifier(class_weight="balanced", **settings).fit(X, y)
    assert balanced.run_["threshold"] is None
    moved = LessVFLClassifier(**settings).fit(X, y)
    assert moved.run_["threshold"]["0"] == pytest.approx(20 / len(y))
    for model in (balanced, moved):  # the sign decides, whatever the threshold
        above = model.decision_function(X) > 0
        assert (model.predict(X) == model.classes_[above.astype(int)]).all()
    odds = moved.predict_proba(X)[:, 1] / moved.run_["threshold"]["1"]
    assert ((odds > 1) == (moved.predict(X) == 1)).all()


@pytest.mark.parametrize(
    ("arguments", "rows", "words"),
    [
        ({"class_weight": {7: 2}}, None, "classes of 'table': 0, 1. Got '7'"),
        ({"class_weight": "even"}, None, "'class_weight' setting must be balanced"),
        ({"class_weight": {1: -2}}, None, "'class_weight' setting must be balanced"),
        ({}, [-1.0], "row weights of 'table' must be finite numbers >= 0"),
    ],
)
def test_refused_weights(cancer, arguments, rows, words):
    X, y = cancer
    weight = None if rows is None else rows * len(y)
    with pytest.raises(LessVFLError, match=words):
        LessVFLClassifier(**{**QUICK, **arguments}).fit(X, y, sample_weight=weight)
    with pytest.raises(ConfigError, match="must be none for 'table'"):
        LessVFLRegressor(class_weight="balanced", **QUICK).fit(X, y)


def test_a_regressor_weighs_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    first = np.arange(300) < 150
    y = np.where(first, X[:, 0], -X[:, 0]) + 0.1 * rng.standard_normal(300)
    settings: dict[str, Any] = {**QUICK, "method": "plain", "train_epochs": 100}
    model = LessVFLRegressor(**settings).fit(X, y, sample_weight=np.where(first, 1, 0))
    assert model.score(X[first], y[first]) > 0.8
    assert model.score(X[~first], y[~first]) < 0


# What an estimator can do without until it is asked to plot, to talk or to compile;
# pandas comes with scikit-learn.
NOT_NEEDED = (
    *("matplotlib", "polars", "grpc", "pyarrow.flight", "typer", "cryptography"),
    *("lessvfl.cli", "lessvfl.remote", "lessvfl.report", "lessvfl.wire.flight"),
    *("torch._dynamo", "torch._inductor", "sympy"),
)
START = f"""
import sys
from lessvfl import LessVFLClassifier
model = LessVFLClassifier(method="less-vfl", train_epochs=1)
{{more}}
print([name for name in {NOT_NEEDED!r} if name in sys.modules])
"""
FIT = "model.fit([[0, 1], [1, 0], [2, 1], [3, 0]] * 5, [0, 0, 1, 1] * 5)"
LINEAR = f"model.set_params(activation='none', embedding_size=2); {FIT}"


@pytest.mark.parametrize("more", ["", FIT, LINEAR], ids=["made", "fitted", "linear"])
def test_the_start_loads_nothing_that_is_not_needed(more):
    """Each would take longer to load than a small table takes to fit."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START.format(more=more)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
