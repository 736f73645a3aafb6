"""How gradients go down and sums by bin come up: the label holder's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from lessvfl.core import sharing
from lessvfl.core.sharing import KEY_BYTES, SEED_BYTES, Ring
from lessvfl.core.trees import shared
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


class MaskKeys(NamedTuple):
    """What a party is sent before gradients under sharing."""

    n_bins: int  # of the party that it deals for
    keys: Tensor  # (2 x bytes,), of that party, and of its own dealer


class SumsWay(Protocol):
    """How gradients and sums travel."""

    beside_layout: Sequence[ArrayFormat]  # what a party tells with it
    goes_on: bool  # after a break, with the trees that have grown
    hides: bool  # labels from parties

    def start(
        self,
        layouts: Sequence[BinLayout],
        told: PartyAnswers,
        ask: Callable[[Sequence[MaskKeys], PartyFormats], PartyAnswers],
    ) -> None:
        """Begin a phase, where parties have told what is beside their layouts."""

    def begin(
        self, values: FixedPoint, columns: UsedColumns, step: int
    ) -> list[tuple[list[Truths], Tensor]]:
        """Return what every party is sent of gradients: flags, if any, and values."""

    def formats(self, n_nodes: int) -> PartyFormats:
        """Return what every party answers about so many nodes."""

    def read(self, answers: PartyAnswers, nodes: Sequence[NodeRows]) -> list[Sums]:
        """Return every party's sums, (Q + 2, nodes, bins in use)."""


class ClearSums:
    """Gradients as they are; sums exact, or in fewer bits."""

    beside_layout: Sequence[ArrayFormat] = ()
    goes_on = True
    hides = False

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def start(
        self,
        layouts: Sequence[BinLayout],
        told: PartyAnswers,
        ask: Callable[[Sequence[MaskKeys], PartyFormats], PartyAnswers],
    ) -> None:
        """Begin a phase: there is nothing to agree on."""

    def begin(
        self, values: FixedPoint, columns: UsedColumns, step: int
    ) -> list[tuple[list[Truths], Tensor]]:
        """Return gradients and hessians of all rows."""
        self._used = [layout.only(used) for layout, used in columns]
        self._dtype, self._n_sums = sums_format(values), values.n_gradients + 2
        nothing: list[Truths] = []
        return [(nothing, write_values(values))] * len(columns)

    def formats(self, n_nodes: int) -> PartyFormats:
        """Return the format of sums, and of their units where they are rounded."""
        shape = (self._n_sums, n_nodes)
        if self.bits == EXACT:
            return [[(self._dtype, (*shape, own.n_bins))] for own in self._used]
        dtype = torch.uint8 if self.bits == 8 else torch.uint16
        return [
            [(dtype, (*shape, own.n_bins)), (torch.uint8, (*shape, own.n_columns))]
            for own in self._used
        ]

    def read(self, answers: PartyAnswers, nodes: Sequence[NodeRows]) -> list[Sums]:
        """Return sums as they came, or what their levels stand for."""
        if self.bits == EXACT:
            return [sums.double().numpy() for (sums,) in answers]
        both = zip(answers, self._used, strict=True)
        return [unpacked(levels, of, layout) for (levels, of), layout in both]


class SharedSums:
    """Gradients and sums under sharing; the next party deals masks for each."""

    beside_layout: Sequence[ArrayFormat] = ((torch.uint8, (KEY_BYTES,)),)
    goes_on = False  # no mask is written anywhere
    hides = True

    def __init__(self, names: Sequence[PartyId], bits: int, n_rows: int) -> None:
        check_dealers(names, "sharing")
        self.names, self.n_rows = names, n_rows
        self.ring = Ring.for_sums(bits, n_rows)

    def start(
        self,
        layouts: Sequence[BinLayout],
        told: PartyAnswers,
        ask: Callable[[Sequence[MaskKeys], PartyFormats], PartyAnswers],
    ) -> None:
        """Carry keys between parties and dealers; learn every party's masked bins."""
        ring, n_rows = self.ring, self.n_rows
        widths = [own.n_bins - own.n_columns for own in layouts]
        for name, width in zip(self.names, widths, strict=True):
            _check_width(name, width, shared.most_bins(ring, n_rows), n_rows)
        keys = [key for (key,) in told]
        sharing.check_keys(dict(zip(self.names, keys, strict=True)))
        clients = zip(_clients(widths), _clients(keys), _dealers(keys), strict=True)
        masks = [
            MaskKeys(width, torch.cat([client, dealer]))
            for width, client, dealer in clients
        ]
        seed = (torch.uint8, (SEED_BYTES,))
        answers = ask(
            masks, [[seed, (ring.dtype, (n_rows, width))] for width in widths]
        )
        self._seeds = _dealers([sharing.to_bytes(seed) for seed, _ in answers])
        self._tables = [table for _, table in answers]

    def begin(
        self, values: FixedPoint, columns: UsedColumns, step: int
    ) -> list[tuple[list[Truths], Tensor]]:
        """Return gradients less each party's mask, and what its dealer must know."""
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
        """Return the formats of masked sums, rows, and masked sums of masks."""
        widths = [int(own.sum()) for own in self._bins]
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
        """Add up what a party and its dealer say, and what the label holder has."""
        totals = [self._values.total(node.tree, node.rows) for node in nodes]
        dealt = _dealers([answer[2] for answer in answers])
        found = []
        for place, (masked, rows, _) in enumerate(answers):
            own = shared.times(self._tables[place], self._masks[place], nodes)
            bins = torch.from_numpy(np.flatnonzero(self._bins[place]))
            sums = masked + dealt[place] + own.index_select(2, bins)
            every = torch.cat([sums.double(), rows.double().unsqueeze(0)]).numpy()
            layout = self._used[place]
            found.append(shared.with_last(every, np.stack(totals, axis=1), layout))
        return found


def _dealers(own: Sequence[T]) -> list[T]:
    """Return for every party what its dealer has, the next one."""
    return [*own[1:], own[0]]


def _clients(own: Sequence[T]) -> list[T]:
    """Return for every party what the one has for which it deals."""
    return [own[-1], *own[:-1]]


def _check_width(name: PartyId, width: int, most: int, n_rows: int) -> None:
    """Refuse a party with more bins than anybody can deal masks for."""
    if width > most or n_rows > shared.MOST_ROWS:
        raise ProtocolError(
            f"Party '{name}' must have at most {most:,} bins in all, copies included, "
            f"and {shared.MOST_ROWS:,} rows under sharing. Got {width:,} bins of "
            f"{n_rows:,} rows: fewer 'bins' or 'copies' make fewer."
        )


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
    ones = np.ones(len(both))
    own = both.astype(np.float64)
    return FixedPoint(own[:, :-1], own[:, -1], ones, ones)


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
