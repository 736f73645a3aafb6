"""Rows that server and parties have in common, what is asked and answered of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl import data
from lessvfl.errors import ConfigError
from lessvfl.remote.align import Ids
from lessvfl.remote.align.entries import Positions
from lessvfl.remote.config import ServerConfig, table_of
from lessvfl.run.fitted import MODEL_DIGITS, FittedServer
from lessvfl.terms import PartyId

Send = Callable[[Mapping[PartyId, Any]], Mapping[PartyId, Any]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answers:
    """Predictions of some rows, and the parties that were missing."""

    z: NDArray[Any]  # (n, 1) or (n, C), the outputs of the fusion network
    missing: tuple[PartyId, ...] = ()

    @property
    def partial(self) -> bool:
        """Tell whether the mean of a missing party was used."""
        return bool(self.missing)


def answer_columns(
    model: FittedServer, digest: str, answers: Answers
) -> dict[str, list[Any]]:
    """Return what a table says of every row that has an answer."""
    columns = {"prediction": model.answers(answers.z)}
    if model.task != "regression":
        for prefix, shares in model.shares(answers.z).items():
            for place, name in enumerate(model.label_names):
                columns[f"{prefix}{name}"] = shares[:, place]
    n_rows = len(answers.z)
    columns["partial"] = np.full(n_rows, answers.partial)
    columns["model"] = np.full(n_rows, digest[:MODEL_DIGITS])
    return {name: values.tolist() for name, values in columns.items()}


@dataclass(frozen=True)
class Session:
    """An alignment: its name, the server's ids, the places of the common ones."""

    name: str
    ids: Ids
    places: Mapping[str, int] = field(default_factory=dict)

    def with_rows(self, rows: Positions) -> Session:
        """Return the session with these of its ids as the common ones, in order."""
        items = self.ids.items
        log.info("%d of %d ids are common to all parties", len(rows), len(items))
        places = {items[row]: place for place, row in enumerate(rows.tolist())}
        return Session(self.name, self.ids, places)


def universe(
    config: ServerConfig, rows: Path | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ids to align, and those to predict.

    Rows that were trained without alignment have their places in the server's table;
    otherwise only the ids that are asked for are shown to anybody.
    """
    if config.id is None:
        raise ConfigError(
            "The 'id' setting must name the column of ids to predict with. Got none."
        )
    asked = data.load_ids(table_of(config) if rows is None else rows, config.id)
    if rows is not None and config.align == "none":
        return data.load_ids(table_of(config), config.id), asked
    return asked, asked
