"""The path of lambdas against other solvers, its own condition, and its cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import MultiTaskLasso
from tests.core.columns import problem, seen
from tests.core.stacks import group_residual

from lessvfl.core.prox import GroupLasso
from lessvfl.select import group_path as room
from lessvfl.select.group_path import group_path


def gram(data):
    return data.gram(torch.arange(data.X.shape[1]))


def test_the_path_agrees_with_scikit_learn():
    X, Z = problem()
    data = seen(X, Z)
    lams = torch.logspace(0.5, -2, 11, dtype=X.dtype)
    ones = torch.ones(12).to(X)
    ours = list(group_path(data, lams, ones))
    assert len(ours) == 11

    def objective(B, lam):
        smooth = (B * (gram(data) @ B)).sum() / 2 - (B * data.C).sum()
        return float(smooth + lam * data.norms(B).sum())

    for lam, (B, slopes) in zip(lams, ours, strict=True):
        theirs = MultiTaskLasso(
            float(lam), fit_intercept=False, tol=1e-12, max_iter=100_000
        )
        theirs.fit(data.X.numpy(), data.Z.numpy())
        other = torch.as_tensor(theirs.coef_.T.copy())
        assert objective(B, lam) == pytest.approx(objective(other, lam), abs=1e-5)
        assert torch.allclose(data.norms(B), data.norms(other), atol=1e-3)
        assert torch.equal(data.norms(B) > 0, data.norms(other) > 0)
        assert torch.allclose(slopes, data.C - gram(data) @ B)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_path_meets_the_optimality_condition(weighted):
    """Of every group at every lambda, also of those that the strong rule left out."""
    X, Z = problem(d=24)
    data = seen(X, Z, [j // 2 for j in range(24)])
    weights = torch.linspace(0, 3, 12).to(X) if weighted else torch.ones(12).to(X)
    lams = torch.logspace(0.5, -1.5, 12, dtype=X.dtype)
    B = torch.stack([B for B, _ in group_path(data, lams, weights)])
    membership = torch.nn.functional.one_hot(data.group).to(X)
    is_kept = data.norms(B) > 0
    assert 0 < is_kept.sum() < is_kept.numel()
    penalty = GroupLasso(lams, membership, weights)

    def residual(B):
        return group_residual(penalty, B.mT, (gram(data) @ B - data.C).mT)

    assert (residual(B) <= 2e-3 * lams.unsqueeze(1) * weights.clamp_min(0.3)).all()
    stretched = residual(1.05 * B)
    assert (stretched[is_kept] > 5e-3).all()
    columns = (~is_kept).to(X) @ membership.T  # (L, columns)
    brought_back = residual(B + 1e-6 * columns.unsqueeze(2))
    assert (brought_back[~is_kept] > 5e-3).all()


@pytest.mark.parametrize(
    ("n", "d", "dtype"), [(80, 300, "float64"), (600, 90, "float32")]
)
def test_the_objective_is_that_of_scikit_learn_to_a_millionth(n, d, dtype):
    """With fewer rows than columns, and with strongly correlated columns."""
    rng = np.random.default_rng(1)
    common = rng.normal(size=(n, 1))
    X = torch.as_tensor(rng.normal(size=(n, d)) + 2 * common)
    Z = X[:, :4].sum(dim=1, keepdim=True) + torch.as_tensor(rng.normal(size=(n, 2)))
    data = seen(X.to(getattr(torch, dtype)), Z.to(getattr(torch, dtype)))
    largest = float(data.norms(data.C).max())
    lams = largest * torch.logspace(0, -1.5, 10).to(data.X)
    X, Z = data.X.double().numpy(), data.Z.double().numpy()
    variance = np.square(Z).sum() / n

    def objective(B, lam):
        left = np.square(Z - X @ B).sum() / (2 * n)
        return left + lam * np.linalg.norm(B, axis=1).sum()

    path = group_path(data, lams, torch.ones(d).to(data.X))
    for lam, (B, _) in zip(lams.tolist(), path, strict=True):
        theirs = MultiTaskLasso(lam, fit_intercept=False, tol=1e-9, max_iter=100_000)
        best = objective(theirs.fit(X, Z).coef_.T, lam)
        assert objective(B.double().numpy(), lam) <= best + 1e-6 * variance


def test_anticorrelated_columns_do_not_make_steps_too_long():
    """A direction that is no sign of the largest curvature must not be taken for it."""
    base = problem(d=3)[0][:, :1]
    X = torch.cat([base, -base + 0.1 * problem(d=3, seed=1)[0][:, :1]], dim=1)
    data = seen(X, base)
    lams = torch.logspace(0, -3, 20, dtype=X.dtype)
    *_, (B, slopes) = group_path(data, lams, torch.ones(2).to(X))
    assert data.left(B, slopes) < 1e-3
    assert room._spectral_norm(gram(data).numpy()) >= torch.linalg.matrix_norm(
        gram(data), 2
    )


def test_a_column_without_a_weight_is_in_from_the_first_lambda_on():
    X, Z = problem()
    data = seen(X, Z)
    weights = torch.ones(12).to(X)
    weights[[7, 9]] = 0
    largest = data.norms(data.C).max() * 10
    B, slopes = next(group_path(data, largest.view(1), weights))
    assert (data.norms(B) > 0).nonzero().flatten().tolist() == [7, 9]
    own = data.gram(torch.tensor([7, 9]))
    assert torch.allclose(B[[7, 9]], torch.linalg.solve(own, data.C[[7, 9]]), atol=1e-3)
    assert (data.norms(slopes)[[7, 9]] < 1e-2 * data.norms(data.C)[[7, 9]].max()).all()


def test_no_matrix_of_all_columns_with_all_is_formed(monkeypatch):
    X, Z = problem(d=200)
    data = seen(X, Z)
    sizes: list[int] = []
    solve = room._group_lasso

    def watched(**moments):
        sizes.append(len(moments["G"]))
        return solve(**moments)

    monkeypatch.setattr(room, "_group_lasso", watched)
    largest = data.norms(data.C).max()
    lams = largest * torch.tensor([1.0, 0.8, 0.6], dtype=X.dtype)
    *_, (B, _) = group_path(data, lams, torch.ones(200).to(X))
    n_kept = int((data.norms(B) > 0).sum())
    assert 0 < n_kept <= max(sizes) < 4 * n_kept < 100


def test_constant_columns_alone_have_a_norm_to_divide_by():
    assert room._spectral_norm(np.zeros((3, 3))) == 1
