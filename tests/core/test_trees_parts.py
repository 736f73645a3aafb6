"""Parts of trees across parties: bins, sums as whole numbers, targets, columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper
from tests.core.test_trees import Table, holders_of, numbers, with_gaps

from lessvfl.core.trees import sums
from lessvfl.core.trees.columns import ColumnBins, ColumnHolder, PartyRule
from lessvfl.core.trees.holders import NodeRows
from lessvfl.core.trees.sums import FixedPoint, pack, unpack
from lessvfl.core.trees.targets import TreeTargets

# -------------------------------------------------------------------------------- bins


def test_bins_of_numbers_are_those_of_scikit_learn() -> None:
    X = np.column_stack([numbers(1000, 2), numbers(1000, 1).round(1) * 7])
    bins = ColumnBins.fit(X, 32)
    theirs = _BinMapper(n_bins=33).fit(X)
    assert np.array_equal(bins.codes(X).T, theirs.transform(X))


def test_missing_cells_have_a_bin_of_their_own() -> None:
    X = np.array([[1.0], [np.nan], [3.0], [1.0]])
    bins = ColumnBins.fit(X)
    assert bins.codes(X).tolist() == [[0, 2, 1, 0]]
    assert bins.layout.sizes.tolist() == [3]
    later = np.array([[-9.0], [1.9], [2.0], [2.1], [np.nan]])
    assert bins.codes(later).tolist() == [[0, 0, 0, 1, 2]]


def test_rare_and_new_categories_count_as_missing() -> None:
    X = np.array([[5.0], [5.0], [2.0], [2.0], [9.0], [np.nan]])
    bins = ColumnBins.fit(X, 2, categorical=[0])
    assert bins.codes(X).tolist() == [[1, 1, 0, 0, 2, 2]]
    assert bins.codes(np.array([[2.0], [3.0], [99.0]])).tolist() == [[0, 2, 2]]
    assert bins.layout.missing.tolist() == [True]


def test_a_column_without_values_has_one_bin() -> None:
    X = np.full((3, 2), np.nan)
    X[:, 1] = 4.0
    bins = ColumnBins.fit(X)
    assert bins.layout.sizes.tolist() == [2, 1]
    assert bins.codes(X).tolist() == [[1, 1, 1], [0, 0, 0]]


def test_too_many_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="bins must be from 2 to 255, not 256"):
        ColumnBins.fit(numbers(), 256)


def test_neighbouring_numbers_are_told_apart() -> None:
    x = np.array([[1.0], [np.nextafter(1.0, 2.0)], [1e308], [1.7e308]])
    assert ColumnBins.fit(x).codes(x).tolist() == [[0, 1, 2, 3]]


def test_an_owner_reads_its_rules() -> None:
    X = np.array([[1.0, 4.0], [2.0, 7.0], [3.0, np.nan]])
    bins = ColumnBins.fit(X, categorical=[1])
    for bins_left, last in (
        ([True, True, False], 2.5),
        ([True, True, True], float("inf")),  # against missing cells
        ([False, False, False], -float("inf")),
    ):
        assert bins.last_left(PartyRule(0, np.array([*bins_left, False]))) == last
    odd = PartyRule(0, np.array([False, True, False, False]))
    assert np.isnan(bins.last_left(odd))


# -------------------------------------------------------------------------------- sums


def by_loop(holder: ColumnHolder, values: FixedPoint, nodes: list[NodeRows]) -> Table:
    layout = holder.bins.layout
    found = np.zeros((values.n_gradients + 2, len(nodes), layout.n_bins))
    for place, node in enumerate(nodes):
        for column, row in np.ndindex(layout.n_columns, len(node.rows)):
            at = layout.starts[column] + holder.codes[column, node.rows[row]]
            own = values.gradient[node.tree][:, node.rows[row]]
            h = values.hessian[node.tree, node.rows[row]]
            found[:, place, at] += [*own, h, 1]
    return found


@pytest.mark.parametrize("n_gradients", [1, 2, 3, 4])
@pytest.mark.parametrize("chunk", [7, 1 << 15])
def test_sums_are_those_of_a_loop(
    n_gradients: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, for several nodes and trees, in chunks and blocks of any size."""
    monkeypatch.setattr(sums, "CHUNK", chunk)
    monkeypatch.setattr(sums, "BLOCK_CELLS", 2 * chunk)
    rng = np.random.default_rng(0)
    X = with_gaps(numbers(50)).round(1)
    (holder,) = holders_of(X, n_bins=6).parties
    g, h = rng.normal(size=(2, n_gradients, 50)), rng.uniform(size=(2, 50))
    values = FixedPoint.of(g, h)
    holder.begin(values, np.ones(4, dtype=bool))
    rows = [np.arange(50), np.arange(3), np.arange(0), rng.permutation(50)[:20]]
    nodes = [NodeRows(place % 2, place, own) for place, own in enumerate(rows)]
    found = holder.histograms(nodes)
    assert np.array_equal(found, by_loop(holder, values, nodes))
    mixed = [NodeRows(0, 0, rng.permutation(50))]
    assert np.array_equal(holder.histograms(mixed), by_loop(holder, values, mixed))
    assert np.array_equal(
        found[:, 3, : holder.bins.layout.sizes[0]].sum(axis=1), values.total(1, rows[3])
    )


