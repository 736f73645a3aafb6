"""MMVFL against generic solvers, and what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import MultiTaskLasso
from torch import Tensor

import lessvfl
from lessvfl import data
from lessvfl.core import limits, views
from lessvfl.core.features import FeatureMap
from lessvfl.core.losses import Labels
from lessvfl.core.network import MLP
from lessvfl.core.protocol import Holder
from lessvfl.core.views import View
from lessvfl.methods import mmvfl
from lessvfl.methods.mmvfl import MmvflParty

N_ROWS, N_COLUMNS = 60, 5


def tables(n_parties: int = 2) -> tuple[list[Tensor], Tensor]:
    """Return parties' columns (N, d) and labels 0 and 1 that two of them make."""
    generator = torch.Generator().manual_seed(0)
    own = [
        torch.randn(N_ROWS, N_COLUMNS, generator=generator, dtype=torch.float64)
        for _ in range(n_parties)
    ]
    noise = torch.randn(N_ROWS, generator=generator, dtype=torch.float64)
    return own, (own[0][:, 0] + own[-1][:, 1] + 0.3 * noise > 0).double()


def a_party(name: str, X: Tensor, config: mmvfl.Config) -> MmvflParty:
    net = MLP.create((X.shape[1], 2), "none", 0, name, X.dtype, X.device)
    features = FeatureMap.of(net, torch.arange(X.shape[1]))
    holder = Holder(name, X, features, net, 0, 0, [False] * X.shape[1])
    return MmvflParty(config, holder)


class Loop:
    """Parties without a wire."""

    def __init__(self, parties: dict[str, MmvflParty]) -> None:
        self.parties, self.names = parties, list(parties)
        self.kept: dict[str, Tensor] = {}

    def query(self, stage: str, step: int, arrays: Any, expects: Any) -> Any:
        answers: dict[str, Any] = {
            name: self.parties[name].answer(step, own) for name, own in arrays.items()
        }
        for name, answer in answers.items():
            found = tuple((array.dtype, tuple(array.shape)) for array in answer)
            assert found == tuple(expects[name])
        return answers

    def query_last(self, stage: str, step: int, arrays: Any) -> None:
        for name, own in arrays.items():
            end: Any = self.parties[name].answer(step, own)
            self.kept[name] = end.groups


def test_a_view_alone_is_the_group_lasso_of_scikit_learn() -> None:
    """With pseudo-labels held at Z (zeta large) rounds end at MultiTaskLasso's."""
    (X, _), y = tables()
    Z = torch.stack([y - 0.5, 0.5 - y], dim=1)
    beta = 5.0
    view = View(X, torch.arange(N_COLUMNS), N_COLUMNS, beta, zeta=1e12)
    for _ in range(300):
        view = view.solved(Z)
    solver = MultiTaskLasso(beta / (2 * N_ROWS), fit_intercept=False, tol=1e-12)
    expected = solver.fit(X.numpy(), Z.numpy()).coef_.T
    assert view.W is not None
    np.testing.assert_allclose(view.W.numpy(), expected, atol=1e-5)


def test_wide_and_tall_tables_are_solved_alike() -> None:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    Z = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    norms = torch.rand(9, generator=generator, dtype=torch.float64) + 0.1
    A = torch.diag(1 / (2 * norms))
    expected = torch.linalg.solve(X.T @ X + 0.7 * A, X.T @ Z)
    torch.testing.assert_close(views.solve_weights(X, Z, norms, 0.7), expected)
    tall, long = torch.cat([X, X, X]), torch.cat([Z, Z, Z])
    expected = torch.linalg.solve(tall.T @ tall + 0.7 * A, tall.T @ long)
    torch.testing.assert_close(views.solve_weights(tall, long, norms, 0.7), expected)


