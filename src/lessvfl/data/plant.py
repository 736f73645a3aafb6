"""Planted spurious features: columns of noise at the end of each party's block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lessvfl.data.frame import Floats
from lessvfl.errors import ConfigError
from lessvfl.settings import a_float, refuse

_SHARE = a_float(0.0, 10.0)


def shares_of(spurious: Any, n_parties: int) -> list[float]:
    """Return one share of planted columns per party, or refuse what was given."""
    is_many = isinstance(spurious, list | tuple)
    shares = list(spurious) if is_many else [spurious] * n_parties
    if len(shares) != n_parties:
        raise ConfigError(
            f"The 'spurious' shares must be one per party, {n_parties}. "
            f"Got {len(shares)}."
        )
    for share in shares:
        if not _SHARE.accepts(share):
            raise refuse("spurious", "share", _SHARE.allowed, share)
    return shares


def spread_of(matrices: Sequence[Floats], noise: str) -> tuple[float, float]:
    """Return mean and standard deviation of the noise.

    For ``noise="range"`` they are the mean of all values of all parties, and half of
    the distance between the greatest and the least, as in the released code.
    """
    cells = [matrix for matrix in matrices if matrix.size]
    if noise == "unit" or not cells:
        return 0.0, 1.0
    total = sum(float(matrix.sum()) for matrix in cells)
    mean = total / sum(matrix.size for matrix in cells)
    low = min(float(matrix.min()) for matrix in cells)
    high = max(float(matrix.max()) for matrix in cells)
    return mean, (high - low) / 2.0
