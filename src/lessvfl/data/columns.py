"""What every column of a table is, and what is done about it: the one place.

`settle` reads texts that are numbers, truth values or dates, and leaves out what no
network can use; `changes` says so in words, and `remarks` what else a user should know.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lessvfl.data.frame import Finding, Floats, Frame, Reading
from lessvfl.data.leaks import giveaways, text_codes
from lessvfl.data.readings import find_reading, is_mark, read_texts
from lessvfl.data.relations import relations
from lessvfl.data.sentinels import suspects
from lessvfl.errors import DataError
from lessvfl.terms import listed

MANY_TEXTS = 64  # more different texts than this may be free text
LONG_TEXT = 40  # characters of a text on average
ID_NAME = re.compile(
    r"(^|[_\W])(id|ids|uid|uuid|guid|key|index|row|nr|no|number)$|[a-z]I[Dd]$"
    r"|^(id|index|row|unnamed)([_\W]|$)",
)

EMPTY = "no value in any row"
IDS = "ids: another number in every row"
DATE_PARTS = "day, month, weekday and days since the first"


def settle(frame: Frame) -> tuple[Frame, tuple[Finding, ...]]:
    """Decide on every column of a raw table, from all of its rows.

    Returns the table with its texts read, and a finding for each column that is not
    used as it came. A column that is left out stays in the table by name alone.
    """
    numeric, text = frame.numeric, dict(frame.text)
    boolean, dates = set(frame.boolean), set(frame.dates)
    readings, left_out = dict(frame.readings), dict(frame.left_out)
    found = {index: _left_out(kind) for index, kind in left_out.items()}
    for index in dates:
        found[index] = _changed("dates", f"kept as {DATE_PARTS}")
    read: dict[int, Floats] = {}
    for index, cells in frame.text.items():
        finding, reading = _judge_texts(frame, index, cells)
        if reading is not None:
            values = read_texts(cells, reading)
            assert values is not None, "the reading was found on these texts"
            if _is_ids(frame.names[index], values):
                finding = _left_out(IDS)
            read[index], readings[index] = values, reading
            boolean |= {index} if reading.kind == "truth" else set()
            dates |= {index} if reading.kind == "date" else set()
            del text[index]
        if finding is not None:
            found[index] = finding
    found |= _numbers_to_leave_out(frame, {*found, *frame.text})
    if frame.decimal == ",":  # later tables may come as texts
        own = Reading("number", decimal=",", thousands=".")
        plain = set(range(len(frame.names))) - boolean - dates - {*text}
        readings = dict.fromkeys(sorted(plain), own) | readings
    for index, one in found.items():
        if one.level == "left out":
            left_out[index] = one.what
            text.pop(index, None)
    if read:
        numeric = numeric.copy()
        for index, values in read.items():
            numeric[:, index] = values
    settled = replace(
        frame,
        numeric=numeric,
        text=text,
        boolean=frozenset(boolean),
        dates=frozenset(dates),
        readings={i: r for i, r in readings.items() if i not in left_out},
        left_out=left_out,
        findings=(),
    )
    said = (replace(found[i], column=frame.names[i]) for i in sorted(found))
    return settled, (*frame.findings, *said)


def follow(frame: Frame, settled: Frame, owner: str) -> Frame:
    """Return a second table whose texts are read as those of the first were.

    `owner` says whose rows these are.
    """
    if not settled.readings:
        return frame
    where = {name: index for index, name in enumerate(settled.names)}
    numeric, text = frame.numeric.copy(), dict(frame.text)
    boolean, dates, readings = set(frame.boolean), set(frame.dates), {}
    for index, name in enumerate(frame.names):
        reading = settled.readings.get(where.get(name, -1))
        if reading is None:
            continue
        readings[index] = reading
        if index not in text:
            continue
        values = read_texts(text.pop(index), reading)
        if values is None:
            raise DataError(
                f"Column '{name}' of {owner} must hold "
                f"{KINDS[reading.kind]}, as in its other rows. Got other texts."
            )
        numeric[:, index] = values
        boolean |= {index} if reading.kind == "truth" else set()
        dates |= {index} if reading.kind == "date" else set()
    return replace(
        frame,
        numeric=numeric,
        text=text,
        boolean=frozenset(boolean),
        dates=frozenset(dates),
        readings=readings,
    )


KINDS = {"number": "numbers", "truth": "truth values", "date": "dates"}


def _left_out(what: str) -> Finding:
    return Finding(None, what, "left out", "left out")


def _changed(what: str, done: str) -> Finding:
    return Finding(None, what, done, "changed")


def _judge_texts(
    frame: Frame, index: int, cells: NDArray[np.object_]
) -> tuple[Finding | None, Reading | None]:
    """Say what a column of texts is; nothing of an ordinary category."""
    if index in frame.categories:
        return None, None
    tally = Counter(cells.tolist())
    tally.pop(None, None)
    if all(map(is_mark, tally)):
        return _left_out(EMPTY), None
    reading = find_reading(tally, frame.decimal)
    if reading is not None and reading.order == "":
        what = "dates whose day and month cannot be told apart"
        return _left_out(what), None
    if reading is not None:
        return _describe(reading), reading
    different = len(tally)
    length = sum(map(len, tally)) / different
    if 2 * different > frame.n_rows:
        words = sum(text.count(" ") for text in tally) / different
        is_free = length > LONG_TEXT or words >= 3
        what = "free text" if is_free else "ids or names: most cells differ"
        return _left_out(what), None
    if different > MANY_TEXTS and length > LONG_TEXT:
        return _left_out("free text"), None
    return None, None


def _describe(reading: Reading) -> Finding:
    if reading.kind == "truth":
        return _changed("yes and no in words", "read as truth values")
    if reading.kind == "date":
        order = "" if reading.order == "year first" else f", {reading.order}"
        return _changed(f"dates{order}", f"kept as {DATE_PARTS}")
    marks = f"'{reading.decimal}' for decimals"
    if reading.thousands:
        marks = f"'{reading.thousands}' for thousands, {marks}"
    return _changed(f"numbers in text, {marks}", "read as numbers")


def _numbers_to_leave_out(frame: Frame, done: Collection[int]) -> dict[int, Finding]:
    """Return what is said of numbers that are missing altogether, or that are ids."""
    found: dict[int, Finding] = {}
    if frame.n_rows == 0:
        return found
    maybe = {*np.flatnonzero(np.isnan(frame.numeric[0])).tolist()}
    maybe |= {i for i, name in enumerate(frame.names) if ID_NAME.search(name)}
    for index in maybe.difference(done):
        cells = frame.numeric[:, index]
        if np.isnan(cells).all():
            found[index] = _left_out(EMPTY)
        elif _is_ids(frame.names[index], cells):
            found[index] = _left_out(IDS)
    return found


def _is_ids(name: str, cells: Floats) -> bool:
    """Tell whether a column is named like ids, and its whole numbers all differ."""
    if not ID_NAME.search(name):
        return False
    present = cells[~np.isnan(cells)]
    is_whole = bool((np.floor(present) == present).all())
    return is_whole and 2 < len(present) == len(np.unique(present))


# ------------------------------------------------------------------------- what is said


def changes(
    frame: Frame,
    findings: Sequence[Finding],
    names: Collection[str],
    max_categories: int,
) -> list[Finding]:
    """Return what was done to these columns of a settled table and to its file."""
    of_file = [finding for finding in findings if finding.column is None]
    found = {finding.column: finding for finding in findings}
    for index, cells in frame.text.items():
        different = len(set(cells.tolist()) - {None})
        if different > max_categories:
            what = f"{different} different texts"
            done = (
                f"the {max_categories} most frequent are kept, others are none of them"
            )
            found[frame.names[index]] = replace(
                _changed(what, done), column=frame.names[index]
            )
    wanted = set(names)
    order = [name for name in frame.names if name in wanted and name in found]
    return of_file + [found[name] for name in order]


def left_out_sentences(frame: Frame) -> list[str]:
    """Return a sentence about all columns that are left out, where there are any."""
    if not frame.left_out:
        return []
    said = [f"'{frame.names[i]}' ({what})" for i, what in frame.left_out.items()]
    return [f"Columns that cannot be used are left out: {listed(said)}."]


def usable(party: str, names: Sequence[str], frame: Frame) -> list[str]:
    """Return a party's columns without those that are left out, or refuse if none."""
    unused = frame.unused
    found = [name for name in names if name not in unused]
    if not found:
        why = {frame.names[index]: what for index, what in frame.left_out.items()}
        shown = listed([f"'{name}' ({why[name]})" for name in names])
        raise DataError(
            f"Party '{party}' must have a column that can be used. Got {shown}."
        )
    return found


