"""The paper's stages: against other solvers, optimality, closed forms, and breaks."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.stacks import group_residual

from lessvfl import algorithm
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels, row_losses
from lessvfl.core.network import MLP
from lessvfl.core.party_data import PartyData
from lessvfl.core.passes import gradients
from lessvfl.core.plans import SelectPlan, TrainPlan, take
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import in_order
from lessvfl.errors import DivergenceError
from lessvfl.party import Party
from lessvfl.terms import Event
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties

CPU = torch.device("cpu")
F64 = torch.float64


def quiet(event):
    pass


def net_of(widths, activation="none", seed=0, name="net"):
    return MLP.create(widths, activation, seed, name, F64, CPU)


def table(n, d, seed=0, correlation=0.3):
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((n, 1))
    X = np.sqrt(1 - correlation) * rng.standard_normal((n, d))
    return torch.as_tensor(X + np.sqrt(correlation) * shared)


def plan(stage, n_epochs, step_size, lam, **more):
    return SelectPlan(stage, n_epochs, 10**6, "file", step_size, lam, **more)


def stage3(net, X, observe=quiet, who="party 'a'", membership=None, **more):
    """Run stage 3 as a party does."""
    told = plan("select_features", **more)
    return algorithm.select_features(
        net,
        algorithm.matching_loss(net, X, told),
        n_components=net.n_outputs,
        membership=membership,
        plan=told,
        schedule=in_order(told.batches(len(X), 0, who), CPU),
        observe=observe,
        who=who,
    )


def stage2(fusion, H, y, task, **more):
    """Run stage 2 as the server does."""
    told = plan("select_components", **more)
    return algorithm.select_components(
        fusion,
        lambda rows: row_losses(fusion(take(H, rows)), take(y, rows), task).mean(),
        told,
        in_order(told.batches(len(H), 0), CPU),
        quiet,
    )


def fista(gradient, lipschitz, lam, w, b, steps=4_000):
    """Solve min f(W, b) + lam * sum_j ||W[:, j]|| by plain FISTA, in numpy."""
    t, zw, zb = 1.0, w.copy(), b.copy()
    for _ in range(steps):
        gw, gb = gradient(zw, zb)
        new_w, new_b = zw - gw / lipschitz, zb - gb / lipschitz
        norms = np.linalg.norm(new_w, axis=0)
        new_w = new_w * np.maximum(1 - lam / lipschitz / np.maximum(norms, 1e-300), 0)
        new_t = (1 + np.sqrt(1 + 4 * t * t)) / 2
        momentum = (t - 1) / new_t
        zw, zb = new_w + momentum * (new_w - w), new_b + momentum * (new_b - b)
        w, b, t = new_w, new_b, new_t
    return w, b


def group_penalty(w):
    return np.linalg.norm(w, axis=0).sum()


def test_stage_3_of_a_linear_party_agrees_with_an_independent_solver():
    """Convex: one linear layer. Same support, objective equal to 1e-4."""
    X = table(400, 12)
    net = net_of((12, 4))
    with torch.no_grad():
        net.weights[0][:, ::3] *= 0.05  # weak features
        net.weights[0][:, 1] *= 3
    target = net(X).detach().numpy()
    w0, b0 = net.weights[0].detach().numpy(), net.biases[0].detach().numpy()
    x, lam = X.numpy(), 0.8
    lipschitz = 2 * np.linalg.eigvalsh(
        np.c_[x, np.ones(400)].T @ np.c_[x, np.ones(400)]
    )
    lipschitz = lipschitz.max() / 400

    def gradient(w, b):
        residual = x @ w.T + b - target
        return 2 * residual.T @ x / 400, 2 * residual.mean(axis=0)

    def objective(w, b):
        loss = np.square(x @ w.T + b - target).sum(axis=1).mean()
        return loss + lam * group_penalty(w)

    best_w, best_b = fista(gradient, lipschitz, lam, w0.copy(), b0.copy())
    kept = stage3(net, X, n_epochs=3000, step_size=1 / lipschitz, lam=lam)
    ours = objective(net.weights[0].detach().numpy(), net.biases[0].detach().numpy())
    assert ours == pytest.approx(objective(best_w, best_b), rel=1e-4)
    expected = np.linalg.norm(best_w, axis=0) > 0
    assert 0 < expected.sum() < 12
    assert kept.tolist() == expected.tolist()


def test_stage_2_agrees_with_an_independent_solver():
    """Convex: a linear fusion network with cross-entropy. Same support, 1e-4."""
    n, d, n_classes, lam = 300, 10, 4, 0.05
    H = table(n, d, seed=1)
    rng = np.random.default_rng(2)
    true = np.zeros((n_classes, d))
    true[:, :4] = rng.standard_normal((n_classes, 4))
    logits = H.numpy() @ true.T
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    fusion = net_of((d, n_classes))
    w0, b0 = fusion.weights[0].detach().numpy(), np.zeros(n_classes)
    x, truth = H.numpy(), np.eye(n_classes)[y]
    lipschitz = np.linalg.eigvalsh(np.c_[x, np.ones(n)].T @ np.c_[x, np.ones(n)]).max()
    lipschitz *= 0.5 / n

    def probabilities(w, b):
        z = x @ w.T + b
        z = np.exp(z - z.max(axis=1, keepdims=True))
        return z / z.sum(axis=1, keepdims=True)

    def gradient(w, b):
        residual = (probabilities(w, b) - truth) / n
        return residual.T @ x, residual.sum(axis=0)

    def objective(w, b):
        right = probabilities(w, b)[np.arange(n), y]
        return -np.log(right).mean() + lam * group_penalty(w)

    best_w, best_b = fista(gradient, lipschitz, lam, w0.copy(), b0.copy())
    told = {"n_epochs": 4000, "step_size": 1 / lipschitz, "lam": lam}
    kept = stage2(fusion, H, torch.as_tensor(y), "multiclass", **told)
    ours = objective(
        fusion.weights[0].detach().numpy(), fusion.biases[0].detach().numpy()
    )
    assert ours == pytest.approx(objective(best_w, best_b), rel=1e-4)
    expected = np.linalg.norm(best_w, axis=0) > 0
    assert 0 < expected.sum() < d
    assert kept.tolist() == expected.tolist()


def test_without_components_every_feature_goes_at_once_or_step_by_step():
    X = table(20, 3)
    empty = torch.zeros(2, dtype=torch.bool)
    settings = {"n_epochs": 1, "step_size": 0.01, "lam": 0.1}
    at_once = net_of((3, 2)).narrow(outputs=empty)
    assert not stage3(at_once, X, **settings).any()
    slow = net_of((3, 4, 2)).narrow(outputs=empty)
    before = slow.input_weights.norm(dim=0).detach().clone()
    assert stage3(slow, X, stepwise_removal=True, **settings).all()
    lost = before - slow.input_weights.norm(dim=0).detach()
    assert torch.allclose(lost, torch.full_like(lost, 0.001))


def test_a_plateau_ends_the_stage():
    X, step = table(50, 4), {"step_size": 0.05, "lam": 0.5}
    seen: list[Event] = []
    net, other = net_of((4, 2)), net_of((4, 2))
    stage3(net, X, seen.append, n_epochs=500, tolerance=1e-3, patience=3, **step)
    assert 3 < len(seen) < 500
    never: list[Event] = []
    stage3(other, X, never.append, n_epochs=len(seen), **step)
    assert len(never) == len(seen)
    assert torch.equal(net.input_weights, other.input_weights)


def test_a_loss_that_is_not_finite_names_who_stage_and_step():
    X = table(20, 3)
    with pytest.raises(DivergenceError, match=r"party 'a'.*'select_features' at step"):
        stage3(net_of((3, 4, 2)), X, n_epochs=400, step_size=1e4, lam=0.1)


# -------------------------------------------------------------------------- optimality


def residual_of(penalty, net, loss):
    """Return how far the input weights are from optimal, at all rows."""
    (gradient,) = gradients(loss(slice(None)), [net.input_weights])
    return group_residual(penalty, net.input_weights.detach(), gradient)


PAIRS = torch.eye(6, dtype=F64).repeat_interleave(2, dim=0)


@pytest.mark.parametrize("membership", [None, PAIRS], ids=["columns", "pairs"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("seed", "lam"), [(0, 0.5), (1, 0.9)])
def test_proximal_sgd_ends_where_the_optimality_condition_holds(
    membership, weighted, seed, lam
):
    """Convex: a linear network that matches its own start."""
    X = table(200, 12)
    net = net_of((12, 4), seed=seed)
    with torch.no_grad():
        net.weights[0][:, [0, 1, 6, 7, 9]] *= 0.05
    n_groups = 12 if membership is None else 6
    weights = torch.linspace(0.2, 2, n_groups, dtype=F64) if weighted else None
    penalty = GroupLasso(torch.tensor(lam, dtype=F64), membership, weights)
    told = plan("select_features", 1000, 0.1, lam)
    loss = algorithm.matching_loss(net, X, told)
    schedule = in_order(told.batches(200, seed), CPU)
    algorithm.prox_sgd(net, loss, penalty, told, schedule, quiet, "party 'a'")
    w = net.input_weights
    is_kept = penalty.norms(w.detach()) > 0
    assert 0 < is_kept.sum() < n_groups
    assert residual_of(penalty, net, loss).max() < 1e-6
    with torch.no_grad():
        solution = w.clone()
        w.mul_(1.01)
    assert (residual_of(penalty, net, loss)[is_kept] > 1e-3).all()
    with torch.no_grad():
        w.copy_(torch.where(solution == 0, 1e-6, solution))  # removed ones come back
    assert (residual_of(penalty, net, loss)[~is_kept] > 1e-3).all()


def test_stage_2_ends_where_the_optimality_condition_holds():
    H = table(500, 8, seed=1)
    y = (H[:, 0] - 2 * H[:, 3] > 0.3).double()
    fusion = net_of((8, 1))
    kept = stage2(fusion, H, y, "binary", n_epochs=1000, step_size=1.5, lam=0.05)
    assert 0 < kept.sum() < 8
    penalty = GroupLasso(torch.tensor(0.05, dtype=F64))

    def loss(rows):
        return row_losses(fusion(take(H, rows)), take(y, rows), "binary").mean()

    assert residual_of(penalty, fusion, loss).max() < 1e-6
    other = GroupLasso(torch.tensor(0.06, dtype=F64))
    assert residual_of(other, fusion, loss)[kept].min() > 1e-3


# -------------------------------------------------------------- adaptive group weights


def whitened(n, d):
    """Return columns of mean 0 with X'X = n I, so that stage 3 has a closed form."""
    X = table(n, d)
    q, _ = torch.linalg.qr(X - X.mean(dim=0))
    return q * n**0.5


