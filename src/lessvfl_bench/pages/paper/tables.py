"""The paper's tables with ours beside them, arranged once for the page and the files.

A table has a section for each choice of settings, and a section has blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from lessvfl.report.tables import MISSING, method_title
from lessvfl_bench.pages.paper import entries
from lessvfl_bench.pages.paper.entries import ComparedNumber

METHODS = ("group-lasso", "local-lasso", "less-vfl")  # the paper's order
MOST_COLUMNS = 3  # beyond them the difference has no column of its own


class MeasureGroup(NamedTuple):
    """Measures that share a block; as rows where each is a line of its own."""

    title: str
    measures: tuple[str, ...]
    as_rows: bool = False


class Layout(NamedTuple):
    """How a table of the paper is arranged."""

    title: str
    keys: tuple[str, ...] = ()  # settings that make a row, besides the data set
    label: str = ""  # what the column of these settings is called
    groups: tuple[MeasureGroup, ...] = ()


_COST = (
    MeasureGroup("Communication cost (MiB)", ("cost_mib",)),
    MeasureGroup(
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
_GRID = (
    MeasureGroup(
        "Final training accuracy and spurious features removed",
        ("train_accuracy_percent", "removed_percent"),
    ),
    MeasureGroup(
        "Final balanced training accuracy (%)", ("train_balanced_accuracy_percent",)
    ),
)


def _grid(data: str) -> Layout:
    title = f"Training accuracy and spurious features removed: {data}"
    return Layout(title, ("lam_party", "lam_server"), "(λ_m, λ_s)", _GRID)


LAYOUTS = {
    "2": Layout(
        "Communication cost to reach the target and remove 80 % of the spurious "
        "features",
        groups=_COST,
    ),
    "3": Layout(
        "Communication cost with spurious features spread unevenly", groups=_COST
    ),
    "5": Layout(
        "Communication cost by epochs of pre-training",
        ("pretrain_epochs",),
        "Epochs",
        (
            MeasureGroup("Communication cost", entries.PARTS),
            MeasureGroup(
                "Communication cost, target by balanced accuracy",
                tuple(f"{part}_balanced" for part in entries.PARTS),
            ),
        ),
    ),
    "6": _grid("Activity and Phishing"),
    "7": _grid("MIMIC-III"),
    "8": _grid("Gina and Sylva"),
}
_UNKNOWN = Layout("")


class TableColumn(NamedTuple):
    """A method, and the measure where one block has several."""

    method: str
    measure: str | None


CellPart = Literal["paper", "ours", "difference"]


class TableRow(NamedTuple):
    """A line of a block: a data set, its settings, the entry of every column."""

    data: str
    title: str
    same: bool | None
    label: str
    cells: Mapping[TableColumn, ComparedNumber]


class TableCell(NamedTuple):
    """What stands in one place of a block."""

    part: CellPart
    entry: ComparedNumber | None
    first: bool  # of the cells of its column
    folded: bool

    @property
    def words(self) -> list[str]:
        """What it says: the number first, then the difference and the marks."""
        entry = self.entry
        if entry is None:
            return [MISSING]
        if self.part == "paper":
            return [entries.pair_text(entry.paper, entry.kind)]
        if self.part == "difference":
            return [entries.difference_text(entry)]
        said = [entries.ours_text(entry)]
        if self.folded and entry.difference is not None:
            said.append(entries.difference_text(entry))
        return [*said, *(text for _, text in entry.marks.values())]


@dataclass(frozen=True)
class TableBlock:
    """A table ready to be written: columns by method, rows by data and settings."""

    title: str
    label: str
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]

    @property
    def keys(self) -> list[str]:
        """What the first columns are called, which name a row."""
        return ["Data", self.label] if self.label else ["Data"]

    def names(self, row: TableRow) -> list[str]:
        """Return the first columns of a row; a stand-in for the data says so."""
        title = entries.stand_in_title(row.title, row.same)
        return [title, row.label][: len(self.keys)]

    @property
    def leaves(self) -> list[tuple[TableColumn, CellPart]]:
        """The columns of numbers: the paper's, ours and, where it fits, both apart."""
        leaves: list[tuple[TableColumn, CellPart]] = []
        for column in self.columns:
            numbers = [row.cells.get(column) for row in self.rows]
            printed = any(entry and entry.printed is not None for entry in numbers)
            parts: list[CellPart] = ["ours"]
            if printed:
                parts = ["paper", *parts] if self.folded else [*get_args(CellPart)]
            leaves += [(column, part) for part in parts]
        return leaves

    def cells(self, row: TableRow) -> list[TableCell]:
        """Return the cells of a row, one for each of the leaves."""
        cells, before = [], None
        for column, part in self.leaves:
            first, before = column != before, column
            cells.append(TableCell(part, row.cells.get(column), first, self.folded))
        return cells

    @property
    def heads(self) -> list[list[tuple[str, int]]]:
        """The lines of the head, each as (words, columns spanned)."""
        leaves = self.leaves
        methods = _spans((column.method, "") for column, _ in leaves)
        lines = [[(method_title(method), n) for method, n in methods]]
        if any(column.measure for column, _ in leaves):
            spans = _spans((c.measure or "", c.method) for c, _ in leaves)
            lines.append([(entries.measure_title(measure), n) for measure, n in spans])
        if any(part == "paper" for _, part in leaves):
            lines.append([(part, 1) for _, part in leaves])
        return lines

    @property
    def folded(self) -> bool:
        """Whether the difference stands with our number, for want of room."""
        return len(self.columns) > MOST_COLUMNS


