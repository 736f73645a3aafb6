"""Products under sharing: right, and what travels says nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lessvfl.core import sharing
from lessvfl.core.sharing import KeyPair, Ring

RINGS = (Ring(16), Ring(32))


def tables(n_rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return tables of 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(2, (n_rows, 7), generator=generator)
    right = torch.randint(2, (n_rows, 3), generator=generator)
    return left, right


@pytest.mark.parametrize("ring", RINGS, ids=["16 bits", "32 bits"])
@pytest.mark.parametrize("n_rows", [1, 50, 5000])
def test_shares_add_up_to_the_product(ring: Ring, n_rows: int) -> None:
    left, right = tables(n_rows)
    p, dealer = KeyPair(), KeyPair()
    seed = p.secret(dealer.public, 0)
    assert seed == dealer.secret(p.public, 0) != dealer.secret(p.public, 1)
    of_server = b"of the server"
    dealt = sharing.deal(ring, seed, of_server, n_rows, 7, 3)
    down = sharing.masked(ring, of_server, right)
    up = sharing.masked(ring, seed, left)
    own = sharing.share_of_left(ring, seed, ring.unpack(ring.pack(down)), 7)
    other = sharing.share_of_right(ring, dealt, ring.unpack(ring.pack(up)), right)
    assert torch.equal(ring.reduce(own + other), left.T @ right)


@pytest.mark.parametrize("ring", [*RINGS, Ring(64)], ids=["16", "32", "64 bits"])
def test_what_is_drawn_is_the_same_as_it_travels(ring: Ring) -> None:
    drawn = ring.draw(b"a seed", "mask", 300, 2)
    travels = ring.draw_packed(b"a seed", "mask", 300, 2)
    assert travels.dtype == ring.dtype
    assert torch.equal(ring.unpack(travels), drawn)
    assert torch.equal(ring.pack(drawn), travels)
    assert not torch.equal(drawn, ring.draw(b"a seed", "another mask", 300, 2))


@pytest.mark.parametrize(
    ("bits", "n_rows", "needs"), [(16, 1 << 16, 32), (16, 65537, 64), (8, 1 << 24, 32)]
)
def test_a_ring_holds_the_largest_sum_of_either_sign(
    bits: int, n_rows: int, needs: int
) -> None:
    ring = Ring.for_sums(bits, n_rows)
    assert ring.bits == needs
    assert n_rows * (2 ** (bits - 1) - 1) < 2 ** (ring.bits - 1)


@pytest.mark.parametrize("ring", RINGS, ids=["16 bits", "32 bits"])
def test_elements_survive_the_way(ring: Ring) -> None:
    ends = torch.tensor([0, 1, 2 ** (ring.bits - 1), 2**ring.bits - 1])
    assert torch.equal(ring.unpack(ring.pack(ends)), ends)
    assert ring.pack(ends).dtype == ring.dtype


def test_products_are_exact_where_floats_are_not() -> None:
    ring = Ring(32)
    left = torch.full((1000, 2), 2**32 - 3)
    right = torch.full((1000, 1), 2**32 - 5)
    assert ring.product(left, right).tolist() == [[15 * 1000]] * 2


@pytest.mark.parametrize("value", [0, 1])
def test_what_travels_is_uniform_whatever_it_hides(value: int) -> None:
    """A table of zeros and one of ones look the same: chi-squared over 256 cells."""
    ring = Ring(16)
    seen = sharing.masked(ring, b"a seed", torch.full((500, 200), value))
    observed = np.bincount((seen >> 8).flatten().numpy(), minlength=256)
    assert stats.chisquare(observed).pvalue > 1e-4
    low = np.bincount((seen & 255).flatten().numpy(), minlength=256)
    assert stats.chisquare(low).pvalue > 1e-4


def test_a_mask_is_of_its_seed_alone() -> None:
    ring = Ring(16)
    one, other = (ring.draw(seed, "mask", 100) for seed in (b"1", b"2"))
    assert not torch.equal(one, other)
    assert torch.equal(one, ring.draw(b"1", "mask", 100))
    assert not torch.equal(one, ring.draw(b"1", "share", 100))


def test_rings_hold_counts() -> None:
    assert Ring.for_counts(65_535).bits == 16
    assert Ring.for_counts(65_536).bits == 32


def test_hidden_numbers_are_known_in_their_sum_alone() -> None:
    """Three sides in a ring, each subtracts what the one before it adds."""
    generator = torch.Generator().manual_seed(0)
    values = [100 * torch.randn(300, 40, generator=generator) for _ in range(3)]
    seeds = [b"first", b"second", b"third"]
    sent = [sharing.hidden(own, seeds[i], seeds[i - 1]) for i, own in enumerate(values)]
    for part in sent:
        cells = (sharing.SUMS.unpack(part) >> 24).flatten().numpy()
        observed = np.bincount(cells, minlength=256)
        assert float(stats.chisquare(observed).pvalue) > 1e-4
    total = torch.stack([sharing.rounded(own.double()) for own in values]).sum(dim=0)
    assert torch.equal(sharing.revealed_sum(sent), total)
    assert torch.allclose(
        sharing.revealed_sum(sent), torch.stack(values).sum(dim=0).double(), atol=1e-3
    )
