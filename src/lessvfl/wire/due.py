"""Which message may come next, and how much its arrays may take.

A frame is compared with this by its head, its fields and the shapes of its arrays
(:func:`lessvfl.wire.codec.decode`), before its checksum or an array is looked at, so
that nobody's memory is taken by what was not asked for. A server knows what it asked
each party for (``REPLIES``), a party how far its session is (``REQUESTS``):

================ ======================== ===========================================
to               kind                     bound of its arrays, once decoded
================ ======================== ===========================================
server           Hello                    none, and 64 KiB in all
server           Align                    the ids that its config lets a party offer
server           Embedding, Done          exactly the block that was asked for
server           QueryReply               exactly the arrays that were asked for
server           Explained                the features of the rows that were asked for
party            Align, the first         the ids that its policy lets a server offer
party            Align, later ones        its own rows
party            Prepare, Ask, Explain    the common rows
party            Descend                  a batch of its embeddings
party            Query, where any is due  its own rows, and ``policy.memory``
both             all others               none
================ ======================== ===========================================

Fields take 1 MiB at most in every message, so that until a run is agreed, when no kind
with arrays is due, no message is longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch

from lessvfl.errors import ProtocolError
from lessvfl.terms import Stage
from lessvfl.wire import codec, control, messages

TOO_MUCH = "A message must have no more bytes than are due."
ENDS = 1 << 10  # bytes of what is beside the values: ends of coded blocks, a rate
LONGEST = 1000  # letters of what is said of a message
QUERY_BYTES = 1 << 13  # of a query's arrays for each of a party's rows, the most

# What each request may be answered with.
REPLIES: dict[type, tuple[type, ...]] = {
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
    messages.Query: (messages.QueryReply, messages.Done, control.Declined),
}

# What a party may be asked for, by how far its session is.
SessionPhase = Literal[
    "before a run",
    "aligning a run",
    "between seeds",
    "in a seed",
    "before a model",
    "aligning a model",
    "predicting",
]
_SEEDS = (control.Welcome, control.Align, control.Prepare)
REQUESTS: dict[SessionPhase, tuple[type, ...]] = {
    "before a run": (control.Welcome,),
    "aligning a run": (control.Welcome, control.Align),
    "between seeds": _SEEDS,
    "in a seed": (
        *(control.Welcome, control.Prepare),
        *(control.Save, control.Restore, control.Finish),
        *(messages.Describe, messages.Begin, messages.Descend),
        *(messages.Embed, messages.Select, messages.Query),
    ),
    "before a model": (control.Open,),
    "aligning a model": (control.Open, control.Align),
    "predicting": (
        *(control.Open, control.Align, control.Ask),
        *(control.Explain, messages.Query),
    ),
}

# Each side may stop at any time; a party that computes gives signs of life, and a
# server says when all is over.
FROM_PARTY = (control.Refusal, control.Busy)
FROM_SERVER = (control.Refusal, control.Farewell)

Complaint = Callable[[codec.Fields, codec.Specs], str | None]


class NotDueError(ProtocolError):
    """A message must not come now, or takes too much."""


class Bound(NamedTuple):
    """What one kind of message must be like."""

    n_bytes: int = 0  # of its arrays, decoded or not, the most
    # What else is wrong, by its fields and the formats of its arrays; None: nothing.
    complaint: Complaint = lambda fields, specs: None


@dataclass(frozen=True)
class Due:
    """The messages that may come next, each within its bound."""

    kinds: Mapping[type, Bound]
    what: str = "A reply"
    always: tuple[type, ...] = FROM_PARTY
    # What is said of kinds that are of another command of the other side.
    wrong: Mapping[type, str] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        """Return the largest size of a frame."""
        n_bytes = max(bound.n_bytes for bound in self.kinds.values())
        return codec.HEAD_BYTES + codec.MAX_FIELDS + n_bytes

    def accept(self, kind: type, fields: codec.Fields, specs: codec.Specs) -> None:
        """Refuse a message that is not due, by what its head says."""
        bound = self.kinds.get(kind)
        if bound is None:
            if kind in self.wrong:
                raise _not_due(self.wrong[kind])
            if kind not in self.always:
                names = " or ".join(due.__name__ for due in self.kinds)
                raise _not_due(f"{self.what} must be {names}. Got {kind.__name__}.")
            bound = Bound()
        complaint = bound.complaint(fields, specs)
        if complaint is not None:
            raise _not_due(complaint)
        n_bytes = max(codec.wire_bytes(specs), codec.decoded_bytes(fields, specs))
        if n_bytes > bound.n_bytes:
            raise _not_due(
                f"{TOO_MUCH} Got {kind.__name__} with arrays of {n_bytes:,} bytes."
            )


def _not_due(sentence: str) -> NotDueError:
    shown = sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."
    return NotDueError(shown, public=shown)


def replies(request: object, bounds: Mapping[type, Bound]) -> Due:
    """Return what may come in reply to a request; without a bound it has no arrays."""
    kinds = REPLIES[type(request)]
    return Due({kind: bounds.get(kind, Bound()) for kind in kinds})


def requests(phase: SessionPhase, bounds: Mapping[type, Bound]) -> Due:
    """Return what a server may ask now; a kind without a bound has no arrays."""
    kinds = {kind: bounds.get(kind, Bound()) for kind in REQUESTS[phase]}
    return Due(kinds, "A request", FROM_SERVER)


def of_training(due: Due, server: str) -> Due:
    """Have a party that trains say what is wrong with a server that predicts."""
    must = f"The server at {server} must train, by 'lessvfl server'."
    return replace(due, wrong={control.Open: f"{must} Got one that predicts."})


def of_predictions(due: Due, server: str) -> Due:
    """Have a party that predicts say what is wrong with a server that trains."""
    must = f"The server at {server} must predict, by 'lessvfl predict server'."
    return replace(due, wrong={control.Welcome: f"{must} Got one that trains."})


# Where nobody says what is due: a message of every kind, but a small one.
ANYTHING_SMALL = Due({kind.cls: Bound(codec.MAX_FIELDS) for kind in codec.KINDS})
GREETING = Due({control.Hello: Bound()}, "A greeting")


class BlockShape(NamedTuple):
    """Of what shape and in how many bits a value a block is due."""

    shape: tuple[int, ...]  # (n, width), or (width,)
    dtype: torch.dtype
    bits: int

    @property
    def n_bytes(self) -> int:
        """Return the most bytes of a message with this block."""
        return ENDS + math.prod(self.shape) * self.dtype.itemsize

    def complaint(self, fields: codec.Fields, specs: codec.Specs) -> str | None:
        """Return what is wrong with a block, by what is said of it; None: nothing."""
        bits, dtype, shape = fields.coded or (0, "nothing", ())
        if fields.coded is None and specs:
            number, shape = specs[0]
            bits, dtype = 8 * number.itemsize, number.name
        shape = tuple(shape)
        if (shape, dtype) != (self.shape, _name(self.dtype)):
            return (
                f"A block must be of shape {self.shape}, {_name(self.dtype)}. Got "
                f"{shape}, {dtype}."
            )
        if bits != self.bits and 0 not in self.shape:
            return f"A block must be in {self.bits} bits a value. Got {bits}."
        return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def embedding(block: BlockShape, stage: Stage, is_ahead: bool) -> Bound:
    """Return the bound of an embedding: exactly this block, of this stage."""

    def complaint(fields: codec.Fields, specs: codec.Specs) -> str | None:
        if fields.stage != stage:
            return f"A reply must be of stage {stage}. Got {fields.stage}."
        if fields.ahead is not is_ahead:
            due = "of the next step" if is_ahead else "of no step"
            return f"An embedding must be {due}. Got another one."
        return block.complaint(fields, specs)

    return Bound(block.n_bytes, complaint)


def query(n_rows: int, memory: int) -> Bound:
    """Return the bound of a query to a party with so many rows and MiB.

    Its arrays are the method's own; the party checks their shapes as it answers.
    """
    return Bound(min(codec.MAX_FIELDS + n_rows * QUERY_BYTES, memory << 20))


def answer(formats: Sequence[messages.ArrayFormat], stage: Stage) -> Bound:
    """Return the bound of an answer to a query: exactly these arrays."""
    due = [(codec.DTYPES[_name(dtype)], tuple(shape)) for dtype, shape in formats]

    def complaint(fields: codec.Fields, specs: codec.Specs) -> str | None:
        if fields.stage != stage:
            return f"A reply must be of stage {stage}. Got {fields.stage}."
        if [(dtype, tuple(shape)) for dtype, shape in specs] == due:
            return None
        return f"An answer must have arrays of {_formats(due)}. Got {_formats(specs)}."

    return Bound(codec.wire_bytes(due), complaint)


def _formats(specs: codec.Specs) -> str:
    """Return the formats of arrays in words."""
    return ", ".join(f"{dtype.name} {shape}" for dtype, shape in specs) or "none"
