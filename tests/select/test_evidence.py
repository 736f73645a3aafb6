"""Selection by shadows, where the truth is known."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lessvfl import data
from lessvfl.core.network import MLP
from lessvfl.core.plans import FitPlan, ShadowPlan
from lessvfl.core.solve import fit_held_out
from lessvfl.errors import ConfigError
from lessvfl.run import profiles, simulate
from lessvfl.run.simulate import Job
from lessvfl.select import evidence, moments
from lessvfl.select.evidence import SelectionPass, Subject
from lessvfl.select.moments import Moments
from lessvfl.select.responses import standardised

PLAN = ShadowPlan("select_features", 0.03)
KEPT = ("strength", "must keep", "pair")
REMOVED = ("weak", "chance", "says nothing beside the others", "most")


def problem(n=400, d=12, E=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    B = np.zeros((d, E))
    B[:3] = rng.normal(size=(3, E)) + 1
    Z = X @ B + rng.normal(size=(n, E))
    return torch.as_tensor(X), torch.as_tensor(Z)


def a_pass(X, Z, plan=PLAN, groups=None, pinned=(), rows=None, seed=0):
    group = torch.arange(X.shape[1]) if groups is None else torch.tensor(groups)
    must = torch.zeros(int(group.max()) + 1, dtype=torch.bool)
    must[list(pinned)] = True
    rows = torch.arange(len(X)) if rows is None else rows
    return SelectionPass(
        Subject(rows, X, Z, group, must), plan, (seed, "a", plan.stage)
    )


def places(kept):
    return kept.nonzero().flatten().tolist()


def is_told_truly(choice):
    """Tell whether every reason agrees with score and decision."""
    for stays, score, why in zip(
        choice.kept.tolist(), choice.scores.tolist(), choice.why, strict=True
    ):
        assert why in (KEPT if stays else REMOVED)
        if stays:
            assert (why == "strength") == (score >= 1)
        else:
            assert (why == "says nothing beside the others") == (score >= 1)
    return True


# -------------------------------------------------------------------------------- path


def test_the_path_begins_where_nothing_is_kept():
    found = a_pass(*problem()).choose()
    assert found.path[0] == (1.0, 0, found.path[0][2])
    assert found.path[1][1] >= 1
    assert found.lam in [share for share, *_ in found.path]


def test_what_predicts_is_kept_and_nothing_else():
    found = a_pass(*problem()).choose()
    assert places(found.kept) == [0, 1, 2]
    assert found.rule == "path"
    assert found.shadow_share <= 0.03
    assert found.false_share is not None
    assert found.false_share <= 0.2
    assert found.scores[:3].min() >= 1 > found.scores[3:].max()
    assert found.why == ("strength",) * 3 + ("weak",) * 9


def test_a_look_is_that_of_its_stream():
    X, Z = problem(n=100, seed=3)
    one, same, other = (a_pass(X, Z, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.shadows, same.shadows)
    assert torch.equal(one.half(), same.half())
    assert not torch.equal(one.shadows, other.shadows)
    assert not torch.equal(one.half(), other.half())
    assert int(one.half().sum()) == 50


def test_the_limit_is_the_most_that_is_kept():
    X, Z = problem()
    plan = ShadowPlan("select_features", 1.0, most=2, fdr=1.0)
    kept = a_pass(X, Z, plan).choose().kept
    free = a_pass(X, Z, replace(plan, most=None)).choose()
    assert kept.sum() == 2
    assert free.kept.sum() > 2
    strongest = free.scores.topk(2).indices  # those that enter the path first
    assert places(kept) == sorted(strongest.tolist())


def test_what_the_limit_leaves_out_is_told_so_and_measured_by_the_same_mark():
    """It is stronger than chance: only the number of features kept is limited."""
    X, Z = problem()
    for fresh in (None, a_pass(X, Z).half()):
        free = a_pass(X, Z).choose(fresh)
        found = a_pass(X, Z, replace(PLAN, most=1)).choose(fresh)
        (first,) = places(found.kept)
        others = {0, 1, 2} - {first}
        assert found.why[first] == "strength"
        assert {found.why[i] for i in others} == {"most"}
        assert set(found.why[3:]) == {"weak"}
        if fresh is None:
            assert torch.equal(found.scores, free.scores)
            assert torch.equal(found.at_most, free.at_most)
            assert (found.path, found.lam) == (free.path, free.lam)


def test_as_many_as_allowed_are_kept_of_columns_that_come_in_together():
    """At one lambda the path keeps nothing, at the next all four."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(400, 8, generator=generator).double()
    X[:, :4] -= X[:, :4].mean(dim=0)
    X[:, :4] = torch.linalg.qr(X[:, :4]).Q * 20
    Z = X[:, :4] @ torch.tensor([[1.03], [1.0], [1.02], [1.01]]).double()
    Z += 0.5 * torch.randn(400, 1, generator=generator)
    found = a_pass(X, Z, replace(PLAN, most=2)).choose()
    assert [n for _, n, _ in found.path][:2] == [0, 4]
    assert places(found.kept) == [0, 2]
    assert found.why[:4] == ("strength", "most", "strength", "most")
    assert found.false_share is not None
    must = a_pass(X, Z, replace(PLAN, most=2), pinned=(6, 7)).choose()
    assert places(must.kept) == [6, 7]
    assert must.why[:4] == ("most",) * 4
    assert must.scores[:4].min() >= 1
    assert must.why[6:] == ("must keep", "must keep")
    assert must.false_share is None


