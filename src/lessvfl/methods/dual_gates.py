"""Stochastic gates on features and on components, after FedSDG-FS.

Li et al., INFOCOM 2023 (arXiv 2302.10417): every feature has a gate at its party, every
component one at the server (``core/gates``); they are trained with the networks, at the
price lambda x (sum of the chances that gates are open), and what is shut at the end is
removed. Gates start at 1 / Gini impurity of their feature, which costs a count of
classes by bin (``methods/counting``: its messages, and what they reveal).

Decided here: sigma, which the paper does not say; a lambda of 0.003, the best of four
on generated tables by the F1 of what is kept, since with the 0.1 that it reports nearly
all gates shut here, where the loss is a mean over rows and the price a sum over gates;
gates start in proportion to 1 / Gini with a mean of one half; the Gini impurities are
counted under additive sharing, which shows them to their owner alone (there Paillier,
and the server learns them); training itself is in the clear, as everywhere in this
package (there under Paillier, with noise); one draw of noise a step; then training goes
on with what is left. Messages of training: those of ``group-lasso``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core import binning
from lessvfl.core.gates import HALF_OPEN
from lessvfl.core.plans import PartyPlan, TrainPlan
from lessvfl.core.protocol import Selected
from lessvfl.methods import counting
from lessvfl.methods.base import Method, follow_plans
from lessvfl.settings import a_float, an_int, one_of, setting


@dataclass(frozen=True)
class Config(counting.Counted):
    """Settings of gates on features and components."""

    lam: float = setting(a_float(), 0.003, "price of a gate that is open (lambda)")
    sigma: float = setting(
        a_float(open_low=True), 0.5, "standard deviation of a gate's noise"
    )
    gate_epochs: float = setting(a_float(), 20, "epochs of training with gates")
    gate_rate: float = setting(
        a_float(open_low=True), 0.03, "learning rate of training with gates"
    )
    gate_batch_size: int = setting(
        an_int(1), 128, "rows of one step of training with gates"
    )
    start: str = setting(
        one_of("gini", "half"),
        "gini",
        "where gates start: by the Gini impurity of their feature, or all half open",
    )

    def gated(self) -> TrainPlan:
        """Return the plan of joint training, by Adam, with a gate on each feature."""
        return dataclasses.replace(
            self.plan("joint_lasso", self.gate_epochs),
            batch_size=self.gate_batch_size,
            learning_rate=self.gate_rate,
            optimizer="adam",
            decay=0.0,
            gates=(self.sigma, self.lam),
        )

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        count, train = super().plans(n_parties)
        return (*([count] if self.start == "gini" else []), self.gated(), train)


class GateStart(counting.CountingParty):
    """A party that learns where its gates start."""

    def counted(self, counts: Tensor) -> Selected:
        """Keep all features; start their gates at 1 / Gini, with a mean of a half."""
        bins = self.bins
        gini = binning.impurity(counts, bins.owner, len(bins.sizes))
        inverse = 1 / gini.clamp_min(1e-6)
        everything = torch.ones_like(self.inputs.features.groups)
        return Selected(everything, gates=HALF_OPEN * inverse / inverse.mean())


METHOD = Method(
    "dual-gates",
    "stochastic gates on features and components, started by Gini impurity",
    "after Li et al., INFOCOM 2023 (FedSDG-FS)",
    Config,
    follow_plans(counting.select),
    protocol=GateStart,
)
