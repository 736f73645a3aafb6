"""Refuse results that are NaN or infinite, where they are made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

from torch import Tensor

from lessvfl.errors import DivergenceError

T = TypeVar("T", bound=Tensor | Iterable[float | None])


def finite(what: str, values: T) -> T:
    """Return `values` unchanged; DivergenceError if one is NaN or infinite.

    `what` says whose numbers they are, as in "The scores of party 'bank'"; None stands
    for a number that is known not to exist.

    >>> finite("The scores of party 'bank'", [0.5, float("nan"), 0.25])
    Traceback (most recent call last):
    lessvfl.errors.DivergenceError: The scores of party 'bank' must be finite numbers. \
Got nan at place 1 of 3.
    """
    if isinstance(values, Tensor):
        if bool(values.isfinite().all()):
            return values
        known: list[float | None] = values.flatten().tolist()
    else:
        known = list(values)
    for place, value in enumerate(known):
        if value is not None and not math.isfinite(value):
            raise DivergenceError(
                f"{what} must be finite numbers. Got {value} at place {place} of "
                f"{len(known)}."
            )
    return values
