"""How a session between machines begins, whether it trains or predicts.

At a party it is a value, another one after each message: Waiting until a server has
said what it wants, then Connected, Aligning, and Aligned. Both sides find the common
rows by the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from torch import Tensor

from lessvfl.errors import ConfigError, PolicyError
from lessvfl.remote.align import Aligner, PartyAligner
from lessvfl.remote.align.entries import Positions
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.terms import PartyId
from lessvfl.wire import control


class Opening(Protocol):
    """What a party keeps of the server's first message of a session."""

    @property
    def message(self) -> control.Welcome | control.Open:
        """Return the message."""
        ...


OpeningT = TypeVar("OpeningT", bound=Opening)
RowsT = TypeVar("RowsT")


@dataclass(frozen=True)
class Waiting:
    """No server has said anything yet."""


@dataclass(frozen=True)
class Connected(Generic[OpeningT]):
    """A server has said what it wants."""

    opening: OpeningT


@dataclass(frozen=True)
class Aligning(Connected[OpeningT]):
    """Rows are being aligned: `n_heard` messages of the server's are answered."""

    aligner: PartyAligner
    n_heard: int


@dataclass(frozen=True)
class Aligned(Connected[OpeningT], Generic[OpeningT, RowsT]):
    """The common rows are known, in the common order."""

    rows: RowsT


@dataclass(frozen=True)
class AlignmentFile:
    """The progress of a run folder's one alignment, at a party."""

    path: Path
    party: PartyId
    agreed: str  # a digest of what the server says of the run

    def read(self) -> State:
        """Return what is known; refuse a run other than the one that began."""
        if not self.path.is_file():
            return State({}, {"heard": [], "is_over": False})
        known = read_state(self.path)
        if known.values["agreed"] != self.agreed:
            raise PolicyError(
                f"Party '{self.party}' takes part in one run with its run folder, with "
                "the settings that it began with. Got another run, which needs another "
                "'out' in its config."
            )
        return known

    def write(
        self,
        heard: Sequence[str],
        rows: Mapping[str, Tensor] | None = None,
        is_over: bool = False,
    ) -> None:
        """Save which messages were heard, and at the end the common rows."""
        values = {"agreed": self.agreed, "is_over": is_over, "heard": [*heard]}
        write_state(self.path, State(rows or {}, values))


def answer_alignment(
    party: PartyId,
    mode: str,
    at: Connected[OpeningT],
    message: bytes,
    new_aligner: Callable[[], PartyAligner],
    guard: Callable[[OpeningT, int, bytes], AbstractContextManager[None]],
) -> tuple[Aligning[OpeningT], control.Align] | Positions:
    """Answer one message of an alignment at a party; return its rows after the last.

    A message is answered within `guard`, which gets the number of messages before it:
    the guard charges for it or refuses it, and saves that it was heard.
    """
    wanted = at.opening.message.align
    if wanted != mode:
        sentence = (
            f"Server and party '{party}' must align alike. Got {wanted} and {mode}."
        )
        raise ConfigError(sentence, public=sentence)
    n_heard = at.n_heard if isinstance(at, Aligning) else 0
    with guard(at.opening, n_heard, message):
        aligner = at.aligner if isinstance(at, Aligning) else new_aligner()
        answer = aligner.answer(message)
    if answer is None:
        return aligner.rows
    return Aligning(at.opening, aligner, n_heard + 1), control.Align(answer)


def find_common_rows(
    aligner: Aligner,
    parties: Sequence[PartyId],
    send: Callable[[Mapping[PartyId, Any]], Mapping[PartyId, Any]],
    cut_off: Callable[[PartyId, str], NoReturn],
    take: Callable[[PartyId, bytes], bytes | None],
    offered: Callable[[Mapping[PartyId, bytes]], None] = lambda offers: None,
) -> Positions:
    """Find the server's rows that every party has, in the common order.

    `take` hands a party's message to the aligner; `offered` is called with the first
    ones before any party is told anything about them.
    """
    sent: dict[PartyId, bytes] = dict.fromkeys(parties, aligner.hello())
    are_offers = True
    while sent:
        replies = send({p: control.Align(data) for p, data in sent.items()})
        for party, reply in replies.items():
            if not isinstance(reply, control.Align):
                cut_off(party, "A party must make an offer. Got none.")
        if are_offers:
            offered({party: reply.data for party, reply in replies.items()})
            are_offers = False
        taken = {party: take(party, reply.data) for party, reply in replies.items()}
        sent = {party: more for party, more in taken.items() if more is not None}
        del replies, taken  # they may be large
    finals = aligner.finish()
    send({party: control.Align(data) for party, data in finals.items()})
    return aligner.rows
