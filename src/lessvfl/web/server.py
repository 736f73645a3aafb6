"""uvicorn, with an end to every connection."""

from __future__ import annotations

import asyncio
import errno
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

    uvicorn waits for the first request of a connection for ever, and for the next one
    as long as any byte comes.
    """

    _timer: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        """Take a connection in; where there are many, the oldest idle one gives way."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._end_in(limits.HEAD_SECONDS)
        if len(self.connections) > limits.CONNECTIONS:
            min(idle(self.connections), key=lambda one: one._since).end()

    def data_received(self, data: bytes) -> None:
        """Take in what comes; a whole head of a request gives time to answer it."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            for_answer = limits.BODY_SECONDS + limits.ANSWER_SECONDS
            self._end_in(for_answer + limits.HEAD_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there already."""
        super().on_response_complete()
        if self.is_idle:
            self._end_in(limits.HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _end_in(self, seconds: float) -> None:
        """End the connection after a while, whatever comes until then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.end)

    @property
    def is_idle(self) -> bool:
        """Tell whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        """Hang up, whatever was not sent yet."""
        self.connections.discard(self)
        self.transport.abort()


def idle(connections: set[Any]) -> list[HttpConnection]:
    """Return the connections on which nothing is asked."""
    return [one for one in connections if one.is_idle]


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
            log_level="error",  # a line for each bad request would fill the disk
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[*HEADERS, ("Content-Security-Policy", policy)],
            backlog=limits.BACKLOG,
            h11_max_incomplete_event_size=limits.HEAD_BYTES,
        )
        super().__init__(config)

    async def startup(self, sockets: Any = None) -> None:
        """Begin to answer."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._make_room)
        await super().startup(sockets)

    def _make_room(self, loop: asyncio.AbstractEventLoop, context: Any) -> None:
        """Hang up on who asks nothing where there is no descriptor for who comes."""
        error = context.get("exception")
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            for connection in idle(self.server_state.connections):
                connection.end()
        else:
            loop.default_exception_handler(context)
