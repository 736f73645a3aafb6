"""A few pages, and the checks that a request must pass before one answers it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lessvfl.web import limits
from lessvfl.web.address import is_local
from lessvfl.web.tokens import Right, Tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """What answers at a path, by which method, and for whom."""

    answer: Callable[[Request], Awaitable[Response]]
    method: Literal["GET", "POST"] = "GET"
    right: Right | None = None  # none: no token is asked for


class Site:
    """An ASGI application: pages by their paths.

    ``counts`` has how many requests were ``refused`` at once, and how many
    ``failed`` behind it.
    """

    def __init__(self, pages: Mapping[str, Page], tokens: Tokens | None = None) -> None:
        self.pages, self.counts = pages, Counter[str]()
        self._tokens = tokens or Tokens({})

    def refuse(self, error: HTTPException) -> Response:
        """Word what is refused, or failed."""
        raise NotImplementedError

    def note(self, request: Request, status: int) -> None:
        """Record a request before it is answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; ``state.token`` is the token that it shows."""
        request = Request(scope, receive)
        shown = request.headers.get("authorization", "").encode("latin-1")
        request.state.token = self._tokens.find(shown)
        outcome = "refused"
        try:
            page = self._admit(request)
            outcome = "failed"
            response = await page.answer(request)
        except Exception as error:
            self.counts[outcome] += 1
            if not isinstance(error, HTTPException):
                log.exception("a request failed")
                error = HTTPException(500)
            response = self.refuse(error)
        try:
            self.note(request, response.status_code)
        except Exception:
            log.exception("a request could not be written down")
            response = self.refuse(HTTPException(500))
        if request.state.token is None and request.method != "POST":
            response.headers["Connection"] = "close"  # one request without a token
        await response(scope, receive, send)

    def _admit(self, request: Request) -> Page:
        """Return the page that a request is for; its body is not looked at."""
        path, headers = request.scope["path"], request.headers
        n_bytes = len(path) + len(request.scope["query_string"])
        n_bytes += sum(len(name) + len(value) for name, value in headers.raw)
        if n_bytes > limits.HEAD_BYTES:
            raise HTTPException(431)
        if not is_local(headers.get("host", "localhost")):
            at = "The service answers at an address of this machine."
            raise HTTPException(421, f"{at} Got another host.")
        if path not in self.pages:
            raise HTTPException(404)
        page = self.pages[path]
        token = request.state.token
        if page.right is not None and (token is None or token.is_over):
            got = "another one, or none" if token is None else "one that is over"
            raise HTTPException(
                401,
                "The header 'Authorization: Bearer TOKEN' must bring a token of the "
                f"service. Got {got}.",
                {"WWW-Authenticate": "Bearer"},
            )
        if page.right == "admin" and token.right != "admin":
            must = f"{path} needs the token of the administrator."
            raise HTTPException(403, f"{must} Got that to predict.")
        methods = ("GET", "HEAD") if page.method == "GET" else (page.method,)
        if request.method not in methods:
            raise HTTPException(405, headers={"Allow": ", ".join(methods)})
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length[:20]) > limits.BODY_BYTES:
            raise _too_long()
        return page


def _too_long() -> HTTPException:
    must = f"A request must have {limits.BODY_BYTES:,} bytes or less."
    return HTTPException(413, f"{must} Got more.")


async def read_body(request: Request) -> bytes | None:
    """Return the body of a request; none if it did not come in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(limits.BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limits.BODY_BYTES:
                    raise _too_long()
    except (TimeoutError, ClientDisconnect):
        return None
    return bytes(body)
