"""Columns from embeddings: what the server learns of a party's values.

An attack takes everything that was seen of each row, as one table, and a few rows whose
columns the server knows; it returns R2 of every column on the other rows. The control
is the same attack on what the server has anyway, the labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import FastICA
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import OneHotEncoder

from lessvfl_bench.privacy.traffic import Looks, Numbers

N_ROWS = 40  # whose columns the server knows
STRENGTHS = np.logspace(-6, 4, 30)  # of the ridge's penalty, which is cross-validated
MOST_ROWS = 4000  # that sources are separated by
TINY = 1e-12

ValueAttack = Callable[[Numbers, Numbers, Numbers], Numbers]


def side_by_side(looks: Looks) -> Numbers:
    """Return all that was seen of each row, standardised; the mean where it was not."""
    table = np.hstack(list(looks.values()))
    table = np.where(np.isnan(table), np.nanmean(table, axis=0), table)
    scaled: Numbers = (table - table.mean(axis=0)) / table.std(axis=0).clip(TINY)
    return scaled


def by_regression(seen: Numbers, X: Numbers, rows: Numbers) -> Numbers:
    """Regress the columns of known rows on what was seen of them."""
    model = RidgeCV(STRENGTHS).fit(seen[rows], X[rows])
    return explained(model.predict(seen).reshape(X.shape), X, rows)


def by_inversion(seen: Numbers, X: Numbers, rows: Numbers) -> Numbers:
    """Invert a map from columns to what was seen, with a normal prior of columns.

    Map and noise are fitted on known rows, and so are the prior's mean and covariance
    (Ledoit and Wolf). The guess is the mean of the columns given what was seen.
    """
    prior = LedoitWolf().fit(X[rows])
    forward = RidgeCV(STRENGTHS).fit(X[rows], seen[rows])
    A = np.atleast_2d(forward.coef_)  # (seen, columns)
    missed = seen[rows] - forward.predict(X[rows]).reshape(len(rows), -1)
    noise = np.maximum(missed.var(axis=0), 1e-3)
    C = prior.covariance_
    gain = np.linalg.solve(A @ C @ A.T + np.diag(noise), A @ C).T
    away = seen - forward.predict(prior.location_[None]).reshape(1, -1)
    return explained(prior.location_ + away @ gain.T, X, rows)


def by_sources(seen: Numbers, X: Numbers, rows: Numbers) -> Numbers:
    """Separate sources; return R2 of each column by the source most like it.

    No row is known; which source is which column the server does not learn.
    """
    some = slice(0, MOST_ROWS)
    n_sources = min(X.shape[1], int(np.linalg.matrix_rank(seen[some])))
    ica = FastICA(n_sources, random_state=0, whiten="unit-variance")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may not converge: nothing was found
        sources = ica.fit_transform(seen[some])
    both = np.corrcoef(sources.T, X[some].T)[:n_sources, n_sources:]
    alike: Numbers = np.square(np.nan_to_num(both)).max(axis=0)
    return alike


ATTACKS_ON_EMBEDDINGS: dict[str, ValueAttack] = {
    "columns by regression": by_regression,
    "columns by inversion": by_inversion,
    "columns by source separation": by_sources,
}


def explained(found: Numbers, X: Numbers, rows: Numbers) -> Numbers:
    """Return R2 of every column on the rows that are not known, 0 at least."""
    others = np.ones(len(X), dtype=bool)
    others[rows] = False
    missed = np.square(found[others] - X[others]).mean(axis=0)
    share: Numbers = (1 - missed / X[others].var(axis=0).clip(TINY)).clip(0, 1)
    return share


def measure(
    looks: Looks, X: Numbers, y: Numbers, seed: int
) -> dict[str, dict[str, float]]:
    """Attack a party's columns; return score, control and shuffled by attack.

    `X` are those columns that matter, for the rows that the server knows and the score.
    """
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))[: min(N_ROWS, len(X) // 2)]
    X = X[:, X.std(axis=0) > 0]
    seen = side_by_side(looks)
    labels = OneHotEncoder(sparse_output=False).fit_transform(y.reshape(-1, 1))
    own = side_by_side({("labels", 0): labels})
    mixed = seen[rng.permutation(len(seen))]
    tables = {"score": seen, "control": own, "shuffled": mixed}
    return {
        name: {what: float(attack(F, X, rows).mean()) for what, F in tables.items()}
        for name, attack in ATTACKS_ON_EMBEDDINGS.items()
    }
