"""One experiment: a job and its seeds become a record and a run folder.

A run folder holds ``record.jsonl``, ``report.html`` (written by the report room) and
``networks-<id>/seed-<seed>/``. Networks are written first and the record last, each
atomically: a crash leaves the old run or the new one.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import uuid
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lessvfl import __version__
from lessvfl.core.device import resolve_device
from lessvfl.core.lifted import Factory
from lessvfl.core.network import NetConfig
from lessvfl.data import DataConfig, Problem
from lessvfl.errors import ConfigError, LessVFLWarning, RecordError
from lessvfl.run import profiles, simulate
from lessvfl.run.fitted import FittedModel, load_model
from lessvfl.run.record import RunRecord, write_atomically
from lessvfl.run.simulate import Job, Progress, Run
from lessvfl.settings import fields_of

TARGET_ACCURACY_SHARE = 0.9  # of the best VFL (Original), Table 2 of the paper
TARGET_REMOVED_SHARE = 0.8


def bare_header(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be said of a run before its data are prepared."""
    settings = job.settings
    return {
        "lessvfl": __version__,
        "data": {"name": job.dataset.name},
        "method": settings.method,
        "profile": settings.profile,
        "config": settings.flat() | {f"data.{k}": v for k, v in options.items()},
        "versions": {
            "lessvfl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "device": job.device,
        "parties": job.parties,
        "spurious": job.spurious,
        "groups": job.groups,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "notes": [],
    }


def header(job: Job, problem: Problem, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of a record: what was run, on what, with which versions."""
    return bare_header(job, options) | {
        "data": {
            "name": job.dataset.name,
            "n_train": len(problem.y_train),
            "n_test": len(problem.y_test),
            "n_features": problem.n_features,
            "n_real": problem.n_real,
            "n_parties": len(problem.parties),
            "n_classes": problem.n_classes,
        },
        "device": str(resolve_device(job.device)),
        "notes": list(problem.notes),
    }


def run(
    job: Job,
    seeds: Sequence[int],
    *,
    options: Mapping[str, Any] | None = None,
    target: bool = False,
    progress: Progress = lambda event: None,
) -> tuple[RunRecord, list[Run]]:
    """Run a job and return its record and runs.

    Parameters
    ----------
    job : Job
        What to run.
    seeds : sequence of int
        One run each.
    options : mapping, optional
        Options the data set was made with, for the record.
    target : bool
        Also run VFL (Original) and give every run's cost to the paper's target.
    progress : callable
        Told of every epoch.
    """
    check_seeds(seeds)
    if target:
        check_target(job)
    runs = simulate.simulate(job, seeds, progress)
    _warn_extremes(job, runs)
    if target:
        best = best_original(job, seeds, progress)
        add_targets([one.numbers for one in runs], best, job)
    record = RunRecord(
        header(job, runs[0].problem, options or {}), [one.numbers for one in runs]
    )
    record.status = "complete"
    return record, runs


def add_targets(runs: Sequence[dict[str, Any]], best: float, job: Job) -> None:
    """Give every run its cost to the paper's target."""
    strict = job.settings.profile == "official-code"
    for numbers in runs:
        numbers["target"] = cost_to_target(
            numbers["curve"], TARGET_ACCURACY_SHARE * best, strict
        )


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that are out of range or given twice."""
    for seed in seeds:
        if not 0 <= seed < 2**63:
            raise ConfigError(
                f"Every seed must be a whole number in [0, 2**63). Got {seed}."
            )
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"Every seed must be given once. Got {list(seeds)}.")


def check_target(job: Job) -> None:
    """Refuse a job that cannot have the paper's target."""
    shares = job.spurious if isinstance(job.spurious, Sequence) else [job.spurious]
    if not any(share > 0 for share in shares):
        raise ConfigError(
            "The paper's target needs planted features: 'spurious' must be above 0. "
            f"Got {job.spurious}."
        )
    if job.dataset.task == "regression":
        raise ConfigError(
            "The paper's target is an accuracy: the task must be classification. "
            "Got regression."
        )
    if job.dataset.X_test is None and job.settings.data.test_share == 0:
        raise ConfigError(
            "The paper's target is a test accuracy: the 'test_share' setting must be "
            "above 0. Got 0."
        )


def _warn_extremes(job: Job, runs: Sequence[Run]) -> None:
    """Say where selection removed everything or nothing: legal, but worth a look."""
    if "lam_party" not in job.settings.flat():
        return  # a method without selection
    for done, empty, change in (
        ("everything", "kept", "smaller"),
        ("nothing", "removed", "larger"),
    ):
        seeds = [
            str(one.numbers["seed"])
            for one in runs
            if not any(party[empty] for party in one.numbers["features"].values())
        ]
        if seeds:
            warnings.warn(
                f"Selection removed {done} (seed {', '.join(seeds)}): a {change} "
                "'lam_party' may be needed.",
                LessVFLWarning,
                stacklevel=3,
            )


def original(job: Job) -> Job:
    """Return VFL (Original) for a job: Algorithm 2 without planted features.

    Same profile, data and network settings.
    """
    shared = set(fields_of([DataConfig, NetConfig]))
    overrides = {k: v for k, v in job.settings.flat().items() if k in shared}
    settings = profiles.resolve("plain", job.settings.profile, job.dataset, overrides)
    return dataclasses.replace(job, settings=settings, spurious=0.0)


def best_original(job: Job, seeds: Sequence[int], progress: Progress) -> float:
    """Return the best test accuracy of VFL (Original) over all seeds and epochs."""
    runs = simulate.simulate(original(job), seeds, progress)
    return float(max(one.numbers["accuracy"]["best"] for one in runs))


def cost_to_target(
    curve: Sequence[Mapping[str, Any]], threshold: float, strict: bool
) -> dict[str, Any]:
    """Return the cost when accuracy and 80 % of spurious removed first held together.

    >>> point = {"accuracy": 0.9, "removed_share": 0.8, "paper_mib": 1.5,
    ...          "payload_bytes": 10, "rounds": 3}
    >>> cost_to_target([point], 0.9, strict=False)["paper_mib"]
    1.5
    >>> cost_to_target([point], 0.9, strict=True)["reached"]
    False
    """
    for point in curve:
        pair = (
            (point["accuracy"], threshold),
            (point["removed_share"], TARGET_REMOVED_SHARE),
        )
        if all(a > b or (a == b and not strict) for a, b in pair):
            cost = {k: point[k] for k in ("paper_mib", "payload_bytes", "rounds")}
            return {"accuracy": threshold, "reached": True, **cost}
    never = dict.fromkeys(("paper_mib", "payload_bytes", "rounds"))
    return {"accuracy": threshold, "reached": False, **never}


def claim(folder: Path) -> None:
    """Make a run folder, or refuse one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / ".claim", b"")
        (folder / ".claim").unlink()
    except OSError as error:
        raise ConfigError(
            f"The run folder '{folder}' must be a folder that can be written to. "
            f"Got this: {error.strerror}."
        ) from None


def save(folder: Path, record: RunRecord, runs: Sequence[Run]) -> None:
    """Write networks and record into a run folder."""
    name = f"networks-{uuid.uuid4().hex[:8]}"
    try:
        for one in runs:
            one.model.save(folder / name / f"seed-{one.numbers['seed']}")
        record.header["networks"] = name
        record.write(folder)
    except BaseException:
        shutil.rmtree(folder / name, ignore_errors=True)
        raise
    _remove_networks(folder, but=name)


def save_unfinished(
    folder: Path, job: Job, options: Mapping[str, Any], ending: BaseException
) -> None:
    """Write into a run folder that its run was interrupted, or how it failed."""
    status = "interrupted" if isinstance(ending, KeyboardInterrupt) else "failed"
    record = RunRecord(bare_header(job, options), [], status, str(ending))
    record.write(folder)
    (folder / "report.html").unlink(missing_ok=True)  # it was of an earlier run
    _remove_networks(folder)


def _remove_networks(folder: Path, but: str = "") -> None:
    """Remove networks that the record no longer speaks of."""
    for old in folder.glob("networks-*"):
        if old.name != but:
            shutil.rmtree(old, ignore_errors=True)


def load(
    folder: str | Path,
    seed: int | None = None,
    *,
    party_net: Factory | None = None,
    fusion_net: Factory | None = None,
) -> FittedModel:
    """Load the model of a run folder.

    Parameters
    ----------
    folder : str or Path
        A folder written by ``lessvfl run --out``.
    seed : int, optional
        Whose run; the first one unless given.
    party_net, fusion_net : callable, optional
        The functions that made the networks, where they were given from Python.

    Returns
    -------
    FittedModel
        With ``predict``, ``predict_proba`` and ``features``.
    """
    record = RunRecord.read(Path(folder))
    seeds = [one["seed"] for one in record.runs]
    if not seeds:
        raise RecordError(
            f"'{folder}' holds no finished run: its status must be complete. "
            f"Got {record.status}."
        )
    if seed is not None and seed not in seeds:
        raise ConfigError(f"The 'seed' must be one of {seeds}. Got {seed} instead.")
    if "networks" not in record.header:
        raise RecordError(
            f"'{folder}' must hold the networks of its run, as written by 'lessvfl run "
            "--out'. Got a record that names none."
        )
    chosen = seeds[0] if seed is None else seed
    path = Path(folder) / record.header["networks"] / f"seed-{chosen}"
    return load_model(path, party_net, fusion_net)
