"""The joint model beside what anybody would fit to the columns that it keeps."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lessvfl import data
from lessvfl.core import metrics
from lessvfl.data import Dataset, Problem
from lessvfl.report.parts import markdown_table
from lessvfl.run import experiment, profiles, simulate
from lessvfl_bench.equal.cells import PARTIES
from lessvfl_bench.shapes import held_out, models
from lessvfl_bench.shapes.run import BY_SHARES
from lessvfl_bench.study import BY_CLASS, NameList, NumberList, Study, mean, option

DATA = (
    *("credit", "phishing", "rosmap", "pcmac", "arcene"),
    *("mfeat", "activity_time265", "isolet1", "tox171"),
)
RARE = ("3.5 % positive", "1 % positive")
SHAPE = "shape: "
LINEAR, BOOSTED, BY_PARTY = "LR", "HGB", "HGB by party"
BOTH = (LINEAR, BOOSTED)
STRENGTHS = np.logspace(-4, 2, 7)  # of C, which is cross-validated
RIDGES = np.logspace(-2, 4, 13)
N_FOLDS = 5
FAR = 1000  # between the seeds of an ensemble: those of other splits are elsewhere
NEAR = 0.01  # of AUC or R2, below gradient boosting
SCORES = ("leading", "balanced_accuracy")
MIB = 2**20


@dataclass(frozen=True)
class JointModel(Study):
    """The joint model beside logistic regression and gradient boosting.

    Both are fitted to the pooled columns that the run kept, and to all columns:
    logistic regression standardised, its C cross-validated on training rows by the log
    loss, and scikit-learn's HistGradientBoosting as it comes; of amounts ridge
    regression and the regressor. Boosting by party has the columns that were kept, but
    no tree with columns of two parties: what a sum over parties can draw. Nothing is
    planted. A joint model passes where its AUC, or R2 of amounts, is not below linear
    regression's by more than two standard errors over seeds, and not below boosting's
    by more than 0.01. With ``--ensemble`` so many seeds are trained on each split of
    rows; the first is the joint model, and all of them together stand beside it.

    A file of the folder is named with its label, as in ``bike.csv:cnt``; who holds what
    is in ``bike_parties.yaml`` beside it.
    """

    data: NameList = option(DATA, "By name or file.")
    shapes: NameList = option(RARE, "Made-up tables, as in 'lessvfl bench shapes'.")
    seeds: NumberList = option((0, 1, 2, 3, 4), "One split of rows each.")
    method: str = option("less-vfl-auto", "See 'lessvfl methods'.")
    ensemble: int = option(1, "Seeds whose models are averaged, on the same rows.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    smallest: ClassVar = {
        "data": ("breast-cancer",),
        "shapes": (),
        "seeds": (0, 1),
        "ensemble": 2,
    }

    @property
    def places(self) -> list[str]:
        """Return data sets and shapes by their names."""
        return [*self.data, *(f"{SHAPE}{name}" for name in self.shapes)]

    def cases(self) -> list[tuple[str, int]]:
        """Return place and seed."""
        return [(place, seed) for place in self.places for seed in self.seeds]

    def measure(self, case: tuple[str, int]) -> dict[str, Any]:
        """Run the method on one split of rows, and fit the others to its columns."""
        place, seed = case
        parties: Any
        if place.startswith(SHAPE):
            shape = held_out.make(place.removeprefix(SHAPE), seed)
            dataset, parties, is_rare = shape.dataset, shape.sizes, shape.is_rare
        else:
            dataset, parties = self._read(place)
            is_rare = False
        given = {"split_seed": seed, **BY_CLASS, **(BY_SHARES if is_rare else {})}
        if dataset.task == "regression":
            del given["split"]
        own = profiles.resolve(self.method, "default", dataset, given)
        seeds = [seed + FAR * member for member in range(self.ensemble)]
        job = simulate.Job(dataset, own, parties)
        record, (done, *_) = experiment.run(job, seeds)
        numbers, problem = done.numbers, done.problem
        kept = {name for p in numbers["features"].values() for name in p["kept"]}
        sent = numbers["communication"]
        names = names_of(problem)
        together = record.ensemble and record.ensemble["scores"]
        found: dict[str, Any] = {
            "joint": {key: numbers[name]["final"] for key, name in names.items()},
            "together": together and {k: together[name] for k, name in names.items()},
            "n_kept": len(kept),
            "n_features": problem.n_features,
            "rows": len(problem.y_train),
            "mib": sum(sent["payload_bytes"].values()) / MIB,
            "rounds": sent["rounds"],
        }
        found[BY_PARTY] = fitted_scores(problem, BY_PARTY, kept, is_rare)
        for name in BOTH:
            for columns, chosen in (("kept", kept), ("all", None)):
                scores = fitted_scores(problem, name, chosen, is_rare)
                found[f"{name} {columns}"] = scores
        return found

    def _read(self, place: str) -> tuple[Dataset, Any]:
        """Return a data set by name, or a file of the folder and who holds what."""
        file, is_named, label = place.partition(":")
        if not is_named:
            return data.load(place, data_dir=self.data_dir), PARTIES.get(place)
        folder = self.data_dir or Path(os.environ.get("LESSVFL_DATA", "."))
        path = folder / file
        parties = data.read_parties(path.with_name(f"{path.stem}_parties.yaml"))
        return data.load(str(path), label=label), parties

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every place, in two tables: AUC and balanced accuracy."""
        pooled = [f"{name} {columns}" for columns in ("kept", "all") for name in BOTH]
        others = [BY_PARTY, *pooled]
        is_many = self.ensemble > 1
        models_of = ["joint", *["together"] * is_many]
        tables: dict[str, list[list[str]]] = {score: [] for score in SCORES}
        for place in self.places:
            runs = [found[place, seed] for seed in self.seeds]
            for score, rows in tables.items():
                if score not in runs[0]["joint"]:
                    continue
                own = [run["joint"][score] for run in runs]
                row = [place, f"{runs[0]['rows']:,}", f"{mean(runs, 'n_kept'):.0f}"]
                row.append(f"{statistics.fmean(own):.4f}")
                if is_many:
                    both = [run["together"][score] for run in runs]
                    row.append(f"{statistics.fmean(both):.4f}")
                row += [
                    f"{statistics.fmean(run[name][score] for run in runs):.4f}"
                    for name in others
                ]
                if score == SCORES[0]:
                    for model in models_of:
                        row += [_less(runs, f"{name} kept", model) for name in BOTH]
                        row.append(verdict(runs, model))
                    row.append(f"{mean(runs, 'mib'):.3f}")
                    row.append(f"{mean(runs, 'rounds'):.0f}")
                rows.append(row)
        first = ["data", "rows", "kept", "joint", *["together"] * is_many, *others]
        less = [
            head
            for model in models_of
            for head in (*(f"{model} less {name}" for name in BOTH), "passes")
        ]
        yield from ("AUC, or R2 of amounts:", "")
        heads = [*first, *less, "MiB", "rounds"]
        yield from markdown_table(heads, tables[SCORES[0]])
        yield from ("", "Balanced accuracy:", "")
        yield from markdown_table(first, tables["balanced_accuracy"])


