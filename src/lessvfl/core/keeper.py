"""Where a run saves itself, and how it is told where to go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
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

    def store(self, stage: Stage, made: Mapping[str, Tensor]) -> None:
        """Learn that a stage is over, and what it made in the place of a network."""

    def made_by(self, stage: Stage) -> Mapping[str, Tensor] | None:
        """Return what a stage that is over has made, None where it is not over."""
        return None

    def grown(
        self, stage: Stage, step: int, made: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """Learn what a stage of queries has made so far, after so many of them."""

    def left_off(self, stage: Stage) -> Mapping[str, Tensor] | None:
        """Return what a stage of queries had made when it broke off, None at first."""
        return None

    def put_back(self, params: Sequence[Tensor]) -> None:
        """Put saved values into the server's network."""


def numbered(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return tensors by name and number.

    >>> list(numbered("net", [torch.ones(1), torch.ones(2)]))
    ['net.0', 'net.1']
    """
    return {f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}


def by_number(tensors: Mapping[str, Tensor], name: str) -> list[Tensor]:
    """Return the tensors of a name, in the order of their numbers."""
    return [tensors[key] for key in sorted(tensors) if key.startswith(f"{name}.")]


def under(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by a name and their own.

    >>> list(under("net", {"weight": torch.ones(1)}))
    ['net.weight']
    """
    return {f"{name}.{key}": tensor for key, tensor in tensors.items()}


def below(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those that :func:`under` put there, by their own names."""
    start = f"{name}."
    return {
        key.removeprefix(start): tensor
        for key, tensor in tensors.items()
        if key.startswith(start)
    }


def fill(params: Sequence[Tensor], tensors: Mapping[str, Tensor], name: str) -> None:
    """Put the tensors of a name into parameters, in place."""
    with torch.no_grad():
        for i, param in enumerate(params):
            param.copy_(tensors[f"{name}.{i}"])
