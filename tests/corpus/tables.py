"""Tables as they come: a seeded generator, each with what is known of it.

A table carries which features it was made of (`planted`), the same table without the
mess (`twin`), and whether it may be refused, and about what (`refusal`). All are made
of one base: 8 columns of normal numbers, three of which say what the labels are; the
first four belong to one party, the others to the other.
"""

from __future__ import annotations

import datetime
import decimal
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow
from numpy.typing import NDArray
from scipy import sparse

Task = Literal["classes", "numbers"]
Way = Literal["run", "estimator"]
TASKS: tuple[Task, ...] = ("classes", "numbers")
WAYS: tuple[Way, ...] = ("run", "estimator")
FITS: tuple[Way, ...] = ("estimator",)  # what no file can hold
N_ROWS = 300
LABEL = "y"
WEIGHT = "how much"

Planted = tuple[frozenset[str], ...]  # of each, one of these columns must be found


@dataclass(frozen=True)
class Table:
    """A table, and what its generator knows of it."""

    name: str
    X: Any  # a frame or an array; where it goes to a file, a frame of pandas
    y: Any
    task: Task
    planted: Planted = ()
    twin: str | None = None  # the name of a clean table; None: only a legal end is due
    refusal: str | None = None  # what an error must say, as a pattern, where one may be
    must_refuse: bool = False
    honest: bool = False  # no more useless columns may be kept than of the twin
    file: Literal["csv", "parquet"] = "csv"
    parties: int | list[int] = field(default_factory=lambda: [4, 4])
    weight: Any = None


Rng = np.random.Generator
Maker = Callable[[Rng, Task, int], Table]  # the last: the seed, to take turns


@dataclass(frozen=True)
class Kind:
    """A kind of table: how it is made, and how often."""

    make: Maker
    n_seeds: int
    tasks: tuple[Task, ...]
    ways: tuple[Way, ...]


KINDS: dict[str, Kind] = {}


def kind(
    n_seeds: int = 4, tasks: tuple[Task, ...] = TASKS, ways: tuple[Way, ...] = WAYS
) -> Callable[[Maker], Maker]:
    """Add a kind of table."""

    def add(make: Maker) -> Maker:
        KINDS[make.__name__] = Kind(make, n_seeds, tasks, ways)
        return make

    return add


Change = Callable[[Table, Rng, int], Table]


def change(*settings: Any, **more: Any) -> Callable[[Change], Change]:
    """Add a kind of table that is the base with a change."""

    def add(make: Change) -> Change:
        @functools.wraps(make)
        def from_base(rng: Rng, task: Task, turn: int) -> Table:
            return make(base(rng, task), rng, turn)

        kind(*settings, **more)(from_base)
        return make

    return add


@dataclass(frozen=True)
class Spec:
    """Which table: its kind, task and seed."""

    kind: str
    task: Task
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.task}/{self.seed}"

    def make(self) -> Table:
        """Return the table; the same base for all kinds of one seed."""
        rng = np.random.default_rng(self.seed)
        table = KINDS[self.kind].make(rng, self.task, self.seed)
        twin = None if table.twin is None else f"{table.twin}/{self.task}/{self.seed}"
        return replace(table, name=self.name, twin=twin)

    @classmethod
    def named(cls, name: str) -> Spec:
        which, task, seed = name.split("/")
        assert task in TASKS
        return cls(which, "classes" if task == "classes" else "numbers", int(seed))


def all_specs() -> Iterator[Spec]:
    """Yield every table of the corpus."""
    for name, kind in KINDS.items():
        for seed in range(kind.n_seeds):
            for task in kind.tasks:
                yield Spec(name, task, seed)


# ----------------------------------------------------------------------------- the base


def cells_of(rng: Rng, n_rows: int = N_ROWS) -> pd.DataFrame:
    """Return columns a0 to a3 and b0 to b3."""
    names = [f"{party}{i}" for party in "ab" for i in range(4)]
    return pd.DataFrame(rng.normal(size=(n_rows, 8)), columns=names)


def labels_of(rng: Rng, X: pd.DataFrame, task: Task, more: Any = 0.0) -> Any:
    """Return what a0, a1 and b0 say, with some noise."""
    score = 2 * X["a0"] - 2 * X["a1"] + 1.5 * X["b0"] + more
    score = (score + 0.5 * rng.normal(size=len(X))).to_numpy()
    return np.where(score > 0, "yes", "no") if task == "classes" else score


def one_of(*names: str) -> Planted:
    return tuple(frozenset([name]) for name in names)


PLANTED = one_of("a0", "a1", "b0")


def base(rng: Rng, task: Task, n_rows: int = N_ROWS) -> Table:
    X = cells_of(rng, n_rows)
    return Table("", X, labels_of(rng, X, task), task, PLANTED, "clean")


