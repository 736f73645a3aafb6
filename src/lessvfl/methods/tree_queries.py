"""The messages in which trees are grown, as the label holder sends them."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.protocol import QueryArrays
from lessvfl.core.sharing import KEY_BYTES
from lessvfl.core.trees.columns import MOST_BINS
from lessvfl.core.trees.ensemble import TreeEnsemble
from lessvfl.core.trees.holders import BinLayout, Cut, NodeRows, Truths
from lessvfl.core.trees.sums import FixedPoint, Sums
from lessvfl.errors import ProtocolError
from lessvfl.methods.tree_sums import PartyFormats, SharedSums, SumsWay
from lessvfl.terms import PartyId, Stage
from lessvfl.wire.messages import ArrayFormat
from lessvfl.wire.parties import Parties

STAGE: Stage = "train"
MOST_COLUMNS = 1 << 20  # of a party


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


def query(
    kind: TreeQuery,
    numbers: Sequence[int] = (),
    flags: Sequence[Truths] | None = None,
    values: Tensor | None = None,
) -> QueryArrays:
    """Return a query as arrays: whole numbers, flags in bits and values, if any."""
    arrays = [torch.tensor([kind, *numbers], dtype=torch.int32)]
    if flags is not None:
        arrays.append(write_flags(flags))
    if values is not None:
        arrays.append(values)
    return arrays


class QueriedHolders:
    """Parties behind messages, as those who grow trees see them.

    Lists have one entry for each of `names`, the parties that still have columns.
    """

    def __init__(self, parties: Parties, sums: SumsWay) -> None:
        self.parties, self.names = parties, parties.active()
        self.n_asked = 0  # queries that every party has answered
        self.sums = sums
        self.layouts: list[BinLayout] = []
        self.exchange = parties.query
        self._is_new = False  # trees of which parties do not know yet
        self._cuts: list[tuple[Cut, Truths]] = []  # that parties do not know of yet

    def start(self, phase: Phase) -> None:
        """Begin a phase: learn how many bins the columns of every party have."""
        n_parties, shares = len(self.names), isinstance(self.sums, SharedSums)
        number: list[ArrayFormat] = [(torch.int32, (1,))]
        start = query(TreeQuery.START, [phase])
        widths = []
        answers = self.ask([start] * n_parties, [number] * n_parties)
        for name, (n_columns,) in zip(self.names, answers, strict=True):
            widths.append(int(n_columns))
            if not 0 <= widths[-1] <= MOST_COLUMNS:
                raise ProtocolError(
                    f"Party '{name}' must have 0 to {MOST_COLUMNS:,} columns, copies "
                    f"included. Got {widths[-1]:,}."
                )
        key: list[ArrayFormat] = [(torch.uint8, (KEY_BYTES,))] if shares else []
        layout = query(TreeQuery.LAYOUT)
        answers = self.ask(
            [layout] * n_parties,
            [[(torch.int32, (n,)), (torch.uint8, (n,)), *key] for n in widths],
        )
        self.layouts = [
            _layout(name, answer[0], answer[1])
            for name, answer in zip(self.names, answers, strict=True)
        ]
        if isinstance(self.sums, SharedSums):
            keys = [answer[2] for answer in answers]
            deals, formats = self.sums.deals(self.layouts, keys)
            masks = [query(TreeQuery.MASK, [n], values=keys) for n, keys in deals]
            self.sums.dealt(self.ask(masks, formats))

    def begin(self, values: FixedPoint, used: Sequence[Truths]) -> None:
        """Remember what trees are grown on; it travels with what is asked first."""
        self._values, self._used = values, used
        self._is_new, self._cuts = True, []

    def histograms(self, nodes: Sequence[NodeRows]) -> list[Sums]:
        """Ask every party for its sums, (Q + 2, nodes, bins in use)."""
        asked = [number for node in nodes for number in (node.tree, node.node)]
        if self._is_new:
            inside = np.zeros(self._values.hessian.shape, dtype=np.bool_)  # by tree
            for node in nodes:
                inside[node.tree, node.rows] = True
            columns = list(zip(self.layouts, self._used, strict=True))
            begun = self.sums.begin(self._values, columns, self.n_asked)
            sent = [
                query(TreeQuery.BEGIN, asked, [*inside, used, *flags], values)
                for used, (flags, values) in zip(self._used, begun, strict=True)
            ]
        else:
            cuts = [i for c, _ in self._cuts for i in (c.tree, c.node, *c.children)]
            left = [flags for _, flags in self._cuts]
            numbers = [len(self._cuts), *cuts, *asked]
            sent = [query(TreeQuery.SUMS, numbers, left)] * len(self._used)
        self._is_new, self._cuts = False, []
        answers = self.ask(sent, self.sums.formats(len(nodes)))
        return self.sums.read(answers, nodes)

    def split(self, cuts: Sequence[Cut]) -> list[Truths]:
        """Ask the owner of every cut which rows go left."""
        owners = range(len(self.layouts))
        by_owner = [[cut for cut in cuts if cut.owner == m] for m in owners]
        sent: list[QueryArrays] = []
        formats: PartyFormats = []
        for some in by_owner:
            table = [i for c in some for i in (c.tree, c.node, c.rule, c.column)]
            sent.append(query(TreeQuery.SPLIT, table, [cut.left for cut in some]))
            n_rows = sum(len(cut.rows) for cut in some)
            formats.append([(torch.uint8, (-(-n_rows // 8),))])
        by_cut: dict[int, Truths] = {}
        for some, (packed,) in zip(by_owner, self.ask(sent, formats), strict=True):
            flags = read_flags(packed, [len(cut.rows) for cut in some])
            by_cut |= {id(cut): left for cut, left in zip(some, flags, strict=True)}
        answered = [by_cut[id(cut)] for cut in cuts]
        self._cuts += zip(cuts, answered, strict=True)
        return answered

    def keep(self, rules: Sequence[Sequence[int]]) -> None:
        """Remember which rules stay; the end of a phase tells parties."""
        self.rules = [list(of_party) for of_party in rules]

    def tell(self, losses: Sequence[float]) -> None:
        """Tell every party the losses of all particles."""
        sent = query(TreeQuery.LOSSES, values=torch.tensor(losses, dtype=torch.float64))
        self.ask([sent] * len(self.layouts), [[]] * len(self.layouts))

    def end(self, trees: TreeEnsemble, is_last: bool) -> None:
        """Tell every party which of its splits in `trees` stay, and the gain of each.

        Under sharing a party is told the number of rows of each split instead of the
        gain, from which it could work out all labels. If `is_last`, this is the last
        query: parties select, and each has a component a split from then on.
        """
        hides = isinstance(self.sums, SharedSums)
        gains: list[dict[int, float]] = [{} for _ in self.rules]
        for tree in (tree for some in trees.trees for tree in some):
            gain = tree.n_rows if hides else tree.gain
            for node in np.flatnonzero(tree.owner >= 0):
                gains[tree.owner[node]][int(tree.rule[node])] = float(gain[node])
        sent = [
            query(
                TreeQuery.END, rules, [], torch.tensor([of[r] for r in rules]).double()
            )
            for rules, of in zip(self.rules, gains, strict=True)
        ]
        if not is_last:
            self.ask(sent, [[]] * len(sent))
            return
        by_name = dict(zip(self.names, self.rules, strict=True))
        self.parties.resize({name: max(1, len(r)) for name, r in by_name.items()})
        last = dict(zip(self.names, sent, strict=True))
        self.parties.query_last(STAGE, self.n_asked, last)

    def places(self) -> tuple[list[dict[int, int]], int]:
        """Return where rules are among all components, and how many of these are."""
        places, n_before = {}, 0
        by_name = dict(zip(self.names, self.rules, strict=True))
        for name in self.parties.names:
            rules = by_name.get(name, ())
            places[name] = {rule: n_before + i for i, rule in enumerate(rules)}
            n_before += self.parties.sizes[name]
        return [places[name] for name in self.names], n_before

    def ask(
        self, sent: Sequence[QueryArrays], formats: PartyFormats
    ) -> list[tuple[Tensor, ...]]:
        """Send each party its query; return the answers, in the formats due."""
        arrays = dict(zip(self.names, sent, strict=True))
        expects = dict(zip(self.names, formats, strict=True))
        answers = self.exchange(STAGE, self.n_asked, arrays, expects)
        self.n_asked += 1
        return [answers[name] for name in self.names]


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
