"""What removed columns may do along curves and in pairs, where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lessvfl.core.plans import ShadowPlan
from lessvfl.select import curves
from lessvfl.select.evidence import SelectionPass, Subject
from lessvfl.select.moments import Moments

PLAN = ShadowPlan("select_again", 0.01)
N = 2000
ACTING = {
    "|x|": lambda x, other: x.abs(),
    "x squared": lambda x, other: x.square().clamp_max(25),
    "sin 3x": lambda x, other: (3 * x).sin(),
    "pair": lambda x, other: x.sign() * other.sign(),
}


def drawn(law, seed):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, 8, generator=generator)
    if law == "t3":
        chi = torch.randn(3, N, 8, generator=generator).square().sum(dim=0)
        X = X / (chi / 3).sqrt()
    if law == "lognormal":
        X = X.exp() - 1
    return X, torch.randn(N, 1, generator=generator)


def a_pass(X, Z, plan=PLAN):
    nothing = torch.zeros(8, dtype=torch.bool)
    subject = Subject(torch.arange(N), X, Z, torch.arange(8), nothing)
    return SelectionPass(subject, plan, [0, "a"])


@pytest.mark.parametrize("kind", ACTING)
@pytest.mark.parametrize("law", ["normal", "t3", "lognormal"])
def test_a_column_that_acts_along_a_curve_may_have_more_than_little(law, kind):
    """A straight line has next to no correlation with it."""
    X, noise = drawn(law, 1)
    part = ACTING[kind](X[:, :1], X[:, 1:2])
    found = a_pass(X, (part - part.mean()) / part.std() * 0.3 + noise).choose()
    acting = [0, 1] if kind == "pair" else [0]
    assert found.at_most[acting].min() > 0.15
    assert found.signs[acting].min() >= 1
    others = slice(len(acting), None)
    assert found.at_most[others].median() < 0.1


def test_of_columns_that_do_nothing_few_have_signs():
    looks = [a_pass(*drawn("t3", seed)).choose() for seed in range(30)]
    signs = torch.stack([one.signs for one in looks])
    assert 0.05 < float((signs >= 1).double().mean()) < 2.5 * curves.SIGN


def test_shares_of_nothing_are_chi_squares_over_rows():
    shares = []
    for seed in range(40):
        X, Z = drawn("normal", seed)
        seen = Moments.of(X, Z, torch.arange(8))
        r = (Z - Z.mean()) / Z.std() / N
        ranks = curves._ranks(seen.X)
        for curve in curves._curves(X, ranks, torch.special.ndtri(ranks)):
            shares.append(N * curves._share(curve, r))
    assert float(torch.cat(shares).mean()) == pytest.approx(1, abs=0.1)


def test_equal_cells_have_equal_ranks():
    ranks = curves._ranks(torch.tensor([[3.0], [1.0], [3.0], [2.0]]))
    assert ranks.flatten().tolist() == [0.75, 0.125, 0.75, 0.375]


def test_a_pass_that_another_follows_does_not_look():
    X, Z = drawn("normal", 0)
    found = a_pass(X, Z, replace(PLAN, again=True)).choose()
    assert not found.signs.any()
