"""A method's own protocol: what a party does with queries that are no training.

A stage of queries is entered at step 0, and unless its protocol is a
:class:`SavedProtocol` never saved on its way: after a break it begins again. The
server's side of a protocol is in the file of its method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from lessvfl.core.features import FeatureMap
from lessvfl.core.network import Network
from lessvfl.core.ratings import Rating
from lessvfl.terms import PartyId

QueryArrays = Sequence[Tensor]


@dataclass(frozen=True)
class Holder:
    """What a party brings into a protocol."""

    party: PartyId
    X: Tensor  # (N, columns), its training rows
    features: FeatureMap  # all of them
    net: Network
    seed: int  # shared with everybody
    private: int  # of the party's own streams
    must_keep: Sequence[bool]  # features that may not be removed
    alone: Tensor | None = None  # (n, columns), its rows that no other party has
    test: Tensor | None = None  # (n, columns), its test rows


@dataclass(frozen=True)
class Selected:
    """The end of a protocol: what a party keeps, and why, for its own eyes."""

    groups: Tensor  # (n_groups,), True: kept
    rating: Rating | None = None
    gates: Tensor | None = None  # (n_groups,), where gates on them start
    net: Network | None = None  # of all columns, in the place of the party's own


@dataclass(frozen=True)
class ShownScores:
    """An answer under masks, whose sum over parties tells of test rows."""

    arrays: QueryArrays
    n_values: int  # about a row


ProtocolAnswer = QueryArrays | ShownScores | Selected


def expect(arrays: QueryArrays, *shapes: tuple[int, ...]) -> None:
    """Refuse arrays of other shapes with a ValueError; -1 stands for any size."""
    found = [tuple(array.shape) for array in arrays]
    fits = len(found) == len(shapes) and all(
        len(own) == len(shape)
        and all(want in (-1, got) for got, want in zip(own, shape, strict=True))
        for own, shape in zip(found, shapes, strict=True)
    )
    if not fits:
        raise ValueError(f"arrays of shapes {found} instead of {list(shapes)}")


class PartyProtocol(Protocol):
    """A party's side of a protocol, made anew for every stage of queries.

    What does not fit is a ValueError, which :class:`lessvfl.party.Party` puts into a
    sentence.
    """

    def answer(self, step: int, arrays: QueryArrays) -> ProtocolAnswer:
        """Answer one query; at the end return what is kept."""


@runtime_checkable
class SavedProtocol(PartyProtocol, Protocol):
    """A protocol that goes on where it was, between two queries that allow it."""

    def state(self) -> dict[str, Tensor]:
        """Return all that changes."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up what :meth:`state` gave; this protocol must be a fresh one."""


NewProtocol = Callable[[Holder], PartyProtocol]


@dataclass
class QueryState:
    """What a protocol has left at a party, or goes on with."""

    rating: Rating | None  # for the party's own eyes
    gate_start: Tensor | None  # (n_groups,), where gates start
    protocol: dict[str, Tensor] | None  # of one that is saved on its way


class QueryStage:
    """A party in a stage of queries, and what the protocol left behind."""

    def __init__(self, new: NewProtocol | None) -> None:
        self._new = new  # of a method that has a protocol of its own
        self._protocol: PartyProtocol | None = None  # while the stage lasts
        self.gate_start: Tensor | None = None  # (n_groups,), where gates start
        self.rating: Rating | None = None  # for the party's own eyes

    def answer(
        self, step: int, arrays: QueryArrays, holder: Callable[[], Holder]
    ) -> ProtocolAnswer | None:
        """Answer one query, from step 0 on; None: there is no such stage."""
        if step == 0 and self._new is not None:
            self._protocol = self._new(holder())
        if self._protocol is None:
            return None
        answer = self._protocol.answer(step, arrays)
        if isinstance(answer, Selected):
            self._protocol = None
            self.gate_start, self.rating = answer.gates, answer.rating
        return answer

    @property
    def state(self) -> QueryState:
        """Return what changes from query to query."""
        protocol = self._protocol
        goes_on = protocol.state() if isinstance(protocol, SavedProtocol) else None
        return QueryState(self.rating, self.gate_start, goes_on)

    def resume(self, state: QueryState, holder: Callable[[], Holder]) -> None:
        """Go on with what :attr:`state` was."""
        self.gate_start, self.rating = state.gate_start, state.rating
        if state.protocol and self._new is not None:
            protocol = self._new(holder())
            assert isinstance(protocol, SavedProtocol)
            protocol.restore(state.protocol)
            self._protocol = protocol
