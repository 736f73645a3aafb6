"""What replies are due in a run: their kind, shape, stage and coding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lessvfl.core.plans import Batches, TrainPlan, parts
from lessvfl.terms import PartyId
from lessvfl.wire import codec, control, due, messages
from lessvfl.wire.due import BlockShape, Bound, Complaint, Due
from lessvfl.wire.parties import Parties


class ReplyRules:
    """What replies in one run must be like."""

    def __init__(
        self,
        n_rows: tuple[int, int],
        embedding_size: int,
        dtype: torch.dtype,
        seed: int = 0,
        blocks: Tensor | None = None,
        offer: int = 0,  # the most bytes of one in the alignment
    ) -> None:
        self.n_train, self.n_test = n_rows
        self._seed, self._blocks = seed, blocks  # which say what is held out
        self.embedding_size = embedding_size  # the most, at the start
        self.dtype = dtype
        self.server: Parties | None = None  # once the parties are described
        self._offer = offer
        self._at: dict[PartyId, tuple[TrainPlan, int]] = {}  # step in a stage
        self._batches: dict[TrainPlan, Batches] = {}

    def due(self, party: PartyId, request: Any) -> Due:
        """Return what may come in reply to a request, which goes out now."""
        if isinstance(request, messages.Describe):
            described = Bound(complaint=self._describes(party))
            return due.replies(request, {messages.Description: described})
        if isinstance(request, messages.Query) and request.expects is not None:
            answer = due.answer(request.expects, request.stage)
            return Due({messages.QueryReply: answer})
        if not isinstance(request, messages.Billed):
            return due.replies(request, {control.Align: Bound(self._offer)})
        assert self.server is not None
        size = self.server.sizes[party]
        n_rows = self._rows_due(party, request)
        if n_rows is None:
            return Due({messages.Done: self._end(party, request, size)})
        block = BlockShape((n_rows, size), self.dtype, self._bits_due(party, request))
        is_ahead = not isinstance(request, messages.Embed)
        return Due({messages.Embedding: due.embedding(block, request.stage, is_ahead)})

    def _describes(self, party: PartyId) -> Complaint:
        """Return what compares a description with what is known of a party."""

        def complaint(reply: codec.Fields, specs: codec.Specs) -> str | None:
            size = min(max(1, reply.embedding_size), self.embedding_size)
            right = messages.Description(party, self.n_train, size)
            if reply == right:
                return None
            return f"A party must be described as it is, {right}. Got {reply}."

        return complaint

    def _end(self, party: PartyId, request: messages.Billed, size: int) -> Bound:
        """Return the bound of the reply that ends a stage.

        It is of that stage, and has a constant of `size` numbers where the party falls
        silent, which it may only where features are removed.
        """
        asks = isinstance(request, messages.Select | messages.Query)
        may_remove = asks or self._at[party][0].selects
        constant = BlockShape((size,), self.dtype, 8 * self.dtype.itemsize)

        def complaint(end: codec.Fields, specs: codec.Specs) -> str | None:
            if end.stage != request.stage:
                return f"A reply must be of stage {request.stage}. Got {end.stage}."
            if end.silent and not may_remove:
                return (
                    "A party must not fall silent where nothing is removed. Got its "
                    "end."
                )
            if end.silent is not bool(specs):
                left = "a constant" if specs else "no constant"
                return (
                    f"A silent party must leave a constant. Got {end.silent}, {left}."
                )
            return constant.complaint(end, specs) if specs else None

        return Bound(constant.n_bytes, complaint)

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
            self._batches = {plan: plan.batches(self.n_train, self._seed, self._blocks)}
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
