"""Components along a path of lambdas, at the server alone."""

from __future__ import annotations

import pytest
import torch

from lessvfl.core.head_path import _head_path, _offset, _sides, choose_components
from lessvfl.core.losses import Labels
from lessvfl.core.plans import PathPlan


def head_data(task, strength=2.0, seed=0):
    """Return embeddings (600, 6) of which 1 and 4 matter, and labels (600,)."""
    generator = torch.Generator().manual_seed(seed)
    H = torch.randn(600, 6, generator=generator)
    score = strength * (H[:, 1] - H[:, 4])
    score = score + 0.5 * torch.randn(600, generator=generator)
    if task == "binary":
        return H, (score > 0).float()
    if task == "multiclass":
        return H, torch.bucketize(score, torch.tensor([-1.0, 1.0]))
    return H, score


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_path_finds_the_components_that_matter(task):
    H, y = head_data(task)
    plan = PathPlan(600, n_errors=1.0)
    labels = Labels(y, task, 0)
    kept = choose_components(H, labels, slice(None), plan, [3, 3])
    assert kept[[1, 4]].all()
    assert not kept.all()


def test_rows_of_a_block_are_all_fitted_or_all_held_out():
    H, y = head_data("binary")
    blocks = torch.arange(600) % 50
    labels = Labels(y, "binary", 0, blocks=blocks)
    fit, held = _sides(labels, PathPlan(600))
    assert isinstance(fit, torch.Tensor)
    assert isinstance(held, torch.Tensor)
    assert (len(held), len(fit)) == (144, 456)
    assert not torch.isin(blocks[held], blocks[fit]).any()
    kept = choose_components(H, labels, slice(None), PathPlan(600), [3, 3])
    assert kept[[1, 4]].all()


def test_the_path_begins_at_the_lambda_that_removes_everything():
    H, y = head_data("binary")
    plan = PathPlan(600)
    weights, _ = _head_path(H, Labels(y, "binary", 0), 1, plan)
    norms = weights.norm(dim=1)  # (L, E)
    assert not (norms[0] > 1e-3).any()
    assert (norms[1] > 0).any()
    assert (norms[-1] > 0).sum() >= 4


def test_one_component_of_every_party_stays_where_none_matters():
    H, y = head_data("binary", strength=0.0)
    plan = PathPlan(600, n_errors=10.0)
    labels = Labels(y, "binary", 0)
    kept = choose_components(H, labels, slice(None), plan, [2, 4])
    assert kept[:2].sum() == 1
    assert kept[2:].sum() == 1


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_weight_of_k_is_a_row_k_times(task):
    H, y = head_data(task)
    H = H.double()
    y = y if task == "multiclass" else y.double()
    huber_delta = 1.0 if task == "regression" else None
    times = torch.arange(600) % 3 + 1
    rows = torch.arange(600).repeat_interleave(times)
    weight = times / times.double().mean()
    n_outputs, plan = 3 if task == "multiclass" else 1, PathPlan(600, n_steps=50)
    weighted = Labels(y, task, 0, weight, huber_delta)
    repeated = Labels(y[rows], task, 0, huber_delta=huber_delta)
    for found, expected in zip(
        _head_path(H, weighted, n_outputs, plan),
        _head_path(H[rows], repeated, n_outputs, plan),
        strict=True,
    ):
        assert torch.allclose(found, expected, atol=1e-9)


def test_the_path_comes_down_with_heavy_rows_and_wild_labels():
    """The step size holds whatever rows weigh, and for the Huber loss."""
    H, y = head_data("regression")
    y[::40] += 1e4
    weight = torch.ones(600)
    weight[::7] = 50
    huber_delta = 3.0
    labels = Labels(y, "regression", 0, weight / weight.mean(), huber_delta)
    kept = choose_components(H, labels, slice(None), PathPlan(600), [3, 3])
    assert kept[[1, 4]].all()
    assert not kept.all()
    weights, _ = _head_path(H, labels, 1, PathPlan(600))
    assert weights[-1, 0, [1, 4]].tolist() == pytest.approx([2.0, -2.0], abs=0.5)


def test_rows_without_any_weight_move_nothing():
    H, y = head_data("binary")
    labels = Labels(y, "binary", 0, torch.zeros(600))
    kept = choose_components(H, labels, slice(None), PathPlan(600), [3, 3])
    assert kept.sum() == 2  # one of every party


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("delta", [None, 0.5])
def test_the_offset_is_where_the_risk_is_least(task, delta):
    _, y = head_data(task)
    weight = torch.rand(600, generator=torch.Generator().manual_seed(1)) + 0.5
    huber = delta if task == "regression" else None
    labels = Labels(y, task, 0, weight.double() / weight.mean(), huber)
    offset = _offset(labels, 3 if task == "multiclass" else 1).requires_grad_()
    risk = labels.risk(offset.expand(600, -1))
    (slope,) = torch.autograd.grad(risk, [offset])
    assert slope.abs().max() < 1e-6
