"""The default method on tables of known truth: what is found is also learnt."""

from __future__ import annotations

import dataclasses
import json
import warnings

import numpy as np
import pytest

from lessvfl import data
from lessvfl.errors import LessVFLWarning
from lessvfl.run import profiles
from lessvfl.run.simulate import Job, simulate


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)
        yield


def run(method, X, y, sizes, task=None, seed=0, **given):
    dataset = data.from_arrays(X, y, task=task)
    settings = profiles.resolve(method, "default", dataset, given)
    (one,) = simulate(Job(dataset, settings, sizes), [seed])
    kept = {name for own in one.numbers["features"].values() for name in own["kept"]}
    score = one.numbers["r2" if task == "regression" else "accuracy"]["final"]
    return kept, score, one


def square(X, rng):
    y = X[:, 0] + X[:, 1] ** 2 + X[:, 4] + 0.3 * rng.normal(size=len(X))
    return y, [0, 1, 4], "regression"


def xor(X, rng):
    return (X[:, 0] * X[:, 1] > 0).astype(int), [0, 1], "binary"


def u_shape(X, rng):
    noisy = np.abs(X[:, 2]) + 0.2 * rng.normal(size=len(X))
    return (noisy > 0.7).astype(int), [2], "binary"


def two_pairs(X, rng):
    y = X[:, 0] * X[:, 1] + X[:, 6] * X[:, 7] + 0.3 * rng.normal(size=len(X))
    return y, [0, 1, 6, 7], "regression"


def test_amounts_of_pure_noise_keep_nothing():
    """Nor does what a party has learnt count twice in its second look."""
    n_kept = []
    for seed in range(6):
        rng = np.random.default_rng(10_000 + seed)
        X, y = rng.normal(size=(1000, 12)), rng.normal(size=1000)
        kept, _, _ = run("less-vfl-auto", X, y, [6, 6], "regression", train_epochs=2)
        n_kept.append(len(kept))
    assert sum(n > 0 for n in n_kept) <= 1  # of 6; each may be with 1 in 40


@pytest.mark.parametrize("effect", [square, xor, u_shape, two_pairs])
def test_what_acts_evenly_is_learnt_as_plain_vfl_learns_it(effect):
    """An even effect has no gradient where input weights are next to nothing."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(600, 12))
    y, true, task = effect(X, rng)
    kept, score, _ = run("less-vfl-auto", X, y, [6, 6], task)
    assert kept == {f"x{i}" for i in true}
    sizes = [size for size in (sum(i < 6 for i in true), sum(i > 5 for i in true))]
    _, plain, _ = run("plain", X[:, true], y, [size for size in sizes if size], task)
    assert score > plain - 0.05  # on average 0.03, ``lessvfl bench shapes``


def nested(n=600):
    """Return a city, its region and the region's numbers, at one party, and a label."""
    rng = np.random.default_rng(0)
    city = rng.integers(12, size=n)
    numbers = rng.normal(size=(n, 4))
    y = (city // 3 + numbers[:, 0] + 0.3 * rng.normal(size=n) > 1.5).astype(int)
    names = np.array([f"c{i}" for i in range(12)], dtype=object)
    regions = np.array([f"r{i}" for i in range(4)], dtype=object)
    X = np.empty((n, 6), dtype=object)
    X[:, 0], X[:, 1], X[:, 2:] = names[city], regions[city // 3], numbers
    return X, y


def test_a_category_nested_in_another_leaves_every_number_finite():
    X, y = nested()
    kept, score, one = run("less-vfl-auto", X, y, [6])
    assert "x2" in kept
    assert {"x0", "x1"} & kept
    assert score > 0.85
    json.dumps(one.numbers, allow_nan=False)


def copied(X, y, times):
    return np.repeat(X, times, axis=0), np.repeat(y, times)


def oversampled(X, y, times):
    rare = np.flatnonzero(y == 1)
    rows = np.concatenate([np.arange(len(y)), np.repeat(rare, times - 1)])
    return X[rows], y[rows]


def false_and_said(one, kept, true):
    wrong = len(kept - {f"x{i}" for i in true}) / max(1, len(kept))
    said = [own["false_share"] or 0.0 for own in one.numbers["selection"].values()]
    return wrong, float(np.mean(said))


@pytest.mark.parametrize(("copy", "times"), [(copied, 3), (oversampled, 10)])
def test_copies_of_rows_do_not_fool_the_shadows(copy, times):
    """Noise that stands in ten rows looks as if it were there for a reason."""
    gaps, n_false = [], 0
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(300, 24))
        score = X[:, 0] + X[:, 12] - X[:, 13] + 0.5 * rng.normal(size=300)
        y = (score > np.quantile(score, 0.9 if copy is oversampled else 0.5)).astype(
            int
        )
        more, labels = copy(X, y, times)
        kept, _, one = run("less-vfl-auto", more, labels, [12, 12], seed=seed)
        wrong, said = false_and_said(one, kept, [0, 12, 13])
        gaps.append(said - wrong)
        n_false += len(kept - {"x0", "x12", "x13"})
        assert {"x0", "x12", "x13"} & kept
    assert n_false <= 2
    assert np.mean(gaps) > -0.05


def test_rows_of_one_person_do_not_fool_the_shadows():
    rng = np.random.default_rng(1)
    person = np.repeat(np.arange(120), 8)
    X = rng.normal(size=(120, 24))[person] + 0.3 * rng.normal(size=(960, 24))
    own = X[:, 0] + X[:, 12] + rng.normal(size=120)[person]
    y = (own > np.median(own)).astype(int)
    dataset = data.from_arrays(X, y)
    settings = profiles.resolve("less-vfl-auto", "default", dataset)
    dataset = dataclasses.replace(dataset, units=person)
    (one,) = simulate(Job(dataset, settings, [12, 12]), [0])
    kept = {
        name for party in one.numbers["features"].values() for name in party["kept"]
    }
    assert len(kept - {"x0", "x12"}) <= 2
    assert {"x0", "x12"} & kept
