"""The start of a command: when the wait for it began, and a first sign of life."""

from __future__ import annotations

import sys
import time

from lessvfl import __version__

_began: float | None = None


def began(moment: float | None = None) -> float:
    """Return when the process was asked for something, by the clock of a `Status`.

    Its entry says so with a `moment`; without one a command counts from here on.
    """
    global _began
    if moment is not None:
        _began = moment
    return time.monotonic() if _began is None else _began


def words(what: str) -> str:
    """Say that a command has begun to do something.

    >>> words("plain on digits").partition(" ")[2]
    '0.1.0 is starting: plain on digits'
    """
    return f"lessvfl {__version__} is starting: {what}"


def say(what: str) -> None:
    """Write a line at once, before PyTorch and tables take their seconds to load."""
    sys.stderr.write(f"{words(what)}\n")
    sys.stderr.flush()
