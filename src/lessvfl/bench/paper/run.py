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
from lessvfl.bench.paper import plan, printed, tables
from lessvfl.bench.paper.chunks import Bench, Say
from lessvfl.bench.paper.curves import (
    Curve,
    Ending,
    ending,
    plain_curve,
    selection_curve,
)
from lessvfl.bench.paper.scene import Scene, Spec
from lessvfl.bench.paper.store import Place, Store
from lessvfl.core.device import resolve_device
from lessvfl.data import Dataset
from lessvfl.errors import ConfigError, DataError, LessVFLError
from lessvfl.run import profiles
from lessvfl.run.record import write_atomically

PROFILES = ("official-code", "paper")
CHOICES = ("published", "grid")
DATA = ("phishing", "sylva_train", "gina_reconstruction", "activity_time265", "mimic3")
SEEDS = (0, 1, 2, 3, 4)
FILE_NAME = "bench.json"

PUBLISHED = "published"
BY_TRAINING = "training accuracy"
BY_VALIDATION = "validation accuracy"


@dataclass(frozen=True)
class Options:
    """What to run and how; names as on the command line.

    Parameters
    ----------
    data : sequence of str
        Names of data sets, or files; one that cannot be had is listed without numbers
        of ours.
    profile, settings : str
        ``official-code`` or ``paper``; ``published`` or ``grid``.
    tables, figures : sequence of int
        Numbers of the paper's.
    seeds : sequence of int
        One run of every setting each.
    device : str
        ``cpu``, ``cuda`` or ``auto``.
    data_dir : Path or None
        Folder of local data sets.
    memory : int or None
        Bytes a chunk may take.
    tf32 : bool
        Rounded matrix products on CUDA.
    overrides : mapping
        Settings that differ from the profile's.
    """

    data: Sequence[str] = DATA
    profile: str = "official-code"
    settings: str = "published"
    tables: Sequence[int] = plan.TABLES
    figures: Sequence[int] = plan.FIGURES
    seeds: Sequence[int] = SEEDS
    device: str = "auto"
    data_dir: Path | None = None
    memory: int | None = None
    tf32: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        for name, value, allowed in (
            ("profile", self.profile, PROFILES),
            ("settings", self.settings, CHOICES),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"The '{name}' option must be one of {', '.join(allowed)}. "
                    f"Got {value!r} instead."
                )
        for name, numbers, known in (
            ("tables", self.tables, plan.TABLES),
            ("figures", self.figures, plan.FIGURES),
        ):
            wrong = [n for n in numbers if n not in known]
            if wrong:
                raise ConfigError(
                    f"The '{name}' option must hold numbers out of "
                    f"{', '.join(map(str, known))}. Got {wrong[0]}."
                )
        if not self.tables and not self.figures:
            raise ConfigError("At least one table or figure must be asked for.")
        for name, values in (("data", self.data), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ConfigError(
                    f"The '{name}' option must name at least one, each once. "
                    f"Got {list(values)}."
                )
        if any(not 0 <= seed < 2**63 for seed in self.seeds):
            raise ConfigError(
                "Every seed must be a whole number in [0, 2**63). "
                f"Got {list(self.seeds)}."
            )
        if self.memory is not None and self.memory <= 0:
            raise ConfigError(
                f"The 'memory' option must be above 0 bytes. Got {self.memory}."
            )


def options_of(
    *,
    tables: Sequence[int] | None,
    figures: Sequence[int] | None,
    memory: float | None,
    **others: Any,
) -> Options:
    """Read the options of a command.

    Tables or figures named alone ask for nothing else; `memory` is in GiB.
    """
    if tables is None and figures is None:
        tables, figures = plan.TABLES, plan.FIGURES
    n_bytes = None if memory is None else int(memory * 2**30)
    return Options(tables=tables or (), figures=figures or (), memory=n_bytes, **others)


def run(
    options: Options,
    folder: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run what the tables and figures need, once, and put them together.

    Parameters
    ----------
    options : Options
        What to run.
    folder : Path, optional
        Where records and ``bench.json``, what is returned, go.
    resume : bool
        Go on after the records that the folder holds.
    say : callable
        Told what is being run.

    Returns
    -------
    dict
        The object that ``lessvfl bench paper --json`` prints (docs/benchmarks.md).
    """
    start = time.perf_counter()
    if resume and folder is None:
        raise ConfigError("The '--resume' option needs the '--out' folder to go on in.")
    store = Store(folder, resume)
    bench = Bench(
        options.profile,
        tuple(options.seeds),
        resolve_device(options.device).type,
        store,
        options.memory,
        options.overrides,
        options.tf32,
        say,
    )
    found: dict[str, tables.Findings | None] = {}
    facts: list[dict[str, Any]] = []
    for name, dataset in _load(options).items():
        if isinstance(dataset, DataError):
            found[name] = None
            facts.append(_no_facts(name, dataset))
        else:
            found[name], fact = _run_data(bench, options, dataset)
            facts.append(fact)
    with bench.clock.part("tables"):
        results = {
            "lessvfl": __version__,
            "profile": options.profile,
            "settings": options.settings,
            "seeds": list(options.seeds),
            "tf32": options.tf32,
            "data": facts,
            "tables": {
                str(n): _table(n, options, found) for n in sorted(set(options.tables))
            },
            "figures": {
                str(n): _figure(n, found) for n in sorted(set(options.figures))
            },
        }
    seconds = dict(bench.clock.seconds)
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


def _no_facts(name: str, error: LessVFLError) -> dict[str, Any]:
    return {"name": name, "paper_name": plan.paper_name(name), "note": str(error)}


# ---------------------------------------------------------------------- one data set


def _run_data(
    bench: Bench, options: Options, dataset: Dataset
) -> tuple[tables.Findings, dict[str, Any]]:
    wanted, figures = tuple(options.tables), tuple(options.figures)
    choosing = options.settings == "grid"
    bare = bench.scene(dataset, 0.0)
    original = _plain(bench, bare, "original")
    scene = bench.scene(dataset, plan.EVEN)
    drawn = any(plan.is_shown(n, dataset.name) for n in figures if n in (2, 4, 6))
    spurious = _plain(bench, scene, "spurious") if drawn else []
    specs = plan.needed(bench.profile, dataset, wanted, figures, choosing)
    even = _curves(scene, bench.selections(scene, specs))
    choices: dict[str, dict[str, Spec | None]] = {
        PUBLISHED: dict(plan.communication(bench.profile, dataset))
    }
    by_epochs = {PUBLISHED: plan.by_epochs(bench.profile, dataset)}
    if choosing:
        held = scene.held_out()
        grid = plan.whole_grid(dataset.name)
        places = bench.selections(held, grid, curve=False)
        readings = {
            BY_TRAINING: {
                spec: [tables.training_ending(c, bench.profile) for c in even[spec]]
                for spec in grid
            },
            BY_VALIDATION: {
                spec: [ending(held, places[spec], s) for s in range(len(bench.seeds))]
                for spec in grid
            },
        }
        for name, runs in readings.items():
            choices[name], by_epochs[name] = _choose(runs, grid)
    uneven: Mapping[Spec, Sequence[Curve]] = {}
    n_parties = len(scene.tables.widths)
    shares = (*plan.UNEVEN, *[0.0] * n_parties)[:n_parties]
    if 3 in wanted:
        other = bench.scene(dataset, shares)
        chosen = {s for by in choices.values() for s in by.values() if s is not None}
        uneven = _curves(other, bench.selections(other, sorted(chosen)))
    tally = np.bincount(scene.problem.y_test)
    found = tables.Findings(
        dataset.name,
        bench.profile,
        float(tally.max() / tally.sum()),
        scene.tables.n_classes,
        original,
        spurious,
        even,
        uneven,
        shares,
        choices,
        by_epochs,
        {
            use: plan.of_figure(use, bench.profile, dataset)
            for use in ("removal", "accuracy")
        },
    )
    return found, _facts(scene, found)


def _plain(bench: Bench, scene: Scene, name: str) -> list[Curve]:
    place = bench.baseline(scene, name)
    return [plain_curve(scene, place, s) for s in range(len(scene.seeds))]


def _curves(scene: Scene, places: Mapping[Spec, Place]) -> dict[Spec, list[Curve]]:
    return {
        spec: [selection_curve(scene, spec, place, s) for s in range(len(scene.seeds))]
        for spec, place in places.items()
    }


def _choose(
    runs: Mapping[Spec, Sequence[Ending]], grid: Sequence[Spec]
) -> tuple[dict[str, Spec | None], list[Spec]]:
    """Choose a setting a method, and one a method and length of pre-training."""
    overall = {method: tables.choose(runs, method, grid) for method in plan.METHODS}
    lengths = sorted({s.pretrain_epochs for s in grid if s.pretrain_epochs})
    by_length = [
        tables.choose(runs, method, [s for s in grid if s.pretrain_epochs == length])
        for method in ("local-lasso", "less-vfl")
        for length in lengths
    ]
    return overall, [spec for spec in by_length if spec is not None]


def _facts(scene: Scene, found: tables.Findings) -> dict[str, Any]:
    problem = scene.problem
    name = scene.dataset.name
    notes = list(problem.notes)
    return {
        "name": name,
        "paper_name": plan.paper_name(name),
        "same": name not in profiles.STAND_INS,
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
        "note": " ".join(notes) or None,
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
            entries += _lambda_table(number, options, one)
    return entries


def _lambda_table(
    number: int, options: Options, one: tables.Findings
) -> list[dict[str, Any]]:
    pairs = plan.lambda_rows(number, one.data)
    if options.settings == "grid":
        own = {s.lam_party for s in plan.whole_grid(one.data)}
        servers = plan.published()["grid"]["lam_server"]
        pairs = list(dict.fromkeys([*pairs, *((m, s) for m in own for s in servers)]))
    pairs.sort(reverse=True)
    return tables.lambda_table(
        number,
        one,
        pairs,
        lambda method, pair: plan.lambda_spec(one.choices[PUBLISHED][method], pair),
    )


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
            last = tables.FIRST_EPOCHS if number == 6 else None
            panels.append(tables.cost_panel(one, last))
    return panels
