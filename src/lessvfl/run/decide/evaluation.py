"""All that is said of scored rows, as one JSON object, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl import __version__
from lessvfl.errors import ConfigError
from lessvfl.run.decide import fitting
from lessvfl.run.decide.fitting import Aim, outcome
from lessvfl.run.decide.kept import KeptDecision, RowMarks
from lessvfl.run.decide.recalibration import RecalibrationKind, sigmoid
from lessvfl.run.decide.scored import ScoredRows
from lessvfl.run.decide.scores import (
    FEW,
    by_group,
    intervals_of,
    ranking,
    scores_of,
)
from lessvfl.run.decide.sources import LabelledFile, ScoredSource, score
from lessvfl.run.folder import keep_decision, kept_decision
from lessvfl.run.record import RunRecord
from lessvfl.terms import listed

FITTED = ("auc", "brier", "calibration_error")  # what a recalibration may change


@dataclass(frozen=True)
class Asked:
    """What is asked of scored rows besides their scores."""

    recalibrate: RecalibrationKind | None = None
    aim: Aim | None = None
    keep: bool = False  # what is fitted, for later predictions

    @property
    def is_fitting(self) -> bool:
        """Tell whether anything is fitted that could be kept."""
        return self.recalibrate is not None or self.aim is not None


def evaluate_folder(folder: Path, file: LabelledFile, asked: Asked) -> dict[str, Any]:
    """Return what `lessvfl evaluate --json` prints, and keep what is to be kept."""
    if asked.keep and not asked.is_fitting:
        raise ConfigError(
            "With --keep there must be something to keep: --cost, --rate, --precision "
            "or --recalibrate. Got none of them."
        )
    header, source = RunRecord.read(folder).header, score(folder, file)
    rows, before = source.rows, None
    notes = list(source.notes)
    warnings = own_rows(rows, header["data"].get("classes"))
    if asked.recalibrate is None:  # a new one is of the model as it was trained
        before = kept_decision(folder, source.seed)
    if before is not None:
        rows = rows.deciding(before)
        notes.append(f"Applied as kept: {before.words}.")
        warnings += same_rows(before, source)
    scores = evaluate(rows, asked, file.by)
    notes += scores["notes"]
    kept = None
    if asked.keep:
        new = to_keep(
            rows,
            asked,
            before,
            name=file.path.stem,
            digest=source.digest,
            marks=source.marks(),
        )
        path = keep_decision(folder, source.seed, new)
        kept = {**new.summary, "file": str(path)}
        notes.append(f"Kept for later predictions: {new.words}.")
        if source.counts["joined"] is not None:
            notes.append(
                "The file of predictions was decided before: predict again for what "
                "is decided by it, and for its reasons."
            )
    return {
        "lessvfl": __version__,
        "data": {"name": file.path.stem, "n_rows": len(rows)},
        "model": {
            "data": header["data"]["name"],
            "method": header["method"],
            "seed": source.seed,
        },
        **scores,
        **source.counts,
        "applied": None if before is None else before.summary,
        "kept": kept,
        "notes": notes,
        "warnings": [*warnings, *scores["warnings"]],
    }


def evaluate(rows: ScoredRows, asked: Asked, by: str | None = None) -> dict[str, Any]:
    """Return scores, curves, calibration, decisions, and scores by group.

    What is fitted is reported on rows other than those that it was fitted to. `by` is
    the name of the column that rows are grouped by.
    """
    of_classes = rows.task != "regression"
    if asked.is_fitting and not of_classes:
        what = "A cut-off" if asked.recalibrate is None else "A recalibration"
        raise ConfigError(f"{what} needs classes. Got a regression model.")
    if asked.aim is not None and rows.task != "binary":
        raise ConfigError(
            f"A cut-off needs two classes. Got a model of {len(rows.label_names)}."
        )
    numbers = scores_of(rows)
    numbers["intervals"] = intervals_of(rows, numbers)
    numbers |= ranking(rows)
    if of_classes and (rows.y == rows.y[0]).all():
        why = numbers["undefined"].get("auc")
        numbers["undefined"] |= dict.fromkeys(("ks", "gini"), why)
    decided = rows.decided if of_classes else np.zeros(len(rows), dtype=np.int64)
    if rows.task == "binary":  # without a new cut-off
        t = rows.threshold or (0.5, 0.5)
        at = t[rows.positive] / (t[0] + t[1])  # p / t is the larger one from here on
        counts = outcome(rows.hits, decided == rows.positive, asked.aim)
        numbers["decisions"] = {"at": at, **counts}
    numbers |= {"recalibration": None, "cut_off": None, "groups": None}
    warnings: list[str] = []
    if asked.is_fitting:
        decision, cut = fitting.fit(rows, asked.recalibrate, asked.aim)
        crossed = fitting.cross_fit(rows, asked.recalibrate, asked.aim)
        if asked.recalibrate is not None:
            after = scores_of(crossed.rows)
            numbers["recalibration"] = {
                "kind": asked.recalibrate,
                "how": fitting.HOW,
                "before": {name: numbers[name] for name in FITTED},
                "after": {name: after[name] for name in FITTED},
                "calibration": ranking(crossed.rows)["calibration"],
            }
        if asked.aim is not None and cut is not None:
            taken = rows.deciding(decision).decided == rows.positive
            numbers["cut_off"] = _cut_off(crossed, cut, asked.aim, taken)
        rows, decided = crossed.rows, crossed.decided
    if rows.groups is not None and by is not None:
        groups = numbers["groups"] = by_group(rows, decided, by)
        if groups["few"]:
            few = listed([f"'{name}'" for name in groups["few"]])
            warnings.append(
                f"Groups of '{by}' with fewer than {FEW} rows, whose numbers say "
                f"little: {few}."
            )
    return numbers | {"notes": _notes(numbers), "warnings": warnings}


def _cut_off(
    crossed: fitting.CrossFitted, cut: float, aim: Aim, taken: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return a cut-off and how it decides, each row by others.

    `taken` are the rows that the cut-off itself takes.
    """
    rows = crossed.rows
    numbers = {
        "class": rows.label_names[rows.positive],
        "aim": aim.words,
        "at": float(sigmoid(np.array(cut))),
        "folds": sigmoid(np.array(crossed.cuts)).tolist(),
        "how": fitting.HOW,
        "takes": float(taken.mean()),
        **outcome(rows.hits, crossed.decided == rows.positive, aim),
    }
    if aim.kind == "cost":
        n_hits = int(rows.hits.sum())
        numbers["cost_of_nobody"] = aim.fn * n_hits
        numbers["cost_of_everybody"] = aim.fp * (len(rows) - n_hits)
        numbers["if_calibrated"] = aim.fp / (aim.fp + aim.fn)
    return numbers


