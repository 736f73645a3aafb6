"""The transport between machines: Arrow Flight DoExchange with mutual TLS.

Only the server listens; parties dial out and keep one stream open. A frame
(:mod:`lessvfl.wire.codec`) travels in the metadata buffer. The server sends a
request, the party its reply, in turn: every frame carries the number of its exchange.
A Flight crash looks like a normal end of stream, so both sides say farewell.

Who a party is comes from its certificate alone.
"""

from __future__ import annotations

import ipaddress
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
from pyarrow import flight

from lessvfl.errors import ConfigError, PartyLostError, ProtocolError
from lessvfl.terms import PartyId
from lessvfl.wire import codec
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.control import Farewell, Hello, Refusal
from lessvfl.wire.messages import Reply, Request, Traffic

COMMAND = b"lessvfl/1"
LARGEST_HELLO = 1 << 16
SMALL = 1 << 16  # what is longer is worth a thread of its own
OVER = "The run is over."
KEEP_ALIVE_MS = 330_000  # gRPC closes connections that ping more often

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credentials:
    """The files that say who somebody is: certificate, key, and the CA's certificate.

    None instead means no encryption, which is for loopback alone.
    """

    certificate: Path
    key: Path
    ca: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the contents."""
        try:
            certificate, key, ca = (
                path.read_bytes() for path in (self.certificate, self.key, self.ca)
            )
        except OSError as error:
            raise ConfigError(
                f"Certificate, key and CA must be files that can be read. Got "
                f"'{error.filename}': {error.strerror}."
            ) from None
        return certificate, key, ca


def location(address: str, secure: bool) -> str:
    """Turn host:port into the location of a Flight server; loopback if insecure."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise ConfigError(
            f"An address must be given as HOST:PORT, as in 127.0.0.1:8815. "
            f"Got {address!r}."
        )
    if not secure:
        try:
            inside = ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            inside = host == "localhost"
        if not inside:
            raise ConfigError(
                "Without encryption the address must be of this machine, as in "
                f"127.0.0.1:8815. Got {address!r}."
            )
    return f"grpc+{'tls' if secure else 'tcp'}://{host}:{port}"


Order = tuple[WireFrame, bytes]  # what to send
Answer = tuple[
    WireFrame, memoryview | WireFrame | ProtocolError
]  # what was sent, what came


@dataclass
class _Stream:
    """One party's open stream, as the server's thread sees it."""

    party: PartyId
    hello: Hello
    requests: queue.SimpleQueue[Order | None] = field(default_factory=queue.SimpleQueue)
    farewell: bytes | None = None  # what to say before the stream ends
    replies: queue.SimpleQueue[Answer | None] = field(default_factory=queue.SimpleQueue)
    broken: threading.Event = field(default_factory=threading.Event)


