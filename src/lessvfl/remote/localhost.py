"""``lessvfl try``: a run between real processes on this machine, with a fresh kit.

Every party gets a folder with its raw columns, its key and its certificate, the server
one with the labels. What comes out is read from each side's own run folder, since the
parties reveal nothing.
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
from lessvfl.data import PartyTable, Problem
from lessvfl.errors import ConfigError
from lessvfl.remote import certificates
from lessvfl.run import experiment, folder
from lessvfl.run.numbers import join_numbers, removed_share
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

    Everybody's own folder is in ``sides/`` of the run folder `out`, a temporary one
    unless given; VFL (Original), for the `target`, runs in this process.
    """
    experiment.check(job, seeds, target)
    if out is not None:
        folder.claim(out)
    with tempfile.TemporaryDirectory(prefix="lessvfl-try-") as scratch:
        base = Path(scratch) if out is None else out / "sides"
        if base.exists() and any(base.iterdir()):
            raise ConfigError(
                f"The folder '{base}' must be new or empty. Got one with the sides of "
                "an earlier run."
            )
        runs = []
        for seed in seeds:
            tell(f"seed {seed}: a fresh kit, a server and parties as processes")
            place = base / f"seed-{seed}"
            place.parent.mkdir(parents=True, exist_ok=True)
            runs.append(run(job, seed, place, port or free_port()))
    record = experiment.record(job, job.problem(seeds[0]), runs, options, target)
    if out is not None:
        record.write(out)
    return record


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(
    job: Job, seed: int, base: Path, port: int, threads: int = 1, save_every: int = 50
) -> dict[str, Any]:
    """Run one seed between processes and return its numbers, as `simulate` gives them.

    Everybody's folder is made in `base`; the server listens on loopback.
    """
    problem = job.problem(seed)
    write_folders(job, problem, seed, base, port, threads, save_every)
    names = [table.name for table in problem.parties]
    processes = {
        name: start(base / name, "server" if name == "server" else "party", threads)
        for name in ("server", *names)
    }
    try:
        _wait(processes, base)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
    return collect(problem, base)


def write_folders(
    job: Job,
    problem: Problem,
    seed: int,
    base: Path,
    port: int,
    threads: int,
    save_every: int,
) -> None:
    """Make a kit, and put everybody's table and config into their folders."""
    names = [table.name for table in problem.parties]
    certificates.init(base, names)
    address = f"127.0.0.1:{port}"
    labels = _label_table(problem)
    rows = labels["row"]
    np.savez(base / "server" / "labels.npz", **labels)
    settings = (job.settings.flat() | {"scale_labels": False}).items()  # they are
    common = {"id": "row", "align": "none", "threads": threads}
    _write_config(
        base / "server" / "server.yaml",
        listen=address,
        parties=names,
        data="labels.npz",
        label=None,
        sample_weight="weight" if "weight" in labels else None,
        method=job.settings.method,
        profile=job.settings.profile,
        settings={k: list(v) if isinstance(v, tuple) else v for k, v in settings},
        seed=seed,
        save_every=save_every,
        status=None,
        **common,
    )
    for table in problem.parties:
        place = base / table.name
        frame = data.raw_frame(problem, table)
        data.write_columns(place / "columns.parquet", frame, rows)
        _write_config(
            place / "party.yaml",
            server=address,
            data="columns.parquet",
            **_preparation(job, problem, table),
            **common,
        )


def _label_table(problem: Problem) -> dict[str, Any]:
    """Return the arrays of the label holder's file: training rows, then test rows."""
    y = np.concatenate([problem.y_train, problem.y_test])
    n_train = len(problem.y_train)
    table = {"y": y, "is_test": np.arange(len(y)) >= n_train, "row": np.arange(len(y))}
    if problem.label_names:
        table["label_names"] = np.array(problem.label_names)
    if problem.sample_weight is not None:  # those of test rows count nowhere
        of_test = np.ones(len(problem.y_test))
        table["weight"] = np.concatenate([problem.sample_weight, of_test])
    return table


def _preparation(job: Job, problem: Problem, table: PartyTable) -> dict[str, Any]:
    """Return what a party's config says of its columns."""
    groups: dict[str, list[str]] = {}
    for column in table.encoding.columns:
        groups.setdefault(column.feature, []).append(column.name)
    planted = np.array(table.features)[table.spurious].tolist()
    is_global = job.settings.data.scale == "global"
    return {
        "columns": list(table.encoding.names),
        "groups": {f: names for f, names in groups.items() if names != [f]} or None,
        "as_is": planted or None,
        "scale_range": list(problem.bounds) if is_global else None,
    }


def _write_config(path: Path, **values: Any) -> None:
    """Fill in a ready config."""
    ready = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(ready | values), encoding="utf-8")


def start(
    side: Path, command: str, threads: int, *more: str
) -> subprocess.Popen[bytes]:
    """Start one side as a process; what it says goes to ``log.txt`` in its folder."""
    with open(side / "log.txt", "ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lessvfl.cli",
                command,
                "--config",
                str(side / f"{command}.yaml"),
                *more,
            ],
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )


def _wait(processes: Mapping[str, subprocess.Popen[bytes]], base: Path) -> None:
    """Wait for all to end well; the first that does not ends the run."""
    while any(process.poll() is None for process in processes.values()):
        for name, process in processes.items():
            if process.poll() not in (None, 0):
                raise ConfigError(_last_words(name, base))
        time.sleep(0.05)
    for name, process in processes.items():
        if process.returncode != 0:
            raise ConfigError(_last_words(name, base))


def _last_words(name: str, base: Path) -> str:
    lines = (base / name / "log.txt").read_text(encoding="utf-8", errors="replace")
    last = [line for line in lines.splitlines() if line.startswith("lessvfl:")]
    said = last[-1].removeprefix("lessvfl: ") if last else "nothing in its log"
    return f"The process of '{name}' must end well. It said: {said}"


def collect(problem: Problem, base: Path) -> dict[str, Any]:
    """Put together what everybody wrote into their own run folders."""
    numbers = _read(base / "server" / "run" / "server.json")
    own = {t.name: _read(base / t.name / "run" / "party.json") for t in problem.parties}
    for place, point in enumerate(numbers["curve"]):
        masks = []
        for table in problem.parties:
            mask = np.zeros(len(table.features), dtype=bool)
            mask[own[table.name]["curve"][place]["kept"]] = True
            masks.append(mask)
        point["removed_share"] = removed_share(problem.parties, masks)
    del numbers["bill"]
    return join_numbers(numbers, own, problem)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
