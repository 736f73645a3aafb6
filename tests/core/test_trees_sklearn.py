"""Trees across parties against scikit-learn's boosting and forests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.core.test_trees import Table, grown, holders_of, raw, with_gaps

from lessvfl.core.trees.columns import LocalHolders
from lessvfl.core.trees.ensemble import (
    EnsembleGrower,
    EnsembleState,
    TreeSettings,
    fit,
)
from lessvfl.core.trees.grow import GrowingRows, GrowthLimits, grow
from lessvfl.core.trees.holders import NodeRows
from lessvfl.core.trees.splits import SplitRules
from lessvfl.core.trees.sums import FixedPoint, Sums, pack, unpack
from lessvfl.core.trees.targets import TreeTargets

BY_GAIN = GrowthLimits(order="gain")
PLAIN = {"max_bins": 64, "early_stopping": False}


def ours(
    X: Table,
    y: Any,
    X_new: Table,
    task: Any,
    forest: bool = False,
    weight: Any = None,
    categorical: tuple[int, ...] = (),
    **settings: Any,
) -> Table:
    """Return raw predictions for new rows, (n, K), by two parties."""
    half = X.shape[1] // 2
    holders = holders_of(X, half, X.shape[1] - half, categorical=categorical)
    ensemble = grown(holders, TreeTargets.of(y, task, weight), forest, **settings)
    return raw(ensemble, holders, X_new).T


def halves(loader: Any) -> tuple[Table, Table, Table, Table]:
    X, y = loader(return_X_y=True)
    labels = y if len(np.unique(y)) < 20 else None
    X, X_new, y, y_new = train_test_split(X, y, random_state=0, stratify=labels)
    return X, X_new, y, y_new


def test_the_trees_are_those_of_scikit_learn() -> None:
    """Same predictions, not just as good ones; theirs are by float32 gradients."""
    X, X_new, y, _ = halves(load_breast_cancer)
    theirs = HistGradientBoostingClassifier(max_iter=50, **PLAIN).fit(X, y)
    z = ours(X, y, X_new, "binary", n_trees=50, limits=BY_GAIN)
    assert np.allclose(z[:, 0], theirs.decision_function(X_new), atol=1e-4)


def test_so_are_those_of_a_regression_with_missing_cells_and_weights() -> None:
    """Of training rows: a cell missing where none was goes where most rows go.

    Values are few, for scikit-learn counts weights where it puts them into bins.
    """
    X, _, y, _ = halves(load_diabetes)
    X = with_gaps(X.round(2))
    weight = np.random.default_rng(0).uniform(0.2, 2, len(y))
    theirs = HistGradientBoostingRegressor(max_iter=30, l2_regularization=3.0, **PLAIN)
    theirs.fit(X, y, sample_weight=weight)
    limits = GrowthLimits(order="gain", split=SplitRules(l2=3.0))
    z = ours(X, y, X, "regression", weight=weight, n_trees=30, limits=limits)
    assert np.allclose(z[:, 0], theirs.predict(X), atol=1e-3)


@pytest.mark.parametrize("order", ["depth", "gain"])
@pytest.mark.parametrize("loader", [load_breast_cancer, load_digits])
def test_areas_are_within_half_a_point(loader: Any, order: Any) -> None:
    X, X_new, y, y_new = halves(loader)
    n_trees = 50 if len(np.unique(y)) == 2 else 15
    theirs = HistGradientBoostingClassifier(max_iter=n_trees, **PLAIN).fit(X, y)
    task = "binary" if len(np.unique(y)) == 2 else "multiclass"
    z = ours(X, y, X_new, task, n_trees=n_trees, limits=GrowthLimits(order=order))
    p = theirs.predict_proba(X_new)
    if task == "binary":
        areas = roc_auc_score(y_new, z[:, 0]), roc_auc_score(y_new, p[:, 1])
    else:
        own = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        areas = tuple(roc_auc_score(y_new, q, multi_class="ovr") for q in (own, p))
        assert np.mean(z.argmax(axis=1) == y_new) > 0.93
    assert areas[0] > areas[1] - 0.005


def test_categories_are_as_good_as_theirs() -> None:
    """30 categories, the even ones against the odd: one split, no order of codes."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 30, 4000), rng.normal(size=4000)])
    y = rng.random(4000) < 0.2 + 0.6 * (X[:, 0] % 2)
    X[rng.random(4000) < 0.1, 0] = np.nan
    few: dict[str, Any] = {"n_trees": 5, "limits": GrowthLimits(4, order="gain")}
    z = ours(X[2000:], y[2000:], X[:2000], "binary", categorical=(0,), **few)
    theirs = HistGradientBoostingClassifier(
        max_iter=5, max_leaf_nodes=4, categorical_features=[0], **PLAIN
    ).fit(X[2000:], y[2000:])
    area = roc_auc_score(y[:2000], z[:, 0])
    assert area > roc_auc_score(y[:2000], theirs.decision_function(X[:2000])) - 0.005
    assert area > roc_auc_score(y[:2000], X[:2000, 0] % 2 > 0) - 0.01
    ordered = ours(X[2000:], y[2000:], X[:2000], "binary", **few)
    assert roc_auc_score(y[:2000], ordered[:, 0]) < area - 0.05


