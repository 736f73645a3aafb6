"""The recorder: watches a run and keeps its curve and times.

It evaluates through the same gate as everybody else (billed as evaluation), and asks
the parties of this process, not by message, which features they use. Of the embeddings
of the last evaluation it also learns who would be missed: the scores with a party's
components at their mean over the training rows, or over the test rows where only these
are asked for.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lessvfl.core import bootstrap, metrics
from lessvfl.core.plans import parts
from lessvfl.data import Problem
from lessvfl.errors import DivergenceError, ProtocolError
from lessvfl.party import Party
from lessvfl.run.numbers import Recorded, Scores, costs, curve_point, removed_share
from lessvfl.terms import Event, Observer, Task
from lessvfl.wire.parties import Parties, concatenate

MANY = 4096  # components, as only trees have, from which on few are looked at together
FEW = 64  # of them
CELLS = 1 << 24  # of rows that are scored together


@dataclass
class Recorder:
    """The curve of a run, a list of points, and seconds by stage."""

    problem: Problem
    y_train: Tensor  # (N,)
    y_test: Tensor
    progress: Observer  # told of every event
    # When: after all "epochs"; at the "end", of test rows alone; or "nothing".
    evaluation: str
    server: Parties  # who asks for embeddings
    parties: Sequence[Party] = ()  # whose features in use are asked for, in process
    bits: int = 32  # of a value that is asked for at the end
    scored: Callable[[float, str], None] = lambda value, name: None
    # Given, at the end, what the network says of the test rows, (n, outputs).
    tested: Callable[[Tensor], None] | None = None
    state: Recorded = field(default_factory=Recorded)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._last = time.perf_counter()

    @property
    def task(self) -> Task:
        """Return the task."""
        return self.problem.task

    def __call__(self, event: Event) -> None:
        """Record the time of a stage, and a point of the curve where networks fit."""
        self.clock(event.stage)
        self.progress(event)
        is_due = {"epochs": True, "end": _is_last(event), "nothing": False}
        if event.fusion is not None and is_due[self.evaluation]:
            self._add_points(event)
            self.clock("evaluate")

    def clock(self, stage: str) -> None:
        """Put the time since the last call on a stage's account."""
        now, seconds = time.perf_counter(), self.state.seconds
        seconds[stage] = seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def _add_points(self, event: Event) -> None:
        last = _is_last(event)
        at_end = self.evaluation == "end"
        bits = self.bits if at_end else 32
        of_train = _Asked(self.server, "train", len(self.y_train), bits, last)
        of_test = _Asked(self.server, "test", len(self.y_test), bits, last)
        train: Scores = {}
        test: Scores = {}
        averaged = of_train
        if event.outputs is not None:
            last = False  # nobody's part is known: it cannot be left out
        elif at_end and of_test.n_rows:
            averaged = of_test
        else:
            (outputs,) = self._outputs(event, of_train)
            train = self._measure(outputs, self.y_train, {self.problem.score})
        means = averaged.means() if last else []
        without: list[Scores] = []
        if of_test.n_rows:
            every = self._outputs(event, of_test, means)
            test, *without = (self._measure(z, self.y_test) for z in every)
            if _is_last(event):
                self._look_at_tests(every, [test, *without])
        elif means:
            every = self._outputs(event, of_train, means)
            without = [self._measure(z, self.y_train) for z in every[1:]]
        if means:
            names = self.server.names
            self.state.means = dict(zip(names, means, strict=True))
            self.state.without = dict(zip(names, without, strict=True))
        name, removed = self.problem.score, self._removed_share()
        point = curve_point(event, self.task, name, test, train, removed)
        self.state.curve.append(point | costs(self.server.ledger))
        if point[name] is not None:
            self.scored(point[name], name)

    def _look_at_tests(
        self, outputs: Sequence[Tensor], scores: Sequence[Scores]
    ) -> None:
        """Keep what is predicted for test rows, and how far scores may be off.

        Outputs (n, C) and scores are those with all parties, and then without each.
        """
        offsets = self._offsets(outputs[0])
        if self.task != "regression":
            shares = metrics.predicted_shares(outputs[0], offsets)
            self.state.predicted = shares.tolist()
        if self.tested is not None:
            self.tested(outputs[0])
        rows = bootstrap.ResampledRows(
            self.y_test,
            self.task,
            self.problem.positive,
            offsets,
            self.problem.test_blocks,
        )
        self.state.intervals, added = bootstrap.score_intervals(
            rows, outputs, scores, self.problem.score
        )
        if added:
            self.state.missed = dict(zip(self.server.names, added, strict=True))

    def _outputs(
        self, event: Event, asked: _Asked, means: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Return the outputs (N, C) for all rows, and with each block at its mean."""
        if event.outputs is not None:
            if len(event.outputs) != asked.n_rows:
                raise ProtocolError(
                    f"Parties must say something of all {asked.n_rows} test rows. Got "
                    f"{len(event.outputs)}."
                )
            return [event.outputs]
        every: list[list[Tensor]] = [[] for _ in range(1 + len(means))]
        for part, blocks in asked:
            n_rows = part.stop - part.start
            every[0].append(self._fuse(event, blocks, n_rows))
            for m, mean in enumerate(means):
                same = mean.to(blocks[m]).expand_as(blocks[m])
                others = [*blocks[:m], same, *blocks[m + 1 :]]
                every[1 + m].append(self._fuse(event, others, n_rows))
        return [torch.cat(outputs) for outputs in every]

    def _fuse(self, event: Event, blocks: Sequence[Tensor], n_rows: int) -> Tensor:
        """Return the fusion network's outputs (n, C) for the embeddings `blocks`."""
        assert event.fusion is not None
        with torch.no_grad():
            z = torch.cat([event.fusion(H) for H in _joined(blocks)])
            z = z.expand(n_rows, -1)
        self._refuse_infinite(event, [*blocks, z])
        return z

    def _measure(
        self, z: Tensor, y: Tensor, names: Collection[str] | None = None
    ) -> Scores:
        """Return the scores of outputs `z` (n, C) for labels `y`; of `names` alone."""
        measured = metrics.measure(
            z, y, self.task, self._offsets(z), names, self.problem.positive
        )
        return {name: metrics.defined(float(v)) for name, v in measured.items()}

    def _offsets(self, z: Tensor) -> Tensor | None:
        """Return what is added to logits to decide on a class, (outputs,)."""
        if self.problem.threshold is None:
            return None
        return z.new_tensor(
            metrics.decision_offsets(self.problem.threshold, z.shape[1])
        )

    def _refuse_infinite(self, event: Event, outputs: Sequence[Tensor]) -> None:
        """Refuse a last output, the server's, that is not finite.

        `outputs` are of all parties in order, then of the server; the error names the
        first of them that is not finite.
        """
        if bool(outputs[-1].isfinite().all()):
            return
        who = [*(f"party '{name}'" for name in self.server.names), "the server"]
        finite = [bool(values.isfinite().all()) for values in outputs]
        raise DivergenceError(
            f"The output of {who[finite.index(False)]} must stay finite. It diverged "
            f"in stage '{event.stage}' at the last step of epoch {event.epoch:g}; a "
            "smaller step size or learning rate, or scaled columns, may help."
        )

    def _removed_share(self) -> float | None:
        """Return the share of planted features that are gone."""
        masks = [party.features_now().cpu().numpy() for party in self.parties]
        return removed_share(self.problem.parties, masks)


def _is_last(event: Event) -> bool:
    """Tell whether a run is over with this epoch."""
    return event.stage == "train" and event.epoch >= event.n_epochs


class _Asked:
    """The embeddings of all training or test rows, asked for part by part.

    One part is asked for once; of several, one at a time is in memory. Means are taken
    on the way where they are wanted.
    """

    def __init__(
        self,
        server: Parties,
        rows: Literal["train", "test"],
        n_rows: int,
        bits: int,
        average: bool,
    ) -> None:
        self.n_rows = n_rows
        self._average = average
        self._ask = functools.partial(server.embed, "evaluate", rows, bits=bits)
        self._parts = parts(n_rows)
        self._only: list[Tensor] = []
        self._seen: list[list[tuple[Tensor, Tensor, Tensor]]] = []

    def __iter__(self) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield each part and the block that every party has of it."""
        self._seen = []
        for number, part in enumerate(self._parts):
            blocks = self._only or self._ask(part=number)
            if len(self._parts) == 1:
                self._only = blocks
            if self._average:
                self._seen.append([_mean(block) for block in blocks])
            yield part, blocks

    def means(self) -> list[Tensor]:
        """Return every party's mean (E_m,) over the rows.

        The mean of equal values is that value, to the last bit.
        """
        if not self._seen:
            for _ in self:
                pass
        shares = [(part.stop - part.start) / self.n_rows for part in self._parts]
        means = []
        for of_party in zip(*self._seen, strict=True):
            first = of_party[0][1]
            same = torch.stack(
                [alike & (one == first) for _, one, alike in of_party]
            ).all(dim=0)
            mean = of_party[0][0]
            if len(of_party) > 1:
                both = zip(shares, of_party, strict=True)
                mean = torch.stack([share * one[0] for share, one in both]).sum(dim=0)
            means.append(torch.where(same, first, mean))
        return means


def _joined(blocks: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the fusion network's input, all blocks side by side, by parts of rows."""
    n_components = sum(block.shape[1] for block in blocks)
    if n_components <= MANY:
        yield concatenate(blocks)
        return
    by_component = blocks[0].stride(0) == 1  # as trees give them: copied as they lie
    n_rows = max(1, CELLS // n_components)
    for some in zip(*(torch.split(b, n_rows) for b in blocks), strict=True):
        if by_component:
            yield torch.cat([block.T for block in some]).T
        else:
            yield concatenate(some)


def _mean(block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean over the rows, the first row, and where all equal it, (E,)."""
    if block.shape[1] > MANY:
        turned = torch.split(block.T, FEW)
        parts = zip(*(_mean_over(some, 1) for some in turned), strict=True)
        mean, first, same = (torch.cat(part) for part in parts)
        return mean, first, same
    return _mean_over(block, 0)


def _mean_over(block: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same of a block whose rows are along that axis."""
    block = block.double().contiguous()  # so that every transport gives the same bits
    first = block.select(rows, 0)
    same = (block == first.unsqueeze(rows)).all(dim=rows)
    return block.mean(dim=rows), first.clone(), same  # no view of all rows
