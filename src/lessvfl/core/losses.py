"""Labels and losses: the risk, and how far embeddings are from pre-trained ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lessvfl.core.plans import Rows, take
from lessvfl.privacy.noise import GradientDefence
from lessvfl.terms import Task

PERFECT = 1e-12  # a variance of what is left; less is none


def row_losses(
    z: Tensor,
    y: Tensor,
    task: Task,
    weight: Tensor | None = None,
    huber_delta: float | None = None,
    flips: float = 0.0,
) -> Tensor:
    """Return the loss of every row, (..., b).

    `z` (..., b, 1) or (..., b, C) is what the fusion network gives: one logit, C
    logits, or one value; `y` (..., b) are labels: 0/1 as floats, class indices, or
    values. A row's loss is multiplied by its `weight` (b,). Beyond `huber_delta` the
    squared error goes on as a straight line (Huber). Where labels are randomised, each
    other class is drawn with a probability of `flips`, and the loss is that of the
    class that was drawn.
    """
    if task == "multiclass":
        chosen = y.expand(z.shape[:-1]).unsqueeze(-1)
        likely = _drawn(z.log_softmax(dim=-1), flips, z.shape[-1])
        losses = -likely.gather(-1, chosen).squeeze(-1)
    else:
        z = z.squeeze(-1)
        y = y.expand_as(z)
        if task == "binary" and flips:
            losses = -_drawn(F.logsigmoid(torch.where(y > 0, z, -z)), flips, 2)
        elif task == "binary":
            losses = F.binary_cross_entropy_with_logits(z, y, reduction="none")
        elif huber_delta is None:
            losses = (z - y).square()
        else:
            losses = huber(z - y, huber_delta)
    return losses if weight is None else losses * weight


def _drawn(likely: Tensor, flips: float, n_classes: int) -> Tensor:
    """Return the log-probability that classes are drawn, given that they are so."""
    if not flips:
        return likely
    other = torch.full_like(likely, math.log(flips))
    return torch.logaddexp(other, math.log1p(-n_classes * flips) + likely)


def huber(error: Tensor, delta: float) -> Tensor:
    """Return e² up to |e| = δ, and 2 δ |e| - δ² beyond, for errors e (Huber, 1964).

    Near 0 it is the squared error itself; its second derivative is at most 2, as that
    of the squared error.
    """
    size = error.abs()
    inside = size.clamp_max(delta)
    return inside * (2 * size - inside)


def dispersion(z: Tensor, y: Tensor, huber_delta: float | None = None) -> Tensor:
    """Return how much larger gradients of a regression are than its curvature.

    The mean square of a row's dL/dz over the mean of its second derivative. A loss that
    is a log-likelihood has 1, as those of classes do on average; the squared error has
    twice the variance of what is left, which nobody but the server knows.
    """
    error = z.squeeze(-1) - y
    if huber_delta is None:
        return 2 * error.square().mean(dim=-1)
    inside = (error.abs() <= huber_delta).to(error).mean(dim=-1)
    squares = error.abs().clamp_max(huber_delta).square().mean(dim=-1)
    return 2 * squares / inside.clamp_min(1 / error.shape[-1])


def proxy_loss(h: Tensor, target: Tensor, divisor: Tensor | int) -> Tensor:
    """Return H_B, (...): squared differences of h and `target` (..., b, K).

    Mean over rows; sum over the components in K_m as in the paper (`divisor` 1), or
    their mean as in the released code (`divisor` |K_m|).
    """
    return (h - target).square().sum(dim=(-2, -1)) / (h.shape[-2] * divisor)


@dataclass(frozen=True)
class Labels:
    """What the server holds: labels (N,), the task, and the seeds of a run."""

    y: Tensor
    task: Task
    seed: int  # shared with everybody
    weight: Tensor | None = None  # of every row (N,), with mean 1; None: all alike
    huber_delta: float | None = None  # of its loss; None: the squared error
    blocks: Tensor | None = None  # that rows belong to (N,); None: all are alone
    flips: float = 0.0  # probability of each other class, where labels are randomised
    defence: GradientDefence | None = None  # of its gradients; None: they leave as such
    private: int = 0  # seed of its noise, which parties do not know

    def released(self, slope: Tensor, *name: str | int) -> Tensor:
        """Return dL/dz (b, C) as the step may use it: with noise that has a price.

        All that leaves the server, and its own network, are computed from it.
        """
        if self.defence is None or self.defence.kind != "gaussian":
            return slope
        return self.defence.release(slope, self.private, *name)

    def blurred(
        self, gradient: Tensor, widths: Sequence[int], *name: str | int
    ) -> Tensor:
        """Return dL/dh (b, E) with what has no price, each party's part alone."""
        if self.defence is None or self.defence.kind == "gaussian":
            return gradient
        parts = [
            self.defence.blur(part, self.y, self.private, *name, place)
            for place, part in enumerate(torch.split(gradient, list(widths), dim=1))
        ]
        return torch.cat(parts, dim=1)

    def at(self, rows: Rows) -> Labels:
        """Return the labels of some rows, with their weights and blocks."""
        weight, blocks = (
            None if values is None else take(values, rows)
            for values in (self.weight, self.blocks)
        )
        return replace(self, y=take(self.y, rows), weight=weight, blocks=blocks)

    def losses(self, z: Tensor) -> Tensor:
        """Return the loss of every row (..., b), given fusion outputs (..., b, C)."""
        return row_losses(
            z, self.y, self.task, self.weight, self.huber_delta, self.flips
        )

    def risk(self, z: Tensor) -> Tensor:
        """Return R_B, (...): the mean loss of these rows at fusion outputs (..., b, C).

        Row weights have mean 1 over all training rows, so R_B is the same on average.
        """
        return self.losses(z).mean(dim=-1)

    def of_log_likelihood(self, gradient: Tensor, z: Tensor) -> Tensor:
        """Return dL/dh (b, E) at outputs z as that of a log-likelihood.

        Of classes it is that as it is; of a regression it is divided by what is left.
        """
        if self.task != "regression":
            return gradient
        return gradient / dispersion(z, self.y, self.huber_delta).clamp_min(PERFECT)
