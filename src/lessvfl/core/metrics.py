"""How good predictions and selections are; one number a replica.

Written with tensors so that a batch of replicas on a GPU is measured where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.plans import parts
from lessvfl.terms import Task

MEASURES: dict[Task, tuple[str, ...]] = {
    "binary": ("accuracy", "balanced_accuracy", "auc"),
    "multiclass": ("accuracy", "balanced_accuracy"),
    "regression": ("r2",),
}

SMALLEST = math.ulp(0.0)  # number above zero
WORST = -1e100  # R²: predictions as far as that from labels that hardly differ


def measure(
    z: Tensor, y: Tensor, task: Task, offsets: Tensor | None = None
) -> dict[str, Tensor]:
    """Return every measure of a task, (R,) each.

    `z` (R, n, 1) or (R, n, C) is what the fusion network gives, `y` (S, n) the labels;
    `offsets` (R, 1, 1) or (R, 1, C) are added to it where a class is decided on.
    """
    y = y.expand(z.shape[0], -1)
    if task == "regression":
        return {"r2": r2(z.squeeze(2), y)}
    n_classes = max(2, z.shape[2])
    found_hits, found_sizes = [], []
    for part in parts(z.shape[1]):  # whole numbers: parts add up to the bit
        classes = y[:, part].long()
        decided = z[:, part] if offsets is None else z[:, part] + offsets
        right = is_right(decided.unsqueeze(2), classes)
        found_hits.append(class_hits(right, classes, n_classes).double())
        found_sizes.append(class_sizes(classes, n_classes))
    hits, sizes = torch.stack(found_hits).sum(dim=0), torch.stack(found_sizes).sum(0)
    found = {
        "accuracy": accuracy(hits, sizes).squeeze(1),
        "balanced_accuracy": balanced_accuracy(hits, sizes).squeeze(1),
    }
    return found | {"auc": auc(z.squeeze(2), y)} if task == "binary" else found


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
    """Tell which rows are predicted right, (S, n, G), for G settings at once.

    `z` (S, n, G, 1) or (S, n, G, C) is what fusion networks give, `y` (S, n) classes.
    """
    if z.shape[3] == 1:
        return (z.squeeze(3) > 0) == y.unsqueeze(2).bool()
    return z.argmax(dim=3) == y.unsqueeze(2)


def class_hits(right: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """Count the rows of every class predicted right, (S, C, G)."""
    members = torch.nn.functional.one_hot(y, n_classes).float()  # (S, n, C)
    return members.mT @ right.float()  # whole numbers


def class_sizes(y: Tensor, n_classes: int) -> Tensor:
    """Count the rows of every class, (S, C)."""
    return torch.nn.functional.one_hot(y, n_classes).sum(dim=1)


def accuracy(hits: Tensor, sizes: Tensor) -> Tensor:
    """Return the share of rows predicted right, (S, G)."""
    return hits.double().sum(dim=1) / sizes.sum(dim=1, keepdim=True)


def balanced_accuracy(hits: Tensor, sizes: Tensor) -> Tensor:
    """Return the mean of every class's share predicted right, (S, G).

    Classes without a row are left out.
    """
    sizes = sizes.unsqueeze(2)
    shares = hits.double() / sizes.clamp_min(1)
    return shares.sum(dim=1) / (sizes > 0).sum(dim=1)


def auc(scores: Tensor, y: Tensor) -> Tensor:
    """Return the area under the ROC curve, (R,); NaN where one class has no row.

    The share of (positive, negative) pairs in the right order, ties counting half.
    """
    scores = scores.contiguous()
    ordered = _sorted(scores)
    n_positive = y.sum(dim=1, dtype=torch.double)
    wins = -n_positive * (n_positive + 1) / 2
    for part in parts(y.shape[1]):
        some = scores[:, part].contiguous()
        below = torch.searchsorted(ordered, some)
        not_above = torch.searchsorted(ordered, some, right=True)
        rank = (below + not_above + 1).double() / 2  # from 1, ties share their mean
        wins = wins + (rank * y[:, part]).sum(dim=1)
    return wins / (n_positive * (y.shape[1] - n_positive))


def _sorted(scores: Tensor) -> Tensor:
    """Return scores in order; torch would remember eight bytes of places for each."""
    if scores.device.type != "cpu":
        return scores.sort(dim=1).values
    return torch.from_numpy(np.sort(scores.numpy(force=True), axis=1))


def r2(predicted: Tensor, y: Tensor) -> Tensor:
    """Return the coefficient of determination, (R,); NaN where all `y` are equal."""
    predicted, y = predicted.double(), y.double()
    largest = torch.maximum(predicted.abs().amax(dim=1), y.abs().amax(dim=1))
    mantissa, _ = torch.frexp(largest.clamp_min(SMALLEST))
    # A power of two, which changes no digit: squares of 1e200 are none.
    power = (largest.clamp_min(SMALLEST) / (2 * mantissa)).unsqueeze(1)
    predicted, y = predicted / power, y / power
    residual = (y - predicted).square().sum(dim=1)
    total = (y - y.mean(dim=1, keepdim=True)).square().sum(dim=1)
    flat = (y == y[:, :1]).all(dim=1)
    found = (1 - residual / total).clamp_min(WORST)
    return torch.where(flat, torch.nan, found)


def undefined(y: np.ndarray[Any, Any], task: Task, rows: str) -> dict[str, str]:
    """Return why measures of a task do not exist for labels `y` of these `rows`.

    >>> undefined(np.array([1, 1]), "binary", "test rows")
    {'auc': 'the test rows are all of one class'}
    """
    if len(y) == 0:
        return dict.fromkeys(MEASURES[task], f"there are no {rows}")
    if task == "multiclass" or (y != y[0]).any():
        return {}
    if task == "binary":
        return {"auc": f"the {rows} are all of one class"}
    return {"r2": f"the labels of the {rows} are all equal"}


def support_f1(kept: Sequence[bool], significant: Sequence[bool]) -> float:
    """Return the F1 score of a support against the truth.

    >>> support_f1([True, True, False], [True, False, False])
    0.6666666666666666
    """
    both = sum(k and s for k, s in zip(kept, significant, strict=True))
    total = sum(kept) + sum(significant)
    return 2 * both / total if total else 1.0
