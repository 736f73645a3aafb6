"""A tree as a value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
