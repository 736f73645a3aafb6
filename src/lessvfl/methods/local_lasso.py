"""Local lasso: LESS-VFL without stage 2, a baseline of Castiglia et al., ICML 2023."""

from __future__ import annotations

from lessvfl.methods import less_vfl
from lessvfl.methods.base import PAPER, Method, PartySelection

METHOD = Method(
    "local-lasso",
    "LESS-VFL without component selection: each party matches all its components",
    "Castiglia et al., ICML 2023, Section 5",
    PartySelection,  # its stages have no second one
    less_vfl.run,
    profiles=PAPER,
)
