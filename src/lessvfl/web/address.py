"""Addresses of this machine: where a site may be, and under which names."""

from __future__ import annotations

import errno
import re
import socket
from ipaddress import ip_address

from lessvfl.errors import ConfigError

# HOST or HOST:PORT; an address of IPv6 stands in brackets.
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::([0-9]{1,5}))?")
_MOST_PORT = 65535


def listen(address: str, what: str) -> socket.socket:
    """Take the port of HOST:PORT, an address of this machine, for `what`."""
    host, port = _host_and_port(address)
    if host is None or port is None:
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
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        try:  # bind and listen at once, so that nobody else can
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        why = f"{error.strerror or error}."
        if error.errno == errno.EADDRINUSE:
            why = "the port is in use. Give another one, or 0 for any that is free."
        raise ConfigError(f"{what.capitalize()} cannot have {address}: {why}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a site at a socket."""
    host, port, *_ = listener.getsockname()
    return f"http://{with_port(host, port)}/"


def with_port(host: str, port: int) -> str:
    """Return HOST:PORT; an address of IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(address: str) -> bool:
    """Tell whether HOST or HOST:PORT, as in a request's header, is this machine."""
    host, _ = _host_and_port(address)
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _host_and_port(address: str) -> tuple[str | None, int | None]:
    """Split HOST or HOST:PORT to the letter; both are None of anything else."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3] or 0) > _MOST_PORT:
        return None, None
    host = (match[1] or match[2]).lower()
    return host, None if match[3] is None else int(match[3])
