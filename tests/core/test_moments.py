"""Path, pruning and pairs: against scikit-learn, least squares, and known truths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, MultiTaskLasso

from lessvfl.core import moments
from lessvfl.core.moments import Moments
from lessvfl.core.prox import GroupLasso


def problem(n=400, d=12, E=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)))
    B = np.zeros((d, E))
    B[:3] = rng.normal(size=(3, E)) + 1
    Z = X @ B + rng.normal(size=(n, E))
    return torch.as_tensor(X), torch.as_tensor(Z)


def seen(X, Z, groups=None):
    groups = torch.arange(X.shape[1]) if groups is None else torch.tensor(groups)
    return Moments.of(X, Z, torch.nn.functional.one_hot(groups).to(X))


def mask(n, *places):
    found = torch.zeros(n, dtype=torch.bool)
    found[list(places)] = True
    return found


def test_the_path_agrees_with_scikit_learn():
    X, Z = problem()
    lams = torch.logspace(0.5, -2, 11, dtype=X.dtype)
    ours = moments.group_path(seen(X, Z), lams, torch.ones(12).to(X))
    assert len(ours) == 11
    for lam, norms in zip(lams, ours, strict=True):
        theirs = MultiTaskLasso(float(lam), tol=1e-12, max_iter=100_000)
        theirs.fit(X.numpy(), Z.numpy())
        expected = np.linalg.norm(theirs.coef_, axis=0)
        assert norms.numpy() == pytest.approx(expected, abs=1e-4)
        assert ((norms.numpy() > 0) == (expected > 0)).all()


def test_what_the_strong_rule_leaves_out_would_be_zero():
    X, Z = problem(d=60)
    data = seen(X, Z, [j // 2 for j in range(60)])
    weights, lams = torch.ones(30).to(X), torch.logspace(1, -1, 12, dtype=X.dtype)
    ours = moments.group_path(data, lams, weights)
    everybody = torch.ones(30, dtype=torch.bool)
    whole = moments._solve(data, lams, weights, everybody, torch.zeros_like(data.C))
    assert 0 < (ours > 0).sum() < ours.numel()
    assert torch.allclose(ours, data.group_norms(whole), atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_path_meets_the_optimality_condition(weighted, monkeypatch):
    """Of every group at every lambda, also of those that the strong rule left out."""
    X, Z = problem(d=24)
    data = seen(X, Z, [j // 2 for j in range(24)])
    weights = torch.linspace(0.3, 3, 12).to(X) if weighted else torch.ones(12).to(X)
    lams = torch.logspace(0.5, -1.5, 12, dtype=X.dtype)
    solved: dict[float, torch.Tensor] = {}  # by the first lambda, the last solution
    original = moments._solve

    def spy(data, some, *others):
        solved[float(some[0])] = original(data, some, *others)
        return solved[float(some[0])]

    monkeypatch.setattr(moments, "_solve", spy)
    norms = moments.group_path(data, lams, weights)
    B = torch.cat(list(solved.values()))
    assert torch.equal(data.group_norms(B), norms)
    is_kept = norms > 0
    assert 0 < is_kept.sum() < is_kept.numel()
    penalty = GroupLasso(lams, data.membership, weights)

    def residual(B):
        return penalty.residual(B.mT, (data.G @ B - data.C).mT)

    assert residual(B).max() < 1e-5
    stretched = residual(1.01 * B)
    assert (stretched[is_kept] > 1e-3).all()
    columns = (~is_kept).to(X) @ data.membership.T  # (L, columns)
    brought_back = residual(B + 1e-6 * columns.unsqueeze(2))
    assert (brought_back[~is_kept] > 1e-3).all()


def test_the_path_ends_where_it_is_enough():
    X, Z = problem()
    lams = torch.logspace(2, -2, 40, dtype=X.dtype)
    weights = torch.ones(12).to(X)
    found = moments.group_path(
        seen(X, Z), lams, weights, lambda norms: int((norms[-1] > 0).sum()) >= 3
    )
    counts = (found > 0).sum(dim=1)
    assert len(counts) % moments.LAMBDAS_AT_ONCE == 0
    assert len(counts) < 40
    assert counts[-1] >= 3 > counts[-1 - moments.LAMBDAS_AT_ONCE]


def rss(X, Z, columns):
    X, Z = X.numpy()[:, columns], Z.numpy()
    return float(np.square(Z - LinearRegression().fit(X, Z).predict(X)).sum())


@pytest.mark.parametrize(
    "groups", [list(range(12)), [0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8]]
)
def test_a_wald_statistic_is_what_leaving_a_group_out_costs(groups):
    X, Z = problem()
    data, owner = seen(X, Z, groups), torch.tensor(groups)
    P = torch.linalg.inv(data.G)
    size = data.membership.sum(dim=0)
    ours = moments._wald(P, P @ data.C, owner, size) * size * len(X)
    for group in range(len(size)):
        rest = [j for j in range(12) if groups[j] != group]
        cost = rss(X, Z, rest) - rss(X, Z, list(range(12)))
        assert float(ours[group]) == pytest.approx(cost, rel=1e-6)


def test_pruning_is_backward_elimination_by_least_squares():
    X, Z = problem(seed=3)
    n_own, kept = 8, list(range(8))
    while True:  # the definition, with fits of its own at every step
        full = rss(X, Z, kept)
        added = [full - rss(X, Z, [*kept, s]) for s in range(n_own, 12)]
        costs = {j: rss(X, Z, [i for i in kept if i != j]) - full for j in kept}
        weakest = min(costs, key=costs.__getitem__)
        if costs[weakest] >= moments.MARGIN * max(added):
            break
        kept.remove(weakest)
    assert 1 < len(kept) < n_own
    own = mask(12, *range(n_own))
    found = moments.prune(seen(X, Z), own, ~own, mask(12))
    assert found.nonzero().flatten().tolist() == kept


def test_of_two_copies_one_stays_and_the_exempt_always():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(1000, 20)))
    X[:, 1] = X[:, 0]
    Z = X[:, [0]] + torch.as_tensor(rng.normal(size=(1000, 1)))
    own = mask(20, *range(5))
    found = moments.prune(seen(X, Z), own, ~own, mask(20))
    assert found.sum() == 1
    assert found[:2].any()
    held = moments.prune(seen(X, Z), own, ~own, mask(20, 4))
    assert held[4]
    assert held[:2].sum() == 1


def test_a_constant_shadow_sets_no_mark():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(1000, 20)))
    X[:, 19] = 1.0
    Z = X[:, :2] + torch.as_tensor(rng.normal(size=(1000, 2)))
    own = mask(20, *range(5))
    found = moments.prune(seen(X, Z), own, ~own, mask(20))
    assert found.nonzero().flatten().tolist() == [0, 1]


def test_pairs_and_squares_are_seen_and_chance_is_not():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(2000, 30)))
    noise = torch.as_tensor(rng.normal(size=(2000, 2)))
    Z = noise + X[:, [1]] * X[:, [4]] + X[:, [6]].square() + 3 * X[:, [0]]
    shadow = mask(30, *range(15, 30))
    strength, partner = moments.pairs(seen(X, Z), shadow)
    assert (strength >= 1).nonzero().flatten().tolist() == [1, 4, 6]
    assert partner[[1, 4, 6]].tolist() == [4, 1, 6]


def test_a_pair_is_told_by_feature_where_columns_are_grouped():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(2000, 20)))
    Z = X[:, [1]] * X[:, [4]] + torch.as_tensor(rng.normal(size=(2000, 1)))
    groups = [j // 2 for j in range(20)]
    strength, partner = moments.pairs(seen(X, Z, groups), mask(10, *range(5, 10)))
    assert (strength >= 1).nonzero().flatten().tolist() == [0, 2]
    assert partner[[0, 2]].tolist() == [2, 0]


def test_pairs_do_not_depend_on_how_many_columns_are_looked_at_together(monkeypatch):
    X, Z = problem(d=20)
    data, shadow = seen(X, Z), mask(20, *range(10, 20))
    whole = moments.pairs(data, shadow)
    monkeypatch.setattr(moments, "AT_ONCE", 3)
    parts = moments.pairs(data, shadow)
    assert torch.allclose(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])
