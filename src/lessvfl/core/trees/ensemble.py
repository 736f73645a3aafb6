"""Ensembles of trees: boosted one after another, or a forest of independent ones.

Both are grown step by step, and what they are between two steps is a value: to save is
to write it, to resume is to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lessvfl.core.plans import stream
from lessvfl.core.trees.grow import GrowingRows, Grown, GrowthLimits, grow
from lessvfl.core.trees.holders import RowRouter, TreeHolders, Truths
from lessvfl.core.trees.sums import FixedPoint, RowIds
from lessvfl.core.trees.targets import RowValues, TreeTargets
from lessvfl.core.trees.tree import LEAF, SplitTree, route
from lessvfl.terms import Task, stream_seed

SMALLEST_GAIN = 1e-7  # of a held-out loss, to count as one


@dataclass(frozen=True)
class TreeSettings:
    """How an ensemble grows."""

    n_trees: int = 100  # of boosting, rounds: of K classes K trees each
    learning_rate: float = 0.1
    limits: GrowthLimits = GrowthLimits()
    row_share: float = 1.0  # of rows that a round sees
    column_share: float = 1.0  # of columns that a round may use
    node_share: float = 1.0  # of these, how many a node may use
    bits: int = 32  # of a gradient: 32, 16 or 8
    held_out: float = 0.0  # share of rows that say when to stop
    patience: int = 10  # rounds without a better held-out loss
    at_once: int = 10  # trees of a forest that grow together
    seed: int = 0


@dataclass(frozen=True)
class TreeEnsemble:
    """Trees, and what predictions start from."""

    trees: tuple[tuple[SplitTree, ...], ...]  # of every round; of a forest one each
    start: RowValues  # (K,)
    task: Task
    is_mean: bool  # of trees, as in a forest; else their sum

    def raw(self, router: RowRouter, n_rows: int) -> RowValues:
        """Return the raw predictions of rows, (K, N): logits, shares, or values."""
        flat = [tree for trees in self.trees for tree in trees]
        leaves = iter(route(flat, router, n_rows))
        z = np.repeat(self.start[:, None], n_rows, axis=1)
        for trees in self.trees:
            z = z + _values(trees, [next(leaves) for _ in trees], len(z))
        return z / max(1, len(self.trees)) if self.is_mean else z


def _values(
    trees: Sequence[SplitTree], leaves: Sequence[RowIds], n_outputs: int
) -> RowValues:
    """Return what the trees of a round say of rows, (K, N)."""
    found = [tree.value[own].T for tree, own in zip(trees, leaves, strict=True)]
    return np.concatenate(found).reshape(n_outputs, -1)


@dataclass(frozen=True)
class EnsembleState:
    """What an ensemble is after some rounds."""

    trees: tuple[tuple[SplitTree, ...], ...]
    z: RowValues  # (K, N), raw predictions of all rows, sums so far
    next_rule: tuple[int, ...]  # of every party
    losses: tuple[float, ...] = ()  # of held-out rows, after every round


Watcher = Callable[[EnsembleState], None]


class EnsembleGrower:
    """The label holder, who grows an ensemble with those who hold columns."""

    def __init__(
        self,
        holders: TreeHolders,
        targets: TreeTargets,
        settings: TreeSettings,
        *,
        forest: bool = False,
    ) -> None:
        self.holders, self.targets, self.settings = holders, targets, settings
        self.forest = forest
        n_rows = len(targets.y)
        n_out = max(round(settings.held_out * n_rows), int(settings.held_out > 0))
        n_out = 0 if forest else n_out
        order = torch.randperm(n_rows, generator=stream(settings.seed, "held out"))
        self.held_out = order[:n_out].sort().values.numpy()
        self.rows = order[n_out:].sort().values.numpy()
        n_outputs = targets.n_outputs
        self.start = np.zeros(n_outputs) if forest else targets.start(self.rows)

    def begin(self) -> EnsembleState:
        """Return an ensemble without trees."""
        z = np.repeat(self.start[:, None], len(self.targets.y), axis=1)
        return EnsembleState((), z, (0,) * len(self.holders.layouts))

    def is_over(self, state: EnsembleState) -> bool:
        """Tell whether enough trees have grown, or held-out rows gain nothing."""
        since_best = len(state.losses) - _best(state.losses)
        patient = not state.losses or since_best < self.settings.patience
        return len(state.trees) >= self.settings.n_trees or not patient

    def step(self, state: EnsembleState) -> EnsembleState:
        """Return the ensemble after one more round, or some more trees of a forest."""
        given = self._forest(state) if self.forest else self._boosted(state)
        limits = self.settings.limits
        grown, next_rule = grow(self.holders, given, limits, state.next_rule)
        l2 = limits.split.l2
        trees = [
            _with_values(own, given.values, place, l2, self._rate)
            for place, own in enumerate(grown)
        ]
        rounds = [(tree,) for tree in trees] if self.forest else [tuple(trees)]
        leaves = [own.leaves for own in grown]
        each = [[own] for own in leaves] if self.forest else [leaves]
        z = state.z
        for some, own in zip(rounds, each, strict=True):
            z = z + _values(some, own, len(z))
        losses = state.losses
        if len(self.held_out):
            losses = (*losses, self.targets.loss(z, self.held_out))
        return EnsembleState((*state.trees, *rounds), z, tuple(next_rule), losses)

    def finish(self, state: EnsembleState) -> TreeEnsemble:
        """Return the ensemble of the best round; parties forget all other rules."""
        trees = state.trees[: _best(state.losses)] if state.losses else state.trees
        flat = [tree for own in trees for tree in own]
        parties = range(len(self.holders.layouts))
        used = [[t.rule[t.owner == party] for t in flat] for party in parties]
        rules = [np.concatenate(own).tolist() if own else [] for own in used]
        self.holders.keep(rules)
        return TreeEnsemble(trees, self.start, self.targets.task, self.forest)

    @property
    def _rate(self) -> float:
        return 1.0 if self.forest else self.settings.learning_rate

    def _boosted(self, state: EnsembleState) -> GrowingRows:
        """Return the gradients of one round, a tree for every output."""
        name = len(state.trees)
        g, h = self.targets.gradients(state.z)
        rows = self._sampled(self.rows, name)
        return self._given(g[:, None], h, [rows] * len(g), name)

    def _forest(self, state: EnsembleState) -> GrowingRows:
        """Return bootstrapped labels for some more trees."""
        done, settings = len(state.trees), self.settings
        n_trees = min(settings.at_once, settings.n_trees - done)
        g, h = self.targets.raw()
        drawn = np.zeros((n_trees, g.shape[2]))
        for place, own in enumerate(drawn):
            generator = stream(settings.seed, "bootstrap", done + place)
            n = max(1, round(settings.row_share * len(own)))
            chosen = torch.randint(len(own), (n,), generator=generator)
            own[:] = torch.bincount(chosen, minlength=len(own)).numpy()
        rows = [np.flatnonzero(own) for own in drawn]
        return self._given(g * drawn[:, None], h * drawn, rows, done)

    def _given(
        self, g: RowValues, h: RowValues, rows: Sequence[RowIds], name: int
    ) -> GrowingRows:
        settings = self.settings
        places = range(len(rows))
        names = [(name + i, 0) if self.forest else (name, i) for i in places]
        seeds = [stream_seed(settings.seed, "tree", *own) for own in names]
        for own, of_tree, chosen in zip(g, h, rows, strict=True):
            if len(chosen) < len(of_tree):  # nobody sees labels of other rows
                rest = np.ones(len(of_tree), dtype=np.bool_)
                rest[chosen] = False
                own[:, rest], of_tree[rest] = 0.0, 0.0
        values = FixedPoint.of(g, h, settings.bits, seeds)
        return GrowingRows(values, rows, self._used(name), settings.node_share, seeds)

    def _sampled(self, rows: RowIds, name: int) -> RowIds:
        """Draw the rows that a round of boosting sees."""
        if self.settings.row_share >= 1:
            return rows
        n = max(1, round(self.settings.row_share * len(rows)))
        generator = stream(self.settings.seed, "rows", name)
        drawn = torch.randperm(len(rows), generator=generator)[:n].sort().values
        return np.take(rows, drawn.numpy())

    def _used(self, name: int) -> list[Truths]:
        """Draw the columns (F,) of every party that a round may use."""
        widths = [layout.n_columns for layout in self.holders.layouts]
        used = np.ones(sum(widths), dtype=np.bool_)
        if self.settings.column_share < 1:
            n = max(1, round(self.settings.column_share * len(used)))
            generator = stream(self.settings.seed, "columns", name)
            used[torch.randperm(len(used), generator=generator)[n:].numpy()] = False
        return np.split(used, np.cumsum(widths)[:-1])


def fit(
    grower: EnsembleGrower,
    watch: Watcher = lambda _: None,
    begun: EnsembleState | None = None,
) -> TreeEnsemble:
    """Grow an ensemble to its end, from its first tree or from where it was."""
    state = grower.begin() if begun is None else begun
    while not grower.is_over(state):
        state = grower.step(state)
        watch(state)
    return grower.finish(state)


def _best(losses: Sequence[float]) -> int:
    """Return how many rounds had the best loss, 0 for none."""
    best, least = 0, float("inf")
    for n_rounds, loss in enumerate(losses, 1):
        if loss < least - SMALLEST_GAIN:
            best, least = n_rounds, loss
    return best


def _with_values(
    grown: Grown, values: FixedPoint, place: int, l2: float, rate: float
) -> SplitTree:
    """Give leaves their values, -rate G / (H + l2), and splits their gains by row."""
    g = grown.sums[:, :-2] * values.gradient_unit[place]
    h = grown.sums[:, -2:-1] * values.hessian_unit[place] + l2
    best = np.divide(-rate * g, h, out=np.zeros_like(g), where=h > 0)
    is_leaf = (grown.tree.owner == LEAF)[:, None]
    gain = grown.tree.gain / len(grown.leaves)
    return replace(grown.tree, gain=gain, value=np.where(is_leaf, best, 0.0))
