"""Cut-offs and recalibrations: fitted to some rows and reported on others.

A cut-off is the probability from which on a row is taken for the positive class. It
lies between the values that rows have, so that rounding decides on nobody.

Rows are dealt into five folds, each class evenly. For each fold both are fitted to the
other four; what is reported are the five folds together, each row as it was decided by
rows that it is not among. What is kept is fitted to all rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import ConfigError, DataError
from lessvfl.run.decide.kept import KeptDecision
from lessvfl.run.decide.recalibration import (
    Reals,
    Recalibration,
    RecalibrationKind,
    sigmoid,
)
from lessvfl.run.decide.scored import ScoredRows

NOBODY, EVERYBODY = 700.0, -700.0  # log-odds that no row reaches, and every row
N_FOLDS = 5
HOW = (
    f"chosen on {N_FOLDS - 1} of {N_FOLDS} folds of the rows and reported on the "
    "other, in turn"
)


@dataclass(frozen=True)
class Aim:
    """What a cut-off is for: the least cost, a share of rows, or a precision."""

    kind: Literal["cost", "rate", "precision"]
    value: float = 0.0  # the share, or the precision
    fp: float = 0.0  # the cost of a row that is taken for positive and is not
    fn: float = 0.0  # the cost of a positive row that is not found

    @property
    def words(self) -> str:
        """Say what it is."""
        if self.kind == "cost":
            return f"cost fp={self.fp:g}, fn={self.fn:g}"
        return f"{self.kind} {self.value:g}"


def read_aim(
    cost: str | None, rate: float | None, precision: float | None
) -> Aim | None:
    """Return the aim that was asked for, None where none was; refuse two of them."""
    options = {"cost": cost, "rate": rate, "precision": precision}
    asked = [name for name, value in options.items() if value is not None]
    if len(asked) > 1:
        raise ConfigError(
            "A cut-off is chosen by one of --cost, --rate and --precision. Got "
            f"{' and '.join(f'--{name}' for name in asked)}."
        )
    if cost is not None:
        return _read_cost(cost)
    value = precision if rate is None else rate
    if value is None:
        return None
    if not 0 < value < 1:
        raise ConfigError(
            f"The '{asked[0]}' option must be between 0 and 1. Got {value:g}."
        )
    return Aim("precision" if rate is None else "rate", value)


def _read_cost(text: str) -> Aim:
    pairs = re.findall(r"(fp|fn)=([0-9.eE+-]+)(?:,|$)", text.replace(" ", ""))
    try:
        costs = {name: float(value) for name, value in pairs}
    except ValueError:
        costs = {}
    is_whole = costs.keys() == {"fp", "fn"} and text.count("=") == 2
    if not is_whole or not all(0 < value < float("inf") for value in costs.values()):
        raise ConfigError(
            "The 'cost' option must be two costs above 0, as in fp=1,fn=20: of a row "
            "taken for positive that is not, and of a positive one that is not found. "
            f"Got '{text}'."
        )
    return Aim("cost", **costs)


def choose(odds: Reals, hits: NDArray[np.bool_], aim: Aim) -> float | None:
    """Return the cut-off of an aim, as log-odds; None where none has the precision.

    The least cost with the fewest rows taken; at most a share of the rows, as many as
    that allows; a precision, with as many rows as have it.
    """
    values, place, n = np.unique(-odds, return_inverse=True, return_counts=True)
    values = -values  # the largest first
    taken = np.concatenate([[0], np.cumsum(n)])
    right = np.concatenate([[0], np.cumsum(np.bincount(place, hits))])
    if aim.kind == "cost":
        costs = aim.fp * (taken - right) + aim.fn * (hits.sum() - right)
        best = int(costs.argmin())
    elif aim.kind == "rate":
        best = int(np.flatnonzero(taken <= aim.value * len(odds) + 1e-9)[-1])
    else:
        has_it = right[1:] >= aim.value * taken[1:] - 1e-9
        if not has_it.any():
            return None
        best = int(np.flatnonzero(has_it)[-1]) + 1
    if best == 0:
        return NOBODY
    if best == len(values):
        return EVERYBODY
    upper, lower = float(values[best - 1]), float(values[best])
    middle = (upper + lower) / 2
    return middle if middle < upper else lower


def best_precision(odds: Reals, hits: NDArray[np.bool_]) -> float:
    """Return the largest precision that any cut-off has."""
    from sklearn.metrics import precision_recall_curve

    return float(precision_recall_curve(hits, odds)[0][:-1].max())


def threshold_of(cut: float, positive: int) -> tuple[float, float]:
    """Return a cut-off as the threshold of a model, by class.

    >>> threshold_of(0.0, 1), threshold_of(EVERYBODY, 0)[1]
    ((0.5, 0.5), 1.0)
    """
    both = sigmoid(np.array([-cut, cut] if positive else [cut, -cut])).tolist()
    return both[0], both[1]


def outcome(
    hits: NDArray[np.bool_], taken: NDArray[np.bool_], aim: Aim | None = None
) -> dict[str, Any]:
    """Count how rows were decided on; with costs, what these decisions cost."""
    from sklearn.metrics import confusion_matrix

    (tn, fp), (fn, tp) = confusion_matrix(hits, taken, labels=[False, True]).tolist()
    counts = {
        "tp": tp,
        "fp": fp,
        "fn": fn,
        "tn": tn,
        "rate": (tp + fp) / len(hits),
        "precision": _share(tp, tp + fp),
        "recall": _share(tp, tp + fn),
        "false_positive_rate": _share(fp, fp + tn),
    }
    if aim is not None and aim.kind == "cost":
        counts["cost"] = aim.fp * fp + aim.fn * fn
    return counts


def _share(some: int, all_: int) -> float | None:
    return some / all_ if all_ else None


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
    """Yield for each fold the places of rows to fit to and of rows to report on."""
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
