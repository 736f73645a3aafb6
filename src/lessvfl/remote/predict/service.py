"""Joint prediction as a service: HTTP on a port of this machine.

======================  ==========================================================
``POST /predict``       ``{"ids": [...]}`` of aligned rows; JSON comes back
``POST /align``         align again: the file of ids may have new ones
``GET /health``         who is connected; status 503 while somebody is away
``GET /metrics``        the same and counts, for Prometheus
``GET /openapi.json``   what all this looks like
======================  ==========================================================

``/predict`` and ``/metrics`` want a token, ``/align`` that of the administrator
(:mod:`lessvfl.web.tokens`). One thread talks to the parties: requests that come while
it does are answered together by its next exchange. Every request is in
``requests.jsonl`` of the run folder, with whose token it came.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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
from lessvfl.remote.align.entries import Positions
from lessvfl.remote.predict.journal import Journal
from lessvfl.remote.predict.server import MOST_ROWS, Answers, Predictor
from lessvfl.web import limits, prometheus
from lessvfl.web.server import WebServer
from lessvfl.web.site import Page, Site, read_body
from lessvfl.web.tokens import Tokens

BEAT_SECONDS = 5.0  # between two pings of the parties while there is no request
END_SECONDS = 5.0  # that the service waits for the parties when it ends
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


@dataclass
class Pending:
    """A request for the thread that talks to the parties.

    That thread turns ids into places: an alignment may come in between.
    """

    ids: Sequence[int | str] | None  # none: align again
    tells: bool = False  # whether the answer may name ids that are not aligned
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
        """Tell whether its thread runs, without which nothing is answered."""
        return self._thread.is_alive()

    def ask(self, ids: Sequence[int | str] | None, tells: bool = False) -> Any:
        """Queue a request and wait for its answer."""
        job = Pending(ids, tells)
        self._jobs.put(job)
        try:
            return job.done.result(limits.ANSWER_SECONDS)
        except TimeoutError:
            job.done.cancel()
            why = f"no answer for {limits.ANSWER_SECONDS:g} seconds"
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
                        self._settle([job])
                else:
                    self._together(self._known(some))

    def _known(self, jobs: Iterable[Pending]) -> list[Pending]:
        """Return the requests whose ids are all aligned; fail the others.

        What they hear names no id of theirs, unless it is the administrator's.
        """
        known, must = [], "All ids must be of aligned rows. Got"
        for job in jobs:
            assert job.ids is not None
            try:
                job.places, unknown = self.predictor.places(job.ids)
                if unknown and not job.tells:
                    raise UnknownIdsError(f"{must} a request with others.")
                if unknown:
                    raise UnknownIdsError(
                        f"{must} {len(unknown)} of {len(job.ids)} that are not, as "
                        f"{job.ids[unknown[0]]!r}; new ones need another alignment "
                        "(POST /align)."
                    )
            except LessVFLError as error:
                job.done.set_exception(error)
            else:
                known.append(job)
        return known

    def _next(self) -> Pending | None:
        """Return the next request, or None; ping the parties while there is none."""
        while True:
            try:
                return self._jobs.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                try:
                    self.predictor.ping()
                except Exception:
                    log.exception("the parties could not be pinged")

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
            self._settle(now)

    def _settle(self, jobs: Sequence[Pending]) -> None:
        """Give every request its answer, or all of them the error."""
        try:
            answers = self._answers(jobs)
        except Exception as error:
            if isinstance(error, PolicyError) and len(jobs) > 1:
                for job in jobs:  # one of them asks too much: try each alone
                    self._settle([job])
                return
            if not isinstance(error, LessVFLError):
                log.exception("a request failed")
            for job in jobs:
                job.done.set_exception(error)
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.done.set_result(answer)

    def _answers(self, jobs: Sequence[Pending]) -> list[Any]:
        """Return what is predicted for each request, or align for the only one."""
        if jobs[0].ids is None:
            ids = None if self._read_ids is None else self._read_ids()
            return [self.predictor.align_again(ids)]
        sizes = [len(job.places) for job in jobs]
        answers = self.predictor.predict(np.concatenate([job.places for job in jobs]))
        self.counts["exchanges"] += 1
        parts = np.split(answers.z, np.cumsum(sizes)[:-1])
        return [Answers(z, answers.missing) for z in parts]


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


@functools.cache
def _description() -> dict[str, Any]:
    """Return what the service answers, as OpenAPI has it."""
    path = resources.files("lessvfl.remote.predict") / "openapi.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["info"]["version"] = __version__
    return document


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
        return await _wait_for(lambda: _predict(self._worker, ids, tells))

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
        """Return a page of counts of requests and rows, in the format of Prometheus."""
        samples: list[prometheus.MetricSample] = []
        for name in COUNTS:  # one by one: other threads add to them
            n = self._worker.counts[name] + self.counts[name]
            samples.append((COUNTED.format(name), {}, n))
        for party, connected in self._connected().items():
            samples.append((CONNECTED, {"party": party}, connected))
        text = prometheus.text(FAMILIES, samples)
        return Response(text, media_type=prometheus.CONTENT_TYPE)

    async def describe(self, request: Request) -> Response:
        """Tell what all this looks like."""
        return JSONResponse(_description())

    def refuse(self, error: HTTPException) -> Response:
        """Say what is wrong."""
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    def note(self, request: Request, status: int) -> None:
        """Write a request and the HTTP status of its reply to the journal."""
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


async def _wait_for(work: Callable[[], dict[str, Any]]) -> Response:
    """Answer with what comes of an exchange with the parties."""
    try:
        return await run_in_threadpool(lambda: JSONResponse(work()))
    except LessVFLError as error:
        kinds = (code for kind, code in STATUS if isinstance(error, kind))
        raise HTTPException(next(kinds, 500), str(error)) from error


def _ids(body: bytes | None) -> list[int | str]:
    """Return the list of ids in a request's JSON body, or raise an error about it."""
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
    if not set(map(type, ids)) <= {int, str}:
        raise _unreadable("other values")
    return ids


def _unreadable(got: str) -> HTTPException:
    must = 'The request must be JSON: {"ids": [...]}, texts or whole numbers.'
    return HTTPException(422, f"{must} Got {got}.")


def _predict(worker: Worker, ids: list[int | str], tells: bool) -> dict[str, Any]:
    """Predict for rows that are aligned."""
    answers: Answers = worker.ask(ids, tells)
    worker.counts["rows"] += len(ids)
    predictor, model = worker.predictor, worker.predictor.model
    values: list[Any] = model.answers(answers.z).tolist()
    shares: list[Any] = [None] * len(values)  # of classes; a number has none
    if model.task == "regression":
        values = [_finite(value) for value in values]
    else:
        for row, some in enumerate(model.probabilities(answers.z).tolist()):
            shares[row] = dict(zip(model.label_names, map(_finite, some), strict=True))
    kept = model.decision
    return {
        "model": predictor.digest,
        "seed": predictor.seeds[0] if len(predictor.seeds) == 1 else None,
        "decision": None if kept is None else kept.summary,
        "partial": answers.partial,
        "missing": list(answers.missing),
        "predictions": [
            {"id": id_, "prediction": value, "probabilities": share}
            for id_, value, share in zip(ids, values, shares, strict=True)
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no others
