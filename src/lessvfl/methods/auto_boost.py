"""less-vfl-auto selects, and boosted trees learn from what it kept.

Everything is that of ``less_vfl_auto`` up to its last selection; then trees are grown
across parties (``methods/trees``: messages, and what they reveal) in the place of the
last training. Trees see fewer columns than in ``vertical_boost``, and no copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan
from lessvfl.core.trees.columns import ColumnHolder
from lessvfl.core.trees.holders import Truths
from lessvfl.methods import less_vfl_auto
from lessvfl.methods.base import Method
from lessvfl.methods.tree_party import ColumnPlaces, SavedParty
from lessvfl.methods.tree_queries import Phase
from lessvfl.methods.trees import GrowthConfig, grow_trees
from lessvfl.methods.vertical_boost import Boosting
from lessvfl.terms import Observer
from lessvfl.wire.parties import Parties


@dataclass(frozen=True)
class Config(less_vfl_auto.Config, Boosting):
    """Settings of both; `train_epochs` says whether parties look again."""

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        *selection, _ = less_vfl_auto.Config.plans(self, n_parties)
        return (*selection, *GrowthConfig.plans(self, n_parties))


class KeptParty(SavedParty):
    """A party that has selected already: trees grow on the columns left."""

    def _enter(self, phase: Phase) -> tuple[ColumnPlaces, ColumnHolder]:
        if phase is not Phase.TRAIN:
            raise ValueError("a phase that the method does not have")
        columns = np.arange(self._table.shape[1])
        return columns, self._binned(columns, self._table)

    def _chosen(self, gained: NDArray[np.float64]) -> Truths:
        return self._kept


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Select as less-vfl-auto does, then grow trees."""
    fusion = less_vfl_auto.select(parties, fusion, labels, config, observe, keeper)
    return grow_trees(forest=False)(parties, fusion, labels, config, observe, keeper)


METHOD = Method(
    "auto-boost",
    "selection of less-vfl-auto, then boosted trees on what is left",
    "of this project; trees as in vertical-boost",
    Config,
    run,
    protocol=KeptParty,
)
