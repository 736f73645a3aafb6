"""How much a party has been asked already, in one run and in all of them.

A run counts in its folder: messages, ahead of what is spent, and every view of its rows
as it leaves, so that no restart and no resume gives any of it back. A server may begin
any number of runs: so alignments, and what was told of each id, are also counted beside
the run folders of a party (``remote/accounts.py``). A run is charged there for all that
it plans before anything leaves, and gives back at its end what did not.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import struct
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import PolicyError
from lessvfl.privacy.accounting import epsilon_spent, spent_by
from lessvfl.remote.accounts import DAYS, Accounts, Amounts, Charge, Most
from lessvfl.remote.align import Ids
from lessvfl.remote.align.keys import SECRET_BYTES
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.policy import PolicyChecker
from lessvfl.remote.price import Price, is_beyond
from lessvfl.run.accounting import Spend
from lessvfl.terms import MINUTE, plural

ROUNDS_AHEAD = 64  # written to the file before they are spent
ROWS_AHEAD = 10_000  # likewise, predicted
SPARE = 0.25  # of what a seed plans, for steps that differ when repeated after a break
WAYS = 2  # different outcomes that one step may have, without noise
VIEW = struct.Struct("<16s8sd")  # a view, its place in the run, its values about a row


# What a setting of the policy allows, in words, and what is more.
BOUNDED = {
    "rounds": ("{} rounds", "one more"),
    "predict_alignments": ("{} alignments for predictions", "one more"),
    "predict_rows": ("predictions of {} rows", "{} more"),
    "reason_rows": ("reasons for {} rows", "{} more"),
}


class _Seed:
    """The views of a seed's rows that have left, in a file of its folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[bytes] = set()
        self._ways: Counter[bytes] = Counter()  # different views at each place
        self.values = self.aside = 0.0  # in all, and of second views of a place
        if path.is_file():
            content = path.read_bytes()
            whole = len(content) // VIEW.size * VIEW.size
            os.truncate(path, whole)  # what was not written in full did not leave
            for view, place, n in VIEW.iter_unpack(content[:whole]):
                self._add(view, place, n)

    def _add(self, view: bytes, place: bytes, n: float) -> None:
        self._known.add(view)
        self.values += n
        self.aside += n if self._ways[place] else 0.0
        self._ways[place] += 1

    def spend(
        self, network: bytes, place: bytes, n: float, planned: float, ways: int
    ) -> bool:
        """Count a new view; tell whether the plan of the seed allows it."""
        view = hashlib.sha256(network + place).digest()[:16]
        place = hashlib.sha256(place).digest()[:8]
        if view in self._known:
            return True
        n_ways = self._ways[place]
        aside = self.aside + (n if n_ways else 0.0)
        if n_ways >= ways or aside > SPARE * planned:
            return False
        if self.values + n > (1 + SPARE) * planned:
            return False
        with self._path.open("ab") as file:
            file.write(VIEW.pack(view, place, n))
        self._add(view, place, n)  # not before: what is on no disk was not paid
        return True


class Budget:
    """Counts of what a party was asked, in a file of its run folder.

    The file is ahead of what is spent, so that no restart gives any back. `first` has
    the counts, and whatever is kept beside them, of a folder without the file.
    """

    def __init__(self, path: Path, checker: PolicyChecker, first: State) -> None:
        self._path, self._checker = path, checker
        known = read_state(path) if path.is_file() else first
        self.secret = known.secret
        self.counts = {
            name: known.values.get(name, value) for name, value in first.values.items()
        }
        self._written = dict(self.counts)

    def _check(self, key: str, n: int) -> int:
        """Refuse `n` more if the policy's `key` forbids it; return its limit."""
        most: int = getattr(self._checker.policy, key)
        if self.counts[_count_of(key)] + n > most:
            allowed, got = BOUNDED[key]
            raise self._checker.refuse(allowed.format(most), key, got.format(n))
        return most

    def _spend(self, key: str, n: int, ahead: int = 0) -> None:
        """Spend `n` of what the policy's `key` allows; save up to `ahead` more."""
        most, name = self._check(key, n), _count_of(key)
        self.counts[name] += n
        if self.counts[name] > self._written[name]:
            self._write({name: min(self.counts[name] + ahead, most)})

    def settle(self) -> None:
        """Save what was spent, and no more."""
        self._write({})

    def _write(self, ahead: dict[str, int]) -> None:
        written = self.counts | ahead
        write_state(self._path, State({}, written, self.secret))
        self._written = written  # not before: what is on no disk was not paid


@dataclass(frozen=True)
class RunPlan:
    """What a run may tell of a row, by its settings."""

    values: float  # of one seed, in the mean over rows
    n_seeds: int
    bits: int  # of a value, at most
    spend: Spend | None  # by noise on what leaves

    def amounts(self, n_values: float | None = None) -> Amounts:
        """Return what all seeds may tell; or so many values, if given."""
        n = self.n_seeds * self.values if n_values is None else n_values
        gaussian, _ = spent_by(() if self.spend is None else self.spend.releases)
        return Amounts(values=n, bits=self.bits * n, gaussian=gaussian)


