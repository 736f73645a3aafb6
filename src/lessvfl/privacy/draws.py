"""Gaussian noise from a keyed generator, added on a grid.

The key is an HMAC, by a side's secret, of the place of a release and of the quantised
values that leave there: the same values sent again have the same noise, and other
values have independent noise. The stream is ChaCha20, of which no number of draws tells
the others, unlike that of PyTorch's and NumPy's generators.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
Levels = NDArray[np.int64]
Draw = Callable[[Levels], Float64s]  # standard normals for quantised values

GRID_BITS = 12  # the deviation has at least 2^12 steps of the grid
EXACT = 1 << 24  # whole numbers below are exact in float32
TINY = 1e-300  # the least norm that is divided by
LEAST_NOISE = 2.0**-10  # deviation by clip, so that all numbers stay below `EXACT`


def uniforms(secret: int, n: int, *place: str | int) -> Float64s:
    """Return the `n` numbers in [0, 1) that a secret's holder draws at a place."""
    stream = hashlib.shake_256(repr((secret, place)).encode()).digest(8 * n)
    return _numbers(stream)


def _numbers(stream: bytes) -> Float64s:
    words = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    return words.astype(np.float64) * 2.0**-53


def normals(keys: Sequence[bytes], n: int) -> Float64s:
    """Return `n` standard normal numbers of every key, (len(keys), n): Box-Muller."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    half = -(-n // 2)
    nothing, nonce = bytes(16 * half), bytes(16)
    streams = [
        Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(nothing)
        for key in keys
    ]
    drawn = _numbers(b"".join(streams)).reshape(len(keys), 2, half)
    lengths, angles = np.sqrt(-2 * np.log1p(-drawn[:, 0])), 2 * np.pi * drawn[:, 1]
    pairs = [lengths * np.cos(angles), lengths * np.sin(angles)]
    return np.concatenate(pairs, axis=1)[:, :n]


def block_draws(secret: int, *place: str | int) -> Draw:
    """Return draws for a whole block of values, under one key."""

    def draw(values: Levels) -> Float64s:
        name = repr((place, values.shape)).encode()
        content = name + hashlib.sha256(values.tobytes()).digest()
        key = hmac.digest(str(secret).encode(), content, "sha256")
        return normals([key], values.size).reshape(values.shape)

    return draw


def row_draws(secret: int, *place: str | int, ids: Sequence[str] | None) -> Draw:
    """Return draws for every row by itself, under a key of its id and its values.

    A row without an id goes by its place: by its values alone, equal rows would have
    equal noise, and be seen to be equal.
    """

    def draw(values: Levels) -> Float64s:
        names = range(len(values)) if ids is None else ids
        where, key = repr(place), str(secret).encode()
        keys = [
            hmac.digest(key, row + f"{where}{name}".encode(), "sha256")
            for row, name in zip(map(bytes, values), names, strict=True)
        ]
        return normals(keys, values.shape[1])

    return draw


def noisy_rows(rows: Float64s, clip: float, deviation: float, draw: Draw) -> Float64s:
    """Return rows (n, width) clipped to a norm, with noise, as numbers of a grid.

    Truncation to the grid g makes no number larger, so a quantised row x has |x| <=
    clip, and two differ by 2 clip at most. What leaves is x + g round(N(0, s²) / g) =
    g round((x + N(0, s²)) / g), since x / g is a whole number: the Gaussian mechanism
    on x, rounded afterwards. Its accounting holds, with no float error in x or the sum.
    """
    grid = 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)
    values = quantised(rows, clip, grid)
    noise = np.rint(draw(values) * (deviation / grid))
    whole = values + noise.astype(np.int64)
    assert np.abs(whole).max(initial=0) < EXACT
    return whole.astype(np.float64) * grid


def quantised(rows: Float64s, clip: float, grid: float) -> Levels:
    """Return rows in steps of a grid, none longer than the clip.

    Zeros stand for numbers that are not finite, which no noise would hide. Rows are cut
    to half a step less than the clip, so that the last bit of a long row of one number
    does not choose between two steps, and by that its noise.
    """
    finite = np.where(np.isfinite(rows), rows, 0.0)
    norms = np.sqrt(np.square(finite).sum(axis=1, keepdims=True))
    length = max(clip / grid - 0.5, 0.0)
    finite *= length / np.maximum(norms, max(length * grid, TINY))
    values = finite.astype(np.int64)  # truncated towards zero
    assert np.square(values).sum(axis=1).max(initial=0) <= (clip / grid) ** 2
    return values
