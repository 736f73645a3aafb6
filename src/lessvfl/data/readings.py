"""Readings: how the texts of a column become numbers, truth values or days.

A reading is found once, from all cells of a column, and kept with the model, so that
a table of a few rows is read by the same rule. The rules are ours, since the inference
of pyarrow and pandas leaves ``1.234,5``, ``$ 5``, ``31/12/2024`` and ``yes`` texts, and
keeps no rule for later rows.

This takes pyarrow, so others import it where they have texts to read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from lessvfl.data.arrow_cells import arrow_of, numbers_of, texts_of
from lessvfl.data.column import DIGITS, Reading
from lessvfl.data.days import days_of_parts
from lessvfl.data.frame import Floats

# What stands for a missing cell among numbers, truth values and dates, in any case.
MISSING = frozenset({"", "na", "n/a", "#n/a", "null", "none", "nan", "-", "?"})

PAIRS = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("off", "on"))
TRUTHS = {word: float(value) for pair in PAIRS for value, word in enumerate(pair)}

# Decimal and thousands marks, those without a doubt first.
MARKS = tuple(
    Reading("number", decimal=decimal, thousands=thousands)
    for decimal, many in ((".", ("", ",", " ", "'")), (",", (".", " ", "'")))
    for thousands in many
)
UNITS = r"%|[$€£¥₹]|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|CZK"

TIME = (
    r"(?:[T ] ?\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?"
    r"(?: ?(?:Z|UTC|[-+]\d{2}:?\d{2}))?)?$"
)
YEAR_FIRST = r"^(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})" + TIME
YEAR_LAST = r"^(?P<{}>\d{{1,2}})(?P<mark>[-/.])(?P<{}>\d{{1,2}})[-/.](?P<year>\d{{{}}})"
WORD = r"(?P<month>[A-Za-z]{3,9})\.?"
TWO_DIGITS = ", years of two digits"
DATES = {  # by what is said of their order
    "year first": YEAR_FIRST,
    "day first": YEAR_LAST.format("day", "month", 4) + TIME,
    "month first": YEAR_LAST.format("month", "day", 4) + TIME,
    "day first" + TWO_DIGITS: YEAR_LAST.format("day", "month", 2) + TIME,
    "month first" + TWO_DIGITS: YEAR_LAST.format("month", "day", 2) + TIME,
    "months in words": r"^(?P<day>\d{1,2})\.?[-/ ]?"
    + WORD
    + r"[-/ ]?(?P<year>\d{4}|\d\d)"
    + TIME,
    "months in words first": f"^{WORD}" + r" (?P<day>\d{1,2}),? (?P<year>\d{4})" + TIME,
    "months without days": r"^(?P<year>\d{4})[-/](?P<month>\d{2})$",
    DIGITS.order: r"^(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})$",
}
YY_FIRST = r"^(?P<year>\d{2})-(?P<month>\d{2})-(?P<day>\d{2})$"  # none of DATES
TURN = 69  # years of two digits are 1969 to 2068, as POSIX has them
NAMES = (
    "january february march april may june july august september october november "
    "december"
).split()
MONTHS = {name[:n]: i for i, name in enumerate(NAMES, 1) for n in (3, 4, len(name))}

FIRST_LOOK = 50  # texts that rule most readings out
LONG = 16  # digits from which on a double may not hold a whole number
CODE = rf"^(?:[-+]?(?:0\d|\d{{{LONG},}}$)|\d+[eE]\d+$)"  # what may be one
FEW_WORDS, FEW_CELLS = 3, 0.05  # words among numbers or dates, and how many cells
LIMITS = ("<", ">", "≤", "≥")  # as in <0.3, below what an instrument can tell
LIMIT = f"^[{''.join(LIMITS)}]=? ?"


def find_reading(texts: Collection[str], decimal: str) -> Reading | None:
    """Return how these different texts are read; None: they stay texts.

    Marks of missing cells do not count. `decimal` is the decimal mark of the file they
    came from, "" where it has none of its own. A date whose order no cell decides comes
    back with the order "".
    """
    whole = _clean(texts)
    whole = whole.filter(_is_present(whole))
    n_limits = sum(text.lstrip()[:1] in LIMITS for text in texts)
    if len(whole) == 0 or 2 * n_limits > len(texts):  # ranges by name, as <5 and >5
        return None
    if len(whole) <= FIRST_LOOK:
        words = {text.casefold() for text in whole.to_pylist()}
        if any(words == set(pair) for pair in PAIRS):
            return Reading("truth")
    first = whole[:FIRST_LOOK]
    # The decimal mark of the file itself comes first.
    numbers = sorted(MARKS, key=lambda reading: reading.decimal != (decimal or "."))
    for reading in (*numbers, *(Reading("date", order=order) for order in DATES)):
        if _values(first, reading) is not None and _values(whole, reading) is not None:
            break
    else:
        return None
    if reading.kind == "number":
        return reading if _is_amount(whole, reading) else None
    first, _, rest = reading.order.partition(" ")
    if first not in ("day", "month"):
        return reading
    if rest.endswith(TWO_DIGITS) and _days(whole, YY_FIRST) is not None:
        return None  # 20-12-31, or 31-12-20
    other = f"{'month' if first == 'day' else 'day'} {rest}"
    if _values(whole, Reading("date", order=other)) is None:
        return reading
    marks = compute.extract_regex(whole, DATES[reading.order]).field("mark")
    if compute.unique(marks).to_pylist() == ["."]:  # which nobody writes after a month
        return reading
    return Reading("date", order="")


def find_reading_of_most(tally: Mapping[str, int], decimal: str) -> Reading | None:
    """Return how these texts are read, a few words among numbers or dates as missing.

    `tally` says in how many cells each text stands.
    """
    reading = find_reading(tally, decimal)
    if reading is not None:
        return reading
    words = [
        text for text in tally if not any(map(str.isdigit, text)) and not is_mark(text)
    ]
    n_cells = sum(tally[word] for word in words)
    if not 0 < len(words) <= FEW_WORDS or n_cells > FEW_CELLS * sum(tally.values()):
        return None
    reading = find_reading([text for text in tally if text not in words], decimal)
    if reading is None or reading.kind == "truth":
        return None
    return replace(reading, missing=tuple(sorted(word.strip() for word in words)))


def read_texts(cells: NDArray[np.object_], reading: Reading) -> Floats | None:
    """Read texts (None where missing) as numbers, NaN where missing.

    None where a text is none of the kind.
    """
    coded = arrow_of(cells).cast(pyarrow.string()).dictionary_encode()
    different = _clean(coded.dictionary)
    present = _is_present(different, reading.missing)
    numbers = _values(different.filter(present), reading)
    if numbers is None:
        return None
    values = np.full(len(different) + 1, np.nan)  # the last one for a missing cell
    values[:-1][numbers_of(present.cast(pyarrow.int8())) == 1] = numbers
    return np.asarray(values[numbers_of(coded.indices, len(different))])


def plain_numbers(column: pyarrow.ChunkedArray, decimal: str) -> Floats | None:
    """Return texts of a file as numbers, NaN where missing; None where some are none.

    Numbers are plain: without units or thousands marks, which `find_reading` is for.
    Codes such as ``007`` are none.
    """
    first = _cast(column.slice(0, FIRST_LOOK), decimal)
    return None if first is None else _cast(column, decimal)


def _cast(column: pyarrow.ChunkedArray, decimal: str) -> Floats | None:
    texts = column.combine_chunks()  # each step takes its time by the chunk
    numbers = None if decimal == "," else _floats(texts)
    if numbers is None:  # of marks of missing cells, blanks or decimal commas
        texts = compute.utf8_trim_whitespace(texts)
        texts = compute.if_else(_is_present(texts), texts, pyarrow.NA)
        if decimal == ",":
            if compute.any(compute.match_substring(texts, ".")).as_py():
                return None
            texts = compute.replace_substring(texts, ",", ".")
        numbers = _floats(texts)
    return None if numbers is None or _are_codes(texts) else numbers


def _floats(texts: pyarrow.ChunkedArray) -> Floats | None:
    try:
        return numbers_of(texts.cast(pyarrow.float64()))
    except pyarrow.ArrowInvalid:
        return None


def _are_codes(numbers: pyarrow.Array | pyarrow.ChunkedArray) -> bool:
    """Tell codes from numbers: 007, 1e5 among whole numbers, or too long for a double.

    Sixteen digits and more are a number where the double nearest to it is the same.
    """
    odd = numbers.filter(compute.match_substring_regex(numbers, CODE))
    if len(odd) == 0:
        return False
    texts = [text.lstrip("+-") for text in odd.unique().to_pylist()]
    if any(text[0] == "0" for text in texts):
        return True
    long = [text for text in texts if text.isdigit()]
    if any(len(text) > 308 or int(text) != float(text) for text in long):
        return True
    has_point = compute.any(compute.match_substring(numbers, ".")).as_py()
    return len(long) < len(texts) and not has_point


def is_mark(text: str) -> bool:
    """Tell whether a text among numbers stands for a missing cell."""
    return text.strip().casefold() in MISSING


def _is_present(
    texts: pyarrow.StringArray, words: Collection[str] = ()
) -> pyarrow.BooleanArray:
    """Tell of clean texts which are neither marks of missing cells nor these words."""
    # As Arrow writes words in small letters; for others than ASCII it takes long.
    lower = ("".join(c.lower() if c.isascii() else c for c in word) for word in words)
    marks = arrow_of(sorted(MISSING.union(lower)))
    return compute.invert(compute.is_in(compute.ascii_lower(texts), value_set=marks))


def _clean(texts: Collection[str] | pyarrow.StringArray) -> pyarrow.StringArray:
    """Return texts without spaces around them, with one kind of space and minus.

    What accountants write as (5.00) is -5.00, and a limit such as <0.3 is its number.
    """
    is_arrow = isinstance(texts, pyarrow.Array)
    whole = texts if is_arrow else arrow_of(texts).cast(pyarrow.string())
    whole = compute.replace_substring_regex(whole, "[\u00a0\u202f\u2009]", " ")
    whole = compute.replace_substring(whole, "\u2212", "-")
    whole = compute.replace_substring(whole, "\u2019", "'")
    whole = compute.utf8_trim_whitespace(whole)
    whole = compute.replace_substring_regex(whole, r"^\(([^()]*\d[^()]*)\)$", r"-\1")
    return compute.replace_substring_regex(whole, LIMIT, "")


def _values(texts: pyarrow.StringArray, reading: Reading) -> Floats | None:
    """Return what texts stand for; None where one of them is none of the kind."""
    if reading.kind == "truth":
        words = [text.casefold() for text in texts.to_pylist()]
        known = all(word in TRUTHS for word in words)
        return np.array([TRUTHS[word] for word in words]) if known else None
    if reading.kind == "number":
        return _numbers(texts, reading)
    return _days(texts, DATES[reading.order])


@lru_cache
def _number_pattern(reading: Reading) -> str:
    """Return the regular expression of a number with sign and unit, by `reading`."""
    decimal, thousands = (f"[{mark}]" for mark in (reading.decimal, reading.thousands))
    grouped = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|" if reading.thousands else ""
    body = (
        rf"(?:(?:{grouped}\d+)(?:{decimal}\d*)?|{decimal}\d+)(?:[eE][-+]?\d+)?|(?i:inf)"
    )
    return (
        rf"^(?P<sign>[-+]?)(?P<before>(?:{UNITS})?) ?(?P<inner>[-+]?)(?P<body>{body})"
        rf" ?(?P<after>(?:{UNITS})?)$"
    )


def _numbers(texts: pyarrow.StringArray, reading: Reading) -> Floats | None:
    parts = compute.extract_regex(texts, _number_pattern(reading))
    if parts.null_count:
        return None
    sign, inner, body = (parts.field(name) for name in ("sign", "inner", "body"))
    if reading.thousands:
        body = compute.replace_substring(body, reading.thousands, "")
    body = compute.replace_substring(body, reading.decimal, ".")
    size = numbers_of(body.cast(pyarrow.float64()))
    signs = compute.binary_join_element_wise(sign, inner, arrow_of([""])[0])
    if len(signs) and compute.max(compute.utf8_length(signs)).as_py() > 1:
        return None
    return np.asarray(np.where(texts_of(signs) == "-", -size, size))


def _is_amount(texts: pyarrow.StringArray, reading: Reading) -> bool:
    """Tell whether texts are amounts, not codes as 00123 or amounts of mixed units."""
    parts = compute.extract_regex(texts, _number_pattern(reading))
    units = {
        unit
        for side in ("before", "after")
        for unit in compute.unique(parts.field(side)).to_pylist()
    }
    return len(units - {""}) <= 1 and not _are_codes(parts.field("body"))


def _days(texts: pyarrow.StringArray, pattern: str) -> Floats | None:
    parts = compute.extract_regex(texts, pattern)
    if parts.null_count:
        return None
    whole = {field.name: parts.field(field.name) for field in parts.type}
    if WORD in pattern:
        words = compute.ascii_lower(whole["month"])
        whole["month"] = compute.index_in(words, value_set=arrow_of(MONTHS))
        if whole["month"].null_count:
            return None
    year, month, day = (
        numbers_of(whole[name].cast(pyarrow.int64())) if name in whole else np.array(1)
        for name in ("year", "month", "day")
    )
    if WORD in pattern:
        month = np.array([*MONTHS.values()])[month]
    is_short = numbers_of(compute.utf8_length(whole["year"])) == 2
    year = np.where(is_short, year + np.where(year < TURN, 2000, 1900), year)
    return days_of_parts(year, month, day)
