"""The small values that every room shares."""

from __future__ import annotations

import hashlib
from typing import Literal

import torch

Tensor = torch.Tensor
PartyId = str
Task = Literal["binary", "multiclass", "regression"]
Stage = Literal[
    "pretrain",
    "embed",
    "select_components",
    "select_features",
    "joint_lasso",
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


def stream(seed: int, *names: str | int) -> torch.Generator:
    """Return the random stream of that name, on the CPU so that devices agree."""
    return torch.Generator().manual_seed(stream_seed(seed, *names))
