"""Curves of effects on a party's page: how the explained output moves with a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lessvfl.report.tables import plural

WIDTH, HEIGHT, EDGE = 240.0, 72.0, 4.0  # of a drawing
MOST_CURVES = 60  # on the page


class EffectCurve(NamedTuple):
    """One column: its curve, if its values have an order, and its numbers."""

    title: str
    points: str  # of a line, as SVG has them; empty for categories
    zero: str  # the height at which nothing changes
    lines: list[dict[str, str]]


class EffectCard(NamedTuple):
    """What the page says of effects."""

    sentences: list[str]
    curves: list[EffectCurve]
    n_more: int


def effect_card(found: Mapping[str, Any]) -> EffectCard | None:
    """Return the card, the largest effects first; None where there are none."""
    curves = sorted(found.get("curves", []), key=_span, reverse=True)
    if not curves:
        return None
    n_rows = plural(found["rows"], "row")
    return EffectCard(
        [
            "Each cell of the column is set to a value, in up to 200 rows of the table "
            "that was predicted with. Shown is the mean change of the explained "
            "output: of two classes the log-odds of the positive one, of more the "
            "logit of the one predicted less the mean of all, of amounts the amount in "
            "standard deviations.",
            f"It is followed through your network of {_seeds(found)} by the mean of "
            f"the slopes that came with requests for reasons, {n_rows} so far. With "
            "a fusion network of several layers other rows have other slopes.",
        ],
        [_curve(one) for one in curves[:MOST_CURVES]],
        max(0, len(curves) - MOST_CURVES),
    )


def _seeds(found: Mapping[str, Any]) -> str:
    several = "s" * (len(found["seeds"]) > 1)
    return f"seed{several} {', '.join(map(str, found['seeds']))}"


def _span(curve: Mapping[str, Any]) -> float:
    effects = curve["effects"]
    return float(max(effects) - min(effects))


def _curve(one: Mapping[str, Any]) -> EffectCurve:
    effects = [float(effect) for effect in one["effects"]]
    low, high = min(*effects, 0.0), max(*effects, 0.0)
    has_order = all(type(value) in (int, float) for value in one["values"])

    def height(effect: float) -> float:
        share = (effect - low) / (high - low) if high > low else 0.5
        return HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE)

    name = one["column"]
    if one["feature"] != name:
        name = f"{name} of {one['feature']}"
    return EffectCurve(
        f"{name}: from {min(effects):+.3g} to {max(effects):+.3g}",
        _points(one["values"], map(height, effects)) if has_order else "",
        f"{height(0.0):.1f}",
        [
            {"value": _text(value), "effect": f"{effect:+.3g}"}
            for value, effect in zip(one["values"], effects, strict=True)
        ],
    )


def _points(values: Sequence[float], heights: Any) -> str:
    first, last = values[0], values[-1]
    return " ".join(
        f"{EDGE + (value - first) / (last - first) * (WIDTH - 2 * EDGE):.1f},{at:.1f}"
        for value, at in zip(values, heights, strict=True)
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
