"""Places to compare methods at, and one cell: a method at a place, with one seed.

All methods have the transport of ``less-vfl-auto`` as far as they share it, as in
:mod:`lessvfl_bench.equal.cells`; what else they are set to is their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lessvfl import data, methods
from lessvfl.core import metrics
from lessvfl.data import Dataset, Problem
from lessvfl.errors import ConfigError, DataError
from lessvfl.run import simulate
from lessvfl.run.profiles import Settings
from lessvfl.run.simulate import Job
from lessvfl_bench.equal import cells
from lessvfl_bench.peers.run import COMMON_C
from lessvfl_bench.rivals import published, splits
from lessvfl_bench.shapes import held_out, models
from lessvfl_bench.shapes.made import KnownTable
from lessvfl_bench.shapes.run import BY_SHARES, kept_of, recovery
from lessvfl_bench.study import BY_CLASS, alone

SPURIOUS = cells.SPURIOUS
SCORES = ("balanced_accuracy", "auc", "r2")
JUDGES = ("linear", "boosted")
MIB = 2**20


@dataclass(frozen=True)
class RivalPlace:
    """Where methods are compared.

    A data set as it lies, split anew, or as in a published table; or a shape.
    """

    data: str
    split: str = ""  # as in importance:0.1
    n_parties: int = 0  # of a split
    is_shape: bool = False
    is_published: bool = False

    @property
    def kind(self) -> str:
        """Return what sort of place it is."""
        if self.is_shape:
            return "shapes"
        if self.is_published:
            return published.KIND
        return "splits" if self.split else "data sets"

    @property
    def title(self) -> str:
        """Return what tables call it."""
        if self.is_shape:
            return f"shape: {self.data}"
        if self.is_published:
            return f"{self.data}: as in FedSDG-FS"
        if self.split:
            return f"{self.data}: {self.split}, {self.n_parties} parties"
        return self.data


@dataclass(frozen=True)
class RivalCell:
    """A method at a place, with lambdas where some were chosen for it.

    Beside a published table it may stand more than once, each time by another title.
    """

    place: RivalPlace
    method: str
    lambdas: tuple[tuple[str, float], ...] = ()
    title: str = ""  # where not the method's name

    @property
    def name(self) -> str:
        """Return what tables call it."""
        return self.title or self.method

    @property
    def about(self) -> dict[str, Any]:
        """Return it as plain values, as a record has them."""
        return {
            "place": self.place.title,
            "behaviour": f"{self.method}={methods.get(self.method).behaviour}",
            "lambdas": dict(self.lambdas),
            **({"title": self.title} if self.title else {}),
        }


class _Scene(NamedTuple):
    """A place, as a run needs it."""

    dataset: Dataset
    parties: int | Sequence[int] | Mapping[str, Sequence[str]] | None
    spurious: float
    shape: KnownTable | None


def _scene(place: RivalPlace, seed: int, folder: Path | None) -> _Scene:
    """Return a place; a shape has noise of its own, and none is planted."""
    if place.is_shape:
        shape = held_out.make(place.data, seed)
        return _Scene(shape.dataset, shape.sizes, 0.0, shape)
    dataset = data.load(place.data, data_dir=folder)
    if place.is_published:
        return _Scene(published.fold(dataset, seed), published.N_PARTIES, 0.0, None)
    if place.split:
        dealt = splits.parties_of(dataset, place.split, place.n_parties, seed)
        return _Scene(dataset, dealt, SPURIOUS, None)
    return _Scene(dataset, cells.PARTIES.get(place.data), SPURIOUS, None)


def settings_of(cell: RivalCell, dataset: Dataset, is_rare: bool = False) -> Settings:
    """Return a method's settings at the transport of ``less-vfl-auto``."""
    like = cells.Cell(dataset.name, "ours", cell.method, cell.lambdas)
    own = cells.settings_of(like, dataset)
    own = replace(own, data=replace(own.data, **BY_CLASS))
    if cell.place.is_published:
        return replace(own, data=replace(own.data, columns="random"))
    if not is_rare:
        return own
    return replace(own, labels=replace(own.labels, **BY_SHARES))


