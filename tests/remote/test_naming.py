"""Proof that claimed rows are named: who knows no id of a row cannot make one."""

from __future__ import annotations

import itertools

import pytest

from lessvfl.remote.align import naming, psi

ITEMS = [f"t:person-{i}" for i in range(5)]
POINTS = [psi.hash_to_curve(item) for item in ITEMS]
PARTY, HOLDER = bytes(range(32)), bytes(32)


def points(data: bytes) -> list[bytes]:
    return [data[at : at + 32] for at in range(0, len(data), 32)]


def test_who_knows_the_ids_can_name_the_rows():
    challenges = naming.challenge(ITEMS, PARTY)
    proof = naming.prove(POINTS, challenges, HOLDER)
    assert naming.is_proven(ITEMS, proof, PARTY)


@pytest.mark.parametrize("row", range(len(ITEMS)))
def test_one_row_that_is_named_wrongly_is_found(row):
    challenges = naming.challenge(ITEMS, PARTY)
    named = [*POINTS]
    named[row] = psi.hash_to_curve("t:somebody")
    assert not naming.is_proven(ITEMS, naming.prove(named, challenges, HOLDER), PARTY)


def test_whoever_knows_one_id_cannot_claim_other_rows_by_it():
    """Neither by its pair of points, nor by multiples of what came."""
    challenges = naming.challenge(ITEMS, PARTY)
    own, *others = points(challenges)
    known, key = psi.hash_to_curve(ITEMS[0]), psi.Key(HOLDER)
    seen = [known, own, *others, *key.multiply([known, own, *others])]
    honest = naming.prove(POINTS, challenges, HOLDER)
    for pair in itertools.product(seen, repeat=2):
        if pair[0] != others[0] or pair[1] != others[0]:
            forged = points(honest)
            forged[2:4] = pair
            assert not naming.is_proven(ITEMS, b"".join(forged), PARTY)


def test_two_parties_rows_and_tables_have_points_with_nothing_in_common():
    several = naming.challenge(ITEMS, PARTY) + naming.challenge(ITEMS, HOLDER)
    assert len(set(points(several))) == 2 * len(ITEMS)
    again = naming.prove(POINTS, naming.challenge(ITEMS, HOLDER), HOLDER)
    first = naming.prove(POINTS, naming.challenge(ITEMS, PARTY), HOLDER)
    assert not set(points(first)) & set(points(again))


@pytest.mark.parametrize(
    "data", [b"", bytes(32 * 5), b"\x01" + bytes(32 * 5 - 1), b"\xff" * 160, b"x" * 159]
)
def test_points_that_do_not_fit_are_refused(data):
    with pytest.raises(ValueError, match=r"points than rows|not on the curve"):
        naming.prove(POINTS, data, HOLDER)
    assert not naming.is_proven(ITEMS, data + data, PARTY)
