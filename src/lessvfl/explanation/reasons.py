"""What a prediction is explained by: contributions of parties and their features.

``base`` and the contributions of all parties make up the explained output of a row, and
those of a party's features make up the party's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.terms import PartyId

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
        columns: dict[str, list[Any]] = {}
        if self.explains:
            columns["explains"] = list(self.explains)
        columns["base"] = self.base.tolist()
        for party, values in self.parties.items():
            columns[f"contribution_{party}"] = values.tolist()
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
            columns[f"reason_{place + 1}"] = texts
            columns[f"reason_{place + 1}_contribution"] = shares
        return columns

    def _candidates(self) -> tuple[list[str], NDArray[np.float64]]:
        """Return all reasons in words, and what they add to each row, (n, reasons)."""
        words, parts = [], []
        for party, values in self.parties.items():
            shares = self.features.get(party)
            if shares is None:
                words.append(f"{party}: {UNNAMED}")
                parts.append(values[:, None])
            else:
                words += [shares.texts.get(n) or f"{party}: {n}" for n in shares.names]
                parts.append(shares.values)
        return words, np.concatenate(parts, axis=1)
