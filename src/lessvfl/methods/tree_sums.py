"""How gradients go down and sums by bin come up: both sides."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from lessvfl.core import sharing
from lessvfl.core.protocol import QueryArrays, expect
from lessvfl.core.sharing import KEY_BYTES, SEED_BYTES, KeyPair, Ring
from lessvfl.core.trees import shared
from lessvfl.core.trees.columns import ColumnHolder
from lessvfl.core.trees.holders import BinLayout, NodeRows, Truths
from lessvfl.core.trees.sums import FixedPoint, Sums, pack, unpack
from lessvfl.errors import ProtocolError
from lessvfl.methods.counting import check_dealers
from lessvfl.terms import PartyId
from lessvfl.wire.messages import ArrayFormat

EXACT = 32  # bits of sums that are not rounded
MOST_EXACT = 1 << 31  # of a whole number in 32 bits

T = TypeVar("T")
UsedColumns = Sequence[tuple[BinLayout, Truths]]  # of every party, and which are in use
PartyAnswers = Sequence[tuple[Tensor, ...]]  # of every party
PartyFormats = list[list[ArrayFormat]]


class ClearSums:
    """The label holder's side of gradients as they are; sums exact, or in fewer bits.

    It has the columns of all parties: lists here have one entry a party.
    """

    goes_on = True  # after a break, with the trees that have grown

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def begin(
        self, values: FixedPoint, columns: UsedColumns, step: int
    ) -> list[tuple[list[Truths], Tensor]]:
        """Return what each party is sent of new gradients: no flags, and the values."""
        self._used = [layout.only(used) for layout, used in columns]
        self._dtype, self._n_sums = sums_format(values), values.n_gradients + 2
        return [([], write_values(values))] * len(columns)

    def formats(self, n_nodes: int) -> PartyFormats:
        """Return the format of sums of nodes, and of their units if these are rounded.

        Sums are (Q + 2, nodes, bins in use).
        """
        shape = (self._n_sums, n_nodes)
        if self.bits == EXACT:
            return [[(self._dtype, (*shape, used.n_bins))] for used in self._used]
        dtype = torch.uint8 if self.bits == 8 else torch.uint16
        return [
            [(dtype, (*shape, used.n_bins)), (torch.uint8, (*shape, used.n_columns))]
            for used in self._used
        ]

    def read(self, answers: PartyAnswers, nodes: Sequence[NodeRows]) -> list[Sums]:
        """Return each party's sums by node and bin, (Q + 2, nodes, bins in use)."""
        if self.bits == EXACT:
            return [sums.double().numpy() for (sums,) in answers]
        both = zip(answers, self._used, strict=True)
        return [unpacked(levels, of, layout) for (levels, of), layout in both]


