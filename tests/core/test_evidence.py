"""Selection by shadows, where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lessvfl import data
from lessvfl.core import evidence
from lessvfl.core.evidence import Groups
from lessvfl.core.network import MLP
from lessvfl.core.plans import FitPlan, ShadowPlan
from lessvfl.errors import ConfigError
from lessvfl.run import profiles, simulate
from lessvfl.run.simulate import Job

PLAN = ShadowPlan("select_features", 0.05)


def problem(n=400, d=12, E=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    B = np.zeros((d, E))
    B[:3] = rng.normal(size=(3, E)) + 1
    Z = X @ B + rng.normal(size=(n, E))
    return torch.as_tensor(X), torch.as_tensor(Z)


def test_shadows_are_permuted_copies_and_behind_the_own_columns():
    X, X_test = torch.randn(1, 30, 4), torch.randn(1, 7, 4)
    groups = torch.tensor([0, 0, 1, 2])
    (whole, test), owners = evidence.with_shadows((X, X_test), groups, 5, (0,), "a")
    assert owners.tolist() == [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8]
    assert torch.equal(whole[:, :, :4], X)
    for copy in (1, 2):
        own = whole[0, :, 4 * copy : 4 * copy + 4]
        assert torch.equal(own.sort(dim=0).values, X[0].sort(dim=0).values)
        assert not torch.equal(own, X[0])
        places = [int((X[0, :, 0] == value).nonzero()) for value in own[:, 0]]
        assert torch.equal(X[0, places, 1], own[:, 1])  # one feature, one permutation
    assert torch.equal(test[:, :, 4:], torch.zeros(1, 7, 8))


def test_every_seed_and_party_permutes_its_own_way():
    X = torch.randn(1, 30, 3)
    (both, _), _ = evidence.with_shadows((X, X), torch.arange(3), 3, (0, 1), "a")
    (alone, _), _ = evidence.with_shadows((X, X), torch.arange(3), 3, (1,), "a")
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])
    (other, _), _ = evidence.with_shadows((X, X), torch.arange(3), 3, (1,), "b")
    assert not torch.equal(other, alone)


def groups_of(n, n_own, membership=None, pinned=()):
    """Return n groups, those from n_own on shadows."""
    eye = torch.eye(n).double() if membership is None else membership
    must = torch.zeros(n, dtype=torch.bool)
    must[list(pinned)] = True
    return Groups(eye, torch.arange(n) >= n_own, must)


def with_sixty(X):
    """Return the columns with sixty shadows, and the groups."""
    d = X.shape[1]
    (whole, _), owners = evidence.with_shadows(
        (X[None], X[None]), torch.arange(d), 60, (0,), "a"
    )
    return whole[0], groups_of(len(owners), d)


def test_the_path_begins_where_nothing_is_kept():
    X, Z = problem()
    found = evidence.choose(X, Z, groups_of(12, 12), PLAN)
    assert found.path[0][0] == 1.0
    assert found.path[0][1] == 0
    assert found.path[1][1] >= 1


@pytest.mark.parametrize("adaptive", [0.0, 1.0])
def test_what_predicts_is_kept_and_shadows_go(adaptive):
    X, Z = problem()
    whole, groups = with_sixty(X)
    plan = ShadowPlan("select_features", 0.03, adaptive)
    found = evidence.choose(whole, Z, groups, plan)
    assert found.kept[:3].all()
    assert found.kept[3:].sum() <= 2
    assert not found.kept[12:].any()
    assert found.shadow_share <= 0.03
    assert (found.scores[:3] > found.scores[3:].max()).all()


def test_subsamples_vote():
    X, Z = problem()
    whole, groups = with_sixty(X)
    plan = ShadowPlan("select_features", 0.05, subsamples=8)
    found = evidence.choose(whole, Z, groups, plan)
    assert found.frequency is not None
    assert (found.frequency[:3] == 1).all()
    assert torch.equal(found.kept, found.frequency >= 0.5)
    assert not found.kept[12:].any()
    again = evidence.choose(whole, Z, groups, plan)
    assert torch.equal(again.kept, found.kept)


def test_at_most_so_many():
    X, Z = problem()
    none = groups_of(12, 12)
    plan = ShadowPlan("select_features", 1.0, most=2)
    assert evidence.choose(X, Z, none, plan).kept.sum() <= 2
    free = ShadowPlan("select_features", 1.0)
    assert evidence.choose(X, Z, none, free).kept.sum() > 2


def test_columns_of_one_feature_stay_or_go_together():
    X, Z = problem(d=6)
    membership = torch.zeros(6, 3).double()
    membership[torch.arange(6), torch.tensor([0, 0, 1, 1, 2, 2])] = 1
    found = evidence.choose(X, Z, groups_of(3, 3, membership), PLAN)
    assert found.kept.shape == (3,)


def test_a_response_is_one_newton_step_of_logistic_regression_further():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(200_000, 3, generator=generator, dtype=torch.float64)
    true = torch.tensor([0.6, -0.4, 0.0], dtype=torch.float64)
    chance = torch.sigmoid(X @ true)
    y = (torch.rand(len(X), generator=generator) < chance).double()
    head = torch.tensor([1.5, 0.7], dtype=torch.float64)  # of a party of two components
    h = (0.8 * X @ true)[:, None] * head / head.square().sum()
    gradient = (torch.sigmoid(h @ head) - y)[:, None] * head
    found = evidence.responses(h[None], gradient[None])[0]
    slopes = torch.linalg.lstsq(X, found @ head).solution
    assert slopes == pytest.approx(true, abs=0.05)  # from 0.8 of it, in one step


def test_the_better_rows_are_predicted_the_less_their_residuals_say():
    h, g = torch.zeros(1, 500, 1), torch.randn(1, 500, 1)
    loud, quiet = (evidence.responses(h, s * g).std() for s in (1.0, 0.1))
    assert float(quiet / loud) == pytest.approx(10, rel=1e-4)


def neighbours(n=2000, d=12):
    """Return columns, one of them between two others, and responses of these two."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    X[:, 4] = 0.7 * X[:, 3] + 0.7 * X[:, 5] + 0.2 * X[:, 4]
    Z = X[:, [3]] + X[:, [5]] + 2 * rng.normal(size=(n, 1))
    return torch.as_tensor(X), torch.as_tensor(Z)


