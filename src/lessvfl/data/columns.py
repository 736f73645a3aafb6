"""What every column of a table is, and what is done about it: the one place.

`infer_columns` reads texts that are numbers, truth values or dates, and leaves out what
no network can use; `apply_columns` reads later rows alike. `changes` says so in words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.column import (
    DIGITS,
    KIND_WORDS,
    OF_READING,
    Column,
    ColumnKind,
    Finding,
    Reading,
)
from lessvfl.data.days import days_of_digits
from lessvfl.data.frame import Floats, Frame
from lessvfl.errors import DataError
from lessvfl.terms import listed, plural

MANY_TEXTS = 64  # more different texts than this may be free text
LONG_TEXT = 40  # characters of a text on average
ID_NAME = re.compile(
    r"(?i:(^|[_\W])(id|ids|uid|uuid|guid|key|index|row|nr|no|number)\W*$)|[a-z]I[Dd]$"
    r"|(?i:^(id|index|row|unnamed)([_\W]|$))|^$",  # the last two: what pandas writes
)
ENOUGH_ROWS = 50  # fewer rows are counted by chance, or by an example

EMPTY = "no value in any row"
IDS = "ids: another number in every row"
COUNT = "a count of the rows: one more in each"
DATE_PARTS = "day, month, weekday and days since the first"


def infer_columns(frame: Frame) -> tuple[Frame, tuple[Finding, ...]]:
    """Decide on every column of a raw table, from all of its rows.

    Returns the table with its texts read, and a finding for each column that is not
    used as it came. A column that is left out stays in the table by name alone.
    """
    columns, read = list(frame.columns), dict[int, Floats]()
    findings = list(frame.findings)
    for index, column in enumerate(frame.columns):
        cells = frame.cells(index)
        finding: Finding | None = None
        if column.left_out:
            finding = _left_out(column.left_out)
        elif column.kind == "date":
            finding = _changed("dates", f"kept as {DATE_PARTS}")
        elif column.kind == "text":
            finding, reading = _judge_texts(cells, frame.decimal)
            column = replace(column, kind="categorical")
            if reading is not None:
                column, cells = read_column(column, cells, reading)
                read[index] = cells
                finding = _judge_ids(column.name, cells) or finding
        elif column.kind != "categorical" and np.isnan(cells).all() and len(cells):
            finding = _left_out(EMPTY)
        elif column.kind != "categorical":
            finding = _judge_ids(column.name, cells)
        is_used = finding is None or finding.level != "left out"
        if column.kind == "numeric" and is_used:
            words = () if column.reading is None else column.reading.missing
            digits, days = replace(DIGITS, missing=words), days_of_digits(cells)
            if days is not None and index in frame.text:  # without units or marks
                from lessvfl.data.readings import read_texts

                days = read_texts(frame.text[index], digits)
            if days is not None:
                column, read[index] = replace(column, kind="date", reading=digits), days
                finding = _of_kind(DIGITS)
            elif column.reading is None and frame.decimal == ",":
                column = replace(column, reading=DECIMAL_COMMA)  # later ones are texts
        if finding is not None:
            findings.append(replace(finding, column=column.name))
            if finding.level == "left out":
                column = replace(column, reading=None, left_out=finding.what)
        columns[index] = column
    return replace(_with_columns(frame, columns, read), findings=()), tuple(findings)


def apply_columns(frame: Frame, inferred: Sequence[Column], owner: str) -> Frame:
    """Return a second table whose texts are read as those of the first were.

    `owner` says whose rows these are.
    """
    known = {column.name: column for column in inferred if not column.left_out}
    columns, read = list(frame.columns), dict[int, Floats]()
    for index, column in enumerate(frame.columns):
        source = known.get(column.name)
        reading = None if source is None else source.reading
        if source is not None and source.kind == "numeric" and index in frame.text:
            reading = reading or Reading("number")
        if reading is not None and index in frame.text:
            columns[index], read[index] = read_column(
                column, frame.text[index], reading, owner
            )
        elif reading is not None:
            columns[index] = replace(column, reading=reading)
            if columns[index].are_digits and column.kind == "numeric":
                days = days_of_digits(frame.numeric[:, index])
                if days is None:
                    raise _of_another_kind(column.name, owner, "date")
                columns[index], read[index] = replace(columns[index], kind="date"), days
    return _with_columns(frame, columns, read)


def read_column(
    column: Column, cells: NDArray[np.object_], reading: Reading, owner: str = ""
) -> tuple[Column, Floats]:
    """Return what a column of texts is once these are read, and the cells."""
    from lessvfl.data.readings import read_texts

    values, kind = read_texts(cells, reading), OF_READING[reading.kind]
    if values is None:
        texts = cells.tolist()
        row = next(
            texts.index(text)
            for text in dict.fromkeys(texts)
            if read_texts(np.array([text], dtype=object), reading) is None
        )
        where = f" in row {row + 1}"
        raise _of_another_kind(column.name, owner, kind, where)
    return replace(column, kind=kind, reading=reading), values


def _of_another_kind(
    name: str, owner: str, kind: ColumnKind, where: str = ""
) -> DataError:
    return DataError(
        f"Column '{name}' of {owner} must hold {KIND_WORDS[kind]}, as in its other "
        f"rows. Got another cell{where}."
    )


def _with_columns(
    frame: Frame, columns: Sequence[Column], read: Mapping[int, Floats]
) -> Frame:
    """Return a table of other columns, with the cells of those that were read."""
    numeric = frame.numeric
    if read:
        numeric = numeric.copy()
        for index, values in read.items():
            numeric[:, index] = values
    text = {
        index: cells
        for index, cells in frame.text.items()
        if index not in read and not columns[index].left_out
    }
    return replace(frame, columns=tuple(columns), numeric=numeric, text=text)


DECIMAL_COMMA = Reading("number", decimal=",", thousands=".")


def _left_out(what: str) -> Finding:
    return Finding(None, what, "left out", "left out")


def _changed(what: str, done: str) -> Finding:
    return Finding(None, what, done, "changed")


def _judge_texts(
    cells: NDArray[np.object_], decimal: str
) -> tuple[Finding | None, Reading | None]:
    """Say what a column of texts is; nothing of an ordinary category."""
    from lessvfl.data.readings import find_reading_of_most, is_mark

    tally = Counter(cells.tolist())
    tally.pop(None, None)
    if all(map(is_mark, tally)):
        return _left_out(EMPTY), None
    reading = find_reading_of_most(tally, decimal)
    if reading is not None and reading.order == "":
        what = "dates whose day and month cannot be told apart"
        return _left_out(what), None
    if reading is not None:
        return _describe(reading, tally), reading
    different = len(tally)
    length = sum(map(len, tally)) / different
    if 2 * different > len(cells):
        words = sum(text.count(" ") for text in tally) / different
        is_free = length > LONG_TEXT or words >= 3
        what = "free text" if is_free else "ids or names: most cells differ"
        return _left_out(what), None
    if different > MANY_TEXTS and length > LONG_TEXT:
        return _left_out("free text"), None
    return None, None


def _describe(reading: Reading, tally: Mapping[str, int]) -> Finding:
    """Say how the texts of a column are read, and which of them are missing cells."""
    from lessvfl.data.readings import LIMITS

    finding = _of_kind(reading)
    what, done = finding.what, finding.done
    first = {text.lstrip()[:1] for text in tally} if reading.kind == "number" else set()
    for marks, how in (({"("}, "(5.00) as -5"), ({*LIMITS}, "<0.3 as 0.3")):
        if not first.isdisjoint(marks):
            done += f", {how}"
    if reading.missing:
        n_cells = sum(n for text, n in tally.items() if text.strip() in reading.missing)
        words = listed([f"'{word}'" for word in reading.missing])
        what += f", and {words} in {plural(n_cells, 'cell')}"
        done += "; what is none counts as missing"
    return _changed(what, done)


def _of_kind(reading: Reading) -> Finding:
    if reading.kind == "truth":
        return _changed("yes and no in words", "read as truth values")
    if reading.kind == "date":
        order = "" if reading.order == "year first" else f", {reading.order}"
        return _changed(f"dates{order}", f"kept as {DATE_PARTS}")
    marks = f"'{reading.decimal}' for decimals"
    if reading.thousands:
        marks = f"'{reading.thousands}' for thousands, {marks}"
    return _changed(f"numbers in text, {marks}", "read as numbers")


def _judge_ids(name: str, cells: Floats) -> Finding | None:
    """Say of numbers that they are ids, by name, or count the rows, by any name."""
    if ID_NAME.search(name):
        present = cells[~np.isnan(cells)]
        is_whole = bool((np.floor(present) == present).all())
        if is_whole and 2 < len(present) == len(np.unique(present)):
            return _left_out(IDS)
    if len(cells) < ENOUGH_ROWS or cells[0] not in (0, 1):
        return None
    is_count = np.array_equal(cells, cells[0] + np.arange(len(cells)))
    return _left_out(COUNT) if is_count else None


# ------------------------------------------------------------------------- what is said


def changes(
    frame: Frame,
    findings: Sequence[Finding],
    names: Collection[str],
    max_categories: int,
) -> list[Finding]:
    """Return what was done to these columns of an inferred table and to its file."""
    of_file = [finding for finding in findings if finding.column is None]
    by_name = {finding.column: finding for finding in findings}
    for index, cells in frame.text.items():
        different = len(set(cells.tolist()) - {None})
        if different > max_categories:
            name, what = frame.names[index], f"{different} different texts"
            most = f"the {max_categories} most frequent are kept"
            by_name[name] = Finding(
                name, what, f"{most}, others are none of them", "changed"
            )
    wanted = set(names)
    order = [name for name in frame.names if name in wanted and name in by_name]
    return of_file + [by_name[name] for name in order]


def left_out_sentences(frame: Frame) -> list[str]:
    """Return a sentence about all columns that are left out, where there are any."""
    why = [f"'{c.name}' ({c.left_out})" for c in frame.columns if c.left_out]
    return [f"Columns that cannot be used are left out: {listed(why)}."] if why else []


def usable(party: str, names: Sequence[str], frame: Frame) -> list[str]:
    """Return a party's columns without those that are left out, or refuse if none."""
    unused = {c.name: c.left_out for c in frame.columns if c.left_out}
    left = [name for name in names if name not in unused]
    if not left:
        shown = listed([f"'{name}' ({unused[name]})" for name in names])
        raise DataError(
            f"Party '{party}' must have a column that can be used. Got {shown}."
        )
    return left
