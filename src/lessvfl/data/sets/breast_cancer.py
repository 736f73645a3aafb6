"""Breast cancer (Wisconsin, diagnostic), as scikit-learn ships it."""

from __future__ import annotations

from dataclasses import replace

from lessvfl.data.frame import Dataset
from lessvfl.data.registry import Entry
from lessvfl.data.table import from_arrays


def load() -> Dataset:
    """Load the measurements of cell nuclei.

    Returns
    -------
    Dataset
        569 rows, 30 features, 2 classes.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    data = from_arrays(
        bunch.data,
        bunch.target,
        name="breast-cancer",
        feature_names=[str(name) for name in bunch.feature_names],
    )
    return replace(data, label_names=tuple(str(name) for name in bunch.target_names))


ENTRY = Entry(
    load=lambda folder, options: load(),
    summary="measurements of cell nuclei, malignant or benign",
    source="W. Wolberg, O. Mangasarian, N. Street, W. Street, UCI Machine Learning "
    "Repository, 1995; CC BY 4.0; comes with scikit-learn.",
    where="built in",
    rows=569,
    features=30,
    classes=2,
    parties=4,
)
