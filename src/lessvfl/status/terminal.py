"""A run in the terminal of its server, and its log as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lessvfl.status import Snapshot, Status, words

if TYPE_CHECKING:
    from lessvfl.status.value import PartySnapshot, Traffic, Way

# ------------------------------------------------------------------------- the terminal


@contextlib.contextmanager
def show(
    status: Status,
    *,
    quiet: bool = False,
    console: Console | None = None,
    every: float = 5.0,
) -> Iterator[None]:
    """Show what a run is doing for as long as the block lasts.

    On a terminal this is a view that is drawn twice a second and gone at the end.
    Elsewhere it is plain lines: every change of stage or connection as it happens, and
    every few seconds how far the run is.

    Parameters
    ----------
    status : Status
        What to show.
    quiet : bool
        Show nothing.
    console : rich.console.Console, optional
        Where to; standard error if not given.
    every : float
        Seconds between two plain lines of progress.
    """
    console = console or Console(stderr=True)
    if quiet:
        yield
    elif console.is_terminal:
        with Live(
            get_renderable=lambda: view(status.snapshot(), *console.size),
            console=console,
            refresh_per_second=2,
            transient=True,
        ):
            yield
    else:
        with _in_background(_Lines(status, console.file, every)):
            yield


@contextlib.contextmanager
def _in_background(look: Callable[[], None]) -> Iterator[None]:
    """Call a function twice a second until the block ends, and once more then."""
    over = threading.Event()

    def watch() -> None:
        # A closed or broken stream ends the lines, not the run.
        with contextlib.suppress(OSError, ValueError):
            while not over.wait(0.5):
                look()
            look()

    thread = threading.Thread(target=watch, name="lessvfl-console", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Lines:
    """Write what is new in a status as plain lines."""

    def __init__(self, status: Status, stream: IO[str], every: float) -> None:
        self._status = status
        self._stream = stream
        self._every = every
        self._n_events = 0
        self._last = ("", -math.inf)  # the latest line of progress and its time

    def __call__(self) -> None:
        """Look once."""
        snapshot = self._status.snapshot()
        lines = []
        for event in snapshot["events"]:
            if event["number"] > self._n_events:
                self._n_events = event["number"]
                lines.append(event["text"])
        text, seconds = self._last
        line = progress_line(snapshot)
        due = snapshot["seconds"] - seconds >= self._every
        if due and line != text and snapshot["state"] not in ("done", "failed"):
            self._last = (line, snapshot["seconds"])
            lines.append(line)
        if lines:
            now = snapshot["now"][11:19]
            text = "".join(f"{now} {words.printable(line)}\n" for line in lines)
            self._stream.write(text)
            self._stream.flush()


def progress_line(snapshot: Snapshot) -> str:
    """Say in one line how far a run is."""
    parts = [words.headline(snapshot)]
    if snapshot["state"] == "running":
        traffic = snapshot["traffic"]
        parts += _pace(snapshot)
        parts += [f"{_sent(traffic, 'up')} up", f"{_sent(traffic, 'down')} down"]
    parties = snapshot["parties"].values()
    n_connected = sum(party["connected"] for party in parties)
    return ", ".join([*parts, f"{n_connected} of {len(parties)} parties"])


def _pace(snapshot: Snapshot) -> list[str]:
    """Say how fast a run is and how long it will take, as far as known."""
    parts = []
    if snapshot["steps_per_second"] is not None:
        parts.append(f"{words.rate_text(snapshot['steps_per_second'])} steps/s")
    if snapshot["stage_seconds_left"] is not None:
        left = f"{words.time_text(snapshot['stage_seconds_left'])} left"
        if snapshot["seconds_left"] is not None:
            left += f" ({words.time_text(snapshot['seconds_left'])} in all)"
        parts.append(left)
    return parts


def _sent(traffic: Traffic, way: Way) -> str:
    return words.bytes_text(traffic["payload_bytes"][way])


# ----------------------------------------------------------------------------- the view

STYLES = {
    "waiting": "yellow",
    "running": "green",
    "paused": "yellow",
    "done": "green",
    "failed": "red",
}


def view(snapshot: Snapshot, width: int = 80, height: int = 24) -> RenderableType:
    """Draw a snapshot.

    Parameters
    ----------
    snapshot : dict
        Of `Status.snapshot`.
    width, height : int
        Size of the terminal. Columns that do not fit are left out; parties that do not
        fit are counted, and those that are away come first.

    Returns
    -------
    RenderableType
        For a `rich.console.Console`.
    """
    title = f"{snapshot['method']} on {snapshot['data']} · run {snapshot['run']} · "
    state = snapshot["state"]
    head = Text(words.printable(title), overflow="ellipsis", no_wrap=True)
    head.append(state, STYLES[state])
    head.append(f" · {words.time_text(snapshot['seconds'])}")
    parts: list[RenderableType] = [head, _progress(snapshot, width)]
    if pace := _pace(snapshot):
        parts.append(Text(" · ".join(pace), style="dim"))
    parts += [_parties(snapshot, width, max(3, height - 9)), _foot(snapshot)]
    return Group(*parts)


def _progress(snapshot: Snapshot, width: int) -> RenderableType:
    line = Text(words.printable(words.headline(snapshot)))
    done = words.progress(snapshot)
    if done is None or snapshot["state"] != "running":
        return line
    row = Table.grid(padding=(0, 2))
    room = min(30, max(5, width - len(line) - 4))
    row.add_row(line, ProgressBar(total=done[1], completed=done[0], width=room))
    return row


def _parties(snapshot: Snapshot, width: int, n_rows: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    widest = 24 if width >= 100 else 16
    table.add_column("party", overflow="ellipsis", max_width=widest, no_wrap=True)
    table.add_column("state", no_wrap=True)
    columns = ("up", "down", "rounds", "wire", "heard")[: 5 if width >= 80 else 2]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    parties = snapshot["parties"].items()
    shown = sorted(parties, key=lambda item: item[1]["connected"])
    shown = list(parties) if len(parties) <= n_rows else shown[: n_rows - 1]
    for name, party in shown:
        cells = _cells(party)[: len(columns) + 1]
        table.add_row(Text(words.printable(name)), *cells)
    if len(shown) < len(parties):
        table.add_row(f"and {len(parties) - len(shown)} more")
    return table


def _cells(party: PartySnapshot) -> list[RenderableType]:
    since = words.time_text(party["since_seconds"])
    traffic, heard = party["traffic"], party["heard_seconds"]
    wire = traffic["wire_bytes"]
    return [
        Text("connected", "green")
        if party["connected"]
        else Text(f"away for {since}", "yellow"),
        _sent(traffic, "up"),
        _sent(traffic, "down"),
        f"{traffic['rounds']:,}",
        words.bytes_text(wire["up"] + wire["down"]),
        "never" if heard is None else f"{words.time_text(heard)} ago",
    ]


def _foot(snapshot: Snapshot) -> Text:
    traffic = snapshot["traffic"]
    wire = traffic["wire_bytes"]
    parts = [
        f"{_sent(traffic, 'up')} up, {_sent(traffic, 'down')} down, "
        f"{words.bytes_text(wire['up'] + wire['down'])} on the wire"
    ]
    if score := snapshot["score"]:
        parts.append(f"{score['name']} {score['value']:.4f}")
    if n_refused := sum(snapshot["refused"].values()):
        parts.append(f"refused connections: {n_refused:,}")
    return Text(words.printable(" · ".join(parts)), style="dim")


# ------------------------------------------------------------------------- the JSON log

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_SECRET_NAME = re.compile(
    r"key|secret|passw|passphrase|token|credential", re.IGNORECASE
)
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
HIDDEN = "(hidden)"


class JsonFormatter(logging.Formatter):
    """Write a log record as one line of JSON.

    Fields are `time` (ISO 8601, UTC), `level`, `logger`, `message`, `traceback` where
    there is one, and whatever plain value was given as ``extra`` (a party, a stage, a
    step). Of anything else, such as an array, only the type is written. Private keys
    and fields named like secrets are hidden.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _safe_text(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = _safe_text(self.formatException(record.exc_info))
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in fields:
                fields[name] = HIDDEN if _SECRET_NAME.search(name) else _plain(value)
        return json.dumps(fields, allow_nan=False)


def _safe_text(text: str) -> str:
    return _SECRET_TEXT.sub(HIDDEN, text)


def _plain(value: object) -> object:
    """Return a plain value as it is, of any other no more than its type."""
    if isinstance(value, str):
        return _safe_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    return f"({type(value).__name__})"


@contextlib.contextmanager
def json_logs(
    stream: IO[str] | None = None, level: int = logging.INFO
) -> Iterator[logging.Handler]:
    """Write the log of lessvfl as JSON lines for as long as the block lasts.

    Parameters
    ----------
    stream : text stream, optional
        Where to; standard error if not given.
    level : int
        The least important level to write.

    Yields
    ------
    logging.Handler
        The handler at the logger ``lessvfl``.
    """
    logger = logging.getLogger("lessvfl")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield handler
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
