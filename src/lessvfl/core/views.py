"""Linear views of the same rows that agree on pseudo-labels: the solutions of MMVFL."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lessvfl.core.losses import Labels


def targets(labels: Labels, dtype: torch.dtype) -> Tensor:
    """Return labels (N, C): centred 0/1 by class, or standardised amounts (N, 1)."""
    y = labels.y
    if labels.task == "regression":
        Y = y.unsqueeze(1).to(dtype)
        return (Y - Y.mean(dim=0)) / Y.std(dim=0)
    n_classes = 2 if labels.task == "binary" else int(y.max()) + 1
    Y = torch.nn.functional.one_hot(y.long(), n_classes).to(dtype)
    return Y - Y.mean(dim=0)


def solve_weights(X: Tensor, Z: Tensor, norms: Tensor, beta: float) -> Tensor:
    """Return (X'X + beta A)^-1 X'Z with A = diag(1 / 2 norm), norms (columns,) >= 0.

    By a change of variables that needs no inverse of A, in the smaller dimension.
    """
    scale = (2 * norms).sqrt()
    X = X * scale
    wide = X.shape[1] > X.shape[0]
    square = X @ X.T if wide else X.T @ X
    square.diagonal().add_(beta)
    solved: Tensor = torch.linalg.solve(square, Z if wide else X.T @ Z)
    return scale.unsqueeze(1) * (X.T @ solved if wide else solved)


@dataclass(frozen=True)
class View:
    """A party's columns, and its weights so far."""

    X: Tensor  # (n, columns)
    groups: Tensor  # (columns,), the group of every column
    n_groups: int
    beta: float
    zeta: float
    W: Tensor | None = None  # (columns, C)

    @property
    def norms(self) -> Tensor:
        """Return the norm of the weights of every group; at the start A is I."""
        if self.W is None:
            return self.X.new_full((self.n_groups,), 0.5)
        squares = self.X.new_zeros(self.n_groups)
        return squares.index_add(0, self.groups, self.W.square().sum(dim=1)).sqrt()

    def solved(self, Z: Tensor) -> View:
        """Return the view with its weights solved for, given what all agree on."""
        labels = Z if self.W is None else self.pseudo_labels(Z)
        norms = self.norms[self.groups]
        return replace(self, W=solve_weights(self.X, labels, norms, self.beta))

    def pseudo_labels(self, Z: Tensor) -> Tensor:
        """Return Z_k, between what the columns predict and what all agree on."""
        assert self.W is not None
        return (self.X @ self.W + self.zeta * Z) / (1 + self.zeta)
