"""A benchmark as files: the paper's tables and figures beside ours, and one page.

On the page every number of ours names its place in the results and its records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lessvfl.report import figures, parts
from lessvfl.report.tables import MISSING, at, method_title, number, plural, value_at
from lessvfl.run.record import write_atomically
from lessvfl_bench.pages.paper import entries, files, panels, tables
from lessvfl_bench.pages.paper.entries import ComparedNumber
from lessvfl_bench.pages.paper.tables import TableBlock, TableCell, TableRow

PAGE_NAME = "index.html"
MANY_ROWS = 14  # a table with more of them scrolls within its card
SETTINGS = ("pretrain_epochs", "lam_party", "lam_server")
BENCH = ' class="bench"'

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
    drawings: Mapping[str, str],
) -> str:
    title = "The paper's numbers beside ours"
    notes = []
    for name, fact in facts.items():
        if note := fact.get("note"):  # which may or may not name its data
            known = entries.data_title(fact, name)
            notes.append(note if known in str(note) else f"{known}: {note}")
    marks = tables.legend(entry for numbers in found.values() for entry in numbers)
    body = [
        parts.header(_line(results), title),
        _contents(found, drawings),
        _agreement(found),
        parts.notes_card([*notes, *(f"{note}." for note in marks.values())]),
        *(_table(table, numbers) for table, numbers in found.items()),
        *drawings.values(),
        _data(facts),
        _seconds(results.get("seconds") or {}),
    ]
    version = escape(str(results.get("lessvfl", "")))
    footer = (
        f"Made by lessvfl {version}. The same tables stand in tables/ as Markdown, "
        "LaTeX and CSV, the figures in figures/ as PNG and SVG."
    )
    return parts.document(title, body, footer)


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


def _contents(found: Iterable[str], drawings: Iterable[str]) -> str:
    links = [(f"table-{table}", f"Table {table}") for table in found]
    links += [(f"figure-{name}", f"Figure {name}") for name in drawings]
    links += [("data", "Data")]
    items = (f'<a href="#{escape(to)}">{escape(text)}</a>' for to, text in links)
    return f'<nav class="contents" aria-label="Contents">{" ".join(items)}</nav>'


def _agreement(found: Mapping[str, Sequence[ComparedNumber]]) -> str:
    """Count how the paper's numbers compare with ours, by table and settings."""
    lines = []
    for table, numbers in found.items():
        for section in tables.sections(table, numbers):
            counts = Counter(e.verdict for e in section.numbers if e.verdict)
            if not counts:
                continue
            words = f'<small class="soft">{escape(section.title)}</small>'
            cells = f'<th scope="row">Table {escape(table)}{words}</th>'
            cells += f"<td>{counts.total()}</td>"
            for verdict in entries.VERDICTS:
                n = counts[verdict]
                cells += f'<td class="{verdict if n else "none"}">{n}</td>'
            lines.append(f"<tr>{cells}</tr>")
    if not lines:
        return ""
    title = "How ours compares"
    said = (
        '<p class="soft">Each number that the paper prints is counted in one column. '
        "Means over all seeds on the paper's data are compared: they lie within twice "
        "the paper's standard deviation, else within 25 % of its mean, else further "
        "off. Repeated rows count as often as the paper prints them.</p>"
    )
    names = ["", "numbers printed", *entries.VERDICTS.values()]
    drawn = parts.scroll(title, parts.table(names, lines, look=BENCH))
    return parts.card(title, said + drawn)


# -- tables ----------------------------------------------------------------------------


def _table(table: str, numbers: Sequence[ComparedNumber]) -> str:
    layout = tables.LAYOUTS.get(table)
    short = layout is not None and not layout.keys  # one row per data set
    n_printed = sum(entry.printed is not None for entry in numbers)
    said = f"The paper prints {n_printed} of these {len(numbers)} numbers. "
    said += entries.origins_text(numbers)
    inner = [f'<p class="soft">{escape(said.strip())}</p>']
    for section in tables.sections(table, numbers):
        if section.title:
            inner.append(f"<h3>{escape(section.title)}</h3>")
        for i, block in enumerate(section.blocks):
            name, tall = f"Table {table}, {block.title}", len(block.rows) > MANY_ROWS
            drawn = parts.scroll(name, _block(block), tall=tall)
            first = f"<h4>{escape(block.title)}</h4>{drawn}"
            inner.append(_folded(block.title, drawn, short) if i else first)
        if section.chosen:
            names, *rows = tables.chosen_lines(section.chosen)
            lines = (parts.line(name, texts) for name, *texts in rows)
            drawn = parts.scroll("Settings used", parts.table(names, lines))
            inner.append(_folded("Settings used", drawn, short))
        name = "Every seed and its record"
        drawn = parts.scroll(name, _by_seed(section.blocks), tall=True)
        inner.append(_folded(name, drawn))
    look = f' id="table-{escape(table)}"'
    return parts.card(tables.caption(table), "".join(inner), look=look)


def _folded(name: str, inner: str, opened: bool = False) -> str:
    state = " open" * opened
    return f"<details{state}><summary>{escape(name)}</summary>{inner}</details>"


