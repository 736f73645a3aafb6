"""Joint prediction as a service: HTTP on a port of this machine.

======================  ==========================================================
``POST /predict``       ``{"ids": [...]}`` of aligned rows; JSON comes back
``POST /align``         align again: the file of ids may have new ones
``GET /health``         who is connected; status 503 while somebody is away
``GET /metrics``        the same and counts, for Prometheus
``GET /openapi.json``   what all this looks like
======================  ==========================================================

``/predict`` and ``/metrics`` want a token, ``/align`` that of the administrator
(:mod:`lessvfl.web.tokens`). Every request is in ``requests.jsonl`` of the run folder,
with whose token it came.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lessvfl.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    LessVFLError,
    PartyLostError,
    PolicyError,
    ProtocolError,
)
from lessvfl.remote.predict import openapi
from lessvfl.remote.predict.journal import Journal
from lessvfl.remote.predict.server import MOST_ROWS, Answers
from lessvfl.remote.predict.worker import UnknownIdsError, Worker
from lessvfl.run.fitted import FittedServer
from lessvfl.web import prometheus
from lessvfl.web.server import WebServer
from lessvfl.web.site import Page, Site, read_body
from lessvfl.web.tokens import Tokens

REQUESTS = "requests.jsonl"  # of the server's run folder: who asked for what

STATUS: list[tuple[type[Exception], int]] = [
    (UnknownIdsError, 404),
    (PartyLostError, 503),
    (ProtocolError, 502),
    (PolicyError, 403),
    (DataError, 422),
    (AlignmentError, 422),
    (ConfigError, 409),
]

COUNTED = "lessvfl_predict_{}_total"
CONNECTED = "lessvfl_predict_party_connected"
COUNTS = {
    "requests": "Requests to predict.",
    "rows": "Rows predicted.",
    "exchanges": "Exchanges with the parties.",
    "failed": "Requests that failed.",
    "refused": "Requests refused before they were read.",
}
FAMILIES = {COUNTED.format(name): meaning for name, meaning in COUNTS.items()}
FAMILIES[CONNECTED] = "1 for a connected party, 0 for one away."


class Service(WebServer):
    """The service, in the thread that starts it, until it is interrupted."""

    def __init__(self, worker: Worker, tokens: Tokens, folder: Path) -> None:
        self.journal = Journal(folder / REQUESTS)
        super().__init__(PredictionSite(worker, tokens, self.journal))

    def run(self, sockets: Any = None) -> None:
        """Answer, then close the journal."""
        try:
            super().run(sockets)
        finally:
            self.journal.close()


class PredictionSite(Site):
    """The pages of the service; what is refused is a sentence in JSON."""

    def __init__(self, worker: Worker, tokens: Tokens, journal: Journal) -> None:
        pages = {
            "/predict": Page(self.predict, "POST", "predict"),
            "/align": Page(self.align, "POST", "admin"),
            "/health": Page(self.health),
            "/metrics": Page(self.metrics, right="predict"),
            "/openapi.json": Page(self.describe),
        }
        super().__init__(pages, tokens)
        self._worker, self._journal = worker, journal

    async def predict(self, request: Request) -> Response:
        """Predict for rows that are aligned."""
        ids = _ids(await read_body(request))
        request.state.asked = {"ids": len(ids)}
        tells = request.state.token.right == "admin"
        return await _wait_for(_predict, self._worker, ids, tells)

    async def align(self, request: Request) -> Response:
        """Align rows again, with the ids that the file of ids has now."""
        return await _wait_for(lambda: {"rows": self._worker.ask(None)})

    async def health(self, request: Request) -> Response:
        """Tell who is connected."""
        parties = self._connected()
        whole = self._worker.is_alive and all(parties.values())
        words = {"status": "ok" if whole else "a party is away", "parties": parties}
        return JSONResponse(words, 200 if whole else 503)

    async def metrics(self, request: Request) -> Response:
        """Count, for Prometheus."""
        counts = self._worker.counts + self.counts
        samples: list[prometheus.MetricSample]
        samples = [(COUNTED.format(name), {}, counts[name]) for name in COUNTS]
        for party, connected in self._connected().items():
            samples.append((CONNECTED, {"party": party}, connected))
        text = prometheus.text(FAMILIES, samples)
        return Response(text, media_type=prometheus.CONTENT_TYPE)

    async def describe(self, request: Request) -> Response:
        """Tell what all this looks like."""
        return JSONResponse(openapi.document(self.pages))

    def refuse(self, error: HTTPException) -> Response:
        """Say what is wrong."""
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    def note(self, request: Request, status: int) -> None:
        """Write a request down."""
        path, token = request.scope["path"], request.state.token
        self._worker.counts["requests"] += path == "/predict"
        line: dict[str, Any] = {"token": None if token is None else token.right}
        line["path"] = path if path in self.pages else "another"
        if status == 200 and path in ("/predict", "/align"):
            line |= getattr(request.state, "asked", {})
            self._journal.write(line | {"status": status})
        else:
            self._journal.count(line | {"status": status})

    def _connected(self) -> dict[str, bool]:
        predictor = self._worker.predictor
        connected = predictor.hub.connected
        return {party: party in connected for party in predictor.parties}


async def _wait_for(work: Callable[..., dict[str, Any]], *args: Any) -> Response:
    """Answer with what comes of an exchange with the parties."""
    try:
        return await run_in_threadpool(lambda: JSONResponse(work(*args)))
    except LessVFLError as error:
        kinds = (code for kind, code in STATUS if isinstance(error, kind))
        raise HTTPException(next(kinds, 500), str(error)) from error


def _ids(body: bytes | None) -> list[int] | list[str]:
    """Return the ids that a request names; refuse at first sight what is of no use."""
    try:
        wanted = {} if body == b"" else json.loads(body or b"")
    except (ValueError, RecursionError):  # lists a thousand deep are no JSON either
        raise _unreadable("a text that is no JSON") from None
    if wanted is None or (isinstance(wanted, dict) and "ids" not in wanted):
        raise _unreadable("no 'ids'")
    ids: Any = wanted["ids"] if isinstance(wanted, dict) else None
    if not isinstance(ids, list):
        raise _unreadable("other values")
    if not 1 <= len(ids) <= MOST_ROWS:
        must = f"A request must name 1 to {MOST_ROWS} ids."
        raise HTTPException(413, f"{must} Got {len(ids)}.")
    if set(map(type, ids)) not in ({int}, {str}):
        raise _unreadable("other values")
    return ids


def _unreadable(got: str) -> HTTPException:
    must = 'The request must be JSON: {"ids": [...]}, all texts or all whole numbers.'
    return HTTPException(422, f"{must} Got {got}.")


def _predict(worker: Worker, ids: list[int] | list[str], tells: bool) -> dict[str, Any]:
    """Predict for rows that are aligned."""
    answers: Answers = worker.ask(ids, tells)
    worker.counts["rows"] += len(ids)
    predictor = worker.predictor
    return {
        "model": predictor.digest,
        "seed": predictor.seed,
        "partial": answers.partial,
        "missing": list(answers.missing),
        "predictions": _predictions(predictor.model, ids, answers.z),
    }


def _predictions(
    model: FittedServer, ids: Sequence[int | str], z: NDArray[Any]
) -> list[dict[str, Any]]:
    """Return what is predicted for every id; a number has no probabilities."""
    said: list[Any] = model.answers(z).tolist()
    shares: list[Any] = [None] * len(said)
    if model.task == "regression":
        said = [_finite(value) for value in said]
    else:
        for row, some in enumerate(model.probabilities(z).tolist()):
            shares[row] = dict(zip(model.label_names, map(_finite, some), strict=True))
    return [
        {"id": one, "prediction": prediction, "probabilities": probabilities}
        for one, prediction, probabilities in zip(ids, said, shares, strict=True)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no others
