"""A file beside the run folders of a side, of what all its runs have in common."""

from __future__ import annotations

import copy
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lessvfl.errors import ConfigError
from lessvfl.run.record import read_json, write_json


class Beside:
    """The file ``spent-WHOSE.json`` in the parent folder of a run folder.

    `empty` is what it holds at first.
    """

    def __init__(self, out: Path, whose: str, empty: Mapping[str, Any]) -> None:
        self._folder = out.resolve().parent
        self._path = self._folder / f"spent-{whose}.json"
        self._empty = empty

    def known(self) -> dict[str, Any]:
        """Return what it holds."""
        own = read_json(self._path) if self._path.is_file() else {}
        return copy.deepcopy(dict(self._empty)) | own

    @contextmanager
    def held(self) -> Iterator[dict[str, Any]]:
        """Lock the file, yield its content, and save what was changed."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._path.with_suffix(".lock")
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"The folder '{self._folder}' must be writable, to count over runs "
                f"what was told in them. Got this: {error.strerror}."
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self.known()
            yield known
            write_json(self._path, known, mode=0o600)
        finally:
            os.close(lock)
