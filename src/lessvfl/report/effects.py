"""Curves of effects on a party's page: how the explained output moves with a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lessvfl.report.tables import plural

WIDTH, HEIGHT, EDGE = 240.0, 72.0, 4.0  # of a drawing
MOST_CURVES = 60  # on the page


def effect_card(explained: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return sentences and curves, the largest effects first; None without any."""
    curves = sorted(
        explained.get("curves", []),
        key=lambda curve: float(max(curve["effects"]) - min(curve["effects"])),
        reverse=True,
    )
    if not curves:
        return None
    n_rows, seeds = plural(explained["rows"], "row"), explained["seeds"]
    which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return {
        "sentences": [
            "Each cell of the column is set to a value, in up to 200 rows of the table "
            "that was predicted with. Shown is the mean change of the explained "
            "output: of two classes the log-odds of the positive one, of more the "
            "logit of the one predicted less the mean of all, of amounts the amount in "
            "standard deviations.",
            f"It is followed through your network of {which} by the mean of "
            f"the slopes that came with requests for reasons, {n_rows} so far. With "
            "a fusion network of several layers other rows have other slopes.",
        ],
        "curves": [_curve(one) for one in curves[:MOST_CURVES]],
        "n_more": max(0, len(curves) - MOST_CURVES),
    }


def _curve(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column's title, numbers as lines of a table, and its line in SVG.

    `points` is empty for categories; `zero` is the height at which nothing changes.
    """
    values, effects = one["values"], [float(effect) for effect in one["effects"]]
    low, high = min(*effects, 0.0), max(*effects, 0.0)

    def height(effect: float) -> float:
        share = (effect - low) / (high - low) if high > low else 0.5
        return HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE)

    def across(value: float) -> float:
        share: float = (value - values[0]) / (values[-1] - values[0])
        return EDGE + share * (WIDTH - 2 * EDGE)

    name, points = one["column"], ""
    if one["feature"] != name:
        name = f"{name} of {one['feature']}"
    both = list(zip(values, effects, strict=True))
    if all(type(value) in (int, float) for value in values):
        points = " ".join(f"{across(v):.1f},{height(effect):.1f}" for v, effect in both)
    return {
        "title": f"{name}: from {min(effects):+.3g} to {max(effects):+.3g}",
        "points": points,
        "zero": f"{height(0.0):.1f}",
        "lines": [
            {"value": _text(v), "effect": f"{effect:+.3g}"} for v, effect in both
        ],
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
