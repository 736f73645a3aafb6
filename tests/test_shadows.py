"""Selection by shadows: against scikit-learn's solver, and where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import MultiTaskLasso

from lessvfl import data, profiles, runtime, shadows
from lessvfl.errors import ConfigError
from lessvfl.models import MLP
from lessvfl.runtime import Job
from lessvfl.types import ShadowPlan

PLAN = ShadowPlan("select_features", 0.05)


def problem(n=400, d=12, E=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    B = np.zeros((d, E))
    B[:3] = rng.normal(size=(3, E)) + 1
    Z = X @ B + rng.normal(size=(n, E))
    return torch.as_tensor(X), torch.as_tensor(Z)


def test_shadows_are_permuted_copies_and_behind_the_own_columns():
    X, X_test = torch.randn(1, 30, 4), torch.randn(1, 7, 4)
    groups = torch.tensor([0, 0, 1, 2])
    (whole, test), owners = shadows.with_shadows((X, X_test), groups, 5, (0,))
    assert owners.tolist() == [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8]
    assert torch.equal(whole[:, :, :4], X)
    for copy in (1, 2):
        own = whole[0, :, 4 * copy : 4 * copy + 4]
        assert torch.equal(own.sort(dim=0).values, X[0].sort(dim=0).values)
        assert not torch.equal(own, X[0])
        places = [int((X[0, :, 0] == value).nonzero()) for value in own[:, 0]]
        assert torch.equal(X[0, places, 1], own[:, 1])  # one feature, one permutation
    assert torch.equal(test[:, :, 4:], torch.zeros(1, 7, 8))


def test_every_seed_permutes_its_own_way():
    X = torch.randn(1, 30, 3)
    (both, _), _ = shadows.with_shadows((X, X), torch.arange(3), 3, (0, 1))
    (alone, _), _ = shadows.with_shadows((X, X), torch.arange(3), 3, (1,))
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])


@pytest.mark.parametrize("lam", [0.05, 0.3, 1.0])
def test_the_path_agrees_with_scikit_learn(lam):
    X, Z = problem()
    X, Z = X - X.mean(dim=0), Z - Z.mean(dim=0)
    G, C = X.T @ X / len(X), X.T @ Z / len(X)
    eye = torch.eye(X.shape[1], dtype=X.dtype)
    ours = shadows.group_path(
        G, C, torch.tensor([lam], dtype=X.dtype), eye[0] * 0 + 1, eye
    )
    theirs = MultiTaskLasso(lam, fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(X.numpy(), Z.numpy())
    assert ours[0].numpy() == pytest.approx(
        np.linalg.norm(theirs.coef_, axis=0), abs=1e-6
    )


def test_the_path_begins_where_nothing_is_kept():
    X, Z = problem()
    is_shadow = torch.zeros(12, dtype=torch.bool)
    found = shadows.choose(X, Z, torch.eye(12).double(), is_shadow, PLAN)
    assert found.path[0][0] == 1.0
    assert found.path[0][1] == 0
    assert found.path[1][1] >= 1


@pytest.mark.parametrize("adaptive", [0.0, 1.0])
def test_what_predicts_is_kept_and_shadows_go(adaptive):
    X, Z = problem()
    (whole, _), owners = shadows.with_shadows(
        (X[None], X[None]), torch.arange(12), 60, (0,)
    )
    n = len(owners)
    is_shadow = torch.arange(n) >= 12
    plan = ShadowPlan("select_features", 0.03, adaptive)
    found = shadows.choose(whole[0], Z, torch.eye(n).double(), is_shadow, plan)
    assert found.kept[:3].all()
    assert found.kept[3:].sum() <= 2
    assert not found.kept[12:].any()
    assert found.shadow_share <= 0.03
    assert (found.scores[:3] > found.scores[3:].max()).all()


def test_subsamples_vote():
    X, Z = problem()
    (whole, _), owners = shadows.with_shadows(
        (X[None], X[None]), torch.arange(12), 60, (0,)
    )
    n = len(owners)
    is_shadow, eye = torch.arange(n) >= 12, torch.eye(n).double()
    plan = ShadowPlan("select_features", 0.05, subsamples=8)
    found = shadows.choose(whole[0], Z, eye, is_shadow, plan)
    assert found.frequency is not None
    assert (found.frequency[:3] == 1).all()
    assert torch.equal(found.kept, found.frequency >= 0.5)
    assert not found.kept[12:].any()
    again = shadows.choose(whole[0], Z, eye, is_shadow, plan)
    assert torch.equal(again.kept, found.kept)


def test_at_most_so_many():
    X, Z = problem()
    none = torch.zeros(12, dtype=torch.bool)
    plan = ShadowPlan("select_features", 1.0, most=2)
    assert shadows.choose(X, Z, torch.eye(12).double(), none, plan).kept.sum() <= 2
    free = ShadowPlan("select_features", 1.0)
    assert shadows.choose(X, Z, torch.eye(12).double(), none, free).kept.sum() > 2


def test_columns_of_one_feature_stay_or_go_together():
    X, Z = problem(d=6)
    membership = torch.zeros(6, 3).double()
    membership[torch.arange(6), torch.tensor([0, 0, 1, 1, 2, 2])] = 1
    none = torch.zeros(3, dtype=torch.bool)
    found = shadows.choose(X, Z, membership, none, PLAN)
    assert found.kept.shape == (3,)


def test_a_response_is_the_embedding_one_step_further():
    h, g = torch.randn(1, 50, 2), torch.randn(1, 50, 2)
    found = shadows.responses(h, g)
    scale = g.norm(dim=2).quantile(0.95) ** 2
    assert torch.allclose(found, h - g / scale)


def a_net(seeds, d):
    cpu = torch.device("cpu")
    return MLP.create((d, 8, 3), "tanh", seeds, "a", torch.float64, cpu)


def test_refit_predicts_held_out_responses_better_and_replicas_equal_single_runs():
    tables = [problem(seed=s) for s in (0, 1)]
    X, Z = (torch.stack(parts) for parts in zip(*tables, strict=True))
    both = a_net((0, 1), 12)
    before = (both(X) - Z).square().mean(dim=(1, 2))
    shadows.refit(both, X, Z, PLAN, (0, 1))
    after = (both(X) - Z).square().mean(dim=(1, 2))
    assert (after < 0.6 * before).all()
    for r in (0, 1):
        alone = a_net((r,), 12)
        shadows.refit(alone, X[r : r + 1], Z[r : r + 1], PLAN, (r,))
        assert torch.allclose(alone(X[r : r + 1])[0], both(X)[r], atol=1e-6)


def run(seeds=(0,), **more):
    dataset = data.load("synthetic", options={"n_samples": 2000})
    given = {"train_epochs": 2} | more
    settings = profiles.resolve("less-vfl", "default", dataset, given)
    job = Job(dataset, settings, spurious=0.5)
    return [run.numbers for run in runtime.simulate(job, list(seeds))]


def test_the_default_finds_what_matters_without_a_lambda():
    for numbers in run(seeds=(0, 1)):
        assert numbers["truth"]["f1"] > 0.7
        assert numbers["spurious"]["removed_share"] > 0.9
        for how in numbers["selection"].values():
            assert how["shadow_share"] <= 0.03
            assert 0 < how["lam"] <= 1
            assert len(how["path"]) == 40


def test_replicas_select_as_single_runs_do():
    more = {"dtype": "float64", "bits": 32}
    together = run(seeds=(0, 1), **more)
    for seed, numbers in enumerate(together):
        (alone,) = run(seeds=(seed,), **more)
        assert numbers["features"] == alone["features"]
        assert numbers["components"] == alone["components"]
        assert numbers["communication"] == alone["communication"]


def test_what_must_stay_stays():
    (free,) = run()
    (held,) = run(must_keep="x0_1?, x3_19")
    asked = {f"x0_1{digit}" for digit in range(10)} | {"x3_19"}
    kept = {n for party in held["features"].values() for n in party["kept"]}
    assert asked <= kept
    assert not asked <= {
        n for party in free["features"].values() for n in party["kept"]
    }
    with pytest.raises(ConfigError, match="'nobody', which matches none"):
        run(must_keep="x0_1,nobody")


def test_frequencies_are_told_by_name():
    (numbers,) = run(subsamples=3)
    for party, how in numbers["selection"].items():
        kept = set(numbers["features"][party]["kept"])
        assert {
            name for name, share in how["frequency"].items() if share >= 0.5
        } == kept


def test_fewer_bits_are_cheaper_in_proportion():
    bills = [
        run(bits=bits)[0]["communication"]["by_stage"]["pretrain"]["up"]
        for bits in (32, 8)
    ]
    assert bills[0] / bills[1] == pytest.approx(4, rel=0.1)


def test_shadows_need_a_column_of_their_own():
    with pytest.raises(ConfigError, match="selector=network does without"):
        run(empty_party="frozen")
