"""How much a party has been asked already, in one run and in all of them.

A run keeps its own bill in its folder: messages ahead of what is spent, and every look
at its rows as it leaves, so that no restart and no resume gives any of it back. One run
says little where a server may begin any number of them: alignments, and values about
the same rows, are also kept beside the run folders of a party, in ``spent-PARTY.json``.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lessvfl.errors import ConfigError, PolicyError
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.policy import Judge
from lessvfl.run.record import read_json, write_json

DAYS = 30
SECONDS = DAYS * 24 * 3600.0
ROUNDS_AHEAD = 64  # what is written down before it is spent
VALUES_AHEAD = 4.0
SPARE = 0.25  # of what a seed plans, for steps that go another way after a break
LOOK = struct.Struct("<16sd")  # by what a look is known, and its values about a row


class AllRuns:
    """What was asked of a party in all run folders that lie side by side."""

    def __init__(self, out: Path, judge: Judge) -> None:
        self._folder, self._judge = out.resolve().parent, judge
        self._path = self._folder / f"spent-{judge.party}.json"
        self._run = out.resolve().name

    def align(self, n_ids: int, n_rows: int) -> None:
        """Take an alignment with so many ids off what a table of `n_rows` allows."""
        judge, policy, now = self._judge, self._judge.policy, time.time()
        with self._held() as known:
            lately = [one for one in known["alignments"] if one[0] > now - SECONDS]
            lately.append([now, n_ids])
            if len(lately) > policy.align_rate:
                allowed = f"{policy.align_rate} alignments in {DAYS} days"
                raise judge.refuse(allowed, "align_rate", "one more")
            if sum(n for _, n in lately) > policy.align_ids * n_rows:
                allowed = (
                    f"{policy.align_ids:g} ids for each of its rows in {DAYS} days"
                )
                raise judge.refuse(allowed, "align_ids", "more")
            known["alignments"] = lately

    def shown(self, rows: str) -> float:
        """Return the values about one of these rows that left in other runs."""
        own: dict[str, float] = self._known()["values"].get(rows, {})
        return sum(n for run, n in own.items() if run != self._run)

    def show(self, rows: str, n_values: float) -> None:
        """Write down how many values about one of these rows left in this run."""
        with self._held() as known:
            known["values"].setdefault(rows, {})[self._run] = n_values

    def _known(self) -> dict[str, Any]:
        if self._path.is_file():
            return read_json(self._path)
        return {"alignments": [], "values": {}}

    @contextmanager
    def _held(self) -> Iterator[dict[str, Any]]:
        """Have what is known for this process alone, to change it."""
        try:
            path = self._path.with_suffix(".lock")
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"The folder '{self._folder}' must be writable, to count over runs "
                f"what a party was asked. Got this: {error.strerror}."
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._known()
            yield known
            write_json(self._path, known, mode=0o600)
        finally:
            os.close(lock)


class Budget:
    """What has been asked of a party in one run; `about` is a digest of its rows."""

    def __init__(self, folder: Path, judge: Judge, about: str) -> None:
        self._path, self._judge = folder / "spent.safetensors", judge
        self._about = about
        self.all_runs = AllRuns(folder, judge)
        self.rounds = 0
        if self._path.is_file():
            self.rounds = read_state(self._path).values["rounds"]
        self._written = self.rounds
        self._planned = math.inf  # of one seed
        self._looks: dict[str, set[bytes]] = {}  # by the folder of a seed
        self._values: dict[str, float] = {}
        for path in folder.glob("seed-*/looks.bin"):
            known = _read_looks(path)
            self._looks[path.parent.name] = set(known)
            self._values[path.parent.name] = sum(known.values())
        self._earlier = self.all_runs.shown(about)
        self._told = 0.0  # values that all runs know of

    def plan(self, n_values: float, n_seeds: int) -> None:
        """Refuse a run whose seeds show more of a row than all runs may."""
        most, earlier = self._judge.policy.values, self._earlier
        if earlier + n_seeds * n_values > most:
            before = f" after {earlier:.0f} of earlier runs" if earlier else ""
            raise self._judge.refuse(
                f"{most:,} values about a row in all",
                "values",
                f"a run of {math.ceil(n_seeds * n_values):,}{before}",
            )
        self._planned = n_values

    def left(self) -> tuple[int, float]:
        """Return the messages and the values about a row that are left."""
        policy = self._judge.policy
        return policy.rounds - self.rounds, policy.values - self._earlier - self._shown

    def values(self, place: Path) -> float:
        """Return the values about a row that left of a seed, by its folder."""
        return self._values.get(place.name, 0.0)

    @property
    def _shown(self) -> float:
        return sum(self._values.values())

    def spend_round(self) -> None:
        """Take one message off the budget."""
        most = self._judge.policy.rounds
        self.rounds += 1
        if self.rounds > most:
            raise self._judge.refuse(f"{most} rounds", "rounds", "one more")
        if self.rounds > self._written:
            self._write(ROUNDS_AHEAD)

    def spend_look(self, place: Path, network: bytes, asked: object, n: float) -> None:
        """Take `n` values about a row, in the mean over rows, off a seed's budget.

        `network` stands for what shows them. The same look again, after a break, is
        free: it tells nothing new.
        """
        looks = self._looks.setdefault(place.name, set())
        look = hashlib.sha256(network + repr(asked).encode()).digest()[:16]
        if look in looks:
            return
        spent, most = self.values(place) + n, (1 + SPARE) * self._planned
        if spent > most:
            raise PolicyError(
                f"Party '{self._judge.party}' shows {most:.0f} values about a row for "
                "one seed of the agreed settings, those after a break included. Got a "
                "request for more."
            )
        looks.add(look)
        self._values[place.name] = spent
        with (place / "looks.bin").open("ab") as file:
            file.write(LOOK.pack(look, n))
        if self._shown > self._told:
            self._tell(VALUES_AHEAD)

    def settle(self) -> None:
        """Write down what was spent, and no more."""
        self._write(0)
        self._tell(0.0)

    def _write(self, ahead: int) -> None:
        self._written = self.rounds + ahead
        write_state(self._path, State({}, {"rounds": self._written}))

    def _tell(self, ahead: float) -> None:
        self._told = self._shown + ahead
        self.all_runs.show(self._about, self._told)


def _read_looks(path: Path) -> dict[bytes, float]:
    """Return the looks of a seed; one that was not written whole did not leave."""
    found = path.read_bytes()
    return dict(LOOK.iter_unpack(found[: len(found) // LOOK.size * LOOK.size]))
