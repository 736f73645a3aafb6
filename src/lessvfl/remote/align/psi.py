"""Private set intersection by openmined-psi, the one file that touches it.

Items and points go in and out as lists; the library's own messages are built here, so
that nobody else's bytes ever reach its parser.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lessvfl.errors import ConfigError

POINT_BYTES = 33  # P-256, compressed


def library() -> Any:
    """Return openmined-psi, or refuse in a sentence where it is not installed."""
    try:
        import private_set_intersection.python as openmined
    except ImportError:
        raise ConfigError(
            "The mode 'psi' of alignment needs a package that is not installed: "
            "install the extra 'psi', as in pip install 'lessvfl[psi]'."
        ) from None
    return openmined


class Question:
    """The side that learns which of its items the other side has.

    Its `points` are the items under a fresh key, for the other side.
    """

    def __init__(self, items: Sequence[str]) -> None:
        self._side = library().client.CreateWithNewKey(True)
        request = self._side.CreateRequest(list(items))
        self.points: list[bytes] = list(request.encrypted_elements)

    def shared(self, theirs: Sequence[bytes], answered: Sequence[bytes]) -> list[int]:
        """Return the places of the shared items; ValueError says what does not fit."""
        if len(answered) != len(self.points):
            raise ValueError("answers another number of points than it was asked")
        # The library would miss items here, not complain.
        if any(a >= b for a, b in itertools.pairwise(theirs)):
            raise ValueError("holds points that are not in order")
        openmined = library()
        setup = openmined.ServerSetup(raw={"encrypted_elements": theirs})
        response = openmined.Response(encrypted_elements=answered)
        try:
            return list(self._side.GetIntersection(setup, response))
        except RuntimeError:
            raise ValueError("holds a point that is not on the curve") from None


def answer(
    items: Sequence[str], asked: Sequence[bytes]
) -> tuple[list[bytes], list[bytes]]:
    """Return the own items and the asked points under one fresh key.

    The own points are sorted. ValueError says what does not fit.
    """
    openmined = library()
    side = openmined.server.CreateWithNewKey(True)
    request = openmined.Request(reveal_intersection=True, encrypted_elements=asked)
    try:
        response = side.ProcessRequest(request)
    except RuntimeError:
        raise ValueError("holds a point that is not on the curve") from None
    # RAW sends the points themselves: no filter, so the rate of false positives (the
    # first argument) is unused.
    raw = openmined.DataStructure.RAW
    setup = side.CreateSetupMessage(1e-9, len(asked), list(items), raw)
    return list(setup.raw.encrypted_elements), list(response.encrypted_elements)
