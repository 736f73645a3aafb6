"""Where a run saves itself, and how it is told where to go on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lessvfl.core.adam import Optimizer
from lessvfl.terms import Stage


class Keeper:
    """Where a run saves itself at boundaries, and is told where to go on.

    This one keeps nothing: every stage is run from its start.
    """

    def enter(
        self,
        stage: Stage,
        n_steps: int,
        params: Sequence[Tensor],
        optimizer: Optimizer,
        more: Tensor | None = None,
    ) -> int:
        """Return how many steps of a stage are done, its values put in place.

        `more` is whatever else of the stage changes from step to step.
        """
        return 0

    def reached(self, stage: Stage, step: int, n_steps: int) -> None:
        """Learn that a step is done, at the server and at all parties."""

    def is_behind(self, stage: Stage) -> bool:
        """Tell whether a stage is over."""
        return False

    def recall(self, stage: Stage) -> Tensor | None:
        """Return what a stage that is over has found, None where it is not over."""
        return None

    def note(self, stage: Stage, found: Tensor, params: Sequence[Tensor]) -> None:
        """Learn what a stage of the server's own has found."""

    def put_back(self, params: Sequence[Tensor]) -> None:
        """Put saved values into the server's network."""
