"""Private set intersection by Diffie-Hellman on Curve25519 (ECDH-PSI).

An item is hashed to a point H(x) of the curve. The label holder multiplies its points
by a secret number a, a party its own by b. Multiplying commutes, a(bP) = b(aP), so an
item that both sides have ends as the same point abH(x), and two different items do not.
To find b from P and bP, or to tell bP from a random point without b, is the problem
X25519 itself rests on; so neither side can try out ids on the points of the other.

Why X25519 serves as it is:

- It works on u, one of the two coordinates of a point, which P and -P share. H(x) is
  only ever a u, so the sign does not matter.
- Its secret numbers are multiples of 8, the cofactor of the curve: whatever point comes
  in, the result lies in the one large subgroup of prime order. Points of low order,
  which end as zero, are refused. Two points that differ by one of those end alike,
  which is why the label holder looks for repeated points after multiplying too.
- Half of all u lie on the curve, half on its twist, and multiplying never leads from
  one to the other. If H(x) could be on both, its side would tell one bit of every item
  to whoever sees bH(x); so hashing goes on until u is on the curve. A u of the twist
  that the other side sends is multiplied all the same: the twist has a large subgroup
  of its own, and the result tells nothing about the secret number.

It does not stop a side from bringing ids that it made up, nor a party that knows an id
from claiming other rows by it. How long hashing takes depends on the ids, in sum over
all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from lessvfl.remote.align.entries import Entries

POINT_BYTES = 32
PRIME = 2**255 - 19
COUNT_EVERY = 500  # points, some hundredths of a second
DOMAIN = b"lessvfl/align/psi/2:"  # in front of every item, so that no other hash fits

OnCount = Callable[[int], None]


class Key:
    """The secret number of one side, from 32 bytes."""

    def __init__(self, scalar: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(scalar)

    def hide(self, items: Iterable[str], count: OnCount = lambda n: None) -> Entries:
        """Return the points of items, multiplied."""
        return self.multiply(map(hash_to_curve, items), count)

    def multiply(
        self, points: Iterable[bytes], count: OnCount = lambda n: None
    ) -> Entries:
        """Return points multiplied; one that comes out as zero is a ValueError.

        `count` is called now and then with the number that are done.
        """

        def products() -> Iterator[bytes]:
            for n_done, point in enumerate(points, 1):
                public = X25519PublicKey.from_public_bytes(point)
                yield self._key.exchange(public)
                if n_done % COUNT_EVERY == 0:
                    count(n_done)

        return Entries.of(products(), POINT_BYTES)


def hash_to_curve(item: str) -> bytes:
    """Return the point of an item: the same on all sides, and like a random one."""
    encoded, counter = item.encode(), 0
    while True:  # two rounds on average
        head = DOMAIN + counter.to_bytes(4, "little")
        u = int.from_bytes(hashlib.sha512(head + encoded).digest(), "little") % PRIME
        if is_square((u * u * u + 486662 * u * u + u) % PRIME):  # this is v * v
            return u.to_bytes(POINT_BYTES, "little")
        counter += 1


def is_square(number: int) -> bool:
    """Tell whether a number has a root modulo the prime and is not 0.

    By the law of quadratic reciprocity (Jacobi's symbol), as the Euclidean algorithm
    goes: a quarter of the time of Euler's criterion.
    """
    upper, lower, sign = number, PRIME, 1
    while upper:
        twos = (upper & -upper).bit_length() - 1
        upper >>= twos
        if twos & 1 and lower & 7 in (3, 5):
            sign = -sign
        if upper & lower & 3 == 3:
            sign = -sign
        upper, lower = lower % upper, upper
    return lower == 1 and sign == 1
