"""Data sets from their publishers' files, as ``lessvfl data build`` makes them.

A recipe is a value: how its files are read, and what must come of it. Files come from a
path (a file, a folder or an archive), from an address of the publisher, or from OpenML.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import tempfile
import urllib.request
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import files, readers
from lessvfl.data.frame import Dataset
from lessvfl.data.sets import published
from lessvfl.errors import ConfigError, DataError
from lessvfl.terms import listed

NamedArrays = dict[str, NDArray[Any]]

UCI = "https://archive.ics.uci.edu/static/public/{}.zip"
ARCHIVES = (".zip", ".tar", ".tgz", ".gz")
# What readers raise of a file that is not as published.
UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, RuntimeError, StopIteration),
    *(IndexError, UserWarning, zipfile.BadZipFile, tarfile.TarError),
)


class SourceFiles:
    """The files of a source by their names, those of archives inside it as well."""

    def __init__(self, source: Path, scratch: Path) -> None:
        self.source, self.taken = source, dict[str, str]()  # name -> SHA-256
        self._paths: dict[str, Path] = {}
        waiting = [source]
        while waiting:
            path = waiting.pop()
            if path.suffix.lower() in ARCHIVES and path.is_file():
                path = _unpacked(path, Path(tempfile.mkdtemp(dir=scratch)))
            if path.is_dir():
                waiting += sorted(path.iterdir(), reverse=True)
            else:
                self._paths.setdefault(path.name, path)

    def __getitem__(self, name: str) -> Path:
        if name not in self._paths:
            raise DataError(f"The publisher's '{name}' must be there. Got {self}.")
        self.taken[name] = _sha256(self._paths[name])
        return self._paths[name]

    def __str__(self) -> str:
        return f"'{self.source}' with {listed(sorted(self._paths)) or 'no file'}"

    def ending(self, *suffixes: str) -> list[str]:
        """Return the names that end so, hidden files aside."""
        visible = (name for name in self._paths if not name.startswith("."))
        return sorted(name for name in visible if name.lower().endswith(suffixes))

    def only_file(self, *suffixes: str, preferred: str = "") -> Path:
        """Return the only file that ends so, or the preferred one of several."""
        names = self.ending(*suffixes)
        if preferred not in names and len(names) != 1:
            allowed = " or ".join(suffixes)
            raise DataError(f"One file must end in {allowed}. Got {self}.")
        return self[preferred if preferred in names else names[0]]


def _unpacked(path: Path, folder: Path) -> Path:
    """Unpack the archive at `path` into `folder`, and return `folder`."""
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    else:
        with tarfile.open(path) as archived:
            archived.extractall(folder, filter="data")
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# ---------------------------------------------------------------------------- readers


def _numbers(path: Path) -> NDArray[Any]:
    """Read a file of numbers between blanks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a file without numbers
        return np.loadtxt(path, ndmin=2)


def _whole(path: Path) -> NDArray[np.int64]:
    """Read a file of one whole number a line."""
    return _numbers(path).ravel().astype(np.int64)


