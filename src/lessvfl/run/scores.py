"""Scores of a fitted model on rows that its run did not see.

What a run measures on its own test rows is measured here by the same functions, so that
the same rows have the same scores; calibration and errors in the labels' own unit come
besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.core.bootstrap import ResampledRows, score_intervals
from lessvfl.core.metrics import (
    constant,
    decision_offsets,
    defined,
    measure,
    undefined,
)
from lessvfl.data import Frame
from lessvfl.data.encode import CellCounts
from lessvfl.data.learn import spread_of
from lessvfl.run.decide.scored import ScoredRows
from lessvfl.run.fitted import FittedModel

N_BINS = 10


def count_cells(model: FittedModel, frame: Frame) -> dict[str, int]:
    """Count the cells of a table that were filled in, or of an unseen category."""
    cells = CellCounts()
    for party in model.parties:
        cells += party.encoding.apply(frame)[1]
    return {"imputed": cells.imputed, "unseen": cells.unseen}


def scores_of(rows: ScoredRows) -> dict[str, Any]:
    """Return the scores of rows as an entry of the JSON.

    Returns
    -------
    dict
        ``task``, every score of the task (None where these rows have none), in
        ``undefined`` by score why it is None, and the ``baseline``, which is the scores
        of one prediction for all rows (their most frequent class, or their mean).
    """
    y, n_classes = torch.as_tensor(rows.y), len(rows.label_names)
    z = torch.as_tensor(rows.z)
    same = constant(y, y, rows.task, n_classes, rows.positive)
    measured = measure(z, y, rows.task, _offsets(rows), positive=rows.positive)
    scores = {name: float(value) for name, value in measured.items()}
    if rows.task == "regression":
        with np.errstate(over="ignore", invalid="ignore"):
            scores["mae"] = float(spread_of(np.abs(rows.y - rows.z[:, 0])).mean)
    else:
        scores["calibration_error"] = calibration_error(rows.p, rows.y)
        scores["brier"] = _brier(rows.p, rows.y)
    values = {name: defined(value) for name, value in scores.items()}
    why = undefined(rows.y, rows.task, "rows")
    for name, value in values.items():
        if value is None:
            why.setdefault(name, "the predictions are too far from the labels")
    level = {name: defined(float(value)) for name, value in same.items()}
    return {"task": rows.task, **values, "baseline": level, "undefined": why}


def intervals_of(
    rows: ScoredRows, scores: Mapping[str, float | None]
) -> dict[str, dict[str, float] | None]:
    """Return by score where it may be by the choice of rows, as runs have it."""
    y, offsets = torch.as_tensor(rows.y), _offsets(rows)
    resampled = ResampledRows(y, rows.task, rows.positive, offsets)
    return score_intervals(resampled, [torch.as_tensor(rows.z)], [scores], lead="")[0]


def _offsets(rows: ScoredRows) -> torch.Tensor | None:
    """Return what is added to outputs to decide on a class; None for amounts."""
    if rows.task == "regression":
        return None
    return torch.tensor(decision_offsets(rows.threshold, rows.z.shape[1]))


def _brier(p: NDArray[Any], y: NDArray[np.int64]) -> float:
    """Return the mean of Σ_k (p_k - y_k)², of two classes one of the two summands."""
    from sklearn.metrics import mean_squared_error

    n_classes = p.shape[1]
    squares = float(mean_squared_error(np.eye(n_classes)[y], p))
    return (n_classes if n_classes > 2 else 1) * squares


def calibration_error(p: NDArray[Any], y: NDArray[np.int64]) -> float:
    """Return the expected calibration error, in ten bins of equal width.

    Rows are sorted into bins by their largest probability; of every bin counts how far
    its mean is from the share of rows whose class it was, weighted by its rows.

    >>> p = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])
    >>> round(calibration_error(p, np.array([0, 1, 1])), 3)
    0.333
    """
    largest, is_right = p.max(axis=1), p.argmax(axis=1) == y
    bins = np.minimum((largest * N_BINS).astype(np.int64), N_BINS - 1)
    gaps = np.bincount(bins, largest - is_right, N_BINS)
    return float(np.abs(gaps).sum() / len(y))
