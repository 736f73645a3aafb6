"""Why a model predicts what it does: contributions of parties and features to a row.

The explained output is a number: of two classes the log-odds of the positive one, of
several the logit of the class that is predicted less the mean of all logits, and of a
regression the value itself. ``base`` is what it would be with every party at its mean
embedding; ``base`` and the contributions of all parties make up the output, and those
of a party's features make up the party's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.shapley import (
    Background,
    PartyShares,
    mean_embedding,
    share_among_features,
    share_among_parties,
)
from lessvfl.data import load_rows, write_table
from lessvfl.errors import ConfigError, DataError
from lessvfl.run.decide.sources import Labelled, Scoring
from lessvfl.run.fitted import FittedModel, FittedParty, FittedServer
from lessvfl.run.folder import load
from lessvfl.run.record import RunRecord
from lessvfl.terms import PartyId

LEAST_ROWS = 10  # that a row may be compared with
FILE = "reasons.csv"  # of a run folder
UNNAMED = "its columns"  # of a party that tells of no single feature


@dataclass(frozen=True)
class FeatureShares:
    """What features of one party add to the explained output."""

    names: tuple[str, ...]
    values: NDArray[np.float64]  # (n, features), NaN where the party does not tell
    texts: Mapping[str, str] = field(default_factory=dict)  # that a letter may quote


@dataclass(frozen=True)
class Explanation:
    """Contributions to the predictions of some rows.

    Attributes
    ----------
    base : ndarray of shape (n,)
        The explained output with every party at its mean.
    parties : dict of ndarray of shape (n,)
        What each party adds to it.
    features : dict of FeatureShares
        What the features of a party add up to that from, of the parties that tell.
    explains : tuple of str
        The class that the output is of, by row; empty for a regression.
    toward : ndarray of shape (n,)
        1 where that class is predicted, -1 where another is, 0 for a regression.
    """

    base: NDArray[np.float64]
    parties: Mapping[PartyId, NDArray[np.float64]]
    features: Mapping[PartyId, FeatureShares]
    explains: tuple[str, ...]
    toward: NDArray[np.int64]

    @property
    def output(self) -> NDArray[np.float64]:
        """Return the explained output, which all contributions add up to."""
        return self.base + sum(self.parties.values())

    def columns(self, most: int = 3) -> dict[str, list[Any]]:
        """Return the explanation as columns of a table, with so many reasons a row.

        Reasons are what pushed most towards what is predicted (of a regression: either
        way), a feature of a party that tells of them, or such a party as a whole.
        """
        found: dict[str, list[Any]] = {}
        if self.explains:
            found["explains"] = list(self.explains)
        found["base"] = self.base.tolist()
        for party, values in self.parties.items():
            found[f"contribution_{party}"] = values.tolist()
        words, amounts = self._candidates()
        pushes = np.where(
            self.toward[:, None] == 0, np.abs(amounts), amounts * self.toward[:, None]
        )
        pushes = np.nan_to_num(pushes, nan=0.0)
        order = np.argsort(-pushes, axis=1, kind="stable")[:, :most]
        for place in range(most):
            texts: list[str | None] = [None] * len(amounts)
            shares: list[float | None] = [None] * len(amounts)
            if place < order.shape[1]:
                for row, at in enumerate(order[:, place].tolist()):
                    if pushes[row, at] > 0:
                        texts[row], shares[row] = words[at], float(amounts[row, at])
            found[f"reason_{place + 1}"] = texts
            found[f"reason_{place + 1}_contribution"] = shares
        return found

    def _candidates(self) -> tuple[list[str], NDArray[np.float64]]:
        """Return all reasons in words, and what they add to each row, (n, reasons)."""
        words, parts = [], []
        for party, values in self.parties.items():
            own = self.features.get(party)
            if own is None:
                words.append(f"{party}: {UNNAMED}")
                parts.append(values[:, None])
            else:
                words += [own.texts.get(n) or f"{party}: {n}" for n in own.names]
                parts.append(own.values)
        return words, np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class ServerReasons:
    """The server's part: what each party adds, and slopes for its features."""

    model: FittedServer
    z: NDArray[Any]
    shares: PartyShares

    @classmethod
    def of(
        cls,
        model: FittedServer,
        blocks: Sequence[Tensor],
        means: Mapping[PartyId, Tensor],
        n_rows: int,
    ) -> ServerReasons:
        """Split what is predicted for rows among parties.

        `means` are those of parties that say something of each row.
        """
        z = model.fuse(blocks, n_rows)
        absent = [means.get(name) for name in model.party_names]
        weights = torch.from_numpy(_weights(model, z))
        shares = share_among_parties(model.fusion, blocks, absent, weights)
        return cls(model, z, shares)

    def take(self, rows: slice) -> ServerReasons:
        """Return the part of some rows."""
        own = self.shares
        slopes = None if own.slopes is None else tuple(one[rows] for one in own.slopes)
        some = PartyShares(own.base[rows], own.values[rows], slopes)
        return replace(self, z=self.z[rows], shares=some)

    def slopes(self, party: PartyId) -> Tensor | None:
        """Return what a party splits its share by, (n, E_m); None: these are trees."""
        every = self.shares.slopes
        return None if every is None else every[self.model.party_names.index(party)]

    @property
    def unit(self) -> float:
        """Return what the output of the network is multiplied by; 1 for classes."""
        return self.model.label_scale if self.model.task == "regression" else 1.0

    def explanation(self, told: Mapping[PartyId, FeatureShares]) -> Explanation:
        """Put together what parties tell."""
        model, shares = self.model, self.shares
        shift = model.label_shift if model.task == "regression" else 0.0
        values = shares.values.numpy()
        parties = {name: values[:, m] for m, name in enumerate(model.party_names)}
        explains, toward = _explains(model, self.z)
        return Explanation(shares.base.numpy() + shift, parties, told, explains, toward)


