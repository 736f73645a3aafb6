"""The comparison with feature selection on pooled data: one page, and its tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessvfl.report import figures, tables
from lessvfl.report.page import document, figure, heads, notes_card, write
from lessvfl.report.tables import METHOD_TITLES, MISSING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "peers"
TITLES = {
    **METHOD_TITLES,
    "less-vfl-official-code": "LESS-VFL, official-code",
    "lassonet": "LassoNet",
    "stg": "Stochastic gates",
    "l1-logistic": "L1 logistic regression",
    "boruta": "Boruta",
    "random-forest": "Random forest",
}
COLUMNS = (  # key of a result, head of its column, in a narrow table, kind of number
    ("removed_share", "spurious removed", "gone", "score"),
    ("real_kept_share", "real kept", "kept", "score"),
    ("f1", "support F1", "F1", "score"),
    ("accuracy", "accuracy", "acc.", "score"),
    ("balanced_accuracy", "balanced accuracy", "bal.", "score"),
    ("own_accuracy", "own accuracy", "own acc.", "score"),
    ("own_balanced_accuracy", "own balanced accuracy", "own bal.", "score"),
    ("bytes", "MB moved", "MB", "size"),
    ("seconds", "seconds", "s", "size"),
)
LEGEND = (
    "Means over seeds ± the sample standard deviation, on test rows. Accuracy and "
    "balanced accuracy are those of one common model, a standardised logistic "
    "regression trained on the columns kept; own are those of the method's own final "
    "model. MB moved are training rows to one place for the methods on pooled data, "
    "and payload both ways for ours; 1 MB is 1,000,000 bytes."
)
NARROW_LEGEND = (
    "Means over seeds, on test rows: spurious features gone, real ones kept, F1 of the "
    "support; accuracy and balanced accuracy of one common model on the columns kept, "
    "and of the method's own; MB moved; seconds. Deviations are in the JSON."
)

Result = Mapping[str, Any]


def build_peers(results: Mapping[str, Any], folder: Path) -> Path:
    """Write the comparison as JSON, CSV, Markdown and one page.

    Parameters
    ----------
    results : mapping
        The object that ``lessvfl bench peers --json`` prints.
    folder : Path
        Where to write ``peers.json``, ``.csv``, ``.md`` and ``.html``; it must exist.

    Returns
    -------
    Path
        The page.
    """
    texts = {
        "json": json.dumps(results, indent=1, allow_nan=False) + "\n",
        "csv": _csv(results),
        "md": markdown(results),
        "html": _page(results),
    }
    for suffix, text in texts.items():
        write(folder / f"{NAME}.{suffix}", text)
    return folder / f"{NAME}.html"


def rows_of(results: Mapping[str, Any], name: str) -> list[Result]:
    """Return the results of one data set, in the order of the methods."""
    return [row for row in results["results"] if row["data"] == name]


def title_of(row: Result) -> str:
    """Return the name of a result's method as it is written."""
    return TITLES.get(str(row["method"]), str(row["method"]))


def cells(row: Result, *, narrow: bool = False) -> list[str]:
    """Return a result as text: its method, then one cell a column.

    A method that was skipped has one cell, which says so; a narrow table has no room
    for deviations.
    """
    if row["skipped"] is not None:
        return [title_of(row), "not installed"]
    texts = (_text(row[key], key, kind, narrow) for key, _, _, kind in COLUMNS)
    return [title_of(row), *texts]


def _text(spread: Mapping[str, Any] | None, key: str, kind: str, narrow: bool) -> str:
    if spread is None:
        return MISSING
    mean, std = spread["mean"], spread["std"]
    if key == "bytes":
        mean, std = mean / 1e6, None if std is None else std / 1e6
    if narrow or (kind == "size" and not std):  # the same for all seeds, by its nature
        std = None
    return tables.KINDS[kind](mean, std)


# -- files -----------------------------------------------------------------------------


def _csv(results: Mapping[str, Any]) -> str:
    """Write one line a data set and method, means and deviations apart."""
    stream = io.StringIO()
    keys = ["n_kept", *(key for key, *_ in COLUMNS)]
    parts = ("mean", "std")
    writer = csv.writer(stream, lineterminator="\n")
    numbers = [f"{key}_{part}" for key in keys for part in parts]
    writer.writerow(["data", "method", "n_seeds", *numbers, "skipped"])
    for row in results["results"]:
        values = [tables.at(row, key, part) for key in keys for part in parts]
        named = [row["data"], row["method"], len(row["seeds"])]
        writer.writerow([*named, *values, row["skipped"]])
    return stream.getvalue()


def markdown(results: Mapping[str, Any]) -> str:
    """Return one table a data set."""
    head = ["method", *(title for _, title, *_ in COLUMNS)]
    text = [f"{LEGEND}\n"]
    for name in results["data"]:
        text += [f"## {name}\n", _line(head), _line(["---"] * len(head))]
        for row in rows_of(results, name):
            line = cells(row)
            text.append(_line([*line, *[""] * (len(head) - len(line))]))
        text.append("")
        text += [f"{note}\n" for note in results["notes"][name]]
    return "\n".join(text)


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


# -- the page --------------------------------------------------------------------------


