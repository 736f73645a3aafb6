"""What releases cost together, in closed form."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from lessvfl.errors import ConfigError
from lessvfl.privacy.mechanisms import Releases
from lessvfl.terms import plural

SQRT2 = math.sqrt(2)
MOST_NOISE = 1e6  # a deviation by the sensitivity that nothing is left of a row at


def epsilon_of(releases: Sequence[Releases], delta: float) -> float:
    """Return the epsilon, at `delta`, of all these releases about one row together.

    Gaussian releases compose exactly (`gaussian_epsilon`); epsilons of randomised
    responses are added up, and added to theirs.

    >>> epsilon_of([Releases("randomised response", 3.0)], delta=0.0)
    3.0
    """
    gaussian, pure = spent_by(releases)
    return epsilon_spent(gaussian, pure, delta)


def spent_by(releases: Sequence[Releases]) -> tuple[float, float]:
    """Return the sum of 1 / noise² of Gaussian releases, and the epsilon of others."""
    gaussian = [one for one in releases if one.kind == "gaussian"]
    others = [one for one in releases if one.kind != "gaussian"]
    return (
        sum(one.times / one.noise / one.noise for one in gaussian),
        float(sum(one.times * one.noise for one in others)),
    )


def epsilon_spent(gaussian: float, pure: float, delta: float) -> float:
    """Return epsilon of what :func:`spent_by` says of one row."""
    return pure + gaussian_epsilon(gaussian, delta)


@functools.cache
def gaussian_epsilon(total: float, delta: float) -> float:
    """Return epsilon of Gaussian releases whose 1 / noise² add up to `total`.

    Together they are one release of noise 1 / √total: exact, whatever the order.
    """
    if total in (0, math.inf):
        return total
    mu = math.sqrt(total)
    low, high = 0.0, 1.0
    while _delta(high, mu) > delta:
        low, high = high, 2 * high
    if low == 0 and _delta(low, mu) <= delta:
        return 0.0
    return _bisect(lambda epsilon: _delta(epsilon, mu) > delta, low, high)[1]


@functools.cache
def noise_for(epsilon: float, delta: float, times: int) -> float:
    """Return the deviation, by the sensitivity, of so many Gaussian releases."""
    root = math.sqrt(times)
    high = 1.0
    while high <= MOST_NOISE and _delta(epsilon, root / high) > delta:
        high *= 2
    low = high / 2
    while _delta(epsilon, root / low) <= delta:
        low /= 2
    noise = _bisect(lambda n: _delta(epsilon, root / n) > delta, low, 2 * low)[1]
    if noise > MOST_NOISE:
        raise ConfigError(
            f"An epsilon must leave something of a row. Got {epsilon:g} for "
            f"{plural(times, 'release')}."
        )
    return noise


def _bisect(
    is_below: Callable[[float], bool], low: float, high: float
) -> tuple[float, float]:
    """Return two neighbours between which a condition ceases to hold."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high


def _delta(epsilon: float, mu: float) -> float:
    """Return the delta of a Gaussian release of noise 1 / mu at an epsilon.

    Balle and Wang, ICML 2018, Theorem 8: Φ(-s) - e^ε Φ(-t) with s = ε/mu - mu/2 and
    t = ε/mu + mu/2. As t² = s² + 2ε, the second is erfcx(t / √2) exp(-s² / 2) / 2.
    """
    s, t = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    scaled = float(torch.special.erfcx(torch.tensor(t / SQRT2, dtype=torch.float64)))
    return (math.erfc(s / SQRT2) - scaled * math.exp(-s * s / 2)) / 2
