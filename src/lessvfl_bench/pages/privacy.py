"""Attacks and defences: one page, a figure for every defence, and tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl.report import figures, parts
from lessvfl.terms import plural
from lessvfl_bench.privacy import tables
from lessvfl_bench.study import mean

NAME = "privacy"
WORDS = ("data", "method", "defence", "attack", "told by", "alignment", "who")
LEGEND = (
    "Means over seeds and parties. Labels are scored by AUC (0.5: nothing), columns "
    "and embeddings by R2 (0: nothing). The control is the same attacker without the "
    "traffic, shuffled the attack where labels or rows are in random order; the leak "
    "is score less control. DCS is the Defence Capability Score of VFLAIR; above "
    "chance it has the share of what the control leaves open, and balanced accuracy "
    "above guessing."
)
CAPTION = (
    "The leak of the attack that finds most, against what the run is worth: circles "
    "labels, squares columns; hollow without a defence, filled with it. Good is down, "
    "and not to the left."
)
RunPair = tuple[Sequence[Mapping[str, Any]], ...]  # runs before and after
SHAPES = {"labels": "o", "columns": "s"}  # of attacks, by what they begin with


def build_privacy(found: Mapping[Any, Any], folder: Path) -> Path:
    """Write the page of a study into its folder; return it."""
    path = folder / f"{NAME}.html"
    n_seeds = len({seed for *_, seed in found})
    page = parts.page(
        "privacy.html.j2",
        "lessvfl_bench.pages",
        title="What messages tell, beside what is known without them",
        line=[plural(n_seeds, "seed"), f"planted noise {tables.SPURIOUS:g}"],
        legend=LEGEND,
        tables=tables.tables(found),
        words=WORDS,
        figures=list(_drawings(tables.by_defence(found))),
        notes=tables.skipped(found),
        footer=f"Made from {NAME}.json with lessvfl {__version__}.",
    )
    parts.write(path, page)
    return path


def _drawings(runs: tables.DefendedRuns) -> Iterator[parts.Drawing]:
    """Yield a figure for every method and defence, with all data sets."""
    pairs = list(dict.fromkeys((method, defence) for _, method, defence in runs))
    n_methods = len({method for method, _ in pairs})
    for index, (method, defence) in enumerate(pairs):
        if defence == tables.NOTHING and len(pairs) > n_methods:
            continue  # it is in every other figure
        ends = {
            key[0]: (runs.get((*key[:2], tables.NOTHING), some), some)
            for key, some in runs.items()
            if key[1:] == (method, defence)
        }
        of = "" if n_methods == 1 else f" of {method}"
        yield _drawing(f"defence{index}", f"Defence{of}: {defence}", ends)


def _drawing(key: str, title: str, ends: Mapping[str, RunPair]) -> parts.Drawing:
    """Draw the worst leaks before and after, against each thing a run is worth."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    said = []
    with figures.page_style():
        root = Figure(figsize=(5.6, 2.6), layout="constrained")
        panels = root.subplots(1, len(tables.TASK), sharey=True)
        for (what, head), ax in zip(tables.TASK.items(), panels, strict=True):
            ax.axhline(0, color=figures.GREY, lw=0.8)
            ax.set(xlabel=head, xlim=(-0.06, 1.06))
            ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            figures.grid(ax)
            for (name, own), color in zip(ends.items(), itertools.cycle(figures.CYCLE)):
                for about, shape in SHAPES.items():
                    points = [
                        (mean(runs, what) or 0.0, tables.worst(runs, about))
                        for runs in own
                    ]
                    x, y = zip(*points, strict=True)
                    ax.plot(x, y, color=color, lw=0.8, alpha=0.6)
                    look: Any = {"marker": shape, "color": color, "ms": 5, "ls": ""}
                    ax.plot(x[:1], y[:1], **look, mfc="none")
                    ax.plot(x[1:], y[1:], **look)
                    if what == next(iter(tables.TASK)):
                        told = " to ".join(f"{leak:+.2f}" for leak in y)
                        said.append(f"{name}, leak of {about} {told}")
        panels[0].set_ylabel("leak")
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(min(low, -0.1), max(high, 0.6))  # the same for most figures
        names = zip(ends, itertools.cycle(figures.CYCLE))
        handles = [
            Line2D([], [], color=color, lw=3, label=name) for name, color in names
        ]
        root.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
        return parts.figure(panels[0], key, title, CAPTION, "; ".join(said))
