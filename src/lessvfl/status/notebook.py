"""A run in a notebook: the terminal's view as HTML, drawn again as it goes on."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator

from rich.console import Console

from lessvfl.status.snapshot import Snapshot
from lessvfl.status.terminal import show, view
from lessvfl.status.value import Status
from lessvfl.terms import Progress

WIDTH = 80
EVERY = 0.25  # seconds between two drawings
PAGE = '<pre style="line-height: normal; font-family: monospace">{code}</pre>'


@contextlib.contextmanager
def follow(status: Status, console: Console | None = None) -> Iterator[Progress]:
    """Yield a progress for a run to report to, and show it while the block lasts.

    In a notebook it is a view in the cell, which stays as it was at the end; elsewhere
    it is what :func:`~lessvfl.status.terminal.show` shows on standard error.
    """
    console = console or Console(stderr=True)
    if not console.is_jupyter:
        with show(status, console=console, times=False):
            yield status
        return
    from IPython.display import display

    screen = display(_drawn(status.snapshot()), raw=True, display_id=True)
    last = time.monotonic()

    def draw() -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            screen.update(_drawn(status.snapshot()), raw=True)

    status.advanced = draw
    try:
        yield status
        status.ended()
    except BaseException as error:
        status.ended(str(error) or type(error).__name__)
        raise
    finally:
        screen.update(_drawn(status.snapshot()), raw=True)


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
