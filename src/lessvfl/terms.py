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
    "train_first",
    "select_again",
    "train",
    "evaluate",
    "predict",
]

# A renamed stage keeps the name of its random streams.
_STREAMS = {"train_first": "settle"}


def stream_seed(seed: int, *names: str | int) -> int:
    """Derive the seed of one named random stream from the run's seed.

    Streams are independent of each other and of their number: adding a party or a stage
    moves no other stream.

    >>> stream_seed(0, "init", "party0") == stream_seed(0, "init", "party1")
    False
    """
    parts = (_STREAMS.get(str(name), str(name)) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256("/".join(parts).encode()).digest()[:7], "big")


def plural(n: float, one: str, many: str | None = None) -> str:
    """Write a count and what is counted; its plural has an s unless `many` is given.

    >>> plural(1, "row"), plural(1200, "row"), plural(2.5, "party", "parties")
    ('1 row', '1,200 rows', '2.5 parties')
    """
    count = f"{n:,.{0 if float(n).is_integer() else 1}f}"
    return f"{count} {one if n == 1 else many or one + 's'}"


def bytes_text(n_bytes: float) -> str:
    """Write a number of bytes in the unit that fits, 1 MB = 1,000,000 bytes.

    >>> bytes_text(512), bytes_text(3_400_000), bytes_text(999_960), bytes_text(5e15)
    ('512 bytes', '3.4 MB', '1.0 MB', '5,000.0 TB')
    """
    if n_bytes < 1000:
        return plural(round(n_bytes), "byte")
    size, units = n_bytes / 1000, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 999.95 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:,.1f} {unit}"


@dataclass(frozen=True)
class Event:
    """The end of an epoch; `fusion` is given where all networks fit each other."""

    stage: Stage
    epoch: float
    n_epochs: float
    fusion: Callable[[Tensor], Tensor] | None = None


Observer = Callable[[Event], None]
