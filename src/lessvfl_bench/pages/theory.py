"""The page of ``lessvfl bench theory``: figures, a table of rates, the verdict."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessvfl.report import figures, parts
from lessvfl.report.tables import MISSING, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Style = tuple[str, str, str, str]
Results = Mapping[str, Any]
TheoryEntry = Mapping[str, Any]

WORDED = ("Method", "Quantity", "Note")  # columns of words
METHODS: dict[str, Style] = {  # title, colour, dashes, marker
    "less-vfl": ("LESS-VFL", figures.BLUE, "-", "o"),
    "local-lasso": ("Local lasso", figures.GREEN, "--", "s"),
    "group-lasso": ("Group lasso", figures.VERMILION, "-.", "^"),
    "centralised": ("Centralised group lasso", figures.BLACK, ":", "D"),
}
DESIGNS: dict[str, Style] = {
    "independent": ("Independent components", figures.BLUE, "-", "o"),
    "correlated": ("One correlated component", figures.VERMILION, "--", "s"),
}
QUANTITIES = {
    "norm": "norm of non-significant weights",
    "distance": "distance to the generating network",
    "recovery": "exact recovery, share of seeds",
}
STAGE2 = QUANTITIES | {"distance": "distance to the true server weights"}
RANGES = "Lines are means over seeds, bands run from the least to the greatest seed"
ZEROS = "A hollow mark on the lowest line is a mean of exactly zero."
FIGURES = {  # part of the results, quantity: title, caption
    "recovery": (
        "Exact recovery of the support",
        "Share of seeds whose kept features are the significant ones, no more and no "
        "less; bands are Wilson's 95 % intervals.",
    ),
    "norm": (
        "Weights on non-significant features",
        f"Euclidean norm of first-layer weights after selection. {RANGES}. {ZEROS}",
    ),
    "distance": (
        "Distance to the generating network",
        "Root mean squared difference of predictions on fresh rows, without noise; the "
        f"theorem's distance bounds it up to a constant. {RANGES}.",
    ),
    "stage2-distance": (
        "Stage 2 alone: distance to the true server weights",
        "Known party networks. The theorem bounds this distance and promises no exact "
        f"recovery. {RANGES}.",
    ),
    "stage2-norm": (
        "Stage 2 alone: weights on non-significant components",
        f"With a correlated component the lasso keeps some however large N is. {ZEROS}",
    ),
    "surplus-norm": (
        "More components than needed",
        "Several components a party where one would do: weights on non-significant "
        f"features. {ZEROS}",
    ),
}
LEFT = ("recovery", "stage2-distance", "surplus-norm")
RIGHT = ("norm", "distance", "stage2-norm")


def build_theory(results: Results, folder: Path) -> Path:
    """Write ``theory.html``, ``.json``, ``.csv`` and the figures; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, allow_nan=False, indent=1)
    parts.write(folder / "theory.json", text)
    parts.write(folder / "theory.csv", parts.csv_text(_lines(results)))
    path = folder / "theory.html"
    parts.write(path, _page(results, _draw(results, folder)))
    return path


def _lines(results: Results) -> Iterator[list[Any]]:
    """Return every run as one line of CSV, the head first."""
    by_seed = ("norm", "distance", "recovered")
    yield ["part", "method", "parties", "n", "seed", *by_seed]
    for part in ("results", "surplus", "stage2"):
        for entry in results[part]:
            name = entry.get("method") or entry["design"]
            about = [part, name, entry.get("parties", ""), entry["n"]]
            runs = zip(results["seeds"], *(entry[key] for key in by_seed), strict=True)
            for *run, hit in runs:
                yield [*about, *run, int(hit)]


def _draw(results: Results, folder: Path) -> dict[str, parts.Drawing]:
    """Write every figure as PNG and SVG, and return each for the page."""
    drawn = {}
    files: Any = {"png": {"dpi": 160}, "svg": {"metadata": {"Date": None}}}
    for name, (title, caption) in FIGURES.items():
        part, _, quantity = name.rpartition("-")
        if not results[part or "results"]:
            continue
        with figures.page_style():
            ax = _plot(results, part or "results", quantity)
            for ending, options in files.items():
                path = folder / f"theory-{name}.{ending}"
                figures.save(ax, path, ending, **options)
            alt = f"{title}; the same numbers are in the tables and in theory.csv."
            drawn[name] = parts.figure(ax, name, title, caption, alt)
    return drawn


def _plot(results: Results, part: str, quantity: str) -> Axes:
    """Draw one quantity against N, one panel for each number of parties."""
    from matplotlib.figure import Figure

    found, height = results[part], 2.6
    panels = {"": found}
    if part == "results":
        height = 2.0
        panels = {
            plural(m, "party", "parties"): [
                e for e in found if e["method"] == "centralised" or e["parties"] == m
            ]
            for m in results["parties"]
        }
    n_rows, n_columns = math.ceil(len(panels) / 2), min(len(panels), 2)
    width = 4.7 if n_columns == 1 else 5.6
    root = Figure(figsize=(width, height * n_rows + 0.7), layout="constrained")
    grid = root.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True)
    for extra in grid.flat[len(panels) :]:
        extra.set_axis_off()
    looks, words = (DESIGNS, STAGE2) if part == "stage2" else (METHODS, QUANTITIES)
    # Zeros are drawn a little under the least number above zero.
    above = (v for e in found if quantity != "recovery" for v in e[quantity] if v > 0)
    floor = min(above, default=3e-3) / 3
    for ax, (title, entries) in zip(grid.flat, panels.items(), strict=False):
        if quantity == "recovery":
            ax.set_ylim(-0.03, 1.03)
        else:
            _guide(ax, results, entries, quantity)
            ax.set_yscale("log")
        for name, look in looks.items():
            shown = [e for e in entries if name in (e.get("method"), e.get("design"))]
            if shown:
                _line(ax, shown, quantity, look, floor)
        if title:
            ax.set_title(title, fontsize=9)
        ax.set_xscale("log")
        figures.grid(ax)
    root.supxlabel("samples N", fontsize=9)
    root.supylabel(words[quantity], fontsize=9)
    first: Axes = grid.flat[0]
    legend = first.get_legend_handles_labels()
    root.legend(*legend, loc="outside upper center", ncols=2, frameon=False)
    return first


