"""Gradient boosted trees across parties: histograms go up, splits come down.

As HistGradientBoosting, LightGBM and XGBoost grow them, depth by depth, over columns
that lie at several parties (``methods/trees``: messages, and what they reveal).
"""

from __future__ import annotations

from lessvfl.methods.base import Method
from lessvfl.methods.tree_party import TreeParty
from lessvfl.methods.trees import TreeConfig, grow_trees

METHOD = Method(
    "vertical-boost",
    "boosted trees across parties; features by gain against scrambled copies",
    "histogram boosting, as Ke et al., NeurIPS 2017 (LightGBM)",
    TreeConfig,
    grow_trees(forest=False),
    profiles=("default",),
    protocol=TreeParty,
    one_by_one=True,
)
