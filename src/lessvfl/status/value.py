"""The status of one run: updated by the run, read from any thread."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from lessvfl import __version__
from lessvfl.status import words
from lessvfl.status.snapshot import (
    Allowance,
    PartySnapshot,
    RunPlace,
    RunState,
    Score,
    SeedScore,
    Snapshot,
    StatusEvent,
    TrafficSnapshot,
)
from lessvfl.terms import Event, PartyId, Progress, Stage, time_text

SETUP = "setup"  # traffic before the first stage: joining, aligning
ALONE = frozenset({"select_components"})  # the server needs no party
N_EVENTS = 20
N_REASONS = 32
OTHER = "other"
RATE_SECONDS = 10.0  # the rate is taken over the latest ones


@dataclass
class _PartyState:
    """What is known of one party; counts of exchanges and bytes only grow."""

    since: float
    connected: bool = False
    heard: float | None = None
    connections: int = 0
    by_stage: dict[str, Counter[str]] = field(default_factory=dict)

    def bill(self) -> Counter[str]:
        """Return what all stages but evaluation carried, as the ledger counts."""
        carried = (c for stage, c in self.by_stage.items() if stage != "evaluate")
        return sum(carried, Counter())


class Status:
    """What a run is doing, for everybody who wants to know.

    All methods may be called from any thread, and each is cheap enough for every step.
    The state is derived: while a party is missing, a run is *waiting* before the first
    stage and *paused* later (unless the server works alone); otherwise it is *running*
    until `ended`.

    `run`, `method` and `data` are names to show; `parties` are those that connect, none
    if all are in this process; `clock` returns seconds that never run backwards, and
    `begun` is when the wait for the run began, now unless given. At a party `side` is
    its name, and its only party is the server.
    """

    def __init__(
        self,
        run: str,
        method: str,
        data: str,
        parties: Iterable[PartyId] = (),
        *,
        side: str = "",
        clock: Callable[[], float] = time.monotonic,
        begun: float | None = None,
    ) -> None:
        self.advanced: Callable[[], None] = lambda: None  # called at steps and epochs
        self.followers: list[Progress] = []  # told of all that a `Progress` is told
        self._names = (run, method, data)
        self._side = side
        self._doing: str | None = None
        self._allowance: Allowance | None = None
        self._clock = clock
        self._lock = threading.Lock()
        now = clock()
        self._begun = now if begun is None else begun
        self._started = datetime.now(UTC) - timedelta(seconds=now - self._begun)
        self._ended: tuple[float, str | None] | None = None
        self._parties = {name: _PartyState(self._begun) for name in parties}
        self._seed: tuple[int, int, int] | None = None  # its place among how many
        self._stage: str | None = None
        self._epochs: tuple[float, float] | None = None
        self._steps: tuple[int, int] | None = None
        self._done: Counter[str] = Counter()  # most steps done, by stage
        self._before: Counter[str] = Counter()  # those of seeds that are over
        self._marks: deque[tuple[float, float]] = deque()  # (time, steps or epochs)
        self._planned = 0.0  # epochs of the stage, as it began
        self._score: Score | None = None
        self._stage_score: Score | None = None  # given in the present stage
        self._inside: Counter[str] = Counter()  # sent by parties of this process
        self._scores: list[SeedScore] = []
        self._refused: Counter[str] = Counter()
        self._events: deque[StatusEvent] = deque(maxlen=N_EVENTS)
        self._n_events = 0

    # -- written by the run ------------------------------------------------------------

    def connect(self, party: PartyId) -> None:
        """Say that a party is connected."""
        with self._lock:
            known, now = self._parties[party], self._clock()
            known.heard = now
            if known.connected:
                return
            known.connected, known.since = True, now
            known.connections += 1
            self._marks.clear()  # the time away is not the time of a step
            self._note(f"{party} connected")

    def lose(self, party: PartyId) -> None:
        """Say that a party's connection is gone."""
        with self._lock:
            known = self._parties[party]
            if known.connected:
                known.connected, known.since = False, self._clock()
                self._note(f"{party} away")

    def carried(
        self,
        party: PartyId,
        up: int = 0,
        down: int = 0,
        wire_up: int = 0,
        wire_down: int = 0,
        *,
        rounds: int = 1,
        stage: Stage | None = None,
    ) -> None:
        """Count the bytes of one exchange: payload as in the bill, and on the wire.

        They belong to the present stage (``setup`` before the first) unless another is
        given; evaluation must say that it is ``evaluate``.
        """
        more = Counter(
            rounds=rounds, up=up, down=down, wire_up=wire_up, wire_down=wire_down
        )
        assert min(more.values()) >= 0
        with self._lock:
            known = self._parties[party]
            where = stage or self._stage or SETUP
            known.by_stage.setdefault(where, Counter()).update(more)
            if known.connected:
                known.heard = self._clock()

    def begin_run(self, method: str) -> None:
        """Name the method, where it is known only now."""
        with self._lock:
            self._names = (self._names[0], method, self._names[2])

    def do(self, what: str, *, note: bool = True) -> None:
        """Say what is done before the first stage; a `note` makes it an event."""
        with self._lock:
            self._doing = what
            if note:
                self._note(what)

    def allow(self, rounds: int, values: float) -> None:
        """Say what this party's policy still allows."""
        with self._lock:
            self._allowance = {"rounds": rounds, "values": values}

    def sent(self, up: int, down: int, rounds: int) -> None:
        """Set what parties in this process have sent and received so far."""
        with self._lock:
            self._inside = Counter(up=up, down=down, rounds=rounds)
        for follower in self.followers:
            follower.sent(up, down, rounds)

    def begin_seed(self, seed: int, number: int, n_seeds: int) -> None:
        """Say that the run of a seed begins, the `number`-th (from 1) of `n_seeds`."""
        with self._lock:
            self._end_stage()
            self._seed = (seed, number, n_seeds)
            self._before += self._done
            self._done.clear()
            self._stage, self._epochs, self._steps = None, None, None
            self._marks.clear()
        for follower in self.followers:
            follower.begin_seed(seed, number, n_seeds)

    def stepped(self, stage: Stage, step: int, n_steps: int) -> None:
        """Say that `step` of the `n_steps` of a stage are done; 0 begins the stage."""
        with self._lock:
            self._advance(stage, steps=(step, n_steps))
        self.advanced()
        for follower in self.followers:
            follower.stepped(stage, step, n_steps)

    def observe(self, event: Event) -> None:
        """Record an epoch, or the start of a stage; an `Observer`."""
        with self._lock:
            epochs = (float(event.epoch), float(event.n_epochs))
            self._advance(event.stage, epochs=epochs)
        self.advanced()
        for follower in self.followers:
            follower.observe(event)

    def scored(self, value: float, name: str = "accuracy") -> None:
        """Give the score so far; one that is not finite counts as none."""
        score: Score = {"name": name, "value": float(value)}
        with self._lock:
            self._score = score if math.isfinite(score["value"]) else None
            self._stage_score = self._score
        for follower in self.followers:
            follower.scored(value, name)

    def refused(self, reason: str) -> None:
        """Count a refused connection.

        Reasons are few and ours, never a peer's text; past the first 32 they are
        counted as *other*.
        """
        with self._lock:
            known = reason in self._refused or len(self._refused) < N_REASONS - 1
            self._refused[reason if known else OTHER] += 1

    def ended(
        self,
        message: str | None = None,
        scores: Mapping[int, tuple[str, float]] = MappingProxyType({}),
    ) -> None:
        """Say that the run is done, or with a sentence that it failed.

        `scores` are the result of a run that is done: of every seed what was measured,
        and its value at the end.
        """
        with self._lock:
            if self._ended is None:
                if message is None:
                    self._end_stage()
                self._ended = (self._clock(), message)
                self._scores = [
                    {"seed": seed, "name": name, "value": float(value)}
                    for seed, (name, value) in scores.items()
                    if math.isfinite(value)
                ]
                done = f"done in {time_text(self._clock() - self._begun)}"
                self._note(done if message is None else f"failed: {message}")

    # -- read by everybody -------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return everything at this moment; what is not known is None."""
        with self._lock:
            now = self._clock()
            state, message = self._state()
            rate, left = self._pace(now) if state == "running" else (None, None)
            run, method, data = self._names
            end = now if self._ended is None else self._ended[0]
            bills = [party.bill() for party in self._parties.values()]
            total = sum(bills, Counter()) + self._inside
            # A round of the run is one with every party.
            bills.append(self._inside)
            total["rounds"] = max(bill["rounds"] for bill in bills)
            return {
                "lessvfl": __version__,
                "side": self._side,
                "run": run,
                "method": method,
                "data": data,
                "started": self._time(self._begun),
                "now": self._time(now),
                "seconds": end - self._begun,
                "state": state,
                "message": message,
                **self._place(),
                "steps_per_second": rate if self._steps else None,
                "stage_seconds_left": left,
                "score": None if self._score is None else {**self._score},
                "scores": [{**score} for score in self._scores],
                "steps": {**self._before + self._done},
                "traffic": _traffic(total),
                "parties": {n: self._party(p, now) for n, p in self._parties.items()},
                "refused": {**self._refused},
                "allowance": self._allowance,
                "events": [{**event} for event in self._events],
            }

    def _party(self, party: _PartyState, now: float) -> PartySnapshot:
        heard = party.heard
        return {
            "connected": party.connected,
            "since_seconds": now - party.since,
            "heard": None if heard is None else self._time(heard),
            "heard_seconds": None if heard is None else now - heard,
            "connections": party.connections,
            "traffic": _traffic(party.bill()),
            "by_stage": {s: _traffic(c) for s, c in party.by_stage.items()},
        }

    def _place(self) -> RunPlace:
        step, n_steps = self._steps or (None, None)
        epoch, n_epochs = self._epochs or (None, None)
        seed, number, n_seeds = self._seed or (None, None, None)
        return {
            "doing": None if self._stage else self._doing,
            "seed": seed,
            "seed_number": number,
            "n_seeds": n_seeds,
            "stage": self._stage,
            "epoch": epoch,
            "n_epochs": n_epochs,
            "step": step,
            "n_steps": n_steps,
        }

    def _state(self) -> tuple[RunState, str]:
        """Return the state and why it is so."""
        if self._ended is not None:
            message = self._ended[1]
            return ("done", "") if message is None else ("failed", message)
        missing = [n for n, party in self._parties.items() if not party.connected]
        if not missing or self._stage in ALONE:
            return "running", ""
        names = missing if len(missing) <= 4 else missing[:3]
        text = ", ".join(names)
        if len(names) < len(missing):
            text += f" and {len(missing) - len(names)} more"
        return ("waiting" if self._stage is None else "paused"), f"waiting for {text}"

    # -- time --------------------------------------------------------------------------

    def _time(self, moment: float) -> str:
        """Return a moment of the clock in ISO 8601."""
        then = self._started + timedelta(seconds=moment - self._begun)
        return then.isoformat(timespec="seconds")

    def _note(self, text: str) -> None:
        self._n_events += 1
        now = self._time(self._clock())
        self._events.append({"number": self._n_events, "time": now, "text": text})

    def _advance(
        self,
        stage: str,
        steps: tuple[int, int] | None = None,
        epochs: tuple[float, float] | None = None,
    ) -> None:
        """Record steps or epochs done; the rate is of steps where there are any."""
        is_new = stage != self._stage
        if is_new:
            self._end_stage()
            self._stage, self._epochs, self._steps = stage, None, None
        if is_new or (steps and not self._steps):
            self._marks.clear()  # of another stage, or of epochs
        self._steps = steps or self._steps
        self._epochs = epochs or self._epochs
        self._planned = max(self._planned, epochs[1] if epochs else 0.0)
        if steps:
            self._done[stage] = max(self._done[stage], steps[0])
        if place := steps or (None if self._steps else epochs):
            self._mark(place[0])
        if is_new:
            self._note(words.place_text(self._place()))

    def _end_stage(self) -> None:
        """Note the result of the current stage, if there is one."""
        if self._stage is not None:
            text = words.end_text(self._place(), self._planned, self._stage_score)
            if text:
                self._note(text)
        self._planned, self._stage_score = 0.0, None

    def _mark(self, done: float) -> None:
        """Remember when this many steps or epochs were done, for the rate."""
        now = self._clock()
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()  # taken up again from an earlier step
        if self._marks and now - self._marks[-1][0] < RATE_SECONDS / 40:
            return
        self._marks.append((now, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - RATE_SECONDS:
            self._marks.popleft()

    def _pace(self, now: float) -> tuple[float | None, float | None]:
        """Return steps a second (or epochs), and the seconds left of the stage."""
        place = self._steps or self._epochs
        if not self._marks or place is None:
            return None, None
        then, before = self._marks[0]
        if place[0] <= before or now <= then:
            return None, None
        rate = (place[0] - before) / (now - then)
        return rate, max(0.0, place[1] - place[0]) / rate


def _traffic(carried: Counter[str]) -> TrafficSnapshot:
    return {
        "rounds": carried["rounds"],
        "payload_bytes": {"up": carried["up"], "down": carried["down"]},
        "wire_bytes": {"up": carried["wire_up"], "down": carried["wire_down"]},
    }
