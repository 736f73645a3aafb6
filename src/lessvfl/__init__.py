"""Embedded feature selection across parties: LESS-VFL and its baselines."""

from __future__ import annotations

TYPE_CHECKING = (
    False  # for type checkers it is true; a command's Ctrl-C waits for typing
)
if TYPE_CHECKING:
    from typing import Any

    from lessvfl.estimator import LessVFLClassifier, LessVFLRegressor
    from lessvfl.run.fitted import FittedModel
    from lessvfl.run.folder import load
    from lessvfl.run.profiles import resolve
    from lessvfl.run.reasons import explain
    from lessvfl.run.simulate import Job, simulate
    from lessvfl.terms import Progress

__version__ = "0.1.0"

__all__ = [
    "FittedModel",
    "Job",
    "LessVFLClassifier",
    "LessVFLRegressor",
    "Progress",
    "__version__",
    "explain",
    "load",
    "resolve",
    "simulate",
]

# Loaded when first used, so that the command line's help is instant.
_HOMES = {
    "FittedModel": "lessvfl.run.fitted",
    "Job": "lessvfl.run.simulate",
    "LessVFLClassifier": "lessvfl.estimator",
    "LessVFLRegressor": "lessvfl.estimator",
    "Progress": "lessvfl.terms",
    "explain": "lessvfl.run.reasons",
    "load": "lessvfl.run.folder",
    "resolve": "lessvfl.run.profiles",
    "simulate": "lessvfl.run.simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lessvfl' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
