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
ANSWER = np.dtype(np.float32)  # of a split: 1 where a row goes left, or 0


def write_splits(graph: GraphBuilder, net: Splits, x: str) -> str:
    """Write the answers of splits for encoded rows (N, columns), (N, splits)."""
    x = graph.cast(x, np.float64)
    asked = np.array([rule.column for rule in net.rules])
    parts, order = [], []
    for column in np.unique(asked).tolist():
        splits = np.flatnonzero(asked == column)
        write = _category if net.cells.categorical[column] else _number
        parts.append(write(graph, net, x, column, splits))
        order += splits.tolist()
    every = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    return graph.add("Gather", every, np.argsort(order), axis=1)


def _number(
    graph: GraphBuilder, net: Splits, x: str, column: int, splits: SplitPlaces
) -> str:
    """Write these splits of a number, (N, splits)."""
    ends = np.array([net.bins.last_left(net.rules[i]) for i in splits])
    if np.isnan(ends).any():
        raise ConfigError(
            f"A split of {graph.owner} must send all numbers up to one of them left to "
            "be written as ONNX; '--format safetensors' takes any. Got another."
        )
    value = graph.add("Gather", x, net.cells.sources[column, :1], axis=1)
    left = graph.cast(graph.add("LessOrEqual", value, ends[None]), ANSWER)
    flag = net.cells.flags[column]
    if flag == NONE:
        return left
    flags = graph.add("Gather", x, np.array([flag]), axis=1)
    is_missing = graph.add("Greater", flags, net.cells.middles[[flag]])
    missing = np.array([[net.rules[i].left[-1] for i in splits]], dtype=ANSWER)
    return graph.add("Where", is_missing, missing, left)


def _category(
    graph: GraphBuilder, net: Splits, x: str, column: int, splits: SplitPlaces
) -> str:
    """Write these splits of a category, (N, splits): by the first that is on."""
    sources = net.cells.sources[column]
    sources = sources[sources != NONE]
    cells = graph.add("Gather", x, sources, axis=1)
    is_on = graph.cast(
        graph.add("Greater", cells, net.cells.middles[sources][None]), ANSWER
    )
    first = graph.add("ArgMax", is_on, axis=1, keepdims=0)
    largest = graph.add("ReduceMax", is_on, axes=[1], keepdims=0)
    any_on = graph.add("Greater", largest, np.array(0, ANSWER))
    code = graph.add("Where", any_on, first, len(sources))
    every = np.full((len(sources) + 1, len(net.bins.ends)), np.nan)
    every[:-1, column] = np.arange(len(sources))
    bins = net.bins.codes(every)[column]
    table = np.stack([net.rules[i].left[bins] for i in splits], axis=1)
    return graph.add("Gather", table.astype(ANSWER), code, axis=0)


def write_sum(graph: GraphBuilder, net: TreeSum, h: str) -> str:
    """Write raw predictions (N, K) by answers of splits (N, components), in double."""
    z = _write_leaves(graph, net, h)
    return _finish(graph, z, len(net.roots), int(net.shares), net.n_outputs)


def write_votes(graph: GraphBuilder, net: Votes, x: str) -> str:
    """Write votes (N, K) of encoded rows (N, columns), in double."""
    z = _write_leaves(graph, net.trees, write_splits(graph, net.splits, x))
    unit = float(FRACTION)
    return graph.add("Div", graph.add("Round", graph.add("Mul", z, unit)), unit)


def write_vote_sum(graph: GraphBuilder, net: VoteSum, h: str) -> str:
    """Write raw predictions (N, K) of all votes (N, parties x K), in double."""
    shape = np.array([-1, len(net.counts), net.n_outputs])
    each = graph.add("Reshape", graph.cast(h, np.float64), shape)
    z = graph.add("ReduceSum", each, np.array([1]), keepdims=0)
    return _finish(graph, z, int(net.counts.sum()), int(net.shares), net.n_outputs)


def _write_leaves(graph: GraphBuilder, net: TreeSum, h: str) -> str:
    """Write the start and the leaves of all trees, summed up, (N, K)."""
    children, components, values, roots, start = (
        tensor.cpu().numpy()
        for tensor in (net.children, net.components, net.values, net.roots, net.start)
    )
    zero = graph.add("Mul", h, np.array(0, ANSWER))
    first = graph.add("Gather", zero, np.array([0]), axis=1)
    node = graph.add("Add", graph.cast(first, np.int64), roots[None])  # (N, trees)
    asked = graph.constant(components)
    flat = graph.constant(children.reshape(-1))
    for _ in range(net.depth):
        component = graph.add("Gather", asked, node, axis=0)
        answer = graph.add("GatherElements", h, component, axis=1)
        right = graph.add("LessOrEqual", answer, np.array(HALF, ANSWER))
        right = graph.cast(right, np.int64)
        place = graph.add("Add", graph.add("Mul", node, 2), right)
        node = graph.add("Gather", flat, place, axis=0)
    each = graph.add("Gather", values, node, axis=0)  # (N, trees, K)
    z = graph.add("ReduceSum", each, np.array([1]), keepdims=0)
    return graph.add("Add", z, start[None])


def _finish(
    graph: GraphBuilder, z: str, n_trees: int, shares: int, n_outputs: int
) -> str:
    """Write raw predictions of sums over trees, of a forest by their mean."""
    if shares:
        z = graph.add("Div", z, float(max(1, n_trees)))
    if shares == 1:
        least, most = (np.array(end) for end in (LEAST_SHARE, 1 - LEAST_SHARE))
        z = graph.add("Clip", z, least, most)
        if n_outputs == 1:
            z = graph.add("Div", z, graph.add("Sub", 1.0, z))
        z = graph.add("Log", z)
    return z