def legal(table: Table, **more: Any) -> Table:
    """Return a table of which no more is due than a legal end."""
    return replace(table, planted=(), twin=None, **more)


def with_column(table: Table, name: str, cells: Any, place: int = 4) -> Table:
    """Return a table with a further column: up to place 4, the first party's."""
    X = table.X.copy()
    X.insert(place, name, cells)
    assert isinstance(table.parties, list)
    first, second = table.parties
    is_first = place <= 4
    return replace(table, X=X, parties=[first + is_first, second + (not is_first)])


@kind()
def clean(rng: Rng, task: Task, turn: int) -> Table:
    return base(rng, task)


# --------------------------------------------------------------------------- dependence


@change()
def copies_within(table: Table, rng: Rng, turn: int) -> Table:
    """Copies of a planted column and of a useless one, at the same party."""
    X = table.X
    X = X.assign(a4=X["a0"], a5=X["a2"])[[*"a0 a4 a1 a2 a5 a3".split(), *X.columns[4:]]]
    X = X.assign(b4=X["b3"], b5=X["b0"])
    planted = (frozenset(["a0", "a4"]), frozenset(["a1"]), frozenset(["b0", "b5"]))
    return replace(table, X=X, planted=planted, parties=[6, 6])


@change()
def copies_across(table: Table, rng: Rng, turn: int) -> Table:
    """Both parties hold a planted column, and a useless one."""
    X = table.X.assign(b4=table.X["a0"], b5=table.X["a3"])
    X.insert(4, "a4", X["b0"])
    X.insert(5, "a5", X["b1"])
    both = (frozenset(["a0", "b4"]), frozenset(["a1"]), frozenset(["b0", "a4"]))
    return replace(table, X=X, planted=both, parties=[6, 6])


@change()
def sums_within(table: Table, rng: Rng, turn: int) -> Table:
    """A useless column is the sum of two others, to the bit; shares sum to 1."""
    shares = rng.dirichlet(np.ones(3), size=N_ROWS)
    X = table.X.assign(a3=table.X["a2"] * 2 - 1)
    X = X.assign(
        b3=X["b1"] + X["b2"], s0=shares[:, 0], s1=shares[:, 1], s2=shares[:, 2]
    )
    return replace(table, X=X, parties=[4, 7])


@change()
def sums_across(table: Table, rng: Rng, turn: int) -> Table:
    """One party's column is a combination of the other's."""
    X = table.X.assign(b3=table.X["a2"] - 3 * table.X["a3"])
    X = X.assign(b2=X["a0"] + X["a1"])
    return replace(table, X=X)


def with_codes(
    rng: Rng, task: Task, n_levels: int, n_rows: int = N_ROWS
) -> tuple[Table, NDArray[Any]]:
    """Return the base with labels that a category moves, too, and its codes."""
    X = cells_of(rng, n_rows)
    codes = rng.integers(n_levels, size=n_rows)
    effect = np.where(np.arange(n_levels) % 2, 1.5, -1.5)
    if n_levels > 3:
        effect = 2 * rng.normal(size=n_levels)
    y = labels_of(rng, X, task, effect[codes])
    return Table("", X, y, task, PLANTED, "one_category"), codes


def beside(table: Table, first: dict[str, Any], second: dict[str, Any]) -> Table:
    """Return a table with more columns for the one party, and for the other."""
    own = table.X.columns
    X = table.X.assign(**first, **second)
    sizes = [4 + len(first), 4 + len(second)]
    return replace(table, X=X[[*own[:4], *first, *own[4:], *second]], parties=sizes)


def one_hot(codes: NDArray[Any], head: str) -> dict[str, Any]:
    return {f"{head}{i}": (codes == i).astype(int) for i in np.unique(codes)}


@kind()
def one_category(rng: Rng, task: Task, turn: int) -> Table:
    """The twin of tables with a category: one column of texts."""
    return in_words(*with_codes(rng, task, 3))


@kind()
def one_hot_within(rng: Rng, task: Task, turn: int) -> Table:
    """All columns of a category, which sum to 1, at one party."""
    table, codes = with_codes(rng, task, 3)
    block = one_hot(codes, "is_")
    return replace(beside(table, block, {}), planted=(*PLANTED, frozenset(block)))


@kind()
def one_hot_across(rng: Rng, task: Task, turn: int) -> Table:
    """Both parties have all columns of the same category."""
    table, codes = with_codes(rng, task, 3)
    first, second = one_hot(codes, "is_"), one_hot(codes, "was_")
    planted = (*PLANTED, frozenset([*first, *second]))
    return replace(beside(table, first, second), planted=planted)


@change(n_seeds=2)
def one_hot_of_40(table: Table, rng: Rng, turn: int) -> Table:
    """Useless, and more columns than a base has."""
    return beside(table, one_hot(rng.integers(40, size=N_ROWS), "is_"), {})


