"""``lessvfl try``: a run between real processes on this machine, with a fresh kit.

The problem is prepared as for ``lessvfl run``; every party gets a folder with its own
columns, its key and its certificate, the server one with the labels. What comes out is
read from each side's own run folder, since the parties reveal nothing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lessvfl import data
from lessvfl.data import Problem
from lessvfl.errors import ConfigError
from lessvfl.remote import certificates
from lessvfl.run import experiment, simulate
from lessvfl.run.record import RunRecord
from lessvfl.run.simulate import Job


def run_all(
    job: Job,
    seeds: Sequence[int],
    options: Mapping[str, Any],
    target: bool,
    out: Path | None,
    port: int,
    tell: Callable[[str], None],
) -> RunRecord:
    """Run every seed between processes, one after the other, and return the record.

    Parameters
    ----------
    job : Job
        What to run.
    seeds : sequence of int
        One run each.
    options : mapping
        Options the data set was made with, for the record.
    target : bool
        Also give every run's cost to the paper's target (VFL (Original) runs in this
        process).
    out : Path or None
        Run folder; everybody's own folder is in ``sides/``. A temporary one unless
        given.
    port : int
        Where the server listens; 0 takes a free one.
    tell : callable
        Told what happens.
    """
    experiment.check_seeds(seeds)
    if target:
        experiment.check_target(job)
    if out is not None:
        experiment.claim(out)
    with tempfile.TemporaryDirectory(prefix="lessvfl-try-") as scratch:
        base = Path(scratch) if out is None else out / "sides"
        if base.exists() and any(base.iterdir()):
            raise ConfigError(
                f"The folder '{base}' must be new or empty. Got one with the sides of "
                "an earlier run."
            )
        numbers = []
        for seed in seeds:
            tell(f"seed {seed}: a fresh kit, a server and parties as processes")
            place = base / f"seed-{seed}"
            place.parent.mkdir(parents=True, exist_ok=True)
            numbers.append(run(job, seed, place, port or free_port()))
    problem = _problem(job, seeds[0])
    if target:
        best = experiment.best_original(job, seeds, lambda event: None)
        experiment.add_targets(numbers, best, job)
    record = RunRecord(experiment.header(job, problem, options), numbers, "complete")
    if out is not None:
        record.write(out)
    return record


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _problem(job: Job, seed: int) -> Problem:
    return data.prepare(
        job.dataset,
        job.settings.data,
        parties=job.parties,
        spurious=job.spurious,
        seed=seed,
        groups=job.groups,
    )


def run(
    job: Job, seed: int, folder: Path, port: int, threads: int = 1, save_every: int = 50
) -> dict[str, Any]:
    """Run one seed between processes and return its numbers, as `simulate` gives them.

    Parameters
    ----------
    job : Job
        What to run.
    seed : int
        Its seed.
    folder : Path
        Where everybody's folder is made.
    port : int
        Where the server listens, on loopback.
    threads : int
        Threads of every process.
    save_every : int
        Steps between two checkpoints.
    """
    problem = _problem(job, seed)
    write_folders(job, problem, seed, folder, port, threads, save_every)
    names = [table.name for table in problem.parties]
    processes = {
        name: start(folder / name, "server" if name == "server" else "party", threads)
        for name in ("server", *names)
    }
    try:
        _wait(processes, folder)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
    return collect(problem, folder)


def write_folders(
    job: Job,
    problem: Problem,
    seed: int,
    folder: Path,
    port: int,
    threads: int,
    save_every: int,
) -> None:
    """Make a kit, and put everybody's table and config into their folders."""
    names = [table.name for table in problem.parties]
    certificates.init(folder, names)
    address = f"127.0.0.1:{port}"
    settings = {
        name: value
        for name, value in job.settings.flat().items()
        if name not in ("scale", "scale_labels")
    }
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    labels = np.concatenate([problem.y_train, problem.y_test])
    is_test = np.arange(len(labels)) >= len(problem.y_train)
    rows = np.arange(len(labels))
    np.savez(folder / "server" / "labels.npz", y=labels, is_test=is_test, row=rows)
    _write_config(
        folder / "server" / "server.yaml",
        listen=address,
        parties=names,
        data="labels.npz",
        label=None,
        id="row",
        align="none",
        method=job.settings.method,
        profile=job.settings.profile,
        settings=plain | {"scale": "none", "scale_labels": False},
        seed=seed,
        threads=threads,
        save_every=save_every,
        status=None,
    )
    for table in problem.parties:
        X = np.concatenate([table.X_train, table.X_test])
        features = np.array(table.features)
        if len(features) != X.shape[1]:
            raise ConfigError(
                "'lessvfl try' needs features of one column each. Got "
                f"{len(features)} features in {X.shape[1]} columns at party "
                f"'{table.name}'."
            )
        place = folder / table.name
        np.savez(place / "columns.npz", X=X, feature_names=features, row=rows)
        _write_config(
            place / "party.yaml",
            server=address,
            data="columns.npz",
            id="row",
            align="none",
            threads=threads,
        )


