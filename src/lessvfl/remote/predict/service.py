"""Joint prediction as a service: HTTP on a port of this machine.

======================  ==========================================================
``POST /predict``       ``{"ids": [...]}`` of aligned rows; JSON comes back
``POST /align``         align again: the file of ids may have new ones
``GET /health``         who is connected; status 503 while somebody is away
``GET /metrics``        the same and counts, for Prometheus
``GET /openapi.json``   what all this looks like
======================  ==========================================================

``/predict`` and ``/metrics`` want a token, ``/align`` that of the administrator
(:mod:`lessvfl.remote.predict.tokens`). One thread talks to the parties: requests that
come while it does are answered together by its next exchange. Every request is in
``requests.jsonl`` of the run folder, with whose token it came.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, StrictInt, StrictStr, field_validator
from pydantic_core import PydanticCustomError
from uvicorn.protocols.http.h11_impl import H11Protocol

from lessvfl import __version__
from lessvfl.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    LessVFLError,
    PartyLostError,
    PolicyError,
    ProtocolError,
)
from lessvfl.remote.align.holder import Positions
from lessvfl.remote.predict.journal import Journal
from lessvfl.remote.predict.server import MOST_ROWS, Answers, Predictor
from lessvfl.remote.predict.tokens import Token, Tokens
from lessvfl.status.prometheus import label_text

BEARER = HTTPBearer(auto_error=False)
BEAT_SECONDS = 5.0  # between two looks at who is there, while nobody asks
ANSWER_SECONDS = 300.0  # that a request may wait for the parties
HEAD_SECONDS = 5.0  # that a connection may take until its next request is there
BODY_SECONDS = 10.0  # that the rest of a request may take
END_SECONDS = 5.0  # that the service waits for the parties when it ends
MOST_BYTES = 4 << 20  # of a request
MOST_CONNECTIONS = 256  # one more takes the place of the oldest that asks nothing
BACKLOG = 128  # connections that are taken in at once
LOCAL = ("127.0.0.1", "localhost", "[::1]")
OPEN_PATHS = ("/health", "/openapi.json")
ADMIN_PATHS = ("/align",)
PATHS = (*OPEN_PATHS, *ADMIN_PATHS, "/predict", "/metrics")
REQUESTS = "requests.jsonl"  # of the server's run folder: who asked for what

log = logging.getLogger(__name__)


class UnknownIdsError(DataError):
    """A request names rows that are not aligned."""


STATUS: list[tuple[type[Exception], int]] = [
    (UnknownIdsError, 404),
    (PartyLostError, 503),
    (ProtocolError, 502),
    (PolicyError, 403),
    (DataError, 422),
    (AlignmentError, 422),
    (ConfigError, 409),
]


MUST_BE = 'The request must be JSON: {"ids": [...]}, all texts or all whole numbers.'

# What pydantic calls a mistake, and what came.
KINDS_OF_ERROR = {"json_invalid": "a text that is no JSON", "missing": "no 'ids'"}


class Wanted(BaseModel):
    """For whom something is to be predicted."""

    ids: list[StrictInt] | list[StrictStr]

    @field_validator("ids", mode="before")
    @classmethod
    def _look(cls, ids: Any) -> Any:
        """Refuse at first sight what would be refused id by id."""
        if not isinstance(ids, list):
            raise PydanticCustomError("kind", "no list")
        if not 1 <= len(ids) <= MOST_ROWS:
            raise PydanticCustomError("count", "{n}", {"n": len(ids)})
        if set(map(type, ids)) not in ({int}, {str}):
            raise PydanticCustomError("kind", "ids of several types")
        return ids


class Prediction(BaseModel):
    """What is predicted for one id."""

    id: int | str
    prediction: str | float
    probabilities: dict[str, float] | None = None  # by class; none of a number


class Predictions(BaseModel):
    """What is predicted, by which model, and without whom."""

    model: str
    seed: int
    partial: bool
    missing: list[str]
    predictions: list[Prediction]


@dataclass
class Pending:
    """Something to do for the thread that talks to the parties.

    Ids become places there: an alignment may come in between.
    """

    ids: Sequence[int] | Sequence[str] | None  # none: align again
    tells: bool = False  # whether who asks may know which ids are not aligned
    places: Positions = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    done: Future[Any] = field(default_factory=Future)


class Worker:
    """The one thread that talks to the parties."""

    def __init__(
        self, predictor: Predictor, read_ids: Callable[[], Any] | None = None
    ) -> None:
        self.predictor = predictor
        self.counts: Counter[str] = Counter()
        self._read_ids = read_ids
        self._jobs: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, name="lessvfl-predict", daemon=True
        )

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._thread.join(END_SECONDS)

    @property
    def is_alive(self) -> bool:
        """Tell whether requests can be answered at all."""
        return self._thread.is_alive()

    def ask(
        self, ids: Sequence[int] | Sequence[str] | None, tells: bool = False
    ) -> Any:
        """Have a request answered; wait for it."""
        job = Pending(ids, tells)
        self._jobs.put(job)
        try:
            return job.done.result(ANSWER_SECONDS)
        except TimeoutError:
            job.done.cancel()
            why = f"no answer for {ANSWER_SECONDS:g} seconds"
            raise PartyLostError(self.predictor.parties, why) from None

    def _work(self) -> None:
        over = False
        while not over and (first := self._next()) is not None:
            jobs = [first]
            while not self._jobs.empty():  # what came in the meantime goes along
                job = self._jobs.get()
                over = over or job is None
                if job is not None:
                    jobs.append(job)
            jobs = [job for job in jobs if job.done.set_running_or_notify_cancel()]
            for aligns, some in itertools.groupby(jobs, lambda job: job.ids is None):
                if aligns:
                    for job in some:
                        self._settle([job], self._align)
                else:
                    self._together(self._known(some))

    def _known(self, jobs: Iterable[Pending]) -> list[Pending]:
        """Return requests whose ids are aligned; the others hear of theirs."""
        known = []
        for job in jobs:
            assert job.ids is not None
            try:
                job.places, unknown = self.predictor.places(job.ids)
                if unknown:
                    raise _unknown(job, unknown)
            except LessVFLError as error:
                job.done.set_exception(error)
            else:
                known.append(job)
        return known

    def _next(self) -> Pending | None:
        """Return what is to be done next; look after the parties until then."""
        while True:
            try:
                return self._jobs.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                try:
                    self.predictor.look()
                except Exception:
                    log.exception("nobody could be looked for")

    def _together(self, jobs: Sequence[Pending]) -> None:
        """Answer requests in as few exchanges as they fit into."""
        while jobs:
            some, n_rows = 0, 0
            for job in jobs:
                n_rows += len(job.places)
                if some and n_rows > MOST_ROWS:
                    break
                some += 1
            now, jobs = jobs[:some], jobs[some:]
            self._settle(now, functools.partial(self._predict, now))

    def _settle(self, jobs: Sequence[Pending], work: Callable[[], list[Any]]) -> None:
        """Give every request its answer, or all of them the error."""
        try:
            answers = work()
        except PolicyError as error:
            if len(jobs) > 1:  # one of them asks too much: the others need not suffer
                for job in jobs:
                    self._settle([job], functools.partial(self._predict, [job]))
            else:
                jobs[0].done.set_exception(error)
            return
        except Exception as error:
            if not isinstance(error, LessVFLError):
                log.exception("a request failed")
            for job in jobs:
                job.done.set_exception(error)
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.done.set_result(answer)

    def _predict(self, jobs: Sequence[Pending]) -> list[Answers]:
        sizes = [len(job.places) for job in jobs]
        places = np.concatenate([job.places for job in jobs])
        found = self.predictor.predict(places)
        self.counts["exchanges"] += 1
        parts = np.split(found.z, np.cumsum(sizes)[:-1])
        return [Answers(z, found.missing) for z in parts]

    def _align(self) -> list[int]:
        ids = None if self._read_ids is None else self._read_ids()
        return [self.predictor.align_again(ids)]


def _unknown(job: Pending, unknown: Sequence[int]) -> UnknownIdsError:
    """Build the sentence about ids that are not aligned; some may not hear which."""
    must = "All ids must be of aligned rows. Got"
    if job.ids is None or not job.tells:
        return UnknownIdsError(f"{must} a request with others.")
    return UnknownIdsError(
        f"{must} {len(unknown)} of {len(job.ids)} that are not, as "
        f"{job.ids[unknown[0]]!r}; new ones need another alignment (POST /align)."
    )


def application(worker: Worker, tokens: Tokens, journal: Journal) -> Door:
    """Return the service as an ASGI application."""
    app = FastAPI(
        title="lessvfl",
        summary="Joint prediction with what several parties know of the same rows.",
        version=__version__,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
    )
    predictor, counts = worker.predictor, worker.counts

    @app.exception_handler(LessVFLError)
    def failed(request: Request, error: LessVFLError) -> JSONResponse:
        counts["failed"] += 1
        kinds = (code for kind, code in STATUS if isinstance(error, kind))
        return JSONResponse({"detail": str(error)}, next(kinds, 500))

    @app.exception_handler(RequestValidationError)
    def unreadable(request: Request, error: RequestValidationError) -> JSONResponse:
        counts["failed"] += 1
        first: Any = next(iter(error.errors()), {"type": ""})
        if first["type"] == "count":
            must = f"A request must name 1 to {MOST_ROWS} ids."
            return JSONResponse({"detail": f"{must} Got {first['ctx']['n']}."}, 413)
        got = KINDS_OF_ERROR.get(first["type"], "other values")
        return JSONResponse({"detail": f"{MUST_BE} Got {got}."}, 422)

    @app.exception_handler(400)
    def unparsed(request: Request, error: Exception) -> JSONResponse:
        """Answer what Python's JSON gives up on: lists a thousand deep, long digits."""
        counts["failed"] += 1
        got = KINDS_OF_ERROR["json_invalid"]
        return JSONResponse({"detail": f"{MUST_BE} Got {got}."}, 422)

    @app.post("/predict", dependencies=[Depends(BEARER)])
    def predict(wanted: Wanted, request: Request) -> Predictions:
        """Predict for rows that are aligned."""
        token: Token = request.state.token
        request.state.line["ids"] = len(wanted.ids)
        answers: Answers = worker.ask(wanted.ids, tells=token.right == "admin")
        counts["rows"] += len(wanted.ids)
        return Predictions(
            model=predictor.digest,
            seed=predictor.seed,
            partial=answers.partial,
            missing=list(answers.missing),
            predictions=_predictions(predictor, wanted.ids, answers),
        )

    @app.post("/align", dependencies=[Depends(BEARER)])
    def align() -> dict[str, int]:
        """Align rows again, with the ids that the file of ids has now."""
        return {"rows": worker.ask(None)}

    @app.get("/health")
    async def health() -> JSONResponse:
        """Tell who is connected."""
        connected = predictor.hub.connected
        parties = {party: party in connected for party in predictor.parties}
        whole = worker.is_alive and all(parties.values())
        words = {"status": "ok" if whole else "a party is away", "parties": parties}
        return JSONResponse(words, 200 if whole else 503)

    @app.get("/metrics", dependencies=[Depends(BEARER)])
    async def metrics() -> PlainTextResponse:
        """Count, for Prometheus."""
        lines = []
        for name in ("requests", "rows", "exchanges", "failed", "refused"):
            full = f"lessvfl_predict_{name}_total"
            lines += [f"# TYPE {full} counter", f"{full} {counts[name]}"]
        connected = predictor.hub.connected
        lines.append("# TYPE lessvfl_predict_party_connected gauge")
        for party in predictor.parties:
            label, state = label_text({"party": party}), int(party in connected)
            lines.append(f"lessvfl_predict_party_connected{label} {state}")
        return PlainTextResponse("\n".join(lines) + "\n")

    return Door(app, tokens, counts, journal)


