"""Typed calls for the algorithm, and the one place where bytes are counted."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from lessvfl.core.plans import SelectPlan, ShadowPlan, TrainPlan
from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId, Stage
from lessvfl.wire import coding
from lessvfl.wire.ledger import Direction, Entry, Ledger
from lessvfl.wire.messages import (
    VERSION,
    Begin,
    Billed,
    Block,
    Descend,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Reply,
    Request,
    Select,
    Transport,
)


@dataclass
class Metered:
    """A transport that bills every message: the one place where bytes are counted."""

    transport: Transport
    ledger: Ledger

    def exchange(
        self,
        requests: Mapping[PartyId, Billed],
        live: Mapping[PartyId, tuple[bool, ...]],
    ) -> dict[PartyId, Reply]:
        """Exchange and bill; `live` tells which replicas each party takes part in."""
        if not requests:
            return {}
        stage = next(iter(requests.values())).stage
        n_replicas = self.ledger.n_replicas
        taking_part = [
            any(live[party][replica] for party in requests)
            for replica in range(n_replicas)
        ]
        self.ledger.bill_round(stage, taking_part)
        self.ledger.bill(
            entry
            for party, request in requests.items()
            for entry in _entries(party, request, live[party])
        )
        replies = self.transport.exchange(requests)
        self.ledger.bill(
            entry
            for party, reply in replies.items()
            for entry in _entries(party, reply, live[party])
        )
        return replies


def _entries(
    party: PartyId, message: Request | Reply, live: tuple[bool, ...]
) -> list[Entry]:
    """Return what a message costs every replica."""
    match message:
        case Descend(stage, block):
            return [_entry(party, "down", stage, "gradient", _size(block), live)]
        case Select(components, plan) if components is not None:
            counts = tuple(len(kept) for kept in components)
            return [_entry(party, "down", plan.stage, "components", (counts, 32), live)]
        case Embedding(stage, block, ahead, stable):
            size = _size(block)
            entries = [_entry(party, "up", stage, "embedding", size, live, ahead)]
            if stable is not None:
                bits = tuple(coding.n_bytes(int(on), 1) for on in live)
                nothing = (0,) * len(live)
                entries.append(Entry(party, "up", stage, "stable", bits, nothing))
            return entries
        case Done(stage, _, constant) if constant is not None:
            return [_entry(party, "up", stage, "constant", _size(constant), live)]
    return []


def _size(block: Block) -> tuple[tuple[int, ...], int]:
    return block.n_values(), block.bits


@functools.lru_cache(maxsize=4096)
def _entry(
    party: PartyId,
    direction: Direction,
    stage: Stage,
    kind: str,
    size: tuple[tuple[int, ...], int],
    live: tuple[bool, ...],
    ahead: bool = False,
) -> Entry:
    """Return one line of the bill; the same message costs the same every step."""
    counts, bits = size
    values = tuple(n * on for n, on in zip(counts, live, strict=True))
    ends = coding.END_BYTES if bits < 32 else 0
    paid = tuple(coding.n_bytes(n, bits) + ends * (n > 0) for n in values)
    return Entry(party, direction, stage, kind, paid, values, ahead)


@dataclass
class Parties:
    """All parties behind a transport, in typed calls for the algorithm.

    Parameters
    ----------
    transport : Transport
        Carries the messages.
    names : sequence of str
        The parties, in the order of their blocks in the fusion network's input.
    ledger : Ledger
        Takes the bill.
    """

    transport: Transport
    names: Sequence[PartyId]
    ledger: Ledger
    sizes: dict[PartyId, int] = field(init=False)
    n_samples: int = field(init=False)
    is_stable: bool = field(init=False)  # all parties said so with their last blocks
    _metered: Metered = field(init=False)
    _widths: dict[PartyId, tuple[int, ...]] = field(init=False)
    _silent: dict[PartyId, tuple[bool, ...]] = field(init=False)
    _constants: dict[PartyId, Tensor] = field(init=False)
    _masks: dict[PartyId, Tensor] = field(init=False)  # components of every replica

    def __post_init__(self) -> None:
        """Shake hands: versions and numbers of rows must agree."""
        replies = self.transport.exchange({name: Describe() for name in self.names})
        self.sizes = {}
        first: Description | None = None
        for name in self.names:
            reply = replies[name]
            if not isinstance(reply, Description) or reply.version != VERSION:
                raise ProtocolError(
                    f"Party '{name}' must speak protocol version {VERSION}. "
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
        self._metered = Metered(self.transport, self.ledger)
        n_replicas = self.ledger.n_replicas
        self._widths = {name: (self.sizes[name],) * n_replicas for name in self.names}
        self._silent = dict.fromkeys(self.names, (False,) * n_replicas)
        self._constants = {}
        self.is_stable = False
        self._masks = {
            name: torch.ones(n_replicas, size, dtype=torch.bool)
            for name, size in self.sizes.items()
        }

    def begin(self, plan: TrainPlan, done: int = 0) -> list[Tensor]:
        """Start a stage of training; return the first batch's blocks (R, b, E_m).

        With `done` steps behind, the blocks of the next batch are sent again: they are
        on the bill already.
        """
        requests = dict.fromkeys(self._awake(), Begin(plan, done))
        if done > 0:
            return self._blocks(self.transport.exchange(requests))
        return self._blocks(self._exchange(requests))

    def descend(
        self,
        plan: TrainPlan,
        step: int,
        seeds: Sequence[int],
        gradients: Sequence[Tensor],
        last: bool = False,
    ) -> list[Tensor] | None:
        """Send dL/dh; return the next batch's blocks, or None after the last step.

        With `last` the stage ends here.
        """
        stage = plan.stage
        requests: dict[PartyId, Billed] = {
            name: Descend(
                stage,
                Block.in_bits(
                    gradient,
                    self._widths[name],
                    plan.bits,
                    self._masks[name],
                    seeds,
                    *("down", stage, name, step),
                ),
                last,
            )
            for name, gradient in zip(self.names, gradients, strict=True)
            if name in self._awake()
        }
        replies = self._exchange(requests)
        if any(isinstance(reply, Done) for reply in replies.values()):
            self._finish(replies)
            return None
        return self._blocks(replies)

    def embed(
        self,
        stage: Stage,
        rows: Literal["train", "test"],
        n_rows: int | None = None,
        bits: int = 32,
    ) -> list[Tensor]:
        """Return the blocks (R, N, E_m) of all training or test rows, or of some."""
        requests = dict.fromkeys(self._awake(), Embed(stage, rows, n_rows, bits))
        return self._blocks(self._exchange(requests))

    def select_features(
        self, kept: Tensor | None, plan: SelectPlan | ShadowPlan
    ) -> None:
        """Send K_m out of `kept` (R, E), or None for all; every party selects alone."""
        requests: dict[PartyId, Billed] = {}
        for name, mask in self._by_party(kept).items():
            components = None
            if mask is not None:
                components = tuple(
                    tuple(int(k) for k in row.nonzero().flatten()) for row in mask.cpu()
                )
                self.sizes[name] = int(mask.any(dim=0).sum())
                self._widths[name] = tuple(len(some) for some in components)
                self._masks[name] = mask[:, mask.any(dim=0)].cpu()
            requests[name] = Select(components, plan)
        self._finish(self._exchange(requests))

    def look_again(self, plan: ShadowPlan) -> None:
        """Have every party that still takes part select once more."""
        self._finish(self._exchange(dict.fromkeys(self._awake(), Select(None, plan))))

    def state(self) -> dict[str, Any]:
        """Return what changes in a run, as plain values, and the constants apart."""
        return {
            "sizes": self.sizes,
            "widths": {name: list(some) for name, some in self._widths.items()},
            "silent": {name: list(some) for name, some in self._silent.items()},
            "masks": {name: mask.tolist() for name, mask in self._masks.items()},
            "ledger": self.ledger.state(),
        }

    def constants(self) -> dict[PartyId, Tensor]:
        """Return what silent parties contribute."""
        return self._constants

    def restore(
        self, state: Mapping[str, Any], constants: Mapping[PartyId, Tensor]
    ) -> None:
        """Take up a state as :meth:`state` gave it."""
        self.sizes = dict(state["sizes"])
        self._widths = {name: tuple(some) for name, some in state["widths"].items()}
        self._silent = {name: tuple(some) for name, some in state["silent"].items()}
        self._constants = dict(constants)
        n_replicas = self.ledger.n_replicas
        self._masks = {
            name: torch.tensor(mask, dtype=torch.bool).view(n_replicas, -1)
            for name, mask in state["masks"].items()
        }
        self.ledger.restore(state["ledger"])

    def charge_pass(self) -> None:
        """Charge the paper's figure, not the bill, for one pass over all rows."""
        for name in self.names:
            self.ledger.charge_pass([n * self.n_samples for n in self._widths[name]])

    def component_counts(self) -> dict[PartyId, tuple[int, ...]]:
        """Return how many components each party has left, (R,) each."""
        return dict(self._widths)

    def _by_party(self, kept: Tensor | None) -> dict[PartyId, Tensor | None]:
        if kept is None:
            return dict.fromkeys(self.names)
        sizes = [self.sizes[name] for name in self.names]
        return dict(zip(self.names, torch.split(kept, sizes, dim=1), strict=True))

    def _awake(self) -> list[PartyId]:
        return [name for name in self.names if not all(self._silent[name])]

    def _exchange(self, requests: Mapping[PartyId, Billed]) -> dict[PartyId, Reply]:
        live = {name: tuple(not s for s in self._silent[name]) for name in requests}
        return self._metered.exchange(requests, live)

    def _blocks(self, replies: Mapping[PartyId, Reply]) -> list[Tensor]:
        """Return one block a party; a silent party's is its constant."""
        blocks: list[Tensor] = []
        n_rows = 1
        for name in replies:
            reply = replies[name]
            if not isinstance(reply, Embedding):
                raise ProtocolError(
                    f"Party '{name}' must reply with an embedding. "
                    f"Got {type(reply).__name__}."
                )
            n_rows = reply.block.values.shape[1]
        self.is_stable = bool(replies) and all(
            isinstance(reply, Embedding)
            and reply.stable is not None
            and all(reply.stable)
            for reply in replies.values()
        )
        for name in self.names:
            reply_or_none = replies.get(name)
            if isinstance(reply_or_none, Embedding):
                blocks.append(reply_or_none.block.values)
            else:
                constant = self._constants[name]
                blocks.append(constant.unsqueeze(1).expand(-1, n_rows, -1))
        return blocks

    def _finish(self, replies: Mapping[PartyId, Reply]) -> None:
        for name, reply in replies.items():
            if not isinstance(reply, Done):
                raise ProtocolError(
                    f"Party '{name}' must end the stage as the others do. "
                    f"Got {type(reply).__name__}."
                )
            self._silent[name] = reply.silent
            if reply.constant is not None:
                self._constants[name] = reply.constant.values


def concatenate(blocks: Sequence[Tensor]) -> Tensor:
    """Join the parties' blocks into the fusion network's input, (R, n, E)."""
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=2)
