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

    `name` is that of the random stream, as stage, party and step: it says where the
    sums of every column begin.

    >>> block = torch.tensor([[0.0, 1.0, 15.0]])
    >>> coded, rounded = encode(block, 4, 0, "example")
    >>> rounded
    tensor([[ 0.,  1., 15.]])
    """
    exact = values.numpy(force=True).astype(np.float32, copy=False)
    begin = draws.uniforms(seed, exact.shape[1], "round", *name)
    top = np.float32(2**bits - 1)
    with np.errstate(all="ignore"):  # what is not finite stays so
        low = exact.min()
        step = np.maximum((exact.max() - low) / top, TINY)
        shares = (exact - low) / step
        # By columns: NumPy sums up rows of an array in half the time.
        sums = shares.T.astype(np.float64, order="C").cumsum(axis=1)
        sums += begin[:, np.newaxis]
        np.floor(sums, out=sums)
        sums[:, 1:] -= sums[:, :-1].copy()
        np.minimum(sums, top, out=sums)
        levels = sums.T.astype(LEVELS[bits], order="C")
        rounded = sums.T.astype(np.float32, order="C") * step + low
    coded = Coded(
        torch.from_numpy(levels),
        low=torch.from_numpy(np.asarray(low)),
        step=torch.from_numpy(np.asarray(step)),
        bits=bits,
    )
    return coded, torch.from_numpy(rounded).to(values)
