"""Who asked for what, in a file of a run folder: one JSON object a line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl.terms import MINUTE


class Journal:
    """A file of requests.

    What is answered has a line of its own, written before the answer leaves. Of other
    requests, which cost the other side nothing, all alike share one line a minute with
    their number, so that no flood of them fills the disk.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(  # a line goes out at once
            path,
            "a",
            buffering=1,
            encoding="utf-8",
            opener=lambda path, flags: os.open(path, flags, 0o600),
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
