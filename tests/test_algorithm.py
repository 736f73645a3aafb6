import numpy as np
import pytest
import torch
from torch import Tensor

from lessvfl import algorithm
from lessvfl.core.head_path import PathPlan, _head_path, choose_components
from lessvfl.core.losses import proxy_loss, risk
from lessvfl.core.network import MLP
from lessvfl.core.plans import Batches, Labels, SelectPlan, take
from lessvfl.core.solve import Watch
from lessvfl.errors import DivergenceError
from lessvfl.terms import Event, Task

CPU = torch.device("cpu")
F64 = torch.float64


def quiet(event):
    pass


def net_of(widths, activation="none", seeds=(0,), name="net"):
    return MLP.create(widths, activation, seeds, name, F64, CPU)


def table(n, d, seed=0, correlation=0.3):
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((n, 1))
    X = np.sqrt(1 - correlation) * rng.standard_normal((n, d))
    return torch.as_tensor(X + np.sqrt(correlation) * shared)


def plan(stage, n_epochs, step_size, lam, **more):
    return SelectPlan(stage, n_epochs, 10**6, False, step_size, lam, **more)


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
        net.weights[0][:, :, ::3] *= 0.05  # weak features
        net.weights[0][:, :, 1] *= 3
    target = net(X[None])[0].detach().numpy()
    w0, b0 = net.weights[0][0].detach().numpy(), net.biases[0][0].detach().numpy()
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
    kept = algorithm.select_features(
        net,
        X[None],
        None,
        plan("select_features", 3000, 1 / lipschitz, (lam,)),
        (0,),
        quiet,
        "party",
    )
    ours = objective(
        net.weights[0][0].detach().numpy(), net.biases[0][0].detach().numpy()
    )
    assert ours == pytest.approx(objective(best_w, best_b), rel=1e-4)
    expected = np.linalg.norm(best_w, axis=0) > 0
    assert 0 < expected.sum() < 12
    assert kept[0].tolist() == expected.tolist()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_stage_2_agrees_with_an_independent_solver(n_classes):
    """Convex: a linear fusion network with cross-entropy. Same support, 1e-4."""
    n, d, lam = 500, 10, 0.02 if n_classes == 2 else 0.05
    H = table(n, d, seed=1)
    rng = np.random.default_rng(2)
    true = np.zeros((n_classes, d))
    true[:, :4] = rng.standard_normal((n_classes, 4))
    logits = H.numpy() @ true.T
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    n_out = 1 if n_classes == 2 else n_classes
    fusion = net_of((d, n_out))
    w0, b0 = fusion.weights[0][0].detach().numpy(), np.zeros(n_out)
    x = H.numpy()
    lipschitz = np.linalg.eigvalsh(np.c_[x, np.ones(n)].T @ np.c_[x, np.ones(n)]).max()
    lipschitz *= (0.25 if n_classes == 2 else 0.5) / n

    def probabilities(w, b):
        z = x @ w.T + b
        if n_classes == 2:
            return 1 / (1 + np.exp(-z))
        z = np.exp(z - z.max(axis=1, keepdims=True))
        return z / z.sum(axis=1, keepdims=True)

    truth = y[:, None].astype(float) if n_classes == 2 else np.eye(n_classes)[y]

    def gradient(w, b):
        residual = (probabilities(w, b) - truth) / n
        return residual.T @ x, residual.sum(axis=0)

    def objective(w, b):
        p = probabilities(w, b)
        right = (
            p[np.arange(n), y]
            if n_classes > 2
            else np.where(y == 1, p[:, 0], 1 - p[:, 0])
        )
        return -np.log(right).mean() + lam * group_penalty(w)

    best_w, best_b = fista(gradient, lipschitz, lam, w0.copy(), b0.copy())
    task: Task = "binary" if n_classes == 2 else "multiclass"
    labels = torch.as_tensor(y)[None]
    labels = labels.double() if n_classes == 2 else labels
    kept = algorithm.select_components(
        fusion,
        H[None],
        Labels(labels, task, (0,)),
        plan("select_components", 4000, 1 / lipschitz, (lam,)),
        quiet,
    )
    ours = objective(
        fusion.weights[0][0].detach().numpy(), fusion.biases[0][0].detach().numpy()
    )
    assert ours == pytest.approx(objective(best_w, best_b), rel=1e-4)
    expected = np.linalg.norm(best_w, axis=0) > 0
    assert 0 < expected.sum() < d
    assert kept[0].tolist() == expected.tolist()


