"""How much a party has been asked already, in one run and in all of them.

A run keeps its own account in its folder: messages, counted ahead of what is spent, and
every view of its rows as it leaves, so that no restart and no resume gives any of it
back. A server may begin any number of runs: so alignments, and values about the same
rows, are also counted beside the run folders of a party, in ``spent-PARTY.json``.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import struct
import time
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lessvfl.errors import PolicyError
from lessvfl.remote.align.keys import SECRET_BYTES
from lessvfl.remote.beside import Beside
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.policy import PolicyChecker
from lessvfl.remote.price import Price, spent, stored
from lessvfl.run.accounting import Spend
from lessvfl.terms import MINUTE, plural

DAYS = 30
SECONDS = DAYS * 24 * 3600.0
ROUNDS_AHEAD = 64  # written to the file before they are spent
VALUES_AHEAD = 4.0  # likewise, about a row
ROWS_AHEAD = 10_000  # likewise, predicted
SPARE = 0.25  # of what a seed plans, for steps that differ when repeated after a break
WAYS = 2  # different outcomes that one step may have, without noise
VIEW = struct.Struct("<16s8sd")  # a view, its place in the run, its values about a row


class AllRuns:
    """What was asked of a party in all run folders of one parent folder."""

    def __init__(self, out: Path, checker: PolicyChecker, run: str) -> None:
        self._checker, self._run = checker, run
        empty: dict[str, Any] = {"alignments": [], "values": {}, "releases": {}}
        self._file = Beside(out, checker.party, empty)

    def align(self, n_ids: int, n_rows: int) -> None:
        """Charge for an alignment of `n_ids` with a table of `n_rows`, or refuse it."""
        checker, policy, now = self._checker, self._checker.policy, time.time()
        with self._file.held() as known:
            lately = [pair for pair in known["alignments"] if pair[0] > now - SECONDS]
            lately.append([now, n_ids])
            if len(lately) > policy.align_rate:
                allowed = f"{policy.align_rate} alignments in {DAYS} days"
                raise checker.refuse(allowed, "align_rate", "one more")
            if sum(n for _, n in lately) > policy.align_ids * n_rows:
                allowed = (
                    f"{policy.align_ids:g} ids for each of its rows in {DAYS} days"
                )
                raise checker.refuse(allowed, "align_ids", "more")
            known["alignments"] = lately

    def shown(self, rows: str) -> float:
        """Return the values about one of these rows that left in other runs."""
        return self._of_others(self._file.known(), rows)

    def show(self, rows: str, n_values: float) -> float:
        """Save how many of them left in this run; return those of others."""
        with self._file.held() as known:
            known["values"].setdefault(rows, {})[self._run] = n_values
        return self._of_others(known, rows)

    def spent(self, rows: str) -> float:
        """Return epsilon of all that runs have spent of each of these rows."""
        of_rows = self._file.known()["releases"].get(rows, {})
        return spent(of_rows, self._checker.policy.delta)

    def price(self, rows: str, own: Spend | None) -> Price | None:
        """Return what this run spends of each of these rows, or refuse it.

        None where it adds no noise.
        """
        return self._checked(self._file.known(), rows, own)

    def charge(self, rows: str, own: Spend | None) -> Price | None:
        """Charge for it before anything leaves, or refuse it; return its price."""
        if own is None:
            return None
        with self._file.held() as known:
            price = self._checked(known, rows, own)
            known["releases"].setdefault(rows, {})[self._run] = stored(own)
        return price

    def _checked(
        self, known: dict[str, Any], rows: str, own: Spend | None
    ) -> Price | None:
        policy, checker = self._checker.policy, self._checker
        found = Price.of(known["releases"].get(rows, {}), self._run, own, policy)
        if found is not None and found.is_too_much:
            allowed = f"epsilon {policy.epsilon:g} of every row in all runs"
            told = checker.refuse(
                "less epsilon of every row in all runs",
                "epsilon",
                "more, as its log has",
            )
            error = checker.refuse(allowed, "epsilon", found.refused())
            raise PolicyError(str(error), public=str(told))
        return found

    def _of_others(self, known: dict[str, Any], rows: str) -> float:
        own: dict[str, float] = known["values"].get(rows, {})
        return sum(n for run, n in own.items() if run != self._run)


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
        self._add(view, place, n)
        with self._path.open("ab") as file:
            file.write(VIEW.pack(view, place, n))
        return True


class Budget:
    """Counts of what a party was asked, in a file of its run folder.

    The file is ahead of what is spent, so that no restart gives any back.
    """

    def __init__(self, path: Path, checker: PolicyChecker, *names: str) -> None:
        self._path, self._checker = path, checker
        self.counts = dict.fromkeys(names, 0)
        if path.is_file():
            self._take_up(read_state(path))
        self._written = dict(self.counts)

    def _take_up(self, known: State) -> None:
        self.counts = {name: known.values.get(name, 0) for name in self.counts}

    def _check(self, key: str, n: int, allowed: str, got: str) -> int:
        """Refuse `n` more if the policy's `key` forbids it; return its limit."""
        most: int = getattr(self._checker.policy, key)
        if self.counts[_count_of(key)] + n > most:
            raise self._checker.refuse(allowed.format(most), key, got)
        return most

    def _spend(self, key: str, n: int, allowed: str, got: str, ahead: int = 0) -> None:
        """Spend `n` of what the policy's `key` allows; save up to `ahead` more."""
        most, name = self._check(key, n, allowed, got), _count_of(key)
        self.counts[name] += n
        if self.counts[name] > self._written[name]:
            self._write({name: min(self.counts[name] + ahead, most)})

    def settle(self) -> None:
        """Save what was spent, and no more."""
        self._write({})

    def _write(self, ahead: dict[str, int]) -> None:
        written = self.counts | ahead
        write_state(self._path, self._state(written))
        self._written = written

    def _state(self, written: dict[str, int]) -> State:
        return State({}, written)


