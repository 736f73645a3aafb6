"""What trees are grown to: gradients of a loss, or the labels themselves.

Of boosting, with raw predictions z: half of the squared error, the logistic loss of one
z, or the softmax loss of K of them, a tree each. Of forests: labels as they are (a
regression), or shares of classes; a split then gains what it removes of the variance,
or of Gini's impurity. Row weights, which may come from classes, multiply all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.core.losses import row_losses
from lessvfl.core.trees.sums import RowIds
from lessvfl.terms import Task

RowValues = NDArray[np.float64]
LEAST_SHARE = 1e-12  # of a class: log odds are finite


@dataclass(frozen=True)
class TreeTargets:
    """The labels of all rows, and what they weigh."""

    y: RowValues  # (N,): 0/1, class indices, or values
    task: Task
    weight: RowValues  # (N,)
    n_classes: int = 2

    @classmethod
    def of(
        cls, y: NDArray[np.generic], task: Task, weight: RowValues | None = None
    ) -> TreeTargets:
        """Take labels (N,) and row weights (N,); without weights all rows weigh 1."""
        values = y.astype(np.float64)
        n_classes = int(values.max()) + 1 if task == "multiclass" else 2
        weights = np.ones(len(values)) if weight is None else weight.astype(np.float64)
        return cls(values, task, weights, n_classes)

    @property
    def n_outputs(self) -> int:
        """Return how many raw predictions a row has, K."""
        return self.n_classes if self.task == "multiclass" else 1

    def start(self, rows: RowIds) -> RowValues:
        """Return the best raw prediction for all of some rows, (K,)."""
        labels, weight = self._columns()[:, rows], self.weight[rows]
        shares: RowValues = (labels * weight).sum(axis=1) / weight.sum()
        if self.task == "regression":
            return shares
        shares = np.clip(shares, LEAST_SHARE, 1 - LEAST_SHARE)
        if self.task == "binary":
            shares = shares / (1 - shares)
        logs: RowValues = np.log(shares)
        return logs if self.task == "binary" else logs - logs.mean()

    def gradients(self, z: RowValues) -> tuple[RowValues, RowValues]:
        """Return dL/dz and d²L/dz² at raw predictions z (K, N), (K, N) each."""
        if self.task == "regression":
            return (z - self.y) * self.weight, np.ones_like(z) * self.weight
        if self.task == "binary":
            p = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
        else:
            p = np.exp(z - z.max(axis=0))
            p /= p.sum(axis=0)
        return (p - self._columns()) * self.weight, p * (1 - p) * self.weight

    def raw(self) -> tuple[RowValues, RowValues]:
        """Return the gradients (1, Q, N) and hessians (1, N) of a forest's tree.

        Those of half of the squared error at 0: a leaf's best value is the mean.
        """
        return -self._columns()[None] * self.weight, self.weight[None]

    def loss(self, z: RowValues, rows: RowIds) -> float:
        """Return the weighted mean loss of some rows at raw predictions (K, N)."""
        y = torch.from_numpy(self.y[rows])
        y = y.long() if self.task == "multiclass" else y
        logits = torch.from_numpy(np.ascontiguousarray(z[:, rows].T))
        weight = torch.from_numpy(self.weight[rows])
        losses = row_losses(logits, y, self.task, weight)
        return float(losses.sum() / weight.sum())

    def _columns(self) -> RowValues:
        """Return labels as (K, N): values, 0/1, or 1 for the class of a row."""
        if self.task != "multiclass":
            return self.y[None]
        return np.asarray(self.y == np.arange(self.n_classes)[:, None], dtype=float)
