"""The parts of every page: the document, cards, tables and figures.

Everything stands in the one file: style, script, figures. A content security policy
names the one script by its hash and forbids any connection; every string that comes
from a record is escaped.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

from lessvfl.report import figures
from lessvfl.run.record import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMULA = ("=", "+", "-", "@")  # how one of a spreadsheet begins
BREAKS = str.maketrans("\t\r\n", "   ")  # a carriage return would begin a line


def _read(name: str) -> str:
    return (resources.files("lessvfl.report") / name).read_text(encoding="utf-8")


def write(path: Path, text: str) -> None:
    """Write a document, whatever characters its names hold."""
    write_atomically(path, text.encode("utf-8", errors="replace"))


def write_results(
    folder: Path,
    name: str,
    results: Mapping[str, Any],
    lines: Iterable[Iterable[object]],
    markdown: str,
    page: str,
) -> Path:
    """Write a benchmark's results as .json, .csv, .md and .html; return the page."""
    texts = {
        "json": json.dumps(results, indent=1, allow_nan=False) + "\n",
        "csv": csv_text(lines),
        "md": markdown,
        "html": page,
    }
    for suffix, text in texts.items():
        write(folder / f"{name}.{suffix}", text)
    return folder / f"{name}.html"


def document(title: str, parts: Iterable[str], footer: str) -> str:
    """Put parts into a page with its style, its script and its policy."""
    script = _read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_read("page.html")).substitute(
        policy="default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        title=escape(title),
        style=_read("page.css"),
        body="\n".join(filter(None, parts)),
        footer=footer,
        script=script,
    )


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """Return lines of cells as CSV; what is None is empty.

    A text that a spreadsheet would take for a formula gets an apostrophe before it, and
    every cell is one line.
    """
    stream = io.StringIO()
    cells = (map(_no_formula, line) for line in lines)
    csv.writer(stream, lineterminator="\n").writerows(cells)
    return stream.getvalue()


def _no_formula(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = cell.translate(BREAKS)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.lstrip().startswith(FORMULA) else text
    return text


def header(words: Iterable[str], title: str) -> str:
    """Return the headline, with what was done in one line above it."""
    said = f'<p class="soft">{escape(" · ".join(words))}</p>'
    return f"<header>{said}<h1>{escape(title, quote=False)}</h1></header>"


def notes_card(notes: Iterable[object], title: str = "Notes on these numbers") -> str:
    """Return a card with sentences, each once."""
    items = "".join(f"<li>{escape(str(note))}</li>" for note in dict.fromkeys(notes))
    card = f'<section class="card notes"><h2>{title}</h2><ul>{items}</ul></section>'
    return card if items else ""


def columns(left: str, right: str, look: str = "") -> str:
    """Return figures in two columns."""
    inner = "".join(f'<div class="column">{half}</div>' for half in (left, right))
    return f'<section class="figures"{look}>{inner}</section>'


def figure(ax: Axes, name: str, title: str, caption: str, alt: str) -> str:
    """Return a drawing with its title, its caption and its words."""
    drawing = figures.to_svg(ax, name)
    return (
        f'<figure class="card {name}"><h2>{escape(title)}</h2>'
        f"<figcaption>{escape(caption)}</figcaption>"
        f'<div class="drawing" role="img" aria-label="{escape(alt)}">{drawing}</div>'
        "</figure>"
    )


def line(name: str, texts: Iterable[str]) -> str:
    """Return a row of a table: its name, then its cells."""
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    return f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'


def table(
    names: Iterable[str],
    *bodies: Iterable[str],
    look: str = "",
    words: Collection[str] = (),
) -> str:
    """Return a table; `words` are the columns that do not hold numbers."""
    heads = "".join(
        f'<th scope="col"{" class=word" * (name in words)}>{escape(name)}</th>'
        for name in names
    )
    rows = "".join(f"<tbody>{''.join(lines)}</tbody>" for lines in bodies)
    return f"<table{look}><thead><tr>{heads}</tr></thead>{rows}</table>"


class Link(NamedTuple):
    """A cell that leads somewhere."""

    text: str
    address: str


def number_table(
    rows: Sequence[Mapping[str, str | Link]], words: Collection[str]
) -> str:
    """Return a table of rows with the same columns; those not of words are numbers."""
    lines = []
    for row in rows:
        cells = (
            f'<td class="{"word" if name in words else "number"}">{_cell(cell)}</td>'
            for name, cell in row.items()
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return table(rows[0], lines, look=' class="runs"', words=words)


def _cell(cell: str | Link) -> str:
    if isinstance(cell, Link):
        return f'<a href="{escape(cell.address)}">{escape(cell.text)}</a>'
    return escape(cell)


def scroll(name: str, inner: str, *, tall: bool = False) -> str:
    """Let a table scroll within its place."""
    return (
        f'<div class="scroll{" tall" * tall}" tabindex="0" role="region" '
        f'aria-label="{escape(name)}">{inner}</div>'
    )


def card(title: str, inner: str, tag: str = "section", look: str = "") -> str:
    """Put a part of the page on a card."""
    return f'<{tag} class="card"{look}><h2>{escape(title)}</h2>{inner}</{tag}>'
