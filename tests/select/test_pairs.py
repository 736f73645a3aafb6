"""Columns that matter only together, where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.core.columns import seen

from lessvfl.select import pairs as room
from lessvfl.select.pairs import pairs


def drawn(n, d, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))


def nothing(data):
    return torch.zeros(len(data.weights), dtype=torch.bool)


def find(data, kept=None):
    kept = nothing(data) if kept is None else kept
    return pairs(data, kept, 2, torch.Generator().manual_seed(0))


def test_pairs_and_squares_are_seen_and_chance_is_not():
    X, noise = drawn(2000, 15), drawn(2000, 2, 1)
    Z = noise + X[:, [1]] * X[:, [4]] + X[:, [6]].square() + 3 * X[:, [0]]
    strength, partner = find(seen(X, Z))
    assert (strength >= 1).nonzero().flatten().tolist() == [1, 4, 6]
    assert partner[[1, 4, 6]].tolist() == [4, 1, 6]


@pytest.mark.parametrize("curve", [torch.abs, torch.square])
def test_what_acts_evenly_is_seen_in_columns_of_heavy_tails(curve):
    """A few rows far out would outweigh all others: 5 of 8 were kept."""
    X = torch.as_tensor(np.random.default_rng(7).standard_t(3, size=(2500, 30)))
    score = sum(own / torch.quantile(own, 0.75) for own in curve(X[:, :8]).T)
    y = score + 2 * drawn(2500, 1, 1)[:, 0] > score.median()
    strength, _ = find(seen(X, y.double()[:, None]))
    assert (strength >= 1).nonzero().flatten().tolist() == list(range(8))


def test_a_pair_is_told_by_feature_where_columns_are_grouped():
    X = drawn(2000, 20)
    Z = X[:, [1]] * X[:, [4]] + drawn(2000, 1, 1)
    strength, partner = find(seen(X, Z, [j // 2 for j in range(20)]))
    assert (strength >= 1).nonzero().flatten().tolist() == [0, 2]
    assert partner[[0, 2]].tolist() == [2, 0]


def test_pairs_do_not_depend_on_how_many_columns_are_looked_at_together(monkeypatch):
    X = drawn(400, 20)
    data = seen(X, X[:, [3]] * X[:, [17]] + drawn(400, 2, 1))
    whole = find(data)
    assert (whole[0] >= 1).nonzero().flatten().tolist() == [3, 17]
    monkeypatch.setattr(room, "AT_ONCE", 3)
    parts = find(data)
    assert torch.allclose(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])


def test_of_many_columns_those_that_say_most_alone_are_multiplied(monkeypatch):
    monkeypatch.setattr(room, "MOST_COLUMNS", 6)
    X = drawn(2000, 40)
    Z = X[:, [1]] * X[:, [4]] + 0.3 * (X[:, [1]] + X[:, [4]]) + drawn(2000, 1, 1)
    data = seen(X, Z)
    strength, partner = find(data)
    assert (strength >= 1).nonzero().flatten().tolist() == [1, 4]
    assert partner[[1, 4]].tolist() == [4, 1]
    assert (strength > 0).sum() == 6


def test_with_few_rows_only_the_linear_part_of_those_kept_is_taken_out():
    """All columns together would explain every row, and leave nothing to multiply."""
    X = drawn(300, 400)
    data = seen(X, 5 * X[:, [7]] + 2 * X[:, [1]] * X[:, [4]] + drawn(300, 1, 1))
    kept = nothing(data)
    kept[7] = True
    strength, _ = find(data, kept)
    assert (strength >= 1).nonzero().flatten().tolist() == [1, 4]
    without, _ = find(data)
    assert without[1] < strength[1]


def test_of_many_rows_some_are_enough(monkeypatch):
    X = drawn(2000, 10)
    Z = X[:, [1]] * X[:, [4]] + drawn(2000, 1, 1)
    whole, _ = find(seen(X, Z))
    monkeypatch.setattr(room, "MOST_ROWS", 500)
    part, partner = find(seen(X, Z))
    assert (part >= 1).nonzero().flatten().tolist() == [1, 4]
    assert partner[[1, 4]].tolist() == [4, 1]
    assert part[1] < whole[1]
