"""Where scored rows come from: a table that a model scores, or joined predictions."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.hidden_paths import Inference
from lessvfl.data import load_cells, load_ids, load_rows
from lessvfl.data.frame import is_missing
from lessvfl.data.id_kinds import rewritten
from lessvfl.data.roles import canonical
from lessvfl.errors import ConfigError, DataError
from lessvfl.run.decide.kept import RowMarks, marks_of_ids, marks_of_rows
from lessvfl.run.decide.scored import ScoredRows, rows_of_model, rows_of_predictions
from lessvfl.run.decide.scores import count_cells
from lessvfl.run.fitted import MODEL_DIGITS, digest_of, digest_together
from lessvfl.run.folder import load, model_seeds, part_of
from lessvfl.run.record import RunRecord
from lessvfl.terms import plural

PREDICTIONS_NAME = "predictions.csv"


@dataclass(frozen=True)
class ScoredSource:
    """Rows scored by a model as it was trained, and what is known of them."""

    rows: ScoredRows
    seed: int | None  # None: all of an ensemble
    digest: str  # of the file with the labels
    counts: dict[str, Any]  # of the JSON
    marks: Callable[[], RowMarks]  # by which the rows are known again
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LabelledFile:
    """A file of rows with labels, and how these rows come by their scores."""

    path: Path
    label: str | None = None  # its column
    by: str | None = None  # the column that rows are grouped by
    # None: all of an ensemble, or the first; of a server, that of its predictions.
    seed: int | None = None
    predictions: Path | None = None  # of a server; the usual file
    inference: Inference = "clear"
    trust_code: bool = False

    def digest(self) -> str:
        """Return a digest of the file; of a folder, of all files in it."""
        paths = [self.path]
        if self.path.is_dir():
            paths = sorted(path for path in self.path.iterdir() if path.is_file())
        digest = hashlib.sha256()
        for path in paths:
            digest.update(path.read_bytes())
        return digest.hexdigest()


def score(folder: Path, file: LabelledFile) -> ScoredSource:
    """Score rows by the model of a run of all sides, or by a server's predictions."""
    record = RunRecord.read(folder)
    if record.side == "party":
        raise ConfigError(
            "The folder must be that of a run of all sides, or of a server, who has "
            "the labels. Got that of a party."
        )
    if record.side == "server":
        if file.inference != "clear":
            raise ConfigError(
                "How trees predict is said to 'lessvfl predict server'. Got it with "
                "the folder of a server."
            )
        return _joined(folder, file)
    if file.predictions is not None:
        raise ConfigError(
            "Predictions are joined with the labels of a server. Got the folder of a "
            "run of all sides, whose model predicts by itself."
        )
    model = load(folder, file.seed, trust_code=file.trust_code, as_trained=True)
    model = model.inferring(file.inference)
    frame, labels, names = load_rows(file.path, model.columns, file.label, model.texts)
    rows = rows_of_model(model, frame, labels, file.path.stem, names)
    if file.by is not None:
        groups = load_ids(file.path, file.by, "groups").tolist()
        rows = rows.grouped(groups, file.by)
    seeds = model_seeds(record, file.seed)
    return ScoredSource(
        rows,
        seed=seeds[0] if len(seeds) == 1 else None,
        digest=file.digest(),
        counts={**count_cells(model, frame), "joined": None},
        marks=functools.partial(marks_of_rows, frame, rows.y),
    )