def test_risk_is_what_pytorch_computes():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 7, 1, generator=generator, dtype=F64)
    y = torch.randint(0, 2, (2, 7), generator=generator).double()
    losses = risk(z, y, "binary")
    for r in range(2):
        expected = torch.nn.BCEWithLogitsLoss()(z[r, :, 0], y[r])
        assert losses[r] == pytest.approx(float(expected))
    squares = risk(z, y, "regression")
    assert squares[1] == pytest.approx(float(torch.nn.MSELoss()(z[1, :, 0], y[1])))
    z = torch.randn(2, 7, 3, generator=generator, dtype=F64)
    y = torch.randint(0, 3, (1, 7), generator=generator)
    losses = risk(z, y, "multiclass")
    expected = torch.nn.CrossEntropyLoss()(z[1], y[0])
    assert losses[1] == pytest.approx(float(expected))


def test_the_proxy_sums_over_components_or_averages_them():
    h, target = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    assert proxy_loss(h, target, 1).tolist() == [3.0]
    assert proxy_loss(h, target, torch.tensor([3])).tolist() == [1.0]


def stage3(net, X, **more):
    arguments = plan("select_features", **more)
    seeds = tuple(range(net.n_replicas))
    return algorithm.select_features(net, X, None, arguments, seeds, quiet, "party 'a'")


def test_without_components_every_feature_goes_at_once_or_drains_step_by_step():
    X = table(20, 3)[None]
    empty = torch.zeros(1, 2, dtype=torch.bool)
    settings = {"n_epochs": 1, "step_size": 0.01, "lam": (0.1,)}
    at_once = net_of((3, 2)).narrow(outputs=empty)
    assert not stage3(at_once, X, **settings).any()
    draining = net_of((3, 4, 2)).narrow(outputs=empty)
    before = draining.input_weights.norm(dim=1).detach().clone()
    assert stage3(draining, X, drain=True, **settings).all()
    lost = before - draining.input_weights.norm(dim=1).detach()
    assert torch.allclose(lost, torch.full_like(lost, 0.001))


def test_a_plateau_stops_each_replica_on_its_own():
    X = table(50, 4)[None]
    seen: list[Event] = []
    net = net_of((4, 2), seeds=(0, 1))
    arguments = plan(
        "select_features", 500, 0.05, (0.0, 0.5), tolerance=1e-3, patience=3
    )
    algorithm.select_features(net, X, None, arguments, (0, 1), seen.append, "party 'a'")
    assert 3 < len(seen) < 500
    alone = net_of((4, 2), seeds=(1,))
    arguments = plan("select_features", 500, 0.05, (0.5,), tolerance=1e-3, patience=3)
    algorithm.select_features(
        alone, X, None, arguments, (1,), lambda event: None, "party 'a'"
    )
    assert torch.allclose(net.weights[0][1], alone.weights[0][0], rtol=1e-9)
    never: list[Event] = []
    other = net_of((4, 2))
    arguments = plan("select_features", 30, 0.05, (0.5,))
    algorithm.select_features(
        other, X, None, arguments, (0,), never.append, "party 'a'"
    )
    assert len(never) == 30


def test_a_loss_that_is_not_finite_names_who_stage_and_step():
    X = table(20, 3)[None]
    with pytest.raises(DivergenceError, match=r"party 'a'.*'select_features' at step"):
        stage3(net_of((3, 4, 2)), X, n_epochs=400, step_size=1e4, lam=(0.1,))


