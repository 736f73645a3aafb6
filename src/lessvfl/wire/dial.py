"""A party's end of the transport between machines: it dials the server and answers.

One thread reads requests, computes and replies; another sends a sign of life every few
seconds while a reply is being computed. A lost connection is dialled again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lessvfl.errors import ConfigError, PartyLostError, ProtocolError
from lessvfl.terms import time_text
from lessvfl.wire import codec
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.connection import OVER, GoneError, Stream
from lessvfl.wire.control import Busy, Farewell, Hello, Refusal, printable
from lessvfl.wire.due import ANYTHING_SMALL, Due, NotDueError
from lessvfl.wire.shorthand import Shorthand

BEAT_SECONDS = 5.0  # between two signs of life of a party that computes
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds before the next try to dial
LINE_SECONDS = 60.0  # between two lines about a server that is not there

log = logging.getLogger(__name__)


class Server(Protocol):
    """Where the server is and how to reach it; every engine has one."""

    @property
    def server(self) -> str:
        """Return its name for messages."""
        ...

    def connect(self) -> Stream:
        """Dial it, or raise a GoneError."""
        ...


def _refuse_all(error: NotDueError) -> Any:
    """Take part no longer in what asks for something that is not due."""
    raise error


@dataclass(frozen=True)
class Listener:
    """Callbacks of a connection: when it is made, when it is lost, its bytes."""

    came: Callable[[], None] = lambda: None
    went: Callable[[], None] = lambda: None
    carried: Callable[[int, int], None] = lambda up, down: None


def serve(
    address: Server,
    hello: Hello,
    handle: Callable[[Any], Any],
    *,
    patience: float,
    due: Callable[[], Due] = lambda: ANYTHING_SMALL,
    decline: Callable[[NotDueError], Any] = _refuse_all,
    is_over: Callable[[], bool] = lambda: True,
    beat: float = BEAT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
    listener: Listener = Listener(),
) -> None:
    """Dial the server and answer its requests until it says that the run is over.

    A lost connection is dialled again for up to `patience` seconds. An error in
    `handle` is raised here; the server is told its kind and its public sentence.
    `due` returns what it may be asked for now, and `decline` what it says to anything
    else. `is_over` tells whether this party has everything when the server says
    farewell; `beat` is the number of seconds between two signs of life while `handle`
    computes. A server that cannot be reached is logged at once, then once a minute.
    """
    end = time.monotonic() + patience
    pause = FIRST_PAUSE
    was_there = False
    since = time.monotonic()  # the last sign of life
    logged: float | None = None  # when the log last said that there is none

    def answer(message: Any) -> Any:
        """Return the reply to a request, or to an error about one that is not due."""
        nonlocal end, pause, was_there, since, logged
        if isinstance(message, NotDueError):  # no reason to dial at once, nor longer
            was_there = True
            return decline(message)
        if logged is not None or not was_there:
            listener.came()
        was_there, logged = True, None
        reply = handle(message)
        since = time.monotonic()
        end, pause = since + patience, FIRST_PAUSE
        return reply

    while True:
        try:
            _converse(address, hello, answer, due, beat, listener.carried)
        except GoneError as error:
            now = time.monotonic()
            if now > end:
                why = f"no answer for {time_text(patience)} ({error})"
                who = f"The server {address.server}"
                raise PartyLostError(["server"], why, who) from None
            if logged is None or now - logged >= LINE_SECONDS:
                left = time_text(end - now)
                if logged is None:
                    listener.went()
                    how = "is gone" if was_there else "does not answer yet"
                    how_long = f"for up to {left}"
                else:
                    how = f"has not answered for {time_text(now - since)}"
                    how_long = f"for another {left}"
                line = "The server %s %s (%s); trying again, %s"
                log.info(line, address.server, how, error, how_long)
                logged = now
            sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
            continue
        if is_over():
            return
        raise ProtocolError(
            "The server must end a run after its last seed. Got its farewell before."
        )


class _Voice:
    """What a party sends over one connection: replies, and signs of life meanwhile."""

    def __init__(
        self, stream: Stream, beat: float, carried: Callable[[int, int], None]
    ) -> None:
        self._stream = stream
        self._carried = carried
        self._beat = beat
        self._lock = threading.Lock()  # of what is written, and of what is computed
        self._sent, self._received = Shorthand(), Shorthand()
        # The request's number and run, and since when it is being answered.
        self._at: tuple[int, bytes, float] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._live, name="lessvfl-beat", daemon=True
        )
        self._thread.start()

    def begin(self, number: int, run: bytes) -> None:
        """Send signs of life until this request is answered."""
        self._at = (number, run, time.monotonic())

    def say(self, message: Any, number: int, run: bytes = bytes(16)) -> None:
        """Send a message."""
        data = codec.encode(WireFrame(message, number, run))
        with self._lock:
            self._at = None
            short = self._sent.shorten(data)
            self._stream.write(short)
        self._carried(len(short), 0)

    def took(self, data: memoryview) -> memoryview:
        """Count what came, and return the whole frame."""
        self._carried(0, len(data))
        return self._received.whole(data)

    def close(self) -> None:
        """Send no more signs of life."""
        self._over.set()

    def _live(self) -> None:
        while not self._over.wait(self._beat):
            with self._lock, contextlib.suppress(GoneError):
                if self._at is None or time.monotonic() - self._at[2] < self._beat:
                    continue  # idle, or quick
                number, run, _ = self._at
                sign = codec.encode(WireFrame(Busy(), number, run))
                self._stream.write(self._sent.shorten(sign))


def _converse(
    address: Server,
    hello: Hello,
    answer: Callable[[Any], Any],
    due: Callable[[], Due],
    beat: float,
    carried: Callable[[int, int], None],
) -> None:
    """Answer requests over one connection until the server says farewell."""
    stream = address.connect()
    voice = _Voice(stream, beat, carried)
    try:
        stream.expect(due().most_bytes)
        voice.say(hello, 0)
        while True:
            data = stream.read()
            message: Any
            try:
                data = voice.took(data)
                message = codec.decode(data, due().accept).message
            except NotDueError as error:
                message = error
            except ProtocolError as error:
                _refuse(voice, error, *codec.exchange_of(data))
                raise
            if isinstance(message, Farewell) or message == OVER:
                return
            if isinstance(message, Refusal):
                reason = printable(message.reason)
                if not message.final:
                    raise GoneError(reason)
                raise ConfigError(f"The server says no ({message.kind}): {reason}")
            number, run = codec.exchange_of(data)
            del data
            voice.begin(number, run)
            try:
                reply = answer(message)
            except Exception as error:
                _refuse(voice, error, number, run)
                raise
            del message  # it may be large
            stream.expect(due().most_bytes)
            with contextlib.suppress(GoneError):  # then its last words come next
                voice.say(reply, number, run)
    finally:
        voice.close()
        stream.close()


def _refuse(voice: _Voice, error: Exception, number: int, run: bytes) -> None:
    """Tell the server what it may know of an error."""
    with contextlib.suppress(GoneError):
        voice.say(Refusal.of(error), number, run)