class SharedSums:
    """The label holder's side of gradients and sums under additive sharing.

    Every party has a dealer, the next party, that deals masks for it. Lists here have
    one entry a party.
    """

    goes_on = False  # no mask is written anywhere

    def __init__(self, names: Sequence[PartyId], bits: int, n_rows: int) -> None:
        check_dealers(names, "sharing")
        self.names, self.n_rows = names, n_rows
        self.ring = Ring.for_sums(bits, n_rows)

    def deals(
        self, layouts: Sequence[BinLayout], keys: Sequence[Tensor]
    ) -> tuple[list[tuple[int, Tensor]], PartyFormats]:
        """Return what each party must know to deal masks, and the format of its answer.

        `keys` are the parties' public keys. A party is sent the number of bins of the
        party that it deals for, and two keys: that party's, and its own dealer's.
        """
        ring, n_rows = self.ring, self.n_rows
        widths = [layout.n_bins - layout.n_columns for layout in layouts]
        most = shared.most_bins(ring, n_rows)
        for name, width in zip(self.names, widths, strict=True):
            if width > most or n_rows > shared.MOST_ROWS:
                raise ProtocolError(
                    f"Party '{name}' must have at most {most:,} bins in all, copies "
                    f"included, and {shared.MOST_ROWS:,} rows under sharing. Got "
                    f"{width:,} bins of {n_rows:,} rows: fewer 'bins' or 'copies' make "
                    "fewer."
                )
        sharing.check_keys(dict(zip(self.names, keys, strict=True)))
        clients = zip(_clients(widths), _clients(keys), _dealers(keys), strict=True)
        sent = [
            (width, torch.cat([client, dealer])) for width, client, dealer in clients
        ]
        seed = (torch.uint8, (SEED_BYTES,))
        return sent, [[seed, (ring.dtype, (n_rows, width))] for width in widths]

    def dealt(self, answers: PartyAnswers) -> None:
        """Take what parties answer to `deals`: seeds of masks, and masked bins."""
        self._seeds = _dealers([sharing.to_bytes(seed) for seed, _ in answers])
        self._tables = [table for _, table in answers]

    def begin(
        self, values: FixedPoint, columns: UsedColumns, step: int
    ) -> list[tuple[list[Truths], Tensor]]:
        """Return what each party is sent of new gradients: the values less a mask.

        And, as flags, which bins of the party that it deals for are in use.
        """
        ring, both = self.ring, both_of(values)
        whole = torch.from_numpy(both.astype(np.int64)).to(ring.dtype)
        self._values, self._n_values = values, whole.shape[1]
        self._masks = [
            ring.draw_packed(seed, f"gradients {step}", *whole.shape)
            for seed in self._seeds
        ]
        self._used = [layout.only(used) for layout, used in columns]
        self._bins = [np.repeat(used, layout.sizes - 1) for layout, used in columns]
        return [
            ([bins], whole - mask)
            for bins, mask in zip(_clients(self._bins), self._masks, strict=True)
        ]

    def formats(self, n_nodes: int) -> PartyFormats:
        """Return the formats of masked sums, rows by bin, and masked sums of masks."""
        widths = [int(bins.sum()) for bins in self._bins]
        shape, dtype = (self._n_values, n_nodes), self.ring.dtype
        return [
            [
                (dtype, (*shape, width)),
                (torch.int32, (n_nodes, width)),
                (dtype, (*shape, client)),
            ]
            for width, client in zip(widths, _clients(widths), strict=True)
        ]

    def read(self, answers: PartyAnswers, nodes: Sequence[NodeRows]) -> list[Sums]:
        """Return each party's sums by node and bin, (Q + 2, nodes, bins in use).

        They add up what the party and its dealer say, and what the label holder has.
        """
        totals = [self._values.total(node.tree, node.rows) for node in nodes]
        dealt = _dealers([answer[2] for answer in answers])
        by_party = []
        for place, (masked, rows, _) in enumerate(answers):
            unmasked = shared.times(self._tables[place], self._masks[place], nodes)
            bins = torch.from_numpy(np.flatnonzero(self._bins[place]))
            sums = masked + dealt[place] + unmasked.index_select(2, bins)
            every = torch.cat([sums.double(), rows.double().unsqueeze(0)]).numpy()
            layout = self._used[place]
            by_party.append(shared.with_last(every, np.stack(totals, axis=1), layout))
        return by_party


SumsWay = ClearSums | SharedSums  # how gradients and sums travel


def _dealers(by_party: Sequence[T]) -> list[T]:
    """Return for every party what its dealer has, the next one."""
    return [*by_party[1:], by_party[0]]


def _clients(by_party: Sequence[T]) -> list[T]:
    """Return for every party what the one has for which it deals."""
    return [by_party[-1], *by_party[:-1]]


class ClearAnswers:
    """A party's side of gradients as they are; sums exact, or in fewer bits."""

    n_flags: Sequence[int] = ()  # that come with gradients, beside rows and columns

    def __init__(self, holder: ColumnHolder, bits: int) -> None:
        self.holder, self.bits = holder, bits

    def begin(
        self, step: int, values: Tensor, used: Truths, flags: Sequence[Truths]
    ) -> None:
        """Take gradients and hessians of all rows (K, Q + 1, N), and columns in use."""
        gradients = read_values(values)
        self._dtype = sums_format(gradients)
        self._used = self.holder.bins.layout.only(used)
        self.holder.begin(gradients, used)

    def sums(self, step: int, nodes: Sequence[NodeRows]) -> tuple[Tensor, ...]:
        """Return the sums of some nodes, with their units if they are rounded."""
        sums = self.holder.histograms(nodes)
        if self.bits == EXACT:
            return (torch.from_numpy(sums).to(self._dtype),)
        return packed(sums, self.bits, self._used)


