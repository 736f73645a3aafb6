"""Plain vertical federated learning: Algorithm 2 of Castiglia et al., ICML 2023."""

from __future__ import annotations

from lessvfl import algorithm
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.methods.base import Joint, Method
from lessvfl.terms import Observer
from lessvfl.wire.parties import Parties


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Joint,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Train jointly; select nothing."""
    plan = config.plan("train", config.train_epochs)
    algorithm.train_jointly(parties, fusion, labels, plan, observe, keeper)
    return fusion


METHOD = Method(
    "plain",
    "joint training without selection: VFL (Original), (Spurious) with noise",
    "Castiglia et al., ICML 2023, Algorithm 2",
    Joint,
    run,
)
