"""Blocks in fewer bits: values rounded to 2^bits levels between their ends.

Rounding is stochastic and so without bias: a value between two levels goes up as often
as it is near the upper one. And it has error feedback: what one row lost is added to
the next row of the same component, so that the errors of a column sum to less than one
level, however many rows there are. (From message to message nothing is carried: the
next one is about other rows.) The sender draws; what travels are the levels, the lower
end and the distance of two levels, of every replica. Whoever has these has the same
values to the bit, the sender included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.plans import stream

BITS = (4, 8, 16, 32)
END_BYTES = 8  # two float32 a replica


@dataclass(frozen=True)
class Coded:
    """A block in levels."""

    levels: Tensor  # (R, ...), int32, which level each value is at
    low: Tensor  # (R,), float32, the lowest level of every replica
    step: Tensor  # (R,), float32, the distance of two levels
    bits: int  # that a level takes

    def values(self, dtype: torch.dtype) -> Tensor:
        """Return the values that the levels stand for."""
        ends = (-1, *[1] * (self.levels.dim() - 1))
        step, low = self.step.view(ends), self.low.view(ends)
        return (self.levels * step + low).to(dtype)

    def packed(self) -> Tensor:
        """Return the levels as bytes, two of 4 bits in one."""
        flat = self.levels.flatten()
        if self.bits == 16:
            both = torch.stack([flat & 255, flat >> 8], dim=1)
            return both.flatten().to(torch.uint8)
        if self.bits == 8:
            return flat.to(torch.uint8)
        if len(flat) % 2:
            flat = torch.cat([flat, flat.new_zeros(1)])
        pairs = flat.view(-1, 2)
        return (pairs[:, 0] | pairs[:, 1] << 4).to(torch.uint8)


def n_bytes(n_values: int, bits: int) -> int:
    """Return how many bytes `n_values` levels take."""
    return -(-n_values * bits // 8)


def unpack(
    packed: Tensor, shape: Sequence[int], low: Tensor, step: Tensor, bits: int
) -> Coded:
    """Read levels out of bytes as :meth:`Coded.packed` wrote them."""
    wide = packed.to(torch.int32)
    if bits == 16:
        pairs = wide.view(-1, 2)
        wide = pairs[:, 0] | pairs[:, 1] << 8
    elif bits == 4:
        wide = torch.stack([wide & 15, wide >> 4], dim=1).flatten()
    return Coded(wide[: math.prod(shape)].view(*shape), low, step, bits)


def encode(
    values: Tensor,
    bits: int,
    mask: Tensor,
    seeds: Sequence[int],
    *name: str | int,
) -> Coded | None:
    """Round a block to levels; None with 32 bits or more: it stays as it is.

    Every replica of `values` (R, n, width) is rounded as if it were alone, over the
    columns that it sends (`mask`, (R, width)); `name` is that of the random stream, as
    stage, party and step.

    >>> mask = torch.ones(1, 3, dtype=torch.bool)
    >>> coded = encode(torch.tensor([[[0.0, 1.0, 15.0]]]), 4, mask, (0,), "example")
    >>> coded.values(torch.float32)
    tensor([[[ 0.,  1., 15.]]])
    """
    if bits >= 32:
        return None
    values, top = values.detach().float(), 2**bits - 1
    levels = torch.zeros(values.shape, dtype=torch.int32, device=values.device)
    low = torch.zeros(len(values), device=values.device)
    step = torch.zeros_like(low)
    tiny = torch.finfo(torch.float32).tiny
    for r, seed in enumerate(seeds):
        own = mask[r].to(values.device)
        sent = values[r][:, own]
        if sent.numel() == 0:
            continue
        low[r] = sent.amin()
        step[r] = ((sent.amax() - low[r]) / top).clamp_min(tiny)
        begin = torch.rand(1, sent.shape[1], generator=stream(seed, "round", *name))
        exact = ((sent - low[r]) / step[r]).double()
        sums = (begin.to(exact) + exact.cumsum(dim=0)).floor()
        raised = torch.diff(sums, dim=0, prepend=torch.zeros_like(sums[:1]))
        levels[r][:, own] = raised.clamp(0, top).to(torch.int32)
    return Coded(levels, low, step, bits)
