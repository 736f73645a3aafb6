"""Group lasso on the joint model, by proximal steps at every exchange: Eq. 2.

The direct way (Feng 2022; Castiglia et al., ICML 2023, Section 5): P-SGD, or proximal
Adam with ``optimizer=adam``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lessvfl.core.plans import PartyPlan
from lessvfl.core.solve import OPTIMIZERS
from lessvfl.methods.base import PAPER, Joint, Method, follow_plans
from lessvfl.settings import a_float, one_of, setting


@dataclass(frozen=True)
class Config(Joint):
    """Settings of group lasso; `optimizer` is that of the joint proximal training."""

    optimizer: str = setting(
        one_of(*OPTIMIZERS), "sgd", "optimiser of joint proximal training"
    )
    lam_party: float = setting(a_float(), 0.2, "weight of the parties' group lasso")
    joint_epochs: float = setting(a_float(), 150, "epochs of joint proximal training")
    train_optimizer: str = setting(
        one_of(*OPTIMIZERS), "adam", "optimiser of training after selection"
    )

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        lasso = self.plan("joint_lasso", self.joint_epochs, self.lam_party)
        train = self.plan("train", self.train_epochs)
        return lasso, dataclasses.replace(train, optimizer=self.train_optimizer)


METHOD = Method(
    "group-lasso",
    "joint training with a proximal step at every exchange, then training on",
    "Castiglia et al., ICML 2023, Eq. 2",
    Config,
    follow_plans(),
    profiles=PAPER,
)
