"""A party's side of trees: its columns in bins, sums, splits, and what is kept."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.chance import MOST_PASS
from lessvfl.core.plans import stream
from lessvfl.core.protocol import Holder, QueryArrays, Selected, ShownScores, expect
from lessvfl.core.ratings import rating
from lessvfl.core.trees.cells import CellColumns
from lessvfl.core.trees.columns import ColumnHolder, joined_rules, parted_rules
from lessvfl.core.trees.holders import Cut, NodeRows, Truths
from lessvfl.core.trees.networks import Splits
from lessvfl.core.trees.sums import RowIds
from lessvfl.methods.tree_queries import Phase, TreeQuery, read_flags, write_flags
from lessvfl.methods.tree_sums import (
    EXACT,
    ClearAnswers,
    SharedAnswers,
    SumsAnswerer,
)
from lessvfl.methods.trees import GrowthConfig, TreeConfig

TreeAnswer = tuple[Tensor, ...] | ShownScores | Selected
ColumnPlaces = NDArray[np.int64]
NOTHING = -1  # that is no kind of query


class GrowingParty(abc.ABC):
    """A party while trees grow; methods say which columns, and which are kept."""

    def __init__(self, config: GrowthConfig, holder: Holder) -> None:
        self.inputs, self.config = holder, config
        X, features = holder.X.cpu().numpy(), holder.features
        self._n_rows = len(X)
        in_use = features.column_groups[features.columns]
        self._cells = CellColumns.fit(X, in_use.cpu().numpy())
        self._table = self._cells.cells(X)
        self._kept: Truths = features.groups.cpu().numpy()
        self._must: Truths = features.groups_of(holder.must_keep).cpu().numpy()
        self._phase = Phase.SELECT
        self._holder: ColumnHolder | None = None
        self._rows: dict[tuple[int, int], tuple[RowIds, int]] = {}  # of every node
        self._answers: dict[
            TreeQuery, Callable[[list[int], QueryArrays], TreeAnswer]
        ] = {
            TreeQuery.START: self._start,
            TreeQuery.LAYOUT: self._layout,
            TreeQuery.BEGIN: self._begin,
            TreeQuery.SUMS: self._sum,
            TreeQuery.SPLIT: self._split,
            TreeQuery.END: self._end,
            TreeQuery.MASK: self._mask,
        }

    def answer(self, step: int, arrays: QueryArrays) -> TreeAnswer:
        """Answer one query."""
        expect(arrays[:1], (-1,))
        self._step = step
        kind, *numbers = arrays[0].tolist() or [NOTHING]
        if kind != TreeQuery.START and self._holder is None:
            raise ValueError("a query before the start")
        try:
            return self._answers[TreeQuery(kind)](numbers, arrays[1:])
        except LookupError:
            raise ValueError("nodes, columns or bins that are not there") from None

    def _start(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Put the columns of a phase into bins; say how many they are."""
        expect(arrays)
        (number,) = numbers
        phase = Phase(number)
        if phase is Phase.SELECT and self._holder is not None:
            raise ValueError("a selection that does not come first")
        self._columns, self._holder = self._enter(phase)
        self._phase = phase
        self._rows = {}
        self._sums = self._answerer(self._holder)
        return (torch.tensor([len(self._columns)], dtype=torch.int32),)

    @abc.abstractmethod
    def _enter(self, phase: Phase) -> tuple[ColumnPlaces, ColumnHolder]:
        """Return the columns of a phase, and them in bins."""

    def _binned(
        self, columns: ColumnPlaces, table: NDArray[np.float64]
    ) -> ColumnHolder:
        """Put a table of some columns into bins."""
        has_no_order = np.flatnonzero(self._cells.categorical[columns])
        return ColumnHolder.of(table, self.config.bins, has_no_order.tolist())

    def _answerer(self, holder: ColumnHolder) -> SumsAnswerer:
        """Return how gradients and sums travel: as they are."""
        return ClearAnswers(holder, EXACT)

    @abc.abstractmethod
    def _chosen(self, gained: NDArray[np.float64]) -> Truths:
        """Return the features to keep, by what columns of the first phase gained."""

    @property
    def _at_work(self) -> ColumnHolder:
        assert self._holder is not None
        return self._holder

    def _layout(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Return each column's number of bins, and flags: has gaps, is categorical.

        Under sharing this party's public key, too. The query has no arrays.
        """
        expect(arrays)
        layout, sums = self._at_work.bins.layout, self._sums
        flags = layout.missing + 2 * layout.categorical.astype(np.uint8)
        return (
            torch.from_numpy(layout.sizes).int(),
            torch.from_numpy(flags.astype(np.uint8)),
            *([sums.public_key] if isinstance(sums, SharedAnswers) else []),
        )

    def _mask(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        if not isinstance(self._sums, SharedAnswers):
            raise ValueError("keys where nothing is shared")
        return self._sums.mask(numbers, arrays)

    def _begin(self, nodes: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Begin trees: take flags of rows and columns, and gradients; sum at nodes."""
        expect(arrays, (-1,), (-1, -1, self._n_rows))
        flags, values = arrays
        n_trees, more = len(values), self._sums.n_flags
        sizes = [self._n_rows] * n_trees + [len(self._columns), *more]
        parts = read_flags(flags, sizes)
        inside, used = parts[:n_trees], parts[n_trees]
        self._sums.begin(self._step, values, used, parts[n_trees + 1 :])
        self._rows = {}
        for tree, is_in in enumerate(inside):
            rows = np.concatenate([np.flatnonzero(is_in), np.flatnonzero(~is_in)])
            self._rows[tree, 0] = rows, int(is_in.sum())
        return self._sums_of(nodes)

    def _sum(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Learn which rows went left; return the sums of new nodes."""
        expect(arrays, (-1,))
        if not self._rows:
            raise ValueError("sums before gradients")
        n_cuts, *rest = numbers
        if n_cuts < 0:
            raise ValueError(f"{n_cuts} splits")
        cuts = _in_rows(rest[: 4 * n_cuts], 4)
        sizes = [len(self._rows[tree, node][0]) for tree, node, _, _ in cuts]
        flags = read_flags(arrays[0], sizes)
        for (tree, node, left, right), goes_left in zip(cuts, flags, strict=True):
            if left == right or {(tree, left), (tree, right)} & self._rows.keys():
                raise ValueError("children that are there already")
            rows, n_in = self._rows.pop((tree, node))  # a row is in one node of a tree
            n_left = int(np.count_nonzero(goes_left[:n_in]))
            self._rows[tree, left] = rows.compress(goes_left), n_left
            self._rows[tree, right] = rows.compress(~goes_left), n_in - n_left
        return self._sums_of(rest[4 * n_cuts :])

    def _sums_of(self, nodes: list[int]) -> TreeAnswer:
        asked, places = [], _in_rows(nodes, 2)
        _check_different(places)
        for tree, node in places:
            rows, n_in = self._rows[tree, node]
            asked.append(NodeRows(tree, node, rows[:n_in]))
        return self._sums.sums(self._step, asked)

    def _split(self, numbers: list[int], arrays: QueryArrays) -> TreeAnswer:
        """Remember splits of its own columns; return which rows go left."""
        expect(arrays, (-1,))
        cuts, n_values = _in_rows(numbers, 4), self._at_work.bins.n_values
        if any(min(cut) < 0 for cut in cuts):
            raise ValueError("a split of something below 0")
        _check_different([cut[:2] for cut in cuts])
        bins = read_flags(arrays[0], [int(n_values[cut[3]]) + 1 for cut in cuts])
        rows_left: list[Truths] = []
        for (tree, node, rule, column), left in zip(cuts, bins, strict=True):
            rows, _ = self._rows[tree, node]
            cut = Cut(tree, node, (0, 0), 0, rule, column, left, rows)
            rows_left.append(self._at_work.split(cut))
        return (write_flags(rows_left),)

    def _end(self, rules: list[int], arrays: QueryArrays) -> TreeAnswer:
        """End trees: `rules` number this party's splits that stay, with their gains."""
        expect(arrays, (0,), (len(rules),))
        if self._phase is Phase.TRY:
            raise ValueError("an end of trees that neither select nor stay")
        gains = arrays[1].double().numpy()
        if not (gains > 0).all() or len(set(rules)) < len(rules):
            raise ValueError("splits that gain nothing, or one twice")
        holder = self._at_work
        holder.keep(rules)
        gained = np.zeros(len(self._columns))
        np.add.at(gained, [holder.rules[rule].column for rule in rules], gains)
        if self._phase is Phase.SELECT:
            self._kept = self._chosen(gained) | self._must
            return ()
        return self._grown(rules, gained)

    def _grown(self, rules: list[int], gained: NDArray[np.float64]) -> Selected:
        """Return the splits as a network, and the features that they are of."""
        by_group = np.zeros(len(self._kept))
        np.add.at(by_group, self._cells.groups[self._columns], gained)
        weights = np.zeros(len(self._cells.middles))
        first = self._cells.sources[self._columns, 0]
        weights[first] = gained
        holder, X = self._at_work, self.inputs.X
        splits = Splits(
            self._cells.of_columns(self._columns),
            holder.bins,
            tuple(holder.rules[rule] for rule in rules),
            torch.from_numpy(weights).to(X).unsqueeze(0),
        )
        gains = torch.from_numpy(by_group).to(X.device)
        return Selected(
            gains > 0, rating("gain", gains, self.inputs.features), net=splits
        )


class SavedParty(GrowingParty):
    """A party whose trees go on after a break with those that have grown."""

    def state(self) -> dict[str, Tensor]:
        """Return, between two trees, what changes: phase, features kept, and rules."""
        if self._holder is None:
            return {}
        rules = self._holder.rules
        arrays = {
            "phase": np.array(int(self._phase)),
            "kept": self._kept,
            "rules": np.array(list(rules), dtype=np.int64),
            **joined_rules(list(rules.values())),
        }
        return {name: torch.from_numpy(own) for name, own in arrays.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up what :meth:`state` gave."""
        self._kept = state["kept"].numpy()
        self._start([int(state["phase"])], ())
        own = parted_rules({name: tensor.numpy() for name, tensor in state.items()})
        self._at_work.rules = dict(zip(state["rules"].tolist(), own, strict=True))


class TreeParty(SavedParty):
    """A party that selects by gain against scrambled copies of its columns."""

    config: TreeConfig

    def _enter(self, phase: Phase) -> tuple[ColumnPlaces, ColumnHolder]:
        columns = np.flatnonzero(self._kept[self._cells.groups])
        table = self._table
        if phase is Phase.SELECT:
            copies = map(self._scrambled, range(self.config.copies))
            table = np.concatenate([table, *copies], axis=1)
            columns = np.tile(columns, 1 + self.config.copies)
        elif phase is Phase.TRAIN:
            table = table[:, columns]
        else:
            raise ValueError("a phase that the method does not have")
        return columns, self._binned(columns, table)

    def _answerer(self, holder: ColumnHolder) -> SumsAnswerer:
        if self.config.secret == "sharing":
            return SharedAnswers(holder, self.config.gradient_bits)
        return ClearAnswers(holder, self.config.histogram_bits)

    def _scrambled(self, copy: int) -> NDArray[np.float64]:
        """Return a copy of all columns, the rows of each in an order of their own."""
        table = self._table.copy()
        for column in range(table.shape[1]):
            name = ("scrambled columns", self.inputs.party, copy, column)
            random = stream(self.inputs.private, *name)
            order = torch.randperm(self._n_rows, generator=random)
            table[:, column] = table[order.numpy(), column]
        return table

    def _chosen(self, gained: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the features that gained so much that few copies did."""
        n_groups, config = len(self._kept), self.config
        by_copy = gained.reshape(1 + config.copies, -1)
        sums = np.zeros((len(by_copy), n_groups))
        np.add.at(sums.T, self._cells.groups, by_copy.T)
        of_features, of_copies = sums[0], np.sort(sums[1:], axis=None)
        order = np.argsort(-of_features, kind="stable")
        above = len(of_copies) - np.searchsorted(of_copies, of_features[order])
        n_false = (above + 1) / config.copies
        fits = n_false <= config.false_share * np.arange(1, n_groups + 1)
        fits &= above <= MOST_PASS * len(of_copies)
        fits &= of_features[order] > 0
        kept = np.zeros(n_groups, dtype=np.bool_)
        if fits.any():
            kept[order[: int(np.flatnonzero(fits)[-1]) + 1]] = True
        return kept


def _check_different(nodes: list[list[int]]) -> None:
    """Refuse nodes (tree, node) that are asked about twice."""
    if len(set(map(tuple, nodes))) < len(nodes):
        raise ValueError("one node twice")


def _in_rows(numbers: list[int], width: int) -> list[list[int]]:
    """Return numbers in rows of some width."""
    if len(numbers) % width:
        raise ValueError(f"{len(numbers)} numbers in rows of {width}")
    return [numbers[i : i + width] for i in range(0, len(numbers), width)]
