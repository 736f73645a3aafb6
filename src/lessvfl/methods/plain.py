"""Plain vertical federated learning: Algorithm 2 of Castiglia et al., ICML 2023."""

from __future__ import annotations

from lessvfl.methods.base import PAPER, Joint, Method, follow_plans

METHOD = Method(
    "plain",
    "joint training without selection: VFL (Original), (Spurious) with noise",
    "Castiglia et al., ICML 2023, Algorithm 2",
    Joint,
    follow_plans(),
    profiles=PAPER,
)
