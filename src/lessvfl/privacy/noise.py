"""Mechanisms: what a side does to gradients or embeddings before they leave.

Those that an accountant knows say what their releases are (``mechanisms.Releases``);
the others change what can be read off a message, and promise nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.errors import ConfigError
from lessvfl.privacy.draws import LEAST_NOISE, Draw, block_draws, noisy_rows
from lessvfl.privacy.mechanisms import GradientDefenceName, Releases

TINY = 1e-12  # a norm, or a square of one, that counts as none
GRID = np.linspace(0, 1, 65)  # shares of a power that are tried
USUAL = 0.05  # mean square of a component of a gradient, as a share of the clip's


@dataclass(frozen=True)
class ClippedNoise:
    """Rows of numbers clipped to a norm, with Gaussian noise on every number.

    `noise` is the deviation as a multiple of `clip`. Another row in the place of one
    moves it by twice the clip at most: the sensitivity. ``privacy/draws.py`` has the
    release itself.
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        """Refuse noise that is too small for numbers on its grid."""
        if self.noise < LEAST_NOISE:
            raise ConfigError(
                "Noise on embeddings or gradients must have a deviation of at least "
                f"{LEAST_NOISE:.2g} of the clip, so that float32 holds every "
                f"number exactly. Got {self.noise:g}."
            )

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
        """Return rows (..., n, width), those longer than `clip` scaled down to it.

        Zeros stand for what is not finite, which no noise would hide.
        """
        finite = rows.nan_to_num(0.0, 0.0, 0.0)
        return finite * self.factors(finite)

    def release(self, rows: Tensor, draw: Draw) -> Tensor:
        """Return rows (n, width) clipped and with noise; `draw` gives normals."""
        deviation = self.noise * self.clip
        released = noisy_rows(as_floats(rows), self.clip, deviation, draw)
        return torch.from_numpy(released).to(rows)

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


def as_floats(values: Tensor) -> NDArray[np.float64]:
    """Return values as an array of their own."""
    return values.detach().cpu().numpy().astype(np.float64)


# ------------------------------------------------------------------ what a server sends


@dataclass(frozen=True)
class GradientDefence:
    """What a server does to gradients before they leave.

    ``gaussian`` clips dL/dz (b, C) of every row and adds noise, once a step: what
    any party gets, and the fusion network's own update, come of that. ``max-norm``
    stretches every row of a party's dL/dh (b, E_m) at random, so that all may be as
    long as the longest; ``marvell`` adds the noise that makes two classes least
    different for its power (both after Li et al., Label leakage and protection in
    two-party split learning, ICLR 2022). Only the first has a price that an accountant
    knows.
    """

    kind: GradientDefenceName
    noise: float  # marvell: power by that of the difference of classes; gaussian
    clip: float  # gaussian: of a row's gradient times the rows of its batch

    def release(self, slope: Tensor, seed: int, *name: str | int) -> Tensor:
        """Return dL/dz (b, C) as all may be computed from it: Gaussian noise."""
        n = len(slope)
        draw = block_draws(seed, "gradients", *name)
        return self.mechanism.release(slope * n, draw) * self.shrinks / n

    def blur(self, gradient: Tensor, y: Tensor, seed: int, *name: str | int) -> Tensor:
        """Return a party's dL/dh (b, width), changed; labels are (b,)."""
        content = as_floats(gradient).view(np.int64)  # by which normals are keyed
        z = torch.from_numpy(block_draws(seed, "blur", *name)(content)).to(gradient)
        if self.kind == "max-norm":
            norms = norms_of(gradient)
            factor = ((norms.max() / norms).square() - 1).clamp_min(0).sqrt()
            return gradient * (1 + factor * z[:, :1])
        return self._least_different(gradient, y, z)

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

    def _least_different(self, gradient: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Add Marvell's noise, by normals z, to gradients (b, width) of two classes."""
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
            float((rows - rows.mean(dim=0)).square().sum() / (len(rows) * width))
            for rows in groups
        ]
        share = float(is_one.double().mean())
        power = self.noise * square
        by_class = marvell_variances(square, spread, share, power, width)
        axis = (between / math.sqrt(square)).to(gradient)
        along = (z @ axis).unsqueeze(1) * axis
        variances = torch.tensor(by_class).to(gradient)[is_one.long()]
        first, rest = variances.sqrt().unsqueeze(2).unbind(dim=1)
        return gradient + first * along + rest * (z - along)


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
    by_class = zip(along, spread, rest, strict=True)
    return [(max(0.0, float(a[i, j]) - before), r) for a, before, r in by_class]