# ----------------------------------------------------------------------------- advice


RARE = 5  # a category in fewer rows is too rare to learn from


def remarks(
    frame: Frame,
    y: NDArray[Any] | None,
    is_class: bool,
    flagged: Collection[str] = (),
    grouped: Collection[str] = (),
) -> list[Finding]:
    """Return what a user should know of columns that are used: nothing is done.

    `y` are the labels as they are coded, None where there are none to speak of,
    `flagged` the columns that get a flag of missing cells, and `grouped` those of a
    feature of several columns.
    """
    found: list[Finding] = []
    twins: dict[bytes, str] = {}
    for index, name in enumerate(frame.names):
        if index in frame.left_out:
            continue
        cells = _codes(frame, index)
        looks = _look(frame, index, cells, name in flagged)
        found += (replace(one, column=name) for one in looks)
        key = xxhash.xxh3_128(cells.tobytes()).digest()
        twin = twins.setdefault(key, name)
        if twin != name and frame.texts(index).tolist() == _texts_of(frame, twin):
            what, done = f"equal to column '{twin}'", "kept; one of the two is enough"
            found.append(Finding(name, what, done, "kept"))
    found += relations(frame, grouped)
    return found if y is None else found + giveaways(frame, y, is_class)


def _texts_of(frame: Frame, name: str) -> list[Any]:
    return list(frame.texts(frame.names.index(name)))


def _codes(frame: Frame, index: int) -> Floats:
    """Return a column as numbers, texts by their place in order, NaN where missing."""
    if index not in frame.text:
        return np.ascontiguousarray(frame.numeric[:, index])
    return text_codes(frame.text[index])


def _look(frame: Frame, index: int, cells: Floats, flag: bool) -> Iterator[Finding]:
    """Yield what is to be said of one column on its own."""
    empty = np.isnan(cells)
    present = cells[~empty]
    if np.isinf(present).any():
        yield Finding(None, "infinite cells", "a run stops here", "stops")
    if empty.any():
        what = f"{empty.sum():,} of {len(cells):,} cells missing"
        told = ", and a flag says where" if flag else ""
        done = f"filled in from the column's other rows{told}"
        if flag and index in frame.text:
            done = "a category of their own"
        yield Finding(None, what, done, "kept")
    yield from suspects(frame, index, present)
    if present.size and present.min() == present.max() and not flag:
        done = "kept; it tells nothing"
        yield Finding(None, "one value in every row", done, "kept")
    elif index in frame.text:
        counts = np.bincount(present.astype(np.int64))
        if n_rare := int((counts < RARE).sum()):
            many = "category" if n_rare == 1 else "categories"
            what = f"{n_rare} {many} in fewer than {RARE} rows"
            yield Finding(None, what, "kept; too rare to learn from", "kept")
