"""The status of one run: updated by its server, read from any thread."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypedDict

from lessvfl import __version__

if TYPE_CHECKING:
    from lessvfl.terms import Event, PartyId, Stage

State = Literal["waiting", "running", "paused", "done", "failed"]
Way = Literal["up", "down"]

SETUP = "setup"  # traffic before the first stage: joining, aligning
JOINT = frozenset(
    {"pretrain", "joint_lasso", "settle", "train"}
)  # steps of joint training
ALONE = frozenset({"select_components"})  # the server needs no party
N_EVENTS = 20
N_REASONS = 32
OTHER = "other"


class Ways(TypedDict):
    """Bytes to the server (up) and from it (down)."""

    up: int
    down: int


class Traffic(TypedDict):
    """Exchanges, bytes of the bill, and bytes on the wire."""

    rounds: int
    payload_bytes: Ways
    wire_bytes: Ways


class PartySnapshot(TypedDict):
    """One party at one moment; times in ISO 8601, UTC."""

    connected: bool
    since: str
    since_seconds: float
    heard: str | None
    heard_seconds: float | None
    connections: int
    traffic: Traffic
    by_stage: dict[str, Traffic]


class Score(TypedDict):
    """The latest score and what it is called."""

    name: str
    value: float


class Happening(TypedDict):
    """Something that happened, numbered from 1."""

    number: int
    time: str
    text: str


class Snapshot(TypedDict):
    """A run at one moment, in plain JSON values; docs/status.md explains each."""

    lessvfl: str
    run: str
    method: str
    data: str
    started: str
    now: str
    seconds: float
    state: State
    message: str
    stage: str | None
    epoch: float | None
    n_epochs: float | None
    step: int | None
    n_steps: int | None
    steps_per_second: float | None
    stage_seconds_left: float | None
    seconds_left: float | None
    score: Score | None
    plan: dict[str, int]
    steps: dict[str, int]
    traffic: Traffic
    parties: dict[str, PartySnapshot]
    refused: dict[str, int]
    events: list[Happening]


@dataclass
class _Carried:
    """What was exchanged so far; only grows."""

    rounds: int = 0
    up: int = 0
    down: int = 0
    wire_up: int = 0
    wire_down: int = 0

    def add(self, other: _Carried) -> None:
        self.rounds += other.rounds
        self.up += other.up
        self.down += other.down
        self.wire_up += other.wire_up
        self.wire_down += other.wire_down

    def snapshot(self) -> Traffic:
        return {
            "rounds": self.rounds,
            "payload_bytes": {"up": self.up, "down": self.down},
            "wire_bytes": {"up": self.wire_up, "down": self.wire_down},
        }


@dataclass
class _Party:
    """What is known of one party."""

    since: float
    connected: bool = False
    heard: float | None = None
    connections: int = 0
    by_stage: dict[str, _Carried] = field(default_factory=dict)

    def cost(self) -> _Carried:
        """Return what was exchanged in all stages but evaluation, as the bill does."""
        total = _Carried()
        for stage, carried in self.by_stage.items():
            if stage != "evaluate":
                total.add(carried)
        return total


class Status:
    """What a run is doing, for everybody who wants to know.

    All methods may be called from any thread, and each is cheap enough for every step.
    The state follows from the facts: somebody missing before the first stage is
    *waiting*, somebody missing later is *paused* (unless the server is at work alone),
    and otherwise the run is *running* until `ended`.

    Parameters
    ----------
    run, method, data : str
        Names to show.
    parties : iterable of str
        The parties that belong to the run; others cannot connect.
    plan : mapping of stage to int
        Steps of every stage, in order; stages that are not in it do not count for the
        time left in all.
    started : datetime, optional
        When the run began, now if not given; a resumed run gives its first beginning.
    window : float
        Seconds over which steps a second are taken.
    clock : callable
        Returns seconds that never run backwards.

    Examples
    --------
    >>> status = Status("r1", "plain", "digits", ["bank"], {"train": 400})
    >>> status.snapshot()["message"]
    'waiting for bank'
    >>> status.connect("bank")
    >>> status.stepped("train", 1, 400)
    >>> status.snapshot()["state"], status.snapshot()["step"]
    ('running', 1)
    """

    def __init__(
        self,
        run: str,
        method: str,
        data: str,
        parties: Iterable[PartyId],
        plan: Mapping[Stage, int],
        *,
        started: datetime | None = None,
        window: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = (run, method, data)
        self._plan: dict[str, int] = {str(stage): n for stage, n in plan.items()}
        self._clock = clock
        self._window = window
        self._lock = threading.Lock()
        now = datetime.now(UTC)
        self._begun = clock()  # of this process
        self._zero = now - timedelta(seconds=self._begun)  # the clock's zero
        self._started = now if started is None else started.astimezone(UTC)
        self._ended: tuple[float, str | None] | None = None
        self._parties = {name: _Party(self._begun) for name in parties}
        self._stage: str | None = None
        self._reached = -1  # furthest stage of the plan
        self._epochs: tuple[float, float] | None = None
        self._steps: tuple[int, int] | None = None
        self._done: Counter[str] = Counter()  # most steps done, by stage
        self._marks: deque[tuple[float, float]] = deque()  # (time, steps or epochs)
        self._marked = self._begun  # time of the latest step or epoch
        self._joint_rate: float | None = None
        self._score: Score | None = None
        self._refused: Counter[str] = Counter()
        self._events: deque[Happening] = deque(maxlen=N_EVENTS)
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

    def hear(self, party: PartyId) -> None:
        """Say that a party gave a sign of life."""
        with self._lock:
            self._parties[party].heard = self._clock()

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
        """Count what one exchange with a party carried.

        Parameters
        ----------
        party : str
            With whom.
        up, down : int
            Payload bytes, as in the bill.
        wire_up, wire_down : int
            Bytes on the wire.
        rounds : int
            Exchanges; more than one for what a resumed run did before.
        stage : Stage, optional
            The present one if not given; ``setup`` before the first. Evaluation must
            say that it is ``evaluate``.
        """
        more = _Carried(rounds, up, down, wire_up, wire_down)
        assert min(rounds, up, down, wire_up, wire_down) >= 0
        with self._lock:
            known = self._parties[party]
            by_stage = known.by_stage
            by_stage.setdefault(stage or self._stage or SETUP, _Carried()).add(more)
            if known.connected:
                known.heard = self._clock()

    def stepped(self, stage: Stage, step: int, n_steps: int) -> None:
        """Say that `step` of the `n_steps` of a stage are done; 0 begins the stage."""
        with self._lock:
            self._enter(stage)
            if self._steps is None:
                self._marks.clear()  # marks of epochs
            self._steps = (step, n_steps)
            self._done[stage] = max(self._done[stage], step)
            self._mark(step)

    def observe(self, event: Event) -> None:
        """Take note of the end of an epoch; an `Observer`."""
        with self._lock:
            self._enter(event.stage)
            self._epochs = (float(event.epoch), float(event.n_epochs))
            if self._steps is None:
                self._mark(self._epochs[0])

    def scored(self, value: float, name: str = "accuracy") -> None:
        """Give the score so far; one that is not finite counts as none."""
        score: Score = {"name": name, "value": float(value)}
        with self._lock:
            self._score = score if math.isfinite(score["value"]) else None

    def refused(self, reason: str) -> None:
        """Count a refused connection.

        Reasons are few and ours, never a peer's text; past the first 32 they are
        counted as *other*.
        """
        with self._lock:
            known = reason in self._refused or len(self._refused) < N_REASONS - 1
            self._refused[reason if known else OTHER] += 1

    def ended(self, message: str | None = None) -> None:
        """Say that the run is done, or with a sentence that it failed."""
        with self._lock:
            if self._ended is None:
                self._ended = (self._clock(), message)
                self._note("done" if message is None else f"failed: {message}")

    # -- read by everybody -------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return everything at this moment.

        Returns
        -------
        dict
            Plain JSON values: names (`lessvfl`, the version; `run`, `method`, `data`),
            times (`started`, `now`, `seconds`), `state` and `message`, the place in the
            run (`stage`, `epoch`, `n_epochs`, `step`, `n_steps`), `steps_per_second`,
            `stage_seconds_left` and `seconds_left`, `score`, `plan` and `steps` by
            stage, `traffic` of all parties, `parties` by name, `refused` connections by
            reason, and the latest `events`. What is not known is None.
        """
        with self._lock:
            now = self._clock()
            state, message = self._state()
            rate = self._rate(now) if state == "running" else None
            stage_left, left = self._left(rate)
            run, method, data = self._names
            step, n_steps = self._steps or (None, None)
            epoch, n_epochs = self._epochs or (None, None)
            end = now if self._ended is None else self._ended[0]
            costs = [party.cost() for party in self._parties.values()]
            return {
                "lessvfl": __version__,
                "run": run,
                "method": method,
                "data": data,
                "started": _iso(self._started),
                "now": self._time(now),
                "seconds": (self._at(end) - self._started).total_seconds(),
                "state": state,
                "message": message,
                "stage": self._stage,
                "epoch": epoch,
                "n_epochs": n_epochs,
                "step": step,
                "n_steps": n_steps,
                "steps_per_second": None if step is None else rate,
                "stage_seconds_left": stage_left,
                "seconds_left": left,
                "score": None if self._score is None else {**self._score},
                "plan": {**self._plan},
                "steps": {**self._done},
                "traffic": _total(costs).snapshot(),
                "parties": {
                    name: self._party(party, cost, now)
                    for (name, party), cost in zip(
                        self._parties.items(), costs, strict=True
                    )
                },
                "refused": {**self._refused},
                "events": [{**event} for event in self._events],
            }

    def _party(self, party: _Party, cost: _Carried, now: float) -> PartySnapshot:
        heard = party.heard
        return {
            "connected": party.connected,
            "since": self._time(party.since),
            "since_seconds": now - party.since,
            "heard": None if heard is None else self._time(heard),
            "heard_seconds": None if heard is None else now - heard,
            "connections": party.connections,
            "traffic": cost.snapshot(),
            "by_stage": {
                s: carried.snapshot() for s, carried in party.by_stage.items()
            },
        }

    def _state(self) -> tuple[State, str]:
        """Return the state that follows from the facts, and why."""
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

    def _at(self, moment: float) -> datetime:
        return self._zero + timedelta(seconds=moment)

    def _time(self, moment: float) -> str:
        return _iso(self._at(moment))

    def _note(self, text: str) -> None:
        self._n_events += 1
        time = self._time(self._clock())
        self._events.append({"number": self._n_events, "time": time, "text": text})

    def _enter(self, stage: str) -> None:
        """Begin a stage, unless it is the present one."""
        if stage == self._stage:
            return
        if self._stage in JOINT and self._steps is not None:
            self._joint_rate = self._rate(self._marked) or self._joint_rate
        if stage in self._plan:
            self._reached = max(self._reached, list(self._plan).index(stage))
        self._stage, self._epochs, self._steps = stage, None, None
        self._marks.clear()
        self._note(f"stage {stage.replace('_', ' ')}")

    def _mark(self, done: float) -> None:
        """Remember when so much was done, for the rate."""
        now = self._clock()
        self._marked = now
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()  # taken up again from an earlier step
        if self._marks and now - self._marks[-1][0] < self._window / 40:
            return
        self._marks.append((now, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window:
            self._marks.popleft()

    def _rate(self, now: float) -> float | None:
        """Return steps a second, or epochs where there are no steps."""
        place = self._steps or self._epochs
        if not self._marks or place is None:
            return None
        then, before = self._marks[0]
        if place[0] <= before or now <= then:
            return None
        return (place[0] - before) / (now - then)

    def _left(self, rate: float | None) -> tuple[float | None, float | None]:
        """Return the seconds left, of the stage and of the plan.

        A later stage of joint training goes as fast as the last one did; any other as
        fast as the present one.
        """
        place = self._steps or self._epochs
        if place is None or rate is None:
            return None, None
        here = max(0.0, place[1] - place[0]) / rate
        in_steps = rate if self._steps else None
        joint = in_steps if self._stage in JOINT else self._joint_rate
        left = here
        for stage in list(self._plan)[self._reached + 1 :]:
            pace = joint if stage in JOINT else in_steps or joint
            if self._plan[stage] and pace is None:
                return here, None
            left += self._plan[stage] / pace if pace else 0.0
        return here, left if self._plan else None


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _total(costs: list[_Carried]) -> _Carried:
    """Add up all parties; a round of the run is one with every party."""
    total = _Carried()
    for cost in costs:
        total.add(cost)
    total.rounds = max((cost.rounds for cost in costs), default=0)
    return total
