"""A party's side of a forest whose trees lie at one party each: its trees and votes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.protocol import Holder, QueryArrays, Selected, ShownScores, expect
from lessvfl.core.trees.columns import ColumnHolder
from lessvfl.core.trees.holders import Truths
from lessvfl.core.trees.networks import Splits, TreeSum
from lessvfl.core.trees.sums import check_size
from lessvfl.core.trees.votes import Votes
from lessvfl.core.votes import VoteStep, VotingParty
from lessvfl.methods.tree_party import ColumnPlaces, GrowingParty, TreeAnswer
from lessvfl.methods.tree_queries import Phase, TreeQuery
from lessvfl.methods.trees import GrowthConfig

MEAN = 1.0  # of what a column gained, as parties are told


class VprfParty(GrowingParty):
    """A party with trees of its own, and their votes."""

    def __init__(self, config: GrowthConfig, holder: Holder) -> None:
        super().__init__(config, holder)
        self._answers[TreeQuery.TREES] = self._take_trees
        self._answers[TreeQuery.VOTES] = self._vote
        self._answers[TreeQuery.DONE] = self._done
        self._selected: Selected | None = None
        self._votes: Votes | None = None
        self._voting: VotingParty | None = None

    def _enter(self, phase: Phase) -> tuple[ColumnPlaces, ColumnHolder]:
        if phase is Phase.TRY:
            raise ValueError("a phase that the method does not have")
        columns = np.flatnonzero(self._kept[self._cells.groups])
        return columns, self._binned(columns, self._table[:, columns])

    def _chosen(self, gained: NDArray[np.float64]) -> Truths:
        """Return the features that gained more than a column does in the mean."""
        by_group = np.zeros(len(self._kept))
        np.add.at(by_group, self._cells.groups[self._columns], gained)
        return by_group > MEAN

    def _end(self, rules: list[int], arrays: QueryArrays) -> TreeAnswer:
        answer = super()._end(rules, arrays)
        self._selected = answer if isinstance(answer, Selected) else None
        return ()

    def _take_trees(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Put the splits and what leaves say together."""
        expect(arrays, (-1, -1))
        if self._selected is None or not isinstance(self._selected.net, Splits):
            raise ValueError("trees before their end")
        splits, values = self._selected.net, arrays[0].double()
        shares, n_trees, *rest = numbers
        if n_trees < 0 or len(rest) != n_trees + 3 * len(values):
            raise ValueError(f"{len(rest)} numbers of {len(values)} nodes")
        n_nodes, n_votes = values.shape
        most = self.config.trees * (2 * self.config.leaves - 1)
        if n_trees > self.config.trees or n_nodes > most:
            raise ValueError(f"{n_trees} trees of {n_nodes} nodes")
        check_size(n_votes, 1, max(map(len, (self.inputs.X, self._tests))))
        table = torch.tensor(rest[n_trees:]).view(-1, 3)
        state = {
            "children": table[:, :2],
            "components": table[:, 2],
            "values": values,
            "roots": torch.tensor(rest[:n_trees], dtype=torch.long),
            "start": values.new_zeros(values.shape[1]),
            "shares": torch.tensor(shares),
            "weights": values.new_zeros(1, splits.n_outputs),
        }
        self._votes = Votes(splits, TreeSum.of_state(state))
        return ()

    def _vote(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Take a step of the count of votes for test rows."""
        (step,) = numbers
        if step == VoteStep.KEYS and self._votes is not None and self._voting is None:
            self._voting = VotingParty(self._votes(self._tests))
        if self._voting is None:
            raise ValueError("a step of a count that has not begun")
        answer = self._voting.answer(step, arrays)
        if step != VoteStep.VOTE:
            return answer
        return ShownScores(answer, answer[0].shape[1])

    @property
    def _tests(self) -> Tensor:
        """Return the rows that are voted on, (n, columns)."""
        assert self.inputs.test is not None
        return self.inputs.test

    def _done(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        expect(arrays)
        if self._selected is None or self._votes is None:
            raise ValueError("an end before there are trees")
        return replace(self._selected, net=self._votes)
