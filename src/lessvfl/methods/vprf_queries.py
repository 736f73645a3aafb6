"""The label holder's side of trees that lie at one party each: growth and votes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from lessvfl.core.protocol import QueryArrays
from lessvfl.core.trees.ensemble import (
    EnsembleGrower,
    TreeEnsemble,
    TreeSettings,
    fit,
)
from lessvfl.core.trees.networks import TreeSum
from lessvfl.core.trees.targets import TreeTargets
from lessvfl.core.votes import VoteFormats, VoteStep, count_votes
from lessvfl.methods.tree_queries import (
    STAGE,
    Phase,
    QueriedHolders,
    QueryParts,
    TreeQuery,
)
from lessvfl.methods.tree_sums import EXACT, ClearSums
from lessvfl.terms import PartyId, stream_seed
from lessvfl.wire.messages import ArrayFormat
from lessvfl.wire.parties import Parties

T = TypeVar("T")


class Gathering:
    """Queries to several parties, each of which waits, in one exchange.

    Trees of all parties grow at the same time, in threads; what they ask goes out once
    each of them asks for something, or is over.
    """

    def __init__(self, parties: Parties, names: Sequence[PartyId]) -> None:
        self._parties, self._names = parties, names
        self._growing = set(names)
        self._asked: dict[PartyId, AskedOne] = {}
        self._answers: dict[PartyId, tuple[Tensor, ...]] = {}
        self._failed: BaseException | None = None
        self._changed = threading.Condition()

    def ask(self, name: PartyId, asked: AskedOne) -> tuple[Tensor, ...]:
        """Return a party's answer, once all have asked."""
        with self._changed:
            self._asked[name] = asked
            self._send_if_all()
            self._changed.wait_for(lambda: name in self._answers or self._failed)
            if self._failed is not None:
                raise self._failed
            return self._answers.pop(name)

    def leave(self, name: PartyId) -> None:
        """Wait for this party no longer."""
        with self._changed:
            self._growing.discard(name)
            self._send_if_all()

    def fail(self, error: BaseException) -> None:
        """Have all others end, too."""
        with self._changed:
            self._failed = error
            self._changed.notify_all()

    def _send_if_all(self) -> None:
        if not self._asked or self._growing - self._asked.keys() or self._failed:
            return
        asked = {name: self._asked[name] for name in self._names if name in self._asked}
        self._asked.clear()
        try:
            self._answers |= self._parties.query(
                STAGE,
                {name: own.step for name, own in asked.items()},
                {name: own.sent for name, own in asked.items()},
                {name: own.expects for name, own in asked.items()},
            )
        except BaseException as error:
            self._failed = error
        self._changed.notify_all()


class AskedOne(NamedTuple):
    """One party's query, and the form of its answer."""

    step: int
    sent: Sequence[Tensor]
    expects: Sequence[ArrayFormat]


class VotingHolder(QueriedHolders):
    """One party, as the label holder sees it who grows the party's trees."""

    def __init__(self, parties: Parties, name: PartyId) -> None:
        super().__init__(parties, ClearSums(EXACT))
        self.name, self.names = name, [name]
        self.gathering: Gathering | None = None  # while others are asked, too

    def _exchange(
        self,
        sent: Mapping[PartyId, Sequence[Tensor]],
        expects: Mapping[PartyId, Sequence[ArrayFormat]],
    ) -> Mapping[PartyId, tuple[Tensor, ...]]:
        if self.gathering is None:
            return super()._exchange(sent, expects)
        own = AskedOne(self.n_asked, sent[self.name], expects[self.name])
        return {self.name: self.gathering.ask(self.name, own)}

    def grow(
        self, phase: Phase, targets: TreeTargets, growth: TreeSettings
    ) -> TreeEnsemble:
        """Grow trees on the columns that the party has in a phase, if any."""
        self.start(phase)
        n_trees = growth.n_trees if self.layouts[0].n_columns else 0
        own = stream_seed(growth.seed, "trees of", self.name)
        growth = replace(growth, n_trees=n_trees, seed=own)
        return fit(EnsembleGrower(self, targets, growth, forest=True))

    def give(self, trees: TreeEnsemble) -> None:
        """Tell the party which splits stay, its trees, and what leaves say."""
        self.end(trees, is_last=False)
        places = {rule: place for place, rule in enumerate(self.rules[0])}
        none = torch.zeros(0, dtype=torch.float64)
        own = TreeSum.of(trees, [places], max(1, len(places)), none)
        table = torch.cat([own.children, own.components.unsqueeze(1)], dim=1)
        head = [int(own.shares), len(own.roots), *own.roots.tolist()]
        sent = QueryParts([*head, *table.flatten().tolist()])
        sent = sent._replace(values=own.values)
        self._ask(TreeQuery.TREES, [sent], [[]])

    def next_step(self) -> int:
        """Return the number of the next query, and count it."""
        self.n_asked += 1
        return self.n_asked - 1


def together(
    parties: Parties,
    holders: Sequence[VotingHolder],
    work: Callable[[VotingHolder], T],
) -> dict[VotingHolder, T]:
    """Do something with every party at the same time, in common exchanges."""
    gathering = Gathering(parties, [holder.name for holder in holders])

    def run(holder: VotingHolder) -> T:
        holder.gathering = gathering
        try:
            return work(holder)
        except BaseException as error:
            gathering.fail(error)
            raise
        finally:
            holder.gathering = None
            gathering.leave(holder.name)

    with ThreadPoolExecutor(max(1, len(holders))) as threads:
        try:
            return dict(zip(holders, threads.map(run, holders), strict=True))
        except BaseException as error:  # of this thread: others still wait
            gathering.fail(error)
            raise


def in_means(
    found: Mapping[VotingHolder, TreeEnsemble],
) -> dict[VotingHolder, TreeEnsemble]:
    """Return trees with gains in multiples of what a column has in the mean.

    Gains are means over a party's trees.
    """
    n_trees = [max(1, len(trees.trees)) for trees in found.values()]
    sums = [
        sum(float(tree.gain.sum()) for (tree,) in trees.trees)
        for trees in found.values()
    ]
    n_columns = sum(holder.layouts[0].n_columns for holder in found)
    mean = sum(own / n for own, n in zip(sums, n_trees, strict=True))
    unit = mean / max(1, n_columns) or 1.0
    return {
        holder: replace(
            trees,
            trees=tuple(
                (replace(t, gain=t.gain / (n * unit)),) for (t,) in trees.trees
            ),
        )
        for (holder, trees), n in zip(found.items(), n_trees, strict=True)
    }


def count(parties: Parties, holders: Sequence[VotingHolder], n_votes: int) -> Tensor:
    """Return the sum of the votes for test rows, (n, K)."""
    by_name = {holder.name: holder for holder in holders}

    def take(
        step: VoteStep, arrays: Mapping[PartyId, QueryArrays], expects: VoteFormats
    ) -> dict[PartyId, tuple[Tensor, ...]]:
        head = torch.tensor([TreeQuery.VOTES, step], dtype=torch.int32)
        sent = {name: (head, *own) for name, own in arrays.items()}
        steps = {name: by_name[name].next_step() for name in arrays}
        return parties.query(STAGE, steps, sent, dict.fromkeys(arrays, expects))

    return count_votes(list(by_name), n_votes, take)
