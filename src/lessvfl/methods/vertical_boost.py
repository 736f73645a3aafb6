"""Gradient boosted trees across parties: histograms go up, splits come down.

As HistGradientBoosting, LightGBM and XGBoost grow them, depth by depth, over columns
that lie at several parties (``methods/trees``: messages, and what they reveal).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lessvfl.core.trees.ensemble import TreeSettings
from lessvfl.methods.base import Method
from lessvfl.methods.tree_party import TreeParty
from lessvfl.methods.tree_queries import Phase
from lessvfl.methods.trees import GrowthConfig, TreeConfig, grow_trees
from lessvfl.settings import a_float, an_int, setting


@dataclass(frozen=True)
class Boosting(GrowthConfig):
    """Settings of boosted trees, whatever they are grown on."""

    shrinkage: float = setting(
        a_float(0.0, 1.0, open_low=True),
        0.1,
        "share of a tree's correction that counts",
    )
    held_out: float = setting(
        a_float(0.0, 0.5),
        0.0,
        "share of training rows that no tree is grown on, which say when to stop",
    )
    patience: int = setting(
        an_int(1), 10, "rounds without a better loss of rows held out"
    )

    def growth(self, phase: Phase, seed: int) -> TreeSettings:
        """Return how the trees of a phase grow; those that select are never fewer."""
        return replace(
            super().growth(phase, seed),
            learning_rate=self.shrinkage,
            held_out=self.held_out if phase is Phase.TRAIN else 0.0,
            patience=self.patience,
        )


@dataclass(frozen=True)
class BoostConfig(Boosting, TreeConfig):
    """Settings of boosted trees that select."""


METHOD = Method(
    "vertical-boost",
    "boosted trees across parties; features by gain against scrambled copies",
    "histogram boosting, as Ke et al., NeurIPS 2017 (LightGBM)",
    BoostConfig,
    grow_trees(forest=False),
    behaviour=2,  # 2: 5 copies, so that a party can keep one feature
    protocol=TreeParty,
)
