"""Tables of many shapes, made here, so that it is known which columns matter.

They differ in what is hard about them: categories, rare values, heavy tails, rare
classes, many classes, pairs, correlation, more columns than rows, labels of pure noise.
Of ``correlated blocks`` a column beside the true one of its block counts as useless,
though any column of the block finds it; noisy copies of ``proxies`` count neither as
found nor as useless.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import make_classification

from lessvfl import data
from lessvfl.data import Dataset
from lessvfl_bench.peers.pooled import Mask

N_ROWS, N_EACH = 2500, 20  # rows in all, columns of a party


@dataclass(frozen=True)
class KnownTable:
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
    X: NDArray[Any],
    y: NDArray[Any],
    significant: Mask,
    sizes: list[int],
    *,
    neutral: Mask | None = None,
    blocks: NDArray[np.int64] | None = None,
    is_rare: bool = False,
    task: Any = None,
    units: NDArray[np.int64] | None = None,
) -> KnownTable:
    """Put a shape together."""
    table = dataclasses.replace(
        data.from_arrays(X, y, task=task),
        significant=significant,
        n_parties=len(sizes),
        units=units,
    )
    d = len(significant)
    neutral = np.zeros(d, dtype=bool) if neutral is None else neutral
    blocks = np.arange(d) if blocks is None else blocks
    return KnownTable(table, sizes, neutral, blocks, is_rare)


def deal(rng: Generator, n_true: list[int], n_each: int = N_EACH) -> Mask:
    """Mark `n_true` columns of each party, chosen at random, as significant."""
    significant = np.zeros((len(n_true), n_each), dtype=bool)
    for own, n in zip(significant, n_true, strict=True):
        own[rng.choice(n_each, n, replace=False)] = True
    return significant.ravel()


def draw(
    rng: Generator, n_true: list[int], n_each: int = N_EACH, n_rows: int = N_ROWS
) -> tuple[NDArray[Any], Mask]:
    """Draw normal columns, and which of every party's are significant."""
    significant = deal(rng, n_true, n_each)
    return rng.normal(size=(n_rows, len(significant))), significant


def linear(
    S: NDArray[Any], rng: Generator, least: float = 0.5, most: float = 1.5
) -> NDArray[Any]:
    """Return a sum of columns with random signs and weights."""
    weights = rng.choice([-1.0, 1.0], S.shape[1]) * rng.uniform(least, most, S.shape[1])
    total: NDArray[Any] = S @ weights
    return total


def cut(
    score: NDArray[Any], rng: Generator, noise: float, share: float = 0.5
) -> NDArray[Any]:
    """Return labels of two classes: the given share of highest noisy scores is 1."""
    noisy = score + noise * score.std() * rng.normal(size=len(score))
    labels: NDArray[Any] = (noisy > np.quantile(noisy, 1 - share)).astype(int)
    return labels


def categories(rng: Generator, n_levels: int) -> KnownTable:
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


def rare_binary(rng: Generator) -> KnownTable:
    """Make columns of 2 % ones, of which some decide the label nearly alone."""
    significant = deal(rng, [5] * 3)
    X = (rng.uniform(size=(N_ROWS, len(significant))) < 0.02).astype(float)
    score = linear(X[:, significant], rng, 4, 4)
    y = (score + rng.logistic(size=N_ROWS) > 0).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 3)


def weak_parties(rng: Generator) -> KnownTable:
    """Make one party of strong features and two of a few weak ones."""
    X, significant = draw(rng, [5, 3, 2])
    S = X[:, significant]
    score = linear(S[:, :5], rng, 1, 1) + linear(S[:, 5:], rng, 0.35, 0.35)
    return shape_of(X, cut(score, rng, 0.3), significant, [N_EACH] * 3)


def heavy_columns(rng: Generator, freedom: float) -> KnownTable:
    """Make columns of a t distribution; the label depends on their ranks."""
    Z, significant = draw(rng, [5] * 4)
    y = cut(linear(Z[:, significant], rng), rng, 0.1)
    return shape_of(stats.t(freedom).ppf(stats.norm.cdf(Z)), y, significant, [20] * 4)


def rare_class(rng: Generator, share: float, n_rows: int = N_ROWS) -> KnownTable:
    """Make two classes, one of them rare, from a linear score."""
    X, significant = draw(rng, [4] * 3, n_rows=n_rows)
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.1, share)
    return shape_of(X, y, significant, [N_EACH] * 3, is_rare=True)


