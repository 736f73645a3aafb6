"""Local lasso: LESS-VFL without stage 2, a baseline of Castiglia et al., ICML 2023."""

from __future__ import annotations

from lessvfl import algorithm
from lessvfl.core.keeper import Keeper
from lessvfl.core.network import Network
from lessvfl.core.plans import Labels
from lessvfl.methods.base import Method, PartySelection
from lessvfl.terms import Observer
from lessvfl.wire.parties import Parties


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: PartySelection,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Pre-train, let every party match all its components, train on."""
    return algorithm.less_vfl(
        parties, fusion, labels, config.stages(None), observe, keeper
    )


METHOD = Method(
    "local-lasso",
    "LESS-VFL without component selection: each party matches all its components",
    "Castiglia et al., ICML 2023, Section 5",
    PartySelection,
    run,
)
