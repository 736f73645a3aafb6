"""The status of a run over HTTP, for a browser and for Prometheus on this machine."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import ipaddress
import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from lessvfl.errors import ConfigError
from lessvfl.status import page, prometheus
from lessvfl.status.snapshot import Snapshot
from lessvfl.status.value import Status

logger = logging.getLogger(__name__)

N_THREADS = 32  # connections at a time; one more takes the place of the oldest
TIMEOUT_SECONDS = 5.0  # that a connection lasts, however slow the peer
MOST_BYTES = 1 << 14  # of a request, its headers included


class StatusServer:
    """Serve the status of a run on a local port.

    ========================  ====================================================
    ``/``                     a page that keeps itself up to date
    ``/status.json``          `Status.snapshot`
    ``/metrics``              the same for Prometheus
    ``/healthz``              the state; status 503 once the run has failed
    ========================  ====================================================

    Nobody is asked who they are, so the address must be of this machine (loopback), as
    in ``127.0.0.1:8080`` or ``[::1]:8080``; port 0 takes a free one. The port is taken
    at once; answers are given inside the ``with`` block. The page is at `url`.
    """

    def __init__(self, status: Status, address: str = "127.0.0.1:0") -> None:
        host, port = local_address(address, "the status page")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, *_, where = found[0]
            self._server = _Server(where, family, status)
        except OSError as error:
            why = f"{error.strerror or error}."
            if error.errno == errno.EADDRINUSE:
                why = "the port is in use. Give another one, or 0 for any that is free."
            raise ConfigError(
                f"The status page cannot have {address}: {why}"
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._server.server_port}/"
        serve = functools.partial(self._server.serve_forever, poll_interval=0.1)
        self._thread = threading.Thread(None, serve, "lessvfl-status", daemon=True)

    def __enter__(self) -> StatusServer:
        """Begin to answer, in a thread of its own."""
        self._thread.start()
        return self

    def stay(self, seconds: float) -> None:
        """Go on answering for a while, unless interrupted."""
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(seconds)

    def __exit__(self, *error: object) -> None:
        """Stop and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


# -- the address -----------------------------------------------------------------------


def local_address(address: str, what: str) -> tuple[str, int]:
    """Return host and port of an address of this machine, where `what` is to be."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.netloc != address:
        raise ConfigError(
            f"The address of {what} must be HOST:PORT with a port from 0 to 65535, as "
            f"in 127.0.0.1:8080. Got {address!r}."
        )
    if not _is_loopback(host):
        raise ConfigError(
            f"The address of {what} must be of this machine, as in 127.0.0.1:8080, "
            f"since nothing on it is encrypted. Got {address!r}."
        )
    return host, port


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# -- answering -------------------------------------------------------------------------

PLAIN, JSON = "text/plain; charset=utf-8", "application/json"

# Path -> type and text of the answer.
PATHS: dict[str, tuple[str, Callable[[Snapshot], str]]] = {
    "/": ("text/html; charset=utf-8", page.render),
    "/status.json": (JSON, lambda s: json.dumps(s, allow_nan=False) + "\n"),
    "/metrics": (prometheus.CONTENT_TYPE, prometheus.render),
    "/healthz": (PLAIN, lambda s: f"{s['state']}\n"),
}


class _Server(ThreadingHTTPServer):
    """An HTTP server with a bounded number of threads."""

    allow_reuse_port = False  # a port in use is in use
    request_queue_size = socket.SOMAXCONN  # they wait while the machine is busy

    def __init__(self, where: Any, family: int, status: Status) -> None:
        self.address_family = socket.AddressFamily(family)
        self.status = status
        self._open: dict[Any, float] = {}  # connections and when they end, oldest first
        self._lock = threading.Lock()
        super().__init__(where, _Handler)

    def server_bind(self) -> None:
        """Bind, without asking a name server for our name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread; where there are many, the oldest one gives way."""
        with self._lock:
            while len(self._open) >= N_THREADS:
                self._end(next(iter(self._open)))
            self._open[request] = time.monotonic() + TIMEOUT_SECONDS
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def get_request(self) -> Any:
        """Take a connection; where there is no descriptor for it, wait a moment."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._end_one()
                time.sleep(0.1)
            raise

    def _end_one(self) -> None:
        with self._lock:
            if self._open:
                self._end(next(iter(self._open)))

    def service_actions(self) -> None:
        """End the connections that last too long; called several times a second."""
        now = time.monotonic()
        with self._lock:
            for request in [r for r, end in self._open.items() if end < now]:
                self._end(request)

    def _end(self, request: Any) -> None:
        """End a connection; its thread hears of it at once."""
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong; a peer that left is nobody's fault."""
        gone = isinstance(sys.exception(), OSError)
        level = logging.DEBUG if gone else logging.ERROR
        logger.log(level, "a request of the status page failed", exc_info=True)


class _Short(io.BufferedIOBase):
    """The first bytes of a stream, line by line; it seems to end after them."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._left = stream, MOST_BYTES

    @property
    def is_spent(self) -> bool:
        """Tell whether there was more than is read."""
        return self._left == 0

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line."""
        most = self._left if size is None or size < 0 else min(size, self._left)
        line: bytes = self._stream.readline(most)
        self._left -= len(line)
        return line

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


class _Handler(BaseHTTPRequestHandler):
    """Answer one request."""

    server: _Server
    rfile: _Short
    server_version = "lessvfl"
    sys_version = ""
    timeout = TIMEOUT_SECONDS

    def setup(self) -> None:
        """Read a request of a few bytes, whatever is sent."""
        super().setup()
        self.rfile = _Short(self.rfile)

    def do_GET(self) -> None:
        """Answer with one of the few things there are."""
        path = self.path.partition("?")[0]
        if self.rfile.is_spent:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif not self._asks_this_machine():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif path not in PATHS:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            snapshot = self.server.status.snapshot()
            kind, write = PATHS[path]
            failed = path == "/healthz" and snapshot["state"] == "failed"
            code = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
            self._reply(code, kind, write(snapshot))

    def do_HEAD(self) -> None:
        """Answer without the text."""
        self.do_GET()

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer in one plain line; a method we do not know is not allowed."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._reply(status, PLAIN, f"{status.phrase}\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log for whoever debugs."""
        logger.debug("status page: %r", format % args)

    def _asks_this_machine(self) -> bool:
        """Tell whether the name asked for is local, or a foreign page's trick."""
        try:
            host = urlsplit(f"//{self.headers.get('Host', 'localhost')}").hostname
        except ValueError:
            return False
        return host is not None and _is_loopback(host)

    def _reply(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", errors="replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", page.policy()),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
