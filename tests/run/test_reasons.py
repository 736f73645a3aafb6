"""Reasons of a model in one process add up, and agree with a pooled explanation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from lessvfl import data, explain
from lessvfl.errors import ConfigError, DataError
from lessvfl.explanation.reasons import Explanation, FeatureShares
from lessvfl.run import experiment, profiles
from lessvfl.run.simulate import Job

pytestmark = pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")

N = 300
PARTIES = {"bank": ["income", "debt", "town"], "shop": ["age", "visits"]}


def a_table() -> pd.DataFrame:
    """Make numbers that go together, categories and missing cells."""
    rng = np.random.default_rng(5)
    both = rng.normal(size=N)
    table = pd.DataFrame({"income": both + 0.5 * rng.normal(size=N)})
    table["debt"] = -both + 0.7 * rng.normal(size=N)
    table["town"] = rng.choice(["Aix", "Bonn", "Cork"], N)
    table["age"] = rng.normal(40, 10, N)
    table["visits"] = rng.normal(size=N)
    table.loc[3::11, "age"] = np.nan
    return table


def a_score(table: pd.DataFrame) -> pd.Series:
    age = (table["age"].fillna(40) - 40) / 10
    return (
        table["income"]
        - table["debt"] * np.abs(table["visits"])
        + age
        + (table["town"] == "Aix")
    )


def trained(labels, method="plain", **more):
    table = a_table()
    dataset = data.from_arrays(table, labels, name="people")
    own = {"train_epochs": 8, "batch_size": 32} if method == "plain" else {}
    settings = profiles.resolve(method, "default", dataset, own | more)
    _, runs = experiment.run(Job(dataset, settings, parties=PARTIES), [0])
    return runs[0].model


@pytest.fixture(scope="module")
def binary():
    return trained(np.where(a_score(a_table()) > 1.5, "good", "poor"))


def add_up(found: Explanation) -> None:
    for party, own in found.features.items():
        assert np.allclose(own.values.sum(axis=1), found.parties[party], atol=1e-5)


def test_contributions_of_two_classes_add_up_to_the_log_odds(binary):
    table = a_table()
    found = explain(binary, table)
    odds = binary.decide(table)[:, 0]
    assert np.allclose(found.output, odds if binary.positive == 1 else -odds, atol=1e-5)
    assert set(found.explains) == {binary.label_names[binary.positive]}
    assert np.ptp(found.base) == 0
    add_up(found)
    other = replace(binary, positive=1 - binary.positive)
    turned = explain(other, table)
    assert np.allclose(turned.parties["bank"], -found.parties["bank"])
    assert set(turned.explains) == {binary.label_names[1 - binary.positive]}


def test_contributions_of_many_classes_are_of_the_one_predicted():
    score = a_score(a_table())
    model = trained(pd.cut(score, [-99, -1, 1, 99], labels=["low", "mid", "high"]))
    table = a_table()
    found, z = explain(model, table), model.decide(table)
    assert np.allclose(found.output, z.max(axis=1) - z.mean(axis=1), atol=1e-5)
    assert found.explains == tuple(model.predict(table))
    add_up(found)


def test_contributions_to_a_number_are_in_its_unit():
    model = trained(1000 + 50 * a_score(a_table()).to_numpy())
    table = a_table()
    found = explain(model, table)
    assert np.allclose(found.output, model.predict(table), rtol=1e-5)
    assert found.explains == ()
    add_up(found)
    columns = found.columns(2)
    assert "explains" not in columns
    sizes = np.abs([columns["reason_1_contribution"], columns["reason_2_contribution"]])
    assert (sizes[0] >= sizes[1]).all()


def pooled_shapley(model, rows: pd.DataFrame, others: pd.DataFrame):
    """Return Shapley values of all columns, every coalition looked at, (n, columns).

    A column that is absent is that of other rows, in the mean over them.
    """
    names, value = list(rows.columns), {}
    sign = 1 if model.positive == 1 else -1
    for size in range(len(names) + 1):
        for some in itertools.combinations(range(len(names)), size):
            mixed = pd.concat([others] * len(rows), ignore_index=True)
            for j in some:
                own = rows[names[j]].repeat(len(others))
                mixed[names[j]] = own.to_numpy()
            z = sign * model.decide(mixed)[:, 0]
            value[some] = z.reshape(len(rows), -1).mean(axis=1)
    found, n = np.zeros(rows.shape), len(names)
    for some, without in value.items():
        for j in set(range(n)) - set(some):
            gain = value[tuple(sorted((*some, j)))] - without
            found[:, j] += gain / (n * math.comb(n - 1, len(some)))
    return found


@pytest.mark.parametrize(("depth", "least"), [(1, 0.99), (2, 0.9)])
def test_reasons_agree_with_shapley_values_of_the_pooled_table(depth, least):
    """Less so for a fusion network of two layers, where slopes stand for it."""
    labels = np.where(a_score(a_table()) > 1.5, "good", "poor")
    model = trained(labels, fusion_depth=depth, fusion_hidden=8)
    table = a_table()
    rows, others = table[:20], table[::3]
    found = explain(model, rows, background=others)
    ours = np.hstack([own.values for own in found.features.values()])
    names = [name for own in found.features.values() for name in own.names]
    right = pooled_shapley(model, rows[names], others[names])
    assert np.corrcoef(ours.ravel(), right.ravel())[0, 1] > least


def test_reasons_name_what_pushed_towards_the_prediction(binary):
    table = a_table()
    found = explain(binary, table, texts={"income": "Your income"})
    columns = found.columns(2)
    predicted = binary.predict(table)
    told = np.hstack([own.values for own in found.features.values()])
    for row in range(N):
        sign = 1 if predicted[row] == found.explains[row] else -1
        best = (sign * told[row]).max()
        assert columns["reason_1_contribution"][row] == pytest.approx(sign * best)
    assert "Your income" in columns["reason_1"] + columns["reason_2"]
    assert "shop: age" in columns["reason_1"] + columns["reason_2"]
    assert columns["contribution_shop"] == found.parties["shop"].tolist()


def test_a_party_that_does_not_tell_is_a_reason_as_a_whole():
    found = Explanation(
        np.zeros(2),
        {"bank": np.array([1.0, -1.0]), "shop": np.array([3.0, -0.5])},
        {"bank": FeatureShares(("a", "b"), np.array([[2.0, -1.0], [np.nan, -0.9]]))},
        ("poor", "poor"),
        np.array([1, -1]),
    )
    columns = found.columns(3)
    assert columns["reason_1"] == ["shop: its columns", "bank: b"]
    assert columns["reason_2"] == ["bank: a", "shop: its columns"]
    assert columns["reason_3"] == [None, None]
    assert columns["reason_3_contribution"] == [None, None]


def test_trees_are_split_among_parties_alone():
    labels = np.where(a_score(a_table()) > 1.5, "good", "poor")
    model = trained(labels, "vertical-boost")
    table = a_table()
    found = explain(model, table)
    sign = 1 if model.positive == 1 else -1
    assert np.allclose(found.output, sign * model.decide(table)[:, 0], atol=1e-5)
    assert not found.features
    assert set(found.columns(1)["reason_1"]) <= {
        "bank: its columns",
        "shop: its columns",
        None,
    }


def test_a_party_that_kept_nothing_adds_nothing(binary):
    bank, shop = binary.parties
    silent = replace(shop, constant=torch.zeros(shop.n_components))
    found = explain(replace(binary, parties=(bank, silent)), a_table())
    assert not found.parties["shop"].any()
    assert list(found.features) == ["bank"]
    add_up(found)


def test_one_row_has_nothing_to_be_compared_with(binary):
    table = a_table()
    with pytest.raises(DataError, match=r"must have 10 rows or more\. Got 1\."):
        explain(binary, table[:1])
    one = explain(binary, table[:1], background=table)
    assert np.allclose(one.output, explain(binary, table).output[:1], atol=1e-5)


def test_hidden_paths_are_not_explained(binary):
    with pytest.raises(ConfigError, match="'inference' must be clear"):
        explain(replace(binary, inference="fed-eini"), a_table())
