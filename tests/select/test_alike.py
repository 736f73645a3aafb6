"""Rows that are alike in a file: when they are called so, and what follows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lessvfl.core.plans import ShadowPlan, stream
from lessvfl.select import moments
from lessvfl.select.alike import as_they_come, likeness, near_copies
from lessvfl.select.evidence import SelectionPass, Subject
from lessvfl.select.moments import Moments

N, D = 1600, 20
PLAN = ShadowPlan("select_features", 0.03, again=True)


def in_time(d, seed=0, ar=0.98, n=N):
    """Return columns of which each row is much like the one before."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    for row in range(1, n):
        X[row] = ar * X[row - 1] + math.sqrt(1 - ar**2) * X[row]
    return torch.from_numpy(X)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed), dtype=torch.float64)


def test_rows_in_time_are_alike_in_both():
    found = likeness(in_time(D), in_time(2, seed=1) + noise(N, 2))
    assert found is not None
    assert found.columns == pytest.approx(0.98, abs=0.02)
    assert found.responses == pytest.approx(0.49, abs=0.1)


def test_rows_of_one_person_are_alike_in_both():
    person = torch.arange(N) // 5
    X = noise(N // 5, D, seed=1)[person] + noise(N, D, seed=2)
    Z = noise(N // 5, 1, seed=3)[person] + noise(N, 1, seed=4)
    assert likeness(X, Z) is not None
    order = torch.randperm(N, generator=stream(5))  # nobody can see it
    assert likeness(X[order], Z[order]) is None


@pytest.mark.parametrize("which", ["columns", "responses", "neither"])
def test_what_is_alike_in_one_alone_does_no_harm(which):
    X = in_time(D) if which == "columns" else noise(N, D)
    Z = in_time(1, seed=1) if which == "responses" else noise(N, 1, seed=1)
    assert likeness(X, Z) is None


@pytest.mark.parametrize("by", ["column", "two columns", "label", "unseen"])
def test_a_sorted_file_is_no_such_case(by):
    X = noise(N, D) + noise(N, 1, seed=1)  # all columns have something in common
    X[:, 1] = X[:, 1].round()
    label = X[:, :3].sum(dim=1) + noise(N, seed=2)
    Z = torch.stack([label, (label > 0).double()], dim=1)
    key = {"column": X[:, 0], "label": (label > 0), "unseen": label + X[:, 3]}.get(by)
    order = torch.from_numpy(np.lexsort((X[:, 0], X[:, 1])))
    order = order if key is None else key.argsort(stable=True)
    assert likeness(X[order], Z[order]) is None


@pytest.mark.parametrize("repeats", [1, 10])
def test_a_file_sorted_by_many_classes_is_no_such_case(repeats):
    n_classes, n_components = 25, 8
    run = 40 // repeats  # rows of a class, one below the other
    y = torch.arange(N * 5 // 8) // run % n_classes
    Z = noise(n_classes, n_components)[y] + 0.1 * noise(len(y), n_components, seed=1)
    X = noise(n_classes, D, seed=2)[y] + noise(len(y), D, seed=3)
    assert likeness(X, Z) is None


@pytest.mark.parametrize(("n", "d"), [(90, 5), (1000, 0)])
def test_too_little_says_nothing(n, d):
    assert likeness(in_time(d, n=n), in_time(1, seed=1, n=n)) is None


def test_blocks_are_numbered_as_they_come():
    blocks, first = as_they_come(torch.tensor([7, 2, 7, 9, 2]))
    assert blocks.tolist() == [0, 1, 0, 2, 1]
    assert first.tolist() == [0, 1, 3]


def test_rows_that_move_keep_their_neighbours():
    for seed in range(20):
        order = moments.moved(100, stream(seed))
        assert sorted(order.tolist()) == list(range(100))
        step = (order - order.roll(1)) % 100
        assert set(step.tolist()) in ({1}, {99})
        assert not bool(((order - torch.arange(100)).abs() <= 4).all())
    assert moments.moved(1, stream(0)).tolist() == [0]


def test_shadows_of_rows_in_time_say_as_much_as_other_rows_in_time_do():
    X, Z = in_time(D), in_time(1, seed=1)
    group = torch.arange(D)
    chance = [Moments.of(in_time(D, seed=s), Z, group) for s in range(2, 42)]
    wanted = torch.stack([own.scores(own.C) for own in chance]).square().mean()
    in_file, mixed = (
        moments.shadow_scores(own, own.Z, 100, stream(0)).square().mean()
        for own in (Moments.of(X, Z, group, None, True), Moments.of(X, Z, group))
    )
    assert float(in_file / wanted) == pytest.approx(1, abs=0.4)
    assert float(wanted / mixed) > 10


def persons(share, n_rows=5, seed=0, by_labels=True):
    """Return rows of persons in random order; `share` of the variance is theirs."""
    order = torch.randperm(N, generator=stream(seed + 9))
    person = torch.arange(N)[order] // n_rows
    X = share**0.5 * noise(N, D, seed=seed + 1)[person]
    X += (1 - share) ** 0.5 * noise(N, D, seed=seed + 2)
    Z = noise(N, 1, seed=seed + 3)
    return X, Z + 1.5 * noise(N, 1, seed=seed + 4)[person] * by_labels, person


@pytest.mark.parametrize("share", [0.9, 0.98])
def test_persons_anywhere_in_a_file_have_near_copies(share):
    X, Z, person = persons(share)
    assert (near_copies(X, Z) or 0) > 0.3
    assert near_copies(X, Z, person) is None  # they are known


def test_columns_of_few_values_tell_no_near_copies():
    X, Z, _ = persons(0.98)
    X[:, ::2] = X[:, ::2].sign()
    assert (near_copies(X, Z) or 0) > 0.3
    assert near_copies(X.sign(), Z) is None


def test_near_copies_that_the_labels_do_not_treat_alike_do_no_harm():
    assert near_copies(*persons(0.98, by_labels=False)[:2]) is None


HONEST = {
    "noise": lambda X: X,
    "one factor": lambda X: X[:, :1] * X[0] + 0.01 * X,
    "heavy tails": lambda X: (3 * X).exp(),
    "rounded": lambda X: X.round(decimals=1),
    "clusters": lambda X: 9 * X[torch.arange(len(X)) % 7] + X,
    "derived": lambda X: torch.cat([X[:, :3], X[:, :3] ** 2, X[:, :1] * X[:, :3]], 1),
    "exact copies": lambda X: X[torch.arange(len(X)) // 3],
    "few columns": lambda X: X[:, :2],
    "few rows": lambda X: X[:150],
}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_rows_have_no_near_copies(kind):
    X = HONEST[kind](noise(N, D))
    Z = X[:, :1].abs() + X[:, 1:2] + 0.1 * noise(len(X), 1, seed=1)
    assert near_copies(X, Z) is None


def a_pass(X, Z, places, blocks=None):
    nothing = torch.zeros(X.shape[1], dtype=torch.bool)
    rows, group = torch.arange(len(X)), torch.arange(X.shape[1])
    at = Subject(rows, X, Z, group, nothing, blocks, places)
    return SelectionPass(at, PLAN, (0, "a", PLAN.stage))


def test_a_pass_goes_by_the_file_in_whatever_order_it_saw_the_rows():
    X, Z = in_time(D), in_time(1, seed=1) + noise(N, 1)
    order = torch.randperm(N, generator=stream(1))
    seen, unseen = (
        a_pass(X[order], Z[order], places) for places in (order, torch.arange(N))
    )
    assert seen.alike is not None
    assert unseen.alike is None
    assert torch.equal(order[seen.rows], torch.arange(N))
    assert float(seen.shadows.mean() / unseen.shadows.mean()) > 2
    told, untold = (one.choose() for one in (seen, unseen))
    assert told.report(torch.arange(D))["alike"] == vars(seen.alike)
    assert untold.report(torch.arange(D))["alike"] is None
    assert int(told.kept.sum()) < int(untold.kept.sum())


def test_rows_that_are_known_to_belong_together_tell_of_nothing_more():
    person = torch.arange(N) // 5
    X = noise(N // 5, D, seed=1)[person] + noise(N, D, seed=2)
    Z = noise(N // 5, 1, seed=3)[person] + noise(N, 1, seed=4)
    assert a_pass(X, Z, torch.arange(N)).alike is not None
    assert a_pass(X, Z, torch.arange(N), 999 - person).alike is None


def test_a_pass_looks_for_near_copies_once_the_order_says_nothing():
    X, Z, person = persons(0.98)
    assert (a_pass(X, Z, torch.arange(N)).near_copies or 0) > 0.9
    order = person.argsort()
    assert a_pass(X[order], Z[order], torch.arange(N)).near_copies is None
    assert a_pass(X, Z, None).near_copies is None  # nobody looks


def test_neighbours_of_known_blocks_may_be_alike():
    pairs = torch.arange(N) // 2
    X, Z = in_time(D, n=N // 2)[pairs], in_time(1, seed=1, n=N // 2)[pairs]
    order = torch.randperm(N, generator=stream(1))
    found = a_pass(X[order], Z[order], order, (N - pairs)[order])
    assert found.alike is not None
    assert torch.equal(found.seen.blocks, pairs)