def _write_config(path: Path, **values: Any) -> None:
    """Fill in a ready config."""
    ready = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(ready | values), encoding="utf-8")


def start(
    folder: Path, command: str, threads: int, *more: str
) -> subprocess.Popen[bytes]:
    """Start one side as a process; what it says goes to ``log.txt`` in its folder."""
    with open(folder / "log.txt", "ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lessvfl.cli",
                command,
                "--config",
                str(folder / f"{command}.yaml"),
                *more,
            ],
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )


def _wait(processes: Mapping[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait for all to end well; the first that does not ends the run."""
    while any(process.poll() is None for process in processes.values()):
        for name, process in processes.items():
            if process.poll() not in (None, 0):
                raise ConfigError(_last_words(name, folder))
        time.sleep(0.05)
    for name, process in processes.items():
        if process.returncode != 0:
            raise ConfigError(_last_words(name, folder))


def _last_words(name: str, folder: Path) -> str:
    lines = (folder / name / "log.txt").read_text(encoding="utf-8", errors="replace")
    last = [line for line in lines.splitlines() if line.startswith("lessvfl:")]
    said = last[-1].removeprefix("lessvfl: ") if last else "nothing in its log"
    return f"The process of '{name}' must end well. It said: {said}"


def collect(problem: Problem, folder: Path) -> dict[str, Any]:
    """Put together what everybody wrote into their own run folders."""
    text = (folder / "server" / "run" / "server.json").read_text(encoding="utf-8")
    numbers: dict[str, Any] = json.loads(text)
    own = {
        table.name: json.loads(
            (folder / table.name / "run" / "party.json").read_text(encoding="utf-8")
        )
        for table in problem.parties
    }
    kept = [
        np.isin(table.features, own[table.name]["kept"]) for table in problem.parties
    ]
    _add_removed(numbers["curve"], problem, [own[t.name] for t in problem.parties])
    found = {
        "spurious": simulate.spurious(problem, kept),
        "truth": simulate.truth(problem, kept),
        "features": {
            name: {"kept": one["kept"], "removed": one["removed"]}
            for name, one in own.items()
        },
        "importance": {
            name: {k: v for k, v in one["importance"].items() if v > 0}
            for name, one in own.items()
        },
        "selection": simulate.selection(
            {
                table.name: (table.features, own[table.name]["selection"])
                for table in problem.parties
            }
        ),
    }
    first = {k: v for k, v in numbers.items() if k not in (*_AFTER, "bill")}
    return first | found | {k: numbers[k] for k in _AFTER}


_AFTER = ("components", "communication", "curve", "seconds")


def _add_removed(
    curve: list[dict[str, Any]], problem: Problem, own: Sequence[Mapping[str, Any]]
) -> None:
    """Fill in the share of planted features gone at every point of the curve."""
    planted = np.concatenate([table.spurious for table in problem.parties])
    if not planted.any():
        return
    for place, point in enumerate(curve):
        masks = []
        for table, one in zip(problem.parties, own, strict=True):
            mask = np.zeros(len(table.features), dtype=bool)
            mask[one["curve"][place]["kept"]] = True
            masks.append(mask)
        gone = ~np.concatenate(masks)
        point["removed_share"] = float(gone[planted].mean())