def _named(path: Path) -> list[str]:
    """Read lines of a number and a name, such as ``1 WALKING``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split(maxsplit=1)[1].strip() for line in lines if line.strip()]


def _table(X: NDArray[Any], names: Sequence[str], labels: NDArray[Any]) -> NamedArrays:
    """Return the arrays of a table whose classes are numbers."""
    values, codes = np.unique(labels, return_inverse=True)
    classes = np.array([f"{value:g}" for value in values])
    y = codes.ravel().astype(np.int64)
    return {"X": X, "y": y, "feature_names": np.array(names), "label_names": classes}


def read_arff(given: SourceFiles, preferred: str = "") -> NamedArrays:
    """Read an ARFF file whose last column is the label, all of it numbers."""
    from scipy.io import arff

    rows, meta = arff.loadarff(given.only_file(".arff", preferred=preferred))
    *names, label = meta.names()
    X = np.column_stack([rows[name].astype(np.float64) for name in names])
    return _table(X, names, rows[label].astype(np.float64))


def read_challenge(given: SourceFiles, name: str, parts: Sequence[str]) -> NamedArrays:
    """Read ``<name>_train.data`` and ``.labels`` and the like, or an ARFF file."""
    if given.ending(".arff"):
        return read_arff(given)
    X = np.vstack([_numbers(given[f"{name}_{part}.data"]) for part in parts])
    labels = [_numbers(given[f"{name}_{part}.labels"]) for part in parts]
    return _table(X, [f"attr{i}" for i in range(X.shape[1])], np.vstack(labels))


def read_activity(given: SourceFiles) -> NamedArrays:
    """Read the folder ``UCI HAR Dataset``: test rows stay test rows.

    Some columns share a name; those have their number after it.
    """
    names = _named(given["features.txt"])
    many = {name for name, count in Counter(names).items() if count > 1}
    names = [f"{n}#{i}" if n in many else n for i, n in enumerate(names, 1)]
    classes = _named(given["activity_labels.txt"])
    arrays = {"feature_names": np.array(names), "label_names": np.array(classes)}
    for part, ending in (("train", ""), ("test", "_test")):
        arrays |= {
            f"X{ending}": _numbers(given[f"X_{part}.txt"]),
            f"y{ending}": _whole(given[f"y_{part}.txt"]) - 1,
            f"subject{ending}": _whole(given[f"subject_{part}.txt"]),
        }
    return arrays


def read_mfeat(given: SourceFiles) -> NamedArrays:
    """Read the six files of ``mfeat``, whose rows are the ten digits in order."""
    parts = {view: _numbers(given[f"mfeat-{view}"]) for view in published.VIEWS}
    X = np.hstack(list(parts.values()))
    names = [f"{view}.{i}" for view in parts for i in range(parts[view].shape[1])]
    return _table(X, names, np.arange(len(X)) * 10 // len(X))


def read_credit(given: SourceFiles) -> NamedArrays:
    """Read the workbook of the data set, or a .csv of it: ID, 23 columns, label."""
    raw = readers.read_table(given.only_file(".xls", ".xlsx", ".csv"))
    names, columns = raw.names, [raw.cells(name) for name in raw.names]
    if "LIMIT_BAL" not in names:  # the workbook has a line above its names
        names = [str(column[0]) for column in columns]
        columns = [column[1:] for column in columns]
    cells = np.column_stack([column.astype(np.float64) for column in columns])
    return _table(cells[:, 1:-1], names[1:-1], cells[:, -1])


# ---------------------------------------------------------------------------- recipes


@dataclass(frozen=True)
class Recipe:
    """How a data set is made of its publisher's files, and what must come of it."""

    read: Callable[[SourceFiles], NamedArrays]
    rows: tuple[int, ...]  # of training, and of testing where the publisher says which
    features: int
    classes: int
    content: str = ""  # `Dataset.checksum`; none where it is not known
    address: str = ""  # of the publisher's archive; none: OpenML may have it
    sha256: str = ""  # of that archive, where it is known


PHISHING = partial(read_arff, preferred="Training Dataset.arff")  # beside an old one
GINA = partial(read_challenge, name="gina", parts=("train", "valid"))
SYLVA = partial(read_challenge, name="sylva", parts=("train", "valid"))
SYLVA_TRAIN = partial(read_challenge, name="sylva", parts=("train",))
# How each is read, the publisher's page, and how many of its rows are for testing.
READERS: dict[str, tuple[Callable[[SourceFiles], NamedArrays], str, int]] = {
    "phishing": (PHISHING, "327/phishing+websites", 0),
    "gina": (GINA, "", 0),
    "sylva": (SYLVA, "", 0),
    "sylva_train": (SYLVA_TRAIN, "", 0),
    "activity": (
        read_activity,
        "240/human+activity+recognition+using+smartphones",
        2947,
    ),
    "mfeat": (read_mfeat, "72/multiple+features", 0),
    "credit": (read_credit, "350/default+of+credit+card+clients", 0),
}
# As public projects that downloaded the archive have it.
ARCHIVE_SUMS = {
    "activity": "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031"
}
RECIPES = {
    name: Recipe(
        read,
        rows=(shape[0] - n_test, n_test) if n_test else shape[:1],
        features=shape[1],
        classes=shape[2],
        content=published.FACTS[name].sha256,
        address=UCI.format(page) if page else "",
        sha256=ARCHIVE_SUMS.get(name, ""),
    )
    for name, (read, page, n_test) in READERS.items()
    for shape in [published.FACTS[name].shape]
}


# ---------------------------------------------------------------------------- building


@dataclass(frozen=True)
class Built:
    """A data set that was built: its file, and what it was made of."""

    path: Path
    data: Dataset
    files: dict[str, str]  # what was read -> its SHA-256
    is_known: bool  # whether its cells have a known checksum


