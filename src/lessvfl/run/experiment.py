"""One experiment: a job and its seeds become a record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lessvfl.core.network import NetConfig
from lessvfl.data import DataConfig, LabelConfig, Problem
from lessvfl.errors import ConfigError, warn
from lessvfl.run import ensemble, numbers, profiles, simulate, verdicts
from lessvfl.run.bundles import bundle_of
from lessvfl.run.record import RunRecord, alike_words
from lessvfl.run.simulate import Job, Run
from lessvfl.run.target import ACCURACY_SHARE, cost_to_target
from lessvfl.settings import fields_of
from lessvfl.terms import Progress, listed


def bare_header(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be said of a job before its data are prepared.

    With the chosen bundle of defences, and what was set in its place.
    """
    bundle: dict[str, Any] = {}
    if job.bundle is not None:
        changes = bundle_of(job.bundle).changed(job.settings.flat())
        bundle = {"privacy_bundle": job.bundle, "privacy_changes": changes}
    return numbers.bare_header(
        job.settings,
        job.dataset.name,
        job.device,
        options,
        parties=job.parties,
        spurious=job.spurious,
        groups=job.groups,
        **bundle,
    )


def run(
    job: Job,
    seeds: Sequence[int],
    *,
    options: Mapping[str, Any] | None = None,
    target: bool = False,
    progress: Progress | None = None,
    done: Callable[[Run], None] = lambda run: None,
    n_jobs: int = 1,
) -> tuple[RunRecord, list[Run]]:
    """Run a job with all parties in this process; return its record and runs.

    `options` are those that the data set was made with; with `target` VFL (Original) is
    run too, for every run's cost to the paper's target. `done` is given every run as
    soon as it is over; `n_jobs` go on at a time.
    """
    check(job, seeds, target)
    runs = simulate.simulate(job, seeds, progress, done, n_jobs=n_jobs)
    contract = [run.numbers for run in runs]
    _warn_extremes(job, contract)
    problem = runs[0].problem
    made = record(job, problem, contract, options or {}, target, progress)
    if job.settings.is_ensemble(seeds):
        made.ensemble = ensemble.scores(problem, seeds, [run.tested for run in runs])
    return made, runs


def record(
    job: Job,
    problem: Problem,
    runs: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    target: bool,
    progress: Progress | None = None,
) -> RunRecord:
    """Return the record of finished runs, with their cost to the paper's target."""
    if target:
        seeds = [run["seed"] for run in runs]
        originals = simulate.simulate(original(job), seeds, progress)
        best = float(max(run.numbers["accuracy"]["best"] for run in originals))
        strict = job.settings.profile == "official-code"
        for run in runs:
            run["target"] = cost_to_target(run["curve"], ACCURACY_SHARE * best, strict)
    warn_of_alike(runs)
    header = full_header(job, options, problem)
    return RunRecord(header, list(runs), "complete", consensus=verdicts.agreed(runs))


def warn_of_alike(runs: Sequence[Mapping[str, Any]]) -> None:
    """Warn of parties in whose files rows are alike; `runs` are the numbers of runs."""
    selections = [
        (party, how)
        for run in runs
        for party, how in (run["selection"] or {}).items()
        if how and (how.get("alike") or how.get("near_copies"))
    ]
    if selections:
        parties = dict.fromkeys(party for party, _ in selections)
        warn(alike_words(listed([*parties]), [how for _, how in selections]))


def full_header(
    job: Job, options: Mapping[str, Any], problem: Problem
) -> dict[str, Any]:
    """Return the first line of a job's record, once its data are prepared."""
    return numbers.header(bare_header(job, options), problem)


def check(job: Job, seeds: Sequence[int], target: bool) -> None:
    """Refuse seeds that are not allowed, and a target that cannot be had."""
    for seed in seeds:
        if not 0 <= seed < 2**63:
            raise ConfigError(
                f"Every seed must be a whole number in [0, 2**63). Got {seed}."
            )
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"Every seed must be given once. Got {list(seeds)}.")
    if not target:
        return
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


def _tree_advice(copies: int, false_share: float) -> str:
    """Say what to change where no feature gains more than its copies do."""
    least = math.ceil(1 / (copies * false_share) - 1e-9) if false_share else 0
    none_or = (
        f"with 'copies' {copies} and 'false_share' {false_share:g} a party keeps "
        f"{least} features or more, or none; "
    )
    return (
        f": {none_or * (least > 1)}a larger 'false_share' or more 'copies' may be "
        "needed, or 'select_trees' 0, which leaves selection out"
    )


def _warn_extremes(job: Job, runs: Sequence[Mapping[str, Any]]) -> None:
    """Warn where selection removed every feature or none: legal, but worth a look."""
    if job.settings.method == "plain":
        return  # it selects nothing
    given = job.settings.flat()
    removed, kept = "", ""  # advice where all were removed, or kept
    if given.get("select_trees") and "copies" in given:
        removed = _tree_advice(given["copies"], given["false_share"])
        kept = ": a smaller 'false_share' may be needed"
    elif "lam_party" in given:
        removed = ": a smaller 'lam_party' may be needed"
        kept = ": a larger 'lam_party' may be needed"
    for done, empty, advice in (
        ("everything", "kept", removed),
        ("nothing", "removed", kept),
    ):
        seeds = [
            str(run["seed"])
            for run in runs
            if not any(party[empty] for party in run["features"].values())
        ]
        if seeds:
            word = "seed" if len(seeds) == 1 else "seeds"
            warn(f"Selection removed {done} ({word} {', '.join(seeds)}){advice}.")


def original(job: Job) -> Job:
    """Return VFL (Original) for a job: Algorithm 2 without planted features.

    Same profile, and the same settings of data, networks and labels.
    """
    shared = set(fields_of([DataConfig, NetConfig, LabelConfig]))
    overrides = {k: v for k, v in job.settings.flat().items() if k in shared}
    settings = profiles.resolve("plain", job.settings.profile, job.dataset, overrides)
    return dataclasses.replace(job, settings=settings, spurious=0.0)
