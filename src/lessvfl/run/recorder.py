"""The recorder: watches a batch of runs and keeps their curves and times.

It evaluates through the same gate as everybody else (billed as evaluation), and asks
the parties of this process, not by message, which features they use. Of the embeddings
of the last evaluation it also learns who would be missed: the scores with a party's
components at their mean over the training rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from lessvfl.core import metrics
from lessvfl.data import Problem
from lessvfl.errors import DivergenceError
from lessvfl.party import Party
from lessvfl.run.numbers import costs, curve_point, removed_share
from lessvfl.terms import Event, Observer, PartyId, Task
from lessvfl.wire.parties import Parties, concatenate

Scores = dict[str, float | None]  # by measure; None where it is undefined


@dataclass
class Recorder:
    """Curves (a list of points for each replica) and seconds by stage."""

    problems: Sequence[Problem]  # one for each replica
    y_train: Tensor  # (S, N)
    y_test: Tensor
    progress: Observer  # told of every event
    evaluation: str  # when: after all "epochs", at the "end", or "nothing"
    scored: Callable[[float, str], None] = lambda value, name: None  # the first replica
    curves: list[list[dict[str, Any]]] = field(init=False)
    seconds: dict[str, float] = field(init=False)
    means: dict[PartyId, Tensor] = field(default_factory=dict)  # (R, E_m), at the end
    without: list[dict[PartyId, Scores] | None] = field(init=False)  # each party
    _server: Parties | None = None
    _parties: Sequence[Party] = ()

    def __post_init__(self) -> None:
        """Start the clock."""
        self.curves = [[] for _ in self.problems]
        self.seconds = {}
        self.without = [None for _ in self.problems]
        self._last = time.perf_counter()

    def attach(self, server: Parties, parties: Sequence[Party]) -> None:
        """Say whom to ask for embeddings and for the features in use."""
        self._server, self._parties = server, parties

    def state(self) -> dict[str, Any]:
        """Return all that was kept as plain values."""
        return {
            "curves": self.curves,
            "seconds": self.seconds,
            "means": {name: mean.tolist() for name, mean in self.means.items()},
            "without": self.without,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state as :meth:`state` gave it."""
        self.curves = [list(curve) for curve in state["curves"]]
        self.seconds = dict(state["seconds"])
        self.means = {
            name: torch.tensor(mean, dtype=torch.float64)
            for name, mean in state["means"].items()
        }
        self.without = list(state["without"])

    @property
    def task(self) -> Task:
        """Return the task all problems share."""
        return self.problems[0].task

    def __call__(self, event: Event) -> None:
        """Take the time of a stage, and a point of the curve where networks fit."""
        self.clock(event.stage)
        self.progress(event)
        if event.fusion is not None and self._is_due(event):
            self._add_points(event)
            self.clock("evaluate")

    def _is_due(self, event: Event) -> bool:
        """Tell whether to evaluate now."""
        if self.evaluation == "end":
            return _is_last(event)
        return self.evaluation == "epochs"

    def clock(self, stage: str) -> None:
        """Put the time since the last call on a stage's account."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def all_seconds(self) -> dict[str, float]:
        """Return the seconds by stage, and in all."""
        return self.seconds | {"total": sum(self.seconds.values())}

    def _add_points(self, event: Event) -> None:
        assert self._server is not None
        test_blocks = self._embed("test", self.y_test)
        test = self._measure(event, test_blocks, self.y_test)
        train_blocks = self._embed("train", self.y_train)
        train = self._measure(event, train_blocks, self.y_train)
        if _is_last(event):
            names = self._server.names
            self.means = dict(zip(names, map(_mean, train_blocks), strict=True))
            if test_blocks:
                self.without = self._leave_out(event, test_blocks, self.y_test)
            else:
                self.without = self._leave_out(event, train_blocks, self.y_train)
        removed = self._removed_shares()
        ledger = self._server.ledger
        for r, curve in enumerate(self.curves):
            point = curve_point(event, self.task, test[r], train[r], removed[r])
            curve.append(point | costs(ledger, r))
        name = metrics.MEASURES[self.task][0]
        if self.curves[0][-1][name] is not None:
            self.scored(self.curves[0][-1][name], name)

    def _embed(self, rows: Literal["train", "test"], y: Tensor) -> list[Tensor]:
        """Ask for the blocks of rows, none where there are no such rows."""
        assert self._server is not None
        return self._server.embed("evaluate", rows) if y.shape[1] else []

    def _measure(
        self, event: Event, blocks: Sequence[Tensor], y: Tensor
    ) -> list[Scores]:
        """Return the scores of every replica."""
        if not blocks:
            return [{} for _ in self.curves]
        assert event.fusion is not None
        with torch.no_grad():
            z = event.fusion(concatenate(blocks)).expand(-1, y.shape[1], -1)
        self._refuse_infinite(event, [*blocks, z])
        found = metrics.measure(z, y, self.task, self._offsets(z))
        columns = [values.tolist() for values in found.values()]
        return [
            {k: None if v != v else v for k, v in zip(found, row, strict=True)}  # NaN
            for row in zip(*columns, strict=True)
        ]

    def _leave_out(
        self, event: Event, blocks: list[Tensor], y: Tensor
    ) -> list[dict[PartyId, Scores] | None]:
        """Return by party the scores of every replica with its block at its mean."""
        found = {}
        for m, (name, mean) in enumerate(self.means.items()):
            same = mean.to(blocks[m]).unsqueeze(1).expand_as(blocks[m])
            others = [*blocks[:m], same, *blocks[m + 1 :]]
            found[name] = self._measure(event, others, y)
        return [
            {name: scores[r] for name, scores in found.items()}
            for r in range(len(self.curves))
        ]

    def _offsets(self, z: Tensor) -> Tensor | None:
        """Return what is added to logits to decide on a class, (R, 1, outputs)."""
        thresholds = [problem.threshold for problem in self.problems]
        if all(threshold is None for threshold in thresholds):
            return None
        rows = [metrics.decision_offsets(t, z.shape[2]) for t in thresholds]
        return torch.tensor(rows, device=z.device, dtype=z.dtype).unsqueeze(1)

    def _refuse_infinite(self, event: Event, outputs: Sequence[Tensor]) -> None:
        """Stop where the last step of an epoch left networks of no use."""
        if bool(outputs[-1].isfinite().all()):
            return
        assert self._server is not None
        who = [*(f"party '{name}'" for name in self._server.names), "the server"]
        finite = [bool(values.isfinite().all()) for values in outputs]
        raise DivergenceError(
            f"The output of {who[finite.index(False)]} must stay finite. It diverged "
            f"in stage '{event.stage}' at the last step of epoch {event.epoch:g}; a "
            "smaller step size or learning rate, or scaled columns, may help."
        )

    def _removed_shares(self) -> list[float | None]:
        """Return the share of planted features gone of every replica."""
        masks = [party.features_now().cpu().numpy() for party in self._parties]
        return [
            removed_share(problem.parties, [mask[r] for mask in masks])
            for r, problem in enumerate(self.problems)
        ]


def _is_last(event: Event) -> bool:
    """Tell whether a run is over with this epoch."""
    return event.stage == "train" and event.epoch >= event.n_epochs


def _mean(block: Tensor) -> Tensor:
    """Return the mean over the rows, (R, E_m); that of equal values is their value."""
    block = block.double().contiguous()  # so that every transport gives the same bits
    same = (block == block[:, :1]).all(dim=1)
    return torch.where(same, block[:, 0], block.mean(dim=1))