def xor(rng: Generator, across: bool) -> KnownTable:
    """Make pairs whose products alone matter, of one party or of two."""
    X, significant = draw(rng, [4] * 3)
    places = np.flatnonzero(significant).reshape(3, 4)
    if across:  # two of every party with one of each of the others
        places = np.roll(places, 2).reshape(3, 4)
        places = places[:, [0, 2, 1, 3]]
    pairs = places.reshape(-1, 2)
    assert all((a // N_EACH != b // N_EACH) == across for a, b in pairs)
    score = (X[:, pairs[:, 0]] * X[:, pairs[:, 1]]).sum(axis=1)
    return shape_of(X, cut(score, rng, 0.1), significant, [N_EACH] * 3)


def many_classes(rng: Generator, n_classes: int, n_rows: int = N_ROWS) -> KnownTable:
    """Make classes by the largest of as many linear scores."""
    X, significant = draw(rng, [5] * 4, n_rows=n_rows)
    weights = rng.normal(size=(int(significant.sum()), n_classes))
    scores = X[:, significant] @ (weights / np.linalg.norm(weights, axis=0))
    y = (scores + 0.1 * rng.normal(size=scores.shape)).argmax(axis=1)
    return shape_of(X, y, significant, [N_EACH] * 4)


def amounts(rng: Generator, heavy: bool) -> KnownTable:
    """Make amounts of a linear score; noise has heavy tails, or depends on a column."""
    X, significant = draw(rng, [5] * 4)
    S = X[:, significant]
    score = linear(S, rng)
    if heavy:
        noise = 0.5 * score.std() * rng.standard_t(1.5, size=N_ROWS)
    else:
        noise = 0.5 * score.std() * np.exp(S[:, 0]) * rng.normal(size=N_ROWS)
    y = score + noise
    return shape_of(X, y, significant, [N_EACH] * 4, task="regression")


def draw_blocks(
    rng: Generator, size: int, own_share: float, n_true: int
) -> tuple[NDArray[Any], Mask, NDArray[np.int64]]:
    """Draw blocks of correlated columns at three parties; return them, truth, blocks.

    `own_share` of a column's variance is its own; `n_true` blocks of a party have one
    significant column each.
    """
    n_blocks, blocks = N_EACH // size, np.arange(3 * N_EACH) // size
    common = rng.normal(size=(N_ROWS, 3 * n_blocks))
    own = rng.normal(size=(N_ROWS, len(blocks)))
    X = math.sqrt(1 - own_share) * common[:, blocks] + math.sqrt(own_share) * own
    chosen = np.flatnonzero(deal(rng, [n_true] * 3, n_blocks))
    significant = np.zeros(len(blocks), dtype=bool)
    significant[chosen * size + rng.integers(size, size=len(chosen))] = True
    return X, significant, blocks


def correlated_blocks(rng: Generator) -> KnownTable:
    """Make blocks of four columns, correlation 0.95; three of five have a true one."""
    X, significant, blocks = draw_blocks(rng, 4, 0.05, 3)
    y = cut(linear(X[:, significant], rng), rng, 0.1)
    return shape_of(X, y, significant, [N_EACH] * 3, blocks=blocks)


def proxies(rng: Generator) -> KnownTable:
    """Make true features, each with two noisy copies (0.8) at other parties."""
    n_parties = 4
    X, significant = draw(rng, [3] * n_parties)
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


def wide(rng: Generator) -> KnownTable:
    """Make 200 rows of 2,000 columns; eight have another mean in each class."""
    significant = deal(rng, [2] * 4, 500)
    y = rng.permutation(np.arange(200) % 2)
    X = rng.normal(size=(200, 2000))
    X[:, significant] += 1.25 * (y[:, None] - 0.5) * rng.choice([-1, 1], 8)
    return shape_of(X, y, significant, [500] * 4)


def pure_noise(rng: Generator) -> KnownTable:
    """Make labels that depend on nothing."""
    X = rng.normal(size=(N_ROWS, 3 * N_EACH))
    y = rng.permutation(np.arange(N_ROWS) % 2)
    return shape_of(X, y, np.zeros(X.shape[1], dtype=bool), [N_EACH] * 3)


def madelon(rng: Generator) -> KnownTable:
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


def dummies(rng: Generator, n_levels: int) -> KnownTable:
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


def nested(rng: Generator) -> KnownTable:
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


def even(rng: Generator, n_rows: int, kind: str) -> KnownTable:
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


def copies(rng: Generator, times: int, share: float) -> KnownTable:
    """Make 400 people, those of the class of that share as many times as said."""
    significant = deal(rng, [3] * 2)
    X = rng.normal(size=(400, 2 * N_EACH))
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.3, min(share, 0.5))
    again = np.flatnonzero((y == 1) | (share == 1))
    rows = np.concatenate([np.arange(400), np.repeat(again, times - 1)])
    return shape_of(X[rows], y[rows], significant, [N_EACH] * 2)


def panel(rng: Generator) -> KnownTable:
    """Make 150 people with 10 rows each, whose columns and labels change little."""
    person = np.repeat(np.arange(150), 10)
    significant = deal(rng, [3] * 2)
    X = rng.normal(size=(150, 2 * N_EACH))[person]
    X = X + 0.3 * rng.normal(size=X.shape)
    own = linear(X[:, significant], rng, 0.8, 1.2) + rng.normal(size=150)[person]
    y = cut(own, rng, 0.1)
    return shape_of(X, y, significant, [N_EACH] * 2, units=person)


def zero_inflated(rng: Generator) -> KnownTable:
    """Make columns of which most cells are 0 and one in a hundred is 999999."""
    Z, significant = draw(rng, [4] * 3)
    X = np.where(Z > 0.4, np.exp(Z), 0.0)
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.2)
    X[rng.uniform(size=X.shape) < 0.01] = 999_999
    return shape_of(X, y, significant, [N_EACH] * 3)


def missing_at_random(rng: Generator) -> KnownTable:
    """Make a linear score of columns of which one cell in ten is missing."""
    X, significant = draw(rng, [4] * 3)
    y = cut(linear(X[:, significant], rng, 0.8, 1.2), rng, 0.2)
    X[rng.uniform(size=X.shape) < 0.1] = np.nan
    return shape_of(X, y, significant, [N_EACH] * 3)


def informative_missing(rng: Generator) -> KnownTable:
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


SHAPES: dict[str, Callable[[Generator], KnownTable]] = {
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
