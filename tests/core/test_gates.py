"""Stochastic gates: definitions, gradients by autograd, and what they do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lessvfl.core.gates import GatedPasses, Gates
from lessvfl.core.network import MLP

OWNER = torch.tensor([0, 1, 1, 2])  # the second feature has two columns


def a_net(widths: tuple[int, ...] = (4, 3, 2)) -> MLP:
    cpu = torch.device("cpu")
    return MLP.create(widths, "tanh", 5, "clinic", torch.float64, cpu)


def some_gates(lam: float = 0.3, seed: int = 5) -> Gates:
    mu = torch.tensor([0.4, 0.2, -0.6], dtype=torch.float64)
    return Gates(mu, OWNER, 0.5, lam, seed, ("gates", "clinic"))


def rows(n: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("inputs", [False, True])
def test_gradients_are_those_of_autograd(inputs: bool) -> None:
    """Of the loss and the price: lambda x sum of Phi(mu / sigma)."""
    net, gates, x, step = a_net(), some_gates(), rows().requires_grad_(), 3
    passes = GatedPasses(net.passes(inputs=True), gates, lambda: step, inputs)
    h = passes.forward(x.detach())
    target = torch.ones_like(h)
    found = passes.back(h - target)

    mu = gates.mu.clone().requires_grad_()
    noise = gates.draw(step) - gates.mu
    s = (mu + noise).clamp(0, 1)[OWNER]
    out = net(x * s)
    torch.testing.assert_close(out, h)
    open_chance = torch.distributions.Normal(0, 1).cdf(mu / gates.sigma).sum()
    total = (out - target).square().sum() / 2 + gates.lam * open_chance
    wanted = [*net.parameters(), mu] + ([x] if inputs else [])
    for expected, grad in zip(torch.autograd.grad(total, wanted), found, strict=True):
        torch.testing.assert_close(grad, expected)


def test_noise_is_of_the_step_and_the_seed() -> None:
    gates = some_gates()
    assert torch.equal(gates.draw(1), gates.draw(1))
    assert not torch.equal(gates.draw(1), gates.draw(2))
    assert not torch.equal(gates.draw(1), some_gates(seed=6).draw(1))
    many = torch.stack([gates.draw(i) - gates.mu for i in range(500)])
    assert float(many.std()) == pytest.approx(gates.sigma, rel=0.05)


def test_folded_gates_are_gates_in_use() -> None:
    net, gates, x = a_net(), some_gates(), rows()
    with torch.no_grad():
        before = net(x * gates.values)
        gates.fold(net.input_weights, net.column_slots)
        torch.testing.assert_close(net(x), before)
    assert gates.open.tolist() == [True, True, False]
    assert not net.input_weights[:, 3].any()


def test_a_price_alone_shuts_a_gate() -> None:
    gates = some_gates(lam=1.0)
    for _ in range(60):
        gates.mu.sub_(0.1 * gates.slope())
    assert not gates.open.any()
