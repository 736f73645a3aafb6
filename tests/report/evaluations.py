"""Evaluations for tests of their page."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.run.test_decide import COST, many_rows, some_numbers, some_rows

from lessvfl.run.decide.evaluation import Asked, evaluate
from lessvfl.run.decide.fitting import Aim
from lessvfl.run.decide.scored import ScoredRows

ODD = "<script>alert(1)</script> $\\frac{1}{2}$ " + "long " * 12


def found(
    rows: ScoredRows, asked: Asked | None = None, by: str | None = None
) -> dict[str, Any]:
    """Return what the command has of rows."""
    about = {
        "lessvfl": "1",
        "data": {"name": ODD, "n_rows": len(rows)},
        "model": {"data": "all", "method": "plain", "seed": 0},
        "applied": None,
        "kept": None,
        "joined": None,
    }
    return about | evaluate(rows, asked or Asked(), by)


def evaluations() -> dict[str, dict[str, Any]]:
    """Return one of each kind."""
    rows = some_rows()
    good = rows.take(np.flatnonzero(~rows.hits))
    halves = ["a", ODD] * (len(rows) // 2)
    several, amounts = many_rows(), some_numbers()
    return {
        "all": found(rows, Asked("isotonic", COST), "where"),
        "rate": found(rows, Asked(None, Aim("rate", 0.1))),
        "plain": found(rows),
        "one class": found(good),
        "classes": found(several.grouped(halves, ODD), Asked("platt"), ODD),
        "numbers": found(amounts.grouped(halves, ODD), None, ODD),
    }
