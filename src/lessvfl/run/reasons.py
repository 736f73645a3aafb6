"""Why a model predicts what it does: contributions of parties and features to a row.

The explained output is a number: of two classes the log-odds of the positive one, of
several the logit of the class that is predicted less the mean of all logits, and of a
regression the value itself. ``base`` is what it would be with every party at its mean
embedding; ``base`` and the contributions of all parties make up the output, and those
of a party's features make up the party's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.data import load_rows, write_table
from lessvfl.errors import ConfigError, DataError
from lessvfl.explanation.reasons import Explanation, FeatureShares
from lessvfl.explanation.shapley import (
    Background,
    PartyShares,
    mean_embedding,
    share_among_features,
    share_among_parties,
)
from lessvfl.run.decide.sources import LabelledFile
from lessvfl.run.fitted import FittedModel, FittedParty, FittedServer
from lessvfl.run.folder import load
from lessvfl.run.record import RunRecord
from lessvfl.terms import PartyId

LEAST_ROWS = 10  # that a row may be compared with
FILE = "reasons.csv"  # of a run folder


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
        """Return these reasons for a slice of the rows alone."""
        slopes = self.shares.slopes
        shares = PartyShares(
            self.shares.base[rows],
            self.shares.values[rows],
            None if slopes is None else tuple(slope[rows] for slope in slopes),
        )
        return replace(self, z=self.z[rows], shares=shares)

    def slopes(self, party: PartyId) -> Tensor | None:
        """Return what a party splits its share by, (n, E_m); None: these are trees."""
        every = self.shares.slopes
        return None if every is None else every[self.model.party_names.index(party)]

    @property
    def unit(self) -> float:
        """Return what the output of the network is multiplied by; 1 for classes."""
        return self.model.label_scale if self.model.task == "regression" else 1.0

    def explanation(self, features: Mapping[PartyId, FeatureShares]) -> Explanation:
        """Return the explanation: these reasons, and each party's feature shares."""
        model, n_rows = self.model, len(self.z)
        shift, explains = 0.0, tuple[str, ...]()
        toward = np.ones(n_rows, dtype=np.int64)
        if model.task == "regression":
            shift, toward = model.label_shift, np.zeros_like(toward)
        elif model.task == "binary":
            name = model.label_names[model.positive]
            explains = (name,) * n_rows
            toward = np.where(model.answers(self.z) == name, 1, -1)
        else:
            explains = tuple(model.answers(self.z).tolist())
        values = self.shares.values.numpy()
        return Explanation(
            base=self.shares.base.numpy() + shift,
            parties={name: values[:, m] for m, name in enumerate(model.party_names)},
            features=features,
            explains=explains,
            toward=toward,
        )


def _weights(model: FittedServer, z: NDArray[Any]) -> NDArray[np.float64]:
    """Return what the outputs of the network are weighed by, (n, K)."""
    if model.task == "regression":
        return np.full(z.shape, model.label_scale)
    if model.task == "binary":
        return np.full(z.shape, 1.0 if model.positive == 1 else -1.0)
    weights = np.full(z.shape, -1 / z.shape[1])
    weights[np.arange(len(z)), model.moved(z).argmax(axis=1)] += 1.0
    return weights


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
    compared = [(party, party.encoded(others)) for party in speaking]
    means = {party.name: mean_embedding(party.net, x) for party, x in compared}
    blocks = [party.embed(frame) for party in model.parties]
    server = ServerReasons.of(model, blocks, means, frame.n_rows)
    features = {}
    for party, x in compared:
        slopes = server.slopes(party.name)
        if slopes is not None:
            rows = Background.of(party.net, x)
            shares = features_of(party, party.encoded(frame), rows, slopes)
            features[party.name] = replace(shares, texts=texts or {})
    return server.explanation(features)


def explain_table(folder: Path, file: LabelledFile, most: int) -> Path:
    """Write why the model of a run folder predicts what it does for rows of a file."""
    if RunRecord.read(folder).side != "all":
        raise ConfigError(
            "Reasons for the rows of a table need a folder of all sides, as 'lessvfl "
            "run --out' writes it. Got that of one side; 'lessvfl predict server "
            "--reasons' asks the parties."
        )
    model = load(folder, file.seed, trust_code=file.trust_code)
    model = model.inferring(file.inference)
    rows, _, _ = load_rows(file.path, model.columns, file.label, model.texts)
    places = list(range(rows.n_rows))
    columns = {"row": places, "prediction": model.predict(rows).tolist()}
    write_table(folder / FILE, columns | explain(model, rows).columns(most))
    return folder / FILE
