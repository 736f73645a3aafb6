"""Trees as JSON: a party's splits in values of its own columns, the server's nodes.

What a split does with a cell is found by asking it: with every category, with a missing
cell, and with numbers on both sides of its threshold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
            names = ", ".join(f"'{party.encoding.names[i]}'" for i in sorted(columns))
            raise ConfigError(
                f"A split of party '{party.name}' must be of one column to be written "
                f"as JSON; the other formats take any. Got one of {names}."
            )
        (index,) = columns
        column = party.encoding.columns[index]
        split = _Split(replace(net, rules=(rule,)), column, int(starts[index]))
        about = {"component": place, "column": column.name}
        is_text = column.kind == "categorical"
        splits.append(about | (split.of_texts() if is_text else split.of_numbers()))
    return {"party": party.name, "features": list(party.kept), "splits": splits}


@dataclass(frozen=True)
class _Split:
    """A split of one column of the table, which is asked what it does with cells."""

    net: Splits  # with one rule
    column: EncodedColumn
    start: int  # of the column among the encoded ones

    def of_texts(self) -> dict[str, Any]:
        """Return which texts of a category this split sends left, as a JSON object."""
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

    def of_numbers(self) -> dict[str, Any]:
        """Return up to which number, or above which, this split sends cells left."""
        column, net, (rule,) = self.column, self.net, self.net.rules
        sources = net.cells.sources[rule.column]
        asked = (sources[sources != NONE] - self.start).tolist()  # of the column
        parts = [part for part in asked if part < column.width - column.flag]
        cells = np.array([np.nan, float(column.fill)])
        missing, filled = self._left(_encoded(column, cells)).tolist()
        end = {"missing_goes_left": missing}
        if not parts:  # a flag alone
            return {"others_go_left": filled} | end
        (part, *_) = parts
        named = {"part": DATE_PARTS[part]} if column.kind == "date" else {}
        at = float(net.cells.middles[self.start + part])
        if not net.cells.categorical[rule.column]:
            at = net.bins.last_left(rule)
        if np.isnan(at):
            raise ConfigError(
                f"A split of column '{column.name}' must send all numbers up to one "
                "of them left to be written as JSON; '--format safetensors' takes any. "
                "Got another."
            )
        if np.isinf(at):
            return {**named, "others_go_left": at > 0, **end}
        rows = np.zeros((2, column.width))
        rows[:, part] = around = _around(at, _format(net))
        below, above = self._left(rows).tolist()
        if below == above:
            return {**named, "others_go_left": below, **end}
        threshold = self._threshold(part, *around)
        return {**named, "at_most" if below else "above": threshold, **end}

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
        numbers = [near]
        for _ in range(NEARBY):
            ends = np.nextafter(numbers[0], -np.inf), np.nextafter(numbers[-1], np.inf)
            numbers = [float(ends[0]), *numbers, float(ends[1])]
        encoded = _encoded(column, np.array(numbers))[:, part]
        fits = encoded.astype(_format(self.net)) <= at
        return numbers[int(np.flatnonzero(fits)[-1]) if fits.any() else 0]

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
    sizes = dict(zip(model.party_names, model.sizes, strict=True))
    places = [(party, i) for party, size in sizes.items() for i in range(size)]

    def node_of(root: int, node: int) -> dict[str, Any]:
        left, right = net.children[node].tolist()
        if left == node:
            return {"value": net.values[node].tolist()}
        party, component = places[int(net.components[node])]
        children = {"left": left - root, "right": right - root}
        return {"party": party, "component": component, **children}

    roots = net.roots.tolist()
    trees = [
        [node_of(root, node) for node in range(root, end)]
        for root, end in zip(roots, [*roots[1:], len(net.children)], strict=True)
    ]
    return {
        "task": model.task,
        "label_names": list(model.label_names),
        "label_shift": model.label_shift,
        "label_scale": model.label_scale,
        "threshold": None if model.threshold is None else list(model.threshold),
        "components": sizes,
        "start": net.start.tolist(),
        "combine": "mean" if net.shares else "sum",
        "link": "shares" if net.shares == 1 else LINKS[model.task],
        "trees": trees,
    }


def _grown(net: Any, kind: type[TreePart], owner: str) -> TreePart:
    """Return `net` if it is of the class `kind`, or refuse it, naming its `owner`."""
    if isinstance(net, kind):
        return net
    other = "trees that vote" if isinstance(net, Votes | VoteSum) else "a network"
    raise ConfigError(
        f"The export of {owner} must be of trees to be JSON; networks are written "
        f"as onnx or safetensors. Got {other}."
    )


def _around(value: float, dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the largest number of a format that is not above a value, and the next."""
    at = dtype.type(value)
    if float(at) > value:
        at = np.nextafter(at, dtype.type(-np.inf))
    return float(at), float(np.nextafter(at, dtype.type(np.inf)))


def _format(net: Splits) -> np.dtype[Any]:
    return np.dtype(str(net.weights.dtype).removeprefix("torch."))
