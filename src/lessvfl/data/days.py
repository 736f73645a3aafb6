"""Days of the calendar, from their parts or from one number each."""

from __future__ import annotations

from typing import Any

import numpy as np

from lessvfl.data.frame import Floats

FIRST_DIGITS, LAST_DIGITS, NO_END = 19000101, 20991231, 99991231  # days
FIRST_LOOK = 50  # numbers that rule most columns out


def days_of_parts(year: Any, month: Any, day: Any) -> Floats | None:
    """Return days since 1970-01-01 of whole numbers; None where one is no day."""
    months = 12 * (year - 1970) + month - 1
    days = months.astype("M8[M]").astype("M8[D]") + (day - 1)
    is_real = (
        (1 <= month) & (month <= 12) & (days.astype("M8[M]").astype(int) == months)
    )
    return days.astype(np.float64) if is_real.all() else None


def days_of_digits(numbers: Floats) -> Floats | None:
    """Return the days that numbers such as 20240131 stand for, NaN where missing.

    None where one of them is no day of the years 1900 to 2099, or 9999-12-31.
    """
    if (numbers[:FIRST_LOOK] < FIRST_DIGITS).any():  # as of most columns
        return None
    is_there = ~np.isnan(numbers)
    present = numbers[is_there]
    inside = (present >= FIRST_DIGITS) & (present <= LAST_DIGITS)
    if not (inside | (present == NO_END)).all() or (present % 1).any():
        return None
    whole = present.astype(np.int64)
    days = np.full(len(numbers), np.nan)
    real = days_of_parts(whole // 10000, whole // 100 % 100, whole % 100)
    if real is None:
        return None
    days[is_there] = real
    return days