def _notes(numbers: Mapping[str, Any]) -> list[str]:
    """Return sentences that say on which rows the cut-off and the like were chosen."""
    named = {"recalibration": "recalibration", "cut_off": "cut-off"}
    what = [words for name, words in named.items() if numbers[name]]
    if not what:
        return []
    verb = "are" if len(what) > 1 else "is"
    notes = [
        f"The {' and '.join(what)} {verb} {fitting.HOW}; for later predictions all "
        "rows count."
    ]
    if cut := numbers["cut_off"]:
        low, high = min(cut["folds"]), max(cut["folds"])
        notes.append(
            f"What the cut-off does is therefore told of five, from {low:.3g} to "
            f"{high:.3g}; {cut['at']:.3g} itself takes {cut['takes']:.1%} of these "
            "rows."
        )
    return notes


def to_keep(
    rows: ScoredRows,
    asked: Asked,
    before: KeptDecision | None,
    *,
    name: str,
    digest: str,
    marks: RowMarks = frozenset(),
) -> KeptDecision:
    """Return what later predictions are to apply, fitted to all rows.

    A new recalibration takes the place of all that was kept `before`; a new cut-off
    alone takes that of the cut-off. `digest` is of the file of the rows, `name` its.
    """
    kept, cut = fitting.fit(rows, asked.recalibrate, asked.aim)
    about: dict[str, Any] = {"data": name, "rows": len(rows), "file": digest}
    if asked.aim is not None and cut is not None:
        about["class"] = rows.label_names[rows.positive]
        about["cut_off"] = float(sigmoid(np.array(cut)))
        about["aim"] = asked.aim.words
    kept = replace(kept, about=about, marks=marks)
    if before is None or before.recalibration is None or asked.recalibrate is not None:
        return kept
    both = kept.marks | before.marks
    return replace(kept, recalibration=before.recalibration, marks=both)


def own_rows(rows: ScoredRows, classes: Mapping[str, int] | None) -> list[str]:
    """Say that rows look like those of the run, by how many it had of each class."""
    if not classes:
        return []
    sizes = np.bincount(rows.y, minlength=len(rows.label_names))
    if dict(zip(rows.label_names, sizes, strict=True)) != classes:
        return []
    return [
        "There are as many rows of each class as the run had: on its own rows, most of "
        "them for training, every score is too good, and cut-off and recalibration are "
        "wrong for others."
    ]


def same_rows(kept: KeptDecision, source: ScoredSource) -> list[str]:
    """Say that what is applied was chosen on these rows or some, where it was."""
    n_rows = len(source.rows)
    has_ids = source.counts["joined"] is not None  # and perhaps other predictions
    is_same = kept.about.get("file") == source.digest and not (kept.marks and has_ids)
    n_known = n_rows if is_same else len(kept.marks & source.marks())
    if not n_known:
        return []
    which = "these very rows"
    if n_known < n_rows:
        which = f"{n_known:,} of these {n_rows:,} rows"
    return [
        f"What is kept beside the model was chosen on {which}: on others it may do "
        "less well."
    ]
