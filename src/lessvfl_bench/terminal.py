"""What the benchmarks show in the terminal; their pages have the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lessvfl_bench.pages import equal, peers, rivals
from lessvfl_bench.pages.paper import entries

# The measure of every table that stands for it in the terminal.
HEADLINES = ("cost_mib", "total_mib", "train_accuracy_percent", "removed_percent")


def show_paper(results: dict[str, Any]) -> None:
    """Show the numbers that the paper prints beside ours."""
    console = Console()
    for fact in results["data"]:
        if fact.get("note"):
            console.print(f"{fact['name']}: {fact['note']}", highlight=False)
    heads = ("data", "method", "settings", "measure", "paper", "ours", "hits")
    for number, found in entries.read(results).items():
        title = Text(f"Table {number}. {entries.origins_text(found)}")
        table = Table(*heads, title=title, title_justify="left")
        for entry in found:
            if entry.measure not in HEADLINES or None in (entry.paper, entry.ours):
                continue
            if entry.settings.get("target") == "80 % absolute":
                continue  # the released script's; it is on the page
            table.add_row(
                entry.data,
                entry.method,
                _short(entry.settings),
                entries.measure_title(entry.measure),
                entries.pair_text(entry.paper, entry.kind),
                entries.ours_text(entry),
                f"{entry.count('hits')} of {entry.count('seeds')}",
            )
        if table.row_count:
            console.print(table)
    total = results["seconds"]["total"]
    console.print(f"{total:.1f} s on {results['device']}", highlight=False)


def _short(settings: Mapping[str, Any]) -> str:
    """Write the settings of an entry in few letters."""
    names = {"pretrain_epochs": "E", "lam_party": "λm", "lam_server": "λs"}
    parts = [f"{names[key]}={settings[key]:g}" for key in names if key in settings]
    if settings["choice"] not in ("published", "grid"):
        parts.append(f"({settings['choice']})")
    return " ".join(parts)


def show_theory(results: dict[str, Any]) -> None:
    """Show exact recovery and norms by N, then the verdict."""
    console = Console()
    table = Table(title="Exact recovery, and the norm of non-significant weights")
    table.add_column("method")
    for head in ("M", *(f"N = {size:,}" for size in results["n"])):
        table.add_column(head, justify="right")
    rows: dict[tuple[str, int], list[str]] = {}
    for entry in results["results"]:
        mean = sum(entry["norm"]) / len(entry["norm"])
        cell = f"{entry['recovery']['mean']:.0%}, {mean:.2g}"
        rows.setdefault((entry["method"], entry["parties"]), []).append(cell)
    for (method, n_parties), cells in sorted(rows.items()):
        table.add_row(method, str(n_parties), *cells)
    console.print(table)
    for sentence in results["verdict"]:
        console.print(sentence, highlight=False)
    console.print(f"{results['seconds']:.1f} s on {results['device']}")


def show_peers(results: dict[str, Any]) -> None:
    """Show one table a data set."""
    console = Console()
    for name in results["data"]:
        table = Table(title=name, title_justify="left", box=box.SIMPLE, padding=0)
        table.add_column("method", no_wrap=True)
        for _, _, head, _ in peers.COLUMNS:
            table.add_column(head, justify="right")
        for row in peers.rows_of(results, name):
            table.add_row(*peers.cells(row, narrow=True))
        console.print(table)
        for note in results["notes"][name]:
            console.print(f"Note: {note}", highlight=False, style="dim")
    console.print(peers.NARROW_LEGEND, highlight=False, style="dim")
    console.print(f"{results['seconds']:.1f} s on {results['device']}", highlight=False)


# What of a row stands in the terminal; the page has the rest.
NARROW = ("method", "lambdas by", "hits", "MiB", "noise removed", "accuracy", "ahead")


def show_equal(results: dict[str, Any]) -> None:
    """Show a table a transport and data set, then what they say."""
    console = Console()
    for transport in equal.transports(results):
        rows = equal.shown(results, transport)
        for name in results["data"]:
            title = f"{name}: {equal.TITLES[transport].lower()}"
            table = Table(*NARROW, title=title, title_justify="left")
            for row in rows:
                if row["data"] == name:
                    table.add_row(*(row[head].strip("*") for head in NARROW))
            console.print(table)
    for sentence in equal.sentences(results):
        console.print(sentence, highlight=False)
    for row in equal.factors(results):
        console.print(", ".join(f"{k} {v}" for k, v in row.items() if v))
    console.print(f"{results['seconds']:.1f} s, {results['jobs']} at a time")


def show_rivals(results: dict[str, Any]) -> None:
    """Show a table a place, then what rivals are ahead in and what is revealed."""
    console = Console()
    for place in results["places"]:
        rows = rivals.rows_of(results, place)
        columns = [column for column in rivals.shown(rows) if column.narrow]
        table = Table(title=place, title_justify="left", box=box.SIMPLE, padding=0)
        table.add_column("method", no_wrap=True)
        for column in columns:
            table.add_column(column.narrow, justify="right", no_wrap=True)
        for row in rows:
            cells = (rivals.cell(row, column) for column in columns)
            table.add_row(str(row["method"]), *cells)
        console.print(table)
    console.print(rivals.NARROW_LEGEND, highlight=False, style="dim")
    behind = f"Where {results['default']} is behind, and the best rival"
    for title, lines in (
        (rivals.PUBLISHED_TITLE, rivals.published_table(results)),
        (behind, rivals.behind(results, rivals.SCORED)),
    ):
        if lines:
            table = Table(*lines[0], title=Text(title), title_justify="left")
            table.box = box.SIMPLE
            for line in lines:
                table.add_row(*line.values())
            console.print(table)
    for sentence in rivals.refused(results):
        console.print(f"Refused: {sentence}", highlight=False)
    for line in rivals.revealed(results):
        words = f"{line['method']} reveals {line['reveals']}."
        console.print(words, highlight=False, style="dim")
    console.print(f"{results['seconds']:.1f} s, {results['jobs']} at a time")
