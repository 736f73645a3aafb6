"""Predictions with hidden paths, all sides in one process (``core/hidden_paths``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lessvfl.core.hidden_paths import (
    AnswerFormats,
    HiddenPaths,
    PathParty,
    PathStep,
)
from lessvfl.core.protocol import QueryArrays
from lessvfl.core.trees.networks import HALF
from lessvfl.terms import PartyId


@dataclass
class LocalParties:
    """Parties of this process that predict together, and the bytes that they sent."""

    says: Mapping[PartyId, Tensor]  # (n, components), what splits say of every row
    n_bytes: int = 0
    n_rounds: int = 0
    _batch: dict[PartyId, PathParty] = field(default_factory=dict)

    def predict(self, paths: HiddenPaths, n_rows: int) -> Tensor:
        """Return raw predictions of all rows, (n, K), batch by batch."""
        parts, size = [], paths.rows_at_once
        for start in range(0, n_rows, size):
            n_now = min(size, n_rows - start)
            self._batch = {
                name: PathParty(name, (rows[start : start + n_now].T > HALF).numpy())
                for name, rows in self.says.items()
                if name in paths.splits
            }
            parts.append(paths.predict(n_now, self._take))
        return torch.cat(parts) if parts else torch.zeros(0, paths.order.n_outputs)

    def _take(
        self,
        step: PathStep,
        arrays: Mapping[PartyId, QueryArrays],
        expects: Mapping[PartyId, AnswerFormats],
    ) -> Mapping[PartyId, QueryArrays]:
        answers = {m: self._batch[m].answer(step, sent) for m, sent in arrays.items()}
        both = [*arrays.values(), *answers.values()]
        self.n_bytes += sum(array.nbytes for message in both for array in message)
        self.n_rounds += 1
        return answers
