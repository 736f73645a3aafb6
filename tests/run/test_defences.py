"""Settings that protect a side: what they change, and that nothing changes without."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from lessvfl import data, resolve
from lessvfl.data.labels import draws_of, randomise
from lessvfl.errors import ConfigError
from lessvfl.privacy.mechanisms import RandomisedResponse
from lessvfl.run.numbers import class_share
from lessvfl.run.simulate import Job, simulate
from lessvfl_bench.shapes import held_out
from lessvfl_bench.shapes import run as shapes


@pytest.fixture(scope="module")
def table():
    return data.load("breast-cancer")


def run(table, **given):
    settings = resolve(
        "less-vfl-auto", "default", table, {"train_epochs": 2.0, **given}
    )
    return simulate(Job(table, settings, parties=2), [0])[0]


@pytest.fixture(scope="module")
def plain(table):
    return run(table)


def final(one):
    return one.numbers["auc"]["final"], one.numbers["features"]


def test_a_label_that_is_hardly_randomised_changes_nothing(table, plain):
    assert final(run(table, label_epsilon=60.0)) == final(plain)


def test_an_epsilon_flips_training_labels_and_no_test_label(table, plain):
    one = run(table, label_epsilon=1.0).problem
    assert one.y_test.mean() == pytest.approx(table.y.mean(), abs=0.1)
    labels = dataclasses.replace(one_labels(), label_epsilon=1.0)
    told = randomise(table, labels).training_labels
    assert 0.2 < (told != table.y).mean() < 0.34  # 0.269 is told otherwise


def one_labels():
    table = data.load("breast-cancer")
    return resolve("less-vfl-auto", "default", table).labels


def test_a_row_has_one_label_in_all_seeds(table):
    labels = dataclasses.replace(one_labels(), label_epsilon=1.0)
    rows = np.random.default_rng(0).permutation(len(table.y))
    mechanism = RandomisedResponse(1.0, 2)
    draws = draws_of(range(len(table.y)), b"secret", mechanism)
    first = randomise(table, labels, draws).training_labels
    second = randomise(table.take(rows), labels, draws[rows]).training_labels
    assert (first[rows] == second).all()
    another = draws_of(range(len(table.y)), b"another", mechanism)
    assert (first != randomise(table, labels, another).training_labels).any()
    assert draws.mean() == pytest.approx(0.5, abs=0.05)


def by_place(table, epsilon):
    return dataclasses.replace(one_labels(), label_epsilon=epsilon), None


def by_secret(table, epsilon):
    mechanism = RandomisedResponse(epsilon, 2)
    draws = draws_of(range(len(table.y)), b"secret", mechanism)
    return dataclasses.replace(one_labels(), label_epsilon=epsilon), draws


@pytest.mark.parametrize("drawn", [by_place, by_secret])
def test_two_epsilons_together_give_no_label_away(table, drawn):
    """By one draw, a row told otherwise would be as epsilon 3 tells it, always."""
    pairs = (drawn(table, epsilon) for epsilon in (1.0, 3.0))
    one, three = (randomise(table, *pair).training_labels for pair in pairs)
    differ = one != three
    wrong = (three != table.y)[differ].mean()
    flips = [RandomisedResponse(e, 2).flips for e in (1.0, 3.0)]
    expected = flips[1] * (1 - flips[0])
    expected /= expected + flips[0] * (1 - flips[1])
    assert wrong == pytest.approx(expected, abs=0.07)


@pytest.mark.filterwarnings("ignore:.* equal another row")
@pytest.mark.parametrize("how", [{}, {"folds": 5}, {"split": "first"}])
def test_parties_are_told_nothing_of_true_labels(monkeypatch, how):
    """Whatever they are: rows, blocks and the share come of the labels drawn."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 4))[np.sort(np.arange(80) % 70)]  # the first ten: twice
    drawn = rng.integers(0, 2, 80)

    def as_drawn(dataset, labels):
        return dataclasses.replace(dataset, randomised=drawn)

    monkeypatch.setattr("lessvfl.data.problem.randomise", as_drawn)
    found: list[Any] = []
    for y in (np.arange(80) % 2, (np.arange(80) < 9).astype(int)):
        table = data.from_arrays(X, y)
        given = {"class_weight": "balanced", "threshold": "balanced", **how}
        settings = resolve("less-vfl-auto", "default", table, given)
        problem = Job(table, settings).problem(0)
        told = (problem.y_train, problem.weight, problem.blocks, problem.test_blocks)
        tables = [(one.X_train, one.X_test) for one in problem.parties]
        found.append((told, tables, problem.threshold, class_share(problem)))
    np.testing.assert_equal(found[0], found[1])
    assert found[0][0][2] is not None, "the copies are together"


