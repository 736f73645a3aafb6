"""The data sets: a data set is one file of this folder and one line of the registry."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl.data import files, readers
from lessvfl.data.frame import Dataset, DatasetInfo
from lessvfl.data.roles import with_roles
from lessvfl.data.sets import built_in, mimic3, published, recipes, synthetic
from lessvfl.errors import ConfigError, DataError
from lessvfl.settings import unknown

_REGISTRY: dict[str, DatasetInfo] = {
    "synthetic": synthetic.INFO,
    **built_in.INFOS,
    **published.PAPER,
    "mimic3": mimic3.INFO,
    **published.STAND_INS,
    **published.LITERATURE,
}


def names() -> tuple[str, ...]:
    """Return the names of the data sets that `load` knows.

    Returns
    -------
    tuple of str
        Built-in ones first, then the paper's, then parts of the paper's, then others.

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
    known = dataclasses.asdict(_info(name))
    del known["load"], known["takes_options"]
    return {"name": name, **known}


def load(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
    sample_weight: str | None = None,
    group_column: str | None = None,
    task: str | None = None,
    time_column: str | None = None,
    test_ids: str | Path | None = None,
) -> Dataset:
    """Load a data set by name, or a table from a file.

    Parameters
    ----------
    name_or_path : str or Path
        One of `names`, or the path of a ``.npz``, ``.csv``, ``.parquet`` or Excel file.
    data_dir : str or Path, optional
        Folder of local data sets; the environment variable ``LESSVFL_DATA`` unless
        given.
    label : str, optional
        Label column of a file.
    options : mapping, optional
        Options of the data set ``synthetic``.
    sample_weight : str, optional
        The column that says how much a row counts in the loss; it is no feature.
    group_column : str, optional
        The column that says of whom a row is (a person, a household, a device), whose
        rows are split, held out and scrambled together; it is no feature.
    task : {"auto", "classification", "regression"}, optional
        What the labels of a file are; auto: as they look.
    time_column : str, optional
        The column that says when a row is of (dates or numbers), of which the latest
        are the test rows; it is no feature.
    test_ids : str or Path, optional
        A file of the ids of the test rows. It has one column, named as the column of
        ids in the table, which is no feature.

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
    info = None if name not in _REGISTRY and is_file(name) else _info(name)
    owner = f"the {'data set' if info else 'file'} '{name}'"
    for argument, value, is_used in (
        ("label", label, info is None),
        ("task", None if task == "auto" else task, info is None),
        ("options", options, info is not None and info.takes_options),
    ):
        if value and not is_used:
            raise ConfigError(
                f"The '{argument}' must be left out for {owner}. Got {value!r}."
            )
    roles = files.load_roles(sample_weight, group_column, time_column, test_ids)
    if info is None:
        path = Path(name).expanduser()
        dataset = files.load_file(path, label, roles, task)
        return dataclasses.replace(dataset, origin=path.name)
    dataset = info.load(_folder(data_dir), options or {})
    dataset = dataclasses.replace(dataset, origin=dataset.origin or info.where)
    return with_roles(dataset, roles)


def build(
    name: str, source: str | Path | None = None, *, data_dir: str | Path | None = None
) -> recipes.Built:
    """Make a data set's file of its publisher's files.

    Parameters
    ----------
    name : str
        A data set that has a recipe: ``lessvfl data build --help`` names them.
    source : str or Path, optional
        The publisher's files: a file, a folder or an archive of them. Unless given,
        they are downloaded.
    data_dir : str or Path, optional
        The folder to write ``<name>.npz`` to; the environment variable
        ``LESSVFL_DATA`` unless given.

    Returns
    -------
    Built
        The ``path`` of the file, its ``data``, the ``files`` that were read with their
        SHA-256, and ``is_known``: whether a known checksum of the cells was met.
    """
    folder = _folder(data_dir)
    if folder is None:
        raise DataError(
            "The folder to write to must be given by --data-dir or LESSVFL_DATA. Got "
            "none."
        )
    given = None if source is None else Path(source).expanduser()
    return recipes.build(name, recipes.recipe_of(name), folder, given)


def _folder(data_dir: str | Path | None) -> Path | None:
    """Return the folder of local data sets, where there is one."""
    if data_dir is None:
        default = os.environ.get("LESSVFL_DATA")
        return Path(default).expanduser() if default else None
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise DataError(f"The folder of data sets must exist. Got '{data_dir}'.")
    return folder


def is_file(text: str) -> bool:
    """Tell whether a text is the path of a file, and not the name of a data set."""
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    return (
        any(mark in text for mark in separators)
        or text.lower().endswith(readers.SUFFIXES)
        or Path(text).is_file()
        or bool(readers.arrow_files(Path(text)) if Path(text).is_dir() else ())
    )


def _info(name: str) -> DatasetInfo:
    if name not in _REGISTRY:
        raise unknown("data set", name, _REGISTRY)
    return _REGISTRY[name]