def build(name: str, recipe: Recipe, folder: Path, source: Path | None = None) -> Built:
    """Make ``<folder>/<name>.npz`` of the publisher's files, and check it."""
    path = folder / f"{name}.npz"
    if path.exists():
        raise DataError(f"The file '{path}' must not be there yet. Got one; move it.")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        arrays, taken = _arrays(name, recipe, source, Path(scratch))
        made = np.array(json.dumps({"name": name, "files": taken}))
        content: dict[str, Any] = {**arrays, "source": made}
        for part in {"X", "X_test"} & set(arrays):
            content[part] = arrays[part].astype(np.float32)
        written = Path(scratch) / path.name
        np.savez_compressed(written, **content)
        data = files.load_file(written)
        _check(name, recipe, data)
        written.replace(path)
    return Built(path, data, taken, bool(recipe.content))


def _arrays(
    name: str, recipe: Recipe, source: Path | None, scratch: Path
) -> tuple[NamedArrays, dict[str, str]]:
    """Read what was given or can be downloaded; return it, and what was read."""
    if source is None and not recipe.address:
        return _from_openml(name)
    came = {}
    if source is None:
        source = _download(name, recipe, scratch)
        came = {recipe.address: _sha256(source)}
    try:
        source.stat()
        given = SourceFiles(source, scratch)
        arrays = recipe.read(given)
    except UNREADABLE as error:
        if isinstance(error, DataError):
            raise
        raise readers.unreadable(source, error) from None
    return arrays, came | given.taken


def _from_openml(name: str) -> tuple[NamedArrays, dict[str, str]]:
    if published.FACTS[name].data_id is None:
        raise DataError(
            f"The publisher's files of '{name}' must be given by --from: they have no "
            "stable address. Got none."
        )
    data = published.fetch(name)
    names = {"feature_names": data.X.names, "label_names": data.label_names}
    arrays = {key: np.array(texts) for key, texts in names.items()}
    came = {f"OpenML {published.FACTS[name].data_id}": data.checksum}
    return {"X": data.X.numeric, "y": data.y, **arrays}, came


def _download(name: str, recipe: Recipe, scratch: Path) -> Path:
    """Download the publisher's archive, and check it where its checksum is known."""
    path = scratch / "download.zip"
    request = urllib.request.Request(recipe.address, headers={"User-Agent": "lessvfl"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            with path.open("wb") as file:
                shutil.copyfileobj(reply, file)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"The files of '{name}' must come from {recipe.address}, or from a path by "
            f"--from. Got no download ({type(error).__name__}: {error})."
        ) from None
    came = _sha256(path)
    if recipe.sha256 and came != recipe.sha256:
        raise DataError(
            f"The download of '{name}' must have the SHA-256 {recipe.sha256}. Got "
            f"{came} from {recipe.address}; a file that you trust goes by --from."
        )
    return path


def _check(name: str, recipe: Recipe, data: Dataset) -> None:
    """Refuse what is not the data set: rows, columns, classes, cells."""
    parts = [data.X, *([data.X_test] if data.X_test else [])]
    rows = tuple(part.n_rows for part in parts)
    got = (rows, len(data.X.names), len(np.unique(data.y)))
    wanted = (recipe.rows, recipe.features, recipe.classes)
    if got != wanted or not all(np.isfinite(part.numeric).all() for part in parts):
        raise DataError(
            f"The files of '{name}' must give {_said(*wanted)}, without a missing "
            f"cell. Got {_said(*got)}."
        )
    if recipe.content and data.checksum != recipe.content:
        raise DataError(
            f"Cells and labels of '{name}' must have the SHA-256 {recipe.content}. Got "
            f"{data.checksum}."
        )


def _said(rows: tuple[int, ...], features: int, classes: int) -> str:
    return f"{' + '.join(map(str, rows))} rows, {features} columns, {classes} classes"


def recipe_of(name: str) -> Recipe:
    """Return the recipe of a data set, or say where it comes from instead."""
    if name not in RECIPES:
        facts = published.FACTS.get(name)
        raise ConfigError(
            f"A data set to build must be one of {', '.join(RECIPES)}. Got '{name}'"
            f"{f', which comes from: {facts.source}' if facts else '.'}"
        )
    return RECIPES[name]