def sized(norms):
    """Return a linear network whose input groups have these norms."""
    net = net_of((len(norms), 3))
    with torch.no_grad():
        net.weights[0].mul_(torch.tensor(norms, dtype=F64) / net.weights[0].norm(dim=0))
    return net


@pytest.mark.parametrize("adaptive", [0.0, 0.5, 1.0, 2.0])
def test_stage_3_subtracts_half_of_lambda_by_weight_from_every_norm(adaptive):
    """Closed form with X'X = n I: |w_j| = (n_j - lam weight_j / 2)+."""
    norms, lam = [0.3, 0.5, 1.0, 1.1, 2.0], 1.2
    net = sized(norms)
    kept = stage3(
        net,
        whitened(100, 5),
        n_epochs=200,
        step_size=0.4,
        lam=lam,
        adaptive=adaptive,
    )
    weights = (torch.tensor(norms, dtype=F64) / 1.0) ** -adaptive  # 1.0: the middle one
    expected = torch.relu(torch.tensor(norms, dtype=F64) - lam * weights / 2)
    found = net.input_weights.norm(dim=0).detach()
    assert torch.allclose(found, expected, atol=1e-9)
    assert torch.equal(kept, expected > 0)


def test_the_smaller_a_group_after_pretraining_the_more_it_is_penalised():
    for norms in ([0.1, 0.5, 1.0, 4.0, 9.0], [2.0, 4.0, 6.0, 8.0, 10.0]):
        weights = algorithm.adaptive_weights(torch.tensor(norms), 1.0)
        assert (weights.diff() < 0).all()
        assert weights[2] == 1.0  # the middle one
        stronger = algorithm.adaptive_weights(torch.tensor(norms), 2.0)
        assert torch.allclose(stronger, weights.square())
    extreme = algorithm.adaptive_weights(torch.tensor([0.0, 1.0, 1e9]), 1.0)
    assert extreme.tolist() == pytest.approx([20.0, 1.0, 0.05])


