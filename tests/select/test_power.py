"""What a look sees, against SciPy's non-central chi-square and against simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ncx2

from lessvfl.core.plans import ShadowPlan
from lessvfl.select.evidence import SelectionPass, Subject
from lessvfl.select.power import DOUBT, PLACES, TERMS, Sight, beyond


@given(
    value=st.floats(0.01, 200),
    degrees=st.floats(1, 40),
    off=st.floats(0.0, 400),
)
def test_tails_are_those_of_scipy(value, degrees, off):
    numbers = [torch.tensor([x], dtype=torch.float64) for x in (value, degrees, off)]
    assert float(beyond(*numbers)) == pytest.approx(
        ncx2.sf(value, degrees, off), abs=1e-7
    )


def test_what_a_column_has_at_most_is_seldom_too_little():
    """Of columns of a known correlation, in one of twenty looks."""
    rng = np.random.default_rng(0)
    n, r = 400, 0.12
    x = rng.normal(size=(3000, n))
    z = r * x + np.sqrt(1 - r**2) * rng.normal(size=(3000, n))
    said = torch.as_tensor((x * z).mean(axis=1) ** 2 * n)
    found = Sight(n, 1.0, 6.6).at_most(said, torch.ones(3000).double())
    assert float((found < r).double().mean()) == pytest.approx(DOUBT, abs=0.02)


def test_many_columns_cost_no_more_than_some(monkeypatch):
    """And have at most what each has at most alone."""
    rng = np.random.default_rng(0)
    said = torch.as_tensor(rng.noncentral_chisquare(1, rng.uniform(0, 900, 20_000)))
    degrees = torch.as_tensor(rng.choice([1.0, 3.0], 20_000))
    sight, some = Sight(1000, 1.0, 6.6), torch.arange(0, 20_000, 100)
    alone = sight.at_most(said[some], degrees[some])
    computed = []
    tail = torch.special.gammaincc

    def counted(a, x):
        computed.append(x.numel())
        return tail(a, x)

    monkeypatch.setattr(torch.special, "gammaincc", counted)
    together = sight.at_most(said, degrees)
    assert sum(computed) == 2 * PLACES * TERMS
    torch.testing.assert_close(together[some], alone, rtol=1e-3, atol=1e-4)


def test_silence_is_no_evidence():
    sight = Sight(1000, 1.0, 6.6)
    none, half = torch.tensor([0.0, 0.4]).double()
    ones = torch.ones(1).double()
    assert sight.at_most(none[None], ones) == sight.at_most(half[None], ones) > 0.05


def look(n, effect, seed):
    """Return what a look decides of ten columns, of which one has an effect."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 10, generator=generator)
    Z = effect * X[:, :1] + torch.randn(n, 1, generator=generator)
    at = Subject(
        torch.arange(n), X, Z, torch.arange(10), torch.zeros(10, dtype=torch.bool)
    )
    plan = ShadowPlan("select_again", 0.01, None, 0.2, False, False, 0.02, 0.01, 100)
    return SelectionPass(at, plan, [seed, "x"]).choose()


def test_as_many_columns_are_found_as_a_look_says():
    """Over looks that found nothing else, so that the mark is that of a first one."""
    n, effect, n_looks = 300, 0.2, 60
    looks = [look(n, effect, seed) for seed in range(n_looks)]
    found = np.mean([bool(one.kept[0]) for one in looks])
    r = effect / np.sqrt(1 + effect**2)
    said = np.mean([one.sight.finds(r) for one in looks])
    assert said == pytest.approx(found, abs=0.15)
    rows = np.mean([one.sight.n_rows for one in looks])
    assert rows == pytest.approx(n, rel=0.1)


def test_of_copied_rows_each_counts_once():
    """Shadows know what belongs together, so a look sees no more than before."""
    generator = torch.Generator().manual_seed(0)
    X, Z = torch.randn(200, 6, generator=generator), torch.randn(200, 1)
    rows = torch.arange(200).repeat(5)
    nothing = torch.zeros(6, dtype=torch.bool)
    plan = ShadowPlan("select_again", 0.01, None, 0.2, False, False, 0.02, 0.01, 100)
    at = Subject(torch.arange(1000), X[rows], Z[rows], torch.arange(6), nothing, rows)
    sight = SelectionPass(at, plan, [0, "x"]).choose().sight
    assert sight.n_rows == pytest.approx(200, rel=0.25)
