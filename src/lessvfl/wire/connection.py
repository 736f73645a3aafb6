"""What both ends of a connection share: who they are, where, frames in and out.

Arrow Flight DoExchange with mutual TLS: only the server listens
(:mod:`lessvfl.wire.flight`), parties dial out (:mod:`lessvfl.wire.dial`) and keep one
stream open. A frame (:mod:`lessvfl.wire.codec`) travels in the metadata buffer.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import flight

from lessvfl.errors import ConfigError
from lessvfl.wire.control import Refusal

COMMAND = b"lessvfl/1"
OVER = Refusal("over", "The run is over.")
CLOSE_SECONDS = 2.0  # for last words to go out

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


class GoneError(Exception):
    """The other end is gone, or not there yet; the connection, not what it carried."""


LOST = (pyarrow.ArrowException, flight.FlightError, StopIteration, OSError)


def read_frame(reader: Any) -> memoryview:
    """Return the next frame of a stream."""
    try:
        return memoryview(reader.read_chunk().app_metadata or b"")
    except LOST as error:
        raise GoneError(reason_of(error)) from None


def write_frame(writer: Any, data: bytes) -> None:
    """Send a frame."""
    try:
        writer.write_metadata(pyarrow.py_buffer(data))
    except LOST as error:
        raise GoneError(reason_of(error)) from None


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
