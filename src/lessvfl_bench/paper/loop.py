"""The steps of an epoch, run again and again.

On a CUDA device they are recorded once as a graph and replayed: thousands of small
kernels then cost no time on the host, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.plans import Batches, Rows
from lessvfl.core.solve import RunEpoch, Schedule, Step

SideBySide = Sequence[Batches] | Sequence[Sequence[Batches]]  # alike but for their rows


def first_of(batches: SideBySide) -> Batches:
    """Return the first of batches, whose sizes all others have."""
    first = batches[0]
    return first if isinstance(first, Batches) else first[0]


def _order(batches: Batches | SideBySide, epoch: int) -> Tensor:
    """Return the order of the rows in an epoch, (S, N) or (P, S, N)."""
    if isinstance(batches, Batches):
        return batches.order(epoch, torch.device("cpu"))
    return torch.stack([_order(one, epoch) for one in batches])


def captured(
    batches: SideBySide,
    params: Sequence[Tensor],
    optimizer: torch.optim.Optimizer | None = None,
) -> Schedule:
    """Run epochs as replays of a graph on CUDA, step by step elsewhere.

    Batches are those of each seed, or of each party and seed: rows are slices where the
    order never changes, else indices (S, b), or (P, S, b). A step changes `params`, and
    the state of `optimizer`. Losses are not handed on.
    """

    def schedule(step: Step) -> RunEpoch:
        return _Loop(batches, step, params, optimizer).epoch

    return schedule


@dataclass
class _Loop:
    batches: SideBySide
    step: Step
    params: Sequence[Tensor]
    optimizer: torch.optim.Optimizer | None

    def __post_init__(self) -> None:
        self.device = self.params[0].device
        first = first_of(self.batches)
        if first.row_order == "shuffle":
            self._order = _order(self.batches, 0).to(self.device)
            starts = range(0, first.n_samples, first.batch_size)
            parts = [self._order[..., s : s + first.batch_size] for s in starts]
            self._rows: list[Rows] = [*parts]
        else:
            self._rows = list(first.epoch(0, self.device))
        self._replay = self._record() if self.device.type == "cuda" else self._run

    def epoch(self, index: int) -> list[Tensor]:
        """Run one epoch."""
        if first_of(self.batches).row_order == "shuffle":
            self._order.copy_(_order(self.batches, index))
        self._replay()
        return []

    def _run(self) -> None:
        for rows in self._rows:
            self.step(rows)

    def _record(self) -> Callable[[], None]:
        """Record an epoch as a graph, after a step of every shape to warm up."""
        saved = [param.detach().clone() for param in self.params]
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for number in {0, len(self._rows) - 1}:
                self.step(self._rows[number])
        current.wait_stream(side)
        with torch.no_grad():
            torch._foreach_copy_(list(self.params), saved)
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        del saved
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        return graph.replay