def test_cells_missing_for_a_reason_say_something() -> None:
    """Missing cells of one column are the label, on whichever side the others are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = rng.random(400) < 0.5
    X[y, 0] = np.nan
    z = ours(X, y, X, "binary", n_trees=1, limits=GrowthLimits(2))
    assert roc_auc_score(y, z[:, 0]) == 1.0


def test_weights_are_repeated_rows() -> None:
    X, _, y, _ = halves(load_breast_cancer)
    X = np.digitize(X, np.quantile(X, np.linspace(0, 1, 30))).astype(float)
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    rows = np.repeat(np.arange(len(y)), weight)
    few: dict[str, Any] = {"limits": GrowthLimits(8, split=SplitRules(1, 1.0))}
    first = ours(X, y, X, "binary", weight=weight.astype(float), **few)
    second = ours(X[rows], y[rows], X, "binary", **few)
    assert np.allclose(first, second, atol=1e-4)
    assert not np.allclose(first, ours(X, y, X, "binary", **few), atol=1e-2)


def test_held_out_rows_say_when_to_stop() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = X[:, 0] + rng.normal(size=600)
    seen: list[EnsembleState] = []
    settings = TreeSettings(300, 0.3, held_out=0.3, patience=5)
    targets = TreeTargets.of(y, "regression")
    holders = holders_of(X)
    grower = EnsembleGrower(holders, targets, settings)
    ensemble = fit(grower, seen.append)
    losses = seen[-1].losses
    best = int(np.argmin(losses)) + 1
    assert len(ensemble.trees) == best
    assert len(losses) == best + 5 < 300
    z = raw(ensemble, holders, X)
    assert targets.loss(z, grower.held_out) == pytest.approx(min(losses), rel=1e-9)
    assert len(grower.held_out) == 180
    moved = y.copy()
    moved[grower.held_out] += 100  # nobody grows trees on them
    other = EnsembleGrower(holders_of(X), TreeTargets.of(moved, "regression"), settings)
    state = other.step(other.begin())
    assert np.array_equal(state.trees[0][0].value, ensemble.trees[0][0].value)


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_a_tree_of_labels_is_a_tree_of_scikit_learn(task: Any) -> None:
    """A tree that removes Gini's impurity or variance, leaf by leaf."""
    X, y = load_diabetes(return_X_y=True)
    X = X.round(2)  # every value is a bin of its own
    y = np.digitize(y, [100, 200]) if task == "multiclass" else y
    holders, rows = holders_of(X, 5, 5), np.arange(len(y))
    used = [np.ones(5, dtype=bool)] * 2
    given = GrowingRows(FixedPoint.of(*TreeTargets.of(y, task).raw()), [rows], used)
    limits = GrowthLimits(12, order="gain", split=SplitRules(5))
    ((own,), _) = grow(holders, given, limits, (0, 0))
    model = DecisionTreeRegressor if task == "regression" else DecisionTreeClassifier
    theirs = model(max_leaf_nodes=12, min_samples_leaf=5, random_state=0).fit(X, y)
    leaves = theirs.apply(X)
    pairs = set(zip(own.leaves.tolist(), leaves.tolist(), strict=True))
    assert len(pairs) == 12  # the same rows are together


def test_a_forest_is_as_good_as_theirs() -> None:
    X, X_new, y, y_new = halves(load_digits)
    limits = GrowthLimits(None, order="depth", split=SplitRules(2, 0.0))
    z = ours(
        X, y, X_new, "multiclass", True, n_trees=15, node_share=0.125, limits=limits
    )
    assert np.allclose(z.sum(axis=1), 1, atol=1e-5)
    theirs = RandomForestClassifier(15, min_samples_leaf=2, random_state=0).fit(X, y)
    accuracy = np.mean(z.argmax(axis=1) == y_new)
    assert accuracy > theirs.score(X_new, y_new) - 0.02


class PackingHolders(LocalHolders):
    """Holders who send sums in few bits."""

    bits = 32

    def histograms(self, nodes: Sequence[NodeRows]) -> list[Sums]:
        found = zip(super().histograms(nodes), self.layouts, strict=True)
        return [
            unpack(*pack(own, self.bits, layout.sizes), layout.sizes)
            for own, layout in found
        ]


@pytest.mark.parametrize("bits", [16, 8])
def test_gradients_and_sums_of_few_bits_are_enough(bits: int) -> None:
    X, X_new, y, y_new = halves(load_breast_cancer)
    areas = []
    for n_bits, kind in (
        (32, LocalHolders),
        (bits, LocalHolders),
        (bits, PackingHolders),
    ):
        holders = kind(holders_of(X, 15, 15).parties)
        if isinstance(holders, PackingHolders):
            holders.bits = bits
        targets, limits = TreeTargets.of(y, "binary"), GrowthLimits()
        ensemble = grown(holders, targets, n_trees=50, bits=n_bits, limits=limits)
        z = raw(ensemble, holders, X_new)[0]
        areas.append(roc_auc_score(y_new, z))
    assert min(areas[1:]) > areas[0] - 0.01
    assert len(set(areas)) > 1
