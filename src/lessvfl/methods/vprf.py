"""A random forest of trees that lie at one party each, whose votes are masked.

After VPRF (Hou et al., IEEE Internet of Things Journal, 2022), of which the abstract is
known: a vertical random forest for users that change, votes under a multi-key
homomorphic cipher, and a check of their integrity. All else is decided here. Every tree
grows on the columns of one party, so that a party that leaves takes its trees along and
the others go on. Votes go to the server under masks that cancel over those present, in
the place of the cipher, with a linear tag (``core/votes``): a vote that was changed
after it was made is found but with a probability below 2^-61. How VPRF scores features
is not published; here by impurity: first small trees grow on all columns of each party,
and a feature stays that gained more than a column does in the mean, over all parties.
(Deep trees remove as much impurity by noise, from the rows that they grow on.)

======= ========================================= ======================================
query   down                                      up
======= ========================================= ======================================
others  as of all trees (``methods/trees``), to   as there
        one party after the other
end     as there; gains of the first phase in     nothing
        multiples of the mean of all columns
trees   the party's own, with what leaves say     nothing
votes   keys, and seeds that the server cannot    votes for test rows, and tags, masked:
        read (``core/votes``)                     the server learns sums over parties
done    nothing                                   nothing: the party selects
======= ========================================= ======================================

Growing reveals what it does in all trees, but to one party at a time: gradients, which
are labels, and which rows share a node of its own trees. Masked are the votes for test
rows; predictions later show the server each party's votes, and no split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core import limits
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan
from lessvfl.core.protocol import Holder, QueryArrays, Selected, ShownScores, expect
from lessvfl.core.trees.columns import ColumnHolder
from lessvfl.core.trees.ensemble import TreeEnsemble, TreeSettings
from lessvfl.core.trees.holders import Truths
from lessvfl.core.trees.networks import Splits, TreeSum
from lessvfl.core.trees.sums import check_size
from lessvfl.core.trees.tree import LEAF
from lessvfl.core.trees.votes import Votes, VoteSum
from lessvfl.core.votes import VoteStep, VotingParty
from lessvfl.methods.base import Method
from lessvfl.methods.counting import check_dealers
from lessvfl.methods.tree_party import ColumnPlaces, GrowingParty, TreeAnswer
from lessvfl.methods.tree_queries import STAGE, Phase, TreeQuery, query
from lessvfl.methods.trees import DeepGrowth, targets_of
from lessvfl.methods.vprf_queries import VotingHolder, count, in_means, together
from lessvfl.settings import an_int, one_of, setting
from lessvfl.terms import Event, Observer
from lessvfl.wire.parties import Parties

MEAN = 1.0  # of what a column gained, as parties are told
N_MORE = 8  # queries beside those of growth
VOTED = 2  # times that a row's votes leave, in the clear at most


@dataclass(frozen=True)
class Config(DeepGrowth):
    """Settings of a forest whose trees lie at one party each."""

    select_trees: int = setting(
        an_int(), 20, "trees that rate features first; 0: no selection"
    )
    select_depth: int = setting(
        an_int(1), 3, "the most splits on the way to a leaf of these trees"
    )
    secret: Literal["sharing", "none"] = setting(
        one_of("sharing", "none"),
        "sharing",
        "how votes for test rows are counted: under masks, or as each party has them",
    )

    @property
    def n_first(self) -> int:
        """Return how many trees rate features."""
        return self.select_trees

    def growth(self, phase: Phase, seed: int) -> TreeSettings:
        """Return how the trees of a phase grow: those that rate are small."""
        usual = super().growth(phase, seed)
        if phase is not Phase.SELECT:
            return usual
        return replace(usual, limits=replace(usual.limits, max_depth=self.select_depth))

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        n_values = self.n_trees * self.n_splits + VOTED * limits.MOST_CLASSES
        scores = self.secret == "sharing"
        return (QueryPlan(STAGE, self.n_queries + N_MORE, n_values, scores=scores),)


class VprfParty(GrowingParty):
    """A party with trees of its own, and their votes."""

    def __init__(self, config: Config, holder: Holder) -> None:
        super().__init__(config, holder)
        self._answers[TreeQuery.TREES] = self._take_trees
        self._answers[TreeQuery.VOTES] = self._vote
        self._answers[TreeQuery.DONE] = self._done
        self._selected: Selected | None = None
        self._votes: Votes | None = None
        self._voting: VotingParty | None = None

    def _enter(self, phase: Phase) -> tuple[ColumnPlaces, ColumnHolder]:
        if phase is Phase.TRY:
            raise ValueError("a phase that the method does not have")
        columns = np.flatnonzero(self._kept[self._cells.groups])
        return columns, self._binned(columns, self._table[:, columns])

    def _chosen(self, gained: NDArray[np.float64]) -> Truths:
        """Return the features that gained more than a column does in the mean."""
        by_group = np.zeros(len(self._kept))
        np.add.at(by_group, self._cells.groups[self._columns], gained)
        return by_group > MEAN

    def _end(self, rules: list[int], arrays: QueryArrays) -> TreeAnswer:
        answer = super()._end(rules, arrays)
        self._selected = answer if isinstance(answer, Selected) else None
        return ()

    def _take_trees(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Put the splits and what leaves say together."""
        expect(arrays, (-1, -1))
        if self._selected is None or not isinstance(self._selected.net, Splits):
            raise ValueError("trees before their end")
        splits, values = self._selected.net, arrays[0].double()
        shares, n_trees, *rest = numbers
        if n_trees < 0 or len(rest) != n_trees + 3 * len(values):
            raise ValueError(f"{len(rest)} numbers of {len(values)} nodes")
        n_nodes, n_votes = values.shape
        most = self.config.trees * (2 * self.config.leaves - 1)
        if n_trees > self.config.trees or n_nodes > most:
            raise ValueError(f"{n_trees} trees of {n_nodes} nodes")
        check_size(n_votes, 1, max(map(len, (self.inputs.X, self._tests))))
        table = torch.tensor(rest[n_trees:]).view(-1, 3)
        state = {
            "children": table[:, :2],
            "components": table[:, 2],
            "values": values,
            "roots": torch.tensor(rest[:n_trees], dtype=torch.long),
            "start": values.new_zeros(values.shape[1]),
            "shares": torch.tensor(shares),
            "weights": values.new_zeros(1, splits.n_outputs),
        }
        self._votes = Votes(splits, TreeSum.of_state(state))
        return ()

    def _vote(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Take a step of the count of votes for test rows."""
        (step,) = numbers
        if step == VoteStep.KEYS and self._votes is not None and self._voting is None:
            self._voting = VotingParty(self._votes(self._tests))
        if self._voting is None:
            raise ValueError("a step of a count that has not begun")
        answer = self._voting.answer(step, arrays)
        if step != VoteStep.VOTE:
            return answer
        return ShownScores(answer, answer[0].shape[1])

    @property
    def _tests(self) -> Tensor:
        """Return the rows that are voted on, (n, columns)."""
        assert self.inputs.test is not None
        return self.inputs.test

    def _done(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        expect(arrays)
        if self._selected is None or self._votes is None:
            raise ValueError("an end before there are trees")
        return replace(self._selected, net=self._votes)


def share_of(n_trees: int, place: int, n_parties: int) -> int:
    """Return how many trees a party has, at least one."""
    return max(1, (n_trees + n_parties - 1 - place) // n_parties)


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Rate features, grow every party's trees, and count votes."""
    made = keeper.enter(STAGE, dict[str, Tensor])
    if made:
        return VoteSum.of_state(made)
    targets, names = targets_of(labels), parties.active()
    if config.secret == "sharing":
        check_dealers(names, "sharing")
    holders = [VotingHolder(parties, name) for name in names]
    n_all = 1 + bool(config.n_first)
    keeper.reached(STAGE, 0, n_all, dict)
    observe(Event(STAGE, 0, n_all))

    def grow(phase: Phase) -> dict[VotingHolder, TreeEnsemble]:
        growth = config.growth(phase, labels.seed)
        shares = {
            holder: replace(growth, n_trees=share_of(growth.n_trees, place, len(names)))
            for place, holder in enumerate(holders)
        }
        return together(
            parties, holders, lambda holder: holder.grow(phase, targets, shares[holder])
        )

    if config.n_first:
        rated = in_means(grow(Phase.SELECT))
        together(parties, holders, lambda h: h.end(rated[h], is_last=False))
        observe(Event(STAGE, 1, n_all))
    grown = grow(Phase.TRAIN)
    together(parties, holders, lambda holder: holder.give(grown[holder]))
    n_outputs, outputs = targets.n_outputs, None
    sizes = dict.fromkeys(parties.names, (0, 0))
    for holder, trees in grown.items():
        n_splits = sum(int((tree.owner != LEAF).sum()) for (tree,) in trees.trees)
        sizes[holder.name] = len(trees.trees), n_splits
    like, places = fusion.input_weights, list(sizes.values())
    vote_sum = VoteSum.of(places, labels.task, n_outputs, like)
    if config.secret == "sharing":
        votes = count(parties, holders, n_outputs).to(like.device)
        outputs = vote_sum.counted(votes, range(len(places)))
    parties.resize(dict.fromkeys(parties.names, n_outputs))
    last = {holder.name: holder.next_step() for holder in holders}
    parties.query_last(STAGE, last, dict.fromkeys(last, query(TreeQuery.DONE)))
    observe(Event(STAGE, n_all, n_all, vote_sum, outputs))
    keeper.reached(STAGE, 1, 1, vote_sum.state)
    return vote_sum


METHOD = Method(
    "vprf",
    "a forest of trees at one party each, with masked votes; features by impurity",
    "after Hou et al., IEEE Internet of Things Journal, 2022 (VPRF)",
    Config,
    run,
    protocol=VprfParty,
)
