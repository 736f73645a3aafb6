"""Needed, not needed, undecided: what the lists hold, and with ten times the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from lessvfl import data
from lessvfl.report.parts import markdown_table
from lessvfl.report.verdicts import NEEDED, NOT_NEEDED, UNDECIDED, verdicts
from lessvfl.run import experiment, profiles, simulate
from lessvfl.run.numbers import LITTLE_AUC
from lessvfl_bench.study import BY_CLASS, NumberList, Study, option

EFFECTS = (1.0, 0.5, 0.25, 0.12)
N_EACH, TIMES = 20, 10
SHARES = (0.5, 0.05)
N_KNOWN = 40_000  # rows on which the effect of each column is measured
LAWS: dict[str, Callable[..., NDArray[Any]]] = {
    "normal": Generator.normal,
    "t3": lambda rng, size: rng.standard_t(3, size=size),
    "lognormal": Generator.lognormal,
}
ACTING: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {  # of columns around 0
    "straight": lambda x: x,
    "distance": np.abs,
    "x squared": np.square,
    "sin 3x": lambda x: np.sin(3 * x),
    "step": lambda x: (x > np.quantile(x, 0.7)).astype(float),
}
WITHIN, ACROSS = "pair within", "pair across"


def lists(
    X: np.ndarray[Any, Any], y: np.ndarray[Any, Any], seed: int
) -> dict[str, str]:
    """Return the verdict on every column."""
    dataset = data.from_arrays(X, y)
    settings = profiles.resolve("less-vfl-auto", "default", dataset, BY_CLASS)
    record, _ = experiment.run(simulate.Job(dataset, settings, parties=2), [seed])
    return {one.feature: one.verdict for one in verdicts(record)}


class ActingTable(NamedTuple):
    """Columns of two parties, labels, and how each column acts on these."""

    X: NDArray[Any]
    y: NDArray[Any]
    kinds: list[str]  # by column; "useless": it does not act
    aucs: list[float]  # of what it adds to the score; of a pair that of the product


def acting_table(rng: Generator) -> ActingTable:
    """Make columns of three laws, 8 of each party's 20 with an effect of some kind."""
    laws = [LAWS[name] for name in rng.choice(list(LAWS), 2 * N_EACH)]
    X = np.stack([law(rng, size=N_KNOWN) for law in laws], axis=1)
    centred = X - np.median(X, axis=0)
    kinds, parts = ["useless"] * (2 * N_EACH), {}
    places = [p * N_EACH + rng.permutation(N_EACH) for p in range(2)]
    for free in places:
        for j, (kind, act) in zip(free, ACTING.items(), strict=False):
            kinds[j], parts[j,] = kind, act(centred[:, j])
    for kind, pair in (
        *((WITHIN, tuple(free[5:7])) for free in places),
        (ACROSS, tuple(free[7] for free in places)),
    ):
        parts[pair] = centred[:, pair].prod(axis=1)
        kinds[pair[0]] = kinds[pair[1]] = kind
    for of, part in parts.items():
        scaled = rng.choice([-1.0, 1.0]) * (part - part.mean()) / part.std()
        parts[of] = scaled * rng.choice(EFFECTS)
    score = sum(parts.values()) + rng.logistic(size=N_KNOWN)
    y = (score > np.median(score)).astype(int)
    aucs = [0.5] * (2 * N_EACH)
    for of, part in parts.items():
        for j in of:
            aucs[j] = float(roc_auc_score(y, part))
    return ActingTable(X, y, kinds, aucs)


