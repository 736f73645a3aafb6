"""The ledger: who sent whom how many bytes, in which stage, in how many rounds.

Bytes are payload: elements x item size of what a message carries. Every amount is kept
per replica, because replicas that kept different components send blocks of different
width. Evaluation has its own stage and is never in the cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lessvfl.types import PartyId, Stage

Direction = Literal["up", "down"]
MIB = 2**20


@dataclass(frozen=True)
class Entry:
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
    """Bytes by party, direction, stage and kind, and rounds by stage; per replica."""

    n_replicas: int
    payload: dict[tuple[PartyId, Direction, Stage, str], list[int]] = field(
        default_factory=dict
    )
    rounds: dict[Stage, list[int]] = field(default_factory=dict)
    embedding_values: list[int] = field(init=False)
    _ahead: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Start at zero."""
        self.embedding_values = [0] * self.n_replicas
        self._ahead = defaultdict(lambda: [0] * self.n_replicas)

    def bill_round(self, stage: Stage, live: Sequence[bool]) -> None:
        """Count one exchange for every replica in which a party took part."""
        rounds = self.rounds.setdefault(stage, [0] * self.n_replicas)
        for replica, counts in enumerate(live):
            rounds[replica] += counts
        if stage != "evaluate":
            self._ahead.clear()

    def bill(self, entries: Iterable[Entry]) -> None:
        """Add messages to the bill."""
        for entry in entries:
            key = (entry.party, entry.direction, entry.stage, entry.kind)
            paid = self.payload.setdefault(key, [0] * self.n_replicas)
            embedding = entry.kind == "embedding" and entry.stage != "evaluate"
            for replica in range(self.n_replicas):
                paid[replica] += entry.payload_bytes[replica]
                if embedding:
                    self.embedding_values[replica] += entry.n_values[replica]
                if entry.ahead:
                    self._ahead["bytes"][replica] += entry.payload_bytes[replica]
                    self._ahead["values"][replica] += entry.n_values[replica]

    def charge_pass(self, n_values: Sequence[int]) -> None:
        """Charge an embedding pass that the paper bills but that no message needs."""
        for replica, count in enumerate(n_values):
            self.embedding_values[replica] += count

    def payload_bytes(self, replica: int) -> int:
        """Return up + down so far, evaluation and what was sent ahead left out."""
        total = sum(self.direction_bytes(replica, way) for way in ("up", "down"))
        return total - self._ahead["bytes"][replica]

    def direction_bytes(self, replica: int, direction: Direction) -> int:
        """Return the bytes of one direction so far, without evaluation."""
        return sum(
            paid[replica]
            for (_, way, stage, _), paid in self.payload.items()
            if way == direction and stage != "evaluate"
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
        values = self.embedding_values[replica] - self._ahead["values"][replica]
        return values * 4 / MIB

    def by_stage(self, replica: int) -> dict[str, dict[str, int]]:
        """Return up, down and rounds of every stage with a round."""
        stages: dict[str, dict[str, int]] = {}
        for stage, rounds in self.rounds.items():
            if rounds[replica] > 0:
                stages[stage] = {"up": 0, "down": 0, "rounds": rounds[replica]}
        for (_, direction, stage, _), paid in self.payload.items():
            if paid[replica] > 0:
                stages[stage][direction] += paid[replica]
        return stages

    def lines(self, replica: int) -> list[dict[str, str | int]]:
        """Return the bill of one replica line by line."""
        return [
            {
                "party": party,
                "direction": direction,
                "stage": stage,
                "kind": kind,
                "payload_bytes": paid[replica],
            }
            for (party, direction, stage, kind), paid in self.payload.items()
            if paid[replica] > 0
        ]
