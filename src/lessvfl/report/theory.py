"""The page of ``lessvfl bench theory``: figures, a table of rates, the verdict.

Takes the plain results of the benchmark and writes ``theory.html``, the same numbers as
``theory.json`` and ``theory.csv``, and every figure as PNG and SVG.
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessvfl.report import figures
from lessvfl.report.page import document, figure, heads, write
from lessvfl.report.tables import MISSING, plural
from lessvfl.run.record import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Results = Mapping[str, Any]
Entry = Mapping[str, Any]

PAGE_NAME = "theory.html"
WORDED = ("Method", "Quantity", "Note")  # columns of words
METHODS = {  # name, title, colour, dashes, marker
    "less-vfl": ("LESS-VFL", figures.BLUE, "-", "o"),
    "local-lasso": ("Local lasso", figures.GREEN, "--", "s"),
    "group-lasso": ("Group lasso", figures.VERMILION, "-.", "^"),
    "centralised": ("Centralised group lasso", figures.BLACK, ":", "D"),
}
DESIGNS = {
    "independent": ("Independent components", figures.BLUE, "-", "o"),
    "correlated": ("One correlated component", figures.VERMILION, "--", "s"),
}
QUANTITIES = {
    "norm": "norm of non-significant weights",
    "distance": "distance to the generating network",
    "recovery": "exact recovery, share of seeds",
}
STAGE2 = {
    "norm": "norm of non-significant weights",
    "distance": "distance to the true server weights",
}


def build_theory(results: Results, folder: Path) -> Path:
    """Write page, figures and numbers of a theory benchmark.

    Parameters
    ----------
    results : mapping
        What ``lessvfl.bench.theory.run.run`` returns.
    folder : Path
        Where to write; made where it is missing.

    Returns
    -------
    Path
        ``theory.html`` in that folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, allow_nan=False, indent=1)
    write_atomically(folder / "theory.json", text.encode())
    write_atomically(folder / "theory.csv", table(results).encode())
    with figures.page_style():
        drawn = _draw(results, folder)
    path = folder / PAGE_NAME
    write(path, _page(results, drawn))
    return path


def table(results: Results) -> str:
    """Return every run as one line of CSV."""
    stream = io.StringIO()
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow(
        ["part", "method", "parties", "n", "seed", "norm", "distance", "recovered"]
    )
    for part in ("results", "surplus", "stage2"):
        for entry in results[part]:
            name = entry.get("method") or entry["design"]
            runs = zip(
                results["seeds"],
                entry["norm"],
                entry["distance"],
                entry["recovered"],
                strict=True,
            )
            for seed, norm, distance, recovered in runs:
                lines.writerow(
                    [
                        part,
                        name,
                        entry.get("parties", ""),
                        entry["n"],
                        seed,
                        repr(norm),
                        repr(distance),
                        int(recovered),
                    ]
                )
    return stream.getvalue()


# -- figures ---------------------------------------------------------------------------


def _panels(n_panels: int, height: float) -> list[Axes]:
    """Make axes side by side, two in a row, with the same scales."""
    from matplotlib.figure import Figure

    n_rows = math.ceil(n_panels / 2)
    n_columns = min(n_panels, 2)
    width = 4.7 if n_columns == 1 else 5.6
    made = Figure(figsize=(width, height * n_rows + 0.7), layout="constrained")
    grid = made.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True)
    axes = list(grid.flat)
    for extra in axes[n_panels:]:
        extra.set_axis_off()
    return axes[:n_panels]


def _line(
    ax: Axes,
    entries: Sequence[Entry],
    quantity: str,
    look: tuple[str, str, str, str],
    floor: float,
) -> None:
    """Draw means over seeds with their range; zeros hollow on the floor."""
    title, color, dashes, marker = look
    entries = sorted(entries, key=lambda entry: float(entry["n"]))
    sizes = [entry["n"] for entry in entries]
    if quantity == "recovery":
        means = [entry["recovery"]["mean"] for entry in entries]
        lows = [entry["recovery"]["low"] for entry in entries]
        highs = [entry["recovery"]["high"] for entry in entries]
    else:
        means = [max(floor, statistics.fmean(entry[quantity])) for entry in entries]
        lows = [max(floor, min(entry[quantity])) for entry in entries]
        highs = [max(floor, max(entry[quantity])) for entry in entries]
    ax.fill_between(sizes, lows, highs, color=color, alpha=0.12, lw=0)
    ax.plot(sizes, means, color=color, ls=dashes, lw=1.6, label=title)
    for size, mean in zip(sizes, means, strict=True):
        zero = quantity != "recovery" and mean <= floor
        face = "white" if zero else color
        ax.plot([size], [mean], marker=marker, ms=4.5, mfc=face, mec=color, ls="")


