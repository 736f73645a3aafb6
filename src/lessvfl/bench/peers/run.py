"""LESS-VFL beside feature selection on pooled data, on the same rows and columns."""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from lessvfl.bench.peers import pooled
from lessvfl.bench.peers.pooled import REFERENCES, Classes, Mask
from lessvfl.core import metrics
from lessvfl.core.device import resolve_device
from lessvfl.data import DataConfig, Dataset, Problem
from lessvfl.errors import ConfigError, LessVFLWarning
from lessvfl.run import experiment, profiles, simulate
from lessvfl.run.record import write_atomically
from lessvfl.run.simulate import Job

DATA = (
    "phishing",
    "sylva_train",
    "gina_reconstruction",
    "activity_time265",
    "synthetic",
)
SEEDS = (0, 1, 2, 3, 4)
OPTIONS = {"synthetic": {"task": "binary"}}  # every reference is a classifier
JOURNAL = "peers.jsonl"
COMMON_C = 0.1  # of the logistic regression that judges every selection

# Our own methods: name -> method, profile. All of them see the data as `default` has
# them, so that every row of a table is about the same problem.
OURS = {
    "less-vfl": ("less-vfl", "default"),
    "less-vfl-official-code": ("less-vfl", "official-code"),
    "local-lasso": ("local-lasso", "default"),
    "group-lasso": ("group-lasso", "default"),
    "plain": ("plain", "default"),
}
METHODS = (*OURS, *REFERENCES)

# What is measured once a seed and averaged over seeds.
NUMBERS = (
    "n_kept",
    "removed_share",
    "real_kept_share",
    "f1",
    "accuracy",
    "balanced_accuracy",
    "own_accuracy",
    "own_balanced_accuracy",
    "bytes",
    "seconds",
)

Line = dict[str, Any]  # the numbers of one data set, method and seed
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Parameters
    ----------
    data : sequence of str
        Names of data sets with classes, or files.
    methods : sequence of str, optional
        Out of ``METHODS``; unless given all of them whose packages are installed.
    spurious : float
        Planted columns of noise, as a share of a party's own columns.
    seeds : sequence of int
        One run of every method each.
    device : str
        cpu, cuda or auto; for networks, the rest is on the CPU.
    data_dir : Path, optional
        Folder of local data sets.
    """

    data: Sequence[str] = DATA
    methods: Sequence[str] | None = None
    spurious: float = 0.5
    seeds: Sequence[int] = SEEDS
    device: str = "auto"
    data_dir: Path | None = None


def run(
    comparison: Comparison,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Run every method on every data set and seed.

    Parameters
    ----------
    comparison : Comparison
        What to compare.
    folder : Path, optional
        Where ``peers.jsonl`` gets a line after every finished run.
    resume : bool
        Take over the lines that are in the folder already.
    progress : callable
        Told a sentence after every finished run.

    Returns
    -------
    dict
        The object that ``lessvfl bench peers --json`` prints.
    """
    began = time.perf_counter()
    skipped = _check(comparison, folder, resume)
    device = resolve_device(comparison.device)
    methods = METHODS if comparison.methods is None else comparison.methods
    tables = {name: _load(name, comparison.data_dir) for name in comparison.data}
    journal = _Journal(folder, resume, comparison.spurious)
    total = len(tables) * (len(methods) - len(skipped)) * len(comparison.seeds)
    results, notes, n_done = [], {}, 0
    for name, dataset in tables.items():
        bench = _Bench(dataset, comparison.spurious, device)
        for method in methods:
            lines: dict[int, Line] = {}
            if method not in skipped:
                lines = journal.known(name, method)
                waiting = [seed for seed in comparison.seeds if seed not in lines]
                n_done += len(comparison.seeds) - len(waiting)
                for line in bench.lines(method, waiting):
                    journal.add(name, method, line)
                    lines[line["seed"]] = line
                    n_done += 1
                    progress(f"{n_done} of {total}: {name}, {_sentence(method, line)}")
            found = [lines[seed] for seed in comparison.seeds if seed in lines]
            results.append(_summary(name, method, found, skipped.get(method)))
        notes[name] = bench.notes(comparison.seeds[0])
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


