"""The page of an evaluation: what a model is worth on rows, and how it decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessvfl.report import evaluation_figures, figures, parts, tables
from lessvfl.report.evaluation_figures import EvaluationNumbers, area_words
from lessvfl.report.key_numbers import capital
from lessvfl.report.parts import Drawing
from lessvfl.report.tables import MISSING
from lessvfl.run.record import write_json
from lessvfl.terms import SCORE_TEXTS, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE_NAME, NUMBERS_NAME = "evaluation.html", "evaluation.json"
CARDS = {
    **SCORE_TEXTS,
    "gini": "Gini",
    "ks": "KS",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "mae": "mean absolute error",
}
OUTCOME = {  # of decisions: where, and over its column
    "rate": "share taken",
    "precision": "precision",
    "recall": "recall",
    "false_positive_rate": "false positive rate",
    "tp": "right",
    "fp": "wrong",
    "fn": "missed",
    "cost": "cost",
}
GROUPS = {
    "share": "share",
    "mean_probability": "mean probability",
    "rate": "share taken",
    "precision": "precision",
    "recall": "recall",
    "false_positive_rate": "false positive rate",
    "auc": "AUC",
    "accuracy": "accuracy",
    "mean_label": "mean label",
    "mean_prediction": "mean prediction",
    "mae": "mean absolute error",
}
GAPS = {
    "rate": "share taken",
    "recall": "recall",
    "false_positive_rate": "false positive rate",
    "auc": "AUC",
}


def write_evaluation(folder: Path, found: EvaluationNumbers) -> Path:
    """Write the page of an evaluation and its numbers; return the page."""
    write_json(folder / NUMBERS_NAME, found)
    parts.write(folder / PAGE_NAME, evaluation_page(found))
    return folder / PAGE_NAME


def evaluation_page(found: EvaluationNumbers) -> str:
    """Return the page of an evaluation as one HTML document."""
    with figures.page_style():
        drawings = list(_figures(found))
    half = (len(drawings) + 1) // 2
    return parts.page(
        "evaluation.html.j2",
        title=_headline(found),
        line=_line(found),
        cards=list(_cards(found)),
        notes=[*found["warnings"], *found["notes"]],
        decisions=_decisions(found),
        recalibration=_recalibration(found),
        left=drawings[:half],
        right=drawings[half:],
        tenths=_tenths(found),
        classes=_classes(found),
        groups=_groups(found),
        footer=f"Made by lessvfl {found['lessvfl']}; every number is in "
        f"{NUMBERS_NAME}.",
    )


def _line(found: EvaluationNumbers) -> list[str]:
    data, model = found["data"], found["model"]
    seed = model["seed"]
    whose = "all seeds together" if seed is None else f"seed {seed}"
    trained = f"trained on {model['data']}, {whose}"
    rows = f"{plural(data['n_rows'], 'row')} of {data['name']}"
    return [tables.method_title(model["method"]), trained, rows]


def _headline(found: EvaluationNumbers) -> str:
    """Say in one sentence what comes of it."""
    if found["task"] == "regression":
        r2 = found["r2"]
        return "Evaluation" if r2 is None else f"R² {r2:.3f} on these rows"
    if found["auc"] is None:
        return f"Accuracy {found['accuracy']:.3f} on rows of one class"
    text = f"AUC {found['auc']:.3f} on these rows"
    if cut := found["cut_off"]:
        text += f"; '{cut['class']}' from a probability of {cut['at']:.3g} on"
        if "cost" in cut:
            before = found["decisions"]["cost"]
            text += f", at a cost of about {cut['cost']:,g} instead of {before:,g}"
    return text


def _cards(found: EvaluationNumbers) -> Iterator[tuple[str, str, str, str]]:
    """Yield the key numbers: label, value, nothing, interval and what guesses have."""
    for name, words in CARDS.items():
        if name in found:
            level = found["baseline"].get(name)
            said = []
            if ends := found["intervals"].get(name):
                said.append(f"95 %: {ends['low']:.3f} to {ends['high']:.3f}")
            if level is not None:
                said.append(f"one answer for all: {level:.3f}")
            yield capital(words), _number(found[name]), "", "; ".join(said)
    if found.get("lift"):
        first = found["lift"][0]
        detail = f"{first['captured']:.0%} of '{found['positive']}' in it"
        yield "Lift of the first tenth", f"{first['lift']:.2f}", "", detail


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


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


def _drawn(ax: Axes, name: str, alt: str) -> Drawing:
    return parts.figure(ax, name, *FIGURES[name], alt)


def _figures(found: EvaluationNumbers) -> Iterator[Drawing]:
    """Yield the figures that the rows have, those of one column first."""
    new = figures.new_axes
    if found.get("curves"):
        ax = evaluation_figures.plot_roc(found, new())
        yield _drawn(ax, "roc", f"AUC {found['auc']:.3f}, KS {found['ks']:.3f}.")
        ax = evaluation_figures.plot_lift(found, new())
        said = (f"{one['share']:.0%}: {one['lift']:.2f}" for one in found["lift"])
        yield _drawn(ax, "lift", f"Lift by share of rows: {'; '.join(said)}.")
        if found["cut_off"] and "cost_of_nobody" in found["cut_off"]:
            ax = evaluation_figures.plot_cost(found, new())
            yield _drawn(ax, "cost", f"The cut-off costs {found['cut_off']['cost']:g}.")
        ax = evaluation_figures.plot_precision(found, new())
        words = f"Average precision {found['average_precision']:.3f}."
        yield _drawn(ax, "precision", words)
    ax = evaluation_figures.plot_calibration(found, new())
    yield _drawn(ax, "calibration", area_words(found["calibration"]))


# -- tables ----------------------------------------------------------------------------


def _row(numbers: EvaluationNumbers, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a line, by the words over them."""
    named = [name for name in columns if name in numbers]
    return {columns[name]: _number(numbers[name]) for name in named}