@kind()
def nested_within(rng: Rng, task: Task, turn: int) -> Table:
    """A city says its region, and a region what its labels are."""
    table, codes = with_codes(rng, task, 3)
    city = codes * 4 + rng.integers(4, size=N_ROWS)
    nested = {
        "city": [f"city {i}" for i in city],
        "region": [f"region {i}" for i in codes],
    }
    found = beside(table, nested, {})
    return replace(found, planted=(*PLANTED, frozenset(nested)))


@kind()
def nested_across(rng: Rng, task: Task, turn: int) -> Table:
    """A party has the city, the other one the region and its columns."""
    table, codes = with_codes(rng, task, 3)
    city = codes * 4 + rng.integers(4, size=N_ROWS)
    first = {"city": [f"city {i}" for i in city], "code": city}
    second = {"region": [f"region {i}" for i in codes], **one_hot(codes, "is_")}
    planted = (*PLANTED, frozenset([*first, *second]))
    return replace(beside(table, first, second), planted=planted)


def in_words(table: Table, codes: NDArray[Any]) -> Table:
    found = beside(table, {"region": [f"region {i}" for i in codes]}, {})
    return replace(found, planted=PLANTED + one_of("region"))


@kind(n_seeds=2)
def a_category_of_5(rng: Rng, task: Task, turn: int) -> Table:
    """The twin of the next."""
    return in_words(*with_codes(rng, task, 5, 1000))


@kind()
def a_category_and_its_columns(rng: Rng, task: Task, turn: int) -> Table:
    """In words, with all its one-hot columns, and nested in another, at one party."""
    table, codes = with_codes(rng, task, 5, 1000)
    more = {
        "region": [f"region {i}" for i in codes],
        "city": [f"city {i}" for i in codes * 8 + rng.integers(8, size=1000)],
        **one_hot(codes, "is_"),
    }
    planted = (*PLANTED, frozenset(more))
    found = replace(beside(table, more, {}), planted=planted)
    return replace(found, twin="a_category_of_5")


# ---------------------------------------------------------------- constant, and scales


@kind()
def constant(rng: Rng, task: Task, turn: int) -> Table:
    table = with_column(base(rng, task), "same", 4.2)
    table = with_column(table, "zero", 0, 9)
    return with_column(table, "word", "always", 4)


@kind()
def nearly_constant(rng: Rng, task: Task, turn: int) -> Table:
    """One cell differs; another column differs in its last bit alone."""
    once, bit = np.zeros(N_ROWS), np.ones(N_ROWS)
    once[7], bit[::2] = 1, np.nextafter(1, 2)
    table = with_column(base(rng, task), "once", once)
    return with_column(table, "bit", bit, 9)


@change()
def scales(table: Table, rng: Rng, turn: int) -> Table:
    """Columns from 1e-30 to 1e30 in one table."""
    return replace(table, X=table.X * np.logspace(-30, 30, 8))


@change(n_seeds=2)
def tiny_columns(table: Table, rng: Rng, turn: int) -> Table:
    """Squares of these numbers are zero."""
    factors = np.array([1e-170, 1, 1, 1e-200, 1e-170, 1, 1e-300, 1])
    return replace(table, X=table.X * factors)


@change(n_seeds=2)
def huge_columns(table: Table, rng: Rng, turn: int) -> Table:
    """Squares of these numbers overflow; above 3.4e38 they are no float32."""
    factors = np.array([1e170, 1, 1, 1e200, 1e60, 1, 1e300, 1])
    return replace(table, X=table.X * factors, refusal=r"Column '[ab]\d'")


@change(n_seeds=3)
def no_data_marks(table: Table, rng: Rng, turn: int) -> Table:
    """A useless column has the lowest float for what is missing."""
    X = table.X.copy()
    X.loc[rng.random(N_ROWS) < 0.2, "a2"] = -1.797e308
    return replace(table, X=X, refusal="Column 'a2'")


@change(n_seeds=2)
def infinite_cells(table: Table, rng: Rng, turn: int) -> Table:
    X = table.X.copy()
    X.loc[5, "b3"] = np.inf
    return legal(table, X=X, refusal="Column 'b3'.*finite", must_refuse=True)


@change()
def far_from_zero(table: Table, rng: Rng, turn: int) -> Table:
    return replace(table, X=table.X + np.array([1e6, -1e6, 1e9, 0, 1e6, 0, 1e12, 3]))


@change()
def large_integers(table: Table, rng: Rng, turn: int) -> Table:
    """Whole numbers beyond 2**53: planted ones that doubles hold, useless codes."""
    X = table.X.copy()
    X["a0"] = (X["a0"] * 2**40).astype(np.int64) * 2**16 + 2**60
    X["a3"] = 2**53 + rng.integers(0, 3, size=N_ROWS)
    X["b0"] = ((X["b0"] + 8) * 2**43).astype(np.uint64) * np.uint64(2**16)
    return replace(table, X=X)


