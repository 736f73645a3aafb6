"""Trees as JSON: a party's splits in values of its own columns, the server's nodes.

What a split does with a cell is found by asking it: with every category, with a missing
cell, and with numbers on both sides of its threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.core.trees.cells import NONE
from lessvfl.core.trees.networks import Splits, TreeSum
from lessvfl.core.trees.votes import Votes, VoteSum
from lessvfl.data import Column, EncodedColumn, Encoding, Frame
from lessvfl.data.encode import codes_of
from lessvfl.errors import ConfigError
from lessvfl.run.fitted import FittedParty, FittedServer

TreePart = TypeVar("TreePart", Splits, TreeSum)

DATE_PARTS = ("day", "month", "weekday", "days")  # the last: since the first
NEARBY = 64  # numbers next to each other among which a threshold lies
LINKS = {  # from a sum to a prediction, by task
    "binary": "sigmoid",
    "multiclass": "softmax",
    "regression": "identity",
}


def party_trees(party: FittedParty) -> dict[str, Any]:
    """Return the splits of a party, the first of which gives its first component."""
    net = _grown(party.net, Splits, f"party '{party.name}'")
    starts = np.cumsum([0, *(column.width for column in party.encoding.columns)])
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    splits = []
    for place, rule in enumerate(net.rules):
        cells = net.cells
        asked = {*cells.sources[rule.column].tolist(), int(cells.flags[rule.column])}
        columns = {int(owner[source]) for source in asked - {NONE}}
        if len(columns) > 1:
            some = ", ".join(f"'{party.encoding.names[i]}'" for i in sorted(columns))
            raise ConfigError(
                f"A split of party '{party.name}' must be of one column to be written "
                f"as JSON; the other formats take any. Got one of {some}."
            )
        (column,) = columns
        asked_net = replace(net, rules=(rule,))
        one = _Asked(asked_net, party.encoding.columns[column], int(starts[column]))
        splits.append({"component": place, **one.described()})
    return {"party": party.name, "features": list(party.kept), "splits": splits}


class _Asked:
    """A split of one source column, which is asked what it does with cells."""

    def __init__(self, net: Splits, column: EncodedColumn, start: int) -> None:
        self.net, self.column, self.start = net, column, start
        (rule,) = net.rules
        sources = net.cells.sources[rule.column]
        self.sources = (sources[sources != NONE] - start).tolist()  # in the column

    def described(self) -> dict[str, Any]:
        """Return what goes left, in values of the column."""
        told: dict[str, Any] = {"column": self.column.name}
        if self.column.kind == "categorical":
            return told | self._category()
        values = self.column.width - self.column.flag
        parts = [place for place in self.sources if place < values]
        (missing,) = self._left(_encoded(self.column, np.array([np.nan])))
        end = {"missing_goes_left": bool(missing)}
        if not parts:  # a flag alone
            (others,) = self._left(_encoded(self.column, np.array([self._some()])))
            return told | {"others_go_left": bool(others)} | end
        if self.column.kind == "date":
            told["part"] = DATE_PARTS[parts[0]]
        return told | self._number(parts[0]) | end

    def _category(self) -> dict[str, Any]:
        codes = codes_of(self.column)
        rows = np.eye(self.column.width)
        never = np.zeros((1, self.column.width))
        *left, unseen = self._left(np.concatenate([rows, never])).tolist()
        names = self.column.categories
        return {
            "one_of": [name for name, on in zip(names, left, strict=False) if on],
            "missing_goes_left": left[codes[None]],
            "unseen_goes_left": unseen,
        }

    def _number(self, part: int) -> dict[str, Any]:
        """Return up to which number, or above which, cells go left."""
        net, (rule,) = self.net, self.net.rules
        at = float(net.cells.middles[self.start + part])
        if not net.cells.categorical[rule.column]:
            at = net.bins.last_left(rule)
        if not np.isfinite(at):
            left = at > 0 if np.isinf(at) else self._refuse()
            return {"others_go_left": left}
        rows = np.zeros((2, self.column.width))
        rows[:, part] = around = _around(at, _format(net))
        below, above = self._left(rows).tolist()
        if below == above:
            return {"others_go_left": below}
        return {"at_most" if below else "above": self._threshold(part, *around)}

    def _refuse(self) -> bool:
        raise ConfigError(
            f"A split of column '{self.column.name}' must send all numbers up to one "
            "of them left to be written as JSON; '--format safetensors' takes any. "
            "Got another."
        )

    def _threshold(self, part: int, at: float, above: float) -> float:
        """Return the largest number of the column that is encoded as `at` or less.

        `above` is the next larger one: what is less than half-way is rounded to `at`.
        """
        column, edge = self.column, at / 2 + above / 2
        if column.kind == "date":
            shift, scale = column.parts[part]
            return float(np.floor(edge * scale + shift + 1e-6))
        near = edge * column.scale + column.shift
        if column.knots:
            near = float(np.interp(near, column.levels, column.knots))
        some = [near]
        for _ in range(NEARBY):
            ends = np.nextafter(some[0], -np.inf), np.nextafter(some[-1], np.inf)
            some = [float(ends[0]), *some, float(ends[1])]
        found = _encoded(column, np.array(some))[:, part]
        fits = found.astype(_format(self.net)) <= at
        return float(some[int(np.flatnonzero(fits)[-1])] if fits.any() else some[0])

    def _some(self) -> float:
        """Return a cell that is not missing."""
        return float(self.column.fill)

    def _left(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which encoded cells of the column the split sends left."""
        x = np.zeros((len(rows), self.net.weights.shape[1]))
        x[:, self.start : self.start + rows.shape[1]] = rows
        sent_left = self.net(torch.from_numpy(x.astype(_format(self.net))))
        return np.asarray(sent_left[:, 0].numpy() > 0)


