"""The rules of types: what a column becomes, by whichever door its cells come.

This is the table of ``docs/data.md``. Tests go through every row of it, as a file of
texts, an Excel, Parquet or Arrow file, a frame of pandas or polars, and an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lessvfl.data.column import ColumnKind
from lessvfl.data.frame import Frame


def of_kind(frame: Frame, kind: ColumnKind) -> set[int]:
    """Return the columns of one kind, by index, those left out among them."""
    return {i for i, column in enumerate(frame.columns) if column.kind == kind}


@dataclass(frozen=True)
class TypeRule:
    """What a column holds, what it becomes, and cells that it is true of.

    Row i of an example has the cell at i, counted round, with i in place of ``{i}``.
    """

    holds: str
    becomes: str
    kind: ColumnKind | None  # None: left out
    examples: Sequence[Sequence[str]]
    name: str = ""  # of the examples, where it counts


NUMBER, CODE = "numbers", "texts as they are written: categories, or ids"
DATE = "day, month, weekday and days since the first: one feature"
OUT = "left out"
RULES = (
    TypeRule(
        "numbers: `5`, `-0.5`, `+2`, `1e-3`, `1.5e+03`, `inf`",
        "numbers; infinite ones stop a run",
        "numeric",
        [
            ("{i}.25", "3"),
            ("-0.5", ".5", "+2", "1e-3"),
            ("7.5e+03", "2"),
            ("", "7"),
            ("inf", "1.5"),
            (" 4 ", "0", "-0"),
        ],
    ),
    TypeRule(
        "numbers with marks, units or limits: `1,234.50`, `1.234,50`, `1 234,5`, "
        "`1'234.5`, `€ 5`, `12 %`, `(5.00)`, `<0.3`",
        "numbers, if every cell is one in the same notation and unit; `12 %` is 12, "
        "`(5.00)` is -5 and `<0.3` is 0.3. `1,234` alone has a thousands mark, unless "
        "the file has decimal commas",
        "numeric",
        [
            ("1,234.5{i}", "950"),
            ("1.{i:03},56", "-3"),
            ("1\u2009234,{i}", "2 000"),
            ("1'{i:03}.5",),
            ("€ 5.{i}", "3"),
            ("1{i} %", "7%"),
            ("(5.00)", "7.{i}"),
            ("<0.3", "{i}.5", "7"),
            ("$-1", "$ 3"),
        ],
    ),
    TypeRule(
        "numbers or dates among which up to three words (`missing`, `n.d.`) stand in "
        "at most 5 % of the cells",
        "numbers or dates; these cells count as missing",
        "numeric",
        [("missing", *["{i}.5"] * 29), ("n.d.", *["1.{i:03},5"] * 29)],
    ),
    TypeRule(
        "codes: numbers with leading zeros (`007`), whole ones that no double holds "
        "(of 16 digits and more), or such as `1e5` in a column without decimals",
        CODE,
        "categorical",
        [
            ("007", "12"),
            ("00000", "03152"),
            ("1e5", "12"),
            ("90071992547409930", "9"),
            ("1000000000000000000001", "1000000000000000000002"),
            ("-01", "5"),
        ],
    ),
    TypeRule(
        "names of ranges: `<5` and `>5` in more than half of the different texts",
        "categories",
        "categorical",
        [("<5", ">5"), ("<10", "10", ">10")],
    ),
    TypeRule(
        "`yes`/`no`, `y`/`n`, `true`/`false`, `t`/`f`, `on`/`off`, in any case",
        "truth values",
        "boolean",
        [("yes", "No"), ("True", "False", "NA"), ("t", "f"), ("on", "off"), ("y", "n")],
    ),
    TypeRule(
        "dates: date types, `2024-12-31` with or without a time, `31/12/2024`, "
        "`12/31/2024`, `31.12.24`, `31-Dec-2024`, `Dec 31, 2024`, `2024-12`, and "
        "`20241231` if every cell is a day of 1900 to 2099, or 99991231",
        f"{DATE}. The time of day is not used; months without days begin on their "
        "first; years of two digits are 1969 to 2068; months in words are English",
        "date",
        [
            ("2024-02-29", "2023-01-05"),
            ("2024-02-29 10:11:12", "2024-2-1T09:00Z"),
            ("31/12/2024", "1/2/2024"),
            ("12/31/2024", "1/2/2024"),
            ("31.12.24",),
            ("31/12/24", "01/02/69"),
            ("12/31/20", "1/2/20"),
            ("01.02.2024",),
            ("01-Jan-2020", "5 sept 2021"),
            ("31DEC2019",),
            ("Dec 31, 2024", "May 1 2020"),
            ("2020-01", "2021-12"),
            ("2020/01",),
            ("20200131", "19991231", "99991231"),
            ("20200131", "", "20240229"),
        ],
    ),
    TypeRule(
        "dates such as `01/02/2024` where no cell tells day from month",
        OUT,
        None,
        [("01/02/2024", "03/04/2024"), ("01/02/24", "3/4/24")],
    ),
    TypeRule(
        "other texts, with at most half as many different ones as rows",
        "categories; where there are more than `max_categories`, the most frequent are "
        "categories and the others become all zeros",
        "categorical",
        [
            ("Bonn", "Trier"),
            ("NA", "low", "high"),
            ("1-2-3", "4"),
            ("10.0.0.1", "x"),
            ("20-12-31", "01-02-03"),
            ("$5", "€5"),
            ("20201331", "A"),
        ],
    ),
    TypeRule(
        "other texts: ids, names, free text", OUT, None, [("person {i}",), ("{i:05}",)]
    ),
    TypeRule(
        "whole numbers that all differ, in a column named like an id (`ID`, "
        "`patient_id`, `rowId`, `Customer ID`, `Index`), or without a name, as the "
        "index that pandas writes",
        OUT,
        None,
        [("7{i}3",)],
        "Customer ID",
    ),
    TypeRule(
        "a count of the rows: 0, 1, 2, ... or 1, 2, 3, ... down a table of 50 rows or "
        "more, whatever its name",
        OUT,
        None,
        [("{i}",)],
    ),
    TypeRule(
        "nothing, or of a kind no network can use (lists, bytes, durations)",
        OUT,
        None,
        [("",), ("NA", "-")],
    ),
)


def columns_of(n_rows: int) -> Mapping[str, tuple[TypeRule, list[str]]]:
    """Return columns of cells as they are written, each with the rule for it."""
    return {
        f"{number}.{place} {rule.name}": (
            rule,
            [cells[i % len(cells)].format(i=i) for i in range(n_rows)],
        )
        for number, rule in enumerate(RULES)
        for place, cells in enumerate(rule.examples)
    }


def table() -> str:
    """Return the rules as a table of Markdown."""
    lines = [f"| {rule.holds} | {rule.becomes} |" for rule in RULES]
    return "\n".join(["| a column of | becomes |", "|---|---|", *lines])
