"""How many features to keep, by rows held out: one limit on scores for all parties."""

from __future__ import annotations

import torch
from torch import Tensor

from lessvfl.core.plans import sample_rows

N_LIMITS = 12  # the largest score, and half of the limit before
HELD_OUT, MOST_HELD_OUT = 0.2, 1000  # share of the rows, and the most, that decide
MOST_CLASSES = 32  # that a party's budget is planned for
N_VALUES = HELD_OUT * N_LIMITS * MOST_CLASSES  # about a row, that a party shows for it
ROUNDING = 1e-6
N_FACTORS = 8  # of what features say together: 1, and half of the one before


def split_rows(n_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the row numbers that decide how many features stay, and the others."""
    order = sample_rows(n_rows, n_rows, seed)
    n = min(MOST_HELD_OUT, round(HELD_OUT * n_rows))
    return order[:n], order[n:]


def above(scores: Tensor, largest: float, place: int) -> Tensor:
    """Return which features (G,) reach a limit, by its place from the largest on."""
    return scores >= largest * 0.5**place * (1 - ROUNDING)


def at_limits(scores: Tensor, largest: float) -> Tensor:
    """Return which features reach each of the limits, a mask (N_LIMITS, G)."""
    return torch.stack([above(scores, largest, place) for place in range(N_LIMITS)])


def check_place(place: float) -> int:
    """Return the place of a limit; refuse one that there is none of."""
    if place not in range(N_LIMITS):
        raise ValueError(f"limit {place} of 0 to {N_LIMITS - 1}")
    return int(place)


def best(scores: Tensor, keep: int) -> Tensor:
    """Return which features (G,) have the `keep` largest scores."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen[scores.topk(min(keep, len(scores))).indices] = True
    return chosen


def choose_limit(losses: Tensor) -> Tensor:
    """Return the place of the largest limit within a standard error of the best.

    `losses` (n, limits) of rows held out; returns (1,), int32.
    """
    best_one = losses.mean(dim=0).argmin()
    gap = losses - losses[:, best_one].unsqueeze(1)
    error = gap.std(dim=0) / len(losses) ** 0.5
    near = gap.mean(dim=0) <= error
    place: Tensor = near.int().argmax(dim=0, keepdim=True)
    return place.int()


def class_losses(sums: Tensor, y: Tensor, counted: Tensor, n_classes: int) -> Tensor:
    """Return the loss of each row's class by every limit's features, (n, limits).

    `sums` (n, limits x C) add up ``binning.log_odds`` of a row's bins, `y` (n,) are
    classes, `counted` those of the rows that bins were counted of. Features that depend
    on each other say the same more than once, so that sums are multiplied by the
    factor, the same for all rows, with which they fit best.
    """
    prior = torch.bincount(counted, minlength=n_classes).clamp_min(1).double().log()
    sums = sums.double().view(len(y), N_LIMITS, -1)
    if sums.shape[2] == 1:  # of two classes one against the other
        sums = torch.nn.functional.pad(sums, (1, 0))
    sums = torch.nn.functional.pad(sums, (0, n_classes - sums.shape[2]))
    factors = 0.5 ** torch.arange(N_FACTORS).double().view(-1, 1, 1)
    by_limit = []
    for evidence in sums.unbind(dim=1):
        z = prior + evidence * factors  # (factors, n, C)
        losses = z.logsumexp(dim=2) - z[:, torch.arange(len(y)), y]
        by_limit.append(losses[losses.mean(dim=1).argmin()])
    return torch.stack(by_limit, dim=1)
