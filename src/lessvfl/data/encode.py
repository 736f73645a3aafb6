"""Encoding: how one party turns its own columns into the numbers it trains on.

An encoding is learnt from the party's own training rows, kept with the model, and
applied by column name, so that a table for prediction needs just the columns in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Floats, Frame
from lessvfl.errors import ConfigError, DataError

ColumnKind = Literal["numeric", "boolean", "categorical"]


NORMAL_IQR = 1.349  # distance of the quartiles of a standard normal


@dataclass(frozen=True)
class Column:
    """How one source column is encoded: fill, then (x - shift) / scale, or one-hot."""

    name: str
    feature: str  # the feature it belongs to: its own name unless grouped with others
    kind: ColumnKind
    fill: float | str  # what a missing cell becomes, before shift and scale
    shift: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    constant: bool = False  # one value in all training rows

    @property
    def width(self) -> int:
        """Return the number of encoded columns."""
        return len(self.categories) if self.kind == "categorical" else 1


@dataclass(frozen=True)
class Counts:
    """What an encoding met on its way: cells filled in, categories never seen."""

    imputed: int = 0
    unseen: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.imputed + other.imputed, self.unseen + other.unseen)


@dataclass(frozen=True)
class Encoding:
    """The encoding of one party's columns.

    Columns of one feature stand side by side, features in order of their first column.

    Examples
    --------
    >>> from lessvfl.data.table import frame_of
    >>> frame = frame_of([[1.0, 0.0], [3.0, float("nan")]], ["age", "dose"])
    >>> encoding = Encoding.fit("clinic", frame, ["age", "dose"])
    >>> matrix, counts = encoding.apply(frame)
    >>> matrix.tolist(), counts.imputed
    ([[-1.0, 0.0], [1.0, 0.0]], 1)
    """

    party: str
    columns: tuple[Column, ...]

    @classmethod
    def fit(
        cls,
        party: str,
        frame: Frame,
        names: Sequence[str],
        *,
        scale: str = "standardize",
        bounds: tuple[float, float] = (0.0, 1.0),
        max_categories: int = 64,
        groups: Mapping[str, str] | None = None,
    ) -> Encoding:
        """Learn the encoding from training rows.

        Parameters
        ----------
        party : str
            Whose columns they are; errors name it.
        frame : Frame
            The training rows.
        names : sequence of str
            The party's columns.
        scale : {"standardize", "robust", "global", "none"}
            Standardise each column, use `bounds` for all of them, or leave them.
        bounds : (float, float)
            Least and greatest value of the whole matrix, for ``scale="global"``.
        max_categories : int
            Most different texts in a column of categories.
        groups : mapping of column name to feature name, optional
            Columns that belong to a feature of several columns.

        Returns
        -------
        Encoding
            The encoding, ready to apply.
        """
        owner = dict(groups or {})
        order: dict[str, list[Column]] = {}
        index_of = {name: index for index, name in enumerate(frame.names)}
        for name in names:
            index = index_of[name]
            feature = owner.get(name, name)
            if index in frame.text:
                column = _fit_text(
                    party, name, feature, frame.text[index], max_categories
                )
            else:
                cells = frame.numeric[:, index]
                boolean = index in frame.boolean
                column = _fit_number(
                    party, name, feature, cells, boolean, scale, bounds
                )
            order.setdefault(feature, []).append(column)
        return cls(party, tuple(column for many in order.values() for column in many))

    def with_planted(self, names: Sequence[str]) -> Encoding:
        """Return this encoding with columns of noise at the end, taken as they are."""
        planted = tuple(Column(name, name, "numeric", 0.0) for name in names)
        return Encoding(self.party, self.columns + planted)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the source columns that `apply` needs."""
        return tuple(column.name for column in self.columns)

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

    def apply(self, frame: Frame) -> tuple[Floats, Counts]:
        """Encode any table that has the columns of this encoding, found by name.

        Parameters
        ----------
        frame : Frame
            The table; other columns in it are left alone.

        Returns
        -------
        matrix : array of shape (n_rows, n_columns)
            The encoded rows.
        counts : Counts
            How many cells were filled in, how many categories were never seen.
        """
        index_of = {name: index for index, name in enumerate(frame.names)}
        missing = [name for name in self.names if name not in index_of]
        if missing:
            shown = ", ".join(repr(name) for name in missing[:5])
            raise DataError(
                f"The table of party '{self.party}' must have the columns it was "
                f"fitted on. Got none named {shown}."
            )
        starts = np.cumsum([0, *(column.width for column in self.columns)])
        matrix = np.zeros((frame.n_rows, int(starts[-1])))
        at = [i for i, c in enumerate(self.columns) if c.kind != "categorical"]
        sources = [index_of[self.columns[i].name] for i in at]
        for i, source in zip(at, sources, strict=True):
            self._refuse_texts(self.columns[i].name, frame.text.get(source))
        values = frame.numeric[:, sources]  # (N, numeric columns)
        empty = np.isnan(values)
        fill = np.array([self.columns[i].fill for i in at], dtype=np.float64)
        shift = np.array([self.columns[i].shift for i in at], dtype=np.float64)
        scale = np.array([self.columns[i].scale for i in at], dtype=np.float64)
        with np.errstate(all="ignore"):  # the check below says it in words
            values = (np.where(empty, fill, values) - shift) / scale
        self._refuse_infinite(values, [self.columns[i].name for i in at])
        matrix[:, starts[at]] = values
        counts = Counts(imputed=int(empty.sum()))
        for start, column in zip(starts[:-1], self.columns, strict=True):
            if column.kind == "categorical":
                source = index_of[column.name]
                cells = frame.text.get(source)
                if cells is None:
                    cells = self._no_texts(column.name, frame.numeric[:, source])
                counts += _one_hot(
                    column, cells, matrix[:, start : start + column.width]
                )
        return matrix, counts

    def narrow(self, features: Sequence[str]) -> Encoding:
        """Return the encoding of just these features, in the order they have here.

        Parameters
        ----------
        features : sequence of str
            Names of features of this encoding.

        Returns
        -------
        Encoding
            An encoding that needs no other columns.
        """
        strange = set(features) - set(self.features)
        if strange:
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
        """Rebuild an encoding from what `to_json` returned.

        Parameters
        ----------
        value : mapping
            What `to_json` returned, perhaps through a file.

        Returns
        -------
        Encoding
            An encoding equal to the first one.
        """
        columns = (
            Column(**{**column, "categories": tuple(column["categories"])})
            for column in value["columns"]
        )
        return cls(value["party"], tuple(columns))

    def _refuse_texts(self, name: str, cells: NDArray[np.object_] | None) -> None:
        """Refuse texts where numbers were fitted; a column of missing cells is fine."""
        if cells is not None and any(cell is not None for cell in cells):
            raise DataError(
                f"Column '{name}' of party '{self.party}' must hold numbers, as in "
                f"training. Got texts."
            )

    def _no_texts(self, name: str, numbers: Floats) -> NDArray[np.object_]:
        """Return missing cells, or refuse numbers where texts were fitted."""
        if not np.isnan(numbers).all():
            raise DataError(
                f"Column '{name}' of party '{self.party}' must hold texts, as in "
                f"training. Got numbers."
            )
        return np.full(len(numbers), None, dtype=object)

    def _refuse_infinite(self, values: Floats, names: Sequence[str]) -> None:
        """Refuse an infinite cell by the name of its party and column."""
        bad = np.flatnonzero(~np.isfinite(values).all(axis=0))
        if bad.size:
            raise _infinite(self.party, names[int(bad[0])])


