"""What filters share: features rated by how classes fall into their bins.

Those that rate well stay; then training goes on with what is left. Classes are counted
by ``methods/counting``: its messages, and what they reveal.

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

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lessvfl.core import limits, sharing
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.methods import counting
from lessvfl.methods.counting import N_COUNTING, STAGE
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
