"""A method's own protocol: what a party does with queries that are no training.

A stage of queries is entered at step 0 and never saved on its way: after a break it
begins again. The server's side of a protocol is in the file of its method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lessvfl.core.features import FeatureMap
from lessvfl.core.network import Network
from lessvfl.core.ratings import Rating
from lessvfl.terms import PartyId

QueryArrays = Sequence[Tensor]  # each with a first axis R


@dataclass(frozen=True)
class Holder:
    """What a party brings into a protocol."""

    party: PartyId
    X: Tensor  # (S, N, columns), its training rows
    features: FeatureMap  # all of them
    net: Network
    seeds: tuple[int, ...]  # shared with everybody
    private: tuple[int, ...]  # of the party's own streams
    must_keep: Sequence[bool]  # features that may not be removed
    alone: Tensor | None = None  # (S, n, columns), its rows that no other party has

    @property
    def n_replicas(self) -> int:
        """Return the number of replicas, R."""
        return len(self.seeds)

    def columns(self, replica: int) -> Tensor:
        """Return the columns of one replica, (N, columns)."""
        return self.X[min(replica, len(self.X) - 1)]


@dataclass(frozen=True)
class Selected:
    """The end of a protocol: what a party keeps, and why, for its own eyes."""

    groups: Tensor  # (R, n_groups), True: kept
    ratings: tuple[Rating, ...] = ()  # of every replica
    gates: Tensor | None = None  # (R, n_groups), where gates on them start
    net: Network | None = None  # of all columns, in the place of the party's own


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

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer one query; at the end return what is kept."""


NewProtocol = Callable[[Holder], PartyProtocol]
