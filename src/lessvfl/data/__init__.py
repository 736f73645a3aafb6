"""Data sets: the registry, ``load``, and ``prepare``.

A data set is one file of this room and one line of the registry below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl.data import files
from lessvfl.data.encode import Encoding
from lessvfl.data.files import load_columns, load_labels
from lessvfl.data.frame import DataConfig, Dataset, Frame, PartyTable, Problem
from lessvfl.data.problem import prepare
from lessvfl.data.registry import Entry
from lessvfl.data.sets import breast_cancer, digits, local, mimic3, openml, synthetic
from lessvfl.data.split import match_columns, read_parties, split_rows
from lessvfl.data.table import frame_of, from_arrays
from lessvfl.errors import ConfigError, DataError
from lessvfl.settings import unknown

__all__ = [
    "DataConfig",
    "Dataset",
    "Encoding",
    "Frame",
    "PartyTable",
    "Problem",
    "describe",
    "frame_of",
    "from_arrays",
    "load",
    "load_columns",
    "load_labels",
    "match_columns",
    "names",
    "prepare",
    "read_parties",
    "split_rows",
]

FOLDER_VARIABLE = "LESSVFL_DATA"

_REGISTRY: dict[str, Entry] = {
    "synthetic": synthetic.ENTRY,
    "digits": digits.ENTRY,
    "breast-cancer": breast_cancer.ENTRY,
    **openml.ENTRIES,
    "mimic3": mimic3.ENTRY,
    **local.ENTRIES,
}


def names() -> tuple[str, ...]:
    """Return the names of the data sets that `load` knows.

    Returns
    -------
    tuple of str
        Built-in ones first, then the paper's, then parts of the paper's.

    Examples
    --------
    >>> "digits" in names()
    True
    """
    return tuple(_REGISTRY)


def describe(name: str) -> dict[str, Any]:
    """Say what is known of a data set without loading it.

    Parameters
    ----------
    name : str
        One of `names`.

    Returns
    -------
    dict
        Keys ``name``, ``summary``, ``source``, ``where`` (built in, download or local
        folder), ``rows``, ``features``, ``classes`` (0 for regression), ``parties``
        and ``paper`` (True for the paper's own data sets).

    Examples
    --------
    >>> describe("digits")["rows"]
    1797
    """
    entry = _entry(name)
    keys = ("summary", "source", "where", "rows", "features", "classes", "parties")
    return {
        "name": name,
        **{key: getattr(entry, key) for key in keys},
        "paper": entry.paper,
    }


def load(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Load a data set by name, or a table from a file.

    Parameters
    ----------
    name_or_path : str or Path
        One of `names`, or the path of a ``.npz``, ``.csv`` or ``.parquet`` file.
    data_dir : str or Path, optional
        Folder of local data sets; the environment variable ``LESSVFL_DATA`` unless
        given.
    label : str, optional
        Label column of a file.
    options : mapping, optional
        Options of the data set ``synthetic``.

    Returns
    -------
    Dataset
        The raw data, for `prepare`.

    Examples
    --------
    >>> load("breast-cancer").task
    'binary'
    """
    name = str(name_or_path)
    if name not in _REGISTRY and _is_path(name):
        _refuse(options, "options", f"the file '{name}'")
        return files.load_file(Path(name).expanduser(), label)
    entry = _entry(name)
    _refuse(label, "label", f"the data set '{name}'")
    if not entry.takes_options:
        _refuse(options, "options", f"the data set '{name}'")
    return entry.load(_folder(data_dir), options or {})


def _folder(data_dir: str | Path | None) -> Path | None:
    """Return the folder of local data sets: the one given, or the user's own."""
    if data_dir is None:
        own = os.environ.get(FOLDER_VARIABLE)
        return Path(own).expanduser() if own else None
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise DataError(f"The folder of data sets must exist. Got '{data_dir}'.")
    return folder


def _is_path(text: str) -> bool:
    """Tell a path from the name of a data set."""
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    return (
        any(mark in text for mark in separators)
        or text.lower().endswith(files.SUFFIXES)
        or Path(text).is_file()
    )


def _entry(name: str) -> Entry:
    if name not in _REGISTRY:
        raise unknown("data set", name, _REGISTRY)
    return _REGISTRY[name]


def _refuse(value: object, argument: str, owner: str) -> None:
    """Refuse an argument that would have no effect."""
    if value:
        raise ConfigError(
            f"The '{argument}' must be left out for {owner}. Got {value!r}."
        )
