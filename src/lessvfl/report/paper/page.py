"""A benchmark as files: the paper's tables and figures beside ours, and one page.

The page is like that of a run: everything stands in it, every string of the results is
escaped, and every number of ours names its place in the results and its records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lessvfl.report import figures
from lessvfl.report.page import document, figure, heads, notes_card, write
from lessvfl.report.paper import entries as words
from lessvfl.report.paper import files, panels
from lessvfl.report.paper.entries import VERDICTS, Entry
from lessvfl.report.paper.tables import (
    LAYOUTS,
    Block,
    Column,
    Part,
    Row,
    Section,
    caption,
    chosen_lines,
    legend,
    sections,
)
from lessvfl.report.tables import MISSING, at, number, plural
from lessvfl.run.record import write_atomically

PAGE_NAME = "index.html"
MANY_ROWS = 14  # a table with more of them scrolls within its card

Facts = Mapping[str, Mapping[str, Any]]


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
    tables = {name: found for name, found in words.read(results).items() if found}
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for table, entries in tables.items():
        stem = folder / "tables" / f"table{table}"
        write(stem.with_suffix(".md"), files.markdown(table, entries))
        write(stem.with_suffix(".tex"), files.latex(table, entries))
        write(stem.with_suffix(".csv"), files.csv_text(table, entries))
    facts = {str(fact["name"]): fact for fact in results.get("data") or []}
    drawings = _draw(results, facts, folder / "figures")
    path = folder / PAGE_NAME
    write(path, _page(results, facts, tables, drawings))
    return path


# -- the page --------------------------------------------------------------------------


def _page(
    results: Mapping[str, Any],
    facts: Facts,
    tables: Mapping[str, Sequence[Entry]],
    drawings: Mapping[str, str],
) -> str:
    arranged = {table: sections(table, found) for table, found in tables.items()}
    seeds = results.get("seeds") or []
    title = "The paper's numbers beside ours"
    everything = [entry for entries in tables.values() for entry in entries]
    notes = [_note(name, fact) for name, fact in facts.items() if fact.get("note")]
    body = [
        f"<header>{_line(results, seeds)}<h1>{title}</h1></header>",
        _contents(tables, drawings),
        _agreement(arranged),
        notes_card([*notes, *(f"{note}." for note in legend(everything).values())]),
        *(
            _table(table, found, seeds, tables[table])
            for table, found in arranged.items()
        ),
        *drawings.values(),
        _data(facts),
        _seconds(results.get("seconds") or {}),
    ]
    version = escape(str(results.get("lessvfl", "")))
    footer = (
        f"Made by lessvfl {version}. The same tables stand in tables/ as Markdown, "
        "LaTeX and CSV, the figures in figures/ as PNG and SVG."
    )
    return document(title, body, footer)


def _note(name: str, fact: Mapping[str, Any]) -> str:
    """Return the note on a data set, which may or may not name it."""
    title, note = words.data_title(fact, name), str(fact["note"])
    return note if title in note else f"{title}: {note}"


def _line(results: Mapping[str, Any], seeds: Sequence[Any]) -> str:
    """Say how the benchmark was run, in one line above the headline."""
    parts = []
    if profile := results.get("profile"):
        parts.append(f"profile {profile}")
    if settings := results.get("settings"):
        parts.append(f"settings: {settings}")
    parts.append(f"{plural(len(seeds), 'seed')} ({', '.join(map(str, seeds))})")
    if device := results.get("device"):
        parts.append(f"on {device}")
    if (total := number(results, "seconds", "total")) is not None:
        parts.append(f"{total:,.0f} seconds")
    return f'<p class="soft">{escape(" · ".join(parts))}</p>'


def _contents(tables: Iterable[str], drawings: Iterable[str]) -> str:
    links = [(f"table-{table}", f"Table {table}") for table in tables]
    links += [(f"figure-{name}", f"Figure {name}") for name in drawings]
    links += [("data", "Data")]
    items = (
        f'<a href="#{escape(anchor)}">{escape(text)}</a>' for anchor, text in links
    )
    return f'<nav class="contents" aria-label="Contents">{" ".join(items)}</nav>'


def _scroll(name: str, table: str, tall: bool = False) -> str:
    return (
        f'<div class="scroll{" tall" * tall}" tabindex="0" role="region" '
        f'aria-label="{escape(name)}">{table}</div>'
    )


def _agreement(arranged: Mapping[str, Sequence[Section]]) -> str:
    """Count how the paper's numbers compare with ours, by table and settings."""
    lines = []
    for table, found in arranged.items():
        for section in found:
            counts = Counter(e.verdict for e in section.entries if e.verdict)
            if not counts:
                continue
            cells = "".join(
                f'<td class="{verdict if counts[verdict] else "none"}">'
                f"{counts[verdict]}</td>"
                for verdict in VERDICTS
            )
            lines.append(
                f'<tr><th scope="row">Table {escape(table)}'
                f'<small class="soft">{escape(section.title)}</small></th>'
                f"<td>{counts.total()}</td>{cells}</tr>"
            )
    if not lines:
        return ""
    head = heads(["", "numbers printed", *VERDICTS.values()])
    return (
        '<section class="card"><h2>How ours compares</h2>'
        '<p class="soft">Each number that the paper prints is counted in one column. '
        "Means over all seeds on the paper's data are compared: they lie within twice "
        "the paper's standard deviation, else within 25 % of its mean, else further "
        "off. Repeated rows count as often as the paper prints them.</p>"
        + _scroll(
            "How ours compares",
            f'<table class="bench"><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(lines)}</tbody></table>",
        )
        + "</section>"
    )


