"""The keyed generator: normal numbers, keyed by all they should be, on a grid."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from lessvfl.core.plans import SECRET
from lessvfl.privacy import draws

N = 400_000


def test_draws_are_normal():
    (drawn,) = draws.normals([b"k" * 32], N)
    error = N**-0.5
    assert abs(drawn.mean()) < 4 * error
    assert abs(drawn.var() - 1) < 4 * 2**0.5 * error
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    first, second = drawn[: N // 2], drawn[N // 2 :]  # each pair of Box and Muller
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 * error
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 * error


def test_draws_are_those_of_chacha20():
    """By the cipher itself, its key and a counter from 0 on."""
    cipher = Cipher(algorithms.ChaCha20(b"k" * 32, bytes(16)), None).encryptor()
    words = np.frombuffer(cipher.update(bytes(32)), dtype="<u8")
    length, angle = (words >> np.uint64(11)).astype(float).reshape(2, 2) / 2**53
    wanted = np.sqrt(-2 * np.log(1 - length)) * np.cos(2 * np.pi * angle)
    assert draws.normals([b"k" * 32], 4)[0, :2] == pytest.approx(wanted)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_every_key_has_draws_of_its_own(n):
    both = draws.normals([b"a" * 32, b"b" * 32], n)
    assert both.shape == (2, n)
    assert (both[:1] == draws.normals([b"a" * 32], n)).all()
    assert (both[0] != both[1]).all()


def test_a_block_has_noise_by_secret_place_and_values():
    values = np.arange(12).reshape(4, 3)
    drawn = draws.block_draws(SECRET, "run", 3)(values)
    assert (draws.block_draws(SECRET, "run", 3)(values) == drawn).all()
    others = [
        draws.block_draws(SECRET + 1, "run", 3)(values),
        draws.block_draws(SECRET, "run", 4)(values),
        draws.block_draws(SECRET, "run3")(values),
        draws.block_draws(SECRET, "run", 3)(values.reshape(3, 4)).reshape(4, 3),
        draws.block_draws(SECRET, "run", 3)(values + (values == 11)),
    ]
    assert all((other != drawn).all() for other in others)


def test_rows_have_noise_by_id_and_values_whichever_others_are_there():
    values = np.arange(12).reshape(4, 3)
    ids = ["i:1", "i:2", "i:3", "i:4"]
    drawn = draws.row_draws(SECRET, "predict", ids=ids)(values)
    order = [2, 0, 3]
    some = draws.row_draws(SECRET, "predict", ids=[ids[i] for i in order])
    assert (some(values[order]) == drawn[order]).all()
    moved = values + np.eye(4, 3, dtype=int)
    other = draws.row_draws(SECRET, "predict", ids=ids)(moved)
    assert ((other != drawn).all(axis=1) == [True, True, True, False]).all()
    swapped = draws.row_draws(SECRET, "predict", ids=ids[::-1])(values)
    assert (swapped != drawn).all()


def test_rows_without_ids_that_are_equal_have_noise_of_their_own():
    """Once, they left equal behind any noise: a column of two values was read whole."""
    cells = np.arange(400) % 2
    rows = np.stack([0.3 * cells - 0.1, 0.2 - 0.1 * cells], axis=1)
    draw = draws.row_draws(SECRET, "predict", ids=None)
    sent = draws.noisy_rows(rows, 1.0, 20.0, draw)
    assert len(np.unique(sent, axis=0)) == len(rows)
    assert (draws.noisy_rows(rows[:9], 1.0, 20.0, draw) == sent[:9]).all()


@pytest.mark.parametrize(("clip", "deviation"), [(1.0, 3.0), (0.2, 0.0002), (7.3, 900)])
def test_what_leaves_is_exact_on_its_grid(clip, deviation):
    rows = np.random.default_rng(0).normal(size=(20_000, 3)) * clip
    left = draws.noisy_rows(rows, clip, deviation, draws.block_draws(SECRET, "a"))
    grid = 2.0 ** (np.floor(np.log2(deviation)) - 12)
    steps = left / grid
    assert (steps == np.rint(steps)).all()
    assert np.abs(steps).max() < 2**24
    assert (left.astype(np.float32) == left).all()
    clipped = draws.quantised(rows, clip, grid) * grid
    drawn = ((left - clipped) / deviation).ravel()
    assert drawn.std() == pytest.approx(1, abs=0.01)
    assert stats.kstest(drawn, "norm").pvalue > 0.01


def test_uniform_draws_are_even_and_by_seed_and_name():
    drawn = draws.uniforms(SECRET, N, "round", "up", 3)
    assert ((drawn >= 0) & (drawn < 1)).all()
    assert stats.kstest(drawn, "uniform").pvalue > 0.01
    assert (drawn[:9] == draws.uniforms(SECRET, 9, "round", "up", 3)).all()
    assert (drawn[:9] != draws.uniforms(SECRET, 9, "round", "up", 4)).all()
    assert (drawn[:9] != draws.uniforms(SECRET + 1, 9, "round", "up", 3)).all()


def test_a_secret_stands_behind_every_key():
    """Nobody without it can compute the key: it is an HMAC, not a digest."""
    values = np.zeros((2, 2), dtype=np.int64)
    place = repr((("a",), (2, 2))).encode()
    plain = hashlib.sha256(place + hashlib.sha256(values.tobytes()).digest()).digest()
    drawn = draws.block_draws(SECRET, "a")(values)
    assert (draws.normals([plain], 4).reshape(2, 2) != drawn).all()
