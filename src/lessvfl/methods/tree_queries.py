"""The messages in which trees are grown, as the label holder sends them."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.trees.columns import MOST_BINS
from lessvfl.core.trees.ensemble import TreeEnsemble
from lessvfl.core.trees.holders import BinLayout, Cut, NodeRows, Truths
from lessvfl.core.trees.sums import FixedPoint, Sums
from lessvfl.errors import ProtocolError
from lessvfl.methods.tree_sums import MaskKeys, PartyFormats, SumsWay
from lessvfl.terms import PartyId, Stage
from lessvfl.wire.messages import ArrayFormat
from lessvfl.wire.parties import Parties

STAGE: Stage = "train"
MOST_COLUMNS = 1 << 20  # of a party


class QueryParts(NamedTuple):
    """What a query sends beside its kind."""

    numbers: Sequence[int] = ()
    flags: Sequence[Truths] | None = None
    values: Tensor | None = None


class Phase(enum.IntEnum):
    """Which trees grow: those that select, those that stay, or a particle's."""

    SELECT = 0
    TRAIN = 1
    TRY = 2


class TreeQuery(enum.IntEnum):
    """What a query asks for; its first array says it."""

    START = 0
    LAYOUT = 1
    BEGIN = 2
    SUMS = 3
    SPLIT = 4
    END = 5
    LOSSES = 6
    MASK = 7
    TREES = 8
    VOTES = 9
    DONE = 10