def _decisions(found: EvaluationNumbers) -> dict[str, Any] | None:
    """Return how rows are decided on, as it is and with the new cut-off."""
    if "decisions" not in found:
        return None
    cut, now = found["cut_off"], found["decisions"]
    lines = [{"decisions": "as it is", "cut-off": f"{now['at']:.3g}"}]
    lines[0] |= _row(now, OUTCOME)
    if cut:
        first = {"decisions": f"by {cut['aim']}", "cut-off": f"{cut['at']:.3g}"}
        lines.append(first | _row(cut, OUTCOME))
    said = [f"A row is taken if '{found['positive']}' is predicted for it."]
    if cut and "cost_of_nobody" in cut:
        said.append(
            f"Nobody taken costs {cut['cost_of_nobody']:,g}, everybody "
            f"{cut['cost_of_everybody']:,g}. Were probabilities exact, the cut-off of "
            f"least cost would be {cut['if_calibrated']:.3g}."
        )
    return {"lines": lines, "sentences": said}


def _recalibration(found: EvaluationNumbers) -> dict[str, Any] | None:
    how = found["recalibration"]
    if not how:
        return None
    lines = [
        {"probabilities": words} | _row(how[when], CARDS)
        for words, when in (("as it is", "before"), (how["kind"], "after"))
    ]
    return {"lines": lines}


def _tenths(found: EvaluationNumbers) -> dict[str, Any]:
    """Return the table of tenths of the rows: what is found in them, or calibration."""
    if not found.get("lift"):
        lines = [
            {
                "rows": f"{one['rows']:,}",
                "predicted": _number(one["predicted"]),
                "observed": _number(one["observed"]),
            }
            for one in found["calibration"]
        ]
        sentence = "In the order of what is predicted."
        return {"title": "Calibration by tenths", "sentence": sentence, "lines": lines}
    lines = [
        {
            "rows": f"{one['share']:.0%}",
            "number": f"{one['rows']:,}",
            "precision": _number(one["precision"]),
            "found": f"{one['captured']:.1%}",
            "lift": f"{one['lift']:.2f}",
        }
        for one in found["lift"]
    ]
    sentence = "The most likely rows first."
    return {"title": "Lift by share of rows", "sentence": sentence, "lines": lines}


def _classes(found: EvaluationNumbers) -> list[dict[str, str]]:
    return [
        {"class": one["class"], "rows": f"{one['rows']:,}"}
        | _row(one, {"auc": "AUC", "gini": "Gini", "ks": "KS"})
        for one in found.get("classes") or []
    ]


def _groups(found: EvaluationNumbers) -> dict[str, Any] | None:
    """Return the scores by group, and how far groups differ."""
    groups = found["groups"]
    if not groups:
        return None
    lines = [
        {"group": line["group"], "rows": f"{line['rows']:,}"} | _row(line, GROUPS)
        for line in groups["groups"]
    ]
    gaps = groups.get("gaps") or {}
    said = [
        f"{words} {gaps[name]:.3f}"
        for name, words in GAPS.items()
        if gaps.get(name) is not None
    ]
    sentences = []
    if said:
        sentences.append(f"Largest differences: {', '.join(said)}.")
    if (ratio := groups.get("rate_ratio")) is not None:
        sentences.append(f"The smallest share taken is {ratio:.2f} of the largest.")
    if sentences and groups["few"]:
        sentences.append("Groups with few rows are left out of that.")
    return {"column": groups["column"], "lines": lines, "sentences": sentences}
