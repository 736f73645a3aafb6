"""Trees across parties: by definition on tiny tables, and parties against one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lessvfl.core.trees.columns import ColumnHolder, LocalHolders
from lessvfl.core.trees.ensemble import (
    EnsembleGrower,
    EnsembleState,
    TreeEnsemble,
    TreeSettings,
    fit,
)
from lessvfl.core.trees.grow import GrowingRows, GrowthLimits, grow
from lessvfl.core.trees.holders import BinLayout, NodeRows
from lessvfl.core.trees.splits import Chosen, NodeUnits, SplitRules, choose
from lessvfl.core.trees.sums import CellCodes, FixedPoint, RowIds, Sums
from lessvfl.core.trees.targets import TreeTargets
from lessvfl.core.trees.tree import LEAF, SplitTree

Table = NDArray[np.float64]
NO_LIMITS = SplitRules(min_samples_leaf=1, min_hessian=0.0, category_smoothing=0.0)
SMALL = GrowthLimits(max_leaf_nodes=6, split=NO_LIMITS)


def n_leaves_of(tree: SplitTree) -> int:
    return int((tree.owner == LEAF).sum())


def depth_of(tree: SplitTree) -> int:
    """Return the most splits that a row passes."""
    depth = np.zeros(len(tree.owner), dtype=np.int64)
    for node in np.flatnonzero(tree.owner != LEAF):  # children come after parents
        depth[tree.children[node]] = depth[node] + 1
    return int(depth.max())


def numbers(n_rows: int = 40, n_columns: int = 4, seed: int = 0) -> Table:
    return np.random.default_rng(seed).normal(size=(n_rows, n_columns))


def with_gaps(X: Table, share: float = 0.2, seed: int = 1) -> Table:
    """Return a table with some cells missing, in all columns but the last."""
    gaps = np.random.default_rng(seed).random(X.shape) < share
    gaps[:, -1] = False
    return np.where(gaps, np.nan, X)


def holders_of(
    X: Table, *sizes: int, n_bins: int = 64, categorical: tuple[int, ...] = ()
) -> LocalHolders:
    """Divide columns among parties, of these sizes, in order."""
    ends = np.cumsum(sizes or [X.shape[1]])
    starts = [0, *ends[:-1]]
    parties = []
    for start, end in zip(starts, ends, strict=True):
        own = [c - start for c in categorical if start <= c < end]
        parties.append(ColumnHolder.of(X[:, start:end], n_bins, own))
    return LocalHolders(parties)


def codes_of(holders: LocalHolders, X: Table) -> list[CellCodes]:
    """Return a table in the bins of every party."""
    ends = np.cumsum([layout.n_columns for layout in holders.layouts])
    tables = np.split(X, ends[:-1], axis=1)
    both = zip(holders.parties, tables, strict=True)
    return [party.bins.codes(table) for party, table in both]


def leaves_of(
    tree: SplitTree, holders: LocalHolders, codes: Sequence[CellCodes]
) -> RowIds:
    """Return the leaf of every row, by the rules that owners keep."""
    node = np.zeros(codes[0].shape[1], dtype=np.int64)
    for place in np.flatnonzero(tree.owner != LEAF):  # children come after parents
        owner = tree.owner[place]
        rule = holders.parties[owner].rules[int(tree.rule[place])]
        left = rule.left[codes[owner][rule.column]]
        below = np.where(left, *tree.children[place])
        node = np.where(node == place, below, node)
    return node


def raw(ensemble: TreeEnsemble, holders: LocalHolders, X: Table) -> Table:
    """Return raw predictions of rows, (K, N): logits, shares, or values."""
    codes = codes_of(holders, X)
    z = np.repeat(ensemble.start[:, None], len(X), axis=1)
    for trees in ensemble.trees:
        values = [tree.value[leaves_of(tree, holders, codes)].T for tree in trees]
        z = z + np.concatenate(values)
    return z / len(ensemble.trees) if ensemble.is_mean else z


def grown(
    holders: LocalHolders, targets: TreeTargets, forest: bool = False, **changed: Any
) -> TreeEnsemble:
    given: dict[str, Any] = {"n_trees": 3, "limits": SMALL} | changed
    settings = TreeSettings(**given)
    return fit(EnsembleGrower(holders, targets, settings, forest=forest))


def exact(g: Table, h: Table) -> FixedPoint:
    return FixedPoint.of(g[None, None], h[None])


# ------------------------------------------------------------------------- brute force


def score(g: Table, h: Table, rows: NDArray[np.bool_], l2: float) -> float:
    return float(g[rows].sum() ** 2 / (h[rows].sum() + l2))


def sides(x: Table, is_category: bool) -> list[NDArray[np.bool_]]:
    """Return every way to divide rows by a column: all thresholds, or all subsets.

    Missing cells go to either side; of categories they are one more.
    """
    values = np.unique(x[~np.isnan(x)])
    absent = np.isnan(x)
    found = []
    if is_category:
        parts = [x == value for value in values]
        parts += [absent] if absent.any() else []
        for n in range(1, len(parts)):
            for some in itertools.combinations(parts, n):
                found.append(np.any(some, axis=0))
    else:
        below = [x <= value for value in values]
        found += below + [own | absent for own in below]
    return [own for own in found if 0 < own.sum() < len(x)]


def brute_force(
    X: Table, g: Table, h: Table, l2: float, categorical: tuple[int, ...]
) -> tuple[float, set[tuple[bool, ...]]]:
    """Return the best gain of all splits, and who goes left in those that have it."""
    everyone = np.ones(len(g), dtype=bool)
    tried = [
        (score(g, h, own, l2) + score(g, h, ~own, l2) - score(g, h, everyone, l2), own)
        for column in range(X.shape[1])
        for own in sides(X[:, column], column in categorical)
    ]
    best = max(gain for gain, _ in tried)
    return best, {tuple(own.tolist()) for gain, own in tried if gain > best - 1e-6}


def best_split(
    holders: LocalHolders, values: FixedPoint, rules: SplitRules
) -> Chosen | None:
    rows = np.arange(values.hessian.shape[1])
    used = [np.ones(layout.n_columns, dtype=bool) for layout in holders.layouts]
    holders.begin(values, used)
    sums = np.concatenate(holders.histograms([NodeRows(0, 0, rows)]), axis=2)
    units = NodeUnits(values.gradient_unit, values.hessian_unit)
    total = values.total(0, rows)[:, None]
    layout = BinLayout.joined(holders.layouts)
    (chosen,) = choose(sums, layout, total, units, rules)
    return chosen


def goes_left(holders: LocalHolders, chosen: Chosen) -> tuple[bool, ...]:
    codes = np.concatenate([party.codes for party in holders.parties])[chosen.column]
    return tuple(chosen.left[codes].tolist())


@pytest.mark.parametrize("categorical", [(), (0, 2)])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_split_is_the_best_of_all(
    seed: int, gaps: bool, categorical: tuple[int, ...]
) -> None:
    """An exhaustive search over thresholds, subsets, and sides of missing cells."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 5, (14, 4)).astype(float)
    X[:, 1] = rng.normal(size=14)
    X = with_gaps(X) if gaps else X
    g, h = rng.normal(size=14), rng.uniform(0.1, 1, 14)
    values = exact(g, h)
    g, h = values.gradient[0, 0], values.hessian[0]  # in whole numbers, as they are
    g, h = g * values.gradient_unit[0], h * values.hessian_unit[0]
    l2 = 0.0 if categorical else 0.5
    holders = holders_of(X, 2, 2, categorical=categorical)
    chosen = best_split(holders, values, replace(NO_LIMITS, l2=l2))
    assert chosen is not None
    gain, best = brute_force(X, g, h, l2, categorical)
    assert chosen.gain == pytest.approx(gain, rel=1e-9)
    left = goes_left(holders, chosen)
    assert left in best or tuple(not own for own in left) in best


