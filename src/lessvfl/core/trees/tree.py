"""A tree as a value, and the way of rows through trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.trees.holders import Routed, RowRouter
from lessvfl.core.trees.sums import RowIds

LEAF = -1


@dataclass(frozen=True)
class SplitTree:
    """Nodes of a tree, node 0 its root; a rule is a number that its owner knows."""

    children: NDArray[np.int32]  # (nodes, 2), left and right; LEAF at leaves
    owner: NDArray[np.int32]  # (nodes,), the party that splits; LEAF at leaves
    column: NDArray[np.int32]  # (nodes,), of its owner
    rule: NDArray[np.int32]  # (nodes,), by which its owner keeps it
    gain: NDArray[np.float64]  # (nodes,), of the loss by row, 0 at leaves
    n_rows: NDArray[np.int64]  # (nodes,), that it was grown on
    value: NDArray[np.float64]  # (nodes, Q), of rows that end here; 0 elsewhere


def route(trees: Sequence[SplitTree], router: RowRouter, n_rows: int) -> RowIds:
    """Return the leaf of every row in every tree, (trees, N).

    One exchange a level serves all trees.
    """
    leaves = np.zeros((len(trees), n_rows), dtype=np.int64)
    everyone = np.arange(n_rows)
    here = [(place, 0, everyone) for place in range(len(trees))]
    while here:
        inner = []
        for place, node, rows in here:
            if trees[place].owner[node] == LEAF:
                leaves[place, rows] = node
            elif len(rows):
                inner.append((place, node, rows))
        asked = [
            Routed(int(trees[t].owner[node]), int(trees[t].rule[node]), rows)
            for t, node, rows in inner
        ]
        answers = router.route(asked) if asked else []
        here = []
        for (place, node, rows), left in zip(inner, answers, strict=True):
            first, second = trees[place].children[node].tolist()
            here.append((place, first, rows.compress(left)))
            here.append((place, second, rows.compress(~left)))
    return leaves
