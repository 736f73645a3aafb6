"""Trees in the place of networks: a party says what its splits say, the server sums up.

A party's embedding of a row has a component for each of its splits, 1 where it sends
the row left. The server's network follows the splits of every tree to a leaf. So trees
are scored, stored and predicted with as networks are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

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


class GrownNetwork:
    """What both sides have in common: there is nothing to train."""

    @property
    def column_slots(self) -> Tensor:
        """Return the slot of every column: itself."""
        weights = self.input_weights
        return torch.arange(weights.shape[1], device=weights.device)

    @property
    def input_weights(self) -> Tensor:
        """Return what splits gained, (1, columns)."""
        raise NotImplementedError

    def parameters(self) -> list[Tensor]:
        """Return nothing: trees are grown, not trained."""
        return []

    def train(self, mode: bool) -> None:
        """Do nothing."""

    def passes(self, inputs: bool = False) -> Passes:
        """Refuse: there is no way back through a tree."""
        raise TypeError("Trees have no gradients")

    def redrawn(self, seed: int, name: str) -> None:
        """Return nothing: there are no weights to draw."""

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
    def input_weights(self) -> Tensor:
        """Return what splits gained, (1, columns)."""
        return self.weights

    @property
    def n_outputs(self) -> int:
        """Return the number of splits; a party without any says 0 of every row."""
        return max(1, len(self.rules))

    def __call__(self, x: Tensor) -> Tensor:
        """Map encoded rows (n, columns) to 1 where a split sends a row left."""
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
        left = slots.cpu().numpy()
        cells, whole = self.cells.only(left)
        place = np.cumsum(whole) - 1
        if not all(whole[rule.column] for rule in self.rules):
            raise ValueError("a split needs a column that is cut")
        bins = self.bins
        return Splits(
            cells,
            ColumnBins(
                tuple(e for e, on in zip(bins.ends, whole, strict=True) if on),
                bins.categorical[whole],
                bins.missing[whole],
            ),
            tuple(replace(r, column=int(place[r.column])) for r in self.rules),
            self.weights[:, slots],
        )

    def astype(self, dtype: torch.dtype) -> Splits:
        """Return itself: ends of bins are of cells in the format of training.

        A cell in another one may be beside the end that it was; 0 and 1 are the same.
        """
        return self

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors."""
        bins, cells = self.bins, self.cells
        arrays = {
            "sources": cells.sources,
            "flags": cells.flags,
            "middles": cells.middles,
            "groups": cells.groups,
            "ends": np.concatenate([*bins.ends, np.zeros(0)]),
            "n_ends": np.array([len(own) for own in bins.ends], dtype=np.int64),
            "categorical": bins.categorical,
            "missing": bins.missing,
            **joined_rules(self.rules),
        }
        found = {
            name: torch.from_numpy(np.ascontiguousarray(a))
            for name, a in arrays.items()
        }
        return {**found, "weights": self.weights}

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> Splits:
        """Return what :meth:`state` gave; refuse what does not fit together."""
        own = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        n_columns, n_cells = own["weights"].shape[1], len(own["flags"])
        cells = CellColumns(own["sources"], own["flags"], own["middles"], own["groups"])
        bins = ColumnBins(
            tuple(_parts(own["ends"], own["n_ends"])),
            own["categorical"],
            own["missing"],
        )
        left = _parts(own["left"], own["n_left"])
        both = zip(own["columns"].tolist(), left, strict=True)
        rules = tuple(PartyRule(column, part) for column, part in both)
        sizes = {len(own[name]) for name in ("sources", "groups", "n_ends", "missing")}
        _check(sizes <= {n_cells} and len(own["categorical"]) == n_cells)
        _check(len(own["middles"]) == n_columns)
        for name in ("sources", "flags"):
            _check_places(own[name], -1, n_columns)
        _check_places(own["columns"], 0, n_cells)
        _check((bins.categorical == cells.categorical).all())
        expected = bins.n_values[own["columns"]] + 1
        _check((own["n_left"] == expected).all())
        return cls(cells, bins, rules, state["weights"])


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
        children, components, values, roots = [], [], [], []
        gains = np.zeros(n_components)
        n_nodes, n_outputs = 0, len(trees.start)
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
                said = tree.value
                if len(some) > 1:  # a tree for every output
                    said = np.zeros((len(nodes), n_outputs))
                    said[:, output] = tree.value[:, 0]
                children.append(below + n_nodes)
                components.append(np.array(asked, dtype=np.int64))
                values.append(said)
                roots.append(n_nodes)
                n_nodes += len(nodes)
        none = np.zeros((0, 2), dtype=np.int64)
        shares = is_mean_of(trees.task) if trees.is_mean else 0
        device = like.device
        return cls(
            torch.from_numpy(np.concatenate([none, *children])).to(device),
            torch.from_numpy(np.concatenate([none[:, 0], *components])).to(device),
            torch.from_numpy(np.concatenate([np.zeros((0, n_outputs)), *values])).to(
                device
            ),
            torch.tensor(roots, dtype=torch.long, device=device),
            torch.from_numpy(trees.start.copy()).to(device),
            torch.tensor(shares, device=device),
            torch.from_numpy(gains).to(like).unsqueeze(0),
        )

    def splits_of(self, sizes: Sequence[int]) -> list[int]:
        """Return how many splits every party has, by its number of components."""
        nodes = torch.arange(len(self.children), device=self.children.device)
        asked = self.components[self.children[:, 0] != nodes]
        every = torch.bincount(asked, minlength=sum(sizes))
        return [int(own.sum()) for own in torch.split(every, list(sizes))]

    @functools.cached_property
    def depth(self) -> int:
        """Return the most splits that a row passes."""
        depth = np.zeros(len(self.children), dtype=np.int64)
        for node, below in enumerate(self.children.tolist()):  # after their parents
            if below[0] != node:
                depth[below] = depth[node] + 1
        return int(depth.max(initial=0))

    @property
    def input_weights(self) -> Tensor:
        """Return what splits gained, (1, components)."""
        return self.weights

    @property
    def n_outputs(self) -> int:
        """Return the number of raw predictions of a row."""
        return len(self.start)

    def __call__(self, x: Tensor) -> Tensor:
        """Map what splits say (n, components) to raw predictions (n, K)."""
        return self.finished(self.summed(x))

    def summed(self, x: Tensor) -> Tensor:
        """Map what splits say (n, components) to the sum over trees, (n, K)."""
        return torch.cat([self._sum(rows > HALF) for rows in torch.split(x, ROWS)])

    def finished(self, z: Tensor) -> Tensor:
        """Map a start and leaves of all trees, summed up, to raw predictions (n, K)."""
        z = finished(z, len(self.roots), int(self.shares))
        return z.to(self.weights.dtype)

    def _sum(self, goes_left: Tensor) -> Tensor:
        """Return what the leaves of rows (n, components) sum up to, (n, K)."""
        z = self.start.expand(len(goes_left), -1).clone()
        node = self.roots.expand(len(goes_left), -1)
        while True:
            goes_right = ~goes_left.gather(1, self.components[node])
            below = self.children[node, goes_right.long()]
            if bool((below == node).all()):
                break
            node = below
        for leaves in node.T:
            z += self.values[leaves]
        return z

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> TreeSum:
        """Return itself: all components are of splits in use."""
        return self

    def astype(self, dtype: torch.dtype) -> TreeSum:
        """Return the same, its answers in another number format."""
        return replace(self, weights=self.weights.to(dtype))

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors."""
        names = ("children", "components", "values", "roots", "start", "shares")
        found = {name: getattr(self, name) for name in names}
        return {**found, "weights": self.weights}

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> TreeSum:
        """Return what :meth:`state` gave; refuse what does not fit together."""
        own = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        n_nodes, n_components = len(own["values"]), own["weights"].shape[1]
        _check(own["children"].shape == (n_nodes, 2))
        _check(own["components"].shape == (n_nodes,))
        _check(own["values"].shape[1:] == own["start"].shape)
        _check_places(own["roots"], 0, n_nodes)
        _check_places(own["components"], 0, n_components)
        _check_places(own["children"], 0, n_nodes)
        ahead = own["children"] - np.arange(n_nodes)[:, None]
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
