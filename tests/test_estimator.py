import decimal
import pickle
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from lessvfl import LessVFLClassifier, LessVFLRegressor, estimator
from lessvfl.errors import ConfigError, DataError, LessVFLError, LessVFLWarning

QUICK: dict[str, Any] = {"train_epochs": 15, "random_state": 0}  # nothing to choose
LAMBDAS: dict[str, Any] = {  # the paper's, with a lambda to be given
    **QUICK,
    "method": "less-vfl",
    "party_epochs": 40,
    "server_epochs": 40,
}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)
        yield


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
    assert model.run_["seed"] == 0  # as it was given
    plain = LessVFLClassifier(method="plain", train_epochs=1, random_state=0).fit(X, y)
    assert plain.false_share_ == {"party0": None, "party1": None}


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


def test_parties_by_number_and_sizes_and_own_networks(cancer):
    X, y = cancer
    by_number = LessVFLClassifier(parties={"a": [0, 1, 2], "b": [3, 4]}, **QUICK)
    assert by_number.fit(X.to_numpy(), y).support_[5:].sum() == 0
    alone: dict[str, Any] = {"a": "mean *", "b": 20}
    model = LessVFLClassifier(parties=alone, method="plain", train_epochs=1).fit(X, y)
    assert model.features_ == {"a": tuple(X.columns[:10]), "b": ("worst radius",)}

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