class AccountBudget:
    """What a party's policy lets be told of each id, by its accounts."""

    def __init__(self, folder: Path, checker: PolicyChecker, ids: Ids | None) -> None:
        self._checker, self.ids = checker, ids
        self.accounts = Accounts(folder, checker.party)

    def of(
        self,
        rows: NDArray[np.int64] | None,
        more: Amounts,
        answers: Iterable[bytes] | None = None,
        run: str | None = None,
    ) -> Charge:
        """Return a charge for some rows of the table, all of them unless given."""
        whom = None if self.ids is None else self.ids.account_names(rows)
        return Charge(whom, more, answers, run)

    def charge(self, charge: Charge, what: str = "a run") -> Most:
        """Charge for what will be told, or refuse it."""
        return self.accounts.charge(
            charge, lambda most: self.check(most, charge.more, what)
        )

    def check(self, most: Most, more: Amounts, what: str = "a run") -> None:
        """Refuse to tell more of some rows than of any the policy allows.

        The other side hears which setting it was, and neither whose row nor how much.
        """
        policy, checker = self._checker.policy, self._checker
        if is_beyond(most.values, policy.values) and more.values:
            key, allowed = "values", f"{policy.values:,} values about a row in all"
            got = f"{what} of {math.ceil(more.values):,}"
            if most.values > more.values:
                got += f", {math.ceil(most.values):,} with what earlier ones told"
        elif is_beyond(epsilon := most.epsilon(policy.delta), policy.epsilon):
            key = "epsilon"
            allowed = f"epsilon {policy.epsilon:g} of every row in all runs"
            got = f"{what} by which it would be {epsilon:.3g}, with all earlier ones"
        else:
            return
        public = checker.refuse(
            f"less '{key}' of every row", key, "more, as its log has"
        )
        raise PolicyError(str(checker.refuse(allowed, key, got)), public=str(public))

    def align(self, n_ids: int, n_rows: int) -> None:
        """Count an alignment of `n_ids` with a table of `n_rows`, or refuse it."""
        checker, policy = self._checker, self._checker.policy

        def check(lately: Sequence[int]) -> None:
            if len(lately) > policy.align_rate:
                allowed = f"{policy.align_rate} alignments in {DAYS} days"
                raise checker.refuse(allowed, "align_rate", "one more")
            if sum(lately) > policy.align_ids * n_rows:
                allowed = (
                    f"{policy.align_ids:g} ids for each of its rows in {DAYS} days"
                )
                raise checker.refuse(allowed, "align_ids", "more")

        self.accounts.align(n_ids, check)


