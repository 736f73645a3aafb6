"""Filters: features rated by how classes fall into their bins, then training.

Those that rate well stay; then training goes on with what is left. Classes are counted
by ``methods/counting``: its messages, and what they reveal. There are two:

* by Gini impurity, after the eHealth filter of Castiglia et al., Table 1 (ICC 2022), of
  which the abstract is public: features by Gini impurity, counted under additive secret
  sharing;
* by information value: what credit scoring uses, as FATE's filters do. Weight of
  evidence by bin, IV as its sum (``core/binning``), counted under sharing instead of
  encryption, so that no count reaches the server.

Decided here: bins of equally many rows, features kept beyond what scrambled labels
reach (``core/chance``), masks dealt by another party.

With ``how_many=held-out`` some rows are in no count, and two steps follow:

==== ======================================== =========================================
step down                                     up
==== ======================================== =========================================
3, 0 as above                                 the largest score of its features
4, 1 the largest score of all parties         for every row held out and every limit on
                                              scores, what the bins of the features
                                              above it say of the class (of two, sums
                                              of WOE)
5, 2 which limit                              nothing: the party selects
==== ======================================== =========================================

Under sharing these sums travel with masks that cancel between parties, so that the
server learns the sum over all of them; in the clear it learns each party's, and with
that most bins of the strongest features in the rows held out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lessvfl.core import limits, sharing
from lessvfl.core.binning import impurity_removed, information, log_odds
from lessvfl.core.chance import keep_beyond_chance
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import stream
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.ratings import BinMeasure, rating_by_bins
from lessvfl.methods import counting
from lessvfl.methods.base import Method, follow_plans
from lessvfl.methods.counting import N_COUNTING, STAGE, CountingParty
from lessvfl.methods.held_out import choose_together, largest_of
from lessvfl.settings import a_float, an_int, one_of, or_none, setting
from lessvfl.wire.parties import Parties


@dataclass(frozen=True)
class FilterConfig(counting.Counted):
    """Settings of filters."""

    keep: int | None = setting(
        or_none(an_int(1)),
        None,
        "features that each party keeps; none: as many as how_many says",
    )
    how_many: Literal["chance", "held-out"] = setting(
        one_of("chance", "held-out"),
        "chance",
        "how many features stay: those beyond chance, or by rows held out",
    )
    copies: int = setting(
        an_int(20), 50, "scrambled copies of the labels that say what chance is"
    )
    false_share: float = setting(
        a_float(0.0, 1.0),
        0.2,
        "the largest estimated share of useless features among those kept",
    )

    @property
    def holds_out(self) -> bool:
        """Tell whether rows are held out to decide how many features stay."""
        return self.keep is None and self.how_many == "held-out"


def select(
    parties: Parties, fusion: Network, labels: Labels, config: FilterConfig
) -> None:
    """Have classes counted by bin; every party selects, or one limit is chosen."""
    if not config.holds_out:
        counting.select(parties, fusion, labels, config)
        return
    dtype = fusion.input_weights.dtype
    every, n_classes = counting.classes_of(labels)
    held, y = (every[rows] for rows in limits.split_rows(len(every), labels.seed))
    sent = counting.count(parties, y, n_classes, config.secret)
    step, one = N_COUNTING[config.secret], (dtype, (1,))
    scores = dict.fromkeys(parties.names, (one,))
    largest = largest_of(parties.query(STAGE, step - 1, sent, scores))

    is_hidden = config.secret == "sharing"
    n_told = n_classes if is_hidden else int(y.max()) + 1
    n_said = (1 if n_told == 2 else n_told) * limits.N_LIMITS
    sums = (sharing.SUMS.dtype if is_hidden else dtype, (len(held), n_said))

    def losses(parts: list[Tensor]) -> Tensor:
        total = sharing.revealed_sum(parts) if is_hidden else torch.stack(parts).sum(0)
        return limits.class_losses(total, held, y, n_classes)

    choose_together(parties, STAGE, step, largest, sums, losses)


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


GINI = Method(
    "gini-filter",
    "features by the Gini impurity of their bins, counted under sharing; then training",
    "after the eHealth filter (ICC 2022) of Castiglia et al., ICML 2023, Table 1",
    FilterConfig,
    follow_plans(select),
    protocol=functools.partial(
        FilterParty, BinMeasure("Gini impurity removed", impurity_removed)
    ),
)
INFORMATION_VALUE = Method(
    "iv-filter",
    "features by the information value of their bins, counted under sharing",
    "weight of evidence and information value, as in FATE's feature binning",
    FilterConfig,
    follow_plans(select),
    protocol=functools.partial(
        FilterParty, BinMeasure("information value", information, has_woe=True)
    ),
)
