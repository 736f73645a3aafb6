"""Other splits of columns over parties: by importance, and by correlation.

After VertiBench (Wu et al., ICLR 2024). There, shares of the parties are drawn from a
Dirichlet distribution, and every column goes to a party with these as probabilities:
the sums of importance have the shares in expectation. Here columns are dealt, the most
important first, so that the sums come as near to the shares as columns allow.

The correlation of two sets of columns is the deviation of the singular values of their
matrix of rank correlations, by the square root of its smaller side. What a split is
scored by is the mean over parties of the correlation within less the mean of that with
each other party. VertiBench finds the least and the largest score by a genetic
algorithm, here they are those of two orders: columns that cluster together in one
party, and dealt one by one. A split of beta has a score that lies beta of the way from
the least, apart, to the largest, together. (VertiBench's score has the opposite sign,
so that beta here is its 1 - beta.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from scipy.stats import rankdata
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from lessvfl import data
from lessvfl.data import DataConfig, Dataset
from lessvfl.errors import ConfigError
from lessvfl.terms import stream_seed
from lessvfl_bench.study import BY_CLASS

N_TRIED = 17  # splits on the way from together to apart
Owners = NDArray[np.int64]  # (d,), the party of every column
# By kind whether its number is allowed, and how that is said.
KINDS: dict[str, tuple[Callable[[float], bool], str]] = {
    "importance": (lambda value: value > 0, "above 0"),
    "correlation": (lambda value: 0 <= value <= 1, "in [0, 1]"),
}


def read(split: str) -> tuple[str, float]:
    """Read a split as in importance:0.1 or correlation:1.

    >>> read("importance:0.1")
    ('importance', 0.1)
    """
    kind, _, text = split.partition(":")
    try:
        allowed, words = KINDS[kind]
        value = float(text)
    except (KeyError, ValueError):
        raise ConfigError(
            "A split must be as in importance:0.1 (alpha) or correlation:0.5 (beta). "
            f"Got {split!r}."
        ) from None
    if not allowed(value):
        raise ConfigError(
            f"The number of a split by {kind} must be {words}. Got {text}."
        )
    return kind, value


def parties_of(
    dataset: Dataset, split: str, n_parties: int, seed: int
) -> dict[str, list[str]]:
    """Return the columns of every party, by a split of a data set.

    Importances and correlations are those of all columns, pooled: of the split alone,
    which no method sees.
    """
    kind, value = read(split)
    names, X, y = _pooled(dataset)
    if not 2 <= n_parties <= len(names):
        raise ConfigError(
            f"Parties of a split must be 2 to {len(names)}, the columns of "
            f"'{dataset.name}'. Got {n_parties}."
        )
    rng = np.random.default_rng(stream_seed(seed, "split", split, n_parties))
    if kind == "importance":
        of_classes = dataset.task != "regression"
        forest = ExtraTreesClassifier if of_classes else ExtraTreesRegressor
        found = forest(100, random_state=0).fit(X, y).feature_importances_
        owners = by_importance(found, n_parties, value, rng)
    else:
        owners = by_correlation(rank_correlations(X), n_parties, value, rng)
    return {
        f"party{k}": [name for name, own in zip(names, owners, strict=True) if own == k]
        for k in range(n_parties)
    }


def by_importance(
    importance: NDArray[Any], n_parties: int, alpha: float, rng: np.random.Generator
) -> Owners:
    """Deal columns so that sums of importance have shares of Dirichlet(alpha).

    Every party has a column first, drawn from all; the others go, the most important
    first, to the party that is furthest below its share.
    """
    shares = rng.dirichlet(np.full(n_parties, alpha))
    weights = np.asarray(importance) / max(float(np.sum(importance)), 1e-300)
    owners = np.full(len(weights), -1)
    owners[rng.choice(len(weights), n_parties, replace=False)] = np.arange(n_parties)
    sums = np.array([weights[owners == k].sum() for k in range(n_parties)])
    for j in np.argsort(-weights, kind="stable"):
        if owners[j] < 0:
            owners[j] = (shares - sums).argmax()
            sums[owners[j]] += weights[j]
    return owners


def by_correlation(
    corr: NDArray[Any], n_parties: int, beta: float, rng: np.random.Generator
) -> Owners:
    """Deal columns, equally many each, together (beta 1), apart (0), or in between.

    From together to apart columns change places, two at a time in random order; of
    some splits on the way the one is taken whose score is nearest to what beta asks
    for.
    """
    order = _clustered(corr)
    together, apart = np.empty(len(order), int), np.empty(len(order), int)
    for k, block in enumerate(np.array_split(order, n_parties)):
        together[block] = k
    apart[order] = np.arange(len(order)) % n_parties
    way = _exchanges(together, apart, rng)
    tried = [way[i] for i in np.linspace(0, len(way) - 1, N_TRIED).round().astype(int)]
    scores = np.array([score(corr, owners) for owners in tried])
    target = beta * scores[0] + (1 - beta) * scores[-1]
    nearest: Owners = tried[int(np.abs(scores - target).argmin())]
    return nearest


def score(corr: NDArray[Any], owners: Owners) -> float:
    """Return the correlation within parties less that between them, their mean."""
    places = [np.flatnonzero(owners == k) for k in range(int(owners.max()) + 1)]
    found = np.array([[_spread(corr[np.ix_(a, b)]) for b in places] for a in places])
    within = np.diag(found)
    between = (found.sum(axis=1) - within) / (len(places) - 1)
    return float((within - between).mean())


def rank_correlations(X: NDArray[Any]) -> NDArray[Any]:
    """Return Spearman's correlations of columns; those of a constant one are 0."""
    ranks = rankdata(X, axis=0)
    ranks -= ranks.mean(axis=0)
    lengths = np.sqrt((ranks**2).sum(axis=0))
    ranks /= np.where(lengths > 0, lengths, 1.0)
    found: NDArray[Any] = ranks.T @ ranks
    return found


