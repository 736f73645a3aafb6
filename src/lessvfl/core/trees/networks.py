"""Trees in the place of networks: a party says what its splits say, the server sums up.

A party's embedding of a row has a component for each of its splits, 1 where it sends
the row left. The server's network follows the splits of every tree to a leaf. So trees
are scored, stored and predicted with as networks are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.passes import Passes
from lessvfl.core.trees.cells import CellColumns
from lessvfl.core.trees.columns import ColumnBins, PartyRule, joined_rules
from lessvfl.core.trees.ensemble import TreeEnsemble
from lessvfl.core.trees.tree import LEAF
from lessvfl.terms import Task

ROWS = 1024  # that go down trees at a time
HALF = 0.5  # of a component, above which a row goes left
RulePlaces = Sequence[Mapping[int, int]]  # of every party: rule -> component
LEAST_SHARE = 1e-6  # of a class in a forest, before its logarithm


class GrownNetwork(Network):
    """What both sides have in common: there is nothing to train."""

    weights: Tensor  # what splits gained, (1, columns)

    @property
    def input_weights(self) -> Tensor:
        """Return what splits gained, (1, columns)."""
        return self.weights

    def parameters(self) -> list[Tensor]:
        """Return nothing: trees are grown, not trained."""
        return []

    def passes(self, inputs: bool = False) -> Passes:
        """Refuse: there is no way back through a tree."""
        raise TypeError("Trees have no gradients")

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> Self:
        """Return itself: a server's trees use all that they are given."""
        return self

    def astype(self, dtype: torch.dtype) -> Self:
        """Return itself: ends of bins are of cells in the format of training.

        A cell in another one may be beside the end that it was; 0 and 1 are the same.
        """
        return self

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Refuse: trees of another shape are another network."""
        raise TypeError("Trees are read by of_state")


@dataclass(frozen=True, eq=False)
class Splits(GrownNetwork):
    """The splits that a party owns, as a network of its encoded columns."""

    cells: CellColumns
    bins: ColumnBins
    rules: tuple[PartyRule, ...]
    weights: Tensor

    @property
    def n_outputs(self) -> int:
        """Return the number of splits; a party without any says 0 of every row."""
        return max(1, len(self.rules))

    def __call__(self, x: Tensor) -> Tensor:
        """Map encoded rows (n, columns) to (n, splits), 1 where a split says left."""
        codes = self.bins.codes(self.cells.cells(x.cpu().numpy()))
        goes_left = np.zeros((self.n_outputs, len(x)), dtype=np.float32)
        by_column: dict[int, list[int]] = {}
        for place, rule in enumerate(self.rules):
            by_column.setdefault(rule.column, []).append(place)
        for column, places in by_column.items():
            bins = codes[column].astype(np.intp)
            for place in places:
                left = self.rules[place].left.astype(np.float32)
                row = goes_left[place]
                np.take(left, bins, out=row, mode="clip")  # clip: no buffer
        return torch.from_numpy(goes_left).T.to(self.weights)

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> Splits:
        """Cut encoded columns (columns,) that no split needs."""
        if slots is None:
            return self
        cells, whole = self.cells.only(slots.cpu().numpy())
        if not all(whole[rule.column] for rule in self.rules):
            raise ValueError("a split needs a column that is cut")
        place = np.cumsum(whole) - 1
        rules = [replace(r, column=int(place[r.column])) for r in self.rules]
        bins = self.bins.of_columns(np.flatnonzero(whole))
        return Splits(cells, bins, tuple(rules), self.weights[:, slots])

    def state(self) -> dict[str, Tensor]:
        """Return columns, bins and rules as tensors by name, for :meth:`of_state`."""
        bins, cells = self.bins, self.cells
        arrays = {
            "sources": cells.sources,
            "flags": cells.flags,
            "middles": cells.middles,
            "groups": cells.groups,
            "ends": np.concatenate([*bins.ends, np.zeros(0)]),
            "n_ends": np.array([len(ends) for ends in bins.ends], dtype=np.int64),
            "categorical": bins.categorical,
            "missing": bins.missing,
            **joined_rules(self.rules),
        }
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(array))
            for name, array in arrays.items()
        }
        return {**tensors, "weights": self.weights}

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> Splits:
        """Return the splits that :meth:`state` gave; ValueError if they do not fit."""
        arrays = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        n_columns, n_cells = arrays["weights"].shape[1], len(arrays["flags"])
        names = ("sources", "groups", "n_ends", "missing", "categorical")
        _check({len(arrays[name]) for name in names} == {n_cells})
        _check(len(arrays["middles"]) == n_columns)
        for name in ("sources", "flags"):
            _check_places(arrays[name], -1, n_columns)
        _check_places(arrays["columns"], 0, n_cells)
        cells = CellColumns(
            *(arrays[name] for name in ("sources", "flags", "middles", "groups"))
        )
        ends = _parts(arrays["ends"], arrays["n_ends"])
        bins = ColumnBins(tuple(ends), arrays["categorical"], arrays["missing"])
        _check((bins.categorical == cells.categorical).all())
        left = _parts(arrays["left"], arrays["n_left"])
        _check((arrays["n_left"] == bins.n_values[arrays["columns"]] + 1).all())
        rules = map(PartyRule, arrays["columns"].tolist(), left)
        return cls(cells, bins, tuple(rules), state["weights"])


@dataclass(frozen=True, eq=False)
class TreeSum(GrownNetwork):
    """Trees of the server: what a row's splits lead to, summed up over trees."""

    children: Tensor  # (nodes, 2), left and right; a leaf is its own child
    components: Tensor  # (nodes,), of the embedding that a node asks
    values: Tensor  # (nodes, K), 0 but at leaves
    roots: Tensor  # (trees,)
    start: Tensor  # (K,)
    shares: Tensor  # (), 1 where values are shares of classes in a forest, 2 amounts
    weights: Tensor

    @classmethod
    def of(
        cls, trees: TreeEnsemble, places: RulePlaces, n_components: int, like: Tensor
    ) -> TreeSum:
        """Take over an ensemble, whose rules are at some places of the embedding."""
        n_outputs = len(trees.start)
        children = [np.zeros((0, 2), dtype=np.int64)]
        components = [np.zeros(0, dtype=np.int64)]
        values = [np.zeros((0, n_outputs))]
        roots: list[int] = []
        gains, n_nodes = np.zeros(n_components), 0
        for some in trees.trees:
            for output, tree in enumerate(some):
                nodes = np.arange(len(tree.owner))
                is_leaf = tree.owner == LEAF
                below = np.where(is_leaf[:, None], nodes[:, None], tree.children)
                asked = [
                    0 if owner == LEAF else places[owner][rule]
                    for owner, rule in zip(tree.owner, tree.rule, strict=True)
                ]
                np.add.at(gains, asked, np.where(is_leaf, 0.0, tree.gain))
                value = tree.value
                if len(some) > 1:  # a tree for every output
                    value = np.zeros((len(nodes), n_outputs))
                    value[:, output] = tree.value[:, 0]
                children.append(below + n_nodes)
                components.append(np.array(asked, dtype=np.int64))
                values.append(value)
                roots.append(n_nodes)
                n_nodes += len(nodes)
        device = like.device
        return cls(
            children=torch.from_numpy(np.concatenate(children)).to(device),
            components=torch.from_numpy(np.concatenate(components)).to(device),
            values=torch.from_numpy(np.concatenate(values)).to(device),
            roots=torch.tensor(roots, dtype=torch.long, device=device),
            start=torch.from_numpy(trees.start.copy()).to(device),
            shares=torch.tensor(
                is_mean_of(trees.task) if trees.is_mean else 0, device=device
            ),
            weights=torch.from_numpy(gains).to(like).unsqueeze(0),
        )

    def splits_of(self, sizes: Sequence[int]) -> list[int]:
        """Return how many nodes ask each party; `sizes` are the components of each."""
        nodes = torch.arange(len(self.children), device=self.children.device)
        asked = self.components[self.children[:, 0] != nodes]
        every = torch.bincount(asked, minlength=sum(sizes))
        return [int(part.sum()) for part in torch.split(every, list(sizes))]

    @functools.cached_property
    def depth(self) -> int:
        """Return the most splits that a row passes in any tree."""
        depth = np.zeros(len(self.children), dtype=np.int64)
        for node, below in enumerate(self.children.tolist()):  # after their parents
            if below[0] != node:
                depth[below] = depth[node] + 1
        return int(depth.max(initial=0))

    @property
    def n_outputs(self) -> int:
        """Return the number of raw predictions of a row."""
        return len(self.start)

    def __call__(self, x: Tensor) -> Tensor:
        """Map what splits say (n, components) to raw predictions (n, K)."""
        return self.finished(self.summed(x))

    def summed(self, x: Tensor) -> Tensor:
        """Map what splits say (n, components) to start plus leaf values, (n, K)."""
        parts = []
        for rows in torch.split(x, ROWS):
            z = self.start.expand(len(rows), -1).clone()
            node = self.roots.expand(len(rows), -1)
            goes_right = ~(rows > HALF)
            while True:
                turn = goes_right.gather(1, self.components[node])
                below = self.children[node, turn.long()]
                if bool((below == node).all()):  # a leaf is its own child
                    break
                node = below
            for leaves in node.T:
                z += self.values[leaves]
            parts.append(z)
        return torch.cat(parts)

    def finished(self, z: Tensor) -> Tensor:
        """Map a start and leaves of all trees, summed up, to raw predictions (n, K)."""
        z = finished(z, len(self.roots), int(self.shares))
        return z.to(self.weights.dtype)

    def astype(self, dtype: torch.dtype) -> TreeSum:
        """Return the same, its answers in another number format."""
        return replace(self, weights=self.weights.to(dtype))

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> TreeSum:
        """Return the trees that :meth:`state` gave; ValueError if they do not fit."""
        arrays = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        children, n_nodes = arrays["children"], len(arrays["values"])
        _check(children.shape == (n_nodes, 2))
        _check(arrays["components"].shape == (n_nodes,))
        _check(arrays["values"].shape[1:] == arrays["start"].shape)
        _check_places(arrays["roots"], 0, n_nodes)
        _check_places(arrays["components"], 0, arrays["weights"].shape[1])
        _check_places(children, 0, n_nodes)
        ahead = children - np.arange(n_nodes)[:, None]
        is_leaf = (ahead == 0).all(axis=1)
        _check(bool(((ahead > 0).all(axis=1) | is_leaf).all()))  # no way back: it ends
        return cls(**state)


def is_mean_of(task: Task) -> int:
    """Return what trees of a forest say: 1 shares of classes, 2 amounts."""
    return 2 if task == "regression" else 1


def finished(z: Tensor, n_trees: int, shares: int) -> Tensor:
    """Map sums over trees (n, K) to raw predictions: of a forest by their mean."""
    if shares:
        z = z / max(1, n_trees)
    if shares == 1:
        z = z.clamp(LEAST_SHARE, 1 - LEAST_SHARE)
        z = z.logit() if z.shape[1] == 1 else z.log()
    return z


def _parts(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    _check(bool((sizes >= 0).all()) and int(sizes.sum()) == len(values))
    return np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []


def _check(fits: bool | np.bool_) -> None:
    if not fits:
        raise ValueError("arrays of trees that do not fit together")


def _check_places(values: np.ndarray, least: int, end: int) -> None:
    _check(not values.size or (values.min() >= least and values.max() < end))
