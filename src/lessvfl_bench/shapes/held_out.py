"""Shapes that no setting and no rule was chosen on, and none may be.

They show how far the reported share of useless features can be trusted where nobody
looked before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.random import Generator

from lessvfl.terms import stream_seed
from lessvfl_bench.shapes.made import (
    N_EACH,
    N_ROWS,
    SHAPES,
    KnownTable,
    deal,
    draw,
    draw_blocks,
    linear,
    shape_of,
)


def probit(rng: Generator) -> KnownTable:
    """Make columns of a t distribution of 3 degrees; their values, not ranks, act."""
    significant = deal(rng, [4] * 3)
    X = rng.standard_t(3, size=(2000, len(significant)))
    score = linear(X[:, significant], rng, 0.2, 0.6)
    y = (score + rng.normal(size=len(X)) > 0).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 3)


def skewed(rng: Generator) -> KnownTable:
    """Make exponential columns and an event of a complementary log-log link."""
    significant = deal(rng, [4] * 3)
    X = rng.exponential(size=(N_ROWS, len(significant)))
    score = linear(X[:, significant] - 1, rng, 0.3, 0.8) + math.log(-math.log(0.9))
    y = (rng.exponential(size=N_ROWS) < np.exp(score)).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 3)


def softmax(rng: Generator) -> KnownTable:
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


def counts(rng: Generator) -> KnownTable:
    """Make counts of Poisson's law as amounts; every second column is a count, too."""
    X, significant = draw(rng, [4] * 3)
    X[:, ::2] = rng.poisson(1, size=X[:, ::2].shape)
    score = linear(X[:, significant], rng, 0.1, 0.3)
    y = rng.poisson(np.exp(score - score.mean() + 0.5)).astype(float)
    return shape_of(X, y, significant, [N_EACH] * 3, task="regression")


def weak_blocks(rng: Generator) -> KnownTable:
    """Make blocks of five columns, correlation 0.6; some have a true one, weak.

    The true one's neighbours are useless beside it, and count as useless.
    """
    X, significant, blocks = draw_blocks(rng, 5, 0.4, 2)
    score = linear(X[:, significant], rng, 0.25, 0.5)
    y = (score + rng.logistic(size=N_ROWS) > 0).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 3, blocks=blocks)


def few_rows(rng: Generator) -> KnownTable:
    """Make 400 rows of 300 columns, ten of them true."""
    X, significant = draw(rng, [5] * 2, 150, n_rows=400)
    score = linear(X[:, significant], rng, 0.8, 1.2)
    y = (score + rng.logistic(size=len(X)) > 0).astype(int)
    return shape_of(X, y, significant, [150] * 2)


def sites(rng: Generator, known: bool) -> KnownTable:
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
    units = site if known else None
    return shape_of(X, y, significant, [N_EACH] * 2, units=units)


HELD_OUT: dict[str, Callable[[Generator], KnownTable]] = {
    "probit, t3 columns": probit,
    "log-log, skewed columns": skewed,
    "softmax, categories": softmax,
    "Poisson counts": counts,
    "weak, in blocks": weak_blocks,
    "400 x 300": few_rows,
    "sites, known": partial(sites, known=True),
    "sites, unknown": partial(sites, known=False),
}


def make(name: str, seed: int) -> KnownTable:
    """Return one of the shapes, drawn from the seed."""
    makers = SHAPES | HELD_OUT
    shape = makers[name](np.random.default_rng(stream_seed(seed, "shapes", name)))
    dataset = dataclasses.replace(shape.dataset, name=name)
    return dataclasses.replace(shape, dataset=dataset)
