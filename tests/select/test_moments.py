"""Scale, path, shadows, elimination, pairs: against other solvers and known truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.core.columns import problem, seen

from lessvfl.select import moments
from lessvfl.select.group_path import group_path
from lessvfl.select.moments import Moments, Rule

PAIRED = [0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8]  # the groups of twelve columns


def mask(n, *places):
    found = torch.zeros(n, dtype=torch.bool)
    found[list(places)] = True
    return found


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------ dependent columns


def nested_groups(n=800, seed=0):
    """Return a number, a category of 12 levels and one that follows from it."""
    rng = np.random.default_rng(seed)
    fine = rng.integers(12, size=n)
    columns = [torch.as_tensor(rng.normal(size=(n, 1))), one_hot(fine, 12)]
    X = torch.cat([*columns, one_hot(fine // 3, 4)], dim=1).float()
    Z = X[:, :1] + torch.as_tensor(fine // 3).float()[:, None]
    Z = Z + 0.5 * torch.as_tensor(rng.normal(size=(n, 2))).float()
    return seen(X, Z, [0] + [1] * 12 + [2] * 4)


@pytest.mark.parametrize("seed", range(10))
def test_groups_that_follow_from_others_leave_every_number_finite(seed):
    """Of a category and its class the one that says less goes, and nothing is NaN."""
    data = nested_groups(seed=seed)
    everything = torch.ones(3, dtype=torch.bool)
    kept, scores, rule = moments.eliminate(
        data, everything, mask(3), n_copies=20, generator=stream(), q=0.05, fdr=0.2
    )
    assert bool(scores.isfinite().all())
    assert bool(rule.shadows.isfinite().all())
    assert bool(kept[0])
    assert int(kept[1:].sum()) == 1
    assert math.isfinite(moments.explained(data, data, everything))


def test_moments_of_columns_have_no_negative_variance():
    data = nested_groups()
    values = torch.linalg.eigvalsh(data.gram(torch.arange(data.X.shape[1])))
    assert float(values.min()) > -1e-12


# ------------------------------------------------------------------------------- scale


def test_every_group_has_uncorrelated_columns_of_variance_one():
    X, Z = problem()
    data = seen(5 * X + 3, Z, PAIRED)
    for group in range(9):
        own = data.X[:, data.group == group]
        assert torch.allclose(own.mean(dim=0), torch.zeros(own.shape[1]).to(own))
        assert torch.allclose(own.T @ own / len(own), torch.eye(own.shape[1]).to(own))


def test_scores_do_not_depend_on_the_basis_nor_on_the_scale_of_columns():
    X, Z = problem()
    data = seen(X, Z, PAIRED)
    other = X * torch.logspace(-3, 3, 12, dtype=X.dtype) + 7
    generator = stream()
    for columns in (slice(0, 2), slice(3, 6)):
        size = columns.stop - columns.start
        turn = torch.randn(size, size, generator=generator, dtype=X.dtype)
        other[:, columns] = X[:, columns] @ (turn + 2 * torch.eye(size).to(X))
    again = seen(other, Z, PAIRED)
    scores = data.scores(data.C)
    assert torch.allclose(scores, again.scores(again.C), rtol=1e-6)
    lams = scores.max() * torch.logspace(0, -2, 8, dtype=X.dtype)
    paths = (group_path(some, lams, some.weights) for some in (data, again))
    for (ours, _), (theirs, _) in zip(*paths, strict=True):
        assert torch.allclose(data.norms(ours), again.norms(theirs), atol=1e-4)
    alone = seen(X, Z)
    assert not torch.allclose(alone.norms(alone.C)[:9], data.norms(data.C))


def one_hot(codes, K):
    return torch.nn.functional.one_hot(torch.as_tensor(codes), K).double()


@pytest.mark.parametrize("K", [3, 10, 40])
def test_a_category_of_many_even_levels_says_as_much_as_a_number(K):
    rng = np.random.default_rng(K)
    n = 20_000
    number, codes = rng.normal(size=n), rng.permutation(np.arange(n) % K)
    effect = rng.normal(size=K)
    effect = (effect - effect.mean()) / effect.std()
    Z = number + effect[codes] + rng.normal(size=n)
    X = torch.cat([torch.as_tensor(number)[:, None], one_hot(codes, K)], dim=1)
    data = seen(X, torch.as_tensor(Z)[:, None], [0] + [1] * K)
    assert len(data.group) == K  # one level follows from the others
    ours, theirs = data.norms(data.C).tolist()
    assert theirs == pytest.approx(ours, rel=0.05)
    strongest = float(data.norms(data.C).max()) * (1 + 1e-9)
    lams = strongest * torch.logspace(0, -1, 20, dtype=X.dtype)
    path = group_path(data, lams, torch.ones(2).to(X))
    kept = [data.norms(B) > 0 for B, _ in path]
    enters = torch.stack(kept).to(torch.uint8).argmax(dim=0)
    assert abs(int(enters[0]) - int(enters[1])) <= 1


def test_a_constant_column_says_nothing():
    X, Z = problem()
    X[:, 4] = 3.7
    X[:, 3] = X[:, 5] = -1.0  # a whole group with it
    data = seen(X, Z, PAIRED)
    assert data.scores(data.C)[2] == 0
    alone = seen(X, Z)
    assert torch.equal(alone.X[:, 4], torch.zeros(len(X)).to(X))
    lams = torch.logspace(0, -3, 10, dtype=X.dtype)
    for some, number in ((data, 2), (alone, 4)):
        *_, (B, slopes) = group_path(some, lams, some.weights)
        assert some.norms(B)[number] == 0
        assert some.norms(slopes)[number] == 0
    everything = torch.ones(12, dtype=torch.bool)
    kept, scores, _ = moments.eliminate(
        alone, everything, ~everything, n_copies=50, generator=stream(), q=0.03, fdr=0.2
    )
    assert not kept[4]
    assert scores[4] == 0


def test_the_weight_of_a_group_is_a_quantile_of_its_degrees():
    degrees = torch.tensor([1.0, 2.0, 5.0, 40.0, 400.0])
    expected = stats.chi2.ppf(moments.LEVEL, degrees.numpy())
    assert moments.chance(degrees).numpy() == pytest.approx(expected, rel=0.02)
    assert moments.chance(degrees, 0.5).numpy()[1:] == pytest.approx(
        stats.chi2.ppf(0.5, degrees.numpy()[1:]), rel=0.02
    )


def test_responses_along_one_line_have_one_dimension():
    Z = torch.randn(1000, 1, generator=stream())
    assert moments.dimension(Z) == pytest.approx(1)
    assert moments.dimension(Z @ torch.ones(1, 4)) == pytest.approx(1)
    assert moments.dimension(torch.zeros(5, 2)) == 1
    round_ = torch.randn(100_000, 4, generator=stream())
    assert moments.dimension(round_) == pytest.approx(4, rel=1e-2)


def test_moments_of_some_rows_keep_the_scale():
    X, Z = problem()
    data, some = seen(X, Z, PAIRED), torch.arange(400) % 3 == 0
    part = data.rows(some)
    own, target = data.X[some], data.Z[some]
    assert part.n_rows == int(some.sum())
    assert torch.equal(part.weights, data.weights)
    everything = torch.arange(12)
    assert torch.allclose(part.gram(everything), torch.cov(own.T, correction=0))
    assert torch.allclose(
        part.gram(everything[:2], everything), part.gram(everything)[:2]
    )
    together = torch.cov(torch.cat([own, target], dim=1).T, correction=0)
    assert torch.allclose(part.C, together[:12, 12:])


def test_what_coefficients_leave_is_a_share_of_the_variance():
    X, Z = problem()
    data = seen(X, Z)
    G = data.gram(torch.arange(12))
    B = torch.linalg.solve(G, data.C)
    left = (data.Z - data.X @ B).square().sum() / data.Z.square().sum()
    assert data.left(B, data.C - G @ B) == pytest.approx(float(left))
    assert data.left(torch.zeros_like(B), data.C) == 1


# ----------------------------------------------------------------------------- shadows


@pytest.mark.parametrize(("size", "E"), [(1, 1), (1, 4), (5, 1), (5, 3), (20, 2)])
def test_a_shadow_passes_its_weight_as_often_as_the_level_says(size, E):
    rng = np.random.default_rng(size + E)
    n, n_groups = 1500, 40
    X = torch.as_tensor(rng.normal(size=(n, size * n_groups)))
    Z = torch.as_tensor(rng.normal(size=(n, E)))
    Z = (Z - Z.mean(dim=0)) / Z.std(dim=0)
    data = seen(X, Z, [j // size for j in range(size * n_groups)])
    found = moments.shadow_scores(data, data.Z, 95, stream())
    assert found.shape == (95, n_groups)
    above = (found * math.sqrt(n) > 1).double().mean()
    assert float(above) == pytest.approx(1 - moments.LEVEL, abs=0.007)


def test_shadows_say_as_much_by_chance_as_useless_features_do():
    """Whatever the features: categories, rare levels, heavy tails."""
    rng = np.random.default_rng(0)
    n = 2000
    parts = [
        torch.as_tensor(rng.normal(size=(n, 30))),
        torch.as_tensor(rng.lognormal(size=(n, 30))),
        torch.as_tensor(rng.random((n, 30)) < 0.01).double(),
    ]
    codes = [one_hot(rng.integers(8, size=n), 8) for _ in range(30)]
    groups = [*range(90), *(90 + k for k in range(30) for _ in range(8))]
    Z = torch.as_tensor(rng.normal(size=(n, 1)))
    data = seen(torch.cat([*parts, *codes], dim=1), Z, groups)
    rule = Rule.of(moments.shadow_scores(data, data.Z, 50, stream()), 1.0, 1.0)
    shares = [rule.share(float(score)) for score in data.scores(data.C)]
    assert stats.kstest(shares, "uniform").pvalue > 0.01


def test_scrambles_are_those_of_the_stream_and_shared_by_the_columns():
    X, Z = problem()
    X = torch.cat([X, X], dim=1)
    data = seen(X, Z)
    found = moments.shadow_scores(data, data.Z, 23, stream(1))
    assert found.shape == (23, 24)
    assert torch.equal(found, moments.shadow_scores(data, data.Z, 23, stream(1)))
    assert not torch.equal(found, moments.shadow_scores(data, data.Z, 23, stream(2)))
    assert torch.allclose(found[:, :12], found[:, 12:])
    order = torch.randperm(400, generator=stream(1))
    assert (found[1:] != found[0]).any(dim=1).all()  # each copy its own order
    first = data.X.T @ data.Z[order] / 400
    assert torch.allclose(found[0], data.scores(first))


# -------------------------------------------------------------------------------- rule


def test_a_scramble_gives_all_rows_of_a_block_the_values_of_another():
    blocks = torch.tensor([2, 0, 1, 0, 2, 2])
    X = torch.randn(6, 3, generator=stream(1), dtype=torch.float64)
    Z = torch.randn(6, 2, generator=stream(2), dtype=torch.float64)
    members = [torch.tensor([1, 3]), torch.tensor([2]), torch.tensor([0, 4, 5])]
    seen_orders = set()
    for seed in range(20):
        order = torch.randperm(3, generator=stream(seed)).tolist()
        seen_orders.add(tuple(order))
        wanted = torch.zeros_like(X)
        for block, other in enumerate(order):
            for place, row in enumerate(members[block]):
                wanted[row] = X[members[other][place % len(members[other])]]
        W = moments.scramble(Z, blocks, stream(seed))
        assert torch.allclose(X.T @ W, wanted.T @ Z)
    assert len(seen_orders) == 6


def test_shadows_of_copied_rows_say_as_much_as_copied_noise_does():
    """Ten copies of a row are one witness: noise correlates as with a tenth of them."""
    X, Z = problem(n=150, d=40, seed=3)
    Z = torch.randn(150, 2, generator=stream(4), dtype=X.dtype)
    alone = seen(X, Z)
    rows = torch.arange(150).repeat_interleave(10)
    many = Moments.of(X[rows], Z[rows], torch.arange(40), rows)
    wanted = moments.shadow_scores(alone, alone.Z, 200, stream()).quantile(0.9)
    found = moments.shadow_scores(many, many.Z, 200, stream()).quantile(0.9)
    fooled = seen(X[rows], Z[rows])
    naive = moments.shadow_scores(fooled, fooled.Z, 200, stream()).quantile(0.9)
    assert float(found / wanted) == pytest.approx(1, abs=0.05)
    assert float(naive / wanted) == pytest.approx(math.sqrt(0.1), abs=0.05)


def test_a_rule_counts_the_shadows_that_pass():
    rule = Rule.of(torch.tensor([[0.9, 0.1, 0.5], [0.4, 0.2, 0.3]]), 0.4, 0.5)
    assert rule.shadows.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.9])
    assert rule.n_features == 3
    assert rule.share(0.45) == pytest.approx(2 / 6)
    assert rule.share(1.0) == 0
    assert rule.share(0.0) == 1
    # (1 + V) d / N / k
    assert rule.false_share(0.45, 2) == pytest.approx((1 + 2) * 3 / 6 / 2)
    assert rule.false_share(1.0, 3) == pytest.approx((1 + 0) * 3 / 6 / 3)
    assert rule.false_share(0.0, 1) == 1
    assert rule.false_share(0.45, 0) is None


def test_a_rule_allows_by_both_of_its_shares():
    scores = torch.arange(1, 101).view(10, 10) / 100
    rule = Rule.of(scores, 0.1, 0.5)
    assert rule.allows(0.915, 10)  # 9 of 100 shadows, an expected 1 of 10
    assert not rule.allows(0.885, 10)  # 12 of 100 shadows
    assert not rule.allows(0.945, 1)  # an expected 0.7 of 1
    assert rule.allows(0.965, 1)  # an expected 0.5
    assert rule.allows(0.0, 0)


@pytest.mark.parametrize("n_kept", [1, 2, 3, 5, 20])
@pytest.mark.parametrize(("q", "fdr"), [(0.1, 0.5), (0.005, 1.0), (1.0, 0.1), (1, 1)])
def test_the_least_limit_is_the_lowest_that_is_allowed(n_kept, q, fdr):
    rule = Rule.of(torch.rand(10, 10, generator=stream()), q, fdr)
    least = rule.least(n_kept)
    assert rule.allows(least, n_kept)
    below = rule.shadows[rule.shadows < least]
    assert (least == 0) == (len(below) == 0)
    assert all(not rule.allows(float(shadow), n_kept) for shadow in below)


# ------------------------------------------------------------------------- elimination


def rss(data, columns):
    X, Z = data.X.numpy()[:, columns], data.Z.numpy()
    B = np.linalg.lstsq(X, Z, rcond=None)[0]
    return float(np.square(Z - X @ B).sum())


@pytest.mark.parametrize("groups", [list(range(12)), PAIRED])
def test_a_wald_statistic_is_what_leaving_a_group_out_costs(groups):
    X, Z = problem()
    data = seen(X, Z, groups)
    P = torch.linalg.inv(data.gram(torch.arange(12)))
    n_groups = max(groups) + 1
    ours = moments._wald(P, P @ data.C, data.group, n_groups) * data.n_rows
    for group in range(n_groups):
        rest = [j for j in range(12) if int(data.group[j]) != group]
        cost = rss(data, rest) - rss(data, list(range(12)))
        assert float(ours[group]) == pytest.approx(cost, rel=1e-6)


def by_definition(data, n_copies, q, fdr):
    """Return backward elimination with a fit of its own at every step."""
    n = data.n_rows
    owner, weights = data.group.tolist(), data.weights.tolist()
    kept = list(range(len(weights)))

    def cost(groups):
        return rss(data, [j for j, group in enumerate(owner) if group in groups]) / n

    def noise(groups):
        return cost(groups) / (1 - sum(g in groups for g in owner) / n)

    inside = data.X.numpy()
    B = np.linalg.lstsq(inside, data.Z.numpy(), rcond=None)[0]
    residual = torch.as_tensor(data.Z.numpy() - inside @ B)
    residual = residual / (1 - len(owner) / n) ** 0.5
    rule = Rule.of(moments.shadow_scores(data, residual, n_copies, stream()), q, fdr)
    start = noise(kept)
    while True:
        said = {
            g: (cost([k for k in kept if k != g]) - cost(kept)) ** 0.5 / weights[g]
            for g in kept
        }
        weakest = min(said, key=said.__getitem__)
        scale = (noise(kept) / start) ** 0.5
        if rule.allows(said[weakest] / scale, len(kept)):
            return kept, said, scale * rule.shadows
        kept.remove(weakest)


@pytest.mark.parametrize("groups", [list(range(12)), PAIRED])
def test_elimination_is_that_of_least_squares(groups):
    X, Z = problem(seed=3)
    data = seen(X, Z, groups)
    n_groups = max(groups) + 1
    everything = torch.ones(n_groups, dtype=torch.bool)
    expected, said, shadows = by_definition(data, 40, 0.03, 0.2)
    assert 1 < len(expected) < n_groups
    kept, scores, rule = moments.eliminate(
        data, everything, ~everything, n_copies=40, generator=stream(), q=0.03, fdr=0.2
    )
    assert kept.nonzero().flatten().tolist() == expected
    assert everything.all()  # what was given stays as it was
    for group, score in said.items():
        assert float(scores[group]) == pytest.approx(score, rel=1e-4)
    assert rule.allows(min(said.values()), len(expected))
    assert torch.allclose(rule.shadows, shadows, rtol=1e-3)
    if n_groups == 12:  # of the others: what they would say, were they added
        for group in set(range(12)) - set(expected):
            gain = rss(data, expected) - rss(data, [*expected, group])
            would = (gain / data.n_rows) ** 0.5 / float(data.weights[group])
            assert float(scores[group]) == pytest.approx(would, rel=1e-3)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_of_two_copies_one_stays_and_the_exempt_always(noise):
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(2000, 20)))
    X[:, 1] = X[:, 0] + noise * X[:, 1]
    Z = X[:, [0]] + torch.as_tensor(rng.normal(size=(2000, 1)))
    data, everything = seen(X, Z), torch.ones(20, dtype=torch.bool)
    how = {"n_copies": 100, "generator": stream(), "q": 0.01, "fdr": 0.2}
    found, scores, _ = moments.eliminate(data, everything, ~everything, **how)
    assert found.nonzero().flatten().tolist() in ([0], [1])
    assert int(scores.argmax()) == int(found.nonzero())
    held, *_ = moments.eliminate(data, everything, mask(20, 7), **how)
    assert held[7]
    assert held[:2].sum() == 1
    assert held.sum() == 2
    same, *_ = moments.eliminate(data, mask(20, 0, 1), mask(20, 0, 1), **how)
    assert same.nonzero().flatten().tolist() == [0, 1]


def test_elimination_of_nothing_leaves_nothing():
    data = seen(*problem())
    kept, scores, rule = moments.eliminate(
        data, mask(12), mask(12), n_copies=40, generator=stream(), q=0.03, fdr=0.2
    )
    assert not kept.any()
    assert torch.allclose(scores, data.scores(data.C), rtol=1e-6)
    shadows = moments.shadow_scores(data, data.Z, 40, stream())
    assert torch.allclose(rule.shadows, shadows.flatten().sort().values)


def test_what_is_explained_is_seen_on_other_rows():
    X, Z = problem()
    data, odd = seen(X, Z, PAIRED), torch.arange(400) % 2 == 1
    some, others = data.rows(~odd), data.rows(odd)
    kept = mask(9, 0, 2, 5)
    columns = kept[data.group]
    B = np.linalg.lstsq(some.X[:, columns].numpy(), some.Z.numpy(), rcond=None)[0]
    wrong = np.square(others.Z.numpy() - others.X[:, columns].numpy() @ B).sum()
    expected = (np.square(others.Z.numpy()).sum() - wrong) / others.n_rows
    assert moments.explained(some, others, kept) == pytest.approx(expected, rel=1e-4)
    assert moments.explained(some, others, mask(9)) == 0
