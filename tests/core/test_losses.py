"""Losses against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from lessvfl.core.losses import proxy_loss, risk

F64 = torch.float64


def test_risk_is_what_pytorch_computes():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 7, 1, generator=generator, dtype=F64)
    y = torch.randint(0, 2, (2, 7), generator=generator).double()
    losses = risk(z, y, "binary")
    for r in range(2):
        expected = torch.nn.BCEWithLogitsLoss()(z[r, :, 0], y[r])
        assert losses[r] == pytest.approx(float(expected))
    squares = risk(z, y, "regression")
    assert squares[1] == pytest.approx(float(torch.nn.MSELoss()(z[1, :, 0], y[1])))
    z = torch.randn(2, 7, 3, generator=generator, dtype=F64)
    y = torch.randint(0, 3, (1, 7), generator=generator)
    losses = risk(z, y, "multiclass")
    expected = torch.nn.CrossEntropyLoss()(z[1], y[0])
    assert losses[1] == pytest.approx(float(expected))


def test_the_proxy_sums_over_components_or_averages_them():
    h, target = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    assert proxy_loss(h, target, 1).tolist() == [3.0]
    assert proxy_loss(h, target, torch.tensor([3])).tolist() == [1.0]
