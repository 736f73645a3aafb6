"""A particle swarm around boosted trees: subsets of features, and how trees grow.

After PSO-EVFFS (Zhang et al., CAAI Transactions on Intelligence Technology, 2022), of
which the abstract is known: a particle is hyper-parameters and a subset of features,
only losses travel, and a ranking by importance in trees removes features first. All
else is decided here; the constants of the swarm are usual ones (``core/swarm``).

Trees that rank grow on all columns, and each party removes the last of its features by
gain. Then particles move. Coordinates of a particle in [0, 1] are shrinkage, leaves and
l2 of its trees, which the label holder has, and one for each feature, which its party
has: above a half, it is used. In every round each particle's trees grow without some
rows, whose loss says how good it is. What the best particle uses is kept, and trees are
grown on that and all rows as it says; they are more, and each corrects as much less.

======= ========================================= ======================================
query   down                                      up
======= ========================================= ======================================
start   ranking, the next particle, or the end    how many columns
others  as of all trees (``methods/trees``)       as there
losses  of all particles, after every round       nothing: the party moves its part
end     after ranking, and of trees that stay     nothing: the party selects
======= ========================================= ======================================

Besides what trees reveal, a party learns how good particles were, and the label holder
how many columns each party has in one; equal sums tell it which of them two share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.core.plans import stream
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.swarm import Swarm, between
from lessvfl.core.trees.columns import ColumnHolder
from lessvfl.core.trees.ensemble import TreeSettings
from lessvfl.core.trees.holders import Truths
from lessvfl.methods.base import Method
from lessvfl.methods.tree_party import ColumnPlaces, GrowingParty, TreeAnswer
from lessvfl.methods.tree_queries import Phase, QueriedHolders, TreeQuery
from lessvfl.methods.trees import GrowPhase, GrowthConfig, grow_trees
from lessvfl.settings import a_float, an_int, setting

USED = 0.5  # of a coordinate, above which the feature is used
SHRINKAGE, L2 = (0.2, 1.0), (0.01, 10.0)  # of a particle's trees, at 0 and at 1
FEWEST_LEAVES = 4


@dataclass(frozen=True)
class Config(GrowthConfig):
    """Settings of a swarm around trees."""

    select_trees: int = setting(
        an_int(), 20, "trees that rank features before particles move"
    )
    removed_first: float = setting(
        a_float(0.0, 1.0),
        0.3,
        "share of its features, the last by gain, that a party removes before",
    )
    particles: int = setting(an_int(1), 8, "particles of the swarm")
    swarm_rounds: int = setting(an_int(1), 5, "how often every particle is tried")
    particle_trees: int = setting(
        an_int(1), 10, "trees that try a particle, or rounds of them"
    )
    held_out: float = setting(
        a_float(0.0, 0.5, open_low=True),
        0.2,
        "share of training rows that say how good a particle is",
    )

    @property
    def n_first(self) -> int:
        """Return how many trees rank features."""
        return self.select_trees

    @property
    def n_trees(self) -> int:
        """Return how many trees, or rounds of them, a run grows at most."""
        return (
            super().n_trees + self.swarm_rounds * self.particles * self.particle_trees
        )

    @property
    def n_queries(self) -> int:
        """Return how many queries a party answers at most."""
        return super().n_queries + self.swarm_rounds * (2 * self.particles + 1)

    def grown_by(self, place: torch.Tensor, phase: Phase, seed: int) -> TreeSettings:
        """Return how the trees of a particle at (3,) grow, tried or to their end."""
        shrinkage, leaves, l2 = place.tolist()
        usual, is_try = self.growth(phase, seed), phase is Phase.TRY
        n_trees = self.particle_trees if is_try else self.trees
        fewest, limits = min(FEWEST_LEAVES, self.leaves), usual.limits
        return replace(
            usual,
            n_trees=n_trees,
            learning_rate=between(*SHRINKAGE, shrinkage)
            * min(1.0, self.particle_trees / n_trees),
            limits=replace(
                limits,
                max_leaf_nodes=round(between(fewest, self.leaves, leaves)),
                split=replace(limits.split, l2=self.l2 + between(*L2, l2)),
            ),
            held_out=self.held_out if is_try else 0.0,
            patience=n_trees + 1,
        )


def search(
    holders: QueriedHolders, grow: GrowPhase, config: Config, seed: int
) -> TreeSettings:
    """Try all particles, round after round; return how the trees of the best grow."""
    swarm = Swarm.draw(config.particles, 3, stream(seed, "swarm"))
    for turn in range(config.swarm_rounds):
        if turn:
            swarm = swarm.moved(stream(seed, "swarm", turn))
        losses = []
        for place in swarm.places:
            _, seen = grow(Phase.TRY, config.grown_by(place, Phase.TRY, seed))
            losses.append(seen[-1])
        holders.tell(losses)
        swarm = swarm.with_losses(torch.tensor(losses, dtype=torch.float64))
    return config.grown_by(swarm.best, Phase.TRAIN, seed)


class SwarmParty(GrowingParty):
    """A party with its part of every particle: a coordinate for each feature."""

    config: Config

    def __init__(self, config: Config, holder: Holder) -> None:
        super().__init__(config, holder)
        self._answers[TreeQuery.LOSSES] = self._told
        self._whole = self._binned(np.arange(self._table.shape[1]), self._table)
        n_bins, groups = self._whole.bins.layout.sizes, self._cells.groups
        self._varies: Truths = np.bincount(groups, n_bins > 1, len(self._kept)) > 0
        self._swarm = Swarm.draw(config.particles, len(self._kept), self._chance(0))
        self._round, self._tried = 0, 0  # rounds done, and particles of this one

    def _chance(self, turn: int) -> torch.Generator:
        return stream(self.inputs.private, "swarm", self.inputs.party, turn)

    def _enter(self, phase: Phase) -> tuple[ColumnPlaces, ColumnHolder]:
        """Take the columns of the next particle, or at last those of the best."""
        is_over = self._round == self.config.swarm_rounds
        used = self._kept
        if phase is Phase.TRY:
            if is_over or self._tried == self.config.particles:
                raise ValueError("a particle too many")
            used = self._used(self._swarm.places[self._tried])
            self._tried += 1
        elif phase is Phase.TRAIN:
            if not is_over:
                raise ValueError("trees that stay before all particles")
            self._kept = used = self._used(self._swarm.best)
        columns = np.flatnonzero(used[self._cells.groups])
        return columns, self._whole.of_columns(columns)

    def _used(self, place: torch.Tensor) -> Truths:
        """Return the features that are used at a place, none of one value alone."""
        wanted = (place > USED).numpy() & self._varies
        used: Truths = self._kept & (wanted | self._must)
        return used

    def _told(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Learn how good particles were; move on."""
        expect(arrays, (self.config.particles,))
        if self._tried < self.config.particles:
            raise ValueError("losses of particles that were not tried")
        self._swarm = self._swarm.with_losses(arrays[0].double())
        self._round, self._tried = self._round + 1, 0
        self._swarm = self._swarm.moved(self._chance(self._round))
        return ()

    def _chosen(self, gained: NDArray[np.float64]) -> Truths:
        """Return all features but the last by gain."""
        by_group = np.bincount(self._cells.groups, gained, len(self._kept))
        n_last = int(self.config.removed_first * len(by_group))
        kept = np.ones(len(by_group), dtype=np.bool_)
        kept[np.argsort(-by_group, kind="stable")[len(by_group) - n_last :]] = False
        return kept

    def _grown(self, rules: list[int], gained: NDArray[np.float64]) -> Selected:
        """Keep what the best particle uses, whether or not a split does."""
        kept = torch.from_numpy(self._kept).to(self.inputs.X.device)
        return replace(super()._grown(rules, gained), groups=kept)


METHOD = Method(
    "pso-trees",
    "particles of features and settings around boosted trees; the best one's are kept",
    "after PSO-EVFFS, Zhang et al., CAAI Transactions, 2022",
    Config,
    grow_trees(forest=False, search=search),
    protocol=SwarmParty,
)
