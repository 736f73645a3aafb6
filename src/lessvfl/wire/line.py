"""What a hub keeps for its parties: rules, open streams, counts of bytes."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.connection import GoneError, Stream
from lessvfl.wire.control import Align, Hello
from lessvfl.wire.due import ANYTHING_SMALL, Due
from lessvfl.wire.messages import Traffic
from lessvfl.wire.shorthand import Shorthand

# Parts of the bill that are no stages: rows are aligned, a party computes, the rest.
ALIGN, ALIVE, AROUND = "align", "alive", "around"

Order = tuple[WireFrame, bytes, Due]  # what to send, and what may come in reply
# What was sent, and what came.
Answer = tuple[Order, memoryview | WireFrame | ProtocolError]


@dataclass(frozen=True)
class HubRules:
    """How the user of a hub checks parties and replies, and is told of them."""

    # Why a party that greets is refused; None: it is not.
    admit: Callable[[Hello], str | None] = lambda hello: None
    # What may come in reply to a request, called once as it goes out.
    due: Callable[[PartyId, Any], Due] = lambda party, request: ANYTHING_SMALL
    came: Callable[[PartyId], None] = lambda party: None
    went: Callable[[PartyId], None] = lambda party: None
    # Told of every exchange: its request, the bytes of its frames up and down.
    carried: Callable[[PartyId, Any, int, int], None] = lambda p, q, up, down: None
    # Told of every connection that was turned away: whose, and why.
    refused: Callable[[str, str], None] = lambda who, why: None
    # Whether a party that dials again takes the place of its own connection, which may
    # be dead: nobody notices while nothing is exchanged.
    newest_stays: bool = False
    longest: float = math.inf  # seconds for a reply, whatever signs of life come


ANY_PARTY = HubRules()


@dataclass(frozen=True)
class LocalParty:
    """How a hub reaches a party of its own process: no frame goes over a wire."""

    hello: Hello
    handle: Callable[[Any], Any]
    due: Callable[[], Due]  # what it may be asked for now


@dataclass
class PartyLine:
    """One party's open stream, as the server's threads see it."""

    party: PartyId
    hello: Hello
    stream: Stream
    requests: queue.SimpleQueue[Order | None] = field(default_factory=queue.SimpleQueue)
    replies: queue.SimpleQueue[Answer | None] = field(default_factory=queue.SimpleQueue)
    heard: float = field(default_factory=time.monotonic)  # the last sign of life
    ended: threading.Event = field(default_factory=threading.Event)  # write no more
    passed: Traffic = Traffic()  # at the socket, as far as it is counted
    last: bytes | None = None  # what to say before the stream ends
    lock: threading.Lock = field(default_factory=threading.Lock)  # of what is written
    sent: Shorthand = field(default_factory=Shorthand)
    received: Shorthand = field(default_factory=Shorthand)

    def ask(self, order: Order) -> None:
        """Queue a request for this party."""
        self.heard = time.monotonic()
        self.requests.put(order)

    def say(self, data: bytes) -> int:
        """Send a frame; return its bytes on the wire."""
        with self.lock:
            short = self.sent.shorten(data)
            self.stream.write(short)
        return len(short)

    def say_last(self) -> None:
        """Send the last frame, once, from whichever thread; it may be too late."""
        with self.lock, contextlib.suppress(GoneError):
            last, self.last = self.last, None
            if last is not None and not self.ended.is_set():
                self.stream.write(last)

    def end(self, last: bytes | None) -> None:
        """End the stream after a last frame."""
        self.last = last
        self.requests.put(None)
        self.stream.end_soon()  # who owes a reply may never send it


class ByteCount:
    """Bytes of all parties, of "frames" or at the "socket", by part and direction.

    The socket is known where the engine tells; its bytes are those of TCP's streams,
    TLS and all frames included. What passed before a frame came, and after the one
    before it, is of the part that this frame belongs to.
    """

    def __init__(self) -> None:
        self._bytes: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def add(
        self,
        line: PartyLine,
        part: str,
        up: int = 0,
        down: int = 0,
        up_part: str | None = None,
    ) -> None:
        """Count a frame, and what has passed at the socket since the last one."""
        to_server = up_part or part  # of a sign of life, but not what it waits for
        before, now = line.passed, line.stream.passed or line.passed
        line.passed = now
        with self._lock:
            for of, part_there, way, n_bytes in (
                ("frames", to_server, "up", up),
                ("frames", part, "down", down),
                ("socket", to_server, "up", now.up - before.up),
                ("socket", part, "down", now.down - before.down),
            ):
                if n_bytes:
                    self._bytes[of, part_there, way] += n_bytes

    def by_part(self) -> Counter[tuple[str, str, str]]:
        """Return the bytes so far by what they are of, part and direction."""
        with self._lock:
            return self._bytes.copy()


def part_of(request: Any) -> str:
    """Return which part of the bill an exchange belongs to: a stage, or around it."""
    return ALIGN if isinstance(request, Align) else getattr(request, "stage", AROUND)
