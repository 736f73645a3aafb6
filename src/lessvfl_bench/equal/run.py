"""Run every method under the same transports, and put the numbers side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl.errors import DataError
from lessvfl_bench.equal import cells, tables
from lessvfl_bench.equal.cells import METHODS, STEPS, TRANSPORTS, Cell
from lessvfl_bench.equal.tables import BROKEN_DOWN, ORIGINAL, RULE
from lessvfl_bench.store import Records
from lessvfl_bench.study import (
    PUBLIC,
    UNFIT,
    Call,
    NameList,
    NumberList,
    Say,
    check_options,
    gather,
    option,
    workers,
)

DATA = (*PUBLIC, "isolet1", "pcmac", "rosmap", "mfeat", "credit")


@dataclass(frozen=True)
class Contest:
    """What to compare."""

    data: NameList = option(DATA, "By name or file: phishing,digits.")
    transports: NameList = option(
        TRANSPORTS, "Of paper,ours; the breakdown needs both."
    )
    methods: NameList = option(METHODS, "As in plain,less-vfl,less-vfl-auto.")
    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each: 0,1,2.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    device: str = option("cpu", "Where lambdas are tried; runs are on the CPU.")
    jobs: int = option(1, "Processes at a time.")


def run(
    contest: Contest,
    folder: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Choose lambdas, run every cell, compare; docs/equal.md has the results."""
    lists = {"data": contest.data, "seeds": contest.seeds}
    lists |= {"methods": contest.methods, "transports": contest.transports}
    check_options(
        lists,
        {
            "methods": (contest.methods, METHODS),
            "transports": (contest.transports, TRANSPORTS),
            "device": (contest.device, ("cpu", "cuda", "auto")),
        },
    )
    began = time.perf_counter()
    bench = _Bench(contest, Records(folder, resume), say)
    with workers(contest.jobs) as call:
        found = bench.runs(call, bench.lambdas(call))
    if not found:
        raise DataError(f"No data set can be used. {next(iter(bench.unfit.values()))}")
    rows = tables.rows(found)
    return {
        "data": list(contest.data),
        "seeds": list(contest.seeds),
        "spurious": cells.SPURIOUS,
        "skipped": bench.unfit,
        "rows": rows,
        "verdicts": tables.verdicts(rows),
        "breakdown": tables.breakdown(found),
        "jobs": contest.jobs,
        "lessvfl": __version__,
        "seconds": time.perf_counter() - began,
    }


@dataclass(frozen=True)
class _Bench:
    """A contest, and what of it is known already."""

    contest: Contest
    records: Records
    say: Say
    unfit: dict[str, str] = field(default_factory=dict)  # data set -> why it has none

    def lambdas(self, call: Call) -> dict[Cell, dict[str, cells.Trial]]:
        """Choose the lambdas of every method that has some."""
        own = self.contest
        need = [
            (cell, lam)
            for cell in self._cells()
            for lam in cells.server_lambdas(cell.method)
        ]
        attempt = partial(cells.try_lambdas, device=own.device, folder=own.data_dir)
        found = self._gather(attempt, need, call, "lam_server")
        trials: dict[Cell, list[Any]] = {}
        for cell, lam in need:  # in the order of the grid
            if cell.data not in self.unfit:
                trials.setdefault(cell, []).extend(found[cell, lam]["trials"])
        return {cell: cells.choose(some) for cell, some in trials.items()}

    def runs(
        self, call: Call, chosen: dict[Cell, dict[str, cells.Trial]]
    ) -> list[tables.CellRuns]:
        """Run every cell with every seed; the same lambdas by two rules run once."""
        asked: dict[tuple[Cell, str], Cell] = {}  # by the rule that gave its lambdas
        for cell in self._cells():
            for rule, trial in chosen.get(cell, {"": {"lambdas": {}}}).items():
                own = replace(cell, lambdas=tuple(trial["lambdas"].items()))
                asked[cell, rule] = own
            if cell.method == "plain":
                bare = replace(cell, spurious=0.0)
                asked[bare, ORIGINAL] = bare
        if set(TRANSPORTS) <= set(self.contest.transports):
            for cell, rule in [key for key in asked if _begins(*key)]:
                for step in STEPS[1:-1]:
                    own = replace(asked[cell, rule], transport=step)
                    asked[replace(cell, transport=step), rule] = own
        seeds = self.contest.seeds
        todo = [
            (cell, seed) for cell in dict.fromkeys(asked.values()) for seed in seeds
        ]
        run = partial(cells.run, folder=self.contest.data_dir)
        done = self._gather(run, todo, call, "seed")
        return [
            tables.CellRuns(
                cell,
                rule,
                chosen.get(cell, {}).get(rule, {}),
                [done[own, seed] for seed in seeds],
            )
            for (cell, rule), own in asked.items()
            if cell.data not in self.unfit
        ]

    def _cells(self) -> list[Cell]:
        own = self.contest
        return [
            Cell(name, transport, method)
            for name in own.data
            if name not in self.unfit
            for transport in own.transports
            for method in own.methods
        ]

    def _gather(
        self, function: Callable[..., Any], todo: Sequence[Any], call: Call, name: str
    ) -> dict[Any, Any]:
        """Return what a function gives for cells and an argument of that name."""

        def record(cell: Cell, value: object) -> tuple[str, dict[str, Any]]:
            about = cell.about | {name: value}
            return f"{Path(cell.data).stem}-{cell.method}", about

        found = gather(function, todo, record, self.records, call, self.say)
        for (cell, _), one in found.items():
            if UNFIT in one and cell.data not in self.unfit:
                self.unfit[cell.data] = one[UNFIT]
                self.say(f"{cell.data} is left out: {one[UNFIT]}")
        return found


def _begins(cell: Cell, rule: str) -> bool:
    """Tell whether the breakdown begins with a cell."""
    place = (cell.method, cell.transport, rule)
    return place == (BROKEN_DOWN, STEPS[0], RULE)