@pytest.mark.parametrize("own", [[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2]])
def test_columns_of_one_feature_stay_or_go_together(own):
    """One column that predicts keeps its feature; by itself its partner would go."""
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(400, 6)))
    Z = X[:, [0]] - X[:, [3]] + 0.5 * torch.as_tensor(rng.normal(size=(400, 1)))
    found = a_pass(X, Z, groups=own).choose()
    columns = places(found.kept[torch.tensor(own)])
    assert columns == ([0, 3] if max(own) == 5 else [0, 1, 2, 3])


def test_what_must_stay_is_kept_whatever_it_says():
    X, Z = problem()
    look = a_pass(X, Z, pinned=(0, 11))
    for fresh in (None, look.half()):
        found = look.choose(fresh)
        assert places(found.kept) == [0, 1, 2, 11]
        assert found.why[11] == "must keep"
        assert found.why[0] == "strength"
        assert is_told_truly(found)
    assert all(n_kept >= 2 for _, n_kept, _ in found.path)
    noise = torch.as_tensor(np.random.default_rng(1).normal(size=(400, 1)))
    alone = a_pass(X, noise, pinned=(11,)).choose()
    assert places(alone.kept) == [11]
    assert is_told_truly(alone)


@functools.cache
def choices_on_noise(again, pairs):
    plan = replace(PLAN, again=again, pairs=pairs)
    found = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(200, 8, generator=generator)
        Z = torch.randn(200, 1, generator=generator)
        found.append(a_pass(X, Z, plan, seed=seed).choose())
    return found


@pytest.mark.parametrize("pairs", [False, True])
def test_labels_of_pure_noise_keep_nothing(pairs):
    found = choices_on_noise(again=False, pairs=pairs)
    n_empty = sum(not bool(choice.kept.any()) for choice in found)
    assert n_empty >= (36 if pairs else 38)
    for choice in found:
        assert is_told_truly(choice)
        if not choice.kept.any():
            assert choice.false_share is None
            assert set(choice.why) == {"chance"}


@pytest.mark.parametrize(
    ("effect", "n_copies", "kept"), [(0.0, 100, []), (0.18, 400, []), (2.0, 100, [0])]
)
def test_more_copies_are_made_only_where_those_at_hand_do_not_settle_it(
    effect, n_copies, kept, monkeypatch
):
    made = []
    scores = moments.shadow_scores

    def watched(seen, residual, n, generator):
        made.append(n)
        return scores(seen, residual, n, generator)

    monkeypatch.setattr(moments, "shadow_scores", watched)
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(400, 12)))
    Z = effect * X[:, [0]] + torch.as_tensor(rng.normal(size=(400, 1)))
    found = a_pass(X, Z, replace(PLAN, noise=1 / 400)).choose()
    assert sum(made) == n_copies
    assert places(found.kept) == kept