def _page(results: Mapping[str, Any]) -> str:
    n_data, n_seeds = len(results["data"]), len(results["seeds"])
    n_methods = len(results["methods"])
    title = (
        f"{tables.plural(n_methods, 'method')} of feature selection on "
        f"{tables.plural(n_data, 'data set')}: parties apart, and pooled"
    )
    line = (
        f"{tables.plural(n_seeds, 'seed')} · planted noise "
        f"{results['spurious']:g} of every party's columns · {results['device']}"
    )
    body = [
        f'<header><p class="soft">{escape(line)}</p><h1>{escape(title)}</h1></header>',
        f'<p class="soft">{escape(LEGEND)}</p>',
    ]
    for index, name in enumerate(results["data"]):
        body.append(_section(f"set{index}", name, rows_of(results, name)))
    sentences = dict.fromkeys(
        row["skipped"] for row in results["results"] if row["skipped"] is not None
    )
    body.append(notes_card([*_notes(results), *sentences]))
    body.append(_settings(results["settings"]))
    versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    footer = f"Made from {NAME}.json with {escape(versions)}; every number is in it."
    return document(title, body, footer)


def _notes(results: Mapping[str, Any]) -> Iterator[str]:
    for notes in results["notes"].values():
        yield from notes


def _section(key: str, name: str, rows: Sequence[Result]) -> str:
    lines = []
    for row in rows:
        title, *values = cells(row)
        word = f'<td class="word">{escape(title)}</td>'
        if row["skipped"] is None:
            numbers = "".join(f'<td class="number">{escape(v)}</td>' for v in values)
        else:
            numbers = f'<td class="word" colspan="{len(COLUMNS)}">not installed</td>'
        lines.append(f"<tr>{word}{numbers}</tr>")
    columns = heads(["method", *(title for _, title, *_ in COLUMNS)], ["method"])
    return (
        f'<section><div class="card"><h2>{escape(name)}</h2>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Methods">'
        f'<table class="runs"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></div>{_figures(key, rows)}"
        "</section>"
    )


def _figures(key: str, rows: Sequence[Result]) -> str:
    done = [row for row in rows if row["skipped"] is None]
    if not done:
        return ""
    drawn = []
    with figures.page_style():
        for part, title, caption, marks in (
            (
                "kept",
                "What was kept",
                "Spurious features should go; real ones need not all stay.",
                (
                    ("removed_share", "spurious removed", figures.VERMILION, "o"),
                    ("real_kept_share", "real kept", figures.BLUE, "s"),
                    ("f1", "support F1", figures.GREEN, "D"),
                ),
            ),
            (
                "score",
                "Balanced accuracy on test rows",
                "Of one common model on the columns kept, and of the method's own.",
                (
                    ("balanced_accuracy", "common model", figures.BLUE, "o"),
                    ("own_balanced_accuracy", "own model", figures.ORANGE, "s"),
                ),
            ),
        ):
            known = [mark for mark in marks if any(row[mark[0]] for row in done)]
            ax = figures.new_axes(0.9 + 0.26 * len(done))
            _dots(ax, done, known)
            drawn.append(figure(ax, f"{key}-{part}", title, caption, _alt(done, known)))
    return f'<div class="figures">{"".join(drawn)}</div>'


Marks = Sequence[tuple[str, str, str, str]]


def _dots(ax: Axes, rows: Sequence[Result], marks: Marks) -> None:
    """Draw one line a method, a mark a number, a bar one deviation to each side."""
    for index, (key, title, color, marker) in enumerate(marks):
        lift = 0.16 * (index - (len(marks) - 1) / 2)  # no mark hides another
        known = [(i, row[key]) for i, row in enumerate(rows) if row[key] is not None]
        means = [spread["mean"] for _, spread in known]
        stds = [spread["std"] or 0.0 for _, spread in known]
        ax.errorbar(
            means,
            [i + lift for i, _ in known],
            xerr=[  # a share ends at 0 and at 1
                [min(s, m) for m, s in zip(means, stds, strict=True)],
                [min(s, 1 - m) for m, s in zip(means, stds, strict=True)],
            ],
            fmt=marker,
            color=color,
            ms=5,
            lw=1,
            alpha=0.85,
            label=title,
        )
    ax.set_yticks(range(len(rows)), [title_of(row) for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(color="#E4E7EB", lw=0.6)
    ax.set_axisbelow(True)
    ax.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(marks),
        frameon=False,
        columnspacing=1.0,
        handletextpad=0.3,
    )


def _alt(rows: Sequence[Result], marks: Marks) -> str:
    """Say the numbers of a figure in words."""
    return "; ".join(
        f"{title_of(row)}: "
        + ", ".join(
            f"{title} {row[key]['mean']:.2f}"
            for key, title, _, _ in marks
            if row[key] is not None
        )
        for row in rows
    )


def _settings(settings: Mapping[str, str]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{escape(TITLES.get(name, name))}</th>'
        f"<td>{escape(text)}</td></tr>"
        for name, text in settings.items()
    )
    return (
        '<section class="card"><h2>How each method was set</h2>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Settings">'
        f"<table>{lines}</table></div></section>"
    )
