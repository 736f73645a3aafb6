"""Encoding: how one party turns its own columns into the numbers it trains on.

An encoding is learnt from the party's own training rows, kept with the model, and
applied by column name, so that a table for prediction needs just the columns in use.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lessvfl.data import stored
from lessvfl.data.column import KIND_WORDS, EncodedColumn, Reading
from lessvfl.data.days import days_of_digits
from lessvfl.data.frame import Floats, Frame
from lessvfl.data.learn import (
    AS_IS_FILL,
    CHUNK,
    Bounds,
    EncodingOptions,
    calendar,
    infinite,
    learner_of,
    wrong,
)
from lessvfl.data.sentinels import MarksByColumn, blank
from lessvfl.errors import ConfigError, DataError
from lessvfl.terms import plural

# How texts are read in a column that had none, or others, when it was learnt.
PLAIN: dict[str, Reading] = {
    "numeric": Reading("number"),
    "boolean": Reading("truth"),
    "date": Reading("date"),
}
LARGEST = float(np.finfo(np.float32).max)  # that a network can be given
DAYS = (-719162.0, 2932896.0)  # of the years 1 to 9999


@dataclass(frozen=True)
class CellCounts:
    """What an encoding met on its way: cells filled in, categories never seen."""

    imputed: int = 0
    unseen: int = 0
    flagged: int = 0  # of those filled in, in columns with a flag

    def __add__(self, other: CellCounts) -> CellCounts:
        return CellCounts(
            self.imputed + other.imputed,
            self.unseen + other.unseen,
            self.flagged + other.flagged,
        )

    def sentences(self) -> list[str]:
        """Return sentences on cells filled in and categories not seen in training."""
        sentences = []
        if self.imputed:
            flags = ", and a flag says where" if self.flagged else ""
            if 0 < self.flagged < self.imputed:
                flags = f"; of {self.flagged:,} of them a flag says where"
            filled = plural(self.imputed, "missing cell was", "missing cells were")
            sentences.append(
                f"{filled} filled in by the mean, the median or the most frequent "
                f"value of the party's training rows{flags}."
            )
        if self.unseen:
            new = plural(self.unseen, "test cell holds", "test cells hold")
            how = "a category that no training row has, encoded as zeros"
            sentences.append(f"{new} {how}.")
        return sentences


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
        table: stored.Table,
        names: Sequence[str],
        *,
        scale: str = "auto",
        bounds: Bounds = (0.0, 1.0),
        max_categories: int = 64,
        missing: str = "flag",
        marks: MarksByColumn | None = None,
        groups: Mapping[str, str] | None = None,
        as_is: Collection[str] = (),
    ) -> Encoding:
        """Learn the encoding of the columns `names` from training rows.

        `bounds` is the range for ``scale="global"``, `missing` says whether columns
        with missing cells get a flag, `marks` are by column the values that stand for a
        missing cell (`marks_of`), `groups` maps a column to its feature, and columns
        `as_is` (numbers, none missing) stay as they are.
        """
        options = EncodingOptions(party, scale, bounds, max_categories, missing)
        marks = marks or {}
        source = {column.name: column for column in table.look.columns}
        learnt: dict[str, EncodedColumn] = {}
        for some in table.together(names):
            learners = {
                name: learner_of(options, source[name], table.n_rows, name in as_is)
                for name in some
            }
            for places, raw in table.batches(some, CHUNK):
                frame = blank(raw, marks)
                for index, learner in enumerate(learners.values()):
                    is_text = learner.source.is_text
                    cells = frame.texts(index) if is_text else frame.numeric[:, index]
                    learner.first_pass(places, cells)
            unsure = [name for name in some if learners[name].needs_second_pass]
            for _, raw in table.batches(unsure, CHUNK) if unsure else ():
                frame = blank(raw, marks)
                for index, name in enumerate(unsure):
                    learners[name].second_pass(frame.numeric[:, index])
            learnt |= {name: learner.column() for name, learner in learners.items()}
        by_feature: dict[str, list[EncodedColumn]] = {}
        for name in names:
            feature = (groups or {}).get(name, name)
            missing_values = tuple(marks.get(name, ()))
            column = replace(learnt[name], feature=feature, missing=missing_values)
            by_feature.setdefault(feature, []).append(column)
        return cls(party, tuple(itertools.chain(*by_feature.values())))

    def with_planted(self, names: Sequence[str]) -> Encoding:
        """Return this encoding with columns of noise at the end, taken as they are."""
        noise = (EncodedColumn(n, feature=n, fill=AS_IS_FILL) for n in names)
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
    def flagged(self) -> tuple[str, ...]:
        """Return the source columns whose missing cells have a flag."""
        return tuple(column.name for column in self.columns if column.flag)

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
        table = frame.select(self.names)
        table = replace(table, numeric=self._read(table))
        table = blank(table, {column.name: column.missing for column in self.columns})
        cells = table.numeric
        starts = np.cumsum([0, *(column.width for column in self.columns)])
        matrix = np.zeros((table.n_rows, int(starts[-1])))
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
        too_large = np.flatnonzero(~(np.abs(values) <= LARGEST).all(axis=0))
        if too_large.size:
            raise infinite(self.party, numbers[too_large[0]].name)
        matrix[:, starts[at]] = values
        flagged = np.array([column.flag for column in numbers], dtype=bool)
        flags = empty[:, flagged]
        matrix[:, starts[at][flagged] + 1] = flags
        counts = CellCounts(int(empty.sum()), flagged=int(flags.sum()))
        for i, column in enumerate(self.columns):
            out = matrix[:, starts[i] : starts[i + 1]]
            if column.kind == "categorical":
                counts += _one_hot(column, table.texts(i), out)
            elif column.kind == "date":
                counts += _calendar(self.party, column, cells[:, i], out)
        return matrix, counts

    def apply_on_disk(
        self,
        tables: Sequence[stored.StoredTable],
        scratch: stored.Scratch,
        dtype: DTypeLike,
    ) -> tuple[list[NDArray[Any]], CellCounts]:
        """Encode tables of one file: a matrix of each, (N, columns), mapped from disk.

        And what was met on the way.
        """
        width, counts = len(self.groups), CellCounts()
        encoded = [scratch.zeros((table.n_rows, width), dtype) for table in tables]
        n_rows, n_written = max(1, stored.AT_ONCE // max(1, 4 * width)), 0
        for number, places, frame in stored.read_together(tables, self.names, n_rows):
            encoded[number][places], more = self.apply(frame)
            counts += more
            n_written += len(places)
        assert n_written == sum(map(len, encoded)), "every row asked for is in the file"
        return encoded, counts

    def _read(self, table: Frame) -> Floats:
        """Return the cells of all columns as numbers, read as in training."""
        cells = table.numeric.copy()
        for i, column in enumerate(self.columns):  # missing cells are of any kind
            source, got = table.columns[i], ""
            read: Floats | None = None
            has_numbers = not np.isnan(cells[:, i]).all()
            if source.left_out:
                got = source.left_out
            elif column.kind == "categorical":
                got = "numbers" if has_numbers else ""
            elif any(text is not None for text in table.text.get(i, ())):
                read = _read_column(column, table.text[i])
                got = "texts" if read is None else ""
            elif has_numbers and (source.kind == "date") != (column.kind == "date"):
                read = days_of_digits(cells[:, i]) if column.are_digits else None
                kind = "dates" if source.kind == "date" else "numbers"
                got = kind if read is None else ""
            if read is not None:
                cells[:, i] = read
            if got:
                words = "texts" if column.is_text else KIND_WORDS[column.kind]
                must = f"hold {words}, as in training"
                raise wrong(self.party, column.name, must, got)
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
        return {"party": self.party, "columns": [c.to_json() for c in self.columns]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Encoding:
        """Rebuild an encoding from what `to_json` returned."""
        columns = map(EncodedColumn.from_json, value["columns"])
        return cls(value["party"], tuple(columns))


def _read_column(column: EncodedColumn, cells: NDArray[np.object_]) -> Floats | None:
    """Read texts as in training, or else as programs write numbers and dates."""
    from lessvfl.data.readings import read_texts

    for reading in (column.reading, PLAIN[column.kind]):
        if reading is not None and (read := read_texts(cells, reading)) is not None:
            return read
    return None


def _calendar(
    party: str, column: EncodedColumn, cells: Floats, out: Floats
) -> CellCounts:
    """Write the parts of one date into `out`."""
    empty = np.isnan(cells)
    days = np.where(empty, column.fill, cells)
    beyond = days[(days < DAYS[0]) | (days > DAYS[1])]
    if len(beyond):
        got = f"a date {beyond[0]:,.0f} days after 1970-01-01"
        raise wrong(party, column.name, "hold dates of the years 1 to 9999", got)
    shift, scale = np.array(column.parts).T
    out[:, : len(shift)] = (calendar(days, column.first) - shift) / scale
    if column.flag:
        out[:, -1] = empty
    return CellCounts(int(empty.sum()), flagged=int(empty.sum()) * column.flag)


def _one_hot(
    column: EncodedColumn, cells: NDArray[np.object_], out: Floats
) -> CellCounts:
    """Write the one-hot columns of one category into `out`."""
    code = codes_of(column)
    codes = np.array([code.get(cell, -1) for cell in cells], dtype=np.int64)
    known = np.flatnonzero(codes >= 0)
    out[known, codes[known]] = 1.0
    n_empty = sum(cell is None for cell in cells)
    return CellCounts(n_empty, int((codes < 0).sum()), n_empty * column.flag)


def codes_of(column: EncodedColumn) -> dict[str | None, int]:
    """Return the place of every text of a category, None standing for a missing one.

    That is the last of all with a flag, and otherwise the one that fills it in.
    """
    codes = {text: code for code, text in enumerate(column.categories)}
    missing = len(codes) if column.flag else codes[str(column.fill)]
    return codes | {None: missing}
