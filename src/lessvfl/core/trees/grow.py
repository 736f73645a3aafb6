"""Growth of trees: level by level, or by best gain with as few exchanges.

By best gain, always the leaf that gains most is split next. Asked for one at a time,
that would be an exchange for every split. Instead nodes are split together that would
be chosen if no node yet to come gained more; then the order of choices is gone through
again with what came up, until it holds nothing new. Splits that others have overtaken
are forgotten. The tree is the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from lessvfl.core.plans import stream
from lessvfl.core.trees import splits
from lessvfl.core.trees.holders import BinLayout, Cut, NodeRows, TreeHolders, Truths
from lessvfl.core.trees.splits import Chosen, NodeUnits, SplitRules
from lessvfl.core.trees.sums import FixedPoint, RowIds, Sums
from lessvfl.core.trees.tree import LEAF, SplitTree


@dataclass(frozen=True)
class GrowthLimits:
    """How far a tree grows."""

    max_leaf_nodes: int | None = 31
    max_depth: int | None = None
    order: Literal["depth", "gain"] = "depth"  # which leaf is split next
    split: SplitRules = SplitRules()


@dataclass(frozen=True)
class GrowingRows:
    """What trees that grow at once are grown on."""

    values: FixedPoint  # of K trees
    rows: Sequence[RowIds]  # of each tree; the others are only sent to their leaves
    used: Sequence[Truths]  # columns (F,) of every party that may be split
    node_share: float = 1.0  # of those, how many a node may use, by chance
    seeds: Sequence[int] = ()  # of every tree, for that


@dataclass(frozen=True)
class Grown:
    """A tree, its leaves' numbers by row, and what rows sum up to in them."""

    tree: SplitTree  # without values
    leaves: RowIds  # (N,)
    sums: Sums  # (nodes, Q + 2)


@dataclass(eq=False)
class _Node:
    """A node while its tree grows."""

    tree: int
    number: int
    depth: int
    rows: RowIds  # that are grown on; then those that are not
    n_rows: int  # of the former
    total: Sums  # (Q + 2,)
    sums: Sums | None = None  # (Q + 2, T), while it may be split
    split: Chosen | None = None
    rule: int = -1
    children: tuple[_Node, ...] = ()


def grow(
    holders: TreeHolders,
    given: GrowingRows,
    limits: GrowthLimits,
    first_rules: Sequence[int],
) -> tuple[list[Grown], list[int]]:
    """Grow K trees at once, with two exchanges a level.

    Rules are numbered by party from `first_rules` on; the numbers that come next are
    returned, too.
    """
    holders.begin(given.values, given.used)
    growth = _Growth(holders, given, limits, list(first_rules))
    while picked := [node for root in growth.roots for node in growth.to_split(root)]:
        growth.split(picked)
    return [growth.finish(root) for root in growth.roots], growth.next_rule