def _infinite(party: str, name: str) -> DataError:
    return DataError(
        f"Column '{name}' of party '{party}' must hold finite numbers. "
        f"Got infinite (inf) or too large values."
    )


def _all_missing(party: str, name: str) -> DataError:
    return DataError(
        f"Column '{name}' of party '{party}' must have a value in some training row. "
        f"Got only missing cells."
    )


def _fit_number(
    party: str,
    name: str,
    feature: str,
    cells: Floats,
    boolean: bool,
    scale: str,
    bounds: tuple[float, float],
) -> Column:
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
    if scale == "global":
        shift, width = bounds[0], bounds[1] - bounds[0]
    elif scale in ("standardize", "robust"):
        full = np.where(np.isnan(cells), fill, cells)
        with np.errstate(over="ignore"):
            shift = fill if constant else float(full.mean())
            width = 1.0 if constant else float(full.std())
        if scale == "robust" and not constant:
            low, shift, high = map(float, np.quantile(full, (0.25, 0.5, 0.75)))
            width = (high - low) / NORMAL_IQR or width  # mostly one value: as above
    if not np.isfinite([fill, shift, width]).all():
        raise _infinite(party, name)
    return Column(name, feature, kind, fill, shift, width or 1.0, (), constant)


def _fit_text(
    party: str,
    name: str,
    feature: str,
    cells: NDArray[np.object_],
    max_categories: int,
) -> Column:
    """Learn the categories of a column of texts."""
    tally = Counter(cell for cell in cells if cell is not None)
    if not tally:
        raise _all_missing(party, name)
    if len(tally) > max_categories or 2 * len(tally) > len(cells):
        raise DataError(
            f"Column '{name}' of party '{party}' must be a category: at most "
            f"{max_categories} different texts, and at most half as many as rows. "
            f"Got {len(tally)} different texts in {len(cells)} rows."
        )
    categories = tuple(sorted(tally))
    fill = max(categories, key=lambda text: tally[text])  # a tie: the first by name
    constant = len(categories) == 1
    return Column(name, feature, "categorical", fill, 0.0, 1.0, categories, constant)


def _one_hot(column: Column, cells: NDArray[np.object_], out: Floats) -> Counts:
    """Write the one-hot columns of one category into `out`."""
    code = {text: index for index, text in enumerate(column.categories)}
    empty = np.array([cell is None for cell in cells], dtype=bool)
    codes = np.array(
        [code.get(str(column.fill) if cell is None else cell, -1) for cell in cells],
        dtype=np.int64,
    )
    known = np.flatnonzero(codes >= 0)
    out[known, codes[known]] = 1.0
    return Counts(int(empty.sum()), int((codes < 0).sum()))
