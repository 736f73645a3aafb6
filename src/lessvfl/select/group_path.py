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

    B_j are the coefficients of the columns of group j, whose weight is one of `weights`
    (n_groups,); `lams` (L,) fall. Yields for every lambda the coefficients B and the
    slopes X'(Z - XB) / n, (columns, E) each.
    """
    working = _WorkingSet(moments, weights)
    slopes, before = moments.C, lams[0]
    for lam in lams:
        missing = moments.norms(slopes) >= (2 * lam - before) * weights
        while True:
            working.add(missing)
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

    def add(self, groups: Tensor) -> None:
        """Let these groups, a mask (n_groups,), take part from now on."""
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
        some = torch.as_tensor(self._B).to(moments.C)
        B = torch.zeros_like(moments.C)
        B[self._columns] = some
        if not self._B.any():
            return B, moments.C
        return B, moments.C - moments.X.T @ (self._X @ some) / moments.n_rows

    def solve(self, lam: float) -> None:
        """Go on to the solution for one lambda, on no more groups than it takes."""
        limits, B = lam * self._weights, self._B
        part = (self._norms(B) > 0) | (self._norms(self._C - self._G @ B) >= limits)
        while part.any():
            some = part[self._owner].nonzero()[0]
            B[some] = _group_lasso(
                G=self._G[np.ix_(some, some)],
                C=self._C[some],
                B=B[some],
                owner=(np.cumsum(part) - 1)[self._owner[some]],
                limits=limits[part],
                variance=self._variance,
            )
            slopes = self._C - self._G[:, some] @ B[some]
            wrong = (self._norms(slopes) > limits * (1 + SLACK)) & ~part
            if not wrong.any():
                break
            part |= wrong

    def _norms(self, columns: Array) -> Array:
        return _norms(columns, self._owner, len(self._weights))


def _group_lasso(
    *, G: Array, C: Array, B: Array, owner: Indices, limits: Array, variance: float
) -> Array:
    """Return the coefficients (columns, E) of one group lasso: FISTA with restarts.

    It is given by its moments: `G` is X'X / n, `C` (columns, E) X'Z / n, `limits`
    (n_groups,) lambda times the weight of each group, `owner` (columns,) the group of
    each column, and `variance` that of the responses, as a share of which the duality
    gap ends. The search starts at `B`.
    """
    rate, V, t = 1 / _spectral_norm(G), B, 1.0
    for step in range(1, MOST_STEPS + 1):
        new = V - rate * (G @ V - C)
        norms = np.maximum(_norms(new, owner, len(limits)), 1e-300)
        new *= np.maximum(0.0, 1 - rate * limits / norms)[owner, None]
        moved = new - B
        if np.vdot(V - new, moved) > 0:  # the momentum leads away: start anew
            V, t = new, 1.0
        else:
            t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
            V, t = new + ((t - 1) / t_new) * moved, t_new
        B = new
        if step % LOOK_EVERY == 0:
            slopes = C - G @ B
            of_slopes, of_B = (_norms(part, owner, len(limits)) for part in (slopes, B))
            if (
                of_slopes[limits == 0] > SLACK * limits.max(initial=of_slopes.max())
            ).any():
                continue  # slopes of groups without a limit must be about zero
            explained = float(np.vdot(C, B))  # tr(Z'XB) / n
            left = variance - explained - float(np.vdot(slopes, B))  # |Z - XB|^2 / n
            # The residual, shrunk until no slope is above its limit, is a dual point.
            over = (limits > 0) & (of_slopes > limits)
            shrink = float((limits[over] / of_slopes[over]).min(initial=1.0))
            primal = left / 2 + float((limits * of_B).sum())
            gap = primal - shrink * (variance - explained) + shrink**2 * left / 2
            if gap <= GAP * variance:
                break
    return B


def _norms(columns: Array, owner: Indices, n_groups: int) -> Array:
    """Return the norm of each group's entries in (columns, E), (n_groups,)."""
    squares = np.einsum("je,je->j", columns, columns)
    return np.sqrt(np.bincount(owner, squares, minlength=n_groups))


def _spectral_norm(G: Array) -> float:
    """Return a little more than the largest eigenvalue of G, by power iteration."""
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
