"""The ledger: who sent whom how many bytes, in which stage, in how many rounds.

Bytes are payload: elements x item size of what a message carries. Every amount is kept
per replica, because replicas that kept different components send blocks of different
width. Evaluation has its own stage and is never in the cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lessvfl.terms import PartyId, Stage

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
    """Messages by what they cost, and rounds by stage; per replica.

    Equal messages are counted, not listed: a million steps make a few entries.
    """

    n_replicas: int
    rounds: dict[Stage, list[int]] = field(default_factory=dict)
    messages: Counter[Entry] = field(default_factory=Counter)
    _passes: list[int] = field(init=False)  # values charged without a message
    _ahead: list[Entry] = field(default_factory=list)

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

    def bill(self, entries: Iterable[Entry]) -> None:
        """Add messages to the bill."""
        for entry in entries:
            self.messages[entry] += 1
            if entry.ahead:
                self._ahead.append(entry)

    def state(self) -> dict[str, Any]:
        """Return the whole bill as plain values."""
        return {
            "rounds": {stage: list(counts) for stage, counts in self.rounds.items()},
            "messages": [[asdict(e), count] for e, count in self.messages.items()],
            "passes": list(self._passes),
            "ahead": [asdict(entry) for entry in self._ahead],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a bill as :meth:`state` gave it."""
        self.rounds = {stage: list(some) for stage, some in state["rounds"].items()}
        self.messages = Counter({_entry(e): count for e, count in state["messages"]})
        self._passes = list(state["passes"])
        self._ahead = [_entry(entry) for entry in state["ahead"]]

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
        return values * 4 / MIB

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


def _entry(values: Mapping[str, Any]) -> Entry:
    """Return an entry out of its plain values."""
    tuples = {name: tuple(values[name]) for name in ("payload_bytes", "n_values")}
    return Entry(**{**values, **tuples})
