"""Rows with labels and what a model says of them, whoever asked the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.core.metrics import decision_offsets
from lessvfl.data import Frame, label_name
from lessvfl.data.frame import is_missing
from lessvfl.data.roles import as_number
from lessvfl.errors import DataError
from lessvfl.run.decide.kept import KeptDecision
from lessvfl.run.decide.recalibration import Reals, outputs_of, shares_of
from lessvfl.run.fitted import (
    PROBABILITY,
    UNCALIBRATED,
    FittedModel,
    FittedServer,
)
from lessvfl.terms import Task, listed, plural, written

MOST_NAMES = 20
MOST_GROUPS = 20
NO_GROUP = "(missing)"


@dataclass(frozen=True)
class ScoredRows:
    """Labels and outputs of a model, and perhaps the group that each row is of."""

    task: Task
    label_names: tuple[str, ...]
    y: NDArray[Any]  # (n,), the place of a class, or an amount
    # (n, 1) or (n, C): log-odds of the second class, logarithms of shares up to a
    # constant, or amounts in the unit of the labels.
    z: Reals
    positive: int = 1  # of two classes the one that is looked for
    threshold: tuple[float, ...] | None = None
    groups: NDArray[Any] | None = None  # (n,) names

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.y)

    @cached_property
    def p(self) -> Reals:
        """Return the probability of every class, (n, C)."""
        return shares_of(self.z)

    @cached_property
    def odds(self) -> Reals:
        """Return the log-odds of the positive one of two classes."""
        return self.z[:, 0] if self.positive else -self.z[:, 0]

    @cached_property
    def hits(self) -> NDArray[np.bool_]:
        """Tell which rows are of the positive class."""
        return np.asarray(self.y == self.positive)

    @cached_property
    def decided(self) -> NDArray[np.int64]:
        """Return the class that is predicted for every row."""
        moved = self.z + np.array(decision_offsets(self.threshold, self.z.shape[1]))
        if self.z.shape[1] == 1:
            return np.asarray(moved[:, 0] > 0, dtype=np.int64)
        return np.asarray(moved.argmax(axis=1))

    def take(self, rows: NDArray[Any]) -> ScoredRows:
        """Return some of the rows."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, y=self.y[rows], z=self.z[rows], groups=groups)

    def deciding(self, kept: KeptDecision) -> ScoredRows:
        """Return the rows as they are with what is kept beside the model."""
        kept = kept.of_classes(len(self.label_names))
        threshold = kept.threshold or self.threshold
        return replace(self, z=kept.recalibrated(self.z), threshold=threshold)

    def grouped(self, cells: Sequence[Any], column: str) -> ScoredRows:
        """Return the rows with the groups that a column says they are of."""
        names = np.array(
            [NO_GROUP if is_missing(cell) else label_name(cell) for cell in cells],
            dtype=object,
        )
        if len(names) != len(self):
            raise DataError(
                f"Column '{column}' must have a cell for each of "
                f"{plural(len(self), 'row')}. Got {len(names):,}."
            )
        if (n := len(set(names))) > MOST_GROUPS:
            raise DataError(
                f"Column '{column}' must have at most {MOST_GROUPS} values to be "
                f"scored by. Got {n:,}."
            )
        return replace(self, groups=names)


def rows_of_model(
    model: FittedModel,
    frame: Frame,
    labels: Sequence[Any],
    name: str,
    label_names: Sequence[str] | None = None,
) -> ScoredRows:
    """Return the rows of a table, scored by a model of all sides."""
    if frame.n_rows == 0:
        raise DataError(f"The table '{name}' must have rows to score. Got none.")
    y = read_labels(labels, model, name, label_names)
    z = model.recalibrated(model.decide(frame))
    if model.task == "regression":
        z = model.answers(z)[:, None]
    return _rows(model, y, z)


def rows_of_predictions(
    model: FittedServer,
    columns: Mapping[str, NDArray[Any]],
    labels: Sequence[Any],
    name: str,
    label_names: Sequence[str] | None = None,
) -> ScoredRows:
    """Return the rows of a file of predictions as the network has them.

    `columns` are those of the file, in the order of the labels.
    """
    y = read_labels(labels, model, name, label_names)
    if model.task == "regression":
        return _rows(model, y, _numbers(columns, "prediction")[:, None])
    is_fitted = any(column.startswith(UNCALIBRATED) for column in columns)
    prefix = UNCALIBRATED if is_fitted else PROBABILITY
    names = [f"{prefix}{label}" for label in model.label_names]
    p = np.stack([_numbers(columns, column) for column in names], axis=1)
    if (p < 0).any() or not np.allclose(p.sum(axis=1), 1, atol=1e-3):
        raise DataError(
            f"The probabilities of a row must add up to 1, in {listed(names)}. Got "
            "others."
        )
    return _rows(model, y, outputs_of(p))


def _rows(model: FittedServer, y: NDArray[Any], z: Reals) -> ScoredRows:
    return ScoredRows(
        model.task,
        model.label_names,
        y,
        np.asarray(z, dtype=np.float64),
        positive=model.positive,
        threshold=model.rule,
    )


def _numbers(columns: Mapping[str, NDArray[Any]], name: str) -> Reals:
    """Return the column `name` of predictions as numbers (N,), or refuse others."""
    if name not in columns:
        raise DataError(
            f"Predictions must have the column '{name}', as 'lessvfl predict server' "
            f"writes it. Got {listed(list(columns), MOST_NAMES)}."
        )
    numbers = np.array([as_number(cell) for cell in columns[name]], dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise DataError(f"Predictions must be finite in '{name}'. Got others.")
    return numbers


def read_labels(
    labels: Sequence[Any],
    model: FittedServer,
    name: str,
    label_names: Sequence[str] | None = None,
) -> NDArray[Any]:
    """Return labels as the model has them: places of classes, or amounts.

    `label_names` are those of the classes 0, 1, ... where labels are such numbers;
    `name` is what the table is called.
    """
    if model.task == "regression":
        amounts = np.array([as_number(label) for label in labels])
        others = np.flatnonzero(~np.isfinite(amounts))
        if len(others):
            raise DataError(
                f"The labels of '{name}' must be finite numbers, as in training. "
                f"Got {written(labels[others[0]])} in row {others[0] + 1}."
            )
        return amounts
    code = {text: index for index, text in enumerate(model.label_names)}
    words = [label_name(label) for label in labels]
    if label_names is not None and not code.keys() >= set(words):
        named = {str(index): text for index, text in enumerate(label_names)}
        words = [named.get(word, word) for word in words]
    if strange := set(words) - code.keys():
        shown = listed(model.label_names, MOST_NAMES)
        raise DataError(
            f"The labels of '{name}' must be classes of the model: {shown}. "
            f"Got '{min(strange)}'."
        )
    return np.array([code[word] for word in words], dtype=np.int64)