@change()
def zero_inflated(table: Table, rng: Rng, turn: int) -> Table:
    """Mostly 0 with a few large values, or with a mark of 999999; two are planted."""
    X = table.X.copy()
    X.loc[rng.random(N_ROWS) < 0.03, "a2"] = 999999
    X["b2"] = np.where(rng.random(N_ROWS) < 0.9, 0, rng.lognormal(8, 2, N_ROWS))
    X["a3"] = rng.standard_cauchy(N_ROWS)
    return replace(table, X=X)


def mostly_zero(rng: Rng, task: Task) -> Table:
    """A planted column is 0 in three of four rows."""
    X = cells_of(rng)
    X["a0"] = np.where(rng.random(N_ROWS) < 0.75, 0, 1 + rng.exponential(1, N_ROWS))
    return Table("", X, labels_of(rng, X, task), task, PLANTED, "many_zeros")


@kind(n_seeds=2)
def many_zeros(rng: Rng, task: Task, turn: int) -> Table:
    """The twin of the next."""
    return mostly_zero(rng, task)


@kind()
def marks_among_zeros(rng: Rng, task: Task, turn: int) -> Table:
    """A planted column is mostly 0, with 999999 in a few cells."""
    table = mostly_zero(rng, task)
    X = table.X.copy()
    X.loc[rng.choice(N_ROWS, 6, replace=False), "a0"] = 999999
    return replace(table, X=X)


@change(tasks=("numbers",))
def marks_among_targets(table: Table, rng: Rng, turn: int) -> Table:
    """Targets are mostly 0, with 999999 in a few rows."""
    y = np.where(table.y > 1.5, table.y, 0.0)
    y[rng.choice(N_ROWS, 5, replace=False)] = 999999
    return replace(table, y=y)


@change()
def marks_among_planted(table: Table, rng: Rng, turn: int) -> Table:
    """A planted column has 999999 for what is missing."""
    X = table.X.copy()
    X.loc[rng.random(N_ROWS) < 0.02, "a0"] = 999999
    return replace(table, X=X)


# ------------------------------------------------------------------------------ missing


@change()
def missing_cells(table: Table, rng: Rng, turn: int) -> Table:
    gaps = rng.random(table.X.shape) < 0.15
    return replace(table, X=table.X.mask(gaps))


@kind()
def all_missing(rng: Rng, task: Task, turn: int) -> Table:
    """A column without any cell is left out, or named."""
    table = with_column(base(rng, task), "nothing", np.nan)
    return replace(table, refusal="'nothing'")


@change(tasks=("classes",))
def missing_in_a_class(table: Table, rng: Rng, turn: int) -> Table:
    """Two columns are missing wherever the label is no: that tells all there is."""
    X = table.X.copy()
    X.loc[table.y == "no", ["a3", "b0"]] = np.nan
    return replace(table, X=X, planted=one_of("a3", "b0"))


# ----------------------------------------------------------------------- rows, columns


FEW = (2, 3, 4, 5, 8, 12, 20, 30)


@kind(n_seeds=len(FEW))
def few_rows(rng: Rng, task: Task, turn: int) -> Table:
    """So few rows say too little for a demand: a legal end, or a sentence on rows."""
    n_rows = FEW[turn % len(FEW)]
    table = base(rng, task, n_rows)
    y = table.y
    if task == "classes":
        y = np.where(np.arange(n_rows) % 2, "yes", "no")
    return legal(table, y=y, refusal=r"\brows?\b|class")


@kind(n_seeds=2)
def more_columns_than_rows(rng: Rng, task: Task, turn: int) -> Table:
    """150 columns, 100 rows: too few for a demand."""
    table = base(rng, task, 100)
    more = pd.DataFrame(
        rng.normal(size=(100, 142)), columns=[f"c{i}" for i in range(142)]
    )
    return legal(table, X=pd.concat([table.X, more], axis=1), parties=2)


@kind()
def one_column_a_party(rng: Rng, task: Task, turn: int) -> Table:
    """More parties share what labels say, so that each sees less of it."""
    return replace(base(rng, task), parties=[1] * 8)


@kind(n_seeds=2)
def more_parties_than_columns(rng: Rng, task: Task, turn: int) -> Table:
    table = replace(base(rng, task), parties=9)
    return legal(table, refusal="'parties'|parties|party", must_refuse=True)


@change(n_seeds=2)
def one_column(table: Table, rng: Rng, turn: int) -> Table:
    X = table.X[["a0"]]
    y = labels_of(rng, table.X.assign(a1=0, b0=0), table.task)
    return replace(table, X=X, y=y, planted=one_of("a0"), parties=1)


