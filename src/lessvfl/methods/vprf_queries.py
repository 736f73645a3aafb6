"""The label holder's side of trees that lie at one party each: growth and votes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

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
    TreeQuery,
    query,
)
from lessvfl.methods.tree_sums import EXACT, ClearSums
from lessvfl.terms import PartyId, Stage, stream_seed
from lessvfl.wire.messages import ArrayFormat
from lessvfl.wire.parties import Parties

T = TypeVar("T")


class VotingHolder(QueriedHolders):
    """One party, as the label holder sees it who grows the party's trees."""

    def __init__(self, parties: Parties, name: PartyId) -> None:
        super().__init__(parties, ClearSums(EXACT))
        self.name, self.names = name, [name]

    def grow(
        self, phase: Phase, targets: TreeTargets, growth: TreeSettings
    ) -> TreeEnsemble:
        """Grow trees on the columns that the party has in a phase, if any."""
        self.start(phase)
        n_trees = growth.n_trees if self.layouts[0].n_columns else 0
        seed = stream_seed(growth.seed, "trees of", self.name)
        growth = replace(growth, n_trees=n_trees, seed=seed)
        return fit(EnsembleGrower(self, targets, growth, forest=True))

    def give(self, trees: TreeEnsemble) -> None:
        """Tell the party which splits stay, its trees, and what leaves say."""
        self.end(trees, is_last=False)
        places = {rule: place for place, rule in enumerate(self.rules[0])}
        none = torch.zeros(0, dtype=torch.float64)
        whole = TreeSum.of(trees, [places], max(1, len(places)), none)
        table = torch.cat([whole.children, whole.components.unsqueeze(1)], dim=1)
        head = [int(whole.shares), len(whole.roots), *whole.roots.tolist()]
        numbers = [*head, *table.flatten().tolist()]
        self.ask([query(TreeQuery.TREES, numbers, values=whole.values)], [[]])

    def next_step(self) -> int:
        """Return the number of the next query, and count it."""
        self.n_asked += 1
        return self.n_asked - 1


class CommonExchanges:
    """Queries of several threads, one for each party, sent in one exchange.

    A thread that asks waits until all others have asked, too, or are over.
    """

    def __init__(self, parties: Parties, names: Sequence[PartyId]) -> None:
        self._parties, self._names = parties, names
        self._asked: dict[PartyId, tuple[int, QueryArrays, Sequence[ArrayFormat]]] = {}
        self._answers: dict[PartyId, tuple[Tensor, ...]] = {}
        self._all_are_here = threading.Barrier(len(names), self._exchange)
        self.fail = self._all_are_here.abort  # all that wait end, too

    def query(
        self,
        stage: Stage,
        step: int | Mapping[PartyId, int],
        arrays: Mapping[PartyId, Sequence[Tensor]],
        expects: Mapping[PartyId, Sequence[ArrayFormat]],
    ) -> dict[PartyId, tuple[Tensor, ...]]:
        """Take a step with one party, as `Parties.query` does, once all have asked."""
        ((name, sent),) = arrays.items()
        assert isinstance(step, int)
        self._asked[name] = (step, sent, expects[name])
        self._all_are_here.wait()
        return {name: self._answers[name]}

    def leave(self) -> None:
        """Wait, with nothing to ask, until nobody else asks for anything."""
        self._all_are_here.wait()
        while self._answers:
            self._all_are_here.wait()

    def _exchange(self) -> None:
        """Send the questions of all threads in one exchange, while the threads wait."""
        asked = {name: self._asked[name] for name in self._names if name in self._asked}
        self._asked.clear()
        self._answers = {}
        if asked:
            self._answers = self._parties.query(
                STAGE,
                {name: step for name, (step, _, _) in asked.items()},
                {name: sent for name, (_, sent, _) in asked.items()},
                {name: expects for name, (_, _, expects) in asked.items()},
            )


def together(
    parties: Parties,
    holders: Sequence[VotingHolder],
    work: Callable[[VotingHolder], T],
) -> dict[VotingHolder, T]:
    """Do something with every party at the same time, in common exchanges."""
    if not holders:
        return {}
    exchanges = CommonExchanges(parties, [holder.name for holder in holders])

    def run(holder: VotingHolder) -> T:
        holder.exchange = exchanges.query
        try:
            result = work(holder)
            exchanges.leave()
        except BaseException:
            exchanges.fail()
            raise
        return result

    with ThreadPoolExecutor(len(holders)) as threads:
        futures = [threads.submit(run, holder) for holder in holders]
        try:
            errors = [future.exception() for future in futures]
        except BaseException:  # of this thread: all others still wait
            exchanges.fail()
            raise
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return {h: future.result() for h, future in zip(holders, futures, strict=True)}


def in_means(
    by_holder: Mapping[VotingHolder, TreeEnsemble],
) -> dict[VotingHolder, TreeEnsemble]:
    """Return trees with gains in multiples of what a column has in the mean.

    Gains are means over a party's trees.
    """
    n_trees = [max(1, len(trees.trees)) for trees in by_holder.values()]
    sums = [
        sum(float(tree.gain.sum()) for (tree,) in trees.trees)
        for trees in by_holder.values()
    ]
    n_columns = sum(holder.layouts[0].n_columns for holder in by_holder)
    mean = sum(gain / n for gain, n in zip(sums, n_trees, strict=True))
    unit = mean / max(1, n_columns) or 1.0
    return {
        holder: replace(
            trees,
            trees=tuple(
                (replace(t, gain=t.gain / (n * unit)),) for (t,) in trees.trees
            ),
        )
        for (holder, trees), n in zip(by_holder.items(), n_trees, strict=True)
    }


def count(parties: Parties, holders: Sequence[VotingHolder], n_votes: int) -> Tensor:
    """Return the sum of the votes for test rows, (n, K)."""
    by_name = {holder.name: holder for holder in holders}

    def take(
        step: VoteStep, arrays: Mapping[PartyId, QueryArrays], expects: VoteFormats
    ) -> dict[PartyId, tuple[Tensor, ...]]:
        head = query(TreeQuery.VOTES, [step])
        sent = {name: (*head, *votes) for name, votes in arrays.items()}
        steps = {name: by_name[name].next_step() for name in arrays}
        return parties.query(STAGE, steps, sent, dict.fromkeys(arrays, expects))

    return count_votes(list(by_name), n_votes, take)
