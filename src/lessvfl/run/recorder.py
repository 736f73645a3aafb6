"""The recorder: watches a batch of runs and keeps their curves and times.

It evaluates through the same gate as everybody else (billed as evaluation), and asks
the parties of this process, not by message, which features they use.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lessvfl.core import metrics
from lessvfl.data import Problem
from lessvfl.errors import DivergenceError
from lessvfl.party import Party
from lessvfl.terms import Event, Observer, Task
from lessvfl.wire.parties import Parties, concatenate

# Always in a record, null where the task has no such measure.
_ALWAYS = ("accuracy", "balanced_accuracy")


@dataclass
class Recorder:
    """Curves (one list of points a replica) and seconds by stage.

    Parameters
    ----------
    problems : sequence of Problem
        One a replica.
    y_train, y_test : Tensor (S, N)
        Labels.
    progress : callable
        Told of every event.
    curve : bool
        Evaluate after every epoch.
    """

    problems: Sequence[Problem]
    y_train: Tensor
    y_test: Tensor
    progress: Observer
    curve: bool
    curves: list[list[dict[str, Any]]] = field(init=False)
    seconds: dict[str, float] = field(init=False)
    _server: Parties | None = None
    _parties: Sequence[Party] = ()

    def __post_init__(self) -> None:
        """Start the clock."""
        self.curves = [[] for _ in self.problems]
        self.seconds = {}
        self._last = time.perf_counter()

    def attach(self, server: Parties, parties: Sequence[Party]) -> None:
        """Say whom to ask for embeddings and for the features in use."""
        self._server, self._parties = server, parties

    def state(self) -> dict[str, Any]:
        """Return curves and seconds as plain values."""
        return {"curves": self.curves, "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state as :meth:`state` gave it."""
        self.curves = [list(curve) for curve in state["curves"]]
        self.seconds = dict(state["seconds"])

    @property
    def task(self) -> Task:
        """Return the task all problems share."""
        return self.problems[0].task

    @property
    def names(self) -> tuple[str, ...]:
        """Return the measures of a record, in order."""
        own = metrics.MEASURES[self.task]
        return (*_ALWAYS, *(name for name in own if name not in _ALWAYS))

    def __call__(self, event: Event) -> None:
        """Take the time of a stage, and a point of the curve where networks fit."""
        self.clock(event.stage)
        self.progress(event)
        if event.fusion is not None and self.curve:
            self._add_points(event)
            self.clock("evaluate")

    def clock(self, stage: str) -> None:
        """Put the time since the last call on a stage's account."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def summary(self, replica: int) -> dict[str, dict[str, float | None] | None]:
        """Return every measure after stages 1 and 3, at the end, and at best.

        A stage that a method lacks is None, and so is a measure that the task lacks.
        """
        curve = self.curves[replica]
        last = {point["stage"]: point for point in curve}
        moments = {
            "pretrained": last.get("pretrain"),
            "selected": last.get("select_features") or last.get("joint_lasso"),
            "final": curve[-1] if curve else None,
        }
        summary: dict[str, dict[str, float | None] | None] = {}
        for name in self.names:
            if name not in metrics.MEASURES[self.task]:
                summary[name] = None
                continue
            values = {k: None if p is None else p[name] for k, p in moments.items()}
            seen = [point[name] for point in curve if point[name] is not None]
            summary[name] = values | {"best": max(seen) if seen else None}
        return summary

    def _add_points(self, event: Event) -> None:
        assert self._server is not None
        test = self._measure(event, "test", self.y_test)
        train = self._measure(event, "train", self.y_train)
        removed = self._removed_shares()
        ledger = self._server.ledger
        for replica, curve in enumerate(self.curves):
            point: dict[str, Any] = {"stage": event.stage, "epoch": event.epoch}
            for name in self.names:
                point[name] = test[name][replica] if name in test else None
            for name in dict.fromkeys(("accuracy", metrics.MEASURES[self.task][0])):
                found = train[name][replica] if name in train else None
                point[f"train_{name}"] = found
            point["removed_share"] = removed[replica]
            point["payload_bytes"] = ledger.payload_bytes(replica)
            point["rounds"] = ledger.n_rounds(replica)
            point["paper_mib"] = ledger.paper_mib(replica)
            curve.append(point)

    def _measure(
        self, event: Event, rows: Literal["train", "test"], y: Tensor
    ) -> dict[str, list[float | None]]:
        if y.shape[1] == 0:
            return {}
        assert self._server is not None
        assert event.fusion is not None
        blocks = self._server.embed("evaluate", rows)
        with torch.no_grad():
            z = event.fusion(concatenate(blocks)).expand(-1, y.shape[1], -1)
        self._refuse_infinite(event, [*blocks, z])
        return {
            name: [None if v != v else v for v in values.tolist()]  # NaN: undefined
            for name, values in metrics.measure(z, y, self.task).items()
        }

    def _refuse_infinite(self, event: Event, outputs: Sequence[Tensor]) -> None:
        """Stop where the last step of an epoch left networks of no use."""
        if bool(outputs[-1].isfinite().all()):
            return
        who = [*(f"party '{party.name}'" for party in self._parties), "the server"]
        finite = [bool(values.isfinite().all()) for values in outputs]
        raise DivergenceError(
            f"The output of {who[finite.index(False)]} must stay finite. It diverged "
            f"in stage '{event.stage}' at the last step of epoch {event.epoch:g}; a "
            "smaller step size or learning rate, or scaled columns, may help."
        )

    def _removed_shares(self) -> list[float | None]:
        """Return the share of planted features gone, None where none was planted."""
        tables = self.problems[0].parties
        if not tables:  # between machines nobody but the parties knows
            return [None] * len(self.problems)
        masks = [party.features_now().cpu().numpy() for party in self._parties]
        gone = [~mask[:, t.spurious] for mask, t in zip(masks, tables, strict=True)]
        planted = np.concatenate(gone, axis=1)
        if planted.shape[1] == 0:
            return [None] * len(self.problems)
        return [float(share) for share in planted.mean(axis=1)]
