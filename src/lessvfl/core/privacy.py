"""Mechanisms: what a side does to labels, gradients or embeddings before they leave.

Those that an accountant knows say what their releases are (``mechanisms.Releases``);
the others change what can be read off a message, and promise nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.network import MLP, Network
from lessvfl.core.plans import stream
from lessvfl.errors import ConfigError
from lessvfl.mechanisms import GradientDefenceName, Releases

TINY = 1e-12  # a norm, or a square of one, that counts as none
GRID = np.linspace(0, 1, 65)  # shares of a power that are tried
USUAL = 0.05  # mean square of a component of a gradient, as a share of the clip's


@dataclass(frozen=True)
class ClippedNoise:
    """Rows of numbers clipped to a norm, with Gaussian noise on every number.

    `noise` is the deviation as a multiple of `clip`. Another row in the place of one
    moves it by twice the clip at most: the sensitivity.
    """

    clip: float
    noise: float

    adjacency: ClassVar[str] = "what one row is computed from is another row's"
    covers: ClassVar[str] = (
        "what a row's own numbers tell of it, whoever knows the networks; not what "
        "networks, trained on it with others, tell by the numbers of other rows"
    )

    @property
    def sensitivity(self) -> float:
        """Return how far a row may move where another is in its place."""
        return 2 * self.clip

    def factors(self, rows: Tensor) -> Tensor:
        """Return by what rows (..., n, width) are multiplied to be clipped."""
        return (self.clip / norms_of(rows)).clamp_max(1.0)

    def clipped(self, rows: Tensor) -> Tensor:
        """Return rows (..., n, width) no longer than the clip.

        Zeros stand for what is not finite, which no noise would hide.
        """
        finite = rows.nan_to_num(0.0, 0.0, 0.0)
        return finite * self.factors(finite)

    def apply(self, rows: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return rows (R, n, width), clipped and with noise, a stream a replica."""
        drawn = [torch.randn(rows.shape[1:], generator=one) for one in generators]
        deviation = self.noise * self.clip
        return self.clipped(rows) + deviation * torch.stack(drawn).to(rows)

    def back(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the gradient by the rows before they were clipped."""
        factors = self.factors(rows)
        along = rows / norms_of(rows)
        radial = (gradient * along).sum(dim=-1, keepdim=True) * along
        return torch.where(factors < 1, factors * (gradient - radial), gradient)

    def releases(self, times: int) -> Releases:
        """Return what an accountant must know of so many releases of a row."""
        deviation = self.noise * self.clip
        return Releases("gaussian", deviation / self.sensitivity, times)


def norms_of(rows: Tensor) -> Tensor:
    """Return the norm of every row, (..., n, 1), none of them zero."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return norms.clamp_min(TINY)


def streams_by(
    values: Tensor, seeds: Sequence[int], *name: str | int
) -> list[torch.Generator]:
    """Return a stream a replica, of a seed, a name, and the values (R, ...) themselves.

    The same values have the same noise, and others noise of their own: no difference of
    two is without.
    """
    found = []
    for seed, own in zip(seeds, values.detach().cpu(), strict=True):
        content = hashlib.sha256(own.contiguous().numpy().tobytes()).hexdigest()
        found.append(stream(seed, *name, content))
    return found


# ------------------------------------------------------------------- what a party sends


@dataclass
class EmbeddingGuard:
    """Noise on all embeddings that leave a party, or on what they are computed from.

    It is drawn by the party's own seed and by what it is added to: the same embeddings
    sent again have the same noise, and others at the same step, after a break, have
    noise of their own.
    """

    mechanism: ClippedNoise
    seeds: tuple[int, ...]  # the party's own
    inside: bool = False  # on the first layer's output, in the place of embeddings

    def release(self, h: Tensor, *name: str | int) -> Tensor:
        """Return numbers of rows (R, n, width) as they may leave."""
        return self.mechanism.apply(h, streams_by(h, self.seeds, "noise", *name))

    def back(self, gradient: Tensor, h: Tensor) -> Tensor:
        """Return the gradient by what was given to :meth:`release`."""
        return self.mechanism.back(gradient, h)

    def around(self, net: Network) -> Network:
        """Return a network as rows pass it whose embeddings leave."""
        if not self.inside:
            return net
        if not isinstance(net, MLP):
            raise ConfigError(
                "The 'noise_at' setting first-layer is of the networks that lessvfl "
                "makes itself. Got a network of your own."
            )
        return net.behind(self)

    def clear(self, h: Tensor, net: Network, X: Tensor) -> Tensor:
        """Return embeddings h of rows X as they would be without the noise."""
        if not self.inside:
            return self.mechanism.clipped(h)
        with torch.no_grad():
            return net(X)


# ------------------------------------------------------------------ what a server sends


@dataclass(frozen=True)
class GradientDefence:
    """What a server does to dL/dh (R, b, E_m) before it sends it to a party.

    ``max-norm`` stretches every row's gradient at random, so that all may be as long as
    the longest; ``marvell`` adds the noise that makes two classes least different for
    its power (both after Li et al., Label leakage and protection in two-party split
    learning, ICLR 2022); ``gaussian`` clips and adds noise. Only the last has a price
    that an accountant knows.
    """

    kind: GradientDefenceName
    noise: float  # marvell: power by that of the difference of classes; gaussian
    clip: float  # gaussian: of a row's gradient times the rows of its batch

    def apply(
        self, gradient: Tensor, y: Tensor, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Return gradients (R, b, width) as they may leave; labels are (S, b)."""
        if self.kind == "gaussian":
            n = gradient.shape[1]
            return self.mechanism.apply(gradient * n, generators) * self.shrinks / n
        change = _stretched if self.kind == "max-norm" else self._least_different
        own = y.expand(len(gradient), -1)
        parts = zip(gradient, own, generators, strict=True)
        return torch.stack([change(*part) for part in parts])

    @property
    def shrinks(self) -> float:
        """Return the factor on gradients with Gaussian noise: Wiener's.

        A party takes the mean square of gradients for the curvature. With noise in it
        every response would be next to its embedding, on useless columns as well. A
        factor known to everybody costs nothing.
        """
        return 1 / (1 + self.noise**2 / USUAL)

    @property
    def mechanism(self) -> ClippedNoise:
        """Return the mechanism whose price is known."""
        assert self.kind == "gaussian"
        return ClippedNoise(self.clip, self.noise)

    def _least_different(
        self, gradient: Tensor, y: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Add Marvell's noise to the gradients (b, width) of two classes."""
        is_one = y.bool()
        if is_one.all() or not is_one.any():
            return gradient
        groups = [gradient[~is_one].double(), gradient[is_one].double()]
        between = groups[1].mean(dim=0) - groups[0].mean(dim=0)
        square = float(between.square().sum())
        if square < TINY**2:
            return gradient
        width = gradient.shape[1]
        spread = [
            float((own - own.mean(dim=0)).square().sum() / (len(own) * width))
            for own in groups
        ]
        share = float(is_one.double().mean())
        power = self.noise * square
        found = marvell_variances(square, spread, share, power, width)
        axis = (between / math.sqrt(square)).to(gradient)
        z = torch.randn(gradient.shape, generator=generator).to(gradient)
        along = (z @ axis).unsqueeze(1) * axis
        variances = torch.tensor(found).to(gradient)[is_one.long()]
        first, rest = variances.sqrt().unsqueeze(2).unbind(dim=1)
        return gradient + first * along + rest * (z - along)


def _stretched(gradient: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    norms = norms_of(gradient)
    factor = ((norms.max() / norms).square() - 1).clamp_min(0).sqrt()
    z = torch.randn(len(gradient), 1, generator=generator).to(gradient)
    stretched: Tensor = gradient * (1 + factor * z)
    return stretched


def marvell_variances(
    square: float, spread: Sequence[float], share: float, power: float, width: int
) -> list[tuple[float, float]]:
    """Return the variance of noise along the difference of two classes, and across.

    It is the noise of the least symmetric KL divergence between the classes (0 and 1,
    of which the second has `share` of the rows) whose means are `square` apart, and
    whose own variances are `spread`, with so much power in the mean over rows. Across,
    noise makes two variances equal at most; what remains goes along, to one class or
    the other. The best of a grid of both.
    """
    u, v = spread
    d, shares = width - 1, (1 - share, share)
    lower = int(v < u)  # the class whose variance is raised across
    price = shares[lower] * d
    most = min(abs(u - v), power / price) if d else 0.0
    across = most * GRID[:, None]  # (n, 1)
    left = power - price * across
    along = (left * (1 - GRID) / shares[0] + u, left * GRID / shares[1] + v)  # (n, n)
    b, f = (u + across, v + 0 * across) if lower == 0 else (u + 0 * across, v + across)
    with np.errstate(divide="ignore", invalid="ignore"):  # without variance: infinite
        between = (along[0] + square) / along[1] + (along[1] + square) / along[0]
        total = between + (d * (b / f + f / b) if d else 0.0)
    total = np.where(np.isnan(total), np.inf, total)
    i, j = np.unravel_index(np.argmin(total), total.shape)
    rest = [0.0, 0.0]
    rest[lower] = float(across[i, 0])
    own = zip(along, spread, rest, strict=True)
    return [(max(0.0, float(a[i, j]) - before), r) for a, before, r in own]
