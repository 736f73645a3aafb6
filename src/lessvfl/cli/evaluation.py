"""The command ``lessvfl evaluate``: what a model is worth on rows with labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lessvfl.cli import results, start
from lessvfl.cli.options import (
    AsJson,
    InferenceName,
    Reasons,
    SeedNumber,
    Track,
    TrustCode,
    read_inference,
    tracked,
)
from lessvfl.terms import SCORE_TEXTS, plural

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A run folder of 'lessvfl run --out', or of a server."
    ),
]
RATED = {
    **SCORE_TEXTS,
    "calibration_error": "calibration error",
    "brier": "Brier score",
    "ks": "KS",
    "gini": "Gini",
    "mae": "mean absolute error",
}
GROUPED = {
    "share": "share",
    "rate": "rate",
    "precision": "precision",
    "recall": "recall",
    "false_positive_rate": "FPR",
    "auc": "AUC",
    "accuracy": "accuracy",
    "mean_label": "mean label",
    "mean_prediction": "mean prediction",
    "mae": "mean absolute error",
}
CELLS = {
    "imputed": "missing cells that were filled in",
    "unseen": "cells of a category that no training row has",
}


def evaluate(
    folder: Folder,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="A table with labels; of a server: ids and labels."
        ),
    ],
    label: Annotated[str | None, typer.Option(help="Label column of the file.")] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Of a server: its predictions; DIR/predictions.csv."),
    ] = None,
    cost: Annotated[
        str | None, typer.Option(help="The cut-off of least cost: fp=1,fn=20.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="The cut-off that takes this share of rows.")
    ] = None,
    precision: Annotated[
        float | None, typer.Option(help="The lowest cut-off with this precision.")
    ] = None,
    recalibrate: Annotated[
        str | None, typer.Option(help="Fit probabilities anew: isotonic or platt.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="A column of DATA: scores by its values.")
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Apply cut-off and recalibration from now on."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a page and its numbers.")
    ] = None,
    seed: SeedNumber = None,
    inference: InferenceName = "clear",
    reasons: Reasons = 0,
    trust_code: TrustCode = False,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Score the model of a run on rows with labels, and choose how it decides."""
    if not as_json:
        start.say(f"the model of {folder}")
    from lessvfl import report
    from lessvfl.errors import warn
    from lessvfl.run.decide.evaluation import Asked, evaluate_folder
    from lessvfl.run.decide.fitting import read_aim
    from lessvfl.run.decide.recalibration import read_kind
    from lessvfl.run.decide.sources import LabelledFile
    from lessvfl.run.folder import claim
    from lessvfl.run.reasons import explain_table

    file = LabelledFile(
        data.expanduser(),
        label=label,
        by=by,
        seed=seed,
        predictions=predictions,
        inference=read_inference(inference),
        trust_code=trust_code,
    )
    kind = None if recalibrate is None else read_kind(recalibrate)
    asked = Asked(kind, read_aim(cost, rate, precision), keep)
    if out is not None:
        claim(out, "folder")
    with tracked(track, f"evaluation-{file.path.stem}", out) as finish:
        if reasons:
            written = explain_table(folder, file, reasons)
            typer.echo(f"{written}: why it is predicted", err=True)
        result = evaluate_folder(folder, file, asked)
        for sentence in result["warnings"]:
            warn(sentence)
        page = None if out is None else report.write_evaluation(out, result)
        finish(result)
    if as_json:
        typer.echo(json.dumps(result, allow_nan=False))
        return
    _print(result)
    if page is not None:
        typer.echo(f"Page: {page}")


def _number(value: float | None) -> str:
    if value is None:
        return "not defined"
    plain = value == 0 or 1e-3 <= abs(value) < 1e9
    return f"{value:.4f}" if plain else f"{value:.4g}"


def _short(value: float | None) -> str:
    return (
        "" if value is None else f"{value:.3g}" if abs(value) >= 1 else f"{value:.3f}"
    )


def _print(result: Mapping[str, Any]) -> None:
    """Print the numbers, a line each, and tables of what has several."""
    n_rows, name = result["data"]["n_rows"], result["data"]["name"]
    results.say(f"{plural(n_rows, 'row')} of '{name}'")
    for score, words in RATED.items():
        if score in result:
            text = _number(result[score])
            if ends := result["intervals"].get(score):
                text += f" ({_number(ends['low'])} to {_number(ends['high'])})"
            if result[score] is None:
                text = f"not defined: {result['undefined'].get(score)}"
            typer.echo(f"{words}: {text}")
    if any(result["intervals"].values()):
        results.say("In brackets: 95 % intervals by the choice of rows.")
    if (level := result["baseline"].get("accuracy")) is not None:
        typer.echo(f"accuracy of always the most frequent class: {level:.4f}")
    for key, words in CELLS.items():
        if result[key]:
            typer.echo(f"{words}: {result[key]:,}")
    if result.get("lift"):
        first = result["lift"][0]
        typer.echo(
            f"lift of the first tenth: {first['lift']:.2f}, with "
            f"{first['captured']:.1%} of '{result['positive']}'"
        )
    _print_fitted(result)
    if groups := result["groups"]:
        lines = groups["groups"]
        scores = {key: words for key, words in GROUPED.items() if key in lines[0]}
        heads = [groups["column"], "rows", *scores.values()]
        rows = [
            [one["group"], f"{one['rows']:,}", *(_short(one[key]) for key in scores)]
            for one in lines
        ]
        results.print_table(heads, rows)
        if groups.get("rate_ratio") is not None:
            typer.echo(f"smallest rate by the largest: {groups['rate_ratio']:.3f}")
    for note in result["notes"]:
        results.say(note)


def _print_fitted(result: Mapping[str, Any]) -> None:
    """Print what a recalibration and a cut-off do."""
    if how := result["recalibration"]:
        for name, words in RATED.items():
            if name in how["after"]:
                values = (_number(how[when][name]) for when in ("before", "after"))
                typer.echo(f"{words}, {how['kind']}: {' -> '.join(values)}")
    if cut := result["cut_off"]:
        results.say(
            f"cut-off for '{cut['class']}' by {cut['aim']}: {_number(cut['at'])}"
        )
    for words, one in (("as it is", result.get("decisions")), ("cut-off", cut)):
        if one:
            taken = plural(one["tp"] + one["fp"], "row")
            line = f"{words}: {taken} taken ({one['rate']:.1%}), {one['tp']:,} right"
            for name in ("precision", "recall"):
                line += f", {name} {_number(one[name])}"
            results.say(line + (f", cost {one['cost']:,g}" if "cost" in one else ""))
    if cut and "cost_of_nobody" in cut:
        results.say(
            f"cost if nobody is taken: {cut['cost_of_nobody']:,g}; everybody: "
            f"{cut['cost_of_everybody']:,g}"
        )
