"""Encoding: how one party turns its own columns into the numbers it trains on.

An encoding is learnt from the party's own training rows, kept with the model, and
applied by column name, so that a table for prediction needs just the columns in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Floats, Frame, Reading
from lessvfl.data.readings import calendar, read_texts
from lessvfl.errors import ConfigError, DataError

ColumnKind = Literal["numeric", "boolean", "date", "categorical"]
Bounds = tuple[float, float]

QUARTILE = NormalDist().inv_cdf(0.75)  # of a standard normal number
HEAVY = 1.75  # deviation against the middle half's, 1 for a bell curve
MOST_KNOTS = 256

# How texts are read in a column that had none, or others, when it was learnt.
PLAIN: dict[str, Reading] = {
    "numeric": Reading("number"),
    "boolean": Reading("truth"),
    "date": Reading("date"),
}
WORDS = {"numeric": "numbers", "boolean": "truth values", "date": "dates"}
DAYS = (-719162.0, 2932896.0)  # of the years 1 to 9999

AS_IS_FILL = 0.0  # a missing cell at prediction, in a column that is taken as it is


@dataclass(frozen=True)
class EncodedColumn:
    """How one source column is encoded: fill, then (x - shift) / scale, or one-hot.

    A column of heavy tails has `knots`, values whose normal scores are `levels`; others
    lie on the lines between them. They come before shift and scale. A date becomes day,
    month, weekday and days since `first`, each with a shift and a scale in `parts`.
    """

    name: str
    feature: str  # the feature it belongs to: its own name unless grouped with others
    kind: ColumnKind
    fill: float | str  # what a missing cell becomes, before shift and scale
    shift: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    constant: bool = False  # one value in all training rows
    knots: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()
    first: float = 0.0  # training day of a date, in days since 1970-01-01
    parts: tuple[tuple[float, float], ...] = ()
    reading: Reading | None = None  # of texts; None: as numbers are usually written

    @property
    def width(self) -> int:
        """Return the number of encoded columns."""
        if self.kind == "date":
            return len(self.parts)
        return len(self.categories) if self.kind == "categorical" else 1


@dataclass(frozen=True)
class CellCounts:
    """What an encoding met on its way: cells filled in, categories never seen."""

    imputed: int = 0
    unseen: int = 0

    def __add__(self, other: CellCounts) -> CellCounts:
        return CellCounts(self.imputed + other.imputed, self.unseen + other.unseen)


@dataclass(frozen=True)
class Encoding:
    """The encoding of one party's columns.

    Columns of one feature stand side by side, features in order of their first column.
    """

    party: str
    columns: tuple[EncodedColumn, ...]

    @classmethod
    def fit(
        cls,
        party: str,
        frame: Frame,
        names: Sequence[str],
        *,
        scale: str = "auto",
        bounds: Bounds = (0.0, 1.0),
        max_categories: int = 64,
        groups: Mapping[str, str] | None = None,
        as_is: Collection[str] = (),
    ) -> Encoding:
        """Learn the encoding of the columns `names` from training rows.

        `bounds` is the range for ``scale="global"``, `groups` maps a column
        to its feature, and columns `as_is` (numbers, none missing) stay as they are.
        """
        own = frame.select(names)
        order: dict[str, list[EncodedColumn]] = {}
        for index, name in enumerate(names):
            feature = (groups or {}).get(name, name)
            cells = own.numeric[:, index]
            if name in as_is:
                if np.isnan(cells).any():
                    must = "hold a number in every training row to be taken as it is"
                    raise _wrong(party, name, must, "missing cells or texts")
                column = EncodedColumn(name, feature, "numeric", AS_IS_FILL)
            elif index in own.dates:
                column = _fit_date(party, name, cells, scale)
            elif index in own.text:
                column = _fit_text(party, name, own.text[index], max_categories)
            else:
                boolean = index in own.boolean
                column = _fit_number(party, name, cells, boolean, scale, bounds)
            column = replace(column, feature=feature, reading=own.readings.get(index))
            order.setdefault(feature, []).append(column)
        return cls(party, tuple(column for many in order.values() for column in many))

    def with_planted(self, names: Sequence[str]) -> Encoding:
        """Return this encoding with columns of noise at the end, taken as they are."""
        noise = (EncodedColumn(name, name, "numeric", AS_IS_FILL) for name in names)
        return Encoding(self.party, (*self.columns, *noise))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the source columns that `apply` needs."""
        return tuple(column.name for column in self.columns)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the source columns that were texts in training, however read."""
        return tuple(
            column.name
            for column in self.columns
            if column.kind == "categorical" or column.reading is not None
        )

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features, in order."""
        return tuple(dict.fromkeys(column.feature for column in self.columns))

    @property
    def groups(self) -> NDArray[np.int64]:
        """Return the feature of each encoded column, by index into `features`."""
        position = {feature: index for index, feature in enumerate(self.features)}
        owners = [position[c.feature] for c in self.columns for _ in range(c.width)]
        return np.array(owners, dtype=np.int64)

    def apply(self, frame: Frame) -> tuple[Floats, CellCounts]:
        """Encode any table that has the columns of this encoding, found by name."""
        known = set(frame.names)
        missing = [name for name in self.names if name not in known]
        if missing:
            shown = ", ".join(repr(name) for name in missing[:5])
            raise DataError(
                f"The table of party '{self.party}' must have the columns it was "
                f"fitted on. Got none named {shown}."
            )
        own = frame.select(self.names)
        cells = self._read(own)
        starts = np.cumsum([0, *(column.width for column in self.columns)])
        matrix = np.zeros((own.n_rows, int(starts[-1])))
        plain = ("numeric", "boolean")
        at = [i for i, c in enumerate(self.columns) if c.kind in plain]
        values = cells[:, at]  # (N, numeric columns)
        empty = np.isnan(values)
        numbers = [self.columns[i] for i in at]
        lines = [(column.fill, column.shift, column.scale) for column in numbers]
        fill, shift, scale = np.array(lines, dtype=np.float64).reshape(-1, 3).T
        values = np.where(empty, fill, values)
        for place, column in enumerate(numbers):
            if column.knots and np.isfinite(values[:, place]).all():
                heavy = values[:, place]
                values[:, place] = np.interp(heavy, column.knots, column.levels)
        with np.errstate(all="ignore"):  # the check below says it in words
            values = (values - shift) / scale
        infinite = np.flatnonzero(~np.isfinite(values).all(axis=0))
        if infinite.size:
            raise _infinite(self.party, numbers[infinite[0]].name)
        matrix[:, starts[at]] = values
        counts = CellCounts(imputed=int(empty.sum()))
        for i, column in enumerate(self.columns):
            out = matrix[:, starts[i] : starts[i + 1]]
            if column.kind == "categorical":
                counts += _one_hot(column, own.texts(i), out)
            elif column.kind == "date":
                counts += _calendar(self.party, column, cells[:, i], out)
        return matrix, counts

    def _read(self, own: Frame) -> Floats:
        """Return the cells of all columns as numbers, read as in training."""
        cells = own.numeric
        for i, column in enumerate(self.columns):  # missing cells are of any kind
            has_texts = any(text is not None for text in own.text.get(i, ()))
            has_numbers = not np.isnan(own.numeric[:, i]).all()
            if i in own.left_out:
                got = own.left_out[i]
            elif column.kind == "categorical":
                got = "numbers" if has_numbers else ""
            elif has_texts:
                read = _read_column(column, own.text[i])
                got = "texts" if read is None else ""
                if read is not None:
                    cells = cells.copy() if cells is own.numeric else cells
                    cells[:, i] = read
            else:
                is_date = i in own.dates
                wrong = has_numbers and is_date != (column.kind == "date")
                got = ("dates" if is_date else "numbers") if wrong else ""
            if got:
                must = f"hold {WORDS.get(column.kind, 'texts')}, as in training"
                raise _wrong(self.party, column.name, must, got)
        return cells

    def narrow(self, features: Sequence[str]) -> Encoding:
        """Return the encoding of just these features, in the order they have here."""
        if strange := set(features) - set(self.features):
            raise ConfigError(
                f"Features to keep must be features of party '{self.party}'. "
                f"Got {sorted(strange)[0]!r}."
            )
        kept = set(features)
        return Encoding(self.party, tuple(c for c in self.columns if c.feature in kept))

    def to_json(self) -> dict[str, Any]:
        """Return the encoding as a value that ``json.dumps`` takes, without loss."""
        return {"party": self.party, "columns": [asdict(c) for c in self.columns]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Encoding:
        """Rebuild an encoding from what `to_json` returned."""
        lists = ("categories", "knots", "levels")
        columns = []
        for column in value["columns"]:
            more: dict[str, Any] = {name: tuple(column.get(name, ())) for name in lists}
            more["parts"] = tuple(map(tuple, column.get("parts", ())))
            if column.get("reading") is not None:
                more["reading"] = Reading(**column["reading"])
            columns.append(EncodedColumn(**column | more))
        return cls(value["party"], tuple(columns))


def _read_column(column: EncodedColumn, cells: NDArray[np.object_]) -> Floats | None:
    """Read texts as in training, or else as programs write numbers and dates."""
    for reading in (column.reading, PLAIN[column.kind]):
        if reading is not None and (read := read_texts(cells, reading)) is not None:
            return read
    return None


def _wrong(party: str, name: str, must: str, got: str) -> DataError:
    return DataError(f"Column '{name}' of party '{party}' must {must}. Got {got}.")


def _infinite(party: str, name: str) -> DataError:
    got = "infinite (inf) or too large values"
    return _wrong(party, name, "hold finite numbers", got)


def _all_missing(party: str, name: str) -> DataError:
    must = "have a value in some training row"
    return _wrong(party, name, must, "only missing cells")


def _fit_number(
    party: str, name: str, cells: Floats, boolean: bool, scale: str, bounds: Bounds
) -> EncodedColumn:
    """Learn fill, shift and scale of a column of numbers or truth values."""
    present = cells[~np.isnan(cells)]
    if present.size == 0:
        raise _all_missing(party, name)
    if not np.isfinite(present).all():
        raise _infinite(party, name)
    constant = bool(present.min() == present.max())
    kind: ColumnKind = "boolean" if boolean else "numeric"
    if boolean:
        fill = float(2 * present.sum() > present.size)  # a tie is filled with False
    elif constant:
        fill = float(present[0])  # the mean of equal numbers need not equal them
    else:
        with np.errstate(over="ignore"):
            fill = float(present.mean())
    shift, width = 0.0, 1.0
    knots: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()
    if scale == "global":
        shift, width = bounds[0], bounds[1] - bounds[0]
    elif scale in ("auto", "standardize"):
        heavy = scale == "auto" and is_heavy(present)
        if heavy:
            fill = float(np.median(present))  # a mean may lie far outside
        full = np.where(np.isnan(cells), fill, cells)
        if heavy:
            knots, levels = _normal_scores(present)
            full = np.interp(full, knots, levels)
        with np.errstate(over="ignore"):
            shift = fill if constant else float(full.mean())
            width = 1.0 if constant else float(full.std())
    if not np.isfinite([fill, shift, width]).all():
        raise _infinite(party, name)
    return EncodedColumn(
        name, name, kind, fill, shift, width or 1.0, (), constant, knots, levels
    )


def is_heavy(present: Floats) -> bool:
    """Tell whether a few values spread much further than the middle half does."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.quantile(present, [0.25, 0.75])
        usual = (high - low) / (2 * QUARTILE)
        return bool(usual > 0 and not present.std() <= HEAVY * usual)


def _normal_scores(present: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return values and the normal scores of their ranks; equal values share one."""
    edge = 0.5 / len(present)
    ranks = np.linspace(edge, 1 - edge, min(len(present), MOST_KNOTS))
    knots, place = np.unique(np.quantile(present, ranks), return_inverse=True)
    means = np.bincount(place, ranks) / np.bincount(place)
    levels = tuple(NormalDist().inv_cdf(float(rank)) for rank in means)
    return tuple(knots.tolist()), levels


def _fit_text(
    party: str, name: str, cells: NDArray[np.object_], max_categories: int
) -> EncodedColumn:
    """Learn the categories of a column of texts."""
    tally = Counter(cell for cell in cells if cell is not None)
    if not tally:
        raise _all_missing(party, name)
    often = sorted(tally, key=lambda text: (-tally[text], text))[:max_categories]
    categories = tuple(sorted(often))
    fill = max(categories, key=lambda text: tally[text])  # a tie: the first by name
    column = EncodedColumn(name, name, "categorical", fill, categories=categories)
    return replace(column, constant=len(categories) == 1)


def _fit_date(party: str, name: str, cells: Floats, scale: str) -> EncodedColumn:
    """Learn fill, first day, and shift and scale of every part of a date."""
    present = cells[~np.isnan(cells)]
    if present.size == 0:
        raise _all_missing(party, name)
    first, fill = float(present.min()), float(np.round(present.mean()))
    column = EncodedColumn(
        name, name, "date", fill, constant=bool(first == present.max()), first=first
    )
    values = calendar(np.where(np.isnan(cells), fill, cells), first)
    if scale == "none":
        return replace(column, parts=((0.0, 1.0),) * values.shape[1])
    if scale == "global":  # every part from 0 to 1, whatever numbers others have
        shift, width = values.min(axis=0), np.ptp(values, axis=0)
    else:
        shift, width = values.mean(axis=0), values.std(axis=0)
    pairs = zip(shift.tolist(), width.tolist(), strict=True)
    return replace(column, parts=tuple((low, wide or 1.0) for low, wide in pairs))


def _calendar(
    party: str, column: EncodedColumn, cells: Floats, out: Floats
) -> CellCounts:
    """Write the parts of one date into `out`."""
    empty = np.isnan(cells)
    days = np.where(empty, column.fill, cells)
    if not ((DAYS[0] <= days) & (days <= DAYS[1])).all():
        must = "hold dates of the years 1 to 9999"
        raise _wrong(party, column.name, must, "others")
    shift, scale = np.array(column.parts).T
    out[:] = (calendar(days, column.first) - shift) / scale
    return CellCounts(imputed=int(empty.sum()))


def _one_hot(
    column: EncodedColumn, cells: NDArray[np.object_], out: Floats
) -> CellCounts:
    """Write the one-hot columns of one category into `out`."""
    code = {text: index for index, text in enumerate(column.categories)}
    full = (str(column.fill) if cell is None else cell for cell in cells)
    codes = np.array([code.get(cell, -1) for cell in full], dtype=np.int64)
    known = np.flatnonzero(codes >= 0)
    out[known, codes[known]] = 1.0
    n_empty = sum(cell is None for cell in cells)
    return CellCounts(n_empty, int((codes < 0).sum()))
