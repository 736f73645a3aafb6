"""Checks of a reply before it is used: its kind, shape, stage and coding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lessvfl.core.plans import Batches, TrainPlan, parts
from lessvfl.terms import PartyId
from lessvfl.wire import codec, control, messages
from lessvfl.wire.parties import Parties

ALLOWED: dict[type, tuple[type, ...]] = {
    control.Welcome: (control.Agreed,),
    control.Align: (control.Align, control.Agreed, control.Declined),
    control.Prepare: (control.Agreed,),
    control.Save: (control.Agreed,),
    control.Restore: (control.Agreed,),
    control.Finish: (control.Agreed,),
    control.Open: (control.Agreed, control.Declined),
    control.Ask: (messages.Embedding, control.Declined),
    control.Explain: (control.Explained, control.Agreed, control.Declined),
    messages.Describe: (messages.Description,),
    messages.Begin: (messages.Embedding,),
    messages.Descend: (messages.Embedding, messages.Done),
    messages.Embed: (messages.Embedding,),
    messages.Select: (messages.Done,),
    messages.Query: (messages.QueryReply, messages.Done),
}
ENDS = 1 << 10  # bytes of the ends of coded blocks, and of a constant


class ReplyRules:
    """What replies in one run with one replica must be like."""

    def __init__(
        self,
        n_rows: tuple[int, int],
        embedding_size: int,
        dtype: torch.dtype,
        seed: int = 0,
        blocks: Tensor | None = None,
        offer: int = codec.MAX_BODY,  # the most bytes of one in the alignment
    ) -> None:
        self.n_train, self.n_test = n_rows
        self._seeds, self._blocks = (seed,), blocks  # which say what is held out
        self.embedding_size = embedding_size  # the most, at the start
        self.dtype = dtype
        self.server: Parties | None = None  # once the parties are described
        self._offer = offer
        self._at: dict[PartyId, tuple[TrainPlan, int]] = {}  # step in a stage
        self._batches: dict[TrainPlan, Batches] = {}

    def most_bytes(self, party: PartyId, request: Any) -> int:
        """Return the most bytes of the arrays of a reply to this request."""
        match request:
            case messages.Embed():
                n_rows = self._rows_embedded(request)
            case messages.Begin(plan):
                n_rows = min(plan.batch_size, self.n_train)
            case messages.Descend():
                n_rows = min(self._at[party][0].batch_size, self.n_train)
            case messages.Select() | messages.Query(expects=None):
                n_rows = 1
            case messages.Query(expects=tuple(formats)):
                return bytes_of(formats)
            case _:
                return most_bytes(request, self._offer)
        own = 0 if self.server is None else self.server.sizes[party]
        size = max(self.embedding_size, own)  # trees have more than they started with
        return ENDS + n_rows * size * self.dtype.itemsize

    def complaint(self, party: PartyId, request: Any, reply: Any) -> str | None:
        """Return what is wrong with a reply to this request; None: nothing."""
        wrong = wrong_kind(request, reply)
        if wrong is not None:
            return wrong
        if isinstance(reply, messages.Description):
            size = min(max(1, reply.embedding_size), self.embedding_size)
            right = messages.Description(party, self.n_train, size)
            if reply == right:
                return None
            return f"A party must be described as it is, {right}. Got {reply}."
        if not isinstance(
            reply, messages.Embedding | messages.QueryReply | messages.Done
        ):
            return None
        if reply.stage != request.stage:
            return f"A reply must be of stage {request.stage}. Got {reply.stage}."
        if isinstance(request, messages.Query) and request.expects is not None:
            return wrong_arrays(request.expects, reply)
        if isinstance(reply, messages.QueryReply):
            return "A stage must end when it is over. Got an answer."
        assert self.server is not None
        size = self.server.sizes[party]
        n_rows = self._rows_due(party, request)
        if isinstance(reply, messages.Embedding):
            if n_rows is None or reply.ahead is isinstance(request, messages.Embed):
                return "A stage must end when it is over. Got an embedding."
            misfit = self._misfit(reply.block, (1, n_rows, size), (size,))
            bits = self._bits_due(party, request)
            if misfit is None and reply.block.bits != bits:
                got = reply.block.bits
                return f"A block must be in {bits} bits a value. Got {got}."
            return misfit
        if n_rows is not None:
            return "A stage must not end before it is over. Got its end."
        asks = isinstance(request, messages.Select | messages.Query)
        may_remove = asks or self._at[party][0].selects
        if reply.silent[:1] == (True,) and not may_remove:
            return "A party must not fall silent where nothing is removed. Got its end."
        if len(reply.silent) != 1 or reply.silent[0] != (reply.constant is not None):
            left = "no constant" if reply.constant is None else "a constant"
            return f"A silent party must leave a constant. Got {reply.silent}, {left}."
        if reply.constant is None:
            return None
        return self._misfit(reply.constant, (1, size), (size,))

    def _rows_due(self, party: PartyId, request: Any) -> int | None:
        """Return how many rows a reply must have; None: the end of the stage."""
        match request:
            case messages.Embed():
                return self._rows_embedded(request)
            case messages.Begin(plan, done):
                self._at[party] = (plan, done)
            case messages.Descend(last=last):
                plan, done = self._at[party]
                self._at[party] = (plan, done + 1)
                if last:
                    return None
            case _:
                return None
        plan, done = self._at[party]
        if plan not in self._batches:
            own = plan.batches(self.n_train, self._seeds, self._blocks)
            self._batches = {plan: own}
        batches = self._batches[plan]
        if done == batches.n_steps(plan.n_epochs):
            return None
        start = done % batches.n_per_epoch * batches.batch_size
        return min(batches.batch_size, batches.n_used - start)

    def _rows_embedded(self, request: messages.Embed) -> int:
        if request.n_rows is not None:
            return request.n_rows
        n_rows = self.n_train if request.rows == "train" else self.n_test
        some = parts(n_rows)[request.part]
        return int(some.stop - some.start)

    def _bits_due(self, party: PartyId, request: Any) -> int:
        """Return in how many bits a reply's values must be."""
        embeds = isinstance(request, messages.Embed)
        bits = request.bits if embeds else self._at[party][0].bits
        return int(bits) if bits < 32 else 8 * self.dtype.itemsize

    def _misfit(
        self, block: messages.Block, shape: tuple[int, ...], widths: tuple[int, ...]
    ) -> str | None:
        if (block.values.shape, block.values.dtype) == (shape, self.dtype):
            if block.widths == widths:
                return None
            return f"A block must be of widths {widths}. Got {block.widths}."
        return (
            f"A block must be of shape {shape}, {self.dtype}. Got "
            f"{tuple(block.values.shape)}, {block.values.dtype}."
        )