def _spans(keys: Iterable[tuple[str, str]]) -> list[tuple[str, int]]:
    """Count how often a key stands beside itself; its first part is what is shown."""
    return [(key[0], len(list(same))) for key, same in itertools.groupby(keys)]


class TableSection(NamedTuple):
    """The blocks over one choice of settings, with the settings that were chosen."""

    title: str
    blocks: Sequence[TableBlock]
    chosen: Mapping[str, Mapping[str, Sequence[str]]]  # by data title and method
    numbers: Sequence[ComparedNumber]


_APART = ("choice", "target", "spurious")


def sections(table: str, numbers: Sequence[ComparedNumber]) -> list[TableSection]:
    """Arrange the entries of a table; every entry stands in one block."""
    layout = LAYOUTS.get(table, _UNKNOWN)
    apart: dict[str, list[ComparedNumber]] = {}
    for entry in numbers:
        title = entries.settings_text(entry, _APART, " · ")
        apart.setdefault(title, []).append(entry)
    named = {measure for group in layout.groups for measure in group.measures}
    others = dict.fromkeys(e.measure for e in numbers if e.measure not in named)
    groups = (*layout.groups, MeasureGroup("Other measures", tuple(others), True))
    made = []
    for title, found in apart.items():
        by_group = ([e for e in found if e.measure in g.measures] for g in groups)
        both = zip(groups, by_group, strict=True)
        blocks = [_block(layout, group, some) for group, some in both if some]
        made.append(TableSection(title, blocks, _chosen(layout, found), found))
    return made


def _block(
    layout: Layout, group: MeasureGroup, numbers: Sequence[ComparedNumber]
) -> TableBlock:
    as_columns = len(group.measures) > 1 and not group.as_rows
    methods = dict.fromkeys([*METHODS, *(entry.method for entry in numbers)])
    measures = group.measures if as_columns else (None,)
    columns = [TableColumn(method, m) for method in methods for m in measures]
    rows: dict[tuple[str, str, int], dict[TableColumn, ComparedNumber]] = {}
    titles = {entry.data: (entry.title, entry.same) for entry in numbers}
    for entry in numbers:
        column = TableColumn(entry.method, entry.measure if as_columns else None)
        label = _row_label(layout, group, entry)
        again = 0  # two entries may ask for one cell; both are shown
        while column in rows.setdefault((entry.data, label, again), {}):
            again += 1
        rows[entry.data, label, again][column] = entry
    used = {column for cells in rows.values() for column in cells}
    head = ", ".join(filter(None, [layout.label, "Measure" * group.as_rows]))
    lines = [TableRow(key[0], *titles[key[0]], key[1], rows[key]) for key in rows]
    lines.sort(key=lambda row: list(titles).index(row.data))
    shown = [column for column in columns if column in used]
    return TableBlock(group.title, head, shown, lines)


def _row_label(layout: Layout, group: MeasureGroup, entry: ComparedNumber) -> str:
    values = [entry.settings.get(key) for key in layout.keys]
    texts = [f"{v:g}" if isinstance(v, int | float) else MISSING for v in values]
    # A pair does not break at the end of a line; files write a plain space.
    label = ",\u00a0".join(texts)
    label = f"({label})" if len(texts) > 1 else label
    if not group.as_rows:
        return label
    return ", ".join(filter(None, [label, entries.measure_title(entry.measure)]))


def _chosen(
    layout: Layout, numbers: Sequence[ComparedNumber]
) -> dict[str, dict[str, list[str]]]:
    """Return the settings that stand neither in the title nor in the rows."""
    chosen: dict[str, dict[str, list[str]]] = {}
    shown = (*_APART, *layout.keys)
    for entry in numbers:
        others = [name for name in entry.settings if name not in shown]
        text = entries.settings_text(entry, others)
        texts = chosen.setdefault(entry.title, {}).setdefault(entry.method, [])
        if text and text not in texts:
            texts.append(text)
    return chosen if any(any(texts.values()) for texts in chosen.values()) else {}


def caption(table: str) -> str:
    """Return the number and the title of a table."""
    title = LAYOUTS.get(table, _UNKNOWN).title
    return f"Table {table}. {title}" if title else f"Table {table}"


def legend(numbers: Iterable[ComparedNumber]) -> dict[str, str]:
    """Return the sentences that explain the marks of these entries, by their signs."""
    found = {mark for entry in numbers for mark in entry.marks}
    return dict(entries.MARKS[mark] for mark in entries.MARKS if mark in found)


def chosen_lines(chosen: Mapping[str, Mapping[str, Sequence[str]]]) -> list[list[str]]:
    """Return the settings that were used as lines of a table, the head first."""
    found = dict.fromkeys(method for texts in chosen.values() for method in texts)
    methods = sorted(found, key=lambda m: (*METHODS, m).index(m))
    lines = [["Data", *map(method_title, methods)]]
    for title, texts in chosen.items():
        cells = ["; ".join(texts.get(method) or [MISSING]) for method in methods]
        lines.append([title, *cells])
    return lines
