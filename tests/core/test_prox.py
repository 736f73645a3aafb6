"""The group lasso by its definition: value, proximal step, optimality."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.core.stacks import group_residual
from torch.testing import assert_close

from lessvfl.core.prox import GroupLasso, leading

F64 = torch.float64


def weights(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(*shape, generator=generator, dtype=torch.float64)
    w[:, :, 0] = 0  # a zero group is legal
    return w


def objective(v, w, step, penalty):
    """Return what a proximal step minimises: its definition."""
    smooth = 0.5 * (v - w).square().flatten(1).sum(dim=1)
    return smooth + step * penalty.value(v)


# Of four inputs: all of the paper's weight, one that is free, weights of every network.
WEIGHTS = {
    "none": None,
    "of groups": torch.tensor([1.0, 0.0, 5.0, 0.3], dtype=F64),
    "of a stack": torch.tensor([[1.0, 0.0, 5.0, 0.3], [2.0, 1.0, 0.0, 1.0]], dtype=F64),
}


@given(
    seed=st.integers(0, 10_000),
    lam=st.sampled_from([0.0, 0.01, 0.5, 2.0, 100.0]),
    step=st.sampled_from([1e-3, 0.1, 1.0]),
    shape=st.sampled_from([(2, 3, 4), (2, 5, 4), (2, 3, 4, 2), (2, 2, 4, 2, 2)]),
    weighting=st.sampled_from(list(WEIGHTS)),
)
def test_prox_minimises_its_own_objective(seed, lam, step, shape, weighting):
    w = weights(seed, shape)
    penalty = GroupLasso(
        torch.tensor([lam], dtype=torch.float64), weights=WEIGHTS[weighting]
    )
    step_size = torch.tensor([step], dtype=torch.float64)
    found = penalty.prox(w.clone(), step_size)
    best = objective(found, w, step, penalty)
    generator = torch.Generator().manual_seed(seed + 1)
    for size in (1e-1, 1e-3, 1e-5):
        other = found + size * torch.randn(
            found.shape, generator=generator, dtype=torch.float64
        )
        assert (objective(other, w, step, penalty) >= best - 1e-12).all()
    assert (objective(w, w, step, penalty) >= best - 1e-12).all()
    zero = torch.zeros_like(w)
    assert (objective(zero, w, step, penalty) >= best - 1e-12).all()


def test_a_norm_at_the_threshold_becomes_an_exact_zero():
    w = torch.tensor([[3.0], [4.0]])
    penalty = GroupLasso(torch.tensor(5.0))
    assert not penalty.prox(w.clone(), 1.0).any()
    assert penalty.prox(w.clone(), 0.99).any()


def test_lambda_zero_changes_nothing_not_even_a_bit():
    w = weights(3, (2, 4, 5))
    penalty = GroupLasso(torch.zeros(2, dtype=torch.float64))
    step = torch.ones(2, dtype=torch.float64)
    assert torch.equal(penalty.prox(w.clone(), step), w)


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4, 5, 2)])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_network_of_a_stack_has_its_own_lambda_and_step(shape, grouped):
    w, slope = weights(4, shape), weights(5, shape)
    membership = None
    if grouped:
        membership = torch.eye(3, dtype=F64)[[0, 0, 1, 1, 2]]
    lam = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    step = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
    together = GroupLasso(lam, membership)
    moved = together.prox(w.clone(), step)
    for r in range(3):
        alone = GroupLasso(lam[r], membership)
        assert_close(together.norms(w)[r], alone.norms(w[r]))
        assert_close(together.value(w)[r], alone.value(w[r]))
        assert_close(moved[r], alone.prox(w[r].clone(), step[r]))
        assert_close(moved[r], alone.prox(w[r].clone(), float(step[r])))
        residual = group_residual(alone, w[r], slope[r])
        assert_close(group_residual(together, w, slope)[r], residual)


def test_columns_declared_one_feature_are_penalised_and_removed_as_one():
    w = torch.tensor([[3.0, 4.0, 1.0]])
    membership = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    penalty = GroupLasso(torch.tensor(2.0), membership)
    assert_close(penalty.norms(w), torch.tensor([5.0, 1.0]))
    assert_close(penalty.value(w), torch.tensor(12.0))
    moved = penalty.prox(w.clone(), 1.0)
    assert torch.allclose(moved, torch.tensor([[1.8, 2.4, 0.0]]))
    assert not penalty.prox(w.clone(), 2.5).any()


def test_a_weight_multiplies_the_threshold_of_its_group():
    w = torch.tensor([[3.0, 3.0, 3.0]])
    each = torch.tensor([0.0, 1.0, 2.0])
    penalty = GroupLasso(torch.tensor(0.5), weights=each)
    assert_close(penalty.value(w), torch.tensor(0.5 * (0 + 3 + 6)))
    moved = penalty.prox(w.clone(), 2.0)
    assert torch.allclose(moved, torch.tensor([[3.0, 2.0, 1.0]]))
    assert_close(penalty.norms(w), torch.full((3,), 3.0))  # not weighted


def test_weights_are_those_of_groups_where_columns_are_one_feature():
    w = torch.tensor([[3.0, 4.0, 1.0]])
    membership = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    penalty = GroupLasso(torch.tensor(1.0), membership, torch.tensor([2.0, 0.0]))
    assert_close(penalty.value(w), torch.tensor(10.0))
    moved = penalty.prox(w.clone(), 1.0)
    assert torch.allclose(moved, torch.tensor([[1.8, 2.4, 1.0]]))


# --------------------------------------------------------------------------- optimality


@given(
    seed=st.integers(0, 10_000),
    lam=st.sampled_from([0.0, 0.3, 2.0]),
    weighting=st.sampled_from(list(WEIGHTS)),
    grouped=st.booleans(),
)
def test_a_proximal_point_is_optimal_and_a_neighbour_is_not(
    seed, lam, weighting, grouped
):
    """prox(u) minimises 1/2 ||v - u||^2 + lam G(v): the gradient there is v - u."""
    u = weights(seed, (2, 3, 8 if grouped else 4))
    membership = torch.eye(4, dtype=F64).repeat_interleave(2, 0) if grouped else None
    lams = torch.tensor([lam, 2 * lam], dtype=F64)
    penalty = GroupLasso(lams, membership, WEIGHTS[weighting])
    v = penalty.prox(u.clone(), torch.ones(2, dtype=F64))
    assert group_residual(penalty, v, v - u).max() < 1e-12
    moved = v + 0.01 * leading(torch.ones(2, dtype=F64), v)
    assert (group_residual(penalty, moved, moved - u).max(dim=1).values > 1e-3).all()


def test_the_residual_of_every_group_by_hand():
    """Kept: |gradient + lam w / |w||; removed: how far the gradient is above lam."""
    w = torch.tensor([[3.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    gradient = torch.tensor([[-0.6, 0.0, 3.0], [-0.8, 0.5, 4.0]])
    penalty = GroupLasso(torch.tensor(1.0))
    assert group_residual(penalty, w, gradient).tolist() == pytest.approx([0, 0, 4])
    wrong = GroupLasso(torch.tensor(3.0))
    assert group_residual(wrong, w, gradient).tolist() == pytest.approx([2, 0, 2])
    weighted = GroupLasso(torch.tensor(1.0), weights=torch.tensor([2.0, 0.2, 6.0]))
    assert group_residual(weighted, w, gradient).tolist() == pytest.approx([1, 0.3, 0])
