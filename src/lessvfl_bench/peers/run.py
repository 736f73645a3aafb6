"""LESS-VFL beside feature selection on pooled data, on the same rows and columns."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lessvfl import __version__, data, settings
from lessvfl.core import metrics
from lessvfl.core.device import resolve_device
from lessvfl.data import DataConfig, Dataset, Problem
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.report.tables import spread
from lessvfl.run import numbers, profiles, simulate
from lessvfl.run.simulate import Job
from lessvfl_bench.peers import pooled
from lessvfl_bench.peers.pooled import REFERENCES, Classes, Mask
from lessvfl_bench.store import Records
from lessvfl_bench.study import (
    BY_CLASS,
    PUBLIC,
    NameList,
    NoiseShare,
    NumberList,
    Say,
    check_options,
    option,
)

DATA = (*PUBLIC, "synthetic")
OPTIONS = {"synthetic": {"task": "binary"}}  # every reference is a classifier
COMMON_C = 0.1  # of the logistic regression that judges every selection

LAMBDA_FREE = "less-vfl-auto"  # our method that selects without a lambda: the default
# Our own methods: name -> method, profile. All of them see the data as `default` has
# them, so that every row of a table is about the same problem.
ROWS = DataConfig(**BY_CLASS)  # for every method alike
OURS = {
    LAMBDA_FREE: (LAMBDA_FREE, "default"),
    "less-vfl-official-code": ("less-vfl", "official-code"),
    "local-lasso": ("local-lasso", "default"),
    "group-lasso": ("group-lasso", "default"),
    "plain": ("plain", "default"),
}
METHODS = (*OURS, *REFERENCES)

# What is measured for every seed and averaged.
SCORES = ("accuracy", "balanced_accuracy", "own_accuracy", "own_balanced_accuracy")
SHARES = ("removed_share", "real_kept_share", "f1")
NUMBERS = ("n_kept", *SHARES, *SCORES, "bytes", "seconds")

PeerLine = dict[str, Any]  # the numbers of one data set, method and seed


@dataclass(frozen=True)
class Comparison:
    """What to compare; networks alone are on the device."""

    data: NameList = option(DATA, "By name or file: phishing,digits.")
    methods: NameList | None = option(
        None, "As in plain,stg; all that are installed unless given."
    )
    spurious: NoiseShare = option(
        0.5, "Planted noise, a share of every party's columns."
    )
    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each: 0,1,2.")
    device: str = option("auto", "cpu, cuda or auto.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")


def run(
    comparison: Comparison,
    folder: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run every method on every data set and seed; docs/peers.md has the results.

    Every finished run leaves a record in the folder; `resume` goes on after them.
    """
    began = time.perf_counter()
    skipped = _check(comparison)
    records = Records(folder, resume)
    device = resolve_device(comparison.device)
    methods = METHODS if comparison.methods is None else comparison.methods
    tables = {name: _load(name, comparison.data_dir) for name in comparison.data}
    total = len(tables) * (len(methods) - len(skipped)) * len(comparison.seeds)
    results, notes, n_done = [], {}, 0
    for name, dataset in tables.items():
        bench = _PeerBench(dataset, comparison.spurious, device)
        why = bench.unfit(comparison.seeds)
        left_out = skipped if why is None else dict.fromkeys(methods, why)
        if why is not None:
            total -= (len(methods) - len(skipped)) * len(comparison.seeds)
            say(f"{name} is left out: {why}")
        for method in methods:
            lines: dict[int, PeerLine] = {}
            seeds = [] if method in left_out else comparison.seeds
            about = {"data": name, "method": method, "spurious": bench.spurious}
            digest = hashlib.sha256(repr(about).encode()).hexdigest()[:10]
            for seed in seeds:
                found = records.find(f"{method}-{digest}-{seed}", about)
                if found is not None:
                    lines[seed] = found
            n_done += len(lines)
            for seed in [s for s in seeds if s not in lines]:
                line = bench.line(method, seed)
                records.add(f"{method}-{digest}-{seed}", about, line)
                lines[seed] = line
                n_done += 1
                say(f"{n_done} of {total}: {name}, {_sentence(method, line)}")
            ordered = [lines[seed] for seed in seeds]
            spreads = {key: _spread([one[key] for one in ordered]) for key in NUMBERS}
            entry: dict[str, Any] = {"data": name, "method": method}
            entry |= {"seeds": list(seeds), **spreads}
            entry |= {"skipped": left_out.get(method), "by_seed": ordered}
            results.append(entry)
        notes[name] = [] if why else list(bench.problem(comparison.seeds[0]).notes)
    return {
        "data": list(comparison.data),
        "methods": list(methods),
        "seeds": list(comparison.seeds),
        "spurious": comparison.spurious,
        "results": results,
        "notes": notes,
        "settings": {name: how(name) for name in methods},
        "versions": {
            "lessvfl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "seconds": time.perf_counter() - began,
        "device": str(device),
    }


def how(method: str) -> str:
    """Say how a method was set."""
    if method in REFERENCES:
        return REFERENCES[method].how
    name, profile = OURS[method]
    data = "" if profile == "default" else ", data prepared as in the profile default"
    return f"method {name}, profile {profile}{data}"


# -- checks ----------------------------------------------------------------------------


def _check(comparison: Comparison) -> dict[str, str]:
    """Refuse what cannot be run; return the methods to skip, each with a sentence."""
    lists = {"data": comparison.data, "seeds": comparison.seeds}
    if comparison.methods is not None:
        lists["methods"] = comparison.methods
    check_options(lists, {})
    share = settings.a_float(0.0, 10.0)
    if not share.accepts(comparison.spurious):
        raise settings.refuse("spurious", "share", share.allowed, comparison.spurious)
    skipped = {}
    for method in comparison.methods or METHODS:
        if method not in METHODS:
            raise settings.unknown("method", method, METHODS)
        reference = REFERENCES.get(method)
        if reference is None or (sentence := reference.missing(method)) is None:
            continue
        if comparison.methods is not None:
            raise ConfigError(sentence)
        skipped[method] = sentence
        warn(sentence)
    return skipped


def _load(name: str, folder: Path | None) -> Dataset:
    dataset = data.load(name, data_dir=folder, options=OPTIONS.get(name))
    if dataset.task == "regression":
        raise ConfigError(
            f"The data set '{name}' must have classes: not every peer knows "
            "regression. Got amounts as labels."
        )
    return dataset


# -- one data set ----------------------------------------------------------------------


@dataclass
class _PeerBench:
    """One data set, whose problem of a seed is the same for all methods."""

    dataset: Dataset
    spurious: float
    device: torch.device
    _problems: dict[int, Problem] = field(default_factory=dict)

    def problem(self, seed: int) -> Problem:
        """Return the problem that every method gets for a seed."""
        if seed not in self._problems:
            self._problems[seed] = data.prepare(
                self.dataset, ROWS, spurious=self.spurious, seed=seed
            )
        return self._problems[seed]

    def unfit(self, seeds: Sequence[int]) -> str | None:
        """Return why the data set cannot be used with these seeds, if it cannot."""
        try:
            for seed in seeds:
                self.problem(seed)
        except DataError as error:
            return str(error)
        return None

    def line(self, method: str, seed: int) -> PeerLine:
        """Run a method with a seed; return its numbers."""
        run = self._reference if method in REFERENCES else self._ours
        return run(method, seed)

    def _ours(self, method: str, seed: int) -> PeerLine:
        """Run one of our methods."""
        name, profile = OURS[method]
        same_data = dataclasses.asdict(ROWS)
        chosen = profiles.resolve(name, profile, self.dataset, same_data)
        job = Job(self.dataset, chosen, spurious=self.spurious, device=self.device.type)
        (one,) = simulate.simulate(job, [seed])
        found, took = one.numbers, one.numbers["seconds"]
        kept = [
            np.isin(table.features, found["features"][table.name]["kept"])
            for table in one.problem.parties
        ]
        return {
            "seed": seed,
            **judge(one.problem, np.concatenate(kept)),
            "own_accuracy": found["accuracy"]["final"],
            "own_balanced_accuracy": found["balanced_accuracy"]["final"],
            "bytes": sum(found["communication"]["payload_bytes"].values()),
            "seconds": took["total"] - took.get("evaluate", 0.0),
            "setting": {},
        }

    def _reference(self, method: str, seed: int) -> PeerLine:
        problem = self.problem(seed)
        tables = pooled.pool(problem, seed, self.device)
        began = time.perf_counter()
        selection = REFERENCES[method].select(tables)
        seconds = time.perf_counter() - began
        own = _scores(selection.predicted, problem)
        return {
            "seed": seed,
            **judge(problem, selection.kept),
            **{f"own_{name}": value for name, value in own.items()},
            "bytes": 4 * tables.X_train.size,  # moved to one place as float32
            "seconds": seconds,
            "setting": dict(selection.setting),
        }


def judge(problem: Problem, kept: Mask) -> dict[str, Any]:
    """Return how good a mask of all features is, by the truth and by a common model."""
    planted = np.concatenate([table.spurious for table in problem.parties])
    truth = numbers.truth(problem.parties, [kept])
    return {
        "n_features": len(kept),
        "n_kept": int(kept.sum()),
        "removed_share": float((~kept[planted]).mean()) if planted.any() else None,
        "real_kept_share": float(kept[~planted].mean()),
        "f1": None if truth is None else truth["f1"],
        **_scores(_common_model(problem, kept), problem),
    }


def _common_model(problem: Problem, kept: Mask) -> Classes:
    """Train the common model on the kept columns; return the test rows' classes."""
    ends = np.cumsum([len(table.features) for table in problem.parties])
    parts = list(zip(problem.parties, np.split(kept, ends[:-1]), strict=True))
    X_train = np.hstack([table.X_train[:, mask[table.groups]] for table, mask in parts])
    X_test = np.hstack([table.X_test[:, mask[table.groups]] for table, mask in parts])
    if X_train.shape[1] == 0:
        return pooled.majority(problem.y_train, len(problem.y_test))
    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=COMMON_C, max_iter=1000)
    )
    predicted: Classes = model.fit(X_train, problem.y_train).predict(X_test)
    return predicted


def _scores(predicted: NDArray[Any], problem: Problem) -> dict[str, float]:
    truth = torch.as_tensor(problem.y_test).long()
    right = torch.as_tensor(predicted).long() == truth
    hits = metrics.class_hits(right.unsqueeze(1), truth, problem.n_classes)
    sizes = metrics.class_sizes(truth, problem.n_classes)
    return {
        "accuracy": float(metrics.accuracy(hits, sizes)),
        "balanced_accuracy": float(metrics.balanced_accuracy(hits, sizes)),
    }


# -- results ---------------------------------------------------------------------------


def _spread(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Return mean and sample standard deviation, None where there is nothing."""
    found = spread(values)
    return None if found is None else {"mean": found.mean, "std": found.std}


def _sentence(method: str, line: Mapping[str, Any]) -> str:
    removed = line["removed_share"]
    gone = "" if removed is None else f"{100 * removed:.0f} % of noise removed, "
    return (
        f"{method}, seed {line['seed']}: {gone}kept {line['n_kept']} of "
        f"{line['n_features']}, accuracy {line['accuracy']:.3f}, "
        f"{line['seconds']:.1f} s"
    )
