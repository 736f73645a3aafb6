"""Blocks in fewer bits: values rounded to 2^bits levels between their ends.

Rounding is stochastic and so without bias: a value between two levels goes up as often
as it is near the upper one. And it has error feedback: what one row lost is added to
the next row of the same component, so that the errors of a column sum to less than one
level, however many rows there are. (From message to message nothing is carried: the
next one is about other rows.) The sender draws; what travels are the levels, the lower
end and the distance of two levels. Whoever has these has the same values to the bit,
the sender included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.privacy import draws

Float32s = NDArray[np.float32]
BITS = (4, 8, 16, 32)
END_BYTES = 8  # two float32
TINY = np.finfo(np.float32).tiny
Dtypes = dict[int, np.dtype[Any]]
LEVELS: Dtypes = {4: np.dtype("u1"), 8: np.dtype("u1"), 16: np.dtype("u2")}  # by bits
PACKED: Dtypes = {8: np.dtype("u1"), 16: np.dtype("<u2")}  # and as they travel


@dataclass(frozen=True)
class Coded:
    """A block in levels, on the CPU."""

    levels: Tensor  # which level each value is at: uint8, of 16 bits uint16
    low: Tensor  # (), float32, the lowest level
    step: Tensor  # (), float32, the distance of two levels
    bits: int  # that a level takes

    def values(self, dtype: torch.dtype) -> Tensor:
        """Return the values that the levels stand for."""
        values = self.levels.numpy().astype(np.float32)
        with np.errstate(all="ignore"):  # what is not finite stays so
            values *= self.step.numpy()
            values += self.low.numpy()
        return torch.from_numpy(values).to(dtype)

    def packed(self) -> Tensor:
        """Return the levels as bytes, two of 4 bits in one."""
        flat = self.levels.numpy().reshape(-1)
        if self.bits == 4:
            packed = flat[0::2].copy()
            packed[: len(flat) // 2] |= flat[1::2] << 4
            return torch.from_numpy(packed)
        return torch.from_numpy(flat.astype(PACKED[self.bits]).view(np.uint8))


def n_bytes(n_values: int, bits: int) -> int:
    """Return how many bytes `n_values` levels take."""
    return -(-n_values * bits // 8)


def unpack(
    packed: NDArray[np.uint8],
    shape: Sequence[int],
    low: Tensor,
    step: Tensor,
    bits: int,
) -> Coded:
    """Read levels out of bytes as :meth:`Coded.packed` wrote them."""
    if bits == 4:
        levels = np.empty(2 * len(packed), dtype=np.uint8)
        np.bitwise_and(packed, 15, out=levels[0::2])
        np.right_shift(packed, 4, out=levels[1::2])
        levels = levels[: math.prod(shape)]
    else:
        levels = packed.view(PACKED[bits]).astype(LEVELS[bits])
    return Coded(torch.from_numpy(levels.reshape(shape)), low, step, bits)


def encode(
    values: Tensor, bits: int, seed: int, *name: str | int
) -> tuple[Coded, Tensor]:
    """Round a block (n, width) to levels; return these and the values they stand for.

    `name` is that of the random stream, as stage, party and step.

    >>> block = torch.tensor([[0.0, 1.0, 15.0]])
    >>> coded, rounded = encode(block, 4, 0, "example")
    >>> rounded
    tensor([[ 0.,  1., 15.]])
    """
    return encode_alike([values], bits, seed, [name])[0]


def encode_alike(
    blocks: Sequence[Tensor],
    bits: int,
    seed: int,
    names: Sequence[tuple[str | int, ...]],
) -> list[tuple[Coded, Tensor]]:
    """Round blocks of one shape (n, width) at once, one name each."""
    exact = np.stack([block.numpy(force=True) for block in blocks])
    exact = exact.astype(np.float32, copy=False)
    width = exact.shape[2]
    begin = [[draws.uniforms(seed, width, "round", *name)] for name in names]
    parts = [torch.from_numpy(p) for p in _round(exact, np.array(begin), bits)]
    return [
        (Coded(levels, low, step, bits), rounded.to(blocks[0]))
        for levels, low, step, rounded in zip(*parts, strict=True)
    ]


def _round(
    exact: Float32s, begin: NDArray[np.float64], bits: int
) -> tuple[NDArray[Any], Float32s, Float32s, Float32s]:
    """Return levels, the lowest one, the distance of two, and the rounded values.

    `exact` are blocks (k, n, width), `begin` (k, 1, width) is where the sums of every
    column begin. In NumPy: with few rows, as usual, its calls cost least.
    """
    top, ends = 2**bits - 1, (-1, 1, 1)
    flat = exact.reshape(len(exact), -1)
    with np.errstate(all="ignore"):  # what is not finite stays so
        low = flat.min(axis=1)
        step = np.maximum((flat.max(axis=1) - low) / np.float32(top), TINY)
        shares = exact - low.reshape(ends)
        shares /= step.reshape(ends)
        sums = shares.cumsum(axis=1, dtype=np.float64)
        sums += begin
        np.floor(sums, out=sums)
        sums[:, 1:] -= sums[:, :-1].copy()
        np.minimum(sums, top, out=sums)
        rounded = sums.astype(np.float32)
        rounded *= step.reshape(ends)
        rounded += low.reshape(ends)
        return sums.astype(LEVELS[bits]), low, step, rounded
