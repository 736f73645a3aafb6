"""Handwritten digits of 8 x 8 pixels, as scikit-learn ships them."""

from __future__ import annotations

from dataclasses import replace

from lessvfl.data.frame import Dataset
from lessvfl.data.registry import Entry
from lessvfl.data.table import from_arrays


def load() -> Dataset:
    """Load the digits.

    Returns
    -------
    Dataset
        1797 rows, 64 pixels, 10 classes.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = from_arrays(
        bunch.data, bunch.target, name="digits", feature_names=bunch.feature_names
    )
    return replace(data, scale="global")


ENTRY = Entry(
    load=lambda folder, options: load(),
    summary="handwritten digits, 8 x 8 pixels",
    source="E. Alpaydin, C. Kaynak, UCI Machine Learning Repository, 1998; CC BY 4.0; "
    "comes with scikit-learn.",
    where="built in",
    rows=1797,
    features=64,
    classes=10,
    parties=4,
)
