"""Attacks and defences: one page, its tables, and a figure for every defence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl.report import figures, parts
from lessvfl_bench.pages import dots
from lessvfl_bench.privacy import tables
from lessvfl_bench.study import mean

NAME = "privacy"
WORDS = ("data", "method", "defence", "attack", "told by", "alignment", "who")
LEGEND = (
    "Means over seeds and parties. Labels are scored by AUC (0.5: nothing), columns by "
    "R2 (0: nothing). The control is the same attacker without the traffic, shuffled "
    "the attack where labels or rows are in random order; the leak is score less "
    "control. DCS is the Defence Capability Score of VFLAIR; above chance it has the "
    "share of what the control leaves open, and balanced accuracy above guessing."
)
MARKS: dots.Marks = (
    ("score", "attack", figures.VERMILION, "o"),
    ("control", "control", figures.BLUE, "s"),
    ("shuffled", "shuffled", figures.GREEN, "D"),
)


def build_privacy(about: str, found: Mapping[Any, Any], folder: Path) -> Path:
    """Write the page of a study into its folder; return it."""
    path = folder / f"{NAME}.html"
    page = parts.page(
        "privacy.html.j2",
        "lessvfl_bench.pages",
        title="What messages tell, beside what is known without them",
        line=[about],
        legend=LEGEND,
        tables=tables.tables(found),
        words=WORDS,
        sets=_sets(tables.by_defence(found)),
        notes=tables.skipped(found),
        footer=f"Made from {NAME}.json with lessvfl {__version__}.",
    )
    parts.write(path, page)
    return path


def _sets(runs: tables.DefendedRuns) -> dict[str, list[parts.Drawing]]:
    """Return the figures of every data set and method, one a defence."""
    sets: dict[str, list[parts.Drawing]] = {}
    for index, ((name, method, defence), some) in enumerate(runs.items()):
        lines: list[dots.DotLine] = [
            (attack, tables.spreads(some, attack)) for attack in tables.attacks_of(some)
        ]
        worth = ", ".join(
            f"{head} {value:.3f}"
            for key, head in tables.WORTH.items()
            if (value := mean(some, key)) is not None
        )
        wanted = {"leak": (f"Defence: {defence}", f"The run: {worth}.", MARKS)}
        drawn = dots.draw(f"run{index}", lines, wanted)
        sets.setdefault(f"{name}, {method}", []).extend(drawn)
    return sets
