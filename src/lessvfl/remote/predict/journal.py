"""Who asked for what, in a file of a run folder: one JSON object a line."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lessvfl.terms import MINUTE

LINE_BYTES = 256  # of the journal, the most
PREDICT = "predict"  # what was asked: rows count for every seed


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, from the start."""
    return os.open(path, flags, 0o600)


class Journal:
    """A file of requests.

    What is answered has a line of its own, written before the answer leaves. Of other
    requests, which cost the other side nothing, all alike share one line a minute with
    their number, so that no flood of them fills the disk.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(  # a line goes out at once
            path, "a", buffering=1, encoding="utf-8", opener=open_private
        )
        self._lock = threading.Lock()
        self._alike: dict[str, tuple[float, int]] = {}  # last line, how many since

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a request down."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with self._lock:
            self._file.write(json.dumps({"time": now, **line}) + "\n")

    def count(self, line: Mapping[str, Any]) -> None:
        """Write a request down, or count it where one like it was written lately."""
        key, now = json.dumps(line), time.monotonic()
        with self._lock:
            last, n_more = self._alike.get(key, (-MINUTE, 0))
            self._alike[key] = (last, n_more + 1)
        if now - last >= MINUTE:
            self._write_count(key, now)

    def close(self) -> None:
        """Write down what was counted since, and end."""
        for key in list(self._alike):
            self._write_count(key, time.monotonic())
        self._file.close()

    def _write_count(self, key: str, now: float) -> None:
        with self._lock:
            _, n_requests = self._alike[key]
            self._alike[key] = (now, 0)
        if n_requests:
            self.write({**json.loads(key), "requests": n_requests})


def rows_lately(path: Path, rate: int) -> Iterator[tuple[float, int]]:
    """Yield when rows of the last minute were asked for, as a journal has them."""
    if not path.is_file():
        return
    now = time.time()
    with open(path, "rb") as journal:
        # No more lines than rows may be answered, and a few that ask for none.
        journal.seek(max(0, path.stat().st_size - LINE_BYTES * (rate + 1000)))
        tail = journal.read()
    for line in tail.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a line cut short
            request = json.loads(line)
            then = datetime.datetime.fromisoformat(request["time"]).timestamp()
            if request["rows"] and now - then <= MINUTE:
                times = len(request["seeds"]) if request["asked"] == PREDICT else 1
                yield min(then, now) - now, times * int(request["rows"])