def _floor(entries: Sequence[Entry], quantity: str) -> float:
    """Return where zeros are drawn: a little under the least number above zero."""
    if quantity == "recovery":
        return 0.0
    positive = [value for entry in entries for value in entry[quantity] if value > 0]
    return min(positive) / 3 if positive else 1e-3


def _guide(ax: Axes, results: Results, entries: Sequence[Entry], quantity: str) -> None:
    """Draw the theorem's rate, through the largest mean at the first size."""
    if quantity == "recovery":
        return
    sizes = results["n"]
    top = max(
        statistics.fmean(entry[quantity]) for entry in entries if entry["n"] == sizes[0]
    )
    if top > 0:
        rate = results["theorem_rate"]
        ends = [top * (size / sizes[0]) ** rate for size in (sizes[0], sizes[-1])]
        ax.plot(
            [sizes[0], sizes[-1]],
            ends,
            color=figures.GREY,
            lw=3,
            alpha=0.6,
            label=f"theorem's rate, slope {rate:g}",
        )


def _finish(axes: Sequence[Axes], words: str, quantity: str) -> None:
    for ax in axes:
        ax.set_xscale("log")
        ax.grid(color="#E4E7EB", lw=0.6)
        ax.set_axisbelow(True)
        if quantity == "recovery":
            ax.set_ylim(-0.03, 1.03)
        else:
            ax.set_yscale("log")
    root = axes[0].figure.get_figure(root=True)
    assert root is not None
    root.supxlabel("samples N", fontsize=9)
    root.supylabel(words, fontsize=9)
    lines, names = axes[0].get_legend_handles_labels()
    root.legend(lines, names, loc="outside upper center", ncols=2, frameon=False)


def plot_methods(results: Results, quantity: str) -> list[Axes]:
    """Draw one quantity against N, a panel for every number of parties."""
    everything = results["results"]
    alone = [entry for entry in everything if entry["method"] == "centralised"]
    floor = _floor(everything, quantity)
    axes = _panels(len(results["parties"]), 2.0)
    for ax, n_parties in zip(axes, results["parties"], strict=True):
        own = [
            entry
            for entry in everything
            if entry["parties"] == n_parties and entry["method"] != "centralised"
        ]
        _guide(ax, results, [*own, *alone], quantity)
        for method, look in METHODS.items():
            shown = [entry for entry in [*own, *alone] if entry["method"] == method]
            _line(ax, shown, quantity, look, floor)
        ax.set_title(plural(n_parties, "party", "parties"), fontsize=9)
    _finish(axes, QUANTITIES[quantity], quantity)
    return axes


def plot_stage2(results: Results, quantity: str) -> list[Axes]:
    """Draw one quantity of stage 2 alone against N."""
    entries = results["stage2"]
    floor = _floor(entries, quantity)
    axes = _panels(1, 2.6)
    _guide(axes[0], results, entries, quantity)
    for design, look in DESIGNS.items():
        shown = [entry for entry in entries if entry["design"] == design]
        _line(axes[0], shown, quantity, look, floor)
    _finish(axes, STAGE2[quantity], quantity)
    return axes


def plot_surplus(results: Results, quantity: str) -> list[Axes]:
    """Draw one quantity with several components a party against N."""
    entries = results["surplus"]
    floor = _floor(entries, quantity)
    axes = _panels(1, 2.6)
    _guide(axes[0], results, entries, quantity)
    for method in ("less-vfl", "local-lasso"):
        shown = [entry for entry in entries if entry["method"] == method]
        _line(axes[0], shown, quantity, METHODS[method], floor)
    _finish(axes, QUANTITIES[quantity], quantity)
    return axes


RANGES = "Lines are means over seeds, bands run from the least to the greatest seed"
ZEROS = "A hollow mark on the lowest line is a mean of exactly zero."
FIGURES: dict[str, tuple[Callable[[Results, str], list[Axes]], str, str, str]] = {
    "recovery": (
        plot_methods,
        "recovery",
        "Exact recovery of the support",
        "Share of seeds whose kept features are the significant ones, no more and no "
        "less; bands are Wilson's 95 % intervals.",
    ),
    "norm": (
        plot_methods,
        "norm",
        "Weights on non-significant features",
        f"Euclidean norm of first-layer weights after selection. {RANGES}. {ZEROS}",
    ),
    "distance": (
        plot_methods,
        "distance",
        "Distance to the generating network",
        "Root mean squared difference of predictions on fresh rows, without noise; the "
        f"theorem's distance bounds it up to a constant. {RANGES}.",
    ),
    "stage2-distance": (
        plot_stage2,
        "distance",
        "Stage 2 alone: distance to the true server weights",
        "Known party networks. The theorem bounds this distance and promises no exact "
        f"recovery. {RANGES}.",
    ),
    "stage2-norm": (
        plot_stage2,
        "norm",
        "Stage 2 alone: weights on non-significant components",
        f"With a correlated component the lasso keeps some however large N is. {ZEROS}",
    ),
    "surplus-norm": (
        plot_surplus,
        "norm",
        "More components than needed",
        "Several components a party where one would do: weights on non-significant "
        f"features. {ZEROS}",
    ),
}


