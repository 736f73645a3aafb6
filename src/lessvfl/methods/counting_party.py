"""A party's side of counting classes by bin: bins, masks, counts."""

from __future__ import annotations

import abc
import secrets

import torch
from torch import Tensor

from lessvfl.core import binning, sharing
from lessvfl.core.binning import Bins
from lessvfl.core.limits import split_rows
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.sharing import KEY_BYTES, SEED_BYTES, KeyPair, Ring
from lessvfl.methods.counting import MOST_CELLS, N_COUNTING, Counted

MOST_CLASSES = 1024


def _check_range(what: str, low: int, high: int, most: int) -> None:
    if low < 0 or high > most:
        raise ValueError(f"{what} from {low} to {high}, of 0 to {most}")


def _check_sizes(n_rows: int, n_bins: int, n_classes: int) -> None:
    """Refuse tables (rows, bins), (rows, classes) or (bins, classes) too large."""
    _check_range("bins", n_bins, n_bins, MOST_CELLS // n_rows)
    most = min(MOST_CLASSES, MOST_CELLS // max(1, n_rows, n_bins))
    _check_range("classes", n_classes, n_classes, most)


class CountingParty(abc.ABC):
    """A party in a stage in which classes are counted by bin."""

    def __init__(self, config: Counted, holder: Holder) -> None:
        self.inputs, self._secret = holder, config.secret
        features = holder.features
        self.bins = binning.bin_features(
            holder.X.cpu(), features.column_groups.cpu(), features.n_groups, config.bins
        )
        self.held_out: Bins | None = None  # the same bins of rows that are not counted
        if config.holds_out:
            held_out, counted = split_rows(len(holder.X), holder.seed)
            self.held_out, self.bins = self.bins.take(held_out), self.bins.take(counted)
        self._n_rows = self.bins.codes.shape[1]
        self._ring = Ring.for_counts(self._n_rows)
        self._key = KeyPair()
        self._seed = b""  # shared with the dealer
        self._dealt = b""  # shared with whom it deals for
        self._masked: Tensor | None = None  # labels less their mask

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer one query."""
        n_rows, n_bins = self._n_rows, self.bins.n_bins
        if step >= N_COUNTING[self._secret]:
            return self.go_on(step - N_COUNTING[self._secret], arrays)
        if self._secret == "none":
            expect(arrays, (n_rows,))
            (labels,) = arrays
            most = min(MOST_CLASSES, MOST_CELLS // n_bins)
            _check_range("classes", int(labels.min()), int(labels.max()), most)
            return self.counted(self.bins.counts(labels.long(), int(labels.max()) + 1))
        match step:
            case 0:
                expect(arrays)
                _check_sizes(n_rows, n_bins, 0)
                width = torch.tensor([n_bins], dtype=torch.int32)
                return sharing.from_bytes(self._key.public), width
            case 1:
                expect(arrays, (KEY_BYTES,), (2,))
                return self._deal(*arrays)
            case 2:
                expect(arrays, (KEY_BYTES,), (n_rows, -1))
                _check_sizes(n_rows, n_bins, arrays[1].shape[1])
                return (self._mask(*arrays),)
        if self._masked is None:
            raise ValueError("shares of counts before labels")
        expect(arrays, (n_bins, self._masked.shape[1]))
        return self.counted(self._add_up(self._masked, *arrays))

    def _deal(self, key: Tensor, sizes: Tensor) -> QueryArrays:
        """Draw masks for another party and the server; return what the server gets."""
        n_rows, ring = self._n_rows, self._ring
        n_bins, n_classes = sizes.tolist()
        _check_sizes(n_rows, n_bins, n_classes)
        client, dealer = sharing.to_bytes(key), self._key.public
        self._dealt = self._key.secret(client, client, dealer)
        seed = secrets.token_bytes(SEED_BYTES)
        share = sharing.deal(ring, self._dealt, seed, n_rows, n_bins, n_classes)
        return sharing.from_bytes(seed), ring.pack(share)

    def _mask(self, key: Tensor, labels: Tensor) -> Tensor:
        """Take labels less their mask; return the bins of every row less theirs."""
        ring = self._ring
        client, dealer = self._key.public, sharing.to_bytes(key)
        self._seed = self._key.secret(dealer, client, dealer)
        self._masked = ring.unpack(labels)
        indicators = self.bins.indicators(torch.int64)
        return ring.pack(sharing.masked(ring, self._seed, indicators))

    def _add_up(self, masked: Tensor, servers: Tensor) -> Tensor:
        """Return the counts of classes by bin, given the server's share of them."""
        ring, bins = self._ring, self.bins
        share = sharing.share_of_left(ring, self._seed, masked, bins.n_bins)
        counts = ring.reduce(share + ring.unpack(servers))
        sizes = torch.bincount(bins.codes.flatten(), minlength=bins.n_bins)
        last = sizes - counts.sum(dim=1)  # the class that was not sent
        if bool((last < 0).any()):
            raise ValueError("more rows of a bin than it has")
        return torch.cat([counts, last.unsqueeze(1)], dim=1)

    def hide(self, values: Tensor) -> Tensor:
        """Return real numbers as they travel: under sharing in a sum alone."""
        if self._secret == "none":
            return sharing.rounded(values).to(self.inputs.X.dtype)
        return sharing.hidden(values, self._seed, self._dealt)

    @abc.abstractmethod
    def counted(self, counts: Tensor) -> QueryArrays | Selected:
        """Go on with the rows of every class in every bin, (n_bins, C)."""

    def go_on(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer a query after the counts, the first of which is step 0."""
        raise ValueError("a query beyond the last")
