"""In-hospital mortality from the public MIMIC-III benchmark.

H. Harutyunyan et al., Multitask learning and benchmarking with clinical time series
data, Scientific Data, 2019. The user builds the folder with PhysioNet credentials::

    in-hospital-mortality/
        train_listfile.csv  test_listfile.csv   stay,y_true
        train/<stay>  test/<stay>               Hours and 17 variables, first 48 hours

Each stay becomes 17 variables x 7 sub-periods x 6 statistics, in this order.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, Floats
from lessvfl.data.registry import Entry
from lessvfl.data.sets.local import SUPPLY
from lessvfl.data.table import from_arrays
from lessvfl.errors import DataError

VARIABLES = (
    "Capillary refill rate",
    "Diastolic blood pressure",
    "Fraction inspired oxygen",
    "Glascow coma scale eye opening",
    "Glascow coma scale motor response",
    "Glascow coma scale total",
    "Glascow coma scale verbal response",
    "Glucose",
    "Heart Rate",
    "Height",
    "Mean blood pressure",
    "Oxygen saturation",
    "Respiratory rate",
    "Systolic blood pressure",
    "Temperature",
    "Weight",
    "pH",
)

# Part of the span between a variable's first and last measurement: (start, end).
SUB_PERIODS = {
    "all": (0.0, 1.0),
    "first10": (0.0, 0.10),
    "first25": (0.0, 0.25),
    "first50": (0.0, 0.50),
    "last10": (0.90, 1.0),
    "last25": (0.75, 1.0),
    "last50": (0.50, 1.0),
}

STATISTICS = ("min", "max", "mean", "std", "skew", "count")

N_KEPT = 712  # the paper drops skewness and count of pH in the last half

# Texts of the coma scale, as the benchmark codes them.
CODES: dict[str, dict[str, float]] = {
    "Glascow coma scale eye opening": {
        "None": 0,
        "1 No Response": 1,
        "2 To pain": 2,
        "To Pain": 2,
        "3 To speech": 3,
        "To Speech": 3,
        "4 Spontaneously": 4,
        "Spontaneously": 4,
    },
    "Glascow coma scale motor response": {
        "1 No Response": 1,
        "No response": 1,
        "2 Abnorm extensn": 2,
        "Abnormal extension": 2,
        "3 Abnorm flexion": 3,
        "Abnormal Flexion": 3,
        "4 Flex-withdraws": 4,
        "Flex-withdraws": 4,
        "5 Localizes Pain": 5,
        "Localizes Pain": 5,
        "6 Obeys Commands": 6,
        "Obeys Commands": 6,
    },
    "Glascow coma scale verbal response": {
        "No Response-ETT": 1,
        "No Response": 1,
        "1 No Response": 1,
        "1.0 ET/Trach": 1,
        "2 Incomp sounds": 2,
        "Incomprehensible sounds": 2,
        "3 Inapprop words": 3,
        "Inappropriate Words": 3,
        "4 Confused": 4,
        "Confused": 4,
        "5 Oriented": 5,
        "Oriented": 5,
    },
}

NOTE = (
    "Missing statistics of mimic3 are filled in by the mean, and standardised where "
    "the settings say so, both fitted on the training rows."
)


def load(folder: Path | None) -> Dataset:
    """Load the in-hospital mortality task.

    Parameters
    ----------
    folder : Path or None
        The folder ``in-hospital-mortality``, or the one it is in.

    Returns
    -------
    Dataset
        The first 712 statistics of each stay, NaN where nothing was measured.
    """
    root = _root(folder)
    X, y = _read_part(root, "train")
    X_test, y_test = _read_part(root, "test")
    data = from_arrays(
        X[:, :N_KEPT],
        y,
        name="mimic3",
        feature_names=feature_names()[:N_KEPT],
        X_test=X_test[:, :N_KEPT],
        y_test=y_test,
    )
    return replace(data, n_parties=4, scale="standardize", notes=(NOTE,))


def feature_names() -> list[str]:
    """Return the names of all 714 statistics, in order.

    Returns
    -------
    list of str
        Names such as ``heart_rate_first10_mean``.

    Examples
    --------
    >>> len(feature_names()), feature_names()[0]
    (714, 'capillary_refill_rate_all_min')
    """
    return [
        f"{variable.lower().replace(' ', '_')}_{period}_{statistic}"
        for variable in VARIABLES
        for period in SUB_PERIODS
        for statistic in STATISTICS
    ]


def statistics(times: Floats, values: Floats) -> Floats:
    """Return the statistics of one variable of one stay.

    Parameters
    ----------
    times : array of shape (n,)
        Hours of the measurements.
    values : array of shape (n,)
        What was measured.

    Returns
    -------
    array of shape (42,)
        Six statistics for each of seven sub-periods; NaN without a measurement. The
        skewness of equal values is 0.

    Examples
    --------
    >>> statistics(np.array([0.0, 1.0]), np.array([2.0, 4.0]))[:4].tolist()
    [2.0, 4.0, 3.0, 1.0]
    """
    if len(values) == 0:
        return np.full(len(SUB_PERIODS) * len(STATISTICS), np.nan)
    begin, span = times.min(), times.max() - times.min()
    parts = np.array(list(SUB_PERIODS.values()))  # (7, 2)
    low, high = begin + span * parts.T  # (7,) each
    inside = (times > low[:, None] - 1e-6) & (times < high[:, None] + 1e-6)  # (7, n)
    count = inside.sum(axis=1).astype(np.float64)  # never 0: both ends are measured
    least = np.where(inside, values, np.inf).min(axis=1)
    most = np.where(inside, values, -np.inf).max(axis=1)
    mean = (inside * values).sum(axis=1) / count
    centred = inside * (values - mean[:, None])
    equal = least == most
    second = np.where(equal, 0.0, (centred**2).sum(axis=1) / count)
    third = (centred**3).sum(axis=1) / count
    skew = np.where(equal, 0.0, third / np.where(equal, 1.0, second) ** 1.5)
    table = np.column_stack([least, most, mean, np.sqrt(second), skew, count])
    return np.asarray(table.ravel())


def _root(folder: Path | None) -> Path:
    """Return the folder of the task."""
    if folder is not None:
        for root in (folder / "in-hospital-mortality", folder):
            if (root / "train_listfile.csv").is_file():
                return root
    raise DataError(
        f"The data set 'mimic3' must be in a local folder, as "
        f"in-hospital-mortality/train_listfile.csv; {SUPPLY}. "
        f"Got {'no folder' if folder is None else repr(str(folder))}."
    )


def _read_part(root: Path, part: str) -> tuple[Floats, NDArray[np.int64]]:
    """Read the stays that one listfile names."""
    path = root / f"{part}_listfile.csv"
    if not path.is_file():
        raise DataError(f"The data set 'mimic3' must have '{path}'. Got no such file.")
    with path.open(newline="", encoding="utf-8") as lines:
        header, *stays = list(csv.reader(lines)) or [[]]
    if header != ["stay", "y_true"] or not stays:
        raise DataError(
            f"The file '{path}' must have the header stay,y_true and lines below it. "
            f"Got the header {','.join(header)!r} and {len(stays)} lines."
        )
    if any(len(stay) != 2 or stay[1] not in ("0", "1") for stay in stays):
        raise DataError(f"The lines of '{path}' must be a file name and 0 or 1.")
    X = np.stack([_read_stay(root / part / stay[0]) for stay in stays])
    return X, np.array([int(stay[1]) for stay in stays], dtype=np.int64)


def _read_stay(path: Path) -> Floats:
    """Return the 714 statistics of one stay."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            header, *rows = list(csv.reader(lines)) or [[]]
    except OSError:
        raise DataError(
            f"Every stay of 'mimic3' must have its time series. Got no file '{path}'."
        ) from None
    absent = [name for name in ("Hours", *VARIABLES) if name not in header]
    if absent:
        raise DataError(
            f"The time series '{path}' must have the columns Hours and the 17 "
            f"variables. Got none named '{absent[0]}'."
        )
    hours = header.index("Hours")
    return np.concatenate(
        [_variable(rows, hours, header.index(name), name, path) for name in VARIABLES]
    )


def _variable(
    rows: Sequence[Sequence[str]], hours: int, index: int, name: str, path: Path
) -> Floats:
    """Return the 42 statistics of one variable of one stay."""
    codes = CODES.get(name, {})
    try:
        measured = [
            (
                float(row[hours]),
                codes[row[index]] if row[index] in codes else row[index],
            )
            for row in rows
            if row[index] != ""
        ]
        pairs = np.array(measured, dtype=np.float64).reshape(-1, 2)
    except (ValueError, IndexError) as error:
        raise DataError(
            f"The cells of '{name}' in '{path}' must be numbers or known texts. "
            f"Got this: {error}."
        ) from None
    return statistics(pairs[:, 0], pairs[:, 1])


ENTRY = Entry(
    load=lambda folder, options: load(folder),
    summary="in-hospital mortality from the first 48 hours in intensive care",
    source="MIMIC-III v1.4 (PhysioNet, credentialed access), by the public benchmark "
    "of H. Harutyunyan et al., 2019; must not be passed on.",
    where="local folder",
    rows=17917,
    features=N_KEPT,
    classes=2,
    parties=4,
    paper=True,
)