@change(n_seeds=1)
def no_rows(table: Table, rng: Rng, turn: int) -> Table:
    about = r"\brows?\b|samples"
    return legal(table, X=table.X[:0], y=table.y[:0], refusal=about, must_refuse=True)


@change(n_seeds=1)
def no_columns(table: Table, rng: Rng, turn: int) -> Table:
    about = r"\bcolumns?\b|feature"
    return legal(table, X=table.X[[]], refusal=about, must_refuse=True, parties=2)


@change()
def rows_three_times(table: Table, rng: Rng, turn: int) -> Table:
    """Copies of rows are no further evidence."""
    X = pd.concat([table.X] * 3, ignore_index=True)
    return replace(table, X=X, y=np.tile(table.y, 3), honest=True)


@change(n_seeds=2)
def rows_ten_times(table: Table, rng: Rng, turn: int) -> Table:
    X = pd.concat([table.X] * 10, ignore_index=True)
    return replace(table, X=X, y=np.tile(table.y, 10), honest=True)


def with_twenty(table: Table, times: int) -> Table:
    """Return a table of which one class has 20 rows, each so many times."""
    rare = np.flatnonzero(table.y == "yes")[:20]
    rows = np.r_[np.flatnonzero(table.y == "no"), np.repeat(rare, times)]
    return replace(table, X=table.X.iloc[rows], y=table.y[rows])


@kind(tasks=("classes",))
def twenty_of_a_class(rng: Rng, task: Task, turn: int) -> Table:
    """The twin of the next: 20 rows say less than 150."""
    return replace(with_twenty(base(rng, task), 1), twin="twenty_of_a_class")


@kind(tasks=("classes",))
def oversampled(rng: Rng, task: Task, turn: int) -> Table:
    """The rows of one class have been copied up to as many as the other has."""
    table = with_twenty(base(rng, task), 8)
    return replace(table, twin="twenty_of_a_class", honest=True)


# ------------------------------------------------------------------------------- labels


@change(tasks=("classes",))
def separable(table: Table, rng: Rng, turn: int) -> Table:
    """One column says the class of every row, with a wide gap."""
    X = table.X.assign(a0=table.X["a0"] + 5 * np.sign(table.X["a0"]))
    y = np.where(X["a0"] > 0, "yes", "no")
    return replace(table, X=X, y=y, planted=one_of("a0"))


@kind(n_seeds=3, tasks=("classes",))
def three_positives(rng: Rng, task: Task, turn: int) -> Table:
    """3 in 5,000: too few for a demand."""
    X = cells_of(rng, 5000)
    y = np.full(5000, "no", dtype=object)
    y[np.argsort(X["a0"].to_numpy())[-3:]] = "yes"
    return legal(Table("", X, y, task), refusal="class|label")