class Door:
    """Looks at a request before its body is read: its host, its token, its length."""

    def __init__(
        self, app: FastAPI, tokens: Tokens, counts: Counter[str], journal: Journal
    ) -> None:
        self._app, self._counts = app, counts
        self._tokens, self._journal = tokens, journal

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request in, or say why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"], dict(scope["headers"])
        token = self._tokens.find(headers.get(b"authorization", b""))
        line = {
            "token": None if token is None else token.right,
            "path": path if path in PATHS else "another",
        }

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._note({**line, "status": message["status"]})
            await send(message)

        self._counts["requests"] += path == "/predict"
        refusal = self._refusal(path, headers, token)
        if refusal is not None:
            self._counts["refused"] += 1
            await refusal(scope, receive, noted)
            return
        n_bytes, over = 0, False
        end = asyncio.get_running_loop().time() + BODY_SECONDS

        async def bounded() -> Any:
            nonlocal n_bytes, over
            if over:
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    part = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            n_bytes += len(part.get("body", b""))
            over = not part.get("more_body", False)
            return part if n_bytes <= MOST_BYTES else {"type": "http.disconnect"}

        # Whatever a client calls its body (curl: a form), JSON is what is read.
        named = [h for h in scope["headers"] if h[0] != b"content-type"]
        as_json = (b"content-type", b"application/json")
        state = {**scope.get("state", {}), "token": token, "line": line}
        inner = {**scope, "headers": [*named, as_json], "state": state}
        await self._app(inner, bounded, noted)

    def _note(self, line: dict[str, Any]) -> None:
        """Write a request down before it is answered."""
        if line["status"] == 200 and line["path"] in ("/predict", "/align"):
            self._journal.write(line)
        else:
            line.pop("ids", None)
            self._journal.count(line)

    def _refusal(
        self, path: str, headers: dict[bytes, bytes], token: Token | None
    ) -> JSONResponse | None:
        """Return why a request may not come in."""
        host = headers.get(b"host", b"").decode("latin-1")
        if host.rpartition(":")[0] not in LOCAL and host not in LOCAL:
            said = (
                "The service answers at an address of this machine. Got another host."
            )
            return JSONResponse({"detail": said}, 421)
        if path not in PATHS:  # the router would take some others for one of them
            return JSONResponse({"detail": "Not Found"}, 404)
        if path not in OPEN_PATHS and (token is None or token.is_over):
            got = "another one, or none" if token is None else "one that is over"
            said = (
                "The header 'Authorization: Bearer TOKEN' must bring a token of the "
                f"service. Got {got}."
            )
            return JSONResponse({"detail": said}, 401, {"WWW-Authenticate": "Bearer"})
        if path in ADMIN_PATHS and token is not None and token.right != "admin":
            said = f"{path} needs the token of the administrator. Got that to predict."
            return JSONResponse({"detail": said}, 403)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > MOST_BYTES:
            said = f"A request must have {MOST_BYTES:,} bytes or less. Got more."
            return JSONResponse({"detail": said}, 413)
        return None


