"""A party's models of a run, and what they say of the rows of its table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.lifted import find_factory
from lessvfl.core.plans import SECRET
from lessvfl.core.trees.networks import Splits
from lessvfl.data import Frame
from lessvfl.errors import ConfigError
from lessvfl.privacy.noise import ClippedNoise
from lessvfl.remote.align import keys
from lessvfl.remote.align.ids import Ids
from lessvfl.remote.config import PartyConfig
from lessvfl.remote.predict.reasons import check_texts
from lessvfl.run.accounting import Spend
from lessvfl.run.ensemble import merge_parties
from lessvfl.run.fitted import FittedParty, digest_of, digest_together
from lessvfl.run.folder import load, part_of
from lessvfl.run.record import RunRecord
from lessvfl.terms import plural
from lessvfl.wire import control

ROWS_AT_ONCE = 10_000  # of the table, that go through the network

log = logging.getLogger(__name__)


def texts_in_training(config: PartyConfig) -> set[str]:
    """Return the columns that were texts in training, of all seeds of a party's run."""
    record = RunRecord.read(Path(config.out))
    runs = record.runs if record.side == "party" else []
    models = [_fitted(config, run["seed"]) for run in runs]
    return {name for model in models for name in model.encoding.texts}


def record_of(name: str, config: PartyConfig) -> RunRecord:
    """Return the record of a party's run folder, or refuse that of another side."""
    record = RunRecord.read(Path(config.out))
    if (record.side, record.header.get("party")) != ("party", name):
        raise ConfigError(
            f"The run folder '{config.out}' must be that of party '{name}'. Got that "
            f"of {record.header.get('party', record.side)!r}."
        )
    return record


def _fitted(config: PartyConfig, seed: int) -> FittedParty:
    spec = config.party_net
    factory = None if spec is None else find_factory(spec)
    model: FittedParty = load(config.out, seed, party_net=factory)
    return model


@dataclass(frozen=True)
class OpenModel:
    """The model that a server predicts with, and its embeddings of the table's rows."""

    message: control.Open
    h: Tensor  # (N, components), all rows of the table
    has_splits: bool  # whether these are what splits say
    sent: NDArray[np.bool_]  # rows whose embeddings have left; updated as they do
    spent: Spend | None  # of every row, by the noise on its embeddings


class PartyModels:
    """The models of all seeds of a party's run, on the table of today."""

    def __init__(
        self,
        name: str,
        config: PartyConfig,
        record: RunRecord,
        frame: Frame,
        ids: Ids | None,
    ) -> None:
        self._name, self._config, self._frame = name, config, frame
        self._ids = None if ids is None else [*ids.account_names()]
        self._record, self._folder = record, Path(config.out)
        models = [_fitted(config, run["seed"]) for run in record.runs]
        # Fails now if the table does not fit. Seeds may have kept other columns.
        counts = [model.encoding.apply(frame)[1] for model in models]
        if n := max(one.imputed for one in counts):
            cells = plural(n, "missing cell", "missing cells")
            log.info("%s filled in, as in training", cells)
        if n := max(one.unseen for one in counts):
            cells = plural(n, "cell of a new category", "cells of new categories")
            log.info("%s as zeros, as in training", cells)
        check_texts(config.reason_texts, models)
        noise = record.runs[0]["shown"].get("noise")  # that embeddings had in training
        if noise is None and config.has_noise:
            raise ConfigError(
                "With noise on embeddings in its config a party must predict with a "
                "model that had noise in training. Got one without."
            )
        if noise is not None and config.policy.reasons == "features":
            raise ConfigError(
                "The policy's 'reasons' must be none or home with noise on embeddings, "
                "which is not on reasons. Got features."
            )
        self._noise = None if noise is None else ClippedNoise(**noise)

    def checked(self, message: control.Open) -> str:
        """Return the digest of what a server asks for, or refuse another model."""
        known = {run["seed"]: run["models"] for run in self._record.runs}
        seeds = message.seeds
        # In one order: another would be another release of the same embeddings.
        is_known = len(seeds) > 0 and seeds == tuple(s for s in known if s in seeds)
        if message.run != self._record.header["run"] or not is_known:
            raise self._other("another run", "the run folder of the run that is used")
        models = [known[seed] for seed in seeds]
        if message.model != digest_together([one["server"] for one in models]):
            raise self._other(
                "another fusion network", "the one that its own was trained with"
            )
        digests = [digest_of(part_of(self._record, self._folder, s)) for s in seeds]
        if digests != [one[self._name] for one in models]:
            raise self._other("another network", "the one that training left")
        return digest_together(digests)

    def _other(self, got: str, must: str) -> ConfigError:
        sentence = f"Party '{self._name}' must be used with {must}. Got {got}."
        return ConfigError(sentence, public=sentence)

    def parts(self, seeds: Sequence[int]) -> list[tuple[FittedParty, Path]]:
        """Return the model of each seed, and the folder that it is in."""
        return [
            (_fitted(self._config, seed), part_of(self._record, self._folder, seed))
            for seed in seeds
        ]

    def opened(self, message: control.Open, secret: bytes) -> OpenModel:
        """Return the model of some seeds, noise on its embeddings as in training.

        The noise of a row is keyed by its id and its values: the same whenever it is
        asked for, and whichever other rows are in the table.
        """
        models = [_fitted(self._config, seed) for seed in message.seeds]
        model = merge_parties(models) if len(models) > 1 else models[0]
        none = np.zeros(self._frame.n_rows, dtype=np.bool_)
        h, has_splits = self._embed(model), isinstance(model.net, Splits)
        if (noise := self._noise) is None:
            return OpenModel(message, h, has_splits, none, None)
        seed = SECRET + int.from_bytes(keys.derive(secret, "noise"), "big")
        guard = EmbeddingGuard(noise, self._name, seed)
        parts = torch.split(h, [one.n_components for one in models], dim=1)
        run = self._record.header["run"]
        noisy = [
            guard.release_by_row(part, "predict", run, seed, ids=self._ids)
            for part, seed in zip(parts, message.seeds, strict=True)
        ]
        spend = Spend(
            "noise on embeddings",
            (noise.releases(len(models)),),
            noise.adjacency,
            noise.covers,
        )
        return OpenModel(message, torch.cat(noisy, dim=1), has_splits, none, spend)

    def _embed(self, model: FittedParty) -> Tensor:
        """Return a model's embeddings of all rows of the table, one row for each."""
        cells, _ = model.encoding.apply(self._frame)
        x = torch.as_tensor(cells, dtype=model.net.input_weights.dtype)
        starts = range(0, len(x), ROWS_AT_ONCE)
        with torch.no_grad():
            parts = [model.net(x[start : start + ROWS_AT_ONCE]) for start in starts]
        return torch.cat(parts)