def test_a_second_look_offers_both_looks_this_one_and_what_says_something():
    X, Z = neighbours()
    whole, groups = with_sixty(X)
    before = torch.zeros(len(groups.pinned), dtype=torch.bool)
    before[11] = True
    plan = ShadowPlan("select_again", 0.03)
    choice, (both, second, pruned) = evidence.look_again(
        whole, Z, groups, plan, 0, before
    )
    assert torch.equal(second, choice.kept)
    assert torch.equal(both, before | second)
    assert second[4]  # between the two it looks like both
    assert pruned.nonzero().flatten().tolist() == [3, 5]


def test_a_second_look_respects_the_limit_and_what_must_stay():
    X, Z = neighbours()
    whole, groups = with_sixty(X)
    groups.pinned[[0, 3]] = True
    before = groups.pinned.clone()
    before[5:12] = True
    plan = ShadowPlan("select_again", 0.03, most=4)
    _, candidates = evidence.look_again(whole, Z, groups, plan, 0, before)
    assert (candidates.sum(dim=1) <= 4).all()
    assert candidates[:, [0, 3]].all()


def test_pairs_are_kept_and_told_and_count_against_the_limit():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(1500, 8)))
    Z = X[:, [2]] * X[:, [5]] + 0.5 * torch.as_tensor(rng.normal(size=(1500, 1)))
    whole, groups = with_sixty(X)
    blind = evidence.choose(whole, Z, groups, ShadowPlan("select_features", 0.03))
    assert not blind.kept[[2, 5]].any()
    plan = ShadowPlan("select_features", 0.03, pairs=True)
    found = evidence.choose(whole, Z, groups, plan)
    assert found.kept[[2, 5]].all()
    assert [pair[:2] for pair in found.pairs] == [(2, 5)]
    (told,) = found.report(torch.arange(8))["pairs"]
    assert told[:2] == [2, 5]
    assert told[2] > 2
    few = replace(plan, most=1)
    assert evidence.choose(whole, Z, groups, few).kept.sum() <= 1


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.1, 1), (0.5, 2)])
def test_the_smallest_candidate_as_good_as_the_best(share, expected):
    losses = [0.50, 0.54, 0.7]
    assert evidence.smallest_as_good(losses, 1.0, share) == expected


def test_the_largest_candidate_stays_where_rows_say_nothing_of_them():
    assert evidence.smallest_as_good([1.3, 1.2, 1.1], 1.0, 0.1) == 0


def a_net(seeds, d):
    cpu = torch.device("cpu")
    return MLP.create((d, 8, 3), "tanh", seeds, "a", torch.float64, cpu)


def test_refit_predicts_held_out_responses_better_and_replicas_equal_single_runs():
    tables = [problem(seed=s) for s in (0, 1)]
    X, Z = (torch.stack(parts) for parts in zip(*tables, strict=True))
    both = a_net((0, 1), 12)
    before = (both(X) - Z).square().mean(dim=(1, 2))
    evidence.refit(both, X, Z, FitPlan(), (0, 1))
    after = (both(X) - Z).square().mean(dim=(1, 2))
    assert (after < 0.6 * before).all()
    for r in (0, 1):
        alone = a_net((r,), 12)
        evidence.refit(alone, X[r : r + 1], Z[r : r + 1], FitPlan(), (r,))
        assert torch.allclose(alone(X[r : r + 1])[0], both(X)[r], atol=1e-6)


def run(seeds=(0,), **more):
    dataset = data.load("synthetic", options={"n_samples": 2000})
    given = {"train_epochs": 2} | more
    settings = profiles.resolve("less-vfl", "default", dataset, given)
    job = Job(dataset, settings, spurious=0.5)
    return [run.numbers for run in simulate.simulate(job, list(seeds))]


