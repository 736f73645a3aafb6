"""Columns from embeddings: what the server learns of a party's values.

An attack takes what was seen of each row as one table, the labels, which the server has
anyway, and a few rows whose columns it knows; it returns R2 of every column on the
other rows. The control is the same attack where nothing was seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import FastICA
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import OneHotEncoder

from lessvfl_bench.privacy.traffic import AnyArray, Looks

N_ROWS = 40  # whose columns the server knows
STRENGTHS = np.logspace(-6, 4, 30)  # of the ridge's penalty, which is cross-validated
MOST_ROWS = 4000  # that sources are separated by
LEAST_NOISE = 1e-3  # of what was seen, a share of its variance
TINY = 1e-12

# What was seen (N, D), labels (N, L), columns (N, d) and the rows known; R2 (d,).
ValueAttack = Callable[[AnyArray, AnyArray, AnyArray, AnyArray], AnyArray]


def side_by_side(looks: Looks) -> AnyArray:
    """Return all that was seen of each row, standardised; the mean where it was not."""
    table = np.hstack(list(looks.values()))
    table = np.where(np.isnan(table), np.nanmean(table, axis=0), table)
    scaled: AnyArray = (table - table.mean(axis=0)) / table.std(axis=0).clip(TINY)
    return scaled


def by_regression(
    seen: AnyArray, labels: AnyArray, X: AnyArray, rows: AnyArray
) -> AnyArray:
    """Regress the columns of known rows on labels, and the rest on what was seen."""
    found = _regressed(labels, X, rows)
    return explained(found + _regressed(seen, X - found, rows), X, rows)


def by_inversion(
    seen: AnyArray, labels: AnyArray, X: AnyArray, rows: AnyArray
) -> AnyArray:
    """Invert a map from columns to what was seen, with a normal prior of columns.

    Map and noise are fitted on known rows, and so are the prior's mean, which follows
    labels, and its covariance; covariances are those of Ledoit and Wolf. The guess is
    the mean of the columns given what was seen.
    """
    mean = _regressed(labels, X, rows)
    if not seen.shape[1]:
        return explained(mean, X, rows)
    C = LedoitWolf(assume_centered=True).fit((X - mean)[rows]).covariance_
    forward = RidgeCV(STRENGTHS).fit(X[rows], seen[rows])
    A = np.reshape(forward.coef_, (seen.shape[1], X.shape[1]))
    missed = seen[rows] - _predicted(forward, X[rows], seen)
    noise = LedoitWolf().fit(missed).covariance_
    left_out = -forward.best_score_ * seen.shape[1]  # variance of rows not fitted to
    noise *= left_out / max(float(np.trace(noise)), TINY)
    spread = A @ C @ A.T + noise + LEAST_NOISE * np.eye(len(noise))
    away = seen - _predicted(forward, mean, seen)
    return explained(mean + away @ np.linalg.solve(spread, A @ C), X, rows)


def by_sources(
    seen: AnyArray, labels: AnyArray, X: AnyArray, rows: AnyArray
) -> AnyArray:
    """Separate sources; return R2 of each column by the source, or label, most like it.

    No row is known; which source is which column the server does not learn.
    """
    some = slice(0, MOST_ROWS)
    sources, X = labels[some], X[some]
    if seen.shape[1]:
        n_sources = min(X.shape[1], int(np.linalg.matrix_rank(seen[some])))
        ica = FastICA(n_sources, random_state=0, whiten="unit-variance")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may not converge: nothing was found
            sources = np.hstack([sources, ica.fit_transform(seen[some])])
    n_sources = sources.shape[1]
    both = np.corrcoef(sources.T, X.T)[:n_sources, n_sources:]
    alike: AnyArray = np.square(np.nan_to_num(both)).max(axis=0)
    return alike


def _regressed(table: AnyArray, X: AnyArray, rows: AnyArray) -> AnyArray:
    """Return columns as a ridge regression on known rows has them, 0 of no table."""
    if not table.shape[1]:
        return np.zeros_like(X)
    return _predicted(RidgeCV(STRENGTHS).fit(table[rows], X[rows]), table, X)


def _predicted(model: RidgeCV, table: AnyArray, like: AnyArray) -> AnyArray:
    found: AnyArray = model.predict(table).reshape(len(table), like.shape[1])
    return found


ATTACKS_ON_EMBEDDINGS: dict[str, ValueAttack] = {
    "columns by regression": by_regression,
    "columns by inversion": by_inversion,
    "columns by source separation": by_sources,
}


def explained(found: AnyArray, X: AnyArray, rows: AnyArray) -> AnyArray:
    """Return R2 of every column on the rows that are not known, 0 at least."""
    others = np.ones(len(X), dtype=bool)
    others[rows] = False
    missed = np.square(found[others] - X[others]).mean(axis=0)
    share: AnyArray = (1 - missed / X[others].var(axis=0).clip(TINY)).clip(0, 1)
    return share


def measure(
    looks: Looks, X: AnyArray, y: AnyArray, seed: int
) -> dict[str, dict[str, float]]:
    """Attack a party's columns; return score, control and shuffled by attack.

    `X` are those columns that matter, for the rows that the server knows and the score.
    Without embeddings there is nothing to attack.
    """
    if not looks:
        return {}
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))[: min(N_ROWS, len(X) // 2)]
    X = X[:, X.std(axis=0) > 0]
    labels = OneHotEncoder(sparse_output=False).fit_transform(y.reshape(-1, 1))
    seen = side_by_side(looks)
    places = rng.permutation(len(seen))
    tables = {
        "score": (seen, labels),
        "control": (seen[:, :0], labels),
        "shuffled": (seen[places], labels[places]),
    }
    return {
        name: {
            what: float(attack(*own, X, rows).mean()) for what, own in tables.items()
        }
        for name, attack in ATTACKS_ON_EMBEDDINGS.items()
    }
