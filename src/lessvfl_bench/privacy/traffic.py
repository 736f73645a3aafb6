"""The messages of a run as they were carried, and what one side sees of them.

:class:`Recording` stands around a transport, in one process or between machines. A view
holds what one side has in a run: of a party its own columns, the gradients that it was
sent and the embeddings that it sent; of the server its labels and all embeddings. Rows
of a step are derived from plan and shared seeds, as both sides derive them.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.plans import Batches, Rows, parts, sample_rows
from lessvfl.data import PartyTable, Problem
from lessvfl.run.fitted import FittedParty
from lessvfl.terms import PartyId
from lessvfl.wire import messages
from lessvfl.wire.parties import bill_line

AnyArray = np.ndarray[Any, Any]
Looks = dict[tuple[str, int], AnyArray]  # (N, E) by stage and epoch; NaN: not seen
SCORING = "evaluate"  # the stage whose messages only scores need
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Carried:
    """One exchange: what was asked, what was answered, and how long it took."""

    requests: Mapping[PartyId, messages.Request]
    replies: Mapping[PartyId, messages.Reply]
    seconds: Mapping[PartyId, float]


@dataclass
class Recording:
    """A transport that keeps what another one carries; `around` names the other.

    With `one_by_one` parties are asked one after the other, so that each one's time is
    its own; otherwise it is that of all.
    """

    one_by_one: bool = False
    inner: messages.Transport | None = None
    carried: list[Carried] = field(default_factory=list)

    def around(self, transport: messages.Transport) -> Recording:
        """Record another transport from now on, and forget what was carried before."""
        self.inner, self.carried = transport, []
        return self

    @property
    def _transport(self) -> messages.Transport:
        assert self.inner is not None
        return self.inner

    def exchange(
        self, requests: Mapping[PartyId, messages.Request]
    ) -> dict[PartyId, messages.Reply]:
        """Let the other transport carry messages, and keep copies of them."""
        sent = {name: _copied(request) for name, request in requests.items()}
        groups = (
            [{n: r} for n, r in requests.items()] if self.one_by_one else [requests]
        )
        replies: dict[PartyId, messages.Reply] = {}
        seconds: dict[PartyId, float] = {}
        for group in groups:
            began = time.perf_counter()
            replies |= self._transport.exchange(group)
            seconds |= dict.fromkeys(group, time.perf_counter() - began)
        back = {name: _copied(reply) for name, reply in replies.items()}
        self.carried.append(Carried(sent, back, seconds))
        return replies

    def close(self) -> None:
        """Close the other transport."""
        self._transport.close()


def _copied(message: Any) -> Any:
    """Return a message whose tensors nobody changes later."""
    if isinstance(message, messages.Descend):
        return dataclasses.replace(message, gradient=_copied(message.gradient))
    if isinstance(message, messages.Embedding):
        return dataclasses.replace(message, block=_copied(message.block))
    if isinstance(message, messages.Block):
        return dataclasses.replace(message, values=message.values.detach().clone())
    if isinstance(message, messages.Query | messages.QueryReply):
        arrays = tuple(array.detach().clone() for array in message.arrays)
        return dataclasses.replace(message, arrays=arrays)
    return message


@dataclass
class LargerSteps:
    """A transport to a party that takes larger steps than it is told to.

    The malicious optimiser of active model completion, in its simplest form: the party
    multiplies the learning rate of every plan, so that the joint model leans on it.
    """

    inner: messages.Transport
    party: PartyId
    factor: float

    def exchange(
        self, requests: Mapping[PartyId, messages.Request]
    ) -> dict[PartyId, messages.Reply]:
        """Carry messages; this party reads a larger rate."""
        request = requests.get(self.party)
        if isinstance(request, messages.Begin):
            rate = request.plan.learning_rate * self.factor
            plan = dataclasses.replace(request.plan, learning_rate=rate)
            larger = dataclasses.replace(request, plan=plan)
            requests = {**requests, self.party: larger}
        return self.inner.exchange(requests)

    def close(self) -> None:
        """Close the transport to all parties."""
        self.inner.close()


@dataclass(frozen=True)
class Shared:
    """What every side of a run knows: seed, number of rows, and rows that are alike."""

    seed: int
    n_rows: int
    blocks: AnyArray | None = None  # of the training rows; None: every row is alone

    @classmethod
    def of(cls, problem: Problem, seed: int) -> Shared:
        """Return it of one seed's rows."""
        return cls(seed, len(problem.y_train), problem.blocks)

    def batches(self, plan: Any) -> Batches:
        """Return the batches of a stage."""
        blocks = None if self.blocks is None else torch.as_tensor(self.blocks)
        batches: Batches = plan.batches(self.n_rows, self.seed, blocks)
        return batches