def test_the_path_ends_where_most_of_what_is_kept_would_be_useless(monkeypatch):
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(300, 2000)))
    Z = X[:, :5].sum(dim=1, keepdim=True) + torch.as_tensor(rng.normal(size=(300, 1)))
    found = a_pass(X, Z).choose()
    assert places(found.kept)[:5] == [0, 1, 2, 3, 4]
    monkeypatch.setattr(evidence, "HOPELESS", 1.0)
    further = a_pass(X, Z).choose()
    assert len(found.path) < len(further.path)
    assert found.path == further.path[: len(found.path)]
    assert torch.equal(found.kept, further.kept)


def test_or_one_feature_where_another_look_follows():
    found = choices_on_noise(again=True, pairs=False)
    counts = [int(choice.kept.sum()) for choice in found]
    assert min(counts) == 1
    assert counts.count(1) >= 38
    alone = [choice for choice in found if set(choice.why) == {"chance"}]
    assert len(alone) >= 28
    for choice in alone:
        assert places(choice.kept) == [int(choice.scores.argmax())]


# ------------------------------------------------------------------------------- pairs


def test_pairs_are_kept_and_told_and_count_against_the_limit():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(1500, 8)))
    Z = X[:, [2]] * X[:, [5]] + 0.5 * torch.as_tensor(rng.normal(size=(1500, 1)))
    assert not a_pass(X, Z).choose().kept[[2, 5]].any()
    plan = replace(PLAN, pairs=True)
    look = a_pass(X, Z, plan)
    for found in (look.choose(), look.choose(look.half())):
        assert places(found.kept) == [2, 5]
        assert found.why[2] == found.why[5] == "pair"
        assert is_told_truly(found)
        assert [pair[:2] for pair in found.pairs] == [(2, 5)]
    (told,) = found.report(torch.arange(8))["pairs"]
    assert told[:2] == [2, 5]
    assert told[2] > 2
    limited = a_pass(X, Z, replace(plan, most=1)).choose()
    assert places(limited.kept) == []
    assert limited.why[2] == limited.why[5] == "most"
    assert {why for i, why in enumerate(limited.why) if i not in (2, 5)} == {"chance"}


def test_labels_that_differ_keep_both_truth_values():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.integers(2, size=(1000, 6))).double()
    Z = (X[:, [1]] != X[:, [4]]).double()
    found = a_pass(X, Z, replace(PLAN, pairs=True)).choose()
    assert places(found.kept) == [1, 4]
    assert found.why[1] == found.why[4] == "pair"


def test_a_report_tells_features_by_their_groups():
    X, Z = problem()
    found = a_pass(X, Z).choose()
    owner = torch.tensor([11, 0, 0, 4])
    told = found.report(owner)
    assert told["scores"] == found.scores[owner].tolist()
    assert told["why"] == ["weak", "strength", "strength", "weak"]
    assert told.keys() >= {"rule", "lam", "shadow_share", "false_share", "path"}


# ------------------------------------------------------------------------- elimination


