"""A benchmark as files: the paper's tables and figures beside ours, and one page.

On the page every number of ours names its place in the results and its records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lessvfl.report import figures, parts
from lessvfl.report.tables import MISSING, at, method_title, number, plural, value_at
from lessvfl.run.record import write_atomically
from lessvfl_bench.pages.paper import entries, files, panels, tables
from lessvfl_bench.pages.paper.entries import ComparedNumber
from lessvfl_bench.pages.paper.tables import TableBlock, TableRow

PAGE_NAME = "index.html"
MANY_ROWS = 14  # a table with more of them scrolls within its card
SETTINGS = ("pretrain_epochs", "lam_party", "lam_server")

DataFacts = Mapping[str, Mapping[str, Any]]


def build_bench(results: Mapping[str, Any], folder: Path) -> Path:
    """Write the tables, the figures and the page of a benchmark.

    Parameters
    ----------
    results : mapping
        What ``lessvfl bench paper --json`` prints: header, data, tables and figures.
    folder : Path
        Where to write ``tables/``, ``figures/`` and ``index.html``; it is made where it
        is missing.

    Returns
    -------
    Path
        The page.
    """
    folder = Path(folder)
    found = {table: some for table, some in entries.read(results).items() if some}
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for table, numbers in found.items():
        for ending, text_of in files.WRITERS.items():
            path = folder / "tables" / f"table{table}.{ending}"
            parts.write(path, text_of(table, numbers))
    facts = {str(fact["name"]): fact for fact in results.get("data") or []}
    drawings = _draw(results, facts, folder / "figures")
    path = folder / PAGE_NAME
    parts.write(path, _page(results, facts, found, drawings))
    return path


def _page(
    results: Mapping[str, Any],
    facts: DataFacts,
    found: Mapping[str, Sequence[ComparedNumber]],
    drawings: Mapping[str, tuple[str, list[parts.Drawing]]],
) -> str:
    notes = []
    for name, fact in facts.items():
        if note := fact.get("note"):  # which may or may not name its data
            known = entries.data_title(fact, name)
            notes.append(note if known in str(note) else f"{known}: {note}")
    marks = tables.legend(entry for numbers in found.values() for entry in numbers)
    seconds = results.get("seconds") or {}
    return parts.page(
        "paper.html.j2",
        "lessvfl_bench.pages",
        title="The paper's numbers beside ours",
        line=_line(results),
        contents=[
            *((f"table-{table}", f"Table {table}") for table in found),
            *((f"figure-{name}", f"Figure {name}") for name in drawings),
            ("data", "Data"),
        ],
        agreement=list(_agreement(found)),
        verdicts=entries.VERDICTS,
        notes=[*notes, *(f"{note}." for note in marks.values())],
        tables=[_table(table, numbers) for table, numbers in found.items()],
        figures=drawings,
        data=_data(facts),
        seconds={part: f"{number(seconds, part) or 0:,.1f}" for part in seconds},
        many_rows=MANY_ROWS,
        stand_in=entries.STAND_IN,
        by_data=_by_data,
        bound=_bound,
        marks=_marks,
        hover=_hover,
        footer=f"Made by lessvfl {results.get('lessvfl', '')}. The same tables stand "
        "in tables/ as Markdown, LaTeX and CSV, the figures in figures/ as PNG and "
        "SVG.",
    )


def _line(results: Mapping[str, Any]) -> list[str]:
    """Say how the benchmark was run, in one line above the headline."""
    words, seeds = [], results.get("seeds") or []
    if profile := results.get("profile"):
        words.append(f"profile {profile}")
    if settings := results.get("settings"):
        words.append(f"settings: {settings}")
    if source := results.get("source"):
        words.append(f"data: {source}")
    words.append(f"{plural(len(seeds), 'seed')} ({', '.join(map(str, seeds))})")
    if device := results.get("device"):
        words.append(f"on {device}")
    if (total := number(results, "seconds", "total")) is not None:
        words.append(f"{total:,.0f} seconds")
    return words


def _agreement(
    found: Mapping[str, Sequence[ComparedNumber]],
) -> Iterator[tuple[str, str, Counter[entries.Verdict]]]:
    """Count how the paper's numbers compare with ours, by table and settings."""
    for table, numbers in found.items():
        for section in tables.sections(table, numbers):
            counts = Counter(e.verdict for e in section.numbers if e.verdict)
            if counts:
                yield table, section.title, counts


# -- tables ----------------------------------------------------------------------------


