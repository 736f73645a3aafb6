"""Arrow Flight as the engine: DoExchange with mutual TLS.

Only the server listens (:class:`FlightHub`), parties dial out (:class:`Address`) and
keep one stream open. A frame (:mod:`lessvfl.wire.codec`) travels in the metadata
buffer. Who a party is comes from its certificate alone. What strangers may take of the
server is bounded by a front (:mod:`lessvfl.wire.front`): it listens to the world and
passes each connection on to a lane, a Flight server on loopback with one stream.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import flight, ipc

from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.terms import PartyId
from lessvfl.wire import codec
from lessvfl.wire.connection import (
    CLOSE_SECONDS,
    LARGEST_HELLO,
    GoneError,
    first_line,
    start_thread,
)
from lessvfl.wire.due import TOO_MUCH
from lessvfl.wire.front import LOOPBACK, USUAL, Front, Guest, Limits
from lessvfl.wire.hub import Hub
from lessvfl.wire.line import ANY_PARTY, HubRules
from lessvfl.wire.messages import Traffic

COMMAND = b"lessvfl/1"
PART = codec.HEAD_BYTES + codec.MAX_FIELDS  # bytes of a frame that travel together
AROUND_PART = 1 << 10  # bytes of the engine around them
KEEP_ALIVE_MS = 330_000  # gRPC closes connections that ping more often
# Tables of Arrow, which nobody sends here and which may be compressed, are refused by
# their schema: none has this field.
NO_TABLES = ipc.IpcReadOptions(included_fields=[(1 << 31) - 1])
LOST = (pyarrow.ArrowException, flight.FlightError, StopIteration, OSError)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credentials:
    """The files that prove an identity: certificate, key, and the CA's certificate.

    None in their place means no encryption, which only loopback allows.
    """

    certificate: Path
    key: Path
    ca: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the content of the three files: certificate, key, CA's certificate."""
        files = (self.certificate, self.key, self.ca)
        try:
            certificate, key, ca = (file.read_bytes() for file in files)
        except OSError as error:
            raise ConfigError(
                f"Certificate, key and CA must be files that can be read. Got "
                f"'{error.filename}': {error.strerror}."
            ) from None
        return certificate, key, ca


def parse_address(address: str, secure: bool) -> tuple[str, int]:
    """Return host and port of an address, which must be loopback if not `secure`."""
    bracketed, _, port = address.rpartition(":")
    host = bracketed.strip("[]")
    if not port.isdecimal() or not host:
        raise ConfigError(
            f"An address must be given as HOST:PORT, as in 127.0.0.1:8815. "
            f"Got {address!r}."
        )
    if not secure:
        try:
            inside = ipaddress.ip_address(host).is_loopback
        except ValueError:
            inside = host == "localhost"
        if not inside:
            raise ConfigError(
                "Without encryption the address must be of this machine, as in "
                f"127.0.0.1:8815. Got {address!r}."
            )
    return host, int(port)


def _location(address: str, secure: bool) -> str:
    return f"grpc+{'tls' if secure else 'tcp'}://{address}"


# Parts of the engine's error messages and what they mean; the first match counts.
REASONS = {
    "Connection refused": "connection refused: nobody listens there",
    "hostname lookup": "its host name is not known",
    "errors resolving": "its host name is not known",
    "not in peer certificate": "its certificate is not of 'server_name'",
    "Hostname Verification": "its certificate is not of 'server_name'",
    "certificate verify failed": "its certificate is not of the CA in 'ca'",
    "wrong version number": "whoever listens there does not speak TLS",
    "Failed parsing HTTP/2": "whoever listens there is no server of lessvfl",
    "o route to host": "there is no way to it in this network",
    "etwork is unreachable": "there is no way to it in this network",
    "imed out": "it does not answer",
    "imeout": "it does not answer",
    "all addresses; last error: UNAVAILABLE": "it ends the connection at once, as one "
    "of another CA does, or one with encryption where this side has none",
}
BROKEN = "the connection broke"
TOO_LONG = "larger than max"  # what the engine says of more than a part at once
MORE = f"{TOO_MUCH} Got more."


def reason_of(error: BaseException) -> str:
    """Return in a few words why there is no connection."""
    text = str(error)
    log.debug("no connection: %s", first_line(error))
    return next((words for sign, words in REASONS.items() if sign in text), BROKEN)


