"""The figures of an evaluation: curves of two classes, calibration, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lessvfl.report import figures
from lessvfl.report.figures import BLUE, GREEN, GREY, ORANGE, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EvaluationNumbers = Mapping[str, Any]


def plot_roc(numbers: EvaluationNumbers, ax: Axes) -> Axes:
    """Draw the ROC curve, and where its two rates differ most."""
    roc = numbers["curves"]["roc"]
    fpr, tpr = roc["fpr"], roc["tpr"]
    ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label="guesses")
    ax.plot(fpr, tpr, color=BLUE, lw=2, label=f"AUC {numbers['auc']:.3f}")
    at = max(range(len(fpr)), key=lambda i: tpr[i] - fpr[i])
    words = f"KS {numbers['ks']:.3f}"
    ax.plot([fpr[at]] * 2, [fpr[at], tpr[at]], color=VERMILION, lw=1.2, label=words)
    if point := _decided(numbers):
        where = (point["false_positive_rate"], point["recall"])
        ax.plot(*where, "o", ms=6, color=ORANGE, label="decisions")
    ax.set_xlabel("share of the others taken")
    ax.set_ylabel(f"share found of '{figures.label(numbers['positive'], 16)}'")
    return _finish(ax)


def plot_precision(numbers: EvaluationNumbers, ax: Axes) -> Axes:
    """Draw the precision against the share that is found."""
    both, base = numbers["curves"]["precision_recall"], numbers["lift"][-1]["precision"]
    ax.axhline(base, color=GREY, lw=1, ls=":", label=f"guesses {base:.3f}")
    words = f"average {numbers['average_precision']:.3f}"
    ax.plot(both["recall"], both["precision"], color=BLUE, lw=2, label=words)
    if (point := _decided(numbers)) and point["precision"] is not None:
        where = (point["recall"], point["precision"])
        ax.plot(*where, "o", ms=6, color=ORANGE, label="decisions")
    ax.set_ylim(0, 1.03)
    ax.set_xlabel(f"share found of '{figures.label(numbers['positive'], 16)}'")
    ax.set_ylabel("precision")
    return _finish(ax)


def _decided(numbers: EvaluationNumbers) -> EvaluationNumbers | None:
    """Return how rows are decided on, with the new cut-off if there is one."""
    one: EvaluationNumbers = numbers["cut_off"] or numbers["decisions"]
    return one if one["recall"] is not None else None


def plot_lift(numbers: EvaluationNumbers, ax: Axes) -> Axes:
    """Draw by tenths of the rows how many more are found in them than by chance."""
    lines = numbers["lift"]
    places = range(1, len(lines) + 1)
    ax.bar(places, [line["lift"] for line in lines], color=BLUE, width=0.72)
    ax.axhline(1, color=GREY, lw=1, ls=":")
    for place, line in zip(places, lines, strict=True):
        how: Any = {"ha": "center", "textcoords": "offset points", "fontsize": 8}
        ax.annotate(f"{line['lift']:.1f}", (place, line["lift"]), (0, 2), **how)
    ax.set_xticks(places, [f"{line['share']:.0%}" for line in lines])
    ax.set_xlabel("rows taken, the most likely first")
    ax.set_ylabel("lift")
    figures.grid(ax, "y")
    return ax


def plot_calibration(numbers: EvaluationNumbers, ax: Axes) -> Axes:
    """Draw what was observed against what was predicted, by tenths of the rows."""
    sides = [("as it is", numbers["calibration"], BLUE, "o-")]
    if how := numbers["recalibration"]:
        sides.append((how["kind"], how["calibration"], GREEN, "s--"))
    ends: list[float] = []
    for _, lines, _, _ in sides:
        ends += [line[name] for line in lines for name in ("predicted", "observed")]
    low, high = min(ends), max(ends)
    ax.plot([low, high], [low, high], color=GREY, lw=1, ls=":", label="as predicted")
    for words, lines, color, look in sides:
        x, y = ([line[name] for line in lines] for name in ("predicted", "observed"))
        ax.plot(x, y, look, ms=4, lw=1.4, color=color, label=words)
    of = "mean" if numbers["task"] == "regression" else "share"
    mean = "mean prediction" if of == "mean" else "mean probability"
    ax.set_xlabel(f"{mean} of a tenth of the rows")
    ax.set_ylabel("mean of the labels" if of == "mean" else "share observed")
    return _finish(ax)


def plot_cost(numbers: EvaluationNumbers, ax: Axes) -> Axes:
    """Draw the cost of every cut-off against the share of rows that it takes."""
    cut, roc = numbers["cut_off"], numbers["curves"]["roc"]
    n_hits, n_others = cut["tp"] + cut["fn"], cut["fp"] + cut["tn"]
    cost_of_miss = cut["cost_of_nobody"] / n_hits
    cost_of_alarm = cut["cost_of_everybody"] / n_others
    shares, costs = [], []
    for fpr, tpr in zip(roc["fpr"], roc["tpr"], strict=True):
        shares.append((fpr * n_others + tpr * n_hits) / (n_hits + n_others))
        missed = cost_of_miss * n_hits * (1 - tpr)
        costs.append(cost_of_alarm * n_others * fpr + missed)
    ax.plot(shares, costs, color=BLUE, lw=2, label="every cut-off")
    now = numbers["decisions"]
    ax.plot(now["rate"], now["cost"], "D", ms=5, color=GREY, label="as it is")
    ax.plot(cut["rate"], cut["cost"], "o", ms=6, color=ORANGE, label="the cut-off")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlabel("share of rows taken")
    ax.set_ylabel("cost")
    return _finish(ax, 3)


def _finish(ax: Axes, n_columns: int = 2) -> Axes:
    figures.grid(ax)
    figures.legend(ax, n_columns)
    return ax
