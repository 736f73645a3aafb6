"""What methods share: the settings of joint training and of a party's selection."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lessvfl import settings
from lessvfl.algorithm import Stages, train_jointly
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import (
    ROW_ORDERS,
    PartyPlan,
    QueryPlan,
    RowOrder,
    SelectPlan,
    TrainPlan,
)
from lessvfl.core.protocol import Holder, NewProtocol, PartyProtocol
from lessvfl.core.solve import OPTIMIZERS
from lessvfl.core.stage import run_once
from lessvfl.settings import (
    a_flag,
    a_float,
    an_int,
    one_of,
    or_none,
    setting,
)
from lessvfl.terms import Observer, Stage
from lessvfl.wire.coding import BITS
from lessvfl.wire.parties import Parties

PAPER = ("default", "paper", "official-code")  # profiles of the paper's methods
LAM_SHARE = 0.6  # of the lambda that removes every feature; chosen on generated tables


@dataclass(frozen=True)
class Joint(settings.Section):
    """Settings of Algorithm 2."""

    optimizer: str = setting(one_of(*OPTIMIZERS), "adam", "optimiser of joint training")
    learning_rate: float = setting(
        a_float(open_low=True), 0.01, "learning rate of joint training"
    )
    batch_size: int = setting(an_int(1), 1000, "rows of one step")
    row_order: RowOrder = setting(
        one_of(*ROW_ORDERS),
        "shuffle",
        "rows of an epoch, by the shared seed: in random order; blocks of neighbours "
        "in random order, for tables on disk; or as they stand",
    )
    train_epochs: float = setting(
        a_float(), 100, "epochs after selection; all of them for plain"
    )
    empty_party: str = setting(
        one_of("constant", "frozen"),
        "constant",
        "a party that keeps no feature: a constant, or its pre-trained embedding",
    )

    schedule: Literal["constant", "cosine", "watched"] = setting(
        one_of("constant", "cosine", "watched"),
        "constant",
        "learning rate of training after selection: the same, falling to zero, or "
        "falling to zero, and training over, once rows held out are learnt",
    )
    weight_decay: float = setting(
        a_float(),
        0.0,
        "of joint training with up to 1,000 rows; falls with the square of more",
    )
    bits: int = setting(
        one_of(*BITS), 32, "bits a value takes on its way: 4, 8, 16 or 32"
    )

    def plan(
        self, stage: Stage, n_epochs: float, lam: float | None = None
    ) -> TrainPlan:
        """Return the plan of one stage of joint training."""
        return TrainPlan(
            stage,
            n_epochs,
            batch_size=self.batch_size,
            row_order=self.row_order,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            lam=lam,
            schedule=self.schedule if stage == "train" else "constant",
            bits=self.bits,
            decay=self.weight_decay,
        )

    def pinned(self) -> str | None:
        """Return patterns of the features that a selection by shadows must keep."""
        return None

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        return (self.plan("train", self.train_epochs),)

    def stored(self) -> tuple[int | None, int] | None:
        """Return how many rows stage 2 asks for, None for all, and in how many bits.

        None: there is no such stage.
        """
        return None


@dataclass(frozen=True)
class PartySelection(Joint):
    """Settings of stages 1 and 3: pre-training and every party's own selection."""

    lam_party: float | None = setting(
        or_none(a_float()),
        None,
        f"weight of the parties' group lasso; none: at each party {LAM_SHARE} of the "
        "one that removes all",
    )
    pretrain_epochs: float = setting(
        a_float(), 1, "epochs of pre-training (stage 1); also a fraction"
    )
    party_epochs: int = setting(an_int(), 150, "epochs of stage 3")
    party_step_size: float = setting(
        a_float(open_low=True), 0.01, "step size of stage 3"
    )
    lam_scale: float = setting(
        a_float(open_low=True),
        1.0,
        "factor on lam_party in stage 3 (the released code's hidden 10)",
    )
    reduction: Literal["sum", "mean"] = setting(
        one_of("sum", "mean"), "sum", "stage 3's loss over the components"
    )
    stepwise_removal: bool = setting(
        a_flag(),
        False,
        "a party without significant components removes features only step by step",
    )
    plateau_tolerance: float = setting(
        a_float(0.0, 1.0),
        0.0,
        "stop stages 2 and 3 when the objective improves by less; 0: never",
    )
    plateau_patience: int = setting(
        an_int(1), 5, "epochs without improvement that make a plateau"
    )

    def stages(self) -> Stages:
        """Return the plans of Algorithm 1 without stage 2."""
        return Stages(
            self.plan("pretrain", self.pretrain_epochs),
            None,
            self.party_plan(),
            self.plan("train", self.train_epochs),
        )

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        stages = self.stages()
        return (stages.pretrain, stages.party, stages.train)

    def party_plan(self) -> SelectPlan:
        """Return the plan of stage 3."""
        return SelectPlan(
            "select_features",
            n_epochs=self.party_epochs,
            batch_size=self.batch_size,
            row_order=self.row_order,
            step_size=self.party_step_size,
            lam=LAM_SHARE if self.lam_party is None else self.lam_party,
            lam_scale=self.lam_scale,
            reduction=self.reduction,
            tolerance=self.plateau_tolerance,
            patience=self.plateau_patience,
            stepwise_removal=self.stepwise_removal,
            relative=self.lam_party is None,
        )


RunMethod = Callable[[Parties, Network, Labels, Any, Observer, Keeper], Network]


def follow_plans(
    query: Callable[[Parties, Network, Labels, Any], None] | None = None,
) -> RunMethod:
    """Return a method that does what its plans say, one after the other.

    `query` is the server's side of the method's own protocol; the others are joint
    training.
    """

    def run(
        parties: Parties,
        fusion: Network,
        labels: Labels,
        config: Joint,
        observe: Observer,
        keeper: Keeper,
    ) -> Network:
        for plan in config.plans(len(parties.names)):
            if isinstance(plan, TrainPlan):
                train_jointly(parties, fusion, labels, plan, observe, keeper)
            elif isinstance(plan, QueryPlan) and query is not None:
                lead = functools.partial(query, parties, fusion, labels, config)
                run_once(plan.stage, 1, lead, fusion, observe, keeper)
            else:
                raise TypeError(f"No way to follow {plan}")
        return fusion

    return run


@dataclass(frozen=True)
class Method:
    """A method: its settings, and a function that runs it."""

    name: str
    summary: str
    reference: str
    config: type[Joint]
    run: RunMethod
    profiles: tuple[str, ...] = ("default",)
    behaviour: int = 1  # raised by hand with what it does: tables of before are stale
    # A party's side of a protocol of the method's own, where it has one.
    protocol: Callable[[Any, Holder], PartyProtocol] | None = None
    uses_alone: bool = False  # whether a party trains on rows that no other party has

    def protocol_of(self, config: Joint) -> NewProtocol | None:
        """Return how a party with these settings enters the method's own protocol."""
        if self.protocol is None:
            return None
        return functools.partial(self.protocol, config)
