"""The ledger: who sent whom how many bytes, in which stage, in how many rounds.

Bytes are payload: elements x item size of what a message carries. Every amount is kept
per replica, because replicas that kept different components send blocks of different
width. Evaluation has its own stage and is never in the cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

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
    """One message on the bill: bytes and values of every replica."""

    party: PartyId
    direction: Direction
    stage: Stage
    kind: str
    payload_bytes: tuple[int, ...]  # (R,)
    n_values: tuple[int, ...]  # (R,)
    ahead: bool = False  # sent for a step whose gradient has not gone out yet


@dataclass
class Ledger:
    """Messages by what they cost, and rounds by stage; per replica.

    Equal messages are counted, not listed: a million steps make a few entries.
    """

    n_replicas: int
    rounds: dict[Stage, list[int]] = field(default_factory=dict)
    messages: Counter[BillLine] = field(default_factory=Counter)
    _passes: list[int] = field(init=False)  # values charged without a message
    _ahead: list[BillLine] = field(default_factory=list)
    watch: Callable[[BillLine], None] = lambda line: None  # told of every message

    def __post_init__(self) -> None:
        """Start at zero."""
        self._passes = [0] * self.n_replicas

    def bill_round(self, stage: Stage, live: Sequence[bool]) -> None:
        """Count one exchange for every replica in which a party took part."""
        rounds = self.rounds.setdefault(stage, [0] * self.n_replicas)
        for replica, counts in enumerate(live):
            rounds[replica] += counts
        if stage != "evaluate":
            self._ahead.clear()

    def bill(self, line: BillLine) -> None:
        """Add a message to the bill."""
        self.messages[line] += 1
        if line.ahead:
            self._ahead.append(line)
        self.watch(line)

    def state(self) -> dict[str, Any]:
        """Return the whole bill as plain values."""
        return {
            "rounds": {stage: list(counts) for stage, counts in self.rounds.items()},
            "messages": [[asdict(e), count] for e, count in self.messages.items()],
            "passes": list(self._passes),
            "ahead": [asdict(entry) for entry in self._ahead],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.rounds = {stage: list(some) for stage, some in state["rounds"].items()}
        self.messages = Counter({_line_of(e): count for e, count in state["messages"]})
        self._passes = list(state["passes"])
        self._ahead = [_line_of(entry) for entry in state["ahead"]]

    def charge_pass(self, n_values: Sequence[int]) -> None:
        """Charge an embedding pass that the paper bills but that no message needs."""
        for replica, count in enumerate(n_values):
            self._passes[replica] += count

    def payload_bytes(self, replica: int) -> int:
        """Return up + down so far, evaluation and what was sent ahead left out."""
        total = sum(self.direction_bytes(replica, way) for way in ("up", "down"))
        return total - sum(entry.payload_bytes[replica] for entry in self._ahead)

    def direction_bytes(self, replica: int, direction: Direction) -> int:
        """Return the bytes of one direction so far, without evaluation."""
        return sum(
            count * entry.payload_bytes[replica]
            for entry, count in self.messages.items()
            if entry.direction == direction and entry.stage != "evaluate"
        )

    def n_rounds(self, replica: int) -> int:
        """Return the rounds so far, without evaluation."""
        return sum(
            rounds[replica]
            for stage, rounds in self.rounds.items()
            if stage != "evaluate"
        )

    def paper_mib(self, replica: int) -> float:
        """Return the paper's figure: embeddings up only, 4 bytes a value, in MiB."""
        values = self._passes[replica] + sum(
            count * entry.n_values[replica]
            for entry, count in self.messages.items()
            if entry.kind == "embedding" and entry.stage != "evaluate"
        )
        values -= sum(entry.n_values[replica] for entry in self._ahead)
        return values * BYTES / MIB

    def by_stage(self, replica: int) -> dict[str, dict[str, int]]:
        """Return up, down and rounds of every stage with a round."""
        stages: dict[str, dict[str, int]] = {}
        for stage, rounds in self.rounds.items():
            if rounds[replica] > 0:
                stages[stage] = {"up": 0, "down": 0, "rounds": rounds[replica]}
        for line in self.lines(replica):
            way, paid = str(line["direction"]), int(line["payload_bytes"])
            stages[str(line["stage"])][way] += paid
        return stages

    def lines(self, replica: int) -> list[dict[str, str | int]]:
        """Return the bill of one replica line by line."""
        paid: dict[tuple[str, ...], int] = {}
        for entry, count in self.messages.items():
            key = (entry.party, entry.direction, entry.stage, entry.kind)
            paid[key] = paid.get(key, 0) + count * entry.payload_bytes[replica]
        names = ("party", "direction", "stage", "kind")
        return [
            {**dict(zip(names, key, strict=True)), "payload_bytes": n_bytes}
            for key, n_bytes in paid.items()
            if n_bytes > 0
        ]


def _line_of(values: Mapping[str, Any]) -> BillLine:
    """Return a line from its plain values."""
    tuples = {name: tuple(values[name]) for name in ("payload_bytes", "n_values")}
    return BillLine(**{**values, **tuples})
