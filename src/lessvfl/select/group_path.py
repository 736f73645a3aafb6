"""The group lasso along a path of lambdas, in time linear in rows and columns.

At every lambda a *working set* of groups takes part: those that had a part before, and
those that the strong rule (Tibshirani et al., 2012) cannot rule out. Their moments are
a small matrix, on which accelerated proximal steps go on until the duality gap is
negligible. One product of all columns with what is left of the responses then shows
whether anybody was left out wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from lessvfl.select.moments import Moments

GAP = 1e-6  # as a share of the responses' variance, at which a lambda is solved
MOST_STEPS = 2000
LOOK_EVERY = 10  # steps
SLACK = 1e-3  # of lambda, that a group left out may have too much
NORM_STEPS = 20  # of power iteration
MARGIN = 1.1  # on the spectral norm, which power iteration approaches from below

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def group_path(
    moments: Moments, lams: Tensor, weights: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Solve min 1/2n ||Z - XB||^2 + lam sum_j weights_j ||B_j|| along lambdas.

    `lams` (L,) fall. Yields, for every lambda, the coefficients (columns, E) and the
    slopes X'(Z - XB) / n.
    """
    working = _WorkingSet(moments, weights)
    slopes, before = moments.C, lams[0]
    for lam in lams:
        missing = moments.norms(slopes) >= (2 * lam - before) * weights
        while True:
            working.take_in(missing)
            working.solve(float(lam))
            B, slopes = working.coefficients()
            missing = moments.norms(slopes) > lam * weights * (1 + SLACK)
            if not bool((missing & ~working.inside).any()):
                break
        before = lam
        yield B, slopes


class _WorkingSet:
    """Groups that take part, the moments of their columns, and their coefficients.

    The small matrices are on the host in double precision, wherever the columns are.
    """

    def __init__(self, moments: Moments, weights: Tensor) -> None:
        self.moments = moments
        self.inside = torch.zeros_like(weights, dtype=torch.bool)  # groups
        self._group_weights = weights
        self._columns = moments.group.new_zeros(0)
        self._X = moments.X[:, :0]
        n_responses = moments.C.shape[1]
        self._G: Array = np.zeros((0, 0))
        self._C: Array = np.zeros((0, n_responses))
        self._B: Array = np.zeros((0, n_responses))
        self._variance = float(moments.Z.double().square().sum() / moments.n_rows)
        self._owner = np.zeros(0, dtype=np.int64)  # places of the columns' groups
        self._weights: Array = np.zeros(0)

    def take_in(self, groups: Tensor) -> None:
        """Let these groups, a mask, take part from now on."""
        moments = self.moments
        new = (groups & ~self.inside)[moments.group].nonzero()[:, 0]
        if len(new) == 0:
            return
        added = moments.X[:, new]
        across = _host(moments.gram(self._columns, new))
        within = _host(moments.gram(new))
        self._G = np.block([[self._G, across], [across.T, within]])
        self._C = np.concatenate([self._C, _host(moments.C[new])])
        self._B = np.concatenate([self._B, np.zeros((len(new), self._C.shape[1]))])
        self._columns = torch.cat([self._columns, new])
        self._X = torch.cat([self._X, added], dim=1)
        self.inside = self.inside | groups
        owners = moments.group[self._columns].cpu().numpy()
        numbers, self._owner = np.unique(owners, return_inverse=True)
        self._weights = _host(self._group_weights)[numbers]

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return coefficients and slopes of all columns, (columns, E) each."""
        moments = self.moments
        own = torch.as_tensor(self._B).to(moments.C)
        B = torch.zeros_like(moments.C)
        B[self._columns] = own
        if not self._B.any():
            return B, moments.C
        return B, moments.C - moments.X.T @ (self._X @ own) / moments.n_rows

    def solve(self, lam: float) -> None:
        """Go on to the solution for one lambda, on no more groups than it takes."""
        limits, B = lam * self._weights, self._B
        part = (self._norms(B) > 0) | (self._norms(self._C - self._G @ B) >= limits)
        while part.any():
            some = part[self._owner].nonzero()[0]
            owner = (np.cumsum(part) - 1)[self._owner[some]]
            B[some] = _Lasso(
                self._G[np.ix_(some, some)], self._C[some], owner, limits[part]
            ).solve(B[some], self._variance)
            slopes = self._C - self._G[:, some] @ B[some]
            wrong = (self._norms(slopes) > limits * (1 + SLACK)) & ~part
            if not wrong.any():
                break
            part |= wrong

    def _norms(self, columns: Array) -> Array:
        return _norms(columns, self._owner, len(self._weights))


class _Lasso:
    """One group lasso by its moments, with the limits lam * weights of its groups."""

    def __init__(self, G: Array, C: Array, owner: Indices, limits: Array) -> None:
        self.G, self.C = G, C
        self.owner = owner  # the group of every column
        self.limits = limits

    def solve(self, B: Array, variance: float) -> Array:
        """Return the coefficients, starting from some: FISTA with restarts.

        `variance` is that of the responses; the duality gap ends as a share of it.
        """
        G, C = self.G, self.C
        rate = 1 / _spectral_norm(G)
        V, t = B, 1.0
        for step in range(1, MOST_STEPS + 1):
            new = V - rate * (G @ V - C)
            norms = np.maximum(self._norms(new), 1e-300)
            new *= np.maximum(0.0, 1 - rate * self.limits / norms)[self.owner, None]
            moved = new - B
            if np.vdot(V - new, moved) > 0:  # the momentum leads away: start anew
                V, t = new, 1.0
            else:
                t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
                V, t = new + ((t - 1) / t_new) * moved, t_new
            B = new
            if step % LOOK_EVERY == 0 and self._gap(B, variance) <= GAP * variance:
                break
        return B

    def _gap(self, B: Array, variance: float) -> float:
        """Return the duality gap.

        The residual, shrunk until no slope is above its limit, is a dual point. Slopes
        of groups without a limit must be about zero by themselves.
        """
        slopes = self.C - self.G @ B
        norms, limits = self._norms(slopes), self.limits
        if (norms[limits == 0] > SLACK * limits.max(initial=norms.max())).any():
            return math.inf
        told = float(np.vdot(self.C, B))  # tr(Z'XB) / n
        left = variance - told - float(np.vdot(slopes, B))  # |Z - XB|^2 / n
        over = (limits > 0) & (norms > limits)
        shrink = float((limits[over] / norms[over]).min(initial=1.0))
        primal = left / 2 + float((limits * self._norms(B)).sum())
        return primal - shrink * (variance - told) + shrink**2 * left / 2

    def _norms(self, columns: Array) -> Array:
        return _norms(columns, self.owner, len(self.limits))


def _norms(columns: Array, owner: Indices, n_groups: int) -> Array:
    """Return the norms of the groups of (columns, E)."""
    squares = np.einsum("je,je->j", columns, columns)
    return np.sqrt(np.bincount(owner, squares, minlength=n_groups))


def _spectral_norm(G: Array) -> float:
    """Return a little more than the spectral norm, by power iteration."""
    direction, norm = np.random.default_rng(0).normal(size=len(G)), 0.0
    for _ in range(NORM_STEPS):
        turned = G @ direction
        norm = float(np.linalg.norm(turned))
        if norm == 0:  # constant columns alone
            return 1.0
        direction = turned / norm
    return norm * MARGIN


def _host(values: Tensor) -> Array:
    return values.double().cpu().numpy()
