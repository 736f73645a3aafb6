"""The label holder's side of trees that lie at one party each: growth and votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from lessvfl.terms import PartyId, stream_seed
from lessvfl.wire.parties import Parties


class VotingHolder(QueriedHolders):
    """One party, as the label holder sees it who grows the party's trees."""

    def __init__(self, parties: Parties, name: PartyId) -> None:
        super().__init__(parties)
        self.name, self.names = name, [name]

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
        """Tell the party its trees, and what leaves say."""
        places = {rule: place for place, rule in enumerate(self.rules[0])}
        none = torch.zeros(0, dtype=torch.float64)
        own = TreeSum.of(trees, [places], max(1, len(places)), none)
        table = torch.cat([own.children, own.components.unsqueeze(1)], dim=1)
        head = [int(own.shares), len(own.roots), *own.roots.tolist()]
        sent = QueryParts([*head, *table.flatten().tolist()])
        sent = sent._replace(values=own.values.unsqueeze(0))
        self._ask(TreeQuery.TREES, [sent], [[]])

    def next_step(self) -> int:
        """Return the number of the next query, and count it."""
        self._step += 1
        return self._step - 1


def in_means(found: Mapping[VotingHolder, TreeEnsemble]) -> list[TreeEnsemble]:
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
    return [
        replace(
            trees,
            trees=tuple(
                (replace(t, gain=t.gain / (n * unit)),) for (t,) in trees.trees
            ),
        )
        for trees, n in zip(found.values(), n_trees, strict=True)
    ]


def count(parties: Parties, holders: Sequence[VotingHolder]) -> Tensor:
    """Return the sum of the votes for test rows, (n, K)."""
    by_name = {holder.name: holder for holder in holders}

    def take(
        step: VoteStep, arrays: Mapping[PartyId, QueryArrays], expects: VoteFormats
    ) -> dict[PartyId, tuple[Tensor, ...]]:
        head = torch.tensor([[TreeQuery.VOTES, step]], dtype=torch.int32)
        sent = {name: (head, *own) for name, own in arrays.items()}
        steps = {name: by_name[name].next_step() for name in arrays}
        return parties.query(STAGE, steps, sent, dict.fromkeys(arrays, expects))

    return count_votes(list(by_name), take)
