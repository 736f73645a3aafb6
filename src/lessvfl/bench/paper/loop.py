"""The steps of an epoch, run again and again.

On a CUDA device they are recorded once as a graph and replayed: thousands of small
kernels then cost no time on the host, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessvfl.core.plans import Batches, Rows

Step = Callable[[int, Rows], None]


class Loop:
    """Steps over mini-batches that change `params` in place.

    Parameters
    ----------
    batches : sequence of Batches
        Whose rows a step takes: one for all, or one a party.
    step : callable
        Told the number of the step in its epoch and its rows: a slice where the order
        never changes, else indices (S, b), or (P, S, b) of all parties.
    params : list of Tensor
        What a step changes.
    optimizer : torch.optim.Optimizer or None
        What else it changes.
    """

    def __init__(
        self,
        batches: Sequence[Batches],
        step: Step,
        params: list[Tensor],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.batches = batches
        self.step = step
        self.params = params
        self.optimizer = optimizer
        self.device = params[0].device
        self._rows = self._first_rows()
        self._replay = self._record() if self.device.type == "cuda" else self._run

    def epoch(self, index: int) -> None:
        """Run one epoch."""
        if self.batches[0].shuffle:
            self._order.copy_(self._new_order(index))
        self._replay()

    def _first_rows(self) -> list[Rows]:
        first = self.batches[0]
        if not first.shuffle:
            return first.epoch(0, self.device)
        self._order = self._new_order(0).to(self.device)
        starts = range(0, first.n_samples, first.batch_size)
        return [self._order[..., s : s + first.batch_size] for s in starts]

    def _new_order(self, epoch: int) -> Tensor:
        """Return the order of the rows, (S, N) or (P, S, N)."""
        host = torch.device("cpu")
        orders = []
        for batches in self.batches:
            parts = [r for r in batches.epoch(epoch, host) if not isinstance(r, slice)]
            orders.append(torch.cat(parts, dim=1))
        return orders[0] if len(orders) == 1 else torch.stack(orders)

    def _run(self) -> None:
        for number, rows in enumerate(self._rows):
            self.step(number, rows)

    def _record(self) -> Callable[[], None]:
        """Record an epoch as a graph, after a step of every shape to warm up."""
        saved = [param.detach().clone() for param in self.params]
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for number in {0, len(self._rows) - 1}:
                self.step(number, self._rows[number])
        current.wait_stream(side)
        with torch.no_grad():
            torch._foreach_copy_(self.params, saved)
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()
        del saved
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        return graph.replay
