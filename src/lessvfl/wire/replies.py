"""What replies are due in a run: their kind, shape, stage and coding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lessvfl.core.plans import Batches, TrainPlan, parts
from lessvfl.terms import PartyId
from lessvfl.wire import codec, control, due, messages
from lessvfl.wire.due import BlockShape, Bound, Complaint, Due
from lessvfl.wire.parties import Parties


@dataclass
class ReplyRules:
    """What replies in one run must be like."""

    n_rows: tuple[int, int]  # training rows, test rows
    embedding_size: int  # the most, at the start
    dtype: torch.dtype
    seed: int = 0
    blocks: Tensor | None = None  # with the seed these say what is held out
    offer: int = 0  # the most bytes of a message in the alignment
    server: Parties | None = None  # once the parties are described
    _at: dict[PartyId, tuple[TrainPlan, int]] = field(default_factory=dict)  # step
    _batches: dict[TrainPlan, Batches] = field(default_factory=dict)

    def due(self, party: PartyId, request: Any) -> Due:
        """Return what may come in reply to a request, which goes out now."""
        if isinstance(request, messages.Describe):
            described = Bound(complaint=self._describes(party))
            return due.replies(request, {messages.Description: described})
        if isinstance(request, messages.Query) and request.expects is not None:
            answer = due.answer(request.expects, request.stage)
            return Due({messages.QueryReply: answer})
        if not isinstance(request, messages.Billed):
            return due.replies(request, {control.Align: Bound(self.offer)})
        assert self.server is not None
        size = self.server.sizes[party]
        n_rows = self._rows_due(party, request)
        if n_rows is None:
            return Due({messages.Done: self._end(party, request, size)})
        asked = request if isinstance(request, messages.Embed) else self._at[party][0]
        bits = asked.bits if asked.bits < 32 else 8 * self.dtype.itemsize
        block = BlockShape((n_rows, size), self.dtype, bits)
        bound = due.embedding(block, request.stage, is_ahead=asked is not request)
        return Due({messages.Embedding: bound})

    def _describes(self, party: PartyId) -> Complaint:
        """Return a function that says what is wrong with a party's description."""

        def complaint(reply: codec.Fields, specs: codec.Specs) -> str | None:
            size = min(max(1, reply.embedding_size), self.embedding_size)
            right = messages.Description(party, self.n_rows[0], size)
            if reply == right:
                return None
            return f"A party must be described as it is, {right}. Got {reply}."

        return complaint

    def _end(self, party: PartyId, request: messages.Billed, size: int) -> Bound:
        """Return the bound of a party's reply to `request` that ends a stage.

        The reply must be of the request's stage. A party may fall silent only where
        features are removed, and must then leave a constant of `size` numbers.
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
                if request.n_rows is not None:
                    return request.n_rows
                n_train, n_test = self.n_rows
                n_rows = n_train if request.rows == "train" else n_test
                some = parts(n_rows)[request.part]
                return int(some.stop - some.start)
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
            self._batches = {plan: plan.batches(self.n_rows[0], self.seed, self.blocks)}
        batches = self._batches[plan]
        if done == batches.n_steps(plan.n_epochs):
            return None
        start = done % batches.n_per_epoch * batches.batch_size
        return min(batches.batch_size, batches.n_used - start)
