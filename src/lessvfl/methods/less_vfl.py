"""LESS-VFL: Castiglia et al., ICML 2023, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from lessvfl import algorithm, settings
from lessvfl.algorithm import Labels
from lessvfl.methods.base import Lambda, Method, PartySelection, a_lambda, spread
from lessvfl.models import Network
from lessvfl.protocol import Parties
from lessvfl.types import Keeper, Observer, SelectPlan


@dataclass(frozen=True)
class Config(PartySelection):
    """Settings of LESS-VFL."""

    lam_party: Lambda = settings.setting(
        a_lambda(), 4.0, "weight of the parties' group lasso"
    )
    lam_server: Lambda = settings.setting(
        a_lambda(), 0.05, "weight of the server's group lasso"
    )
    server_epochs: int = settings.setting(
        settings.an_int(), 150, "epochs of component selection (stage 2)"
    )
    server_step_size: float = settings.setting(
        settings.a_float(open_low=True), 0.01, "step size of stage 2"
    )


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Pre-train, select components, select features, train on."""
    server = SelectPlan(
        "select_components",
        config.server_epochs,
        config.batch_size,
        config.shuffle,
        config.server_step_size,
        spread(config.lam_server),
        tolerance=config.plateau_tolerance,
        patience=config.plateau_patience,
    )
    return algorithm.less_vfl(
        parties, fusion, labels, config.stages(server), observe, keeper
    )


METHOD = Method(
    "less-vfl",
    "pre-train; the server selects components, each party its features; train on",
    "Castiglia et al., ICML 2023, Algorithm 1",
    Config,
    run,
)
