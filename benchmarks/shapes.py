"""Selection where the truth is known: tables of many shapes, made here.

``less-vfl-auto`` with the profile ``default`` on tables that differ in what is hard
about them: categories, rare values, heavy tails, rare classes, many classes, pairs,
correlation, more columns than rows, and labels of pure noise. For every shape: features
found and useless ones kept, F1 of the support, the share of useless features that the
parties report beside the true one, and scores of the test rows (balanced accuracy, R2
for regression) of it and of the published ``less-vfl`` (profile ``default``, with its
lambdas), of plain VFL with the same networks, of a linear model and of gradient
boosting on the pooled columns, of ``plain`` (profile ``default``) on the features that
``less-vfl-auto`` kept, and of a linear model on the features that a selector kept.
`--set` is for ``less-vfl-auto`` and VFL. Selectors on pooled columns: L1 (logistic
regression as in ``lessvfl bench peers``, the lasso for regression) and Boruta (``pip
install lessvfl[peers]``).

    python benchmarks/shapes.py --jobs 2 --out shapes.json
    python benchmarks/shapes.py --methods less-vfl-auto --shapes cauchy "pure noise"
    python benchmarks/shapes.py --methods less-vfl-auto --set second_look=0
    python benchmarks/shapes.py --calibrate 200 --jobs 16
    python benchmarks/shapes.py --calibrate 240 --held-out --out calibration.json

`--calibrate` compares reported and true shares of useless features over that many runs
with seeds from 100 on; with `--held-out`, on shapes that nothing was chosen on. Of
``correlated blocks`` a column beside the true one of its block counts as useless,
though any column of the block finds it; noisy copies of ``proxies`` count neither as
found nor as useless.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import smoke
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LassoCV, LogisticRegression, RidgeCV
from sklearn.metrics import balanced_accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lessvfl import data
from lessvfl.core import metrics
from lessvfl.data import Dataset, Problem
from lessvfl.run import profiles, simulate
from lessvfl.terms import stream_seed
from lessvfl_bench.peers import pooled

Mask = NDArray[np.bool_]
Array = NDArray[Any]

N_ROWS, N_EACH = 2500, 20  # rows in all, columns of a party

# -- tables of known truth -------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A data set of known truth, and how it lies at the parties."""

    dataset: Dataset
    sizes: list[int]  # columns of every party
    neutral: Mask  # (d,), neither significant nor useless
    blocks: NDArray[np.int64]  # (d,), columns that stand for each other share one
    is_rare: bool  # whether a class is rare, so that others weigh classes

    @property
    def significant(self) -> Mask:
        """Return the features that matter."""
        assert self.dataset.significant is not None
        return self.dataset.significant


def shape_of(
    X: Array,
    y: Array,
    significant: Mask,
    sizes: list[int],
    *,
    neutral: Mask | None = None,
    blocks: NDArray[np.int64] | None = None,
    is_rare: bool = False,
    task: Any = None,
) -> Shape:
    """Put a shape together."""
    table = dataclasses.replace(
        data.from_arrays(X, y, task=task),
        significant=significant,
        n_parties=len(sizes),
    )
    d = len(significant)
    neutral = np.zeros(d, dtype=bool) if neutral is None else neutral
    blocks = np.arange(d) if blocks is None else blocks
    return Shape(table, sizes, neutral, blocks, is_rare)


def deal(rng: Generator, n_true: list[int], n_each: int = N_EACH) -> Mask:
    """Mark so many significant columns of every party, anywhere among its own."""
    significant = np.zeros((len(n_true), n_each), dtype=bool)
    for own, n in zip(significant, n_true, strict=True):
        own[rng.choice(n_each, n, replace=False)] = True
    return significant.ravel()


def linear(S: Array, rng: Generator, least: float = 0.5, most: float = 1.5) -> Array:
    """Return a sum of columns with random signs and weights."""
    weights = rng.choice([-1.0, 1.0], S.shape[1]) * rng.uniform(least, most, S.shape[1])
    total: Array = S @ weights
    return total


def cut(score: Array, rng: Generator, noise: float, share: float = 0.5) -> Array:
    """Return labels of two classes: the given share of highest noisy scores is 1."""
    noisy = score + noise * score.std() * rng.normal(size=len(score))
    labels: Array = (noisy > np.quantile(noisy, 1 - share)).astype(int)
    return labels


def categories(rng: Generator, n_levels: int) -> Shape:
    """Make numbers and texts, each true one with the same variance in the score."""
    n_parties, n_texts = 3, 5  # one of the texts is true, and four of the numbers
    numbers, score = rng.normal(size=(N_ROWS, n_parties * N_EACH)), np.zeros(N_ROWS)
    X = numbers.astype(object)
    significant = np.zeros(n_parties * N_EACH, dtype=bool)
    for party in range(n_parties):
        order = party * N_EACH + rng.permutation(N_EACH)
        for place, j in enumerate(order[:n_texts]):
            levels = rng.permutation(np.arange(N_ROWS) % n_levels)
            X[:, j] = np.array([f"level{level:02d}" for level in levels], dtype=object)
            if place == 0:
                effects = rng.normal(size=n_levels)
                score += ((effects - effects.mean()) / effects.std())[levels]
        true = order[n_texts : n_texts + 4]
        score += linear(numbers[:, true], rng, 1, 1)
        significant[[order[0], *true]] = True
    return shape_of(X, cut(score, rng, 0.3), significant, [N_EACH] * n_parties)


