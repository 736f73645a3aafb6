"""The paper's tables with ours beside them, arranged once for the page and the files.

A table has a section for every way of choosing the settings, a section has blocks, and
a block has columns by method and rows by data set and settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lessvfl.report.paper import entries as words
from lessvfl.report.paper.entries import Entry
from lessvfl.report.tables import MISSING

METHODS = ("group-lasso", "local-lasso", "less-vfl")  # the paper's order
MOST_COLUMNS = 3  # beyond them the difference has no column of its own


@dataclass(frozen=True)
class Group:
    """Measures that share a block; as rows where each is a line of its own."""

    title: str
    measures: tuple[str, ...]
    as_rows: bool = False


@dataclass(frozen=True)
class Layout:
    """How a table of the paper is arranged."""

    title: str
    keys: tuple[str, ...]  # settings that make a row, besides the data set
    label: str  # what the column of these settings is called
    groups: tuple[Group, ...]


_COST = (
    Group("Communication cost (MiB)", ("cost_mib",)),
    Group(
        "Further measures",
        (
            "cost_mib_balanced",
            "payload_mib",
            "payload_mib_balanced",
            "removed_share",
            "real_kept_share",
            "accuracy",
            "balanced_accuracy",
        ),
        as_rows=True,
    ),
)
_PARTS = ("pretrain_mib", "post_mib", "total_mib")
_GRID = (
    Group(
        "Final training accuracy and spurious features removed",
        ("train_accuracy_percent", "removed_percent"),
    ),
    Group("Final balanced training accuracy (%)", ("train_balanced_accuracy_percent",)),
)
_GRID_TITLE = "Training accuracy and spurious features removed: "
LAYOUTS = {
    "2": Layout(
        "Communication cost to reach the target and remove 80 % of the spurious "
        "features",
        (),
        "",
        _COST,
    ),
    "3": Layout(
        "Communication cost with spurious features spread unevenly", (), "", _COST
    ),
    "5": Layout(
        "Communication cost by epochs of pre-training",
        ("pretrain_epochs",),
        "Epochs",
        (
            Group("Communication cost", _PARTS),
            Group(
                "Communication cost, target by balanced accuracy",
                tuple(f"{part}_balanced" for part in _PARTS),
            ),
        ),
    ),
    "6": Layout(
        _GRID_TITLE + "Activity and Phishing",
        ("lam_party", "lam_server"),
        "(λ_m, λ_s)",
        _GRID,
    ),
    "7": Layout(
        _GRID_TITLE + "MIMIC-III", ("lam_party", "lam_server"), "(λ_m, λ_s)", _GRID
    ),
    "8": Layout(
        _GRID_TITLE + "Gina and Sylva",
        ("lam_party", "lam_server"),
        "(λ_m, λ_s)",
        _GRID,
    ),
}
_UNKNOWN = Layout("", (), "", ())


# -- blocks ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A method, and the measure where one block has several."""

    method: str
    measure: str | None


Part = Literal["paper", "ours", "difference"]


@dataclass(frozen=True)
class Row:
    """A line of a block: a data set, its settings, the entry of every column."""

    data: str
    title: str
    same: bool | None
    label: str
    cells: Mapping[Column, Entry]


@dataclass(frozen=True)
class Block:
    """A table ready to be written: columns by method, rows by data and settings."""

    title: str
    label: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def leaves(self) -> list[tuple[Column, Part]]:
        """The columns of numbers: the paper's, ours and, where it fits, both apart."""
        leaves: list[tuple[Column, Part]] = []
        for column in self.columns:
            entries = [row.cells.get(column) for row in self.rows]
            printed = any(entry and entry.printed is not None for entry in entries)
            parts: list[Part] = ["ours"]
            if printed:
                parts = (
                    ["paper", "ours"]
                    if self.folded
                    else ["paper", "ours", "difference"]
                )
            leaves += [(column, part) for part in parts]
        return leaves

    @property
    def heads(self) -> list[list[tuple[str, int]]]:
        """The lines of the head, each as (words, columns spanned)."""
        leaves = self.leaves
        lines = [_spans((column.method, "") for column, _ in leaves)]
        lines[0] = [(words.method_title(method), n) for method, n in lines[0]]
        if any(column.measure for column, _ in leaves):
            spans = _spans((c.measure or "", c.method) for c, _ in leaves)
            lines.append([(words.measure_title(measure), n) for measure, n in spans])
        if any(part == "paper" for _, part in leaves):
            lines.append([(part, 1) for _, part in leaves])
        return lines

    @property
    def folded(self) -> bool:
        """Whether the difference stands with our number, for want of room."""
        return len(self.columns) > MOST_COLUMNS


def _spans(keys: Iterable[tuple[str, str]]) -> list[tuple[str, int]]:
    """Count how often a key stands beside itself; its first part is what is shown."""
    spans: list[tuple[tuple[str, str], int]] = []
    for key in keys:
        if spans and spans[-1][0] == key:
            spans[-1] = key, spans[-1][1] + 1
        else:
            spans.append((key, 1))
    return [(key[0], n) for key, n in spans]


@dataclass(frozen=True)
class Section:
    """The blocks over one choice of settings, with the settings that were chosen."""

    title: str
    blocks: tuple[Block, ...]
    chosen: Mapping[str, Mapping[str, Sequence[str]]]  # by data title and method
    entries: tuple[Entry, ...]


