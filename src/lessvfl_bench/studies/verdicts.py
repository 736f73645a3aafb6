"""Needed, not needed, undecided: what becomes of the lists with ten times the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lessvfl import data
from lessvfl.report.parts import markdown_table
from lessvfl.report.verdicts import NEEDED, NOT_NEEDED, UNDECIDED, verdicts
from lessvfl.run import experiment, profiles, simulate
from lessvfl_bench.study import BY_CLASS, NumberList, Study, option

EFFECTS = (1.0, 0.5, 0.25, 0.12)
N_EACH, TIMES = 20, 10
SHARES = (0.5, 0.05)


def lists(
    X: np.ndarray[Any, Any], y: np.ndarray[Any, Any], seed: int
) -> dict[str, str]:
    """Return the verdict on every column."""
    dataset = data.from_arrays(X, y)
    settings = profiles.resolve("less-vfl-auto", "default", dataset, BY_CLASS)
    record, _ = experiment.run(simulate.Job(dataset, settings, parties=2), [seed])
    return {one.feature: one.verdict for one in verdicts(record)}


@dataclass(frozen=True)
class Verdicts(Study):
    """Needed, not needed, undecided: what becomes of the lists with more rows.

    Tables of two parties with 20 columns each: 4 of each party matter, by 1, 0.5, 0.25
    and 0.12 of a logit, the others are noise. The first rows of a table are run with
    less-vfl-auto, then ten times as many. For every size and share of positives: how
    many columns each list has, how many of them are real, and how many of those
    undecided (real and useless) the larger run keeps.
    """

    rows: NumberList = option((300, 1000, 3000), "Rows of the smaller run.")
    seeds: int = option(10, "How many tables of each kind.")
    smallest: ClassVar = {"rows": (100,), "seeds": 1}

    def cases(self) -> list[tuple[int, float, int]]:
        """Return rows, share of positives and seed."""
        return [(n, s, i) for n in self.rows for s in SHARES for i in range(self.seeds)]

    def measure(self, case: tuple[int, float, int]) -> dict[str, int]:
        """Count the columns of one table by verdict and truth."""
        n, share, seed = case
        rng = np.random.default_rng(seed)
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

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every size and share."""
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
