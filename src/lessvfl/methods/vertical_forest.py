"""A random forest across parties: independent trees on bootstrapped rows.

Breiman, 2001, over columns that lie at several parties: impurity is removed as in
``vertical_boost``, by histograms (``methods/trees``: messages, what they reveal).
"""

from __future__ import annotations

from dataclasses import dataclass

from lessvfl import settings
from lessvfl.methods.base import Method
from lessvfl.methods.tree_party import TreeParty
from lessvfl.methods.trees import TreeConfig, grow_trees


@dataclass(frozen=True)
class Config(TreeConfig):
    """Settings of a forest."""

    leaves: int = settings.setting(
        settings.an_int(2), 1024, "the most leaves of a tree"
    )
    tree_depth: int = settings.setting(
        settings.an_int(1), 12, "the most splits on the way to a leaf"
    )
    least_rows: int = settings.setting(
        settings.an_int(1), 5, "the fewest rows of a leaf"
    )


METHOD = Method(
    "vertical-forest",
    "a random forest across parties; features by gain against scrambled copies",
    "Breiman, 2001, by histograms",
    Config,
    grow_trees(forest=True),
    profiles=("default",),
    behaviour=2,  # 2: 5 copies, so that a party can keep one feature
    protocol=TreeParty,
    one_by_one=True,
)
