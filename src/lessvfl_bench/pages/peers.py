"""The comparison with feature selection on pooled data: one page, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lessvfl.report import figures, parts, tables
from lessvfl.report.tables import plural
from lessvfl_bench.pages import dots

NAME = "peers"
TITLES = {
    **tables.METHOD_TITLES,
    "less-vfl-official-code": "LESS-VFL, official-code",
    "lassonet": "LassoNet",
    "stg": "Stochastic gates",
    "l1-logistic": "L1 logistic regression",
    "boruta": "Boruta",
    "random-forest": "Random forest",
}
COLUMNS = (  # key of a result, head of its column, in a narrow table, kind of number
    ("removed_share", "noise removed", "gone", "score"),
    ("real_kept_share", "real kept", "kept", "score"),
    ("f1", "support F1", "F1", "score"),
    ("accuracy", "accuracy", "acc.", "score"),
    ("balanced_accuracy", "balanced accuracy", "bal.", "score"),
    ("own_accuracy", "own accuracy", "own acc.", "score"),
    ("own_balanced_accuracy", "own balanced accuracy", "own bal.", "score"),
    ("bytes", "MB moved", "MB", "MB"),
    ("seconds", "seconds", "s", "size"),
)
HEADS = ["method", *(title for _, title, *_ in COLUMNS)]
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
SCORES: dots.Marks = (
    ("balanced_accuracy", "common model", figures.BLUE, "o"),
    ("own_balanced_accuracy", "own model", figures.ORANGE, "s"),
)
FIGURES = dots.kept_and_scores(
    SCORES, "Of one common model on the columns kept, and of the method's own."
)


def build_peers(results: Mapping[str, Any], folder: Path) -> Path:
    """Write ``peers.json``, ``.csv``, ``.md`` and ``.html``; return the page."""
    return parts.write_results(
        folder, NAME, results, _lines(results), _markdown(results), _page(results)
    )


def rows_of(results: Mapping[str, Any], name: str) -> list[Result]:
    """Return the results of one data set, in the order of the methods."""
    return [row for row in results["results"] if row["data"] == name]


def title_of(row: Result) -> str:
    """Return the name of a result's method as it is written."""
    return TITLES.get(str(row["method"]), str(row["method"]))


def cells(row: Result, *, narrow: bool = False) -> list[str]:
    """Return a result as text, or that it was skipped; narrow without deviations."""
    if row["skipped"] is not None:
        return [title_of(row), "not installed"]
    texts = [title_of(row)]
    for key, _, _, kind in COLUMNS:
        if row[key] is None:
            texts.append(tables.MISSING)
            continue
        mean, std = row[key]["mean"], row[key]["std"]
        if narrow or (kind != "score" and not std):  # the same for all seeds
            std = None
        texts.append(tables.KINDS[kind](mean, std))
    return texts


def _lines(results: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Return a line for every data set and method, means and deviations apart."""
    keys = ["n_kept", *(key for key, *_ in COLUMNS)]
    paths = [(key, part) for key in keys for part in ("mean", "std")]
    yield ["data", "method", "n_seeds", *map("_".join, paths), "skipped"]
    for row in results["results"]:
        values = [tables.at(row, *path) for path in paths]
        yield [row["data"], row["method"], len(row["seeds"]), *values, row["skipped"]]


def _markdown(results: Mapping[str, Any]) -> str:
    """Return one table a data set."""
    text = [f"{LEGEND}\n"]
    for name in results["data"]:
        lines = map(cells, rows_of(results, name))
        rows = ([*line, *[""] * (len(HEADS) - len(line))] for line in lines)
        text += [f"## {name}\n", *parts.markdown_table(HEADS, rows), ""]
        text += [f"{note}\n" for note in results["notes"][name]]
    return "\n".join(text)


def _page(results: Mapping[str, Any]) -> str:
    title = (
        f"{plural(len(results['methods']), 'method')} of feature selection on "
        f"{plural(len(results['data']), 'data set')}: parties apart, and pooled"
    )
    words = [
        plural(len(results["seeds"]), "seed"),
        f"planted noise {results['spurious']:g} of every party's columns",
        str(results["device"]),
    ]
    notes = [note for many in results["notes"].values() for note in many]
    notes += filter(None, (row["skipped"] for row in results["results"]))
    versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    return parts.page(
        "peers.html.j2",
        "lessvfl_bench.pages",
        title=title,
        line=words,
        legend=LEGEND,
        heads=HEADS,
        sets=[
            _section(f"set{index}", name, rows_of(results, name))
            for index, name in enumerate(results["data"])
        ],
        notes=notes,
        settings=[
            (TITLES.get(name, name), text) for name, text in results["settings"].items()
        ],
        footer=f"Made from {NAME}.json with {versions}; every number is in it.",
    )


def _section(key: str, name: str, rows: Sequence[Result]) -> dict[str, Any]:
    """Return the table of one data set, and its figures."""
    lines = []
    for row in rows:
        title, *values = cells(row)
        lines.append((title, values, row["skipped"] is not None))
    done = [(title_of(row), row) for row in rows if row["skipped"] is None]
    return {"name": name, "rows": lines, "figures": dots.draw(key, done, FIGURES)}
