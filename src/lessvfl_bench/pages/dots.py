"""Figures with a line for every method: marks, with deviations as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lessvfl.report import figures, parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Marks = Sequence[tuple[str, str, str, str]]  # key, title, colour, marker
DotLine = tuple[str, Mapping[str, Any]]  # a method's title; mean and std by key
DotFigures = Mapping[str, tuple[str, str, Marks]]  # title, caption, marks by name
KEPT: Marks = (
    ("removed_share", "noise removed", figures.VERMILION, "o"),
    ("real_kept_share", "real kept", figures.BLUE, "s"),
    ("f1", "support F1", figures.GREEN, "D"),
)


def kept_and_scores(scores: Marks, caption: str) -> DotFigures:
    """Return the figures of what methods kept, and of their scores."""
    kept = "Noise should go; real features need not all stay. Bars are deviations."
    return {
        "kept": ("What was kept", kept, KEPT),
        "score": ("Balanced accuracy on test rows", caption, scores),
    }


def draw(key: str, lines: Sequence[DotLine], wanted: DotFigures) -> list[parts.Drawing]:
    """Draw figures of shares; a mark that no line has is left out."""
    drawn = []
    for part, (title, caption, marks) in wanted.items() if lines else ():
        known = [mark for mark in marks if any(line[mark[0]] for _, line in lines)]
        said = []
        for name, line in lines:
            shown = [(words, line[k]) for k, words, *_ in known if line[k] is not None]
            means = (f"{words} {spread['mean']:.2f}" for words, spread in shown)
            said.append(f"{name}: {', '.join(means)}")
        with figures.page_style():
            ax = figures.new_axes(0.9 + 0.26 * len(lines))
            _dots(ax, lines, known)
            alt = "; ".join(said)
            drawn.append(parts.figure(ax, f"{key}-{part}", title, caption, alt))
    return drawn


def _dots(ax: Axes, lines: Sequence[DotLine], marks: Marks) -> None:
    """Draw a line for every method: marks, with a deviation to each side as a bar."""
    look: Any = {"ms": 5, "lw": 1, "alpha": 0.85}
    for index, (key, title, color, marker) in enumerate(marks):
        lift = 0.16 * (index - (len(marks) - 1) / 2)  # no mark hides another
        found = [(i, line[key]) for i, (_, line) in enumerate(lines)]
        known = [(i, spread) for i, spread in found if spread is not None]
        heights = [i + lift for i, _ in known]
        means = [spread["mean"] for _, spread in known]
        pairs = [(spread["mean"], spread["std"] or 0.0) for _, spread in known]
        # A share ends at 0 and at 1.
        reach = [[min(s, m) for m, s in pairs], [min(s, 1 - m) for m, s in pairs]]
        look |= {"fmt": marker, "color": color, "label": title}
        ax.errorbar(means, heights, xerr=reach, **look)
    ax.set_yticks(range(len(lines)), [name for name, _ in lines])
    ax.set_ylim(len(lines) - 0.5, -0.5)
    figures.grid(ax)
    place: Any = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0)}
    place |= {"columnspacing": 1.0, "handletextpad": 0.3}
    ax.legend(ncols=len(marks), frameon=False, **place)
