"""Attacks on draws: those of once are read, and nothing is read of those of today."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import pytest
import torch

from lessvfl import data
from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.plans import SECRET, stream
from lessvfl.data import DataConfig, split_rows
from lessvfl.privacy.noise import ClippedNoise
from lessvfl.run import profiles, simulate
from lessvfl.run.build import Builder
from lessvfl.wire import coding
from lessvfl_bench.privacy import drawn, noise, start, study
from lessvfl_bench.privacy.traffic import Shared, gradients_of

pytestmark = pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")


# -- rows ------------------------------------------------------------------------------


def cancer_job() -> simulate.Job:
    table = data.load("breast-cancer")
    return simulate.Job(table, profiles.resolve("plain", "default", table, {}))


@pytest.mark.parametrize(("in_order", "least"), [(False, 1.0), (True, 0.7)])
def test_rows_drawn_class_by_class_from_the_seed_tell_labels(in_order, least):
    table = data.load("breast-cancer")
    rows = split_rows(table, DataConfig(split="stratified"), 0, in_order)
    found = drawn.measure(drawn.ToldRows(0, *rows), table.y, 0)
    assert found["score"] >= least
    assert abs(found["shuffled"] - 0.5) < 0.1


def test_rows_of_today_tell_no_labels():
    job = cancer_job()
    read = [
        drawn.measure(study.told_rows(job, seed), job.dataset.y, seed)["score"]
        for seed in range(10)
    ]
    assert abs(np.mean(read) - 0.5) < 0.05


def test_lists_of_many_classes_and_rows_are_left_unread():
    y = np.repeat(np.arange(8), 50)
    rows = np.random.default_rng(0).permutation(400)
    told = drawn.ToldRows(0, np.sort(rows[:320]), np.sort(rows[320:]))
    assert drawn.measure(told, y, 0)["score"] == 0.5


# -- first weights ---------------------------------------------------------------------


def first_gradients_job(n_classes: int = 2, **given: int) -> simulate.Job:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(320, 24))
    signal = X[:, 0] + X[:, 20] + 0.3 * rng.normal(size=320)
    y = np.digitize(signal, np.quantile(signal, np.arange(1, n_classes) / n_classes))
    table = data.from_arrays(X, y)
    own = {"train_epochs": 1, "batch_size": 256, **given}
    settings = profiles.resolve("plain", "default", table, own)
    return simulate.Job(table, settings, parties=2)


def share_read(job: simulate.Job, build: Builder, party: str) -> float:
    """Return the share of labels that a party reads off its first gradient."""
    problem = job.problem(0)
    recording, sizes = start.first_step(job, problem, build)
    public = Builder(job.settings, 0, "cpu")
    weights = start.first_weights(public, problem, sizes)[party]
    (look,) = gradients_of(recording, Shared.of(problem, 0), party).values()
    seen = np.isfinite(look[:, 0])
    assert seen.sum() == 256
    guess = start.by_first_weights(look, weights).argmax(axis=1)
    return float((guess == problem.y_train)[seen].mean())


@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_from_the_shared_seed_give_all_labels_away(bits, n_classes):
    job = first_gradients_job(n_classes, bits=bits)
    of_seed = Builder(job.settings, 0, "cpu")
    assert share_read(job, of_seed, job.problem(0).parties[1].name) == 1


@pytest.mark.parametrize("bits", [4, 32])
def test_weights_from_a_secret_give_none_away(bits):
    job = first_gradients_job(bits=bits)
    problem = job.problem(0)
    found = start.measure(job, problem, problem.y_train, 0)
    scores = [one["score"] for one in found]
    assert len(scores) == 2 * start.N_SERVERS
    assert abs(np.mean(scores) - 0.5) < 2 * np.std(scores) / len(scores) ** 0.5


def test_deep_fusion_networks_are_read_as_if_they_were_linear():
    job = first_gradients_job(bits=32, fusion_depth=3)
    of_seed = Builder(job.settings, 0, "cpu")
    assert share_read(job, of_seed, job.problem(0).parties[0].name) == 1


# -- noise -----------------------------------------------------------------------------


class OldGuard(EmbeddingGuard):
    """Noise as it was once: of PyTorch's generator, keyed by the whole table."""

    def release(self, h, *name):
        content = hashlib.sha256(h.numpy().tobytes()).hexdigest()
        drawn = stream(self.seed, "noise", *name, content)
        z = torch.randn(h.shape, generator=drawn)
        return self.mechanism.clipped(h) + self.mechanism.noise * z

    def release_by_row(self, h, *name, ids):
        return self.release(h, *name)


GUARDS = {"once": OldGuard, "today": EmbeddingGuard}


