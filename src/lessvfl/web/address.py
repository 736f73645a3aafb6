"""Addresses of this machine: where a site may be, and under which names."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from lessvfl.errors import ConfigError


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
    if not is_local(address):
        raise ConfigError(
            f"The address of {what} must be of this machine, as in 127.0.0.1:8080, "
            f"since nothing on it is encrypted. Got {address!r}."
        )
    return host, port


def is_local(address: str) -> bool:
    """Tell whether HOST or HOST:PORT, as in a request's header, is this machine."""
    try:
        parts = urlsplit(f"//{address}")
        host = parts.hostname or ""
        whole = parts.netloc == address and parts.username is None
        return whole and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Take a port and listen, so that nobody else can; what is wrong is an OSError."""
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
