"""Losses: the risk, and how far an embedding is from the pre-trained one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lessvfl.terms import Task


def row_losses(
    z: Tensor,
    y: Tensor,
    task: Task,
    weight: Tensor | None = None,
    bend: Tensor | None = None,
) -> Tensor:
    """Return the loss of every row, (R, b) or of whatever shape comes before C.

    `z` (R, b, 1) or (R, b, C) is what the fusion network gives: one logit, C logits, or
    one value; `y` (S, b) are labels: 0/1 as floats, class indices, or values. A row's
    loss is multiplied by its `weight` (S, b). Beyond `bend` (S, 1) the squared error
    goes on as a straight line (Huber).
    """
    losses = _plain_losses(z, y, task, bend)
    return losses if weight is None else losses * weight


def _plain_losses(z: Tensor, y: Tensor, task: Task, bend: Tensor | None) -> Tensor:
    """Return the loss of every row, all of them alike."""
    if task == "multiclass":
        chosen = y.expand(z.shape[:-1]).unsqueeze(-1)
        return -z.log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)
    z = z.squeeze(-1)
    y = y.expand_as(z)
    if task == "binary":
        return F.binary_cross_entropy_with_logits(z, y, reduction="none")
    return (z - y).square() if bend is None else huber(z - y, bend)


def huber(error: Tensor, bend: Tensor) -> Tensor:
    """Return e² up to |e| = bend, and 2 bend |e| - bend² beyond (Huber, 1964).

    As it is: near 0 it is the squared error itself, and its second derivative is at
    most that one's, 2.
    """
    size = error.abs()
    inside = torch.minimum(size, bend)
    return inside * (2 * size - inside)


def dispersion(z: Tensor, y: Tensor, bend: Tensor | None = None) -> Tensor:
    """Return how much larger gradients of a regression are than its curvature, (R,).

    The mean square of a row's dL/dz over the mean of its second derivative. A loss that
    is a log-likelihood has 1, as those of classes do on average; the squared error has
    twice the variance of what is left, which nobody but the server knows.
    """
    error = z.squeeze(-1) - y
    if bend is None:
        return 2 * error.square().mean(dim=1)
    inside = (error.abs() <= bend).to(error).mean(dim=1)
    squares = torch.minimum(error.abs(), bend).square().mean(dim=1)
    return 2 * squares / inside.clamp_min(1 / error.shape[1])


def risk(
    z: Tensor,
    y: Tensor,
    task: Task,
    weight: Tensor | None = None,
    bend: Tensor | None = None,
) -> Tensor:
    """Return R_B of every replica, (R,): the mean over the rows of a batch.

    Row weights have mean 1 over all training rows, so R_B is the same on average.
    """
    return row_losses(z, y, task, weight, bend).mean(dim=1)


def proxy_loss(h: Tensor, target: Tensor, divisor: Tensor | int) -> Tensor:
    """Return H_B of every replica, (R,): squared differences, mean over the rows.

    Sum over the components in K_m as in the paper (`divisor` 1), or their mean as in
    the released code (`divisor` |K_m|).
    """
    return (h - target).square().sum(dim=(-2, -1)) / (h.shape[-2] * divisor)
