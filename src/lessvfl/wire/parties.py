"""Typed calls for the algorithm, and the one place where bytes are counted."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from lessvfl.core.plans import SelectPlan, ShadowPlan, TrainPlan, parts
from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId, Stage, plural
from lessvfl.wire import coding, messages
from lessvfl.wire.ledger import BillLine, Direction, Ledger


def bill_line(
    party: PartyId, message: messages.Request | messages.Reply, live: tuple[bool, ...]
) -> BillLine | None:
    """Return what a message costs the replicas that are live; None: nothing."""
    match message:
        case messages.Descend(stage, block, _, _):
            return _line(party, "down", stage, "gradient", _size(block), live)
        case messages.Select(components, plan) if components is not None:
            counts = tuple(len(kept) for kept in components)
            return _line(party, "down", plan.stage, "components", (counts, 32), live)
        case messages.Embedding(stage, block, ahead):
            return _line(party, "up", stage, "embedding", _size(block), live, ahead)
        case messages.Done(stage, _, constant) if constant is not None:
            return _line(party, "up", stage, "constant", _size(constant), live)
        case messages.Query(stage, _, arrays) if arrays:
            return _line_of_arrays(party, "down", stage, "query", arrays, live)
        case messages.QueryReply(stage, arrays):
            return _line_of_arrays(party, "up", stage, "answer", arrays, live)
    return None


def _line_of_arrays(
    party: PartyId,
    direction: Direction,
    stage: Stage,
    kind: str,
    arrays: Sequence[Tensor],
    live: tuple[bool, ...],
) -> BillLine:
    """Return the line of arrays (R, ...) as they are."""
    n_bytes = sum(array.nbytes for array in arrays) // len(live)
    n_values = sum(array.numel() for array in arrays) // len(live)
    paid, values = (tuple(n * on for on in live) for n in (n_bytes, n_values))
    return BillLine(party, direction, stage, kind, paid, values)


def _size(block: messages.Block) -> tuple[tuple[int, ...], int]:
    return block.n_values(), block.bits


@functools.lru_cache(maxsize=4096)
def _line(
    party: PartyId,
    direction: Direction,
    stage: Stage,
    kind: str,
    size: tuple[tuple[int, ...], int],
    live: tuple[bool, ...],
    ahead: bool = False,
) -> BillLine:
    """Return one line of the bill; the same message costs the same every step."""
    counts, bits = size
    values = tuple(n * on for n, on in zip(counts, live, strict=True))
    ends = coding.END_BYTES if bits < 32 else 0
    paid = tuple(coding.n_bytes(n, bits) + ends * (n > 0) for n in values)
    return BillLine(party, direction, stage, kind, paid, values, ahead)


@dataclass
class Parties:
    """All parties behind a transport, in typed calls for the algorithm.

    Every message passes :meth:`_exchange`: the one place where bytes are counted.
    """

    transport: messages.Transport
    names: Sequence[PartyId]  # in the order of their blocks in the fusion network
    ledger: Ledger  # takes the bill
    sizes: dict[PartyId, int] = field(init=False)
    n_samples: int = field(init=False)
    _widths: dict[PartyId, tuple[int, ...]] = field(init=False)
    _silent: dict[PartyId, tuple[bool, ...]] = field(init=False)
    constants: dict[PartyId, Tensor] = field(init=False)  # of silent parties
    _masks: dict[PartyId, Tensor] = field(init=False)  # components of every replica
    components: dict[PartyId, Tensor] = field(init=False)  # of those at the start
    _described: dict[PartyId, int] = field(init=False)  # sizes at the start

    def __post_init__(self) -> None:
        """Check that versions and numbers of rows agree."""
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
        n_replicas = self.ledger.n_replicas
        self._widths = {name: (self.sizes[name],) * n_replicas for name in self.names}
        self._silent = dict.fromkeys(self.names, (False,) * n_replicas)
        self.constants = {}
        self._masks = {
            name: torch.ones(n_replicas, size, dtype=torch.bool)
            for name, size in self.sizes.items()
        }
        self.components = dict(self._masks)
        self._described = dict(self.sizes)

    def begin(self, plan: TrainPlan, done: int = 0) -> list[Tensor]:
        """Start a stage of training; return the first batch's blocks (R, b, E_m).

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
        seeds: Sequence[int],
        gradient: Tensor,
        rate: float = 1.0,
        last: bool = False,
    ) -> list[Tensor]:
        """Send dL/dH (R, b, E); return the next batch's blocks, none at the end."""
        sizes = [self.sizes[name] for name in self.names]
        own = dict(zip(self.names, torch.split(gradient, sizes, dim=2), strict=True))
        requests: dict[PartyId, messages.Billed] = {
            name: messages.Descend(plan.stage, block, rate, last)
            for name, block in self._down(plan, step, seeds, own).items()
        }
        replies = self._exchange(requests)
        if any(isinstance(reply, messages.Done) for reply in replies.values()):
            self._finish(replies)
            return []
        return self._blocks(replies)

    def _down(
        self,
        plan: TrainPlan,
        step: int,
        seeds: Sequence[int],
        gradients: Mapping[PartyId, Tensor],
    ) -> dict[PartyId, messages.Block]:
        """Return the gradient of every party that takes part, as it is sent.

        Blocks of one shape are rounded together.
        """
        names = self.active()
        own = [gradients[name].contiguous() for name in names]
        widths = [self._widths[name] for name in names]
        streams = [("down", plan.stage, name, step) for name in names]
        alike = len({values.shape for values in own}) == 1
        if plan.bits < 32 and alike and all(map(messages.is_whole, own, widths)):
            encoded = coding.encode_alike(own, plan.bits, seeds, streams)
            blocks = [
                messages.Block(rounded, width, coded)
                for (coded, rounded), width in zip(encoded, widths, strict=True)
            ]
        else:
            blocks = [
                messages.Block.in_bits(
                    values, width, plan.bits, self._masks[name], seeds, *stream
                )
                for name, values, width, stream in zip(
                    names, own, widths, streams, strict=True
                )
            ]
        return dict(zip(names, blocks, strict=True))

    def embed(
        self,
        stage: Stage,
        rows: Literal["train", "test"],
        n_rows: int | None = None,
        bits: int = 32,
        part: int = 0,
    ) -> list[Tensor]:
        """Return the blocks (R, N, E_m) of a part of the rows in order, or of some."""
        requests = dict.fromkeys(
            self.active(), messages.Embed(stage, rows, n_rows, bits, part)
        )
        return self._blocks(self._exchange(requests))

    def embed_all(self, bits: int) -> Tensor:
        """Return the embeddings of all training rows, (R, N, E): H of stage 2."""
        n_parts = len(parts(self.n_samples))
        blocks = (
            self.embed("embed", "train", bits=bits, part=part)
            for part in range(n_parts)
        )
        joined = [concatenate(some) for some in blocks]
        return joined[0] if n_parts == 1 else torch.cat(joined, dim=1)

    def select_features(
        self, kept: Tensor | None, plan: SelectPlan | ShadowPlan
    ) -> None:
        """Send K_m out of `kept` (R, E), or None for all; every party selects alone."""
        requests: dict[PartyId, messages.Billed] = {}
        for name, mask in self._by_party(kept).items():
            components = None
            if mask is not None:
                components = tuple(
                    tuple(int(k) for k in row.nonzero().flatten()) for row in mask.cpu()
                )
                self.sizes[name] = int(mask.any(dim=0).sum())
                self._widths[name] = tuple(len(some) for some in components)
                self._masks[name] = mask[:, mask.any(dim=0)].cpu()
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

        Where parties were not all asked as often, `step` is each one's own.
        """
        steps = dict.fromkeys(arrays, step) if isinstance(step, int) else step
        replies = self._exchange(
            {
                name: messages.Query(
                    stage, steps[name], tuple(own), tuple(expects[name])
                )
                for name, own in arrays.items()
            }
        )
        answers: dict[PartyId, tuple[Tensor, ...]] = {}
        for name, reply in replies.items():
            if not isinstance(reply, messages.QueryReply):
                raise ProtocolError(
                    f"Party '{name}' must answer a query. Got {type(reply).__name__}."
                )
            answers[name] = reply.arrays
        return answers

    def resize(self, sizes: Mapping[PartyId, int]) -> None:
        """Learn that parties have other components from the end of a stage on."""
        for name, size in sizes.items():
            self.sizes[name] = size
            self._widths[name] = (size,) * self.ledger.n_replicas
            every = torch.ones(self.ledger.n_replicas, size, dtype=torch.bool)
            self._masks[name] = self.components[name] = every

    def query_last(
        self,
        stage: Stage,
        step: int | Mapping[PartyId, int],
        arrays: Mapping[PartyId, Sequence[Tensor]],
    ) -> None:
        """Take the last step of a protocol: every party selects its features."""
        steps = dict.fromkeys(arrays, step) if isinstance(step, int) else step
        requests: dict[PartyId, messages.Billed] = {
            name: messages.Query(stage, steps[name], tuple(own))
            for name, own in arrays.items()
        }
        self._finish(self._exchange(requests))

    def state(self) -> dict[str, Any]:
        """Return what changes in a run as plain values, without the constants."""
        return {
            "described": self._described,
            "sizes": self.sizes,
            "widths": {name: list(some) for name, some in self._widths.items()},
            "silent": {name: list(some) for name, some in self._silent.items()},
            "masks": {name: mask.tolist() for name, mask in self._masks.items()},
            "components": {name: m.tolist() for name, m in self.components.items()},
            "ledger": self.ledger.state(),
        }

    def restore(
        self, state: Mapping[str, Any], constants: Mapping[PartyId, Tensor]
    ) -> None:
        """Restore what :meth:`state` returned."""
        for name, size in state["described"].items():
            if size != self.sizes[name]:
                raise ProtocolError(
                    f"Party '{name}' must have {plural(size, 'component')}, as "
                    f"before the break. Got {self.sizes[name]}."
                )
        self.sizes = dict(state["sizes"])
        self._widths = {name: tuple(some) for name, some in state["widths"].items()}
        self._silent = {name: tuple(some) for name, some in state["silent"].items()}
        self.constants = dict(constants)
        self._masks, self.components = (
            {
                name: torch.tensor(mask, dtype=torch.bool).view(len(mask), -1)
                for name, mask in state[which].items()
            }
            for which in ("masks", "components")
        )
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
            return dict.fromkeys(self.active())
        sizes = [self.sizes[name] for name in self.names]
        return dict(zip(self.names, torch.split(kept, sizes, dim=1), strict=True))

    def active(self) -> list[PartyId]:
        """Return the parties that contribute more than a constant."""
        return [name for name in self.names if not all(self._silent[name])]

    def silent(self, replica: int) -> list[PartyId]:
        """Return the parties that kept nothing in a replica, and give a constant."""
        return [name for name in self.names if self._silent[name][replica]]

    def _exchange(
        self, requests: Mapping[PartyId, messages.Billed]
    ) -> dict[PartyId, messages.Reply]:
        """Exchange messages and bill them."""
        if not requests:
            return {}
        live = {name: tuple(not s for s in self._silent[name]) for name in requests}
        stage = next(iter(requests.values())).stage
        self.ledger.bill_round(
            stage, [any(some) for some in zip(*live.values(), strict=True)]
        )
        self._bill(requests, live)
        replies = self.transport.exchange(requests)
        self._bill(replies, live)
        return replies

    def _bill(
        self,
        messages: Mapping[PartyId, messages.Request | messages.Reply],
        live: Mapping[PartyId, tuple[bool, ...]],
    ) -> None:
        for party, message in messages.items():
            line = bill_line(party, message, live[party])
            if line is not None:
                self.ledger.bill(line)

    def _blocks(self, replies: Mapping[PartyId, messages.Reply]) -> list[Tensor]:
        """Return one block a party; a silent party's is its constant."""
        blocks: list[Tensor] = []
        n_rows = 1
        for name in replies:
            reply = replies[name]
            if not isinstance(reply, messages.Embedding):
                raise ProtocolError(
                    f"Party '{name}' must reply with an embedding. "
                    f"Got {type(reply).__name__}."
                )
            n_rows = reply.block.values.shape[1]
        for name in self.names:
            reply_or_none = replies.get(name)
            if isinstance(reply_or_none, messages.Embedding):
                blocks.append(reply_or_none.block.values)
            else:
                constant = self.constants[name]
                blocks.append(constant.unsqueeze(1).expand(-1, n_rows, -1))
        return blocks

    def _finish(self, replies: Mapping[PartyId, messages.Reply]) -> None:
        for name, reply in replies.items():
            if not isinstance(reply, messages.Done):
                raise ProtocolError(
                    f"Party '{name}' must end the stage as the others do. "
                    f"Got {type(reply).__name__}."
                )
            self._silent[name] = reply.silent
            if reply.constant is not None:
                self.constants[name] = reply.constant.values


def concatenate(blocks: Sequence[Tensor]) -> Tensor:
    """Join the parties' blocks into the fusion network's input, (R, n, E)."""
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=2)
