"""What runs between machines spend of privacy, all of them together, and what they may.

A party counts what is told of its rows, the label holder what is told of labels, each
in accounts of its ids (``remote/accounts.py``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.plans import TrainPlan
from lessvfl.data import Dataset, Places, digest_of, fold_seeds
from lessvfl.data.labels import draws_of, randomise
from lessvfl.errors import ConfigError
from lessvfl.privacy.accounting import epsilon_of, spent_by
from lessvfl.privacy.mechanisms import RandomisedResponse
from lessvfl.remote.accounts import Accounts, Amounts, Charge, Most
from lessvfl.remote.align.ids import account_name
from lessvfl.remote.config import ServerConfig
from lessvfl.remote.policy import LabelPolicy, Policy
from lessvfl.remote.tables import LabelTable
from lessvfl.run.accounting import Spend, of_labels, unpriced
from lessvfl.run.profiles import Settings

ROUNDING = 1e-9  # of sums, as a share


@dataclass(frozen=True)
class Price:
    """Epsilon of a run, of all runs with it, and the most that these may spend."""

    run: float
    together: float
    most: float | None
    delta: float

    @classmethod
    def of(
        cls, spend: Spend | None, most: Most, policy: LabelPolicy | Policy
    ) -> Price | None:
        """Return what a run spends; None where it says no epsilon.

        `most` is what will have been told of rows then.
        """
        if spend is None:
            return None
        has_gaussian = any(gaussian for gaussian, _ in most.noise)
        delta = policy.delta if spend.delta or has_gaussian else 0.0
        run, together = epsilon_of(spend.releases, delta), most.epsilon(delta)
        return cls(run, together, policy.epsilon, delta)

    @property
    def is_too_much(self) -> bool:
        """Tell whether all runs together would spend more than they may."""
        return is_beyond(self.together, self.most)

    def words(self, of: str, what: str = "this run would spend") -> str:
        """Say it of every row, or of every label."""
        bound = "" if self.most is None else f" of {self.most:g}"
        sums = f"{bound} of every {of}"
        if self.together != self.run:
            sums = f" of every {of}, {self.together:.3g}{bound} with earlier runs"
        return f"{what} epsilon {self.run:.3g}{sums} (delta {self.delta:g})"

    def doubt(self, n_rows: int) -> str | None:
        """Say that delta is too large for so many rows, where it is."""
        if self.delta * n_rows < 1:
            return None
        return (
            f"Of {n_rows:,} rows a delta of {self.delta:g} allows that about "
            f"{self.delta * n_rows:,.0f} are told whole: the policy should have one "
            f"below {1 / n_rows:.0e}"
        )


def is_beyond(value: float, most: float | None) -> bool:
    """Tell whether a sum is above a bound, but for its last digits."""
    return most is not None and value > most * (1 + ROUNDING)


# ------------------------------------------------------------------------------- labels


class LabelBudget:
    """What all runs told of the labels in a column, and the secret they are drawn by.

    A label holder's accounts are those of its ids in that column. Randomised labels of
    one epsilon are the same in every run, and cost once.
    """

    def __init__(
        self, config: ServerConfig, settings: Settings, table: LabelTable
    ) -> None:
        self._config, self._settings, self._table = config, settings, table
        self._column = config.label or ""
        self._is_randomised = settings.labels.label_epsilon is not None
        self._accounts = Accounts(Path(config.out), "labels")

    def randomise(self) -> Dataset:
        """Return the table with labels for training that are randomised, if asked for.

        A row is known by its id, or by its place in this very table. A label that was
        changed has another draw: by the same one, both would tell that it was. So have
        all labels where classes have other names or another order.
        """
        labels, dataset = self._settings.labels, self._table.dataset
        if labels.label_epsilon is None or dataset.task == "regression":
            return randomise(dataset, labels)  # as it is, or refused
        ids = self._table.ids
        if ids is not None and len({*map(account_name, ids.tolist())}) < len(ids):
            raise ConfigError(
                "Under 'label_epsilon' ids must differ in more than how they are "
                "written, since rows that share an account would share a draw. Got "
                "two that do not, as 7 and 007."
            )
        mechanism = RandomisedResponse(labels.label_epsilon, len(dataset.label_names))
        draws = draws_of(self._draws(None), self._accounts.secret(), mechanism)
        return randomise(dataset, labels, draws)

    def spend(self) -> Spend | None:
        """Return what a run spends of a label; None: nothing of it has a price."""
        config = self._config
        return of_labels(
            self._settings,
            len(self._table.dataset.label_names),
            len(config.everyone),
            len(fold_seeds(config.seeds, self._settings.data.folds)),
            config.tell_share,
        )

    def price(self, run: str) -> Price | None:
        """Return what a run of that name costs with all rows, or refuse it."""
        charge = self._charge_for(run, None)
        most = None if charge is None else self._accounts.after(charge)
        return self._checked(most)

    def charge(self, run: str, rows: Places | None) -> None:
        """Charge the common rows, or refuse it, before anything leaves."""
        if charge := self._charge_for(run, rows):
            self._accounts.charge(charge, self._checked)

    def spent(self, rows: Places | None) -> float | None:
        """Return epsilon of all that was told of any common row; None: nothing."""
        most = self._accounts.after(Charge(self._whom(rows), Amounts()))
        return most.epsilon(self._config.policy.delta) or None

    def has_charged(self, run: str) -> bool:
        """Tell whether a run of that name may have sent gradients with noise."""
        return self._accounts.of_run(run) is not None

    def charge_again(self, rows: Places | None, n_train: int) -> None:
        """Charge for the steps since a checkpoint, or refuse to repeat them.

        A party that comes back may send what it did not send before: with noise on
        gradients each of them is another look at the labels of its batch.
        """
        spend, config = self.spend(), self._config
        if spend is None or self._is_randomised:
            return
        plans = self._settings.config.plans(len(config.everyone))
        per_epoch = min(
            plan.batches(n_train, 0).n_per_epoch
            for plan in plans
            if isinstance(plan, TrainPlan)
        )
        n_epochs = 1 + math.ceil((config.save_every - 1) / per_epoch)  # begun in them
        again = dataclasses.replace(spend.releases[0], times=n_epochs)
        more = Amounts(gaussian=spent_by([again])[0])
        self._accounts.charge(Charge(self._whom(rows), more), self._checked)

    def _charge_for(self, run: str, rows: Places | None) -> Charge | None:
        """Return the charge for a run, or for labels that are drawn once for all."""
        spend = self.spend()
        if spend is None:
            return None
        gaussian, epsilon = spent_by(spend.releases)
        whom = self._whom(rows)
        if not self._is_randomised:
            return Charge(whom, Amounts(gaussian=gaussian), run=run)
        more = Amounts() if self._were_charged(epsilon) else Amounts(epsilon=epsilon)
        draws = self._draws(rows)
        if whom is None:
            draws = [_digest(self._table.dataset, None)]
        answers = (f"{epsilon!r} {draw}".encode() for draw in draws)
        return Charge(whom, more, answers)

    def _whom(self, rows: Places | None) -> Iterable[str] | None:
        """Return the names of accounts of some rows, all unless given."""
        ids = self._table.ids
        if ids is None:
            return None
        names = (ids if rows is None else ids[rows]).tolist()
        return (f"{self._column}/{account_name(name)}" for name in names)

    def _draws(self, rows: Places | None) -> Iterable[str]:
        """Return the names that the labels of some rows are drawn by."""
        dataset, ids = self._table.dataset, self._table.ids
        places = np.arange(len(dataset.y)) if rows is None else rows
        table = _digest(dataset, None) if ids is None else ""
        names, classes = places if ids is None else ids[places], [*dataset.label_names]
        for y, name in zip(dataset.y[places].tolist(), names.tolist(), strict=True):
            yield json.dumps([self._column, classes, y, table, account_name(name)])

    def _were_charged(self, epsilon: float) -> bool:
        """Return whether an earlier release charged `epsilon` for these very labels."""
        ids = self._table.ids
        if ids is not None and any(account_name(i) != str(i) for i in ids.tolist()):
            return False  # they had other draws
        secret = hashlib.sha256(
            self._accounts.secret(make=False).hex().encode()
        ).hexdigest()
        name = f"{_digest(self._table.dataset, ids)} {epsilon!r} {secret}"
        return self._accounts.of_run(name) is not None

    def _checked(self, most: Most | None) -> Price | None:
        """Return what a run costs; refuse one that is beyond the bound, or has none."""
        config, policy = self._config, self._config.policy
        price = None if most is None else Price.of(self.spend(), most, policy)
        got = None
        if price is None:
            got = "a run in which no mechanism with a price protects them"
            n_classes = len(self._table.dataset.label_names)
            if without := unpriced(self._settings, n_classes, config.tell_share):
                got += f": {without[0]} has none"
        elif price.is_too_much:
            got = f"a run that would spend {price.together:.3g}"
            if price.together != price.run:
                got += " with what earlier runs spent"
        if policy.epsilon is not None and got is not None:
            raise ConfigError(
                f"All runs together may spend epsilon {policy.epsilon:g} of every "
                f"label ('epsilon' of the server's policy). Got {got}."
            )
        return price


def _digest(dataset: Dataset, ids: NDArray[Any] | None) -> str:
    """Return a digest of who has which label."""
    names = json.dumps(dataset.label_names).encode()
    parts = (digest_of(ids), digest_of(dataset.y), names)
    return hashlib.sha256(b"/".join(parts)).hexdigest()
