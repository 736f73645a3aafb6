"""Changes of rows that flip a prediction: when one has, and the steps to it."""

from __future__ import annotations

import torch
from torch import Tensor

from lessvfl.core.features import FeatureMap
from lessvfl.core.network import Network
from lessvfl.core.prox import GroupLasso
from lessvfl.terms import Task


def margins(z: Tensor, start: Tensor, task: Task) -> Tensor:
    """Return how far each row is from a flipped prediction, (n,); 0 or less: flipped.

    `z` is what the fusion network says of changed rows, `start` of the unchanged ones,
    (n, 1) or (n, C). A class flips where another one has as large a logit; an amount
    where it moved by the standard deviation of these rows' `start`, towards their mean.
    """
    if task == "multiclass":
        before = start.argmax(dim=1, keepdim=True)
        others = z.scatter(1, before, -torch.inf).amax(dim=1)
        return z.gather(1, before).squeeze(1) - others
    z, start = z.squeeze(1), start.squeeze(1)
    if task == "binary":
        return torch.where(start > 0, z, -z)
    std, mean = torch.std_mean(start, correction=0)
    return std - torch.where(start < mean, z - start, start - z)


class Changes:
    """A party's changes of rows X (n, columns), at first none, that flip predictions.

    They minimise what is missing to a flip plus a price on every row's group norms, by
    proximal steps; groups are those of `features`. The price is a share of the least
    one at which a row would not change, the largest norm of a group's gradient; a step
    moves no group further than the step size.
    """

    def __init__(self, X: Tensor, features: FeatureMap, net: Network) -> None:
        self._X, self._passes = X, net.passes(inputs=True)
        groups, n_groups = features.column_groups, features.n_groups
        each_alone = torch.arange(X.shape[1], device=groups.device)
        self._membership = None
        if not torch.equal(groups, each_alone):
            one_hot = torch.nn.functional.one_hot(groups, n_groups)
            self._membership = one_hot.to(X.dtype)
        self.delta = torch.zeros_like(X)
        self._slope = torch.zeros_like(X)  # of what is missing to a flip
        self._largest = X.new_zeros(len(X))  # of a group, by rows

    def embed(self) -> Tensor:
        """Return the embeddings of the changed rows, (n, E)."""
        return self._passes.forward(self._X + self.delta)

    def slope(self, gradient: Tensor) -> Tensor:
        """Take dL/dh (n, E); return each row's largest norm of a group's slope (n,)."""
        self._slope = self._passes.back(gradient)[-1]
        self._largest = self._norms(self._slope).amax(dim=1)
        return self._largest

    def step(self, largest: Tensor, step_size: float, share: float) -> None:
        """Take a step; `largest` (n,) is of all parties, 0 where a row is over."""
        if bool(((largest > 0) & (largest < self._largest)).any()):
            raise ValueError("a largest slope below its own")
        moves = (largest > 0).unsqueeze(1)
        slope = self._slope / torch.where(moves, largest.unsqueeze(1), 1.0)
        moved = self.delta - step_size * slope
        price = GroupLasso(moved.new_full((len(moved),), share), self._membership)
        price.prox(moved.unsqueeze(1), step_size)
        self.delta = torch.where(moves, moved, self.delta)

    def rates(self, flipped: Tensor) -> Tensor:
        """Return the mean change of every group in rows that flipped, (n_groups,)."""
        n = flipped.sum().clamp_min(1)
        return (self._norms(self.delta) * flipped.unsqueeze(1)).sum(dim=0) / n

    def _norms(self, values: Tensor) -> Tensor:
        """Return the norm of every row's groups, (n, n_groups)."""
        each_row = GroupLasso(values.new_zeros(len(values)), self._membership)
        return each_row.norms(values.unsqueeze(1))
