"""Changes that flip a prediction against a linear program, and what they keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import lessvfl
from lessvfl import data
from lessvfl.core import flips, plans
from lessvfl.core.features import FeatureMap
from lessvfl.core.flips import Changes
from lessvfl.core.losses import Labels
from lessvfl.core.network import MLP
from lessvfl.core.plans import QueryPlan
from lessvfl.core.protocol import Holder, Selected
from lessvfl.errors import LessVFLWarning
from lessvfl.methods import counterfactual
from lessvfl.methods.counterfactual import Config, CounterfactualParty
from lessvfl.remote import policy
from lessvfl.terms import Task

N_ROWS = 40
WEIGHTS = (0.5, -2.0, 0.1, 1.0, 1.9, 0.0)  # of columns, in a linear model
OPINION = 0.3  # what it adds


def linear(weights: list[float], added: float = 0.0) -> MLP:
    """Return one linear unit."""
    w = torch.tensor([weights], dtype=torch.float64)
    return MLP([w], [torch.tensor([added], dtype=torch.float64)], "none")


def rows(n_columns: int = len(WEIGHTS), n_rows: int = N_ROWS) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    size = (n_rows, n_columns)
    return torch.randn(size, generator=generator, dtype=torch.float64)


class Loop:
    """Parties of a linear model without a wire; each has some of the columns."""

    def __init__(self, config: Config, *columns: slice) -> None:
        self.parties: dict[str, CounterfactualParty] = {}
        for number, own in enumerate(columns):
            X, net = rows()[:, own], linear(list(WEIGHTS)[own])
            features = FeatureMap.of(net, torch.arange(X.shape[1]))
            must = [False] * X.shape[1]
            holder = Holder(str(number), X, features, net, 0, 0, must)
            self.parties[str(number)] = CounterfactualParty(config, holder)
        self.names, self.n_samples = list(self.parties), N_ROWS
        self.sizes = dict.fromkeys(self.names, 1)
        self.kept: dict[str, list[bool]] = {}

    def query(self, stage: str, step: int, arrays: Any, expects: Any) -> Any:
        answers = {n: self.parties[n].answer(step, own) for n, own in arrays.items()}
        for name, answer in answers.items():
            assert not isinstance(answer, Selected)
            found = tuple((array.dtype, tuple(array.shape)) for array in answer)
            assert found == tuple(expects[name])
        return answers

    def query_last(self, stage: str, step: int, arrays: Any) -> None:
        for name, own in arrays.items():
            answer = self.parties[name].answer(step, own)
            assert isinstance(answer, Selected)
            self.kept[name] = answer.groups.tolist()

    @property
    def changes(self) -> Tensor:
        """Return the changes of all columns, (n, columns)."""
        each = [party.changes.delta for party in self.parties.values()]
        return torch.cat(each, dim=1)


def search(config: Config, *columns: slice, task: Task = "binary") -> Loop:
    loop = Loop(config, *columns)
    fusion = linear([1.0] * len(columns), OPINION)
    labels = Labels(torch.zeros(N_ROWS), task, 0)
    counterfactual.search(loop, fusion, labels, config)  # type: ignore[arg-type]
    return loop


ALL = slice(None)
NEAR_ONE = Config(price=0.97, search_step_size=0.5, search_steps=400, search_rows=30)


def searched() -> Tensor:
    """Return the rows that are changed, (30, columns)."""
    return rows()[plans.sample_rows(N_ROWS, 30, 0)]


def smallest_changes() -> Tensor:
    """Return the smallest L1 changes that flip a linear model, by linear programs."""
    w, found = np.array(WEIGHTS), []
    for x in searched().numpy():
        z = float(w @ x + OPINION)
        side = 1 if z > 0 else -1  # side * (w (x + a - b) + OPINION) <= 0, a and b >= 0
        signed = side * np.concatenate([w, -w])
        best = linprog(np.ones(2 * len(w)), A_ub=[signed], b_ub=[-side * z])
        found.append(best.x[: len(w)] - best.x[len(w) :])
    return torch.tensor(np.array(found))


@pytest.mark.parametrize("columns", [(ALL,), (slice(0, 3), slice(3, None))])
def test_at_a_high_price_changes_are_the_smallest_that_flip(columns: Any) -> None:
    """As linear programs find them, but for what the last step goes beyond."""
    loop, expected = search(NEAR_ONE, *columns), smallest_changes()
    last = NEAR_ONE.search_step_size * (1 - NEAR_ONE.price)
    beyond = loop.changes.abs() - expected.abs()
    assert torch.equal(loop.changes.sign(), expected.sign())
    assert bool((beyond >= -1e-9).all())
    assert bool((beyond <= last + 1e-9).all())
    rates = torch.cat([party.rates for party in loop.parties.values()])
    assert rates.nonzero().flatten().tolist() == [1]  # of the largest weight
    assert loop.kept["0"][1]
    if len(columns) == 1:
        assert loop.kept["0"].count(True) == 1


def test_a_price_is_of_the_largest_weight_of_all_parties() -> None:
    """Features change by what their weight is above the price; columns lie anywhere."""
    config = Config(price=0.4, search_rows=30, search_steps=60, search_step_size=0.1)
    alone = search(config, ALL)
    shares = torch.tensor(WEIGHTS).double().abs() / 2
    expected = (shares - 0.4).clamp_min(0)
    changes = alone.changes.abs()
    changes = changes[changes.sum(dim=1) > 0]
    n_steps = (changes[:, 1] / (0.1 * 0.6)).round()
    assert n_steps.unique().numel() > 3
    torch.testing.assert_close(changes, 0.1 * n_steps.unsqueeze(1) * expected)
    apart = search(config, slice(0, 2), slice(2, 5), slice(5, None))
    torch.testing.assert_close(apart.changes, alone.changes)


def test_rows_stop_when_they_flip() -> None:
    config = Config(price=0.4, search_rows=30, search_steps=60, search_step_size=0.1)
    w, loop = torch.tensor(WEIGHTS).double(), search(config, ALL)
    before = searched() @ w + OPINION
    after = (searched() + loop.changes) @ w + OPINION
    assert bool((before.sign() != after.sign()).all())
    largest_step = 0.1 * float(((w.abs() / 2 - 0.4).clamp_min(0) * w.abs()).sum())
    assert bool((after.abs() <= largest_step + 1e-9).all())


def test_an_amount_flips_by_a_standard_deviation_towards_the_mean() -> None:
    config = Config(price=0.4, search_rows=30, search_steps=200, search_step_size=0.02)
    w, loop = torch.tensor(WEIGHTS).double(), search(config, ALL, task="regression")
    start, moved = searched() @ w + OPINION, loop.changes @ w
    assert torch.equal(moved > 0, start < start.mean())
    std = float(start.std(correction=0))
    assert bool((moved.abs() >= std - 1e-9).all())
    assert bool((moved.abs() <= std + 0.1).all())


def test_a_class_flips_where_another_has_as_large_a_logit() -> None:
    start = torch.tensor([[1.0, 4.0, 0.0], [2.0, 1.0, 0.0], [-3.0, -2.0, -4.0]])
    z = torch.tensor([[3.0, 2.5, 3.5], [2.0, 1.0, 0.0], [-3.0, -2.5, -4.0]])
    assert flips.margins(z, start, "multiclass").tolist() == [-1.0, 1.0, 0.5]


def test_columns_of_one_feature_change_together() -> None:
    """A step is the proximal point: against its objective, at a grid around it."""
    net, X = linear([3.0, 4.0, 2.0]), rows(3, n_rows=1)
    changes = Changes(X, FeatureMap.of(net, torch.tensor([0, 0, 1])), net)
    changes.embed()
    largest = changes.slope(torch.ones(1, 1, dtype=torch.float64))
    assert largest.tolist() == [5.0]  # of the two together
    changes.step(largest, 0.5, 0.3)

    def objective(change: Tensor) -> float:
        """Return 1/2 |change + step x slope|^2 + step x price x norms."""
        moved = 0.5 * torch.tensor([3.0, 4.0, 2.0]).double() / 5.0
        norms = change[:2].norm() + change[2].abs()
        return float(0.5 * (change + moved).square().sum() + 0.5 * 0.3 * norms)

    found = changes.delta[0]
    assert float(found[1] / found[0]) == pytest.approx(4 / 3)
    generator = torch.Generator().manual_seed(1)
    for size in (1e-1, 1e-3):
        for _ in range(50):
            away = size * torch.randn(3, generator=generator, dtype=torch.float64)
            assert objective(found) < objective(found + away)


def test_a_rate_is_the_mean_change_in_rows_that_flipped() -> None:
    net = linear([3.0, 4.0, 2.0])
    changes = Changes(rows(3, 3), FeatureMap.of(net, torch.tensor([0, 0, 1])), net)
    delta = [[3.0, 4.0, 0.0], [0.0, 0.0, 1.0], [9.0, 9.0, 9.0]]
    changes.delta = torch.tensor(delta, dtype=torch.float64)
    flipped = torch.tensor([1, 1, 0], dtype=torch.uint8)
    assert changes.rates(flipped).tolist() == [2.5, 0.5]
    assert changes.rates(torch.zeros_like(flipped)).tolist() == [0.0, 0.0]


def test_where_no_row_flips_every_feature_stays() -> None:
    config = Config(search_steps=1, search_step_size=1e-6)
    with pytest.warns(LessVFLWarning, match="No row flipped in 1 steps"):
        loop = search(config, ALL)
    assert all(loop.kept["0"])


def simulate(seeds: list[int], n_rows: int = 300, **more: Any) -> Any:
    options = {"n_samples": n_rows, "n_test": 60, "task": "binary"}
    dataset = data.load("synthetic", options=options)
    few = {"train_epochs": 1, "batch_size": 64, "schedule": "constant"}
    own = lessvfl.resolve("counterfactual", "default", dataset, few | more)
    return lessvfl.simulate(lessvfl.Job(dataset, own, parties=3), seeds)


def test_keep_is_how_many_each_party_keeps() -> None:
    (done,) = simulate([0], keep=2)
    features = done.numbers["features"].values()
    assert [len(party["kept"]) for party in features] == [2, 2, 2]


@pytest.mark.parametrize("keep", [None, 2])
@pytest.mark.parametrize("n_steps", [1, 4])
def test_the_bill_in_closed_form(keep: int | None, n_steps: int) -> None:
    """Embeddings up and gradients down, and a value of every row; 4 bytes each."""
    own: dict[str, Any] = {"embedding_size": 3, "components_per_column": None}
    own |= {"search_rows": 50, "search_steps": n_steps, "pretrain_epochs": 5}
    (done,) = simulate([0], keep=keep, **own)
    stage = done.numbers["communication"]["by_stage"]["select_features"]
    up = (n_steps + 1) * 4 * 50 * 3 + n_steps * 4 * 50
    down = n_steps * (4 * 50 * 3 + 4 * 50) + 50
    rounds = 2 * n_steps + 2
    if keep is None:
        up, down, rounds = up + 4, down + 4, rounds + 1
    assert stage == {"up": 3 * up, "down": 3 * down, "rounds": rounds}


def test_a_step_more_is_in_a_party_s_budget() -> None:
    """Two queries, and of every row an embedding and the largest slope."""
    dataset = data.load("synthetic", options={"n_samples": 300, "n_test": 60})

    def plans(n_steps: int) -> tuple[int, float]:
        more = {"search_steps": n_steps}
        own = lessvfl.resolve("counterfactual", "default", dataset, more)
        values = policy.planned(own, size=7, n_parties=3, evaluation="end")
        _, queries, *_ = own.config.plans(3)
        assert isinstance(queries, QueryPlan)
        return queries.n_queries, values

    (n_queries, n_values), (more_queries, more_values) = plans(4), plans(5)
    assert n_queries == 2 * 4 + 3
    assert more_queries - n_queries == 2
    assert more_values - n_values == 7 + 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Return the rates (n_groups,) that parties find."""
    found: dict[str, Tensor] = {}
    selected = CounterfactualParty._selected

    def watched(party: CounterfactualParty, chosen: Tensor) -> Selected:
        found[party.inputs.party] = party.rates
        return selected(party, chosen)

    monkeypatch.setattr(CounterfactualParty, "_selected", watched)
    return found


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_noise_has_low_rates_and_goes(task: str, seen: dict[str, Tensor]) -> None:
    options = {"n_samples": 2000, "n_test": 60, "task": task}
    dataset = data.load("synthetic", options=options)
    own = lessvfl.resolve("counterfactual", "default", dataset, {"train_epochs": 0})
    (run,) = lessvfl.simulate(lessvfl.Job(dataset, own, parties=4), [0])
    rates = torch.cat(list(seen.values()))
    matters = torch.tensor(dataset.significant)
    assert float(rates[~matters].mean()) < 0.01 * float(rates[matters].mean())
    features = run.numbers["features"].values()
    kept = {name for party in features for name in party["kept"]}
    real = {n for n, on in zip(dataset.X.names, matters, strict=True) if on}
    assert kept <= real
    assert len(kept) >= 0.75 * len(real)
