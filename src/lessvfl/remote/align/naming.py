"""Proof that whoever claims rows as common can name them by their ids.

The last message of an alignment claims rows of a party by their places in its offer.
That alone would let a label holder claim rows of which it knows no id. So for each row
claimed, of the id y, the party sends a point, and the label holder answers with two,
which only an x that is y makes fit::

    party          rH(y) ->     label holder
    party          <- sH(x), srH(y)            party: does r times the first give the
                                               second?

Both r and s are for one row alone. Who does not know y sees one random point, and knows
no other pair of points whose second is r times its first; what it knows of another row
has another r. And who does not know x can try out one y for each row claimed, which it
could as well have offered.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from lessvfl.remote.align import keys, psi

WIDTH = psi.POINT_BYTES


def challenge(items: Sequence[str], secret: bytes) -> bytes:
    """Return a point for each row claimed; `items` are whom the rows are about."""
    return b"".join(
        _own(secret, item).multiply([psi.hash_to_curve(item)])[0] for item in items
    )


def prove(named: Sequence[bytes], challenges: bytes, secret: bytes) -> bytes:
    """Return two points for each row claimed; ValueError says what does not fit.

    `named` are the points H(x) of the ids that rows are claimed by.
    """
    pairs = []
    for own, point in zip(named, _points(challenges, len(named)), strict=True):
        once = psi.Key(keys.derive(secret, "proof", point + own))
        pairs += once.multiply([own, point])
    return b"".join(pairs)


def is_proven(items: Sequence[str], proof: bytes, secret: bytes) -> bool:
    """Tell whether the label holder named every row that it claims."""
    try:
        points = _points(proof, 2 * len(items))
        found = [
            _own(secret, item).multiply([named])[0]
            for item, named in zip(items, points[::2], strict=True)
        ]
    except ValueError:
        return False
    return hmac.compare_digest(b"".join(found), b"".join(points[1::2]))


def _own(secret: bytes, item: str) -> psi.Key:
    """Return the party's number for a row, which multiplies no other id."""
    return psi.Key(keys.derive(secret, "challenge", item.encode()))


def _points(data: bytes, n_points: int) -> list[bytes]:
    if len(data) != WIDTH * n_points:
        raise ValueError("holds another number of points than rows are claimed")
    points = [data[at : at + WIDTH] for at in range(0, len(data), WIDTH)]
    psi.check_points(points)
    return points