def _check(comparison: Comparison, folder: Path | None, resume: bool) -> dict[str, str]:
    """Refuse what cannot be run; return the methods to skip, each with a sentence."""
    for option in ("data", "methods", "seeds"):
        many = getattr(comparison, option)
        if many is not None and (not many or len(set(many)) < len(many)):
            raise ConfigError(
                f"The '{option}' of the comparison must be one or more, each given "
                f"once. Got {list(many)}."
            )
    for seed in comparison.seeds:
        if not 0 <= seed < 2**63:
            raise ConfigError(
                f"Every seed must be a whole number in [0, 2**63). Got {seed}."
            )
    share = settings.a_float(0.0, 10.0)
    if not share.accepts(comparison.spurious):
        raise settings.refuse("spurious", "share", share.allowed, comparison.spurious)
    if resume and folder is None:
        raise ConfigError(
            "A comparison can only be resumed in its folder: '--resume' must come with "
            "'--out'. Got no folder."
        )
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
        warnings.warn(sentence, LessVFLWarning, stacklevel=3)
    if folder is not None:
        experiment.claim(folder)
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


class _Bench:
    """One data set, prepared once a seed for all methods."""

    def __init__(self, dataset: Dataset, spurious: float, device: torch.device) -> None:
        self.dataset = dataset
        self.spurious = spurious
        self.device = device
        self._problems: dict[int, Problem] = {}

    def problem(self, seed: int) -> Problem:
        """Return the problem that every method gets for a seed."""
        if seed not in self._problems:
            self._problems[seed] = data.prepare(
                self.dataset, DataConfig(), spurious=self.spurious, seed=seed
            )
        return self._problems[seed]

    def notes(self, seed: int) -> list[str]:
        """Return the sentences to read the numbers with."""
        return list(self.problem(seed).notes)

    def lines(self, method: str, seeds: Sequence[int]) -> Iterator[Line]:
        """Run a method; yield the numbers of every seed."""
        if method in OURS:
            yield from self._ours(method, seeds)
        else:
            yield from (self._reference(method, seed) for seed in seeds)

    def _ours(self, method: str, seeds: Sequence[int]) -> Iterator[Line]:
        """Run one of our methods, all seeds as one batch."""
        if not seeds:
            return
        name, profile = OURS[method]
        same_data = dataclasses.asdict(DataConfig())
        chosen = profiles.resolve(name, profile, self.dataset, same_data)
        job = Job(self.dataset, chosen, spurious=self.spurious, device=self.device.type)
        for one in simulate.simulate(job, seeds):
            numbers = one.numbers
            kept = np.concatenate(
                [
                    np.isin(table.features, numbers["features"][table.name]["kept"])
                    for table in one.problem.parties
                ]
            )
            took = numbers["seconds"]
            sent = numbers["communication"]["payload_bytes"]
            yield {
                "seed": numbers["seed"],
                **judge(one.problem, kept),
                "own_accuracy": numbers["accuracy"]["final"],
                "own_balanced_accuracy": numbers["balanced_accuracy"]["final"],
                "bytes": sent["up"] + sent["down"],
                "seconds": (took["total"] - took.get("evaluate", 0.0)) / len(seeds),
                "setting": {},
            }

    def _reference(self, method: str, seed: int) -> Line:
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
            "bytes": tables.n_bytes,
            "seconds": seconds,
            "setting": dict(selection.setting),
        }