def test_rounds_end_at_the_minimum_of_the_whole_objective() -> None:
    """Against L-BFGS on all variables at once: W_k, Z_k, Z and the label holder's."""
    own, y = tables()
    config = mmvfl.Config(beta=2.0, zeta=3.0, eta=5.0, most_rounds=200, tolerance=0.0)
    loop = Loop({f"p{i}": a_party(f"p{i}", X, config) for i, X in enumerate(own)})
    labels = Labels(y, "binary", 0)
    fusion = next(iter(loop.parties.values())).inputs.net  # for its number format
    mmvfl.select(loop, fusion, labels, config)  # type: ignore[arg-type]

    _, used = limits.split_rows(N_ROWS, 0)
    Y = views.targets(labels, torch.float64)[used]
    tables_ = [X[used] for X in own]
    shapes = [(N_COLUMNS, 2)] * 2 + [tuple(Y.shape)] * 4
    sizes = [a * b for a, b in shapes]

    def value(flat: Tensor) -> Tensor:
        parts = torch.split(flat, sizes)
        W0, W1, Z0, Z1, Zs, Z = (p.view(s) for p, s in zip(parts, shapes, strict=True))
        total = config.eta * (Zs - Y).square().sum()
        total = total + config.zeta * (Zs - Z).square().sum()
        for X, W, Zk in ((tables_[0], W0, Z0), (tables_[1], W1, Z1)):
            norms = (W.square().sum(dim=1) + 1e-12).sqrt()
            total = total + (X @ W - Zk).square().sum() + config.beta * norms.sum()
            total = total + config.zeta * (Zk - Z).square().sum()
        return total

    def with_slope(flat: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        x = torch.tensor(flat, requires_grad=True)
        total = value(x)
        total.backward()
        assert x.grad is not None
        return float(total.detach()), x.grad.numpy()

    start = np.full(sum(sizes), 0.01)
    options = {"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}
    best = minimize(with_slope, start, jac=True, method="L-BFGS-B", options=options)
    expected = torch.split(torch.tensor(best.x), sizes)
    for party, flat in zip(loop.parties.values(), expected, strict=False):
        W = party._view.W
        assert W is not None
        torch.testing.assert_close(W, flat.view(N_COLUMNS, 2), atol=2e-3, rtol=2e-2)
    assert all(len(kept) == N_COLUMNS for kept in loop.kept.values())


def test_a_limit_is_the_largest_within_an_error_of_the_best() -> None:
    losses = torch.tensor([[2.0, 1.0, 1.0], [2.0, 1.2, 1.0], [2.0, 0.9, 1.0]])
    assert limits.choose_limit(losses).tolist() == [1]


def run(**more: Any) -> Any:
    options = {"n_samples": 300, "n_test": 60, "task": "binary"}
    dataset = data.load("synthetic", options=options)
    few = {"train_epochs": 1, "batch_size": 64}
    own = lessvfl.resolve("mmvfl", "default", dataset, few | more)
    (done,) = lessvfl.simulate(lessvfl.Job(dataset, own, parties=3), [0])
    return done


def test_keep_is_how_many_each_party_keeps() -> None:
    features = run(keep=2).numbers["features"].values()
    assert [len(party["kept"]) for party in features] == [2, 2, 2]


@pytest.mark.parametrize("n_rounds", [1, 3])
def test_the_bill_in_closed_form(n_rounds: int) -> None:
    """A row of Z down and one of Z_k up for every row used and round, 4 bytes."""
    done = run(keep=1, most_rounds=n_rounds, tolerance=0.0)
    stage = done.numbers["communication"]["by_stage"]["select_features"]
    n_held, n_used = map(len, limits.split_rows(300, 0))
    each_round = 4 * 2 * n_used
    up = n_rounds * (each_round + 2 * 4) + 4 * 2 * n_held * limits.N_LIMITS
    down = n_rounds * each_round + 4 + 4
    assert stage == {"up": 3 * up, "down": 3 * down, "rounds": n_rounds + 2}
