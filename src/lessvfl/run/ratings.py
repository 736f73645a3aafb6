"""How a party rated its features, in the units of its own table, for its eyes alone.

It goes into the party's own record, and from there to its page and a file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lessvfl.core.party_data import Outcome
from lessvfl.data import BinNames, Encoding


def ratings_of(encoding: Encoding, outcome: Outcome) -> dict[str, Any] | None:
    """Return a party's scores of its features by name, with bins, None without any."""
    rating = outcome.rating
    if rating is None:
        return None
    features = [
        {"feature": name, "score": score}
        for name, score in zip(encoding.features, rating["scores"], strict=True)
    ]
    if "bins" in rating:
        names = BinNames(encoding)
        for feature, table in zip(features, rating["bins"], strict=True):
            feature["bins"] = _bins(names, table)
    features.sort(key=lambda feature: -feature["score"])
    shared = {key: rating.get(key) for key in ("measure", "false_share")}
    return {**shared, "features": features}


def _bins(names: BinNames, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bins of one feature: numbers upwards, missing cells last."""
    named = [
        names.name(table["columns"], {c: ends for c, *ends in ranges})
        for ranges in table["ranges"]
    ]
    bins = []
    for place in sorted(range(len(named)), key=lambda i: named[i].place):
        counts = table["counts"][place]
        line = {"bin": named[place].text, "rows": sum(counts), "classes": counts}
        if "woe" in table:
            line["woe"] = table["woe"][place]
        bins.append({**line, "part": table["parts"][place]})
    return bins
