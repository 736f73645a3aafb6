"""Scores of a fitted model on rows that its run did not see.

What a run measures on its own test rows is measured here by the same functions, so that
the same rows have the same scores; calibration and errors in the labels' own unit come
besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.core.metrics import (
    constant,
    decision_offsets,
    defined,
    measure,
    undefined,
)
from lessvfl.data import Frame, label_name
from lessvfl.data.encode import CellCounts
from lessvfl.data.learn import spread_of
from lessvfl.data.row_cells import as_number
from lessvfl.errors import DataError
from lessvfl.run.fitted import FittedModel
from lessvfl.terms import listed

N_BINS = 10
MOST_NAMES = 20


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
    if frame.n_rows == 0:
        raise DataError(f"The table '{name}' must have rows to score. Got none.")
    if model.task == "regression":
        y: NDArray[Any] = _amounts(labels, name)
        scores = _score_numbers(model, frame, y)
    else:
        y = _codes(labels, model.label_names, label_names, name)
        scores = _score_classes(model, frame, y)
    why = undefined(y, model.task, "rows")
    rows = torch.as_tensor(y)
    n_classes = len(model.label_names)
    same = _single(constant(rows, rows, model.task, n_classes, model.positive))
    cells = CellCounts()
    for party in model.parties:
        cells += party.encoding.apply(frame)[1]
    found: dict[str, Any] = {"task": model.task}
    for score, value in scores.items():
        found[score] = defined(value)
        if found[score] is None:
            why.setdefault(score, "the predictions are too far from the labels")
    level = {score: defined(value) for score, value in same.items()}
    counts = {"imputed": cells.imputed, "unseen": cells.unseen}
    return found | {"baseline": level, "undefined": why, **counts}


# ------------------------------------------------------------------------------- labels


def _amounts(labels: Sequence[Any], name: str) -> NDArray[np.float64]:
    """Return labels as the numbers that a regression is scored on."""
    amounts = np.array([as_number(label) for label in labels])
    others = np.flatnonzero(~np.isfinite(amounts))
    if len(others):
        raise DataError(
            f"The labels of '{name}' must be finite numbers, as in training. "
            f"Got {labels[others[0]]!r} in row {others[0] + 1}."
        )
    return amounts


def _codes(
    labels: Sequence[Any],
    known: Sequence[str],
    label_names: Sequence[str] | None,
    name: str,
) -> NDArray[np.int64]:
    """Return the class of every label, by its place among those of the model."""
    code = {text: index for index, text in enumerate(known)}
    words = [label_name(label) for label in labels]
    if label_names is not None and not set(words) <= set(known):
        named = {str(index): text for index, text in enumerate(label_names)}
        words = [named.get(word, word) for word in words]
    if strange := set(words) - set(known):
        shown = listed(known, MOST_NAMES)
        raise DataError(
            f"The labels of '{name}' must be classes of the model: {shown}. "
            f"Got '{min(strange)}'."
        )
    return np.array([code[word] for word in words], dtype=np.int64)


# ------------------------------------------------------------------------------- scores


def _score_numbers(
    model: FittedModel, frame: Frame, y: NDArray[np.float64]
) -> dict[str, float]:
    predicted = model.predict(frame)
    z = torch.as_tensor(predicted)[None, :, None]
    scores = measure(z, torch.as_tensor(y)[None], model.task)
    with np.errstate(over="ignore", invalid="ignore"):
        errors = spread_of(np.abs(y - predicted))
    return _single(scores) | {"mae": float(errors.mean)}


def _score_classes(
    model: FittedModel, frame: Frame, y: NDArray[np.int64]
) -> dict[str, float]:
    from sklearn.metrics import mean_squared_error

    z, p = model.decide(frame), model.predict_proba(frame)
    offsets = torch.tensor(decision_offsets(model.threshold, z.shape[1]))
    rows = torch.as_tensor(z)[None]
    labels = torch.as_tensor(y)[None]
    scores = measure(rows, labels, model.task, offsets, positive=model.positive)
    n_classes = p.shape[1]
    # Σ_k (p_k - y_k)² of a row; of two classes one of the two equal summands.
    n_counted = n_classes if n_classes > 2 else 1
    squares = float(mean_squared_error(np.eye(n_classes)[y], p))
    return _single(scores) | {
        "calibration_error": calibration_error(p, y),
        "brier": n_counted * squares,
    }


def _single(scores: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the scores of the one replica."""
    return {name: float(values[0]) for name, values in scores.items()}


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
