"""Trees that lie wholly at one party, whose network says how they vote.

A party's embedding of a row is what its own trees say, summed up: shares of classes, or
amounts. The server adds up the votes of all parties, so that without a party those of
the others are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from lessvfl.core import sharing
from lessvfl.core.trees.networks import (
    GrownNetwork,
    Splits,
    TreeSum,
    finished,
    is_mean_of,
)
from lessvfl.terms import Task

TREES = "trees."  # before the names of what a party's trees are, in its state


@dataclass(frozen=True, eq=False)
class Votes(GrownNetwork):
    """A party's splits and the trees that they make, as a network of its columns."""

    splits: Splits
    trees: TreeSum  # of no other party's splits

    @property
    def input_weights(self) -> Tensor:
        """Return what splits gained, (1, columns)."""
        return self.splits.weights

    @property
    def n_outputs(self) -> int:
        """Return the number of votes for a row."""
        return self.trees.n_outputs

    def __call__(self, x: Tensor) -> Tensor:
        """Map encoded rows (n, columns) to votes (n, K), as they are counted."""
        votes = self.trees.summed(self.splits(x))
        return sharing.rounded(votes).to(self.input_weights.dtype)

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> Votes:
        """Cut encoded columns (columns,) that no split needs."""
        return replace(self, splits=self.splits.narrow(slots))

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors."""
        trees = {f"{TREES}{name}": part for name, part in self.trees.state().items()}
        return {**self.splits.state(), **trees}

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> Votes:
        """Return the trees that :meth:`state` gave; ValueError if they do not fit."""
        trees = {
            name.removeprefix(TREES): part
            for name, part in state.items()
            if name.startswith(TREES)
        }
        rest = {name: state[name] for name in state if not name.startswith(TREES)}
        votes = cls(Splits.of_state(rest), TreeSum.of_state(trees))
        if votes.trees.weights.shape[1] != votes.splits.n_outputs:
            raise ValueError("arrays of trees that do not fit together")
        return votes


def is_grown(state: Mapping[str, Tensor]) -> bool:
    """Tell whether a party's network is of trees, by its state."""
    return "sources" in state


def party_net_of(state: Mapping[str, Tensor]) -> Splits | Votes:
    """Return the trees of a party, whichever they are."""
    has_trees = any(name.startswith(TREES) for name in state)
    return Votes.of_state(state) if has_trees else Splits.of_state(state)


@dataclass(frozen=True, eq=False)
class VoteSum(GrownNetwork):
    """The server's side: votes of all parties, added up."""

    counts: Tensor  # (parties,), trees of each
    splits: Tensor  # (parties,), splits of these
    shares: Tensor  # (), as of a TreeSum
    weights: Tensor  # (1, parties x K), all 1: all votes count alike

    @classmethod
    def of(
        cls, sizes: Sequence[tuple[int, int]], task: Task, n_outputs: int, like: Tensor
    ) -> VoteSum:
        """Return the sum of votes for a task, by parties with so many trees, splits."""
        device = like.device
        counts, splits = torch.tensor(sizes, dtype=torch.long, device=device).T
        shares = torch.tensor(is_mean_of(task), device=device)
        return cls(counts, splits, shares, like.new_ones(1, len(sizes) * n_outputs))

    @property
    def n_outputs(self) -> int:
        """Return the number of raw predictions of a row."""
        return self.weights.shape[1] // max(1, len(self.counts))

    def __call__(self, x: Tensor) -> Tensor:
        """Map votes (n, parties x K) to raw predictions (n, K)."""
        votes = x.double().view(len(x), len(self.counts), -1)
        return self.counted(votes.sum(dim=1), range(len(self.counts)))

    def counted(self, votes: Tensor, present: Sequence[int]) -> Tensor:
        """Map votes (n, K) of the parties at some places to raw predictions (n, K)."""
        n_trees = int(self.counts[list(present)].sum())
        return finished(votes, n_trees, int(self.shares)).to(self.weights)

    def astype(self, dtype: torch.dtype) -> VoteSum:
        """Return the same, its answers in another number format."""
        return replace(self, weights=self.weights.to(dtype))

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> VoteSum:
        """Return the sum that :meth:`state` gave; ValueError if arrays do not fit."""
        n_parties, votes = len(state["counts"]), cls(**state)
        fits = n_parties == len(votes.splits) > 0
        fits = fits and votes.weights.shape[1] % n_parties == 0
        if not fits or bool((votes.counts < 0).any() | (votes.splits < 0).any()):
            raise ValueError("arrays of trees that do not fit together")
        return votes
