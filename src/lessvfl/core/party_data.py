"""What a party brings into a run, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.ratings import Rating


@dataclass(frozen=True)
class Outcome:
    """What a party ends a run with."""

    net: Network  # cut to its slots and outputs
    kept: tuple[bool, ...]  # of every feature
    importance: tuple[float, ...]  # norm of every feature's input weights
    slots: tuple[bool, ...]  # kept places of the network it started with
    outputs: tuple[bool, ...]
    constant: Tensor | None  # (E_m,) of a party that kept nothing
    frozen: bool  # it kept nothing and `net` is the pre-trained one
    selection: dict[str, Any] | None = None  # how features were chosen by shadows
    rating: Rating | None = None  # of all features, by a method's own protocol


def cut_columns(X: Tensor, used: Tensor) -> Tensor:
    """Return the columns of a table (N, columns) that are in use, in memory."""
    return X[:, used]


@dataclass(frozen=True)
class PartyData:
    """What a party brings into a run; what it selects later is not in here."""

    X_train: Tensor  # (N, columns)
    X_test: Tensor
    groups: Tensor  # (columns,), the feature of every column
    must_keep: Sequence[bool] = ()  # own features a selection by shadows may not remove
    cut: Callable[[Tensor, Tensor], Tensor] = cut_columns  # a table on disk has its own
    blocks: Tensor | None = None  # of training rows (N,), int64; None: all are alone
    alone: Tensor | None = None  # (n, columns), rows that no other party has
    places: Tensor | None = None  # of training rows (N,) in the party's own file
