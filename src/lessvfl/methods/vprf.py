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

from lessvfl.core import limits
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan
from lessvfl.core.trees.ensemble import TreeEnsemble, TreeSettings
from lessvfl.core.trees.tree import LEAF
from lessvfl.core.trees.votes import VoteSum
from lessvfl.methods.base import Method
from lessvfl.methods.counting import check_dealers
from lessvfl.methods.tree_queries import STAGE, Phase, TreeQuery, query
from lessvfl.methods.trees import DeepGrowth, targets_of
from lessvfl.methods.vprf_party import VprfParty
from lessvfl.methods.vprf_queries import VotingHolder, count, in_means, together
from lessvfl.settings import an_int, one_of, setting
from lessvfl.terms import Event, Observer
from lessvfl.wire.parties import Parties

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
        (grown,) = super().plans(n_parties)
        assert isinstance(grown, QueryPlan)
        n_splits = min(self.leaves, 2**self.tree_depth) - 1
        n_values = self.n_trees * n_splits + VOTED * limits.MOST_CLASSES
        n_queries, scores = grown.n_queries + N_MORE, self.secret == "sharing"
        return (QueryPlan(STAGE, n_queries, n_values, scores=scores),)


def share_of(n_trees: int, place: int, n_parties: int) -> int:
    """Return how many trees a party has, at least one."""
    return max(1, (n_trees + n_parties - 1 - place) // n_parties)


def size_of(trees: TreeEnsemble) -> tuple[int, int]:
    """Return how many trees there are, and how many splits they have."""
    splits = (int((tree.owner != LEAF).sum()) for some in trees.trees for tree in some)
    return len(trees.trees), sum(splits)


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Rate features, grow every party's trees, and count votes."""
    made = keeper.made_by(STAGE)
    if made is not None:
        return VoteSum.of_state(made)
    targets, names = targets_of(labels), parties.active()
    if config.secret == "sharing":
        check_dealers(names, "sharing")
    holders = [VotingHolder(parties, name) for name in names]
    n_all = 1 + bool(config.n_first)
    keeper.put_back(fusion.parameters())
    keeper.reached(STAGE, 0, n_all)
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
    sizes |= {holder.name: size_of(trees) for holder, trees in grown.items()}
    like, places = fusion.input_weights, list(sizes.values())
    vote_sum = VoteSum.of(places, labels.task, n_outputs, like)
    if config.secret == "sharing":
        votes = count(parties, holders, n_outputs).to(like.device)
        outputs = vote_sum.counted(votes, range(len(places)))
    parties.resize(dict.fromkeys(parties.names, n_outputs))
    last = {holder.name: holder.next_step() for holder in holders}
    parties.query_last(STAGE, last, dict.fromkeys(last, query(TreeQuery.DONE)))
    observe(Event(STAGE, n_all, n_all, vote_sum, outputs))
    keeper.store(STAGE, vote_sum.state())
    return vote_sum


METHOD = Method(
    "vprf",
    "a forest of trees at one party each, with masked votes; features by impurity",
    "after Hou et al., IEEE Internet of Things Journal, 2022 (VPRF)",
    Config,
    run,
    protocol=VprfParty,
)
