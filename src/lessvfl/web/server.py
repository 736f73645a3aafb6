"""uvicorn, with an end to every connection."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lessvfl.web import limits
from lessvfl.web.site import Site

NOTHING = "default-src 'none'; frame-ancestors 'none'"  # that an answer may load
HEADERS = [
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Server", "lessvfl"),
    ("X-Content-Type-Options", "nosniff"),
]


class HttpConnection(H11Protocol):
    """A connection, for as long as it asks and takes answers.

    uvicorn waits for the first request of a connection for ever, for the next one as
    long as any byte comes, and reads all of a body that it has refused.
    """

    _timer: asyncio.TimerHandle | None = None
    _n_refused_bytes = 0  # of a body, that came after the answer
    since = 0.0

    def connection_made(self, transport: Any) -> None:
        """Accept a connection; if there are too many, the oldest ends."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._wait()
        if len(self.connections) > limits.CONNECTIONS:
            make_room(self.connections)

    def data_received(self, data: bytes) -> None:
        """Read what comes; the complete head of a request restarts the timer.

        Of a refused body, no more is read than a request may have: a peer that writes
        it to the end first can then still read why.
        """
        before = self.cycle
        if before is not None and before.response_complete:
            self._n_refused_bytes += len(data)
            if self._n_refused_bytes > limits.BODY_BYTES:
                return self.end()
        super().data_received(data)
        if self.cycle is not before:
            self._n_refused_bytes = 0
            self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there already."""
        super().on_response_complete()
        self._wait()

    def pause_writing(self) -> None:
        """Restart the timer: the peer must read its answers."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """Restart the timer: the answer goes on."""
        super().resume_writing()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        """Start the timer that ends the connection, whatever comes until then."""
        seconds = limits.HEAD_SECONDS
        if not self.is_idle:
            seconds += limits.BODY_SECONDS + limits.ANSWER_SECONDS
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.end)

    @property
    def is_idle(self) -> bool:
        """Tell whether it is the peer's turn: to ask, or to read its answer."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered or self.flow.write_paused

    @property
    def gives_way(self) -> bool:
        """Tell whether it may be ended for another: no request with a token waits."""
        return self.is_idle or self.cycle.scope["state"].get("token") is None

    def end(self) -> None:
        """Close the connection at once, whatever is still unsent."""
        self.connections.discard(self)
        self.transport.abort()


def make_room(connections: set[Any]) -> None:
    """Hang up on the oldest connection that gives way."""
    others = [connection for connection in connections if connection.gives_way]
    if others:
        min(others, key=lambda connection: connection.since).end()


class WebServer(uvicorn.Server):
    """Serves a site at sockets that are given to ``run``, until ``should_exit``.

    `policy` is the content security policy of every answer.
    """

    def __init__(self, site: Site, policy: str = NOTHING) -> None:
        config = uvicorn.Config(
            site,
            http=HttpConnection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # bad requests of anybody would fill the disk
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[*HEADERS, ("Content-Security-Policy", policy)],
            backlog=limits.BACKLOG,
            h11_max_incomplete_event_size=limits.HEAD_BYTES,
        )
        super().__init__(config)

    async def startup(self, sockets: Any = ()) -> None:
        """Begin to answer."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_error)
        await super().startup(sockets)
        for listener in sockets:  # more may wait than are accepted at once
            listener.listen(socket.SOMAXCONN)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: Any) -> None:
        """End a connection if there is no file descriptor for a new one."""
        error = context.get("exception")
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            make_room(self.server_state.connections)
        else:
            loop.default_exception_handler(context)
