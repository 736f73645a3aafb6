"""A run in the terminal: a live view, or plain lines where there is none."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lessvfl.status import Snapshot, Status, words
from lessvfl.terms import bytes_text

if TYPE_CHECKING:
    from lessvfl.status.value import PartySnapshot

STYLES = {"running": "green", "done": "green", "failed": "red"}  # others are yellow


@contextlib.contextmanager
def show(
    status: Status,
    *,
    quiet: bool = False,
    console: Console | None = None,
    every: float = 5.0,
    times: bool = True,
) -> Iterator[None]:
    """Show what a run is doing for as long as the block lasts.

    On a terminal this is a view that is drawn twice a second and gone at the end.
    Elsewhere it is plain lines: every change of stage or connection as it comes, and
    after `every` seconds without one how far the run is; they begin with the time where
    `times` is true. Standard error is shown to unless another `console` is given.
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
        with _in_background(_Lines(status, console.file, every, times)):
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


# ---------------------------------------------------------------------------- the lines


class _Lines:
    """Write what is new in a status as plain lines."""

    def __init__(
        self, status: Status, stream: IO[str], every: float, times: bool
    ) -> None:
        self._status, self._stream = status, stream
        self._every, self._times = every, times
        self._n_events = 0
        self._progress = ""
        self._written = -math.inf  # when there was something to write

    def __call__(self) -> None:
        """Look once."""
        snapshot = self._status.snapshot()
        events = [e for e in snapshot["events"] if e["number"] > self._n_events]
        lines = [event["text"] for event in events]
        if events:
            self._n_events = events[-1]["number"]
            self._written = snapshot["seconds"]
        progress = progress_line(snapshot)
        due = snapshot["seconds"] - self._written >= self._every
        begun = snapshot["stage"] or snapshot["state"] == "waiting"
        over = snapshot["state"] in ("done", "failed")
        if due and begun and not over and progress != self._progress:
            self._progress, self._written = progress, snapshot["seconds"]
            lines.append(progress)
        if lines:
            before = f"{snapshot['now'][11:19]} " if self._times else ""
            text = "".join(f"{before}{words.printable(line)}\n" for line in lines)
            self._stream.write(text)
            self._stream.flush()


def progress_line(snapshot: Snapshot) -> str:
    """Say in one line how far a run is."""
    parts = [words.headline(snapshot), *_pace(snapshot)]
    if snapshot["parties"]:
        if snapshot["state"] == "running":
            parts.append(words.sent_text(snapshot["traffic"]))
        parts.append(f"{words.connected_text(snapshot)} parties")
    return ", ".join(parts)


def _pace(snapshot: Snapshot) -> list[str]:
    """Say how fast a run is and how long its stage will take, as far as known."""
    parts = []
    if snapshot["steps_per_second"] is not None:
        parts.append(f"{words.rate_text(snapshot['steps_per_second'])} steps/s")
    if snapshot["stage_seconds_left"] is not None:
        parts.append(f"{words.time_text(snapshot['stage_seconds_left'])} left")
    return parts


# ----------------------------------------------------------------------------- the view


def view(snapshot: Snapshot, width: int = 80, height: int = 24) -> RenderableType:
    """Draw a snapshot for a terminal of a size.

    Columns that do not fit are left out; parties that do not fit are counted, and those
    that are away come first. Without parties there is no table and no traffic.
    """
    title = f"{snapshot['method']} on {snapshot['data']} · "
    if snapshot["run"]:
        title += f"run {snapshot['run']} · "
    state = snapshot["state"]
    head = Text(words.printable(title), overflow="ellipsis", no_wrap=True)
    head.append(state, STYLES.get(state, "yellow"))
    head.append(f" · {words.time_text(snapshot['seconds'])}")
    parts: list[RenderableType] = [head, _progress(snapshot, width)]
    if pace := _pace(snapshot):
        parts.append(Text(" · ".join(pace), style="dim"))
    if snapshot["parties"]:
        parts.append(_parties(snapshot, width, max(3, height - 9)))
    if foot := _foot(snapshot):
        parts.append(Text(words.printable(" · ".join(foot)), style="dim"))
    return Group(*parts)


def _progress(snapshot: Snapshot, width: int) -> RenderableType:
    line = Text(words.printable(words.headline(snapshot)))
    in_steps = snapshot["step"] is not None
    done = snapshot["step"] if in_steps else snapshot["epoch"]
    total = snapshot["n_steps"] if in_steps else snapshot["n_epochs"]
    if done is None or not total or snapshot["state"] != "running":
        return line
    row = Table.grid(padding=(0, 2))
    room = min(30, max(5, width - len(line) - 4))
    row.add_row(line, ProgressBar(total=total, completed=done, width=room))
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
    away = Text(f"away for {words.time_text(party['since_seconds'])}", "yellow")
    traffic = party["traffic"]
    return [
        Text("connected", "green") if party["connected"] else away,
        bytes_text(traffic["payload_bytes"]["up"]),
        bytes_text(traffic["payload_bytes"]["down"]),
        f"{traffic['rounds']:,}",
        words.wire_text(traffic),
        words.ago_text(party["heard_seconds"]),
    ]


def _foot(snapshot: Snapshot) -> list[str]:
    parts = []
    traffic = snapshot["traffic"]
    if snapshot["parties"]:
        sent = words.sent_text(traffic)
        parts.append(f"{sent}, {words.wire_text(traffic)} on the wire")
    if score := snapshot["score"]:
        parts.append(f"{score['name']} {score['value']:.4f}")
    if n_refused := sum(snapshot["refused"].values()):
        parts.append(f"refused connections: {n_refused:,}")
    return parts