def a_guard(when: str, deviation: float) -> EmbeddingGuard:
    return GUARDS[when](ClippedNoise(1.0, deviation), "clinic", SECRET + 5)


@functools.cache
def embeddings(n_rows: int = noise.N_NUMBERS // 4) -> torch.Tensor:
    return 0.6 * torch.randn(n_rows, 4, generator=stream(0, "embeddings"))


@pytest.mark.parametrize("deviation", [3, 20])
def test_bits_behind_noise_are_certain(deviation):
    """By NumPy's twister, which of a seed gives the words that PyTorch's gives."""
    z = torch.randn(1600, generator=torch.Generator().manual_seed(4)).double().numpy()
    words = np.random.RandomState(4).randint(0, 2**32, 1600, dtype=np.uint32)
    moved = z + np.random.default_rng(0).uniform(-1, 1, 1600) / deviation
    known = noise.certain_bits(moved, 1 / deviation + noise.ROUNDING)
    for word, mask, value in zip(*known, strict=True):
        assert (int(words[word]) & int(mask)).bit_count() % 2 == value
    assert len(known.word) > 1600


def test_equations_are_solved():
    rng = np.random.default_rng(0)
    system = rng.integers(0, 2**64, (230, 4), dtype=np.uint64)
    system[:, 1] &= np.uint64(0xFFF0FFFF)  # bits that nothing decides
    bits = rng.integers(0, 2**64, 3, dtype=np.uint64)
    bits[1] &= np.uint64(0xFFF0FFFF)
    sums = [np.bitwise_xor.reduce(row & bits) for row in system[:, :3]]
    system[:, 3] = [int(one).bit_count() % 2 for one in sums]
    np.testing.assert_array_equal(noise.solved(system), bits)


def test_few_numbers_give_no_state():
    released = a_guard("once", 3.0).release(embeddings(1000))
    assert noise.by_state(released.double().numpy(), 3.0, 1.0) is None


@pytest.mark.parametrize(("when", "gain"), [("once", 0.6), ("today", 0.0)])
def test_many_requests_for_the_same_rows(when, gain):
    guard, h = a_guard(when, 3.0), embeddings(600)
    asked = noise.answers(h, guard)
    clear = guard.mechanism.clipped(h).double().numpy()
    one, many = (
        noise.explained(clear, noise.by_averaging(some, 3.0))
        for some in (asked[:1], asked)
    )
    assert one < 0.1
    assert many - one == pytest.approx(gain, abs=0.1 if gain else 1e-9)


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("when", "deviation", "bits", "least"),
    [
        ("once", 3, 32, 0.999999),
        slow("once", 20, 32, 0.999999),
        slow("once", 3, 8, 0.9),
        slow("once", 20, 8, 0.6),
        ("today", 3, 32, None),
        slow("today", 20, 32, None),
        slow("today", 3, 8, None),
    ],
)
def test_the_state_of_a_generator_takes_noise_off(when, deviation, bits, least):
    """By clipping alone: no embedding is known beforehand."""
    guard, h = a_guard(when, deviation), embeddings()
    released, step = guard.release(h, "embed"), 0.0
    if bits < 32:
        coded, released = coding.encode(released, bits, SECRET, "embed")
        step = float(coded.step)
    found = noise.by_state(released.double().numpy(), deviation, 1 + step)
    if least is None:
        assert found is None
    else:
        assert found is not None
        read = noise.explained(guard.mechanism.clipped(h).numpy(), found)
        assert read >= least


@pytest.mark.parametrize("when", GUARDS)
def test_what_a_study_says_of_noise(when, monkeypatch):
    """Where no state is found the attacker has what the control has."""
    monkeypatch.setattr(noise, "by_state", lambda *known: None)
    found = noise.measure(embeddings(300).numpy(), a_guard(when, 3.0))
    by_state, by_requests = found[noise.BY_STATE], found[noise.BY_REQUESTS]
    assert by_state["score"] == by_state["control"] < 0.1
    assert by_requests["score"] > 0.5 if when == "once" else by_requests["score"] < 0.1
    assert by_requests["shuffled"] == by_state["shuffled"] == 0


@pytest.mark.parametrize(
    ("given", "n_attacks"),
    [({}, 0), ({"noise_at": "first-layer"}, 0), ({"noise_at": "embedding"}, 2)],
)
def test_noise_is_attacked_where_embeddings_have_it(given, n_attacks, monkeypatch):
    monkeypatch.setattr(noise, "by_state", lambda *known: None)
    noisy = {"embedding_noise": 3.0, **given} if given else {}
    job = first_gradients_job(bits=8, **noisy)
    (run,) = simulate.simulate(job, [0])
    assert len(study.without_noise(job, run, 0)) == n_attacks
