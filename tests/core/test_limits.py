"""How many features stay by rows held out: the losses, and the limit chosen."""

from __future__ import annotations

import torch

from lessvfl.core.limits import N_LIMITS, above, at_limits, choose_limit, class_losses


def test_limits_are_halves_of_the_one_before() -> None:
    scores = torch.tensor([8.0, 4.0, 3.9, 0.01, -1.0])
    found = at_limits(scores, 8.0)
    assert found.shape == (N_LIMITS, 5)
    assert found[:3].sum(dim=1).tolist() == [1, 2, 3]
    assert found[-1].tolist() == [True, True, True, True, False]
    assert torch.equal(found[4], above(scores, 8.0, 4))


def test_nothing_is_above_a_limit_where_all_scores_are_below_zero() -> None:
    assert not at_limits(torch.tensor([-1.0, -2.0]), -1.0).any()


def test_what_is_said_twice_counts_once() -> None:
    """Log odds four times too large have the loss of those that are right."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 1, generator=generator).double()
    y = (torch.rand(4000, generator=generator) < z[:, 0].sigmoid()).long()
    both = torch.cat([z, 4 * z] + [z] * (N_LIMITS - 2), dim=1)
    counted = torch.tensor([0, 1])
    found = class_losses(both, y, counted, 2)
    assert torch.allclose(found[:, 0], found[:, 1])
    right = torch.nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.double())
    assert torch.allclose(found[:, 0].mean(), right)


def test_a_class_that_no_counted_row_has_is_none_that_is_expected() -> None:
    said = torch.zeros(3, N_LIMITS * 3)
    losses = class_losses(said, torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2, 0]), 4)
    assert losses.shape == (3, N_LIMITS)
    assert losses.isfinite().all()
    assert (losses[0] < losses[1]).all()


def test_the_largest_limit_within_a_standard_error_is_chosen() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(400, 1, generator=generator)
    means = torch.tensor([2.0, 1.0, 0.999, 1.5] + [3.0] * (N_LIMITS - 4))
    wiggle = 0.1 * torch.randn(400, N_LIMITS, generator=generator)
    assert choose_limit(noise + means + wiggle).tolist() == [1]
