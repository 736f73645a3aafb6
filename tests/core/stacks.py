"""Networks side by side, as functions take them that accept leading axes."""

from __future__ import annotations

import torch
from torch import Tensor

from lessvfl.core.network import MLP
from lessvfl.core.prox import GroupLasso


def stacked(*nets: MLP) -> MLP:
    """Return default networks of one shape as a stack, with weights of its own."""
    weights, biases = (
        [
            torch.stack(layer).detach().requires_grad_()
            for layer in zip(*parts, strict=True)
        ]
        for parts in ([net.weights for net in nets], [net.biases for net in nets])
    )
    return MLP(weights, biases, nets[0].activation)


def group_residual(penalty: GroupLasso, w: Tensor, gradient: Tensor) -> Tensor:
    """Return how far every group is from optimal, (..., n_groups); 0: it is.

    `gradient` is that of the smooth part at `w`. The condition: the gradient of a
    group plus lam weights_j w^j / ||w^j|| is zero where the group is not, and the
    gradient's norm is at most lam weights_j where it is.
    """
    norms, bound = penalty.norms(w), penalty.lam.unsqueeze(-1)
    if penalty.weights is not None:
        bound = bound * penalty.weights
    slope = torch.where(norms > 0, bound / norms, 0.0)
    if penalty.membership is not None:
        slope = slope @ penalty.membership.T
    kernel = [1] * (w.dim() - penalty.lam.dim() - 2)
    along = w * slope.view(*slope.shape[:-1], 1, slope.shape[-1], *kernel)
    kept = penalty.norms(gradient + along)
    return torch.where(norms > 0, kept, torch.relu(penalty.norms(gradient) - bound))
