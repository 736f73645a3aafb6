"""How well rows are ranked, and how far probabilities can be taken at their word.

Of two classes all is said of the positive one; of many, of each against all others, and
the mean over classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.run.decide.recalibration import Reals, sigmoid
from lessvfl.run.decide.scored import ScoredRows

MOST_POINTS = 200  # of a curve
N_PARTS = 10  # of rows in the order of what is predicted


def ranking(rows: ScoredRows) -> dict[str, Any]:
    """Return KS, Gini, curves, lift and calibration, as far as the task has them."""
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
    """Return what is said of each of many classes, and the means."""
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
