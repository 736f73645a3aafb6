"""How a session between machines begins, whether it trains or predicts.

At a party it is a value, another one after each message: Waiting until a server has
said what it wants, then Connected, Aligning, and Aligned. Both sides find the common
rows by the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.remote.align import Aligner, PartyAligner
from lessvfl.remote.align.holder import Positions
from lessvfl.terms import PartyId
from lessvfl.wire import control


class Opening(Protocol):
    """What a server said when a session began."""

    @property
    def align(self) -> str:
        """Return how it finds common rows."""
        ...


Said = TypeVar("Said", bound=Opening)
Rows = TypeVar("Rows")


@dataclass(frozen=True)
class Waiting:
    """No server has said anything yet."""


@dataclass(frozen=True)
class Connected(Generic[Said]):
    """A server has said what it wants."""

    said: Said


@dataclass(frozen=True)
class Aligning(Connected[Said]):
    """Rows are being aligned: so many messages of the server's are answered."""

    aligner: PartyAligner
    n_heard: int
    answer: bytes  # to the last of them


@dataclass(frozen=True)
class Aligned(Connected[Said], Generic[Said, Rows]):
    """The common rows are known, in the common order."""

    rows: Rows


class AlignmentBook(Protocol):
    """What a party writes down of an alignment, and what it refuses of one."""

    def begin(self) -> PartyAligner:
        """Return its side of an alignment that begins."""
        ...

    def hear(self, n_heard: int, message: bytes) -> None:
        """Take a message in that comes after so many others, or refuse it."""
        ...

    def fail(self) -> None:
        """Note that the server broke the rules."""
        ...

    def answered(self, n_heard: int, message: bytes, is_last: bool) -> None:
        """Write down that a message has an answer, before it leaves."""
        ...


def answer_alignment(
    party: PartyId,
    mode: str,
    at: Connected[Said],
    message: bytes,
    book: AlignmentBook,
) -> Aligning[Said] | Positions:
    """Answer one message of an alignment at a party; return its rows after the last."""
    if at.said.align != mode:
        sentence = (
            f"Server and party '{party}' must align alike. Got {at.said.align} and "
            f"{mode}."
        )
        raise ConfigError(sentence, public=sentence)
    if isinstance(at, Aligning):
        aligner, n_heard = at.aligner, at.n_heard
    else:
        aligner, n_heard = book.begin(), 0
    book.hear(n_heard, message)
    try:
        answer = aligner.answer(message)
    except ProtocolError:
        book.fail()
        raise
    book.answered(n_heard, message, answer is None)
    if answer is None:
        return aligner.rows
    return Aligning(at.said, aligner, n_heard + 1, answer)


def find_common_rows(
    aligner: Aligner,
    parties: Sequence[PartyId],
    send: Callable[[Mapping[PartyId, Any]], Mapping[PartyId, Any]],
    cut_off: Callable[[PartyId, str], NoReturn],
    take: Callable[[PartyId, bytes], bytes | None],
    offered: Callable[[Mapping[PartyId, bytes]], None] = lambda offers: None,
) -> Positions:
    """Find the server's rows that every party has, in the common order.

    `take` gives a party's message to the aligner; `offered` hears the first ones before
    anybody is told anything of them.
    """
    said: dict[PartyId, bytes] = dict.fromkeys(parties, aligner.hello())
    are_offers = True
    while said:
        replies = send({p: control.Align(data) for p, data in said.items()})
        for party, reply in replies.items():
            if not isinstance(reply, control.Align):
                cut_off(party, "A party must make an offer. Got none.")
        if are_offers:
            offered({party: reply.data for party, reply in replies.items()})
            are_offers = False
        taken = {party: take(party, reply.data) for party, reply in replies.items()}
        said = {party: more for party, more in taken.items() if more is not None}
    finals = aligner.finish()
    send({party: control.Align(data) for party, data in finals.items()})
    return aligner.rows
