"""Features that are pixels, as a picture: which of them every party kept.

A feature is a pixel by its name, ``pixel_ROW_COLUMN``, whatever the data are called.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lessvfl.report import figures, parts, tables
from lessvfl.report.tables import FeatureRow, RunNumbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = re.compile(r"pixel_(\d+)_(\d+)")
MOST = 64  # rows or columns of pixels that can be told apart
GAP = 1.0  # between the pixels and what was planted beside them
NAMES = 2.0  # pixels that the names of parties take
SMALLEST = 4  # planted features in a line, at the least
BLOCKS = {"kept": "██", "some": "▒▒", "removed": "··"}


class Picture(NamedTuple):
    """Where every feature stands: pixels in their grid, planted ones right of it."""

    pixels: dict[tuple[int, int], FeatureRow]  # by column and row
    planted: dict[str, list[FeatureRow]]  # by party
    n_columns: int
    n_rows: int

    @property
    def height(self) -> float:
        """Return the height in inches of a figure of the page with it."""
        n_beside = SMALLEST + GAP if self.planted else 0.0
        return 0.85 + 4.7 * self.n_rows / (self.n_columns + n_beside + NAMES)

    @property
    def middles(self) -> dict[str, float]:
        """Return the height of every party's name, from above.

        It is the mean of its pixels, unless names would be too close to each other.
        """
        rows: dict[str, list[int]] = {}
        for (_, y), one in self.pixels.items():
            rows.setdefault(one.party, []).append(y)
        middles = {party: statistics.fmean(ys) + 0.5 for party, ys in rows.items()}
        step = self.n_rows / len(middles)
        pairs = itertools.pairwise(sorted(middles.values()))
        if any(b - a < 0.75 * step for a, b in pairs):
            return {party: (i + 0.5) * step for i, party in enumerate(middles)}
        return middles


def picture(runs: Sequence[RunNumbers]) -> Picture | None:
    """Lay out the features of runs; None where they are no pixels, or none went."""
    pixels: dict[tuple[int, int], FeatureRow] = {}
    planted: dict[str, list[FeatureRow]] = {}
    for row in tables.feature_rows(runs):
        if tables.is_planted(row.party, row.feature):
            planted.setdefault(row.party, []).append(row)
        elif named := NAME.fullmatch(row.feature):
            y, x = map(int, named.groups())
            pixels[x, y] = row
        else:
            return None
    rows = [*pixels.values(), *(one for some in planted.values() for one in some)]
    if not pixels or all(row.state == "kept" for row in rows):
        return None
    n_columns, n_rows = (1 + max(place[axis] for place in pixels) for axis in (0, 1))
    if min(n_columns, n_rows) < 2 or max(n_columns, n_rows) > MOST:
        return None
    return Picture(pixels, planted, n_columns, n_rows)


def text_lines(runs: Sequence[RunNumbers]) -> Iterator[str]:
    """Yield the picture as lines of text; nothing where there is none.

    A party is named where its first line of pixels begins.
    """
    if (shown := picture(runs)) is None:
        return
    width = max(len(party) for party in shown.middles)
    counts = tables.mean_counts(runs)
    for y in range(shown.n_rows):
        cells = [shown.pixels.get((x, y)) for x in range(shown.n_columns)]
        blocks = "".join(BLOCKS[cell.state] if cell else "  " for cell in cells)
        name, beside = "", ""
        if (party := cells[0].party if cells[0] else "") in counts:
            name, count = party, counts.pop(party)
            if n_planted := count.planted_kept + count.planted_removed:
                gone = f"{count.planted_removed:.3g} of {n_planted:g}"
                beside = f"  {gone} planted removed"
        yield f"{name:<{width}}  {blocks}{beside}"
    words = {"kept": "kept", "some": "kept by some seeds", "removed": "removed"}
    if len(runs) == 1:
        del words["some"]
    yield "   ".join(f"{BLOCKS[state]} {word}" for state, word in words.items())


def drawn(
    runs: Sequence[RunNumbers], name: str, method: str = ""
) -> list[parts.Drawing]:
    """Return the picture for a page; nothing where there is none to draw."""
    if (shown := picture(runs)) is None:
        return []
    caption = "The pixels of every party, where they are in the image."
    if shown.planted:
        caption += " Beside them the columns of noise that it was given."
    if len(runs) > 1:
        caption += f" A fraction: kept in that many of {len(runs)} seeds."
    else:
        caption += f" Seed {runs[0]['seed']}."
    alt = []
    for party, counts in tables.mean_counts(runs).items():
        real = counts.real_kept + counts.real_removed
        text = f"{party} kept {counts.real_kept:.3g} of {real:g} pixels"
        if n_planted := counts.planted_kept + counts.planted_removed:
            gone = f"{counts.planted_removed:.3g} of {n_planted:g}"
            text += f" and removed {gone} planted features"
        alt.append(text)
    ax = plot_pixels(runs, figures.new_axes(shown.height))
    title = "Pixels kept and removed" + (f" by {method}" if method else "")
    return [parts.figure(ax, name, title, caption, "; ".join(alt))]


def plot_pixels(runs: Sequence[RunNumbers], ax: Axes) -> Axes:
    """Draw the pixels that parties kept and removed, and what was planted; return `ax`.

    The runs are of one method, as in ``RunRecord.runs``, and have a :func:`picture`.
    """
    shown = picture(runs)
    assert shown is not None, "there is no picture to draw"
    kinds = {
        _draw_cell(ax, pixel, row, is_planted=False)
        for pixel, row in shown.pixels.items()
    }
    owners = {pixel: row.party for pixel, row in shown.pixels.items()}
    line: Any = {"color": figures.BLACK, "lw": 1.4, "solid_capstyle": "round"}
    for x in range(shown.n_columns + 1):  # where one party's pixels end
        for y in range(shown.n_rows + 1):
            here = owners.get((x, y))
            if here != owners.get((x - 1, y)):
                ax.plot([x, x], [y, y + 1], **line)
            if here != owners.get((x, y - 1)):
                ax.plot([x, x + 1], [y, y], **line)
    right = float(shown.n_columns)
    names: Any = {"ha": "right", "va": "center", "fontsize": "medium"}
    for party, middle in shown.middles.items():
        ax.text(-0.4, middle, figures.label(party, 16), **names)
        rows = sorted(shown.planted.get(party, []), key=lambda row: row.n_kept)
        width = max(
            SMALLEST, -(-len(rows) // max(1, shown.n_rows // len(shown.middles)))
        )
        top = middle - -(-len(rows) // width) / 2
        for i, row in enumerate(rows):
            place = (shown.n_columns + GAP + i % width, top + i // width)
            kinds.add(_draw_cell(ax, place, row, is_planted=True))
            right = max(right, place[0] + 1)
    ax.set_xlim(-0.1, right + 0.1)
    ax.set_ylim(shown.n_rows + 0.1, -0.1)
    below: Any = {"ha": "center", "va": "top", "fontsize": "small"}
    ax.text(shown.n_columns / 2, shown.n_rows + 0.15, "pixels", **below)
    if shown.planted:
        middle = (shown.n_columns + GAP + right) / 2
        ax.text(middle, shown.n_rows + 0.15, "planted noise", **below)
    ax.set_aspect("equal")
    ax.set_axis_off()
    _draw_legend(ax, kinds)
    return ax


def _draw_cell(
    ax: Axes, place: tuple[float, float], row: FeatureRow, *, is_planted: bool
) -> str:
    """Draw one feature: full, hatched, or with the share of seeds that kept it.

    Returns its kind, one of ``figures.KINDS``.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    share = row.n_kept / row.n_runs
    (kept, full, _), (removed, empty, hatch) = figures.KINDS[is_planted::2]
    (x, y), size = place, 0.9
    ends = zip(to_rgb(empty), to_rgb(full), strict=True)
    look: Any = {"facecolor": tuple(a + share * (b - a) for a, b in ends), "lw": 0}
    if not row.n_kept:
        look |= {"hatch": hatch, "edgecolor": "#7F8791"}
    ax.add_patch(Rectangle((x + 0.05, y + 0.05), size, size, **look))
    if 0 < row.n_kept < row.n_runs:
        ink = "white" if share > 0.6 else figures.BLACK
        text: Any = {"ha": "center", "va": "center", "fontsize": "x-small"}
        ax.text(x + 0.5, y + 0.5, f"{row.n_kept}/{row.n_runs}", color=ink, **text)
    return kept if row.n_kept else removed


def _draw_legend(ax: Axes, seen: set[str]) -> None:
    """Explain the kinds of features that are there."""
    from matplotlib.patches import Patch

    real = "pixel" if any(kind.startswith("planted") for kind in seen) else ""
    handles = []
    for kind, color, hatch in figures.KINDS:
        if kind in seen:
            name = kind.replace("real", real).removeprefix(", ")
            look: Any = {"facecolor": color, "lw": 0, "label": name}
            if hatch:
                look |= {"hatch": hatch, "edgecolor": "#7F8791"}
            handles.append(Patch(**look))
    figures.legend(ax, handles=handles)
