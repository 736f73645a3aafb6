"""LESS-VFL: Castiglia et al., ICML 2023, Algorithm 1."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lessvfl import algorithm
from lessvfl.algorithm import Stages
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import SelectPlan
from lessvfl.methods.base import LAM_SHARE, PAPER, Method, PartySelection
from lessvfl.settings import a_float, an_int, or_none, setting
from lessvfl.terms import Observer
from lessvfl.wire.parties import Parties


@dataclass(frozen=True)
class Config(PartySelection):
    """Settings of LESS-VFL."""

    lam_party: float | None = setting(
        or_none(a_float()),
        4.0,
        f"weight of the parties' group lasso; none: at each party {LAM_SHARE} of the "
        "one that removes all",
    )
    lam_server: float = setting(a_float(), 0.05, "weight of the server's group lasso")
    server_epochs: int = setting(an_int(), 150, "epochs of stage 2")
    server_step_size: float = setting(
        a_float(open_low=True), 0.01, "step size of stage 2"
    )
    pretrain_batch_size: int | None = setting(
        or_none(an_int(1)), None, "rows of one step of pre-training; none: batch_size"
    )
    adaptive: float = setting(
        a_float(),
        0.0,
        "stage 3 weights groups by 1 / norm^this of the pre-trained network; 0: not",
    )

    def server_plan(self) -> SelectPlan:
        """Return the plan of stage 2: the server selects components by group lasso."""
        return SelectPlan(
            "select_components",
            n_epochs=self.server_epochs,
            batch_size=self.batch_size,
            row_order=self.row_order,
            step_size=self.server_step_size,
            lam=self.lam_server,
            tolerance=self.plateau_tolerance,
            patience=self.plateau_patience,
        )

    def stored(self) -> tuple[int | None, int] | None:
        """Return that stage 2 asks for all rows, and in how many bits."""
        return None, self.bits

    def party_plan(self) -> SelectPlan:
        """Return the plan of stage 3."""
        return dataclasses.replace(super().party_plan(), adaptive=self.adaptive)

    def stages(self) -> Stages:
        """Return the plans of all stages of Algorithm 1; the second is the server's."""
        stages = super().stages()
        n_rows = self.pretrain_batch_size or self.batch_size
        pretrain = dataclasses.replace(stages.pretrain, batch_size=n_rows)
        return dataclasses.replace(stages, pretrain=pretrain, server=self.server_plan())


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: PartySelection,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Pre-train, select components (unless left out), select features, train on."""
    return algorithm.less_vfl(parties, fusion, labels, config.stages(), observe, keeper)


METHOD = Method(
    "less-vfl",
    "pre-train; the server selects components, each party its features; train on",
    "Castiglia et al., ICML 2023, Algorithm 1",
    Config,
    run,
    profiles=PAPER,
    behaviour=2,  # 2: stage 2 in `bits`, too; the same where these are 32
)
