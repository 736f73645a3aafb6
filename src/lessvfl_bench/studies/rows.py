"""Rows that are alike and that nobody named: what is said, what is true, who is told.

A table whose rows are in random order has no order to go by: beside it stands what the
same table gives in its own.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from lessvfl import methods
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl.select.alike import likeness, near_copies
from lessvfl.terms import stream_seed
from lessvfl_bench.shapes.held_out import make
from lessvfl_bench.shapes.made import N_EACH, N_ROWS, KnownTable, deal, linear, shape_of
from lessvfl_bench.shapes.run import kept_of, recovery, said
from lessvfl_bench.study import BY_CLASS, Repeated, Study, number, option

SELECTS = {"train_epochs": 2}  # selection ends after the first
HONEST = (
    "categories 5",
    "t2",
    "20 classes",
    "nested",
    "products, 1000 rows",
    "proxies",
)
FIRST_FILE = 3000  # by those before it limits were chosen
ORDERS = ("as made", "by a column", "by the label")


def in_time(rng: Generator, ar: float) -> KnownTable:
    """Make rows in the order of time: each is `ar` of the one before, labels too."""
    significant = deal(rng, [3] * 2)
    steps = rng.normal(size=(N_ROWS, len(significant) + 1))
    for before, now in itertools.pairwise(steps):
        now *= np.sqrt(1 - ar**2)
        now += ar * before
    score = linear(steps[:, :-1][:, significant], rng, 0.6, 1.0) + steps[:, -1]
    return labelled(rng, steps[:, :-1], score, significant)


def people(rng: Generator, share: float, effect: float) -> KnownTable:
    """Make people with 5 rows each, one below the other, whom no column names.

    `share` of a column's variance is the person's; so is an `effect` on the label.
    """
    person, significant = np.arange(N_ROWS) // 5, deal(rng, [3] * 2)
    n_people = N_ROWS // 5
    X = np.sqrt(share) * rng.normal(size=(n_people, len(significant)))[person]
    X += np.sqrt(1 - share) * rng.normal(size=X.shape)
    score = linear(X[:, significant], rng, 0.6, 1.0)
    score += effect * rng.normal(size=n_people)[person]
    return labelled(rng, X, score, significant)


def labelled(
    rng: Generator, X: NDArray[Any], score: NDArray[Any], significant: NDArray[Any]
) -> KnownTable:
    """Draw two classes of a score."""
    y = (score + rng.logistic(size=len(X)) > 0).astype(int)
    return shape_of(X, y, significant, [N_EACH] * 2)


ALIKE: dict[str, Callable[[Generator], KnownTable]] = {
    "in time, AR .98": partial(in_time, ar=0.98),
    "in time, AR .8": partial(in_time, ar=0.8),
    "people, half theirs": partial(people, share=0.5, effect=1.5),
    "people, nearly all theirs": partial(people, share=0.9, effect=3.0),
    "people, near copies": partial(people, share=0.98, effect=3.0),
}


@dataclass(frozen=True)
class AlikeRows(Study):
    """Rows that are alike and that nobody named: said and true share, and warnings.

    Tables in the order of time, and tables of people with several rows each, run with
    less-vfl-auto in their own order and in a random one. Then how often honest tables
    lead to a warning: shapes of known truth as they are made, sorted by a column and
    sorted by the label; and of many more, made up with responses, how often the rows of
    one party's file are called alike, a third of them sorted by classes that every
    column tells apart.
    """

    seeds: int = option(20, "How many tables of each kind whose rows are alike.")
    shapes: Repeated = option(HONEST, "Honest shapes, as in 'lessvfl bench shapes'.")
    honest: int = option(10, "How many tables of each honest shape and order.")
    many: int = option(3000, "How many made-up files.")
    smallest: ClassVar = {"seeds": 1, "shapes": HONEST[:1], "honest": 1, "many": 40}

    def cases(self) -> list[tuple[str, str, int]]:
        """Return shape, order and seed."""
        alike = [
            (name, order, seed)
            for name in ALIKE
            for seed in range(self.seeds)
            for order in ("own", "random")
        ]
        honest = [
            (name, order, seed)
            for name in self.shapes
            for order in ORDERS
            for seed in range(self.honest)
        ]
        files = [("file", "", i) for i in range(0, self.many, 100)]
        classes = [("classes", "", i) for i in range(0, self.many // 3, 100)]
        return alike + honest + files + classes

    def measure(self, case: tuple[str, str, int]) -> dict[str, Any]:
        """Run one table, or look at a hundred files."""
        name, order, seed = case
        if name in FILES:
            make_file, part = FILES[name]
            files = [
                make_file(FIRST_FILE + number)
                for number in range(seed, min(seed + 100, self.many // part))
            ]
            told = [kind for kind, X, Z in files if likeness(X, Z) or near_copies(X, Z)]
            return {"files": len(files), "told": told}
        rng = np.random.default_rng(stream_seed(seed, "rows", name))
        shape = ALIKE[name](rng) if name in ALIKE else make(name, seed)
        by = _order(shape, order, rng)
        shape = dataclasses.replace(shape, dataset=shape.dataset.take(by))
        given = BY_CLASS | SELECTS
        settings = profiles.resolve(methods.DEFAULT, "default", shape.dataset, given)
        job = simulate.Job(shape.dataset, settings, shape.sizes)
        (run,) = simulate.simulate(job, [seed])
        found = recovery(shape, kept_of(run, shape.dataset.X.names))
        how = run.numbers["selection"].values()
        found["told"] = any(one["alike"] or one["near_copies"] for one in how)
        return found | {"said": said(run.numbers)}

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield what is said and true of rows that are alike, then who is told."""
        rows = []
        for name in ALIKE:
            for order in ("own", "random"):
                runs = [found[name, order, seed] for seed in range(self.seeds)]
                true = [one["false share"] or 0.0 for one in runs]
                stated = [one["said"] for one in runs if one["said"] is not None]
                real = statistics.fmean(one["true found"] for one in runs)
                told = f"{sum(one['told'] for one in runs)} of {len(runs)}"
                shares = (
                    number(statistics.fmean(part)) if part else ""
                    for part in (stated, true)
                )
                cells = (number(real, 1), runs[0]["true"])
                rows.append([name, order, *shares, "{} of {}".format(*cells), told])
        heads = ("rows", "order", "false share said", "true", "true found", "told")
        yield from markdown_table(heads, rows)
        yield ""
        made = []
        for order in ORDERS:
            warned = [
                bool(found[name, order, seed]["told"])
                for name in self.shapes
                for seed in range(self.honest)
            ]
            made.append([f"shapes, {order}", f"{sum(warned)} of {len(warned)}"])
        for name in FILES:
            files = [one for (of, _, _), one in found.items() if of == name]
            kinds = [kind for one in files for kind in one["told"]]
            told = f"{len(kinds)} of {sum(one['files'] for one in files):,}"
            if name == "file":
                made.append(["made-up files", told])
                made.append(["of these, in no order", str(kinds.count("none"))])
            else:
                made.append(["made-up files sorted by classes", told])
        yield from markdown_table(("honest tables", "told"), made)


