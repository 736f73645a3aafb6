"""The few terms that every room shares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


PartyId = str


Task = Literal["binary", "multiclass", "regression"]


Stage = Literal[
    "pretrain",
    "embed",
    "select_components",
    "select_features",
    "joint_lasso",
    "settle",
    "select_again",
    "train",
    "evaluate",
]


def stream_seed(seed: int, *names: str | int) -> int:
    """Derive the seed of one named random stream from the run's seed.

    Streams are independent of each other and of their number: adding a party or a stage
    moves no other stream.

    >>> stream_seed(0, "init", "party0") == stream_seed(0, "init", "party1")
    False
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


@dataclass(frozen=True)
class Event:
    """The end of an epoch; `fusion` is given where all networks fit each other."""

    stage: Stage
    epoch: float
    n_epochs: float
    fusion: Callable[[Tensor], Tensor] | None = None


Observer = Callable[[Event], None]