def test_an_exponent_of_zero_is_the_plain_penalty_to_the_bit(monkeypatch):
    X = table(60, 5)
    settings = {"n_epochs": 40, "step_size": 0.05, "lam": 0.7}
    assert torch.equal(algorithm.adaptive_weights(torch.rand(7), 0.0), torch.ones(7))
    plain, weighted, adaptive = (net_of((5, 3)) for _ in range(3))
    kept = stage3(plain, X, **settings)
    assert 0 < kept.sum() < 5
    stage3(adaptive, X, adaptive=1.0, **settings)
    monkeypatch.setattr(algorithm, "adaptive_weights", lambda n, p: torch.ones_like(n))
    stage3(weighted, X, adaptive=1.0, **settings)
    assert torch.equal(plain.input_weights, weighted.input_weights)
    assert not torch.equal(plain.input_weights, adaptive.input_weights)


# --------------------------------------------------------------- going on after a break


class Notebook(Keeper):
    """Keeps what a run says of itself, so that another can go on from stage 3."""

    def __init__(self, made: dict[str, Party]) -> None:
        self.made = made
        self.said: list[tuple[str, int]] = []
        self.over: dict[str, Any] = {}  # what stages made
        self.behind: dict[str, Any] = {}  # the same of an earlier run
        self.states: dict[str, Any] = {}

    def enter(self, stage, kind):
        return self.behind.get(stage)

    def reached(self, stage, step, n_steps, state):
        self.said.append((stage, step))
        if step == n_steps:
            self.over[stage] = copy.deepcopy(state())
        if stage == "select_features":
            self.states = copy.deepcopy({n: p.state for n, p in self.made.items()})