class Hub(flight.FlightServerBase):  # type: ignore[misc]
    """The server's side: takes parties in and exchanges frames with them.

    `admit` is told a party's Hello and returns why it is refused, or None; `refused` is
    told of every connection that was turned away; `name_of` turns what a certificate
    says into a name; `patience` are the seconds to wait for a reply, `limit` the most
    bytes of a reply's arrays. Without credentials nothing is encrypted.
    """

    def __init__(
        self,
        address: str,
        parties: Sequence[PartyId],
        credentials: Credentials | None,
        *,
        admit: Callable[[Hello], str | None] = lambda hello: None,
        patience: float = 600.0,
        limit: int = codec.MAX_BODY,
        refused: Callable[[str, str], None] = lambda who, why: None,
        name_of: Callable[[bytes], str] = lambda peer: peer.decode("utf-8", "replace"),
    ) -> None:
        self.parties = tuple(parties)
        self.secure = credentials is not None
        self.admit = admit
        self.patience = patience
        self.limit = limit
        self.refused = refused
        self.name_of = name_of
        self.came: Callable[[PartyId], None] = lambda party: None
        self.went: Callable[[PartyId], None] = lambda party: None
        self.carried: Callable[[PartyId, Any, memoryview, bytes], None] = (
            lambda party, request, up, down: None
        )
        self.check: Callable[[PartyId, Any, Any], str | None] = lambda p, q, r: None
        self.number = 0
        self.run_id = bytes(16)
        self.traffic: dict[PartyId, Traffic] = dict.fromkeys(self.parties, Traffic())
        self._lines: dict[PartyId, _Stream] = {}
        self._changed = threading.Condition()
        self._closing = False
        where = location(address, self.secure)
        try:
            if credentials is None:
                super().__init__(where)
            else:
                certificate, key, ca = credentials.read()
                super().__init__(
                    where,
                    tls_certificates=[(certificate, key)],
                    verify_client=True,
                    root_certificates=ca,
                )
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError(
                f"The server must be able to listen at {address}. "
                f"Got this: {_first_line(error)}."
            ) from None

    # ------------------------------------------------------------- one thread a stream

    def do_exchange(
        self, context: Any, descriptor: Any, reader: Any, writer: Any
    ) -> None:
        """Take in the party at the other end, and carry its frames until it goes."""
        who = self.name_of(context.peer_identity())
        line = self._greet(who, descriptor, reader, writer)
        if line is None:
            return
        try:
            while (order := line.requests.get()) is not None:
                frame, down = order
                self._count(line.party, down=len(down))
                writer.write_metadata(pyarrow.py_buffer(down))
                up = _next(reader)
                self._count(line.party, up=len(up))
                self.carried(line.party, frame.message, up, down)
                read = up if len(up) <= SMALL else self._read(frame, up)
                line.replies.put((frame, read))
            if line.farewell is not None:
                writer.write_metadata(pyarrow.py_buffer(line.farewell))
        except (StopIteration, pyarrow.ArrowException) as error:
            log.info("party '%s' is gone: %s", line.party, _first_line(error))
        finally:
            self._drop(line)

    def _greet(
        self, who: str, descriptor: Any, reader: Any, writer: Any
    ) -> _Stream | None:
        """Check who dials; return its line, or say why not."""
        try:
            data = _next(reader)
            if len(data) > LARGEST_HELLO:
                raise ProtocolError(f"A greeting must be short. Got {len(data)} bytes.")
            hello = codec.decode(data, LARGEST_HELLO).message
            if not isinstance(hello, Hello) or descriptor.command != COMMAND:
                raise ProtocolError("A party must greet first. Got something else.")
        except (StopIteration, pyarrow.ArrowException, OSError):
            self._refuse(who, "A party must greet first. Got nothing.", writer)
            return None
        except ProtocolError as error:
            self._refuse(who, str(error), writer)
            return None
        name = who if self.secure else hello.party
        line = _Stream(name, hello)
        with self._changed:
            reason = self._objection(name, hello)
            if reason is None:
                self._lines[name] = line
                self._changed.notify_all()
                self.came(name)
        if reason is not None:
            self._refuse(name, reason, writer)
            return None
        return line

    def _objection(self, name: str, hello: Hello) -> str | None:
        """Return why a party may not join now."""
        if name not in self.parties:
            return f"The server expects {', '.join(self.parties)}. Got '{name}'."
        if hello.party != name:
            return (
                f"A party must go by the name in its certificate, '{name}'. "
                f"Got {hello.party[:80]!r}."
            )
        if name in self._lines:
            return f"Party '{name}' must connect once. It is connected already."
        if self._closing:
            return OVER
        return self.admit(hello)

    def _refuse(self, who: str, reason: str, writer: Any) -> None:
        reason = reason[:2000]
        log.warning("refused '%s': %s", who, reason)
        self.refused(who, reason)
        final = not reason.startswith("Party '")  # a stale connection goes away
        try:
            frame = codec.encode(WireFrame(Refusal(reason, final), 0, self.run_id))
            writer.write_metadata(pyarrow.py_buffer(frame))
        except pyarrow.ArrowException:
            return

    def _drop(self, line: _Stream) -> None:
        line.broken.set()
        line.replies.put(None)
        with self._changed:
            if self._lines.get(line.party) is line:
                del self._lines[line.party]
            if line.party not in self._lines:  # else it is back already
                self.went(line.party)
            self._changed.notify_all()

    # ------------------------------------------------------------- the server's thread

    @property
    def connected(self) -> tuple[PartyId, ...]:
        """Return who is connected now."""
        with self._changed:
            return tuple(self._lines)

    def hello(self, party: PartyId) -> Hello:
        """Return how a connected party greeted."""
        with self._changed:
            return self._lines[party].hello

    def wait(self, seconds: float) -> None:
        """Wait until all parties are connected, or raise naming those who are not."""
        end = time.monotonic() + seconds
        with self._changed:
            while missing := [p for p in self.parties if p not in self._lines]:
                left = end - time.monotonic()
                if left <= 0:
                    raise PartyLostError(missing, f"away for {seconds:g} seconds")
                self._changed.wait(min(left, 1.0))

    def exchange(self, requests: Mapping[PartyId, Request]) -> dict[PartyId, Reply]:
        """Send every request, then take every reply, or raise."""
        return self.send(requests)

    def send(self, requests: Mapping[PartyId, Any]) -> dict[PartyId, Any]:
        """Exchange messages of any kind, those around a run included."""
        self.number += 1
        with self._changed:
            lines = {p: self._lines[p] for p in requests if p in self._lines}
        if missing := [party for party in requests if party not in lines]:
            raise PartyLostError(missing, "not connected")
        orders = {}  # all are written before the first goes out: one thread at a time
        for party, request in requests.items():
            frame = WireFrame(request, self.number, self.run_id)
            orders[party] = (frame, codec.encode(frame))
        for party, order in orders.items():
            lines[party].requests.put(order)
        end = time.monotonic() + self.patience
        return {
            party: self._reply(line, requests[party], end)
            for party, line in lines.items()
        }

    def _reply(self, line: _Stream, request: Any, end: float) -> Any:
        """Return a party's reply to this exchange; late ones to earlier are dropped."""
        while True:
            try:
                answer = line.replies.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.hang_up(line.party)
                why = f"no reply for {self.patience:g} seconds"
                raise PartyLostError([line.party], why) from None
            if answer is None:
                raise PartyLostError([line.party], "connection lost")
            sent, came = answer
            if sent.number != self.number:
                continue  # late, of an exchange that was given up
            if isinstance(came, memoryview):
                came = self._read(sent, came)
            if isinstance(came, ProtocolError):
                self.cut_off(line.party, str(came))
            reply = came.message
            if isinstance(reply, Refusal):
                said = (c if c.isprintable() else " " for c in reply.reason)
                raise ProtocolError(f"Party '{line.party}' stops: {''.join(said)}")
            complaint = self.check(line.party, request, reply)
            if complaint is not None:
                self.cut_off(line.party, complaint)
            return reply

    def _read(self, sent: WireFrame, data: memoryview) -> WireFrame | ProtocolError:
        """Read a reply to what was sent, or return what is wrong with it."""
        try:
            frame = codec.decode(data, self.limit)
        except ProtocolError as error:
            return error
        if (frame.number, frame.run) == (sent.number, sent.run):
            return frame
        return ProtocolError(
            "A reply must be of the exchange and the run that it answers. Got "
            f"exchange {frame.number} in place of {sent.number}, or another run."
        )

    def cut_off(self, party: PartyId, why: str) -> NoReturn:
        """Hang up on who sent something else than was asked for."""
        self.hang_up(party)
        self.refused(party, why)
        log.warning("party '%s' sent no proper reply: %s", party, why)
        raise PartyLostError([party], why)

    def _count(self, party: PartyId, up: int = 0, down: int = 0) -> None:
        old = self.traffic[party]
        self.traffic[party] = Traffic(old.up + up, old.down + down)

    def hang_up(self, party: PartyId) -> None:
        """End the connection of a party; it may come back."""
        with self._changed:
            line = self._lines.pop(party, None)
        if line is not None:
            line.requests.put(None)

    def close(self, reason: str | None = None) -> None:
        """Say farewell to all, with a reason where a run ends early; stop listening."""
        with self._changed:
            self._closing = True
            lines = list(self._lines.values())
        last = Farewell() if reason is None else Refusal(reason[:4000])
        for line in lines:
            line.farewell = codec.encode(WireFrame(last, self.number, self.run_id))
            line.requests.put(None)
        self.shutdown()


