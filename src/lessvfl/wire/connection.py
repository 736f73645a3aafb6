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
    """The connection is lost, or cannot be made yet."""


class Stream(Protocol):
    """One end of an open stream of frames (:mod:`lessvfl.wire.codec`).

    Every method raises a GoneError once the other end is gone. Only one thread at a
    time may read, and only one may write.
    """

    def read(self) -> memoryview:
        """Return the next frame."""
        ...

    def write(self, data: bytes) -> None:
        """Send a frame."""
        ...

    def expect(self, n_bytes: int) -> None:
        """Allow the other end to send a frame of up to `n_bytes`, and signs of life.

        Of a longer frame only the beginning (head and fields) is read, which says why
        it is refused; or the stream ends. Before the first call the other end may send
        only a greeting.
        """
        ...

    @property
    def passed(self) -> Traffic | None:
        """Return the bytes at the server's socket so far; None: not known."""
        ...

    def end_soon(self) -> None:
        """End it once the last frame is out, whatever the other end does."""
        ...

    def close(self) -> None:
        """End it now, whether or not the other end still reads."""
        ...


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its name."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def start_thread(name: str, work: Callable[[], None]) -> threading.Thread | None:
    """Start a daemon thread; return None if the system refuses one more."""
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