class FlightStream:
    """One end of an open stream.

    A party's end owns its connection, `client`; the server's end has a `guest`, which
    limits what the party may send. A frame travels in parts, so that no end holds more
    of one than is due: the first part has its head and all its fields.
    """

    def __init__(
        self, reader: Any, writer: Any, client: Any = None, guest: Guest | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._client = client
        self._guest = guest
        self._most_bytes = LARGEST_HELLO  # of the next frame
        self._n_refused = 0  # bytes of a frame that are still to come

    def read(self) -> memoryview:
        """Return the next frame; of one that is too long its first part."""
        while self._n_refused > 0:
            self._n_refused -= len(self._read_part())
        first = self._read_part()
        n_bytes = codec.length_of(first)
        if n_bytes <= len(first) or len(first) < PART:  # cut short: nothing follows
            return first
        if n_bytes > self._most_bytes:
            self._n_refused = n_bytes - len(first)
            return first
        whole, n_read = memoryview(bytearray(n_bytes)), 0
        while True:
            if not len(first) or n_read + len(first) > n_bytes:
                raise ProtocolError(MORE)
            whole[n_read : n_read + len(first)] = first
            n_read += len(first)
            if n_read == n_bytes:
                return whole
            first = self._read_part()

    def _read_part(self) -> memoryview:
        try:
            part = self._reader.read_chunk().app_metadata
        except LOST as error:
            is_long = self._guest is not None and self._guest.said_too_much
            if is_long or TOO_LONG in str(error):
                raise ProtocolError(MORE) from None
            raise GoneError(reason_of(error)) from None
        return memoryview(part or b"").cast("B")

    def expect(self, n_bytes: int) -> None:
        """Let the other end send a frame of so many bytes."""
        self._most_bytes = n_bytes
        if self._guest is not None:
            self._guest.expect(n_bytes)

    @property
    def passed(self) -> Traffic | None:
        """Return the bytes of a guest's connection; unknown at a party."""
        return None if self._guest is None else self._guest.passed

    def end_soon(self) -> None:
        """Have a guest's connection closed soon."""
        if self._guest is not None:
            self._guest.end_soon()

    def write(self, data: bytes) -> None:
        """Send a frame, given as bytes, to the other end."""
        whole = memoryview(data)
        try:
            for start in range(0, len(whole), PART):
                part = whole[start : start + PART]
                self._writer.write_metadata(pyarrow.py_buffer(part))
        except LOST as error:
            raise GoneError(reason_of(error)) from None

    def close(self) -> None:
        """Close the connection of a party's end, whether or not the server still reads.

        At the server's end nothing is done: that closes when its Flight call returns.
        """
        if self._client is None:
            return

        def close() -> None:
            try:
                self._writer.close()
            except LOST as error:
                log.debug("closing: %s", first_line(error))

        closing = start_thread("lessvfl-close", close)
        if closing is not None:
            closing.join(CLOSE_SECONDS)
            if closing.is_alive():
                self._reader.cancel()
                closing.join(CLOSE_SECONDS)
        self._client.close()


@dataclass(frozen=True)
class Address:
    """Where the server is, and who the party is."""

    server: str
    credentials: Credentials | None
    server_name: str = "localhost"

    def connect(self) -> FlightStream:
        """Dial the server at this address, and return the open stream to it."""
        secure = self.credentials is not None
        parse_address(self.server, secure)
        options: dict[str, Any] = {
            "generic_options": [
                ("grpc.keepalive_time_ms", KEEP_ALIVE_MS),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.max_receive_message_length", PART + AROUND_PART),
            ]
        }
        if self.credentials is not None:
            certificate, key, ca = self.credentials.read()
            options |= {
                "tls_root_certs": ca,
                "cert_chain": certificate,
                "private_key": key,
                "override_hostname": self.server_name,
            }
        try:
            client = flight.connect(_location(self.server, secure), **options)
            descriptor = flight.FlightDescriptor.for_command(COMMAND)
            how = flight.FlightCallOptions(read_options=NO_TABLES)
            writer, reader = client.do_exchange(descriptor, how)
        except LOST as error:
            raise GoneError(reason_of(error)) from None
        return FlightStream(reader, writer, client)


class FlightHub(Hub):
    """A hub that listens at an address.

    `name_of` returns the party's name from what its certificate says. Without
    credentials nothing is encrypted, and nothing proves who a party is.
    """

    def __init__(
        self,
        address: str,
        parties: Sequence[PartyId],
        credentials: Credentials | None,
        *,
        silence: float = 60.0,
        rules: HubRules = ANY_PARTY,
        name_of: Callable[[bytes], str] = lambda peer: peer.decode("utf-8", "replace"),
        limits: Limits = USUAL,
    ) -> None:
        super().__init__(parties, silence=silence, rules=rules)
        self.secure = credentials is not None
        self.name_of = name_of
        host, port = parse_address(address, self.secure)
        self._options: dict[str, Any] = {}
        if credentials is not None:
            certificate, key, ca = credentials.read()
            self._options = {
                "tls_certificates": [(certificate, key)],
                "verify_client": True,
                "root_certificates": ca,
            }
        self._lanes: list[_Lane] = []
        self._free: deque[_Lane] = deque()  # longest free first
        try:
            self._free.append(self._new_lane())  # bad certificates fail here
            limits = limits.within_files(len(parties))
            self._front = Front(host, port, self._find_lane, limits)
        except (pyarrow.ArrowException, OSError, OverflowError) as error:
            self._stop_lanes()
            log.debug("cannot listen: %s", first_line(error))
            raise ConfigError(
                f"The server must be able to listen at {address}. Got an address that "
                f"{_objection(error)}."
            ) from None

    @property
    def port(self) -> int:
        """Return the port that it listens at."""
        return self._front.port

    def stop(self) -> None:
        """Stop listening, and end all connections once their streams are over."""
        self._front.stop_listening()
        self._stop_lanes()
        self._front.stop()

    def _stop_lanes(self) -> None:
        for lane in self._lanes:
            lane.shutdown()

    def _new_lane(self) -> _Lane:
        where = _location(f"{LOOPBACK}:0", self.secure)
        self._lanes.append(_Lane(self, where, self._free.append, **self._options))
        return self._lanes[-1]

    def _find_lane(self, guest: Guest) -> int:
        """Give a guest a lane of its own; return its port."""
        lane = self._free.popleft() if self._free else self._new_lane()
        lane.take(guest)
        return int(lane.port)


class _Streams(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Ask the lane whether a stream may begin, before anything of it is read."""

    def __init__(self) -> None:
        self.lane: _Lane | None = None

    def start_call(self, info: Any, headers: Any) -> _Stream:
        """Note that a stream begins, or refuse it."""
        lane = self.lane
        if (
            lane is None
            or info.method != flight.FlightMethod.DO_EXCHANGE
            or not lane.open_stream()
        ):
            raise flight.FlightUnavailableError("A connection has one stream.")
        return _Stream(lane)


class _Stream(flight.ServerMiddleware):  # type: ignore[misc]
    """Tells when a stream is over."""

    def __init__(self, lane: _Lane) -> None:
        self._lane = lane
        self.guest: Guest | None = None

    def call_completed(self, exception: Any) -> None:
        """Have the connection end, which was for this stream."""
        if self.guest is not None:
            self.guest.end_soon()
        self._lane.close_stream()


class _Lane(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server for one connection at a time.

    `freed` is called when the guest is gone and its stream is over.
    """

    def __init__(
        self, hub: FlightHub, where: str, freed: Callable[[_Lane], None], **options: Any
    ) -> None:
        self._hub = hub
        self._freed = freed
        self._lock = threading.Lock()  # of the next three
        self._guest: Guest | None = None
        self._is_open = False  # a stream
        self._is_taken = False
        streams = _Streams()
        super().__init__(where, middleware={"streams": streams}, **options)
        streams.lane = self

    def take(self, guest: Guest) -> None:
        """Serve this guest until it leaves."""
        with self._lock:
            self._guest, self._is_taken = guest, True
        guest.leave = self._leave

    def _leave(self) -> None:
        with self._lock:
            self._guest = None
            self._give_back()

    def open_stream(self) -> bool:
        """Note that a stream begins on this connection; return whether it may."""
        with self._lock:
            guest = self._guest
            if guest is None or self._is_open or guest.has_spoken:
                return False
            self._is_open = guest.has_spoken = True
            return True

    def close_stream(self) -> None:
        """Note that the stream is over."""
        with self._lock:
            self._is_open = False
            self._give_back()

    def _give_back(self) -> None:
        if self._is_taken and self._guest is None and not self._is_open:
            self._is_taken = False
            self._freed(self)

    def do_exchange(
        self, context: Any, descriptor: Any, reader: Any, writer: Any
    ) -> None:
        """Hand a stream to the hub, unless it bypassed the front."""
        guest, hub = self._guest, self._hub
        if guest is None or not context.peer().endswith(f":{guest.port}"):
            return
        context.get_middleware("streams").guest = guest

        def who() -> str | None:
            return hub.name_of(context.peer_identity()) if hub.secure else None

        stream = FlightStream(reader, writer, guest=guest)
        hub.attend(stream, who, descriptor.command == COMMAND)


def _objection(error: Exception) -> str:
    """Return, as the end of a sentence, why the server cannot listen at an address."""
    if isinstance(error, OverflowError):
        return "has a port above 65535"
    if isinstance(error, OSError):
        if error.errno == errno.EADDRINUSE:
            return "another process listens at; give another port, or end that one"
        return f"cannot be had ({error.strerror or error})"
    return "cannot be had"
