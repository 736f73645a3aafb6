"""The paper's tables with ours beside them as files: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lessvfl.report.paper import entries as words
from lessvfl.report.paper.entries import Entry
from lessvfl.report.paper.tables import (
    Block,
    Column,
    Part,
    Row,
    caption,
    cell_words,
    chosen_lines,
    legend,
    row_title,
    sections,
)
from lessvfl.report.tables import MISSING, at, number

# -- Markdown --------------------------------------------------------------------------


def _md(text: str) -> str:
    """Escape what would be mark-up in a cell."""
    text = re.sub(r"([\\`*\[\]|#])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _md_table(lines: Sequence[Sequence[str]], n_words: int) -> str:
    """Return a table; its first line is the head, its first columns are words."""
    rule = ["---"] * n_words + ["---:"] * (len(lines[0]) - n_words)
    rows = [lines[0], rule, *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def markdown(table: str, entries: Sequence[Entry]) -> str:
    """Return a table of the paper with ours beside it as Markdown."""
    parts = [f"# {_md(caption(table))}"]
    for section in sections(table, entries):
        if section.title:
            parts.append(f"## {_md(section.title)}")
        for block in section.blocks:
            keys = ["Data", block.label] if block.label else ["Data"]
            head = [*keys]
            for column, part in block.leaves:
                measure = words.measure_title(column.measure) if column.measure else ""
                names = filter(None, [words.method_title(column.method), measure])
                head.append(f"{', '.join(names)}: {part}")
            lines = [[_md(text) for text in head]]
            for row in block.rows:
                cells = [row_title(row), row.label][: len(keys)]
                for column, part in block.leaves:
                    said = cell_words(block, column, part, row)
                    cells.append("; ".join(said))
                lines.append([_md(text) for text in cells])
            parts += [f"### {_md(block.title)}", _md_table(lines, len(keys))]
        if section.chosen:
            parts += ["### Settings used", _md_chosen(section.chosen)]
    if notes := legend(entries):
        parts.append("\n".join(f"- {_md(note)}." for note in notes.values()))
    return "\n\n".join(parts) + "\n"


def _md_chosen(chosen: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    lines = [[_md(text) for text in line] for line in chosen_lines(chosen)]
    return _md_table(lines, len(lines[0]))


# -- LaTeX -----------------------------------------------------------------------------

_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "[": "{[}",  # a bracket after the end of a row would be read as a length
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "·": r"$\cdot$",
    "λ": r"$\lambda$",
    "λ_m": r"$\lambda_m$",
    "λ_s": r"$\lambda_s$",
    MISSING: "--",
}


def tex(text: str) -> str:
    r"""Escape a text for LaTeX.

    >>> tex("λ_m 0.1 & 80 %")
    '$\\lambda_m$ 0.1 \\& 80 \\%'
    """
    return re.sub("λ_[ms]|.", lambda m: _TEX.get(m[0], m[0]), " ".join(text.split()))


def latex(table: str, entries: Sequence[Entry]) -> str:
    """Return a table of the paper with ours beside it as LaTeX, a float a block."""
    parts = ["% Needs the packages booktabs and graphicx."]
    notes = " ".join(f"{s}: {note}." for s, note in legend(entries).items())
    for section in sections(table, entries):
        for block in section.blocks:
            said = [caption(table), block.title, section.title]
            text = ". ".join(filter(None, said))
            wide = len(block.leaves) > 6
            parts.append(_float(f"{text}. {notes}".strip(), _tabular(block), wide))
        if section.chosen:
            lines = chosen_lines(section.chosen)
            body = [" & ".join(map(tex, line)) + r" \\" for line in lines]
            tabular = _tabular_of("l" * len(lines[0]), body[:1], body[1:])
            text = ". ".join(filter(None, ["Settings used", section.title]))
            parts.append(_float(f"{caption(table)}. {text}.", tabular, True))
    return "\n\n".join(parts) + "\n"


def _float(text: str, tabular: str, wide: bool) -> str:
    """Put a table into a float; a wide one is scaled to the width of the text."""
    if wide:
        tabular = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{tabular}}}"
    return (
        f"\\begin{{table}}\n\\caption{{{tex(text)}}}\n\\centering\n\\small\n"
        f"{tabular}\n\\end{{table}}"
    )


def _tabular_of(columns: str, head: Sequence[str], body: Sequence[str]) -> str:
    lines = [
        f"\\begin{{tabular}}{{{columns}}}",
        *("\\toprule", *head, "\\midrule", *body, "\\bottomrule"),
        "\\end{tabular}",
    ]
    return "\n".join(lines)


def _tabular(block: Block) -> str:
    keys = ["Data", block.label] if block.label else ["Data"]
    leaves = block.leaves
    head = []
    for i, spans in enumerate(block.heads):
        last = i == len(block.heads) - 1
        cells = [*keys] if last else [""] * len(keys)
        cells = [tex(cell) for cell in cells]
        rules, at_column = [], len(keys) + 1
        for text, n in spans:
            cells.append(f"\\multicolumn{{{n}}}{{c}}{{{tex(text)}}}")
            rules.append(f"\\cmidrule(lr){{{at_column}-{at_column + n - 1}}}")
            at_column += n
        head.append(" & ".join(cells) + r" \\")
        if not last:
            head.append("".join(rules))
    body = []
    for i, row in enumerate(block.rows):
        if i and block.label and row.data != block.rows[i - 1].data:
            body.append("\\midrule")
        cells = [row_title(row), row.label][: len(keys)]
        cells = [tex(cell) for cell in cells]
        cells += [_tex_cell(block, column, part, row) for column, part in leaves]
        body.append(" & ".join(cells) + r" \\")
    return _tabular_of("l" * len(keys) + "r" * len(leaves), head, body)


def _tex_cell(block: Block, column: Column, part: Part, row: Row) -> str:
    """Return a cell with signs for marks; folded, the difference in per cent alone."""
    entry = row.cells.get(column)
    text = cell_words(block, column, part, row)[0]
    if part != "ours" or entry is None:
        return tex(text)
    if block.folded and entry.percent is not None:
        text += f" ({entry.percent:+.1f} %)"
    signs = f"\\textsuperscript{{{tex(entry.signs)}}}" if entry.signs else ""
    return tex(text) + signs


# -- CSV -------------------------------------------------------------------------------

_SETTINGS = ("choice", "target", "pretrain_epochs", "lam_party", "lam_server")


def csv_text(table: str, entries: Sequence[Entry]) -> str:
    """Return one line per entry with flat columns, to be loaded as a data frame."""
    found = dict.fromkeys(name for entry in entries for name in entry.settings)
    settings = [*_SETTINGS, *(name for name in found if name not in _SETTINGS)]
    stream = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for entry in entries:
        line = _csv_line(table, entry, settings)
        if writer is None:
            writer = csv.DictWriter(stream, list(line), lineterminator="\n")
            writer.writeheader()
        writer.writerow(line)
    return stream.getvalue()


def _csv_line(table: str, entry: Entry, settings: Sequence[str]) -> dict[str, Any]:
    """Return the columns of an entry; what is missing is empty."""
    chosen = {name: entry.settings.get(name) for name in settings}
    for name, value in chosen.items():
        if isinstance(value, list | tuple | dict):
            chosen[name] = json.dumps(value)
    counts = ("hits", "seeds", "unsupported", "diverged")
    return {
        "table": table,
        "data": entry.data,
        "paper_name": entry.title,
        "same_data": entry.same,
        "method": entry.method,
        "measure": entry.measure,
        **chosen,
        "paper_mean": entry.printed,
        "paper_std": number({"of": entry.paper}, "of", "std"),
        "ours_mean": entry.mean,
        "ours_std": number({"of": entry.ours}, "of", "std"),
        "difference": entry.difference,
        "difference_percent": entry.percent,
        "verdict": entry.verdict,
        **{name: at(entry.ours, name) for name in counts},
        "missed": None if entry.ours is None else entry.missed,
        "degenerate": at(entry.ours, "degenerate"),
        "by_seed": _joined(at(entry.ours, "by_seed")),
        "records": _joined(at(entry.ours, "records")),
    }


def _joined(values: Sequence[Any] | None) -> str:
    """Join a value per seed; a miss is an empty place."""
    return ";".join("" if value is None else str(value) for value in values or [])
