"""How gradients arrive and sums by bin leave: a party's side."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lessvfl.core import sharing
from lessvfl.core.protocol import QueryArrays, expect
from lessvfl.core.sharing import KEY_BYTES, SEED_BYTES, KeyPair, Ring
from lessvfl.core.trees import shared
from lessvfl.core.trees.columns import ColumnHolder
from lessvfl.core.trees.holders import NodeRows, Truths
from lessvfl.methods.tree_sums import EXACT, packed, read_values, sums_format


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
        self._table = shared.draw_table(ring, self._client_seed, n_rows, n_bins)
        mask = shared.draw_table(ring, self._seed, n_rows, width)
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
        self._mask = shared.draw_values(ring, self._values_seed, step, *values.shape)
        (bins,) = flags
        self._client_bins = torch.from_numpy(np.flatnonzero(bins))
        self._bins = shared.free_bins(self.holder.bins.layout.only(used))
        self.holder.begin(shared.in_parts(values), used)

    def sums(self, step: int, nodes: Sequence[NodeRows]) -> tuple[Tensor, ...]:
        """Return its sums less a mask, its rows, and what it deals plus another."""
        ring = self._ring
        every = self.holder.histograms(nodes)[:, :, self._bins]
        sums = shared.put_together(every[:-2], ring)
        less = shared.draw_sums(ring, self._seed, step, *sums.shape)
        dealt = shared.times(self._dealt, self._mask, nodes)
        dealt = dealt.index_select(2, self._client_bins)
        more = shared.draw_sums(ring, self._client_seed, step, *dealt.shape)
        rows = torch.from_numpy(every[-1]).int()
        return sums - less, rows, dealt + more


SumsAnswerer = ClearAnswers | SharedAnswers  # how a party takes gradients and answers