@dataclass(frozen=True)
class Verdicts(Study):
    """What the lists of needed, not needed and undecided columns hold.

    Of "acting": tables of two parties with 20 columns each, normal, of a t
    distribution of 3 degrees and lognormal; 8 of a party act, straight, by distance
    from the middle, squared, by a period, by a step, in a pair within the party and in
    one across, with weights of 1, 0.5, 0.25 or 0.12 of a logit. For every number of
    rows: how many columns are called not needed, and how many of these act.

    Of "rows": tables of two parties with 20 columns each: 4 of each party matter, by 1,
    0.5, 0.25 and 0.12 of a logit, the others are noise. The first rows of a table are
    run with less-vfl-auto, then ten times as many. For every size and share of
    positives: how many columns each list has, how many of them are real, and how many
    of those undecided (real and useless) the larger run keeps.
    """

    what: str = option("rows", "rows or acting.", positional=True)
    rows: NumberList = option((300, 1000, 3000), "Rows of the smaller run.")
    seeds: int = option(10, "How many tables of each kind.")
    smallest: ClassVar = {"rows": (100,), "seeds": 1}

    def cases(self) -> list[tuple[int, float, int]]:
        """Return rows, share of positives and seed."""
        if self.what == "acting":
            return [(n, 0.5, i) for n in self.rows for i in range(self.seeds)]
        return [(n, s, i) for n in self.rows for s in SHARES for i in range(self.seeds)]

    def measure(self, case: tuple[int, float, int]) -> dict[str, int]:
        """Count the columns of one table by verdict and truth."""
        n, share, seed = case
        rng = np.random.default_rng(seed)
        if self.what == "acting":
            return self._acting(acting_table(rng), n, seed)
        X = rng.normal(size=(TIMES * n, 2 * N_EACH))
        effects = np.zeros(2 * N_EACH)
        effects[: len(EFFECTS)] = effects[N_EACH : N_EACH + len(EFFECTS)] = EFFECTS
        score = X @ effects + rng.logistic(size=len(X))
        y = (score > np.quantile(score, 1 - share)).astype(int)
        small, large = lists(X[:n], y[:n], seed), lists(X, y, seed)
        found: Counter[str] = Counter()
        for i, effect in enumerate(effects):
            kind = f"{small[f'x{i}']} {'real' if effect else 'useless'}"
            found[kind] += 1
            found[f"{kind} later"] += large[f"x{i}"] == NEEDED
        return dict(found)

    def _acting(self, table: ActingTable, n: int, seed: int) -> dict[str, int]:
        """Count columns by verdict and kind, and those of more than a little effect."""
        said, found = lists(table.X[:n], table.y[:n], seed), Counter[str]()
        for i, (kind, auc) in enumerate(zip(table.kinds, table.aucs, strict=True)):
            found[f"{said[f'x{i}']} {kind}"] += 1
            found[f"{said[f'x{i}']} {kind} strong"] += auc > LITTLE_AUC
        return dict(found)

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every size and share, or for every size."""
        if self.what == "acting":
            return self._acting_lines(found)
        rows = []
        for n in self.rows:
            for share in SHARES:
                sums: Counter[str] = Counter()
                for i in range(self.seeds):
                    sums.update(found[n, share, i])
                row = [f"{n:,}", f"{share:g}"]
                for verdict in (NEEDED, NOT_NEEDED, UNDECIDED):
                    row.append(
                        f"{sums[f'{verdict} real']}, {sums[f'{verdict} useless']}"
                    )
                for kind in (f"{UNDECIDED} real", f"{UNDECIDED} useless"):
                    row.append(f"{sums[f'{kind} later']} of {sums[kind]}")
                kind = f"{NOT_NEEDED} real"
                row.append(f"{sums[f'{kind} later']} of {sums[kind]}")
                rows.append(row)
        lists = (
            f"{name}: real, useless" for name in ("needed", "not needed", "undecided")
        )
        later = "needed with ten times the rows, of undecided real"
        more = (later, "of undecided useless", "of not needed real")
        return markdown_table(["rows", "positive", *lists, *more], rows)

    def _acting_lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every size."""
        rows, kinds = [], [*ACTING, WITHIN]
        for n in self.rows:
            sums = Counter[str]()
            for i in range(self.seeds):
                sums.update(found[n, 0.5, i])
            all_ = {
                verdict: sum(sums[f"{verdict} {kind}"] for kind in (*kinds, "useless"))
                for verdict in (NEEDED, NOT_NEEDED, UNDECIDED)
            }
            of = {kind: sums[f"{NOT_NEEDED} {kind}"] for kind in (*kinds, ACROSS)}
            strong = sum(sums[f"{NOT_NEEDED} {kind} strong"] for kind in kinds)
            acting = sum(of[kind] for kind in kinds)
            share = f"{100 * acting / max(1, all_[NOT_NEEDED]):.1f} %"
            row = [f"{n:,}", *(f"{one:,}" for one in all_.values())]
            rows.append(
                [*row, f"{acting} ({share})", str(strong), *map(str, of.values())]
            )
        beyond = f"of these by more than an AUC of {LITTLE_AUC:g}"
        heads = ["rows", NEEDED, NOT_NEEDED, UNDECIDED, "not needed, yet acts", beyond]
        return markdown_table([*heads, *kinds, ACROSS], rows)