def judge(problem: Problem, kept: Mask) -> dict[str, Any]:
    """Return how good a selection is, by the truth and by one common model.

    Parameters
    ----------
    problem : Problem
        What was selected from.
    kept : array of bool
        One entry a feature, parties in order.

    Returns
    -------
    dict
        ``n_features``, ``n_kept``, ``removed_share`` of the planted features,
        ``real_kept_share``, ``f1`` where the truth is known, ``accuracy`` and
        ``balanced_accuracy`` on test rows of a standardised logistic regression trained
        on the kept columns.
    """
    planted = np.concatenate([table.spurious for table in problem.parties])
    known = [table.significant for table in problem.parties]
    truth = [mask.tolist() for mask in known if mask is not None]
    f1 = None
    if len(truth) == len(known):
        f1 = metrics.support_f1(
            kept.tolist(), [flag for part in truth for flag in part]
        )
    return {
        "n_features": len(kept),
        "n_kept": int(kept.sum()),
        "removed_share": float((~kept[planted]).mean()) if planted.any() else None,
        "real_kept_share": float(kept[~planted].mean()),
        "f1": f1,
        **_scores(_common_model(problem, kept), problem),
    }


def _common_model(problem: Problem, kept: Mask) -> Classes:
    """Train the common model on the kept columns; return the test rows' classes."""
    train, test, start = [], [], 0
    for table in problem.parties:
        columns = kept[start : start + len(table.features)][table.groups]
        train.append(table.X_train[:, columns])
        test.append(table.X_test[:, columns])
        start += len(table.features)
    X_train, X_test = np.hstack(train), np.hstack(test)
    if X_train.shape[1] == 0:
        return pooled.majority(problem.y_train, len(problem.y_test))
    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=COMMON_C, max_iter=1000)
    )
    predicted: Classes = model.fit(X_train, problem.y_train).predict(X_test)
    return predicted


def _scores(predicted: NDArray[Any], problem: Problem) -> dict[str, float]:
    guess = torch.as_tensor(predicted).long().unsqueeze(0)
    truth = torch.as_tensor(problem.y_test).long().unsqueeze(0)
    balanced = metrics.balanced_accuracy(guess, truth, problem.n_classes)
    return {
        "accuracy": float(metrics.accuracy(guess, truth)),
        "balanced_accuracy": float(balanced),
    }


# -- results ---------------------------------------------------------------------------


class _Journal:
    """Finished runs, one JSON line each, in memory and perhaps in a folder."""

    def __init__(self, folder: Path | None, resume: bool, spurious: float) -> None:
        self.path = None if folder is None else folder / JOURNAL
        self.spurious = spurious
        self._lines = list(self._read()) if resume else []
        if self.path is not None:
            text = "".join(json.dumps(line) + "\n" for line in self._lines)
            write_atomically(self.path, text.encode())

    def _read(self) -> Iterator[Line]:
        """Yield the lines of the folder, but for one that was cut off."""
        if self.path is None or not self.path.is_file():
            return
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and {"data", "method", *NUMBERS} <= set(line):
                yield line

    def known(self, name: str, method: str) -> dict[int, Line]:
        """Return the numbers of a data set and method by seed."""
        wanted = (name, method, self.spurious)
        tags = ("data", "method", "spurious")
        return {
            line["seed"]: {key: line[key] for key in line if key not in tags}
            for line in self._lines
            if tuple(line[tag] for tag in tags) == wanted
        }

    def add(self, name: str, method: str, line: Line) -> None:
        """Write one line down at once."""
        if self.path is None:
            return
        tagged = {"data": name, "method": method, "spurious": self.spurious, **line}
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(tagged, allow_nan=False) + "\n")


def _summary(
    name: str, method: str, lines: Sequence[Line], skipped: str | None
) -> dict[str, Any]:
    """Average over seeds."""
    return {
        "data": name,
        "method": method,
        "seeds": [line["seed"] for line in lines],
        **{key: _spread([line[key] for line in lines]) for key in NUMBERS},
        "skipped": skipped,
        "by_seed": list(lines),
    }


def _spread(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Return mean and sample standard deviation, None where there is nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "std": std}


def _sentence(method: str, line: Mapping[str, Any]) -> str:
    removed = line["removed_share"]
    gone = "" if removed is None else f"{100 * removed:.0f} % of noise removed, "
    return (
        f"{method}, seed {line['seed']}: {gone}kept {line['n_kept']} of "
        f"{line['n_features']}, accuracy {line['accuracy']:.3f}, "
        f"{line['seconds']:.1f} s"
    )
