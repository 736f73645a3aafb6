"""What a run spends: against other computations, and against what is really sent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy.optimize import brentq
from scipy.stats import norm

from lessvfl import data, resolve
from lessvfl.errors import ConfigError
from lessvfl.privacy.accounting import epsilon_of
from lessvfl.privacy.mechanisms import RandomisedResponse, Releases
from lessvfl.run import accounting
from lessvfl.run.accounting import Extent
from lessvfl.run.simulate import Job, simulate
from lessvfl.wire import messages
from lessvfl_bench.privacy.traffic import Recording
from lessvfl_bench.studies.epsilon import OF_ONE

DELTA = 1e-5


@pytest.fixture(scope="module")
def table():
    return data.load("breast-cancer")


def settings(table, method="less-vfl-auto", **given):
    return resolve(method, "default", table, given)


def analytic(noise: float, times: int, delta: float = DELTA) -> float:
    """Return epsilon of Gaussian noise exactly (Balle and Wang, ICML 2018, Th. 8).

    Releases of one deviation are together one whose sensitivity is √times as large.
    """
    mu = math.sqrt(times) / noise

    def excess(e: float) -> float:
        above = norm.cdf(mu / 2 - e / mu)
        return float(above - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta)

    return float(brentq(excess, 0, 500))


@pytest.mark.parametrize(("noise", "times"), [(1.0, 1), (4.0, 25), (0.5, 3)])
def test_noise_costs_what_the_analytic_mechanism_says(noise, times):
    found = epsilon_of([Releases("gaussian", noise, times)], DELTA)
    assert found == pytest.approx(analytic(noise, times), rel=1e-9)


@pytest.mark.parametrize("noises", [(1.0,), (4.0,) * 25, (0.8, 2.0, 30.0)])
def test_noise_costs_what_dp_accounting_says(noises):
    """Which composes losses by convolution, for a row in whose place another is."""
    own = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    for noise in noises:  # by the norm of a row, half the sensitivity
        own.compose(dp_accounting.GaussianDpEvent(2 * noise))
    found = epsilon_of([Releases("gaussian", noise) for noise in noises], DELTA)
    assert found == pytest.approx(own.get_epsilon(DELTA), rel=1e-4)


@pytest.mark.parametrize(
    ("noise", "delta", "epsilon"),
    [
        *[(1e5, 1e-5, 0.0), (1e200, 1e-5, 0.0)],
        *[(0.01, 1e-5, 5425.5), (0.1, 1e-300, 420.1), (1e-200, 1e-5, math.inf)],
    ],
)
def test_little_noise_and_much_have_a_price(noise, delta, epsilon):
    found = epsilon_of([Releases("gaussian", noise)], delta)
    assert found == pytest.approx(epsilon, abs=0.1)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_randomised_labels_cost_the_largest_ratio_of_probabilities(n_classes):
    mechanism = RandomisedResponse(1.3, n_classes)
    draws = (np.arange(200_000) + 0.5) / 200_000
    told = [
        np.bincount(mechanism.apply(np.full(len(draws), y), draws), minlength=n_classes)
        for y in range(n_classes)
    ]
    ratio = max(float((a / b).max()) for a in told for b in told)
    assert math.log(ratio) == pytest.approx(1.3, abs=1e-3)
    assert epsilon_of([mechanism.releases()], 0.0) == 1.3


def test_noise_and_randomised_labels_together_cost_no_less_than_they_tell():
    """Privacy losses add up: a normal one, and one of two values."""
    noise, epsilon = 3.0, 0.8
    mu, keeps = 1 / noise, RandomisedResponse(epsilon, 2).keeps
    spread = np.linspace(-9, 9, 200_001)
    weight = norm.pdf(spread) * (spread[1] - spread[0])
    gaussian = mu**2 / 2 + mu * spread
    pairs = [(gaussian + epsilon, keeps), (gaussian - epsilon, 1 - keeps)]

    def excess(e: float) -> float:
        told = [share * np.clip(-np.expm1(e - loss), 0, None) for loss, share in pairs]
        return float((weight * sum(told)).sum()) - DELTA

    both = [Releases("gaussian", noise), Releases("randomised response", epsilon)]
    exact = brentq(excess, 0, 20)
    assert exact <= epsilon_of(both, DELTA) <= 1.3 * exact
    assert epsilon_of(both, DELTA) == epsilon_of(both[:1], DELTA) + epsilon


@pytest.mark.parametrize("with_noise", [False, True])
@pytest.mark.parametrize("times", [2, 3])
def test_labels_randomised_anew_cost_every_time(times, with_noise):
    """Once, draws of one epsilon counted as one draw, however many there were."""
    response, noise = RandomisedResponse(1.3, 3).releases(), Releases("gaussian", 50.0)
    many = [replace(response, times=times), *([noise] if with_noise else [])]
    found = epsilon_of(many, DELTA)
    alone = epsilon_of([noise], DELTA) if with_noise else 0.0
    assert found == pytest.approx(times * 1.3 + alone)


@pytest.mark.parametrize("asked", [1.0, 8.0])
def test_an_epsilon_is_spent_as_it_was_asked_for(table, asked):
    own, extent = settings(table, embedding_epsilon=asked), Extent(2, n_seeds=3)
    spend = accounting.of_columns(own, extent)
    assert spend is not None
    assert spend.epsilon == pytest.approx(asked, rel=1e-9)
    (one,) = spend.releases
    assert analytic(one.noise, one.times) == pytest.approx(asked, rel=1e-9)
    with_noise = accounting.with_noise(own, extent)
    assert with_noise.data.embedding_epsilon is None
    again = accounting.of_columns(with_noise, extent)
    assert again is not None
    assert again.epsilon == pytest.approx(spend.epsilon)


# ---------------------------------------------------------------------------- refusals


def test_a_method_that_asks_more_has_no_price(table):
    noisy = settings(table, "gini-filter", embedding_noise=1.0)
    with pytest.raises(ConfigError, match="protects no other messages: method gini"):
        accounting.of_columns(noisy, Extent(2))
    for kind in ("gaussian", "max-norm"):
        own = settings(table, "vertical-boost", gradient_defence=kind)
        with pytest.raises(ConfigError, match="setting protects no other messages"):
            accounting.of_labels(own, 2, 2)


@pytest.mark.parametrize("kind", ["marvell", "max-norm"])
def test_a_defence_without_a_price_has_no_epsilon(table, kind):
    own = settings(table, gradient_defence=kind)
    assert accounting.of_labels(own, 2, 2) is None
    assert accounting.of_columns(own, Extent(2)) is None
    assert accounting.unpriced(own, 2) == [kind]
    assert accounting.unpriced(settings(table), 2) == []


# -------------------------------------------------------------------- what is counted


def most_of_a_row(recording: Recording, n_rows: int) -> tuple[float, float]:
    """Return how often a row is embedded by a party, and has a gradient, at most.

    Rows of a batch are as many as values say; every epoch has each of them once.
    """
    up, down = Counter[str](), Counter[str]()
    for one in recording.carried:
        for party, reply in one.replies.items():
            request = one.requests[party]
            is_test = isinstance(request, messages.Embed) and request.rows == "test"
            if isinstance(reply, messages.Embedding) and not is_test:
                up[party] += len(reply.block.values)
        for party, request in one.requests.items():
            if isinstance(request, messages.Descend):
                down[party] += len(request.gradient.values)
    return (max(up.values()) / n_rows, max(down.values()) / n_rows)


@pytest.mark.parametrize("schedule", ["cosine", "watched"])
def test_as_much_is_counted_as_a_row_is_sent(table, schedule):
    given = {"schedule": schedule, "train_epochs": 3.0, "embedding_noise": 4.0}
    own = settings(table, **given)
    recording = Recording()
    run = simulate(Job(table, own, parties=2), [0], around=recording.around)[0]
    n_rows = len(run.problem.y_train)
    up, down = most_of_a_row(recording, n_rows)
    counted = accounting.n_embeddings(own, Extent(2, n_rows=n_rows))
    assert up <= counted
    assert down <= accounting.n_gradients(own, 2)
    spent = run.numbers["privacy"]["columns"]["party0"]
    assert spent["releases"] == counted
    if schedule == "cosine":
        assert math.ceil(up) == counted
        assert math.ceil(down) == accounting.n_gradients(own, 2)


def test_every_seed_is_charged_for(table):
    given = {"gradient_noise": 40.0, "embedding_noise": 20.0, "split": "first"}
    own = settings(table, gradient_defence="gaussian", **given)
    job = Job(table, own, parties=3)
    one, four = (job.privacy(n, ["a", "b", "c"])["privacy"] for n in (1, 4))
    for find in (lambda p: p["labels"], lambda p: p["columns"]["b"]):
        assert find(four)["releases"] == 4 * find(one)["releases"]
        assert find(four)["epsilon"] > find(one)["epsilon"]
        assert find(four)["each"] == find(one)["each"]


def test_with_noise_test_rows_are_scored_once(table):
    plain = Job(table, settings(table))
    noisy = Job(table, settings(table, embedding_noise=1.0))
    assert (plain.evaluation, noisy.evaluation) == ("epochs", "end")


def test_nothing_is_said_or_loaded_where_nothing_is_on(table):
    run = simulate(Job(table, settings(table, train_epochs=1.0), parties=2), [0])[0]
    assert "privacy" not in run.numbers


def test_the_study_of_selection_spends_what_it_says():
    """Its noise is a table of four digits."""
    for epsilon, noise in OF_ONE.items():
        for times in (1, 25):
            releases = [Releases("gaussian", noise * math.sqrt(times), times)]
            assert epsilon_of(releases, DELTA) == pytest.approx(epsilon, rel=1e-3)
