"""The page of an evaluation: what a model is worth on rows, and how it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessvfl.report import evaluation_figures, figures, parts, tables
from lessvfl.report.evaluation_figures import EvaluationNumbers
from lessvfl.report.parts import Drawing
from lessvfl.report.tables import MISSING
from lessvfl.run.record import write_json
from lessvfl.terms import SCORE_TEXTS, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE_NAME, NUMBERS_NAME = "evaluation.html", "evaluation.json"
WORDS = {  # of a number of an evaluation
    **SCORE_TEXTS,
    "gini": "Gini",
    "ks": "KS",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "mae": "mean absolute error",
    "share": "share",
    "mean_probability": "mean probability",
    "rate": "share taken",
    "precision": "precision",
    "recall": "recall",
    "false_positive_rate": "false positive rate",
    "tp": "right",
    "fp": "wrong",
    "fn": "missed",
    "cost": "cost",
    "mean_label": "mean label",
    "mean_prediction": "mean prediction",
}
# Numbers of the cards, of decisions, and of groups, each in this order.
CARDS = (*SCORE_TEXTS, "gini", "ks", "brier", "calibration_error", "mae")
DECIDED = ("rate", "precision", "recall", "false_positive_rate")
OUTCOME = (*DECIDED, "tp", "fp", "fn", "cost")
SCORED = ("auc", "accuracy", "mean_label", "mean_prediction", "mae")
GROUPS = ("share", "mean_probability", *DECIDED, *SCORED)
GAPS = ("rate", "recall", "false_positive_rate", "auc")


def write_evaluation(folder: Path, numbers: EvaluationNumbers) -> Path:
    """Write the page of an evaluation and its numbers; return the page."""
    write_json(folder / NUMBERS_NAME, numbers)
    parts.write(folder / PAGE_NAME, evaluation_page(numbers))
    return folder / PAGE_NAME


def evaluation_page(numbers: EvaluationNumbers) -> str:
    """Return the page of an evaluation as one HTML document."""
    with figures.page_style():
        drawings = list(_figures(numbers))
    half = (len(drawings) + 1) // 2
    data, model = numbers["data"], numbers["model"]
    seed = model["seed"]
    whose = "all seeds together" if seed is None else f"seed {seed}"
    return parts.page(
        "evaluation.html.j2",
        title=_headline(numbers),
        line=[
            tables.method_title(model["method"]),
            f"trained on {model['data']}, {whose}",
            f"{plural(data['n_rows'], 'row')} of {data['name']}",
        ],
        cards=list(_cards(numbers)),
        notes=[*numbers["warnings"], *numbers["notes"]],
        decisions=_decisions(numbers),
        recalibration=_recalibration(numbers),
        left=drawings[:half],
        right=drawings[half:],
        tenths=_tenths(numbers),
        classes=[
            {"class": one["class"], "rows": f"{one['rows']:,}"}
            | _row(one, ("auc", "gini", "ks"))
            for one in numbers.get("classes") or []
        ],
        groups=_groups(numbers),
        footer=f"Made by lessvfl {numbers['lessvfl']}; every number is in "
        f"{NUMBERS_NAME}.",
    )


def _headline(numbers: EvaluationNumbers) -> str:
    """Say in one sentence what comes of it."""
    if numbers["task"] == "regression":
        r2 = numbers["r2"]
        return "Evaluation" if r2 is None else f"R² {r2:.3f} on these rows"
    if numbers["auc"] is None:
        return f"Accuracy {numbers['accuracy']:.3f} on rows of one class"
    text = f"AUC {numbers['auc']:.3f} on these rows"
    if cut := numbers["cut_off"]:
        text += f"; '{cut['class']}' from a probability of {cut['at']:.3g} on"
        if "cost" in cut:
            before = numbers["decisions"]["cost"]
            text += f", at a cost of about {cut['cost']:,g} instead of {before:,g}"
    return text


def _cards(numbers: EvaluationNumbers) -> Iterator[tuple[str, str, str, str]]:
    """Yield the key numbers: label, value, nothing, interval and what guesses have."""
    for name in CARDS:
        if name in numbers:
            level = numbers["baseline"].get(name)
            details = []
            if ends := numbers["intervals"].get(name):
                details.append(f"95 %: {ends['low']:.3f} to {ends['high']:.3f}")
            if level is not None:
                details.append(f"one answer for all: {level:.3f}")
            value, detail = _number(numbers[name]), "; ".join(details)
            yield tables.capital(WORDS[name]), value, "", detail
    if numbers.get("lift"):
        first = numbers["lift"][0]
        detail = f"{first['captured']:.0%} of '{numbers['positive']}' in it"
        yield "Lift of the first tenth", f"{first['lift']:.2f}", "", detail


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


Plot = Callable[[EvaluationNumbers, "Axes"], "Axes"]


# -- figures ---------------------------------------------------------------------------


FIGURES = {  # title, caption
    "roc": ("ROC curve", "What is found, against what is taken besides."),
    "precision": ("Precision and recall", "What is right of what is taken."),
    "lift": ("Lift", "How many times more is found than by guesses."),
    "calibration": (
        "Calibration",
        "By tenths of the rows, in the order of what is predicted.",
    ),
    "cost": (
        "Cost",
        "Of every cut-off, all rows; the mark is of rows that it was not chosen on.",
    ),
}


def _figures(numbers: EvaluationNumbers) -> Iterator[Drawing]:
    """Yield the figures that the rows have, those of one column first."""
    plots: list[tuple[str, Plot, str]] = []  # name, what draws it, in words
    if numbers.get("curves"):
        words = f"AUC {numbers['auc']:.3f}, KS {numbers['ks']:.3f}."
        plots.append(("roc", evaluation_figures.plot_roc, words))
        lifts = (f"{one['share']:.0%}: {one['lift']:.2f}" for one in numbers["lift"])
        words = f"Lift by share of rows: {'; '.join(lifts)}."
        plots.append(("lift", evaluation_figures.plot_lift, words))
        if numbers["cut_off"] and "cost_of_nobody" in numbers["cut_off"]:
            words = f"The cut-off costs {numbers['cut_off']['cost']:g}."
            plots.append(("cost", evaluation_figures.plot_cost, words))
        words = f"Average precision {numbers['average_precision']:.3f}."
        plots.append(("precision", evaluation_figures.plot_precision, words))
    areas = (
        f"{one['predicted']:.3g} and {one['observed']:.3g}"
        for one in numbers["calibration"]
    )
    words = f"Predicted and observed by tenths of the rows: {'; '.join(areas)}."
    plots.append(("calibration", evaluation_figures.plot_calibration, words))
    for name, plot, words in plots:
        ax = plot(numbers, figures.new_axes())
        yield parts.figure(ax, name, *FIGURES[name], words)


# -- tables ----------------------------------------------------------------------------


def _row(numbers: EvaluationNumbers, names: Sequence[str]) -> dict[str, str]:
    """Return the cells of a line, by the words over them."""
    return {WORDS[name]: _number(numbers[name]) for name in names if name in numbers}


def _decisions(numbers: EvaluationNumbers) -> dict[str, Any] | None:
    """Return how rows are decided on, as it is and with the new cut-off."""
    if "decisions" not in numbers:
        return None
    cut = numbers["cut_off"]
    sentences = [f"A row is taken if '{numbers['positive']}' is predicted for it."]
    if cut and "cost_of_nobody" in cut:
        sentences.append(
            f"Nobody taken costs {cut['cost_of_nobody']:,g}, everybody "
            f"{cut['cost_of_everybody']:,g}. Were probabilities exact, the cut-off of "
            f"least cost would be {cut['if_calibrated']:.3g}."
        )
    ways = [("as it is", numbers["decisions"])]
    if cut:
        ways.append((f"by {cut['aim']}", cut))
    lines = [
        {"decisions": words, "cut-off": f"{way['at']:.3g}"} | _row(way, OUTCOME)
        for words, way in ways
    ]
    return {"lines": lines, "sentences": sentences}


def _recalibration(numbers: EvaluationNumbers) -> dict[str, Any] | None:
    """Return scores of probabilities as they are and fitted anew; None if not asked."""
    how = numbers["recalibration"]
    if not how:
        return None
    lines = [
        {"probabilities": words} | _row(how[when], CARDS)
        for words, when in (("as it is", "before"), (how["kind"], "after"))
    ]
    return {"lines": lines}


def _tenths(numbers: EvaluationNumbers) -> dict[str, Any]:
    """Return the table of tenths of the rows: what is in them, or calibration."""
    if not numbers.get("lift"):
        return {
            "title": "Calibration by tenths",
            "sentence": "In the order of what is predicted.",
            "lines": [
                {
                    "rows": f"{one['rows']:,}",
                    "predicted": _number(one["predicted"]),
                    "observed": _number(one["observed"]),
                }
                for one in numbers["calibration"]
            ],
        }
    return {
        "title": "Lift by share of rows",
        "sentence": "The most likely rows first.",
        "lines": [
            {
                "rows": f"{one['share']:.0%}",
                "number": f"{one['rows']:,}",
                "precision": _number(one["precision"]),
                "found": f"{one['captured']:.1%}",
                "lift": f"{one['lift']:.2f}",
            }
            for one in numbers["lift"]
        ],
    }


def _groups(numbers: EvaluationNumbers) -> dict[str, Any] | None:
    """Return the scores by group, and how far groups differ."""
    groups = numbers["groups"]
    if not groups:
        return None
    lines = [
        {"group": line["group"], "rows": f"{line['rows']:,}"} | _row(line, GROUPS)
        for line in groups["groups"]
    ]
    gaps = groups.get("gaps") or {}
    known = [f"{WORDS[g]} {gaps[g]:.3f}" for g in GAPS if gaps.get(g) is not None]
    sentences = []
    if known:
        sentences.append(f"Largest differences: {', '.join(known)}.")
    if (ratio := groups.get("rate_ratio")) is not None:
        sentences.append(f"The smallest share taken is {ratio:.2f} of the largest.")
    if sentences and groups["few"]:
        sentences.append("Groups with few rows are left out of that.")
    return {"column": groups["column"], "lines": lines, "sentences": sentences}
