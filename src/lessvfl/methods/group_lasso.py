"""Group lasso on the joint model, by proximal steps at every exchange: Eq. 2.

The direct way (Feng 2022; Castiglia et al., ICML 2023, Section 5): P-SGD, or proximal
Adam with ``optimizer=adam``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lessvfl import algorithm, settings
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, TrainPlan
from lessvfl.core.solve import OPTIMIZERS
from lessvfl.methods.base import Joint, Lambda, Method, a_lambda
from lessvfl.terms import Observer
from lessvfl.wire.parties import Parties


@dataclass(frozen=True)
class Config(Joint):
    """Settings of group lasso; `optimizer` is that of the joint proximal training."""

    optimizer: str = settings.setting(
        settings.one_of(*OPTIMIZERS), "sgd", "optimiser of joint proximal training"
    )
    lam_party: Lambda = settings.setting(
        a_lambda(), 0.2, "weight of the parties' group lasso"
    )
    joint_epochs: float = settings.setting(
        settings.a_float(), 150, "epochs of joint proximal training"
    )
    train_optimizer: str = settings.setting(
        settings.one_of(*OPTIMIZERS), "adam", "optimiser of training after selection"
    )

    def joint(self) -> tuple[TrainPlan, TrainPlan]:
        """Return the plans of both stages of joint training."""
        lasso = self.plan("joint_lasso", self.joint_epochs, self.lam_party)
        train = self.plan("train", self.train_epochs)
        return lasso, dataclasses.replace(train, optimizer=self.train_optimizer)

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        return self.joint()


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Train with a proximal step after every step, then train on what is left."""
    for plan in config.joint():
        algorithm.train_jointly(parties, fusion, labels, plan, observe, keeper)
    return fusion


METHOD = Method(
    "group-lasso",
    "joint training with a proximal step at every exchange, then training on",
    "Castiglia et al., ICML 2023, Eq. 2",
    Config,
    run,
)
