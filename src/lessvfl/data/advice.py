"""What a user should know of columns that are used: nothing is done about it.

Of each on its own, and what numbers are to each other, or look like: ids, copies by a
factor, dummies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lessvfl.data.column import Finding
from lessvfl.data.frame import Floats, Frame
from lessvfl.data.labels import EVEN
from lessvfl.data.leaks import giveaways, text_codes
from lessvfl.data.learn import exponent_of
from lessvfl.data.sentinels import suspects
from lessvfl.terms import listed

ENOUGH_ROWS = 50  # fewer rows are all different, or a sum of others, by chance
MOST_DIFFER = 0.95  # of the cells of ids
LONG = 9  # digits of ids
LARGEST = 1e20  # of ids; whole numbers beyond are measurements without a fraction
SOME_ROWS = 512  # that tell which columns may follow from each other
AT_ONCE = 1_000  # columns that are compared with all others
ROUNDING = 2e-3  # deviations of a column that are rounding and no difference
FEWEST = 10  # rows beside the most frequent value; fewer are alike by chance
DIGIT_CODE = re.compile(r"\s*[-+]?[0-9]+(?:[eE][0-9]+)?\s*")
RARE = 5  # a category in fewer rows is too rare to learn from
FEW_ROWS = 20  # of a class, from which a score varies much


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
    findings: list[Finding] = []
    twins: dict[bytes, int] = {}
    for index in frame.used:
        name, cells = frame.names[index], np.ascontiguousarray(frame.numeric[:, index])
        if index in frame.text:
            cells = text_codes(frame.text[index])
        for finding in _remarks_on(frame, index, cells, name in flagged):
            findings.append(replace(finding, column=name))
        key = xxhash.xxh3_128(cells.tobytes()).digest()
        twin = twins.setdefault(key, index)
        if twin != index and (frame.texts(index) == frame.texts(twin)).all():
            what = f"equal to column '{frame.names[twin]}'"
            done = "kept; one of the two is enough"
            findings.append(Finding(name, what, done, "kept"))
    findings += relations(frame, grouped)
    return findings if y is None else findings + giveaways(frame, y, is_class)


def _remarks_on(
    frame: Frame, index: int, cells: Floats, flag: bool
) -> Iterator[Finding]:
    """Yield what is to be said of one column on its own.

    `cells` are its numbers, or its texts by their place in order, NaN where missing.
    """
    empty = np.isnan(cells)
    present = cells[~empty]
    if np.isinf(present).any():
        yield Finding(None, "infinite cells", "a run stops here", "stops")
    if empty.any():
        what = f"{empty.sum():,} of {len(cells):,} cells missing"
        done = "filled in from the column's other rows"
        if flag and index in frame.text:
            done = "a category of their own"
        elif flag:
            done += ", and a flag says where"
        yield Finding(None, what, done, "kept")
    yield from suspects(frame, index, present)
    if present.size and present.min() == present.max() and not flag:
        done = "kept; it tells nothing"
        yield Finding(None, "one value in every row", done, "kept")
    elif index in frame.text:
        texts = {text for text in frame.text[index] if text is not None}
        if texts and all(map(DIGIT_CODE.fullmatch, texts)):
            what = "codes of digits, such as 007 or 1e5"
            yield Finding(None, what, "kept as texts, zeros and all", "kept")
        counts = np.bincount(present.astype(np.int64))
        if n_rare := int((counts < RARE).sum()):
            many = "category" if n_rare == 1 else "categories"
            what = f"{n_rare} {many} in fewer than {RARE} rows"
            yield Finding(None, what, "kept; too rare to learn from", "kept")


# ------------------------------------------------------------- of numbers beside others


def relations(frame: Frame, grouped: Collection[str] = ()) -> list[Finding]:
    """Return what is to be said of numbers beside each other.

    Dummies that are `grouped` already are not named.
    """
    kinds = ("numeric", "boolean")
    used = [index for index in frame.used if frame.columns[index].kind in kinds]
    if frame.n_rows < ENOUGH_ROWS or not used:
        return []
    dummies = (
        finding for finding in _dummies(frame, used) if finding.column not in grouped
    )
    findings = [*_ids(frame, used), *_followers(frame, used), *dummies]
    place = {name: index for index, name in enumerate(frame.names)}
    return sorted(findings, key=lambda finding: place[str(finding.column)])


def _ids(frame: Frame, used: Sequence[int]) -> Iterator[Finding]:
    """Yield columns of long whole numbers, or of one after the other."""
    for index in used:
        cells = frame.numeric[:, index]
        if frame.columns[index].kind == "boolean" or not _are_whole(
            cells[:ENOUGH_ROWS]
        ):
            continue
        present = cells[~np.isnan(cells)]
        different = np.unique(present)
        n_different = len(different)
        if n_different < max(ENOUGH_ROWS, MOST_DIFFER * len(present)):
            continue
        if not _are_whole(present) or np.abs(different[[0, -1]]).max() > LARGEST:
            continue
        done = "kept; leave it out if it is"
        if different[-1] - different[0] == n_different - 1 == len(present) - 1:
            what = "one whole number after the other: a count of the rows?"
            yield Finding(frame.names[index], what, done, "kept")
            continue
        sizes = np.abs(np.quantile(different, (0.1, 0.5, 0.9), method="nearest"))
        short, usual, long = (len(f"{size:.0f}") for size in sizes)
        one_sign = different[0] > 0 or different[-1] < 0
        if usual >= LONG and abs(long - short) <= 1 and one_sign:
            what = f"whole numbers of {usual} digits that nearly all differ: ids?"
            yield Finding(frame.names[index], what, "kept; leave it out if so", "kept")


def _are_whole(cells: Floats) -> bool:
    present = cells[~np.isnan(cells)]
    whole = np.isfinite(present).all() and (np.floor(present) == present).all()
    return bool(whole)


# -------------------------------------------------------------------- linear in another


def _followers(frame: Frame, used: Sequence[int]) -> Iterator[Finding]:
    """Yield columns that are another one times a number, plus a number."""
    n_rows = frame.n_rows
    rows = np.random.default_rng(0).permutation(n_rows)[:SOME_ROWS]
    some, kept = _standardised(frame.numeric[rows[:, None], list(used)])
    columns = [index for index, keep in zip(used, kept, strict=True) if keep]
    for start in range(0, len(columns), AT_ONCE):
        stop = start + AT_ONCE
        products = np.abs(some[:, start:stop].T @ some[:, :stop]) / len(rows)
        alike = 1 - products <= ROUNDING**2 / 2
        # Each with those before it alone.
        alike &= np.arange(start, stop)[: len(alike), None] > np.arange(alike.shape[1])
        for at in np.flatnonzero(alike.any(axis=1)):
            later = columns[start + at]
            for earlier in (columns[index] for index in np.flatnonzero(alike[at])[:5]):
                what = _relation(frame, earlier, later)
                if what is not None:
                    done = "kept; one of the two is enough"
                    if what:
                        yield Finding(frame.names[later], what, done, "kept")
                    break


def _standardised(cells: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the varying columns, standardised, 0 where missing, and which they are."""
    kept = ~np.isinf(cells).any(axis=0)
    known = ~np.isnan(cells)
    counts = np.maximum(known.sum(axis=0), 1)
    filled = np.where(known & kept, cells, 0.0)
    filled = np.ldexp(filled, [-exponent_of(column) for column in filled.T])
    centred = np.where(known, filled - filled.sum(axis=0) / counts, 0.0)
    # Of all rows, not of those known: a missing cell must be missing in both.
    deviation = np.sqrt((centred**2).mean(axis=0))
    kept &= deviation > 1e-9 * np.abs(filled).max(axis=0, initial=0.0)
    return centred[:, kept] / deviation[kept], kept


