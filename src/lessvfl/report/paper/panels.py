"""The paper's figures from a benchmark: one panel a data set, lines or bars."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lessvfl.report.figures import (
    BLACK,
    BLUE,
    CYCLE,
    DASHES,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    label,
)
from lessvfl.report.paper import entries as words
from lessvfl.report.tables import at, number, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = Mapping[str, Any]

TITLES = {
    "2": "Test accuracy with and without spurious features",
    "3": "Spurious features removed by communication epoch",
    "4": "Test accuracy by communication cost",
    "5": "Spurious features removed by communication epoch",
    "6": "Test accuracy over the first communication epochs",
}
STYLES = {  # colour, dashes and hatch; no two series differ in the colour alone
    "LESS-VFL": (BLUE, "-", ""),
    "Local lasso": (VERMILION, "--", "////"),
    "Group lasso": (GREEN, "-.", ".."),
    "VFL (Original)": (BLACK, ":", "xx"),
    "VFL (Spurious)": (PURPLE, (0, (6, 1, 1, 1, 1, 1)), "\\\\\\\\"),
}
HATCHES = ("++", "oo", "--", "**")


def file_names(figure: str, panels: Sequence[Panel]) -> list[str]:
    """Name each panel by its figure and data, and by more where that is not enough.

    >>> file_names("3", [{"data": "gina"}, {"data": "../x", "y": "accuracy"}])
    ['figure3-gina', 'figure3-x']
    """
    keys = ("data", "y", "x", "kind")
    for n_keys in range(1, len(keys) + 1):
        names = [
            _slug(f"figure{figure}", *(panel.get(key) for key in keys[:n_keys]))
            for panel in panels
        ]
        if len(set(names)) == len(names):
            return names
    return [f"{name}-{i}" for i, name in enumerate(names)]


def _slug(*parts: object) -> str:
    found = (re.sub("[^a-z0-9]+", "-", str(part or "").lower()) for part in parts)
    return "-".join(filter(None, (text.strip("-") for text in found)))


def points(series: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    """Return (x, mean, standard deviation) of a series, without the gaps."""
    xs, means = series.get("x") or [], series.get("mean") or []
    stds = series.get("std") or [None] * len(means)
    found = []
    for x, mean, std in zip(xs, means, stds, strict=True):
        point = {"x": x, "mean": mean, "std": std}
        known = [number(point, name) for name in point]
        if known[0] is not None and known[1] is not None:
            found.append((known[0], known[1], known[2] or 0.0))
    return found


def plot_panel(panel: Panel, ax: Axes) -> Axes:
    """Draw the series of a panel: means with their standard deviation over seeds.

    Parameters
    ----------
    panel : mapping
        A panel of a benchmark: x, y, kind (line or bar) and series.
    ax : matplotlib Axes
        Where to draw.

    Returns
    -------
    matplotlib Axes
    """
    drawn = {str(s["name"]): points(s) for s in panel.get("series") or []}
    drawn = {name: found for name, found in drawn.items() if found}
    if not drawn:
        ax.text(0.5, 0.5, words.NOT_AVAILABLE, ha="center", transform=ax.transAxes)
        ax.set_axis_off()
        return ax
    if panel.get("kind") == "bar":
        _bars(ax, drawn)
    else:
        _lines(ax, drawn)
    ax.set_xlabel(label(str(panel.get("x", "")), 60))
    ax.set_ylabel(label(str(panel.get("y", "")), 60))
    ax.grid(axis="y", color="#E4E7EB", lw=0.6)
    ax.set_axisbelow(True)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return ax


def _style(name: str, i: int) -> tuple[str, Any, str]:
    other = CYCLE[(4 + i) % len(CYCLE)] if i else ORANGE
    return STYLES.get(name, (other, DASHES[i % 4], HATCHES[i % 4]))


def _lines(ax: Axes, drawn: Mapping[str, list[tuple[float, float, float]]]) -> None:
    for i, (name, found) in enumerate(drawn.items()):
        color, dashes, _ = _style(name, i)
        xs, means, stds = ([point[k] for point in found] for k in range(3))
        dot = "o" if len(found) == 1 else None
        ax.plot(
            *(xs, means),
            color=color,
            ls=dashes,
            lw=1.8,
            marker=dot,
            ms=4,
            label=label(name, 60),
        )
        ax.fill_between(
            xs,
            [mean - std for mean, std in zip(means, stds, strict=True)],
            [mean + std for mean, std in zip(means, stds, strict=True)],
            color=color,
            alpha=0.18,
            lw=0,
        )


def _bars(ax: Axes, drawn: Mapping[str, list[tuple[float, float, float]]]) -> None:
    places = sorted({x for found in drawn.values() for x, _, _ in found})
    width = 0.8 / len(drawn)
    for i, (name, found) in enumerate(drawn.items()):
        color, _, hatch = _style(name, i)
        shift = (i - (len(drawn) - 1) / 2) * width
        ax.bar(
            [places.index(x) + shift for x, _, _ in found],
            [mean for _, mean, _ in found],
            width,
            yerr=[std for _, _, std in found],
            color=color,
            edgecolor="white",
            hatch=hatch,
            lw=0.6,
            error_kw={"lw": 0.9, "capsize": 2, "ecolor": "#454A52"},
            label=label(name, 60),
        )
    # Labels of many places would run into each other.
    every = math.ceil(len(places) / 12)
    shown = range(0, len(places), every)
    ax.set_xticks(list(shown), [f"{places[i]:g}" for i in shown])


def describe(panel: Panel) -> str:
    """Say where every series of a panel starts and ends, for who cannot see it."""
    said = []
    for series in panel.get("series") or []:
        if found := points(series):
            (x0, y0, _), (x1, y1, _) = found[0], found[-1]
            said.append(
                f"{series['name']} from {y0:.3g} at {x0:g} to {y1:.3g} at {x1:g}"
            )
    unit = panel.get("x", "")
    return "; ".join(said) + f" ({unit})." if said else f"{words.NOT_AVAILABLE}."


def panel_caption(panel: Panel) -> str:
    """Say over how many seeds, and with which settings."""
    seeds = {int(n) for s in panel.get("series") or [] if (n := s.get("seeds"))}
    over = " or ".join(plural(n, "seed") for n in sorted(seeds)) or "the seeds"
    mark = "whiskers" if panel.get("kind") == "bar" else "shade"
    parts = [f"Mean of {over}; {mark}: standard deviation."]
    for name, settings in (panel.get("settings") or {}).items():
        if isinstance(settings, Mapping) and settings:
            said = ", ".join(words.setting_text(k, v) for k, v in settings.items())
            parts.append(f"{name}: {said}.")
    return " ".join(parts)


def files(ax: Axes) -> dict[str, bytes]:
    """Return a drawing as PNG and as SVG, the same bytes every time."""
    figure = ax.figure.get_figure(root=True)
    assert figure is not None
    made = {}
    for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        stream = io.BytesIO()
        with warnings.catch_warnings():
            # A name may hold letters that the font of the drawing does not have.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure.savefig(stream, format=ending, dpi=160, metadata=metadata)
        made[ending] = stream.getvalue()
    return made


def panel_title(panel: Panel, facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Name the data of a panel, and say where it is not the paper's."""
    name = str(panel.get("data", ""))
    title = words.data_title(facts.get(name), name)
    stand_in = at(facts.get(name), "same") is False
    return f"{title} ({words.STAND_IN})" if stand_in else title
