"""The paper's target: when accuracy and removal of noise first held together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

ACCURACY_SHARE = 0.9  # of the best VFL (Original), Table 2 of the paper
REMOVED_SHARE = 0.8  # of the planted features
COSTS = ("paper_mib", "payload_bytes", "rounds")


def first_hit(
    scores: ArrayLike, removed: ArrayLike, threshold: float, strict: bool
) -> int:
    """Return the first point at the target, -1 where there is none.

    The target: a score and 80 % of planted features removed, together; `strict` where
    equality does not do (the released code).

    >>> first_hit([0.9, 0.95], [0.0, 0.8], 0.9, strict=False)
    1
    >>> first_hit([0.9, 0.95], [0.0, 0.8], 0.9, strict=True)
    -1
    """
    above = np.greater if strict else np.greater_equal
    hits = np.flatnonzero(above(scores, threshold) & above(removed, REMOVED_SHARE))
    return int(hits[0]) if len(hits) else -1


def cost_to_target(
    curve: Sequence[Mapping[str, Any]], threshold: float, strict: bool
) -> dict[str, Any]:
    """Return the cost when accuracy and 80 % of spurious removed first held together.

    >>> point = {"accuracy": 0.9, "removed_share": 0.8, "paper_mib": 1.5,
    ...          "payload_bytes": 10, "rounds": 3}
    >>> cost_to_target([point], 0.9, strict=False)["paper_mib"]
    1.5
    >>> cost_to_target([point], 0.9, strict=True)["reached"]
    False
    """
    scores, removed = (
        [point[name] for point in curve] for name in ("accuracy", "removed_share")
    )
    hit = first_hit(scores, removed, threshold, strict)
    cost = dict.fromkeys(COSTS) if hit < 0 else {k: curve[hit][k] for k in COSTS}
    return {"accuracy": threshold, "reached": hit >= 0, **cost}
