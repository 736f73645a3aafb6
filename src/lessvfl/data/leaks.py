"""Columns that tell the label on their own, which may be known only after it.

A column of classes is judged by its AUC, the mean of one class against the others:
how rare a class is makes no difference. A column of amounts is judged by R². What is
fitted is judged on other rows than it was fitted on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.column import Finding
from lessvfl.data.frame import Floats, Frame, Places
from lessvfl.data.learn import calendar, exponent_of

TOLD = 0.95  # AUC or R² from which on one column alone tells the label
ENOUGH_ROWS = 50  # fewer rows give labels away by chance
FEWEST = 8  # rows of a class; fewer are told by one of thousands of columns by chance
MOST_ROWS = 5_000  # rows that are enough to see it, of all classes alike
MOST_BINS = 64  # that numbers are cut into, by rank
AT_ONCE = 1 << 22  # cells that are looked at together
MAYBE = {True: 0.9, False: 0.8}  # where bins seem to tell a class, or an amount


@dataclass(frozen=True)
class _Labels:
    """The labels of the rows that are looked at."""

    rows: Places
    y: NDArray[Any]  # classes from 0 on without a gap, or amounts
    is_class: bool

    @property
    def n_bins(self) -> int:
        """Return so few bins that by chance they tell little of these very rows."""
        enough = max(4, len(self.y) // 8)
        if self.is_class:
            enough = min(enough, 3 * int(np.bincount(self.y).min()))
        return min(MOST_BINS, enough)

    @property
    def one_hot(self) -> Floats:
        rows: Floats = np.eye(int(self.y.max()) + 1)[self.y]
        return rows


def giveaways(frame: Frame, y: NDArray[Any], is_class: bool) -> list[Finding]:
    """Return the columns in use that predict the label on their own.

    `y` are the labels as they are coded.
    """
    labels = _take_rows(y, is_class)
    if labels is None:
        return []
    scores: dict[int, float] = {}
    for indices, cells, is_code in _blocks(frame, labels.rows):
        ranks = _ranks(cells)
        places = _places(cells, ranks, is_code, labels.n_bins)
        if is_class:
            in_order = _auc_in_order(ranks, labels.one_hot)
            maybe = _auc_of_bins(places, labels.y)
        else:
            in_order = np.zeros(len(indices))
            maybe = _share_of_bins(places, labels.y)
        in_order[is_code] = 0.0  # the order of texts means nothing
        seen = np.maximum(in_order, maybe) >= MAYBE[is_class]
        for at in np.flatnonzero(seen | (is_code & (places.max(axis=0) >= MOST_BINS))):
            score = float(in_order[at])
            if score < TOLD:
                values = np.where(np.isnan(cells[:, at]), np.nan, ranks[:, at])
                score = max(score, _judge(values, places[:, at], labels))
            scores[indices[at]] = max(score, scores.get(indices[at], 0.0))
    findings = []
    for index, score in sorted(scores.items()):
        if score >= TOLD:
            shown = f"{np.floor(1000 * score) / 1000:.3f}"  # 1 is said of 1 alone
            what = f"({'AUC' if is_class else 'R²'} {shown})"
            what = f"tells the label on its own {what}"
            done = "kept; leave it out if it is known only after the label"
            findings.append(Finding(frame.names[index], what, done, "kept"))
    return findings


def rows_to_see(y: NDArray[Any], is_class: bool) -> Places:
    """Return the rows by which `giveaways` judges; none where they are too few."""
    labels = _take_rows(y, is_class)
    return np.empty(0, dtype=np.int64) if labels is None else labels.rows


def _take_rows(y: NDArray[Any], is_class: bool) -> _Labels | None:
    """Return the rows to look at, those of rare classes all; None for too few."""
    order = np.random.default_rng(0).permutation(len(y))
    if not is_class:
        rows = np.sort(order[:MOST_ROWS])
        amounts = np.asarray(y[rows], dtype=np.float64)
        # Squares of 1e200 are none, nor of 1e-200.
        amounts = np.ldexp(amounts, -exponent_of(amounts))
        enough = len(rows) >= ENOUGH_ROWS and amounts.min() < amounts.max()
        return _Labels(rows, amounts, False) if enough else None
    kept, counts = np.unique(y, return_counts=True)
    kept = kept[counts >= FEWEST]
    if len(y) < ENOUGH_ROWS or len(kept) < 2:
        return None
    most = max(MOST_ROWS // len(kept), ENOUGH_ROWS)
    rows = np.sort(np.concatenate([order[y[order] == label][:most] for label in kept]))
    return _Labels(rows, np.searchsorted(kept, y[rows]), True)


def _blocks(
    frame: Frame, rows: Places
) -> Iterator[tuple[list[int], Floats, NDArray[np.bool_]]]:
    """Yield columns in use as numbers, (N, some): whose they are, and which are texts.

    A date comes as its four parts. Columns with infinite cells are not looked at.
    """
    most = max(1, AT_ONCE // len(rows))
    kinds = ("numeric", "boolean")
    plain = [i for i in frame.used if frame.columns[i].kind in kinds]
    special = [i for i in frame.used if frame.columns[i].kind not in kinds]
    for start in range(0, len(plain), most):
        some = plain[start : start + most]
        cells = frame.numeric[rows[:, None], some]
        finite = np.isinf(cells).sum(axis=0) == 0
        if finite.any():
            indices = [
                i for i, is_finite in zip(some, finite, strict=True) if is_finite
            ]
            yield indices, cells[:, finite], np.zeros(len(indices), dtype=np.bool_)
    for index in special:
        if index in frame.text:
            cells = text_codes(frame.text[index][rows])[:, None]
        else:
            days = frame.numeric[rows, index]
            known = ~np.isnan(days)
            cells = np.full((len(rows), 4), np.nan)
            cells[known] = calendar(days[known], 0.0)
        n_parts = cells.shape[1]
        yield [index] * n_parts, cells, np.full(n_parts, index in frame.text)


def text_codes(texts: NDArray[np.object_]) -> Floats:
    """Return texts as numbers by their place in order, NaN where one is missing."""
    cells = texts.tolist()
    code = {text: float(i) for i, text in enumerate(sorted({*cells} - {None}))}
    return np.array([code.get(cell, np.nan) for cell in cells])


def _ranks(cells: Floats) -> Floats:
    """Return ranks from 1 on in every column, a missing cell in the middle."""
    missing = np.isnan(cells)
    if missing.any():
        cells = cells.copy()
        for at in np.flatnonzero(missing.any(axis=0)):
            known = cells[~missing[:, at], at]
            # A cell of the column: the mean of two may overflow.
            middle = np.partition(known, len(known) // 2)[len(known) // 2 :][:1]
            cells[missing[:, at], at] = middle if len(known) else 0.0
    ranks: Floats = np.empty(cells.shape)
    for index, column in enumerate(cells.T):
        # scipy.stats has this, too, and takes longer to import than a check to run.
        _, places, counts = np.unique(column, return_inverse=True, return_counts=True)
        ranks[:, index] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def _places(
    cells: Floats, ranks: Floats, is_code: NDArray[np.bool_], n_bins: int
) -> NDArray[np.int64]:
    """Return the bin of every cell: 0 where it is missing, a text's is its own."""
    shares = (ranks - 0.5) / len(cells)
    bins = 1 + (shares * n_bins).astype(np.int64)
    bins[:, is_code] = 1 + np.nan_to_num(cells[:, is_code], nan=-1).astype(np.int64)
    bins[np.isnan(cells)] = 0
    return bins


