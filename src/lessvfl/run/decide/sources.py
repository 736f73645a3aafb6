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
from lessvfl.run.decide import marks
from lessvfl.run.decide.marks import RowMarks
from lessvfl.run.decide.scored import ScoredRows, rows_of_model, rows_of_predictions
from lessvfl.run.fitted import MODEL_DIGITS, digest_of, digest_together
from lessvfl.run.folder import load, model_seeds, part_of
from lessvfl.run.record import RunRecord
from lessvfl.run.scores import count_cells
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
class Labelled:
    """A file of rows with labels, and how its columns are named."""

    path: Path
    label: str | None = None
    by: str | None = None

    @property
    def name(self) -> str:
        """Return what the file is called."""
        return self.path.stem

    def digest(self) -> str:
        """Return a digest of the file; of a folder, of all files in it."""
        paths = [self.path]
        if self.path.is_dir():
            paths = sorted(one for one in self.path.iterdir() if one.is_file())
        digest = hashlib.sha256()
        for path in paths:
            digest.update(path.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Scoring:
    """How rows come by their scores."""

    # None: all of an ensemble, or the first; of a server, that of its predictions.
    seed: int | None = None
    predictions: Path | None = None  # of a server; the usual file
    inference: Inference = "clear"
    trust_code: bool = False


def score(folder: Path, table: Labelled, how: Scoring) -> ScoredSource:
    """Score rows by the model of a run of all sides, or by a server's predictions."""
    record = RunRecord.read(folder)
    if record.side == "party":
        raise ConfigError(
            "The folder must be that of a run of all sides, or of a server, who has "
            "the labels. Got that of a party."
        )
    if record.side == "server":
        if how.inference != "clear":
            raise ConfigError(
                "How trees predict is said to 'lessvfl predict server'. Got it with "
                "the folder of a server."
            )
        return _joined(folder, table, how)
    if how.predictions is not None:
        raise ConfigError(
            "Predictions are joined with the labels of a server. Got the folder of a "
            "run of all sides, whose model predicts by itself."
        )
    return _scored(folder, table, how, record)


def _scored(
    folder: Path, table: Labelled, how: Scoring, record: RunRecord
) -> ScoredSource:
    """Score a table with the model of a run of all sides."""
    model = load(folder, how.seed, trust_code=how.trust_code, as_trained=True)
    model = model.inferring(how.inference)
    frame, labels, names = load_rows(
        table.path, model.columns, table.label, model.texts
    )
    rows = rows_of_model(model, frame, labels, table.name, names)
    if table.by is not None:
        groups = load_ids(table.path, table.by, "groups").tolist()
        rows = rows.grouped(groups, table.by)
    chosen = _one_of(model_seeds(record, how.seed))
    counts = {**count_cells(model, frame), "joined": None}
    own = functools.partial(marks.of_rows, frame, rows.y)
    return ScoredSource(rows, chosen, table.digest(), counts, own)


def _joined(folder: Path, table: Labelled, how: Scoring) -> ScoredSource:
    """Join the predictions of a server and its labels, by the ids of both."""
    predictions = how.predictions or folder / PREDICTIONS_NAME
    if not predictions.is_file():
        raise DataError(
            f"The predictions '{predictions}' must exist, as 'lessvfl predict server' "
            "writes them. Got no such file."
        )
    columns = load_cells(predictions, texts=("model",))
    chosen = _seed_of(folder, how.seed, columns, predictions)
    model = load(folder, chosen, trust_code=how.trust_code, as_trained=True)
    id_column = next(iter(columns))
    _, labels, names = load_rows(table.path, (), table.label)
    ids = _unique(load_ids(table.path, id_column), id_column, table.path)
    place = _unique(columns[id_column], id_column, predictions)
    if got := rewritten(ids, place):
        raise DataError(
            f"Ids of '{table.path}' must be written as in '{predictions}'. {got}"
        )
    known = columns["prediction"]
    named = {
        one: (row, at)
        for one, row in ids.items()
        if (at := place.get(one)) is not None and _is_there(known[at])
    }
    both = list(named.values())
    if not both:
        raise DataError(
            f"Some ids of '{table.path}' must have a prediction in '{predictions}'. "
            "Got none."
        )
    places = np.array([there for _, there in both])
    some = {name: cells[places] for name, cells in columns.items()}
    own = [labels[row] for row, _ in both]
    rows = rows_of_predictions(model, some, own, table.name, names)
    if table.by is not None:
        cells = load_ids(table.path, table.by, "groups")
        rows = rows.grouped([cells[row] for row, _ in both], table.by)
    predicted = sum(_is_there(one) for one in known)
    joined = {
        "predictions": predictions.name,
        "without_prediction": len(ids) - len(both),
        "without_label": predicted - len(both),
        "partial": sum(str(one).lower() == "true" for one in some["partial"].tolist()),
    }
    counts = {"imputed": None, "unseen": None, "joined": joined}
    known_by = functools.partial(marks.of_ids, list(named))
    said = _join_notes(joined)
    return ScoredSource(rows, chosen, table.digest(), counts, known_by, said)


def _is_there(cell: Any) -> bool:
    return not is_missing(cell) and bool(cell != "")  # of NumPy, which JSON has not


def _join_notes(joined: dict[str, Any]) -> list[str]:
    """Say which rows are not among those that are scored, and which are partial."""
    said = []
    if n := joined["without_prediction"]:
        said.append(f"{plural(n, 'row')} with a label and no prediction left out.")
    if n := joined["without_label"]:
        said.append(f"{plural(n, 'prediction')} without a label left out.")
    if n := joined["partial"]:
        said.append(
            f"{plural(n, 'prediction')} partial: the mean of a party stands for it."
        )
    return said


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
    own = {
        r["seed"]: digest_of(part_of(record, folder, r["seed"])) for r in record.runs
    }
    digests: dict[str, int | None] = {own[s][:MODEL_DIGITS]: s for s in own}
    if record.ensemble is not None:
        digests[digest_together([*own.values()])[:MODEL_DIGITS]] = None
    found = {str(cell) for cell in columns["model"] if _is_there(cell)}
    if len(found) != 1 or not found <= digests.keys():
        raise DataError(
            f"The predictions '{path}' must be of one model of '{folder}'. Got some of "
            "another: predict again."
        )
    seed = digests[found.pop()]
    if asked not in (None, seed):
        raise ConfigError(
            f"The 'seed' must be that of the predictions, "
            f"{'left out: they are of all' if seed is None else seed}. Got {asked} "
            "instead."
        )
    return seed


def _one_of(seeds: tuple[int, ...]) -> int | None:
    return seeds[0] if len(seeds) == 1 else None


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
