"""ONNX of trees: a party's splits of its encoded columns, and the server's sums.

A number is compared with the end of its bins in double, as it was rounded in training;
a category is looked up in a table of what goes left. The server goes as many steps down
as its deepest tree has, in all trees at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.sharing import FRACTION
from lessvfl.core.trees.cells import NONE
from lessvfl.core.trees.networks import HALF, LEAST_SHARE, Splits, TreeSum
from lessvfl.core.trees.votes import Votes, VoteSum
from lessvfl.errors import ConfigError
from lessvfl.run.onnx_builder import GraphBuilder

SplitPlaces = NDArray[np.int64]
SAID = np.dtype(np.float32)  # of what splits say, 0 or 1


def write_splits(graph: GraphBuilder, net: Splits, x: str) -> str:
    """Write what splits say of encoded rows (N, columns), in the format of training."""
    x = graph.cast(x, np.float64)
    asked = np.array([rule.column for rule in net.rules])
    parts, places = [], []
    for column in np.unique(asked).tolist():
        own = np.flatnonzero(asked == column)
        write = _category if net.cells.categorical[column] else _number
        parts.append(write(graph, net, x, column, own))
        places += own.tolist()
    every = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    order = graph.constant(np.argsort(places))
    return graph.add("Gather", every, order, axis=1)


def _number(
    graph: GraphBuilder, net: Splits, x: str, column: int, own: SplitPlaces
) -> str:
    """Write the splits `own` of a number, (N, splits)."""
    ends = np.array([net.bins.last_left(net.rules[i]) for i in own])
    if np.isnan(ends).any():
        raise ConfigError(
            f"A split of {graph.owner} must send all numbers up to one of them left to "
            "be written as ONNX; '--format safetensors' takes any. Got another."
        )
    source = graph.constant(net.cells.sources[column, :1])
    value = graph.add("Gather", x, source, axis=1)
    left = graph.add("LessOrEqual", value, graph.constant(ends[None]))
    left = graph.cast(left, SAID)
    flag = net.cells.flags[column]
    if flag == NONE:
        return left
    told = graph.add("Gather", x, graph.constant(np.array([flag])), axis=1)
    middle = graph.constant(net.cells.middles[[flag]])
    missing = np.array([[net.rules[i].left[-1] for i in own]], dtype=SAID)
    is_missing = graph.add("Greater", told, middle)
    return graph.add("Where", is_missing, graph.constant(missing), left)


def _category(
    graph: GraphBuilder, net: Splits, x: str, column: int, own: SplitPlaces
) -> str:
    """Write the splits `own` of a category, (N, splits): by the first that is on."""
    sources = net.cells.sources[column]
    sources = sources[sources != NONE]
    cells = graph.add("Gather", x, graph.constant(sources), axis=1)
    middles = graph.constant(net.cells.middles[sources][None])
    is_on = graph.cast(graph.add("Greater", cells, middles), SAID)
    first = graph.add("ArgMax", is_on, axis=1, keepdims=0)
    none = graph.constant(np.array(len(sources)))
    some = graph.add("ReduceMax", is_on, axes=[1], keepdims=0)
    any_on = graph.add("Greater", some, graph.constant(np.array(0, SAID)))
    code = graph.add("Where", any_on, first, none)
    cells_of_codes = np.append(np.arange(len(sources), dtype=np.float64), np.nan)
    every = np.full((len(sources) + 1, len(net.bins.ends)), np.nan)
    every[:, column] = cells_of_codes
    bins = net.bins.codes(every)[column]
    table = np.stack([net.rules[i].left[bins] for i in own], axis=1)
    return graph.add("Gather", graph.constant(table.astype(SAID)), code, axis=0)


def write_sum(graph: GraphBuilder, net: TreeSum, h: str) -> str:
    """Write raw predictions (N, K) of what splits say (N, components), in double."""
    z = _write_leaves(graph, net, h)
    return _finish(graph, z, len(net.roots), int(net.shares), net.n_outputs)


def write_votes(graph: GraphBuilder, net: Votes, x: str) -> str:
    """Write votes (N, K) of encoded rows (N, columns), in double."""
    z = _write_leaves(graph, net.trees, write_splits(graph, net.splits, x))
    unit = graph.constant(np.array(float(FRACTION)))
    whole = graph.add("Round", graph.add("Mul", z, unit))
    return graph.add("Div", whole, unit)


def write_vote_sum(graph: GraphBuilder, net: VoteSum, h: str) -> str:
    """Write raw predictions (N, K) of all votes (N, parties x K), in double."""
    shape = np.array([-1, len(net.counts), net.n_outputs])
    each = graph.add("Reshape", graph.cast(h, np.float64), graph.constant(shape))
    z = graph.add("ReduceSum", each, graph.constant(np.array([1])), keepdims=0)
    return _finish(graph, z, int(net.counts.sum()), int(net.shares), net.n_outputs)


def _write_leaves(graph: GraphBuilder, net: TreeSum, h: str) -> str:
    """Write the start and the leaves of all trees, summed up, (N, K)."""
    children, components, values = (
        own.cpu().numpy() for own in (net.children, net.components, net.values)
    )
    roots, start = net.roots.cpu().numpy(), net.start.cpu().numpy()[None]
    is_zero = graph.add("Mul", h, graph.constant(np.array(0, SAID)))
    first = graph.add("Gather", is_zero, graph.constant(np.array([0])), axis=1)
    node = graph.add(  # (N, trees)
        "Add", graph.cast(first, np.int64), graph.constant(roots[None])
    )
    flat = graph.constant(children.reshape(-1))
    asked, two = graph.constant(components), graph.constant(np.array(2))
    half = graph.constant(np.array(HALF, SAID))
    for _ in range(net.depth):
        component = graph.add("Gather", asked, node, axis=0)
        said = graph.add("GatherElements", h, component, axis=1)
        right = graph.cast(graph.add("LessOrEqual", said, half), np.int64)
        place = graph.add("Add", graph.add("Mul", node, two), right)
        node = graph.add("Gather", flat, place, axis=0)
    each = graph.add("Gather", graph.constant(values), node, axis=0)  # (N, trees, K)
    trees = graph.constant(np.array([1]))
    z = graph.add("ReduceSum", each, trees, keepdims=0)
    return graph.add("Add", z, graph.constant(start))


def _finish(
    graph: GraphBuilder, z: str, n_trees: int, shares: int, n_outputs: int
) -> str:
    """Write raw predictions of sums over trees, of a forest by their mean."""
    if shares:
        z = graph.add("Div", z, graph.constant(np.array(float(max(1, n_trees)))))
    if shares == 1:
        least, most = (np.array(end) for end in (LEAST_SHARE, 1 - LEAST_SHARE))
        z = graph.add("Clip", z, graph.constant(least), graph.constant(most))
        if n_outputs == 1:
            rest = graph.add("Sub", graph.constant(np.array(1.0)), z)
            z = graph.add("Div", z, rest)
        z = graph.add("Log", z)
    return z
