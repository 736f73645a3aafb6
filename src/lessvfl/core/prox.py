"""Penalties: the group lasso of the paper, its value, proximal step and optimality.

Input weights are ``w  # (R, out, in, ...)``: replicas first, the input axis third, as
in a Linear (R, out, in) or a Conv (R, out, in, kernel...) layer. A group is everything
that leaves one input, or several inputs declared one feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def per_replica(values: Tensor, like: Tensor) -> Tensor:
    """View one value a replica, (R,), so that it broadcasts against (R, ...)."""
    return values.view(-1, *([1] * (like.dim() - 1)))


@dataclass(frozen=True)
class GroupLasso:
    """The L2,1 penalty lam * G(w), G(w) = sum_j weights_j ||w^j||_2 (below Eq. 2).

    Parameters
    ----------
    lam : Tensor (R,) or (1,)
        Weight of the penalty, of every replica or of all.
    membership : Tensor (in, n_groups) or None
        1 where an input belongs to a group; None: every input is its own group.
    weights : Tensor (n_groups,) or (R, n_groups), or None
        Weights of the groups; None: all 1, as in the paper.

    Examples
    --------
    >>> w = torch.tensor([[[3.0, 0.3], [4.0, 0.4]]])  # norms 5 and 0.5
    >>> penalty = GroupLasso(torch.tensor([1.0]))
    >>> penalty.value(w)
    tensor([5.5000])
    >>> penalty.prox(w.clone(), torch.tensor([1.0]))
    tensor([[[2.4000, 0.0000],
             [3.2000, 0.0000]]])
    """

    lam: Tensor
    membership: Tensor | None = None
    weights: Tensor | None = None

    def norms(self, w: Tensor) -> Tensor:
        """Return the Euclidean norm of every group, (R, n_groups)."""
        if w.dim() == 3 and self.membership is None:
            norms: Tensor = torch.linalg.vector_norm(w, dim=1)
            return norms
        others = [axis for axis in range(1, w.dim()) if axis != 2]
        squares = w.square().sum(dim=others)
        if self.membership is not None:
            squares = squares @ self.membership
        return squares.sqrt()

    def value(self, w: Tensor) -> Tensor:
        """Return lam * G(w) of every replica, (R,)."""
        norms = self.norms(w)
        if self.weights is not None:
            norms = norms * self.weights
        return self.lam * norms.sum(dim=1)

    def prox(self, w: Tensor, step_size: Tensor) -> Tensor:
        """Replace `w`, in place, by its proximal point.

        argmin_v  1/2 ||v - w||^2 + step_size * lam * G(v), group by group:
        (1 - step_size * lam * weights_j / ||w^j||) w^j where the norm exceeds the
        threshold, exact zero elsewhere.

        Parameters
        ----------
        w : Tensor (R, out, in, ...)
            Input weights after the gradient step.
        step_size : Tensor (R,) or (1,)
            The step size of that same gradient step.
        """
        norms = self.norms(w)
        tiny = torch.finfo(w.dtype).tiny
        scale = torch.relu(1 - self._thresholds(step_size) / norms.clamp_min(tiny))
        return w.mul_(self._per_input(scale, w))

    def residual(self, w: Tensor, gradient: Tensor) -> Tensor:
        """Return how far every group is from optimal, (R, n_groups); 0: it is.

        `gradient` is that of the smooth part at `w`. The condition: the gradient of a
        group plus lam weights_j w^j / ||w^j|| is zero where the group is not, and the
        gradient's norm is at most lam weights_j where it is.
        """
        norms, bound = self.norms(w), self._thresholds(torch.ones_like(self.lam))
        slope = torch.where(norms > 0, bound / norms, 0.0)
        along = w * self._per_input(slope, w)
        kept = self.norms(gradient + along)
        return torch.where(norms > 0, kept, torch.relu(self.norms(gradient) - bound))

    def _thresholds(self, step_size: Tensor) -> Tensor:
        """Return step_size * lam * weights, (R, n_groups) or (R, 1)."""
        threshold = (self.lam * step_size).unsqueeze(1)
        return threshold if self.weights is None else threshold * self.weights

    def _per_input(self, values: Tensor, w: Tensor) -> Tensor:
        """View values of groups (R, n_groups) so that they multiply `w`."""
        if self.membership is not None:
            values = values @ self.membership.T
        return values.view(values.shape[0], 1, -1, *([1] * (w.dim() - 3)))
