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

from lessvfl.errors import ConfigError, DataError
from lessvfl.run.decide.cut_offs import (
    NOBODY,
    Aim,
    choose,
    refuse_precision,
    threshold_of,
)
from lessvfl.run.decide.recalibration import Recalibration, RecalibrationKind
from lessvfl.run.decide.scored import ScoredRows

N_FOLDS = 5
HOW = (
    f"chosen on {N_FOLDS - 1} of {N_FOLDS} folds of the rows and reported on the "
    "other, in turn"
)


@dataclass(frozen=True)
class Fitted:
    """What was fitted to rows: perhaps a recalibration, perhaps a cut-off."""

    recalibration: Recalibration | None
    cut: float | None  # log-odds of the positive class

    @classmethod
    def to(
        cls, rows: ScoredRows, recalibrate: RecalibrationKind | None, aim: Aim | None
    ) -> Fitted:
        """Fit to rows; where no cut-off has the precision, it is None."""
        how = None
        if recalibrate is not None:
            how = Recalibration.fit(recalibrate, rows.z, rows.y)
            rows = replace(rows, z=how.apply(rows.z))
        return cls(how, None if aim is None else choose(rows.odds, rows.hits, aim))

    def apply(self, rows: ScoredRows) -> ScoredRows:
        """Return rows with what was fitted."""
        z = rows.z if self.recalibration is None else self.recalibration.apply(rows.z)
        threshold = rows.threshold
        if self.cut is not None:
            threshold = threshold_of(self.cut, rows.positive)
        return replace(rows, z=z, threshold=threshold)


@dataclass(frozen=True)
class CrossFitted:
    """Rows as they are fitted and decided by rows that they are not among."""

    rows: ScoredRows  # with the recalibration
    decided: NDArray[np.int64]  # the class of each row
    cuts: tuple[float, ...]  # one for each fold


def check_task(rows: ScoredRows, what: str, of_two: bool) -> None:
    """Refuse a task that has no such thing."""
    if rows.task == "regression":
        raise ConfigError(f"{what} needs classes. Got a regression model.")
    if of_two and rows.task != "binary":
        raise ConfigError(
            f"{what} needs two classes. Got a model of {len(rows.label_names)}."
        )


def fit_all(
    rows: ScoredRows, recalibrate: RecalibrationKind | None, aim: Aim | None
) -> Fitted:
    """Fit to all rows, for later ones."""
    found = Fitted.to(rows, recalibrate, aim)
    if aim is not None and found.cut is None:
        fitted = found.apply(rows)
        raise refuse_precision(fitted.odds, fitted.hits, aim)
    return found


def cross_fit(
    rows: ScoredRows, recalibrate: RecalibrationKind | None, aim: Aim | None
) -> CrossFitted:
    """Fit to some rows and apply to others, in turn.

    Where no cut-off of four folds has the precision, nobody of the fifth is taken.
    """
    z, decided = np.empty_like(rows.z), np.empty(len(rows), dtype=np.int64)
    cuts = []
    for others, own in _folds(rows):
        found = Fitted.to(rows.take(others), recalibrate, aim)
        if aim is not None:
            found = replace(found, cut=NOBODY if found.cut is None else found.cut)
            cuts.append(found.cut)
        fold = found.apply(rows.take(own))
        z[own], decided[own] = fold.z, fold.decided
    known = tuple(cut for cut in cuts if cut is not None)
    return CrossFitted(replace(rows, z=z), decided, known)


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