@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_of_equal_gains_the_first_column_wins(sizes: tuple[int, ...]) -> None:
    """Also where its missing cells go left, and those of a later column right."""
    x = np.array([0.0, 1.0, 2.0, 3.0, np.nan, np.nan])
    g = np.array([-1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    holders = holders_of(np.column_stack([x, -x]), *sizes)
    chosen = best_split(holders, exact(g, np.ones(6)), NO_LIMITS)
    assert chosen is not None
    assert chosen.column == 0
    assert goes_left(holders, chosen) == (True, True, False, False, True, True)


def test_what_a_node_has_not_goes_where_most_rows_go() -> None:
    """Categories, and missing cells, that other rows than those of the node have."""
    X = np.array([[0.0], [0.0], [0.0], [1.0], [2.0], [np.nan]])
    holders = holders_of(X, categorical=(0,))
    for sign in (1.0, -1.0):
        values = exact(sign * np.array([-1.0, -1.0, -1.0, 1.0, 0.0, 0.0]), np.ones(6))
        rows = np.arange(4)
        holders.begin(values, [np.ones(1, dtype=bool)])
        (sums,) = holders.histograms([NodeRows(0, 0, rows)])
        units = NodeUnits(values.gradient_unit, values.hessian_unit)
        total = values.total(0, rows)[:, None]
        (chosen,) = choose(sums, holders.layouts[0], total, units, NO_LIMITS)
        assert chosen is not None
        left = chosen.left
        assert left[0] != left[1]
        assert left.tolist() == [left[0], not left[0], left[0], left[0]]


def test_a_whole_tree_is_that_of_brute_force() -> None:
    """Depth by depth, every node splits its rows in the best way; leaves are -G/H."""
    X, y = numbers(30, 3), numbers(30, 1, seed=5)[:, 0]
    holders = holders_of(X, 1, 2)
    limits = GrowthLimits(None, max_depth=3, split=NO_LIMITS)
    ensemble = grown(holders, TreeTargets.of(y, "regression"), n_trees=1, limits=limits)
    ((tree,),) = ensemble.trees
    g = y.mean() - y
    rows = {0: np.ones(30, dtype=bool)}
    leaves = leaves_of(tree, holders, codes_of(holders, X))
    for node, (first, second) in enumerate(tree.children.tolist()):
        own = rows[node]
        if tree.owner[node] == LEAF:
            assert np.array_equal(own, leaves == node)
            assert tree.value[node, 0] == pytest.approx(-0.1 * g[own].mean(), abs=1e-6)
            continue
        gain, best = brute_force(X[own], g[own], np.ones(own.sum()), 0.0, ())
        assert 30 * tree.gain[node] == pytest.approx(gain, abs=1e-5)
        owner = holders.parties[tree.owner[node]]
        where = np.flatnonzero(own)
        rule = owner.rules[int(tree.rule[node])]
        left = rule.left[owner.codes[rule.column, where]]
        assert tuple(left.tolist()) in best
        rows[first], rows[second] = np.zeros((2, 30), dtype=bool)
        rows[first][where[left]], rows[second][where[~left]] = True, True


@pytest.mark.parametrize("order", ["depth", "gain"])
def test_limits_hold_in_every_leaf(order: Any) -> None:
    X, y = numbers(300), numbers(300, 1, seed=5)[:, 0] > 0.3
    targets = TreeTargets.of(y, "binary")
    rules = SplitRules(min_samples_leaf=15, min_hessian=4.0, min_gain=0.2)
    holders = holders_of(X)
    ensemble = grown(holders, targets, limits=GrowthLimits(9, 4, order, rules))
    z = np.full((1, 300), ensemble.start[0])
    for (tree,) in ensemble.trees:
        assert 2 < n_leaves_of(tree) <= 9
        assert depth_of(tree) <= 4
        is_leaf = tree.owner == LEAF
        assert 300 * tree.gain[~is_leaf].min() > 0.2
        leaves = leaves_of(tree, holders, codes_of(holders, X))
        sizes = np.bincount(leaves, minlength=len(is_leaf))[is_leaf]
        assert np.array_equal(sizes, tree.n_rows[is_leaf])
        assert sizes.min() >= 15
        _, h = targets.gradients(z)
        assert np.bincount(leaves, h[0])[is_leaf].min() >= 4.0 - 1e-3
        z = z + tree.value[leaves].T


def test_the_best_gain_is_split_next() -> None:
    """As if leaves were split one by one, although several are asked for at once."""
    X, y = numbers(400), numbers(400, 1, seed=5)[:, 0]
    y = y + 3 * (X[:, 0] > 1) * X[:, 1] * (X[:, 2] > 0)

    def tree_of(n_leaves: int) -> SplitTree:
        limits = GrowthLimits(n_leaves, order="gain", split=SplitRules())
        targets = TreeTargets.of(y, "regression")
        return grown(holders_of(X), targets, n_trees=1, limits=limits).trees[0][0]

    trees = [tree_of(n) for n in range(1, 16)]
    n_asked = 0

    class Counting(LocalHolders):
        def histograms(self, nodes: Sequence[NodeRows]) -> list[Sums]:
            nonlocal n_asked
            n_asked += 1
            return super().histograms(nodes)

    limits = GrowthLimits(15, order="gain", split=SplitRules())
    targets = TreeTargets.of(y, "regression")
    grown(Counting(holders_of(X).parties), targets, n_trees=1, limits=limits)
    assert n_asked <= depth_of(trees[-1]) + 3 < 14  # splits
    for tree, larger in itertools.pairwise(trees):
        new = [*larger.gain]
        for gain in tree.gain:
            new.remove(gain)
        (last,) = [gain for gain in new if gain]  # one more, and no other has changed
        assert n_leaves_of(tree) + 1 == n_leaves_of(larger)
        assert last > 0
    by_depth = grown(
        holders_of(X),
        TreeTargets.of(y, "regression"),
        n_trees=1,
        limits=GrowthLimits(15, split=SplitRules()),
    )
    assert trees[-1].gain.sum() >= by_depth.trees[0][0].gain.sum()
    assert depth_of(trees[-1]) > depth_of(by_depth.trees[0][0])


# ------------------------------------------------------------------ parties and one


def facts(ensemble: TreeEnsemble, *sizes: int) -> list[list[Any]]:
    """Return all about trees but rules; columns are numbered over all parties."""
    starts = np.cumsum([0, *sizes])
    return [
        [
            tree.children.tolist(),
            tree.gain.tolist(),
            tree.value.tolist(),
            tree.n_rows.tolist(),
            np.where(
                tree.owner == LEAF, LEAF, tree.column + starts[tree.owner]
            ).tolist(),
        ]
        for tree in itertools.chain(*ensemble.trees)
    ]


TABLE = with_gaps(
    np.column_stack(
        [
            np.random.default_rng(3).integers(0, 6, 200),
            numbers(200, 3),
            np.random.default_rng(4).integers(0, 3, 200),
            numbers(200, 1, seed=7),
        ]
    )
)
NOISE = numbers(200, 1, seed=9)[:, 0]
SCORE = np.nan_to_num(TABLE[:, 1] + (TABLE[:, 0] == 2)) + 0.5 * NOISE
LABELS = {
    "binary": SCORE > 0.3,
    "multiclass": np.digitize(SCORE, [-0.5, 0.5]),
    "regression": SCORE,
}


@pytest.mark.parametrize("task", LABELS)
@pytest.mark.parametrize("forest", [False, True])
@pytest.mark.parametrize("order", ["depth", "gain"])
def test_several_holders_grow_the_trees_of_one(
    task: Any, forest: bool, order: Any
) -> None:
    targets = TreeTargets.of(LABELS[task], task)
    settings = {
        "limits": GrowthLimits(12, order=order, split=SplitRules(5)),
        "n_trees": 4,
        "row_share": 0.8,
        "column_share": 0.9,
        "node_share": 0.7,
        "bits": 16,
        "seed": 11,
    }
    sizes = (2, 1, 3)
    own = holders_of(TABLE, categorical=(0, 4))
    several = holders_of(TABLE, *sizes, categorical=(0, 4))
    first = grown(own, targets, forest, **settings)
    second = grown(several, targets, forest, **settings)
    assert facts(first, 6) == facts(second, *sizes)  # to the bit
    new = with_gaps(TABLE[::-1], seed=3)
    assert np.array_equal(raw(first, own, new), raw(second, several, new))


def test_trees_of_a_forest_do_not_depend_on_how_many_grow_at_once() -> None:
    targets = TreeTargets.of(LABELS["multiclass"], "multiclass")
    settings: dict[str, Any] = {"n_trees": 5, "bits": 8, "node_share": 0.5}
    first, second, third = (
        grown(holders_of(TABLE, 3, 3), targets, True, at_once=n, seed=seed, **settings)
        for n, seed in ((1, 0), (3, 0), (3, 1))
    )
    assert facts(first, 3, 3) == facts(second, 3, 3)
    assert facts(first, 3, 3) != facts(third, 3, 3)


def test_trees_draw_columns_of_nodes_by_their_own_seeds() -> None:
    y = np.stack([SCORE, SCORE])[:, None]
    values, rows = FixedPoint.of(-y, np.ones((2, 200))), [np.arange(200)] * 2
    used = [np.ones(6, dtype=bool)]
    for seeds, alike in (((1, 1), True), ((1, 2), False)):
        given = GrowingRows(values, rows, used, 0.4, seeds)
        (one, other), _ = grow(holders_of(TABLE), given, SMALL, (0,))
        assert np.array_equal(one.tree.column, other.tree.column) == alike


def test_a_party_without_columns_is_no_obstacle() -> None:
    targets = TreeTargets.of(LABELS["binary"], "binary")
    one = grown(holders_of(TABLE), targets)
    assert facts(one, 6) == facts(grown(holders_of(TABLE, 0, 6), targets), 0, 6)


@pytest.mark.parametrize("n_columns", [0, 6])
def test_without_columns_or_with_few_rows_a_tree_is_a_leaf(n_columns: int) -> None:
    X, targets = TABLE[:30, :n_columns], TreeTargets.of(SCORE[:30], "regression")
    rules = SplitRules(min_samples_leaf=16 if n_columns else 1)
    ensemble = grown(holders_of(X), targets, limits=GrowthLimits(split=rules))
    assert [n_leaves_of(tree) for (tree,) in ensemble.trees] == [1, 1, 1]
    z = raw(ensemble, holders_of(X), X)
    assert np.allclose(z, SCORE[:30].mean(), atol=1e-6)


def test_owners_keep_rules_that_trees_use_and_no_other() -> None:
    holders = holders_of(TABLE, 3, 3)
    limits = GrowthLimits(8, order="gain", split=SplitRules(5))
    ensemble = grown(holders, TreeTargets.of(SCORE, "regression"), limits=limits)
    for place, party in enumerate(holders.parties):
        used = [t.rule[t.owner == place].tolist() for (t,) in ensemble.trees]
        assert sorted(party.rules) == sorted(itertools.chain(*used))


def test_an_ensemble_goes_on_from_a_state() -> None:
    def grower() -> EnsembleGrower:
        targets = TreeTargets.of(LABELS["multiclass"], "multiclass")
        settings = TreeSettings(n_trees=4, limits=SMALL, row_share=0.5, held_out=0.2)
        return EnsembleGrower(holders_of(TABLE, 3, 3), targets, settings)

    seen: list[EnsembleState] = []
    whole = fit(first := grower(), seen.append)
    second = grower()
    second.holders = first.holders  # with the rules so far
    state = seen[1]
    while not second.is_over(state):
        state = second.step(state)
    assert facts(whole, 3, 3) == facts(second.finish(state), 3, 3)
