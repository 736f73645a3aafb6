"""Learning how to encode: what one pass over a column's training rows tells of it.

A column is seen in batches of rows, so a table may be larger than memory. Counts, sums,
extremes and categories are of all rows; medians and ranks are of all rows up to `CHUNK`
and of rows spaced evenly beyond. What a column needs of cells that are filled in or
replaced by ranks takes a second pass over that column.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.column import Column, EncodedColumn
from lessvfl.data.frame import Floats, Places
from lessvfl.errors import DataError

Bounds = tuple[float, float]

QUARTILE = NormalDist().inv_cdf(0.75)  # of a standard normal number
HEAVY = 1.75  # deviation against the middle half's, 1 for a bell curve
GROSS = 10.0  # and against how far most others are from a value that half of them have
MOST_KNOTS = 256
LEAST_EXPONENT = -1073  # of a double above zero
CHUNK = 1 << 16  # rows that are seen together, and the most whose ranks are taken

FEWEST = 30  # rows without a value, and with one, that a flag is worth its cost for

ALL_MISSING = "have a value in some training row", "only missing cells"
AS_IS_FILL = 0.0  # a missing cell at prediction, in a column that is taken as it is


@dataclass(frozen=True)
class EncodingOptions:
    """How a party's columns are to be encoded."""

    party: str
    scale: str = "auto"
    bounds: Bounds = (0.0, 1.0)  # for scale=global
    max_categories: int = 64
    missing: str = "flag"

    def flags(self, n_missing: int, n_present: int) -> bool:
        """Tell whether a column with these numbers of cells gets a flag."""
        return self.missing == "flag" and min(n_missing, n_present) >= FEWEST


@dataclass
class Learner:
    """What learns one column; one or two passes over its rows tell all.

    This one takes a column of numbers as it is; other kinds learn more.
    """

    options: EncodingOptions
    source: Column
    n_rows: int
    n_missing: int = 0

    def first_pass(self, places: Places, cells: NDArray[Any]) -> None:
        """Look at some rows, in the first pass."""
        if np.isnan(cells).any():
            must = "hold a number in every training row to be taken as it is"
            raise self.refuse(must, "missing cells or texts")

    @property
    def needs_second_pass(self) -> bool:
        """Tell whether the first pass was not enough, once it is over."""
        return False

    def second_pass(self, cells: NDArray[Any]) -> None:
        """Look at the same rows, in the second pass."""

    def column(self) -> EncodedColumn:
        """Return what was learnt."""
        return self.encoded(AS_IS_FILL, 0, False)

    def encoded(
        self, fill: float | str, n_present: int, is_constant: bool
    ) -> EncodedColumn:
        """Return the column with its fill, and a flag where that is worth its cost."""
        flag = self.options.flags(self.n_missing, n_present)
        return EncodedColumn(
            name=self.source.name,
            kind=self.source.kind,
            reading=self.source.reading,
            feature=self.source.name,
            fill=fill,
            constant=is_constant and not flag,
            flag=flag,
        )

    def refuse(self, must: str, got: str) -> DataError:
        """Return what is said of a column that cannot be learnt."""
        return wrong(self.options.party, self.source.name, must, got)


def learner_of(
    options: EncodingOptions, column: Column, n_rows: int, as_is: bool
) -> Learner:
    """Return the learner of a column."""
    if as_is:
        return Learner(options, replace(column, kind="numeric"), n_rows)
    if column.is_text:
        return _Text(options, replace(column, kind="categorical"), n_rows)
    return (_Date if column.kind == "date" else _Number)(options, column, n_rows)


@dataclass
class Spread:
    """Number, mean and variance of values that come in parts.

    Sums are of values over 2**exponent, at most 1: squares of 1e200 overflow, those of
    1e-200 are zero. A power of two changes no digit.
    """

    n: int = 0
    exponent: Any = 0  # of every column, where the parts have several
    scaled_mean: Any = 0.0
    scaled_variance: Any = 0.0

    def add(self, values: Floats) -> None:
        """Add values (n,) or (n, columns); those of one part come out as they are."""
        if len(values) == 0:
            return
        exponent = exponent_of(values)
        if self.n:
            exponent = np.maximum(exponent, self.exponent)
        scaled = np.ldexp(values, -exponent)
        mean, variance = scaled.mean(axis=0), scaled.var(axis=0)
        if self.n:
            n = self.n + len(values)
            before, added = self.n / n, len(values) / n
            shrink = self.exponent - exponent
            mean_before = np.ldexp(self.scaled_mean, shrink)
            variance_before = np.ldexp(self.scaled_variance, 2 * shrink)
            gap = mean - mean_before
            mean = before * mean_before + added * mean
            variance = before * variance_before + added * variance
            variance = variance + before * added * gap * gap
        self.n, self.exponent = self.n + len(values), exponent
        self.scaled_mean, self.scaled_variance = mean, variance

    @property
    def mean(self) -> Any:
        """Return the mean."""
        return np.ldexp(self.scaled_mean, self.exponent)

    @property
    def deviation(self) -> Any:
        """Return the standard deviation."""
        return np.ldexp(np.sqrt(self.scaled_variance), self.exponent)


