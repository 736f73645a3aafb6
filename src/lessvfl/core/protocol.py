"""A method's own protocol: what a party does with queries that are no training.

A stage of queries is entered at step 0, and unless its protocol is a
:class:`SavedProtocol` never saved on its way: after a break it begins again. The
server's side of a protocol is in the file of its method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lessvfl.core.features import FeatureMap
from lessvfl.core.gates import HALF_OPEN, Gates
from lessvfl.core.network import Network
from lessvfl.core.party_data import PartyData
from lessvfl.core.party_model import PartyModel
from lessvfl.core.plans import TrainPlan
from lessvfl.core.ratings import Rating
from lessvfl.errors import ProtocolError
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
    """Raise ValueError unless arrays have these shapes, in order; -1 is any size."""
    sizes = [tuple(array.shape) for array in arrays]
    fits = len(sizes) == len(shapes) and all(
        len(size) == len(shape)
        and all(want in (-1, got) for got, want in zip(size, shape, strict=True))
        for size, shape in zip(sizes, shapes, strict=True)
    )
    if not fits:
        raise ValueError(f"arrays of shapes {sizes} instead of {list(shapes)}")


class PartyProtocol(Protocol):
    """A party's side of a protocol, made anew for every stage of queries.

    What does not fit is a ValueError, which :class:`QueryStage` puts into a sentence.
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
    """A party in a stage of queries, and what the protocol left behind.

    `new` returns the party's side of the protocol, None where the method has none;
    `party` is the name, `data` what it brought; `model` is cut to what is kept at the
    end. `seed` is known to all sides, `private` to the party alone.
    """

    def __init__(
        self,
        new: NewProtocol | None,
        party: PartyId,
        model: PartyModel,
        data: PartyData,
        seed: int,
        private: int,
    ) -> None:
        self._new, self._party, self._model, self._data = new, party, model, data
        self._seeds = (seed, private)
        self._protocol: PartyProtocol | None = None  # while the stage lasts
        self.gate_start: Tensor | None = None  # (n_groups,), where gates start
        self.rating: Rating | None = None  # for the party's own eyes

    def _begin(self) -> None:
        """Make the party's side of the protocol anew, if the method has a protocol."""
        if self._new is not None:
            model, data = self._model, self._data
            holder = Holder(
                self._party,
                model.X_train,
                model.features,
                model.net,
                *self._seeds,
                must_keep=data.must_keep,
                alone=data.alone,
                test=model.X_test,
            )
            self._protocol = self._new(holder)

    def answer(
        self, step: int, arrays: QueryArrays, *, is_due: bool
    ) -> ShownScores | Selected:
        """Answer one query, from step 0 on; at the end keep what the protocol says.

        One that is not due, or of no such stage, is refused.
        """
        try:
            if step == 0 and is_due:
                self._begin()
            if self._protocol is None or not is_due:
                raise ProtocolError.told(
                    f"Party '{self._party}' answers the queries of a stage of its "
                    f"method, from step 0 on. Got step {step} outside of one."
                )
            answer = self._protocol.answer(step, arrays)
        except ValueError as error:
            raise ProtocolError.told(
                f"Party '{self._party}' must be sent what its method's protocol has at "
                f"step {step}. Got {error}."
            ) from None
        if isinstance(answer, Selected):
            self._protocol = None
            self.gate_start, self.rating = answer.gates, answer.rating
            self._model.follow(answer.groups, answer.net)
            return answer
        return answer if isinstance(answer, ShownScores) else ShownScores(answer, 0)

    def gates(self, plan: TrainPlan) -> Gates | None:
        """Return gates on feature groups if the plan has any, else None.

        They start where the last protocol said, or half open.
        """
        X, features = self._model.X_train, self._model.features
        start = self.gate_start
        if start is None:
            start = torch.full(features.groups.shape, HALF_OPEN)
        start, owner = start.to(X, copy=True), features.column_groups
        return Gates.of(plan, start, owner, seed=self._seeds[1], who=self._party)

    @property
    def state(self) -> QueryState:
        """Return what changes from query to query."""
        protocol = self._protocol
        goes_on = protocol.state() if isinstance(protocol, SavedProtocol) else None
        return QueryState(self.rating, self.gate_start, goes_on)

    def resume(self, state: QueryState) -> None:
        """Go on with what :attr:`state` was."""
        self.gate_start, self.rating = state.gate_start, state.rating
        if state.protocol:
            self._begin()
            assert isinstance(self._protocol, SavedProtocol)
            self._protocol.restore(state.protocol)
