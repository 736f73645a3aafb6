"""Scores of a fitted model on rows that its run did not see.

What a run measures on its own test rows is measured here by the same functions, so that
the same rows have the same scores; calibration and errors in the labels' own unit come
besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from lessvfl.run.decide.scored import ScoredRows, rows_of_model
from lessvfl.run.fitted import FittedModel

N_BINS = 10


def score_rows(
    model: FittedModel,
    frame: Frame,
    labels: Sequence[Any],
    *,
    name: str = "table",
    label_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Score a model on a table and its labels.

    Parameters
    ----------
    model : FittedModel
        As :func:`lessvfl.load` returns it.
    frame : Frame
        Rows with at least the columns in use.
    labels : sequence
        One for each row: numbers, or what names a class of the model.
    name : str
        What the table is called in errors.
    label_names : sequence of str, optional
        Names of the classes 0, 1, ... where the labels are such numbers.

    Returns
    -------
    dict
        ``task``, every score of the task (None where these rows have none), in
        ``undefined`` by score why it is None, the ``baseline``, which is the scores of
        one prediction for all rows (their most frequent class, or their mean), and the
        cells that were ``imputed`` or of an ``unseen`` category.
    """
    rows = rows_of_model(model, frame, labels, name, label_names)
    return scores_of(rows) | count_cells(model, frame)


def count_cells(model: FittedModel, frame: Frame) -> dict[str, int]:
    """Count the cells of a table that were filled in, or of an unseen category."""
    cells = CellCounts()
    for party in model.parties:
        cells += party.encoding.apply(frame)[1]
    return {"imputed": cells.imputed, "unseen": cells.unseen}


def scores_of(rows: ScoredRows) -> dict[str, Any]:
    """Return the scores of rows, their baseline, and why some are undefined."""
    of_numbers = rows.task == "regression"
    scores = _score_numbers(rows) if of_numbers else _score_classes(rows)
    why = undefined(rows.y, rows.task, "rows")
    y, n_classes = torch.as_tensor(rows.y), len(rows.label_names)
    same = _single(constant(y, y, rows.task, n_classes, rows.positive))
    found: dict[str, Any] = {"task": rows.task}
    for score, value in scores.items():
        found[score] = defined(value)
        if found[score] is None:
            why.setdefault(score, "the predictions are too far from the labels")
    level = {score: defined(value) for score, value in same.items()}
    return found | {"baseline": level, "undefined": why}


def intervals_of(
    rows: ScoredRows, scores: Mapping[str, float | None]
) -> dict[str, dict[str, float] | None]:
    """Return by score where it may be by the choice of rows, as runs have it."""
    z, offsets = torch.as_tensor(rows.z), None
    if rows.task != "regression":
        offsets = torch.tensor(decision_offsets(rows.threshold, z.shape[1]))
    y = torch.as_tensor(rows.y)
    own = ResampledRows(y, rows.task, rows.positive, offsets)
    return score_intervals(own, [z], [scores], lead="")[0]


# ------------------------------------------------------------------------------- scores


def _score_numbers(rows: ScoredRows) -> dict[str, float]:
    y, predicted = rows.y, rows.z[:, 0]
    z = torch.as_tensor(predicted)[:, None]
    scores = measure(z, torch.as_tensor(y), rows.task)
    with np.errstate(over="ignore", invalid="ignore"):
        errors = spread_of(np.abs(y - predicted))
    return _single(scores) | {"mae": float(errors.mean)}


def _score_classes(rows: ScoredRows) -> dict[str, float]:
    from sklearn.metrics import mean_squared_error

    z, p, y = rows.z, rows.p, rows.y
    offsets = torch.tensor(decision_offsets(rows.threshold, z.shape[1]))
    outputs, labels = torch.as_tensor(z), torch.as_tensor(y)
    scores = measure(outputs, labels, rows.task, offsets, positive=rows.positive)
    n_classes = p.shape[1]
    # Σ_k (p_k - y_k)² of a row; of two classes one of the two equal summands.
    n_counted = n_classes if n_classes > 2 else 1
    squares = float(mean_squared_error(np.eye(n_classes)[y], p))
    return _single(scores) | {
        "calibration_error": calibration_error(p, y),
        "brier": n_counted * squares,
    }


def _single(scores: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return scores as plain numbers."""
    return {name: float(value) for name, value in scores.items()}


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
