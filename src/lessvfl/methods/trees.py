"""What methods of trees share: settings, and the label holder's side of the protocol.

Trees are grown across parties (``core/trees``). The label holder sends gradients and
hessians, parties sum them by bin, the label holder chooses splits, and the owner of a
split's column says which rows go left and keeps the threshold. First a few trees see
scrambled copies of every party's columns, too, and a party keeps what gains more; then
the trees that stay are grown on what is left.

======= ========================================= ======================================
query   down                                      up
======= ========================================= ======================================
start   which of the two phases                   how many columns
layout  nothing                                   bins of every column; whether it has
                                                  missing cells, and an order
begin   gradient and hessian of every row, which  sums of both, and rows, by bin of
        rows and columns are in use               every column
sums    which rows went left at new splits, all   the same of new nodes
        parties'
split   own columns, and bins that go left        which rows of those nodes go left
end     which splits stay, and what they gained   nothing: the party selects
======= ========================================= ======================================

Gradients are labels to whoever reads them, and every party learns which rows share a
node. A label holder who follows this learns sums by bin, of columns without a name; one
who sends numbers of its own instead of gradients can read every row's bins off them.

With ``secret=sharing`` (``core/trees/shared``; the next party deals masks for each):

======= ========================================= ======================================
query   down                                      up
======= ========================================= ======================================
layout  nothing                                   beside the above: a public key
mask    key and number of bins of whom it deals   the seed by which masks of gradients
        for; key of its dealer                    are drawn; own bins less their mask
begin   gradients and hessians less their mask;   sums of these less a mask, rows by bin
        which bins of whom it deals for are used  and what it deals plus another mask
sums    which rows went left, as above            the same of new nodes
======= ========================================= ======================================

A party then sees uniformly random numbers in the place of gradients. It still learns
which rows share a node, which tells about as much of labels as the trees predict. The
label holder learns what it learns above, sums and rows by bin, and nothing more if it
carries keys as they are and no dealer tells it what was dealt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from lessvfl import settings
from lessvfl.core import limits
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan
from lessvfl.core.trees.columns import MOST_BINS
from lessvfl.core.trees.ensemble import (
    EnsembleGrower,
    EnsembleState,
    TreeEnsemble,
    TreeSettings,
    fit,
)
from lessvfl.core.trees.grow import GrowthLimits
from lessvfl.core.trees.holders import BinLayout
from lessvfl.core.trees.networks import TreeSum
from lessvfl.core.trees.splits import SplitRules
from lessvfl.core.trees.targets import TreeTargets
from lessvfl.methods.base import Joint, RunMethod
from lessvfl.methods.tree_queries import STAGE, Phase, QueriedHolders
from lessvfl.methods.tree_sums import EXACT, ClearSums, SharedSums, SumsWay
from lessvfl.settings import a_float, an_int, one_of, setting
from lessvfl.terms import Event, Observer, PartyId
from lessvfl.wire.parties import Parties

PASSES = 3  # over training and test rows in which splits are shown


@dataclass(frozen=True)
class GrowthConfig(Joint):
    """Settings of growth. Those of networks and their training are not read."""

    trees: int = setting(an_int(1), 100, "trees, or rounds of them")
    leaves: int = setting(an_int(2), 31, "the most leaves of a tree")
    tree_depth: int = setting(an_int(1), 6, "the most splits on the way to a leaf")
    bins: int = setting(an_int(2, MOST_BINS), 64, "the most bins of a column")
    order: Literal["depth", "gain"] = setting(
        one_of("depth", "gain"),
        "depth",
        "which leaf is split next: a level's together, or the one that gains most",
    )
    least_rows: int = setting(an_int(1), 20, "the fewest rows of a leaf")
    l2: float = setting(a_float(), 0.0, "added to hessians in leaves")
    row_share: float = setting(
        a_float(0.0, 1.0, open_low=True), 1.0, "rows that a round sees"
    )
    column_share: float = setting(
        a_float(0.0, 1.0, open_low=True), 1.0, "columns that a round may use"
    )
    gradient_bits: int = setting(one_of(8, 16, 32), 16, "bits of a gradient on its way")

    @property
    def n_first(self) -> int:
        """Return how many trees say what is kept, before those that stay."""
        return 0

    @property
    def n_trees(self) -> int:
        """Return how many trees, or rounds of them, a run grows at most."""
        return self.n_first + self.trees

    def growth(self, phase: Phase, seed: int) -> TreeSettings:
        """Return how the trees of a phase grow."""
        return TreeSettings(
            n_trees=self.n_first if phase is Phase.SELECT else self.trees,
            limits=GrowthLimits(
                self.leaves,
                self.tree_depth,
                self.order,
                SplitRules(min_samples_leaf=self.least_rows, l2=self.l2),
            ),
            row_share=self.row_share,
            column_share=self.column_share,
            bits=self.gradient_bits,
            seed=seed,
        )

    def sums(self, names: Sequence[PartyId], n_rows: int) -> SumsWay:
        """Return how gradients and sums travel."""
        return ClearSums(EXACT)

    @property
    def n_splits(self) -> int:
        """Return how many splits a tree has at most."""
        return int(min(self.leaves, 2**self.tree_depth) - 1)

    @property
    def n_queries(self) -> int:
        """Return how many queries a party answers at most."""
        n_exchanges = self.tree_depth if self.order == "depth" else self.n_splits
        return 6 + self.n_trees * (2 * n_exchanges + 1)

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        n_shown = PASSES * self.trees * self.n_splits  # times that a row is
        n_values = n_shown * limits.MOST_CLASSES  # which have a tree each
        return (QueryPlan(STAGE, self.n_queries, n_values),)


@dataclass(frozen=True)
class DeepGrowth(GrowthConfig):
    """Settings of the trees of a forest: deeper ones, of small leaves."""

    leaves: int = setting(an_int(2), 1024, "the most leaves of a tree")
    tree_depth: int = setting(an_int(1), 12, "the most splits on the way to a leaf")
    least_rows: int = setting(an_int(1), 5, "the fewest rows of a leaf")


@dataclass(frozen=True)
class TreeConfig(GrowthConfig):
    """Settings of trees, and of selection against scrambled copies."""

    histogram_bits: int = setting(
        one_of(8, 16, 32), 32, "bits of a sum on its way; 32: exact"
    )
    secret: Literal["none", "sharing"] = setting(
        one_of("none", "sharing"),
        "none",
        "how gradients are summed: as they are, or under additive sharing, so that no "
        "party can read them",
    )
    select_trees: int = setting(
        an_int(), 20, "trees grown beside scrambled copies; 0: no selection"
    )
    copies: int = setting(an_int(1), 5, "scrambled copies of every column beside them")
    false_share: float = setting(
        a_float(0.0, 1.0),
        0.2,
        "the largest estimated share of useless features among those kept",
    )

    def __post_init__(self) -> None:
        """Raise an error if sums are to be rounded (`histogram_bits`) under sharing."""
        super().__post_init__()
        if self.secret == "sharing" and self.histogram_bits != EXACT:
            allowed = f"{EXACT} with secret=sharing, which rounds no sum"
            got = self.histogram_bits
            raise settings.refuse("histogram_bits", "setting", allowed, got)

    @property
    def n_first(self) -> int:
        """Return how many trees are grown beside copies."""
        return self.select_trees

    def sums(self, names: Sequence[PartyId], n_rows: int) -> SumsWay:
        """Return how gradients and sums travel."""
        if self.secret == "sharing":
            return SharedSums(names, self.gradient_bits, n_rows)
        return ClearSums(self.histogram_bits)

    @property
    def n_queries(self) -> int:
        """Return how many queries a party answers at most, of masks in both phases."""
        return super().n_queries + (2 if self.secret == "sharing" else 0)


def targets_of(labels: Labels) -> TreeTargets:
    """Return labels as trees take them."""
    weight = None if labels.weight is None else labels.weight.double().cpu().numpy()
    return TreeTargets.of(labels.y.double().cpu().numpy(), labels.task, weight)


@dataclass
class TreesState:
    """What growth goes on with between two trees, or has made."""

    made: dict[str, Tensor] | None = None  # of the server's trees, which are over
    phase: Phase = Phase.SELECT
    n_asked: int = 0  # queries that every party has answered
    layouts: list[BinLayout] = field(default_factory=list)  # of every party
    ensemble: EnsembleState | None = None


GrowPhase = Callable[[Phase, TreeSettings], tuple[TreeEnsemble, tuple[float, ...]]]
Search = Callable[[QueriedHolders, GrowPhase, Any, int], TreeSettings]


def grow_trees(forest: bool, search: Search | None = None) -> RunMethod:
    """Return a method that selects by gain, then grows trees on what is left.

    `search`, if any, says how they grow, after trees of its own.
    """

    def run(
        parties: Parties,
        fusion: Network,
        labels: Labels,
        config: GrowthConfig,
        observe: Observer,
        keeper: Keeper,
    ) -> Network:
        begun = keeper.enter(STAGE, TreesState)
        if begun is not None and begun.made is not None:
            return TreeSum.of_state(begun.made)
        targets = targets_of(labels)
        names, n_rows = parties.active(), len(targets.y)
        holders = QueriedHolders(parties, config.sums(names, n_rows))
        n_trees, n_before, seed = config.n_trees, 0, labels.seed
        selects = config.n_first > 0
        state: EnsembleState | None = None
        if begun is None or begun.ensemble is None:
            keeper.reached(STAGE, 0, n_trees, TreesState)
            observe(Event(STAGE, 0, n_trees))
        else:
            holders.n_asked, holders.layouts = begun.n_asked, begun.layouts
            state = begun.ensemble
            if begun.phase == Phase.TRAIN:
                selects, n_before = False, n_trees - config.trees

        def grow(
            phase: Phase, growth: TreeSettings
        ) -> tuple[TreeEnsemble, tuple[float, ...]]:
            """Grow the trees of a phase; return them, and losses of rows held out."""
            nonlocal n_before, state
            losses: tuple[float, ...] = ()

            def grown(state: EnsembleState) -> None:
                nonlocal losses
                losses = state.losses
                if n_before + len(state.trees) < n_trees:
                    observe(Event(STAGE, n_before + len(state.trees), n_trees))
                if search is None and holders.sums.goes_on:  # others begin again
                    n_asked = holders.n_asked
                    so_far = TreesState(None, phase, n_asked, holders.layouts, state)
                    keeper.reached(STAGE, n_asked, None, lambda: so_far)

            if state is None:
                holders.start(phase)
            grower = EnsembleGrower(holders, targets, growth, forest=forest)
            trees = fit(grower, grown, state)
            n_before, state = n_before + growth.n_trees, None
            return trees, losses

        if selects:
            trees, _ = grow(Phase.SELECT, config.growth(Phase.SELECT, seed))
            holders.end(trees, is_last=False)
        growth = config.growth(Phase.TRAIN, seed)
        if not holders.names:  # nobody kept anything
            growth = replace(growth, n_trees=0)
        if search is not None:
            growth = search(holders, grow, config, seed)
        trees, _ = grow(Phase.TRAIN, growth)
        holders.end(trees, is_last=True)
        network = TreeSum.of(trees, *holders.places(), fusion.input_weights)
        observe(Event(STAGE, n_trees, n_trees, network))
        keeper.reached(STAGE, 1, 1, lambda: TreesState(network.state()))
        return network

    return run