def _table(table: str, numbers: Sequence[ComparedNumber]) -> dict[str, Any]:
    layout = tables.LAYOUTS.get(table)
    n_printed = sum(entry.printed is not None for entry in numbers)
    said = f"The paper prints {n_printed} of these {len(numbers)} numbers. "
    return {
        "name": table,
        "caption": tables.caption(table),
        "about": f"{said}{entries.origins_text(numbers)}".strip(),
        "short": layout is not None and not layout.keys,  # one row per data set
        "sections": [
            {
                "title": section.title,
                "blocks": section.blocks,
                "chosen": section.chosen and list(tables.chosen_lines(section.chosen)),
                "by_seed": _by_seed(section.blocks),
            }
            for section in tables.sections(table, numbers)
        ],
    }


def _by_data(block: TableBlock) -> list[list[TableRow]]:
    """Return the rows of a block, those of one data set together."""
    found: dict[str, list[TableRow]] = {}
    for row in block.rows:
        found.setdefault(row.data, []).append(row)
    return list(found.values())


def _bound(words: Iterable[str]) -> list[str]:
    """Let no line break before a unit or within a ±."""
    return [w.replace("± ", "±\u00a0").replace(" %", "\u00a0%") for w in words]


def _marks(entry: ComparedNumber) -> list[tuple[str, str]]:
    """Return the marks of a number with their words, no number alone in its line."""
    return [
        (mark, re.sub(r"(?<=\d) |(?<!;) (?=\d)", "\u00a0", said))
        for mark, (_, said) in entry.marks.items()
    ]


def _hover(entry: ComparedNumber) -> str:
    """Say where a number comes from, seed by seed."""
    seeds = (f"seed {s}: {n} ({record})" for s, n, record in entries.by_seed(entry))
    return entries.NOT_AVAILABLE if entry.ours is None else "\n".join(seeds)


def _by_seed(blocks: Iterable[TableBlock]) -> dict[str, Any]:
    """Return every entry with the number of every seed and where it is recorded."""
    lines: list[tuple[str, list[str]]] = []
    seeds: Sequence[Any] = ()
    for block in blocks:
        for row in block.rows:
            for entry in filter(None, map(row.cells.get, block.columns)):
                seeds = entry.seeds
                values = [text for _, text, _ in entries.by_seed(entry)]
                texts = [
                    row.title,
                    method_title(entry.method),
                    entries.measure_title(entry.measure),
                    entries.settings_text(entry, SETTINGS),
                    ", ".join(values) or entries.NOT_AVAILABLE,
                    entries.pointers(at(entry.ours, "records") or []) or MISSING,
                ]
                lines.append((entry.path, texts))
    said = f"seeds {', '.join(map(str, seeds))}" if seeds else "seeds"
    names = ["Data", "Method", "Measure", "Settings", said, "Records"]
    return {"names": names, "lines": lines}


# -- figures ---------------------------------------------------------------------------


def _draw(
    results: Mapping[str, Any], facts: DataFacts, folder: Path
) -> dict[str, tuple[str, list[parts.Drawing]]]:
    """Write the panels of every figure; return its title and its panels."""
    found = results.get("figures") or {}
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {}
    for name in sorted(found, key=lambda name: (len(name), name)):
        drawn = []
        stems = panels.file_names(name, found[name])
        for panel, stem in zip(found[name], stems, strict=True):
            with figures.page_style():
                ax = panels.plot_panel(panel, figures.new_axes(3.2))
                for ending, content in panels.files(ax).items():
                    write_atomically(folder / f"{stem}.{ending}", content)
                title = panels.panel_title(panel, facts)
                caption, alt = panels.panel_caption(panel), panels.describe(panel)
                drawn.append(parts.figure(ax, stem, title, caption, alt))
        title = ". ".join(filter(None, [f"Figure {name}", panels.TITLES.get(name)]))
        if drawn:
            drawings[name] = (title, drawn)
    return drawings


DATA_COLUMNS = (  # head, where in the facts, how it is written
    ("training rows", "n_train", ",.0f"),
    ("test rows", "n_test", ",.0f"),
    ("features", "n_features", ",.0f"),
    ("real", "n_real", ",.0f"),
    ("parties", "n_parties", ",.0f"),
    ("majority class", "majority", ".3f"),
    ("VFL (Original) accuracy", "baseline.accuracy", ".3f"),
    ("balanced", "baseline.balanced_accuracy", ".3f"),
)


def _data(facts: DataFacts) -> dict[str, Any]:
    """Return what is known of every data set; a stand-in says so."""
    lines = []
    for name, fact in facts.items():
        values = []
        for _, path, form in DATA_COLUMNS:
            value = value_at(fact, path)
            values.append(MISSING if value is None else format(value, form))
        said = entries.NOT_AVAILABLE
        if fact.get("same") is not None:
            said = "the paper's" if fact["same"] else entries.STAND_IN
        if fact.get("note"):
            said += f": {fact['note']}"
        lines.append((entries.data_title(fact, name), values, said))
    names = ["", *(title for title, _, _ in DATA_COLUMNS), "data"]
    return {"names": names, "lines": lines}