def _joined(folder: Path, file: LabelledFile) -> ScoredSource:
    """Join the predictions of a server and its labels, by the ids of both."""
    predictions = file.predictions or folder / PREDICTIONS_NAME
    if not predictions.is_file():
        raise DataError(
            f"The predictions '{predictions}' must exist, as 'lessvfl predict server' "
            "writes them. Got no such file."
        )
    columns = load_cells(predictions, texts=("model",))
    chosen = _seed_of(folder, file.seed, columns, predictions)
    model = load(folder, chosen, trust_code=file.trust_code, as_trained=True)
    id_column = next(iter(columns))
    _, labels, names = load_rows(file.path, (), file.label)
    ids = _unique(load_ids(file.path, id_column), id_column, file.path)
    place = _unique(columns[id_column], id_column, predictions)
    if got := rewritten(ids, place):
        raise DataError(
            f"Ids of '{file.path}' must be written as in '{predictions}'. {got}"
        )
    predicted = [_is_there(cell) for cell in columns["prediction"]]
    both = [id_ for id_ in ids if id_ in place and predicted[place[id_]]]
    if not both:
        raise DataError(
            f"Some ids of '{file.path}' must have a prediction in '{predictions}'. "
            "Got none."
        )
    places = np.array([place[id_] for id_ in both])
    columns = {name: cells[places] for name, cells in columns.items()}
    labels = [labels[ids[id_]] for id_ in both]
    rows = rows_of_predictions(model, columns, labels, file.path.stem, names)
    if file.by is not None:
        cells = load_ids(file.path, file.by, "groups")
        rows = rows.grouped([cells[ids[id_]] for id_ in both], file.by)
    alone, unlabelled = len(ids) - len(both), sum(predicted) - len(both)
    partial = sum(str(cell).lower() == "true" for cell in columns["partial"].tolist())
    notes = {
        f"{plural(alone, 'row')} with a label and no prediction left out.": alone,
        f"{plural(unlabelled, 'prediction')} without a label left out.": unlabelled,
        f"{plural(partial, 'prediction')} partial: the mean of a party stands for "
        "it.": partial,
    }
    joined = {
        "predictions": predictions.name,
        "without_prediction": alone,
        "without_label": unlabelled,
        "partial": partial,
    }
    return ScoredSource(
        rows,
        seed=chosen,
        digest=file.digest(),
        counts={"imputed": None, "unseen": None, "joined": joined},
        marks=functools.partial(marks_of_ids, both),
        notes=[sentence for sentence, n in notes.items() if n],
    )


def _is_there(cell: Any) -> bool:
    return not is_missing(cell) and bool(cell != "")  # of NumPy, which JSON has not


def _seed_of(
    folder: Path, asked: int | None, columns: dict[str, NDArray[Any]], path: Path
) -> int | None:
    """Return the seed whose model made the predictions, or refuse them.

    None: all seeds of an ensemble did.
    """
    for name in ("model", "prediction", "partial"):
        if name not in columns:
            raise DataError(
                f"'{path}' must be predictions as 'lessvfl predict server' writes "
                f"them. Got a file without the column '{name}'."
            )
    record = RunRecord.read(folder)
    seeds = [run["seed"] for run in record.runs]
    digests = [digest_of(part_of(record, folder, seed)) for seed in seeds]
    known: dict[str, int | None] = {
        digest[:MODEL_DIGITS]: seed for digest, seed in zip(digests, seeds, strict=True)
    }
    if record.ensemble is not None:
        known[digest_together(digests)[:MODEL_DIGITS]] = None
    models = {str(cell) for cell in columns["model"] if _is_there(cell)}
    if len(models) != 1 or not models <= known.keys():
        raise DataError(
            f"The predictions '{path}' must be of one model of '{folder}'. Got some of "
            "another: predict again."
        )
    seed = known[models.pop()]
    if asked not in (None, seed):
        raise ConfigError(
            f"The 'seed' must be that of the predictions, "
            f"{'left out: they are of all' if seed is None else seed}. Got {asked} "
            "instead."
        )
    return seed


def _unique(ids: NDArray[Any], column: str, path: Path) -> dict[str, int]:
    """Return the place of every id, or refuse one that stands there twice."""
    texts = list(map(canonical, ids.tolist()))
    (most, n), *_ = Counter(texts).most_common(1)
    if n > 1:
        raise DataError(
            f"An id must stand in one row of '{path}', column '{column}'. Got '{most}' "
            f"in {n}."
        )
    return {text: row for row, text in enumerate(texts)}
