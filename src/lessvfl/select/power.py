"""What a selection pass can see, and what it cannot rule out: told by its shadows.

What a useless column says is, squared and in units of chance, a chi-square; of a column
whose correlation with what the labels ask for is r it is a non-central one, n r² off
the centre. The mark is a place on that scale. So the share of runs in which a column of
some correlation would pass is known, and so is the largest correlation that a column
may have which said as little as it did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from lessvfl.select import moments

DOUBT = 0.05  # how often a column has more than is said that it has at most
HALVINGS = 30
FARTHEST = 400.0  # off the centre: what lies beyond would have been seen
TERMS = 400  # of the mixture, for what is at most that far off
PLACES = 512  # that are computed of any number of values


@dataclass(frozen=True)
class Sight:
    """How much a selection pass sees.

    >>> correlation = correlation_of(auc=0.55, share=0.05)
    >>> sight = Sight(n_rows=4000, dimension=1.0, mark=6.6)
    >>> round(correlation, 3), round(sight.finds(correlation), 2)
    (0.039, 0.45)
    """

    n_rows: float  # that are independent, in effect
    dimension: float  # of what the labels ask for, in effect
    mark: float  # of a column of numbers, as a chi-square with `dimension` degrees

    def finds(self, correlation: float) -> float:
        """Return the share of runs in which a column of that correlation passes."""
        off = min(self.n_rows * correlation**2, FARTHEST)
        values = torch.tensor([[self.mark], [self.dimension], [off]]).double()
        return float(beyond(*values))

    def at_most(self, statistics: Tensor, degrees: Tensor) -> Tensor:
        """Return the largest correlation that each group may well have, (n_groups,).

        `statistics` are what each says as a chi-square of its `degrees`. A group that
        has more says as little in a share `DOUBT` of the runs. One that says less than
        half of all chance does counts as that: less is no evidence of anything.
        """
        statistics = torch.maximum(statistics, moments.chance(degrees, 0.5))
        off = torch.empty_like(statistics)
        for degree in torch.unique(degrees):
            alike = degrees == degree
            off[alike] = _largest_off(statistics[alike], degree)
        return (off / self.n_rows).sqrt().clamp_max(1.0)


def _largest_off(statistics: Tensor, degree: Tensor) -> Tensor:
    """Return the largest likely non-centrality of each chi-square of one degree, (n,).

    With more of it the statistic would be as small in less than a share `DOUBT` of
    cases. Of many only `PLACES` are computed and the others read off between them,
    where the square roots of both are all but a straight line.
    """
    places = statistics
    if len(statistics) > PLACES:
        ends = statistics.aminmax()
        last = min(float(ends.max), float(degree) + 2 * FARTHEST)
        roots = torch.linspace(float(ends.min) ** 0.5, last**0.5, PLACES)
        places = roots.to(statistics).square()
    tails = _tails(places, degree.expand_as(places))
    low, high = torch.zeros_like(places), torch.full_like(places, FARTHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        far = (_weights(middle) * tails).sum(dim=1) >= 1 - DOUBT
        low, high = torch.where(far, low, middle), torch.where(far, middle, high)
    if places is statistics:
        return high
    x, xp, fp = (values.sqrt().cpu().numpy() for values in (statistics, places, high))
    between = np.interp(x, xp, fp)
    roots = torch.as_tensor(between).to(statistics)
    return roots.square()


def correlation_of(auc: float, share: float) -> float:
    """Return the correlation of a normal column with two classes, given its AUC.

    `share` is that of one of the classes. The column is d standard deviations higher in
    one class than in the other, and AUC is the chance that it is higher there.
    """
    d = math.sqrt(2) * NormalDist().inv_cdf(auc)
    spread = share * (1 - share)
    return d * math.sqrt(spread / (1 + d**2 * spread))


def beyond(value: Tensor, degrees: Tensor, off: Tensor) -> Tensor:
    """Return how likely non-central chi-squares exceed values, all (n,) and double.

    A chi-square of non-centrality `off` is a mixture of central ones, whose degrees
    are 2 j more with the probability of j in Poisson's law of mean off / 2.

    >>> one, four = torch.ones(1).double(), torch.tensor([3.8415]).double()
    >>> round(float(beyond(four, one, 0 * one)), 4)
    0.05
    """
    chances: Tensor = (_weights(off) * _tails(value, degrees)).sum(dim=1)
    return chances


def _weights(off: Tensor) -> Tensor:
    """Return the probabilities of the terms of the mixture, Poisson's, (n, TERMS)."""
    j = torch.arange(TERMS, device=off.device).double()
    half = (off / 2).unsqueeze(1)
    log = half.clamp_min(torch.finfo(half.dtype).tiny).log()  # at zero all is in term 0
    weights: Tensor = torch.exp(j * log - half - torch.lgamma(j + 1))
    return weights


def _tails(value: Tensor, degrees: Tensor) -> Tensor:
    """Return how likely each term of the mixture exceeds values (n,), (n, TERMS)."""
    j = torch.arange(TERMS, device=value.device).double()
    halves = (value / 2).unsqueeze(1).expand(-1, TERMS)
    tails: Tensor = torch.special.gammaincc((degrees / 2).unsqueeze(1) + j, halves)
    return tails
