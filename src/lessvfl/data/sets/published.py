"""The paper's public data sets, parts and stand-ins of them, and four others.

Phishing, Gina, Sylva and Activity come from a local folder where there is one,
otherwise from OpenML. The first download leaves a checksum beside scikit-learn's cache;
a later one that differs is refused. Parts and stand-ins come from a local folder only,
under names of their own, because numbers obtained on them are not the paper's. The four
from the literature on feature selection have what the paper's lack: text, many classes,
few rows with very many columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl.data import files
from lessvfl.data.frame import Dataset, DatasetInfo, Floats
from lessvfl.data.table import from_arrays
from lessvfl.errors import DataError

SUPPLY = "give its folder by --data-dir or LESSVFL_DATA"

GUYON = (
    "I. Guyon et al., Agnostic Learning vs. Prior Knowledge challenge, IJCNN 2007; no "
    "licence stated"
)
REYES = "J. Reyes-Ortiz et al., UCI Machine Learning Repository, 2013; CC BY 4.0"
LI = (
    "as kept by scikit-feature (J. Li et al., Feature Selection: A Data Perspective, "
    "ACM Computing Surveys 2017); no licence stated"
)


@dataclass(frozen=True)
class Facts:
    """What is known of one of these data sets, and what the released code did to it."""

    shape: tuple[int, int, int]  # rows, features, classes
    summary: str
    source: str
    data_id: int | None = None  # at OpenML; None: from a local folder only
    sha256: str = ""  # of the local file
    note: str = ""  # where the download or the stand-in is not the paper's data
    scale: str = "global"
    split: str = "first"  # of the download, or of a data set that has none
    parties: int = 4


FACTS = {
    "phishing": Facts(
        (11055, 30, 2),
        "phishing or legitimate web sites",
        "R. Mohammad, L. McCluskey, F. Thabtah, UCI Machine Learning Repository, 2015; "
        "CC BY 4.0; OpenML 4534.",
        4534,
        "c2c7a26c41f6551a6902fad5c65442fe39a103bcbfe7684f2422e5adbc76fb83",
        parties=3,
    ),
    "gina": Facts(
        (3468, 970, 2),
        "odd or even two-digit numbers, handwritten",
        f"{GUYON}; OpenML 1038.",
        1038,
    ),
    "sylva": Facts(
        (14395, 216, 2),
        "Ponderosa pine or not, from forest cover records",
        f"{GUYON}; OpenML 40992.",
        40992,
    ),
    "activity": Facts(
        (10299, 561, 6),
        "six human activities from a smartphone",
        f"{REYES}; OpenML 1478.",
        1478,
        note="OpenML has Activity without the publisher's train and test rows: a "
        "stratified 80/20 split by the seed stands in for them, not the paper's split.",
        scale="none",
        split="stratified",
    ),
    "sylva_train": Facts(
        (13086, 216, 2),
        "training part of Sylva: Ponderosa pine or not",
        f"{GUYON}.",
        None,
        "68f4af611a82b85f28882a88017d119ec381995b12df1dbd1d29ff0df8282395",
        "sylva_train is the training part of Sylva, 13086 of the paper's 14395 rows; "
        "numbers on it are not the paper's Sylva.",
    ),
    "gina_reconstruction": Facts(
        (3468, 970, 2),
        "stand-in for Gina: odd or even two-digit numbers, with known truth",
        "Made from MNIST (Y. LeCun, C. Cortes, C. Burges; CC BY-SA 3.0) as the "
        "publisher of Gina describes.",
        None,
        "33f2de62c2e9d2fcfab0e15ecb2abc5f56d2bb4916c59b3847733453b9d91580",
        "gina_reconstruction is rebuilt from MNIST digits by the publisher's "
        "description; its rows and column order differ from the original, and numbers "
        "on it are not the paper's Gina.",
    ),
    "activity_time265": Facts(
        (10299, 265, 6),
        "time-domain part of Activity: six activities from a smartphone",
        f"{REYES}.",
        None,
        "f00557976ef553450b8f2a11c61cd3aaabe64e3dac7cc702bb5edc1a8a6d1778",
        "activity_time265 has the 265 time-domain features of the 561 of Activity; "
        "numbers on it are not the paper's Activity.",
        scale="none",
    ),
    **{
        name: Facts(
            shape,
            summary,
            f"{source}, {LI}.",
            None,
            sha256,
            scale="standardize",
            split="stratified",  # most have their rows sorted by class
        )
        for name, shape, summary, source, sha256 in (
            (
                "isolet1",
                (1560, 617, 26),
                "spoken letters, 60 of each",
                "First part of ISOLET (UCI Machine Learning Repository)",
                "1bfeebd934036c55c86ba8c2e5bc8b7470f4cf03127730013d98aa0d5d41ced5",
            ),
            (
                "pcmac",
                (1943, 3289, 2),
                "two newsgroups, counts of words",
                "Two groups of the 20 Newsgroups collection",
                "f73088259c16fe873bb113a6f83fc76fbe7cf9c623bcb6fcbe5a0ae80fa6f1a1",
            ),
            (
                "tox171",
                (171, 5748, 4),
                "four classes from the expression of genes",
                "TOX-171",
                "29bd4dcc6b720ab7466ddb2c3304c1a9c52ee032c3244f7f285d0803c5f78ba6",
            ),
            (
                "arcene",
                (200, 10000, 2),
                "3000 of its 10000 features carry no information",
                "I. Guyon et al., NIPS 2003 feature selection challenge (UCI Machine "
                "Learning Repository), training and validation rows",
                "3b90111dd3680410f019aa763e085c11b635cb56c7589716a74b718df32c5bd9",
            ),
        )
    },
}


def load(name: str, folder: Path | None, options: Mapping[str, Any]) -> Dataset:
    """Load ``<folder>/<name>.npz`` where there is one, otherwise from OpenML."""
    facts = FACTS[name]
    notes: tuple[str, ...] = (facts.note,) if facts.note else ()
    path = None if folder is None else folder / f"{name}.npz"
    if path is not None and path.is_file():
        data = files.load_file(path)
        if facts.data_id:
            notes = ()
        else:
            data = replace(data, split=facts.split)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        if facts.sha256 and content != facts.sha256:
            notes += (
                f"The file {path.name} is not the one whose checksum is known here.",
            )
    elif facts.data_id:
        data = replace(_fetch(name, facts, facts.data_id), split=facts.split)
    else:
        raise DataError(
            f"The data set '{name}' must be in a local folder as {name}.npz; {SUPPLY}. "
            f"Got {'no folder' if folder is None else repr(str(folder))}."
        )
    data = replace(data, n_parties=facts.parties, scale=facts.scale)
    return replace(data, name=name, notes=notes)


def _fetch(name: str, facts: Facts, data_id: int) -> Dataset:
    """Download the data set, or take it from scikit-learn's cache, and check it."""
    try:
        from sklearn.datasets import fetch_openml, get_data_home

        # liac-arff needs no pandas; it codes categories, which `_decoded` undoes.
        bunch = fetch_openml(
            data_id=data_id, as_frame=False, cache=True, parser="liac-arff"
        )
    except (OSError, ValueError, ImportError, HTTPException) as error:
        line = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"The data set '{name}' must come from OpenML (id {data_id}) or as "
            f"{name}.npz from a local folder; {SUPPLY}. "
            f"Got no download ({type(error).__name__}: {line})."
        ) from None
    X = _decoded(bunch)
    try:  # labels such as '-1' and '1' are numbers
        y = np.asarray(bunch.target).astype(np.float64)
    except ValueError:
        y = bunch.target
    data = from_arrays(X, y, name=name, feature_names=bunch.feature_names)
    if (*X.shape, len(data.label_names)) != facts.shape:
        rows, features, classes = facts.shape
        raise DataError(
            f"The data set '{name}' (OpenML id {data_id}) must have "
            f"{rows} rows, {features} features and {classes} "
            f"classes. Got {X.shape[0]}, {X.shape[1]} and {len(data.label_names)}."
        )
    _check_sum(name, data, Path(get_data_home()) / "lessvfl" / f"{name}.sha256")
    return data


