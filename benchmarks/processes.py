"""What benchmarks with real parties share: files of a kit, and processes that end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from lessvfl.wire.flight import Credentials


def credentials_of(folder: Path, name: str) -> Credentials:
    """Return the files of the server or a party in a kit."""
    where = folder / name
    return Credentials(where / "cert.pem", where / "key.pem", where / "ca.pem")


@contextmanager
def running(made: Sequence[BaseProcess], seconds: float) -> Iterator[None]:
    """Start processes; they must end by themselves in time, unless something fails."""
    try:
        for process in made:
            process.start()
        yield
        for process in made:
            process.join(seconds)
        assert all(process.exitcode == 0 for process in made), "a party failed"
    finally:
        for process in made:
            process.kill()