# -- tables ----------------------------------------------------------------------------


def _table(
    table: str,
    found: Sequence[Section],
    seeds: Sequence[Any],
    entries: Sequence[Entry],
) -> str:
    short = table in LAYOUTS and not LAYOUTS[table].keys  # a row a data set
    parts = []
    for section in found:
        if section.title:
            parts.append(f"<h3>{escape(section.title)}</h3>")
        for i, block in enumerate(section.blocks):
            drawn = _scroll(
                f"Table {table}, {block.title}",
                _block(block, seeds),
                tall=len(block.rows) > MANY_ROWS,
            )
            if i:
                drawn = _folded(block.title, drawn, opened=short)
            else:
                drawn = f"<h4>{escape(block.title)}</h4>{drawn}"
            parts.append(drawn)
        if section.chosen:
            drawn = _scroll("Settings used", _chosen(section))
            parts.append(_folded("Settings used", drawn, opened=short))
        name = "Every seed and its record"
        drawn = _scroll(name, _by_seed(section, seeds), tall=True)
        parts.append(_folded(name, drawn))
    n_printed = sum(entry.printed is not None for entry in entries)
    said = f"The paper prints {n_printed} of these {len(entries)} numbers."
    return (
        f'<section class="card" id="table-{escape(table)}">'
        f'<h2>{escape(caption(table))}</h2><p class="soft">{said}</p>'
        f"{''.join(parts)}</section>"
    )


def _folded(name: str, inner: str, opened: bool = False) -> str:
    state = " open" * opened
    return f"<details{state}><summary>{escape(name)}</summary>{inner}</details>"


def _block(block: Block, seeds: Sequence[Any]) -> str:
    lines = block.heads
    first = f'<th rowspan="{len(lines)}" scope="col">{escape(block.label or "Data")}'
    head = []
    for i, spans in enumerate(lines):
        cells = [
            f'<th colspan="{n}" scope="{"colgroup" if n > 1 else "col"}"'
            f"{' class=edge' * (i < 2 or text == 'paper')}>{escape(text)}</th>"
            for text, n in spans
        ]
        head.append(f"<tr>{first + '</th>' if i == 0 else ''}{''.join(cells)}</tr>")
    leaves = block.leaves
    bodies: dict[str, list[str]] = {}
    for row in block.rows:
        if block.label and row.data not in bodies:
            span = f'scope="rowgroup" colspan="{len(leaves) + 1}"'
            name = f"<tr><th {span}><span>{_name(row)}</span></th></tr>"
            bodies[row.data] = [name]
        cells = [_cell(block, column, part, row, seeds) for column, part in leaves]
        label = escape(row.label) if block.label else _name(row)
        bodies.setdefault(row.data, []).append(
            f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>'
        )
    inner = "".join(f"<tbody>{''.join(rows)}</tbody>" for rows in bodies.values())
    return f'<table class="bench"><thead>{"".join(head)}</thead>{inner}</table>'


def _name(row: Row) -> str:
    mark = f' <span class="tag other">{escape(words.STAND_IN)}</span>'
    return escape(row.title) + mark * (row.same is False)


def _cell(
    block: Block, column: Column, part: Part, row: Row, seeds: Sequence[Any]
) -> str:
    entry = row.cells.get(column)
    edge = " edge" * (part == "paper" or (column, "paper") not in block.leaves)
    if entry is None:
        return f'<td class="soft{edge}">{MISSING}</td>'
    if part == "paper":
        text = words.pair_text(entry.paper, entry.kind)
        return f'<td class="paper soft{edge}">{_kept(text)}</td>'
    if part == "difference":
        return f'<td class="difference">{_kept(words.difference_text(entry))}</td>'
    state = "absent" if entry.ours is None else entry.verdict or ""
    text = f"<span>{_kept(words.ours_text(entry))}</span>"
    if block.folded and entry.difference is not None:
        said = _kept(words.difference_text(entry))
        text += f' <small class="difference">{said}</small>'
    for mark, said in entry.marks.items():
        said = re.sub(r"(?<=\d) |(?<!;) (?=\d)", "\u00a0", said)  # no number alone
        text += f' <span class="tag {mark}">{escape(said)}</span>'
    return (
        f'<td class="ours {state}{edge}" data-entry="{entry.path}" '
        f'title="{escape(_hover(entry, seeds))}">{text}</td>'
    )


def _kept(text: str) -> str:
    """Escape a number; a line may not break before its unit or within its ±."""
    return escape(text.replace("± ", "±\u00a0").replace(" %", "\u00a0%"))