@dataclass(frozen=True)
class PartyView:
    """What one party sees in a run, beside what it has anyway."""

    party: PartyId
    X: AnyArray  # its own columns of the training rows, (N, d)
    gradients: Looks  # of each row's own loss
    learnt: AnyArray  # its own embeddings as its network makes them last, (N, E)


@dataclass(frozen=True)
class ServerView:
    """What the server sees in a run, beside its labels."""

    embeddings: Mapping[PartyId, Looks]
    silent: Mapping[PartyId, bool]  # who said that it kept nothing
    widths: Mapping[PartyId, tuple[int, int]]  # components at first, and at last
    n_bytes: Mapping[PartyId, int]  # both ways
    seconds: Mapping[PartyId, Mapping[str, float]]  # of answers, by stage


@dataclass(frozen=True)
class _Seen:
    """Values of some rows that went one way."""

    way: Literal["up", "down"]
    key: tuple[str, int]  # stage and epoch
    rows: AnyArray
    values: AnyArray  # (n, E)


def party_view(
    recording: Recording, shared: Shared, table: PartyTable, model: FittedParty
) -> PartyView:
    """Return what one party sees in a run that was recorded, and what it ends with."""
    seen = _replay(recording.carried, shared, table.name)
    learnt = own_embeddings(table, model)
    if learnt is None:  # the last that it sent
        sent = _looks([one for one in seen if one.way == "up"], shared)
        learnt = last_of(sent) if sent else np.zeros((len(table.X_train), 1))
    gradients = gradients_of(recording, shared, table.name)
    return PartyView(table.name, table.X_train, gradients, learnt)


def gradients_of(recording: Recording, shared: Shared, party: PartyId) -> Looks:
    """Return the gradients of each row's own loss that a party was sent."""
    down = [
        dataclasses.replace(one, values=one.values * len(one.rows))  # dL is of a mean
        for one in _replay(recording.carried, shared, party)
        if one.way == "down"
    ]
    return _looks(down, shared)


def own_embeddings(table: PartyTable, model: FittedParty) -> AnyArray | None:
    """Return a party's embeddings (N, E) as its network makes them last.

    Without what is done to them on their way; None of one that kept nothing.
    """
    if model.constant is not None or not model.kept:
        return None
    kept = np.isin(np.asarray(table.features)[table.groups], model.kept)
    weights = model.net.input_weights
    rows = torch.as_tensor(table.X_train[:, kept], dtype=weights.dtype)
    with torch.no_grad():
        found: AnyArray = model.net(rows).double().cpu().numpy()
    return found


def last_of(looks: Looks) -> AnyArray:
    """Return the values of every row in the last look at it.

    Looks of another width than the last are left out; what no look has is the mean.
    """
    n_components = list(looks.values())[-1].shape[1]
    last = np.full((len(next(iter(looks.values()))), n_components), np.nan)
    for look in looks.values():
        if look.shape[1] == n_components:
            last = np.where(np.isnan(look), last, look)
    return np.where(np.isnan(last), np.nanmean(last, axis=0), last)