@pytest.mark.parametrize("defence", ["marvell", "max-norm", "gaussian"])
def test_a_defence_of_gradients_changes_what_is_learnt(table, plain, defence):
    one = run(table, gradient_defence=defence)
    assert final(one) != final(plain)


def test_noise_on_embeddings_is_on_test_rows_as_well(table, plain):
    assert run(table, embedding_noise=30.0).numbers["auc"]["final"] < 0.8
    assert plain.numbers["auc"]["final"] > 0.95


def test_amounts_have_no_label_epsilon():
    amounts = data.from_arrays(np.eye(40)[:, :4], np.linspace(0, 1, 40))
    with pytest.raises(ConfigError, match="'label_epsilon' setting must be none for"):
        run(amounts, label_epsilon=1.0)


def test_marvell_is_of_two_classes():
    rows = np.random.default_rng(0).normal(size=(60, 4))
    three = data.from_arrays(rows, np.arange(60) % 3)
    with pytest.raises(
        ConfigError, match=r"marvell is for labels of two classes\. Got 3 classes"
    ):
        run(three, gradient_defence="marvell")


def test_marvell_of_three_classes_is_refused_before_anything_is_said(run_cli):
    told = ("--set", "gradient_defence=marvell", "--quiet")
    result = run_cli("run", "digits", *told)
    assert result.code == 2
    assert "Got 10 classes." in result.err
    assert "no epsilon" not in result.err


def test_noise_on_embeddings_makes_no_useless_feature_look_useful():
    """Responses start where the server saw a row, not where its network has it."""
    shape = held_out.make("1 % positive", 101)
    given = {"embedding_noise": "0.3"}
    found = shapes.run(shape, 101, "less-vfl-auto", given, False)
    assert found["true found"] > 5
    assert found["false share"] < 0.15


def test_noise_on_the_first_layer_is_on_test_rows(table):
    inside = run(table, embedding_noise=30.0, noise_at="first-layer")
    assert inside.numbers["auc"]["final"] < 0.8
    spent = inside.numbers["privacy"]["columns"].values()
    assert {own["mechanism"] for own in spent} == {"noise on the first layer"}


def test_behind_noise_a_run_starts_with_few_releases(table):
    def start(**given):
        return resolve("less-vfl-auto", "default", table, given).flat()

    usual, noisy = start(), start(embedding_epsilon=3.0)
    assert (noisy["train_epochs"], noisy["embedding_size"]) == (2.0, 1)
    assert start(embedding_noise=0.0) == usual
    assert start(embedding_epsilon=3.0, train_epochs=7)["train_epochs"] == 7
    behind = start(gradient_defence="gaussian")
    assert (behind["train_epochs"], behind["gradient_clip"]) == (1.0, 0.2)
    assert start(gradient_defence="max-norm") == usual | {
        "gradient_defence": "max-norm"
    }


@pytest.mark.parametrize(
    "given",
    [
        {"embedding_noise": "6", "embedding_clip": "1", "embedding_size": "4"},
        {"gradient_defence": "gaussian", "gradient_noise": "1"},
        {"label_epsilon": "1"},
    ],
    ids=["embeddings", "gradients", "labels"],
)
def test_the_false_share_that_is_said_holds_behind_noise(given):
    shape = held_out.make("t2", 103)
    found = shapes.run(shape, 103, "less-vfl-auto", given, False)
    if found["kept"]:
        assert found["false share"] <= found["said"] + 0.1
    if "embedding_noise" in given:
        assert found["true found"] >= 14  # of 20
