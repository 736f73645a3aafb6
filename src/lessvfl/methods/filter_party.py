"""A party's side of the filters: bins, masks, counts, and what is kept."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Callable

import torch
from torch import Tensor

from lessvfl.core import binning, limits, sharing
from lessvfl.core.binning import Bins
from lessvfl.core.chance import keep_beyond_chance
from lessvfl.core.plans import stream
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.sharing import KeyPair, Ring
from lessvfl.methods.filters import MOST_CELLS, SEED_BYTES, Counted, FilterConfig

KEY_BYTES = 32
MOST_CLASSES = 1024
BinScore = Callable[[Tensor, Tensor, int], Tensor]  # counts, owner of bins, n features


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
        groups, n_groups = own.features.column_groups, own.features.n_groups
        self.bins = [
            binning.bin_features(own.columns(r), groups, n_groups, config.bins)
            for r in range(own.n_replicas)
        ]
        self._width = max(bins.n_bins for bins in self.bins)
        self._ring = Ring.for_counts(own.X.shape[1])
        self._key = KeyPair()
        self._seeds: list[bytes] = []  # shared with the dealer
        self._masked: list[Tensor] = []  # labels less their mask

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer one query."""
        R, n_rows = self.own.n_replicas, self.own.X.shape[1]
        if self._secret == "none":
            expect(arrays, (R, n_rows))
            (labels,) = arrays
            most = min(MOST_CLASSES, MOST_CELLS // self._width)
            _check_range("classes", int(labels.min()), int(labels.max()), most)
            return self.select([self._counted(r, y) for r, y in enumerate(labels)])
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
        return self.select(self._add_up(arrays[0]))

    def _counted(self, replica: int, y: Tensor) -> Tensor:
        classes = y.long()
        return self.bins[replica].counts(classes, int(classes.max()) + 1)

    def _deal(self, key: Tensor, sizes: Tensor) -> QueryArrays:
        """Draw masks for another party and the server; return what the server gets."""
        n_rows, ring, R = self.own.X.shape[1], self._ring, self.own.n_replicas
        n_bins, n_classes = sizes[0].tolist()
        _check_sizes(n_rows, n_bins, n_classes)
        client, dealer = sharing.to_bytes(key), self._key.public
        seed = secrets.token_bytes(SEED_BYTES)
        shares = [
            sharing.deal(
                ring,
                self._key.secret(client, client, dealer, r),
                seed + bytes([r]),
                n_rows,
                n_bins,
                n_classes,
            )
            for r in range(R)
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

    @abc.abstractmethod
    def select(self, counts: list[Tensor]) -> Selected:
        """Return what the counts of every replica, (n_bins, C), lead to."""


class FilterParty(CountingParty):
    """A party in the stage of a filter."""

    def __init__(self, score: BinScore, config: FilterConfig, own: Holder) -> None:
        super().__init__(config, own)
        self.config, self._score = config, score

    def select(self, counts: list[Tensor]) -> Selected:
        """Keep the features that score best, or beyond what scrambled labels do."""
        kept, reports = [], []
        must = self.own.features.groups_of(self.own.must_keep)
        for r, (bins, table) in enumerate(zip(self.bins, counts, strict=True)):
            n = len(bins.sizes)
            scores = self._score(table, bins.owner, n)
            if self.config.keep is not None:
                chosen, share = limits.best(scores, self.config.keep), None
            else:
                chosen, share = self._beyond_chance(r, table, scores)
            kept.append(chosen | must)
            reports.append({"scores": scores.tolist(), "false_share": share})
        return Selected(torch.stack(kept), tuple(reports))

    def _beyond_chance(
        self, r: int, table: Tensor, scores: Tensor
    ) -> tuple[Tensor, float]:
        bins, own = self.bins[r], self.own
        total = table[bins.owner == 0].sum(dim=0)
        classes = torch.arange(len(total)).repeat_interleave(total.cpu())
        random = stream(own.private[r], "scrambled labels", own.party)

        def scramble() -> Tensor:
            order = torch.randperm(len(classes), generator=random)
            y = classes[order].to(bins.codes.device)
            counts = bins.counts(y, len(total))
            return self._score(counts, bins.owner, len(bins.sizes))

        config = self.config
        return keep_beyond_chance(scores, scramble, config.copies, config.false_share)