def _block(block: TableBlock) -> str:
    lines, label = block.heads, escape(block.label or "Data")
    head = f'<tr><th rowspan="{len(lines)}" scope="col">{label}</th>'
    for i, spans in enumerate(lines):
        head += "</tr><tr>" * (i > 0)
        for text, n in spans:
            look = f'colspan="{n}" scope="{"colgroup" if n > 1 else "col"}"'
            look += " class=edge" * (i < 2 or text == "paper")
            head += f"<th {look}>{escape(text)}</th>"
    bodies: dict[str, list[str]] = {}
    for row in block.rows:
        if block.label and row.data not in bodies:
            span = f'scope="rowgroup" colspan="{len(block.leaves) + 1}"'
            bodies[row.data] = [f"<tr><th {span}><span>{_name(row)}</span></th></tr>"]
        label = escape(row.label) if block.label else _name(row)
        cells = "".join(map(_cell, block.cells(row)))
        line = f'<tr><th scope="row">{label}</th>{cells}</tr>'
        bodies.setdefault(row.data, []).append(line)
    inner = "".join(f"<tbody>{''.join(rows)}</tbody>" for rows in bodies.values())
    return f"<table{BENCH}><thead>{head}</tr></thead>{inner}</table>"


def _name(row: TableRow) -> str:
    mark = f' <span class="tag other">{escape(entries.STAND_IN)}</span>'
    return escape(row.title) + mark * (row.same is False)


def _cell(cell: TableCell) -> str:
    entry, edge = cell.entry, " edge" * cell.first
    # A line may not break before a unit or within a ±.
    bound = (word.replace("± ", "±\u00a0") for word in cell.words)
    text, *more = (escape(word.replace(" %", "\u00a0%")) for word in bound)
    if entry is None:
        return f'<td class="soft{edge}">{text}</td>'
    if cell.part == "paper":
        return f'<td class="paper soft{edge}">{text}</td>'
    if cell.part == "difference":
        return f'<td class="difference">{text}</td>'
    state = "absent" if entry.ours is None else entry.verdict or ""
    text = f"<span>{text}</span>"
    if cell.folded and entry.difference is not None:
        text += f' <small class="difference">{more[0]}</small>'
    for mark, (_, said) in entry.marks.items():
        said = re.sub(r"(?<=\d) |(?<!;) (?=\d)", "\u00a0", said)  # no number alone
        text += f' <span class="tag {mark}">{escape(said)}</span>'
    seeds = (f"seed {s}: {n} ({record})" for s, n, record in entries.by_seed(entry))
    hover = entries.NOT_AVAILABLE if entry.ours is None else "\n".join(seeds)
    look = f'class="ours {state}{edge}" data-entry="{entry.path}"'
    return f'<td {look} title="{escape(hover)}">{text}</td>'


def _by_seed(blocks: Iterable[TableBlock]) -> str:
    """Return every entry with the number of every seed and where it is recorded."""
    lines: list[str] = []
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
                cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
                lines.append(f'<tr data-entry="{entry.path}">{cells}</tr>')
    said = f"seeds {', '.join(map(str, seeds))}" if seeds else "seeds"
    names = ["Data", "Method", "Measure", "Settings", said, "Records"]
    return parts.table(names, lines, look=' class="records"')


# -- figures ---------------------------------------------------------------------------


def _draw(results: Mapping[str, Any], facts: DataFacts, folder: Path) -> dict[str, str]:
    """Write the panels of every figure; return its part of the page."""
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
            drawings[name] = (
                f'<section id="figure-{escape(name)}"><h2>{escape(title)}</h2>'
                f'<div class="figures">{"".join(drawn)}</div></section>'
            )
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


def _data(facts: DataFacts) -> str:
    """Return what is known of every data set; a stand-in says so."""
    lines = []
    for name, fact in facts.items():
        cells = ""
        for _, path, form in DATA_COLUMNS:
            value = value_at(fact, path)
            cells += f"<td>{MISSING if value is None else format(value, form)}</td>"
        said = entries.NOT_AVAILABLE
        if fact.get("same") is not None:
            said = "the paper's" if fact["same"] else entries.STAND_IN
        if fact.get("note"):
            said += f": {fact['note']}"
        lines.append(
            f'<tr><th scope="row">{escape(entries.data_title(fact, name))}</th>{cells}'
            f'<td class="note">{escape(said)}</td></tr>'
        )
    names = ["", *(title for title, _, _ in DATA_COLUMNS), "data"]
    drawn = parts.table(names, lines, look=BENCH, words=["data"])
    return parts.card("Data", parts.scroll("Data", drawn), look=' id="data"')


def _seconds(seconds: Mapping[str, Any]) -> str:
    if not seconds:
        return ""
    items = ""
    for part in seconds:
        text = f'<dd class="value">{number(seconds, part) or 0:,.1f}</dd>'
        items += f"<div><dt>{escape(str(part))}</dt>{text}</div>"
    return (
        '<section aria-label="Seconds"><h2>Seconds by part</h2>'
        f'<dl class="numbers">{items}</dl></section>'
    )
