"""How many features to keep, by what scrambled labels say of the same features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LEAST_SPREAD = 1e-12
MOST_PASS = 0.03  # share of the scores of copies that may pass, as in less-vfl-auto


def keep_beyond_chance(
    scores: Tensor,
    scramble: Callable[[], Tensor],
    n_copies: int,
    false_share: float,
) -> tuple[Tensor, float]:
    """Return which features score beyond chance, (G,), and the false share of these.

    `scores` (G,) are of the features; `scramble` returns the scores (G,) of a copy in
    which rows and classes have nothing to do with each other, and is called `n_copies`
    times. A score counts in standard deviations of the feature's own copies, a copy's
    in those of the other copies. The limit is the least that few scores of copies pass,
    and at which the features expected to pass by chance are at most `false_share` of
    those that do.
    """
    copies = torch.stack([scramble() for _ in range(n_copies)])  # (copies, G)
    mean, spread = copies.mean(dim=0), copies.std(dim=0)
    height = (scores - mean) / spread.clamp_min(LEAST_SPREAD)
    # Of every copy how far it is from the others, in their standard deviations.
    others = (copies.sum(dim=0) - copies) / (n_copies - 1)
    squares = copies.square().sum(dim=0) - copies.square()
    variance = (squares - (n_copies - 1) * others.square()) / (n_copies - 2)
    distance = (copies - others) / variance.clamp_min(LEAST_SPREAD**2).sqrt()
    chance = distance.flatten().sort().values
    order = height.argsort(descending=True)
    limits = height[order]
    above = len(chance) - torch.searchsorted(chance, limits)  # copies at least as high
    n_false = (above + 1) / n_copies  # of all features, in one copy
    n_kept = torch.arange(1, len(scores) + 1, device=scores.device)
    few = n_false <= MOST_PASS * len(scores) + 1 / n_copies
    passes = (few & (n_false / n_kept <= false_share)).nonzero().flatten()
    kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    if not len(passes):
        return kept, 0.0
    last = int(passes[-1])
    kept[order[: last + 1]] = True
    return kept, float(n_false[last] / (last + 1))