def server_view(
    recording: Recording, shared: Shared, parties: Sequence[PartyId]
) -> ServerView:
    """Return what the server sees in a run that was recorded, but for its scores."""
    carried = recording.carried
    embeddings, widths = {}, {}
    silent, n_bytes = dict.fromkeys(parties, False), dict.fromkeys(parties, 0)
    for party in parties:
        up = [s for s in _replay(carried, shared, party) if s.way == "up"]
        embeddings[party] = _looks(up, shared)
        sizes = [one.values.shape[1] for one in up]
        widths[party] = (sizes[0], sizes[-1]) if sizes else (0, 0)
    for one in carried:
        both = (*one.requests.items(), *one.replies.items())
        for party, message in both:
            line = bill_line(party, message)
            if line is not None and line.stage != SCORING:
                n_bytes[party] += line.payload_bytes
            if isinstance(message, messages.Done):
                silent[party] = message.silent
    seconds = {party: _seconds(carried, party) for party in parties}
    return ServerView(embeddings, silent, widths, n_bytes, seconds)


def _seconds(carried: Sequence[Carried], party: PartyId) -> dict[str, float]:
    """Return how long a party took to answer, by stage."""
    total: dict[str, float] = {}
    for one in carried:
        request = one.requests.get(party)
        if request is not None and messages.is_billed(request):
            stage = request.stage
            total[stage] = total.get(stage, 0.0) + one.seconds[party]
    return total


def _looks(seen: Sequence[_Seen], shared: Shared) -> Looks:
    """Put the values of an epoch together, (N, E)."""
    looks: Looks = {}
    for one in seen:
        n_components = one.values.shape[1]
        unseen = np.full((shared.n_rows, n_components), np.nan)
        looks.setdefault(one.key, unseen)[one.rows] = one.values
    return {key: look for key, look in looks.items() if look.shape[1]}


def _replay(
    carried: Sequence[Carried], shared: Shared, party: PartyId
) -> Iterator[_Seen]:
    """Yield what went between server and party, with its rows, scores left out."""
    steps: Iterator[tuple[int, Rows]] = iter(())
    batches: Batches | None = None
    now: tuple[int, Rows] | None = None
    stage = ""
    for one in carried:
        request, reply = one.requests.get(party), one.replies.get(party)
        if isinstance(request, messages.Begin):
            stage, batches = request.plan.stage, shared.batches(request.plan)
            every = batches.steps(request.plan.n_epochs, CPU)
            steps = itertools.islice(every, request.done, None)
            now = next(steps, None)
        elif isinstance(request, messages.Descend) and now is not None:
            epoch, rows = now
            values = _values(request.gradient.values)
            yield _Seen("down", (stage, epoch), _places(rows, shared), values)
            now = None if request.last else next(steps, None)
        if not isinstance(reply, messages.Embedding):
            continue
        values = _values(reply.block.values)
        if not isinstance(request, messages.Embed) and now is not None:
            epoch, rows = now
            yield _Seen("up", (stage, epoch), _places(rows, shared), values)
        elif isinstance(request, messages.Embed) and request.rows == "train":
            if request.stage == SCORING:
                continue
            held_out = batches if now is not None and request.stage == stage else None
            rows = _asked(request, shared, held_out)
            name = f"{request.stage}, held out" if held_out else request.stage
            number = now[0] if held_out and now is not None else 0
            yield _Seen("up", (name, number), _places(rows, shared), values)


def _asked(request: messages.Embed, shared: Shared, training: Batches | None) -> Rows:
    """Return the rows that a server asks for outside of a step."""
    if request.n_rows is None:
        return parts(shared.n_rows)[request.part]
    if training is not None:
        return training.held_out
    return sample_rows(shared.n_rows, request.n_rows, shared.seed)


def _values(values: Tensor) -> AnyArray:
    """Return values as float64."""
    return values.double().cpu().numpy()


def _places(rows: Rows, shared: Shared) -> AnyArray:
    if isinstance(rows, slice):
        return np.arange(shared.n_rows)[rows]
    return rows.cpu().numpy()