_APART = ("choice", "target", "spurious")


def sections(table: str, entries: Sequence[Entry]) -> list[Section]:
    """Arrange the entries of a table; every entry stands in one block."""
    layout = LAYOUTS.get(table, _UNKNOWN)
    apart: dict[str, list[Entry]] = {}
    for entry in entries:
        apart.setdefault(_section_title(entry), []).append(entry)
    return [
        Section(
            title=title,
            blocks=tuple(_blocks(layout, found)),
            chosen=_chosen(layout, found),
            entries=tuple(found),
        )
        for title, found in apart.items()
    ]


def _section_title(entry: Entry) -> str:
    parts = [
        words.setting_text(name, entry.settings[name])
        for name in _APART
        if entry.settings.get(name) is not None
    ]
    return " · ".join(parts)


def _blocks(layout: Layout, entries: Sequence[Entry]) -> Iterable[Block]:
    named = {measure for group in layout.groups for measure in group.measures}
    others = tuple(dict.fromkeys(e.measure for e in entries if e.measure not in named))
    for group in (*layout.groups, Group("Other measures", others, as_rows=True)):
        found = [entry for entry in entries if entry.measure in group.measures]
        if found:
            yield _block(layout, group, found)


def _block(layout: Layout, group: Group, entries: Sequence[Entry]) -> Block:
    as_columns = len(group.measures) > 1 and not group.as_rows
    methods = dict.fromkeys([*METHODS, *(entry.method for entry in entries)])
    measures = group.measures if as_columns else (None,)
    columns = [Column(method, measure) for method in methods for measure in measures]
    rows: dict[tuple[str, str, int], dict[Column, Entry]] = {}
    titles = {entry.data: (entry.title, entry.same) for entry in entries}
    for entry in entries:
        column = Column(entry.method, entry.measure if as_columns else None)
        label = _row_label(layout, group, entry)
        again = 0  # two entries may ask for one cell; both are shown
        while column in rows.setdefault((entry.data, label, again), {}):
            again += 1
        rows[entry.data, label, again][column] = entry
    used = {column for cells in rows.values() for column in cells}
    heads = [layout.label, "Measure" if group.as_rows else ""]
    by_data = sorted(rows.items(), key=lambda row: list(titles).index(row[0][0]))
    return Block(
        title=group.title,
        label=", ".join(filter(None, heads)),
        columns=tuple(column for column in columns if column in used),
        rows=tuple(
            Row(data, *titles[data], label, cells)
            for (data, label, _), cells in by_data
        ),
    )


def _row_label(layout: Layout, group: Group, entry: Entry) -> str:
    values = [entry.settings.get(key) for key in layout.keys]
    texts = [f"{v:g}" if isinstance(v, int | float) else MISSING for v in values]
    # A pair does not break at the end of a line; files write a plain space.
    label = ",\u00a0".join(texts)
    label = f"({label})" if len(texts) > 1 else label
    if not group.as_rows:
        return label
    return ", ".join(filter(None, [label, words.measure_title(entry.measure)]))


def _chosen(
    layout: Layout, entries: Sequence[Entry]
) -> dict[str, dict[str, list[str]]]:
    """Return the settings that stand neither in the title nor in the rows."""
    chosen: dict[str, dict[str, list[str]]] = {}
    for entry in entries:
        text = ", ".join(
            words.setting_text(name, value)
            for name, value in entry.settings.items()
            if name not in (*_APART, *layout.keys) and value is not None
        )
        texts = chosen.setdefault(entry.title, {}).setdefault(entry.method, [])
        if text and text not in texts:
            texts.append(text)
    return chosen if any(any(texts.values()) for texts in chosen.values()) else {}


# -- text of the cells -----------------------------------------------------------------


def cell_words(block: Block, column: Column, part: Part, row: Row) -> list[str]:
    """Return what a cell says: the number first, then the difference and the marks."""
    entry = row.cells.get(column)
    if entry is None:
        return [MISSING]
    if part == "paper":
        return [words.pair_text(entry.paper, entry.kind)]
    if part == "difference":
        return [words.difference_text(entry)]
    said = [words.ours_text(entry)]
    if block.folded and entry.difference is not None:
        said.append(words.difference_text(entry))
    return [*said, *entry.marks.values()]


def caption(table: str) -> str:
    """Return the number and the title of a table."""
    title = LAYOUTS.get(table, _UNKNOWN).title
    return f"Table {table}. {title}" if title else f"Table {table}"


def legend(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the sentences that explain the marks of these entries, by their signs."""
    found = {mark for entry in entries for mark in entry.marks}
    return dict(words.MARKS[mark] for mark in words.MARKS if mark in found)


def row_title(row: Row) -> str:
    """Name the data of a row, and say where it is not the paper's."""
    return f"{row.title} ({words.STAND_IN})" if row.same is False else row.title


def chosen_lines(chosen: Mapping[str, Mapping[str, Sequence[str]]]) -> list[list[str]]:
    """Return the settings that were used as lines of a table, the head first."""
    found = dict.fromkeys(method for texts in chosen.values() for method in texts)
    methods = [*(m for m in METHODS if m in found)]
    methods += [method for method in found if method not in METHODS]
    lines = [["Data", *map(words.method_title, methods)]]
    for title, texts in chosen.items():
        cells = ["; ".join(texts.get(method) or [MISSING]) for method in methods]
        lines.append([title, *cells])
    return lines