def _encoded(column: EncodedColumn, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the encoded columns (N, width) of cells (N,) of one column of numbers."""
    frame = Frame((Column(column.name, column.kind),), cells[:, None])
    matrix, _ = Encoding("", (column,)).apply(frame)
    return matrix


def server_trees(model: FittedServer) -> dict[str, Any]:
    """Return the trees of the server, each a list of nodes the first its root.

    A node asks a component of a party's; where that is 1, a row goes left.
    """
    net = _grown(model.fusion, TreeSum, "the server")
    places = [(party, i) for party, size in _sized(model) for i in range(size)]
    roots = net.roots.tolist()
    trees = [
        [_node(net, root, node, places) for node in range(root, end)]
        for root, end in zip(roots, [*roots[1:], len(net.children)], strict=True)
    ]
    return {
        "task": model.task,
        "label_names": list(model.label_names),
        "label_shift": model.label_shift,
        "label_scale": model.label_scale,
        "threshold": None if model.threshold is None else list(model.threshold),
        "components": dict(_sized(model)),
        "start": net.start.tolist(),
        "combine": "mean" if net.shares else "sum",
        "link": "shares" if net.shares == 1 else LINKS[model.task],
        "trees": trees,
    }


def _sized(model: FittedServer) -> Iterator[tuple[str, int]]:
    yield from zip(model.party_names, model.sizes, strict=True)


def _node(
    net: TreeSum, root: int, node: int, places: list[tuple[str, int]]
) -> dict[str, Any]:
    left, right = net.children[node].tolist()
    if left == node:
        return {"value": net.values[node].tolist()}
    party, component = places[int(net.components[node])]
    children = {"left": left - root, "right": right - root}
    return {"party": party, "component": component, **children}


def _other(net: Any) -> str:
    return "trees that vote" if isinstance(net, Votes | VoteSum) else "a network"


def _grown(net: Any, kind: type[TreePart], owner: str) -> TreePart:
    if not isinstance(net, kind):
        raise ConfigError(
            f"The export of {owner} must be of trees to be JSON; networks are written "
            f"as onnx or safetensors. Got {_other(net)}."
        )
    return net


def _around(value: float, dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the largest number of a format that is not above a value, and the next."""
    at = dtype.type(value)
    if float(at) > value:
        at = np.nextafter(at, dtype.type(-np.inf))
    return float(at), float(np.nextafter(at, dtype.type(np.inf)))


def _format(net: Splits) -> np.dtype[Any]:
    return np.dtype(str(net.weights.dtype).removeprefix("torch."))
