"""The paper's public data sets, parts and stand-ins of them, and others.

Phishing, Gina, Sylva and Activity come from a local folder where there is one,
otherwise from OpenML. The first download leaves a checksum beside scikit-learn's cache;
a later one that differs is refused. Parts and stand-ins come from a local folder only,
under names of their own, because numbers obtained on them are not the paper's. The four
from the literature on feature selection have what the paper's lack: text, many classes,
few rows with very many columns; the last three are vertical by nature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
VIEWS = ("fac", "fou", "kar", "mor", "pix", "zer")  # of mfeat, a file each


@dataclass(frozen=True)
class Facts:
    """What is known of one of these data sets, and what the released code did to it."""

    shape: tuple[int, int, int]  # rows, features, classes
    summary: str
    source: str
    data_id: int | None = None  # at OpenML; None: from a local folder only
    sha256: str = ""  # of cells and labels, `Dataset.checksum`
    note: str = ""  # where the download or the stand-in is not the paper's data
    scale: str = "global"
    split: str = "first"  # of the download, or of a data set that has none
    parties: int | Mapping[str, Sequence[str]] = 4  # how many, or who has which columns
    label: str = ""  # of a local file <name>.csv; none: the file is <name>.npz


FACTS = {
    "phishing": Facts(
        (11055, 30, 2),
        "phishing or legitimate web sites",
        "R. Mohammad, L. McCluskey, F. Thabtah, UCI Machine Learning Repository, 2015; "
        "CC BY 4.0; OpenML 4534.",
        4534,
        "675382ae64323107ba9c01a35c0008fc8780994e6af7efec0306876102ffd6b9",
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
        "caed4c6e291d4cebc988bc2e15e4c88fd0a13c63763f778d2ebd74bbbef033ca",
        "sylva_train is the training part of Sylva, 13086 of the paper's 14395 rows; "
        "numbers on it are not the paper's Sylva.",
    ),
    "gina_reconstruction": Facts(
        (3468, 970, 2),
        "stand-in for Gina: odd or even two-digit numbers, with known truth",
        "Made from MNIST (Y. LeCun, C. Cortes, C. Burges; CC BY-SA 3.0) as the "
        "publisher of Gina describes.",
        None,
        "f325c4c9fde1dd8c227ae37e768245d3a83bd2781cf974c6a2155e264849d15a",
        "gina_reconstruction is rebuilt from MNIST digits by the publisher's "
        "description; its rows and column order differ from the original, and numbers "
        "on it are not the paper's Gina.",
    ),
    "activity_time265": Facts(
        (10299, 265, 6),
        "time-domain part of Activity: six activities from a smartphone",
        f"{REYES}.",
        None,
        "daf44cc9299167c816fba73e4c6993544118ca894e1f85430daed2cee4aad3b8",
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
                "41666d4eb42a3b381e7a2bc4059b2129c6326d84cd9721ae07eb9bec57a478e7",
            ),
            (
                "pcmac",
                (1943, 3289, 2),
                "two newsgroups, counts of words",
                "Two groups of the 20 Newsgroups collection",
                "e2e972c2224c01d18fe1a1f6ee8b3b6a5831959d2d4657c5161770197c1b1ab8",
            ),
            (
                "tox171",
                (171, 5748, 4),
                "four classes from the expression of genes",
                "TOX-171",
                "ab2304ddd4fe1efda4250b00125e4025523044ccf2c932b128ad2d3e2760f207",
            ),
            (
                "arcene",
                (200, 10000, 2),
                "3000 of its 10000 features carry no information",
                "I. Guyon et al., NIPS 2003 feature selection challenge (UCI Machine "
                "Learning Repository), training and validation rows",
                "9cd5b53c845ec798016e3fb99641c2fa0fe516f8a2b9f6b5eaf0981bed7fe2a8",
            ),
        )
    },
    "rosmap": Facts(
        (351, 600, 2),
        "Alzheimer's disease or not, from three omics of the same donors",
        "ROS/MAP study, columns and split as published with MOGONET (T. Wang et al., "
        "Nature Communications 2021); for research, must not be passed on.",
        sha256="d013f2d25f9fd4bf9524dc201047eecdd8a0ec78d5f9dcbadacb9d54e308f0f1",
        scale="standardize",
        split="stratified",
        parties={view: [f"{view}.*"] for view in ("mrna", "methylation", "mirna")},
    ),
    "mfeat": Facts(
        (2000, 649, 10),
        "handwritten digits, as six extractors of features see them",
        "R. Duin, Multiple Features, UCI Machine Learning Repository; CC BY 4.0.",
        sha256="e80e11f0967a39a76eef103c2ee5be0362404ede6275132a62f18f8d3c719b13",
        scale="standardize",
        split="stratified",
        parties={view: [f"{view}.*"] for view in VIEWS},
    ),
    "credit": Facts(
        (30000, 23, 2),
        "default of credit card clients: a bank, a bureau, a registry and a shop",
        "I. Yeh, C. Lien, UCI Machine Learning Repository, 2009; CC BY 4.0.",
        sha256="59ffef19b83b06bcfa4907b441944011246487e4a7312fea627a9f1fd2beaba2",
        scale="standardize",
        split="stratified",
        parties={
            "bank": ["LIMIT_BAL", "BILL_*"],
            "bureau": ["PAY_[0-9]"],
            "registry": ["SEX", "EDUCATION", "MARRIAGE", "AGE"],
            "shop": ["PAY_AMT*"],
        },
        label="default.payment.next.month",
    ),
}


def load(name: str, folder: Path | None, options: Mapping[str, Any]) -> Dataset:
    """Load ``<folder>/<name>.npz`` where there is one, otherwise from OpenML."""
    facts = FACTS[name]
    notes: tuple[str, ...] = (facts.note,) if facts.note else ()
    path = (folder or Path()) / f"{name}.npz"
    if facts.label and not path.is_file():
        path = path.with_suffix(".csv")
    if folder is not None and path.is_file():
        if path.suffix == ".npz":
            data = files.load_file(path)
        else:
            data = files.load_file(path, facts.label)
            held = [column for column in data.X.names if column != "ID"]
            data = replace(data, X=data.X.select(held))
        if facts.data_id:
            notes = ()
        else:
            data = replace(data, split=facts.split)
        origin = path.name
    elif facts.data_id:
        data = replace(fetch(name), split=facts.split)
        origin = f"OpenML {facts.data_id}"
    else:
        raise DataError(
            f"The data set '{name}' must be in a local folder as {name}.npz; {SUPPLY}. "
            f"Got {'no folder' if folder is None else repr(str(folder))}."
        )
    checksum = data.checksum
    if facts.sha256 and checksum != facts.sha256:
        notes += (f"The cells of {origin} are not those whose checksum is known here.",)
    if isinstance(facts.parties, int):
        data = replace(data, n_parties=facts.parties)
    else:
        data = replace(data, n_parties=len(facts.parties), parties=facts.parties)
    origin = f"{origin} (SHA-256 of its cells {checksum[:12]})"
    return replace(data, name=name, notes=notes, scale=facts.scale, origin=origin)


def fetch(name: str) -> Dataset:
    """Download it from OpenML, or take it from scikit-learn's cache, and check it."""
    facts, data_id = FACTS[name], FACTS[name].data_id
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
    # Keep the checksum of the first download; refuse a later one that differs.
    path = Path(get_data_home()) / "lessvfl" / f"{name}.sha256"
    line = f"{data.checksum} {X.shape[0]}x{X.shape[1]}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line + "\n", encoding="utf-8")
    elif path.read_text(encoding="utf-8").strip() != line:
        raise DataError(
            f"The data set '{name}' must equal its first download, whose checksum is "
            f"in '{path}'. Got {line}; delete that file to accept it."
        )
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


def _info(name: str, facts: Facts) -> DatasetInfo:
    is_paper = facts.data_id is not None
    return DatasetInfo(
        partial(load, name),
        facts.summary,
        facts.source,
        "download" if is_paper else "local folder",
        *facts.shape,
        parties=facts.parties if isinstance(facts.parties, int) else len(facts.parties),
        paper=is_paper,
    )


INFOS = {name: _info(name, facts) for name, facts in FACTS.items()}
PAPER = {name: info for name, info in INFOS.items() if info.paper}
# A stand-in has a note that says so; the others stand for nothing but themselves.
STAND_INS = {n: i for n, i in INFOS.items() if not i.paper and FACTS[n].note}
LITERATURE = {n: i for n, i in INFOS.items() if not i.paper and not FACTS[n].note}
