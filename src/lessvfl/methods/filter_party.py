"""A party's side of a filter: features rated by their bins, and those that stay."""

from __future__ import annotations

from collections.abc import Callable

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

    def __init__(
        self, measure: BinMeasure, config: FilterConfig, holder: Holder
    ) -> None:
        super().__init__(config, holder)
        self.config, self._measure = config, measure
        self._must = holder.features.groups_of(holder.must_keep).cpu()
        self._counts = torch.zeros(0, 0)  # (n_bins, C)
        self._scores = torch.zeros(0)  # (G,), by which features are compared
        self._largest: float | None = None  # score of any feature of any party

    def counted(self, counts: Tensor) -> QueryArrays | Selected:
        """Rate features; select, or tell the largest score to choose a limit.

        A limit is on what scores have beyond the mean of those with scrambled labels: a
        feature with many bins has a large score by chance.
        """
        self._counts = counts
        self._scores = self._measure.scores(counts, self.bins)
        config, scramble = self.config, self._scramble()
        if config.holds_out:
            copies = torch.stack([scramble() for _ in range(config.copies)])
            self._scores = self._scores - copies.mean(dim=0)
            return (self._scores.amax().view(1).to(self.inputs.X.dtype),)
        if config.keep is not None:
            return self._selected(limits.best(self._scores, config.keep))
        kept, false_share = keep_beyond_chance(
            self._scores, scramble, config.copies, config.false_share
        )
        return self._selected(kept, false_share)

    def go_on(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Say what features above every limit say of rows held out; then select."""
        if not self.config.holds_out:
            return super().go_on(step, arrays)
        expect(arrays, (1,))
        value = arrays[0].item()
        if step == 0 and self._largest is None:
            self._largest = value
            return (self.hide(self._log_odds_above_limits(value)),)
        if step == 0 or self._largest is None:
            raise ValueError("rows held out, of which is told once, before the end")
        place = limits.check_place(value)
        return self._selected(limits.above(self._scores, self._largest, place))

    def _log_odds_above_limits(self, largest: float) -> Tensor:
        """Return the sums of what bins say of rows held out, (n, limits x C)."""
        bins = self.held_out
        assert bins is not None
        odds = log_odds(self._counts, bins.owner, len(bins.sizes))  # (n_bins, C)
        masks = limits.at_limits(self._scores, largest) | self._must
        sums = [masks.double() @ one[bins.codes] for one in odds.T]  # (limits, n)
        return torch.stack(sums).permute(2, 1, 0).flatten(1)

    def _selected(self, chosen: Tensor, false_share: float | None = None) -> Selected:
        """Keep these features (G,), of which a share is useless."""
        rating = rating_by_bins(
            self._measure, self._counts, self.bins, self.inputs.features, false_share
        )
        return Selected((chosen | self._must).to(self.inputs.X.device), rating)

    def _scramble(self) -> Callable[[], Tensor]:
        """Return a function that returns the scores of all features by chance."""
        bins, holder = self.bins, self.inputs
        total = self._counts[bins.owner == 0].sum(dim=0)
        classes = torch.arange(len(total)).repeat_interleave(total)
        random = stream(holder.private, "scrambled labels", holder.party)

        def scramble() -> Tensor:
            order = torch.randperm(len(classes), generator=random)
            return self._measure.scores(bins.counts(classes[order], len(total)), bins)

        return scramble
