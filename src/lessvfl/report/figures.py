"""The figures of a report: each takes the runs of a record and returns an Axes.

Colours are those of Okabe and Ito, told apart with every common kind of colour vision;
hatching repeats what they say.
"""

from __future__ import annotations

import contextlib
import statistics
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from lessvfl import terms
from lessvfl.report import tables
from lessvfl.report.tables import RunNumbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OneOrMore = RunNumbers | Sequence[RunNumbers]

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, BLACK, GREY = "#56B4E9", "#CC79A7", "#222222", "#8A8F98"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
DASHES = ("-", "--", "-.", ":")
KINDS = (  # as in FeatureCounts: legend, colour, hatch
    ("real, kept", BLUE, ""),
    ("planted, kept", VERMILION, ""),
    ("real, removed", "#BFD9EA", "////"),
    ("planted, removed", "#F3D5C3", "////"),
)
DIRECTIONS = (  # key of a bill, shift of the bar, colour, legend
    ("up", -0.19, BLUE, "parties to server"),
    ("down", 0.19, ORANGE, "server to parties"),
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
    """Make a name safe to draw: no mathematics, one line, not too long."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.replace("$", r"\$")


def own_axes(ax: Axes | None, height: float = 3.0) -> Axes:
    """Return the axes given, or new ones that pyplot knows of."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    made: Axes = pyplot.subplots(figsize=(5.6, height), layout="constrained")[1]
    return made


def _many(run: OneOrMore) -> Sequence[RunNumbers]:
    return [run] if isinstance(run, Mapping) else run


def say(ax: Axes, sentence: str) -> Axes:
    """Say why a figure is empty."""
    ax.text(0.5, 0.5, sentence, ha="center", va="center", transform=ax.transAxes)
    ax.set_axis_off()
    return ax


def legend(ax: Axes, n_columns: int = 2, handles: Any = None) -> None:
    """Put the legend above the axes: of what is drawn, or of `handles`."""
    place: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    ax.legend(ncols=n_columns, frameon=False, handles=handles, **place)


def grid(ax: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw the grid behind everything else."""
    ax.grid(axis=axis, color="#E4E7EB", lw=0.6)
    ax.set_axisbelow(True)


WIDE = 50  # times from the least to the most megabytes, from which steps are powers


def scale_megabytes(ax: Axes) -> None:
    """Let x go in powers of ten where what is drawn differs so much in its cost."""
    if ax.dataLim.x1 >= WIDE * ax.dataLim.minposx:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")


# -- the curve -------------------------------------------------------------------------


Point = tuple[float, float]


def score_of(runs: Sequence[RunNumbers]) -> tuple[str, str] | None:
    """Choose the score to draw: the leading one, or the first that any point has."""
    names = dict.fromkeys([tables.leading(runs) or "accuracy", "accuracy", "r2"])
    for prefix, words in (("", "test {}"), ("train_", "training {} (no test rows)")):
        for name in names:
            if any(_points(run, f"{prefix}{name}") for run in runs):
                return f"{prefix}{name}", words.format(tables.score_word(name))
    return None


def has_curve(runs: Sequence[RunNumbers]) -> bool:
    """Tell whether any run was scored more than once, so that there is a line."""
    score = score_of(runs)
    return score is not None and any(len(_points(run, score[0])) > 1 for run in runs)


def _points(run: RunNumbers, key: str) -> dict[tuple[str, Any], Point]:
    """Return (MB, score) of a curve by stage and epoch, without the gaps."""
    points = {}
    for point in run["curve"]:
        score, sent = tables.number(point, key), tables.number(point, "payload_bytes")
        if score is not None and sent is not None:
            points[point["stage"], point["epoch"]] = (sent / 1e6, score)
    return points


def mean_curve(runs: Sequence[RunNumbers], key: str) -> list[Point]:
    """Average the curves at the stages and epochs that all runs with a curve share."""
    curves = [points for run in runs if (points := _points(run, key))]
    shared = [at for at in curves[0] if all(at in curve for curve in curves)]
    means = []
    for at in shared:
        sent, scores = zip(*(curve[at] for curve in curves), strict=True)
        means.append((statistics.fmean(sent), statistics.fmean(scores)))
    return means


def selection_megabytes(run: RunNumbers) -> float | None:
    """Return the MB sent when a run selected its features; None where it did not."""
    stages = {point["stage"] for point in run["curve"]}
    stages |= set(tables.at(run, "seconds") or {})
    if not stages.union(tables.stages_billed([run])) & set(SELECTING):
        return None
    after = ("train_first", "select_again", "train")
    sent = [
        tables.number(point, "payload_bytes")
        for point in run["curve"]
        if point["stage"] not in after
    ]
    return max((n_bytes for n_bytes in sent if n_bytes is not None), default=0) / 1e6


def plot_curve(
    runs: Sequence[RunNumbers],
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
    ax, runs = own_axes(ax), _many(runs)
    chosen = score_of(runs)
    if chosen is None:
        return ax if name else say(ax, "no score was recorded")
    key, title = chosen
    if len(runs) > 1:
        seeds = None if name else "each seed"
        for run in runs:
            thin = _columns(_points(run, key).values())
            ax.plot(*thin, color=color, lw=0.7, alpha=0.4, label=seeds)
            seeds = None
    mean = mean_curve(runs, key)
    look: Any = {"lw": 2, "ms": 4, "marker": "o" if len(mean) == 1 else None}
    look["label"] = label(name, 60) if name else mean_of(runs)
    ax.plot(*_columns(mean), color=color, ls=dashes, **look)
    scale_megabytes(ax)
    selected = tables.spread([selection_megabytes(run) for run in runs])
    if selected and not name:
        words = "features selected"
        ax.axvline(selected.mean, color=VERMILION, lw=1.2, ls="--", label=words)
    elif selected and mean:
        x, y = min(mean, key=lambda point: abs(point[0] - selected.mean))
        ax.plot([x], [y], marker="D", ms=6, mfc="white", mec=color, mew=1.5)
    goals = {tables.number(run, "target", "accuracy") for run in runs}
    if not name and key == "accuracy":
        for goal in sorted(goal for goal in goals if goal is not None):
            ax.axhline(goal, color=GREEN, lw=1.2, ls=":", label=f"target {goal:g}")
    ax.set_xlabel("MB sent, both ways")
    ax.set_ylabel(title)
    grid(ax)
    legend(ax, 1 if name else 2)
    return ax


def _columns(points: Collection[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


# -- bars by party, by stage, by method ------------------------------------------------


def prepare_bars(ax: Axes, names: Sequence[str], *, whole: bool = True) -> None:
    """Name the bars to come, the first on top; `whole` if their lengths are counts."""
    ax.set_yticks(range(len(names)), [label(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=7, integer=whole)
    grid(ax, "x")


def beside(ax: Axes, x: float, y: float, text: str) -> None:
    """Write a number at the end of a bar."""
    look: Any = {"va": "center", "fontsize": 8, "color": "#454A52"}
    ax.annotate(text, (x, y), (4, 0), textcoords="offset points", **look)


Layer = tuple[str, str, str, Sequence[float]]  # legend, colour, hatch, length of bars


def _stack(
    ax: Axes, bars: Mapping[str, str], layers: Sequence[Layer], room: float = 1.22
) -> None:
    """Draw a bar for every name, in layers, with its text beside it."""
    prepare_bars(ax, list(bars))
    left = [0.0] * len(bars)
    for words, color, hatch, widths in layers:
        style: Any = {"facecolor": color, "edgecolor": "#7F8791", "hatch": hatch}
        style = style if hatch else {"color": color}
        style |= {"lw": 0, "height": 0.72, "label": words}
        ax.barh(range(len(bars)), widths, left=left, **style)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, text in enumerate(bars.values()):
        beside(ax, left[y], y, text)
    ax.set_xlim(0, room * max(left) or 1)
    if layers:
        legend(ax)


def stack_features(
    ax: Axes,
    counts: Mapping[str, tables.FeatureCounts],
    texts: Mapping[str, str] | None = None,
    room: float = 1.22,
) -> None:
    """Draw kept and removed, real and planted features by name, texts beside them.

    Without `texts` it is how many were kept.
    """
    start = "" if tables.with_planted(counts.values()) else "real, "
    layers = [
        (words.removeprefix(start), color, hatch, widths)
        for (words, color, hatch), widths in zip(  # in the order of KINDS
            KINDS, zip(*counts.values(), strict=True), strict=True
        )
        if any(widths)
    ]
    if texts is None:
        texts = {name: f"{_count(c.kept)} kept" for name, c in counts.items()}
    _stack(ax, texts, layers, room)


def _count(value: float) -> str:
    return tables.value_text(round(value, 1), "count")


def plot_features(run: OneOrMore, ax: Axes | None = None) -> Axes:
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
    ax = own_axes(ax, bars_height(len(counts)))
    if not counts:
        return say(ax, "the parties did not reveal\nwhich features they kept")
    stack_features(ax, counts)
    ax.set_xlabel(f"features, {mean_of(run)}")
    return ax


def plot_kept(methods: Mapping[str, Sequence[RunNumbers]], ax: Axes) -> Axes:
    """Draw the features kept and removed by several methods, all parties together."""
    means = {name: tables.mean_total(runs) for name, runs in methods.items()}
    counts = {name: mean for name, mean in means.items() if mean is not None}
    if not counts:
        return say(ax, "no record says which features were kept")
    stack_features(ax, counts)
    of_each = {mean_of(runs) for runs in methods.values() if runs}
    of_what = of_each.pop() if len(of_each) == 1 else "mean of the seeds of each"
    ax.set_xlabel(f"features, all parties, {of_what}")
    return ax


def plot_components(run: OneOrMore, ax: Axes | None = None) -> Axes:
    """Draw the embedding components the server kept of each party, or its splits.

    Takes and returns what :func:`plot_features` does.
    """
    counts = tables.component_counts(_many(run))
    ax = own_axes(ax, bars_height(len(counts)))
    if not counts:
        return say(ax, "no components were recorded")
    has_trees = tables.are_trees(_many(run))
    kept, of = zip(*counts.values(), strict=True)
    layers: list[Layer] = [("splits" if has_trees else "kept", BLUE, "", kept)]
    if kept != of:
        removed = [n - k for k, n in zip(kept, of, strict=True)]
        layers.append(("removed", "#BFD9EA", "////", removed))
    texts = {
        party: _count(k) if has_trees else f"{_count(k)} of {_count(n)}"
        for party, (k, n) in counts.items()
    }
    _stack(ax, texts, layers, room=1.25)
    what = "splits" if has_trees else "embedding components"
    ax.set_xlabel(f"{what}, {mean_of(run)}")
    return ax


def plot_bytes(run: OneOrMore, ax: Axes | None = None) -> Axes:
    """Draw the payload bytes of each stage and direction; evaluation is set apart.

    Takes and returns what :func:`plot_features` does.
    """
    runs = _many(run)
    stages = tables.stages_billed(runs)
    ax = own_axes(ax, bars_height(2 * len(stages)))
    if not stages:
        return say(ax, "no bytes were recorded")
    titles = [tables.stage_title(s) + "*" * (s == "evaluate") for s in stages]
    prepare_bars(ax, titles, whole=False)
    sizes = {
        (stage, way): mean.mean if mean else 0.0
        for stage in stages
        for way, *_ in DIRECTIONS
        for mean in [tables.over_seeds(runs, f"communication.by_stage.{stage}.{way}")]
    }
    paid = [size for (stage, _), size in sizes.items() if stage != "evaluate"]
    longest = max(paid or sizes.values())  # evaluation costs nothing
    for way, shift, color, legend_text in DIRECTIONS:
        rows = [y + shift for y in range(len(stages))]
        sent = [min(sizes[stage, way], longest) / 1e6 for stage in stages]
        bars = ax.barh(rows, sent, height=0.36, color=color, label=legend_text)
        for stage, y, bar in zip(stages, rows, bars, strict=True):
            size = sizes[stage, way]
            text = terms.bytes_text(size) if size else "0"
            if stage == "evaluate":
                bar.set_alpha(0.4)
                text += " (bar cut)" * (size > longest)
            beside(ax, bar.get_width(), y, text)
    ax.set_xlim(0, 1.45 * longest / 1e6 or 1)
    apart = "; * not in the cost" if "evaluate" in stages else ""
    ax.set_xlabel(f"MB, {mean_of(run)}{apart}")
    legend(ax)
    return ax


def mean_of(run: OneOrMore) -> str:
    """Say which seed a figure is of, or of how many it is the mean."""
    runs = _many(run)
    return f"mean of {len(runs)} seeds" if len(runs) > 1 else f"seed {runs[0]['seed']}"


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


def bar_axes(n_bars: int) -> Axes:
    """Make axes of the height that bars need."""
    return new_axes(bars_height(n_bars))


def save(ax: Axes, to: IO[Any] | Path, ending: str, **options: Any) -> None:
    """Write a figure; a name may hold letters that its font does not have.

    Written again, in whatever format, it keeps the places that it was given first.
    """
    root = ax.figure.get_figure(root=True)
    assert root is not None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        root.savefig(to, format=ending, **options)
    root.set_layout_engine("none")
