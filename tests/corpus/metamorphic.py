"""Changes of a table that say nothing new, and whether the selection stays the same.

Where a change moves no random stream, the selection must be equal. Where it does (the
order of rows and columns, and their numbers, decide what is drawn), the mean Jaccard
index over tables must be 0.9 at least.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from tests.corpus.judge import METHODS
from tests.corpus.tables import TASKS, Spec, Table

from lessvfl import LessVFLClassifier, LessVFLRegressor

LEAST = 0.9
N_SEEDS = 4
KINDS = ("clean", "one_category", "missing_cells")


@dataclass(frozen=True)
class Change:
    """What is done to a table; `moves` tells whether other numbers are drawn then."""

    name: str
    apply: Callable[[Table, np.random.Generator], Table]
    moves: bool


def _columns(table: Table, rng: np.random.Generator) -> Table:
    """Put each party's columns into another order."""
    assert isinstance(table.parties, list)
    order, start = list[int](), 0
    for size in table.parties:
        order += [*(start + rng.permutation(size))]
        start += size
    return replace(table, X=table.X.iloc[:, order])


def _rows(table: Table, rng: np.random.Generator) -> Table:
    order = rng.permutation(len(table.y))
    return replace(table, X=table.X.iloc[order], y=table.y[order])


def _classes(table: Table, rng: np.random.Generator) -> Table:
    """Have the classes sort the other way around, or numbers point there."""
    if table.task == "numbers":
        return replace(table, y=-table.y)
    return replace(table, y=np.where(table.y == "yes", "a yes", "no"))


def _times(table: Table, rng: np.random.Generator) -> Table:
    return replace(table, X=table.X.assign(a1=table.X["a1"] * 1000))


def _plus(table: Table, rng: np.random.Generator) -> Table:
    return replace(table, X=table.X.assign(a1=table.X["a1"] + 1e6))


def _row_twice(table: Table, rng: np.random.Generator) -> Table:
    rows = np.r_[: len(table.y), 7]
    return replace(table, X=table.X.iloc[rows], y=table.y[rows])


def _constant(table: Table, rng: np.random.Generator) -> Table:
    """Add a constant column; two, so that each party has one."""
    X = table.X.copy()
    X.insert(0, "same", 3.0)
    X["also"] = "same"
    assert isinstance(table.parties, list)
    return replace(table, X=X, parties=[size + 1 for size in table.parties])


CHANGES = (
    Change("order of columns", _columns, moves=True),
    Change("order of rows", _rows, moves=True),
    Change("order of classes", _classes, moves=True),
    Change("a column times 1000", _times, moves=False),
    Change("a column plus 1e6", _plus, moves=False),
    Change("a row twice", _row_twice, moves=True),
    Change("a constant column", _constant, moves=True),
)


def selected(table: Table) -> frozenset[str]:
    """Return what `less-vfl-auto` keeps of a table."""
    kind = LessVFLClassifier if table.task == "classes" else LessVFLRegressor
    model = kind(parties=table.parties, random_state=0, **METHODS["less-vfl-auto"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(table.X, table.y)
    assert isinstance(table.X, pd.DataFrame)
    return frozenset(table.X.columns[model.support_])


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0


def bases(n_seeds: int) -> list[Table]:
    """Return the tables that are changed."""
    return [
        Spec(kind, task, seed).make()
        for kind in KINDS
        for task in TASKS
        for seed in range(n_seeds)
    ]


@dataclass(frozen=True)
class Agreement:
    """How far selections agree before and after a change."""

    change: Change
    indices: tuple[float, ...]  # of every table

    @property
    def mean(self) -> float:
        return float(np.mean(self.indices))

    @property
    def is_violated(self) -> bool:
        least = LEAST if self.change.moves else 1.0
        return self.mean < least


def agreements(n_seeds: int = N_SEEDS) -> Iterator[Agreement]:
    """Check every change on all tables."""
    tables = bases(n_seeds)
    before = [selected(table) for table in tables]
    for change in CHANGES:
        rng = np.random.default_rng(1)
        after = [selected(change.apply(table, rng)) for table in tables]
        found = tuple(map(jaccard, before, after))
        yield Agreement(change, found)
