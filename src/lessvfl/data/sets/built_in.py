"""Digits of 8 x 8 pixels and breast cancer (Wisconsin), as scikit-learn ships them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lessvfl.data.frame import Dataset, DatasetInfo
from lessvfl.data.table import from_arrays


def load(name: str, folder: Path | None, options: Mapping[str, Any]) -> Dataset:
    """Load one of the two."""
    from sklearn import datasets

    is_digits = name == "digits"
    bunch = datasets.load_digits() if is_digits else datasets.load_breast_cancer()
    columns = [str(column) for column in bunch.feature_names]
    data = from_arrays(bunch.data, bunch.target, name=name, feature_names=columns)
    return replace(
        data,
        scale="global" if is_digits else data.scale,
        label_names=tuple(str(label) for label in bunch.target_names),
    )


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
