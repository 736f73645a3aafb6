"""Run methods of feature selection across parties, and put them side by side."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from lessvfl import __version__, methods
from lessvfl_bench.equal import cells
from lessvfl_bench.equal.run import DATA as EQUAL
from lessvfl_bench.rivals import places, published, splits, tables
from lessvfl_bench.rivals.columns import REVEALED
from lessvfl_bench.rivals.places import RivalCell, RivalPlace
from lessvfl_bench.shapes import held_out, made
from lessvfl_bench.store import Records
from lessvfl_bench.study import (
    Call,
    NameList,
    NumberList,
    Repeated,
    Say,
    check_options,
    gather,
    option,
    workers,
)

DATA = (*EQUAL, "arcene")
SPLITS = (
    *("importance:0.1", "importance:1", "importance:100"),
    *("correlation:0", "correlation:0.5", "correlation:1"),
)
LAMBDAS = ("profile", "grid")
RULE = "accuracy"  # by which lambdas are chosen on rows held out
SEEDS = (0, 1, 2)
SHAPES = ("weak parties", "xor within", "correlated blocks")

# What is left out of a command is that of its size; an option says otherwise.
SIZES: dict[str, dict[str, Any]] = {
    "usual": {"data": ("phishing", "rosmap"), "shapes": SHAPES},
    "full": {
        "data": DATA,
        "shapes": tuple(made.SHAPES),
        "splits": SPLITS,
        "published": tuple(published.GATES),
        "seeds": (0, 1, 2, 3, 4),
        "lambdas": "grid",
    },
    "smoke": {
        "data": (),
        "shapes": ("u-shapes, 300 rows",),
        "splits": ("importance:1",),
        "split_data": ("breast-cancer",),
        "split_parties": (2,),
        "published": ("breast-cancer",),
        "seeds": (0,),
    },
}


@dataclass(frozen=True)
class Rivals:
    """What to compare, and where."""

    data: NameList = option(("phishing", "rosmap"), "By name or file: phishing,digits.")
    shapes: Repeated = option((), "A shape of known truth, once for each.")
    splits: NameList = option(
        (), "Columns dealt anew, as in importance:0.1,correlation:1."
    )
    split_data: NameList = option(("phishing", "mfeat"), "Data sets that are.")
    split_parties: NumberList = option((2, 4, 8), "To how many parties.")
    published: NameList = option(
        (),
        "Data sets in the setting of FedSDG-FS's Table III, beside its numbers: "
        "pcmac,isolet1; a seed is a fold.",
    )
    methods: NameList = option(tuple(methods.METHODS), "All unless given.")
    seeds: NumberList = option(SEEDS, "One run each: 0,1,2.")
    lambdas: str = option(
        "profile",
        "Of the paper's methods: the profile's, or on data sets those of the grid "
        "that are most accurate on rows held out.",
    )
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    jobs: int = option(1, "Processes at a time.")
    full: bool = option(False, "All data sets, shapes and splits, 5 seeds, the grid.")
    smoke: bool = option(False, "The smallest size: seconds, no data set.")

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Return what was given, the rest by size.

        Data, shapes, splits or published ones named alone ask for nothing else.
        """
        size = next((s for s in ("smoke", "full") if given.get(s)), "usual")
        start = dict(SIZES[size])
        what = ("data", "shapes", "splits", "published")
        if any(given.get(name) for name in what):
            start |= dict.fromkeys(what, ())
        return cls(**{**start, **given})

    def places(self) -> list[RivalPlace]:
        """Return where methods are compared."""
        return [
            *(RivalPlace(name) for name in self.data),
            *(
                RivalPlace(name, split, n)
                for name in self.split_data
                for split in self.splits
                for n in self.split_parties
            ),
            *(RivalPlace(name, is_published=True) for name in self.published),
            *(RivalPlace(name, is_shape=True) for name in self.shapes),
        ]


