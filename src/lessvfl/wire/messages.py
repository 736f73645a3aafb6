"""The messages between server and parties, and the one gate they pass.

Every message that exists. What is not in this table does not leave a party.

=============== ========= ============================ =================================
message         direction fields (payload)             reveals
=============== ========= ============================ =================================
Describe        down      none                         nothing
Description     up        none (name, rows, width,     number of rows, width of the
                          version; not billed)         embedding
Begin           down      plan (settings, 0 bytes)     how training will run
Descend         down      gradient (b, E_m); rate,     dL/dh of the last batch; whether
                          last (0 bytes)               training goes on
Embed           down      which rows (0 bytes)         nothing
Select          down      components int32 (|K_m|)     which components matter
Query           down      arrays of a method's own     what the method's page says
                          protocol
Embedding       up        values (b, E_m)              the embedding of these rows
QueryReply      up        arrays of a method's own     what the method's page says
                          protocol
Done            up        constant (E_m), only of      that the party kept no feature
                          a party that kept nothing
=============== ========= ============================ =================================

Rows of a step come from the shared seed and are never sent. The gradient of one step is
the request for the next, so a stage of T steps takes T + 1 rounds, and one more each
time that the server looks at rows held out. A feature mask is
private: no message carries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeGuard

import torch
from msgspec import Meta
from torch import Tensor

from lessvfl.core.plans import SelectPlan, ShadowPlan, TrainPlan
from lessvfl.settings import Natural
from lessvfl.terms import PartyId, Stage
from lessvfl.wire import coding
from lessvfl.wire.coding import Coded

VERSION = 1
ArrayFormat = tuple[torch.dtype, tuple[int, ...]]
Text = Annotated[str, Meta(max_length=4096, description="a text of up to 4096 letters")]


@dataclass(frozen=True)
class Block:
    """Values as they are sent."""

    values: Tensor  # (n, width), or (width,)
    coded: Coded | None = None  # what travels, where values go in fewer bits

    @classmethod
    def in_bits(cls, values: Tensor, bits: int, seed: int, *name: str | int) -> Block:
        """Return a block in `bits` bits a value; see :func:`coding.encode`."""
        if bits >= 32 or not values.numel():
            return cls(values)
        coded, rounded = coding.encode(values, bits, seed, *name)
        return cls(rounded, coded)

    @property
    def bits(self) -> int:
        """Return how many bits a value takes on its way."""
        if self.coded is not None:
            return self.coded.bits
        return 8 * self.values.element_size()


@dataclass(frozen=True)
class Describe:
    """Ask a party who it is."""

    version: Natural = VERSION


@dataclass(frozen=True)
class Begin:
    """Start a stage of joint training and ask for the first batch's embedding."""

    plan: TrainPlan
    done: Natural = 0  # steps behind, where a stage goes on after a break

    @property
    def stage(self) -> Stage:
        """Return the stage that begins."""
        return self.plan.stage


@dataclass(frozen=True)
class Descend:
    """Send dL/dh of the last batch; the party steps and embeds the next batch.

    Where the server watches rows held out, it says the learning rate of the step, as a
    share of the plan's, and when training is over.
    """

    stage: Stage
    gradient: Block
    rate: float = 1.0
    last: bool = False


@dataclass(frozen=True)
class Embed:
    """Ask for the embeddings of training or test rows in order, or of a sample."""

    stage: Stage
    rows: Literal["train", "test"]
    n_rows: Natural | None = None  # of a sample, drawn by the common seed
    bits: Natural = 32
    part: Natural = 0  # of all rows, core/plans.PART of which are sent together


@dataclass(frozen=True)
class Select:
    """Send K_m (None: all components) and have the party select its features."""

    components: tuple[int, ...] | None  # K_m
    plan: SelectPlan | ShadowPlan

    @property
    def stage(self) -> Stage:
        """Return the stage the party's selection belongs to."""
        return self.plan.stage


@dataclass(frozen=True)
class Query:
    """A step of a method's own protocol (``core/protocol.py``)."""

    stage: Stage
    step: Natural  # of the stage, from 0
    arrays: tuple[Tensor, ...] = ()
    # The number formats and shapes of the answer, known to the server alone; None: the
    # party selects its features, and the stage is over.
    expects: tuple[ArrayFormat, ...] | None = None


Billed = Begin | Descend | Embed | Select | Query
Request = Describe | Billed


def is_billed(message: object) -> TypeGuard[Billed]:
    """Tell whether a message makes a round of the bill; one sent again does not."""
    return isinstance(message, Billed) and not (
        isinstance(message, Begin) and message.done > 0
    )


@dataclass(frozen=True)
class Description:
    """What a party says of itself."""

    party: Text
    n_samples: Natural
    embedding_size: Natural
    version: Natural = VERSION


@dataclass(frozen=True)
class Embedding:
    """Embeddings of the rows that were asked for."""

    stage: Stage
    block: Block
    ahead: bool = False  # for a training step whose gradient comes back later


@dataclass(frozen=True)
class Done:
    """The stage is over; a party that kept nothing may say so and leave a constant."""

    stage: Stage
    silent: bool = False  # True: send me nothing from now on
    constant: Block | None = None  # (E_m,), what a silent party contributes


@dataclass(frozen=True)
class QueryReply:
    """What a party answers in a method's own protocol."""

    stage: Stage
    arrays: tuple[Tensor, ...]
    n_scored: int = 0  # values about a test row that a sum tells; does not travel


Reply = Description | Embedding | QueryReply | Done


@dataclass(frozen=True)
class Traffic:
    """Bytes that went each way so far."""

    up: int = 0
    down: int = 0


class Transport(Protocol):
    """A way to carry messages: every reply, or an error."""

    def exchange(self, requests: Mapping[PartyId, Request]) -> dict[PartyId, Reply]:
        """Deliver one request a party and return every party's reply."""
        ...

    def close(self) -> object:
        """End the connections."""