@pytest.fixture(scope="module")
def fitted(cancer):
    """Return a model whose first party has a name of HTML and filled in a cell."""
    X, y = cancer
    X = X.copy()
    X.iloc[0, 0] = np.nan
    parties = {"<b>lab</b>": ["mean *"], "archive": ["worst *"], "rest": ["* error"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)
        return LessVFLClassifier(parties=parties, **QUICK).fit(X, y)


def test_plots_return_axes(fitted):
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    plt.switch_backend("Agg")
    for plot in (
        fitted.plot_selection,
        fitted.plot_path,
        fitted.plot_parties,
        fitted.plot_bytes,
        fitted.plot_curve,
    ):
        assert isinstance(plot(), Axes)
        _, ax = plt.subplots()
        assert plot(ax) is ax
    assert len(fitted.plot_selection(most=3).patches) == 3
    labels = [line.get_label() for line in fitted.plot_path(party="rest").get_lines()]
    assert labels[0] == "rest"
    for plot in (LessVFLClassifier().plot_parties, LessVFLClassifier().plot_path):
        with pytest.raises(NotFittedError):
            plot()
    plt.close("all")


def test_the_selection_is_a_table(fitted):
    table = pd.DataFrame(fitted.selection_)
    assert pl.DataFrame(fitted.selection_).shape == table.shape == (30, 8)
    assert list(table) == "party feature verdict kept strength mark pair why".split()
    kept = table[table["kept"]]
    assert {
        party: tuple(sorted(rows["feature"])) for party, rows in kept.groupby("party")
    } == {party: tuple(sorted(names)) for party, names in fitted.features_.items()}
    for row in table.itertuples():
        how = fitted.run_["selection"][row.party]
        assert row.strength == how["scores"][row.feature]
        assert row.why == how["why"][row.feature]
        if row.why == "pair":
            assert any({row.feature, row.pair} == {a, b} for a, b, _ in how["pairs"])
    assert (table["mark"] == 1).all()
    assert not hasattr(LessVFLClassifier(), "selection_")


def test_the_selection_of_a_method_without_shadows_has_no_marks(cancer):
    X, y = cancer
    settings: dict[str, Any] = {**LAMBDAS, "party_epochs": 5, "server_epochs": 5}
    model = LessVFLClassifier(lam_party=3.0, **settings).fit(X, y)
    table = model.selection_
    assert set(table["mark"]) == set(table["pair"]) == {None}
    strength = dict(zip(table["feature"], table["strength"], strict=True))
    assert [strength[name] for name in X.columns] == [*model.feature_importances_]


def test_a_fitted_model_is_a_card_in_a_notebook(fitted):
    with config_context(display="diagram"):
        bundle = fitted._repr_mimebundle_()
        page = bundle["text/html"]
        assert "lessvfl-card" in fitted._repr_html_()
        unfitted = clone(fitted)._repr_html_()
    card, _, diagram = page.partition("</div>")
    assert "lessvfl-card" in card
    assert "less-vfl-auto kept" in card
    assert "1 missing cell" in card
    assert "&lt;b&gt;lab&lt;/b&gt;" in card
    assert "<b>" not in card
    for names in fitted.features_.values():
        assert ", ".join(names[:12]) in card
    assert "sk-top-container" in diagram
    assert "lessvfl-card" not in unfitted
    assert "sk-top-container" in unfitted
    with config_context(display="text"):
        assert "text/html" not in fitted._repr_mimebundle_()
        assert not hasattr(fitted, "_repr_html_")
    assert bundle["text/plain"] == repr(fitted)


def test_verbose_shows_how_far_a_fit_is(cancer, capsys):
    X, y = cancer
    settings: dict[str, Any] = {**QUICK, "method": "plain", "train_epochs": 2}
    quiet = LessVFLClassifier(**settings).fit(X, y)
    assert capsys.readouterr() == ("", "")
    told = LessVFLClassifier(verbose=1, **settings).fit(X, y)
    out, err = capsys.readouterr()
    assert "train" in err
    assert out == ""
    assert (told.decision_function(X) == quiet.decision_function(X)).all()


# ------------------------------------------------------------------------ sparse tables


def shop(n_rows=300):
    """Return a frame with a category of six towns, of which two decide."""
    rng = np.random.default_rng(0)
    towns = np.array(["Bath", "Cork", "Graz", "Lodz", "Oslo", "Vigo"])
    frame = pd.DataFrame(
        {"town": rng.choice(towns, n_rows), "income": rng.standard_normal(n_rows)}
    )
    return frame, frame["town"].isin(["Bath", "Oslo"]).astype(int)


def test_sparse_output_of_a_column_transformer(cancer):
    X, y = shop()
    encode = ColumnTransformer(
        [("town", OneHotEncoder(), ["town"]), ("rest", "passthrough", ["income"])],
        sparse_threshold=1.0,
    )
    parties = {"registry": range(6), "bank": [6]}
    model = LessVFLClassifier(parties=parties, **QUICK)
    pipe = make_pipeline(encode, model).fit(X, y)
    assert sparse.issparse(pipe[0].transform(X))
    assert pipe.score(X, y) > 0.95
    dense = clone(model).fit(pipe[0].transform(X).toarray(), y)
    assert (model.support_ == dense.support_).all()
    names = model.get_feature_names_out(pipe[0].get_feature_names_out())
    assert {"town__town_Bath", "town__town_Oslo"} <= set(names)
    assert "rest__income" not in names
    out = model.transform(pipe[0].transform(X))
    assert sparse.issparse(out)
    assert out.shape == (300, len(names))


def test_one_hot_columns_are_one_feature_if_groups_say_so():
    X, y = shop()
    table = OneHotEncoder().fit_transform(X[["town"]])
    groups = {"town": range(6)}
    model = LessVFLClassifier(parties=[6], groups=groups, **QUICK).fit(table, y)
    assert model.features_ == {"party0": ("town",)}
    assert model.support_.all()
    assert model.selection_["feature"] == ["town"]


def test_a_sparse_table_too_large_is_refused_before_it_takes_memory(monkeypatch):
    X = sparse.csr_matrix((2_000_000, 5_000))
    sentence = "at most 1 GiB .* Got 2,000,000 rows of 5,000 columns: 74.5 GiB"
    with pytest.raises(DataError, match=sentence):
        LessVFLClassifier(**QUICK).fit(X, np.arange(2_000_000) % 2)
    rows = 2**27 // 5
    monkeypatch.setattr(sparse.csr_matrix, "toarray", lambda self: "densified")
    assert estimator.inputs.densify(sparse.csr_matrix((rows, 5))) == "densified"
    with pytest.raises(DataError, match=r"1\.0 GiB"):
        estimator.inputs.densify(sparse.csr_matrix((rows + 1, 5)))


# ------------------------------------------------------------------- refused, in words


@pytest.mark.parametrize("kind", [LessVFLClassifier, LessVFLRegressor])
@pytest.mark.parametrize(
    "labels",
    [
        [[0, 1], [1, 0]] * 10,
        [[0], [0, 1]] * 10,
        [{0}, {0, 1}] * 10,
        np.zeros((20, 3)),
        pd.DataFrame({"a": [0, 1] * 10, "b": [1, 0] * 10}),
        sparse.csr_matrix(np.eye(20, 3)),
    ],
    ids=["lists", "ragged", "sets", "array", "frame", "sparse"],
)
def test_several_labels_for_a_row_are_refused(kind, labels):
    X = np.arange(40.0).reshape(20, 2)
    with pytest.raises(ConfigError, match=r"must be one column.*sklearn\.multioutput"):
        kind(**QUICK).fit(X, labels)


@pytest.mark.parametrize("column", [30, -31, 1.5, True, np.True_, None, [1]])
@pytest.mark.parametrize("what", ["parties", "groups"])
def test_columns_by_a_number_that_is_none_of_the_table(cancer, what, column):
    X, y = cancer
    given: dict[str, Any] = {what: {"lab": [0, column]}}
    sentence = f"'lab' in '{what}' must be names, or numbers from 0 to 29. Got"
    with pytest.raises(ConfigError, match=sentence):
        LessVFLClassifier(**QUICK, **given).fit(X.to_numpy(), y)
    nothing: dict[str, Any] = {what: {"lab": None}}
    with pytest.raises(ConfigError, match=sentence):
        LessVFLClassifier(**QUICK, **nothing).fit(X.to_numpy(), y)


# ------------------------------------------------------------------- routing of weights


@pytest.fixture
def _routing():
    with config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("_routing")
def test_weights_are_routed_to_where_they_are_asked_for(cancer):
    """Rows of weight 0 are mislabelled: who gets the weights is right on the others."""
    X, y = cancer
    wrong = np.arange(len(y)) % 3 == 0
    labels = np.where(wrong, 1 - y, y)
    weight = np.where(wrong, 0.0, 1.0)
    settings: dict[str, Any] = {**QUICK, "method": "plain", "train_epochs": 4}
    alone = LessVFLClassifier(**settings).fit(X, labels, sample_weight=weight)

    def asked(**request):
        return LessVFLClassifier(**settings).set_fit_request(**request)

    pipe = make_pipeline(asked(sample_weight=True))
    pipe.fit(X, labels, sample_weight=weight)
    assert (pipe.decision_function(X) == alone.decision_function(X)).all()

    selector = asked(sample_weight=True)
    both = make_pipeline(selector, GaussianNB().set_fit_request(sample_weight=False))
    both.fit(X, labels, sample_weight=weight)
    assert (selector.decision_function(X) == alone.decision_function(X)).all()

    scored = asked(sample_weight=True).set_score_request(sample_weight=True)
    found = cross_validate(scored, X, labels, params={"sample_weight": weight}, cv=2)
    assert found["test_score"].min() > 0.9
    scores = cross_val_score(scored, X, labels, params={"sample_weight": weight}, cv=2)
    assert (scores == found["test_score"]).all()
    unasked = asked(sample_weight=False).set_score_request(sample_weight=True)
    left = cross_val_score(unasked, X, labels, params={"sample_weight": weight}, cv=2)
    assert left.mean() != scores.mean()

    grid = GridSearchCV(scored, {"learning_rate": [0.005, 0.01]}, cv=2)
    grid.fit(X, labels, sample_weight=weight)
    assert grid.best_score_ > 0.9


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
    by_share = {**settings, "settings": {"threshold": "balanced"}}
    moved = LessVFLClassifier(**by_share).fit(X, y)
    assert moved.run_["threshold"]["0"] == pytest.approx(20 / len(y))
    for model in (balanced, moved):  # the sign decides, whatever the threshold
        above = model.decision_function(X) > 0
        assert (model.predict(X) == model.classes_[above.astype(int)]).all()
    odds = moved.predict_proba(X)[:, 1] / moved.run_["threshold"]["1"]
    assert ((odds > 1) == (moved.predict(X) == 1)).all()


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_an_array_after_a_frame_has_its_columns_in_order(cancer):
    X, y = cancer
    frame = pd.DataFrame(np.asarray(X), columns=[f"c{i}" for i in range(X.shape[1])])
    model = LessVFLClassifier(**QUICK).fit(frame, y)
    assert (model.predict(frame.to_numpy()) == model.predict(frame)).all()


# ------------------------------------------------------------ rows that belong together


def people(n_people=60, n_rows=5, seed=0):
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(n_people), n_rows)
    X = rng.normal(size=(len(person), 6))
    y = (X[:, 0] + rng.normal(size=n_people)[person] > 0).astype(int)
    return X, y, np.array([f"p{i}" for i in person])


