"""Selection by shadows, where the truth is known."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lessvfl import data
from lessvfl.core import evidence
from lessvfl.core.evidence import ShadowGroups
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
    return ShadowGroups(eye, torch.arange(n) >= n_own, must)


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


def test_what_predicts_is_kept_and_shadows_go():
    X, Z = problem()
    whole, groups = with_sixty(X)
    plan = ShadowPlan("select_features", 0.03)
    found = evidence.choose(whole, Z, groups, plan)
    assert found.kept[:3].all()
    assert found.kept[3:].sum() <= 2
    assert not found.kept[12:].any()
    assert found.shadow_share <= 0.03
    assert (found.scores[:3] > found.scores[3:].max()).all()


def test_the_limit_is_the_most_that_is_kept():
    X, Z = problem()
    none = groups_of(12, 12)
    plan = ShadowPlan("select_features", 1.0, most=2)
    kept = evidence.choose(X, Z, none, plan).kept
    free = evidence.choose(X, Z, none, ShadowPlan("select_features", 1.0))
    assert kept.sum() == 2
    assert free.kept.sum() > 2
    strongest = free.scores.topk(2).indices  # those that enter the path first
    assert kept.nonzero().flatten().tolist() == sorted(strongest.tolist())


@pytest.mark.parametrize("own", [[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2]])
def test_columns_of_one_feature_stay_or_go_together(own):
    """One column that predicts keeps its feature; by itself its partner would go."""
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(400, 6)))
    Z = X[:, [0]] - X[:, [3]] + 0.5 * torch.as_tensor(rng.normal(size=(400, 1)))
    owner = torch.tensor(own)
    n_own = int(owner.max()) + 1
    (whole, _), owners = evidence.with_shadows((X[None], X[None]), owner, 60, (0,), "a")
    membership = torch.nn.functional.one_hot(owners).to(X)
    groups = groups_of(membership.shape[1], n_own, membership)
    found = evidence.choose(whole[0], Z, groups, PLAN)
    columns = found.kept[owner].nonzero().flatten().tolist()
    assert columns == ([0, 3] if n_own == 6 else [0, 1, 2, 3])
    assert not found.kept[n_own:].any()


def test_what_must_stay_is_kept_whatever_it_says():
    X, Z = problem()
    whole, groups = with_sixty(X)
    assert not evidence.choose(whole, Z, groups, PLAN).kept[11]
    groups.pinned[11] = True
    found = evidence.choose(whole, Z, groups, PLAN)
    assert found.kept[[0, 1, 2, 11]].all()
    assert all(n_kept >= 1 for _, n_kept, _ in found.path)


def test_memory_holds_what_was_exchanged_and_gives_it_once():
    memory = evidence.Memory()
    assert memory.tensors() == []
    h, g = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    memory.add(slice(0, 3), h[:, :3], g[:, :3] / 3)  # gradients of a mean over rows
    memory.add(torch.tensor([[7, 9]]), h[:, 3:], g[:, 3:] / 2)
    rows, seen, gradient = memory.tensors()
    assert rows.tolist() == [[0, 1, 2, 7, 9]] * 2
    assert torch.equal(seen, h)
    assert torch.allclose(gradient, g)  # of every row by itself again
    again = evidence.Memory()
    again.restore(memory.tensors())
    places, Z = memory.responses()
    assert torch.equal(places, rows)
    assert torch.allclose(Z, evidence.responses(h, g))
    assert memory.tensors() == []
    assert torch.equal(again.responses()[1], Z)


def test_candidates_are_compared_on_rows_held_out():
    """Without the columns that predict, the loss is that of a constant."""
    X, Z = (table[None] for table in problem(n=600))
    net = MLP.create((12, 3), "none", (0,), "a", torch.float64, torch.device("cpu"))
    with torch.no_grad():
        net.input_weights.copy_(torch.linalg.lstsq(X, Z).solution.mT)
    candidates = torch.zeros(3, 1, 12, dtype=torch.bool)
    candidates[0] = True
    candidates[1, 0, :3] = True
    candidates[2, 0, 6:] = True
    losses, alone = evidence.compare(net, torch.arange(12), X, Z, candidates, (0,))
    assert losses.shape == (3, 1)
    assert losses[2, 0] > 0.9 * alone[0]
    assert losses[1, 0] < 0.5 * alone[0]
    assert losses[0, 0] == pytest.approx(float(losses[1, 0]), rel=0.1)
    assert alone[0] == pytest.approx(float(Z.var(dim=1, correction=0).mean()), rel=1e-5)


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
    choice, (both, second, pruned) = evidence.choose_again(
        whole, Z, groups, plan, before
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
    _, candidates = evidence.choose_again(whole, Z, groups, plan, before)
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


@functools.cache
def run(seeds=(0,), n_samples=2000, **more):
    dataset = data.load("synthetic", options={"n_samples": n_samples})
    given = {"train_epochs": 2} | more
    settings = profiles.resolve("less-vfl-auto", "default", dataset, given)
    job = Job(dataset, settings, spurious=0.5)
    return [run.numbers for run in simulate.simulate(job, list(seeds))]


def test_the_default_finds_what_matters_without_a_lambda():
    for seed in (0, 1):
        (numbers,) = run(seeds=(seed,))
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
        *("pretrain", "select_features", "train_first", "select_again", "train")
    ]
    by_stage = twice["communication"]["by_stage"]
    # A look is a round without a byte, but for the constant of who kept nothing now.
    assert by_stage["select_again"] == {"up": 0, "down": 0, "rounds": 1}
    assert by_stage["train_first"]["rounds"] == by_stage["train"]["rounds"]
    whole = once["communication"]["by_stage"]["train"]["rounds"]
    assert whole == 2 * by_stage["train"]["rounds"] - 1  # as many steps in all


def test_a_second_look_needs_epochs_to_follow():
    (numbers,) = run(train_epochs=1, n_samples=500)
    assert {how["rule"] for how in numbers["selection"].values()} == {"first look"}


def test_replicas_select_as_single_runs_do():
    more: dict[str, Any] = {"dtype": "float64", "bits": 32, "n_samples": 300}
    together = run(seeds=(0, 1), **more)
    for seed, numbers in enumerate(together):
        (alone,) = run(seeds=(seed,), **more)
        assert numbers["features"] == alone["features"]
        assert numbers["components"] == alone["components"]
        assert numbers["communication"] == alone["communication"]


def test_what_must_stay_stays():
    short: dict[str, Any] = {"train_epochs": 0, "n_samples": 500}
    (free,) = run(**short)
    (held,) = run(must_keep="x0_1?, x3_19", **short)
    asked = {f"x0_1{digit}" for digit in range(10)} | {"x3_19"}
    kept = {n for party in held["features"].values() for n in party["kept"]}
    assert asked <= kept
    assert not asked <= {
        n for party in free["features"].values() for n in party["kept"]
    }
    with pytest.raises(ConfigError, match="'nobody', which matches none"):
        run(must_keep="x0_1,nobody", **short)


def pretraining(**more):
    """Return the bill of stage 1, and nothing after stage 3."""
    (numbers,) = run(train_epochs=0, refit_epochs=0, pairs=False, **more)
    return numbers["communication"]["by_stage"]["pretrain"]


def test_pretraining_may_be_many_steps_or_few():
    """As many rows are exchanged, half of 2,000, in steps of 32 or of 1,000."""
    slow, fast = pretraining(pretrain_batch_size=32), pretraining()
    assert [slow["rounds"], fast["rounds"]] == [33, 2]
    assert slow["up"] == pytest.approx(fast["up"], rel=0.1)


def test_fewer_bits_are_cheaper_in_proportion():
    assert pretraining(bits=32)["up"] / pretraining()["up"] == pytest.approx(4, rel=0.1)


def test_shadows_need_a_column_of_their_own():
    with pytest.raises(ConfigError, match="method less-vfl does without"):
        run(empty_party="frozen")