def two_parties():
    found = {}
    for seed, name in enumerate("ab"):
        X = table(40, 4, seed=seed)
        own = PartyData(X, X[:5], torch.arange(4))
        found[name] = Party(name, net_of((4, 3), name=name), own, 0)
    return found


def train_plan(stage):
    return TrainPlan(stage, 2, 20, "shuffle", "adam", 0.05)


STAGES = algorithm.Stages(
    train_plan("pretrain"),
    plan("select_components", 30, 0.2, 0.05),
    plan("select_features", 30, 0.05, 0.8),
    train_plan("train"),
)


def run_less_vfl(made, keeper, stages=STAGES):
    handlers = {name: party.handle for name, party in made.items()}
    parties = Parties(InProcess(handlers), list(made), Ledger())
    if isinstance(keeper, Notebook) and keeper.behind:
        for name, party in made.items():
            party.resume(keeper.states[name])
        mask = keeper.behind["select_components"].kept
        kept = [int(mask[m * 3 : m * 3 + 3].sum()) for m in range(2)]
        parties.sizes = dict(zip(made, kept, strict=True))
    y = (table(40, 4)[:, 0] > 0).double()
    seen: list[Event] = []
    labels = Labels(y, "binary", 0)
    fusion = algorithm.less_vfl(
        parties, net_of((6, 1), name="server"), labels, stages, seen.append, keeper
    )
    return fusion, seen, parties


def test_a_run_that_goes_on_after_stage_3_ends_as_one_without_a_break():
    made = two_parties()
    first = Notebook(made)
    whole, events, _ = run_less_vfl(made, first)
    assert [stage for stage, _ in first.said] == [
        *["pretrain"] * 4,
        "select_components",
        "select_features",
        *["train"] * 4,
    ]
    assert 0 < first.over["select_components"].kept.sum() < 6
    assert not all(bool(party.kept.all()) for party in made.values())
    second = Notebook(two_parties())
    second.states = first.states
    second.behind = {s: made for s, made in first.over.items() if s != "train"}
    rest, later, _ = run_less_vfl(second.made, second)
    assert [stage for stage, _ in second.said] == ["train"] * 4
    assert [(e.stage, e.epoch) for e in later] == [("train", n) for n in (0, 1, 2)]
    assert [event.stage for event in events[-2:]] == ["train", "train"]
    for mine, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for name, party in made.items():
        other = second.made[name]
        for a, b in zip(party.net.parameters(), other.net.parameters(), strict=True):
            assert torch.equal(a, b)


def test_without_stage_2_all_components_stay_and_a_pass_is_charged():
    local = dataclasses.replace(STAGES, server=None)
    fusion, events, parties = run_less_vfl(two_parties(), Keeper(), local)
    assert parties.sizes == {"a": 3, "b": 3}
    assert fusion.input_weights.shape[1] == 6
    assert {event.stage for event in events} == {"pretrain", "select_features", "train"}
    _, _, ours = run_less_vfl(two_parties(), Keeper())
    assert ours.ledger.by_stage()["embed"]["rounds"] == 1
    assert "embed" not in parties.ledger.by_stage()
    n_epochs = 2 + 1 + 2  # the stored pass is in the paper's figure all the same
    assert parties.ledger.paper_mib == n_epochs * 40 * 6 * 4 / 2**20


def test_no_epochs_are_no_messages():
    nothing = dataclasses.replace(STAGES.pretrain, n_epochs=0)
    none = dataclasses.replace(STAGES, pretrain=nothing)
    _, events, parties = run_less_vfl(two_parties(), Keeper(), none)
    assert "pretrain" not in parties.ledger.by_stage()
    assert events[0].stage == "embed"
