"""A run at one moment, in plain JSON values."""

from __future__ import annotations

from typing import Literal, TypedDict

RunState = Literal["waiting", "running", "paused", "done", "failed"]
Way = Literal["up", "down"]


class TrafficSnapshot(TypedDict):
    """Exchanges, bytes of the bill, and bytes on the wire."""

    rounds: int
    payload_bytes: dict[Way, int]
    wire_bytes: dict[Way, int]


class PartySnapshot(TypedDict):
    """One party at one moment; times in ISO 8601, UTC."""

    connected: bool
    since_seconds: float
    heard: str | None
    heard_seconds: float | None
    connections: int
    traffic: TrafficSnapshot
    by_stage: dict[str, TrafficSnapshot]


class Score(TypedDict):
    """The latest score and what it is called."""

    name: str
    value: float


class SeedScore(Score):
    """The score of a seed at its end."""

    seed: int


class StatusEvent(TypedDict):
    """A change of stage or connection, numbered from 1."""

    number: int
    time: str
    text: str


class Allowance(TypedDict):
    """What a party's policy still allows to be asked of it."""

    rounds: int
    values: float


class RunPlace(TypedDict):
    """Where in its seeds and stages a run is; what is not known is None."""

    doing: str | None
    seed: int | None
    seed_number: int | None
    n_seeds: int | None
    stage: str | None
    epoch: float | None
    n_epochs: float | None
    step: int | None
    n_steps: int | None


class Snapshot(RunPlace):
    """A run at one moment, in plain JSON values; docs/status.md explains each."""

    lessvfl: str
    side: str
    run: str
    method: str
    data: str
    started: str
    now: str
    seconds: float
    state: RunState
    message: str
    steps_per_second: float | None
    stage_seconds_left: float | None
    score: Score | None
    scores: list[SeedScore]
    steps: dict[str, int]
    traffic: TrafficSnapshot
    parties: dict[str, PartySnapshot]
    refused: dict[str, int]
    allowance: Allowance | None
    events: list[StatusEvent]
