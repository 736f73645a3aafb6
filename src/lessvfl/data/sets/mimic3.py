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
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, DatasetInfo, Floats
from lessvfl.data.sets.published import SUPPLY
from lessvfl.data.table import frame_of, from_arrays
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

# Scores of the coma scale and the texts they are written as, as the benchmark has them.
SCORES: dict[str, dict[int, tuple[str, ...]]] = {
    "Glascow coma scale eye opening": {
        0: ("None",),
        1: ("1 No Response",),
        2: ("2 To pain", "To Pain"),
        3: ("3 To speech", "To Speech"),
        4: ("4 Spontaneously", "Spontaneously"),
    },
    "Glascow coma scale motor response": {
        1: ("1 No Response", "No response"),
        2: ("2 Abnorm extensn", "Abnormal extension"),
        3: ("3 Abnorm flexion", "Abnormal Flexion"),
        4: ("4 Flex-withdraws", "Flex-withdraws"),
        5: ("5 Localizes Pain", "Localizes Pain"),
        6: ("6 Obeys Commands", "Obeys Commands"),
    },
    "Glascow coma scale verbal response": {
        1: ("1 No Response", "No Response", "No Response-ETT", "1.0 ET/Trach"),
        2: ("2 Incomp sounds", "Incomprehensible sounds"),
        3: ("3 Inapprop words", "Inappropriate Words"),
        4: ("4 Confused", "Confused"),
        5: ("5 Oriented", "Oriented"),
    },
}
CODES = {
    name: {text: score for score, texts in scores.items() for text in texts}
    for name, scores in SCORES.items()
}

NOTE = (
    "Missing statistics of mimic3 are filled in by the mean, and standardised where "
    "the settings say so, both fitted on the training rows."
)


def load(folder: Path | None) -> Dataset:
    """Load the first 712 statistics of each stay, NaN where nothing was measured."""
    root = _root(folder)
    X, y = _read_part(root, "train")
    X_test, y_test = _read_part(root, "test")
    frame = frame_of(X, feature_names()[:N_KEPT])
    data = from_arrays(frame, y, name="mimic3", X_test=X_test, y_test=y_test)
    return replace(data, n_parties=4, scale="standardize", notes=(NOTE,))


def feature_names() -> list[str]:
    """Return the names of all 714 statistics, in order."""
    return [
        f"{variable.lower().replace(' ', '_')}_{period}_{statistic}"
        for variable in VARIABLES
        for period in SUB_PERIODS
        for statistic in STATISTICS
    ]


def statistics(times: Floats, values: Floats) -> Floats:
    """Return six statistics of one variable for each of seven sub-periods, (42,).

    They are NaN without a measurement. The skewness of equal values is 0.
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
    """Read the statistics of the stays that one listfile names, and their labels."""
    path = root / f"{part}_listfile.csv"
    if not path.is_file():
        raise DataError(f"The data set 'mimic3' must have '{path}'. Got no such file.")
    header, *stays = _lines(path)
    if header != ["stay", "y_true"] or not stays:
        raise DataError(
            f"The file '{path}' must have the header stay,y_true and lines below it. "
            f"Got the header {','.join(header)!r} and {len(stays)} lines."
        )
    others = [s for s in stays if len(s) != 2 or s[1] not in ("0", "1")]
    if others:
        raise DataError(
            f"The lines of '{path}' must be a file name and 0 or 1. "
            f"Got {','.join(others[0])!r}."
        )
    X = np.stack([_read_stay(root / part / stay[0])[:N_KEPT] for stay in stays])
    return X, np.array([int(stay[1]) for stay in stays], dtype=np.int64)


def _lines(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.reader(lines)) or [[]]


def _read_stay(path: Path) -> Floats:
    """Return the 714 statistics of the stay in the file at `path`."""
    try:
        header, *rows = _lines(path)
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
    parts = []
    for name in VARIABLES:
        index, codes = header.index(name), CODES.get(name, {})
        try:
            measured = [
                (float(row[hours]), codes.get(row[index], row[index]))
                for row in rows
                if row[index] != ""
            ]
            pairs = np.array(measured, dtype=np.float64).reshape(-1, 2)
        except (ValueError, IndexError) as error:
            raise DataError(
                f"The cells of '{name}' in '{path}' must be numbers or known texts. "
                f"Got this: {error}."
            ) from None
        parts.append(statistics(pairs[:, 0], pairs[:, 1]))
    return np.concatenate(parts)


INFO = DatasetInfo(
    lambda folder, options: load(folder),
    "in-hospital mortality from the first 48 hours in intensive care",
    "MIMIC-III v1.4 (PhysioNet, credentialed access), by the public benchmark of "
    "H. Harutyunyan et al., 2019; must not be passed on.",
    "local folder",
    *(17917, N_KEPT, 2),
    paper=True,
)
