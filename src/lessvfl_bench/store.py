"""Records of a benchmark: a file for each finished part, so that a killed run resumes.

Files are written atomically, and found again by what was run.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl.errors import ConfigError, RecordError
from lessvfl.run.folder import claim, claim_new
from lessvfl.run.record import write_atomically
from lessvfl.terms import plural

FOLDER = "records"


def record_folder(folder: Path | None, resume: bool) -> Path | None:
    """Make the folder of the records; without one they are in memory alone."""
    if folder is None:
        if not resume:
            return None
        raise ConfigError("The '--resume' option needs the '--out' folder to go on in.")
    found = [*(folder / FOLDER).glob("*")]
    if found and not resume:
        raise ConfigError(
            "The '--out' folder must not hold records of an earlier benchmark, or "
            f"--resume must be given. Got {plural(len(found), 'record')} in "
            f"'{folder / FOLDER}'."
        )
    if not resume:
        claim_new(folder, what="folder", known=[FOLDER])
    claim(folder / FOLDER)
    return folder / FOLDER


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name a file that cannot be read as a record."""
    wrong = (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile)
    try:
        yield
    except wrong as error:
        raise RecordError(
            f"'{path}' must be a record of a benchmark of lessvfl {__version__}; "
            f"remove it to run its part again. Got {type(error).__name__}: {error}."
        ) from None


class Records:
    """What parts of a benchmark gave, a JSON file each."""

    def __init__(self, folder: Path | None, resume: bool) -> None:
        self.folder = record_folder(folder, resume)
        self.resume = resume

    def find(self, name: str, about: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what an earlier run kept, None where it was about something else."""
        if self.folder is None or not self.resume:
            return None
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        with reading(path):
            record = json.loads(path.read_text(encoding="utf-8"))
            found: dict[str, Any] = record["found"]
            same = record["about"] == json.loads(json.dumps(_dated(about)))
        return found if same else None

    def add(
        self, name: str, about: Mapping[str, Any], found: Mapping[str, Any]
    ) -> None:
        """Keep what a part gave."""
        if self.folder is not None:
            text = json.dumps({"about": _dated(about), "found": found}, allow_nan=False)
            write_atomically(self.folder / f"{name}.json", text.encode())


def _dated(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record is about, with the version that made it."""
    return {**about, "lessvfl": __version__}
