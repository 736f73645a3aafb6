"""The ledger: who sent whom how many bytes, in which stage, in how many rounds.

Bytes are payload: elements x item size of what a message carries. Evaluation has its
own stage and is never in the cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from lessvfl.terms import PartyId, Stage

Direction = Literal["up", "down"]
MIB = 2**20
BYTES = 4  # of a value in the paper's account, and of a component's number
Count = TypeVar("Count", int, NDArray[np.int64])


def closed_payload(
    trained: Count, once: Count, listed: Count, item_bytes: int
) -> Count:
    """Return the payload of a run without its messages: the closed form of a bill.

    `trained` values of embeddings went up and as many derivatives down, `once` values
    went up alone (a stored pass, constants), and `listed` components were named. The
    paper's account is of 4 bytes for every value that went up.

    >>> closed_payload(trained=10, once=5, listed=3, item_bytes=8)
    212
    """
    return (2 * trained + once) * item_bytes + listed * BYTES


@dataclass(frozen=True)
class BillLine:
    """One message on the bill."""

    party: PartyId
    direction: Direction
    stage: Stage
    kind: str
    payload_bytes: int
    n_values: int
    ahead: bool = False  # sent for a step whose gradient has not gone out yet


@dataclass
class Ledger:
    """Messages by what they cost, and rounds by stage.

    Equal messages are counted, not listed: a million steps make a few entries.
    """

    rounds: Counter[Stage] = field(default_factory=Counter)
    messages: Counter[BillLine] = field(default_factory=Counter)
    n_passed: int = 0  # values charged without a message
    ahead: list[BillLine] = field(default_factory=list)  # in this round

    def bill_round(self, stage: Stage) -> None:
        """Count one exchange."""
        self.rounds[stage] += 1
        if stage != "evaluate":
            self.ahead.clear()

    def bill(self, line: BillLine) -> None:
        """Add a message to the bill."""
        self.messages[line] += 1
        if line.ahead:
            self.ahead.append(line)

    def charge_pass(self, n_values: int) -> None:
        """Charge an embedding pass that the paper bills but that no message needs."""
        self.n_passed += n_values

    @property
    def payload_bytes(self) -> int:
        """Return up + down so far, evaluation and what was sent ahead left out."""
        total = sum(self.direction_bytes(way) for way in ("up", "down"))
        return total - sum(entry.payload_bytes for entry in self.ahead)

    def direction_bytes(self, direction: Direction) -> int:
        """Return the bytes of one direction so far, without evaluation."""
        return sum(
            count * entry.payload_bytes
            for entry, count in self.messages.items()
            if entry.direction == direction and entry.stage != "evaluate"
        )

    @property
    def n_rounds(self) -> int:
        """Return the rounds so far, without evaluation."""
        return sum(n for stage, n in self.rounds.items() if stage != "evaluate")

    @property
    def paper_mib(self) -> float:
        """Return the paper's figure: embeddings up only, 4 bytes a value, in MiB."""
        values = self.n_passed + sum(
            count * entry.n_values
            for entry, count in self.messages.items()
            if entry.kind == "embedding" and entry.stage != "evaluate"
        )
        values -= sum(entry.n_values for entry in self.ahead)
        return values * BYTES / MIB

    def by_stage(self) -> dict[str, dict[str, int]]:
        """Return for each stage with a round its bytes up and down, and its rounds."""
        stages: dict[str, dict[str, int]] = {
            stage: {"up": 0, "down": 0, "rounds": rounds}
            for stage, rounds in self.rounds.items()
        }
        for line in self.lines():
            way, paid = str(line["direction"]), int(line["payload_bytes"])
            stages[str(line["stage"])][way] += paid
        return stages

    def lines(self) -> list[dict[str, str | int]]:
        """Return the bill line by line."""
        paid: Counter[tuple[str, ...]] = Counter()
        for entry, count in self.messages.items():
            key = (entry.party, entry.direction, entry.stage, entry.kind)
            paid[key] += count * entry.payload_bytes
        names = ("party", "direction", "stage", "kind")
        return [
            {**dict(zip(names, key, strict=True)), "payload_bytes": n_bytes}
            for key, n_bytes in paid.items()
            if n_bytes > 0
        ]
