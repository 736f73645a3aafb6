"""Contributions add up, and are what an enumeration of all coalitions gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lessvfl.core.network import MLP
from lessvfl.explanation import shapley
from lessvfl.explanation.shapley import (
    Background,
    share_among_features,
    share_among_parties,
)

N, SIZES = 7, (2, 3, 1, 2)
CPU = torch.device("cpu")


def a_net(*widths: int, activation="tanh") -> MLP:
    return MLP.create(widths, activation, 3, "net", torch.float64, CPU)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def by_definition(value, players):
    """Return Shapley values in the mean over all orders."""
    found = dict.fromkeys(players, 0.0)
    orders = list(itertools.permutations(players))
    for order in orders:
        for place, m in enumerate(order):
            gain = value(order[: place + 1]) - value(order[:place])
            found[m] = found[m] + gain / len(orders)
    return found


def shared(fusion, blocks, means, weights):
    found = share_among_parties(fusion, blocks, means, weights)
    full = torch.cat([block.expand(N, -1) for block in blocks], dim=1)
    output = (fusion(full) * weights).sum(dim=1).detach()
    assert torch.allclose(found.base + found.values.sum(dim=1), output)
    for block, mean, own, slopes in zip(
        blocks, means, found.values.T, found.slopes or (), strict=True
    ):
        if mean is not None:
            assert torch.allclose((slopes * (block - mean)).sum(dim=1), own)
    return found


@pytest.fixture
def blocks():
    return [3 * drawn(N, size, seed=size) for size in SIZES]


@pytest.fixture
def means():
    return [drawn(size, seed=20 + size) for size in SIZES]


@pytest.mark.parametrize("depth", [1, 3])
def test_parties_get_their_shapley_values(blocks, means, depth):
    fusion = a_net(sum(SIZES), *[5] * (depth - 1), 3)
    weights = drawn(N, 3, seed=5)
    found = shared(fusion, blocks, means, weights)

    def value(present):
        parts = [
            b if m in present else means[m].expand(N, -1) for m, b in enumerate(blocks)
        ]
        return (fusion(torch.cat(parts, dim=1)) * weights).sum(dim=1).detach()

    right = by_definition(value, range(len(SIZES)))
    for m, own in right.items():
        assert torch.allclose(found.values[:, m], own)
    if depth == 1:  # the slopes are the weights of the network
        theirs = torch.cat(found.slopes, dim=1)
        assert torch.allclose(theirs, weights @ fusion.weights[0])


def test_some_orders_of_many_parties_add_up(blocks, means, monkeypatch):
    fusion, weights = a_net(sum(SIZES), 5, 1), torch.ones(N, 1, dtype=torch.float64)
    exact = shared(fusion, blocks, means, weights).values
    monkeypatch.setattr(shapley, "MOST_EXACT", 3)
    some = shared(fusion, blocks, means, weights).values
    assert not torch.equal(some, exact)
    assert torch.allclose(some, exact, atol=0.1)


def test_a_party_that_says_the_same_of_all_rows_adds_nothing(blocks, means):
    fusion, weights = a_net(sum(SIZES), 5, 1), torch.ones(N, 1, dtype=torch.float64)
    blocks[1], means[1] = blocks[1][:1], None
    found = shared(fusion, blocks, means, weights)
    assert not found.values[:, 1].any()


def test_no_difference_is_no_contribution(blocks, means):
    fusion, weights = a_net(sum(SIZES), 5, 1), torch.ones(N, 1, dtype=torch.float64)
    same = [mean.expand(N, -1) for mean in means]
    found = shared(fusion, same, means, weights)
    assert torch.allclose(found.values, torch.zeros_like(found.values))


# ------------------------------------------------------------------------- at the party

GROUPS = torch.tensor([0, 1, 1, 2, 3])


def a_background(net, n_rows=300):
    X = drawn(n_rows, len(GROUPS), seed=1)
    return X, Background.of(net, X)


def test_a_background_has_the_mean_of_all_rows():
    net = a_net(len(GROUPS), 8, 4)
    X, background = a_background(net)
    assert background.rows.shape == (shapley.BACKGROUND, len(GROUPS))
    assert float(background.weights.sum()) == pytest.approx(1)
    assert background.weights.min() > 0
    with torch.no_grad():
        mean = background.weights @ net(background.rows)
        assert torch.allclose(mean, net(X).mean(dim=0))


@pytest.mark.parametrize("most", [32, 0], ids=["orders", "gradients"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "none"])
def test_features_add_up_to_their_party(most, activation, monkeypatch):
    """And of a linear network they are the weights times the difference."""
    monkeypatch.setattr(shapley, "MOST_ORDERED", most)
    monkeypatch.setattr(shapley, "CELLS", 1)  # row by row
    net = a_net(len(GROUPS), 8, 4, activation=activation)
    X, background = a_background(net)
    x, slopes = 2 * drawn(N, len(GROUPS), seed=2), drawn(N, 4, seed=3)
    found = share_among_features(net, x, background, slopes, GROUPS)
    assert found.shape == (N, 4)
    with torch.no_grad():
        move = net(x) - net(X).mean(dim=0)
    assert torch.allclose(found.sum(dim=1), (slopes * move).sum(dim=1))
    if activation == "none":
        A = net.collapse()[:, :-1].detach()
        moves = x - background.weights @ background.rows
        by_column = (slopes @ A) * moves
        right = torch.zeros(N, 4, dtype=torch.float64).index_add_(1, GROUPS, by_column)
        assert torch.allclose(found, right)


@pytest.mark.parametrize(("most", "least"), [(32, 0.999), (0, 0.98)])
def test_features_get_what_all_coalitions_give(most, least, monkeypatch):
    monkeypatch.setattr(shapley, "MOST_ORDERED", most)
    net = a_net(len(GROUPS), 8, 4)
    _, background = a_background(net)
    x, slopes = 2 * drawn(N, len(GROUPS), seed=2), drawn(N, 4, seed=3)
    found = share_among_features(net, x, background, slopes, GROUPS)

    def value(present):
        taken = torch.isin(GROUPS, torch.tensor(list(present), dtype=torch.long))
        rows = torch.where(taken, x.unsqueeze(1), background.rows)
        with torch.no_grad():
            h = net(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        return ((h * slopes.unsqueeze(1)).sum(dim=2) * background.weights).sum(dim=1)

    right = torch.stack(list(by_definition(value, range(4)).values()), dim=1)
    assert np.corrcoef(found.ravel(), right.ravel())[0, 1] > least


def test_who_asks_again_gets_the_same_answer():
    net = a_net(len(GROUPS), 8, 4)
    _, background = a_background(net)
    x, slopes = drawn(N, len(GROUPS), seed=2), drawn(N, 4, seed=3)
    found = [share_among_features(net, x, background, slopes, GROUPS) for _ in "ab"]
    assert torch.equal(*found)