class SharedAnswers:
    """A party's side of gradients and sums under additive sharing.

    It also deals masks for another party.
    """

    def __init__(self, holder: ColumnHolder, bits: int) -> None:
        self.holder, self._n_rows = holder, holder.codes.shape[1]
        self._ring = Ring.for_sums(bits, self._n_rows)
        self._key = KeyPair()
        self._table: Tensor | None = None  # A of the party that it deals for

    @property
    def public_key(self) -> Tensor:
        """Return the key by which others agree on masks with this party."""
        return sharing.from_bytes(self._key.public)

    def mask(self, numbers: list[int], arrays: QueryArrays) -> tuple[Tensor, ...]:
        """Agree on masks with two parties; return a seed and the bins, masked.

        Of the seed masks of gradients are drawn. `numbers` has how many bins the party
        has that this one deals for; `arrays` two keys: that party's, and its dealer's.
        """
        expect(arrays, (2 * KEY_BYTES,))
        (n_bins,) = numbers
        ring, n_rows, layout = self._ring, self._n_rows, self.holder.bins.layout
        width = layout.n_bins - layout.n_columns
        most = shared.most_bins(ring, n_rows)
        if not (0 <= n_bins <= most and width <= most):
            raise ValueError(f"{n_bins} and {width} bins of 0 to {most}")
        keys, public = sharing.to_bytes(arrays[0]), self._key.public
        client, dealer = keys[:KEY_BYTES], keys[KEY_BYTES:]
        if public in (client, dealer):
            raise ValueError("its own key in the place of another's")
        self._seed = self._key.secret(dealer, public, dealer)
        self._client_seed = self._key.secret(client, client, public)
        self._values_seed = secrets.token_bytes(SEED_BYTES)
        self._table = ring.draw_packed(self._client_seed, "bins", n_rows, n_bins)
        mask = ring.draw_packed(self._seed, "bins", n_rows, width)
        table = shared.masked_table(mask, self.holder.codes, layout)
        return sharing.from_bytes(self._values_seed), table

    @property
    def n_flags(self) -> Sequence[int]:
        """Return how many bins the party has that it deals for."""
        return (self._dealt.shape[1],)

    @property
    def _dealt(self) -> Tensor:
        if self._table is None:
            raise ValueError("gradients before keys")
        return self._table

    def begin(
        self, step: int, values: Tensor, used: Truths, flags: Sequence[Truths]
    ) -> None:
        """Take gradients less their mask, and the bins in use of whom it deals for."""
        ring = self._ring
        if values.dtype != ring.dtype:
            raise ValueError(f"gradients of {values.dtype} instead of {ring.dtype}")
        self._mask = ring.draw_packed(
            self._values_seed, f"gradients {step}", *values.shape
        )
        (bins,) = flags
        self._client_bins = torch.from_numpy(np.flatnonzero(bins))
        self._bins = shared.free_bins(self.holder.bins.layout.only(used))
        self.holder.begin(shared.in_parts(values), used)

    def sums(self, step: int, nodes: Sequence[NodeRows]) -> tuple[Tensor, ...]:
        """Return shares: this party's masked sums, rows of nodes, the client's part."""
        ring = self._ring
        every = self.holder.histograms(nodes)[:, :, self._bins]
        sums = shared.put_together(every[:-2], ring)
        less = ring.draw_packed(self._seed, f"sums {step}", *sums.shape)
        dealt = shared.times(self._dealt, self._mask, nodes)
        dealt = dealt.index_select(2, self._client_bins)
        more = ring.draw_packed(self._client_seed, f"sums {step}", *dealt.shape)
        rows = torch.from_numpy(every[-1]).int()
        return sums - less, rows, dealt + more


SumsAnswerer = ClearAnswers | SharedAnswers  # how a party takes gradients and answers


def both_of(values: FixedPoint) -> Sums:
    """Return gradients and hessians, (K, Q + 1, N)."""
    return np.concatenate([values.gradient, values.hessian[:, None]], axis=1)


def sums_format(values: FixedPoint) -> torch.dtype:
    """Return the format in which sums of whole numbers are exact."""
    n_rows = values.hessian.shape[1]
    return torch.int32 if values.largest * n_rows < MOST_EXACT else torch.int64


def write_values(values: FixedPoint) -> Tensor:
    """Return gradients and hessians, (K, Q + 1, N); short ones from 0 on."""
    both = both_of(values)
    largest = np.abs(both).max(initial=0)
    for short in (np.uint8, np.uint16):
        middle = np.iinfo(short).max // 2 + 1
        if largest < middle:
            return torch.from_numpy((both + middle).astype(short))
    return torch.from_numpy(both.astype(np.int32))


def read_values(sent: Tensor) -> FixedPoint:
    """Return what :func:`write_values` wrote, without units."""
    both = sent.numpy()
    if both.dtype.kind == "u":
        both = both.astype(np.float64) - (np.iinfo(both.dtype).max // 2 + 1)
    ones, both = np.ones(len(both)), both.astype(np.float64)
    return FixedPoint(both[:, :-1], both[:, -1], ones, ones)


def packed(sums: Sums, bits: int, layout: BinLayout) -> tuple[Tensor, Tensor]:
    """Return sums in 8 or 16 bits, from 0 on, and the powers of two of their units."""
    levels, units = pack(sums, bits, layout.sizes)
    above_0 = levels.astype(np.int64) + (1 << (bits - 1))
    powers = np.log2(units).astype(np.uint8)
    dtype = np.dtype(f"uint{bits}")
    return torch.from_numpy(above_0.astype(dtype)), torch.from_numpy(powers)


def unpacked(levels: Tensor, powers: Tensor, layout: BinLayout) -> Sums:
    """Return the sums that :func:`packed` wrote."""
    above_0 = levels.numpy()
    middle = np.iinfo(above_0.dtype).max // 2 + 1
    units = np.exp2(powers.numpy().astype(np.float64))
    return unpack(above_0.astype(np.int64) - middle, units, layout.sizes)