@pytest.mark.usefixtures("_routing")
def test_groups_of_rows_reach_the_fit_and_are_routed():
    X, y, who = people()
    plain = LessVFLClassifier(**QUICK).fit(X, y)
    model = LessVFLClassifier(**QUICK).fit(X, y, groups=who)
    assert plain._record.header["data"]["n_blocks"] == 300
    assert model._record.header["data"]["n_blocks"] == 60
    pipe = make_pipeline(LessVFLClassifier(**QUICK).set_fit_request(groups=True))
    pipe.fit(X, y, groups=who)
    assert (pipe.decision_function(X) == model.decision_function(X)).all()


def test_groups_that_do_not_fit_the_rows_are_refused():
    X, y, who = people()
    with pytest.raises(DataError, match="Got 299 for 300 rows"):
        LessVFLRegressor(**QUICK).fit(X, y, groups=who[1:])


def test_copies_of_rows_are_named_in_a_warning():
    X, y, _ = people()
    rows = np.r_[np.arange(300), np.flatnonzero(y == 1)]
    model = LessVFLClassifier(**QUICK)
    with pytest.warns(LessVFLWarning, match="% of the rows equal another row: they"):
        model.fit(X[rows], y[rows])
    assert model._record.header["data"]["n_blocks"] == 300
    apart = LessVFLClassifier(**QUICK, settings={"equal_rows": "apart"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apart.fit(X[rows], y[rows])


# --------------------------------------------------------- tables as users have them

FAST: dict[str, Any] = {"method": "plain", "train_epochs": 1, "random_state": 0}


def records(n_rows=60):
    """Return a table with a column of every kind that a frame has, and its labels."""
    rng = np.random.default_rng(0)
    half = n_rows // 2
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(n_rows), unit="D")
    table = pd.DataFrame(
        {
            "number": rng.standard_normal(n_rows),
            "day": day,
            "stay": pd.to_timedelta(np.arange(n_rows), unit="h"),
            "ward": pd.Categorical(["a", "b"] * half),
            "word": ["u", "v"] * half,
            "smokes": [True, False] * half,
            "count": pd.array([1, 2, None] * (n_rows // 3), dtype="Int64"),
            "known": pd.array([True, None] * half, dtype="boolean"),
        }
    )
    return table, (table["number"] > 0).astype(int)


def test_ids_and_a_count_of_the_rows_are_left_out_with_a_warning():
    """A table sorted by its labels is told by the places of its rows."""
    table, _ = records()
    given = table[["number", "word"]].assign(ID=np.arange(60) + 900, n=np.arange(60))
    said = (
        r"left out: 'ID' \(ids: another number in every row\), 'n' \(a count of the "
        r"rows: one more in each\)"
    )
    with pytest.warns(LessVFLWarning, match=said):
        model = LessVFLClassifier(**FAST).fit(given, np.repeat([0, 1], 30))
    assert not model.support_[2:].any()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_kept_columns_of_a_frame_come_back_as_they_were(library):
    table, y = records()
    X = table if library == "pandas" else pl.from_pandas(table)
    model = LessVFLClassifier(**FAST).fit(X, y)
    kept = model.get_feature_names_out().tolist()
    assert "day" in kept
    assert "stay" not in kept  # durations are left out
    assert model.transform(X).equals(X[kept])
    plain = clone(model).set_output(transform="default").fit(X, y).transform(X)
    assert plain.dtype == object
    assert plain.shape == (60, len(kept))
    back = model.inverse_transform(plain)
    place = list(table.columns).index("day")
    assert back[0, place] == plain[0, kept.index("day")] == table["day"][0]
    assert (back[:, list(table.columns).index("stay")] == 0).all()
    own = model.set_output(transform=library).transform(X)
    assert own.equals(X[kept])
    assert model.inverse_transform(own).shape == X.shape
    other = {"pandas": "polars", "polars": "pandas"}[library]
    turned = model.set_output(transform=other).transform(X)
    assert str(turned["ward"].dtype).lower().startswith("categor")
    assert str(turned["day"].dtype).lower().startswith("datetime")
    assert (model.predict(X) == model.predict(table)).all()


@pytest.mark.parametrize(
    ("library", "output", "names"),
    [
        ("pandas", "default", ["number", "day"]),
        ("pandas", "polars", ["number", "day", "ward"]),
        ("polars", "pandas", ["number", "day"]),
        ("polars", "default", ["number", "day", "ward"]),
    ],
)
def test_frames_with_dates_and_categories_go_through_pipelines(library, output, names):
    table, y = records()
    table = table[names]
    X = table if library == "pandas" else pl.from_pandas(table)
    first = LessVFLClassifier(**FAST).set_output(transform=output)
    pipeline = make_pipeline(first, LessVFLClassifier(**FAST))
    assert len(cross_val_score(pipeline, X, y, cv=2)) == 2
    some = ColumnTransformer([("some", clone(first), names)])
    assert some.fit_transform(X, y).shape == (60, len(names))


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_encoded_columns_go_into_any_estimator(library):
    """Categories and dates become numbers, each with a name; frames if asked for."""
    table, y = records()
    table = table[["number", "day", "ward", "count", "smokes"]]
    X = {"pandas": table, "polars": pl.from_pandas(table)}.get(library)
    X = pa.Table.from_pandas(table) if X is None else X
    model = LessVFLClassifier(encode=True, **FAST)
    pipeline = make_pipeline(model, LogisticRegression()).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    names = pipeline[:-1].get_feature_names_out().tolist()
    assert {"number", "day_weekday", "ward_a", "ward_b", "smokes"} <= {*names}
    cells = pipeline[0].transform(X)
    assert (cells.dtype, cells.shape) == (np.float64, (60, len(names)))
    ward = cells[:, names.index("ward_a")]
    assert (ward == (table["ward"] == "a")).all()
    framed = pipeline[0].set_output(transform="pandas").transform(X)
    assert framed.columns.tolist() == names
    assert (framed.to_numpy() == cells).all()
    with pytest.raises(LessVFLError, match="'encode' must be False"):
        pipeline[0].inverse_transform(cells)


def test_a_pipeline_on_categories_of_a_frame():
    """The next one sees the categories that were declared."""
    table, y = records()
    trees = HistGradientBoostingClassifier(categorical_features="from_dtype")
    pipeline = make_pipeline(LessVFLClassifier(**FAST), trees)
    X = table[["number", "ward", "smokes"]]
    pipeline.fit(X, y)
    assert pipeline[-1].is_categorical_.tolist() == [False, True, False]
    assert pipeline.score(X, y) > 0.9


def test_a_warning_is_given_once_for_all_folds_and_at_the_line_that_asked():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=[*"abc"])
    y = np.arange(200) % 2
    one = LessVFLClassifier(parties=1, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        cross_val_score(one, X.assign(same=1.0), y, cv=3)
    said = [str(found.message) for found in caught]
    assert len(said) == len(set(said)) > 0
    assert {found.filename for found in caught} == {__file__}


def test_numbers_of_a_frame_come_back_as_numbers():
    """What is removed does not make objects of what is kept."""
    table, y = records()
    X = table[["number", "smokes", "count", "stay"]]
    model = LessVFLClassifier(**FAST).set_output(transform="default")
    found = model.fit(X, y).transform(X)
    assert found.dtype == np.float64
    assert np.isnan(found[2, 2])
    whole = pd.DataFrame({"a": np.arange(60) + 2**52, "b": np.arange(60)[::-1]})
    found = model.fit(whole, y).transform(whole)
    assert (found == whole.to_numpy()).all()


def test_missing_cells_come_back_from_where_they_were_removed():
    X = np.array([[np.nan, 1.0], [2.0, 0.0], [0.0, 3.0]] * 10)
    model = LessVFLClassifier(**FAST).fit(X, [0, 1, 1] * 10)
    assert np.isnan(model.inverse_transform(model.transform(X))[0, 0])
    with pytest.raises(LessVFLError, match=r"columns that were kept, 2\. Got 1"):
        model.inverse_transform(X[:, :1])


def test_arrow_tables_and_polars_queries_keep_their_names():
    table, y = records()
    table = table.drop(columns=["stay"])
    expected = LessVFLClassifier(**FAST).fit(table, y)
    arrow = pa.Table.from_pandas(table)
    lazy = pl.from_pandas(table).lazy()
    for X in (arrow, arrow.to_batches()[0], lazy):
        model = LessVFLClassifier(
            parties={"a": ["number", "w*"], "b": ["[!nw]*"]}, **FAST
        )
        model.fit(X, y)
        assert model.feature_names_in_.tolist() == list(table.columns)
        assert (expected.predict(X) == expected.predict(table)).all()
        assert model.transform(X).shape == table.shape
        framed = model.set_output(transform="pandas").transform(X)
        assert framed["day"].tolist() == table["day"].tolist()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pd.DataFrame(), "Got 0 rows and 0 columns"),
        (pd.DataFrame({"a": [], "b": []}), "Got 0 rows and 2 columns"),
        (pd.DataFrame(index=range(3)), "Got 3 rows and 0 columns"),
        (pl.DataFrame(), "Got 0 rows and 0 columns"),
        (pl.LazyFrame({"a": []}), "Got 0 rows and 1 column"),
        (pa.table({"a": pa.array([], pa.float64())}), "Got 0 rows and 1 column"),
        (pd.DataFrame([[1, 2]] * 3, columns=["a", "a"]), "must differ. Got 'a'"),
        (pd.DataFrame([[1, 2]] * 3, columns=[1, "1"]), "must differ. Got '1'"),
        (
            pd.DataFrame({"a": pd.Series(["\ud800", "b", "b"], dtype=object)}),
            r"texts of column 'a' must be valid Unicode. Got '\\ud800'",
        ),
        (np.array([["\ud800", 1], ["b", 2], ["b", 3]], dtype=object), "column 'x0'"),
        (
            pd.DataFrame([[1, 2]] * 3, columns=pd.Index(["\ud800", "b"], dtype=object)),
            "Column names must be valid Unicode",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_one_sentence(table, words):
    with pytest.raises(DataError, match=words):
        LessVFLClassifier(**FAST).fit(table, [0, 1, 1])


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([None, 0, 1], "no missing cells. Got 1 row"),
        (np.array([None, "a", None], dtype=object), "no missing cells. Got 2 rows"),
        (pd.array([True, None, False], dtype="boolean"), "no missing cells"),
        (pd.array(["a", None, "b"], dtype="string"), "no missing cells"),
        (pd.Categorical(["a", None, "b"]), "no missing cells"),
        (["a", 1, 1], "all texts or all numbers. Got both"),
        (pd.date_range("2024-01-01", periods=3), "Got datetime64"),
        (np.array([1j, 0, 1]), "Got complex128"),
        ([b"a", b"b", b"b"], r"Got \|S1"),
        (["\ud800", "b", "b"], "valid Unicode"),
    ],
)
@pytest.mark.parametrize("kind", [LessVFLClassifier, LessVFLRegressor])
def test_labels_that_cannot_be_used_are_one_sentence(kind, y, words):
    with pytest.raises(LessVFLError, match=words):
        kind(**FAST).fit(np.eye(3), y)


def test_labels_of_every_kind_are_predicted_as_they_came():
    X, n_times = np.tile(np.eye(2), (10, 1)), 10
    for y, kind in (
        (pd.array([3, 4] * n_times, dtype="Int64"), "i"),
        (pd.Series([True, False] * n_times, dtype="boolean"), "b"),
        (np.array([True, False] * n_times), "b"),
        ([decimal.Decimal(1), decimal.Decimal(2)] * n_times, "f"),
        (pl.Series(["a", "b"] * n_times, dtype=pl.Categorical), "O"),
        (np.array([2, 5] * n_times, dtype=object), "i"),
        (np.array([0, 1] * n_times, dtype=np.float16), "f"),
    ):
        assert LessVFLClassifier(**FAST).fit(X, y).classes_.dtype.kind == kind
    with pytest.raises(ConfigError, match="must be numbers to regress on"):
        LessVFLRegressor(**FAST).fit(X, ["a", "b"] * n_times)


@pytest.mark.parametrize("n_rows", [2, 3, 5])
def test_a_handful_of_rows_says_nothing_of_torch(n_rows):
    X = np.random.default_rng(0).normal(size=(n_rows, 3))
    model = LessVFLClassifier(random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LessVFLWarning)
        model.fit(X, [0, 1, 0, 1, 1][:n_rows])
        assert len(model.predict(X)) == n_rows


@pytest.mark.parametrize("kind", [LessVFLClassifier, LessVFLRegressor])
def test_a_model_without_a_feature_says_so_and_predicts(kind):
    X = np.random.default_rng(0).normal(size=(40, 4))
    y = [0, 1, 1, 1] * 10
    model = kind(lam_party=1e6, **LAMBDAS)
    words = "Every feature was removed.* a smaller 'lam_party' keeps more"
    with pytest.warns(LessVFLWarning, match=words):
        model.fit(X, y)
    assert not model.get_support().any()
    assert len(set(model.predict(X).tolist())) == 1
    frame = pd.DataFrame(X)
    with pytest.warns(LessVFLWarning, match="none says more of the labels than chance"):
        auto = kind(random_state=0).fit(frame, np.roll(y, 1))
    assert auto.transform(frame).shape == (40, 0)


def test_cells_that_no_number_holds_are_left_out_by_name():
    X = pd.DataFrame({"a": [0.0, 1.0] * 10, "big": [Fraction(10**400), 1] * 10})
    with pytest.warns(LessVFLWarning, match=r"'big' \(numbers beyond 1.8e308\)"):
        LessVFLClassifier(parties=1, **FAST).fit(X, [0, 1] * 10)
    wide = pl.DataFrame({"a": pl.Series([1, 2] * 10, dtype=pl.Int128)})
    model = LessVFLClassifier(parties=1, **FAST).fit(wide, [0, 1] * 10)
    assert model.transform(wide)[1, 0] == 2