def _order(shape: KnownTable, order: str, rng: Generator) -> NDArray[np.int64]:
    """Return the rows of a table in an order."""
    n_rows = len(shape.dataset.y)
    if order == "random":
        return rng.permutation(n_rows)
    if order == "by the label":
        return np.argsort(shape.dataset.y, kind="stable")
    if order == "by a column":
        index = int(rng.choice(np.flatnonzero(shape.significant)))
        frame = shape.dataset.X
        cells = frame.texts(index) if index in frame.text else frame.numeric[:, index]
        return np.argsort(cells, kind="stable")
    return np.arange(n_rows)


def a_file(seed: int) -> tuple[str, torch.Tensor, torch.Tensor]:
    """Make an honest file of one party: how it is sorted, its columns, responses.

    Of nine, eight are sorted: by columns, by the label, by what no column says.
    """
    rng = np.random.default_rng(stream_seed(seed, "rows", "file"))
    n = int(rng.choice([120, 200, 300, 500, 1000, 2000, 4000]))
    d = int(rng.choice([3, 8, 20, 40]))
    X = rng.normal(size=(n, d))
    match rng.choice(["normal", "heavy", "levels", "mixed", "one factor", "zeros"]):
        case "heavy":
            X = rng.standard_t(2, size=(n, d))
        case "levels":
            X = rng.integers(0, rng.integers(2, 8), size=(n, d)).astype(float)
        case "mixed":
            X[:, ::2] = rng.integers(0, 4, size=X[:, ::2].shape)
        case "one factor":
            X = 0.7 * X + rng.normal(size=(n, 1)) * rng.normal(size=d)
        case "zeros":
            X = np.where(X > 1, np.exp(X), 0.0)
    scaled = np.clip((X - X.mean(0)) / (X.std(0) + 1e-9), -3, 3)
    true = max(1, d // 4)
    score = scaled[:, :true] @ rng.normal(size=true)
    match rng.choice(["straight", "even", "periodic", "step"]):
        case "even":
            score = np.abs(score)
        case "periodic":
            score = np.sin(3 * score)
        case "step":
            score = 3.0 * (score > np.quantile(score, 0.8))
    score = score + rng.choice([0.1, 0.5, 2]) * (score.std() + 0.1) * rng.normal(size=n)
    n_classes = int(rng.choice([0, 2, 5, 20]))
    y, Z = score, score[:, None]
    if n_classes:
        y = _ranked(score, n_classes)
        Z = np.eye(n_classes)[y][:, 1:]
        Z = Z / (Z.std(0) + 1e-9)
        Z = Z @ rng.normal(size=(Z.shape[1], 8)) if n_classes > 8 else Z
    Z = (Z - Z.mean(0)) / (Z.std(0) + 1e-9)
    Z = Z + scaled @ rng.normal(size=(d, Z.shape[1])) * 0.3 / np.sqrt(d)
    i, j = rng.integers(d, size=2)
    order = np.arange(n)
    match by := str(rng.choice(["none", *_SORTED])):
        case "column":
            order = np.argsort(X[:, i] * rng.choice([-1, 1]), kind="stable")
        case "steps of a column":
            order = np.argsort(_ranked(X[:, i], int(rng.integers(5, 100))))
        case "two columns":
            X[:, j] = _ranked(X[:, j], int(rng.integers(3, 40)))
            order = np.lexsort((X[:, i], X[:, j]))
        case "a few levels, a column":
            X[:, j] = _ranked(X[:, j], 3)
            order = np.lexsort((X[:, i], X[:, j]))
        case "label":
            order = np.argsort(y, kind="stable")
        case "label, a column":
            order = np.lexsort((X[:, i], y))
        case "label, its classes mixed":
            classes = _ranked(score, 20) if not n_classes else y
            order = np.argsort(rng.permutation(20)[classes], kind="stable")
        case "what no column says":
            order = np.argsort(score + scaled[:, i])
    return by, torch.from_numpy(X[order]), torch.from_numpy(Z[order])


def a_file_of_classes(seed: int) -> tuple[str, torch.Tensor, torch.Tensor]:
    """Make an honest file sorted by classes: how, its columns, responses.

    The classes have centres of their own in all or half of the columns. Each is in one
    piece, or two rows of each follow each other, time and again.
    """
    rng = np.random.default_rng(stream_seed(seed, "rows", "classes"))
    n = int(rng.choice([300, 500, 1000, 2000, 4000]))
    d = int(rng.choice([8, 20, 40]))
    n_classes = min(int(rng.choice([2, 5, 10, 26, 40])), n // 10)
    y = np.sort(rng.integers(n_classes, size=n))
    centres = rng.choice([0.3, 1, 2]) * rng.normal(size=(n_classes, d))
    centres[:, d // int(rng.integers(1, 3)) :] = 0
    X = centres[y] + rng.normal(size=(n, d))
    Z = np.eye(n_classes)[y][:, 1:]
    n_components = int(rng.choice([2, 4, 8]))
    if Z.shape[1] > n_components:
        Z = Z @ rng.normal(size=(Z.shape[1], n_components))
    Z = (Z - Z.mean(0)) / (Z.std(0) + 1e-9)
    scaled = np.clip((X - X.mean(0)) / X.std(0), -3, 3)
    slopes = rng.choice([0.1, 0.3, 0.6]) * rng.normal(size=(d, Z.shape[1]))
    Z = Z + scaled @ slopes / np.sqrt(d)
    order = np.arange(n)
    match by := str(rng.choice(["label", "label, a column", "two of each, repeated"])):
        case "label, a column":
            order = np.lexsort((X[:, 0], y))
        case "two of each, repeated":
            starts = np.searchsorted(y, np.arange(n_classes))
            order = np.lexsort((y, (np.arange(n) - starts[y]) // 2))
    return by, torch.from_numpy(X[order]), torch.from_numpy(Z[order])


# How files are made up, and for how many of `many` there is one.
FILES = {"file": (a_file, 1), "classes": (a_file_of_classes, 3)}

_SORTED = (
    *("column", "steps of a column", "two columns", "a few levels, a column"),
    *("label", "label, a column", "label, its classes mixed", "what no column says"),
)


def _ranked(values: NDArray[Any], n: int) -> NDArray[Any]:
    """Return in which of n parts of equal size values are."""
    edges = np.quantile(values, np.linspace(0, 1, n + 1)[1:-1])
    parts: NDArray[Any] = np.digitize(values, edges)
    return parts