def _differences(
    runs: Sequence[Mapping[str, Any]], name: str, model: str
) -> tuple[float, float]:
    """Return by how much AUC or R2 differs in the mean over seeds, and its error."""
    score = SCORES[0]
    each = np.array([run[model][score] - run[name][score] for run in runs])
    error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else 0.0
    return float(each.mean()), float(error)


def _less(runs: Sequence[Mapping[str, Any]], name: str, model: str) -> str:
    difference, error = _differences(runs, name, model)
    return f"{difference:+.4f} ± {error:.4f}"


def verdict(runs: Sequence[Mapping[str, Any]], model: str) -> str:
    """Say whether a joint model is as good as both others on its columns."""
    less, error = _differences(runs, f"{LINEAR} kept", model)
    below = [LINEAR] if less < -2 * error else []
    less, _ = _differences(runs, f"{BOOSTED} kept", model)
    below += [BOOSTED] if less < -NEAR else []
    return f"no: {', '.join(below)}" if below else "yes"


def names_of(problem: Problem) -> dict[str, str]:
    """Return the scores of a problem by their names in a record."""
    if problem.task == "regression":
        return {SCORES[0]: "r2"}
    return {SCORES[0]: "auc", SCORES[1]: SCORES[1]}


def fitted_scores(
    problem: Problem, name: str, features: set[str] | None, is_rare: bool
) -> dict[str, float]:
    """Return the test scores of a model on pooled columns, some or all of them."""
    X, X_test = models.side_by_side(problem, features)
    together: list[set[int]] | None = None
    if name == BY_PARTY:
        begins = [0]
        for party in problem.parties:
            held = np.array(party.features)[party.groups]
            n_held = sum(features is None or one in features for one in held)
            begins.append(begins[-1] + n_held)
        together = [set(range(*ends)) for ends in itertools.pairwise(begins)]
    weight = "balanced" if is_rare else None
    model = _model(name, problem, weight, together)
    out = models.outputs_of(model, problem, X, X_test)
    y = torch.as_tensor(problem.y_test)
    y = y.to(out) if problem.task == "regression" else y.long()
    names = names_of(problem)
    found = metrics.measure(out, y, problem.task, names=tuple(names.values()))
    return {key: float(found[score]) for key, score in names.items()}


def _model(
    name: str, problem: Problem, weight: str | None, together: list[set[int]] | None
) -> Any:
    """Return a model; of boosting trees with columns of one set each, if any."""
    fixed: dict[str, Any] = {"random_state": 0, "interaction_cst": together}
    if problem.task == "regression":
        if name == LINEAR:
            return make_pipeline(StandardScaler(), RidgeCV(RIDGES))
        return HistGradientBoostingRegressor(**fixed)
    if name != LINEAR:
        return HistGradientBoostingClassifier(class_weight=weight, **fixed)
    _, counts = np.unique(problem.y_train, return_counts=True)
    n_folds = max(2, min(N_FOLDS, int(counts.min())))
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    logistic = LogisticRegression(max_iter=500, class_weight=weight)
    search = GridSearchCV(logistic, {"C": STRENGTHS}, scoring="neg_log_loss", cv=folds)
    return make_pipeline(StandardScaler(), search)
