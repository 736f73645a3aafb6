"""One conformance suite over every method: seeds, collapse, bills, groups."""

import dataclasses
import functools
import warnings

import numpy as np
import pytest
import torch
from tests.conftest import PUBLISHED
from torch import nn

from lessvfl import data, methods
from lessvfl.core.solve import OPTIMIZERS
from lessvfl.errors import LessVFLWarning
from lessvfl.methods.base import LAM_SHARE
from lessvfl.run import profiles, simulate
from lessvfl.run.build import Networks
from lessvfl.run.simulate import Job
from lessvfl.settings import fields_of

SMALL = PUBLISHED | {
    "split": "stratified",
    "train_epochs": 2,
    "pretrain_epochs": 2,
    "party_epochs": 25,
    "server_epochs": 25,
    "joint_epochs": 4,
    "batch_size": 50,
    "hidden": 12,
    "embedding_size": 4,
    "dtype": "float64",
    "party_step_size": 0.02,
}
OF_TREES = {"trees": 20, "select_trees": 8, "particles": 4, "swarm_rounds": 3}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LessVFLWarning)
        yield


def make_data(task="binary", n=160, d=12, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    score = X[:, 0] - 2 * X[:, 4] + X[:, 8] * X[:, 0]
    if task == "binary":
        y = (score > 0).astype(int)
    elif task == "multiclass":
        y = np.digitize(score, [-1, 1])
    else:
        y = score
    return data.from_arrays(X, y, task=task)


def job_of(method, profile="default", task="binary", **overrides):
    dataset = make_data(task)
    fields = fields_of(profiles.sections(method))
    chosen = {
        k: v for k, v in {**SMALL, **OF_TREES, **overrides}.items() if k in fields
    }
    if method in ("less-vfl-auto", "auto-boost"):
        chosen |= {"pretrain_batch_size": 50, "shadows": 20}
    settings = profiles.resolve(method, profile, dataset, chosen)
    return Job(dataset, settings, parties=3, spurious=0.5)


def assert_same_run(one, other):
    a, b = one.numbers, other.numbers
    assert a["features"] == b["features"]
    assert a["components"] == b["components"]
    assert a["communication"] == b["communication"]
    assert one.bill == other.bill
    assert a["curve"] == b["curve"]
    for party, same in zip(one.model.parties, other.model.parties, strict=True):
        for name, tensor in party.net.state().items():
            assert torch.equal(tensor, same.net.state()[name])
    for name, tensor in one.model.fusion.state().items():
        assert torch.equal(tensor, other.model.fusion.state()[name])


@pytest.mark.parametrize(
    ("method", "profile"),
    [
        *((method, "default") for method in methods.METHODS),
        ("less-vfl", "official-code"),
        ("group-lasso", "official-code"),
    ],
)
def test_seeds_one_after_the_other_are_as_each_alone(method, profile):
    """Same support, same bill, same numbers; a run leaves nothing behind."""
    lam = 8.0 if method in ("group-lasso", "vflfs") else 0.9  # removes some features
    lambdas = {"lam_party": lam, "lam_server": 0.02, "lam_scale": 1.0}
    job = job_of(method, profile, **lambdas, components_per_column=None)
    supports = set()
    for seed, run in zip([0, 2, 7], simulate.simulate(job, [0, 2, 7]), strict=True):
        if seed:  # the first has nothing before it
            assert_same_run(run, *simulate.simulate(job, [seed]))
        supports.add(str(run.numbers["features"]))
    if method != "plain":
        assert len(supports) > 1


@pytest.mark.parametrize(
    ("lam_party", "lam_server", "keeps"),
    [(0.0, 0.0, True), (50.0, 0.05, False), (1.0, 50.0, False)],
)
def test_runs_that_remove_nothing_or_everything_end(lam_party, lam_server, keeps):
    job = job_of("less-vfl", lam_party=lam_party, lam_server=lam_server, lam_scale=1.0)
    (run,) = simulate.simulate(job, [0])
    for party in run.numbers["features"].values():
        assert bool(party["kept"]) is keeps
        assert bool(party["removed"]) is not keeps


@pytest.mark.parametrize("method", ["less-vfl-auto", "less-vfl", "group-lasso"])
def test_a_run_is_deterministic(method):
    first, second = (simulate.simulate(job_of(method), [3])[0] for _ in range(2))
    a, b = dict(first.numbers), dict(second.numbers)
    a.pop("seconds"), b.pop("seconds")
    assert a == b


def test_lambda_server_zero_keeps_all_components_and_selects_as_local_lasso():
    (ours,) = simulate.simulate(job_of("less-vfl", lam_server=0.0, lam_party=1.0), [0])
    (local,) = simulate.simulate(job_of("local-lasso", lam_party=1.0), [0])
    assert all(c["kept"] == c["of"] for c in ours.numbers["components"].values())
    kept = ours.numbers["features"]
    assert kept == local.numbers["features"]
    assert any(party["removed"] for party in kept.values())
    assert any(party["kept"] for party in kept.values())


def test_adaptive_weights_remove_what_pretraining_left_small():
    """At one lambda: small groups go that stayed, large ones come back."""
    (start,) = simulate.simulate(job_of("less-vfl", lam_party=0.0, train_epochs=0), [0])
    before = start.numbers["importance"]
    kept = {}
    for adaptive in (0.0, 1.0, 3.0):
        job = job_of("less-vfl", lam_party=1.0, adaptive=adaptive)
        (run,) = simulate.simulate(job, [0])
        kept[adaptive] = {
            (party, name)
            for party, features in run.numbers["features"].items()
            for name in features["kept"]
        }

    def mean_rank(names):
        """Return the mean place of features among their party's, by size; 0: least."""
        ranks = {
            (party, name): place
            for party, norms in before.items()
            for place, name in enumerate(sorted(norms, key=norms.__getitem__))
        }
        return sum(ranks[name] for name in names) / len(names)

    gone, back = kept[0.0] - kept[3.0], kept[3.0] - kept[0.0]
    assert gone
    assert back
    assert mean_rank(gone) < mean_rank(back)
    assert mean_rank(kept[0.0]) < mean_rank(kept[1.0]) < mean_rank(kept[3.0])


def test_group_lasso_at_lambda_zero_is_plain_vfl():
    lasso = job_of(
        "group-lasso",
        lam_party=0.0,
        joint_epochs=3,
        train_epochs=0,
        row_order="file",
        optimizer="sgd",
    )
    plain = job_of("plain", train_epochs=3, row_order="file", optimizer="sgd")
    (one,), (other,) = simulate.simulate(lasso, [0]), simulate.simulate(plain, [0])
    for party, same in zip(one.model.parties, other.model.parties, strict=True):
        for name, tensor in party.net.state().items():
            assert torch.equal(tensor, same.net.state()[name])


def test_plain_vfl_is_sgd_on_the_joint_network():
    job = job_of("plain", train_epochs=3, row_order="file", optimizer="sgd")
    (start,) = simulate.simulate(job_of("plain", train_epochs=0), [0])
    (run,) = simulate.simulate(job, [0])
    nets = [party.net for party in start.model.parties]
    fusion = start.model.fusion
    params = [p for net in [*nets, fusion] for p in net.parameters()]
    problem = run.problem
    X = [torch.as_tensor(table.X_train) for table in problem.parties]
    y = torch.as_tensor(problem.y_train).double()
    for _ in range(3):
        for begin in range(0, len(y), 50):
            rows = slice(begin, begin + 50)
            blocks = [net(x[rows]) for net, x in zip(nets, X, strict=True)]
            z = fusion(torch.cat(blocks, dim=1))[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(z, y[rows])
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for param, grad in zip(params, grads, strict=True):
                    param -= 0.01 * grad
    for party, net in zip(run.model.parties, nets, strict=True):
        for name, tensor in party.net.state().items():
            assert torch.allclose(tensor, net.state()[name], rtol=1e-9, atol=1e-12)


def test_proximal_adam_removes_where_proximal_sgd_does():
    job = job_of("group-lasso", optimizer="adam", lam_party=2.0, joint_epochs=20)
    (run,) = simulate.simulate(job, [0])
    removed = [p["removed_share"] for p in run.numbers["curve"]]
    assert removed[0] < removed[-1]
    assert run.numbers["accuracy"]["pretrained"] is None
    assert run.numbers["accuracy"]["selected"] is not None


@functools.cache
def trained(optimizer):
    rate = 0.5 if optimizer == "sgd" else 0.02
    more = {"optimizer": optimizer, "learning_rate": rate, "train_epochs": 25}
    (run,) = simulate.simulate(job_of("plain", **more), [0])
    return run


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_optimiser_trains(optimizer):
    """Of two classes of about equal size nearly all training rows are right."""
    run = trained(optimizer)
    assert 0.4 < run.problem.y_train.mean() < 0.6
    assert run.numbers["curve"][-1]["train_accuracy"] > 0.93
    assert run.numbers["accuracy"]["final"] > 0.8
    if optimizer != "adam":  # each in its own way
        weights = run.model.parties[0].net.input_weights
        assert not torch.equal(
            weights, trained("adam").model.parties[0].net.input_weights
        )


def test_columns_of_one_category_are_kept_or_removed_as_one():
    rng = np.random.default_rng(0)
    import pandas as pd

    frame = pd.DataFrame(
        {
            "colour": rng.choice(["red", "green", "blue"], 200),
            "shape": rng.choice(["round", "square"], 200),
            "size": rng.standard_normal(200),
            "age": rng.standard_normal(200),
        }
    )
    y = (frame["colour"] == "red").astype(int).to_numpy()
    dataset = data.from_arrays(frame, y)
    chosen = {k: v for k, v in SMALL.items() if k != "joint_epochs"}
    parties = {"a": ["colour", "age"], "b": ["shape", "size"]}
    sizes = set()
    for lam in (0.0, 0.2, 0.5, 1.0, 50.0):
        lambdas = {"lam_party": lam, "lam_server": 0.01}
        settings = profiles.resolve("less-vfl", "default", dataset, chosen | lambdas)
        (run,) = simulate.simulate(Job(dataset, settings, parties), [0])
        party = run.model.parties[0]
        width = party.net.input_weights.shape[1]
        assert width == 3 * ("colour" in party.kept) + ("age" in party.kept)
        sizes.add(width)
    assert {0, 4} <= sizes


def residual(n_in, n_out):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(n_in, 8)
            self.inner = nn.Linear(8, 8)
            self.last = nn.Linear(8, n_out)

        def forward(self, x):
            h = torch.tanh(self.first(x))
            return self.last(h + torch.tanh(self.inner(h)))

    return Net()


def convolutional(n_in, n_out):
    return nn.Sequential(
        nn.Unflatten(1, (n_in // 2, 2)),
        nn.Conv1d(n_in // 2, 6, kernel_size=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6, n_out),
    )


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out))


def deeper_fusion(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 5), nn.Tanh(), nn.Linear(5, n_out))


@pytest.mark.parametrize("factory", [residual, convolutional])
def test_modules_of_the_user_run_whole(factory):
    job = dataclasses.replace(
        job_of("less-vfl", lam_party=0.9, lam_server=0.02),
        networks=Networks(factory, deeper_fusion),
    )
    run, other = simulate.simulate(job, [0, 1])
    assert_same_run(other, *simulate.simulate(job, [1]))
    removed = [p["removed"] for p in run.numbers["features"].values()]
    assert any(removed)
    if factory is convolutional:  # a channel takes two columns, so features go in pairs
        assert all(len(names) % 2 == 0 for names in removed)


def test_a_network_for_each_party():
    job = job_of("plain")
    nets = {"party0": mlp, "party1": residual(6, 4).double()}
    job = Job(
        job.dataset,
        job.settings,
        parties=3,
        spurious=0.5,
        networks=Networks(nets),
    )
    (run,) = simulate.simulate(job, [0])
    kinds = [type(party.net).__name__ for party in run.model.parties]
    assert kinds == ["Lifted", "Lifted", "MLP"]


def test_a_batch_larger_than_the_rows_is_one_full_batch():
    with pytest.warns(LessVFLWarning, match="there are only 128: every"):
        (run,) = simulate.simulate(job_of("plain", batch_size=999), [0])
    assert run.numbers["communication"]["rounds"] == 2 + 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_gpu_selects_what_the_cpu_selects():
    for seed, lam_party, lam_server in ((0, 0.4, 0.02), (1, 0.8, 0.2)):
        job = job_of("less-vfl", lam_party=lam_party, lam_server=lam_server)
        on_gpu = dataclasses.replace(job, device="cuda")
        (one,), (other,) = (simulate.simulate(j, [seed]) for j in (job, on_gpu))
        assert one.numbers["features"] == other.numbers["features"]
        assert one.bill == other.bill


def test_parameters_without_a_part_and_frozen_ones_stay_as_they_are():
    class Net(nn.Module):
        def __init__(self, n_in, n_out):
            super().__init__()
            self.first = nn.Linear(n_in, 8)
            self.unused = nn.Linear(3, 3)
            self.last = nn.Linear(8, n_out)
            self.last.weight.requires_grad_(False)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))

    job = job_of("less-vfl", lam_party=0.0, lam_server=0.0)
    networks = Networks(Net)
    job = Job(job.dataset, job.settings, parties=3, spurious=0.5, networks=networks)
    (run,) = simulate.simulate(job, [0])
    (start,) = simulate.simulate(
        Job(
            job.dataset,
            job_of("plain", train_epochs=0).settings,
            parties=3,
            spurious=0.5,
            networks=networks,
        ),
        [0],
    )
    now, before = (r.model.parties[0].net.state() for r in (run, start))
    assert torch.equal(now["unused.weight"], before["unused.weight"])
    assert torch.equal(now["last.weight"], before["last.weight"])
    assert not torch.equal(now["first.weight"], before["first.weight"])