def _weights(model: FittedServer, z: NDArray[Any]) -> NDArray[np.float64]:
    """Return what the outputs of the network are weighed by, (n, K)."""
    if model.task == "regression":
        return np.full(z.shape, model.label_scale)
    if model.task == "binary":
        return np.full(z.shape, 1.0 if model.positive == 1 else -1.0)
    weights = np.full(z.shape, -1 / z.shape[1])
    weights[np.arange(len(z)), model.moved(z).argmax(axis=1)] += 1.0
    return weights


def _explains(
    model: FittedServer, z: NDArray[Any]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the class that is explained, and whether it is predicted."""
    if model.task == "regression":
        return (), np.zeros(len(z), dtype=np.int64)
    predicted = model.answers(z)
    if model.task == "binary":
        name = model.label_names[model.positive]
        return (name,) * len(z), np.where(predicted == name, 1, -1)
    return tuple(predicted.tolist()), np.ones(len(z), dtype=np.int64)


def features_of(
    party: FittedParty, x: Tensor, background: Background, slopes: Tensor
) -> FeatureShares:
    """Split a party's share of encoded rows (n, columns) among its features."""
    groups = torch.from_numpy(party.encoding.groups)
    values = share_among_features(party.net, x, background, slopes, groups)
    return FeatureShares(party.encoding.features, values.numpy())


def explain(
    model: FittedModel,
    X: Any,
    background: Any = None,
    texts: Mapping[str, str] | None = None,
) -> Explanation:
    """Explain what a model of all sides predicts for a table.

    Parameters
    ----------
    model : FittedModel
        As :func:`lessvfl.load` returns it.
    X : table
        The rows, as `model.predict` takes them.
    background : table, optional
        The rows that they are compared with; all of `X` unless given. At least 10.
    texts : dict, optional
        By feature, the words to give as a reason.

    Returns
    -------
    Explanation
        What every party and every feature adds. Trees are not split among features.

    Examples
    --------
    >>> explain(model, X).columns(most=2)  # doctest: +SKIP
    """
    if model.inference != "clear":
        raise ConfigError(
            "Reasons need the embeddings of rows: 'inference' must be clear. Got "
            f"{model.inference}."
        )
    frame = model.table(X)
    others = frame if background is None else model.table(background)
    if others.n_rows < LEAST_ROWS:
        raise DataError(
            "A row is explained by comparison with others: the background must have "
            f"{LEAST_ROWS} rows or more. Got {others.n_rows}."
        )
    speaking = [party for party in model.parties if party.constant is None]
    compared = {party.name: party.encoded(others) for party in speaking}
    means = {
        party.name: mean_embedding(party.net, compared[party.name])
        for party in speaking
    }
    blocks = [party.embed(frame) for party in model.parties]
    server = ServerReasons.of(model, blocks, means, frame.n_rows)
    told = {}
    for party in speaking:
        slopes = server.slopes(party.name)
        if slopes is not None:
            rows = Background.of(party.net, compared[party.name], means[party.name])
            own = features_of(party, party.encoded(frame), rows, slopes)
            told[party.name] = replace(own, texts=texts or {})
    return server.explanation(told)


def explain_table(folder: Path, table: Labelled, how: Scoring, most: int) -> Path:
    """Write why the model of a run folder predicts what it does for rows of a file."""
    if RunRecord.read(folder).side != "all":
        raise ConfigError(
            "Reasons for the rows of a table need a folder of all sides, as 'lessvfl "
            "run --out' writes it. Got that of one side; 'lessvfl predict server "
            "--reasons' asks the parties."
        )
    model = load(folder, how.seed, trust_code=how.trust_code).inferring(how.inference)
    rows, _, _ = load_rows(table.path, model.columns, table.label, model.texts)
    why = explain(model, rows).columns(most)
    said = {
        "row": list(range(rows.n_rows)),
        "prediction": model.predict(rows).tolist(),
    }
    write_table(folder / FILE, said | why)
    return folder / FILE
