"""Addresses of this machine: where a site may be, and under which names."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from lessvfl.errors import ConfigError


def listen(address: str, what: str) -> socket.socket:
    """Take the port of HOST:PORT, an address of this machine, for `what`."""
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
    if not is_local(address):
        raise ConfigError(
            f"The address of {what} must be of this machine, as in 127.0.0.1:8080, "
            f"since nothing on it is encrypted. Got {address!r}."
        )
    try:
        return _bind(host, port)
    except OSError as error:
        why = f"{error.strerror or error}."
        if error.errno == errno.EADDRINUSE:
            why = "the port is in use. Give another one, or 0 for any that is free."
        raise ConfigError(f"{what.capitalize()} cannot have {address}: {why}") from None


def url_of(listener: socket.socket) -> str:
    """Return the URL of a site at a socket."""
    host, port, *_ = listener.getsockname()
    return f"http://{with_port(host, port)}/"


def with_port(host: str, port: int) -> str:
    """Return HOST:PORT; an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(address: str) -> bool:
    """Tell whether HOST or HOST:PORT, as in a request's header, is this machine."""
    try:
        parts = urlsplit(f"//{address}")
        host = parts.hostname or ""
        whole = parts.netloc == address and parts.username is None
        return whole and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    """Bind and listen at once, so that nobody else can."""
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener
