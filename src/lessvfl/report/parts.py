"""The parts of every page: the document, its figures, and files beside it.

Everything stands in the one file: style, script, figures. A content security policy
names the one script by its hash and forbids any connection.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from lessvfl import templates
from lessvfl.report import figures
from lessvfl.run.record import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMULA = ("=", "+", "-", "@")  # how one of a spreadsheet begins
FONT = re.compile(r"(font: [^']*?px) '.*?(;|$)")  # in a style of an SVG element
BREAKS = str.maketrans("\t\r\n", "   ")  # a carriage return would begin a line


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


def page(template: str, package: str = "lessvfl.report", **values: Any) -> str:
    """Return a page: a template of a package with its values, style and script.

    The templates of this room are there for every package.
    """
    packages = dict.fromkeys([package, "lessvfl.report"])
    script = templates.digest("lessvfl.report", "page.js")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src '{script}'; base-uri 'none'; form-action 'none'"
    )
    environment = templates.environment(*packages)
    return environment.get_template(template).render(policy=policy, **values)


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """Return lines of cells as CSV; what is None is empty.

    A text that a spreadsheet would take for a formula gets an apostrophe before it, and
    every cell is one line.
    """

    def safe(cell: object) -> object:
        if not isinstance(cell, str):
            return cell
        text = cell.translate(BREAKS)
        try:
            float(text)
        except ValueError:
            return f"'{text}" if text.lstrip().startswith(FORMULA) else text
        return text

    stream = io.StringIO()
    cells = (map(safe, line) for line in lines)
    csv.writer(stream, lineterminator="\n").writerows(cells)
    return stream.getvalue()


def markdown_table(
    heads: Iterable[str], rows: Iterable[Iterable[object]]
) -> Iterator[str]:
    """Yield the lines of a table in Markdown, cells as they are."""
    heads = list(heads)
    for line in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(map(str, line))} |"


class Drawing(NamedTuple):
    """A figure of a page: its title, its caption, its words and what is drawn."""

    name: str
    title: str
    caption: str
    alt: str
    svg: Markup


def figure(ax: Axes, name: str, title: str, caption: str, alt: str) -> Drawing:
    """Return a figure for a page; `name` is that of its class and begins its ids."""
    return Drawing(name, title, caption, alt, Markup(to_svg(ax, name)))


def to_svg(ax: Axes, name: str) -> str:
    """Return a figure as an SVG element; every id in it begins with `name`."""
    stream = io.StringIO()
    figures.save(ax, stream, "svg", metadata={"Date": None}, transparent=True)
    root = ElementTree.fromstring(stream.getvalue())
    for element in root.iter():
        for child in list(element):
            if child.tag.endswith(("}metadata", "}style")):
                element.remove(child)
        element.tag = element.tag.rpartition("}")[2]
        for long_key in list(element.attrib):
            key, value = long_key.rpartition("}")[2], element.attrib.pop(long_key)
            if key == "id":
                value = f"{name}-{value}"
            elif key == "href":
                value = value.replace("#", f"#{name}-", 1)
            else:  # the page chooses the font
                value = value.replace("url(#", f"url(#{name}-")
                value = FONT.sub(r"\1 system-ui, sans-serif\2", value)
            element.attrib[key] = value
    for size in ("width", "height"):
        del root.attrib[size]
    root.attrib["aria-hidden"] = "true"
    return ElementTree.tostring(root, encoding="unicode")
