"""A run in a notebook: the terminal's view as HTML, drawn again as it goes on."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from lessvfl.status.snapshot import Snapshot
from lessvfl.status.terminal import show, view
from lessvfl.status.value import Status
from lessvfl.terms import Event, Progress, Stage

WIDTH = 80
EVERY = 0.25  # seconds between two drawings
PAGE = '<pre style="line-height: normal; font-family: monospace">{code}</pre>'


@contextlib.contextmanager
def follow(status: Status, console: Console | None = None) -> Iterator[Progress]:
    """Give whom a run may tell how far it is, and show it for as long as it lasts.

    In a notebook that is a view in the cell, which stays as it was at the end;
    elsewhere what :func:`~lessvfl.status.terminal.show` shows on standard error.
    """
    console = console or Console(stderr=True)
    if not console.is_jupyter:
        with show(status, console=console, times=False):
            yield status
        return
    from IPython.display import display

    screen = display(_drawn(status.snapshot()), raw=True, display_id=True)
    try:
        yield _Cell(status, screen)
        status.ended()
    except BaseException as error:
        status.ended(str(error) or type(error).__name__)
        raise
    finally:
        screen.update(_drawn(status.snapshot()), raw=True)


class _Cell:
    """Tells a status what it hears, and draws it now and then."""

    def __init__(self, status: Status, screen: Any) -> None:
        self._status, self._screen = status, screen
        self._drawn = time.monotonic()

    def begin_seed(self, seed: int, number: int, n_seeds: int) -> None:
        self._status.begin_seed(seed, number, n_seeds)

    def observe(self, event: Event) -> None:
        self._status.observe(event)
        self._draw()

    def stepped(self, stage: Stage, step: int, n_steps: int) -> None:
        self._status.stepped(stage, step, n_steps)
        self._draw()

    def scored(self, value: float, name: str) -> None:
        self._status.scored(value, name)

    def sent(self, up: int, down: int, rounds: int) -> None:
        self._status.sent(up, down, rounds)

    def _draw(self) -> None:
        if time.monotonic() - self._drawn >= EVERY:
            self._drawn = time.monotonic()
            self._screen.update(_drawn(self._status.snapshot()), raw=True)


def _drawn(snapshot: Snapshot) -> dict[str, str]:
    """Draw a snapshot as the formats that a notebook knows."""
    paper = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        force_jupyter=False,
        color_system="truecolor",
        legacy_windows=False,
    )
    paper.print(view(snapshot, WIDTH))
    return {
        "text/html": paper.export_html(
            clear=False, inline_styles=True, code_format=PAGE
        ),
        "text/plain": paper.export_text(),
    }