def _hover(entry: Entry, seeds: Sequence[Any]) -> str:
    """Say a number's seeds and records; what the table of seeds says too."""
    if entry.ours is None:
        return words.NOT_AVAILABLE
    return "\n".join(
        f"seed {seed}: {text} ({record})"
        for seed, text, record in words.by_seed(entry, seeds)
    )


def _chosen(section: Section) -> str:
    head, *lines = chosen_lines(section.chosen)
    rows = "".join(
        f'<tr><th scope="row">{escape(line[0])}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in line[1:])
        + "</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{heads(head)}</tr></thead><tbody>{rows}</tbody></table>"


def _by_seed(section: Section, seeds: Sequence[Any]) -> str:
    """Return every entry with the number of every seed and where it is recorded."""
    lines = []
    for block in section.blocks:
        for row in block.rows:
            for column in block.columns:
                if not (entry := row.cells.get(column)):
                    continue
                found = words.by_seed(entry, seeds)
                values = ", ".join(text for _, text, _ in found)
                where = words.pointers(at(entry.ours, "records") or [])
                settings = ", ".join(
                    words.setting_text(name, entry.settings[name])
                    for name in ("pretrain_epochs", "lam_party", "lam_server")
                    if entry.settings.get(name) is not None
                )
                texts = [
                    row.title,
                    words.method_title(entry.method),
                    words.measure_title(entry.measure),
                    settings,
                    values or words.NOT_AVAILABLE,
                    where or MISSING,
                ]
                cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
                lines.append(f'<tr data-entry="{entry.path}">{cells}</tr>')
    said = f"seeds {', '.join(map(str, seeds))}" if seeds else "seeds"
    names = heads(["Data", "Method", "Measure", "Settings", said, "Records"])
    return (
        f'<table class="records"><thead><tr>{names}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


# -- figures ---------------------------------------------------------------------------


def _draw(results: Mapping[str, Any], facts: Facts, folder: Path) -> dict[str, str]:
    """Write the panels of every figure; return its part of the page."""
    found = results.get("figures") or {}
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {}
    for name in sorted(found, key=lambda name: (len(name), name)):
        some = found[name]
        if not some:
            continue
        drawn = []
        names = panels.file_names(name, some)
        for panel, stem in zip(some, names, strict=True):
            with figures.page_style():
                ax = panels.plot_panel(panel, figures.new_axes(3.2))
                for ending, content in panels.files(ax).items():
                    write_atomically(folder / f"{stem}.{ending}", content)
                drawn.append(
                    figure(
                        ax,
                        stem,
                        panels.panel_title(panel, facts),
                        panels.panel_caption(panel),
                        panels.describe(panel),
                    )
                )
        title = ". ".join(filter(None, [f"Figure {name}", panels.TITLES.get(name)]))
        drawings[name] = (
            f'<section id="figure-{escape(name)}"><h2>{escape(title)}</h2>'
            f'<div class="figures">{"".join(drawn)}</div></section>'
        )
    return drawings


# -- data and times --------------------------------------------------------------------


def _data(facts: Facts) -> str:
    """Return what is known of every data set; a stand-in says so."""
    columns: list[tuple[str, tuple[str, ...], str]] = [
        ("training rows", ("n_train",), ",.0f"),
        ("test rows", ("n_test",), ",.0f"),
        ("features", ("n_features",), ",.0f"),
        ("real", ("n_real",), ",.0f"),
        ("parties", ("n_parties",), ",.0f"),
        ("majority class", ("majority",), ".3f"),
        ("VFL (Original) accuracy", ("baseline", "accuracy"), ".3f"),
        ("balanced", ("baseline", "balanced_accuracy"), ".3f"),
    ]
    lines = []
    for name, fact in facts.items():
        cells = ""
        for _, path, form in columns:
            value = number(fact, *path)
            text = MISSING if value is None else format(value, form)
            cells += f"<td>{text}</td>"
        said = words.NOT_AVAILABLE
        if fact.get("same") is not None:
            said = "the paper's" if fact["same"] else words.STAND_IN
        if fact.get("note"):
            said += f": {fact['note']}"
        title = words.data_title(fact, name)
        lines.append(
            f'<tr><th scope="row">{escape(title)}</th>{cells}'
            f'<td class="note">{escape(said)}</td></tr>'
        )
    names = heads(["", *(title for title, _, _ in columns), "data"], ["data"])
    return (
        '<section class="card" id="data"><h2>Data</h2>'
        + _scroll(
            "Data",
            f'<table class="bench"><thead><tr>{names}</tr></thead>'
            f"<tbody>{''.join(lines)}</tbody></table>",
        )
        + "</section>"
    )


def _seconds(seconds: Mapping[str, Any]) -> str:
    if not seconds:
        return ""
    items = "".join(
        f"<div><dt>{escape(str(part))}</dt>"
        f'<dd class="value">{number(seconds, part) or 0:,.1f}</dd></div>'
        for part in seconds
    )
    return (
        '<section aria-label="Seconds"><h2>Seconds by part</h2>'
        f'<dl class="numbers">{items}</dl></section>'
    )
