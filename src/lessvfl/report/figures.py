"""The figures of a report: each takes the runs of a record and returns an Axes.

Without ``ax`` a function makes a figure with ``matplotlib.pyplot.subplots``, as one
expects in a notebook; the page hands in axes of its own. Colours are those of Okabe and
Ito, told apart with every common kind of colour vision; hatching repeats what they say.
"""

from __future__ import annotations

import contextlib
import io
import re
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from lessvfl.report import tables
from lessvfl.report.tables import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, BLACK, GREY = "#56B4E9", "#CC79A7", "#222222", "#8A8F98"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
DASHES = ("-", "--", "-.", ":")
KINDS = (  # attribute of Counts, legend, colour, hatch
    ("real_kept", "real, kept", BLUE, ""),
    ("planted_kept", "planted, kept", VERMILION, ""),
    ("real_removed", "real, removed", "#BFD9EA", "////"),
    ("planted_removed", "planted, removed", "#F3D5C3", "////"),
)
SCORES = (  # key of a point, what the axis says, best first
    ("accuracy", "test accuracy"),
    ("r2", "test R²"),
    ("train_accuracy", "training accuracy (no test rows)"),
)
SELECTING = ("select_components", "select_features")
RC: Any = {
    "axes.edgecolor": "#9AA0A8",
    "axes.labelcolor": BLACK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "lessvfl",
    "xtick.color": "#454A52",
    "ytick.color": "#454A52",
}


def label(text: str, limit: int = 28) -> str:
    r"""Make a name safe to draw: no mathematics, one line, not too long.

    >>> label("price in $"), label("a" * 40)
    ('price in \\$', 'aaaaaaaaaaaaaaaaaaaaaaaaaaa…')
    """
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.replace("$", r"\$")


def _axes(ax: Axes | None, height: float = 3.0) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    made: Axes = pyplot.subplots(figsize=(5.6, height), layout="constrained")[1]
    return made


def _many(run: Run | Sequence[Run]) -> Sequence[Run]:
    return [run] if isinstance(run, Mapping) else run


def _say(ax: Axes, sentence: str) -> Axes:
    """Say why a figure is empty."""
    ax.text(0.5, 0.5, sentence, ha="center", va="center", transform=ax.transAxes)
    ax.set_axis_off()
    return ax


def _legend(ax: Axes, n_columns: int = 2) -> None:
    ax.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=n_columns, frameon=False
    )


# -- the curve -------------------------------------------------------------------------


Point = tuple[float, float]


def score_of(runs: Sequence[Run]) -> tuple[str, str] | None:
    """Choose the score to draw: the first that any point of these runs has."""
    for key, title in SCORES:
        if any(_points(run, key) for run in runs):
            return key, title
    return None


def _points(run: Run, key: str) -> dict[tuple[str, Any], Point]:
    """Return (MB, score) of a curve by stage and epoch, without the gaps."""
    points = {}
    for point in run["curve"]:
        score, sent = tables.number(point, key), tables.number(point, "payload_bytes")
        if score is not None and sent is not None:
            points[point["stage"], point["epoch"]] = (sent / 1e6, score)
    return points


def mean_curve(runs: Sequence[Run], key: str) -> list[Point]:
    """Average the curves at the stages and epochs that all runs with a curve share."""
    curves = [points for run in runs if (points := _points(run, key))]
    shared = [at for at in curves[0] if all(at in curve for curve in curves)]
    return [
        (
            statistics.fmean(curve[at][0] for curve in curves),
            statistics.fmean(curve[at][1] for curve in curves),
        )
        for at in shared
    ]


def selection_megabytes(run: Run) -> float | None:
    """Return the MB sent when a run selected its features; None where it did not."""
    stages = {point["stage"] for point in run["curve"]}
    stages |= set(tables.at(run, "seconds") or {})
    stages |= set(tables.at(run, "communication", "by_stage") or {})
    if not stages & set(SELECTING):
        return None
    after = ("settle", "select_again", "train")
    before = [point for point in run["curve"] if point["stage"] not in after]
    sent = [tables.number(point, "payload_bytes") for point in before]
    return max((n_bytes for n_bytes in sent if n_bytes is not None), default=0) / 1e6