def rare_binary(rng: Generator) -> Shape:
    """Make columns of 2 % ones, of which some decide the label nearly alone."""
    significant = deal(rng, [5] * 3)
    X = (rng.uniform(size=(N_ROWS, len(significant))) < 0.02).astype(float)
    score = linear(X[:, significant], rng, 4, 4)
    y = (score + rng.logistic(size=N_ROWS) > 0).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 3)


def weak_parties(rng: Generator) -> Shape:
    """Make one party of strong features and two of a few weak ones."""
    significant = deal(rng, [5, 3, 2])
    X = rng.normal(size=(N_ROWS, len(significant)))
    S = X[:, significant]
    score = linear(S[:, :5], rng, 1, 1) + linear(S[:, 5:], rng, 0.35, 0.35)
    return shape_of(X, cut(score, rng, 0.3), significant, [N_EACH] * 3)


def heavy_columns(rng: Generator, freedom: float) -> Shape:
    """Make columns of a t distribution; the label depends on their ranks."""
    significant = deal(rng, [5] * 4)
    Z = rng.normal(size=(N_ROWS, len(significant)))
    y = cut(linear(Z[:, significant], rng), rng, 0.1)
    return shape_of(stats.t(freedom).ppf(stats.norm.cdf(Z)), y, significant, [20] * 4)


def rare_class(rng: Generator, share: float, n_rows: int = N_ROWS) -> Shape:
    """Make two classes, one of them rare, from a linear score."""
    significant = deal(rng, [4] * 3)
    X = rng.normal(size=(n_rows, len(significant)))
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.1, share)
    return shape_of(X, y, significant, [N_EACH] * 3, is_rare=True)


