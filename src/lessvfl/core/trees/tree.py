"""A tree as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

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


def joined(trees: Sequence[SplitTree]) -> dict[str, NDArray[np.generic]]:
    """Return the nodes of all trees one after the other, and how many each has."""
    each = {
        field.name: np.concatenate([getattr(tree, field.name) for tree in trees])
        for field in fields(SplitTree)
    }
    return {**each, "n_nodes": np.array([len(tree.owner) for tree in trees])}


def parted(nodes: Mapping[str, NDArray[Any]]) -> list[SplitTree]:
    """Return the trees that :func:`joined` put together."""
    ends = np.cumsum(nodes["n_nodes"])[:-1]
    names = [field.name for field in fields(SplitTree)]
    each = zip(*(np.split(nodes[name], ends) for name in names), strict=True)
    return [SplitTree(*arrays) for arrays in each]