def run(
    rivals: Rivals,
    folder: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run every method at every place with every seed; docs/rivals.md reads it."""
    _check(rivals)
    began = time.perf_counter()
    bench = _Bench(rivals, Records(folder, resume), say)
    with workers(rivals.jobs) as call:
        found = bench.runs(call, bench.lambdas(call))
    rows = tables.rows(found, methods.DEFAULT)
    return {
        "places": [place.title for place in rivals.places()],
        "methods": list(rivals.methods),
        "seeds": list(rivals.seeds),
        "spurious": places.SPURIOUS,
        "lambdas": rivals.lambdas,
        "default": methods.DEFAULT,
        "rows": rows,
        "verdicts": tables.verdicts(rows),
        "behind": tables.behind(rows),
        "revealed": {name: REVEALED.get(name) for name in rivals.methods},
        "references": {name: methods.get(name).reference for name in rivals.methods},
        "jobs": rivals.jobs,
        "lessvfl": __version__,
        "seconds": time.perf_counter() - began,
    }


def _check(rivals: Rivals) -> None:
    """Refuse what is not known, or named twice."""
    lists: dict[str, Sequence[Any]] = {"seeds": rivals.seeds, "data": rivals.places()}
    lists["methods"] = rivals.methods
    known_shapes = {**made.SHAPES, **held_out.HELD_OUT}
    check_options(
        lists,
        {
            "methods": (rivals.methods, methods.METHODS),
            "shapes": (rivals.shapes, known_shapes),
            "lambdas": (rivals.lambdas, LAMBDAS),
        },
    )
    for split in rivals.splits:
        splits.read(split)


@dataclass(frozen=True)
class _Bench:
    """A comparison, and what of it is known already."""

    rivals: Rivals
    records: Records
    say: Say

    def lambdas(self, call: Call) -> dict[tuple[str, str], dict[str, float]]:
        """Choose the lambdas of the paper's methods, by data set and method."""
        own = self.rivals
        if own.lambdas == "profile":
            return {}
        names = dict.fromkeys(
            p.data for p in own.places() if not p.is_shape and not p.is_published
        )
        need = [
            (cells.Cell(name, "ours", method), lam)
            for name in names
            for method in own.methods
            for lam in cells.server_lambdas(method)
        ]

        def record(cell: cells.Cell, lam: object) -> tuple[str, dict[str, Any]]:
            about = cell.about | {"lam_server": lam}
            return _file(cell.data, cell.method, "lambdas"), about

        attempt = partial(cells.try_lambdas, device="cpu", folder=own.data_dir)
        found = gather(attempt, need, record, self.records, call, self.say)
        trials: dict[tuple[str, str], list[Any]] = {}
        for cell, lam in need:  # in the order of the grid
            some = trials.setdefault((cell.data, cell.method), [])
            some += found[cell, lam].get("trials", ())
        return {
            key: dict(cells.choose(some)[RULE]["lambdas"])
            for key, some in trials.items()
            if some
        }

    def runs(
        self, call: Call, chosen: dict[tuple[str, str], dict[str, float]]
    ) -> list[tables.RivalRuns]:
        """Run every method at every place with every seed."""
        own = self.rivals

        def cells_of(place: RivalPlace) -> Iterator[RivalCell]:
            if place.is_published:
                for title, column in published.COLUMNS.items():
                    if column.method in own.methods:
                        yield RivalCell(place, column.method, title=title)
                return
            for method in own.methods:
                known = {} if place.is_shape else chosen.get((place.data, method), {})
                yield RivalCell(place, method, tuple(known.items()))

        asked = [cell for place in own.places() for cell in cells_of(place)]
        todo = [(cell, seed) for cell in asked for seed in own.seeds]

        def record(cell: RivalCell, seed: int) -> tuple[str, dict[str, Any]]:
            return _file(cell.place.data, cell.method), cell.about | {"seed": seed}

        measure = partial(places.run, folder=own.data_dir)
        done = gather(measure, todo, record, self.records, call, self.say)
        return [
            tables.RivalRuns(cell, [done[cell, seed] for seed in own.seeds])
            for cell in asked
        ]


def _file(name: str, *more: str) -> str:
    """Return how the name of a record begins."""
    return "-".join([re.sub(r"\W+", "-", Path(name).name), *more])
