"""The messages around a run: who joins, what is agreed, what is saved, how it ends.

=========== ========= =============================== ==================================
message     direction fields                          reveals
=========== ========= =============================== ==================================
Hello       up        name, threads, device, versions the party's software
Welcome     down      run, seeds, method, settings,   how the run goes, who takes part
                      parties, alignment
Align       both      bytes of the alignment          see docs/alignment.md
Prepare     down      the seed of the next run, its   which common rows are for testing
                      training and test rows, as
                      places in the common order
Save        down      a mark: stage and step          nothing
Restore     down      a mark, or none: from the start nothing
Open        down      run, seed, session, digest of   that a model is used, and when
                      the fusion network, alignment
Ask         down      rows, as places in the common   for whom something is predicted
                      order
Declined    up        a sentence                      why a party does not answer this
Finish      down      a digest of the fusion network  that the run of this seed is over
Farewell    down      none                            that all know it
Agreed      up        a digest of its network; what   what its operator allows: how many
                      it reveals: nothing by default  or which features it kept
Busy        up        none                            that the party computes
Refusal     both      a kind of error, a sentence     why the other side stops
=========== ========= =============================== ==================================

They are not part of the method and not on its bill; their bytes are wire bytes.
A refusal says of an error its kind and its public sentence (:mod:`lessvfl.errors`);
the rest of what the error says stays at home.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.errors import LessVFLError


@dataclass(frozen=True)
class Hello:
    """A party joins."""

    party: str
    threads: int
    device: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Welcome:
    """The server takes a party in and says what will be run."""

    run: str  # the run's own number
    seeds: tuple[int, ...]  # one run each, in this order
    method: str
    settings: Mapping[str, Any]
    parties: tuple[str, ...]
    align: str  # how common rows are found


@dataclass(frozen=True)
class Align:
    """One message of the alignment of rows."""

    data: bytes


@dataclass(frozen=True)
class Prepare:
    """A run begins: its seed, and which common rows are for training and testing."""

    seed: int
    train: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class Save:
    """Write down the state at this mark, as in ``train-150``."""

    tag: str


@dataclass(frozen=True)
class Restore:
    """Take up the state at this mark; None: from the start."""

    tag: str | None


@dataclass(frozen=True)
class Finish:
    """The run of this seed is over: write it down, with whose network it goes."""

    model: str  # a digest


@dataclass(frozen=True)
class Open:
    """Use the model of one seed to predict, with the rows of a session."""

    run: str
    seed: int
    session: str  # rows are aligned once a session
    model: str  # a digest of the fusion network
    align: str


@dataclass(frozen=True)
class Ask:
    """Send the embeddings of these rows; places in the common order."""

    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Declined:
    """No to this request, and why; the next one may be answered."""

    reason: str


@dataclass(frozen=True)
class Farewell:
    """Everybody has what they need: go."""


@dataclass(frozen=True)
class Agreed:
    """Done as asked; what the party is willing to reveal."""

    revealed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Busy:
    """A sign of life: the reply of this exchange is being computed."""


@dataclass(frozen=True)
class Refusal:
    """No, and why; `final` where trying again is of no use."""

    kind: str
    reason: str
    final: bool = True

    @classmethod
    def of(cls, error: BaseException) -> Refusal:
        """Return what another side may hear of an error."""
        if isinstance(error, KeyboardInterrupt):
            return cls("interrupted", "That side was interrupted.")
        if not isinstance(error, LessVFLError):
            return cls(LessVFLError.kind, LessVFLError.public)
        return cls(error.kind, printable(error.public))


def printable(text: str, limit: int = 2000) -> str:
    """Return a text of another side as it may be shown."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])
