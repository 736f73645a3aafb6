"""Mechanisms do what they state: clip, noise, flips, and no more than asked for."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import optimize

from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.lifted import Lifted
from lessvfl.core.losses import row_losses
from lessvfl.core.network import MLP
from lessvfl.errors import ConfigError
from lessvfl.privacy.draws import block_draws, quantised
from lessvfl.privacy.mechanisms import RandomisedResponse
from lessvfl.privacy.noise import ClippedNoise, GradientDefence, marvell_variances
from lessvfl.terms import Task

N = 200_000
FORMAT = (torch.float64, torch.device("cpu"))


def draws(n: int = N) -> np.ndarray:
    return np.random.default_rng(0).random(n)


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def sent(mechanism: ClippedNoise, rows: torch.Tensor) -> torch.Tensor:
    return mechanism.release(rows, block_draws(0, "a test"))


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_a_label_is_told_by_the_odds_of_its_epsilon(n_classes, epsilon):
    mechanism = RandomisedResponse(epsilon, n_classes)
    y = np.full(N, n_classes - 1)
    told = np.bincount(mechanism.apply(y, draws()), minlength=n_classes) / N
    error = 5 / math.sqrt(N)
    assert told[-1] == pytest.approx(mechanism.keeps, abs=error)
    assert told[:-1] == pytest.approx(
        (1 - mechanism.keeps) / (n_classes - 1), abs=error
    )
    other = (1 - mechanism.keeps) / (n_classes - 1)
    assert math.log(mechanism.keeps / other) == pytest.approx(epsilon)


def test_with_a_large_epsilon_labels_are_as_they_are():
    y = np.arange(1000) % 3
    assert (RandomisedResponse(800.0, 3).apply(y, draws(1000)) == y).all()


def test_rows_are_clipped_and_their_noise_is_as_stated():
    rows = torch.tensor([3.0, 4.0]).expand(N, 2)
    found = sent(ClippedNoise(clip=2.0, noise=0.5), rows)
    assert found.mean(dim=0).tolist() == pytest.approx([1.2, 1.6], abs=0.02)
    assert found.std(dim=0).tolist() == pytest.approx([1.0, 1.0], rel=0.02)
    small = rows * 0.1
    still = sent(ClippedNoise(clip=2.0, noise=1e-3), small)
    assert torch.allclose(still, small, atol=0.02)


@pytest.mark.parametrize("grid", [2.0**-22, 2.0**-12, 2.0**-7, 2.0**2])
@pytest.mark.parametrize("scale", [0.3, 10.0])
def test_no_row_moves_another_by_more_than_the_sensitivity(grid, scale):
    rows = np.random.default_rng(0).normal(size=(2000, 3)) * scale
    rows[0] = 0.7, 0, 0  # as long as the clip, and no number of the grid
    steps = quantised(rows, 0.7, grid)
    longest = max(sum(int(x) ** 2 for x in row) for row in steps)
    assert longest * Fraction(grid) ** 2 <= Fraction(0.7) ** 2  # exactly
    shorter = np.minimum(1, 0.7 / np.linalg.norm(rows, axis=1, keepdims=True))
    assert np.abs(steps * grid - rows * shorter).max() <= 1.5 * grid
    mechanism = ClippedNoise(clip=0.7, noise=3.0)
    assert mechanism.sensitivity == 1.4
    assert mechanism.releases(3).times == 3
    assert mechanism.releases(1).noise == pytest.approx(1.5)


@pytest.mark.parametrize("clip", [0.2, 0.7, 1.0])
def test_the_last_bit_of_a_long_row_does_not_choose_its_noise(clip):
    """Of one number, clipped to the very end of the clip, it once did."""
    rows = np.random.default_rng(0).normal(size=(1000, 1)) + 5
    nearly = rows * (1 + 1e-7 * np.sign(np.sin(1 / rows)))
    steps = [quantised(some, clip, 2.0**-8) for some in (rows, nearly, -rows)]
    assert (steps[0] == steps[1]).all()
    assert (steps[0] == -steps[2]).all()


def test_noise_too_small_for_exact_numbers_is_refused():
    assert ClippedNoise(1.0, 2.0**-10)
    with pytest.raises(ConfigError, match=r"at least 0.00098 of the clip.*Got 0.0005"):
        ClippedNoise(1.0, 5e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_a_row_that_is_not_finite_looks_like_the_others(value):
    rows = torch.zeros(4, 2)
    rows[1, 0] = value
    mechanism = ClippedNoise(clip=1.0, noise=1.0)
    assert sent(mechanism, rows).isfinite().all()
    assert mechanism.clipped(rows).norm(dim=-1).max() <= 1.0


def test_the_gradient_goes_back_through_the_clip():
    mechanism = ClippedNoise(clip=1.0, noise=1.0)
    rows = torch.randn(2, 50, 3, generator=stream(), dtype=torch.float64)
    gradient = torch.randn(2, 50, 3, generator=stream(), dtype=torch.float64)
    leaf = rows.clone().requires_grad_()
    clipped = leaf * mechanism.factors(leaf)
    (wanted,) = torch.autograd.grad(clipped, leaf, gradient)
    assert (mechanism.factors(rows) < 1).any()
    assert (mechanism.factors(rows) == 1).any()
    assert torch.allclose(mechanism.back(gradient, rows), wanted)


def test_the_same_embeddings_have_the_same_noise_and_others_their_own():
    guard = EmbeddingGuard(ClippedNoise(1.0, 1.0), "clinic", 0)
    h = torch.zeros(20, 3)
    first, again = (guard.release(h, "train", 4) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, guard.release(h, "train", 5))
    moved = h.clone()
    moved[0, 0] = 1e-3
    for party, seed in (("clinic", 1), ("bank", 0)):
        other = EmbeddingGuard(guard.mechanism, party, seed)
        assert not torch.equal(first, other.release(h, "train", 4))
    difference = guard.release(moved, "train", 4) - first
    assert difference[1:].abs().min() > 0  # subtracting tells nothing


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("spread", [(0.1, 0.2), (0.3, 0.05)])
def test_marvells_noise_is_the_least_divergence_for_its_power(width, spread):
    square, share, power, d = 0.8, 0.3, 0.6, width - 1
    u, v = spread
    costs = np.array([1 - share, (1 - share) * d, share, share * d])

    def divergence(x):
        across = (x[1] + u) / (x[3] + v) + (x[3] + v) / (x[1] + u)
        along = (x[0] + u + square) / (x[2] + v) + (x[2] + v + square) / (x[0] + u)
        return along + d * across

    best = optimize.minimize(
        divergence,
        [0.8 * power, 1e-3, 0.8 * power, 1e-3],
        method="SLSQP",
        bounds=[(0, None)] * 4,
        constraints={"type": "ineq", "fun": lambda x: power - costs @ x},
    )
    (a, b), (e, f) = marvell_variances(square, spread, share, power, width)
    assert divergence([a, b, e, f]) == pytest.approx(best.fun, rel=1e-3)
    assert costs @ [a, b, e, f] == pytest.approx(power)


def two_classes(kind, noise=1.0, clip=1.0):
    y = (torch.arange(20_000) % 4 == 0).double()
    z = torch.randn(20_000, 2, generator=stream()) * 0.1
    side = torch.where(y.bool(), 3.0, -1.0).unsqueeze(1)
    gradient = z + side * torch.tensor([1.0, 0])
    defence = GradientDefence(kind, noise, clip)
    if kind == "gaussian":
        return y.bool(), gradient, defence.release(gradient, 0)
    return y.bool(), gradient, defence.blur(gradient, y, 0)


def test_marvells_noise_has_its_power_and_leaves_the_mean():
    is_one, before, after = two_classes("marvell", noise=2.0)
    square = (before[is_one].mean(dim=0) - before[~is_one].mean(dim=0)).square().sum()
    power = (after - before).square().sum(dim=1).mean()
    assert float(power / square) == pytest.approx(2.0, rel=0.05)
    assert float((after - before).mean(dim=0).norm()) < 0.2


def test_max_norm_makes_rows_as_long_as_the_longest_in_the_mean():
    is_one, before, after = two_classes("max-norm")
    longest = before.norm(dim=1).max()
    squares = after.square().sum(dim=1)
    for own in (is_one, ~is_one):
        assert float(squares[own].mean() / longest**2) == pytest.approx(1, rel=0.1)


def test_gaussian_noise_on_gradients_is_by_the_rows_of_a_batch():
    *_, after = two_classes("gaussian", noise=4.0, clip=2.0)
    shrunk = GradientDefence("gaussian", 4.0, 2.0).shrinks
    assert float((after * 20_000).std() / shrunk) == pytest.approx(8.0, rel=0.05)


def test_noise_on_gradients_adds_no_curvature():
    """Otherwise every response is next to its embedding, whatever was asked for."""
    generator = stream()
    error = 0.2 * torch.randn(N, 1, generator=generator)
    for noise in (0.1, 1.0, 3.0):
        defence = GradientDefence("gaussian", noise, 1.0)
        leaves = defence.release(error / N, 1) * N
        slope = float((leaves * error).mean() / error.square().mean())
        taken = float(leaves.square().mean()) / slope  # for the curvature, 0.04
        assert taken == pytest.approx(0.04, rel=0.4)


def test_a_batch_of_one_class_is_left_as_it_is():
    gradient = torch.ones(8, 2)
    defence = GradientDefence("marvell", 1.0, 1.0)
    assert torch.equal(defence.blur(gradient, torch.ones(8), 0), gradient)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_loss_is_of_the_label_that_is_told(n_classes):
    mechanism = RandomisedResponse(1.0, n_classes)
    task: Task = "binary" if n_classes == 2 else "multiclass"
    width = 1 if n_classes == 2 else n_classes
    z = torch.randn(50, width, generator=stream(), dtype=torch.float64) * 3
    y = torch.arange(50) % n_classes
    shares = torch.cat([1 - z.sigmoid(), z.sigmoid()], dim=1)
    shares = shares if n_classes == 2 else z.softmax(dim=1)
    told = mechanism.keeps * shares + mechanism.flips * (1 - shares)
    wanted = -told.gather(1, y.unsqueeze(1)).squeeze(1).log()
    y = y.double() if n_classes == 2 else y
    found = row_losses(z, y, task, flips=mechanism.flips)
    assert torch.allclose(found, wanted)
    nearly = row_losses(z, y, task, flips=1e-12)
    assert torch.allclose(nearly, row_losses(z, y, task), atol=1e-6)


@pytest.mark.parametrize("activation", ["tanh", "none"])
@pytest.mark.parametrize("inputs", [False, True])
def test_the_gradient_goes_back_through_noise_on_the_first_layer(activation, inputs):
    net = MLP.create((5, 6, 3), activation, 0, "a", *FORMAT, 4.0)
    guard = EmbeddingGuard(ClippedNoise(2.0, 0.3), "a", 0, inside=True)
    x, along = torch.randn(40, 5).double(), torch.randn(40, 3).double()
    noisy = guard.around(net)
    passes = noisy.passes(inputs)
    leaf = x.clone().requires_grad_()
    first = leaf @ net.weights[0].mT + net.biases[0]
    assert (guard.mechanism.factors(first) < 1).any()
    clipped = guard.mechanism.clipped(first)
    h = clipped + (guard.release(first) - clipped).detach()
    h = torch.tanh(h) if activation == "tanh" else h
    h = h @ net.weights[1].mT + net.biases[1]
    assert torch.allclose(passes.forward(x), h)  # the same rows, the same noise
    assert torch.allclose(noisy(x), h)
    by = [*net.parameters(), *([leaf] if inputs else [])]
    wanted = torch.autograd.grad(h, by, along)
    for found, one in zip(passes.back(along), wanted, strict=True):
        assert torch.allclose(found, one)
    assert not torch.allclose(net(x), h)
    clear = guard.clear(h, net, x)
    assert torch.allclose(clear, net(x))


def test_noise_on_the_first_layer_is_of_networks_made_here():
    guard = EmbeddingGuard(ClippedNoise(2.0, 0.3), "a", 0, inside=True)
    with pytest.raises(ConfigError, match="'noise_at' setting first-layer"):
        guard.around(Lifted.create(torch.nn.Linear, 2, 2, 0, "a", *FORMAT))
