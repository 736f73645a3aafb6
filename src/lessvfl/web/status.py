"""The status of a run over HTTP, for a browser and for Prometheus on this machine."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from lessvfl.status import Snapshot, Status, page
from lessvfl.web import prometheus
from lessvfl.web.address import listen, url_of
from lessvfl.web.server import WebServer
from lessvfl.web.site import Page, Site

# Path -> type and text of the answer.
PATHS: dict[str, tuple[str, Callable[[Snapshot], str]]] = {
    "/": ("text/html", page.render),
    "/status.json": (
        "application/json",
        lambda s: json.dumps(s, allow_nan=False) + "\n",
    ),
    "/metrics": (prometheus.CONTENT_TYPE, prometheus.render),
    "/healthz": ("text/plain", lambda s: f"{s['state']}\n"),
}


class StatusSite(Site):
    """The pages of a status; what is refused is one plain line."""

    def __init__(self, status: Status) -> None:
        super().__init__(dict.fromkeys(PATHS, Page(self.answer)))
        self._status = status

    async def answer(self, request: Request) -> Response:
        """Answer with one of the few things there are."""
        path, snapshot = request.scope["path"], self._status.snapshot()
        kind, write = PATHS[path]
        failed = path == "/healthz" and snapshot["state"] == "failed"
        body = write(snapshot).encode("utf-8", errors="replace")
        return Response(body, 503 if failed else 200, media_type=kind)

    def refuse(self, error: HTTPException) -> Response:
        """Say which of the usual reasons it is."""
        code = HTTPStatus(403 if error.status_code == 421 else error.status_code)
        return PlainTextResponse(f"{code.phrase}\n", code, error.headers)


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
        self._listener = listen(address, "the status page")
        self.url = url_of(self._listener)
        self._server = WebServer(StatusSite(status), page.policy())
        self._thread = threading.Thread(
            None, self._server.run, "lessvfl-status", ([self._listener],), daemon=True
        )

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
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
