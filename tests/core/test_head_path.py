"""Components along a path of lambdas, at the server alone."""

from __future__ import annotations

import pytest
import torch

from lessvfl.core.head_path import _head_path, choose_components
from lessvfl.core.plans import Labels, PathPlan


def head_data(task, strength=2.0, seed=0):
    """Return embeddings (1, 600, 6) of which 1 and 4 matter, and labels (1, 600)."""
    generator = torch.Generator().manual_seed(seed)
    H = torch.randn(1, 600, 6, generator=generator)
    score = strength * (H[0, :, 1] - H[0, :, 4])
    score = score + 0.5 * torch.randn(600, generator=generator)
    if task == "binary":
        return H, (score > 0).float()[None]
    if task == "multiclass":
        return H, torch.bucketize(score, torch.tensor([-1.0, 1.0]))[None]
    return H, score[None]


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_path_finds_the_components_that_matter(task):
    H, y = head_data(task)
    plan = PathPlan(600, n_errors=1.0)
    labels = Labels(y, task, (0,))
    kept = choose_components(H, labels, slice(None), plan, [3, 3])
    assert kept[0, [1, 4]].all()
    assert not kept.all()


def test_the_path_begins_at_the_lambda_that_removes_everything():
    H, y = head_data("binary")
    plan = PathPlan(600)
    weights, _ = _head_path(H[0], Labels(y, "binary", (0,)), 1, plan)
    norms = weights.norm(dim=1)  # (L, E)
    assert not (norms[0] > 1e-3).any()
    assert (norms[1] > 0).any()
    assert (norms[-1] > 0).sum() >= 4


def test_one_component_of_every_party_stays_where_none_matters():
    H, y = head_data("binary", strength=0.0)
    plan = PathPlan(600, n_errors=10.0)
    labels = Labels(y, "binary", (0,))
    kept = choose_components(H, labels, slice(None), plan, [2, 4])
    assert kept[0, :2].sum() == 1
    assert kept[0, 2:].sum() == 1
