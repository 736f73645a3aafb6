"""The paper's figures from a benchmark: one panel per data set, lines or bars."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lessvfl.report import figures
from lessvfl.report.figures import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from lessvfl.report.tables import at, number, plural
from lessvfl_bench.pages.paper import entries

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FigurePanel = Mapping[str, Any]  # data, x, y, kind (line or bar), series, settings
SeriesPoints = list[tuple[float, float, float]]  # x, mean and standard deviation

TITLES = {
    "2": "Test accuracy with and without spurious features",
    "3": "Spurious features removed by communication epoch",
    "4": "Test accuracy by communication cost",
    "5": "Spurious features removed by communication epoch",
    "6": "Test accuracy over the first communication epochs",
}
STYLES = {  # colour, dashes and hatch; no two series differ in the colour alone
    "LESS-VFL": (BLUE, "-", ""),
    "less-vfl-auto": (SKY, (0, (4, 1)), "||"),
    "Local lasso": (VERMILION, "--", "////"),
    "Group lasso": (GREEN, "-.", ".."),
    "VFL (Original)": (BLACK, ":", "xx"),
    "VFL (Spurious)": (PURPLE, (0, (6, 1, 1, 1, 1, 1)), "\\\\\\\\"),
}
HATCHES = ("++", "oo", "--", "**")


def file_names(figure: str, panels: Sequence[FigurePanel]) -> list[str]:
    """Name each panel by its figure and data, and by more where that is not enough."""
    keys = ("data", "y", "x", "kind")
    for n_keys in range(1, len(keys) + 1):
        values = ([panel.get(key) for key in keys[:n_keys]] for panel in panels)
        names = [_slug(f"figure{figure}", *some) for some in values]
        if len(set(names)) == len(names):
            return names
    return [f"{name}-{i}" for i, name in enumerate(names)]


def _slug(*parts: object) -> str:
    found = (re.sub("[^a-z0-9]+", "-", str(part or "").lower()) for part in parts)
    return "-".join(filter(None, (text.strip("-") for text in found)))


def points(series: Mapping[str, Any]) -> SeriesPoints:
    """Return (x, mean, standard deviation) of a series, without the gaps."""
    xs, means = series.get("x") or [], series.get("mean") or []
    stds = series.get("std") or [None] * len(means)
    found = []
    for point in zip(xs, means, stds, strict=True):
        x, mean, std = map(number, point)
        if x is not None and mean is not None:
            found.append((x, mean, std or 0.0))
    return found


def plot_panel(panel: FigurePanel, ax: Axes) -> Axes:
    """Draw the series of a panel: means with their standard deviation over seeds."""
    drawn = {str(s["name"]): points(s) for s in panel.get("series") or []}
    drawn = {name: found for name, found in drawn.items() if found}
    if not drawn:
        ax.text(0.5, 0.5, entries.NOT_AVAILABLE, ha="center", transform=ax.transAxes)
        ax.set_axis_off()
        return ax
    (_bars if panel.get("kind") == "bar" else _lines)(ax, drawn)
    ax.set_xlabel(figures.label(str(panel.get("x", "")), 60))
    ax.set_ylabel(figures.label(str(panel.get("y", "")), 60))
    figures.grid(ax, "y")
    figures.legend(ax, 3)
    return ax


def _style(name: str, i: int) -> tuple[str, Any, str]:
    cycle, dashes = figures.CYCLE, figures.DASHES
    other = cycle[(4 + i) % len(cycle)] if i else ORANGE
    return STYLES.get(name, (other, dashes[i % 4], HATCHES[i % 4]))


def _lines(ax: Axes, drawn: Mapping[str, SeriesPoints]) -> None:
    for i, (name, found) in enumerate(drawn.items()):
        color, dashes, _ = _style(name, i)
        xs, means, stds = zip(*found, strict=True)
        words, dot = figures.label(name, 60), "o" if len(found) == 1 else None
        look: Any = {"color": color, "ls": dashes, "lw": 1.8, "marker": dot, "ms": 4}
        ax.plot(xs, means, label=words, **look)
        low = [mean - std for mean, std in zip(means, stds, strict=True)]
        high = [mean + std for mean, std in zip(means, stds, strict=True)]
        ax.fill_between(xs, low, high, color=color, alpha=0.18, lw=0)


def _bars(ax: Axes, drawn: Mapping[str, SeriesPoints]) -> None:
    places = sorted({x for found in drawn.values() for x, _, _ in found})
    width = 0.8 / len(drawn)
    for i, (name, found) in enumerate(drawn.items()):
        color, _, hatch = _style(name, i)
        shift = (i - (len(drawn) - 1) / 2) * width
        xs, means, stds = zip(*found, strict=True)
        at_x = [places.index(x) + shift for x in xs]
        look: Any = {"color": color, "edgecolor": "white", "hatch": hatch, "lw": 0.6}
        look["error_kw"] = {"lw": 0.9, "capsize": 2, "ecolor": "#454A52"}
        ax.bar(at_x, means, width, yerr=stds, label=figures.label(name, 60), **look)
    # Labels of many places would run into each other.
    shown = range(0, len(places), math.ceil(len(places) / 12))
    ax.set_xticks(list(shown), [f"{places[i]:g}" for i in shown])


def describe(panel: FigurePanel) -> str:
    """Say where every series of a panel starts and ends, for who cannot see it."""
    said = []
    for series in panel.get("series") or []:
        if found := points(series):
            (x0, y0, _), (x1, y1, _) = found[0], found[-1]
            ends = f"from {y0:.3g} at {x0:g} to {y1:.3g} at {x1:g}"
            said.append(f"{series['name']} {ends}")
    unit = panel.get("x", "")
    return "; ".join(said) + f" ({unit})." if said else f"{entries.NOT_AVAILABLE}."


def panel_caption(panel: FigurePanel) -> str:
    """Say over how many seeds, and with which settings."""
    seeds = {int(n) for s in panel.get("series") or [] if (n := s.get("seeds"))}
    over = " or ".join(plural(n, "seed") for n in sorted(seeds)) or "the seeds"
    mark = "whiskers" if panel.get("kind") == "bar" else "shade"
    parts = [f"Mean of {over}; {mark}: standard deviation."]
    for name, settings in (panel.get("settings") or {}).items():
        if isinstance(settings, Mapping) and settings:
            said = ", ".join(entries.setting_text(k, v) for k, v in settings.items())
            parts.append(f"{name}: {said}.")
    return " ".join(parts)


def files(ax: Axes) -> dict[str, bytes]:
    """Return a drawing as PNG and as SVG, the same bytes every time."""
    made = {}
    for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        stream = io.BytesIO()
        figures.save(ax, stream, ending, dpi=160, metadata=metadata)
        made[ending] = stream.getvalue()
    return made


def panel_title(panel: FigurePanel, facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Name the data of a panel, and say where it is not the paper's."""
    name = str(panel.get("data", ""))
    title = entries.data_title(facts.get(name), name)
    return entries.stand_in_title(title, at(facts.get(name), "same"))