def test_the_default_finds_what_matters_without_a_lambda():
    for numbers in run(seeds=(0, 1)):
        assert numbers["truth"]["f1"] > 0.7
        assert numbers["spurious"]["removed_share"] > 0.9
        for how in numbers["selection"].values():
            assert how["shadow_share"] <= 0.045
            assert 0 < how["lam"] <= 1
            assert how["rule"] in evidence.RULES


def test_a_second_look_brings_features_back_and_removes_others():
    (once,), (twice,) = run(seeds=(1,), second_look=0), run(seeds=(1,))
    assert {how["rule"] for how in once["selection"].values()} == {"first look"}
    first, second = (
        {n for party in numbers["features"].values() for n in party["kept"]}
        for numbers in (once, twice)
    )
    assert second - first
    assert first - second
    assert twice["truth"]["f1"] > once["truth"]["f1"]
    stages = [point["stage"] for point in twice["curve"]]
    assert stages == [
        *("pretrain", "select_features", "settle", "select_again", "train")
    ]
    for numbers in (once, twice):  # as many rounds of training, and no bytes for a look
        by_stage = numbers["communication"]["by_stage"]
        assert by_stage.get("select_again", {"up": 0, "down": 0})["up"] == 0


def test_a_second_look_needs_epochs_to_follow():
    (numbers,) = run(train_epochs=1)
    assert {how["rule"] for how in numbers["selection"].values()} == {"first look"}


def test_both_aims_exchange_the_same_rows_in_other_steps():
    (slow,), (fast,) = (run(train_epochs=0, aim=aim) for aim in ("bytes", "time"))
    rounds = [
        n["communication"]["by_stage"]["pretrain"]["rounds"] for n in (slow, fast)
    ]
    assert rounds == [33, 2]  # half of 2,000 rows, in steps of 32 or of 1,000


def test_replicas_select_as_single_runs_do():
    more = {"dtype": "float64", "bits": 32}
    together = run(seeds=(0, 1), **more)
    for seed, numbers in enumerate(together):
        (alone,) = run(seeds=(seed,), **more)
        assert numbers["features"] == alone["features"]
        assert numbers["components"] == alone["components"]
        assert numbers["communication"] == alone["communication"]


def test_what_must_stay_stays():
    (free,) = run()
    (held,) = run(must_keep="x0_1?, x3_19")
    asked = {f"x0_1{digit}" for digit in range(10)} | {"x3_19"}
    kept = {n for party in held["features"].values() for n in party["kept"]}
    assert asked <= kept
    assert not asked <= {
        n for party in free["features"].values() for n in party["kept"]
    }
    with pytest.raises(ConfigError, match="'nobody', which matches none"):
        run(must_keep="x0_1,nobody")


def test_frequencies_are_told_by_name():
    (numbers,) = run(subsamples=3, second_look=0)
    for party, how in numbers["selection"].items():
        kept = set(numbers["features"][party]["kept"])
        assert {
            name for name, share in how["frequency"].items() if share >= 0.5
        } == kept


def test_pretraining_ends_when_no_selection_changes_any_more():
    more = {"pretrain_epochs": 4, "train_epochs": 0, "aim": "bytes"}
    (whole,) = run(**more)
    seeds = (0, 1)
    stopped = run(seeds=seeds, pretrain_check=8, **more)
    bills = [n["communication"]["by_stage"]["pretrain"] for n in (whole, *stopped)]
    assert bills[0]["rounds"] == 4 * 63 + 1
    for bill in bills[1:]:
        assert 16 < bill["rounds"] < bills[0]["rounds"]
        n_steps = bill["rounds"] - 1
        assert n_steps % 8 == 1  # all said so with the blocks of this step
        assert bill["up"] - bill["down"] == 4 * (n_steps // 8)  # a byte a party a check
    for seed, numbers in zip(seeds, stopped, strict=True):
        (alone,) = run(seeds=(seed,), pretrain_check=8, **more)
        assert numbers["communication"] == alone["communication"]
        assert numbers["features"] == alone["features"]


def test_a_check_compares_what_is_above_the_shadows():
    X, Z = problem()
    whole, groups = with_sixty(X)
    found = evidence.above(whole, Z, groups)
    assert found[:3].all()
    assert not found[groups.is_shadow].any()


def test_the_server_may_fit_its_head_to_the_rows_it_has():
    (plain,), (fitted,) = (run(server_refit=n, train_epochs=0) for n in (0, 20))
    assert fitted["features"] == plain["features"]  # the parties know nothing of it
    assert fitted["communication"] == plain["communication"]
    assert fitted["r2"]["pretrained"] == plain["r2"]["pretrained"]
    assert fitted["r2"]["selected"] != plain["r2"]["selected"]


def test_fewer_bits_are_cheaper_in_proportion():
    bills = [
        run(bits=bits)[0]["communication"]["by_stage"]["pretrain"]["up"]
        for bits in (32, 8)
    ]
    assert bills[0] / bills[1] == pytest.approx(4, rel=0.1)


def test_shadows_need_a_column_of_their_own():
    with pytest.raises(ConfigError, match="selector=network does without"):
        run(empty_party="frozen")
