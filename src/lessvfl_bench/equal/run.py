"""Run every method under the same transports, and put the numbers side by side."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl_bench.equal import cells, tables
from lessvfl_bench.equal.cells import METHODS, STEPS, TRANSPORTS, Cell
from lessvfl_bench.equal.tables import BROKEN_DOWN, ORIGINAL, RULE
from lessvfl_bench.options import check_options
from lessvfl_bench.store import Records

CellTask = tuple[Any, Any]  # the arguments of a function: a cell, and one more
Call = Callable[
    [Callable[..., Any], Sequence[CellTask]], Iterator[tuple[CellTask, Any]]
]


@dataclass(frozen=True)
class Contest:
    """What to compare."""

    data: Sequence[str]
    transports: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    data_dir: Path | None
    device: str = "cpu"  # of the lambdas, all tried in one batch; runs are on the CPU
    jobs: int = 1


def run(
    contest: Contest,
    folder: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
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
    with _workers(contest.jobs) as call:
        found = bench.runs(call, bench.lambdas(call))
    rows = tables.rows(found)
    return {
        "data": list(contest.data),
        "seeds": list(contest.seeds),
        "spurious": cells.SPURIOUS,
        "rows": rows,
        "verdicts": tables.verdicts(rows),
        "breakdown": tables.breakdown(found),
        "jobs": contest.jobs,
        "lessvfl": __version__,
        "seconds": time.perf_counter() - began,
    }


@contextmanager
def _workers(n_jobs: int) -> Iterator[Call]:
    """Yield a way to call a function for many tasks, in as many processes.

    It gives each task with its result, as soon as it is done.
    """
    if n_jobs == 1:
        yield lambda function, tasks: ((task, function(*task)) for task in tasks)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before a process loads PyTorch
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_jobs, spawn) as pool:

        def call(
            function: Callable[..., Any], tasks: Sequence[CellTask]
        ) -> Iterator[tuple[CellTask, Any]]:
            waiting = {pool.submit(function, *task): task for task in tasks}
            for done in as_completed(waiting):
                yield waiting[done], done.result()

        yield call


@dataclass(frozen=True)
class _Bench:
    """A contest, and what of it is known already."""

    contest: Contest
    records: Records
    say: Callable[[str], None]

    def lambdas(self, call: Call) -> dict[Cell, dict[str, cells.Trial]]:
        """Choose the lambdas of every method that has some."""
        own = self.contest
        need = [
            (cell, lams)
            for cell in self._cells()
            for lams in cells.server_lambdas(cell.method, own.device)
        ]
        attempt = partial(cells.try_lambdas, device=own.device, folder=own.data_dir)
        found = dict(self._kept(attempt, need, call, "lam_server"))
        trials: dict[Cell, list[Any]] = {}
        for cell, lams in need:  # in the order of the grid
            trials.setdefault(cell, []).extend(found[cell, lams]["trials"])
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
        done = dict(self._kept(run, todo, call, "seed"))
        return [
            tables.CellRuns(
                cell,
                rule,
                chosen.get(cell, {}).get(rule, {}),
                [done[own, seed] for seed in seeds],
            )
            for (cell, rule), own in asked.items()
        ]

    def _cells(self) -> list[Cell]:
        own = self.contest
        return [
            Cell(name, transport, method)
            for name in own.data
            for transport in own.transports
            for method in own.methods
        ]

    def _kept(
        self,
        function: Callable[..., Any],
        todo: Sequence[CellTask],
        call: Call,
        argument: str,
    ) -> Iterator[tuple[CellTask, Any]]:
        """Yield what a function gives for a cell and an argument, or a record has."""
        new = []
        for task in todo:
            found = self.records.find(*_name(*task, argument))
            if found is None:
                new.append(task)
            else:
                yield task, found
        for n, (task, found) in enumerate(call(function, new)):
            self.records.add(*_name(*task, argument), found)
            cell, value = task
            words = [cell.data, cell.transport, cell.method, f"{argument} {value}"]
            self.say(f"{n + 1} of {len(new)}: {', '.join(words)}")
            yield task, found


def _begins(cell: Cell, rule: str) -> bool:
    """Tell whether the breakdown begins with a cell."""
    place = (cell.method, cell.transport, rule)
    return place == (BROKEN_DOWN, STEPS[0], RULE)


def _name(cell: Cell, value: object, argument: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a task's record, and what it is about."""
    about = cell.about | {argument: value}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return f"{Path(cell.data).stem}-{cell.method}-{digest[:12]}", about