def plot_curve(
    runs: Sequence[Run],
    ax: Axes | None = None,
    *,
    name: str | None = None,
    color: str = BLUE,
    dashes: str = "-",
) -> Axes:
    """Draw the test score against the megabytes sent, each seed thin, the mean thick.

    Parameters
    ----------
    runs : sequence of mapping
        Runs of one method, as in ``RunRecord.runs``.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    name : str, optional
        Name of the method, to lay several over each other; the moment of selection is
        then only a mark on the curve, and the target is not drawn.
    color, dashes : str
        How the lines look.

    Returns
    -------
    matplotlib Axes
    """
    ax, runs = _axes(ax), _many(runs)
    chosen = score_of(runs)
    if chosen is None:
        return ax if name else _say(ax, "no score was recorded")
    key, title = chosen
    if len(runs) > 1:
        for i, run in enumerate(runs):
            thin = list(_points(run, key).values())
            seeds = "each seed" if i == 0 and not name else None
            ax.plot(*_columns(thin), color=color, lw=0.7, alpha=0.4, label=seeds)
    mean = mean_curve(runs, key)
    words = "mean of seeds" if len(runs) > 1 else f"seed {runs[0]['seed']}"
    words = label(name, 60) if name else words
    dot = "o" if len(mean) == 1 else None
    ax.plot(
        *_columns(mean), color=color, ls=dashes, lw=2, marker=dot, ms=4, label=words
    )
    _mark_selection(ax, runs, mean, color, named=name is not None)
    goals = {tables.number(run, "target", "accuracy") for run in runs} - {None}
    if not name and key == "accuracy":
        for goal in sorted(goal for goal in goals if goal is not None):
            ax.axhline(goal, color=GREEN, lw=1.2, ls=":", label=f"target {goal:g}")
    ax.set_xlabel("MB sent, both ways")
    ax.set_ylabel(title)
    ax.grid(color="#E4E7EB", lw=0.6)
    ax.set_axisbelow(True)
    _legend(ax, 1 if name else 2)
    return ax


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _mark_selection(
    ax: Axes, runs: Sequence[Run], mean: Sequence[Point], color: str, *, named: bool
) -> None:
    when = tables.spread([selection_megabytes(run) for run in runs])
    if when is None:
        return
    if not named:
        ax.axvline(
            when.mean, color=VERMILION, lw=1.2, ls="--", label="features selected"
        )
    elif mean:
        x, y = min(mean, key=lambda point: abs(point[0] - when.mean))
        ax.plot([x], [y], marker="D", ms=6, mfc="white", mec=color, mew=1.5)


# -- bars by party, by stage, by method ------------------------------------------------