def neighbours(n=2000, d=12):
    """Return columns, one of them between two others, and responses of these two."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    X[:, 4] = 0.7 * X[:, 3] + 0.7 * X[:, 5] + 0.2 * X[:, 4]
    Z = X[:, [3]] + X[:, [5]] + 2 * rng.normal(size=(n, 1))
    return torch.as_tensor(X), torch.as_tensor(Z)


def test_what_says_nothing_beside_the_others_goes_where_rows_are_compared():
    look = a_pass(*neighbours())
    assert look.choose().kept[4]  # between the two it looks like both
    found = look.choose(look.half())
    assert places(found.kept) == [3, 5]
    assert found.rule == "elimination"
    assert found.shadow_share <= PLAN.q
    assert found.false_share is not None
    assert found.false_share <= PLAN.fdr
    assert is_told_truly(found)


def test_but_not_where_that_loses_much():
    X, Z = neighbours()
    look = a_pass(X, Z)
    strict = a_pass(X, Z, replace(PLAN, loss=-1.0))
    assert strict.choose(look.half()).rule == "path"


def test_elimination_needs_rows_enough_for_a_regression(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(moments, "eliminate", never)
    look = a_pass(*problem(n=47))
    assert look.choose(look.half()).rule == "path"
    X, Z = problem(n=400)
    many = a_pass(X, Z, pinned=range(12))
    few_left = torch.arange(400) >= 23
    assert many.choose(few_left).rule == "path"


def test_every_reason_agrees_with_score_and_decision():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        columns = rng.normal(size=(300, 15))
        columns[:, 5:10] = columns[:, :5] + 0.3 * columns[:, 5:10]
        X = torch.as_tensor(columns)
        noise = torch.as_tensor(rng.normal(size=(300, 2)))
        Z = X[:, [0, 1]] * 0.3 + X[:, [6]] * X[:, [11]] * 0.6 + noise
        plan = replace(PLAN, pairs=True, again=seed % 2 == 0)
        look = a_pass(X, Z, plan, pinned=(14,) if seed % 3 else (), seed=seed)
        for fresh in (None, look.half()):
            assert is_told_truly(look.choose(fresh))


# --------------------------------------------------------------------------- two looks


def test_the_clearer_of_two_looks_is_taken():
    X, Z = problem()
    blurred = Z + 20 * torch.as_tensor(np.random.default_rng(1).normal(size=Z.shape))
    clear, dim = a_pass(X, Z), a_pass(X, blurred)
    assert clear.clarity > 1.5 * dim.clarity > 0
    expected = clear.choose(clear.half())
    for looks in ((clear, dim), (dim, clear)):
        found = evidence.choose_again(*looks)
        assert torch.equal(found.scores, expected.scores)
    nothing = a_pass(X, blurred - Z)
    assert nothing.clarity < 1.5


@pytest.mark.parametrize("many", [300, 301])
def test_the_second_look_counts_where_it_saw_many_rows_anew(many, monkeypatch):
    """Though the first is clearer: slow weights of useless columns look like much."""
    X, Z = problem()
    first = a_pass(X[:100], Z[:100], rows=torch.arange(100))
    second = a_pass(X, Z, rows=torch.arange(400))
    clearer = property(lambda self: self is first)
    monkeypatch.setattr(SelectionPass, "clarity", clearer)
    monkeypatch.setattr(evidence, "MANY_FRESH", many)
    found = evidence.choose_again(first, second)
    taken = second if many == 300 else first
    fresh = torch.arange(400) >= 100 if many == 300 else first.half()
    assert torch.equal(found.scores, taken.choose(fresh).scores)


@pytest.mark.parametrize(
    ("first", "is_fresh"),
    [(slice(0, 150), True), (slice(0, 390), False), (slice(0, 20), False)],
)
def test_candidates_are_chosen_on_some_rows_and_compared_on_others(
    first, is_fresh, monkeypatch
):
    """On those that the first look has not seen, where they are not too few or many."""
    X, Z = problem()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    before = a_pass(X[order[first]], Z[order[first]], rows=order[first])
    now = a_pass(X, 3 * Z, rows=torch.arange(400))
    monkeypatch.setattr(SelectionPass, "clarity", property(lambda self: self is now))
    parts: dict[int, tuple[Moments, Any]] = {}
    compared = []
    rows_of, explained = Moments.rows, moments.explained

    def rows(self, which):
        part = rows_of(self, which)
        parts[id(part)] = (part, which)
        return part

    def spy(some, others, kept):
        compared.append([parts[id(part)][1] for part in (some, others)])
        return explained(some, others, kept)

    monkeypatch.setattr(Moments, "rows", rows)
    monkeypatch.setattr(moments, "explained", spy)
    evidence.choose_again(before, now)
    assert len(compared) == 2
    for some, others in compared:
        assert not (some & others).any()
        assert (some | others).all()
        assert torch.equal(places_of(some), order[first].sort().values) == is_fresh


def places_of(rows):
    return rows.nonzero().flatten()


def test_without_gradients_there_is_nothing_to_see_and_nothing_breaks():
    h = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    Z = standardised(h, torch.zeros(100, 2))
    assert Z.isfinite().all()
    X = torch.randn(100, 4, generator=torch.Generator().manual_seed(1))
    look = a_pass(X, Z, replace(PLAN, pairs=True))
    assert look.choose(look.half()).scores.isfinite().all()


@pytest.mark.parametrize("seed", [0, 1])
def test_refit_predicts_responses_better(seed):
    X, Z = problem(seed=seed)
    net = MLP.create((12, 8, 3), "tanh", seed, "a", X.dtype, X.device)
    before = (net(X) - Z).square().mean()
    fit_held_out(net, X, Z, FitPlan(), seed)
    assert (net(X) - Z).square().mean() < 0.6 * before


@functools.cache
def run(seed=0, n_samples=2000, **more):
    dataset = data.load("synthetic", options={"n_samples": n_samples})
    given = {"train_epochs": 2} | more
    settings = profiles.resolve("less-vfl-auto", "default", dataset, given)
    job = Job(dataset, settings, spurious=0.5)
    (only,) = simulate.simulate(job, [seed])
    return only.numbers


def test_the_default_finds_what_matters_without_a_lambda():
    for seed in (0, 1):
        numbers = run(seed)
        assert numbers["truth"]["f1"] > 0.7
        assert numbers["spurious"]["removed_share"] > 0.9
        for how in numbers["selection"].values():
            assert how["shadow_share"] <= 0.03
            assert 0 < how["lam"] <= 1
            assert how["rule"] in ("path", "elimination")


def test_a_second_look_brings_features_back_and_removes_others():
    once, twice = run(1, second_look=0), run(1)
    assert {how["rule"] for how in once["selection"].values()} == {"path"}
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
    # An epoch each, the first in steps of half as many rows, and of all of them.
    assert by_stage["train_first"]["rounds"] == 1 + -(-2000 // 128)
    assert by_stage["train"]["rounds"] == 1 + -(-1800 // 256)


def test_a_second_look_needs_epochs_to_follow():
    numbers = run(train_epochs=1, n_samples=500)
    assert {how["rule"] for how in numbers["selection"].values()} == {"path"}


def test_what_must_stay_stays():
    short: dict[str, Any] = {"train_epochs": 0, "n_samples": 500}
    free = run(**short)
    held = run(must_keep="x0_1?, x3_19", **short)
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
    numbers = run(train_epochs=0, refit_epochs=0, pairs=False, **more)
    return numbers["communication"]["by_stage"]["pretrain"]


def test_pretraining_may_be_many_steps_or_few():
    """As many rows are exchanged, half of 2,000, in steps of 32 or of 1,000."""
    slow, fast = pretraining(pretrain_batch_size=32, bits=8), pretraining(bits=8)
    assert [slow["rounds"], fast["rounds"]] == [33, 2]
    assert slow["up"] == pytest.approx(fast["up"], rel=0.1)


def test_a_party_that_keeps_nothing_is_a_constant():
    with pytest.raises(ConfigError, match="must be constant with method less-vfl-auto"):
        run(empty_party="frozen")


# ---------------------------------------------------------------------------- two ends


def a_run(X, y, **more):
    dataset = data.from_arrays(X, y)
    given = {"train_epochs": 6, "refit_epochs": 5} | more
    settings = profiles.resolve("less-vfl-auto", "default", dataset, given)
    (found,) = simulate.simulate(Job(dataset, settings, parties=2), [0])
    return found.numbers


def test_labels_of_pure_noise_leave_every_party_a_constant():
    """The run ends as it should, and at chance."""
    rng = np.random.default_rng(0)
    numbers = a_run(rng.normal(size=(600, 12)), rng.integers(2, size=600))
    for party, kept in numbers["features"].items():
        assert kept["kept"] == []
        assert numbers["selection"][party]["false_share"] is None
        assert set(numbers["selection"][party]["why"].values()) == {"chance"}
    assert numbers["auc"]["final"] == 0.5
    again = numbers["communication"]["by_stage"]["select_again"]
    assert again["up"] > 0  # their constants
    assert "train" not in numbers["communication"]["by_stage"]  # nobody is left


def test_a_party_at_which_the_first_look_finds_nothing_stays_for_the_second():
    """Its features are weak beside those of the other until these are learnt."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(3000, 12))
    y = (4 * X[:, :3].sum(axis=1) + 0.6 * X[:, 7] + rng.logistic(size=3000) > 0) * 1
    once = a_run(X, y, train_epochs=0)
    twice = a_run(X, y, train_epochs=9, second_look=8)
    weak = list(twice["features"])[1]
    assert once["features"][weak]["kept"] == []
    assert twice["features"][weak]["kept"] == ["x7"]
