"""What a party remembers of training, and the responses it makes of that."""

from __future__ import annotations

import copy

import pytest
import torch

from lessvfl.core import losses
from lessvfl.select import responses


def test_a_row_counts_once_as_it_was_seen_last():
    rows = torch.tensor([4, 7, 4, 1, 7, 9])
    assert responses.latest(rows).tolist() == [2, 3, 4, 5]
    assert responses.latest(torch.tensor([3, 1, 2])).tolist() == [0, 1, 2]


def test_memory_holds_what_was_exchanged_and_gives_it_once():
    memory = responses.Memory.of(3)
    assert memory.take() == []
    h, g = torch.randn(5, 3), torch.randn(5, 3)
    memory.add(slice(0, 3), h[:3], g[:3] / 3)  # gradients of a mean over rows
    memory.add(torch.tensor([7, 9]), h[3:], g[3:] / 2)
    again = copy.deepcopy(memory)
    rows, seen, gradient = memory.take()
    assert rows.tolist() == [0, 1, 2, 7, 9]
    assert torch.equal(seen, h)
    assert torch.allclose(gradient, g)  # of every row by itself again
    assert memory.take() == []
    assert all(map(torch.equal, again.take(), (rows, seen, gradient)))


def test_a_response_is_one_newton_step_of_logistic_regression_further():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(200_000, 3, generator=generator, dtype=torch.float64)
    true = torch.tensor([0.6, -0.4, 0.0], dtype=torch.float64)
    chance = torch.sigmoid(X @ true)
    y = (torch.rand(len(X), generator=generator) < chance).double()
    head = torch.tensor([1.5, 0.7], dtype=torch.float64)  # of a party of two components
    h = (0.8 * X @ true)[:, None] * head / head.square().sum()
    gradient = (torch.sigmoid(h @ head) - y)[:, None] * head
    found = responses.responses(h, gradient)
    slopes = torch.linalg.lstsq(X, found @ head).solution
    assert slopes == pytest.approx(true, abs=0.05)  # from 0.8 of it, in one step


def test_a_response_to_an_amount_is_what_the_others_leave():
    """Whatever the party's own network says so far, and however large its head."""
    generator = torch.Generator().manual_seed(0)
    y, others = torch.randn(2, 300, 1, generator=generator, dtype=torch.float64)
    head = torch.tensor([1.5, -0.7], dtype=torch.float64)
    for size in (0.0, 1.0, 30.0):
        h = size * torch.randn(300, 2, generator=generator, dtype=torch.float64)
        z = (h @ head)[:, None] + others
        error, excess = z - y, losses.dispersion(z, y[:, 0])
        gradient = 2 * error * head / excess  # as the server sends it
        found = responses.standardised(h, gradient)
        expected = (y - others) / error.square().mean().sqrt()
        assert torch.allclose(found.abs(), expected.abs())


def test_the_better_rows_are_predicted_the_less_their_residuals_say():
    h, g = torch.zeros(500, 1), torch.randn(500, 1)
    loud, quiet = (responses.responses(h, s * g).std() for s in (1.0, 0.1))
    assert float(quiet / loud) == pytest.approx(10, rel=1e-4)


def test_what_the_server_does_not_ask_for_is_of_no_consequence():
    """With one label all gradients lie along one line."""
    generator = torch.Generator().manual_seed(0)
    head = torch.tensor([0.8, -1.5, 0.4], dtype=torch.float64)
    h = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    error = torch.randn(300, 1, generator=generator, dtype=torch.float64)
    found = responses.standardised(h, error * head)
    assert found.shape == (300, 1)
    across = torch.tensor([[1.5, 0.8, 0.0]], dtype=torch.float64)  # head @ across = 0
    loud = h + 100 * torch.randn(300, 1, generator=generator).double() * across
    told = responses.standardised(loud, error * head)
    assert torch.allclose(told, found, atol=1e-6)
    root = (error.square().mean() * head.square().sum()).sqrt()
    v = head / head.norm()
    expected = h @ v * root - error[:, 0] * head.norm() / root
    assert torch.allclose(found[:, 0].abs(), expected.abs())


def test_responses_are_in_units_of_the_information():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    mixed = torch.eye(3).double() + 0.3 * h[:3]
    gradient = torch.randn(500, 3, generator=generator, dtype=torch.float64) @ mixed
    information = gradient.T @ gradient / 500
    found = responses.standardised(h, gradient)
    assert found.shape == (500, 3)
    newton = h - gradient @ torch.linalg.inv(information)  # of one row
    assert torch.allclose(found @ found.T, newton @ information @ newton.T)
    noise = responses.standardised(torch.zeros_like(h), gradient)
    assert torch.allclose(noise.T @ noise / 500, torch.eye(3).double(), atol=1e-9)
    weak = gradient.clone()
    weak[:, 0] = 1e-3 * weak[:, 1]  # no information of its own
    assert responses.standardised(h, weak).shape == (500, 2)


def test_noise_of_ones_own_shows_the_curvature_and_leaves_the_response():
    """Where a head sees far more noise than rows, its errors say little of it."""
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2, 20_000, 2, generator=generator, dtype=torch.float64)
    head, sent = torch.tensor([1.5, 0.7]).double(), 0.3 * x + 20 * noise
    y = (torch.rand(len(x), generator=generator) < torch.sigmoid(2 * x[:, 0])).double()
    gradient = (torch.sigmoid(sent @ head) - y)[:, None] * head
    alone = responses.standardised(sent, gradient)[:, 0]
    found = responses.standardised(sent, gradient, 20 * noise)[:, 0]

    def said(response):  # of the column that matters, and of the other
        return torch.corrcoef(torch.column_stack([x, response]).T)[2, :2].abs()

    assert float(said(alone)[0]) < 0.1
    assert float(said(found)[0]) > 0.25
    assert float(said(found)[1]) < 0.03
    step = responses.responses(sent, gradient, 20 * noise)
    slopes = torch.linalg.lstsq(x, step @ head).solution
    assert float(slopes[0]) > 20 * abs(float(slopes[1]))