class _Growth:
    """Trees that grow at once."""

    def __init__(
        self,
        holders: TreeHolders,
        given: GrowingRows,
        limits: GrowthLimits,
        next_rule: list[int],
    ) -> None:
        self.holders, self.given, self.limits = holders, given, limits
        self.next_rule = next_rule
        both = list(zip(holders.layouts, given.used, strict=True))
        self.layout = BinLayout.joined([layout.only(used) for layout, used in both])
        self.columns = [  # the party of each, and its place there
            (owner, int(column))
            for owner, used in enumerate(given.used)
            for column in np.flatnonzero(used)
        ]
        self.n_nodes = [1] * len(given.rows)
        self.is_full = [False] * len(given.rows)
        self.roots = []
        for tree, rows in enumerate(given.rows):
            rest = np.ones(given.values.hessian.shape[1], dtype=np.bool_)
            rest[rows] = False
            everyone = np.concatenate([rows, np.flatnonzero(rest)])
            total = given.values.total(tree, rows)
            self.roots.append(_Node(tree, 0, 0, everyone, len(rows), total))
        whole = [root for root in self.roots if self._may_split(root)]
        if whole:
            self._choose(whole, self._sums(whole))

    def _may_split(self, node: _Node) -> bool:
        """Tell whether a node has enough rows, and its tree room, to be split."""
        deepest, least = self.limits.max_depth, self.limits.split.min_samples_leaf
        if self.is_full[node.tree] or node.n_rows < 2 * max(1, least):
            return False
        return deepest is None or node.depth < deepest

    def to_split(self, root: _Node) -> list[_Node]:
        """Return the nodes of the tree of `root` that are to be split next.

        By best gain, at most half of the splits still allowed: later ones are likelier
        to be overtaken by better ones.
        """
        picked, most = self._picked(root), self.limits.max_leaf_nodes
        new = [node for node in picked if not node.children]
        if most is None:
            return new
        if self.limits.order == "depth":
            self.is_full[root.tree] = len(picked) + 1 >= most
            return new
        left = most - 1 - (len(picked) - len(new))
        return new[: max(1, left // 2)]

    def _picked(self, root: _Node) -> list[_Node]:
        """Return nodes below `root` that would be split, by the gains known so far."""
        most = self.limits.max_leaf_nodes
        picked: list[_Node] = []
        heap: list[tuple[int, float, int, _Node]] = []
        new: Sequence[_Node] = (root,)
        while True:
            for node in new:
                if node.split:
                    depth = node.depth if self.limits.order == "depth" else 0
                    entry = (depth, -node.split.gain, node.number, node)
                    heapq.heappush(heap, entry)
            if not heap or (most is not None and len(picked) + 1 >= most):
                return picked
            picked.append(heapq.heappop(heap)[-1])
            new = picked[-1].children

    def split(self, nodes: Sequence[_Node]) -> None:
        """Have parties divide the rows of `nodes`; choose splits of their children."""
        cuts = [self._cut(node, node.split) for node in nodes if node.split]
        parents = []
        for node, cut, left in zip(nodes, cuts, self.holders.split(cuts), strict=True):
            node.children, node.rule = self._children(node, cut, left), cut.rule
            if any(self._may_split(child) for child in node.children):
                parents.append(node)
        if parents:
            pairs = [
                sorted(node.children, key=lambda child: (child.n_rows, child.number))
                for node in parents
            ]
            smaller, larger = [list(side) for side in zip(*pairs, strict=True)]
            whole = [node.sums for node in parents if node.sums is not None]
            sums = self._sums(smaller)
            rest = np.stack(whole, axis=1) - sums
            self._choose([*smaller, *larger], np.concatenate([sums, rest], axis=1))
        for node in nodes:
            node.sums = None

    def _cut(self, node: _Node, chosen: Chosen) -> Cut:
        """Return a node's chosen split, with new numbers for rule and children."""
        owner, column = self.columns[chosen.column]
        first = self.n_nodes[node.tree]
        self.n_nodes[node.tree] += 2
        rule = self.next_rule[owner]
        self.next_rule[owner] += 1
        return Cut(
            tree=node.tree,
            node=node.number,
            children=(first, first + 1),
            owner=owner,
            rule=rule,
            column=column,
            left=chosen.left,
            rows=node.rows,
        )

    def _children(self, node: _Node, cut: Cut, left: Truths) -> tuple[_Node, _Node]:
        """Return a node's left and right child; `left` is True at rows that go left."""
        n_left = int(np.count_nonzero(left[: node.n_rows]))
        rows = node.rows.compress(left), node.rows.compress(~left)
        sizes = n_left, node.n_rows - n_left
        small = int(sizes[1] < sizes[0])
        total = self.given.values.total(node.tree, rows[small][: sizes[small]])
        totals = [node.total - total] * 2
        totals[small] = total
        first, second = (
            _Node(node.tree, cut.children[i], node.depth + 1, rows[i], sizes[i], total)
            for i, total in enumerate(totals)
        )
        return first, second

    def _sums(self, nodes: Sequence[_Node]) -> Sums:
        """Ask for the sums of some nodes, (Q + 2, nodes, T), parties side by side."""
        asked = [NodeRows(n.tree, n.number, n.rows[: n.n_rows]) for n in nodes]
        each = self.holders.histograms(asked)
        return each[0] if len(each) == 1 else np.concatenate(each, axis=2)

    def _choose(self, nodes: Sequence[_Node], sums: Sums) -> None:
        """Choose the splits of those nodes that may be split."""
        places = [i for i, node in enumerate(nodes) if self._may_split(node)]
        fits = [nodes[i] for i in places]
        if len(places) < len(nodes):
            sums = sums[:, places]
        trees = [node.tree for node in fits]
        values = self.given.values
        chosen = splits.choose(
            sums,
            self.layout,
            np.stack([node.total for node in fits], axis=1),
            NodeUnits(values.gradient_unit[trees], values.hessian_unit[trees]),
            self.limits.split,
            self._allowed(fits),
        )
        for place, (node, split) in enumerate(zip(fits, chosen, strict=True)):
            node.split, node.sums = split, sums[:, place] if split else None

    def _allowed(self, nodes: Sequence[_Node]) -> Truths | None:
        """Draw the columns each node may use, a mask (nodes, F); None: all of them."""
        if self.given.node_share >= 1:
            return None
        n_columns = len(self.columns)
        n_used = max(1, round(self.given.node_share * n_columns))
        allowed = np.zeros((len(nodes), n_columns), dtype=np.bool_)
        for columns, node in zip(allowed, nodes, strict=True):
            drawn = stream(self.given.seeds[node.tree], "node columns", node.number)
            order = torch.randperm(n_columns, generator=drawn).numpy()
            columns[order[:n_used]] = True
        return allowed

    def finish(self, root: _Node) -> Grown:
        """Return the final tree below `root`, with nodes numbered anew from 0."""
        inner = set(map(id, self._picked(root)))
        nodes, leaves = [root], np.zeros(len(root.rows), dtype=np.int64)
        columns = []  # of a tree, but for values: one row for each node
        for place, node in enumerate(nodes):  # which grows on the way
            if id(node) in inner and node.split:
                below = (len(nodes), len(nodes) + 1)
                nodes += node.children
                owner, column = self.columns[node.split.column]
                columns.append((below, owner, column, node.rule, node.split.gain))
            else:
                leaves[node.rows] = place
                columns.append(((LEAF, LEAF), LEAF, LEAF, LEAF, 0.0))
        children, owners, places, rules, gains = zip(*columns, strict=True)
        tree = SplitTree(
            children=np.array(children, dtype=np.int32),
            owner=np.array(owners, dtype=np.int32),
            column=np.array(places, dtype=np.int32),
            rule=np.array(rules, dtype=np.int32),
            gain=np.array(gains),
            n_rows=np.array([node.n_rows for node in nodes]),
            value=np.zeros((len(nodes), len(root.total) - 2)),
        )
        return Grown(tree, leaves, np.stack([node.total for node in nodes]))
