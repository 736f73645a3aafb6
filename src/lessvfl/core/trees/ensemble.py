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
from lessvfl.core.trees.holders import TreeHolders, Truths
from lessvfl.core.trees.sums import FixedPoint, RowIds
from lessvfl.core.trees.targets import RowValues, TreeTargets
from lessvfl.core.trees.tree import LEAF, SplitTree
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


@dataclass(frozen=True)
class EnsembleState:
    """What an ensemble is after some rounds."""

    trees: tuple[tuple[SplitTree, ...], ...]
    z: RowValues  # (K, N), raw predictions of all rows, sums so far
    next_rule: tuple[int, ...]  # of every party
    losses: tuple[float, ...] = ()  # of held-out rows, after every round

    @property
    def n_best(self) -> int:
        """Return how many rounds had the best loss, 0 for none."""
        best, least = 0, float("inf")
        for n_rounds, loss in enumerate(self.losses, 1):
            if loss < least - SMALLEST_GAIN:
                best, least = n_rounds, loss
        return best


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
        since_best = len(state.losses) - state.n_best
        patient = not state.losses or since_best < self.settings.patience
        return len(state.trees) >= self.settings.n_trees or not patient

    def step(self, state: EnsembleState) -> EnsembleState:
        """Return the state after one more boosting round, or more trees of a forest."""
        given = self._bootstrapped(state) if self.forest else self._boosted(state)
        limits = self.settings.limits
        grown, next_rule = grow(self.holders, given, limits, state.next_rule)
        rate = 1.0 if self.forest else self.settings.learning_rate
        trees = [
            _with_values(tree, given.values, place, limits.split.l2, rate)
            for place, tree in enumerate(grown)
        ]
        values = [
            tree.value[one.leaves].T for tree, one in zip(trees, grown, strict=True)
        ]
        n_rounds = len(trees) if self.forest else 1
        width, z = len(trees) // n_rounds, state.z
        rounds = tuple(zip(*[iter(trees)] * width, strict=True))
        for each in zip(*[iter(values)] * width, strict=True):
            z = z + np.concatenate(each).reshape(len(z), -1)
        losses = state.losses
        if len(self.held_out):
            losses = (*losses, self.targets.loss(z, self.held_out))
        return EnsembleState((*state.trees, *rounds), z, tuple(next_rule), losses)

    def finish(self, state: EnsembleState) -> TreeEnsemble:
        """Return the ensemble up to its best round; parties forget all other rules."""
        trees = state.trees[: state.n_best] if state.losses else state.trees
        flat = [tree for some in trees for tree in some]
        none = np.zeros(0, dtype=np.int32)
        self.holders.keep(
            [
                np.concatenate([none, *(t.rule[t.owner == m] for t in flat)]).tolist()
                for m in range(len(self.holders.layouts))
            ]
        )
        return TreeEnsemble(trees, self.start, self.targets.task, self.forest)

    def _boosted(self, state: EnsembleState) -> GrowingRows:
        """Return what the next round grows on: loss gradients of rows drawn for it."""
        settings, turn, rows = self.settings, len(state.trees), self.rows
        g, h = self.targets.gradients(state.z)
        if settings.row_share < 1:
            n = max(1, round(settings.row_share * len(rows)))
            generator = stream(settings.seed, "rows", turn)
            drawn = torch.randperm(len(rows), generator=generator)[:n].sort().values
            rows = np.take(rows, drawn.numpy())
        names = [(turn, output) for output in range(len(g))]
        return self._given(g[:, None], h, [rows] * len(g), names)

    def _bootstrapped(self, state: EnsembleState) -> GrowingRows:
        """Return what a forest's next trees grow on: labels of rows drawn for each."""
        done, settings = len(state.trees), self.settings
        n_trees = min(settings.at_once, settings.n_trees - done)
        g, h = self.targets.raw()
        drawn = np.zeros((n_trees, g.shape[2]))
        for place, times in enumerate(drawn):
            generator = stream(settings.seed, "bootstrap", done + place)
            n = max(1, round(settings.row_share * len(times)))
            chosen = torch.randint(len(times), (n,), generator=generator)
            times[:] = torch.bincount(chosen, minlength=len(times)).numpy()
        rows = [np.flatnonzero(times) for times in drawn]
        names = [(done + place, 0) for place in range(n_trees)]
        return self._given(g * drawn[:, None], h * drawn, rows, names)

    def _given(
        self,
        g: RowValues,
        h: RowValues,
        rows: Sequence[RowIds],
        names: Sequence[tuple[int, int]],
    ) -> GrowingRows:
        """Return what trees of these names (round, output) are grown on.

        `g` (K, Q, N) and `h` (K, N) become 0 at rows that a tree is not grown on:
        nobody sees labels of those.
        """
        settings = self.settings
        seeds = [stream_seed(settings.seed, "tree", *name) for name in names]
        for tree, chosen in enumerate(rows):
            if len(chosen) < h.shape[1]:
                rest = np.ones(h.shape[1], dtype=np.bool_)
                rest[chosen] = False
                g[tree][:, rest], h[tree][rest] = 0.0, 0.0
        values = FixedPoint.of(g, h, settings.bits, seeds)
        used = self._used(names[0][0])
        return GrowingRows(values, rows, used, settings.node_share, seeds)

    def _used(self, name: int) -> list[Truths]:
        """Draw which columns of every party round `name` may use, as masks (F,)."""
        widths = [layout.n_columns for layout in self.holders.layouts]
        used = np.ones(sum(widths), dtype=np.bool_)
        if self.settings.column_share < 1:
            n = max(1, round(self.settings.column_share * len(used)))
            generator = stream(self.settings.seed, "columns", name)
            used[torch.randperm(len(used), generator=generator)[n:].numpy()] = False
        return np.split(used, np.cumsum(widths)[:-1])


def fit(
    grower: EnsembleGrower,
    watch: Callable[[EnsembleState], None] = lambda _: None,
    begun: EnsembleState | None = None,
) -> TreeEnsemble:
    """Grow an ensemble to its end, from its first tree or from where it was."""
    state = grower.begin() if begun is None else begun
    while not grower.is_over(state):
        state = grower.step(state)
        watch(state)
    return grower.finish(state)


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
