"""Records of real runs of small tables, and what made-up ones may have of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from lessvfl import data
from lessvfl.data import Dataset
from lessvfl.run import experiment, profiles, verdicts
from lessvfl.run.record import RunRecord
from lessvfl.run.simulate import Job

PARTIES = ("bank", "insurer", "hospital")
COLUMNS = {party: [f"{party[:4]}_{i:02d}" for i in range(8)] for party in PARTIES}
QUICK = {"train_epochs": 1, "pretrain_epochs": 1, "server_epochs": 1, "party_epochs": 1}


def a_table(n_rows: int, task: str = "binary") -> Dataset:
    """Return a table of three parties: a pair, near copies, noise, much that counts."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n_rows, 24))
    bank, _, hospital = X[:, :8], X[:, 8:16], X[:, 16:]
    for i in (4, 5):
        bank[:, i] = 0.7 * (bank[:, 2] + bank[:, 3]) + 0.4 * bank[:, i]
    z = 1.5 * bank[:, 0] * bank[:, 1] + bank[:, 2] + bank[:, 3] - 0.5 * bank[:, 4]
    z += 0.8 * hospital[:, :7].sum(axis=1) + rng.logistic(size=n_rows)
    y = {
        "binary": (z > 0).astype(int),
        "multiclass": np.digitize(z, (-2, 2)),
        "regression": z,
    }
    names = [name for own in COLUMNS.values() for name in own]
    return data.from_arrays(X, y[task], name="activity", feature_names=names)


def run(
    dataset: Dataset, method: str, seeds: list[int], target: bool = False, **own: Any
) -> RunRecord:
    """Run a method between the three parties, seven planted columns at each."""
    settings = profiles.resolve(method, "default", dataset, own)
    job = Job(dataset, settings, parties=COLUMNS, spurious=7 / 8)
    return experiment.run(job, seeds, target=target)[0]


@functools.cache
def _shadows() -> RunRecord:
    own: dict[str, Any] = {"train_epochs": 2, "refit_epochs": 5}
    own |= {"must_keep": "bank_07", "most": 6}
    # With so many rows all parties end by elimination, and every reason is there.
    return run(a_table(940), "less-vfl-auto", [0, 1], **own)


def shadows(n_seeds: int = 2) -> RunRecord:
    """Return the record of one or two runs by shadows: every reason is in both.

    Of every second removed feature they know as much as many more rows would tell.
    """
    found = copy.deepcopy(_shadows())
    del found.runs[n_seeds:]
    for run in found.runs:
        for how in run["selection"].values():
            for name in sorted(how["at_most"])[::2]:
                how["at_most"][name], how["signs"][name] = 0.02, 0.5
    found.consensus = verdicts.agreed(found.runs)
    return found


# -------------------------------------------------------------- fields of a real record

# What holds names of parties, features, stages, classes, settings or packages.
NAMED = (
    "config",
    "versions",
    "data.classes",
    "features",
    "importance",
    "importance.*",
    "components",
    "without",
    "missed",
    "counts",
    "predicted",
    "seconds",
    "communication.by_stage",
    "selection",
    *(f"selection.*.{name}" for name in ("scores", "why", "at_most", "signs")),
)


def fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the kind of every value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = "*" if path in NAMED else key
            yield from fields(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value or [None]:
            yield from fields(inner, path)
    else:
        kinds = (bool, "flag"), (int | float, "number"), (str, "text")
        found = (kind for what, kind in kinds if isinstance(value, what))
        yield path, next(found, type(value).__name__)


def strange_fields(made: RunRecord, found: RunRecord) -> set[tuple[str, str]]:
    """Return what a made-up record has and a real one has not; null may be anything."""
    of_made, of_found = (
        {*fields(record.header), *fields(record.runs)} for record in (made, found)
    )
    known = {path for path, kind in of_found if kind == "NoneType"}
    extra = of_made - of_found
    return {one for one in extra if one[0] not in known and one[1] != "NoneType"}
