"""``lessvfl bench paper``: every table and figure of the paper, from one call."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl import __version__, data
from lessvfl.core.device import resolve_device
from lessvfl.data import Dataset
from lessvfl.errors import ConfigError, DataError
from lessvfl.run import profiles
from lessvfl.run.record import write_atomically
from lessvfl_bench.paper import curves, plan, printed, tables
from lessvfl_bench.paper.chunks import Bench
from lessvfl_bench.paper.curves import Curve, Ending
from lessvfl_bench.paper.scene import Scene, Spec
from lessvfl_bench.paper.store import Place, Store
from lessvfl_bench.paper.tables import PUBLISHED
from lessvfl_bench.study import NameList, NumberList, Say, check_options, option

PROFILES = ("official-code", "paper")
CHOICES = ("published", "grid")
DATA = ("phishing", "sylva", "gina", "activity", "mimic3")
# Whose data to run, and the names that are then others.
SOURCES: dict[str, Mapping[str, str]] = {
    "real": profiles.STAND_INS,
    "stand-in": {real: own for own, real in profiles.STAND_INS.items()},
}
SEEDS = (0, 1, 2, 3, 4)
FILE_NAME = "bench.json"


@dataclass(frozen=True)
class Options:
    """What to run and how; names as on the command line."""

    data: NameList = option(DATA, "By name or file: phishing,digits; else all.")
    source: str | None = option(
        None, "real (unless --data is given), or stand-in: of Gina, Sylva, Activity."
    )
    profile: str = option("official-code", "official-code or paper.")
    settings: str = option("published", "published, or grid: run it whole and choose.")
    tables: NumberList = option(
        plan.TABLES, "Of these; none where --figures is given alone."
    )
    figures: NumberList = option(
        plan.FIGURES, "Of these; none where --tables is given alone."
    )
    seeds: NumberList = option(SEEDS, "One run each: 0,1,2.")
    device: str = option("auto", "cpu, cuda or auto.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    memory: float | None = option(
        None, "GiB a chunk of runs may take; else asked of the device."
    )
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        data: Sequence[str] | None = None,
        source: str | None = None,
        tables: Any = None,
        figures: Any = None,
        memory: float | None = None,
        **others: Any,
    ) -> Options:
        """Read the options of a command.

        Tables or figures named alone ask for nothing else; `memory` is in GiB, and in
        bytes afterwards. Data that are named are meant as such unless a source is, too.
        """
        if tables is None and figures is None:
            tables, figures = plan.TABLES, plan.FIGURES
        if data is None:
            data, source = DATA, source or "real"
        others_named = SOURCES.get(source or "", {})
        return cls(
            data=tuple(others_named.get(name, name) for name in data),
            source=source,
            tables=tables or (),
            figures=figures or (),
            memory=None if memory is None else int(memory * 2**30),
            **others,
        )

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        check_options(
            {"data": self.data, "seeds": self.seeds},
            {
                "profile": (self.profile, PROFILES),
                "settings": (self.settings, CHOICES),
                **({"source": (self.source, SOURCES)} if self.source else {}),
                "tables": (self.tables, plan.TABLES),
                "figures": (self.figures, plan.FIGURES),
            },
        )
        if not self.tables and not self.figures:
            raise ConfigError("At least one table or figure must be asked for.")
        if self.memory is not None and self.memory <= 0:
            raise ConfigError(
                f"The 'memory' option must be above 0 bytes. Got {self.memory}."
            )


def run(
    options: Options,
    folder: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run what the tables and figures need, once, and put them together.

    Records and ``bench.json`` go into `folder`; `resume` goes on after those it holds.
    Returns the object that ``lessvfl bench paper --json`` prints (docs/benchmarks.md).
    """
    start = time.perf_counter()
    store, seeds = Store(folder, resume), tuple(options.seeds)
    device = resolve_device(options.device).type
    limits = (options.memory, options.overrides)
    bench = Bench(options.profile, seeds, device, store, *limits, say)
    found: dict[str, tables.Findings | None] = {}
    facts: list[dict[str, Any]] = []
    for name, dataset in _load(options).items():
        if isinstance(dataset, DataError):
            found[name] = None
            fact = {"paper_name": plan.paper_name(name), "note": str(dataset)}
            facts.append({"name": name} | fact)
        else:
            found[name], fact = _run_data(bench, options, dataset)
            facts.append(fact)
    with bench.part("tables"):
        results: dict[str, Any] = {
            "lessvfl": __version__,
            "profile": options.profile,
            "settings": options.settings,
            "source": options.source,
            "seeds": list(options.seeds),
            "data": facts,
            "tables": {
                str(n): _table(n, options, found) for n in sorted(options.tables)
            },
            "figures": {str(n): _figure(n, found) for n in sorted(options.figures)},
        }
    seconds = dict(bench.seconds)
    seconds["total"] = time.perf_counter() - start
    results |= {"seconds": seconds, "device": "+".join(sorted(store.devices))}
    if folder is not None:
        text = json.dumps(results, allow_nan=False, indent=1)
        write_atomically(folder / FILE_NAME, text.encode())
    return results


def _load(options: Options) -> dict[str, Dataset | DataError]:
    """Load all data sets before anything is run; at least one must be there."""
    found: dict[str, Dataset | DataError] = {}
    for name in options.data:
        try:
            dataset = data.load(name, data_dir=options.data_dir)
            found[dataset.name] = dataset
        except DataError as error:
            found[name] = error
    missing = [one for one in found.values() if isinstance(one, DataError)]
    if len(missing) == len(found):
        raise missing[0]
    return found


# ---------------------------------------------------------------------- one data set