class QueriedHolders:
    """Parties behind messages, as those who grow trees see them."""

    def __init__(self, parties: Parties, sums: SumsWay) -> None:
        self.parties, self.names = parties, parties.active()
        self.n_asked = 0  # queries that every party has answered
        self.sums = sums
        self.layouts: list[BinLayout] = []
        self._is_new = False  # trees of which parties do not know yet
        self._cuts: list[tuple[Cut, Truths]] = []  # that parties do not know of yet

    def start(self, phase: Phase) -> None:
        """Begin a phase: learn how many bins the columns of every party have."""
        n_parties = len(self.names)
        one = [[(torch.int32, (1,))]] * n_parties
        first = self._ask(TreeQuery.START, [QueryParts([phase])] * n_parties, one)
        widths = [int(width) for (width,) in first]
        for name, width in zip(self.names, widths, strict=True):
            _check_columns(name, width)
        more = self.sums.beside_layout
        formats = [
            [(torch.int32, (width,)), (torch.uint8, (width,)), *more]
            for width in widths
        ]
        told = self._ask(TreeQuery.LAYOUT, [QueryParts()] * n_parties, formats)
        both = zip(self.names, told, strict=True)
        self.layouts = [_layout(name, *own[:2]) for name, own in both]
        self.sums.start(self.layouts, [own[2:] for own in told], self._ask_masks)

    def _ask_masks(
        self, masks: Sequence[MaskKeys], formats: PartyFormats
    ) -> list[tuple[Tensor, ...]]:
        own = [QueryParts([mask.n_bins], None, mask.keys) for mask in masks]
        return self._ask(TreeQuery.MASK, own, formats)

    def begin(self, values: FixedPoint, used: Sequence[Truths]) -> None:
        """Remember what trees are grown on; it travels with what is asked first."""
        self._values, self._used = values, used
        self._is_new, self._cuts = True, []

    def histograms(self, nodes: Sequence[NodeRows]) -> list[Sums]:
        """TreeQuery every party for its sums, (Q + 2, nodes, bins in use)."""
        asked = [number for node in nodes for number in (node.tree, node.node)]
        own: list[QueryParts]
        if self._is_new:
            kind, inside = TreeQuery.BEGIN, _inside(self._values, nodes)
            columns = list(zip(self.layouts, self._used, strict=True))
            sent = self.sums.begin(self._values, columns, self.n_asked)
            own = [
                QueryParts(asked, [*inside, used, *flags], values)
                for used, (flags, values) in zip(self._used, sent, strict=True)
            ]
        else:
            kind = TreeQuery.SUMS
            cuts = [i for c, _ in self._cuts for i in (c.tree, c.node, *c.children)]
            left = [np.concatenate([flags for _, flags in self._cuts])]
            both = [len(self._cuts), *cuts, *asked]
            own = [QueryParts(both, left)] * len(self._used)
        self._is_new, self._cuts = False, []
        answers = self._ask(kind, own, self.sums.formats(len(nodes)))
        return self.sums.read(answers, nodes)

    def split(self, cuts: Sequence[Cut]) -> list[Truths]:
        """TreeQuery the owner of every cut which rows go left."""
        owners = range(len(self.layouts))
        by_owner = [[cut for cut in cuts if cut.owner == m] for m in owners]
        own: list[QueryParts] = []
        formats = []
        for some in by_owner:
            table = [i for c in some for i in (c.tree, c.node, c.rule, c.column)]
            own.append(QueryParts(table, [cut.left for cut in some]))
            n_rows = sum(len(cut.rows) for cut in some)
            formats.append([(torch.uint8, (-(-n_rows // 8),))])
        found: dict[int, Truths] = {}
        answers = self._ask(TreeQuery.SPLIT, own, formats)
        for some, (packed,) in zip(by_owner, answers, strict=True):
            flags = read_flags(packed, [len(cut.rows) for cut in some])
            found |= {id(cut): own for cut, own in zip(some, flags, strict=True)}
        answered = [found[id(cut)] for cut in cuts]
        self._cuts += zip(cuts, answered, strict=True)
        return answered

    def keep(self, rules: Sequence[Sequence[int]]) -> None:
        """Remember which rules stay; the end of a phase tells parties."""
        self.rules = [list(own) for own in rules]

    def tell(self, losses: Sequence[float]) -> None:
        """Tell every party the losses of all particles."""
        values = torch.tensor(losses, dtype=torch.float64)
        own = [QueryParts(values=values)] * len(self.layouts)
        self._ask(TreeQuery.LOSSES, own, [[]] * len(own))

    def end(self, trees: TreeEnsemble, is_last: bool) -> None:
        """Tell every party which of its splits stay, and what they gained.

        Under sharing, how many rows each of them parted, which the party knows: by what
        they gained, whose rows it knows, it would work all labels out, also where
        gains are rounded to a power of two.
        """
        gains: list[dict[int, float]] = [{} for _ in self.rules]
        for tree in (tree for some in trees.trees for tree in some):
            gain = tree.n_rows if self.sums.hides else tree.gain
            for node in np.flatnonzero(tree.owner >= 0):
                gains[tree.owner[node]][int(tree.rule[node])] = float(gain[node])
        own: list[QueryParts] = [
            QueryParts(rules, [], torch.tensor([of[r] for r in rules]).double())
            for rules, of in zip(self.rules, gains, strict=True)
        ]
        if not is_last:
            self._ask(TreeQuery.END, own, [[]] * len(own))
            return
        names = self.names
        both = zip(names, self.rules, strict=True)
        self.parties.resize({name: max(1, len(rules)) for name, rules in both})
        arrays = [_arrays(TreeQuery.END, sent) for sent in own]
        last = dict(zip(names, arrays, strict=True))
        self.parties.query_last(STAGE, self.n_asked, last)

    def places(self) -> tuple[list[dict[int, int]], int]:
        """Return where rules are among all components, and how many of these are."""
        found, n_before = {}, 0
        rules = dict(zip(self.names, self.rules, strict=True))
        for name in self.parties.names:
            own = rules.get(name, ())
            found[name] = {rule: n_before + i for i, rule in enumerate(own)}
            n_before += self.parties.sizes[name]
        return [found[name] for name in self.names], n_before

    def _ask(
        self,
        kind: TreeQuery,
        own: Sequence[QueryParts],
        formats: Sequence[Sequence[ArrayFormat]],
    ) -> list[tuple[Tensor, ...]]:
        names = self.names
        once = {id(some): some for some in own}  # what all are sent is written once
        arrays = {key: _arrays(kind, some) for key, some in once.items()}
        sent = {name: arrays[id(some)] for name, some in zip(names, own, strict=True)}
        expects = dict(zip(names, formats, strict=True))
        answers = self._exchange(sent, expects)
        self.n_asked += 1
        return [answers[name] for name in names]

    def _exchange(
        self,
        sent: Mapping[PartyId, Sequence[Tensor]],
        expects: Mapping[PartyId, Sequence[ArrayFormat]],
    ) -> Mapping[PartyId, tuple[Tensor, ...]]:
        return self.parties.query(STAGE, self.n_asked, sent, expects)


def _check_columns(name: PartyId, n_columns: int) -> None:
    """Refuse a number of columns that nobody has."""
    if not 0 <= n_columns <= MOST_COLUMNS:
        raise ProtocolError(
            f"Party '{name}' must have 0 to {MOST_COLUMNS:,} columns, copies included. "
            f"Got {n_columns:,}."
        )


def _layout(name: PartyId, sizes: Tensor, flags: Tensor) -> BinLayout:
    """Return what a party told of its columns, if columns can be so."""
    n_bins, kinds = sizes.long().numpy(), flags.numpy()
    least, most = n_bins.min(initial=1), n_bins.max(initial=1)
    if least < 1 or most > MOST_BINS + 1:
        raise ProtocolError(
            f"Party '{name}' must have 1 to {MOST_BINS + 1} bins in each column. "
            f"Got {least} to {most}."
        )
    return BinLayout(n_bins, kinds % 2 > 0, kinds > 1)


def _arrays(kind: TreeQuery, sent: QueryParts) -> tuple[Tensor, ...]:
    """Return a query as arrays: whole numbers, flags in bits, and values if any."""
    found = [torch.tensor([kind, *sent.numbers], dtype=torch.int32)]
    if sent.flags is not None:
        found.append(write_flags(sent.flags))
    if sent.values is not None:
        found.append(sent.values)
    return tuple(found)


def write_flags(flags: Sequence[Truths]) -> Tensor:
    """Return flags one after the other as bits, (bytes,)."""
    every = np.concatenate([np.zeros(0, dtype=np.bool_), *flags])
    return torch.from_numpy(np.packbits(every))


def read_flags(packed: Tensor, sizes: Sequence[int]) -> list[Truths]:
    """Return flags of these sizes, as :func:`write_flags` wrote them."""
    bits, n = packed.numpy(), sum(sizes)
    if bits.dtype != np.uint8 or len(bits) != -(-n // 8):
        raise ValueError(f"{len(bits)} bytes of {n} flags")
    every = np.unpackbits(bits, count=n).view(np.bool_)
    ends = itertools.accumulate(sizes)
    return [every[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _inside(values: FixedPoint, nodes: Sequence[NodeRows]) -> list[Truths]:
    """Return which rows are grown on, by tree."""
    inside = np.zeros(values.hessian.shape, dtype=np.bool_)
    for node in nodes:
        inside[node.tree, node.rows] = True
    return list(inside)
