"""How good predictions and selections are, measured where the tensors lie."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessvfl.terms import MEASURES, Task

DECIDED = ("accuracy", "balanced_accuracy")  # of classes that are decided on
SMALLEST = math.ulp(0.0)  # number above zero
WORST = -1e100  # R²: predictions as far as that from labels that hardly differ


def measure(
    z: Tensor,
    y: Tensor,
    task: Task,
    offsets: Tensor | None = None,
    names: Collection[str] | None = None,
    positive: int = 1,
) -> dict[str, Tensor]:
    """Return the scores of predictions by measure name, each a tensor without an axis.

    `z` (n, 1) or (n, C) is what the fusion network gives, `y` (n,) the labels;
    `offsets` (1,) or (C,) are added to it where a class is decided on. A regression has
    R²; classes have (balanced) accuracy, and `auc` and `average_precision` unless
    `names` leave them out. Of two classes the average precision is that of the
    `positive` one.
    """
    if task == "regression":
        return {"r2": r2(z.squeeze(1), y)}
    n_classes, classes = max(2, z.shape[1]), y.long()
    decided = z if offsets is None else z + offsets
    right = is_right(decided.unsqueeze(1), classes).squeeze(1)
    hits = torch.bincount(classes[right], minlength=n_classes).unsqueeze(1)
    sizes = torch.bincount(classes, minlength=n_classes)
    measures = {
        "accuracy": accuracy(hits, sizes).squeeze(0),
        "balanced_accuracy": balanced_accuracy(hits, sizes).squeeze(0),
    }
    ranked = set(MEASURES[task]).intersection(
        MEASURES[task] if names is None else names
    )
    if "auc" in ranked:
        measures["auc"] = _area(z, y)
    if "average_precision" in ranked:
        scores = z.squeeze(1) if positive else -z.squeeze(1)
        measures["average_precision"] = average_precision(scores, y == positive)
    return measures


def predicted_shares(z: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Return the share of rows that each class is predicted for, (..., C)."""
    decided = z if offsets is None else z + offsets
    n_rows, n_outputs = z.shape[-2:]
    if n_outputs == 1:
        second = (decided.squeeze(-1) > 0).double().mean(dim=-1)
        return torch.stack([1 - second, second], dim=-1)
    classes = decided.argmax(dim=-1)
    return class_sizes(classes, n_outputs).double() / max(1, n_rows)


def constant(
    y_train: Tensor, y: Tensor, task: Task, n_classes: int, positive: int = 1
) -> dict[str, Tensor]:
    """Return the scores on labels `y` of predicting the same for every row.

    That is the most frequent class of `y_train`, or its mean. All rows tie, so that the
    area is one half and the average precision the share of `positive`.
    """
    if task == "regression":
        z = y_train.double().mean().expand(len(y), 1)
    else:
        best = torch.bincount(y_train.long(), minlength=n_classes).argmax()
        chosen = torch.nn.functional.one_hot(best, n_classes).double()
        row = chosen if task == "multiclass" else chosen[1:] - 0.5
        z = row.expand(len(y), -1)
    return measure(z, y, task, positive=positive)


def decision_offsets(threshold: Sequence[float] | None, n_outputs: int) -> list[float]:
    """Return what is added to the fusion network's output to decide on a class.

    Of one logit the sign decides then, of many the largest: argmax p_k / threshold_k.

    >>> decision_offsets(None, 1)
    [0.0]
    >>> [round(offset, 3) for offset in decision_offsets((0.9, 0.1), 1)]
    [2.197]
    """
    if threshold is None:
        return [0.0] * n_outputs
    offsets = [-math.log(share) for share in threshold]
    return offsets if n_outputs > 1 else [offsets[1] - offsets[0]]


def is_right(z: Tensor, y: Tensor) -> Tensor:
    """Tell which rows are predicted right, (..., n, G), for G settings at once.

    `z` (..., n, G, 1) or (..., n, G, C) is what fusion networks give, `y` (..., n) are
    classes.
    """
    if z.shape[-1] == 1:
        return (z.squeeze(-1) > 0) == y.unsqueeze(-1).bool()
    return z.argmax(dim=-1) == y.unsqueeze(-1)


