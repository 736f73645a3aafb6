"""Digits of 8 x 8 pixels and breast cancer (Wisconsin), as scikit-learn ships them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl.data.frame import Dataset, DatasetInfo
from lessvfl.data.table import from_arrays

NUCLEI = (  # of each the mean, the error and the worst were measured
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
PIXELS = [f"pixel_{row}_{column}" for row, column in np.ndindex(8, 8)]
FORMS = ("mean {}", "{} error", "worst {}")
MEASURED = [form.format(what) for form in FORMS for what in NUCLEI]
FILES = {  # in scikit-learn; lines before the data, names of columns and of labels
    "digits": ("digits.csv.gz", 0, PIXELS, [str(digit) for digit in range(10)]),
    "breast-cancer": ("breast_cancer.csv", 1, MEASURED, ["malignant", "benign"]),
}


def load(name: str, folder: Path | None, options: Mapping[str, Any]) -> Dataset:
    """Load one of the two from the files of scikit-learn, without its slow import."""
    file, n_skipped, columns, labels = FILES[name]
    package = find_spec("sklearn")
    assert package is not None
    path = Path(str(package.origin)).parent / "datasets" / "data" / file
    cells = np.loadtxt(path, delimiter=",", skiprows=n_skipped)
    y = cells[:, -1].astype(np.int64)
    data = from_arrays(cells[:, :-1], y, name=name, feature_names=columns)
    scale = "global" if name == "digits" else data.scale
    return replace(data, scale=scale, label_names=tuple(labels))


UCI = "UCI Machine Learning Repository, {}; CC BY 4.0; comes with scikit-learn."

INFOS = {
    "digits": DatasetInfo(
        partial(load, "digits"),
        "handwritten digits, 8 x 8 pixels",
        f"E. Alpaydin, C. Kaynak, {UCI.format(1998)}",
        "built in",
        *(1797, 64, 10),
    ),
    "breast-cancer": DatasetInfo(
        partial(load, "breast-cancer"),
        "measurements of cell nuclei, malignant or benign",
        f"W. Wolberg, O. Mangasarian, N. Street, W. Street, {UCI.format(1995)}",
        "built in",
        *(569, 30, 2),
    ),
}
