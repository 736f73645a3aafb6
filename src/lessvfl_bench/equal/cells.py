"""One cell of the comparison: a method on a data set, under a transport.

A *transport* is what decides how much is sent: components and bits, the rows of a
step, its learning rate, and how long training lasts. Two are compared, the paper's and
that of ``less-vfl-auto``; the breakdown goes from one to the other, a part at a time.
What is not part of it (stages 2 and 3, how networks start) is each method's own.
"""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl import data, methods, settings
from lessvfl.data import DataConfig, Dataset
from lessvfl.run import profiles, simulate, target
from lessvfl.run.profiles import Settings
from lessvfl.run.simulate import Job
from lessvfl_bench.paper import plan
from lessvfl_bench.study import alone, telling_unfit

METHODS = ("plain", "group-lasso", "local-lasso", "less-vfl", methods.DEFAULT)
LASSOS = ("group-lasso", "local-lasso", "less-vfl")  # those with a lambda
TRANSPORTS = ("paper", "ours")
STEPS = ("paper", "bits", "components", "ours")  # of the breakdown, each with the last
SPURIOUS = 0.5
CHOICE_SEED = 0  # of the split of training rows that lambdas are chosen on
JOINT_SHARE = 0.6  # of group lasso's epochs are proximal: 150 of 250 in the paper

PARTIES = {"isolet1": 2}  # where not the data set's own
SCORES = ("accuracy", "balanced_accuracy", "auc")
POINT = ("accuracy", "balanced_accuracy", "removed_share", "payload_bytes", "rounds")

Trial = Mapping[str, Any]  # lambdas, and what came of them on rows held out


@dataclass(frozen=True)
class Cell:
    """A method on a data set, under a transport, with lambdas where it has some."""

    data: str
    transport: str
    method: str
    lambdas: tuple[tuple[str, float], ...] = ()
    spurious: float = SPURIOUS

    @property
    def about(self) -> dict[str, Any]:
        """Return it as plain values, as a record has them."""
        return {**dataclasses.asdict(self), "lambdas": dict(self.lambdas)}


def settings_of(cell: Cell, dataset: Dataset) -> Settings:
    """Return the settings of a cell: the transport's, and the method's own."""
    allowed = methods.get(cell.method).profiles
    profile = "paper" if "paper" in allowed else "default"
    given = {**dataclasses.asdict(DataConfig()), **transport(cell.transport, dataset)}
    if profile == "default" and cell.method != methods.DEFAULT:
        # What a rival trains before it selects is part of its selection.
        given = {k: v for k, v in given.items() if not k.startswith("pretrain_")}
    given |= dict(cell.lambdas)
    if cell.method == "group-lasso":  # as many epochs as the others in all
        epochs = given["train_epochs"]
        given |= {"joint_epochs": JOINT_SHARE * epochs}
        given |= {"train_epochs": (1 - JOINT_SHARE) * epochs}
        given |= {"train_optimizer": given.pop("optimizer")}
    known = settings.fields_of(profiles.sections(cell.method))
    read = {name: value for name, value in given.items() if name in known}
    return profiles.resolve(cell.method, profile, dataset, read)


def transport(name: str, dataset: Dataset) -> dict[str, Any]:
    """Return the settings of a transport, or of a step from the paper's to ours."""
    paper = profiles.transport(profiles.resolve("less-vfl", "paper", dataset))
    paper["pretrain_batch_size"] = paper["batch_size"]
    ours = profiles.transport(profiles.resolve(methods.DEFAULT, "default", dataset))
    if name == "ours":
        return ours
    taken: tuple[str, ...] = ()
    if name in ("bits", "components"):
        taken += ("bits",)
    if name == "components":
        taken += ("embedding_size", "components_per_column")
    return paper | {key: ours[key] for key in taken}


@telling_unfit
@alone()
def run(cell: Cell, seed: int, folder: Path | None) -> dict[str, Any]:
    """Run a cell with one seed, on one core; return what tables are made of."""
    began = time.perf_counter()
    dataset = data.load(cell.data, data_dir=folder)
    own = settings_of(cell, dataset)
    job = Job(dataset, own, PARTIES.get(cell.data), cell.spurious)
    (one,) = simulate.simulate(job, [seed])
    counts = np.bincount(dataset.y.astype(int))
    return {
        **_line(one.numbers),
        "majority": float(counts.max() / counts.sum()),
        "seconds": time.perf_counter() - began,
    }


def _line(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tables need of a run's numbers."""
    sent, planted = numbers["communication"], numbers["spurious"]
    return {
        "seed": numbers["seed"],
        **{name: numbers[name] and numbers[name]["final"] for name in SCORES},
        "best": {name: numbers[name]["best"] for name in SCORES[:2]},
        "removed_share": planted and planted["removed_share"],
        "real_kept_share": planted and planted["real_kept_share"],
        "bytes": sent["payload_bytes"],
        "rounds": sent["rounds"],
        "curve": [{key: point[key] for key in POINT} for point in numbers["curve"]],
    }


# -- lambdas ---------------------------------------------------------------------------


@telling_unfit
@alone()
def try_lambdas(
    cell: Cell, lam_server: float | None, device: str, folder: Path | None
) -> dict[str, Any]:
    """Try the paper's lambdas of the parties, with one of the server's or none.

    A fifth of the training rows is held out; the others learn.
    """
    dataset = data.load(cell.data, data_dir=folder)
    rows = training_rows(dataset, settings_of(cell, dataset).data, CHOICE_SEED)
    trials = []
    for lam_party in plan.published()["grid"]["lam_party"]:
        lambdas = {"lam_party": lam_party, "lam_server": lam_server}
        lambdas = {name: lam for name, lam in lambdas.items() if lam is not None}
        chosen = dataclasses.replace(cell, lambdas=tuple(lambdas.items()))
        job = Job(
            rows,
            settings_of(chosen, dataset),
            PARTIES.get(cell.data),
            cell.spurious,
            device=device,
        )
        (one,) = simulate.simulate(job, [CHOICE_SEED])
        accuracy = one.numbers["accuracy"]["final"]
        removed = one.numbers["spurious"]["removed_share"]
        trials.append(
            {"lambdas": lambdas, "accuracy": accuracy, "removed_share": removed}
        )
    return {"trials": trials}


def choose(trials: Sequence[Trial]) -> dict[str, Trial]:
    """Return the trials that did best on rows held out, by two rules.

    ``accuracy``: the highest. ``removed``: the highest of those that removed 80 % of
    the planted noise, as the paper chose; where none did, the same.
    """
    gone = [one for one in trials if one["removed_share"] >= target.REMOVED_SHARE]
    by_rule = {"accuracy": trials, "removed": gone or trials}
    score = operator.itemgetter("accuracy")
    return {rule: max(some, key=score) for rule, some in by_rule.items()}


def server_lambdas(method: str) -> Sequence[float | None]:
    """Return the paper's lambdas of the server; one None where parties alone have some.

    A method that has no lambda at all has an empty list.
    """
    if method not in LASSOS:
        return []
    if method != "less-vfl":
        return [None]
    grid: list[float] = plan.published()["grid"]["lam_server"]
    return grid


def training_rows(dataset: Dataset, config: DataConfig, seed: int) -> Dataset:
    """Return the training rows of a seed as a data set of their own."""
    rows = np.arange(dataset.X.n_rows)
    if dataset.X_test is None:
        rows, _ = data.split_rows(dataset, config, seed)
    return dataclasses.replace(dataset.take(rows), X_test=None, y_test=None)
