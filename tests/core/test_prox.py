import torch
from hypothesis import given
from hypothesis import strategies as st

from lessvfl.core.prox import GroupLasso


def weights(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(*shape, generator=generator, dtype=torch.float64)
    w[:, :, 0] = 0  # a zero group is legal
    return w


def objective(v, w, threshold, penalty):
    smooth = 0.5 * (v - w).square().flatten(1).sum(dim=1)
    return smooth + threshold * penalty.norms(v).sum(dim=1)


@given(
    seed=st.integers(0, 10_000),
    lam=st.sampled_from([0.0, 0.01, 0.5, 2.0, 100.0]),
    step=st.sampled_from([1e-3, 0.1, 1.0]),
    shape=st.sampled_from([(1, 3, 4), (2, 5, 3), (2, 3, 4, 2), (1, 2, 3, 2, 2)]),
)
def test_prox_minimises_its_own_objective(seed, lam, step, shape):
    w = weights(seed, shape)
    penalty = GroupLasso(torch.tensor([lam], dtype=torch.float64))
    step_size = torch.tensor([step], dtype=torch.float64)
    found = penalty.prox(w.clone(), step_size)
    best = objective(found, w, lam * step, penalty)
    generator = torch.Generator().manual_seed(seed + 1)
    for size in (1e-1, 1e-3, 1e-5):
        other = found + size * torch.randn(
            found.shape, generator=generator, dtype=torch.float64
        )
        assert (objective(other, w, lam * step, penalty) >= best - 1e-12).all()
    assert (objective(w, w, lam * step, penalty) >= best - 1e-12).all()
    zero = torch.zeros_like(w)
    assert (objective(zero, w, lam * step, penalty) >= best - 1e-12).all()


def test_a_norm_at_the_threshold_becomes_an_exact_zero():
    w = torch.tensor([[[3.0], [4.0]]])
    penalty = GroupLasso(torch.tensor([5.0]))
    assert not penalty.prox(w.clone(), torch.tensor([1.0])).any()
    assert penalty.prox(w.clone(), torch.tensor([0.99])).any()


def test_lambda_zero_changes_nothing_not_even_a_bit():
    w = weights(3, (2, 4, 5))
    penalty = GroupLasso(torch.zeros(2, dtype=torch.float64))
    step = torch.ones(2, dtype=torch.float64)
    assert torch.equal(penalty.prox(w.clone(), step), w)


def test_every_replica_has_its_own_lambda_and_step():
    w = weights(4, (3, 4, 5))
    lam = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    step = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
    together = GroupLasso(lam).prox(w.clone(), step)
    for r in range(3):
        alone = GroupLasso(lam[r : r + 1]).prox(w[r : r + 1].clone(), step[r : r + 1])
        assert torch.equal(together[r], alone[0])


def test_columns_declared_one_feature_are_penalised_and_removed_as_one():
    w = torch.tensor([[[3.0, 4.0, 1.0]]])
    membership = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    penalty = GroupLasso(torch.tensor([2.0]), membership)
    assert torch.equal(penalty.norms(w), torch.tensor([[5.0, 1.0]]))
    assert torch.equal(penalty.value(w), torch.tensor([12.0]))
    moved = penalty.prox(w.clone(), torch.tensor([1.0]))
    assert torch.allclose(moved, torch.tensor([[[1.8, 2.4, 0.0]]]))
    assert not penalty.prox(w.clone(), torch.tensor([2.5])).any()
