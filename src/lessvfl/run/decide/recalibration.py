"""Probabilities that were fitted anew to labels: isotonic regression, or Platt's line.

Of two classes the probability of the second one is mapped, of more that of each class
against all others, and the results are divided by their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import DataError
from lessvfl.settings import known_as

RecalibrationKind = Literal["isotonic", "platt"]
KINDS: tuple[RecalibrationKind, ...] = get_args(RecalibrationKind)

FARTHEST = 40.0  # log-odds: probabilities beyond are 0 or 1 in double precision
SMALLEST = 1e-9  # probability that is given; no row is certain
STRENGTH = 1e6  # of labels against the regularisation of Platt's line

Reals = NDArray[np.float64]
Map = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Recalibration:
    """A map of probabilities for the second of two classes, or for each of many.

    Of isotonic regression a map is the probabilities between which it is linear, and
    what they become; of Platt's it is the slope and the shift of the log-odds.
    """

    kind: RecalibrationKind
    maps: tuple[Map, ...]

    @classmethod
    def fit(
        cls, kind: RecalibrationKind, z: Reals, y: NDArray[np.int64]
    ) -> Recalibration:
        """Fit the outputs `z` (n, 1) or (n, C) of a model to the classes of rows."""
        odds = log_odds(z)
        targets = [1] if odds.shape[1] == 1 else range(odds.shape[1])
        if any(len(np.unique(y == target)) < 2 for target in targets):
            raise DataError(
                "To fit probabilities to rows, these must be of all classes. Got "
                "some that are not."
            )
        fit = _fit_isotonic if kind == "isotonic" else _fit_line
        places = enumerate(targets)
        return cls(kind, tuple(fit(odds[:, at], y == target) for at, target in places))

    def apply(self, z: Reals) -> Reals:
        """Return the outputs of a model, fitted: log-odds, or logarithms of shares."""
        odds = log_odds(z)
        if odds.shape[1] != len(self.maps):
            raise DataError(
                f"A recalibration of {len(self.maps)} outputs must be given as many. "
                f"Got {odds.shape[1]}."
            )
        fitted = np.empty_like(odds)
        for place, (first, second) in enumerate(self.maps):
            if self.kind == "platt":
                fitted[:, place] = odds[:, place] * first[0] + second[0]
            else:
                shares = np.interp(sigmoid(odds[:, place]), first, second)
                fitted[:, place] = logit(shares)
        fitted = np.clip(fitted, *logit(np.array([SMALLEST, 1 - SMALLEST])))
        if fitted.shape[1] == 1:
            return fitted
        shares = sigmoid(fitted)
        return np.asarray(np.log(shares / shares.sum(axis=1, keepdims=True)))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recalibration:
        """Return a recalibration from its fields in JSON, or raise a ValueError."""
        maps = tuple(
            (tuple(map(float, first)), tuple(map(float, second)))
            for first, second in content["maps"]
        )
        kind = read_kind(content["kind"])
        for first, second in maps:
            if not first or len(first) != len(second):
                raise ValueError("a map with ends missing")
            if not np.isfinite([first, second]).all():
                raise ValueError("a map that is not finite")
        return cls(kind, maps)


def read_kind(name: str) -> RecalibrationKind:
    """Return how probabilities are fitted, or refuse another name."""
    return known_as(name, KINDS, "'recalibrate' option")


def _fit_isotonic(odds: Reals, hits: NDArray[np.bool_]) -> Map:
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    fitted.fit(sigmoid(odds), hits.astype(float))
    first, second = fitted.X_thresholds_, fitted.y_thresholds_
    return tuple(first.astype(float).tolist()), tuple(second.astype(float).tolist())


def _fit_line(odds: Reals, hits: NDArray[np.bool_]) -> Map:
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=STRENGTH).fit(odds[:, None], hits)
    slope = float(fitted.coef_[0, 0])
    if slope <= 0:
        raise DataError(
            "Platt's line must rise: rows of a class must have larger probabilities "
            f"of it than others. Got a slope of {slope:.3g}."
        )
    return (slope,), (float(fitted.intercept_[0]),)


# ------------------------------------------------------------------------- conversions


def sigmoid(odds: Reals) -> Reals:
    """Return probabilities of log-odds.

    >>> sigmoid(np.array([0.0, 1000.0])).tolist()
    [0.5, 1.0]
    """
    return np.asarray(np.exp(-np.logaddexp(0, -odds)))


def logit(p: Reals) -> Reals:
    """Return log-odds, finite for every probability."""
    with np.errstate(divide="ignore"):
        odds = np.log(p) - np.log1p(-p)
    return np.asarray(np.clip(odds, -FARTHEST, FARTHEST))


def log_odds(z: Reals) -> Reals:
    """Return the log-odds of outputs: of the second class, or each one's of many."""
    z = np.asarray(z, dtype=np.float64)
    if z.shape[1] == 1:
        return np.clip(z, -FARTHEST, FARTHEST)
    return logit(shares_of(z))


def shares_of(z: Reals) -> Reals:
    """Return the probability of every class, (n, C), of outputs (n, 1) or (n, C)."""
    z = np.asarray(z, dtype=np.float64)
    if z.shape[1] == 1:
        return np.asarray(np.concatenate([sigmoid(-z), sigmoid(z)], axis=1))
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def outputs_of(p: Reals) -> Reals:
    """Return outputs, (n, 1) or (n, C), that have these probabilities (n, C)."""
    if p.shape[1] > 2:
        return np.asarray(np.log(np.maximum(p, np.exp(-FARTHEST))))
    with np.errstate(divide="ignore"):
        odds = np.log(p[:, 1:]) - np.log(p[:, :1])
    return np.asarray(np.clip(odds, -FARTHEST, FARTHEST))
