"""How a party rates its features in a protocol, for its own eyes: plain values.

Bins are in terms of encoded columns here, and in the units of the party's table where
its encoding is known (``run/ratings.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lessvfl.core.binning import Bins, by_feature, weight_of_evidence
from lessvfl.core.features import FeatureMap

Rating = dict[str, Any]


class BinMeasure(NamedTuple):
    """What features are rated by: what each of their bins adds to it."""

    name: str
    parts: Callable[[Tensor, Tensor, int], Tensor]  # counts, owner of bins, n features
    has_woe: bool = False  # whether bins have their weight of evidence beside them

    def scores(self, counts: Tensor, bins: Bins) -> Tensor:
        """Return the rate of every feature, (G,), by rows of every class in bins."""
        n = len(bins.sizes)
        return by_feature(self.parts(counts, bins.owner, n), bins.owner, n)


def rating(measure: str, scores: Tensor, features: FeatureMap) -> Rating:
    """Return the rates of all features, given those of groups (n_groups,)."""
    each = scores.double()[features.feature_groups]
    return {"measure": measure, "scores": each.tolist()}


def rating_by_bins(
    measure: BinMeasure,
    counts: Tensor,
    bins: Bins,
    features: FeatureMap,
    false_share: float | None,
) -> Rating:
    """Return the rates of all features, and every bin with what it adds to them.

    `counts` (n_bins, C) are the rows of every class, of which features that are removed
    as one have the same.
    """
    n, sizes = len(bins.sizes), bins.sizes.tolist()
    woe, _ = weight_of_evidence(counts, bins.owner, n)
    split = zip(
        torch.split(counts, sizes),
        torch.split(woe[:, 1 if counts.shape[1] == 2 else 0 :], sizes),
        torch.split(measure.parts(counts, bins.owner, n), sizes),
        bins.ranges,
        strict=True,
    )
    tables = []
    for group, (rows, bin_woe, parts, ranges) in enumerate(split):
        columns = (features.column_groups == group).nonzero().flatten().tolist()
        table = {
            "columns": columns,
            "ranges": [_ranges(columns, ends) for ends in ranges.double().tolist()],
            "counts": rows.tolist(),
            "parts": parts.tolist(),
        }
        tables.append(table | ({"woe": bin_woe.tolist()} if measure.has_woe else {}))
    return {
        **rating(measure.name, measure.scores(counts, bins), features),
        "false_share": false_share,
        "bins": [tables[group] for group in features.feature_groups.tolist()],
    }


def _ranges(columns: list[int], ranges: list[list[float]]) -> list[list[Any]]:
    """List the columns of a bin that are not 0 with their ends, None where is none."""
    return [
        [column, *(end if math.isfinite(end) else None for end in ends)]
        for column, ends in zip(columns, ranges, strict=True)
        if ends != [0.0, 0.0]
    ]
