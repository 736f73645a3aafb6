"""Columns whose effect is a curve, and pieces to draw it of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lessvfl.core.passes import with_pieces
from lessvfl.select.pieces import (
    MOST_PIECES,
    ROWS_PER_PIECE,
    pieces_for_curves,
)


def drawn(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


def is_curved(X, Z):
    pieces = pieces_for_curves(X, Z)
    return [] if pieces is None else pieces.flatten(1).any(dim=1).tolist()


def test_a_share_goes_from_0_to_1_between_two_quantiles():
    x = torch.tensor([[-5.0], [0.0], [0.5], [1.0], [3.0], [9.0]])
    pieces = torch.tensor([[[0.0, 1.0], [1.0, 0.25], [5.0, 0.0]]])
    value, first, second, nothing = with_pieces(x, pieces).T
    assert value.tolist() == x.flatten().tolist()
    assert (first + 0.5).tolist() == [0, 0, 0.5, 1, 1, 1]
    assert (second + 0.5).tolist() == [0, 0, 0, 0, 0.5, 1]
    assert not nothing.any()


def test_any_function_that_is_linear_between_quantiles_is_a_sum_of_shares():
    x = drawn(3000, 1)
    pieces = pieces_for_curves(x, torch.sin(3 * x))
    assert pieces is not None
    ends = torch.quantile(x.flatten(), torch.linspace(0, 1, MOST_PIECES + 1).to(x))
    wanted = np.interp(x.flatten(), ends, torch.sin(3 * ends))
    shares = torch.nn.functional.pad(with_pieces(x, pieces), (0, 1), value=1.0)
    found = shares @ torch.linalg.lstsq(shares, torch.as_tensor(wanted)[:, None])[0]
    assert found[:, 0].numpy() == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize(
    "curve", [torch.sin, torch.abs, torch.square, lambda x: (x > 0.5) * 1.0]
)
def test_curves_are_told_from_lines_and_noise(curve):
    X, noise = drawn(2000, 5), drawn(2000, 2, seed=1)
    noise[:, 0] += 3 * curve(3 * X[:, 2])
    assert is_curved(X, noise + 4 * X[:, [0]]) == [False, False, True, False, False]


def test_straight_lines_and_noise_are_seldom_curves():
    found = [
        is_curved(X, X[:, :1] + drawn(600, 1, seed=1000 + seed))
        for seed in range(200)
        for X in [drawn(600, 10, seed=seed).exp()]
    ]
    assert sum(map(sum, found)) <= 4  # of 2,000 columns, at a level of 1 in 10,000


def test_truth_values_are_lines_and_few_values_have_a_piece_between_two():
    X = torch.cat([drawn(2000, 1) > 0, (3 * drawn(2000, 1, seed=1)).round()], dim=1)
    X = X.double().clamp(-3, 3)
    pieces = pieces_for_curves(
        X, (X[:, [1]] == 1) + X[:, [0]] + 0.1 * drawn(2000, 1, seed=2)
    )
    assert pieces is not None
    assert not pieces[0].any()
    assert pieces[1, :6, 0].tolist() == [-3, -2, -1, 0, 1, 2]
    assert not pieces[1, 6:].any()


def test_few_rows_tell_no_curves():
    X = drawn(3 * ROWS_PER_PIECE, 60)
    assert (
        pieces_for_curves(X[: 2 * ROWS_PER_PIECE - 1, :2], X[:119, :1].square()) is None
    )
    assert pieces_for_curves(X, X[:, :1].square()) is None  # 3 rows for every column
    assert is_curved(X[:, :2], X[:, :1].square()) == [True, False]


def test_copies_of_rows_are_no_evidence():
    X = drawn(200, 4)
    Z = X[:, :1] + drawn(200, 1, seed=3)
    blocks = torch.arange(200).repeat(10)
    X, Z = X.repeat(10, 1), Z.repeat(10, 1)
    assert pieces_for_curves(X, Z) is not None
    assert pieces_for_curves(X, Z, blocks) is None
