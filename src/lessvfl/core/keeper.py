"""Where a run saves itself, and how it is told where to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lessvfl.terms import Stage

S = TypeVar("S")


class Keeper:
    """Where a run saves itself at boundaries, and is told where to go on.

    This one keeps nothing: every stage is run from its start.
    """

    def enter(self, stage: Stage, kind: type[S]) -> S | None:
        """Return the state that a stage was left in, of its kind; None: it begins."""
        return None

    def reached(
        self,
        stage: Stage,
        step: int,
        n_steps: int | None,
        state: Callable[[], object],
    ) -> None:
        """Take note that a step is done, at the server and at all parties.

        The stage is over with the last of the `n_steps`; None: nobody knows how many
        there are. `state` returns what the stage goes on with, or what it has made.
        """