def _guide(
    ax: Axes, results: Results, entries: Sequence[TheoryEntry], quantity: str
) -> None:
    """Draw the theorem's rate, through the largest mean at the first size."""
    ends, rate = (results["n"][0], results["n"][-1]), results["theorem_rate"]
    top = max(statistics.fmean(e[quantity]) for e in entries if e["n"] == ends[0])
    if top > 0:
        heights = [top * (size / ends[0]) ** rate for size in ends]
        label = f"theorem's rate, slope {rate:g}"
        ax.plot(ends, heights, color=figures.GREY, lw=3, alpha=0.6, label=label)


def _line(
    ax: Axes, entries: Sequence[TheoryEntry], quantity: str, look: Style, floor: float
) -> None:
    """Draw means over seeds with their range; zeros hollow on the floor."""
    title, color, dashes, marker = look
    entries = sorted(entries, key=lambda entry: float(entry["n"]))
    sizes = [entry["n"] for entry in entries]
    found = [entry[quantity] for entry in entries]
    means, lows, highs = (
        [share[key] for share in found]
        if quantity == "recovery"
        else [max(floor, of(values)) for values in found]
        for key, of in (("mean", statistics.fmean), ("low", min), ("high", max))
    )
    ax.fill_between(sizes, lows, highs, color=color, alpha=0.12, lw=0)
    ax.plot(sizes, means, color=color, ls=dashes, lw=1.6, label=title)
    for size, mean in zip(sizes, means, strict=True):
        zero = quantity != "recovery" and mean <= floor
        face = "white" if zero else color
        ax.plot([size], [mean], marker=marker, ms=4.5, mfc=face, mec=color, ls="")


def _page(results: Results, drawn: Mapping[str, parts.Drawing]) -> str:
    sizes, lam = results["n"], results["lambda"]
    title = "The theory, checked: LESS-VFL and its baselines against N"
    words = [
        f"{results['network']} networks",
        plural(len(results["seeds"]), "seed"),
        f"N = {sizes[0]:,} to {sizes[-1]:,}",
        f"{results['n_significant']} of {results['n_columns']} features significant",
        f"λ_s = {lam['server']:g} N^(-1/4), λ_m = {lam['party']:g} N^(-1/4), "
        f"group lasso {lam['joint']:g} N^(-1/4)",
        f"{results['seconds']:.0f} s on {results['device']}",
    ]
    left, right = ([drawn[n] for n in half if n in drawn] for half in (LEFT, RIGHT))
    rates = (
        "Least squares of log mean against log N; intervals by a bootstrap over seeds. "
        "The theorem bounds from above: a slope below its rate agrees with it. With "
        f"its logarithm the bound has slope {results['bound_slope']:.3f} at these N."
    )
    every_n = "Means over seeds; the share recovered with Wilson's 95 % interval."
    return parts.page(
        "theory.html.j2",
        "lessvfl_bench.pages",
        title=title,
        line=words,
        verdict=results["verdict"],
        left=left,
        right=right,
        tables=[
            ("Fitted rates", rates, list(_rates(results))),
            ("Every N", every_n, list(_sizes(results))),
        ],
        words=WORDED,
        footer="Made by lessvfl from theory.json; every number is in it.",
    )


def _title(name: str) -> str:
    """Name a method or a part of the benchmark."""
    method, comma, rest = name.partition(",")
    known = METHODS.get(method)
    return f"{known[0]}{comma}{rest}" if known else name.capitalize()


def _rates(results: Results) -> Iterator[dict[str, str]]:
    for rate in results["rates"]:
        slopes = (rate["slope"], rate["low"], rate["high"], results["theorem_rate"])
        texts = (MISSING if slope is None else f"{slope:.2f}" for slope in slopes)
        names = ("Slope", "95 % from", "to", "Theorem")
        yield {
            "Method": _title(rate["method"]),
            "Parties": str(rate["parties"] or MISSING),
            "Quantity": rate["quantity"],
            **dict(zip(names, texts, strict=True)),
            "Sizes": str(rate["n_points"]),
            "Note": rate["note"],
        }


def _sizes(results: Results) -> Iterator[dict[str, str]]:
    for part, more in (("results", ""), ("surplus", ", surplus components")):
        for entry in results[part]:
            hit = entry["recovery"]
            yield {
                "Method": _title(entry["method"]) + more,
                "Parties": str(entry["parties"]),
                "N": f"{entry['n']:,}",
                "Norm": f"{statistics.fmean(entry['norm']):.2g}",
                "Exact zeros": f"{entry['zero_share']:.1%}",
                "Runs of norm 0": f"{entry['zero_runs']:.0%}",
                "Significant missed": f"{statistics.fmean(entry['missed']):.1f}",
                "Distance": f"{statistics.fmean(entry['distance']):.3f}",
                "Recovered": f"{hit['mean']:.0%}",
                "95 % from": f"{hit['low']:.0%}",
                "to": f"{hit['high']:.0%}",
            }