def xor(rng: Generator, across: bool) -> Shape:
    """Make pairs whose products alone matter, of one party or of two."""
    significant = deal(rng, [4] * 3)
    X = rng.normal(size=(N_ROWS, len(significant)))
    places = np.flatnonzero(significant).reshape(3, 4)
    if across:  # two of every party with one of each of the others
        places = np.roll(places, 2).reshape(3, 4)
        places = places[:, [0, 2, 1, 3]]
    pairs = places.reshape(-1, 2)
    assert all((a // N_EACH != b // N_EACH) == across for a, b in pairs)
    score = (X[:, pairs[:, 0]] * X[:, pairs[:, 1]]).sum(axis=1)
    return shape_of(X, cut(score, rng, 0.1), significant, [N_EACH] * 3)


def many_classes(rng: Generator, n_classes: int, n_rows: int = N_ROWS) -> Shape:
    """Make classes by the largest of as many linear scores."""
    significant = deal(rng, [5] * 4)
    X = rng.normal(size=(n_rows, len(significant)))
    weights = rng.normal(size=(int(significant.sum()), n_classes))
    scores = X[:, significant] @ (weights / np.linalg.norm(weights, axis=0))
    y = (scores + 0.1 * rng.normal(size=scores.shape)).argmax(axis=1)
    return shape_of(X, y, significant, [N_EACH] * 4)


def amounts(rng: Generator, heavy: bool) -> Shape:
    """Make amounts of a linear score; noise has heavy tails, or depends on a column."""
    significant = deal(rng, [5] * 4)
    X = rng.normal(size=(N_ROWS, len(significant)))
    S = X[:, significant]
    score = linear(S, rng)
    if heavy:
        noise = 0.5 * score.std() * rng.standard_t(1.5, size=N_ROWS)
    else:
        noise = 0.5 * score.std() * np.exp(S[:, 0]) * rng.normal(size=N_ROWS)
    y = score + noise
    return shape_of(X, y, significant, [N_EACH] * 4, task="regression")


def correlated_blocks(rng: Generator) -> Shape:
    """Make blocks of four columns, correlation 0.95; three of five have a true one."""
    n_blocks, size, n_parties = N_EACH // 4, 4, 3
    d = n_parties * N_EACH
    blocks = np.arange(d) // size
    common = rng.normal(size=(N_ROWS, n_parties * n_blocks))
    own = rng.normal(size=(N_ROWS, d))
    X = math.sqrt(0.95) * common[:, blocks] + math.sqrt(0.05) * own
    chosen = np.flatnonzero(deal(rng, [3] * n_parties, n_blocks))
    significant = np.zeros(d, dtype=bool)
    significant[chosen * size + rng.integers(size, size=len(chosen))] = True
    y = cut(linear(X[:, significant], rng), rng, 0.1)
    return shape_of(X, y, significant, [N_EACH] * n_parties, blocks=blocks)


def proxies(rng: Generator) -> Shape:
    """Make true features, each with two noisy copies (0.8) at other parties."""
    n_parties = 4
    significant = deal(rng, [3] * n_parties)
    X = rng.normal(size=(N_ROWS, len(significant)))
    neutral = np.zeros(len(significant), dtype=bool)
    for j in np.flatnonzero(significant):
        for step in (1, 2):
            other = (j // N_EACH + step) % n_parties
            free = np.flatnonzero(~significant & ~neutral)
            place = rng.choice(free[free // N_EACH == other])
            X[:, place] = 0.8 * X[:, j] + 0.6 * rng.normal(size=N_ROWS)
            neutral[place] = True
    y = cut(linear(X[:, significant], rng), rng, 0.1)
    return shape_of(X, y, significant, [N_EACH] * n_parties, neutral=neutral)


def wide(rng: Generator) -> Shape:
    """Make 200 rows of 2,000 columns; eight have another mean in each class."""
    significant = deal(rng, [2] * 4, 500)
    y = rng.permutation(np.arange(200) % 2)
    X = rng.normal(size=(200, 2000))
    X[:, significant] += 1.25 * (y[:, None] - 0.5) * rng.choice([-1, 1], 8)
    return shape_of(X, y, significant, [500] * 4)


def pure_noise(rng: Generator) -> Shape:
    """Make labels that depend on nothing."""
    X = rng.normal(size=(N_ROWS, 3 * N_EACH))
    y = rng.permutation(np.arange(N_ROWS) % 2)
    return shape_of(X, y, np.zeros(X.shape[1], dtype=bool), [N_EACH] * 3)


def madelon(rng: Generator) -> Shape:
    """Make a table like Madelon at one party, beside a party of noise.

    Clusters lie at the 32 corners of a cube in five columns and belong to a class at
    random; 15 columns are linear combinations of these five, 480 are noise.
    """
    # Clusters of one class would be every second corner, which one column tells apart:
    # every cluster is a class at first.
    X, cluster = make_classification(
        2600,
        500,
        n_informative=5,
        n_redundant=15,
        n_classes=32,
        n_clusters_per_class=1,
        class_sep=2.0,
        flip_y=0.01,
        shuffle=False,
        random_state=int(rng.integers(2**32)),
    )
    y = rng.permutation(np.arange(32) % 2)[cluster]
    order = rng.permutation(500)
    significant = np.concatenate([order < 20, np.zeros(N_EACH, dtype=bool)])
    X = np.hstack([X[:, order], rng.normal(size=(len(X), N_EACH))])
    return shape_of(X, y, significant, [500, N_EACH])


def dummies(rng: Generator, n_levels: int) -> Shape:
    """Make categories as columns of zeros and ones, a column for every level.

    The levels of a category add up to one. Of three categories at every party one is
    true: its levels with an effect, of at least a quarter, are significant, its others
    neither significant nor useless.
    """
    columns, significant, neutral = [], [], []
    score = np.zeros(N_ROWS)
    for _ in range(2):
        for place in range(3):
            levels = rng.permutation(np.arange(N_ROWS) % n_levels)
            columns.append(np.eye(n_levels)[levels])
            effects = rng.normal(size=n_levels) * (place == 0)
            if place == 0:
                effects = (effects - effects.mean()) / effects.std()
                score += effects[levels]
            clear = np.abs(effects) >= 0.25
            significant += clear.tolist()
            neutral += (~clear & (place == 0)).tolist()
    X = np.hstack(columns)
    return shape_of(
        X,
        cut(score, rng, 0.3),
        np.array(significant),
        [3 * n_levels] * 2,
        neutral=np.array(neutral),
    )


def nested(rng: Generator) -> Shape:
    """Make regions that matter, beside cities that lie in them, which do not."""
    n_parties = 2
    X = rng.normal(size=(N_ROWS, n_parties * N_EACH)).astype(object)
    significant = np.zeros(X.shape[1], dtype=bool)
    neutral = np.zeros(X.shape[1], dtype=bool)
    score = np.zeros(N_ROWS)
    for party in range(n_parties):
        city, region, number = party * N_EACH + rng.permutation(N_EACH)[:3]
        levels = rng.permutation(np.arange(N_ROWS) % 20)
        effects = rng.permutation([-1.5, -0.5, 0.0, 0.5, 1.5])
        score += effects[levels // 4] + X[:, number].astype(float)
        X[:, city] = np.array([f"city{i:02d}" for i in levels], dtype=object)
        X[:, region] = np.array([f"region{i // 4}" for i in levels], dtype=object)
        significant[[region, number]] = neutral[city] = True
    y = cut(score, rng, 0.2)
    return shape_of(X, y, significant, [N_EACH] * n_parties, neutral=neutral)


def even(rng: Generator, n_rows: int, kind: str) -> Shape:
    """Make effects that are even in a column: squares, products, distances from 0."""
    significant = deal(rng, [3] * 2, 10)
    X = rng.normal(size=(n_rows, 20))
    a, b, c, d, e, f = X[:, significant].T
    if kind == "squares":
        y = a + b**2 + c + d - e**2 + f + 0.3 * rng.normal(size=n_rows)
        return shape_of(X, y, significant, [10] * 2, task="regression")
    if kind == "products":
        y = a * b + c + d * e + f + 0.3 * rng.normal(size=n_rows)
        return shape_of(X, y, significant, [10] * 2, task="regression")
    score = np.abs(a) + np.abs(b) + c / 2 + np.abs(d) + e / 2 + f / 2
    return shape_of(X, cut(score, rng, 0.1), significant, [10] * 2)


def copies(rng: Generator, times: int, share: float) -> Shape:
    """Make 400 people, those of the class of that share as many times as said."""
    significant = deal(rng, [3] * 2)
    X = rng.normal(size=(400, 2 * N_EACH))
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.3, min(share, 0.5))
    again = np.flatnonzero((y == 1) | (share == 1))
    rows = np.concatenate([np.arange(400), np.repeat(again, times - 1)])
    return shape_of(X[rows], y[rows], significant, [N_EACH] * 2)


def panel(rng: Generator) -> Shape:
    """Make 150 people with 10 rows each, whose columns and labels change little."""
    person = np.repeat(np.arange(150), 10)
    significant = deal(rng, [3] * 2)
    X = rng.normal(size=(150, 2 * N_EACH))[person]
    X = X + 0.3 * rng.normal(size=X.shape)
    own = linear(X[:, significant], rng, 0.8, 1.2) + rng.normal(size=150)[person]
    shape = shape_of(X, cut(own, rng, 0.1), significant, [N_EACH] * 2)
    dataset = dataclasses.replace(shape.dataset, units=person)
    return dataclasses.replace(shape, dataset=dataset)


def zero_inflated(rng: Generator) -> Shape:
    """Make columns of which most cells are 0 and one in a hundred is 999999."""
    significant = deal(rng, [4] * 3)
    Z = rng.normal(size=(N_ROWS, len(significant)))
    X = np.where(Z > 0.4, np.exp(Z), 0.0)
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.2)
    X[rng.uniform(size=X.shape) < 0.01] = 999_999
    return shape_of(X, y, significant, [N_EACH] * 3)


def missing_at_random(rng: Generator) -> Shape:
    """Make a linear score of columns of which one cell in ten is missing."""
    significant = deal(rng, [4] * 3)
    X = rng.normal(size=(N_ROWS, len(significant)))
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.2)
    X[rng.uniform(size=X.shape) < 0.1] = np.nan
    return shape_of(X, y, significant, [N_EACH] * 3)


def informative_missing(rng: Generator) -> Shape:
    """Make columns whose missing cells say the label, beside others whose cells do.

    Of four true columns of a party two matter by their values. The other two, like all
    that are useless, are empty in one row of five: these rows matter, and no value.
    """
    significant = deal(rng, [4] * 3)
    by_value, by_gap = np.flatnonzero(significant).reshape(3, 2, 2).swapaxes(0, 1)
    X = rng.normal(size=(N_ROWS, len(significant)))
    empty = rng.uniform(size=X.shape) < 0.2
    empty[:, by_value.ravel()] = False
    score = linear(X[:, by_value.ravel()], rng, 0.8, 1.2)
    score += linear(empty[:, by_gap.ravel()] / 0.4, rng, 0.8, 1.2)  # variance 1
    X[empty] = np.nan
    return shape_of(X, cut(score, rng, 0.2), significant, [N_EACH] * 3)


SHAPES: dict[str, Callable[[Generator], Shape]] = {
    **{f"categories {k}": partial(categories, n_levels=k) for k in (3, 5, 10, 20, 40)},
    "rare binary": rare_binary,
    "weak parties": weak_parties,
    "cauchy": partial(heavy_columns, freedom=1),
    "t2": partial(heavy_columns, freedom=2),
    "3.5 % positive": partial(rare_class, share=0.035),
    "1 % positive": partial(rare_class, share=0.01, n_rows=6000),
    "xor within": partial(xor, across=False),
    "xor across": partial(xor, across=True),
    "20 classes": partial(many_classes, n_classes=20),
    "50 classes": partial(many_classes, n_classes=50, n_rows=5000),
    "heteroscedastic": partial(amounts, heavy=False),
    "heavy-tailed": partial(amounts, heavy=True),
    "correlated blocks": correlated_blocks,
    "proxies": proxies,
    "200 x 2000": wide,
    "pure noise": pure_noise,
    "madelon": madelon,
    **{f"one-hot {k}": partial(dummies, n_levels=k) for k in (3, 10, 40)},
    "nested": nested,
    **{
        f"{kind}, {n} rows": partial(even, n_rows=n, kind=kind)
        for kind in ("squares", "products", "u-shapes")
        for n in (300, 1000, 5000)
    },
    "rows 3 times": partial(copies, times=3, share=1),
    "rows 10 times": partial(copies, times=10, share=1),
    "oversampled": partial(copies, times=9, share=0.1),
    "panel": panel,
    "zero-inflated": zero_inflated,
    "missing at random": missing_at_random,
    "informative missing": informative_missing,
}
# Left out of `--calibrate`: nothing is true there, or what is useless is debatable.
NOT_CALIBRATED = ("pure noise", "correlated blocks")


# -- held out --------------------------------------------------------------------------
# No setting and no rule was chosen on these, and none may be: they show how far the
# reported share of useless features can be trusted where nobody looked before.


def probit(rng: Generator) -> Shape:
    """Make columns of a t distribution of 3 degrees; their values, not ranks, act."""
    significant = deal(rng, [4] * 3)
    X = rng.standard_t(3, size=(2000, len(significant)))
    score = linear(X[:, significant], rng, 0.2, 0.6)
    y = (score + rng.normal(size=len(X)) > 0).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 3)


def skewed(rng: Generator) -> Shape:
    """Make exponential columns and an event of a complementary log-log link."""
    significant = deal(rng, [4] * 3)
    X = rng.exponential(size=(N_ROWS, len(significant)))
    score = linear(X[:, significant] - 1, rng, 0.3, 0.8) + math.log(-math.log(0.9))
    y = (rng.exponential(size=N_ROWS) < np.exp(score)).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 3)


def softmax(rng: Generator) -> Shape:
    """Make four classes of numbers and of texts of six levels, some of them rare."""
    n_parties, n_texts, n_levels, n_classes = 3, 5, 6, 4
    share = 0.6 ** np.arange(n_levels)
    numbers = rng.normal(size=(N_ROWS, n_parties * N_EACH))
    X, scores = numbers.astype(object), rng.gumbel(size=(N_ROWS, n_classes))
    significant = np.zeros(n_parties * N_EACH, dtype=bool)
    for party in range(n_parties):
        order = party * N_EACH + rng.permutation(N_EACH)
        for place, j in enumerate(order[:n_texts]):
            levels = rng.choice(n_levels, N_ROWS, p=share / share.sum())
            X[:, j] = np.array([f"level{level}" for level in levels], dtype=object)
            if place == 0:
                scores += rng.normal(size=(n_levels, n_classes))[levels]
        true = order[n_texts : n_texts + 3]
        scores += numbers[:, true] @ rng.normal(size=(3, n_classes)) * 0.7
        significant[[order[0], *true]] = True
    return shape_of(X, scores.argmax(axis=1), significant, [N_EACH] * n_parties)


def counts(rng: Generator) -> Shape:
    """Make counts of Poisson's law as amounts; every second column is a count, too."""
    significant = deal(rng, [4] * 3)
    X = rng.normal(size=(N_ROWS, len(significant)))
    X[:, ::2] = rng.poisson(1, size=X[:, ::2].shape)
    score = linear(X[:, significant], rng, 0.1, 0.3)
    y = rng.poisson(np.exp(score - score.mean() + 0.5)).astype(float)
    return shape_of(X, y, significant, [N_EACH] * 3, task="regression")


def weak_blocks(rng: Generator) -> Shape:
    """Make blocks of five columns, correlation 0.6; some have a true one, weak.

    The true one's neighbours are useless beside it, and count as useless.
    """
    n_blocks, size, n_parties = N_EACH // 5, 5, 3
    blocks = np.arange(n_parties * N_EACH) // size
    common = rng.normal(size=(N_ROWS, n_parties * n_blocks))
    X = math.sqrt(0.6) * common[:, blocks]
    X = X + math.sqrt(0.4) * rng.normal(size=X.shape)
    chosen = np.flatnonzero(deal(rng, [2] * n_parties, n_blocks))
    significant = np.zeros(len(blocks), dtype=bool)
    significant[chosen * size + rng.integers(size, size=len(chosen))] = True
    score = linear(X[:, significant], rng, 0.25, 0.5)
    y = (score + rng.logistic(size=N_ROWS) > 0).astype(int)
    return shape_of(X, y, significant, [N_EACH] * n_parties, blocks=blocks)


def few_rows(rng: Generator) -> Shape:
    """Make 400 rows of 300 columns, ten of them true."""
    significant = deal(rng, [5] * 2, 150)
    X = rng.normal(size=(400, len(significant)))
    score = linear(X[:, significant], rng, 0.8, 1.2)
    y = (score + rng.logistic(size=len(X)) > 0).astype(int)
    return shape_of(X, y, significant, [150] * 2)


def sites(rng: Generator, known: bool) -> Shape:
    """Make 40 sites of 50 rows, whose columns and labels have something in common.

    A fifth of every column's variance, and of the labels an effect of one logit, is the
    site's; they are independent of each other. The run may know the sites, or not.
    """
    site = np.repeat(np.arange(40), 50)
    significant = deal(rng, [3] * 2)
    X = math.sqrt(0.2) * rng.normal(size=(40, len(significant)))[site]
    X = X + math.sqrt(0.8) * rng.normal(size=X.shape)
    score = linear(X[:, significant], rng, 0.6, 1.0) + rng.normal(size=40)[site]
    y = (score + rng.logistic(size=len(X)) > 0).astype(int)
    shape = shape_of(X, y, significant, [N_EACH] * 2)
    units = site if known else None
    dataset = dataclasses.replace(shape.dataset, units=units)
    return dataclasses.replace(shape, dataset=dataset)


HELD_OUT: dict[str, Callable[[Generator], Shape]] = {
    "probit, t3 columns": probit,
    "log-log, skewed columns": skewed,
    "softmax, categories": softmax,
    "Poisson counts": counts,
    "weak, in blocks": weak_blocks,
    "400 x 300": few_rows,
    "sites, known": partial(sites, known=True),
    "sites, unknown": partial(sites, known=False),
}


def make(name: str, seed: int) -> Shape:
    """Return one of the shapes, drawn from the seed."""
    makers = SHAPES | HELD_OUT
    shape = makers[name](np.random.default_rng(stream_seed(seed, "shapes", name)))
    dataset = dataclasses.replace(shape.dataset, name=name)
    return dataclasses.replace(shape, dataset=dataset)


# -- models on pooled columns ----------------------------------------------------------


def side_by_side(problem: Problem, features: set[str] | None = None) -> list[Array]:
    """Return training and test rows of all parties' encoded columns, or of some."""
    parts: list[list[Array]] = [[], []]
    for party in problem.parties:
        names = np.array(party.features)[party.groups]
        chosen = [features is None or name in features for name in names]
        for part, X in zip(parts, (party.X_train, party.X_test), strict=True):
            part.append(X[:, chosen])
    return [np.hstack(part) for part in parts]


def score_of(problem: Problem, predicted: Array) -> float:
    """Return balanced accuracy, or R2 for regression, of the test rows."""
    measure = r2_score if problem.task == "regression" else balanced_accuracy_score
    return float(measure(problem.y_test, predicted))


def linear_score(
    problem: Problem, features: set[str] | None = None, is_rare: bool = False
) -> float:
    """Return the score of ridge or logistic regression, penalty cross-validated."""
    X, X_test = side_by_side(problem, features)
    if X.shape[1] == 0:
        return 0.0 if problem.task == "regression" else 1 / problem.n_classes
    if problem.task == "regression":
        model = RidgeCV(np.logspace(-2, 4, 13))
    else:
        weight = "balanced" if is_rare else None
        model = GridSearchCV(
            LogisticRegression(max_iter=300, class_weight=weight),
            {"C": np.logspace(-3, 1, 5)},
            scoring="balanced_accuracy",
            cv=3,
        )
    with threadpool_limits(1):
        fitted = make_pipeline(StandardScaler(), model).fit(X, problem.y_train)
        return score_of(problem, fitted.predict(X_test))


def boosting_score(problem: Problem, is_rare: bool) -> float:
    """Return the score of gradient boosting on all columns."""
    X, X_test = side_by_side(problem)
    if problem.task == "regression":
        model = HistGradientBoostingRegressor(random_state=0)
    else:
        weight = "balanced" if is_rare else None
        model = HistGradientBoostingClassifier(random_state=0, class_weight=weight)
    return score_of(problem, model.fit(X, problem.y_train).predict(X_test))


def lasso(problem: Problem) -> Mask:
    """Keep what the lasso keeps: the largest lambda within one error of the best."""
    X, _ = side_by_side(problem)
    path = LassoCV(cv=5, random_state=0).fit(X, problem.y_train)
    mean = path.mse_path_.mean(axis=1)
    errors = path.mse_path_.std(axis=1, ddof=1) / math.sqrt(path.mse_path_.shape[1])
    best = mean.argmin()
    alpha = path.alphas_[mean <= mean[best] + errors[best]].max()
    _, weights, _ = LassoCV.path(X - X.mean(axis=0), problem.y_train, alphas=[alpha])
    kept: Mask = weights[:, 0] != 0
    return kept  # numbers alone: a column is a feature


# -- one run ---------------------------------------------------------------------------

OURS, PUBLISHED = "less-vfl-auto", "less-vfl"
BY_SHARES = {"threshold": "balanced"}  # as the balanced accuracy asks of rare classes
PEERS = {"L1": pooled.l1_logistic, "Boruta": pooled.boruta}
SCORED = ("VFL", "linear", "boosting")  # on all columns
METHODS = (OURS, PUBLISHED, *PEERS, *SCORED)


def task(
    which: tuple[str, int, str], given: Mapping[str, str], scores: bool = True
) -> dict[str, Any]:
    """Run one method on one shape with one seed; return its numbers."""
    name, seed, method = which
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    with threadpool_limits(1):
        found = run(make(name, seed), seed, method, given, scores)
    return found | {"seconds": time.monotonic() - began}


def run(
    shape: Shape, seed: int, method: str, given: Mapping[str, str], scores: bool
) -> dict[str, Any]:
    """Return scores, if wanted, and support where there is one, of one method."""
    dataset, is_rare = shape.dataset, shape.is_rare
    given = {} if method == PUBLISHED else given
    given = {**BY_SHARES, **given} if is_rare else given
    own = PUBLISHED if method == PUBLISHED else OURS
    settings = profiles.resolve(own, "default", dataset, given)
    job = simulate.Job(dataset, settings, shape.sizes)
    if method == own:
        (done,) = simulate.simulate(job, [seed])
        parties = done.numbers["features"].values()
        names = {name for party in parties for name in party["kept"]}
        kept = np.array([name in names for name in dataset.X.names])
        found = {**recovery(shape, kept), "said": said(done.numbers)}
        if not scores:
            return found
        return found | {
            "score": final(done.numbers),
            "linear on kept": linear_score(done.problem, names, is_rare),
            "plain on kept": plain_score(shape, kept, seed) if own == OURS else None,
            "by party": [int(part.sum()) for part in split(kept, shape.sizes)],
            "true by party": [
                int(part.sum()) for part in split(kept & shape.significant, shape.sizes)
            ],
        }
    if method == "VFL":
        ours = settings.flat()
        keys = ("embedding_size", "batch_size", "learning_rate", "train_epochs")
        same = {key: ours[key] for key in (*keys, "schedule", "threshold")}
        plain = profiles.resolve("plain", "default", dataset, same)
        (done,) = simulate.simulate(dataclasses.replace(job, settings=plain), [seed])
        return {"score": final(done.numbers)}
    problem = job.problem(seed)
    if method == "linear":
        return {"score": linear_score(problem, None, is_rare)}
    if method == "boosting":
        return {"score": boosting_score(problem, is_rare)}
    if problem.task == "regression":
        if method != "L1":
            return {}  # Boruta here is for classes
        kept = lasso(problem)
    else:
        table = pooled.pool(problem, seed, torch.device("cpu"))
        kept = np.asarray(PEERS[method](table).kept)
    names = {name for name, stays in zip(dataset.X.names, kept, strict=True) if stays}
    on_kept = linear_score(problem, names, is_rare)
    return {**recovery(shape, kept), "linear on kept": on_kept}


def plain_score(shape: Shape, kept: Mask, seed: int) -> float | None:
    """Return the score of ``plain``, profile ``default``, on the columns kept."""
    dataset = shape.dataset
    sizes = [int(part.sum()) for part in split(kept, shape.sizes) if part.any()]
    if not sizes:
        return None
    names = [name for name, stays in zip(dataset.X.names, kept, strict=True) if stays]
    own = dataclasses.replace(dataset, X=dataset.X.select(names), significant=None)
    given = BY_SHARES if shape.is_rare else {}
    settings = profiles.resolve("plain", "default", own, given)
    (done,) = simulate.simulate(simulate.Job(own, settings, sizes), [seed])
    return final(done.numbers)


def split(mask: Mask, sizes: list[int]) -> list[Mask]:
    """Return the part of every party."""
    return np.split(mask, np.cumsum(sizes)[:-1])


def final(numbers: Mapping[str, Any]) -> float:
    """Return the last score of a run."""
    scores = numbers["balanced_accuracy"] or numbers["r2"]
    return float(scores["final"])


def said(numbers: Mapping[str, Any]) -> float | None:
    """Return the share of useless features reported, over all parties that say one."""
    useless, n_kept = 0.0, 0
    for party, how in (numbers["selection"] or {}).items():
        if how["false_share"] is not None:
            n_own = len(numbers["features"][party]["kept"])
            useless, n_kept = useless + how["false_share"] * n_own, n_kept + n_own
    return useless / n_kept if n_kept else None


def recovery(shape: Shape, kept: Mask) -> dict[str, Any]:
    """Return how the features kept compare with the truth."""
    true, counted = shape.significant, ~shape.neutral
    false = int((kept & ~true & counted).sum())
    n_kept = int(kept.sum())
    found = {
        "true": int(true.sum()),
        "true found": int((kept & true).sum()),
        "kept": n_kept,
        "false kept": false,
        "false share": false / n_kept if n_kept else None,
        "F1": metrics.support_f1(kept[counted].tolist(), true[counted].tolist()),
    }
    if len(set(shape.blocks)) < len(kept):
        blocks = set(shape.blocks[true])
        of_kept = blocks & set(shape.blocks[kept])
        found |= {"blocks": len(blocks), "blocks found": len(of_kept)}
    return found


# -- tables ----------------------------------------------------------------------------

Found = dict[tuple[str, int, str], dict[str, Any]]


def mean_of(runs: list[dict[str, Any]], key: str) -> float | None:
    """Return the mean of what the runs say, None where none says anything."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.mean(values) if values else None


def text_of(value: float | None, digits: int = 3) -> str:
    """Write a number of a table."""
    return "" if value is None else f"{value:.{digits}f}"


def count_of(runs: list[dict[str, Any]], key: str) -> str:
    """Write how many were found of how many there are, where there are any."""
    if key not in runs[0]:
        return ""
    return f"{text_of(mean_of(runs, f'{key} found'), 1)} of {runs[0][key]}"


def show(found: Found, shapes: list[str], names: list[str], seeds: list[int]) -> None:
    """Print what every selector found, then every score."""
    runs = {
        (shape, name): [found[shape, seed, name] for seed in seeds]
        for shape in shapes
        for name in names
    }
    print(
        "\n| shape | method | true found | blocks found | false kept | F1 | "
        "false share said | false share | keeps nothing | seconds |\n|---|" + "---|" * 9
    )
    for (shape, name), many in runs.items():
        if "kept" not in many[0]:
            continue
        cells = [
            count_of(many, "true"),
            count_of(many, "blocks"),
            text_of(mean_of(many, "false kept"), 1),
            text_of(mean_of(many, "F1")) if many[0]["true"] else "",
            text_of(mean_of(many, "said")),
            text_of(mean_of(many, "false share")),
            text_of(statistics.mean(one["kept"] == 0 for one in many), 2),
            text_of(mean_of(many, "seconds"), 1),
        ]
        print(f"| {shape} | {name} | " + " | ".join(cells) + " |")
    columns = [(n, "score") for n in names if n in (OURS, PUBLISHED, *SCORED)]
    columns += [(OURS, "plain on kept")] if OURS in names else []
    columns += [(name, "linear on kept") for name in names if name not in SCORED]
    heads = [
        n if key == "score" else f"{key.removesuffix(' kept')} {n}'s"
        for n, key in columns
    ]
    print("\n| shape | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for shape in shapes:
        cells = [text_of(mean_of(runs[shape, name], key)) for name, key in columns]
        print(f"| {shape} | " + " | ".join(cells) + " |")


def calibration(found: Found) -> list[str]:
    """Return the table of reported and true shares of useless features.

    A run that kept nothing, or said nothing, is left out. Beside the mean of the true
    shares stands its standard error.
    """
    shares: dict[str, list[tuple[float, float]]] = {"all": []}
    for (shape, _, _), one in found.items():
        own = shares.setdefault(shape, [])
        if one["said"] is not None and one["kept"]:
            own.append((one["said"], one["false kept"] / one["kept"]))
            shares["all"].append(own[-1])
    lines = [
        "| shape | runs | stated | true | true above stated by more than 0.05 |",
        "|---|---|---|---|---|",
    ]
    for shape, own in shares.items():
        cells = ["", "", ""]
        if own:
            stated, true = ([pair[i] for pair in own] for i in (0, 1))
            error = np.std(true, ddof=1) / math.sqrt(len(own)) if len(own) > 1 else 0.0
            n_low = sum(t - s > 0.05 for s, t in own)
            cells = [
                text_of(statistics.mean(stated)),
                f"{text_of(statistics.mean(true))} ± {text_of(error)}",
                f"{n_low} of {len(own)}",
            ]
        lines.append(f"| {shape} | {len(own)} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Run every cell and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--calibrate", type=int, metavar="N")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    few = [name for name in METHODS if name != "Boruta"]
    given = smoke.parse(
        parser, seeds="0", shapes=["u-shapes, 300 rows"], methods=",".join(few)
    )
    seeds = [int(part) for part in given.seeds.split(",")]
    names, shapes = given.methods.split(","), given.shapes
    cells = [(shape, seed, m) for shape in shapes for seed in seeds for m in names]
    if given.calibrate is not None:
        shapes = [shape for shape in shapes if shape not in NOT_CALIBRATED]
        shapes = list(HELD_OUT) if given.held_out else shapes
        rounds = range(given.calibrate)
        cells = [
            (shapes[i % len(shapes)], 100 + i // len(shapes), OURS) for i in rounds
        ]
    settings = dict(part.split("=", 1) for part in given.set)
    found: Found = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        scores = given.calibrate is None
        results = pool.map(partial(task, given=settings, scores=scores), cells)
        for cell, result in zip(cells, results, strict=True):
            found[cell] = result
            print(*cell, json.dumps(result), flush=True)
            if given.out is not None:
                lines = {" / ".join(map(str, key)): v for key, v in found.items()}
                given.out.write_text(json.dumps(lines, indent=1))
    if given.calibrate is not None:
        print("\n" + "\n".join(calibration(found)))
    else:
        show(found, shapes, names, seeds)


if __name__ == "__main__":
    main()
