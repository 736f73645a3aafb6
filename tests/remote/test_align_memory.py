"""Alignment takes little more memory than its messages have bytes."""

from __future__ import annotations

import hashlib
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lessvfl.remote.align import Aligner, Ids, PartyAligner, psi

MOST = 3  # times the bytes of a message


class Quick:
    """Keys of a group in which it takes no time to multiply; it hides nothing."""

    def __init__(self, scalar: bytes) -> None:
        self.number = int.from_bytes(scalar, "little")

    def exchange(self, point: bytes) -> bytes:
        product = int.from_bytes(point, "little") * self.number % psi.PRIME
        return product.to_bytes(psi.POINT_BYTES, "little")


@pytest.fixture(autouse=True)
def quick_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def point_of(item: str) -> bytes:
        return hashlib.sha256(item.encode()).digest()[:31] + b"\1"

    private = SimpleNamespace(from_private_bytes=Quick)
    monkeypatch.setattr(psi, "X25519PrivateKey", private)
    public = SimpleNamespace(from_public_bytes=lambda point: point)
    monkeypatch.setattr(psi, "X25519PublicKey", public)
    monkeypatch.setattr(psi, "hash_to_curve", point_of)


def measured(take: Any, message: bytes) -> tuple[int, Any]:
    """Return the most memory until there is a reply, the message included."""
    tracemalloc.start()
    try:
        reply = take(message)
        return len(message) + tracemalloc.get_traced_memory()[1], reply
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("mode", "n_ours", "n_theirs"),
    [
        ("psi", 4000, 4000),
        ("psi", 8000, 2000),
        ("psi", 2000, 8000),
        ("plain", 30_000, 30_000),
    ],
)
def test_a_message_takes_at_most_three_times_its_bytes(
    mode: Any, n_ours: int, n_theirs: int
) -> None:
    """Once, an offer took ten times its bytes of a server.

    What a party answers holds its own rows, or the label holder's once more: it counts
    as well.
    """
    ours, theirs = (Ids(np.arange(n)) for n in (n_ours, n_theirs))
    holder = Aligner(mode, ours, n_ours, secret=bytes([1] * 32))
    party = PartyAligner(mode, theirs, n_theirs, secret=bytes([2] * 32))

    def answered(message: bytes) -> bytes:
        took, reply = measured(party.answer, message)
        assert took <= MOST * (len(message) + len(reply or b""))
        return reply or b""

    message: bytes | None = holder.hello()
    while message is not None:
        reply = answered(message)
        took, message = measured(lambda data: holder.take("a", data), reply)
        assert took <= MOST * len(reply)
    assert answered(holder.finish()["a"]) == b""
    assert len(party.rows) == min(n_ours, n_theirs)