def wrong_arrays(
    expected: Sequence[messages.ArrayFormat], reply: messages.QueryReply | Any
) -> str | None:
    """Return what is wrong with the arrays of an answer; None: nothing."""
    if not isinstance(reply, messages.QueryReply):
        return f"A query must be answered. Got {type(reply).__name__}."
    got = tuple((array.dtype, tuple(array.shape)) for array in reply.arrays)
    if got == tuple(expected):
        return None
    return f"An answer must have the arrays {tuple(expected)}. Got {got}."


def bytes_of(formats: Sequence[messages.ArrayFormat]) -> int:
    """Return the bytes of arrays of these formats."""
    return sum(dtype.itemsize * math.prod(size) for dtype, size in formats)


def most_bytes(request: Any, offer: int) -> int:
    """Return the most bytes of the arrays of a reply that is no embedding.

    `offer` are those of one in the alignment.
    """
    return offer if control.Align in ALLOWED[type(request)] else ENDS


def wrong_kind(request: Any, reply: Any) -> str | None:
    """Return what is wrong with the kind of a reply; None: nothing."""
    allowed = ALLOWED[type(request)]
    if isinstance(reply, allowed):
        return None
    names = " or ".join(kind.__name__ for kind in allowed)
    return f"A reply must be {names}. Got {type(reply).__name__}."
