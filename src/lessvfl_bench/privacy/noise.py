"""Embeddings from releases with noise: the state of a generator, and many requests.

PyTorch's generator on the CPU is a Mersenne Twister: every bit that it gives is a sum,
modulo 2, of bits of its state. Clipped embeddings are small beside the noise, so that
the leading bits of what Box and Muller's method was given are certain. Enough of them
are a linear system for the state, and the state gives the noise of every number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import r2_score
from torch import Tensor

from lessvfl.core.guard import EmbeddingGuard
from lessvfl_bench.privacy.traffic import AnyArray

BitMatrix = NDArray[np.uint64]  # of bits, 64 a word
N_NUMBERS = 20_000  # of one release
N_ASKED = 500  # rows of the first of many requests
N_REQUESTS = 52  # each with one row more
BY_STATE = "embeddings by the state of a generator"
BY_REQUESTS = f"embeddings by {N_REQUESTS} requests"
N_WORDS, SHIFT, LAST = 624, 397, 31  # of the generator, whose words have 32 bits
FEEDBACK = 0x9908B0DF
N_DRAWN = 24  # bits of a word that a float32 has
SPARE = 256  # equations beyond the number of unknown bits
CHUNK, WIDTH = 64, 16  # rows and columns that are changed together
ROUNDING = 1e-5  # of float32, beside numbers of size one
TINY = 1e-12


class Equations(NamedTuple):
    """Of each its word among those drawn, the bits that it sums, and their sum."""

    word: AnyArray
    mask: AnyArray
    value: AnyArray


def by_state(released: AnyArray, deviation: float, away: float) -> AnyArray | None:
    """Return numbers without their noise, or None where the state is not found.

    Every number is at most `away` from its noise, of that deviation.
    """
    reach = away / deviation + ROUNDING
    state = _state(certain_bits(released.ravel() / deviation, reach))
    if state is None:
        return None
    generator = torch.Generator().manual_seed(0)
    whole = generator.get_state()
    whole[24 : 24 + 8 * N_WORDS] = torch.from_numpy(state).view(torch.uint8)
    drawn = torch.randn(released.shape, generator=generator.set_state(whole)).numpy()
    found: AnyArray = released - deviation * drawn
    return found if np.abs(found).max() <= away + ROUNDING * deviation else None


def by_averaging(releases: AnyArray, deviation: float) -> AnyArray:
    """Return the likeliest numbers by all different releases (k, ...) of them."""
    different = np.unique(releases, axis=0)
    mean = different.mean(axis=0)
    noise = deviation**2 / len(different)
    share: AnyArray = mean * max(0.0, 1 - noise / max(float(mean.var()), TINY))
    return share


def measure(rows: AnyArray, guard: EmbeddingGuard) -> dict[str, dict[str, float]]:
    """Attack releases of embeddings (n, width) by their guard; return R2 by attack.

    The control is who has one release, and shrinks it by what is known of its noise.
    """
    clip, deviation = guard.mechanism.clip, guard.mechanism.noise * guard.mechanism.clip
    n_rows = -(-N_NUMBERS // rows.shape[1])
    h = torch.from_numpy(np.resize(rows, (n_rows, rows.shape[1]))).float()
    at_once = guard.release(h, "embed").double().numpy()
    asked = answers(h, guard)
    clear = by_state(at_once, deviation, clip)
    alone = by_averaging(at_once[None], deviation)
    attacks = {
        BY_STATE: (alone if clear is None else clear, alone),
        BY_REQUESTS: (
            by_averaging(asked, deviation),
            by_averaging(asked[:1], deviation),
        ),
    }
    true = guard.mechanism.clipped(h).double().numpy()
    mixed = np.random.default_rng(0).permutation(true.ravel()).reshape(true.shape)
    return {
        name: {
            "score": explained(true, found),
            "control": explained(true, control),
            "shuffled": explained(mixed, found),
        }
        for name, (found, control) in attacks.items()
    }


def answers(h: Tensor, guard: EmbeddingGuard) -> AnyArray:
    """Return what many requests give of the same rows of h (n, width)."""
    ids = [str(row) for row in range(len(h))]
    given = [
        guard.release_by_row(h[:n], "predict", ids=ids[:n])[:N_ASKED]
        for n in range(N_ASKED, N_ASKED + N_REQUESTS)
    ]
    return torch.stack(given).double().numpy()


def explained(true: AnyArray, found: AnyArray) -> float:
    """Return R2 of the first rows, 0 at least."""
    return max(0.0, float(r2_score(true[: len(found)].ravel(), found.ravel())))


# ------------------------------------------------------------------- bits of the draws


def certain_bits(z: AnyArray, reach: float) -> Equations:
    """Return sums of bits of drawn words, by normal numbers that are known to `reach`.

    PyTorch makes sixteen numbers of sixteen words: of the first eight come lengths, of
    the others angles.
    """
    n_blocks = len(z) // 16 - bool(len(z) % 16)  # the last is drawn twice, if in part
    x, y = z[: 16 * n_blocks].reshape(n_blocks, 2, 8).transpose(1, 0, 2)
    nearest = np.hypot(*(np.maximum(np.abs(own) - reach, 0) for own in (x, y)))
    farthest = np.hypot(np.abs(x) + reach, np.abs(y) + reach)
    lengths = [-np.expm1(-np.square(length) / 2) for length in (nearest, farthest)]
    middle = x + 1j * y
    sides = (-reach, reach)
    corners = [middle + right + 1j * up for right in sides for up in sides]
    away = np.angle(corners / middle)
    low = np.angle(middle) + away.min(axis=0)
    high = np.where(nearest > 0, np.angle(middle) + away.max(axis=0), low + 2 * np.pi)
    words = np.arange(16 * n_blocks).reshape(n_blocks, 2, 8)
    found = [
        *_gray_bits(words[:, 0], lengths[0], lengths[1]),
        *_gray_bits(words[:, 1], low / (2 * np.pi), high / (2 * np.pi)),
    ]
    order = np.argsort(np.concatenate([one.word for one in found]), kind="stable")
    return Equations(
        *(np.concatenate(own)[order] for own in zip(*found, strict=True)),
    )


def _gray_bits(words: AnyArray, low: AnyArray, high: AnyArray) -> Iterator[Equations]:
    """Yield sums of bits that are alike in all numbers between two shares of a word.

    Those of Gray's code, which are sums of two bits: neighbours differ in one of them.
    """
    words = words.ravel()
    first = np.floor(low.ravel() * 2**N_DRAWN).astype(np.int64) - 1
    last = np.floor(high.ravel() * 2**N_DRAWN).astype(np.int64) + 1
    n_bits = np.zeros_like(words)  # of the finest cells of which two hold all numbers
    for k in range(1, N_DRAWN + 1):
        cells = [end >> (N_DRAWN - k) for end in (first, last)]
        n_bits[cells[1] - cells[0] <= 1] = k
    drop = N_DRAWN - n_bits
    cells = [(end >> drop) % (1 << n_bits) for end in (first, last)]
    codes = [cell ^ cell >> 1 for cell in cells]
    for bit in range(N_DRAWN):
        own = (bit < n_bits) & ((codes[0] ^ codes[1]) >> bit & 1 == 0)
        pair = np.where(bit + 1 < n_bits, 3, 1) << bit << drop
        yield Equations(words[own], pair[own], (codes[0] >> bit & 1)[own])


# ------------------------------------------------------------------------ the generator


def _state(known: Equations) -> AnyArray | None:
    """Return the words (624,) that fulfil equations, None where these are too few."""
    n = 32 * N_WORDS + SPARE
    if len(known.word) < n:
        return None
    some = np.linspace(0, len(known.word) - 1, n).astype(int)  # those together depend
    word, value = known.word[some], known.value[some]
    mask = _untempered(known.mask[some])
    system = np.zeros((n, N_WORDS // 2 + 1), dtype=np.uint64)
    system[:, -1] = value
    bits = np.zeros((N_WORDS, 32, N_WORDS // 2), dtype=np.uint64)
    places = np.arange(32 * N_WORDS)
    ones = np.uint64(1) << (places % 64).astype(np.uint64)
    bits.reshape(len(places), -1)[places, places // 64] = ones
    for turn in range(int(word[-1]) // N_WORDS + 1):
        _twist(bits)
        own = np.flatnonzero(word // N_WORDS == turn)
        for bit in range(32):
            rows = own[mask[own] >> bit & 1 == 1]
            system[rows, :-1] ^= bits[word[rows] % N_WORDS, bit]
    return solved(system).view(np.uint32).astype(np.int64)


def _twist(bits: BitMatrix) -> None:
    """Turn the words of a state (624, 32, ...), each bit a sum of unknown ones."""
    for start, stop in ((0, 227), (227, 454), (454, 623), (623, 624)):
        own = np.arange(start, stop)
        after = bits[(own + 1) % N_WORDS]
        mixed = bits[(own + SHIFT) % N_WORDS]
        mixed[:, 30] ^= bits[own, LAST]
        mixed[:, :30] ^= after[:, 1:LAST]
        mixed[:, [b for b in range(32) if FEEDBACK >> b & 1]] ^= after[:, :1]
        bits[own] = mixed


def _untempered(mask: AnyArray) -> AnyArray:
    """Return which bits of a word of the state bits of a drawn word sum."""
    found = np.zeros_like(mask)
    for bit in range(32):
        word = 1 << bit
        word ^= word >> 11
        word ^= word << 7 & 0x9D2C5680
        word ^= word << 15 & 0xEFC60000
        word ^= word >> 18
        odd = mask & word
        for half in (16, 8, 4, 2, 1):
            odd ^= odd >> half
        found |= (odd & 1) << bit
    return found


def solved(system: BitMatrix) -> BitMatrix:
    """Return bits that solve equations: packed rows, with the sum in the last word.

    Gauss's elimination by some columns at a time, with tables of the sums of their rows
    (the method of the four Russians). Bits that nothing decides are zero.
    """
    n_words = system.shape[1] - 1
    places: list[int] = []  # of the bit that each of the first rows decides
    for column in range(0, 64 * n_words, WIDTH):
        top = len(places)
        left: BitMatrix = system[top:, column // 64 :]
        codes: AnyArray = system.view(np.uint16)[top:, column // WIDTH]
        pivots = _pivots(codes)
        own, bits = left[list(pivots.values())], list(pivots)
        for i, j in itertools.permutations(range(len(own)), 2):
            if own[j, 0] >> np.uint64(column % 64 + bits[i]) & np.uint64(1):
                own[j] ^= own[i]
        first = range(len(own))
        holes = [row for row in pivots.values() if row not in first]
        left[holes] = left[[row for row in first if row not in pivots.values()]]
        left[: len(own)] = own
        row_of = dict(zip(bits, own, strict=True))
        tables = [_sums(row_of, start, left.shape[1]) for start in (0, WIDTH // 2)]
        for start in range(len(own), len(left), CHUNK):
            rows = slice(start, start + CHUNK)
            low, high = codes[rows] & 255, codes[rows] >> 8
            left[rows] ^= tables[0][low]
            left[rows] ^= tables[1][high]
        places += [column + bit for bit in bits]
    found = np.zeros(n_words, dtype=np.uint64)
    for row, place in reversed(list(zip(system, places, strict=False))):
        total = np.bitwise_xor.reduce(row[:-1] & found) ^ row[-1]
        odd = int(total).bit_count() & 1
        found[place // 64] |= np.uint64(odd << place % 64)
    return found


def _pivots(codes: AnyArray) -> dict[int, int]:
    """Return rows that are independent in some columns, by the column of each."""
    left, found = codes.copy(), {}
    for bit in range(WIDTH):
        with_bit = np.flatnonzero(left >> bit & 1)
        if len(with_bit):
            found[bit] = int(with_bit[0])
            left[with_bit] ^= left[with_bit[0]]
    return found


def _sums(row_of: Mapping[int, BitMatrix], start: int, n_words: int) -> BitMatrix:
    """Return the sums of rows for every byte of bits, of those from `start` on."""
    sums = np.zeros((256, n_words), dtype=np.uint64)
    for bit in range(8):
        own = row_of.get(start + bit, np.uint64(0))
        sums[1 << bit : 2 << bit] = sums[: 1 << bit] ^ own
    return sums
