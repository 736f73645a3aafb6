"""A party's side of a filter: features rated by their bins, and those that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessvfl.core import limits
from lessvfl.core.binning import log_odds
from lessvfl.core.chance import keep_beyond_chance
from lessvfl.core.plans import stream
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.ratings import BinMeasure, rating_by_bins
from lessvfl.methods.counting_party import CountingParty
from lessvfl.methods.filters import FilterConfig


class FilterParty(CountingParty):
    """A party in the stage of a filter."""

    def __init__(self, measure: BinMeasure, config: FilterConfig, own: Holder) -> None:
        super().__init__(config, own)
        self.config, self._measure = config, measure
        self._must = own.features.groups_of(own.must_keep).cpu()
        self._counts: list[Tensor] = []  # of every replica, (n_bins, C)
        self._scores: list[Tensor] = []  # (G,), by which features are compared
        self._largest: list[float] = []  # score of any feature of any party

    def counted(self, counts: list[Tensor]) -> QueryArrays | Selected:
        """Rate features; select, or tell the largest score to choose a limit.

        A limit is on what scores have beyond the mean of those with scrambled labels: a
        feature with many bins has a large score by chance.
        """
        both = zip(counts, self.bins, strict=True)
        self._counts = counts
        self._scores = [self._measure.scores(table, bins) for table, bins in both]
        keep = self.config.keep
        if self.config.holds_out:
            for r, scores in enumerate(self._scores):
                scramble = self._scramble(r)
                copies = [scramble() for _ in range(self.config.copies)]
                self._scores[r] = scores - torch.stack(copies).mean(dim=0)
            largest = [scores.amax() for scores in self._scores]
            return (torch.stack(largest).view(-1, 1).to(self.own.X.dtype),)
        if keep is not None:
            return self._selected(
                [limits.best(scores, keep) for scores in self._scores]
            )
        found = [self._beyond_chance(r) for r in range(len(counts))]
        return self._selected(
            [kept for kept, _ in found], [share for _, share in found]
        )

    def go_on(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Say what features above every limit say of rows held out; then select."""
        if not self.config.holds_out:
            return super().go_on(step, arrays)
        expect(arrays, (self.own.n_replicas, 1))
        values = arrays[0][:, 0].tolist()
        if step == 0 and not self._largest:
            self._largest = values
            return (self.hide(torch.stack([self._say(r) for r in range(len(values))])),)
        if step == 0 or not self._largest:
            raise ValueError("rows held out, of which is told once, before the end")
        limits.check_places(values)
        chosen = zip(self._scores, self._largest, values, strict=True)
        return self._selected([limits.above(*own) for own in chosen])

    def _say(self, r: int) -> Tensor:
        """Return the sums of what bins say of rows held out, (n, limits x C)."""
        bins = self.held_out[r]
        said = log_odds(self._counts[r], bins.owner, len(bins.sizes))  # (n_bins, C)
        masks = limits.at_limits(self._scores[r], self._largest[r]) | self._must
        sums = [masks.double() @ one[bins.codes] for one in said.T]  # (limits, n)
        return torch.stack(sums).permute(2, 1, 0).flatten(1)

    def _selected(
        self, chosen: list[Tensor], shares: Sequence[float | None] = ()
    ) -> Selected:
        """Keep these features (G,) of every replica, of which `shares` are useless."""
        shares = shares or [None] * len(chosen)
        own = zip(self._counts, self.bins, shares, strict=True)
        ratings = tuple(
            rating_by_bins(self._measure, table, bins, self.own.features, share)
            for table, bins, share in own
        )
        kept = (torch.stack(chosen) | self._must).to(self.own.X.device)
        return Selected(kept, ratings)

    def _beyond_chance(self, r: int) -> tuple[Tensor, float]:
        copies, most = self.config.copies, self.config.false_share
        return keep_beyond_chance(self._scores[r], self._scramble(r), copies, most)

    def _scramble(self, r: int) -> Callable[[], Tensor]:
        """Return a function that returns the scores of all features by chance."""
        bins, own = self.bins[r], self.own
        total = self._counts[r][bins.owner == 0].sum(dim=0)
        classes = torch.arange(len(total)).repeat_interleave(total)
        random = stream(own.private[r], "scrambled labels", own.party)

        def scramble() -> Tensor:
            order = torch.randperm(len(classes), generator=random)
            return self._measure.scores(bins.counts(classes[order], len(total)), bins)

        return scramble
