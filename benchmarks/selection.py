"""Selection without tuning: what every part of ``less-vfl-auto`` is worth.

Runs it with 50 % planted noise on real data, as it is and with one part changed at a
time, beside the published stages (``less-vfl``, profile ``default``) and VFL on the
original columns with the same networks (twice: steps of ``plain`` and steps of
``less-vfl-auto``; the better counts). For every variant and data set: bytes in both
directions until the paper's target (90 % of the best accuracy of VFL (Original), 80 %
of the noise removed), noise removed, real features kept, the share of shadows kept
(what the parties believe), accuracy straight after selection and at the end, balanced
accuracy as a share of the best of VFL (Original), of a logistic regression on the
features it kept, pooled (``of its features``), and of the better of the two; bytes and
rounds in all, and seconds to the target over three links.
Settings are the same for all data; test rows are for this table alone. The paper's four
come first, of which three are parts and stand-ins; of ``arcene`` the first 2,000
columns are taken.

    python benchmarks/selection.py --data-dir DIR --out selection.json
    python benchmarks/selection.py --data-dir DIR --only default --data phishing
    python benchmarks/selection.py --data-dir DIR --choose --try server_errors=0.5
    python benchmarks/selection.py --data-dir DIR --try method=less-vfl,adaptive=1

`--jobs` runs that many processes at once. `--choose` leaves the test rows out and
splits the training rows again: for choosing settings, which `--try` gives; there,
`method` and `profile` may be given, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import smoke
import torch
from shapes import linear_score

from lessvfl import data, methods
from lessvfl.data import Dataset
from lessvfl.errors import LessVFLWarning
from lessvfl.run import profiles, simulate
from lessvfl_bench.equal.cells import training_rows

PARTIES = {
    "phishing": 3,
    "sylva_train": 4,
    "gina_reconstruction": 4,
    "activity_time265": 4,
    "isolet1": 4,
    "pcmac": 4,
    "tox171": 4,
    "arcene": 4,
}
FIRST_COLUMNS = {"arcene": 2000}  # of the columns, where not all are taken
LINKS = {  # bits a second, seconds there and back
    "10 Mbit/s, 50 ms": (10e6, 0.05),
    "100 Mbit/s, 20 ms": (100e6, 0.02),
    "1 Gbit/s, 1 ms": (1e9, 0.001),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "steps of 32 rows before selection": {"pretrain_batch_size": 32},
    "one look": {"second_look": 0},
    "no pairs": {"pairs": False},
    "no refit": {"refit_epochs": 0},
    "plain initialisation": {"input_scale": 1.0},
    "32 bits": {"bits": 32},
    "constant learning rate": {"schedule": "constant"},
    "published stages 2 and 3": {"method": "less-vfl"},
}
ORIGINAL = "VFL (Original)"
MIB = 2**20


def run_job(
    name: str,
    seeds: list[int],
    folder: str | None,
    choose: bool,
    method: str = methods.DEFAULT,
    profile: str = "default",
    **given: Any,
) -> list[dict[str, Any]]:
    """Run one method on one data set with several seeds; return the numbers."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LessVFLWarning)
    dataset = load(name, folder)
    resolved = profiles.resolve(method, profile, dataset, given)
    share = 0.0 if method == "plain" else 0.5
    if not choose:
        job = simulate.Job(dataset, resolved, PARTIES.get(name, 3), share)
        return [numbers_of(run) for run in simulate.simulate(job, seeds)]
    found = []
    for seed in seeds:
        own = training_rows(dataset, resolved.data, seed)
        job = simulate.Job(own, resolved, PARTIES.get(name, 3), share)
        found += [numbers_of(run) for run in simulate.simulate(job, [seed])]
    return found


def load(name: str, folder: str | None) -> Dataset:
    """Load a data set, of some the first columns alone."""
    dataset = data.load(name, data_dir=folder)
    columns = dataset.X.names[: FIRST_COLUMNS.get(name)]
    return dataclasses.replace(dataset, X=dataset.X.select(columns))


def numbers_of(run: simulate.Run) -> dict[str, Any]:
    """Return a run's numbers, and what a linear model makes of the features it kept."""
    parties = run.numbers["features"].values()
    kept = {name for party in parties for name in party["kept"]}
    return {**run.numbers, "linear on kept": linear_score(run.problem, kept)}


def task(
    which: tuple[str, str], seeds: list[int], folder: str | None, choose: bool
) -> list[dict[str, Any]]:
    """Run one cell of the table."""
    name, variant = which
    if variant != ORIGINAL:
        given = VARIANTS.get(variant) or tried(variant)
        return run_job(name, seeds, folder, choose, **given)
    dataset = load(name, folder)
    own = profiles.resolve(methods.DEFAULT, "default", dataset).flat()
    net = {"method": "plain", "embedding_size": own["embedding_size"]}
    keys = ("batch_size", "learning_rate", "train_epochs", "schedule")
    steps = {key: own[key] for key in keys}
    both = [
        run_job(name, seeds, folder, choose, **net),
        run_job(name, seeds, folder, choose, **net, **steps),
    ]
    return [
        {
            kind: max(numbers[kind]["best"] for numbers in pair)
            for kind in ("accuracy", "balanced_accuracy")
        }
        for pair in zip(*both, strict=True)
    ]