def _spread(block: NDArray[Any]) -> float:
    """Return the deviation of singular values by the root of the smaller side."""
    values = np.linalg.svd(block, compute_uv=False)
    if len(values) < 2:
        return 0.0
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _clustered(corr: NDArray[Any]) -> NDArray[np.int64]:
    """Return columns in an order that has correlated ones beside each other."""
    distance = 1 - np.abs(corr).clip(0, 1)
    np.fill_diagonal(distance, 0.0)
    tree = hierarchy.linkage(squareform(distance, checks=False), "average")
    found: NDArray[np.int64] = hierarchy.leaves_list(tree).astype(np.int64)
    return found


def _exchanges(
    start: Owners, end: Owners, rng: np.random.Generator
) -> Sequence[Owners]:
    """Return splits from one to another; two columns change places in each step."""
    way, now = [start], start.copy()
    for j in rng.permutation(len(start)):
        if now[j] != end[j]:
            others = np.flatnonzero((now == end[j]) & (end != end[j]))
            fits = others[end[others] == now[j]]  # both are where they belong then
            other = (fits if len(fits) else others)[0]
            now[j], now[other] = now[other], now[j]
            way.append(now.copy())
    return way


def _pooled(dataset: Dataset) -> tuple[list[str], NDArray[Any], NDArray[Any]]:
    """Return columns by name, one number each, and the labels of the same rows.

    A column of several encoded ones has the one that varies most.
    """
    problem = data.prepare(dataset, DataConfig(**BY_CLASS), parties=1)
    (table,) = problem.parties
    varies = table.X_train.std(axis=0)
    chosen = [
        max(np.flatnonzero(table.groups == j), key=lambda c: varies[c])
        for j in range(len(table.features))
    ]
    return list(table.features), table.X_train[:, chosen], problem.y_train
