"""Products of two sides' secret tables, by additive sharing with a dealer.

One side holds B (N, T), the other Y (N, C); each learns a random share of B'Y, and the
shares add up to it in the ring of whole numbers mod 2^bits. A third side deals masks
(Beaver, 1991): a for B, b for Y, and shares of a'b. What travels, B - a and Y - b, is
uniformly random to who lacks the mask. Sides follow the protocol and are curious; the
dealer must not tell either what it dealt to the other. Who carries keys from one side
to another must not swap them: nothing here says whose a key is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId

SMALL_BITS = 16
DTYPES = {SMALL_BITS: torch.uint16, 32: torch.int32, 64: torch.int64}
KEY_BYTES = SEED_BYTES = 32
EXACT = 2**53  # whole numbers up to here are exact in float64
FRACTION = 1 << 12  # of a whole number, to which real ones are rounded
COLUMNS = 1 << 24  # cells of a table that are multiplied at a time


@dataclass(frozen=True)
class Ring:
    """Whole numbers mod 2^bits, as non-negative int64; of 64 bits as they travel."""

    bits: int  # 16, 32 or 64

    @classmethod
    def for_counts(cls, n_rows: int) -> Ring:
        """Return the smallest ring that holds counts of so many rows."""
        return cls(SMALL_BITS if n_rows < 1 << SMALL_BITS else 32)

    @classmethod
    def for_sums(cls, bits: int, n_rows: int) -> Ring:
        """Return the smaller ring that holds sums of so many signed numbers."""
        return cls(32 if n_rows << (bits - 1) <= 1 << 31 else 64)

    @property
    def dtype(self) -> torch.dtype:
        """Return the number format in which elements travel."""
        return DTYPES[self.bits]

    def reduce(self, values: Tensor) -> Tensor:
        """Return values mod 2^bits."""
        return values if self.bits == 64 else values & ((1 << self.bits) - 1)

    def pack(self, values: Tensor) -> Tensor:
        """Return elements as they travel."""
        if self.bits != 32:
            return values.to(self.dtype)
        return (values - ((values >> 31) << 32)).to(torch.int32)

    def unpack(self, values: Tensor) -> Tensor:
        """Return elements that travelled."""
        return self.reduce(values.to(torch.int64))

    def draw(self, seed: bytes, what: str, *shape: int) -> Tensor:
        """Return uniformly random elements that nobody without the seed can tell."""
        return self.unpack(self.draw_packed(seed, what, *shape))

    def draw_packed(self, seed: bytes, what: str, *shape: int) -> Tensor:
        """Return what :meth:`draw` returns, as it travels."""
        n_bytes = math.prod(shape) * self.bits // 8
        data = hashlib.shake_256(seed + what.encode()).digest(n_bytes)
        kind = "u" if self.bits == SMALL_BITS else "i"
        words = np.frombuffer(data, dtype=f"<{kind}{self.bits // 8}")
        return torch.from_numpy(words.astype(words.dtype.newbyteorder("="))).view(shape)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left' right (T, C) mod 2^bits, of tables (N, T) and (N, C)."""
        step = max(1, COLUMNS // max(1, len(left)))
        products = [left.new_zeros(0, right.shape[1])]
        for part in torch.split(left, step, dim=1):
            if len(left) << 2 * self.bits < EXACT:
                products.append((part.double().T @ right.double()).long())
            else:  # beyond 2^63 it wraps, which is the same
                products.append(part.T @ right)
        return self.reduce(torch.cat(products))


SUMS = Ring(32)  # of real numbers


class KeyPair:
    """A side's key for one protocol; two sides derive a secret that none else has.

    Its library is loaded when a key is made: who shares nothing does without it.
    """

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import x25519

        self._private = x25519.X25519PrivateKey.generate()
        self._read = x25519.X25519PublicKey.from_public_bytes

    @property
    def public(self) -> bytes:
        """Return the key that others may know, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def secret(self, other: bytes, *context: bytes | int) -> bytes:
        """Return the secret, 32 bytes, shared with the owner of public key `other`.

        What two sides use it for must differ in the `context`: by one secret they would
        draw the same masks. ValueError for a key that gives no secret.
        """
        shared = self._private.exchange(self._read(other))
        return hashlib.sha256(shared + repr(context).encode()).digest()


def check_keys(keys: Mapping[PartyId, Tensor]) -> None:
    """Raise ProtocolError if a party's public key, (bytes,), gives no secret.

    Another party handed such a key would refuse it, and be blamed for it.
    """
    pair = KeyPair()
    for party, key in keys.items():
        try:
            pair.secret(to_bytes(key))
        except ValueError:
            raise ProtocolError(
                f"Party '{party}' must tell a key by which two sides have a secret. "
                "Got one by which everybody has it."
            ) from None


def deal(ring: Ring, seed_left: bytes, seed_right: bytes, *sizes: int) -> Tensor:
    """Return the share of a'b (T, C) for the side that holds Y; `sizes` N, T, C.

    The side that holds B draws its own share by the same seed as its mask.
    """
    n_rows, n_left, n_right = sizes
    a = ring.draw(seed_left, "mask", n_rows, n_left)
    b = ring.draw(seed_right, "mask", n_rows, n_right)
    share = ring.draw(seed_left, "share", n_left, n_right)
    return ring.reduce(ring.product(a, b) - share)


def masked(ring: Ring, seed: bytes, table: Tensor) -> Tensor:
    """Return a table less its mask, as the other side sees it."""
    return ring.reduce(table - ring.draw(seed, "mask", *table.shape))


def share_of_left(ring: Ring, seed: bytes, masked_right: Tensor, n_left: int) -> Tensor:
    """Return the share of the side that holds B: its own, and a'(Y - b)."""
    n_rows, n_right = masked_right.shape
    a = ring.draw(seed, "mask", n_rows, n_left)
    share = ring.draw(seed, "share", n_left, n_right)
    return ring.reduce(share + ring.product(a, masked_right))


def share_of_right(
    ring: Ring, dealt: Tensor, masked_left: Tensor, right: Tensor
) -> Tensor:
    """Return the share of the side that holds Y: what was dealt, and (B - a)'Y."""
    return ring.reduce(dealt + ring.product(masked_left, right))


def rounded(values: Tensor) -> Tensor:
    """Return real numbers as those that can be hidden: multiples of a fraction."""
    return (values * FRACTION).round() / FRACTION


def hidden(values: Tensor, more: bytes, less: bytes) -> Tensor:
    """Return real numbers as they travel, with a mask added and one subtracted.

    Where sides stand in a ring, and each subtracts what the one before it adds, the
    masks cancel in the sum over all sides, and nobody can tell any part of it.
    """
    whole = (values * FRACTION).round().long()
    masks = SUMS.draw(more, "sum", *values.shape) - SUMS.draw(less, "sum", *whole.shape)
    return SUMS.pack(SUMS.reduce(whole + masks))


def revealed_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of real numbers that were hidden, of all sides."""
    total = SUMS.reduce(torch.stack([SUMS.unpack(part) for part in parts]).sum(dim=0))
    return SUMS.pack(total).double() / FRACTION


def to_bytes(values: Tensor) -> bytes:
    """Return bytes that travelled, (n,)."""
    return bytes(values.tolist())


def from_bytes(data: Sequence[int]) -> Tensor:
    """Return bytes as they travel, (n,)."""
    return torch.tensor(list(data), dtype=torch.uint8)
