"""What a column of a table is, from the reader of a file to the encoding.

A reader gives every column a `Column` and its cells; `infer_columns` decides what its
texts are and whether it can be used; an `EncodedColumn` is the same column with what
its party learnt from its training rows. A party's `Encoding` is a tuple of these.

These fields are final, and whatever is saved with a model has them by these names:

- kind: `kind`, and `reading`, how its texts become such cells;
- categories: `categories`, in the order of their encoded columns;
- centres and scales: `shift` and `scale`, of dates `parts`; before these, of heavy
  tails, `knots` and `levels`, and of dates `first`;
- missing: `missing`, values that count as such, `fill`, which takes their place, and
  `flag`, whether an encoded column says where; words are in `reading`;
- why: `left_out`, why no party can use it, and `constant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# Texts may be anything until all of them were looked at; categories were declared, or
# are the texts that are nothing else.
ColumnKind = Literal["numeric", "boolean", "date", "text", "categorical"]
KIND_WORDS: dict[ColumnKind, str] = {
    "numeric": "numbers",
    "boolean": "truth values",
    "date": "dates",
    "categorical": "categories",
}


@dataclass(frozen=True)
class Reading:
    """How the texts of one column are read as numbers, truth values or days."""

    kind: Literal["number", "truth", "date"]
    decimal: str = "."  # of numbers, as thousands is
    thousands: str = ""
    order: str = "year first"  # of dates, see `readings.DATES`; "": undecided
    missing: tuple[str, ...] = ()  # words of this column that stand for a missing cell


# What a column is whose texts are read so.
OF_READING: dict[str, ColumnKind] = {
    "number": "numeric",
    "truth": "boolean",
    "date": "date",
}
DIGITS = Reading("date", order="as one number of eight digits")  # 20240131


@dataclass(frozen=True)
class Column:
    """What one column holds; dates are days since 1970-01-01."""

    name: str
    kind: ColumnKind = "numeric"
    reading: Reading | None = None  # of texts; None: as numbers are usually written
    left_out: str = ""  # why no party can use it

    @property
    def is_text(self) -> bool:
        """Tell whether its cells are texts."""
        return self.kind in ("text", "categorical")

    @property
    def are_digits(self) -> bool:
        """Tell whether its cells are days as one number each."""
        return self.reading is not None and self.reading.order == DIGITS.order


@dataclass(frozen=True)
class EncodedColumn(Column):
    """How one source column is encoded: fill, then (x - shift) / scale, or one-hot.

    A flag is 1 where a cell is missing and 0 elsewhere, as the columns of a category
    are; there it takes the place of the fill, as a category of its own.

    A column of heavy tails has `knots`, values whose normal scores are `levels`; others
    lie on the lines between them. They come before shift and scale. A date becomes day,
    month, weekday and days since `first`, each with a shift and a scale in `parts`.
    """

    feature: str = ""  # that it belongs to: its own name unless grouped with others
    fill: float | str = 0.0  # what a missing cell becomes, before shift and scale
    shift: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    constant: bool = False  # one value in all training rows
    knots: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()
    first: float = 0.0  # training day of a date, in days since 1970-01-01
    parts: tuple[tuple[float, float], ...] = ()
    flag: bool = False  # whether one more column, the last, says where cells are empty
    missing: tuple[float | str, ...] = ()  # values that stand for an empty cell

    @property
    def width(self) -> int:
        """Return the number of encoded columns."""
        n_values = {"date": len(self.parts), "categorical": len(self.categories)}
        return n_values.get(self.kind, 1) + self.flag

    @property
    def encoded_names(self) -> list[str]:
        """Return a name for each encoded column."""
        ends = [""]
        if self.kind == "categorical":
            ends = [f"_{text}" for text in self.categories]
        elif self.kind == "date":
            ends = ["_day", "_month", "_weekday", "_days"]
        return [f"{self.name}{end}" for end in (*ends, *["_missing"] * self.flag)]

    def to_json(self) -> dict[str, Any]:
        """Return the column as a value that ``json.dumps`` takes, without loss."""
        return {key: v for key, v in asdict(self).items() if key != "left_out"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EncodedColumn:
        """Rebuild a column from what `to_json` returned, or from an older file."""
        lists = ("categories", "knots", "levels", "missing")
        more: dict[str, Any] = {name: tuple(value.get(name, ())) for name in lists}
        more["parts"] = tuple(map(tuple, value.get("parts", ())))
        if value.get("reading") is not None:
            words = tuple(value["reading"].get("missing", ()))
            more["reading"] = Reading(**{**value["reading"], "missing": words})
        return cls(**{**value, **more})


@dataclass(frozen=True)
class Finding:
    """What one column of a table is, and what is done about it."""

    column: str | None  # None: the whole file
    what: str
    done: str
    level: Literal["stops", "left out", "changed", "kept"]
    party: str | None = None  # that holds the column, where it is known
