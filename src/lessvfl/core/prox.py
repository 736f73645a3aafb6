"""Penalties: the group lasso of the paper, its value and proximal step.

Input weights are ``w  # (out, in, ...)``, as in a Linear (out, in) or a Conv
(out, in, kernel...) layer. A group is everything that leaves one input, or several
inputs declared one feature. Many networks may be stacked: the axes of `lam` are then in
front of everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def leading(values: Tensor, like: Tensor) -> Tensor:
    """View values (...) so that they broadcast against the leading axes of `like`."""
    return values.view(*values.shape, *[1] * (like.dim() - values.dim()))


@dataclass(frozen=True)
class GroupLasso:
    """The L2,1 penalty lam * G(w), G(w) = sum_j weights_j ||w^j||_2 (below Eq. 2).

    Parameters
    ----------
    lam : Tensor (...)
        Weight of the penalty; its axes are those of the stack, none for one network.
    membership : Tensor (in, n_groups) or None
        1 where an input belongs to a group; None: every input is its own group.
    weights : Tensor (..., n_groups) or None
        Weights of the groups; None: all 1, as in the paper.

    Examples
    --------
    >>> w = torch.tensor([[3.0, 0.3], [4.0, 0.4]])  # norms 5 and 0.5
    >>> penalty = GroupLasso(torch.tensor(1.0))
    >>> penalty.value(w)
    tensor(5.5000)
    >>> penalty.prox(w.clone(), 1.0)
    tensor([[2.4000, 0.0000],
            [3.2000, 0.0000]])
    """

    lam: Tensor
    membership: Tensor | None = None
    weights: Tensor | None = None

    def norms(self, w: Tensor) -> Tensor:
        """Return the Euclidean norm of every group, (..., n_groups)."""
        out = self.lam.dim()  # the axis behind those of the stack
        if w.dim() == out + 2 and self.membership is None:
            norms: Tensor = torch.linalg.vector_norm(w, dim=out)
            return norms
        others = [axis for axis in range(out, w.dim()) if axis != out + 1]
        squares = w.square().sum(dim=others)
        if self.membership is not None:
            squares = squares @ self.membership
        return squares.sqrt()

    def value(self, w: Tensor) -> Tensor:
        """Return lam * G(w), (...)."""
        norms = self.norms(w)
        if self.weights is not None:
            norms = norms * self.weights
        return self.lam * norms.sum(dim=-1)

    def prox(self, w: Tensor, step_size: float | Tensor) -> Tensor:
        """Replace `w`, in place, by its proximal point.

        argmin_v  1/2 ||v - w||^2 + step_size * lam * G(v), group by group:
        (1 - step_size * lam * weights_j / ||w^j||) w^j where the norm exceeds the
        threshold, exact zero elsewhere.

        Parameters
        ----------
        w : Tensor (..., out, in, ...)
            Input weights after the gradient step.
        step_size : float or Tensor (...)
            The step size of that same gradient step.
        """
        threshold = (self.lam * step_size).unsqueeze(-1)  # (..., n_groups) or (..., 1)
        if self.weights is not None:
            threshold = threshold * self.weights
        norms = self.norms(w)
        tiny = torch.finfo(w.dtype).tiny
        scale = torch.relu(1 - threshold / norms.clamp_min(tiny))
        if self.membership is not None:
            scale = scale @ self.membership.T  # of inputs
        kernel = [1] * (w.dim() - self.lam.dim() - 2)
        return w.mul_(scale.view(*scale.shape[:-1], 1, scale.shape[-1], *kernel))