@alone()
def run(cell: RivalCell, seed: int, folder: Path | None) -> dict[str, Any]:
    """Run a method at a place with one seed, on one core; return a cell's numbers.

    What the method refuses, or the data set lacks, it says in ``refused``, and there
    are no numbers.
    """
    scene = _scene(cell.place, seed, folder)
    is_rare = scene.shape is not None and scene.shape.is_rare
    try:
        done = _simulate(cell, scene, seed, is_rare)
    except (ConfigError, DataError) as error:
        return {"refused": str(error)}
    numbers, took = done.numbers, done.numbers["seconds"]
    kept = _kept(done)
    sent = numbers["communication"]
    return {
        "refused": None,
        "n_kept": len(kept),
        "n_features": done.problem.n_features,
        **_selection(done, scene.shape),
        **(_published(done) if cell.place.is_published else {}),
        **{name: numbers.get(name) and numbers[name]["final"] for name in SCORES},
        **judge(done.problem, kept, is_rare),
        "mib": sum(sent["payload_bytes"].values()) / MIB,
        "mib_up": sent["payload_bytes"]["up"] / MIB,
        "mib_down": sent["payload_bytes"]["down"] / MIB,
        "rounds": sent["rounds"],
        "seconds": took["total"] - took.get("evaluate", 0.0),
    }


def _simulate(cell: RivalCell, scene: _Scene, seed: int, is_rare: bool) -> simulate.Run:
    """Run a method; for a published table perhaps with several settings, of which one.

    That is chosen by how many features are kept, and its bill is its own alone.
    """

    def run_with(lambdas: tuple[tuple[str, float], ...]) -> simulate.Run:
        own = settings_of(replace(cell, lambdas=lambdas), scene.dataset, is_rare)
        job = Job(scene.dataset, own, scene.parties, scene.spurious)
        (done,) = simulate.simulate(job, [seed])
        return done

    if not cell.place.is_published:
        return run_with(cell.lambdas)
    column = published.COLUMNS[cell.name]
    share = column.share(cell.place.data)
    runs = map(run_with, column.settings(scene.dataset))
    return min(runs, key=lambda done: abs(_published(done)["kept_share"] - share))


def _kept(done: simulate.Run) -> set[str]:
    parties = done.numbers["features"].values()
    return {name for party in parties for name in party["kept"]}


def _published(done: simulate.Run) -> dict[str, float]:
    """Return what the published table has of a method."""
    return {
        "kept_share": len(_kept(done)) / done.problem.n_features,
        "accuracy": done.numbers["accuracy"]["final"],
    }


def _selection(done: simulate.Run, shape: KnownTable | None) -> dict[str, Any]:
    """Return what share of noise went and of real features stayed; F1 if known.

    Of a shape noise are its useless features, and real ones those that matter.
    """
    numbers = done.numbers
    if shape is None:
        planted, truth = numbers["spurious"] or {}, numbers["truth"] or {}
        return {
            "removed_share": planted.get("removed_share"),
            "real_kept_share": planted.get("real_kept_share"),
            "f1": truth.get("f1"),
        }
    kept = kept_of(done, shape.dataset.X.names)
    found, useless = recovery(shape, kept), ~shape.significant & ~shape.neutral
    is_known = found["true"] > 0
    return {
        "removed_share": 1 - found["false kept"] / max(int(useless.sum()), 1),
        "real_kept_share": found["true found"] / found["true"] if is_known else None,
        "f1": found["F1"] if is_known else None,
    }


# -- models on the pooled columns kept -------------------------------------------------


def judge(
    problem: Problem, kept: set[str], is_rare: bool = False
) -> dict[str, float | None]:
    """Return the scores of two models on the columns kept, pooled for judging alone."""
    X, X_test = models.side_by_side(problem, kept)
    found: dict[str, float | None] = {}
    for name in JUDGES:
        scores = _scores(problem, _outputs(name, problem, X, X_test, is_rare))
        found |= {f"{name}_{score}": scores.get(score) for score in SCORES}
    return found


def _outputs(
    name: str, problem: Problem, X: Any, X_test: Any, is_rare: bool
) -> torch.Tensor:
    """Return what a model says of the test rows: amounts, or logits of classes."""
    regression = problem.task == "regression"
    model = _model(name, regression, "balanced" if is_rare else None)
    return models.outputs_of(model, problem, X, X_test)


def _model(name: str, regression: bool, weight: str | None) -> Any:
    if name == "linear":
        model = Ridge() if regression else _logistic(weight)
        return make_pipeline(StandardScaler(), model)
    if regression:
        return HistGradientBoostingRegressor(random_state=0)
    return HistGradientBoostingClassifier(random_state=0, class_weight=weight)


def _logistic(weight: str | None) -> LogisticRegression:
    return LogisticRegression(C=COMMON_C, max_iter=1000, class_weight=weight)


def _scores(problem: Problem, out: torch.Tensor) -> dict[str, float | None]:
    y = torch.as_tensor(problem.y_test)
    y = y if problem.task == "regression" else y.long()
    found = metrics.measure(out, y, problem.task, names=SCORES)
    return {name: metrics.defined(float(value)) for name, value in found.items()}