def exponent_of(values: Floats) -> Any:
    """Return the power of two that values lie below, of every column."""
    largest = np.abs(values).max(axis=0)
    return np.where(largest > 0, np.frexp(largest)[1], LEAST_EXPONENT)


def spread_of(values: Floats) -> Spread:
    """Return number, mean and variance of values."""
    spread = Spread()
    spread.add(values)
    return spread


@dataclass
class _Values(Learner):
    """A column of numbers, truth values or dates: how they spread."""

    present: Spread = field(default_factory=Spread)
    whole: Spread = field(default_factory=Spread)  # filled in, and as it is encoded
    low: float = math.inf
    high: float = -math.inf

    def first_pass(self, places: Places, cells: NDArray[Any]) -> None:
        present = cells[~np.isnan(cells)]
        self.n_missing += len(cells) - len(present)
        self.present.add(present)
        if len(present):
            self.low = min(self.low, float(present.min()))
            self.high = max(self.high, float(present.max()))

    @property
    def is_constant(self) -> bool:
        return self.low == self.high


@dataclass
class _Number(_Values):
    """A column of numbers or truth values: fill, shift and scale, perhaps ranks."""

    sample: list[Floats] = field(default_factory=list)
    fill: float = math.nan  # not yet decided
    knots: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()

    def first_pass(self, places: Places, cells: NDArray[Any]) -> None:
        if np.isinf(cells).any():
            raise infinite(self.options.party, self.source.name)
        super().first_pass(places, cells)
        stride = -(-self.n_rows // CHUNK)
        self.sample.append(cells[~np.isnan(cells) & (places % stride == 0)])

    @property
    def needs_second_pass(self) -> bool:
        if math.isnan(self.fill):
            self._decide()
        scaled = self.options.scale in ("auto", "standardize") and not self.is_constant
        return scaled and bool(self.n_missing or self.knots)

    def _decide(self) -> None:
        """Choose what fills a missing cell, and whether ranks replace heavy tails."""
        if self.present.n == 0:
            raise self.refuse(*ALL_MISSING)
        if self.source.kind == "boolean":  # a tie is filled with False
            n_true = round(self.present.mean * self.present.n)
            self.fill = float(2 * n_true > self.present.n)
        elif self.is_constant:
            self.fill = self.low  # the mean of equal numbers need not equal them
        else:
            self.fill = float(self.present.mean)
        sample = np.concatenate(self.sample)
        if self.options.scale == "auto" and is_heavy(sample, self.present.deviation):
            self.fill = float(np.median(sample))  # a mean may lie far outside
            self.knots, self.levels = _normal_scores(sample)
        self.sample.clear()

    def second_pass(self, cells: NDArray[Any]) -> None:
        full = np.where(np.isnan(cells), self.fill, cells)
        if self.knots:
            full = np.interp(full, self.knots, self.levels)
        self.whole.add(full)

    def column(self) -> EncodedColumn:
        spread = self.whole if self.needs_second_pass else self.present
        shift, width = 0.0, 1.0
        if self.options.scale == "global":
            low, high = self.options.bounds
            shift, width = low, high - low
        elif self.options.scale in ("auto", "standardize"):
            shift, width = float(spread.mean), float(spread.deviation)
            if self.is_constant:
                shift, width = self.fill, 1.0
        if not np.isfinite([self.fill, shift, width]).all():
            raise infinite(self.options.party, self.source.name)
        encoded = self.encoded(self.fill, self.present.n, self.is_constant)
        encoded = replace(encoded, shift=shift, scale=width or 1.0)
        return replace(encoded, knots=self.knots, levels=self.levels)


@dataclass
class _Text(Learner):
    """A column of categories."""

    tally: Counter[str] = field(default_factory=Counter)

    def first_pass(self, places: Places, cells: NDArray[Any]) -> None:
        present = [cell for cell in cells if cell is not None]
        self.n_missing += len(cells) - len(present)
        self.tally.update(present)

    def column(self) -> EncodedColumn:
        tally = self.tally
        if not tally:
            raise self.refuse(*ALL_MISSING)
        often = sorted(tally, key=lambda text: (-tally[text], text))
        categories = tuple(sorted(often[: self.options.max_categories]))
        fill = max(categories, key=lambda text: tally[text])  # a tie: the first by name
        encoded = self.encoded(fill, tally.total(), len(categories) == 1)
        return replace(encoded, categories=categories)


@dataclass
class _Date(_Values):
    """A column of dates: fill, first day, and shift and scale of every part."""

    lows: list[Floats] = field(default_factory=list)
    highs: list[Floats] = field(default_factory=list)

    @property
    def needs_second_pass(self) -> bool:
        if self.present.n == 0:
            raise self.refuse(*ALL_MISSING)
        return True

    @property
    def fill(self) -> float:
        return float(np.round(self.present.mean))

    def second_pass(self, cells: NDArray[Any]) -> None:
        values = calendar(np.where(np.isnan(cells), self.fill, cells), self.low)
        self.whole.add(values)
        self.lows.append(values.min(axis=0))
        self.highs.append(values.max(axis=0))

    def column(self) -> EncodedColumn:
        shift, width = self.whole.mean, self.whole.deviation
        if self.options.scale == "none":
            shift, width = np.zeros_like(shift), np.ones_like(width)
        elif self.options.scale == "global":  # every part from 0 to 1
            shift = np.min(self.lows, axis=0)
            width = np.max(self.highs, axis=0) - shift
        pairs = zip(shift.tolist(), width.tolist(), strict=True)
        parts = tuple((low, wide or 1.0) for low, wide in pairs)
        encoded = self.encoded(self.fill, self.present.n, self.is_constant)
        return replace(encoded, first=self.low, parts=parts)


def calendar(days: Floats, first: float) -> NDArray[np.float64]:
    """Return day, month, weekday (Monday 0) and days since the first, (N, 4)."""
    dates = days.astype(np.int64).astype("M8[D]")
    months = dates.astype("M8[M]")
    parts: tuple[Any, ...] = (
        (dates - months.astype("M8[D]")).astype(np.int64) + 1,
        months.astype(np.int64) % 12 + 1,
        (days + 3) % 7,  # 1970-01-01 was a Thursday
        days - first,
    )
    return np.column_stack(parts).astype(np.float64)


def is_heavy(values: Floats, deviation: float | None = None) -> bool:
    """Tell whether a few of the values (N,) lie much further out than most of them do.

    Their deviation is compared with that of the middle half; where the middle half is
    one value, with the usual distance of the other values from it. `deviation` is that
    of all values, where `values` are only some of them.
    """
    spread = spread_of(values).deviation if deviation is None else deviation
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.quantile(values, [0.25, 0.75])
        usual = (high - low) / (2 * QUARTILE)
        if usual > 0:
            return bool(not spread <= HEAVY * usual)
        return bool(spread > GROSS * usual_distance(values, low) > 0)


def usual_distance(values: Floats, middle: float) -> float:
    """Return how far values are from the middle, the median of those that are not it.

    0 where all are.
    """
    away = np.abs(values[values != middle] - middle)
    return float(np.median(away)) if len(away) else 0.0


def _normal_scores(present: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return values and the normal scores of their ranks; equal values share one.

    Of values of which half are one and the same, the others have nearly all knots.
    """
    edge = 0.5 / len(present)
    low, high = np.quantile(present, [0.25, 0.75])
    if low == high:
        others = present[present != low]
        shares = np.linspace(0, 1, min(len(others), MOST_KNOTS - 1))
        knots = np.unique([low, *np.quantile(others, shares)])
        ordered = np.sort(present)
        places = [np.searchsorted(ordered, knots, side) for side in ("left", "right")]
        means = np.clip(np.mean(places, axis=0) / len(present), edge, 1 - edge)
    else:
        ranks = np.linspace(edge, 1 - edge, min(len(present), MOST_KNOTS))
        knots, place = np.unique(np.quantile(present, ranks), return_inverse=True)
        means = np.bincount(place, ranks) / np.bincount(place)
    levels = tuple(NormalDist().inv_cdf(float(rank)) for rank in means)
    return tuple(knots.tolist()), levels


def wrong(party: str, name: str, must: str, got: str) -> DataError:
    """Return what is said of a column that cannot be used."""
    return DataError(f"Column '{name}' of party '{party}' must {must}. Got {got}.")


def infinite(party: str, name: str) -> DataError:
    """Return what is said of a column with numbers that are none."""
    got = "infinite (inf) or too large values: leave such cells empty"
    return wrong(party, name, "hold finite numbers", got)