def _prepare_bars(ax: Axes, names: Sequence[str], *, whole: bool = True) -> None:
    ax.set_yticks(range(len(names)), [label(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=7, integer=whole)
    ax.grid(axis="x", color="#E4E7EB", lw=0.6)
    ax.set_axisbelow(True)


def _beside(ax: Axes, x: float, y: float, text: str) -> None:
    """Write a number at the end of a bar."""
    ax.annotate(
        text,
        (x, y),
        (4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color="#454A52",
    )


def _stack(ax: Axes, counts: Mapping[str, tables.Counts]) -> None:
    """Draw kept and removed, real and planted, one bar a name."""
    _prepare_bars(ax, list(counts))
    left = [0.0] * len(counts)
    for attribute, words, color, hatch in KINDS:
        widths = [float(getattr(c, attribute)) for c in counts.values()]
        if any(widths):
            style: dict[str, Any] = {"color": color}
            if hatch:
                style = {"facecolor": color, "edgecolor": "#7F8791", "hatch": hatch}
            ax.barh(
                range(len(counts)),
                widths,
                left=left,
                height=0.72,
                lw=0,
                label=words,
                **style,
            )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, c in enumerate(counts.values()):
        _beside(ax, c.held, y, f"{tables.value_text(round(c.kept, 1), 'count')} kept")
    ax.set_xlim(0, 1.22 * max(left, default=0) or 1)
    if any(left):
        _legend(ax)


def plot_features(run: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """Draw the features each party kept and removed, planted apart from real ones.

    Parameters
    ----------
    run : mapping, or sequence of mapping
        One run, or several to average.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    counts = tables.mean_counts(_many(run))
    ax = _axes(ax, bars_height(len(counts)))
    if not counts:
        return _say(ax, "the parties did not reveal\nwhich features they kept")
    _stack(ax, counts)
    ax.set_xlabel("features" + _mean_of(run))
    return ax


def plot_kept(methods: Mapping[str, Sequence[Run]], ax: Axes | None = None) -> Axes:
    """Draw the features kept and removed by several methods, all parties together.

    Parameters
    ----------
    methods : mapping of str to sequence of mapping
        Name of each method and its runs, which are averaged.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    means = {name: tables.mean_total(runs) for name, runs in methods.items()}
    counts = {name: mean for name, mean in means.items() if mean is not None}
    ax = _axes(ax, bars_height(len(counts)))
    if not counts:
        return _say(ax, "no record says which features were kept")
    _stack(ax, counts)
    ax.set_xlabel("features, all parties, mean of seeds")
    return ax


def plot_components(run: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """Draw the embedding components the server kept of each party.

    Parameters
    ----------
    run : mapping, or sequence of mapping
        One run, or several to average.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    counts = tables.component_counts(_many(run))
    ax = _axes(ax, bars_height(len(counts)))
    if not counts:
        return _say(ax, "no components were recorded")
    _prepare_bars(ax, list(counts))
    rows = range(len(counts))
    kept, of = [k for k, _ in counts.values()], [n for _, n in counts.values()]
    left_out = [n - k for k, n in counts.values()]
    ax.barh(rows, kept, height=0.72, color=BLUE, lw=0, label="kept")
    if any(left_out):
        ax.barh(
            rows,
            left_out,
            left=kept,
            height=0.72,
            facecolor="#BFD9EA",
            edgecolor="#7F8791",
            hatch="////",
            lw=0,
            label="removed",
        )
    for y, (k, n) in enumerate(counts.values()):
        texts = [tables.value_text(round(v, 1), "count") for v in (k, n)]
        _beside(ax, n, y, " of ".join(texts))
    ax.set_xlim(0, 1.25 * max(of) or 1)
    ax.set_xlabel("embedding components" + _mean_of(run))
    _legend(ax)
    return ax


def plot_bytes(run: Run | Sequence[Run], ax: Axes | None = None) -> Axes:
    """Draw the payload bytes of each stage and direction; evaluation is set apart.

    Parameters
    ----------
    run : mapping, or sequence of mapping
        One run, or several to average.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    runs = _many(run)
    stages = tables.stages_billed(runs)
    ax = _axes(ax, bars_height(2 * len(stages)))
    if not stages:
        return _say(ax, "no bytes were recorded")
    titles = [tables.STAGE_TITLES.get(s, s.replace("_", " ")) for s in stages]
    _prepare_bars(ax, [t + "*" * (t == "evaluate") for t in titles], whole=False)
    longest = 0.0
    for direction, shift, color, words in (
        ("up", -0.19, BLUE, "parties to server"),
        ("down", 0.19, ORANGE, "server to parties"),
    ):
        sizes = [_mean_bytes(runs, stage, direction) for stage in stages]
        longest = max(longest, *sizes)
        rows = [y + shift for y in range(len(stages))]
        bars = ax.barh(
            rows, [s / 1e6 for s in sizes], height=0.36, color=color, label=words
        )
        for stage, y, size, bar in zip(stages, rows, sizes, bars, strict=True):
            if stage == "evaluate":
                bar.set_alpha(0.4)
            _beside(ax, size / 1e6, y, tables.bytes_text(size) if size else "0")
    ax.set_xlim(0, 1.28 * longest / 1e6 or 1)
    apart = "; * not in the cost" if "evaluate" in stages else ""
    ax.set_xlabel("MB" + _mean_of(run) + apart)
    _legend(ax)
    return ax


MOST_SCORES = 30  # features that fit into a figure


def plot_scores(run: Run, ax: Axes | None = None) -> Axes:
    """Draw how strong each feature is, and the bar that its party's shadows set.

    Parameters
    ----------
    run : mapping
        One run that selected by shadows.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    found = [
        (score, feature, party, how["lam"])
        for party, how in (run.get("selection") or {}).items()
        for feature, score in how["scores"].items()
    ]
    shown = sorted(found, key=lambda line: -line[0])[:MOST_SCORES]
    ax = _axes(ax, bars_height(len(shown)))
    if not shown:
        return _say(ax, "no feature was measured against shadows")
    _prepare_bars(ax, [f"{feature} ({party})" for _, feature, party, _ in shown])
    kept = tables.revealed(run)
    for row, (score, feature, party, bar) in enumerate(shown):
        is_kept = party in kept and feature in kept[party]["kept"]
        ax.barh(row, score, height=0.6, color=BLUE if is_kept else "#BFD9EA")
        ax.plot([bar, bar], [row - 0.42, row + 0.42], color=VERMILION, linewidth=1.6)
    ax.set_xlim(0, 1.02)
    ax.set_xlabel("strength; dark: kept, red: chance")
    return ax


def plot_path(run: Run, ax: Axes | None = None) -> Axes:
    """Draw the share of shadows kept against the features kept, along the lambdas.

    Parameters
    ----------
    run : mapping
        One run that selected by shadows.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    ax = _axes(ax)
    selection = run.get("selection") or {}
    if not selection:
        return _say(ax, "no path was recorded")
    for number, (party, how) in enumerate(selection.items()):
        _, kept, shadows = zip(*how["path"], strict=True)
        color = CYCLE[number % len(CYCLE)]
        ax.plot(kept, [100 * s for s in shadows], color=color, label=label(party))
        place = [lam for lam, _, _ in how["path"]].index(how["lam"])
        ax.plot(kept[place], 100 * shadows[place], "o", color=color)
    ax.set_xlabel("features kept; the dot is the choice")
    ax.set_ylabel("shadows kept, %")
    _legend(ax)
    return ax


def _mean_bytes(runs: Sequence[Run], stage: str, direction: str) -> float:
    path = ("communication", "by_stage", stage, direction)
    found = tables.spread([tables.number(run, *path) for run in runs])
    return found.mean if found else 0.0


def _mean_of(run: Run | Sequence[Run]) -> str:
    n_runs = len(_many(run))
    return f", mean of {n_runs} seeds" if n_runs > 1 else ""


# -- figures for the page --------------------------------------------------------------


def bars_height(n_bars: int) -> float:
    """Return the height in inches of a figure with that many bars."""
    return max(1.6, 1.15 + 0.25 * n_bars)


@contextlib.contextmanager
def page_style() -> Iterator[None]:
    """Draw in the style of the page, whatever style the caller has set."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def new_axes(height: float = 3.0) -> Axes:
    """Make axes on a figure that pyplot knows nothing of."""
    from matplotlib.figure import Figure

    made: Axes = Figure(figsize=(4.7, height), layout="constrained").subplots()
    return made


def to_svg(figure: Figure, name: str) -> str:
    """Write a figure as an SVG element to stand in a page, the same bytes every time.

    Parameters
    ----------
    figure : matplotlib Figure
        What to write.
    name : str
        Put in front of every id, so that several figures can share a page.

    Returns
    -------
    str
        An ``<svg>`` element without prologue, metadata, style sheet or fixed size.
    """
    stream = io.StringIO()
    with warnings.catch_warnings():
        # The browser draws the text, with fonts that know more letters than ours.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(stream, format="svg", metadata={"Date": None}, transparent=True)
    root = ElementTree.fromstring(stream.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {
            _local(key): _rename(_local(key), value, name)
            for key, value in element.attrib.items()
        }
    for size in ("width", "height"):
        del root.attrib[size]
    root.attrib["aria-hidden"] = "true"
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _rename(key: str, value: str, name: str) -> str:
    """Keep ids apart, and let the page choose the font."""
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return value.replace("#", f"#{name}-", 1)
    value = value.replace("url(#", f"url(#{name}-")
    return re.sub(r"(font: [^']*?px) '.*?(;|$)", r"\1 system-ui, sans-serif\2", value)