def _draw(results: Results, folder: Path) -> dict[str, str]:
    """Write every figure as PNG and SVG, and return each as a piece of the page."""
    drawn = {}
    for name, (plot, quantity, title, caption) in FIGURES.items():
        if plot is plot_surplus and not results["surplus"]:
            continue
        axes = plot(results, quantity)
        root = axes[0].figure.get_figure(root=True)
        assert root is not None
        root.savefig(folder / f"theory-{name}.png", dpi=160)
        root.savefig(folder / f"theory-{name}.svg", metadata={"Date": None})
        alt = f"{title}; the same numbers are in the tables and in theory.csv."
        drawn[name] = figure(axes[0], name, title, caption, alt)
    return drawn


# -- the page --------------------------------------------------------------------------


def _page(results: Results, drawn: Mapping[str, str]) -> str:
    sizes = results["n"]
    title = "The theory, checked: LESS-VFL and its baselines against N"
    lam = results["lambda"]
    line = (
        f"{results['network']} networks · "
        f"{plural(len(results['seeds']), 'seed')} · "
        f"N = {sizes[0]:,} to {sizes[-1]:,} · "
        f"{results['n_significant']} of {results['n_columns']} features significant · "
        f"λ_s = {lam['server']:g} N^(-1/4), λ_m = {lam['party']:g} N^(-1/4), "
        f"group lasso {lam['joint']:g} N^(-1/4) · "
        f"{results['seconds']:.0f} s on {results['device']}"
    )
    left = [drawn[n] for n in ("norm", "stage2-distance", "surplus-norm") if n in drawn]
    right = [drawn[name] for name in ("distance", "stage2-norm")]
    body = [
        f'<header><p class="soft">{escape(line)}</p><h1>{escape(title)}</h1></header>',
        _verdict(results["verdict"]),
        f'<section class="figures"><div class="column">{drawn["recovery"]}'
        f"{''.join(left[1:])}</div>"
        f'<div class="column">{left[0]}{"".join(right)}</div></section>',
        _rates(results),
        _sizes(results),
    ]
    footer = "Made by lessvfl from theory.json; every number is in it."
    return document(title, body, footer)


def _verdict(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return (
        '<section class="card notes"><h2>What the numbers say</h2>'
        f"<ul>{items}</ul></section>"
    )


def _scroll(title: str, words: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return a card with a table; every row has the same columns."""
    return (
        f'<section class="card"><h2>{escape(title)}</h2>'
        f'<p class="soft">{escape(words)}</p>'
        f'<div class="scroll tall" tabindex="0" role="region" '
        f'aria-label="{escape(title)}"><table class="runs"><thead><tr>'
        f"{heads(rows[0], WORDED)}</tr></thead>"
        f"<tbody>{''.join(map(_row, rows))}</tbody></table></div></section>"
    )


def _row(cells: Mapping[str, str]) -> str:
    items = "".join(
        f'<td class="{"word" if name in WORDED else "number"}">{escape(cell)}</td>'
        for name, cell in cells.items()
    )
    return f"<tr>{items}</tr>"


def _title(name: str) -> str:
    """Name a method or a part of the benchmark."""
    method, comma, rest = name.partition(",")
    known = METHODS.get(method)
    return f"{known[0]}{comma}{rest}" if known else name.capitalize()


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _rates(results: Results) -> str:
    rows = [
        {
            "Method": _title(rate["method"]),
            "Parties": str(rate["parties"] or MISSING),
            "Quantity": rate["quantity"],
            "Slope": _number(rate["slope"]),
            "95 % from": _number(rate["low"]),
            "to": _number(rate["high"]),
            "Theorem": _number(results["theorem_rate"]),
            "Sizes": str(rate["n_points"]),
            "Note": rate["note"],
        }
        for rate in results["rates"]
    ]
    words = (
        "Least squares of log mean against log N; intervals by a bootstrap over seeds. "
        "The theorem bounds from above: a slope below its rate agrees with it. With "
        f"its logarithm the bound has slope {results['bound_slope']:.3f} at these N."
    )
    return _scroll("Fitted rates", words, rows)


def _sizes(results: Results) -> str:
    rows = []
    for part, more in (("results", ""), ("surplus", ", surplus components")):
        for entry in results[part]:
            hit = entry["recovery"]
            rows.append(
                {
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
            )
    words = "Means over seeds; the share recovered with Wilson's 95 % interval."
    return _scroll("Every N", words, rows)
