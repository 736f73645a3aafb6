"""What both ends of a connection share, whatever engine carries its frames."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from lessvfl.errors import ProtocolError
from lessvfl.wire.control import Refusal
from lessvfl.wire.messages import Traffic

OVER = Refusal("over", "The run is over.")
LARGEST_HELLO = 1 << 16
CLOSE_SECONDS = 2.0  # for last words to go out


class GoneError(Exception):
    """The other end is gone, or not there yet; the connection, not what it carried."""


class Stream(Protocol):
    """One end of an open stream of frames (:mod:`lessvfl.wire.codec`).

    Each of these raises a GoneError where the other end is gone. A stream is read by
    one thread at a time, and written by one at a time.
    """

    def read(self) -> memoryview:
        """Return the next frame."""
        ...

    def write(self, data: bytes) -> None:
        """Send a frame."""
        ...

    def expect(self, n_bytes: int) -> None:
        """Let the other end send a frame of so many bytes, and signs of life.

        Who sends more is cut off. Before the first call it may send a greeting and
        nothing else.
        """
        ...

    @property
    def passed(self) -> Traffic | None:
        """Return the bytes at the server's socket so far; None: not known."""
        ...

    def end_soon(self) -> None:
        """Have it end once last words are out, whether or not the other end does."""
        ...

    def close(self) -> None:
        """End it, whether or not the other end listens."""
        ...


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its name."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def start_thread(name: str, work: Callable[[], None]) -> threading.Thread | None:
    """Start a thread that nobody has to wait for; None where there is no room."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def check_length(n_bytes: int) -> None:
    """Refuse a greeting that is longer than any of ours."""
    if n_bytes > LARGEST_HELLO:
        raise ProtocolError(f"A greeting must be short. Got {n_bytes} bytes.")
