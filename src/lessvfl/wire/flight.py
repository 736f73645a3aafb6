"""Arrow Flight as the engine: DoExchange with mutual TLS.

Only the server listens (:class:`FlightHub`), parties dial out (:class:`Address`) and
keep one stream open. A frame (:mod:`lessvfl.wire.codec`) travels in the metadata
buffer. Who a party is comes from its certificate alone.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import flight

from lessvfl.errors import ConfigError
from lessvfl.terms import PartyId
from lessvfl.wire import codec
from lessvfl.wire.connection import CLOSE_SECONDS, GoneError, first_line, start_thread
from lessvfl.wire.control import Hello
from lessvfl.wire.hub import Hub

COMMAND = b"lessvfl/1"
KEEP_ALIVE_MS = 330_000  # gRPC closes connections that ping more often
LOST = (pyarrow.ArrowException, flight.FlightError, StopIteration, OSError)

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


# What the engine says of a connection that was not made, and what it means; the first
# that fits counts.
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


def reason_of(error: BaseException) -> str:
    """Return why there is no connection, in few words where the engine has many."""
    text = str(error)
    log.debug("no connection: %s", first_line(error))
    return next((words for sign, words in REASONS.items() if sign in text), BROKEN)


class FlightStream:
    """One end of an open stream; a party's holds its connection, too."""

    def __init__(self, reader: Any, writer: Any, client: Any = None) -> None:
        self._reader = reader
        self._writer = writer
        self._client = client

    def read(self) -> memoryview:
        """Return the next frame."""
        try:
            return memoryview(self._reader.read_chunk().app_metadata or b"")
        except LOST as error:
            raise GoneError(reason_of(error)) from None

    def write(self, data: bytes) -> None:
        """Send a frame."""
        try:
            self._writer.write_metadata(pyarrow.py_buffer(data))
        except LOST as error:
            raise GoneError(reason_of(error)) from None

    def close(self) -> None:
        """End a party's connection, whether or not the server listens.

        The server's end is over when its call returns.
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
        """Dial the server."""
        where = location(self.server, self.credentials is not None)
        options: dict[str, Any] = {
            "generic_options": [
                ("grpc.keepalive_time_ms", KEEP_ALIVE_MS),
                ("grpc.keepalive_timeout_ms", 20_000),
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
            client = flight.connect(where, **options)
            descriptor = flight.FlightDescriptor.for_command(COMMAND)
            writer, reader = client.do_exchange(descriptor)
        except LOST as error:
            raise GoneError(reason_of(error)) from None
        return FlightStream(reader, writer, client)


class FlightHub(Hub):
    """A hub that listens at an address.

    `name_of` turns what a certificate says into a name. Without credentials nothing is
    encrypted, and nothing proves who a party is.
    """

    def __init__(
        self,
        address: str,
        parties: Sequence[PartyId],
        credentials: Credentials | None,
        *,
        admit: Callable[[Hello], str | None] = lambda hello: None,
        silence: float = 60.0,
        limit: int = codec.MAX_BODY,
        refused: Callable[[str, str], None] = lambda who, why: None,
        name_of: Callable[[bytes], str] = lambda peer: peer.decode("utf-8", "replace"),
    ) -> None:
        super().__init__(
            parties, admit=admit, silence=silence, limit=limit, refused=refused
        )
        self.secure = credentials is not None
        self.name_of = name_of
        where = location(address, self.secure)
        options: dict[str, Any] = {}
        if credentials is not None:
            certificate, key, ca = credentials.read()
            options = {
                "tls_certificates": [(certificate, key)],
                "verify_client": True,
                "root_certificates": ca,
            }
        try:
            self._server = _Server(self, where, **options)
        except (pyarrow.ArrowException, OSError) as error:
            log.debug("cannot listen: %s", first_line(error))
            raise ConfigError(
                f"The server must be able to listen at {address}. Got an address that "
                f"{_objection(address)}."
            ) from None

    @property
    def port(self) -> int:
        """Return the port that it listens at."""
        return int(self._server.port)

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    """What Flight calls, in a thread of its own, for every stream."""

    def __init__(self, hub: FlightHub, where: str, **options: Any) -> None:
        self._hub = hub
        super().__init__(where, **options)

    def do_exchange(
        self, context: Any, descriptor: Any, reader: Any, writer: Any
    ) -> None:
        """Hand a stream to the hub."""

        def who() -> str | None:
            hub = self._hub
            return hub.name_of(context.peer_identity()) if hub.secure else None

        greets = descriptor.command == COMMAND
        self._hub.attend(FlightStream(reader, writer), who, greets)


def _objection(address: str) -> str:
    """Return why nobody can listen at an address; the engine does not tell."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, *_, where = found[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
    except OverflowError:
        return "has a port above 65535"
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "another process listens at; give another port, or end that one"
        return f"cannot be had ({error.strerror or error})"
    return "cannot be had"
