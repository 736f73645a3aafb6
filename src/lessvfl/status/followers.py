"""Several that are told of a run what one would be."""

from __future__ import annotations

from lessvfl.terms import Event, Progress, Stage


class Followers(list[Progress]):
    """A list of those that are told how far a run is; a `Progress` itself."""

    def begin_seed(self, seed: int, number: int, n_seeds: int) -> None:
        """Tell that the run of a seed begins."""
        for one in self:
            one.begin_seed(seed, number, n_seeds)

    def observe(self, event: Event) -> None:
        """Tell of an epoch."""
        for one in self:
            one.observe(event)

    def stepped(self, stage: Stage, step: int, n_steps: int) -> None:
        """Tell how many steps of a stage are done."""
        for one in self:
            one.stepped(stage, step, n_steps)

    def scored(self, value: float, name: str) -> None:
        """Tell the score so far."""
        for one in self:
            one.scored(value, name)

    def sent(self, up: int, down: int, rounds: int) -> None:
        """Tell what was sent so far."""
        for one in self:
            one.sent(up, down, rounds)
