"""A side's run folder between machines: one process, one secret, one table.

The process that runs holds ``lock``. ``side.safetensors`` has a random secret, from
which everything is derived that other sides must not guess, and digests of the table
that the run began with.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import platform
import secrets
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl import __version__
from lessvfl.core.plans import SECRET
from lessvfl.data import Table, digest_of
from lessvfl.errors import ConfigError, RecordError
from lessvfl.remote.align.keys import SECRET_BYTES
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.run.folder import STATE

TRACES = ("*.safetensors", "seed-*/*.safetensors")  # of a run that began


def versions() -> dict[str, str]:
    """Return the versions that two sides must share to draw the same rows.

    All builds of a torch release draw alike, on every kind of processor.
    """
    return {
        "lessvfl": __version__,
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
    }


def hold(folder: Path) -> int:
    """Lock a run folder for this process; closing the returned file unlocks it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(
            f"The run folder '{folder}' must be of one process at a time. Got one that "
            "another process is using."
        ) from None
    return lock


Digests = Mapping[str, str]  # what a run depends on, as digests by name


class Home:
    """The run folder of a server or a party, for one process at a time.

    `facts` are digests of what the run depends on; a run that has begun goes on only
    with the same ones.
    """

    def __init__(self, folder: Path, facts: Digests) -> None:
        self.folder, self.facts = folder, dict(facts)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)  # an existing one may be readable by others
        self.close = weakref.finalize(self, os.close, hold(folder))
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            if not self._path.is_file():
                if any(any(folder.glob(pattern)) for pattern in TRACES):
                    raise RecordError(
                        f"The run folder '{folder}' must hold '{STATE}', which its run "
                        "began with. Got one without; another run needs another 'out'."
                    )
                self._write(secrets.token_bytes(SECRET_BYTES), None)
            state = read_state(self._path)
            began = state.values["facts"]
            for name, digest in self.facts.items():
                if began is not None and began.get(name) != digest:
                    raise RecordError(
                        f"The run in '{folder}' must go on with what it began with. "
                        f"Got other {name}; another run needs another 'out'."
                    )
            self.secret = state.secret  # made before anything is sent
            on_error.pop_all()

    def begin(self) -> None:
        """Save what the run depends on, which must not change from here on."""
        if read_state(self._path).values["facts"] is None:
            self._write(self.secret, self.facts)

    def key(self, *names: str | int) -> bytes:
        """Return 32 bytes for one purpose, which need the secret to compute."""
        text = "/".join(map(str, names))
        return hmac.digest(self.secret, text.encode(), "sha256")

    def seed(self, *names: str | int) -> int:
        """Return a seed for one purpose, as none that is shared, by the secret."""
        return SECRET + int.from_bytes(self.key(*names), "big")

    @property
    def _path(self) -> Path:
        return self.folder / STATE

    def _write(self, secret: bytes, facts: Digests | None) -> None:
        write_state(self._path, State({}, {"facts": facts}, secret))


def facts_of(
    table: Table,
    ids: NDArray[Any] | None,
    config: Mapping[str, Any],
    code: str | None,
    **more: NDArray[Any] | None,
) -> dict[str, str]:
    """Return digests of all that a run depends on.

    These are a table (ids, names of columns, cells), settings of a config, the `code`
    of a network (``FILE.py:FUNCTION``), and versions.
    """
    texts = table.look.text
    columns = [(name, i in texts) for i, name in enumerate(table.names)]
    # What must stay equal for one side to compute the same bits.
    computed_by = versions() | {
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    digest = "none"
    if code is not None:  # of the file that its function comes from
        where = code.rpartition(":")[0]
        path = where if where.endswith(".py") else str(sys.modules[where].__file__)
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return {
        "ids": digest_of(ids).hex(),
        "columns": hashlib.sha256(json.dumps(columns).encode()).hexdigest(),
        "cells": table.digest(),
        **{name: digest_of(values).hex() for name, values in more.items()},
        **{f"'{name}' in the config": json.dumps(v) for name, v in config.items()},
        "code of the network": digest,
        **{f"version of {name}": version for name, version in computed_by.items()},
    }
