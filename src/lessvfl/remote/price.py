"""What runs between machines spend of privacy, all of them together, and what they may.

A party counts what is told of its rows, the label holder what is told of labels, each
beside its run folders. Releases are stored and not their epsilon, so that the
accountant composes those of all runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from lessvfl.core.plans import TrainPlan
from lessvfl.data import Dataset, digest_of, fold_seeds
from lessvfl.data.randomised import draws_of, randomise
from lessvfl.errors import ConfigError
from lessvfl.mechanisms import RandomisedResponse, Releases
from lessvfl.remote.align.keys import SECRET_BYTES
from lessvfl.remote.beside import Beside
from lessvfl.remote.config import ServerConfig
from lessvfl.remote.policy import LabelPolicy, Policy
from lessvfl.remote.tables import tells_labels
from lessvfl.run.accounting import Spend, epsilon_of, of_labels
from lessvfl.run.profiles import Settings

Stored = Mapping[str, Sequence[Mapping[str, Any]]]  # releases by what made them


@dataclass(frozen=True)
class Price:
    """Epsilon of a run, of all runs with it, and the most that these may spend."""

    run: float
    together: float
    most: float | None
    delta: float

    @classmethod
    def of(
        cls, known: Stored, name: str, own: Spend | None, most: LabelPolicy | Policy
    ) -> Price | None:
        """Return what a run of that name spends; None where it says no epsilon.

        `known` has its own releases, too, where it was charged for already.
        """
        if own is None:
            return None
        others = [Releases(**r) for n, rs in known.items() if n != name for r in rs]
        delta = most.delta if others or own.delta else 0.0
        run, together = (
            epsilon_of(_merged(some), delta)
            for some in (own.releases, (*others, *own.releases))
        )
        return cls(run, together, most.epsilon, delta)

    @property
    def is_too_much(self) -> bool:
        """Tell whether all runs together would spend more than they may."""
        return self.most is not None and self.together > self.most

    def words(self, of: str, what: str = "this run would spend") -> str:
        """Say it of every row, or of every label."""
        bound = "" if self.most is None else f" of {self.most:g}"
        said = f"{what} epsilon {self.run:.3g}"
        if self.together == self.run:
            said = f"{said}{bound} of every {of}"
        else:
            said = f"{said} of every {of}, {self.together:.3g}{bound} with earlier runs"
        return f"{said} (delta {self.delta:g})"

    def doubt(self, n_rows: int) -> str | None:
        """Say that delta is too large for so many rows, where it is."""
        if self.delta * n_rows < 1:
            return None
        return (
            f"Of {n_rows:,} rows a delta of {self.delta:g} allows that about "
            f"{self.delta * n_rows:,.0f} are told whole: the policy should have one "
            f"below {1 / n_rows:.0e}"
        )

    def refused(self) -> str:
        """Say what came, of what is too much."""
        earlier = "" if self.together == self.run else " with what earlier runs spent"
        return f"a run that would spend {self.together:.3g}{earlier}"


def spent(known: Stored, delta: float) -> float:
    """Return epsilon of all releases that are known."""
    return epsilon_of(
        _merged(Releases(**r) for rs in known.values() for r in rs), delta
    )


def _merged(releases: Iterable[Releases]) -> list[Releases]:
    """Return releases with those of one kind together."""
    counts: Counter[Releases] = Counter()
    for one in releases:
        counts[dataclasses.replace(one, times=1)] += one.times
    return [dataclasses.replace(one, times=n) for one, n in counts.items()]


def stored(own: Spend) -> list[dict[str, Any]]:
    """Return releases as a file has them."""
    return [dataclasses.asdict(one) for one in own.releases]


# ------------------------------------------------------------------------------- labels


class LabelBudget:
    """What all runs told of the labels in a column, and the secret they are drawn by.

    In ``spent-labels.json`` beside the run folders of a label holder. Randomised labels
    of one table and one epsilon are the same in every run, and cost once.
    """

    def __init__(self, config: ServerConfig, own: Settings) -> None:
        self._config, self._own, self._column = config, own, config.label or ""
        self._is_randomised = own.labels.label_epsilon is not None
        empty = {"secret": "", "labels": {}}
        self._file = Beside(Path(config.out), "labels", empty)

    def randomise(self, dataset: Dataset, ids: NDArray[Any] | None) -> Dataset:
        """Return a table with labels for training that are randomised, if asked for.

        A row is known by its id, or by its place in this very table. A label that was
        changed has another draw: by the same one, both would tell that it was. So have
        all labels where classes have other names or another order.
        """
        labels = self._own.labels
        if labels.label_epsilon is None or dataset.task == "regression":
            return randomise(dataset, labels)  # as it is, or refused
        with self._file.held() as known:
            known["secret"] = known["secret"] or secrets.token_hex(SECRET_BYTES)
        rows = range(len(dataset.y)) if ids is None else ids.tolist()
        table = _digest(dataset, None) if ids is None else ""
        classes = list(dataset.label_names)
        names = (
            json.dumps([self._column, classes, y, table, str(row)])
            for y, row in zip(dataset.y.tolist(), rows, strict=True)
        )
        mechanism = RandomisedResponse(labels.label_epsilon, len(dataset.label_names))
        draws = draws_of(names, bytes.fromhex(known["secret"]), mechanism)
        return randomise(dataset, labels, draws)

    def spend(self, dataset: Dataset) -> Spend | None:
        """Return what a run spends of a label; None: nothing of it has a price."""
        config = self._config
        n_seeds = len(fold_seeds(config.seeds, self._own.data.folds))
        sizes = (len(dataset.label_names), len(config.everyone), n_seeds)
        return of_labels(self._own, *sizes)

    def price(
        self, dataset: Dataset, ids: NDArray[Any] | None, run: str
    ) -> Price | None:
        """Return what a run of that name costs, or refuse it if that is too much."""
        name, own = self._name(dataset, ids, run), self.spend(dataset)
        return self._checked(self._file.known(), name, own, dataset)

    def charge(self, dataset: Dataset, ids: NDArray[Any] | None, run: str) -> None:
        """Charge for a run before anything leaves, or refuse it."""
        own, name = self.spend(dataset), self._name(dataset, ids, run)
        if own is not None:
            with self._file.held() as known:
                self._charge(known, name, own, dataset)

    def spent(self) -> float | None:
        """Return epsilon of all runs that were charged for, None without any."""
        of_column = self._file.known()["labels"].get(self._column)
        return spent(of_column, self._config.policy.delta) if of_column else None

    def has_charged(self, run: str) -> bool:
        """Tell whether a run of that name may have sent anything by labels."""
        return run in self._file.known()["labels"].get(self._column, {})

    def charge_again(self, dataset: Dataset, run: str, n_train: int) -> None:
        """Charge for the steps since a checkpoint, or refuse to repeat them.

        A party that comes back may send what it did not send before: with noise on
        gradients each of them is another look at the labels of its batch.
        """
        own, config = self.spend(dataset), self._config
        if own is None or self._is_randomised:
            return
        n_parties = len(config.everyone)
        plans = self._own.config.plans(n_parties)
        per_epoch = min(
            plan.batches(n_train, (0,)).n_per_epoch
            for plan in plans
            if isinstance(plan, TrainPlan)
        )
        n_epochs = 1 + math.ceil((config.save_every - 1) / per_epoch)  # begun in them
        n_again = n_parties * n_epochs
        name = f"{run} after breaks"
        with self._file.held() as known:
            before = known["labels"].get(self._column, {}).get(name, [{"times": 0}])
            times = before[0]["times"] + n_again
            again = dataclasses.replace(own.releases[0], times=times)
            more = dataclasses.replace(own, releases=(again,))
            self._charge(known, name, more, dataset)

    def _charge(
        self, known: dict[str, Any], name: str, own: Spend, dataset: Dataset
    ) -> None:
        self._checked(known, name, own, dataset)
        known["labels"].setdefault(self._column, {})[name] = stored(own)

    def _name(self, dataset: Dataset, ids: NDArray[Any] | None, run: str) -> str:
        """Return the name of a run's releases: the same ones are there once."""
        if not self._is_randomised:
            return run
        secret = hashlib.sha256(self._file.known()["secret"].encode()).hexdigest()
        return f"{_digest(dataset, ids)} {self._own.labels.label_epsilon!r} {secret}"

    def _checked(
        self, known: dict[str, Any], name: str, own: Spend | None, dataset: Dataset
    ) -> Price | None:
        policy, of_column = self._config.policy, known["labels"].get(self._column, {})
        found = Price.of(of_column, name, own, policy)
        got = None
        if found is None:
            got = "a run in which no mechanism with a price protects them"
        elif found.is_too_much:
            got = found.refused()
        elif not self._is_randomised and self._config.tell_share:
            got = "'tell_share', which tells parties of them"
        elif tells_labels(dataset, self._own):
            got = "split=stratified, which tells parties of them; set split=random"
        if policy.epsilon is not None and got is not None:
            raise ConfigError(
                f"All runs together may spend epsilon {policy.epsilon:g} of every "
                f"label ('epsilon' of the server's policy). Got {got}."
            )
        return found


def _digest(dataset: Dataset, ids: NDArray[Any] | None) -> str:
    """Return a digest of who has which label."""
    names = json.dumps(dataset.label_names).encode()
    parts = (digest_of(ids), digest_of(dataset.y), names)
    return hashlib.sha256(b"/".join(parts)).hexdigest()
