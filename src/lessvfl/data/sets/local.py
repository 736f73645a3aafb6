"""Parts and stand-ins of the paper's data sets, from a local folder only.

They carry names of their own, because numbers obtained on them are not the paper's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lessvfl.data import files
from lessvfl.data.frame import Dataset
from lessvfl.data.registry import Entry
from lessvfl.errors import DataError

SHA256 = {
    "phishing": "c2c7a26c41f6551a6902fad5c65442fe39a103bcbfe7684f2422e5adbc76fb83",
    "sylva_train": "68f4af611a82b85f28882a88017d119ec381995b12df1dbd1d29ff0df8282395",
    "activity_time265": (
        "f00557976ef553450b8f2a11c61cd3aaabe64e3dac7cc702bb5edc1a8a6d1778"
    ),
    "gina_reconstruction": (
        "33f2de62c2e9d2fcfab0e15ecb2abc5f56d2bb4916c59b3847733453b9d91580"
    ),
}

NOTES = {
    "sylva_train": (
        "sylva_train is the training part of Sylva, 13086 of the paper's 14395 rows; "
        "numbers on it are not the paper's Sylva."
    ),
    "gina_reconstruction": (
        "gina_reconstruction is rebuilt from MNIST digits by the publisher's "
        "description; its rows and column order differ from the original, and numbers "
        "on it are not the paper's Gina."
    ),
    "activity_time265": (
        "activity_time265 has the 265 time-domain features of the 561 of Activity; "
        "numbers on it are not the paper's Activity."
    ),
}

SCALES = {"activity_time265": "none"}

SUPPLY = "give its folder by --data-dir or LESSVFL_DATA"


def find(folder: Path | None, name: str) -> Path | None:
    """Return ``<folder>/<name>.npz`` where there is one."""
    path = None if folder is None else folder / f"{name}.npz"
    return path if path is not None and path.is_file() else None


def read(path: Path, name: str) -> Dataset:
    """Load a known file, and say in a note where its content is not the known one.

    Parameters
    ----------
    path : Path
        A ``.npz`` file.
    name : str
        Name of the data set.

    Returns
    -------
    Dataset
        The table under that name.
    """
    data = files.load_file(path)
    known = SHA256.get(name)
    notes = data.notes
    if known and hashlib.sha256(path.read_bytes()).hexdigest() != known:
        notes += (f"The file {path.name} is not the one whose checksum is known here.",)
    return replace(data, name=name, notes=notes)


def load(name: str, folder: Path | None) -> Dataset:
    """Load one of the partial data sets.

    Parameters
    ----------
    name : str
        Name of the data set, and of its file without ``.npz``.
    folder : Path or None
        Where the file is.

    Returns
    -------
    Dataset
        The table, with a note that it is not the paper's.
    """
    path = find(folder, name)
    if path is None:
        raise DataError(
            f"The data set '{name}' must be in a local folder as {name}.npz; {SUPPLY}. "
            f"Got {'no folder' if folder is None else repr(str(folder))}."
        )
    data = read(path, name)
    scale = SCALES.get(name, "global")
    return replace(data, n_parties=4, scale=scale, notes=(NOTES[name], *data.notes))


def _entry(name: str, summary: str, source: str, **facts: int) -> Entry:
    def loader(folder: Path | None, options: Mapping[str, Any]) -> Dataset:
        return load(name, folder)

    return Entry(
        load=loader,
        summary=summary,
        source=source,
        where="local folder",
        parties=4,
        rows=facts["rows"],
        features=facts["features"],
        classes=facts["classes"],
    )


ENTRIES: dict[str, Entry] = {
    "sylva_train": _entry(
        "sylva_train",
        "training part of Sylva: Ponderosa pine or not",
        "I. Guyon et al., Agnostic Learning vs. Prior Knowledge challenge, IJCNN 2007; "
        "no licence stated.",
        rows=13086,
        features=216,
        classes=2,
    ),
    "gina_reconstruction": _entry(
        "gina_reconstruction",
        "stand-in for Gina: odd or even two-digit numbers, with known truth",
        "Made from MNIST (Y. LeCun, C. Cortes, C. Burges; CC BY-SA 3.0) as the "
        "publisher of Gina describes.",
        rows=3468,
        features=970,
        classes=2,
    ),
    "activity_time265": _entry(
        "activity_time265",
        "time-domain part of Activity: six activities from a smartphone",
        "J. Reyes-Ortiz et al., UCI Machine Learning Repository, 2013; CC BY 4.0.",
        rows=10299,
        features=265,
        classes=6,
    ),
}
