"""What leaves the server depends on labels only by what has a price."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lessvfl import data, methods, resolve
from lessvfl.core.keeper import Keeper
from lessvfl.core.plans import SECRET
from lessvfl.data import Problem
from lessvfl.privacy.noise import GradientDefence
from lessvfl.run.accounting import n_gradients
from lessvfl.run.build import Builder, clamp_batch
from lessvfl.run.profiles import Settings
from lessvfl.run.simulate import Job, simulate
from lessvfl.wire import codec, messages
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties
from lessvfl_bench.privacy.traffic import Recording

PUBLIC, N = 0, 320  # the shared seed; rows
PRICED: dict[str, Any] = {"gradient_defence": "gaussian"}


def a_table(n_rows: int = N) -> data.Dataset:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n_rows, 8))
    y = (X[:, 0] + X[:, 5] + 0.3 * rng.normal(size=n_rows) > 0).astype(int)
    return data.from_arrays(X, y)


def prepared(method: str, n_rows: int = N, **given: Any) -> tuple[Settings, Problem]:
    own = resolve(method, "default", a_table(n_rows), given)
    return own, Job(a_table(n_rows), own, parties=2).problem(PUBLIC)


def carried(
    own: Settings, problem: Problem, secret: int, begin: Callable[[], None]
) -> Recording:
    """Run a method with a server and parties of different secrets; keep messages."""
    server = Builder(own, PUBLIC, "cpu", private=SECRET + secret)
    party = Builder(own, PUBLIC, "cpu", private=SECRET + secret + 1)
    parties = [
        party.party(
            table.name,
            (party.rows(table.X_train), party.rows(table.X_test)),
            table.groups,
            table.features,
        )
        for table in problem.parties
    ]
    recording = Recording()
    transport = recording.around(InProcess({one.name: one.handle for one in parties}))
    names = [one.name for one in parties]
    all_parties = Parties(transport, names, Ledger())
    fusion = server.fusion_network(sum(all_parties.sizes.values()), 1)
    labels = server.server_labels(problem)
    config = clamp_batch(own.config, len(problem.y_train))
    begin()
    run = methods.get(own.method).run
    fusion = run(all_parties, fusion, labels, config, lambda event: None, Keeper())
    all_parties.embed("evaluate", "test", bits=own.config.bits)
    return recording


# ------------------------------------------------------------- labels and their epsilon


@pytest.fixture
def fixed_noise(monkeypatch):
    """Put numbers that know no label in the place of dL/dz with noise."""

    def release(self, slope, seed, *name):
        one = torch.Generator().manual_seed(zlib.crc32(repr(name).encode()))
        drawn = torch.randn(slope.shape, generator=one) - 0.5
        return drawn.to(slope) / len(slope)

    monkeypatch.setattr(GradientDefence, "release", release)


def bytes_sent(y, method, n_rows, **given):
    """Return every message of the server to parties, as bytes."""
    table = replace(a_table(n_rows), y=y)
    own = resolve(method, "default", table, PRICED | given)
    recording = Recording()
    (run,) = simulate(Job(table, own, parties=2), [PUBLIC], around=recording.around)
    sent = [
        codec.encode(codec.WireFrame(request, 0))
        for one in recording.carried
        for _, request in sorted(one.requests.items())
    ]
    return sent, run.numbers["privacy"]


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize("method", ["less-vfl-auto", "local-lasso", "plain"])
def test_all_that_leaves_is_computed_from_gradients_with_noise(method):
    """Once, the fusion network was trained by the clean ones of all rows."""
    labels = a_table().y
    other = np.random.default_rng(0).permutation(labels)
    given = {"train_epochs": 2}
    one, spent = bytes_sent(labels, method, N, **given)
    again, _ = bytes_sent(other, method, N, **given)
    assert len(one) > 10
    assert one == again
    assert spent["labels"]["epsilon"] > 0
    assert spent["unpriced"] == []


STAGES = {"train_epochs": 2, "lam_party": 1e-3, "lam_server": 0.1}
WATCHED = {"schedule": "watched", "train_epochs": 12, "batch_size": 64}
SLOWLY = {**WATCHED, "learning_rate": 1e-4}  # so that the loss falls, or does not


@pytest.mark.usefixtures("fixed_noise")
@pytest.mark.parametrize(
    ("method", "n_rows", "given", "why"),
    [
        ("less-vfl", N, STAGES, "stage 2, which chooses components"),
        ("less-vfl-auto", N, {"server_rows": 100}, "stage 2, which chooses components"),
        ("plain", 2000, SLOWLY, "schedule=watched"),
    ],
)
def test_what_else_is_computed_from_labels_is_named_and_has_no_epsilon(
    method, n_rows, given, why
):
    """And these do depend on labels: messages differ."""
    labels = (np.arange(n_rows) % 5 > 0).astype(int)
    one, spent = bytes_sent(labels, method, n_rows, **given)
    if method != "less-vfl-auto":  # one component a party stays, whatever labels are
        assert one != bytes_sent(1 - labels, method, n_rows, **given)[0]
    assert spent["labels"] is None
    (unpriced,) = spent["unpriced"]
    assert unpriced.startswith(f"noise on each message, beside {why}")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"class_weight": "balanced"}, "class_weight"),
        ({"split": "stratified"}, "split=stratified"),
    ],
)
def test_a_setting_that_counts_labels_has_no_epsilon(given, why):
    own = resolve("plain", "default", a_table(), PRICED | given)
    spent = Job(a_table(), own, parties=2).privacy(1, ["a", "b"])["privacy"]
    assert spent["labels"] is None
    assert why in spent["unpriced"][0]


def test_amounts_have_no_epsilon_of_gradients():
    table = data.from_arrays(a_table().X.numeric, np.linspace(0, 1, N))
    own = resolve("plain", "default", table, PRICED)
    spent = Job(table, own, parties=2).privacy(1, ["a", "b"])["privacy"]
    assert spent["labels"] is None
    assert "labels that are amounts" in spent["unpriced"][0]


def test_a_label_is_released_once_a_step_whatever_the_parties(monkeypatch):
    original, n_rows = GradientDefence.release, []

    def release(self, slope, *more):
        n_rows.append(len(slope))
        return original(self, slope, *more)

    monkeypatch.setattr(GradientDefence, "release", release)
    own = resolve("local-lasso", "default", a_table(), PRICED | {"train_epochs": 3})
    job = Job(a_table(), own, parties=4)
    (run,) = simulate(job, [PUBLIC])
    n_releases = run.numbers["privacy"]["labels"]["releases"]
    assert sum(n_rows) == n_releases * len(run.problem.y_train)
    assert n_releases == n_gradients(own, 4)


# ------------------------------------------------------------------ the first gradients


def read_first_labels(own: Settings, problem: Problem, secret: int) -> float:
    """Return the share of labels that a party reads off the first gradients.

    It draws the fusion network that starts from the shared seed.
    """
    first = next(
        request.gradient.values
        for one in carried(own, problem, secret, lambda: None).carried
        for request in one.requests.values()
        if isinstance(request, messages.Descend)
    )
    n_rows, width = first.shape
    known = Builder(own, PUBLIC, "cpu").fusion_network(2 * width, 1)
    slopes = first @ known.input_weights.detach()[0, :width]
    guess = (slopes < 0).numpy()
    return float((guess == problem.y_train[:n_rows]).mean())


@pytest.mark.parametrize("bits", [4, 32])
def test_the_first_gradients_give_no_label_away_by_the_shared_seed(bits):
    """Once, all 256 of 256 labels, none of them known before."""
    given = {"train_epochs": 1, "batch_size": 256, "row_order": "file", "bits": bits}
    own, problem = prepared("plain", **given)
    read = [read_first_labels(own, problem, 2 * number) for number in range(40)]
    majority = np.bincount(problem.y_train[:256]).max() / 256
    assert np.mean(read) <= majority + 2 * np.std(read) / np.sqrt(len(read))


# ------------------------------------------------------------------------ keyed draws


@pytest.mark.parametrize(
    ("method", "n_rows", "given"),
    [
        ("less-vfl", N, {"embedding_noise": 3.0}),
        ("less-vfl", N, {"embedding_noise": 3.0, "noise_at": "first-layer"}),
        ("plain", 2000, {"embedding_noise": 3.0, **WATCHED}),  # looks at rows held out
        ("less-vfl", N, {"gradient_defence": "gaussian"}),
        ("less-vfl", N, {"gradient_defence": "marvell"}),
        ("less-vfl", N, {"gradient_defence": "max-norm"}),
    ],
)
def test_no_generator_but_the_keyed_one_is_on_the_way_out(
    method, n_rows, given, without_generators
):
    """Training, rows held out, stage 2 and test rows; noise and rounding."""
    how = (STAGES if method == "less-vfl" else {}) | {"bits": 4} | given
    own, problem = prepared(method, n_rows, **how)
    recording = carried(own, problem, 0, without_generators)
    requests = [r for one in recording.carried for r in one.requests.values()]
    asked = {r.stage for r in requests if isinstance(r, messages.Embed)}
    other = "train" if "schedule" in given else "embed"  # of rows held out, or stage 2
    assert asked == {other, "evaluate"}
    assert any(isinstance(r, messages.Descend) and r.stage == "train" for r in requests)