@kind(n_seeds=3, tasks=("classes",))
def two_hundred_classes(rng: Rng, task: Task, turn: int) -> Table:
    """Five rows each: too few for a demand."""
    X = cells_of(rng, 1000)
    y = [f"class {i}" for i in X["a0"].argsort().argsort() // 5]
    return legal(Table("", X, np.array(y), task), refusal="class|label")


@change(n_seeds=3, tasks=("classes",))
def several_classes(table: Table, rng: Rng, turn: int) -> Table:
    score = labels_of(rng, table.X, "numbers")
    y = np.array(["low", "mid", "high"])[np.digitize(score, [-1.2, 1.2])]
    return replace(table, y=y)


@change(n_seeds=2)
def one_label(table: Table, rng: Rng, turn: int) -> Table:
    """A class alone must be refused; a number alone may be learnt."""
    y = np.full(N_ROWS, "yes" if table.task == "classes" else 3.5)
    if table.task == "numbers":
        y = y.astype(float)
    about = "class|label|value"
    return legal(table, y=y, refusal=about, must_refuse=table.task == "classes")


@change(tasks=("numbers",))
def huge_targets(table: Table, rng: Rng, turn: int) -> Table:
    factor = float(rng.choice([1e30, 1e100, 1e200, 1e300]))
    return replace(table, y=table.y * factor, refusal=f"label|target|'{LABEL}'")


@change(tasks=("numbers",))
def tiny_targets(table: Table, rng: Rng, turn: int) -> Table:
    factor = float(rng.choice([1e-30, 1e-100, 1e-200, 1e-300]))
    return replace(table, y=table.y * factor, refusal=f"label|target|'{LABEL}'")


@change(n_seeds=6, tasks=("numbers",))
def targets_with_outliers(table: Table, rng: Rng, turn: int) -> Table:
    y = table.y.copy()
    y[rng.choice(N_ROWS, 3, replace=False)] = [1e12, -1e12, 5e11]
    return replace(table, y=y)


@change(tasks=("numbers",))
def mostly_one_target(table: Table, rng: Rng, turn: int) -> Table:
    """Claims: mostly 0, some large; what says how large also says whether."""
    y = np.where(table.y > 1.5, np.exp(table.y), 0.0)
    return replace(table, y=y)


@change(n_seeds=3, tasks=("numbers",), ways=FITS)
def whole_number_targets(table: Table, rng: Rng, turn: int) -> Table:
    """Counts of 0 to 40 are numbers to a regressor; `run` may ask what they are."""
    y = np.clip(np.round(4 * table.y + 20), 0, 40).astype(int)
    return replace(table, y=y)


@change(n_seeds=3, tasks=("classes",))
def labels_of_other_types(table: Table, rng: Rng, turn: int) -> Table:
    """Truth values, whole numbers, floats, and texts with blanks and quotes."""
    yes = table.y == "yes"
    kinds: list[Any] = [yes, yes.astype(int) * 7 - 3, yes + 1.0]
    kinds += [np.where(yes, 'it\'s "yes", ', " no ")]
    return replace(table, y=kinds[int(rng.integers(4))])


@change(n_seeds=2, tasks=("classes",))
def missing_labels(table: Table, rng: Rng, turn: int) -> Table:
    y = table.y.astype(object)
    y[[3, 50]] = None
    return legal(table, y=y, refusal=f"label|'{LABEL}'|\\by\\b", must_refuse=True)


@change(n_seeds=2, tasks=("numbers",))
def infinite_targets(table: Table, rng: Rng, turn: int) -> Table:
    y = table.y.copy()
    y[3] = np.inf
    return legal(table, y=y, refusal=f"label|'{LABEL}'", must_refuse=True)


# ------------------------------------------------------------------------------ weights


@kind()
def weights_of_zero(rng: Rng, task: Task, turn: int) -> Table:
    """A third of the rows counts for nothing."""
    weight = (rng.random(N_ROWS) > 0.33).astype(float)
    return replace(base(rng, task), weight=weight)


@kind(n_seeds=3)
def huge_weights(rng: Rng, task: Task, turn: int) -> Table:
    weight = rng.uniform(1, 3, N_ROWS) * 10.0 ** rng.choice([30, 200, 307])
    return replace(base(rng, task), weight=weight)


@kind(n_seeds=2)
def uneven_weights(rng: Rng, task: Task, turn: int) -> Table:
    """Few rows count a million times as much: what they say is all there is."""
    weight = np.where(rng.random(N_ROWS) < 0.05, 1e6, 1.0)
    return legal(base(rng, task), weight=weight)


@kind(n_seeds=1)
def weights_all_zero(rng: Rng, task: Task, turn: int) -> Table:
    table = legal(base(rng, task), weight=np.zeros(N_ROWS))
    return replace(table, refusal="weight", must_refuse=True)


@kind(n_seeds=1)
def negative_weights(rng: Rng, task: Task, turn: int) -> Table:
    table = legal(base(rng, task), weight=np.linspace(-1, 1, N_ROWS))
    return replace(table, refusal="weight", must_refuse=True)


# -------------------------------------------------------------------------------- names


NAMES = (
    ('say "a"', "it's", "a.b.c", "x/y", "🙂 mood", "  blank ", "a,b;c", "日本 / é"),
    ("../up", "[0]", "a=b", "<b>bold</b>", "%s {0}", "\\n", "NaN", "*"),
    ("label", "party0", "server", "true", "1", "2.5", "-", "?"),
    ("party0.a", "a:b", "a|b", "$HOME", "`x`", "#", "&amp;", "tab\there"),
)


@change(n_seeds=len(NAMES))
def odd_names(table: Table, rng: Rng, turn: int) -> Table:
    names = NAMES[turn % len(NAMES)]
    found = dict(zip(table.X.columns, names, strict=True))
    planted = one_of(*(found[name] for name in ("a0", "a1", "b0")))
    return replace(table, X=table.X.rename(columns=found), planted=planted)


@change(n_seeds=2)
def names_twice(table: Table, rng: Rng, turn: int) -> Table:
    X = table.X.set_axis(["a0", "a1", "a2", "a2", "b0", "b1", "b2", "b3"], axis=1)
    return replace(table, X=X, refusal="'a2'")


@change(n_seeds=2)
def names_of_numbers(table: Table, rng: Rng, turn: int) -> Table:
    """As pandas has them where none are given."""
    planted = one_of("0", "1", "4")
    X = table.X.set_axis(range(8), axis=1)
    return replace(table, X=X, planted=planted, refusal="names?")


@change(n_seeds=1, ways=FITS)
def a_name_of_no_text(table: Table, rng: Rng, turn: int) -> Table:
    """Half of a character that takes two."""
    names = ["half \ud83d" if name == "a2" else name for name in table.X.columns]
    X = table.X.set_axis(pd.Index(names, dtype=object), axis=1)
    return replace(table, X=X, refusal="name|half")


# ------------------------------------------------------------------------------- dtypes


def days(n_rows: int) -> list[datetime.datetime]:
    first = datetime.datetime(2020, 1, 1, 12)
    return [
        first + datetime.timedelta(days=i % 900, hours=i % 7) for i in range(n_rows)
    ]


def _as(name: str) -> Callable[[pd.Series], Any]:
    return lambda s: s.astype(name)


def _whole(dtype: Any, shift: int) -> Callable[[Any], Any]:
    """Return what makes whole numbers of a dtype, in pandas or polars."""

    def cast(s: Any) -> Any:
        whole = (s * 20 + shift).round()
        return whole.astype(dtype) if isinstance(s, pd.Series) else whole.cast(dtype)

    return cast


SIGNED = ("int8", "int16", "int32", "int64", "Int8", "Int16", "Int32", "Int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64", "UInt8", "UInt32", "UInt64")
FLOATS = ("float16", "float32", "Float32", "Float64", "object", "string")
PANDAS: dict[str, Callable[[pd.Series], Any]] = {
    **{name: _whole(name, 0) for name in SIGNED},
    **{name: _whole(name, 100) for name in UNSIGNED},
    **{name: _as(name) for name in FLOATS},
    "float[pyarrow]": lambda s: s.astype("float64[pyarrow]"),
    "string[pyarrow]": lambda s: s.round(1).astype(str).astype("string[pyarrow]"),
    "sparse": lambda s: s.where(s > 0, 0.0).astype(pd.SparseDtype("float64", 0.0)),
    "missing Int64": lambda s: (s * 20).round().astype("Int64").mask(s > 2),
    "decimals": lambda s: [decimal.Decimal(f"{x:.3f}") for x in s],
    "texts of numbers": lambda s: [f"{x:.3f}".replace(".", ",") for x in s],
}
PANDAS_OTHERS: dict[str, Callable[[pd.Series], Any]] = {
    "bool": lambda s: s > 0,
    "boolean": lambda s: (s > 0).astype("boolean").mask(s > 2),
    "category": lambda s: pd.cut(s, 4, labels=list("wxyz")),
    "ordered": lambda s: pd.Categorical(
        np.where(s > 0, "high", "low"), ["low", "high"], ordered=True
    ),
    "intervals": lambda s: pd.cut(s, 4),
    "numbers as categories": lambda s: s.round().astype("category"),
    "datetime": lambda s: pd.Series(days(len(s))),
    "datetime with a zone": lambda s: pd.Series(days(len(s))).dt.tz_localize("UTC"),
    "timedelta": lambda s: pd.to_timedelta(s, unit="h"),
    "period": lambda s: pd.Series(days(len(s))).dt.to_period("D"),
    "dates": lambda s: [day.date() for day in days(len(s))],
    "times": lambda s: [day.time() for day in days(len(s))],
    "mixed": lambda s: [x if i % 5 else "n/a" for i, x in enumerate(s)],
    "bytes": lambda s: [b"x" if x > 0 else b"y" for x in s],
    "lists": lambda s: [[x] for x in s],
    "complex": lambda s: s + 1j,
    "None": lambda s: [None] * len(s),
    "ids": lambda s: [f"id-{i:05d}" for i in range(len(s))],
    "free text": lambda s: [
        f"Patient {i} said {x:.4f} twice." for i, x in enumerate(s)
    ],
}
REFUSED = (
    *("lists", "complex", "bytes", "intervals", "period", "timedelta", "times"),
    *("None",),
)


@change(n_seeds=len(PANDAS), tasks=("classes",))
def dtypes_of_pandas(table: Table, rng: Rng, turn: int) -> Table:
    """A planted and a useless column, each as one dtype holds it."""
    name, cast = list(PANDAS.items())[turn % len(PANDAS)]
    X = table.X.assign(a0=cast(table.X["a0"]), b3=cast(table.X["b3"]))
    file: Any = "csv" if name == "sparse" else "parquet"
    return replace(table, X=X, file=file)


@change(n_seeds=len(PANDAS_OTHERS), tasks=("numbers",), ways=FITS)
def other_dtypes_of_pandas(table: Table, rng: Rng, turn: int) -> Table:
    """A useless column that holds no plain numbers; some dtypes may be refused."""
    name, cast = list(PANDAS_OTHERS.items())[turn % len(PANDAS_OTHERS)]
    table = with_column(table, "odd", cast(table.X["a3"]))
    refusal = "'odd'" if name in REFUSED else None
    return replace(table, refusal=refusal)


NUMBERS = (
    *(pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
    *(pl.Float32, pl.Float64, pl.Decimal(18, 4), pl.Int128),
)
POLARS: dict[str, Callable[[pl.Series], pl.Series]] = {
    **{str(dtype): _whole(dtype, 100) for dtype in NUMBERS},
    "String": lambda s: s.round(2).cast(pl.String),
    "with nulls": lambda s: s.set(s > 1.8, None),
}
POLARS_OTHERS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "Boolean": lambda s: s > 0,
    "Categorical": lambda s: _words(s).cast(pl.Categorical),
    "Enum": lambda s: _words(s).cast(pl.Enum(["high", "low"])),
    "Date": lambda s: pl.Series([day.date() for day in days(len(s))]),
    "Datetime": lambda s: pl.Series(days(len(s))),
    "Time": lambda s: pl.Series([day.time() for day in days(len(s))]),
    "Duration": lambda s: pl.Series([datetime.timedelta(hours=x) for x in s]),
    "Null": lambda s: pl.Series([None] * len(s)),
    "Binary": lambda s: pl.Series([b"x" if x > 0 else b"y" for x in s]),
    "List": lambda s: pl.Series([[x] for x in s]),
    "Struct": lambda s: pl.Series([{"x": x} for x in s]),
    "Object": lambda s: pl.Series([object() for _ in s], dtype=pl.Object),
}
POLARS_REFUSED = ("Time", "Duration", "Null", "Binary", "List", "Struct", "Object")


def _words(s: pl.Series) -> pl.Series:
    return pl.Series(["high" if x > 0 else "low" for x in s])


@change(n_seeds=len(POLARS), tasks=("numbers",), ways=FITS)
def dtypes_of_polars(table: Table, rng: Rng, turn: int) -> Table:
    cast = list(POLARS.values())[turn % len(POLARS)]
    X = pl.from_pandas(table.X)
    X = X.with_columns(cast(X["a0"]).alias("a0"), cast(X["b3"]).alias("b3"))
    return replace(table, X=X)


@change(n_seeds=len(POLARS_OTHERS), tasks=("classes",), ways=FITS)
def other_dtypes_of_polars(table: Table, rng: Rng, turn: int) -> Table:
    name, cast = list(POLARS_OTHERS.items())[turn % len(POLARS_OTHERS)]
    X = pl.from_pandas(table.X)
    X = X.insert_column(4, cast(X["a3"]).alias("odd"))
    refusal = "'odd'" if name in POLARS_REFUSED else None
    return replace(table, X=X, refusal=refusal, parties=[5, 4])


# -------------------------------------------------------------------------- containers


CONTAINERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "array": lambda X: X.to_numpy(),
    "Fortran": lambda X: np.asfortranarray(X.to_numpy()),
    "float32": lambda X: X.to_numpy(np.float32),
    "float16": lambda X: X.to_numpy(np.float16),
    "objects": lambda X: X.to_numpy(object),
    "strided": lambda X: np.repeat(X.to_numpy(), 2, axis=0)[::2],
    "backwards": lambda X: X.to_numpy()[::-1][::-1],
    "big-endian": lambda X: X.to_numpy().astype(">f8"),
    "csr": lambda X: sparse.csr_matrix(X.to_numpy()),
    "csc": lambda X: sparse.csc_array(X.to_numpy()),
    "coo": lambda X: sparse.coo_array(X.to_numpy()),
    "lists": lambda X: X.to_numpy().tolist(),
    "read-only": lambda X: _frozen(X.to_numpy()),
    "read-only, Fortran": lambda X: _frozen(np.asfortranarray(X.to_numpy())),
}
NAMED: dict[str, Callable[[pd.DataFrame], Any]] = {
    "rows out of order": lambda X: X.set_axis(range(len(X), 0, -1)),
    "rows of one name": lambda X: X.set_axis([0] * len(X)),
    "rows by two names": lambda X: X.set_axis(
        pd.MultiIndex.from_product([["r"], range(len(X))])
    ),
    "polars": pl.from_pandas,
    "Arrow": pyarrow.Table.from_pandas,
    "lazy": lambda X: pl.from_pandas(X).lazy(),
}


def _frozen(cells: Any) -> Any:
    cells.setflags(write=False)
    return cells


@change(n_seeds=len(CONTAINERS), ways=FITS)
def arrays(table: Table, rng: Rng, turn: int) -> Table:
    hold = list(CONTAINERS.values())[turn % len(CONTAINERS)]
    planted = one_of("x0", "x1", "x4")
    return replace(table, X=hold(table.X), planted=planted)


@change(n_seeds=len(NAMED), ways=FITS)
def frames(table: Table, rng: Rng, turn: int) -> Table:
    """Frames of other kinds; one that is not yet computed may be refused."""
    name, hold = list(NAMED.items())[turn % len(NAMED)]
    refusal = "LazyFrame|collect" if name == "lazy" else None
    return replace(table, X=hold(table.X), refusal=refusal)