def test_columns_that_are_not_in_use_are_left_out() -> None:
    (holder,) = holders_of(numbers()).parties
    values = FixedPoint.of(numbers(1, 40)[None], np.ones((1, 40)))
    node = [NodeRows(0, 0, np.arange(40))]
    holder.begin(values, np.ones(4, dtype=bool))
    whole = holder.histograms(node)
    holder.begin(values, np.array([False, True, False, True]))
    assert np.array_equal(
        holder.histograms(node), whole[:, :, [*range(40, 80), *range(120, 160)]]
    )


def test_the_largest_sums_are_exact() -> None:
    """A chunk of rows, all with the largest gradient and hessian, is within 2^53."""
    n = sums.CHUNK
    holder = ColumnHolder.of(np.zeros((n, 1)))
    values = FixedPoint.of(np.full((1, 1, n), -1.0), np.ones((1, n)))
    holder.begin(values, np.array([True]))
    found = holder.histograms([NodeRows(0, 0, np.arange(n))])[:, 0, 0]
    assert found.tolist() == values.total(0, np.arange(n)).tolist()
    assert found[2] == n


@pytest.mark.parametrize(("bits", "tolerance"), [(32, 1e-6), (16, 1e-4), (8, 1e-2)])
def test_rounding_is_small_and_without_bias(bits: int, tolerance: float) -> None:
    g, h = numbers(1, 20000)[None], np.abs(numbers(1, 20000, seed=1))
    values = FixedPoint.of(g, h, bits, (5,))
    assert np.abs(values.gradient).max() < 2 ** (bits - 1)
    assert values.hessian.min() >= 0
    assert values.hessian.max() < 2 ** (bits - 1)
    assert np.log2(values.gradient_unit[0]).is_integer()
    error = values.gradient * values.gradient_unit[0] - g
    assert np.abs(error).max() <= values.gradient_unit[0]
    assert abs(error.mean()) < tolerance / 10
    assert abs((values.hessian * values.hessian_unit[0] - h).mean()) < tolerance / 10
    again = FixedPoint.of(g, h, bits, (5,))
    assert np.array_equal(values.gradient, again.gradient)


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_sums_in_fewer_bits(bits: int) -> None:
    """What fits stays as it is, other sums are off by half a unit at most."""
    own = np.rint(
        numbers(3, 200).reshape(3, 2, 100) * np.array([[[30.0]], [[1e4]], [[1e7]]])
    )
    sizes = np.array([60, 1, 39])
    levels, units = pack(own, bits, sizes)
    assert levels.dtype == np.dtype(f"int{bits}")
    columns = np.split(np.abs(own), [60, 61], axis=2)
    largest = np.stack([column.max(axis=2) for column in columns], axis=2)
    fits = largest < 2 ** (bits - 1)
    assert (units[fits] == 1).all()
    most = np.repeat(units / 2 * ~fits, sizes, axis=2)
    assert (np.abs(unpack(levels, units, sizes) - own) <= most).all()
    assert (np.abs(levels).max(axis=2) < 2 ** (bits - 1)).all()
    one = np.array([2])
    assert unpack(*pack(np.zeros((3, 1, 2)), bits, one), one).tolist() == [[[0, 0]]] * 3


# ----------------------------------------------------------------------------- targets


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_gradients_are_those_of_autograd(task: Any) -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=20) if task == "regression" else rng.integers(0, 3, 20)
    y01 = y > 1
    weight = rng.uniform(0.5, 2, 20)
    targets = TreeTargets.of(y01 if task == "binary" else y, task, weight)
    z = torch.tensor(rng.normal(size=(targets.n_outputs, 20)), requires_grad=True)
    own = torch.from_numpy(targets.y)
    if task == "regression":
        losses = (z[0] - own).square() / 2
    elif task == "binary":
        losses = torch.nn.functional.softplus(z[0]) - own * z[0]
    else:
        losses = torch.nn.functional.cross_entropy(z.T, own.long(), reduction="none")
    loss = (losses * torch.from_numpy(targets.weight)).sum()
    (gradient,) = torch.autograd.grad(loss, z, create_graph=True)
    g, h = targets.gradients(z.detach().numpy())
    assert np.allclose(g, gradient.detach().numpy())
    for k in range(targets.n_outputs):
        (second,) = torch.autograd.grad(gradient[k].sum(), z, retain_graph=True)
        assert np.allclose(h[k], second[k].numpy())
    mean = targets.loss(z.detach().numpy(), np.arange(20)) * targets.weight.sum()
    assert mean == pytest.approx(loss.item() * (2 if task == "regression" else 1))


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_start_has_no_gradient(task: Any) -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=50) if task == "regression" else rng.integers(0, 3, 50)
    targets = TreeTargets.of(y > 1 if task == "binary" else y, task, rng.random(50))
    rows = np.arange(30)
    z = np.repeat(targets.start(rows)[:, None], 50, axis=1)
    assert np.allclose(targets.gradients(z)[0][:, rows].sum(axis=1), 0, atol=1e-9)


def test_a_start_from_one_class_is_finite() -> None:
    assert np.isfinite(TreeTargets.of(np.ones(4), "binary").start(np.arange(4))).all()
