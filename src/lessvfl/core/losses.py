"""Losses: the risk, and how far an embedding is from the pre-trained one."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from lessvfl.terms import Task


def risk(z: Tensor, y: Tensor, task: Task) -> Tensor:
    """Return R_B of every replica, (R,): the mean over the rows of a batch."""
    return row_losses(z, y, task).mean(dim=1)


def row_losses(z: Tensor, y: Tensor, task: Task) -> Tensor:
    """Return the loss of every row, (R, b).

    Parameters
    ----------
    z : Tensor (R, b, 1) or (R, b, C)
        What the fusion network gives: one logit, C logits, or one value.
    y : Tensor (S, b)
        Labels: 0/1 as floats (binary), class indices (multi-class), or values.
    """
    if task == "multiclass":
        rows = y.expand(z.shape[0], -1)
        losses = F.cross_entropy(z.flatten(0, 1), rows.flatten(), reduction="none")
        return losses.view(z.shape[0], -1)
    z = z.squeeze(2)
    y = y.expand_as(z)
    if task == "binary":
        return F.binary_cross_entropy_with_logits(z, y, reduction="none")
    return (z - y).square()


def proxy_loss(h: Tensor, target: Tensor, divisor: Tensor | int) -> Tensor:
    """Return H_B of every replica, (R,): squared differences, mean over the rows.

    Sum over the components in K_m as in the paper (`divisor` 1), or their mean as in
    the released code (`divisor` |K_m|).
    """
    return (h - target).square().sum(dim=(1, 2)) / (h.shape[1] * divisor)
