"""A particle swarm: positions in [0, 1], drawn to the best places found so far.

A particle's velocity becomes w v + c1 r1 (own best - x) + c2 r2 (best of all - x), with
r1 and r2 drawn uniformly from [0, 1] for every coordinate, and its position x + v, cut
at 0 and 1 (Kennedy and Eberhart, 1995; w by Shi and Eberhart, 1998). Coordinates need
nothing of each other but the losses: whoever knows these can move its own ones alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

INERTIA = 0.7  # w
TO_OWN = TO_ALL = 1.5  # c1 and c2


def between(low: float, high: float, place: float) -> float:
    """Return what a coordinate stands for, from `low` to `high` in ratios.

    >>> between(1, 100, 0.5)
    10.0
    """
    return float(low * (high / low) ** place)


@dataclass(frozen=True)
class Swarm:
    """Some coordinates of all particles, (P, D) each, and the losses so far."""

    places: Tensor
    velocities: Tensor
    best_places: Tensor  # of each particle
    best_losses: Tensor  # (P,)

    @classmethod
    def draw(cls, n_particles: int, size: int, chance: torch.Generator) -> Swarm:
        """Return `n_particles` at rest at random places, `size` coordinates each."""
        shape = (n_particles, size)
        places = torch.rand(shape, generator=chance, dtype=torch.float64)
        losses = torch.full((n_particles,), torch.inf, dtype=torch.float64)
        return cls(places, torch.zeros_like(places), places, losses)

    @property
    def best(self) -> Tensor:
        """Return the best place of all, (D,); of equal ones that of the first."""
        return self.best_places[self.best_losses.argmin()]

    def with_losses(self, losses: Tensor) -> Swarm:
        """Return the swarm that knows the losses (P,) of where its particles are."""
        is_better = losses < self.best_losses
        places = torch.where(is_better[:, None], self.places, self.best_places)
        best = torch.where(is_better, losses, self.best_losses)
        return replace(self, best_places=places, best_losses=best)

    def moved(self, chance: torch.Generator) -> Swarm:
        """Return the swarm after one more move, its random factors from `chance`."""
        shape, x = (2, *self.places.shape), self.places
        to_own, to_all = torch.rand(shape, generator=chance, dtype=torch.float64)
        velocities = (
            INERTIA * self.velocities
            + TO_OWN * to_own * (self.best_places - x)
            + TO_ALL * to_all * (self.best - x)
        )
        return replace(self, places=(x + velocities).clamp(0, 1), velocities=velocities)
