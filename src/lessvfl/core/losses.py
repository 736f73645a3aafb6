"""Losses: the risk, and how far an embedding is from the pre-trained one."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from lessvfl.terms import Task


def row_losses(z: Tensor, y: Tensor, task: Task) -> Tensor:
    """Return the loss of every row, (R, b) or of whatever shape comes before C.

    `z` (R, b, 1) or (R, b, C) is what the fusion network gives: one logit, C logits, or
    one value; `y` (S, b) are labels: 0/1 as floats, class indices, or values.
    """
    if task == "multiclass":
        chosen = y.expand(z.shape[:-1]).unsqueeze(-1)
        return -z.log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)
    z = z.squeeze(-1)
    y = y.expand_as(z)
    if task == "binary":
        return F.binary_cross_entropy_with_logits(z, y, reduction="none")
    return (z - y).square()


def risk(z: Tensor, y: Tensor, task: Task) -> Tensor:
    """Return R_B of every replica, (R,): the mean over the rows of a batch."""
    return row_losses(z, y, task).mean(dim=1)


def proxy_loss(h: Tensor, target: Tensor, divisor: Tensor | int) -> Tensor:
    """Return H_B of every replica, (R,): squared differences, mean over the rows.

    Sum over the components in K_m as in the paper (`divisor` 1), or their mean as in
    the released code (`divisor` |K_m|).
    """
    return (h - target).square().sum(dim=(-2, -1)) / (h.shape[-2] * divisor)