def _run_data(
    bench: Bench, options: Options, dataset: Dataset
) -> tuple[tables.Findings, dict[str, Any]]:
    choosing, figures = options.settings == "grid", options.figures
    bare = bench.scene(dataset, 0.0)
    original = _plain(bench, bare, "original")
    scene = bench.scene(dataset, plan.EVEN)
    drawn = any(plan.is_shown(n, dataset.name) for n in figures if n in (2, 4, 6))
    spurious = _plain(bench, scene, "spurious") if drawn else []
    specs = plan.needed(bench.profile, dataset, options.tables, figures, choosing)
    even = _curves(scene, bench.selections(scene, specs))
    choices: dict[str, dict[str, Spec | None]] = {
        PUBLISHED: dict(plan.communication(bench.profile, dataset))
    }
    by_epochs = {PUBLISHED: plan.by_epochs(bench.profile, dataset)}
    if choosing:
        held, grid = scene.held_out(), plan.whole_grid(dataset.name)
        places = bench.selections(held, grid, curve=False)
        by_training, by_validation = {}, {}
        for spec in grid:
            by_training[spec] = [
                tables.training_ending(curve, bench.profile) for curve in even[spec]
            ]
            by_validation[spec] = [
                curves.ending(held, places[spec], s) for s in range(len(bench.seeds))
            ]
        for name, runs in (
            ("training accuracy", by_training),
            ("validation accuracy", by_validation),
        ):
            choices[name], by_epochs[name] = _choose(runs, grid)
    uneven: Mapping[Spec, Sequence[Curve]] = {}
    n_parties = len(scene.tables.widths)
    shares = (*plan.UNEVEN, *[0.0] * n_parties)[:n_parties]
    if 3 in options.tables:
        other = bench.scene(dataset, shares)
        chosen = {s for by in choices.values() for s in by.values() if s is not None}
        uneven = _curves(other, bench.selections(other, sorted(chosen)))
    tally = np.bincount(scene.problem.y_test)
    uses = ("removal", "accuracy")
    found = tables.Findings(
        data=dataset.name,
        profile=bench.profile,
        majority=float(tally.max() / tally.sum()),
        n_classes=scene.tables.n_classes,
        original=original,
        spurious=spurious,
        even=even,
        uneven=uneven,
        uneven_shares=shares,
        choices=choices,
        by_epochs=by_epochs,
        figures={use: plan.of_figure(use, bench.profile, dataset) for use in uses},
    )
    return found, _facts(scene, found)


def _plain(bench: Bench, scene: Scene, name: str) -> list[Curve]:
    return _curves(scene, {Spec("plain"): bench.baseline(scene, name)})[Spec("plain")]


def _curves(scene: Scene, places: Mapping[Spec, Place]) -> dict[Spec, list[Curve]]:
    n_seeds = range(len(scene.seeds))
    return {
        spec: [curves.selection_curve(scene, spec, place, s) for s in n_seeds]
        for spec, place in places.items()
    }


def _choose(
    runs: Mapping[Spec, Sequence[Ending]], grid: Sequence[Spec]
) -> tuple[dict[str, Spec | None], list[Spec]]:
    """Choose a setting for each method, and for each method and pre-training length."""
    overall = {method: tables.choose(runs, method, grid) for method in plan.METHODS}
    lengths = sorted({s.pretrain_epochs for s in grid if s.pretrain_epochs})
    by_length = [
        tables.choose(runs, method, [s for s in grid if s.pretrain_epochs == length])
        for method in ("local-lasso", "less-vfl")
        for length in lengths
    ]
    return overall, [spec for spec in by_length if spec is not None]


def _facts(scene: Scene, found: tables.Findings) -> dict[str, Any]:
    problem, name = scene.problem, scene.dataset.name
    return {
        "name": name,
        "paper_name": plan.paper_name(name),
        "same": name not in profiles.STAND_INS,
        "origin": scene.dataset.origin,
        "n_train": len(problem.y_train),
        "n_test": len(problem.y_test),
        "n_features": problem.n_features,
        "n_real": problem.n_real,
        "n_parties": len(problem.parties),
        "majority": found.majority,
        "baseline": {
            score: max(float(getattr(c, score).max()) for c in found.original)
            for score in ("accuracy", "balanced_accuracy")
        },
        "note": " ".join(problem.notes) or None,
    }


# ------------------------------------------------------------------ tables and figures


def _table(
    number: int, options: Options, found: Mapping[str, tables.Findings | None]
) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for name, one in found.items():
        if one is None:
            entries += _paper_alone(number, name)
        elif number in (2, 3):
            entries += tables.cost_table(number, one)
        elif number == 5:
            entries += tables.epochs_table(one)
        elif plan.paper_name(name) in plan.LAMBDA_TABLES[number]:
            pairs = plan.lambda_rows(number, name, options.settings == "grid")
            entries += tables.lambda_table(number, one, pairs)
    return entries


def _paper_alone(number: int, name: str) -> list[dict[str, Any]]:
    """Return the paper's numbers of data that cannot be had."""
    return [
        {
            "data": name,
            "method": row.method,
            "measure": row.measure,
            "settings": {"choice": PUBLISHED, **row.settings},
            "paper": {"mean": row.mean, "std": row.std},
            "ours": None,
        }
        for row in printed.rows(number)
        if row.data == plan.paper_name(name)
    ]


def _figure(
    number: int, found: Mapping[str, tables.Findings | None]
) -> list[dict[str, Any]]:
    panels = []
    for name, one in found.items():
        if one is None or not plan.is_shown(number, name):
            continue
        if number == 2:
            panels.append(tables.hurt_panel(one))
        elif number in (3, 5):
            panels.append(tables.removal_panel(one))
        else:
            panels.append(tables.cost_panel(one, tables.COST_EPOCHS[number]))
    return panels
