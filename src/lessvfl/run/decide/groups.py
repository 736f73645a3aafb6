"""Scores by group: whether a model treats the rows of a column's values alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.run.decide.cut_offs import outcome
from lessvfl.run.decide.ranking import ranked
from lessvfl.run.decide.scored import ScoredRows
from lessvfl.run.scores import scores_of

FEW = 100  # rows of a group from which on its numbers say something
COMPARED = ("rate", "recall", "false_positive_rate", "auc")


def by_group(
    rows: ScoredRows, decided: NDArray[np.int64], column: str
) -> dict[str, Any]:
    """Return the scores of every group, and how far those with many rows differ."""
    assert rows.groups is not None
    lines = []
    for name in sorted(set(rows.groups)):
        places = np.flatnonzero(rows.groups == name)
        line: dict[str, Any] = {"group": name, "rows": len(places)}
        lines.append(line | _numbers(rows.take(places), decided[places]))
    few = [line["group"] for line in lines if line["rows"] < FEW]
    scores: dict[str, Any] = {"column": column, "groups": lines, "few": few}
    if rows.task == "binary":
        many = [line for line in lines if line["rows"] >= FEW]
        scores["gaps"] = {name: _gap(many, name) for name in COMPARED}
        rates = [line["rate"] for line in many]
        has_ratio = len(rates) > 1 and max(rates) > 0
        scores["rate_ratio"] = min(rates) / max(rates) if has_ratio else None
    return scores


def _numbers(rows: ScoredRows, decided: NDArray[np.int64]) -> dict[str, Any]:
    """Return the numbers of one group."""
    y = rows.y
    if rows.task == "regression":
        error = rows.z[:, 0] - y
        return {
            "mean_label": float(y.mean()),
            "mean_prediction": float(rows.z[:, 0].mean()),
            "mae": float(np.abs(error).mean()),
        }
    if rows.task == "multiclass":
        area = scores_of(rows)["auc"]
        return {"accuracy": float((decided == y).mean()), "auc": area}
    return {
        "positives": int(rows.hits.sum()),
        "share": float(rows.hits.mean()),
        "mean_probability": float(rows.p[:, rows.positive].mean()),
        "auc": ranked(rows.odds, rows.hits)[0],
        **outcome(rows.hits, decided == rows.positive),
    }


def _gap(lines: list[dict[str, Any]], name: str) -> float | None:
    """Return how far the largest of groups is from the smallest."""
    known = [line[name] for line in lines if line[name] is not None]
    return max(known) - min(known) if len(known) > 1 else None
