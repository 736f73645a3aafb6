"""How often a party's rows were aligned of late, whatever the run.

One alignment a run says little where a server may begin any number of runs. So what was
asked is kept beside the run folders of a party, in ``asked.json``.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lessvfl.errors import ConfigError
from lessvfl.remote.policy import Judge
from lessvfl.run.record import read_json, write_json

DAYS = 30
SECONDS = DAYS * 24 * 3600.0


class Asked:
    """The alignments of a party in all run folders that lie side by side."""

    def __init__(self, out: Path, judge: Judge) -> None:
        self._folder, self._judge = out.absolute().parent, judge
        self._path = self._folder / "asked.json"

    def spend(self, n_ids: int, n_rows: int) -> None:
        """Take an alignment with so many ids off what a table of `n_rows` allows."""
        judge, policy, now = self._judge, self._judge.policy, time.time()
        with self._held():
            known = read_json(self._path) if self._path.is_file() else {}
            own = known.get(judge.party, [])
            lately = [one for one in own if one[0] > now - SECONDS] + [[now, n_ids]]
            if len(lately) > policy.align_rate:
                allowed = f"{policy.align_rate} alignments in {DAYS} days"
                raise judge.refuse(allowed, "align_rate", "one more")
            if sum(n for _, n in lately) > policy.align_ids * n_rows:
                allowed = (
                    f"{policy.align_ids:g} ids for each of its rows in {DAYS} days"
                )
                raise judge.refuse(allowed, "align_ids", "more")
            write_json(self._path, known | {judge.party: lately}, mode=0o600)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Have the file for this process alone."""
        try:
            lock = os.open(self._folder / "asked.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"The folder '{self._folder}' must be writable, to count alignments "
                f"over runs. Got this: {error.strerror}."
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
