"""How many features to keep, by rows held out: one limit on scores for all parties."""

from __future__ import annotations

import torch
from torch import Tensor

from lessvfl.core.plans import sample_rows

N_LIMITS = 12  # the largest score, and half of the limit before
HELD_OUT, MOST_HELD_OUT = 0.2, 1000  # share of the rows, and the most, that decide
ROUNDING = 1e-6


def split_rows(n_rows: int, seeds: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the rows that decide how many features stay, and the others, (R, n)."""
    order = sample_rows(n_rows, n_rows, seeds)
    n = min(MOST_HELD_OUT, round(HELD_OUT * n_rows))
    return order[:, :n], order[:, n:]


def above(scores: Tensor, largest: float, place: int) -> Tensor:
    """Return which features (G,) reach a limit, by its place from the largest on."""
    return scores >= largest * 0.5**place * (1 - ROUNDING)


def best(scores: Tensor, keep: int) -> Tensor:
    """Return which features (G,) have the `keep` largest scores."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen[scores.topk(min(keep, len(scores))).indices] = True
    return chosen


def choose_limit(losses: Tensor) -> Tensor:
    """Return the place of the largest limit within a standard error of the best.

    `losses` (R, n, limits) of rows held out; returns (R, 1), int32.
    """
    n_rows = losses.shape[1]
    best_one = losses.mean(dim=1).argmin(dim=1).view(-1, 1, 1)
    gap = losses - losses.gather(2, best_one.expand(-1, n_rows, -1))
    error = gap.std(dim=1) / n_rows**0.5
    near = gap.mean(dim=1) <= error
    place: Tensor = near.int().argmax(dim=1, keepdim=True)
    return place.int()
