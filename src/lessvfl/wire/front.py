"""Limits on connections and bytes before a peer has proven its name.

Flight takes every connection, starts a thread for every stream and reads a message of
any length before it tells whose certificate it was, and pyarrow has no setting for any
of that. So Flight listens on loopback alone, one small server (a lane) for each
connection, and a front listens to the world. It passes bytes on as they are: TLS is
between a party and its lane, and a front sees no plain text. It knows of a connection
where it comes from, how old it is, how much it sent, and whether the hub has admitted
whoever is at its other end:

============= ================================== =======================================
a connection  before it is admitted              from then on
============= ================================== =======================================
how many      `Limits.waiting`; one more takes   those of the hub, one a party
              the place of one of the address
              that has most
for how long  `Limits.seconds`                   as the hub has it
bytes         `Limits.greeting`                  those of the reply that is due, and
                                                 `Limits.beside` for signs of life
streams       one                                the same one
============= ================================== =======================================

Descriptors, threads and memory that strangers can take are thereby bounded. A
connection that has sent nothing costs one descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import random
import resource
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lessvfl.wire.connection import CLOSE_SECONDS
from lessvfl.wire.messages import Traffic

LOOPBACK = "127.0.0.1"
AT_ONCE = 1 << 18  # bytes that are passed on together
ACCEPTED_AT_ONCE = 64
SWEEP_SECONDS = 0.25  # how often connections that stay too long are ended
LINE_SECONDS = 60.0  # between two lines about who was turned away
PER_WINDOW = 16  # bytes that came down for one byte of window updates, at the least
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RESERVED_FILES = 128  # descriptors that the run itself may need
FILES_EACH = 5  # of a connection: our two, the engine's, its lane's and one spare
MOST_FILES = 1 << 16
NOTHING = memoryview(b"")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How much of a server strangers may use."""

    waiting: int = 32  # connections that are not admitted
    seconds: float = 20.0  # until one is
    greeting: int = 1 << 17  # bytes until then, those of TLS included
    beside: int = 1 << 17  # bytes of an admitted one beside replies
    a_second: int = 1 << 12  # by which these come back

    def within_files(self, n_parties: int) -> Limits:
        """Return these limits, lowered to the file descriptors that there are."""
        left = open_files() - RESERVED_FILES - 2 * n_parties * FILES_EACH
        return replace(self, waiting=max(2, min(self.waiting, left // FILES_EACH)))


USUAL = Limits()


def open_files() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> None:
    """Raise the limit of open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Guest:
    """One outside connection, shared by the hub's threads and the front."""

    def __init__(self, outer: socket.socket, address: str, limits: Limits) -> None:
        self.outer, self.address = outer, address
        self.inner: socket.socket | None = None  # to its lane, once it has said a word
        self.leave: Callable[[], None] = lambda: None  # tells its lane that it is gone
        self.is_admitted = False
        self.has_spoken = False  # has had its one stream
        self.until = time.monotonic() + limits.seconds
        self.said_too_much = False
        self.up, self.down = NOTHING, NOTHING  # read, and not yet passed on
        self.is_over = False  # nothing follows what is to be passed on
        self._limits = limits
        self._lock = threading.Lock()  # of the numbers below
        self._due = 0
        self._beside = float(limits.greeting)
        self._at = time.monotonic()
        self._n_up = self._n_down = 0

    # ------------------------------------------------------------- in the hub's threads

    @property
    def port(self) -> int | None:
        """Return the port that its lane sees it come from."""
        try:
            return None if self.inner is None else int(self.inner.getsockname()[1])
        except OSError:
            return None

    def expect(self, n_bytes: int) -> None:
        """Admit it, and allow it a message of `n_bytes`."""
        with self._lock:
            if not self.is_admitted:
                self.is_admitted, self.until = True, math.inf
                self._beside = float(self._limits.beside)
            self._due = n_bytes + n_bytes // 8  # frames and records around them

    @property
    def passed(self) -> Traffic:
        """Return the bytes at its socket so far, those of TLS included."""
        with self._lock:
            return Traffic(self._n_up, self._n_down)

    def end_soon(self) -> None:
        """Let it end as soon as the last bytes are out."""
        self.until = min(self.until, time.monotonic() + CLOSE_SECONDS)

    # ------------------------------------------------------------ in the front's thread

    def room(self) -> int:
        """Return how many bytes it may send now."""
        with self._lock:
            now = time.monotonic()
            if self.is_admitted:
                more = (now - self._at) * self._limits.a_second
                self._beside = min(self._beside + more, self._limits.beside)
            self._at = now
            return self._due + int(self._beside)

    def took(self, n_bytes: int) -> None:
        """Count what it has sent."""
        with self._lock:
            self._n_up += n_bytes
            due = min(n_bytes, self._due)
            self._due -= due
            self._beside -= n_bytes - due

    def gave(self, n_bytes: int) -> None:
        """Count what was sent to it, and has to be acknowledged."""
        with self._lock:
            self._n_down += n_bytes
            if self.is_admitted:
                more = self._beside + n_bytes / PER_WINDOW
                self._beside = min(more, self._limits.beside)

    @property
    def is_silent(self) -> bool:
        """Tell whether it has said nothing at all."""
        return self.inner is None


class Front:
    """Listens at an address and passes bytes between guests and their lanes.

    `find_lane` returns the port of a guest's own lane.
    """

    def __init__(
        self, host: str, port: int, find_lane: Callable[[Guest], int], limits: Limits
    ) -> None:
        self.limits = limits
        self._find_lane = find_lane
        self._listeners = _listen(host, port)
        self._selector = selectors.DefaultSelector()
        self._guests: set[Guest] = set()
        self._buffer = memoryview(bytearray(AT_ONCE))
        self._wake, self._woken = socket.socketpair()
        self._is_closed = threading.Event()  # nobody is let in any more
        self._is_over = threading.Event()
        self._n_ended = 0  # of which no line has told
        self._logged = -math.inf
        self._selector.register(self._woken, selectors.EVENT_READ)
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(None, self._run, "lessvfl-front", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port that it listens at."""
        return int(self._listeners[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Accept no more connections; admitted ones stay."""
        self._is_closed.set()
        self._wake.send(b".")

    def stop(self) -> None:
        """End all connections."""
        self._is_over.set()
        self._wake.send(b".")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    # ---------------------------------------------------------------- the loop's thread

    def _run(self) -> None:
        swept = 0.0
        while not self._is_over.is_set():
            for key, events in self._selector.select(SWEEP_SECONDS):
                if key.fileobj is self._woken:
                    self._woken.recv(1)
                elif key.data is None:
                    self._let_in(key.fileobj)
                else:
                    self._serve(key.data, key.fileobj, events)
            if self._is_closed.is_set():
                self._close()
            if time.monotonic() - swept >= SWEEP_SECONDS:
                self._sweep()
                swept = time.monotonic()
        self._close()
        for guest in list(self._guests):
            self._end(guest)
        self._selector.close()

    def _close(self) -> None:
        """Stop listening, and end connections that are not admitted."""
        for listener in self._listeners:
            self._watch(listener, 0)
            listener.close()
        for guest in self._waiting():
            guest.end_soon()
            if guest.is_silent:
                self._end(guest)

    def _sweep(self) -> None:
        """End connections that have stayed too long; log now and then how many."""
        now = time.monotonic()
        for guest in [guest for guest in self._guests if guest.until < now]:
            self._n_ended += not guest.is_admitted
            self._end(guest)
        for listener in self._listeners:
            if listener.fileno() >= 0:  # it rests where there was no descriptor
                self._watch(listener, selectors.EVENT_READ)
        if self._n_ended and now - self._logged >= LINE_SECONDS:
            log.warning(
                "%d connections were ended that did not greet in time, or in few bytes",
                self._n_ended,
            )
            self._n_ended, self._logged = 0, now

    def _let_in(self, listener: Any) -> None:
        """Accept the connections that wait at `listener`, a socket that listens."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                outer, where = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in FULL and not self._make_room():
                    self._watch(listener, 0)  # until the next sweep
                return
            outer.setblocking(False)
            with contextlib.suppress(OSError):
                outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                outer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if len(self._waiting()) >= self.limits.waiting:
                self._make_room()
            guest = Guest(outer, where[0], self.limits)
            self._guests.add(guest)
            self._watch(outer, selectors.EVENT_READ, guest)

    def _waiting(self) -> list[Guest]:
        return [guest for guest in self._guests if not guest.is_admitted]

    def _make_room(self) -> bool:
        """End one connection that waits to be admitted; return False if none waits.

        It is drawn at random from the address that has the most, from those that have
        sent nothing if there are any: so an honest party among many strangers may stay.
        """
        waiting = self._waiting()
        if not waiting:
            return False
        ((most, _),) = Counter(guest.address for guest in waiting).most_common(1)
        some = [guest for guest in waiting if guest.address == most]
        silent = [guest for guest in some if guest.is_silent]
        self._n_ended += 1
        self._end(random.choice(silent or some))
        return True

    def _serve(self, guest: Guest, ready: Any, events: int) -> None:
        """Pass on what there is, both ways."""
        if guest not in self._guests:
            return  # ended by an earlier event of the same round
        watched = guest.inner
        try:
            if guest.inner is None:
                guest.inner = self._dial(guest)
            is_outer = ready is guest.outer
            if events & selectors.EVENT_WRITE:
                if is_outer:
                    guest.down = _send(guest.outer, guest.down)
                else:
                    guest.up = _send(guest.inner, guest.up)
            if events & selectors.EVENT_READ:
                self._pass_on(guest, guest.inner, is_outer)
        except OSError:
            guest.is_over = True
            guest.up = guest.down = NOTHING
        if guest.is_over and not guest.up and not guest.down:
            self._end(guest)
        elif guest.up or guest.down or events & selectors.EVENT_WRITE or not watched:
            for end, read, unsent in (
                (guest.outer, guest.up, guest.down),
                (guest.inner, guest.down, guest.up),
            ):
                reads = 0 if read or guest.is_over else selectors.EVENT_READ
                writes = selectors.EVENT_WRITE if unsent else 0
                self._watch(end, reads | writes, guest)

    def _pass_on(self, guest: Guest, inner: socket.socket, is_up: bool) -> None:
        """Read from one end and write to the other."""
        room = guest.room() if is_up else AT_ONCE
        source = guest.outer if is_up else inner
        try:
            n_bytes = source.recv_into(self._buffer[: min(room + 1, AT_ONCE)])
        except BlockingIOError:
            return
        if n_bytes == 0 or (is_up and n_bytes > room):
            guest.said_too_much = n_bytes > 0
            self._n_ended += guest.said_too_much and not guest.is_admitted
            guest.is_over = True
            guest.end_soon()
        elif not is_up:
            guest.gave(n_bytes)
            guest.down = _send(guest.outer, self._buffer[:n_bytes])
        else:
            guest.took(n_bytes)
            guest.up = _send(inner, self._buffer[:n_bytes])

    def _dial(self, guest: Guest) -> socket.socket:
        """Connect a guest that has said its first word to a lane of its own."""
        inner = socket.create_connection((LOOPBACK, self._find_lane(guest)), 5.0)
        inner.setblocking(False)
        inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return inner

    def _end(self, guest: Guest) -> None:
        self._guests.discard(guest)
        for end in (guest.outer, guest.inner):
            if end is not None:
                self._watch(end, 0)
                end.close()
        guest.leave()

    def _watch(self, end: Any, events: int, guest: Guest | None = None) -> None:
        """Listen for these events of a socket, and for no others."""
        key = self._selector.get_map().get(end) if end.fileno() >= 0 else None
        if key is None and events:
            self._selector.register(end, events, guest)
        elif key is not None and not events:
            self._selector.unregister(end)
        elif key is not None and key.events != events:
            self._selector.modify(end, events, guest)


def _send(end: socket.socket, data: memoryview) -> memoryview:
    """Write what fits; return a copy of the rest."""
    try:
        rest = data[end.send(data) :]
    except BlockingIOError:
        rest = data
    return memoryview(bytes(rest)) if rest else NOTHING


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen at all addresses of a host; raise an OSError where there is none."""
    listeners: list[socket.socket] = []
    problem: OSError | None = None
    for family, kind, _, _, where in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        number = listeners[0].getsockname()[1] if listeners else port
        try:
            listener = socket.socket(family, kind)
            try:
                _bind(listener, (where[0], number, *where[2:]))
            except BaseException:
                listener.close()
                raise
            listeners.append(listener)
        except OSError as error:
            problem = problem or error
            if error.errno == errno.EADDRINUSE:
                break
    if listeners and (problem is None or problem.errno != errno.EADDRINUSE):
        return listeners
    for listener in listeners:
        listener.close()
    raise problem or OSError(errno.EADDRNOTAVAIL, "no such address")


def _bind(listener: socket.socket, where: Any) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if where[0] == "::" and hasattr(socket, "IPV6_V6ONLY"):
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setblocking(False)
    listener.bind(where)
    listener.listen(socket.SOMAXCONN)