def tried(text: str) -> dict[str, Any]:
    """Read KEY=VALUE,KEY=VALUE; the name of the default itself reads as nothing."""
    pairs = (part.split("=", 1) for part in text.split(",") if "=" in part)
    return dict(pairs)


def target(numbers: dict[str, Any], best: float) -> dict[str, Any] | None:
    """Return the first point of the curve that reaches the paper's target."""
    for point in numbers["curve"]:
        if point["accuracy"] >= 0.9 * best and point["removed_share"] >= 0.8:
            found: dict[str, Any] = point
            return found
    return None


def summary(
    runs: list[dict[str, Any]], originals: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the row of one variant and data set."""
    pairs = list(zip(runs, originals, strict=True))
    points = [target(run, best["accuracy"]) for run, best in pairs]
    hits = [point for point in points if point is not None]
    kept = [sum(len(p["kept"]) for p in run["features"].values()) for run in runs]
    shadows = [
        statistics.mean(party["shadow_share"] for party in run["selection"].values())
        for run in runs
        if run["selection"]
    ]
    row: dict[str, Any] = {
        "hits": len(hits),
        "MiB to target": _mean([p["payload_bytes"] / MIB for p in hits]),
        "largest MiB": max((p["payload_bytes"] / MIB for p in hits), default=None),
        "rounds to target": _mean([p["rounds"] for p in hits]),
        "noise removed": _mean([run["spurious"]["removed_share"] for run in runs]),
        "least noise removed": min(run["spurious"]["removed_share"] for run in runs),
        "shadows kept": _mean(shadows),
        "real kept": _mean([run["spurious"]["real_kept_share"] for run in runs]),
        "fewest features": min(kept),
        "selected": _mean([run["accuracy"]["selected"] for run in runs]),
        "final": _mean([run["accuracy"]["final"] for run in runs]),
        "balanced": _mean([run["balanced_accuracy"]["final"] for run in runs]),
        "of best balanced": _mean(
            [
                run["balanced_accuracy"]["final"] / best["balanced_accuracy"]
                for run, best in pairs
            ]
        ),
        "linear on kept": _mean([run["linear on kept"] for run in runs]),
        "of its features": _mean(
            [run["balanced_accuracy"]["final"] / run["linear on kept"] for run in runs]
        ),
        "of the better": _mean(
            [
                run["balanced_accuracy"]["final"]
                / max(run["linear on kept"], best["balanced_accuracy"])
                for run, best in pairs
            ]
        ),
        "rounds": _mean([run["communication"]["rounds"] for run in runs]),
        "MiB": _mean(
            [sum(run["communication"]["payload_bytes"].values()) / MIB for run in runs]
        ),
    }
    for link, (speed, delay) in LINKS.items():
        row[f"s to target, {link}"] = _mean(
            [8 * p["payload_bytes"] / speed + p["rounds"] * delay for p in hits]
        )
    return row


def _mean(values: list[float]) -> float | None:
    return statistics.mean(values) if values else None


def show(table: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print one table a data set."""
    for name, rows in table.items():
        first = FIRST_COLUMNS.get(name)
        print(f"\n## {name}{f' (first {first:,} columns)' if first else ''}\n")
        columns = list(next(iter(rows.values())))
        print("| variant | " + " | ".join(columns) + " |")
        print("|---|" + "---|" * len(columns))
        for variant, row in rows.items():
            cells = [_cell(row[column]) for column in columns]
            print(f"| {variant} | " + " | ".join(cells) + " |")


def _cell(value: float | None) -> str:
    if value is None:
        return "none"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def main() -> None:
    """Run every cell and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=",".join(PARTIES))
    parser.add_argument("--only", help="variants, separated by commas")
    parser.add_argument("--try", dest="more", action="append", default=[])
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--data-dir")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = smoke.parse(parser, data="breast-cancer", only="default", seeds="0")
    seeds = [int(part) for part in given.seeds.split(",")]
    variants = given.only.split(",") if given.only else list(VARIANTS)
    variants = ["default", *given.more] if given.more else variants
    cells = [
        (name, variant)
        for variant in (ORIGINAL, *variants)
        for name in given.data.split(",")
    ]
    run = partial(task, seeds=seeds, folder=given.data_dir, choose=given.choose)
    with ProcessPoolExecutor(given.jobs) as pool:
        found = dict(zip(cells, pool.map(run, cells), strict=True))
    table = {
        name: {
            variant: summary(found[name, variant], found[name, ORIGINAL])
            for variant in variants
        }
        for name in given.data.split(",")
    }
    show(table)
    if given.out is not None:
        given.out.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
