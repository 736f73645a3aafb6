"""Sums by bin under sharing: three sides' parts add up, and each alone is random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from lessvfl.core.sharing import Ring
from lessvfl.core.trees import shared
from lessvfl.core.trees.columns import ColumnHolder
from lessvfl.core.trees.holders import BinLayout, NodeRows

N = 700
RINGS = (Ring(32), Ring(64))


def a_holder() -> ColumnHolder:
    """Return columns with missing cells, categories, and one that is constant."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    X[rng.random(N) < 0.3, 0] = np.nan
    X[:, 1] = rng.integers(5, size=N)
    X[:, 2] = 3.0
    return ColumnHolder.of(X, 16, [1])


def nodes_of() -> list[NodeRows]:
    rng = np.random.default_rng(1)
    split = rng.permutation(N)
    parts = split[:300], split[300:], np.arange(N), split[:0]
    trees = (0, 0, 1, 1)
    return [
        NodeRows(t, i, r) for i, (t, r) in enumerate(zip(trees, parts, strict=True))
    ]


def gradients(ring: Ring) -> Tensor:
    """Return (K, V, N) numbers whose sums just fit."""
    most = (1 << (ring.bits - 1)) // N - 1 if ring.bits == 32 else 1 << 42
    generator = torch.Generator().manual_seed(2)
    found = torch.randint(-most, most, (2, 3, N), generator=generator)
    found[0, 0], found[1, 1] = most, -most
    return found


def expected(holder: ColumnHolder, g: Tensor, nodes: Sequence[NodeRows]) -> Tensor:
    layout = holder.bins.layout
    one_hot = torch.zeros(N, layout.n_bins, dtype=torch.int64)
    for column, start in enumerate(layout.starts):
        one_hot[
            torch.arange(N), torch.from_numpy(holder.codes[column]).long() + start
        ] = 1
    sums = [g[n.tree][:, n.rows] @ one_hot[n.rows] for n in nodes]
    return torch.stack(sums, dim=1)


@pytest.mark.parametrize("block", [1, 1 << 22])
@pytest.mark.parametrize("ring", RINGS, ids=["32 bits", "64 bits"])
def test_the_parts_of_three_sides_add_up(
    ring: Ring, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "BLOCK_CELLS", block)
    holder, nodes, g = a_holder(), nodes_of(), gradients(ring)
    layout, whole = holder.bins.layout, g.to(ring.dtype)
    width = int(shared.free_bins(layout).sum())
    A = ring.draw_packed(b"party and dealer", "bins", N, width)
    b = ring.draw_packed(b"dealer and holder", "gradients 5", *g.shape)
    table = shared.masked_table(A, holder.codes, layout)

    holder.begin(shared.in_parts(whole - b), np.ones(layout.n_columns, dtype=np.bool_))
    sums = holder.histograms(nodes)[:, :, shared.free_bins(layout)]
    mask = ring.draw_packed(b"party and dealer", "sums 6", 3, len(nodes), width)
    of_party = shared.put_together(sums[:-2], ring) - mask
    of_dealer = shared.times(A, b, nodes) + mask
    found = of_party + of_dealer + shared.times(table, b, nodes)

    every = np.concatenate([found.double().numpy(), sums[-1:]])
    total = [[float(g[n.tree][v, n.rows].sum()) for n in nodes] for v in range(3)]
    totals = np.array([*total, [len(n.rows) for n in nodes]], dtype=float)
    complete = shared.with_last(every, totals, layout)
    right = expected(holder, g, nodes).double().numpy()
    np.testing.assert_array_equal(complete[:-1], right)
    ones = torch.ones(2, 1, N, dtype=torch.int64)
    rows = expected(holder, ones, nodes)[0].double().numpy()
    np.testing.assert_array_equal(complete[-1], rows)
    assert np.abs(right).max() > 2 ** (ring.bits // 2)


def test_the_table_of_bins_is_hidden_but_for_its_mask() -> None:
    ring, holder = Ring(32), a_holder()
    layout = holder.bins.layout
    width = int(shared.free_bins(layout).sum())
    A = ring.draw_packed(b"a seed", "bins", N, width)
    table = shared.masked_table(A, holder.codes, layout) + A
    assert sorted(table.unique().tolist()) == [0, 1]
    sizes = (layout.sizes - 1).tolist()
    by_column = [part.sum(dim=1).tolist() for part in table.split(sizes, dim=1)]
    is_free = holder.codes < (layout.sizes - 1)[:, None]
    np.testing.assert_array_equal(by_column, is_free)


def test_a_party_without_columns_has_no_sums() -> None:
    none = np.zeros(0, dtype=np.int64)
    layout = BinLayout(none, none.astype(np.bool_), none.astype(np.bool_))
    found = shared.with_last(np.zeros((4, 2, 0)), np.ones((4, 2)), layout)
    assert found.shape == (4, 2, 0)
    assert shared.free_bins(layout).shape == (0,)
