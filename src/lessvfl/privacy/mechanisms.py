"""What mechanisms of privacy are called, and what an accountant must know of them.

A mechanism is a frozen value that states what it assumes: between which tables it makes
no difference (`adjacency`), and what of a run that covers (`covers`). That on labels is
here, those on gradients and embeddings are in ``privacy/noise.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

GradientDefenceName = Literal["none", "marvell", "max-norm", "gaussian"]
GRADIENT_DEFENCES: tuple[GradientDefenceName, ...] = get_args(GradientDefenceName)

# What may be set against what messages tell, and whether it has a price.
DEFENCES: dict[str, str] = {
    "label_epsilon": "randomised labels; the price is this epsilon",
    "gradient_defence=gaussian": "noise on gradients; priced",
    "gradient_defence=marvell": "noise on gradients of two classes; has no epsilon",
    "gradient_defence=max-norm": "gradients stretched at random; has no epsilon",
    "embedding_epsilon, embedding_noise": "noise on embeddings; priced",
}

ReleaseKind = Literal["randomised response", "gaussian"]


@dataclass(frozen=True)
class Releases:
    """Releases about one row, as an accountant composes them.

    `noise` is epsilon of randomised response with `n_classes`, and of Gaussian noise
    its deviation divided by the sensitivity. `times` is how many there are.
    """

    kind: ReleaseKind
    noise: float
    times: int = 1
    n_classes: int = 2


@dataclass(frozen=True)
class RandomisedResponse:
    """Classes that are told as they are, or as another one drawn evenly.

    Drawn once for a row and kept: all that is computed from the labels drawn costs
    nothing more, whoever sees it.
    """

    epsilon: float
    n_classes: int

    adjacency: ClassVar[str] = "the label of one row is another"
    covers: ClassVar[str] = "all that is computed from the labels of training rows"

    @property
    def keeps(self) -> float:
        """Return the probability that a label is told as it is."""
        return 1 / (1 + (self.n_classes - 1) * math.exp(-self.epsilon))

    @property
    def flips(self) -> float:
        """Return the probability of each other class to be told."""
        return (1 - self.keeps) / (self.n_classes - 1)

    def apply(self, y: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return classes, randomised by uniform draws of the same rows.

        >>> import numpy as np
        >>> half = RandomisedResponse(epsilon=0.0, n_classes=2)
        >>> half.apply(np.array([0, 1, 0, 1]), np.array([0.1, 0.1, 0.9, 0.9]))
        array([0, 1, 1, 0])
        """
        others = self.n_classes - 1
        beyond = (u - self.keeps) / (1 - self.keeps) if self.keeps < 1 else -np.ones(1)
        further = 1 + np.floor(np.clip(beyond, 0, 1 - 1e-12) * others).astype(np.int64)
        return np.where(u < self.keeps, y, (y + further) % self.n_classes)

    def releases(self) -> Releases:
        """Return what an accountant must know."""
        return Releases("randomised response", self.epsilon, 1, self.n_classes)
