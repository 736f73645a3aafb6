"""Typed calls for the algorithm, and the one place where bytes are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lessvfl.core.plans import SelectPlan, ShadowPlan, TrainPlan, parts
from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId, Stage, plural
from lessvfl.wire import coding, messages
from lessvfl.wire.ledger import BillLine, Direction, Ledger


def bill_line(
    party: PartyId, message: messages.Request | messages.Reply
) -> BillLine | None:
    """Return the line of the bill for a message to or from `party`; None: no cost."""
    match message:
        case messages.Descend(stage, block):
            return _line(party, "down", stage, "gradient", block)
        case messages.Select(components, plan) if components is not None:
            n = len(components)
            return BillLine(party, "down", plan.stage, "components", 4 * n, n)
        case messages.Embedding(stage, block, ahead):
            return _line(party, "up", stage, "embedding", block, ahead=ahead)
        case messages.Done(stage, _, constant) if constant is not None:
            return _line(party, "up", stage, "constant", constant)
        case messages.Query(stage, _, arrays) if arrays:
            return _line(party, "down", stage, "query", *arrays)
        case messages.QueryReply(stage, arrays):
            return _line(party, "up", stage, "answer", *arrays)
    return None


def _line(
    party: PartyId,
    direction: Direction,
    stage: Stage,
    kind: str,
    *parts: messages.Block | Tensor,
    ahead: bool = False,
) -> BillLine:
    """Return the line of blocks in as many bits as sent, or of arrays as they are."""
    n_bytes = n_values = 0
    for part in parts:
        if isinstance(part, Tensor):
            n_bytes, n_values = n_bytes + part.nbytes, n_values + part.numel()
        else:
            n, bits = part.values.numel(), part.bits
            ends = coding.END_BYTES if bits < 32 and n else 0
            n_bytes, n_values = n_bytes + coding.n_bytes(n, bits) + ends, n_values + n
    return BillLine(party, direction, stage, kind, n_bytes, n_values, ahead)


@dataclass
class PartiesState:
    """What changes of all parties in a run, as the server knows it."""

    described: dict[PartyId, int]  # components that parties had at the start
    sizes: dict[PartyId, int]  # of now
    components: dict[PartyId, Tensor]  # (E_m,), which of those at the start are left
    constants: dict[PartyId, Tensor]  # (E_m,), of silent parties
    ledger: Ledger


@dataclass
class Parties:
    """All parties behind a transport, in typed calls for the algorithm.

    Every message passes :meth:`_exchange`: the one place where bytes are counted.
    """

    transport: messages.Transport
    names: Sequence[PartyId]  # in the order of their blocks in the fusion network
    ledger: Ledger  # takes the bill
    watch: Callable[[BillLine], None] = lambda line: None  # told of every message
    sizes: dict[PartyId, int] = field(init=False)
    n_samples: int = field(init=False)
    constants: dict[PartyId, Tensor] = field(init=False)  # of silent parties
    components: dict[PartyId, Tensor] = field(init=False)  # of those at the start
    _described: dict[PartyId, int] = field(init=False)  # sizes at the start

    def __post_init__(self) -> None:
        """Ask every party to describe itself; refuse another version or row count."""
        replies = self.transport.exchange(
            {name: messages.Describe() for name in self.names}
        )
        self.sizes = {}
        first: messages.Description | None = None
        for name in self.names:
            reply = replies[name]
            if (
                not isinstance(reply, messages.Description)
                or reply.version != messages.VERSION
            ):
                raise ProtocolError(
                    f"Party '{name}' must speak protocol version {messages.VERSION}. "
                    f"Got {getattr(reply, 'version', type(reply).__name__)}."
                )
            first = first or reply
            if reply.n_samples != first.n_samples:
                raise ProtocolError(
                    f"Party '{name}' must hold {first.n_samples} training rows, as "
                    f"'{first.party}' does. Got {reply.n_samples}."
                )
            self.sizes[name] = reply.embedding_size
        assert first is not None
        self.n_samples = first.n_samples
        self.constants = {}
        self.components = {name: _everything(n) for name, n in self.sizes.items()}
        self._described = dict(self.sizes)

    def begin(self, plan: TrainPlan, done: int = 0) -> list[Tensor]:
        """Start a stage of training; return the first batch's blocks (b, E_m).

        After `done` steps, the blocks of the next batch are sent again; they have been
        billed already.
        """
        requests = dict.fromkeys(self.active(), messages.Begin(plan, done))
        if done > 0:
            return self._blocks(self.transport.exchange(requests))
        return self._blocks(self._exchange(requests))

    def descend(
        self,
        plan: TrainPlan,
        step: int,
        seed: int,
        gradient: Tensor,
        rate: float = 1.0,
        last: bool = False,
    ) -> list[Tensor]:
        """Send dL/dH (b, E); return the next batch's blocks, none at the end."""
        sizes = [self.sizes[name] for name in self.names]
        parts = dict(zip(self.names, torch.split(gradient, sizes, dim=1), strict=True))
        requests: dict[PartyId, messages.Billed] = {}
        for name in self.active():
            place, values = ("down", plan.stage, name, step), parts[name].contiguous()
            block = messages.Block.in_bits(values, plan.bits, seed, *place)
            requests[name] = messages.Descend(plan.stage, block, rate, last)
        replies = self._exchange(requests)
        if any(isinstance(reply, messages.Done) for reply in replies.values()):
            self._finish(replies)
            return []
        return self._blocks(replies)

    def embed(
        self,
        stage: Stage,
        rows: Literal["train", "test"],
        n_rows: int | None = None,
        bits: int = 32,
        part: int = 0,
    ) -> list[Tensor]:
        """Return the blocks (N, E_m) of a part of the rows in order, or of some."""
        requests = dict.fromkeys(
            self.active(), messages.Embed(stage, rows, n_rows, bits, part)
        )
        return self._blocks(self._exchange(requests))

    def embed_all(self, bits: int) -> Tensor:
        """Return the embeddings of all training rows, (N, E): H of stage 2."""
        n_parts = len(parts(self.n_samples))
        blocks = (
            self.embed("embed", "train", bits=bits, part=part)
            for part in range(n_parts)
        )
        joined = [concatenate(some) for some in blocks]
        return joined[0] if n_parts == 1 else torch.cat(joined)

    def select_features(
        self, kept: Tensor | None, plan: SelectPlan | ShadowPlan
    ) -> None:
        """Send K_m out of `kept` (E,), or None for all; every party selects alone."""
        masks: dict[PartyId, Tensor | None] = dict.fromkeys(self.active())
        if kept is not None:
            sizes = [self.sizes[name] for name in self.names]
            masks = dict(zip(self.names, torch.split(kept, sizes), strict=True))
        requests: dict[PartyId, messages.Billed] = {}
        for name, mask in masks.items():
            components = None
            if mask is not None:
                components = tuple(mask.nonzero().flatten().tolist())
                self.sizes[name] = len(components)
                self.components[name] = mask.cpu()
            requests[name] = messages.Select(components, plan)
        self._finish(self._exchange(requests))

    def query(
        self,
        stage: Stage,
        step: int | Mapping[PartyId, int],
        arrays: Mapping[PartyId, Sequence[Tensor]],
        expects: Mapping[PartyId, Sequence[messages.ArrayFormat]],
    ) -> dict[PartyId, tuple[Tensor, ...]]:
        """Take a step of a method's own protocol with some parties; return answers.

        Where parties were not all asked as often, `step` is that of each.
        """
        answers: dict[PartyId, tuple[Tensor, ...]] = {}
        for name, reply in self._query(stage, step, arrays, expects).items():
            if not isinstance(reply, messages.QueryReply):
                raise ProtocolError(
                    f"Party '{name}' must answer a query. Got {type(reply).__name__}."
                )
            answers[name] = reply.arrays
        return answers

    def _query(
        self,
        stage: Stage,
        step: int | Mapping[PartyId, int],
        arrays: Mapping[PartyId, Sequence[Tensor]],
        expects: Mapping[PartyId, Sequence[messages.ArrayFormat]] | None = None,
    ) -> Mapping[PartyId, messages.Reply]:
        """Send queries, without formats the last ones."""
        steps = dict.fromkeys(arrays, step) if isinstance(step, int) else step
        return self._exchange(
            {
                name: messages.Query(
                    stage,
                    steps[name],
                    tuple(sent),
                    None if expects is None else tuple(expects[name]),
                )
                for name, sent in arrays.items()
            }
        )

    def resize(self, sizes: Mapping[PartyId, int]) -> None:
        """Learn that parties have other components from the end of a stage on."""
        for name, size in sizes.items():
            self.sizes[name] = size
            self.components[name] = _everything(size)

    def query_last(
        self,
        stage: Stage,
        step: int | Mapping[PartyId, int],
        arrays: Mapping[PartyId, Sequence[Tensor]],
    ) -> None:
        """Take the last step of a protocol: every party selects its features."""
        self._finish(self._query(stage, step, arrays))

    @property
    def state(self) -> PartiesState:
        """Return what changes in a run."""
        return PartiesState(
            self._described, self.sizes, self.components, self.constants, self.ledger
        )

    def resume(self, state: PartiesState) -> None:
        """Go on with what :attr:`state` was, with the same parties."""
        for name, size in state.described.items():
            if size != self.sizes[name]:
                raise ProtocolError(
                    f"Party '{name}' must have {plural(size, 'component')}, as "
                    f"before the break. Got {self.sizes[name]}."
                )
        self.sizes, self.components = state.sizes, state.components
        self.constants, self.ledger = state.constants, state.ledger

    def charge_pass(self) -> None:
        """Charge the paper's figure, not the bill, for one pass over all rows."""
        for name in self.names:
            self.ledger.charge_pass(self.sizes[name] * self.n_samples)

    def active(self) -> list[PartyId]:
        """Return the parties that contribute more than a constant."""
        return [name for name in self.names if name not in self.constants]

    def silent(self) -> list[PartyId]:
        """Return the parties that kept nothing, and give a constant."""
        return [name for name in self.names if name in self.constants]

    def _exchange(
        self, requests: Mapping[PartyId, messages.Billed]
    ) -> dict[PartyId, messages.Reply]:
        """Send each party its request, return all replies, and put both on the bill."""
        if not requests:
            return {}
        self.ledger.bill_round(next(iter(requests.values())).stage)
        self._bill(requests)
        replies = self.transport.exchange(requests)
        self._bill(replies)
        return replies

    def _bill(
        self, messages: Mapping[PartyId, messages.Request | messages.Reply]
    ) -> None:
        for party, message in messages.items():
            line = bill_line(party, message)
            if line is not None:
                self.ledger.bill(line)
                self.watch(line)

    def _blocks(self, replies: Mapping[PartyId, messages.Reply]) -> list[Tensor]:
        """Return one block a party; a silent party's is its constant."""
        blocks: dict[PartyId, Tensor] = {}
        n_rows = 1
        for name, reply in replies.items():
            if not isinstance(reply, messages.Embedding):
                raise ProtocolError(
                    f"Party '{name}' must reply with an embedding. "
                    f"Got {type(reply).__name__}."
                )
            blocks[name] = reply.block.values
            n_rows = len(blocks[name])
        for name in self.silent():
            blocks[name] = self.constants[name].expand(n_rows, -1)
        return [blocks[name] for name in self.names]

    def _finish(self, replies: Mapping[PartyId, messages.Reply]) -> None:
        for name, reply in replies.items():
            if not isinstance(reply, messages.Done):
                raise ProtocolError(
                    f"Party '{name}' must end the stage as the others do. "
                    f"Got {type(reply).__name__}."
                )
            if reply.constant is not None:
                self.constants[name] = reply.constant.values


def concatenate(blocks: Sequence[Tensor]) -> Tensor:
    """Join the parties' blocks into the fusion network's input, (n, E)."""
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=1)


def _everything(n_components: int) -> Tensor:
    return torch.ones(n_components, dtype=torch.bool)
