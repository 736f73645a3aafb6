"""The paper's tables with ours beside them as files: Markdown, LaTeX and CSV."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lessvfl.report import parts
from lessvfl.report.tables import MISSING, at, method_title, number
from lessvfl_bench.pages.paper import entries, tables
from lessvfl_bench.pages.paper.entries import ComparedNumber
from lessvfl_bench.pages.paper.tables import TableBlock, TableCell

# -- Markdown --------------------------------------------------------------------------


def _md(text: str) -> str:
    """Escape what would be mark-up in a cell."""
    text = re.sub(r"([\\`*\[\]|#])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _md_table(lines: Iterable[Iterable[str]], n_words: int) -> str:
    """Return a table; its first line is the head, its first columns are words."""
    head, *rows = ([_md(text) for text in line] for line in lines)
    rule = ["---"] * n_words + ["---:"] * (len(head) - n_words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def markdown(table: str, numbers: Sequence[ComparedNumber]) -> str:
    """Return a table of the paper with ours beside it as Markdown."""
    text = [f"# {_md(tables.caption(table))}"]
    if origins := entries.origins_text(numbers):
        text.append(_md(origins))
    for section in tables.sections(table, numbers):
        if section.title:
            text.append(f"## {_md(section.title)}")
        for block in section.blocks:
            lines = [block.keys]
            for (method, measure), part in block.leaves:
                more = f", {entries.measure_title(measure)}" if measure else ""
                lines[0].append(f"{method_title(method)}{more}: {part}")
            for row in block.rows:
                cells = ("; ".join(cell.words) for cell in block.cells(row))
                lines.append([*block.names(row), *cells])
            text += [f"### {_md(block.title)}", _md_table(lines, len(block.keys))]
        if section.chosen:
            lines = tables.chosen_lines(section.chosen)
            text += ["### Settings used", _md_table(lines, len(lines[0]))]
    if notes := tables.legend(numbers):
        text.append("\n".join(f"- {_md(note)}." for note in notes.values()))
    return "\n\n".join(text) + "\n"


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
    """Escape a text for LaTeX."""
    return re.sub("λ_[ms]|.", lambda m: _TEX.get(m[0], m[0]), " ".join(text.split()))


def _tex_line(texts: Iterable[str], *cells: str) -> str:
    return " & ".join([*map(tex, texts), *cells]) + r" \\"


def latex(table: str, numbers: Sequence[ComparedNumber]) -> str:
    """Return a table of the paper with ours beside it as LaTeX, one float per block."""
    floats = ["% Needs the packages booktabs and graphicx."]
    caption = tables.caption(table)
    marks = (f"{s}: {note}." for s, note in tables.legend(numbers).items())
    notes = " ".join([entries.origins_text(numbers), *marks]).strip()
    for section in tables.sections(table, numbers):
        for block in section.blocks:
            text = ". ".join(filter(None, [caption, block.title, section.title]))
            wide = len(block.leaves) > 6
            floats.append(_float(f"{text}. {notes}".strip(), _tabular(block), wide))
        if section.chosen:
            lines = tables.chosen_lines(section.chosen)
            head, *body = map(_tex_line, lines)
            tabular = _tabular_of("l" * len(lines[0]), [head], body)
            text = ". ".join(filter(None, [caption, "Settings used", section.title]))
            floats.append(_float(f"{text}.", tabular, True))
    return "\n\n".join(floats) + "\n"


def _float(text: str, tabular: str, wide: bool) -> str:
    """Put a table into a float; a wide one is scaled to the width of the text."""
    if wide:
        tabular = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{tabular}}}"
    return (
        f"\\begin{{table}}\n\\caption{{{tex(text)}}}\n\\centering\n\\small\n"
        f"{tabular}\n\\end{{table}}"
    )


def _tabular_of(columns: str, head: Sequence[str], body: Sequence[str]) -> str:
    lines = ["\\toprule", *head, "\\midrule", *body, "\\bottomrule", "\\end{tabular}"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *lines])


def _tabular(block: TableBlock) -> str:
    keys, leaves = block.keys, block.leaves
    head = []
    for i, spans in enumerate(block.heads, 1):
        last = i == len(block.heads)
        cells, rules, at_column = [], "", len(keys) + 1
        for text, n in spans:
            cells.append(f"\\multicolumn{{{n}}}{{c}}{{{tex(text)}}}")
            rules += f"\\cmidrule(lr){{{at_column}-{at_column + n - 1}}}"
            at_column += n
        head.append(_tex_line(keys if last else [""] * len(keys), *cells))
        head += [] if last else [rules]
    body = []
    for i, row in enumerate(block.rows):
        if i and block.label and row.data != block.rows[i - 1].data:
            body.append("\\midrule")
        body.append(_tex_line(block.names(row), *map(_tex_cell, block.cells(row))))
    return _tabular_of("l" * len(keys) + "r" * len(leaves), head, body)


def _tex_cell(cell: TableCell) -> str:
    """Return a cell with signs for marks; folded, the difference in per cent alone."""
    entry, text = cell.entry, cell.words[0]
    if cell.part != "ours" or entry is None:
        return tex(text)
    if cell.folded and entry.percent is not None:
        text += f" ({entry.percent:+.1f} %)"
    signs = ",".join(sign for sign, _ in entry.marks.values())
    return tex(text) + (f"\\textsuperscript{{{tex(signs)}}}" if signs else "")


# -- CSV -------------------------------------------------------------------------------

_SETTINGS = ("choice", "target", "pretrain_epochs", "lam_party", "lam_server")


def csv_text(table: str, numbers: Sequence[ComparedNumber]) -> str:
    """Return one line per entry with flat columns, to be loaded as a data frame."""
    found = [*_SETTINGS, *(name for entry in numbers for name in entry.settings)]
    lines = [_csv_line(table, entry, dict.fromkeys(found)) for entry in numbers]
    return parts.csv_text([lines[0], *(line.values() for line in lines)])


def _csv_line(
    table: str, entry: ComparedNumber, settings: Iterable[str]
) -> dict[str, Any]:
    """Return the columns of an entry; what is missing is empty."""
    chosen = {name: entry.settings.get(name) for name in settings}
    for name, value in chosen.items():
        if isinstance(value, list | tuple | dict):
            chosen[name] = json.dumps(value)
    counts = ("hits", "seeds", "unsupported", "diverged")
    by_seed = {}  # a miss is an empty place
    for name in ("by_seed", "records"):
        values = at(entry.ours, name) or []
        by_seed[name] = ";".join("" if v is None else str(v) for v in values)
    return {
        "table": table,
        "data": entry.data,
        "paper_name": entry.title,
        "same_data": entry.same,
        "method": entry.method,
        "measure": entry.measure,
        **chosen,
        "paper_mean": entry.printed,
        "paper_std": number(entry.paper, "std"),
        "ours_mean": entry.mean,
        "ours_std": number(entry.ours, "std"),
        "difference": entry.difference,
        "difference_percent": entry.percent,
        "verdict": entry.verdict,
        **{name: at(entry.ours, name) for name in counts},
        "missed": None if entry.ours is None else entry.missed,
        "degenerate": at(entry.ours, "degenerate"),
        **by_seed,
    }


WRITERS = {"md": markdown, "tex": latex, "csv": csv_text}  # by the ending of a file
