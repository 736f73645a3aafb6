"""The status of a run in a file, for another process that follows it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

from lessvfl.status.snapshot import Snapshot
from lessvfl.status.terminal import in_background
from lessvfl.status.value import Status


@contextlib.contextmanager
def write(status: Status, path: Path | None) -> Iterator[None]:
    """Write a status to a file twice a second while the block lasts.

    Each is written atomically. None: nothing is written.
    """
    if path is None:
        yield
        return
    _write_once(status, path)  # fails now if the path is wrong

    def write_again() -> None:
        try:
            _write_once(status, path)
        except OSError as error:  # a file descriptor may be free the next time
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise

    with in_background(write_again):
        yield


def _write_once(status: Status, path: Path) -> None:
    other = path.with_name(f"{path.name}.new")
    text = json.dumps(status.snapshot(), allow_nan=False)
    other.write_text(f"{text}\n", encoding="utf-8")
    os.replace(other, path)


class Follower:
    """The status that another process writes to a file; `first` until it does.

    The names of run and data stay those of `first`, and its seconds are added.
    """

    def __init__(self, path: Path, first: Status) -> None:
        self._path, self._first = path, first
        self._before: float | None = None  # seconds until there was a file

    def snapshot(self) -> Snapshot:
        """Return the latest snapshot."""
        first = self._first.snapshot()
        try:
            latest: Snapshot = json.loads(self._path.read_text(encoding="utf-8"))
        except OSError:
            return first
        if self._before is None:
            self._before = max(0.0, first["seconds"] - latest["seconds"])
        latest["run"], latest["data"] = first["run"], first["data"]
        latest["seconds"] += self._before
        return latest