def test_watch_names_the_first_step_and_the_one_to_blame():
    watch = Watch("train", ["party 'a'", "the server"])
    good, bad = torch.ones(2, 1), torch.tensor([[1.0], [float("nan")]])
    watch.look(good, good)
    watch.check()
    watch.look(good, good)
    watch.look(good, bad)
    watch.look(bad, bad)
    with pytest.raises(DivergenceError, match=r"the server .*'train' at step 2"):
        watch.check()


def shuffled(batches, epoch):
    rows = batches.epoch(epoch, CPU)
    assert all(isinstance(some, Tensor) for some in rows)
    return torch.cat(rows, dim=1)


def test_batches_cover_every_row_once_an_epoch():
    batches = Batches(10, 4, (3, 4), ("train",), True)
    assert batches.n_per_epoch == 3
    rows = shuffled(batches, 0)
    assert rows.shape == (2, 10)
    assert rows.sort().values.tolist() == [list(range(10))] * 2
    assert rows[0].tolist() != rows[1].tolist()
    again = shuffled(batches, 0)
    assert torch.equal(rows, again)
    assert not torch.equal(rows, shuffled(batches, 1))
    fixed = Batches(10, 4, (3, 4), ("train",), False)
    assert fixed.epoch(0, CPU) == [slice(0, 4), slice(4, 8), slice(8, 10)]


@pytest.mark.parametrize(
    ("n_epochs", "n_steps"), [(0, 0), (0.01, 1), (0.5, 2), (1, 3), (2.5, 8)]
)
def test_fractional_epochs_are_steps(n_epochs, n_steps):
    batches = Batches(10, 4, (0,), ("train",), False)
    assert batches.n_steps(n_epochs) == n_steps
    assert len(list(batches.steps(n_epochs, CPU))) == n_steps


def test_take_picks_rows_of_every_replica():
    shared = torch.arange(12.0).view(1, 4, 3)
    own = torch.stack([shared[0], -shared[0]])
    rows = torch.tensor([[1, 0], [3, 2]])
    assert torch.equal(take(own, rows)[1], -shared[0, [3, 2]])
    assert torch.equal(take(shared, rows)[1], shared[0, [3, 2]])
    assert torch.equal(take(own, rows[:1])[1], -shared[0, [1, 0]])
    assert torch.equal(take(own, slice(1, 3)), own[:, 1:3])


# ----------------------------------------------------- components along a path, stage 2


def head_data(task, strength=2.0, seed=0):
    """Return embeddings (1, 600, 6) of which 1 and 4 matter, and labels (1, 600)."""
    generator = torch.Generator().manual_seed(seed)
    H = torch.randn(1, 600, 6, generator=generator)
    score = strength * (H[0, :, 1] - H[0, :, 4])
    score = score + 0.5 * torch.randn(600, generator=generator)
    if task == "binary":
        return H, (score > 0).float()[None]
    if task == "multiclass":
        return H, torch.bucketize(score, torch.tensor([-1.0, 1.0]))[None]
    return H, score[None]


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_path_finds_the_components_that_matter(task):
    H, y = head_data(task)
    plan = PathPlan(600, n_errors=1.0)
    labels = Labels(y, task, (0,))
    kept = choose_components(H, y, labels, plan, [3, H.shape[2] - 3])
    assert kept[0, [1, 4]].all()
    assert not kept.all()


def test_the_path_begins_at_the_lambda_that_removes_everything():
    H, y = head_data("binary")
    plan = PathPlan(600)
    weights, _ = _head_path(H[0], y, "binary", 1, plan)
    norms = weights.norm(dim=1)  # (L, E)
    assert not (norms[0] > 1e-3).any()
    assert (norms[1] > 0).any()
    assert (norms[-1] > 0).sum() >= 4


def test_one_component_of_every_party_stays_where_none_matters():
    H, y = head_data("binary", strength=0.0)
    plan = PathPlan(600, n_errors=10.0)
    labels = Labels(y, "binary", (0,))
    kept = choose_components(H, y, labels, plan, [2, H.shape[2] - 2])
    assert kept[0, :2].sum() == 1
    assert kept[0, 2:].sum() == 1