def _relation(frame: Frame, earlier: int, later: int) -> str | None:
    """Say how a column follows from one before it; nothing where they are equal.

    None where it does not.
    """
    x, y = frame.numeric[:, earlier], frame.numeric[:, later]
    known = ~np.isnan(x)
    if not np.array_equal(known, ~np.isnan(y)):
        return None
    x, y = x[known], y[known]
    if np.array_equal(x, y):
        return ""
    if len(x) - np.unique(x, return_counts=True)[1].max() < FEWEST:
        return None
    size_x, size_y = exponent_of(x), exponent_of(y)
    x, y = np.ldexp(x, -size_x), np.ldexp(y, -size_y)
    slope = ((x - x.mean()) * (y - y.mean())).mean() / x.var()
    spread = ROUNDING * y.std()
    if np.sqrt(np.mean((y - y.mean() - slope * (x - x.mean())) ** 2)) > spread:
        return None
    factor = (x * y).mean() / (x**2).mean()
    name = frame.names[earlier]
    if np.sqrt(np.mean((y - factor * x) ** 2)) > spread:
        return f"exactly linear in column '{name}'"
    with np.errstate(over="ignore"):
        return f"column '{name}' times {np.ldexp(factor, size_y - size_x):.4g}"


# ------------------------------------------------------------------------------ dummies


def _dummies(frame: Frame, used: Sequence[int]) -> Iterator[Finding]:
    """Yield blocks of neighbouring columns of 0 and 1 that add up to 1 in every row.

    Numbers of another kind may stand between them.
    """
    block: list[int] = []
    sums = np.zeros(frame.n_rows)
    for index in used:
        cells = frame.numeric[:, index]
        if not ((cells == 0) | (cells == 1)).all() or not cells.any():
            continue
        block.append(index)
        sums += cells
        while sums.max() > 1:
            sums -= frame.numeric[:, block.pop(0)]
        if sums.min() == 1:
            if len(block) > 2:
                last = frame.names[block[-1]]
                what = f"of {len(block)} columns up to '{last}' one is 1 in every row"
                done = "kept as features of their own; --groups makes them one"
                first = frame.names[block[0]]
                yield Finding(first, f"dummies: {what}", done, "kept")
            block, sums = [], np.zeros(frame.n_rows)


# ------------------------------------------------------------------------------- labels


def rare_classes(
    y: NDArray[np.int64], label_names: Sequence[str], label: str
) -> Finding | None:
    """Return what is said of classes with few rows, or with a small share of them."""
    counts = np.bincount(y, minlength=len(label_names))
    n_rows, even = len(y), len(y) / len(counts)
    is_rare = (counts < EVEN * even) | (counts < FEW_ROWS)
    if not is_rare.any():
        return None
    rare = np.flatnonzero(is_rare).tolist()
    pairs = [(label_names[i], int(counts[i])) for i in rare]
    if len(pairs) == 1:
        (name, count), share = pairs[0], 100 * pairs[0][1] / n_rows
        what = f"class '{name}' has {count:,} of {n_rows:,} rows ({share:.2g} %)"
    else:
        shown = listed([f"'{name}' ({count:,})" for name, count in pairs])
        what = f"{len(pairs)} classes have few rows: {shown} of {n_rows:,}"
    done = "kept; judge by AUC and balanced accuracy, not by accuracy"
    return Finding(label, what, done, "kept")