class RunBudget(Budget):
    """What has been asked of a party in one run.

    `ids` are whom the rows of its table are about, `run` a name that no other run has.
    """

    def __init__(
        self, folder: Path, checker: PolicyChecker, ids: Ids | None, run: str
    ) -> None:
        first = State({}, {"rounds": 0})
        super().__init__(folder / "spent.safetensors", checker, first)
        self.all_runs = AccountBudget(folder, checker, ids)
        self._run = run
        self._plan = RunPlan(math.inf, 1, 32, None)
        self._ways = WAYS
        self._rows: NDArray[np.int64] | None = None  # that are in common
        paths = folder.glob("seed-*/looks.bin")
        self._seeds = {path.parent.name: _Seed(path) for path in paths}
        charged = self.all_runs.accounts.of_run(run)
        self._charged = 0.0 if charged is None else charged.values
        self._others = 0.0  # values that other runs told of a row, at most

    def _charge(self, more: Amounts) -> Charge:
        return self.all_runs.of(self._rows, more, run=self._run)

    def plan(
        self, plan: RunPlan, offered: NDArray[np.int64] | None, is_over: bool = False
    ) -> Price | None:
        """Refuse a run that would tell too much of any row that may be in common.

        Return what it spends. With noise a step goes one way: what is priced is each
        look at a row, once. One that is over has told what it tells.
        """
        self._plan, self._rows = plan, offered
        self._ways = WAYS if plan.spend is None else 1
        more = plan.amounts()
        most = self.all_runs.accounts.after(self._charge(more))
        if not is_over:
            self.all_runs.check(most, more)
        self._others = most.values - max(self._charged, more.values)
        return Price.of(plan.spend, most, self._checker.policy)

    def spared(self, plan: RunPlan, n_rows: int) -> NDArray[np.int64]:
        """Return the rows of the table that a run would not tell too much of."""
        policy, more = self._checker.policy, plan.amounts()

        def is_too_much(values: float, gaussian: float, pure: float) -> bool:
            epsilon = epsilon_spent(gaussian, pure, policy.delta)
            is_told = is_beyond(values, policy.values)
            return is_told or is_beyond(epsilon, policy.epsilon)

        charge = self.all_runs.of(None, more, run=self._run)
        places = self.all_runs.accounts.too_much(charge, is_too_much)
        return np.setdiff1d(np.arange(n_rows), np.array(places, dtype=np.int64))

    def reserve(
        self, plan: RunPlan, rows: NDArray[np.int64] | None, is_over: bool
    ) -> None:
        """Charge every common row for all of the run, once, or refuse it.

        One that is over has given back what it did not show.
        """
        self._plan, self._rows = plan, rows
        if not is_over:
            self._take(plan.amounts())

    def _take(self, more: Amounts) -> None:
        most = self.all_runs.charge(self._charge(more))
        self._charged = max(self._charged, more.values)
        self._others = most.values - self._charged

    def spent(self) -> float:
        """Return epsilon of all that runs have spent of any common row."""
        most = self.all_runs.accounts.after(self._charge(Amounts()))
        return most.epsilon(self._checker.policy.delta)

    def left(self) -> tuple[int, float]:
        """Return the messages and the values about a row that are left."""
        policy, n_values = self._checker.policy, self._others + self._shown
        return policy.rounds - self.counts["rounds"], policy.values - n_values

    def values(self, place: Path) -> float:
        """Return the values about a row that left of a seed, by its folder."""
        seed = self._seeds.get(place.name)
        return 0.0 if seed is None else seed.values

    @property
    def _shown(self) -> float:
        return sum(seed.values for seed in self._seeds.values())

    def spend_round(self) -> None:
        """Spend one message."""
        self._spend("rounds", 1, ROUNDS_AHEAD)

    def spend_view(self, place: Path, network: bytes, asked: object, n: float) -> None:
        """Spend `n` values about a row, in the mean over rows, of a seed's budget.

        `network` is a digest of what shows them, `asked` their place in the run. The
        same view again, after a break, is free: it tells nothing new. A view of another
        network at the same place is a step that came out differently after a break; a
        server could also cause it on purpose, so few of these are allowed. What goes
        beyond the plan of all seeds is charged a part of a seed ahead.
        """
        name, planned = place.name, self._plan.values
        seed = self._seeds.get(name) or _Seed(place / "looks.bin")
        self._seeds[name] = seed
        if not seed.spend(network, repr(asked).encode(), n, planned, self._ways):
            raise PolicyError(
                f"Party '{self._checker.party}' shows {planned:.0f} values about a row "
                "for one seed of the agreed settings, and a step goes "
                f"{plural(self._ways, 'way')} at most after breaks. Got a request for "
                "more."
            )
        if self._shown > self._charged:
            self._take(self._plan.amounts(self._shown + SPARE * planned))

    def conclude(self) -> None:
        """Give back what the run, which is over, was charged for and did not show."""
        self.settle()
        shown = self._plan.amounts(self._shown)
        self.all_runs.accounts.settle(self._charge(shown).whom, self._run, shown)
        self._charged = self._shown


class PredictionBudget(Budget):
    """What has been asked of a party for predictions.

    `lately` has the rows of the last minute, each with its time relative to now.
    """

    def __init__(
        self,
        path: Path,
        checker: PolicyChecker,
        lately: Iterable[tuple[float, int]] = (),
    ) -> None:
        first: dict[str, Any] = dict.fromkeys(("rows", "alignments", "reason_rows"), 0)
        first["asked"] = ""  # the alignment that was paid for last
        secret = secrets.token_bytes(SECRET_BYTES)
        super().__init__(path, checker, State({}, first, secret))
        now = time.monotonic()
        self._lately = deque((now + ago, n) for ago, n in lately)  # of the last minute
        self._n_lately = sum(n for _, n in self._lately)

    def alignment(self, asked: str) -> bool:
        """Spend an alignment, unless it is the last one again.

        `asked` is a digest of it. Returns whether anything was spent.
        """
        if asked == self.counts["asked"]:
            return False
        self._check("predict_alignments", 1)
        self.counts["asked"] = asked
        self._spend("predict_alignments", 1)
        return True

    def forget(self) -> None:
        """Charge for the last alignment again: the server broke its rules."""
        self.counts["asked"] = ""
        self.settle()

    def rows(self, n_rows: int, n_new: int) -> None:
        """Spend rows: new ones in all, any of them in the last minute."""
        now = time.monotonic()
        self._check("predict_rows", n_new)
        while self._lately and self._lately[0][0] < now - MINUTE:
            self._n_lately -= self._lately.popleft()[1]
        rate = self._checker.policy.predict_rate
        if self._n_lately + n_rows > rate:
            allowed = f"predictions of {rate} rows a minute"
            raise self._checker.refuse(allowed, "predict_rate", f"{n_rows} more")
        self._lately.append((now, n_rows))
        self._n_lately += n_rows
        self._spend("predict_rows", n_new, ROWS_AHEAD)

    def reasons(self, n_rows: int) -> None:
        """Spend rows to give reasons for, every time: slopes may be others."""
        self._check("reason_rows", n_rows)
        self.rows(n_rows, 0)
        self._spend("reason_rows", n_rows)


def _count_of(key: str) -> str:
    """Return the count that a setting of the policy bounds."""
    return key.removeprefix("predict_")
