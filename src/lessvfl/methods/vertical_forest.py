"""A random forest across parties: independent trees on bootstrapped rows.

Breiman, 2001, over columns that lie at several parties: impurity is removed as in
``vertical_boost``, by histograms (``methods/trees``: messages, what they reveal).
"""

from __future__ import annotations

from dataclasses import dataclass

from lessvfl.methods.base import Method
from lessvfl.methods.tree_party import TreeParty
from lessvfl.methods.trees import DeepGrowth, TreeConfig, grow_trees


@dataclass(frozen=True)
class Config(DeepGrowth, TreeConfig):
    """Settings of a forest."""


METHOD = Method(
    "vertical-forest",
    "a random forest across parties; features by gain against scrambled copies",
    "Breiman, 2001, by histograms",
    Config,
    grow_trees(forest=True),
    behaviour=2,  # 2: 5 copies, so that a party can keep one feature
    protocol=TreeParty,
)
