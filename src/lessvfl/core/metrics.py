"""How good predictions and selections are; one number a replica.

Written with tensors so that a batch of replicas on a GPU is measured where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lessvfl.terms import Task

MEASURES: dict[Task, tuple[str, ...]] = {
    "binary": ("accuracy", "balanced_accuracy", "auc"),
    "multiclass": ("accuracy", "balanced_accuracy"),
    "regression": ("r2",),
}


def measure(z: Tensor, y: Tensor, task: Task) -> dict[str, Tensor]:
    """Return every measure of a task, (R,) each.

    Parameters
    ----------
    z : Tensor (R, n, 1) or (R, n, C)
        What the fusion network gives.
    y : Tensor (S, n)
        Labels, S = 1 or R.
    """
    y = y.expand(z.shape[0], -1)
    if task == "regression":
        return {"r2": r2(z.squeeze(2), y)}
    if task == "binary":
        scores = z.squeeze(2)
        classes, predicted = y.long(), (scores > 0).long()
        found = {"auc": auc(scores, classes)}
        n_classes = 2
    else:
        classes, predicted = y, z.argmax(dim=2)
        found = {}
        n_classes = z.shape[2]
    return {
        "accuracy": accuracy(predicted, classes),
        "balanced_accuracy": balanced_accuracy(predicted, classes, n_classes),
    } | found


def accuracy(predicted: Tensor, y: Tensor) -> Tensor:
    """Return the share of rows predicted right, (R,)."""
    return (predicted == y).double().mean(dim=1)


def balanced_accuracy(predicted: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """Return the mean of every class's share predicted right, (R,).

    Classes without a row are left out.
    """
    right = (predicted == y).double()
    members = torch.nn.functional.one_hot(y, n_classes).double()  # (R, n, C)
    sizes = members.sum(dim=1)
    recall = (members * right.unsqueeze(2)).sum(dim=1) / sizes.clamp_min(1)
    return recall.sum(dim=1) / (sizes > 0).sum(dim=1)


def auc(scores: Tensor, y: Tensor) -> Tensor:
    """Return the area under the ROC curve, (R,); NaN where one class has no row.

    The share of (positive, negative) pairs in the right order, ties counting half.
    """
    scores = scores.contiguous()
    ordered = scores.sort(dim=1).values
    below = torch.searchsorted(ordered, scores)
    not_above = torch.searchsorted(ordered, scores, right=True)
    rank = (below + not_above + 1).double() / 2  # from 1, ties share their mean
    n_positive = y.sum(dim=1).double()
    wins = (rank * y).sum(dim=1) - n_positive * (n_positive + 1) / 2
    return wins / (n_positive * (y.shape[1] - n_positive))


def r2(predicted: Tensor, y: Tensor) -> Tensor:
    """Return the coefficient of determination, (R,); NaN for a single row.

    Where all `y` are equal it is 1 for a perfect prediction and 0 for any other.
    """
    predicted, y = predicted.double(), y.double()
    if y.shape[1] < 2:
        return torch.full_like(y[:, 0], torch.nan)
    residual = (y - predicted).square().sum(dim=1)
    total = (y - y.mean(dim=1, keepdim=True)).square().sum(dim=1)
    flat = (y == y[:, :1]).all(dim=1)
    return torch.where(flat, (residual == 0).double(), 1 - residual / total)


def support_f1(kept: Sequence[bool], significant: Sequence[bool]) -> float:
    """Return the F1 score of a support against the truth.

    >>> support_f1([True, True, False], [True, False, False])
    0.6666666666666666
    """
    both = sum(k and s for k, s in zip(kept, significant, strict=True))
    total = sum(kept) + sum(significant)
    return 2 * both / total if total else 1.0
