"""A run in the terminal: a live view, or plain lines where there is none."""

from __future__ import annotations

import contextlib
import logging
import math
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lessvfl.status import words
from lessvfl.status.snapshot import Snapshot
from lessvfl.terms import bytes_text, plural, time_text

STYLES = {"running": "green", "done": "green", "failed": "red"}  # others are yellow


class Source(Protocol):
    """What can be shown: a status, or that of another process."""

    def snapshot(self) -> Snapshot:
        """Return everything at this moment."""


@contextlib.contextmanager
def show(
    status: Source,
    *,
    quiet: bool = False,
    console: Console | None = None,
    every: float = 5.0,
    times: bool = True,
    log: logging.Logger | None = None,
) -> Iterator[None]:
    """Show what a run is doing for as long as the block lasts.

    On a terminal this is a view that is drawn twice a second and removed at the end.
    Elsewhere it is plain lines: every change of stage or connection, and after `every`
    seconds without one how far the run is; with `times` they begin with the time. They
    go to standard error unless another `console` is given, or to `log`.
    """
    console = console or Console(stderr=True)
    if quiet:
        yield
    elif log is not None:
        with in_background(_lines(status, log.info, every=every, times=False)):
            yield
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(
            get_renderable=lambda: view(status.snapshot(), *console.size),
            console=console,
            refresh_per_second=2,
            transient=True,
        ):
            yield
    else:

        def write(line: str) -> None:
            console.file.write(f"{line}\n")
            console.file.flush()

        with in_background(_lines(status, write, every=every, times=times)):
            yield


def folded(text: str, *, err: bool = False) -> str:
    """Break a line between words if it goes to a terminal; elsewhere it stays whole.

    A word that is longer than a line, such as a path, is not broken.
    """
    console = Console(stderr=err)
    if not console.is_terminal:
        return text
    return textwrap.fill(
        text, console.width, break_long_words=False, break_on_hyphens=False
    )


