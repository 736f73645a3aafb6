"""Run every method under the same transports, and put the numbers side by side."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl.bench.equal import cells, tables
from lessvfl.bench.equal.cells import METHODS, STEPS, TRANSPORTS, Cell
from lessvfl.bench.equal.tables import BROKEN_DOWN, ORIGINAL
from lessvfl.bench.options import check_options
from lessvfl.bench.store import Records

DATA = (
    "phishing",
    "sylva_train",
    "gina_reconstruction",
    "activity_time265",
    "isolet1",
    "pcmac",
    "rosmap",
    "mfeat",
    "credit",
)
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@dataclass(frozen=True)
class Contest:
    """What to compare."""

    data: Sequence[str]
    transports: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[int]
    data_dir: Path | None
    jobs: int = 1


def run(
    comparison: Contest,
    folder: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Choose lambdas, run every cell, compare; docs/equal.md has the results."""
    lists = {"data": comparison.data, "seeds": comparison.seeds}
    lists |= {"methods": comparison.methods, "transports": comparison.transports}
    check_options(
        lists,
        {
            "methods": (comparison.methods, METHODS),
            "transports": (comparison.transports, TRANSPORTS),
        },
    )
    began = time.perf_counter()
    bench = _Bench(comparison, Records(folder, resume), say)
    with _workers(comparison.jobs) as mapped:
        lambdas = bench.lambdas(mapped)
        found = bench.runs(mapped, lambdas)
    rows = tables.rows(found)
    return {
        "data": list(comparison.data),
        "seeds": list(comparison.seeds),
        "spurious": cells.SPURIOUS,
        "rows": rows,
        "verdicts": tables.verdicts(rows),
        "breakdown": tables.breakdown(found),
        "jobs": comparison.jobs,
        "lessvfl": __version__,
        "seconds": time.perf_counter() - began,
    }


@contextmanager
def _workers(n_jobs: int) -> Iterator[Map]:
    """Yield a way to call a function for many, in as many processes."""
    if n_jobs == 1:
        yield map
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before a process loads PyTorch
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_jobs, spawn) as pool:
        yield pool.map


@dataclass(frozen=True)
class _Bench:
    """A comparison, and what of it is known already."""

    comparison: Contest
    records: Records
    say: Callable[[str], None]

    def lambdas(self, mapped: Map) -> dict[Cell, dict[str, cells.Lambdas]]:
        """Choose the lambdas of every method that has some."""
        need = [cell for cell in self._cells() if cells.lambdas_of(cell.method)]
        choose = partial(cells.choose, folder=self.comparison.data_dir)
        return dict(self._kept("lambdas", need, choose, {}, mapped))

    def runs(
        self, mapped: Map, lambdas: dict[Cell, dict[str, cells.Lambdas]]
    ) -> list[tables.CellRuns]:
        """Run every cell; the same lambdas by two rules run once."""
        asked: dict[tuple[Cell, str], Cell] = {}  # by the rule that gave its lambdas
        for cell in self._cells():
            for rule, some in lambdas.get(cell, {"": {}}).items():
                asked[cell, rule] = replace(cell, lambdas=tuple(some.items()))
        if set(TRANSPORTS) <= set(self.comparison.transports):
            for (cell, rule), own in list(asked.items()):
                if (cell.method, cell.transport) == (BROKEN_DOWN, "paper"):
                    for step in STEPS[1:-1]:
                        asked[replace(cell, transport=step), rule] = replace(
                            own, transport=step
                        )
        for cell in self._cells():
            if cell.method == "plain":
                bare = replace(cell, spurious=0.0)
                asked[bare, ORIGINAL] = bare
        seeds = self.comparison.seeds
        run = partial(cells.run, seeds=seeds, folder=self.comparison.data_dir)
        todo = list(dict.fromkeys(asked.values()))
        done = dict(self._kept("runs", todo, run, {"seeds": list(seeds)}, mapped))
        return [
            tables.CellRuns(cell, rule, own.about["lambdas"], done[own])
            for (cell, rule), own in asked.items()
        ]

    def _cells(self) -> list[Cell]:
        own = self.comparison
        return [
            Cell(name, transport, method)
            for name in own.data
            for transport in own.transports
            for method in own.methods
        ]

    def _kept(
        self,
        kind: str,
        todo: Sequence[Cell],
        function: Callable[[Cell], dict[str, Any]],
        more: dict[str, Any],
        mapped: Map,
    ) -> Iterator[tuple[Cell, Any]]:
        """Yield what a function gives for every cell, out of records where there."""
        new = []
        for cell in todo:
            about = cell.about | more
            found = self.records.find(_name(kind, about), about)
            if found is None:
                new.append(cell)
            else:
                yield cell, found
        for n, (cell, found) in enumerate(zip(new, mapped(function, new), strict=True)):
            about = cell.about | more
            self.records.add(_name(kind, about), about, found)
            self.say(
                f"{kind} {n + 1} of {len(new)}: {cell.data}, {cell.transport}, "
                f"{cell.method}"
            )
            yield cell, found


def _name(kind: str, about: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return f"{kind}-{Path(about['data']).stem}-{about['method']}-{digest[:10]}"