def _next(reader: Any) -> memoryview:
    """Return the next frame of a stream."""
    return memoryview(reader.read_chunk().app_metadata or b"")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# ----------------------------------------------------------------------- a party's side


@dataclass(frozen=True)
class Address:
    """Where the server is, and who the party is."""

    server: str
    credentials: Credentials | None
    server_name: str = "localhost"


def serve(
    address: Address,
    hello: Hello,
    handle: Callable[[Any], Any],
    *,
    patience: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Dial the server and answer its requests until it says that the run is over.

    A connection that is lost is made again, for at most `patience` seconds without one.
    An error of `handle` is told to the server and raised.
    """
    end = time.monotonic() + patience
    pauses = _pauses()

    def heard(message: Any) -> Any:
        nonlocal end, pauses
        reply = handle(message)
        end, pauses = time.monotonic() + patience, _pauses()
        return reply

    while True:
        try:
            if _answer(address, hello, heard):
                return
        except (pyarrow.ArrowException, StopIteration, OSError) as error:
            why = _first_line(error)
            log.info("no connection to %s: %s", address.server, why)
            if time.monotonic() > end:
                raise PartyLostError(
                    ["the server"], f"no connection to {address.server}: {why}"
                ) from None
            sleep(next(pauses))


def _pauses() -> Iterator[float]:
    """Yield how long to wait before the next try."""
    pause = 0.1
    while True:
        yield pause
        pause = min(2.0, 2 * pause)


def _answer(address: Address, hello: Hello, handle: Callable[[Any], Any]) -> bool:
    """Answer requests over one connection; tell whether the run ended in it."""
    where = location(address.server, address.credentials is not None)
    options: dict[str, Any] = {
        "generic_options": [
            ("grpc.keepalive_time_ms", KEEP_ALIVE_MS),
            ("grpc.keepalive_timeout_ms", 20_000),
        ]
    }
    if address.credentials is not None:
        certificate, key, ca = address.credentials.read()
        options |= {
            "tls_root_certs": ca,
            "cert_chain": certificate,
            "private_key": key,
            "override_hostname": address.server_name,
        }
    with flight.connect(where, **options) as client:
        descriptor = flight.FlightDescriptor.for_command(COMMAND)
        writer, reader = client.do_exchange(descriptor)
        try:
            writer.write_metadata(pyarrow.py_buffer(codec.encode(WireFrame(hello, 0))))
            return _converse(writer, reader, handle)
        finally:
            _close(writer)


def _close(writer: Any) -> None:
    try:
        writer.close()
    except pyarrow.ArrowException as error:
        log.debug("closing: %s", _first_line(error))


def _converse(writer: Any, reader: Any, handle: Callable[[Any], Any]) -> bool:
    while True:
        frame = codec.decode(_next(reader))
        if isinstance(frame.message, Farewell):
            return True
        if isinstance(frame.message, Refusal):
            if frame.message.reason == OVER:
                return True
            if frame.message.final:
                raise ConfigError(f"The server says no: {frame.message.reason}")
            raise OSError(frame.message.reason)
        try:
            reply = handle(frame.message)
        except Exception as error:
            reason = f"{type(error).__name__}: {_first_line(error)}"[:2000]
            refusal = WireFrame(Refusal(reason), frame.number, frame.run)
            writer.write_metadata(pyarrow.py_buffer(codec.encode(refusal)))
            raise
        data = codec.encode(WireFrame(reply, frame.number, frame.run))
        writer.write_metadata(pyarrow.py_buffer(data))