@contextlib.contextmanager
def in_background(act: Callable[[], None]) -> Iterator[None]:
    """Call a function twice a second until the block ends, and once more then."""
    over = threading.Event()

    def watch() -> None:
        # A closed or broken stream ends the lines, not the run.
        with contextlib.suppress(OSError, ValueError):
            while not over.wait(0.5):
                act()
            act()

    thread = threading.Thread(target=watch, name="lessvfl-console", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---------------------------------------------------------------------------- the lines


def _lines(
    status: Source, write: Callable[[str], None], every: float, times: bool
) -> Callable[[], None]:
    """Return what writes all that is new in a status since its last call.

    That is every event and, after `every` seconds without a line, how far the run is;
    with `times` lines begin with the time.
    """
    n_events, progress = 0, ""
    written = -math.inf  # when there was something to write

    def write_new() -> None:
        nonlocal n_events, progress, written
        snapshot = status.snapshot()
        events = [e for e in snapshot["events"] if e["number"] > n_events]
        lines = [event["text"] for event in events]
        if events:
            n_events, written = events[-1]["number"], snapshot["seconds"]
        latest = progress_line(snapshot)
        due = snapshot["seconds"] - written >= every
        waits = snapshot["state"] == "waiting" and not snapshot["side"]
        prepares = snapshot["state"] == "running" and snapshot["doing"]
        begun = snapshot["stage"] or waits or prepares  # a party's log says it waits
        over = snapshot["state"] in ("done", "failed")
        if due and begun and not over and latest != progress:
            progress, written = latest, snapshot["seconds"]
            lines.append(latest)
        before = f"{snapshot['now'][11:19]} " if times else ""
        for line in lines:
            write(f"{before}{words.printable(line)}")

    return write_new


def progress_line(snapshot: Snapshot) -> str:
    """Say in one line how far a run is."""
    parts = [words.headline(snapshot), *_pace(snapshot)]
    if snapshot["state"] == "running":
        if snapshot["traffic"]["rounds"]:
            parts.append(words.sent_text(snapshot["traffic"]))
        if score := snapshot["score"]:
            parts.append(words.score_text(score))
    if snapshot["parties"] and not snapshot["side"]:
        parts.append(f"{words.connected_text(snapshot)} parties")
    return ", ".join(parts)


def _pace(snapshot: Snapshot) -> list[str]:
    """Say how fast a run is and how long its stage will take, as far as known."""
    parts = []
    if snapshot["steps_per_second"] is not None:
        parts.append(f"{words.rate_text(snapshot['steps_per_second'])} steps/s")
    if snapshot["stage_seconds_left"] is not None:
        parts.append(f"{words.left_text(snapshot['stage_seconds_left'])} left")
    return parts


# ----------------------------------------------------------------------------- the view


def view(snapshot: Snapshot, width: int = 80, height: int = 24) -> RenderableType:
    """Draw a snapshot for a terminal of a size.

    Columns that do not fit are left out; parties that do not fit are only counted, and
    those that are away come first. Without parties there is no table and no traffic.
    """
    state, traffic = snapshot["state"], snapshot["traffic"]
    title = f"{words.title(snapshot)} · "
    head = Text(words.printable(title), overflow="ellipsis", no_wrap=True)
    head.append(state, STYLES.get(state, "yellow"))
    head.append(f" · {time_text(snapshot['seconds'])}")
    parts: list[RenderableType] = [head, _progress(snapshot, width)]
    if pace := _pace(snapshot):
        parts.append(Text(" · ".join(pace), style="dim"))
    if snapshot["parties"]:
        parts.append(_parties(snapshot, width, max(3, height - 9)))
    foot = [words.sent_text(traffic)] if traffic["rounds"] else []
    if any(traffic["wire_bytes"].values()):
        foot.append(f"{words.wire_text(traffic)} on the wire")
    if score := snapshot["score"]:
        foot.append(words.score_text(score))
    if n_refused := sum(snapshot["refused"].values()):
        foot.append(f"refused connections: {n_refused:,}")
    if foot:
        parts.append(Text(words.printable(" · ".join(foot)), style="dim"))
    if allowance := snapshot["allowance"]:
        rounds = plural(allowance["rounds"], "message")
        values = plural(int(allowance["values"]), "value")
        text = f"still allowed: {rounds}, {values} about a row"
        parts.append(Text(text, style="dim"))
    return Group(*parts)


def _progress(snapshot: Snapshot, width: int) -> RenderableType:
    line = Text(words.printable(words.headline(snapshot)))
    in_steps = snapshot["step"] is not None
    done = snapshot["step"] if in_steps else snapshot["epoch"]
    total = snapshot["n_steps"] if in_steps else snapshot["n_epochs"]
    room = min(30, width - len(line) - 4)
    if done is None or not total or total == 1 or room < 5:
        return line
    if snapshot["state"] != "running":
        return line
    row = Table.grid(padding=(0, 2))
    row.add_row(line, ProgressBar(total=total, completed=done, width=room))
    return row


def _parties(snapshot: Snapshot, width: int, n_rows: int) -> Table:
    """Return a table of the parties that is as wide and long as may be."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    widest = 24 if width >= 100 else 16
    who = "" if snapshot["side"] else "party"
    table.add_column(who, overflow="ellipsis", max_width=widest, no_wrap=True)
    table.add_column("state", no_wrap=True)
    columns = ("up", "down", "rounds", "wire", "heard")[: 5 if width >= 80 else 2]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    parties = snapshot["parties"].items()
    shown = sorted(parties, key=lambda item: item[1]["connected"])
    shown = list(parties) if len(parties) <= n_rows else shown[: n_rows - 1]
    for name, party in shown:
        state, traffic = words.party_state(party, snapshot["state"]), party["traffic"]
        look = Text(state, "green")
        if state == "away":
            look = Text(f"away for {time_text(party['since_seconds'])}", "yellow")
        cells = (
            bytes_text(traffic["payload_bytes"]["up"]),
            bytes_text(traffic["payload_bytes"]["down"]),
            f"{traffic['rounds']:,}",
            words.wire_text(traffic),
            words.ago_text(party["heard_seconds"]),
        )
        table.add_row(Text(words.printable(name)), look, *cells[: len(columns)])
    if len(shown) < len(parties):
        table.add_row(f"and {len(parties) - len(shown)} more")
    return table
