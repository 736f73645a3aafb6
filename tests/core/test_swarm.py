"""A swarm moves as written, and keeps the best places it was told of."""

from __future__ import annotations

import torch

from lessvfl.core.swarm import Swarm


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def a_swarm() -> Swarm:
    """Return two particles with two coordinates, on their way."""
    return Swarm(
        of([0.5, 0.5], [0.9, 0.1]),
        of([0.1, -0.1], [0.5, -0.5]),
        of([0.4, 0.6], [0.2, 0.3]),
        of(3.0, 2.0),
    )


def test_a_move_by_hand() -> None:
    """The second particle's best is the best of all."""
    r = torch.rand((2, 2, 2), generator=chance(7), dtype=torch.float64).tolist()
    moved = a_swarm().moved(chance(7))
    first = 0.7 * 0.1 + 1.5 * r[0][0][0] * (0.4 - 0.5) + 1.5 * r[1][0][0] * (0.2 - 0.5)
    second = 0.7 * -0.1 + 1.5 * r[0][0][1] * (0.6 - 0.5) + 1.5 * r[1][0][1] * -0.2
    expected = of(first, second)
    torch.testing.assert_close(moved.velocities[0], expected)
    torch.testing.assert_close(moved.places[0], 0.5 + expected)
    assert torch.equal(moved.best_places, a_swarm().best_places)


def test_a_position_stays_between_0_and_1() -> None:
    swarm = a_swarm()
    for turn in range(20):
        swarm = swarm.moved(chance(turn))
        assert swarm.places.min() >= 0
        assert swarm.places.max() <= 1


def test_only_a_better_loss_is_remembered() -> None:
    told = a_swarm().with_losses(of(3.0, 1.5))
    assert told.best_losses.tolist() == [3.0, 1.5]
    assert told.best_places.tolist() == [[0.4, 0.6], [0.9, 0.1]]
    assert told.best.tolist() == [0.9, 0.1]
    equal = a_swarm().with_losses(of(2.0, 2.0))
    assert equal.best.tolist() == [0.5, 0.5]


def test_particles_start_anywhere_and_at_rest() -> None:
    swarm = Swarm.draw(100, 3, chance())
    assert swarm.places.shape == (100, 3)
    assert 0 <= float(swarm.places.min()) < 0.05
    assert 0.95 < float(swarm.places.max()) <= 1
    assert not swarm.velocities.any()
    assert torch.equal(Swarm.draw(100, 3, chance()).places, swarm.places)


def test_a_swarm_finds_the_lowest_place() -> None:
    goal = of(0.2, 0.7, 1.0)
    swarm = Swarm.draw(20, 3, chance())
    for turn in range(60):
        swarm = swarm.with_losses((swarm.places - goal).square().sum(dim=1))
        swarm = swarm.moved(chance(turn))
    assert float((swarm.best - goal).abs().max()) < 0.01
