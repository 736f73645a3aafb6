"""Losses against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from lessvfl.core.losses import dispersion, proxy_loss, row_losses

F64 = torch.float64


def test_risk_is_what_pytorch_computes():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 7, 1, generator=generator, dtype=F64)
    y = torch.randint(0, 2, (2, 7), generator=generator).double()
    losses = row_losses(z, y, "binary").mean(dim=-1)
    for r in range(2):
        expected = torch.nn.BCEWithLogitsLoss()(z[r, :, 0], y[r])
        assert losses[r] == pytest.approx(float(expected))
    squares = row_losses(z, y, "regression").mean(dim=-1)
    assert squares[1] == pytest.approx(float(torch.nn.MSELoss()(z[1, :, 0], y[1])))
    z = torch.randn(2, 7, 3, generator=generator, dtype=F64)
    y = torch.randint(0, 3, (1, 7), generator=generator)
    losses = row_losses(z, y, "multiclass").mean(dim=-1)
    expected = torch.nn.CrossEntropyLoss()(z[1], y[0])
    assert losses[1] == pytest.approx(float(expected))


def test_the_proxy_sums_over_components_or_averages_them():
    h, target = torch.zeros(2, 3), torch.ones(2, 3)
    assert float(proxy_loss(h, target, 1)) == pytest.approx(3.0)
    assert float(proxy_loss(h, target, 3)) == pytest.approx(1.0)
    stack = torch.stack([h, target]), torch.stack([target, target])
    assert proxy_loss(*stack, 1).tolist() == pytest.approx([3.0, 0.0])


def losses_and_slopes(task, weighted):
    """Return R and its gradient: rows weighted 1, 2 and 3, or repeated as often."""
    generator = torch.Generator().manual_seed(1)
    n_outputs = 3 if task == "multiclass" else 1
    x = torch.randn(2, 6, 4, generator=generator, dtype=F64)
    w = torch.randn(2, 4, n_outputs, generator=generator, dtype=F64)
    y = torch.randint(0, 2, (2, 6), generator=generator)
    y = (
        y
        if task == "multiclass"
        else y.double() * 3
        if task == "regression"
        else y * 1.0
    )
    times = torch.tensor([1, 2, 3, 1, 2, 3])
    delta = 0.5 if task == "regression" else None
    weight = None
    if weighted:
        weight = times / times.double().mean()
    else:
        rows = torch.arange(6).repeat_interleave(times)
        x, y = x[:, rows], y[:, rows]
    w.requires_grad_()
    y = y.double() if task == "binary" else y
    value = row_losses(x @ w, y, task, weight, delta).mean(dim=-1)
    return value.detach(), torch.autograd.grad(value.sum(), w)[0]


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_weight_of_k_is_a_row_k_times(task):
    for found, expected in zip(
        losses_and_slopes(task, True), losses_and_slopes(task, False), strict=True
    ):
        assert torch.allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("delta", [0.5, 1.5])
def test_huber_is_pytorchs(delta):
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(50, 1, generator=generator, dtype=F64)
    y = torch.zeros(50, dtype=F64)
    found = row_losses(z, y, "regression", huber_delta=delta)
    loss = torch.nn.HuberLoss(reduction="none", delta=delta)
    assert torch.allclose(found, 2 * loss(z[:, 0], y))
    squares = row_losses(z, y, "regression")
    assert torch.allclose(row_losses(z, y, "regression", huber_delta=100.0), squares)


@pytest.mark.parametrize("delta", [None, 0.7])
def test_dispersion_is_what_gradients_have_more_than_curvature(delta):
    """By the derivatives themselves; 1 for a log-likelihood, whatever its variance."""
    torch.manual_seed(0)
    z = torch.randn(500, 1, dtype=torch.float64, requires_grad=True)
    y = torch.randn(500, dtype=torch.float64)
    losses = row_losses(z, y, "regression", huber_delta=delta)
    (first,) = torch.autograd.grad(losses.sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    expected = first.square().mean() / second.mean()
    found = dispersion(z.detach(), y, delta)
    torch.testing.assert_close(found, expected.detach())
