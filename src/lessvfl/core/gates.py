"""Stochastic gates on the inputs of a network (Yamada et al., ICML 2020).

A gate is clamp(mu + noise, 0, 1), the noise from N(0, sigma^2), drawn anew every step;
its price is lambda times the chance that it is open, Phi(mu / sigma). In use a gate is
clamp(mu, 0, 1), and an input whose mu is not above 0 is out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.passes import Passes
from lessvfl.core.plans import TrainPlan, stream

HALF_OPEN = 0.5  # where a gate starts of which nothing is known


@dataclass(frozen=True)
class Gates:
    """The gates of one network: of every group of its columns."""

    mu: Tensor  # (n_groups,), changed in place
    owner: Tensor  # (columns,), the group of every column
    sigma: float
    lam: float
    seed: int  # of the noise
    name: tuple[str, ...]  # of its random stream

    @classmethod
    def of(
        cls, plan: TrainPlan, start: Tensor, owner: Tensor, *, seed: int, who: str
    ) -> Gates | None:
        """Return gates as a plan has them, None where it has none.

        They start at `start` (n_groups,); `owner` (columns,) is the group of a column.
        """
        if plan.gates is None:
            return None
        return cls(start, owner, *plan.gates, seed, ("gates", plan.stage, who))

    @property
    def open(self) -> Tensor:
        """Return which gates are not closed, (n_groups,)."""
        return self.mu > 0

    @property
    def values(self) -> Tensor:
        """Return what every column is multiplied by in use, (columns,)."""
        return self.mu.clamp(0, 1)[self.owner]

    def draw(self, step: int) -> Tensor:
        """Return mu + noise of one step, (n_groups,)."""
        generator = stream(self.seed, *self.name, step)
        noise = torch.randn(len(self.mu), generator=generator)
        return self.mu + self.sigma * noise.to(self.mu)

    def slope(self) -> Tensor:
        """Return the derivative of lambda x the sum of Phi(mu / sigma), by mu."""
        density = (-0.5 * (self.mu / self.sigma).square()).exp()
        return density * (self.lam / (self.sigma * math.sqrt(2 * math.pi)))

    def fold(self, w: Tensor, slots: Tensor) -> None:
        """Multiply input weights (out, slots, ...), in place, by their columns' gates.

        `slots` (columns,) is the slot of every column.
        """
        factors = w.new_ones(w.shape[1])
        factors[slots] = self.values
        with torch.no_grad():
            w.mul_(factors.view(-1, *[1] * (w.dim() - 2)))


class GatedPasses:
    """A network behind gates, forward and back: with the gradient of mu as the last.

    With `inputs` that of x comes after it. `step` returns how many steps are done.
    """

    def __init__(
        self, inner: Passes, gates: Gates, step: Callable[[], int], inputs: bool
    ) -> None:
        self._inner, self._gates, self._step, self._inputs = inner, gates, step, inputs
        self._x = self._drawn = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, columns) to (n, n_outputs)."""
        self._x, self._drawn = x, self._gates.draw(self._step())
        return self._inner.forward(x * self._factors())

    def _factors(self) -> Tensor:
        return self._drawn.clamp(0, 1)[self._gates.owner]

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, of mu, and perhaps of x."""
        *grads, along = self._inner.back(gradient)
        gates, drawn = self._gates, self._drawn
        by_column = (along * self._x).sum(dim=0)
        by_gate = torch.zeros_like(drawn).index_add(0, gates.owner, by_column)
        inside = (drawn > 0) & (drawn < 1)
        grads.append(by_gate * inside + gates.slope())
        return [*grads, along * self._factors()] if self._inputs else grads
