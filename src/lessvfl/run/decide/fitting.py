"""Recalibration and cut-off, fitted to some rows and reported on others.

Rows are dealt into five folds, each class evenly. For each fold both are fitted to the
other four; what is reported are the five folds together, each row as it was decided by
rows that it is not among. What is kept is fitted to all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import DataError
from lessvfl.run.decide.cut_offs import (
    NOBODY,
    Aim,
    best_precision,
    choose,
    threshold_of,
)
from lessvfl.run.decide.kept import KeptDecision
from lessvfl.run.decide.recalibration import Recalibration, RecalibrationKind
from lessvfl.run.decide.scored import ScoredRows

N_FOLDS = 5
HOW = (
    f"chosen on {N_FOLDS - 1} of {N_FOLDS} folds of the rows and reported on the "
    "other, in turn"
)


@dataclass(frozen=True)
class CrossFitted:
    """Rows as they are fitted and decided by rows that they are not among."""

    rows: ScoredRows  # with the recalibration
    decided: NDArray[np.int64]  # the class of each row
    cuts: tuple[float, ...]  # log-odds, one for each fold


def fit(
    rows: ScoredRows,
    recalibrate: RecalibrationKind | None,
    aim: Aim | None,
    or_nobody: bool = False,
) -> tuple[KeptDecision, float | None]:
    """Return a decision fitted to rows, and its cut-off in log-odds, if it has one.

    Where no cut-off has the precision, refuse, or with `or_nobody` take no row.
    """
    how = threshold = cut = None
    if recalibrate is not None:
        how = Recalibration.fit(recalibrate, rows.z, rows.y)
        rows = replace(rows, z=how.apply(rows.z))
    if aim is not None:
        cut = choose(rows.odds, rows.hits, aim)
        if cut is None and not or_nobody:
            most = best_precision(rows.odds, rows.hits)
            raise DataError(
                f"A cut-off must have a precision of {aim.value:g} on the rows. Got "
                f"{most:.4g} at most."
            )
        cut = NOBODY if cut is None else cut
        threshold = threshold_of(cut, rows.positive)
    return KeptDecision(how, threshold), cut


def cross_fit(
    rows: ScoredRows, recalibrate: RecalibrationKind | None, aim: Aim | None
) -> CrossFitted:
    """Fit to some rows and apply to others, in turn.

    Where no cut-off of four folds has the precision, nobody of the fifth is taken.
    """
    z, decided = np.empty_like(rows.z), np.empty(len(rows), dtype=np.int64)
    cuts = []
    for others, places in _folds(rows):
        decision, cut = fit(rows.take(others), recalibrate, aim, or_nobody=True)
        fold = rows.take(places).deciding(decision)
        z[places], decided[places] = fold.z, fold.decided
        cuts += [] if cut is None else [cut]
    return CrossFitted(replace(rows, z=z), decided, tuple(cuts))


def _folds(rows: ScoredRows) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the rows to fit to and those to report on."""
    from sklearn.model_selection import StratifiedKFold

    sizes = np.bincount(rows.y, minlength=len(rows.label_names))
    if sizes.min() < N_FOLDS:
        rare = rows.label_names[int(sizes.argmin())]
        raise DataError(
            f"To choose on some rows and report on others, at least {N_FOLDS} must be "
            f"of each class. Got {sizes.min()} of '{rare}'."
        )
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
    yield from folds.split(rows.z, rows.y)
