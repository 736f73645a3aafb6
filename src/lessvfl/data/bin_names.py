"""What bins of encoded columns are in the units of the party's own table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np

from lessvfl.data.column import EncodedColumn
from lessvfl.data.encode import Encoding

Ends = Sequence[float | None]  # from a value on and below another; None: no end
MISSING, OTHER = "missing", "other"  # an empty cell; a category that is too rare
PARTS = ("day", "month", "weekday")  # of a date, before the date itself
PRECISION = 2.0**-23  # of an encoded value, of its size
DIGITS = 17  # that tell a double from the next


class BinName(NamedTuple):
    """A bin in words, and its place among those of its feature."""

    text: str
    place: tuple[float, ...]


class BinNames:
    """Names the bins of a party's features."""

    def __init__(self, encoding: Encoding) -> None:
        self._source: list[tuple[EncodedColumn, range]] = []  # of each encoded column
        for column in encoding.columns:
            before = len(self._source)
            places = range(before, before + column.width)
            self._source += [(column, places)] * column.width

    def name(self, columns: Sequence[int], ranges: Mapping[int, Ends]) -> BinName:
        """Name a bin by the ranges of encoded columns, by their place in the encoding.

        `columns` are all that make up the feature; those without a range are 0.
        """
        texts: list[str] = []
        place: list[float] = []
        sources = dict.fromkeys(self._source[column] for column in columns)
        for column, places in sources:
            ends = [ranges.get(i, (0.0, 0.0)) for i in places]
            name = _of_column(column, ends)
            several = len(sources) > 1  # columns that are one feature
            texts.append(f"{column.name}: {name.text}" if several else name.text)
            place += name.place
        return BinName("; ".join(texts), tuple(place))


def _of_column(column: EncodedColumn, ranges: Sequence[Ends]) -> BinName:
    """Name a bin of one source column by the ranges of its encoded ones."""
    if column.flag:
        *ranges, flag = ranges
        if flag[0] == 1:
            return BinName(MISSING, (math.inf,))
    match column.kind:
        case "categorical":
            on = [i for i, (low, _) in enumerate(ranges) if low == 1]
            text = column.categories[on[0]] if on else OTHER
            return BinName(text, (on[0] if on else len(column.categories),))
        case "date":
            return _of_date(column, ranges)
    ((low, high),) = ranges
    text = _interval(low, high, lambda x: _number(column, x))
    if column.kind == "boolean" and low == high:
        text = str(float(text) > 0).lower()
    return BinName(text, (-math.inf if low is None else low,))


def _interval(
    low: float | None, high: float | None, write: Callable[[float], str]
) -> str:
    """Write a range as an interval, one of a single value as that value."""
    if low is not None and low == high:
        return write(low)
    start = "(-inf" if low is None else f"[{write(low)}"
    return f"{start}, {'inf' if high is None else write(high)})"


def _number(column: EncodedColumn, x: float) -> str:
    """Write the number of fewest digits that is encoded as x, as precise as x is."""
    encoded = np.array([x, x * (1 - PRECISION), x * (1 + PRECISION)])
    values = encoded * column.scale + column.shift
    if column.knots:
        values = np.interp(values, column.levels, column.knots)
    value, *ends = values.tolist()
    shorter = (float(f"{value:.{n_digits}e}") for n_digits in range(DIGITS))
    near = (one for one in (0.0, *shorter) if min(ends) <= one <= max(ends))
    return repr(next(near, value))


def _of_date(column: EncodedColumn, ranges: Sequence[Ends]) -> BinName:
    """Name a bin of a date by ranges of day, month, weekday and the date itself."""
    texts, place = [], []
    for (low, high), (shift, scale), what in zip(
        ranges, column.parts, (*PARTS, ""), strict=True
    ):
        first = 0.0 if what else column.first

        def write(
            x: float,
            shift: float = shift,
            scale: float = scale,
            what: str = what,
            first: float = first,
        ) -> str:
            number = round(x * scale + shift + first)
            return str(number if what else date(1970, 1, 1) + timedelta(days=number))

        text = _interval(low, high, write)
        texts.append(f"{what} {text}".strip())
        place.append(-math.inf if low is None else low)
    return BinName(", ".join(texts), (*place[-1:], *place[:-1]))