@pytest.mark.parametrize(("task", "n_rows"), [("binary", 400), ("regression", 120)])
def test_the_default_of_local_lasso_keeps_what_matters(task, n_rows):
    """Its lambda is a share of the one that removes everything, on any scale."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 12))
    z = X[:, [0, 3, 8]] @ [1.5, -1.0, 1.2]
    y = z if task == "regression" else (z > 0).astype(int)
    dataset = data.from_arrays(X, y, task=task)
    few = {"train_epochs": 1, "split": "stratified"}
    settings = profiles.resolve("local-lasso", "default", dataset, few)
    (run,) = simulate.simulate(simulate.Job(dataset, settings, parties=2), [0])
    kept = [name for own in run.numbers["features"].values() for name in own["kept"]]
    assert {"x0", "x3", "x8"} <= set(kept)
    assert len(kept) < 12


def test_beyond_the_largest_lambda_nothing_is_left():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 8))
    # The share is of no scale, whatever that of the labels.
    dataset = data.from_arrays(X, 100 * X[:, 0] + X[:, 4], task="regression")
    for share, is_empty in ((1.2, True), (0.3, False)):
        few = {"train_epochs": 1, "lam_scale": share / LAM_SHARE, "split": "stratified"}
        settings = profiles.resolve("local-lasso", "default", dataset, few)
        (run,) = simulate.simulate(simulate.Job(dataset, settings, parties=2), [0])
        kept = [own["kept"] for own in run.numbers["features"].values()]
        assert any(kept) != is_empty
