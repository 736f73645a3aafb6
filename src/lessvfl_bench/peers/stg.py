"""Stochastic gates: Yamada, Lindenbaum, Negahban, Kluger, ICML 2020.

Feature d passes a gate z_d = max(0, min(1, μ_d + ε)), ε ~ N(0, σ²), before the network
f. Network and μ are trained together, by Adam, on

    mean over rows of L(f(x ⊙ z), y) + λ Σ_d P(z_d > 0),    P(z_d > 0) = Φ(μ_d / σ),

with one draw of ε a step. Afterwards the noise is left out: ẑ_d = max(0, min(1, μ_d)),
and a feature is kept where ẑ_d > 0. Networks of a whole path of λ are stacked and
trained at once. The authors' package `stg` 0.1.2 fails on Python 3.10 and later: hence
this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.losses import row_losses
from lessvfl.core.network import MLP
from lessvfl.core.plans import Batches, stream

SIGMA = 0.5  # of the gates' noise, and where every μ starts: the paper's choice


def open_probability(mu: Tensor) -> Tensor:
    """Return P(z > 0) = Φ(μ / σ).

    >>> open_probability(torch.tensor([0.0]))
    tensor([0.5000])
    """
    return 0.5 * (1.0 + torch.erf(mu / (SIGMA * math.sqrt(2.0))))


def gates(mu: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """Return z = max(0, min(1, μ + ε)).

    >>> gates(torch.tensor([-0.2, 0.3, 1.7]))
    tensor([0.0000, 0.3000, 1.0000])
    """
    return (mu + noise).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Plan:
    """How the gates are trained."""

    lams: tuple[float, ...]
    hidden: int = 64
    n_steps: int = 2000
    batch_size: int = 256
    learning_rate: float = 0.003


@dataclass(frozen=True)
class Gated:
    """Networks behind gates, stacked: one for each λ of R."""

    net: MLP
    mu: Tensor  # (R, features)
    groups: Tensor  # (columns,), the feature of each column

    def __call__(self, x: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Map (n, columns) to (R, n, classes).

        A gate in front of a column is a factor on its weights in the first layer.
        """
        z = gates(self.mu, noise)[:, self.groups].unsqueeze(1)  # (R, 1, columns)
        weights = [self.net.weights[0] * z, *self.net.weights[1:]]
        return MLP(weights, self.net.biases, self.net.activation)(x)

    def kept(self) -> NDArray[np.bool_]:
        """Return the features whose gate stays open, (R, features)."""
        found: NDArray[np.bool_] = (gates(self.mu) > 0).detach().cpu().numpy()
        return found

    def predict(self, X: NDArray[Any]) -> NDArray[np.int64]:
        """Return the class of every row by every network, (R, n)."""
        x = torch.as_tensor(X).to(self.mu.device, self.mu.dtype)
        with torch.no_grad():
            found: NDArray[np.int64] = self(x).argmax(dim=2).cpu().numpy()
        return found


def train(
    X: NDArray[Any],
    y: NDArray[Any],
    groups: NDArray[np.int64],
    n_classes: int,
    plan: Plan,
    seed: int,
    device: torch.device,
) -> Gated:
    """Train network and gates for every λ of a plan; `groups` as in :class:`Gated`."""
    n_lams, n_features = len(plan.lams), int(groups.max()) + 1
    widths = (X.shape[1], plan.hidden, plan.hidden, n_classes)
    first = MLP.create(widths, "relu", seed, "stg", torch.float32, device)
    net = _copies(first, n_lams)
    mu = torch.full((n_lams, n_features), SIGMA, device=device, requires_grad=True)
    gated = Gated(net, mu, torch.as_tensor(groups).to(device))
    table = torch.as_tensor(X).to(device, torch.float32)
    labels = torch.as_tensor(y).to(device)
    lams = torch.tensor(plan.lams, device=device)
    draws = stream(seed, "stg", "noise")
    optimizer = torch.optim.Adam([*net.parameters(), mu], plan.learning_rate)
    batches = Batches(len(X), plan.batch_size, seed, ("stg",), "shuffle")
    n_epochs = plan.n_steps / batches.n_per_epoch
    for _, rows in batches.steps(n_epochs, device):
        noise = SIGMA * torch.randn(1, n_features, generator=draws).to(device)
        logits = gated(table[rows], noise)  # (R, b, classes)
        penalty = lams * open_probability(mu).sum(dim=1)
        losses = row_losses(logits, labels[rows], "multiclass")
        loss = losses.mean(dim=-1) + penalty
        optimizer.zero_grad()
        torch.autograd.backward(loss.sum())  # each depends on its own network
        optimizer.step()
    return gated


def _copies(net: MLP, n: int) -> MLP:
    """Return as many trainable copies of a network, stacked."""

    def repeated(layers: list[Tensor]) -> list[Tensor]:
        return [torch.stack([one.detach()] * n).requires_grad_() for one in layers]

    return MLP(repeated(net.weights), repeated(net.biases), net.activation)