def _predictions(
    predictor: Predictor, ids: Sequence[int | str], answers: Answers
) -> list[Prediction]:
    model = predictor.model
    said = model.answers(answers.z).tolist()
    if model.task == "regression":
        return [Prediction(id=i, prediction=v) for i, v in zip(ids, said, strict=True)]
    shares = model.probabilities(answers.z).tolist()
    return [
        Prediction(
            id=one,
            prediction=str(answer),
            probabilities=dict(zip(map(str, model.label_names), share, strict=True)),
        )
        for one, answer, share in zip(ids, said, shares, strict=True)
    ]


class Line(H11Protocol):
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
        self._last(HEAD_SECONDS)
        if len(self.connections) > MOST_CONNECTIONS:
            lines = [line for line in self.connections if isinstance(line, Line)]
            idle = (line for line in lines if line._is_idle)  # this one is
            min(idle, key=lambda line: line._since)._end()

    def data_received(self, data: bytes) -> None:
        """Take in what comes; a whole head of a request gives time to answer it."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._last(BODY_SECONDS + ANSWER_SECONDS + HEAD_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there already."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._last(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _last(self, seconds: float) -> None:
        """End the connection after a while, whatever comes until then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._end)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _end(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


class Service(uvicorn.Server):
    """The service, in the thread that starts it, until it is interrupted."""

    def __init__(self, worker: Worker, tokens: Tokens, folder: Path) -> None:
        self.journal = Journal(folder / REQUESTS)
        config = uvicorn.Config(
            application(worker, tokens, self.journal),
            http=Line,
            ws="none",
            log_level="error",  # a line for each bad request would fill the disk
            backlog=BACKLOG,
        )
        super().__init__(config)

    def run(self, sockets: Any = None) -> None:
        """Answer, then close the journal."""
        try:
            super().run(sockets)
        finally:
            self.journal.close()