def class_hits(right: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """Count the rows of every class predicted right, (..., C, G)."""
    members = torch.nn.functional.one_hot(y, n_classes).float()  # (..., n, C)
    return members.mT @ right.float()  # whole numbers


def class_sizes(y: Tensor, n_classes: int) -> Tensor:
    """Count the rows of every class, (..., C)."""
    return torch.nn.functional.one_hot(y, n_classes).sum(dim=-2)


def accuracy(hits: Tensor, sizes: Tensor) -> Tensor:
    """Return the share of rows predicted right, (..., G)."""
    return hits.double().sum(dim=-2) / sizes.sum(dim=-1, keepdim=True)


def balanced_accuracy(hits: Tensor, sizes: Tensor) -> Tensor:
    """Return the mean of every class's share predicted right, (..., G).

    Classes without a row are left out.
    """
    sizes = sizes.unsqueeze(-1)
    shares = hits.double() / sizes.clamp_min(1)
    return shares.sum(dim=-2) / (sizes > 0).sum(dim=-2)


def auc(scores: Tensor, y: Tensor) -> Tensor:
    """Return the area under the ROC curve; NaN where one class has no row.

    It is the share of (positive, negative) pairs whose scores (n,) are in the right
    order, ties counting half; labels `y` (n,) are 0 or 1.
    """
    ordered, hits = _sorted(scores), _sorted(scores[y.bool()])
    below = torch.searchsorted(ordered, hits)
    not_above = torch.searchsorted(ordered, hits, right=True)
    ranks = (below + not_above + 1).double() / 2  # from 1, ties share their mean
    n_hits = len(hits)
    wins = ranks.sum() - n_hits * (n_hits + 1) / 2
    return wins / (n_hits * (len(scores) - n_hits))


def _area(z: Tensor, y: Tensor) -> Tensor:
    """Return the area under the ROC curve; of many classes the mean of each one's.

    `z` (n, 1) or (n, C) are logits, `y` (n,) classes. A class's area is that of its
    probability against all others; classes that no row or every row has are left out.
    """
    if z.shape[1] == 1:
        return auc(z.squeeze(1), y)
    by_class = z.double().softmax(dim=1).unbind(dim=1)
    return torch.stack([auc(p, y == k) for k, p in enumerate(by_class)]).nanmean()


def average_precision(scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean over positive rows of the precision at their score.

    `scores` are (n,), `y` (n,) 0 or 1. Precision is the share of positives among the
    rows that score as much or more; NaN where all rows are of one class.
    """
    is_hit = y.bool()
    of_all, hits = _sorted(scores), _sorted(scores[is_hit])
    n_all = len(of_all) - torch.searchsorted(of_all, hits)
    n_hits = len(hits) - torch.searchsorted(hits, hits)
    mean = (n_hits.double() / n_all).mean()
    return torch.where(is_hit.all(), torch.nan, mean)


def _sorted(scores: Tensor) -> Tensor:
    """Return scores in order; torch would remember eight bytes of places for each."""
    if scores.device.type != "cpu":
        return scores.sort().values
    return torch.from_numpy(np.sort(scores.numpy(force=True)))


def r2(predicted: Tensor, y: Tensor) -> Tensor:
    """Return R² of predictions (n,) for labels (n,); NaN where all labels are equal."""
    predicted, y = predicted.double(), y.double()
    largest = torch.maximum(predicted.abs().amax(), y.abs().amax())
    mantissa, _ = torch.frexp(largest.clamp_min(SMALLEST))
    # A power of two, which changes no digit: squares of 1e200 are none.
    power = largest.clamp_min(SMALLEST) / (2 * mantissa)
    predicted, y = predicted / power, y / power
    residual = (y - predicted).square().sum()
    total = (y - y.mean()).square().sum()
    score = (1 - residual / total).clamp_min(WORST)
    return torch.where((y == y[0]).all(), torch.nan, score)


def defined(value: float) -> float | None:
    """Return a score, None where it is NaN.

    >>> defined(0.5), defined(float("nan"))
    (0.5, None)
    """
    return value if math.isfinite(value) else None


def chance_error(name: str, y: np.ndarray[Any, Any], level: float) -> float:
    """Return the standard error of a score of guesses about labels `y`.

    `level` is the score that guesses have on average. Of many classes each is guessed
    as often, and the area's error is that of the smallest class.
    """
    n = len(y)
    if name == "r2":
        return 2 / n  # of a slope that is zero, R² is 1 / n on average
    counts = np.unique(y, return_counts=True)[1]
    if name == "auc":
        rare = int(counts.min())
        return math.sqrt((n + 1) / (12 * rare * max(1, n - rare)))
    if name == "balanced_accuracy":
        shares = level * (1 - level) / counts
        return math.sqrt(float(shares.sum())) / len(counts)
    if name == "average_precision":
        n = int(counts.min())  # positives: their precision is a share of hits
    return math.sqrt(max(level * (1 - level), 1 / n) / n)


def undefined(y: np.ndarray[Any, Any], task: Task, rows: str) -> dict[str, str]:
    """Return why measures of a task do not exist for labels `y` of these `rows`.

    >>> undefined(np.array([0, 0]), "multiclass", "test rows")
    {'auc': 'the test rows are all of one class'}
    """
    if len(y) == 0:
        return dict.fromkeys(MEASURES[task], f"there are no {rows}")
    if (y != y[0]).any():
        return {}
    if task == "regression":
        return {"r2": f"the labels of the {rows} are all equal"}
    ranked = [name for name in MEASURES[task] if name not in DECIDED]
    return dict.fromkeys(ranked, f"the {rows} are all of one class")


def support_f1(kept: Sequence[bool], significant: Sequence[bool]) -> float:
    """Return the F1 score of the features kept against those that truly matter.

    >>> support_f1([True, True, False], [True, False, False])
    0.6666666666666666
    """
    both = sum(k and s for k, s in zip(kept, significant, strict=True))
    total = sum(kept) + sum(significant)
    return 2 * both / total if total else 1.0
