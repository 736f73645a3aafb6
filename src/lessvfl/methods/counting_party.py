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

    def __init__(self, config: Counted, own: Holder) -> None:
        self.own, self._secret = own, config.secret
        groups, n_groups = own.features.column_groups.cpu(), own.features.n_groups
        self.bins = [
            binning.bin_features(own.columns(r).cpu(), groups, n_groups, config.bins)
            for r in range(own.n_replicas)
        ]
        self.held_out: list[Bins] = []  # the same bins of rows that are not counted
        if config.holds_out:
            rows = split_rows(own.X.shape[1], own.seeds)
            self.held_out, self.bins = (
                [bins.take(some) for bins, some in zip(self.bins, part, strict=True)]
                for part in rows
            )
        self._n_rows = self.bins[0].codes.shape[1]
        self._width = max(bins.n_bins for bins in self.bins)
        self._ring = Ring.for_counts(self._n_rows)
        self._key = KeyPair()
        self._seeds: list[bytes] = []  # shared with the dealer
        self._dealt: list[bytes] = []  # shared with whom it deals for
        self._masked: list[Tensor] = []  # labels less their mask

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer one query."""
        R, n_rows = self.own.n_replicas, self._n_rows
        if step >= N_COUNTING[self._secret]:
            return self.go_on(step - N_COUNTING[self._secret], arrays)
        if self._secret == "none":
            expect(arrays, (R, n_rows))
            (labels,) = arrays
            most = min(MOST_CLASSES, MOST_CELLS // self._width)
            _check_range("classes", int(labels.min()), int(labels.max()), most)
            classes, n_classes = labels.long(), int(labels.max()) + 1
            both = zip(self.bins, classes, strict=True)
            return self.counted([bins.counts(y, n_classes) for bins, y in both])
        match step:
            case 0:
                expect(arrays)
                _check_sizes(n_rows, self._width, 0)
                width = torch.full((R, 1), self._width, dtype=torch.int32)
                return sharing.from_bytes(self._key.public, R), width
            case 1:
                expect(arrays, (R, KEY_BYTES), (R, 2))
                return self._deal(*arrays)
            case 2:
                expect(arrays, (R, KEY_BYTES), (R, n_rows, -1))
                _check_sizes(n_rows, self._width, arrays[1].shape[2])
                return (self._mask(*arrays),)
        expect(arrays, (R, self._width, self._masked[0].shape[1]))
        return self.counted(self._add_up(arrays[0]))

    def _deal(self, key: Tensor, sizes: Tensor) -> QueryArrays:
        """Draw masks for another party and the server; return what the server gets."""
        n_rows, ring, R = self._n_rows, self._ring, self.own.n_replicas
        n_bins, n_classes = sizes[0].tolist()
        _check_sizes(n_rows, n_bins, n_classes)
        client, dealer = sharing.to_bytes(key), self._key.public
        self._dealt = [self._key.secret(client, client, dealer, r) for r in range(R)]
        seed = secrets.token_bytes(SEED_BYTES)
        sizes_of_masks = (n_rows, n_bins, n_classes)
        shares = [
            sharing.deal(ring, own, seed + bytes([r]), *sizes_of_masks)
            for r, own in enumerate(self._dealt)
        ]
        return sharing.from_bytes(seed, R), ring.pack(torch.stack(shares))

    def _mask(self, key: Tensor, labels: Tensor) -> Tensor:
        """Take labels less their mask; return the bins of every row less theirs."""
        R, ring = self.own.n_replicas, self._ring
        client, dealer = self._key.public, sharing.to_bytes(key)
        self._seeds = [self._key.secret(dealer, client, dealer, r) for r in range(R)]
        self._masked = [ring.unpack(own) for own in labels]
        return torch.stack(
            [
                ring.pack(sharing.masked(ring, seed, self._indicators(bins)))
                for seed, bins in zip(self._seeds, self.bins, strict=True)
            ]
        )

    def _indicators(self, bins: Bins) -> Tensor:
        """Return which bins every row is in, (N, width), bins of no row at the end."""
        found = bins.indicators(torch.int64)
        return torch.nn.functional.pad(found, (0, self._width - found.shape[1]))

    def _add_up(self, shares: Tensor) -> list[Tensor]:
        """Return the counts of classes by bin, of every replica."""
        ring, found = self._ring, []
        for bins, seed, masked, share in zip(
            self.bins, self._seeds, self._masked, shares, strict=True
        ):
            own = sharing.share_of_left(ring, seed, masked, self._width)
            counts = ring.reduce(own + ring.unpack(share))[: bins.n_bins]
            sizes = torch.bincount(bins.codes.flatten(), minlength=bins.n_bins)
            last = sizes - counts.sum(dim=1)  # the class that was not sent
            if bool((last < 0).any()):
                raise ValueError("more rows of a bin than it has")
            found.append(torch.cat([counts, last.unsqueeze(1)], dim=1))
        return found

    def hide(self, values: Tensor) -> Tensor:
        """Return real numbers (R, ...) as they travel: under sharing in a sum alone."""
        if self._secret == "none":
            return sharing.rounded(values).to(self.own.X.dtype)
        both = zip(values, self._seeds, self._dealt, strict=True)
        return torch.stack([sharing.hidden(*own) for own in both])

    @abc.abstractmethod
    def counted(self, counts: list[Tensor]) -> QueryArrays | Selected:
        """Go on with the counts of every replica, (n_bins, C)."""

    def go_on(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer a query after the counts, the first of which is step 0."""
        raise ValueError("a query beyond the last")
