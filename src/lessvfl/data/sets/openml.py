"""The paper's public data sets: Phishing, Gina, Sylva, Activity.

Each comes from a local folder where there is one, otherwise from OpenML. The first
download leaves a checksum beside scikit-learn's cache; a later one that differs is
refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl.data.frame import Dataset, Floats
from lessvfl.data.registry import Entry
from lessvfl.data.sets import local
from lessvfl.data.table import from_arrays
from lessvfl.errors import DataError


@dataclass(frozen=True)
class Source:
    """One data set of the paper in OpenML."""

    data_id: int
    shape: tuple[int, int]
    classes: int
    summary: str
    source: str
    parties: int = 4
    scale: str = "global"  # what the released code did
    split: str = "first"
    note: str = ""  # where the download differs from the paper's data


SOURCES = {
    "phishing": Source(
        4534,
        (11055, 30),
        2,
        "phishing or legitimate web sites",
        "R. Mohammad, L. McCluskey, F. Thabtah, UCI Machine Learning Repository, 2015; "
        "CC BY 4.0; OpenML 4534.",
        parties=3,
    ),
    "gina": Source(
        1038,
        (3468, 970),
        2,
        "odd or even two-digit numbers, handwritten",
        "I. Guyon et al., Agnostic Learning vs. Prior Knowledge challenge, IJCNN 2007; "
        "no licence stated; OpenML 1038.",
    ),
    "sylva": Source(
        40992,
        (14395, 216),
        2,
        "Ponderosa pine or not, from forest cover records",
        "I. Guyon et al., Agnostic Learning vs. Prior Knowledge challenge, IJCNN 2007; "
        "no licence stated; OpenML 40992.",
    ),
    "activity": Source(
        1478,
        (10299, 561),
        6,
        "six human activities from a smartphone",
        "J. Reyes-Ortiz et al., UCI Machine Learning Repository, 2013; CC BY 4.0; "
        "OpenML 1478.",
        scale="none",
        split="stratified",
        note="OpenML has Activity without the publisher's train and test rows: a "
        "stratified 80/20 split by the seed stands in for them, not the paper's split.",
    ),
}


def load(name: str, folder: Path | None) -> Dataset:
    """Load one of the paper's data sets.

    Parameters
    ----------
    name : str
        One of phishing, gina, sylva and activity.
    folder : Path or None
        A local folder that may hold ``<name>.npz``.

    Returns
    -------
    Dataset
        The data set, from the folder or from OpenML.
    """
    source = SOURCES[name]
    path = local.find(folder, name)
    if path is not None:
        data = local.read(path, name)
        return replace(data, n_parties=source.parties, scale=source.scale)
    data = _fetch(name, source)
    return replace(
        data,
        n_parties=source.parties,
        scale=source.scale,
        split=source.split,
        notes=(source.note,) if source.note else (),
    )


def _fetch(name: str, source: Source) -> Dataset:
    """Download the data set, or take it from scikit-learn's cache, and check it."""
    try:
        from sklearn.datasets import fetch_openml, get_data_home

        # liac-arff needs no pandas; it codes categories, which `_decoded` undoes.
        bunch = fetch_openml(
            data_id=source.data_id, as_frame=False, cache=True, parser="liac-arff"
        )
    except (OSError, ValueError, ImportError, HTTPException) as error:
        line = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"The data set '{name}' must come from OpenML (id {source.data_id}) or as "
            f"{name}.npz from a local folder; {local.SUPPLY}. "
            f"Got no download ({type(error).__name__}: {line})."
        ) from None
    X = _decoded(bunch)
    data = from_arrays(
        X, _plain_labels(bunch.target), name=name, feature_names=bunch.feature_names
    )
    if X.shape != source.shape or len(data.label_names) != source.classes:
        raise DataError(
            f"The data set '{name}' (OpenML id {source.data_id}) must have "
            f"{source.shape[0]} rows, {source.shape[1]} features and {source.classes} "
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


def _plain_labels(target: Any) -> Any:
    """Return labels such as '-1' and '1' as numbers, others as they are."""
    try:
        return np.asarray(target).astype(np.float64)
    except ValueError:
        return target


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


def _entry(name: str, source: Source) -> Entry:
    def loader(folder: Path | None, options: Mapping[str, Any]) -> Dataset:
        return load(name, folder)

    return Entry(
        load=loader,
        summary=source.summary,
        source=source.source,
        where="download",
        rows=source.shape[0],
        features=source.shape[1],
        classes=source.classes,
        parties=source.parties,
        paper=True,
    )


ENTRIES = {name: _entry(name, source) for name, source in SOURCES.items()}
