"""The loop and its steps: proximal and not, plateaus, rows held out, divergence."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from lessvfl.core import plans, solve
from lessvfl.core.network import MLP
from lessvfl.core.passes import gradients
from lessvfl.core.plans import Batches, FitPlan
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import (
    OPTIMIZERS,
    Plateau,
    Watch,
    fit_held_out,
    in_order,
    minimise,
    optimizer_step,
    prox_step,
)
from lessvfl.core.state import split_state
from lessvfl.errors import DivergenceError

CPU = torch.device("cpu")
F64 = torch.float64


def test_watch_names_the_first_step_and_the_one_to_blame():
    watch = Watch("train", ["party 'a'", "party 'a'", "the server", "the server"])
    good, bad = torch.ones(2), torch.tensor([1.0, float("nan")])
    watch.add(good, good)
    watch.check()
    watch.add(good, good)
    watch.add(good, bad)
    watch.add(bad, bad)
    with pytest.raises(DivergenceError, match=r"the server .*'train' at step 2"):
        watch.check()


# ------------------------------------------------------------------------------- steps


def a_leaf(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=F64).requires_grad_()


def test_the_gradient_of_what_has_no_part_is_zero():
    used, unused = a_leaf(2, 3), a_leaf(2)
    first, second = gradients((used**2).sum(), [used, unused])
    assert_close(first, 2 * used.detach())
    assert torch.equal(second, torch.zeros(2, dtype=F64))
    (along,) = gradients(used * 3, [used], torch.ones(2, 3, dtype=F64))
    assert torch.equal(along, torch.full((2, 3), 3, dtype=F64))


@pytest.mark.parametrize("step_size", [0.1, torch.tensor([0.1, 0.0], dtype=F64)])
def test_a_proximal_step_is_a_gradient_step_and_its_prox(step_size):
    w, b = a_leaf(2, 3, 4), a_leaf(2, 3)
    w0, b0 = w.detach().clone(), b.detach().clone()
    dw, db = a_leaf(2, 3, 4, seed=1).detach(), a_leaf(2, 3, seed=2).detach()
    penalty = GroupLasso(torch.tensor([2.0, 3.0], dtype=F64))
    prox_step([w, b], [dw, db], step_size, penalty, w)
    eta = torch.as_tensor(step_size, dtype=F64).expand(2)
    expected = penalty.prox(w0 - eta.view(2, 1, 1) * dw, eta)
    assert torch.allclose(w, expected, rtol=1e-12)
    assert torch.allclose(b, b0 - eta.view(2, 1) * db, rtol=1e-12)
    assert not torch.equal(w[0], w0[0])
    if not isinstance(step_size, float):
        assert torch.equal(w[1], w0[1])  # of step size 0: neither moved nor shrunk


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_steps_and_shrink_follows(name):
    w, alone = a_leaf(1, 3, 4), a_leaf(1, 3, 4)
    grad = a_leaf(1, 3, 4, seed=1).detach()
    penalty, eta = GroupLasso(torch.tensor([1.5], dtype=F64)), torch.tensor([0.3])
    optimizer_step(OPTIMIZERS[name]([alone], 0.3), [alone], [grad])
    moved = alone.detach().clone()
    seen = []

    def shrink():
        seen.append(w.detach().clone())
        assert not torch.is_grad_enabled()
        penalty.prox(w, eta)

    optimizer_step(OPTIMIZERS[name]([w], 0.3), [w], [grad], shrink)
    assert len(seen) == 1
    assert torch.equal(seen[0], moved)  # after the step, once
    assert torch.equal(w, penalty.prox(moved.clone(), eta))
    assert not torch.equal(w, moved)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
    ],
)
@pytest.mark.parametrize("decay", [None, 0.3])
def test_steps_are_those_of_torch(name, theirs, decay):
    ours, copies = ([a_leaf(1, 3, 4), a_leaf(1, 3)] for _ in range(2))
    first, second = OPTIMIZERS[name](ours, 0.1), theirs(copies, lr=0.1, fused=True)
    for seed in range(4):
        for group in (*first.param_groups, *second.param_groups):
            group["lr"] = 0.1 / (seed + 1)
            group["weight_decay"] = group["weight_decay"] if decay is None else decay
        grads = [a_leaf(*w.shape, seed=seed).detach() for w in ours]
        optimizer_step(first, ours, grads)
        optimizer_step(second, copies, grads)
    for own, other in zip(ours, copies, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-15, atol=1e-15)
    states = [split_state(each.state_dict()["state"]) for each in (first, second)]
    (state, values), (expected, theirs) = states
    assert values == theirs
    assert all(torch.equal(state[key], expected[key]) for key in state)


def test_the_state_of_an_optimiser_goes_out_and_in():
    w, other = a_leaf(1, 3), a_leaf(1, 3)
    first, second = OPTIMIZERS["adam"]([w], 0.1), OPTIMIZERS["adam"]([other], 0.1)
    for seed in range(3):
        optimizer_step(first, [w], [a_leaf(1, 3, seed=seed).detach()])
    with torch.no_grad():
        other.copy_(w)
    second.load_state_dict(second.state_dict() | {"state": first.state_dict()["state"]})
    for optimizer, param in ((first, w), (second, other)):
        optimizer_step(optimizer, [param], [torch.ones(1, 3, dtype=F64)])
    assert torch.equal(w, other)


# -------------------------------------------------------------------------------- loop


def test_every_batch_of_every_epoch_is_a_step_until_told_to_stop():
    x = torch.zeros(2, dtype=F64, requires_grad=True)
    batches = Batches(5, 2, 0, ("train",), "file")
    seen, epochs = [], []

    def loss(rows):
        seen.append((rows.start, rows.stop))
        return (x - torch.tensor([1.0, 2.0], dtype=F64)).square()

    def after_epoch(epoch, losses):
        epochs.append((epoch, len(losses)))
        assert not any(value.requires_grad for value in losses)
        return epoch == 2

    def update(grads):
        with torch.no_grad():
            x.sub_(0.5 * grads[0])

    minimise([x], loss, update, in_order(batches, CPU), 10, after_epoch)
    assert seen == [(0, 2), (2, 4), (4, 5)] * 2
    assert epochs == [(1, 3), (2, 3)]
    assert x.tolist() == [1.0, 2.0]  # each by its own gradient
    seen.clear()
    minimise([x], loss, update, in_order(batches, CPU), 0, after_epoch)
    assert seen == []


# ------------------------------------------------------------------------------ plateau


def follow(values, patience, tolerance=0.0, best=float("inf")):
    """Return after which value a plateau is reached, and which values improve."""
    plateau = Plateau(torch.tensor(best), patience, tolerance)
    improved = []
    for place, value in enumerate(values):
        improved.append(plateau.improves(torch.tensor(value)))
        if plateau.reached:
            return place, improved
    return None, improved


def test_a_plateau_is_patience_values_in_a_row_without_improvement():
    assert follow([3.0, 2.0, 2.5, 2.2, 1.0], 2) == (3, [True, True, False, False])
    assert follow([3.0, 2.0, 2.5, 1.9, 2.0, 1.8], 2)[0] is None
    assert follow([3.0, 2.0, 2.0], 1)[0] == 2  # as good is no better
    assert follow([5.0, 6.0], 2, best=4.0)[0] == 1  # against where it began


def test_an_improvement_counts_from_the_share_on():
    assert follow([1.0, 0.95, 0.93], 2, tolerance=0.1)[0] == 2
    assert follow([1.0, 0.85, 0.7], 2, tolerance=0.1)[0] is None
    # Against the best value, not the last that counted: small ones do not add up.
    assert follow([1.0, 0.95, 0.89], 2, tolerance=0.1)[0] == 2


def test_a_plateau_is_never_left():
    plateau = Plateau(torch.tensor(torch.inf), 1)
    assert plateau.improves(torch.tensor(1.0))
    assert not plateau.improves(torch.tensor(2.0))
    assert plateau.reached
    assert not plateau.improves(torch.tensor(0.1))
    assert plateau.reached


# ----------------------------------------------------------------------- rows held out


def regression(n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 4, generator=generator, dtype=F64)
    return X, X[:, :1] * 2 + 0.1 * torch.randn(n, 1, generator=generator)


def fit(plan):
    """Fit a line; return the network, how it began, and all losses held out."""
    X, Z = regression()
    net = MLP.create((4, 1), "none", 0, "net", F64, CPU)
    start = [param.detach().clone() for param in net.parameters()]
    scores: list[float] = []
    improves = solve.Plateau.improves

    def watched(plateau, now):
        scores.append(float(now))
        return improves(plateau, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve.Plateau, "improves", watched)
        held = fit_held_out(net, X, Z, plan, 0)
    return net, start, held, scores


def test_a_fit_ends_with_the_weights_that_predict_rows_held_out_best():
    plan = FitPlan(n_epochs=60, rate=0.5, batch_size=32, held_out=0.25, patience=5)
    net, _, held, scores = fit(plan)
    assert held.shape == (50,)
    assert float(held.mean()) == pytest.approx(min(scores))
    place = scores.index(min(scores))
    assert 0 < place < len(scores) - 1  # not simply the last epoch
    assert len(scores) == place + 1 + plan.patience
    assert float(net.input_weights[0, 0].detach()) == pytest.approx(2, abs=0.2)


def test_a_fit_that_helps_nobody_leaves_the_network_as_it_was():
    """A rate so large that every epoch is worse than the start."""
    plan = FitPlan(n_epochs=8, rate=1e3, batch_size=32, patience=2)
    net, start, _, scores = fit(plan)
    assert len(scores) == 2
    assert all(map(torch.equal, net.parameters(), start))


def test_steps_of_a_fit_are_larger_where_rows_are_many(monkeypatch):
    X, Z = regression(1000)
    net = MLP.create((4, 1), "none", 0, "net", F64, CPU)
    sizes: list[int] = []
    taken = plans.take

    def watched(table, rows):
        sizes.append(len(rows))
        return taken(table, rows)

    monkeypatch.setattr(solve, "take", watched)
    fit_held_out(net, X, Z, FitPlan(1, batch_size=32, held_out=0.2, most_steps=8), 0)
    assert set(sizes) == {200, 100}  # rows held out, and of eight steps
    assert sizes.count(100) == 2 * 8


def test_a_fit_holds_out_whole_blocks(monkeypatch):
    X, Z = regression(200)
    net = MLP.create((4, 1), "none", 0, "net", F64, CPU)
    blocks = torch.arange(200) // 8
    seen: list[torch.Tensor] = []
    taken = plans.take

    def watched(table, rows):
        seen.append(rows)
        return taken(table, rows)

    monkeypatch.setattr(solve, "take", watched)
    fit_held_out(net, X, Z, FitPlan(1, held_out=0.2), 0, blocks)
    held, rest = seen[0], seen[2]
    assert (len(held), len(rest)) == (40, 160)
    assert not torch.isin(blocks[held], blocks[rest]).any()