class RunBudget(Budget):
    """What has been asked of a party in one run.

    `about` is a digest of its rows, `run` a name that no other run has.
    """

    def __init__(
        self, folder: Path, checker: PolicyChecker, about: str, run: str
    ) -> None:
        super().__init__(folder / "spent.safetensors", checker, "rounds")
        self._about = about
        self.all_runs = AllRuns(folder, checker, run)
        self._planned = math.inf  # of one seed
        self._ways = WAYS
        paths = folder.glob("seed-*/looks.bin")
        self._seeds = {path.parent.name: _Seed(path) for path in paths}
        self._earlier = self.all_runs.shown(about)
        self._told = 0.0  # values that all runs know of

    def plan(self, n_values: float, n_seeds: int, has_noise: bool = False) -> None:
        """Refuse a run whose seeds would show more of a row than all runs may.

        With noise a step goes one way: what is priced is each look at a row, once.
        """
        most, earlier = self._checker.policy.values, self.all_runs.shown(self._about)
        if earlier + n_seeds * n_values > most:
            before = f" after {earlier:.0f} of earlier runs" if earlier else ""
            got = f"a run of {math.ceil(n_seeds * n_values):,}{before}"
            raise self._too_many(got)
        self._planned, self._earlier = n_values, earlier
        self._ways = 1 if has_noise else WAYS

    def _too_many(self, got: str) -> PolicyError:
        most = self._checker.policy.values
        return self._checker.refuse(
            f"{most:,} values about a row in all", "values", got
        )

    def price(self, own: Spend | None) -> Price | None:
        """Return what the run spends of each of its rows, or refuse it."""
        return self.all_runs.price(self._about, own)

    def charge(self, own: Spend | None) -> None:
        """Charge for what the run spends of each of its rows, once."""
        self.all_runs.charge(self._about, own)

    def spent(self) -> float:
        """Return epsilon of all that runs have spent of each of its rows."""
        return self.all_runs.spent(self._about)

    def left(self) -> tuple[int, float]:
        """Return the messages and the values about a row that are left."""
        policy, shown = self._checker.policy, self._earlier + self._shown
        return policy.rounds - self.counts["rounds"], policy.values - shown

    def values(self, place: Path) -> float:
        """Return the values about a row that left of a seed, by its folder."""
        seed = self._seeds.get(place.name)
        return 0.0 if seed is None else seed.values

    @property
    def _shown(self) -> float:
        return sum(seed.values for seed in self._seeds.values())

    def spend_round(self) -> None:
        """Spend one message."""
        self._spend("rounds", 1, "{} rounds", "one more", ROUNDS_AHEAD)

    def spend_view(self, place: Path, network: bytes, asked: object, n: float) -> None:
        """Spend `n` values about a row, in the mean over rows, of a seed's budget.

        `network` is a digest of what shows them, `asked` their place in the run. The
        same view again, after a break, is free: it tells nothing new. A view of another
        network at the same place is a step that came out differently after a break; a
        server could also cause it on purpose, so few of these are allowed.
        """
        name = place.name
        seed = self._seeds.get(name) or _Seed(place / "looks.bin")
        self._seeds[name] = seed
        plan = (self._planned, self._ways)
        if not seed.spend(network, repr(asked).encode(), n, *plan):
            raise PolicyError(
                f"Party '{self._checker.party}' shows {self._planned:.0f} values about "
                "a row for one seed of the agreed settings, and a step goes "
                f"{plural(self._ways, 'way')} at most after breaks. Got a request for "
                "more."
            )
        if self._shown > self._told:
            self._tell(VALUES_AHEAD)
            if self._earlier + self._shown > self._checker.policy.values:
                raise self._too_many(f"more, {self._earlier:.0f} of them in other runs")

    def settle(self) -> None:
        """Save what was spent, and no more."""
        super().settle()
        self._tell(0.0)

    def _tell(self, ahead: float) -> None:
        self._told = self._shown + ahead
        self._earlier = self.all_runs.show(self._about, self._told)


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
        self._asked = ""  # the alignment that was paid for last
        self.secret = secrets.token_bytes(SECRET_BYTES)
        super().__init__(path, checker, "rows", "alignments", "reason_rows")
        now = time.monotonic()
        self._lately = deque((now + ago, n) for ago, n in lately)  # of the last minute
        self._n_lately = sum(n for _, n in self._lately)

    def _take_up(self, known: State) -> None:
        super()._take_up(known)
        self._asked, self.secret = known.values["asked"], known.secret

    def alignment(self, asked: str) -> bool:
        """Spend an alignment, unless it is the last one again.

        `asked` is a digest of it. Returns whether anything was spent.
        """
        if asked == self._asked:
            return False
        one = ("predict_alignments", 1, "{} alignments for predictions", "one more")
        self._check(*one)
        self._asked = asked
        self._spend(*one)
        return True

    def forget(self) -> None:
        """Charge for the last alignment again: the server broke its rules."""
        self._asked = ""
        self.settle()

    def rows(self, n_rows: int, n_new: int) -> None:
        """Spend rows: new ones in all, any of them in the last minute."""
        now = time.monotonic()
        new = ("predict_rows", n_new, "predictions of {} rows", f"{n_new} more")
        self._check(*new)
        while self._lately and self._lately[0][0] < now - MINUTE:
            self._n_lately -= self._lately.popleft()[1]
        rate = self._checker.policy.predict_rate
        if self._n_lately + n_rows > rate:
            allowed = f"predictions of {rate} rows a minute"
            raise self._checker.refuse(allowed, "predict_rate", f"{n_rows} more")
        self._lately.append((now, n_rows))
        self._n_lately += n_rows
        self._spend(*new, ROWS_AHEAD)

    def reasons(self, n_rows: int) -> None:
        """Spend rows to give reasons for, every time: slopes may be others."""
        many = ("reason_rows", n_rows, "reasons for {} rows", f"{n_rows} more")
        self._check(*many)
        self.rows(n_rows, 0)
        self._spend(*many)

    def _state(self, written: dict[str, int]) -> State:
        return State({}, {**written, "asked": self._asked}, self.secret)


def _count_of(key: str) -> str:
    """Return the count that a setting of the policy bounds."""
    return key.removeprefix("predict_")
