"""Scores of rows, how well they are ranked, and how far probabilities can be trusted.

What a run measures on its own test rows is measured here by the same functions, so that
the same rows have the same scores; what a run does not measure comes besides. Of two
classes the ranking is that of the positive one; of many, of each against all others,
and the mean over classes.
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
from lessvfl.run.decide.fitting import outcome
from lessvfl.run.decide.recalibration import Reals, sigmoid
from lessvfl.run.decide.scored import ScoredRows
from lessvfl.run.fitted import FittedModel

N_BINS = 10  # of probabilities, for their error
MOST_POINTS = 200  # of a curve
N_PARTS = 10  # of rows in the order of what is predicted
FEW = 100  # rows of a group from which on its numbers say something
COMPARED = ("rate", "recall", "false_positive_rate", "auc")


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


# ------------------------------------------------------------------------------ ranking


def ranking(rows: ScoredRows) -> dict[str, Any]:
    """Return KS, Gini, curves, lift and calibration of rows, those the task has."""
    if rows.task == "regression":
        return {"calibration": calibration(rows.z[:, 0], rows.y)}
    if rows.task == "multiclass":
        return _of_classes(rows)
    has_both = 0 < rows.hits.sum() < len(rows)
    area, ks = ranked(rows.odds, rows.hits)
    return {
        "positive": rows.label_names[rows.positive],
        "ks": ks,
        "gini": None if area is None else 2 * area - 1,
        "curves": curves(rows.odds, rows.hits) if has_both else None,
        "lift": lift(rows.odds, rows.hits) if has_both else None,
        "calibration": calibration(rows.p[:, rows.positive], rows.hits),
    }


def _of_classes(rows: ScoredRows) -> dict[str, Any]:
    """Return the scores of each class against the others, means, and calibration."""
    each: list[dict[str, Any]] = []
    for place, name in enumerate(rows.label_names):
        hits = rows.y == place
        area, ks = ranked(rows.p[:, place], hits)
        gini = None if area is None else 2 * area - 1
        line = {"class": name, "rows": int(hits.sum())}
        each.append(line | {"auc": area, "ks": ks, "gini": gini})
    means: dict[str, Any] = {}
    for name in ("ks", "gini"):
        known = [one[name] for one in each if one[name] is not None]
        means[name] = float(np.mean(known)) if known else None
    largest = rows.p.max(axis=1)
    right = rows.p.argmax(axis=1) == rows.y
    return {**means, "classes": each, "calibration": calibration(largest, right)}


def ranked(
    scores: Reals, hits: NDArray[np.bool_]
) -> tuple[float, float] | tuple[None, None]:
    """Return the area under the ROC curve, and by how much its rates differ at most.

    None of rows that are all hits, or none of them.
    """
    from sklearn.metrics import roc_auc_score, roc_curve

    if hits.all() or not hits.any():
        return None, None
    fpr, tpr, _ = roc_curve(hits, scores)
    return float(roc_auc_score(hits, scores)), float((tpr - fpr).max())


def curves(odds: Reals, hits: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the ROC and the precision-recall curve, in a number of points."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    fpr, tpr, cuts = roc_curve(hits, odds)
    precision, recall, _ = precision_recall_curve(hits, odds, drop_intermediate=True)
    some, others = _spread(len(fpr)), _spread(len(recall))
    at = sigmoid(np.minimum(cuts, np.finfo(float).max))
    return {
        "roc": {
            "fpr": fpr[some].tolist(),
            "tpr": tpr[some].tolist(),
            "cut_off": at[some].tolist(),
        },
        "precision_recall": {
            "recall": recall[others][::-1].tolist(),
            "precision": precision[others][::-1].tolist(),
        },
    }


def _spread(n: int) -> NDArray[np.int64]:
    """Return places spaced evenly among `n`, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(int))


def lift(odds: Reals, hits: NDArray[np.bool_]) -> list[dict[str, float]]:
    """Return by tenths of the rows, the most likely first, how many hits they have.

    Rows that tie count as their mean, so that the order of a file does not matter.
    """
    _, place, n_tied = np.unique(-odds, return_inverse=True, return_counts=True)
    means = np.bincount(place, hits) / n_tied
    n_hits = np.cumsum(means[np.sort(place)])
    base = hits.mean()
    lines = []
    for tenth in range(1, N_PARTS + 1):
        n = max(1, round(tenth * len(hits) / N_PARTS))
        precision = float(n_hits[n - 1]) / n
        lines.append(
            {
                "share": tenth / N_PARTS,
                "rows": n,
                "precision": precision,
                "captured": float(n_hits[n - 1] / hits.sum()),
                "lift": precision / float(base),
            }
        )
    return lines


def calibration(predicted: Reals, observed: NDArray[Any]) -> list[dict[str, float]]:
    """Return by tenths of the rows, in the order of what is predicted, both means."""
    order = np.argsort(predicted, kind="stable")
    parts = np.array_split(order, min(N_PARTS, len(order)))
    return [
        {
            "rows": len(part),
            "predicted": float(predicted[part].mean()),
            "observed": float(observed[part].mean()),
        }
        for part in parts
    ]


# ------------------------------------------------------------------------------- groups


def by_group(
    rows: ScoredRows, decided: NDArray[np.int64], column: str
) -> dict[str, Any]:
    """Return the scores of every group, and how far those with many rows differ."""
    assert rows.groups is not None
    lines = []
    for name in sorted(set(rows.groups)):
        places = np.flatnonzero(rows.groups == name)
        line: dict[str, Any] = {"group": name, "rows": len(places)}
        lines.append(line | _group_numbers(rows.take(places), decided[places]))
    few = [line["group"] for line in lines if line["rows"] < FEW]
    scores: dict[str, Any] = {"column": column, "groups": lines, "few": few}
    if rows.task == "binary":
        many = [line for line in lines if line["rows"] >= FEW]
        scores["gaps"] = {name: _gap(many, name) for name in COMPARED}
        rates = [line["rate"] for line in many]
        has_ratio = len(rates) > 1 and max(rates) > 0
        scores["rate_ratio"] = min(rates) / max(rates) if has_ratio else None
    return scores


def _group_numbers(rows: ScoredRows, decided: NDArray[np.int64]) -> dict[str, Any]:
    """Return the scores of the rows of one group; `decided` (N,) are their classes."""
    y = rows.y
    if rows.task == "regression":
        error = rows.z[:, 0] - y
        return {
            "mean_label": float(y.mean()),
            "mean_prediction": float(rows.z[:, 0].mean()),
            "mae": float(np.abs(error).mean()),
        }
    if rows.task == "multiclass":
        area = scores_of(rows)["auc"]
        return {"accuracy": float((decided == y).mean()), "auc": area}
    return {
        "positives": int(rows.hits.sum()),
        "share": float(rows.hits.mean()),
        "mean_probability": float(rows.p[:, rows.positive].mean()),
        "auc": ranked(rows.odds, rows.hits)[0],
        **outcome(rows.hits, decided == rows.positive),
    }


def _gap(lines: list[dict[str, Any]], name: str) -> float | None:
    """Return how far the largest of groups is from the smallest."""
    known = [line[name] for line in lines if line[name] is not None]
    return max(known) - min(known) if len(known) > 1 else None
