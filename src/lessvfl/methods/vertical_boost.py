"""Gradient boosted trees across parties: histograms go up, splits come down.

As HistGradientBoosting, LightGBM and XGBoost grow them, depth by depth, over columns
that lie at several parties (``methods/trees``: messages, and what they reveal).
"""

from __future__ import annotations

from dataclasses import dataclass

from lessvfl import settings
from lessvfl.methods.base import Method
from lessvfl.methods.tree_party import TreeParty
from lessvfl.methods.trees import TreeConfig, grow_trees


@dataclass(frozen=True)
class Config(TreeConfig):
    """Settings of boosted trees."""

    learning_rate: float = settings.setting(
        settings.a_float(open_low=True), 0.1, "share of a tree's correction that counts"
    )


METHOD = Method(
    "vertical-boost",
    "boosted trees across parties; features by gain against scrambled copies",
    "histogram boosting, as Ke et al., NeurIPS 2017 (LightGBM)",
    Config,
    grow_trees(forest=False),
    profiles=("default",),
    protocol=TreeParty,
    one_by_one=True,
)