def _decoded(bunch: Any) -> Floats:
    """Return the table as numbers, categories such as '-1' and '1' included."""
    X = bunch.data.toarray() if hasattr(bunch.data, "toarray") else bunch.data
    X = np.array(X, dtype=np.float64)
    for i, name in enumerate(bunch.feature_names):
        categories = (bunch.categories or {}).get(name)
        if categories:
            values = np.array([float(text) for text in categories])
            present = ~np.isnan(X[:, i])
            X[present, i] = values[X[present, i].astype(np.int64)]
    return X


def _check_sum(name: str, data: Dataset, path: Path) -> None:
    """Keep the checksum of the first download; refuse a later one that differs."""
    digest = hashlib.sha256(np.ascontiguousarray(data.X.numeric).tobytes())
    digest.update(np.ascontiguousarray(data.y).tobytes())
    rows, columns = data.X.numeric.shape
    line = f"{digest.hexdigest()} {rows}x{columns}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line + "\n", encoding="utf-8")
    elif path.read_text(encoding="utf-8").strip() != line:
        raise DataError(
            f"The data set '{name}' must equal its first download, whose checksum is "
            f"in '{path}'. Got other content; delete that file to accept it."
        )


def _info(name: str, facts: Facts) -> DatasetInfo:
    is_paper = facts.data_id is not None
    return DatasetInfo(
        partial(load, name),
        facts.summary,
        facts.source,
        "download" if is_paper else "local folder",
        *facts.shape,
        parties=facts.parties,
        paper=is_paper,
    )


INFOS = {name: _info(name, facts) for name, facts in FACTS.items()}
PAPER = {name: info for name, info in INFOS.items() if info.paper}
# A stand-in has a note that says so; the others stand for nothing but themselves.
STAND_INS = {n: i for n, i in INFOS.items() if not i.paper and FACTS[n].note}
LITERATURE = {n: i for n, i in INFOS.items() if not i.paper and not FACTS[n].note}