def _auc_in_order(ranks: Floats, one_hot: Floats) -> Floats:
    """Return the AUC of columns as they are, up or down: nothing is fitted."""
    n, n_of = len(ranks), one_hot.sum(axis=0)
    sums = ranks.T @ one_hot  # (d, C)
    auc = (sums - n_of * (n_of + 1) / 2) / (n_of * (n - n_of))
    best: Floats = np.maximum(auc, 1 - auc).mean(axis=1)
    return best


def _auc_of_bins(places: NDArray[np.int64], y: NDArray[np.int64]) -> Floats:
    """Return the AUC of the share of a class in a bin: the most that may be found."""
    n_columns, n_classes = places.shape[1], int(y.max()) + 1
    n_bins = int(places.max()) + 1
    flat = (np.arange(n_columns) * n_bins + places) * n_classes + y[:, None]
    shape = (n_columns, n_bins, n_classes)
    counts = np.bincount(flat.ravel(), minlength=np.prod(shape)).reshape(shape)
    in_bin = counts.sum(axis=2)
    total = np.zeros(n_columns)
    for label in range(n_classes):
        order = np.argsort(counts[:, :, label] / np.maximum(in_bin, 1), axis=1)
        of_label = np.take_along_axis(counts[:, :, label], order, axis=1)
        others = np.take_along_axis(in_bin, order, axis=1) - of_label
        below = np.cumsum(others, axis=1) - others / 2
        pairs = of_label.sum(axis=1) * others.sum(axis=1)
        total += (of_label * below).sum(axis=1) / pairs
    mean: Floats = total / n_classes
    return mean


def _share_of_bins(places: NDArray[np.int64], y: Floats) -> Floats:
    """Return how much of the variance of amounts, or of their ranks, is among bins."""
    n_columns, n_bins = places.shape[1], int(places.max()) + 1
    flat = (np.arange(n_columns) * n_bins + places).ravel()
    shape = (n_columns, n_bins)
    counts = np.bincount(flat, minlength=np.prod(shape)).reshape(shape)
    best = np.zeros(n_columns)
    for values in (y, _ranks(y[:, None])[:, 0]):
        centred = values - values.mean()
        weights = np.repeat(centred, n_columns)
        sums = np.bincount(flat, weights, minlength=np.prod(shape)).reshape(shape)
        among = (sums**2 / np.maximum(counts, 1)).sum(axis=1)
        best = np.maximum(best, among / (centred**2).sum())
    return best


def _judge(ranks: Floats, places: NDArray[np.int64], labels: _Labels) -> float:
    """Return the AUC or R² of one column on rows that it was not fitted on.

    The `ranks` of its cells serve for the cells, which a tree would round; of amounts
    with heavy tails, their ranks may be told better than they are.
    """
    from sklearn.metrics import r2_score, roc_auc_score
    from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
    from sklearn.tree import DecisionTreeRegressor

    y = labels.y
    if not labels.is_class:
        tree = DecisionTreeRegressor(min_samples_leaf=3, random_state=0)
        halves = KFold(2, shuffle=True, random_state=0)
        both = np.column_stack([y, _ranks(y[:, None])])
        guess = cross_val_predict(tree, ranks[:, None], both, cv=halves)
        return float(r2_score(both, guess, multioutput="raw_values").max())
    one_hot, n_bins = labels.one_hot, int(places.max()) + 1
    scores = np.empty_like(one_hot)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for learn, judge in folds.split(places, y):
        counts = np.zeros((n_bins, one_hot.shape[1]))
        np.add.at(counts, places[learn], one_hot[learn])
        prior = one_hot[learn].mean(axis=0)
        shares = (counts + prior) / (counts.sum(axis=1, keepdims=True) + 1)
        scores[judge] = shares[places[judge]]
    return float(roc_auc_score(one_hot, scores, average="macro"))
