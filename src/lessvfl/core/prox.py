"""Penalties: the group lasso of the paper, its value and its proximal step.

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
    """The L2,1 penalty lam * G(w), G(w) = sum_j ||w^j||_2 (below Eq. 2).

    Parameters
    ----------
    lam : Tensor (R,) or (1,)
        Weight of the penalty, one a replica.
    membership : Tensor (in, n_groups) or None
        1 where an input belongs to a group; None: every input is its own group.

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
        return self.lam * self.norms(w).sum(dim=1)

    def prox(self, w: Tensor, step_size: Tensor) -> Tensor:
        """Replace `w`, in place, by its proximal point.

        argmin_v  1/2 ||v - w||^2 + step_size * lam * G(v), group by group:
        (1 - step_size * lam / ||w^j||) w^j where the norm exceeds the threshold,
        exact zero elsewhere.

        Parameters
        ----------
        w : Tensor (R, out, in, ...)
            Input weights after the gradient step.
        step_size : Tensor (R,) or (1,)
            The step size of that same gradient step.
        """
        norms = self.norms(w)
        threshold = (self.lam * step_size).unsqueeze(1)
        tiny = torch.finfo(w.dtype).tiny
        scale = torch.relu(1 - threshold / norms.clamp_min(tiny))  # (R, n_groups)
        if self.membership is not None:
            scale = scale @ self.membership.T
        return w.mul_(scale.view(scale.shape[0], 1, -1, *([1] * (w.dim() - 3))))
