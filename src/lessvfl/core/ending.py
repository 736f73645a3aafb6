"""When joint training has learnt what it can: the server's watch over rows held out."""

from __future__ import annotations

import math

import torch

LOOK_EVERY = 20  # steps
PATIENCE = 5  # checks in a row without an improvement
BETTER = 0.01  # share of the loss that counts as an improvement
FALL = 0.5  # steps of the falling rate, as a share of those before it
ROUNDING = 1e-9  # by how much a number of another processor may differ, relative


def fewest_steps() -> int:
    """Return from how many steps on a watch could end a training early."""
    return math.ceil((PATIENCE + 1) * LOOK_EVERY * (1 + FALL))


def most_looks(n_steps: int) -> int:
    """Return how often the rows held out are looked at in so many steps, at most."""
    return (_latest(n_steps) - 1) // LOOK_EVERY


def _latest(n_steps: int) -> int:
    """Return the step from which the rate falls, whatever the loss does."""
    return max(1, math.floor(n_steps / (1 + FALL)))


class TrainingEnd:
    """The learning rate of every step, as a share of the first, and the last step.

    The rate stays the same until the loss of the rows held out improves no more, or
    until the steps that are allowed would not suffice; then it falls to zero along a
    line, within half as many steps as were done by then.
    """

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self._latest = _latest(n_steps)
        # The best loss, checks since, and the step from which the rate falls.
        self.state = torch.tensor([math.inf, 0.0, self._latest], dtype=torch.float64)

    def is_due(self, step: int) -> bool:
        """Tell whether to look at the rows held out before a step, counted from 1."""
        return step % LOOK_EVERY == 0 and step < float(self.state[2])

    def see(self, loss: float, step: int) -> None:
        """Take the loss of the rows held out, looked at before `step`."""
        best, waited, _ = self.state.tolist()
        waited = 0 if loss < best * (1 - BETTER) else waited + 1
        falls = step if waited >= PATIENCE else self._latest
        self.state.copy_(torch.tensor([min(best, loss), waited, falls]))

    def rate(self, step: int) -> float:
        """Return the share of the first learning rate at a step, counted from 1."""
        falls = int(self.state[2])
        n_falling = self._last() - falls
        return min(1.0, max(0.0, 1 - (step - falls) / (n_falling + 1)))

    def is_last(self, step: int) -> bool:
        """Tell whether training ends with a step, counted from 1."""
        return step >= self._last()

    def agrees(self, step: int, rate: float, last: bool, watches: bool) -> bool:
        """Tell whether this is how a server that keeps to its plan would go on.

        For a party, who sees no loss: the rate may begin to fall after a check, where
        rows are held out (`watches`), and not before patience has run out.
        """
        before = step - 1
        may_fall = watches and self.is_due(before) and before >= PATIENCE * LOOK_EVERY
        if rate < self.rate(step) * (1 - ROUNDING) and may_fall:
            self.state[2] = before
        is_due = math.isclose(rate, self.rate(step), rel_tol=ROUNDING)
        return is_due and last == self.is_last(step)

    def _last(self) -> int:
        """Return the last step, as far as is known."""
        falls = int(self.state[2])
        if falls >= self._latest:
            return self._n_steps
        return min(self._n_steps, falls + math.ceil(FALL * falls))
