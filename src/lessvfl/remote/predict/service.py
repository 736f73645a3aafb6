"""Joint prediction as a service: HTTP on a port of this machine.

======================  ==========================================================
``POST /predict``       ``{"ids": [...]}`` of aligned rows; JSON comes back
``POST /align``         align again: the file of ids may have new ones
``GET /health``         who is connected; status 503 while somebody is away
``GET /metrics``        the same and counts, for Prometheus
``GET /openapi.json``   what all this looks like
======================  ==========================================================

``/predict``, ``/align`` and ``/metrics`` want the token. One thread talks to the
parties: requests that come while it does are answered together by its next exchange.
"""

from __future__ import annotations

import functools
import hmac
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, StrictInt, StrictStr

from lessvfl import __version__
from lessvfl.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    LessVFLError,
    PartyLostError,
    PolicyError,
)
from lessvfl.remote.align.holder import Positions
from lessvfl.remote.predict.server import MOST_ROWS, Answers, Predictor

BEARER = HTTPBearer(auto_error=False)
BEAT_SECONDS = 5.0  # between two looks at who is there, while nobody asks
ANSWER_SECONDS = 300.0  # that a request may wait for the parties

log = logging.getLogger(__name__)

STATUS: list[tuple[type[Exception], int]] = [
    (PartyLostError, 503),
    (PolicyError, 403),
    (DataError, 422),
    (AlignmentError, 422),
    (ConfigError, 409),
]


class Wanted(BaseModel):
    """For whom something is to be predicted."""

    ids: list[StrictInt] | list[StrictStr]


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
    """Something to do for the thread that talks to the parties."""

    places: Positions | None  # none: align again
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
        self._thread = threading.Thread(target=self._work, name="lessvfl-predict")

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        self._thread.join()

    def ask(self, places: Positions | None) -> Any:
        """Have a request answered; wait for it."""
        job = Pending(places)
        self._jobs.put(job)
        return job.done.result(ANSWER_SECONDS)

    def _work(self) -> None:
        while (first := self._next()) is not None:
            jobs, over = [first], False
            while not self._jobs.empty():  # what came in the meantime goes along
                job = self._jobs.get()
                over = over or job is None
                if job is not None:
                    jobs.append(job)
            for job in jobs:
                if job.places is None:
                    self._settle([job], self._align)
            self._together([job for job in jobs if job.places is not None])
            if over:
                return

    def _next(self) -> Pending | None:
        """Return what is to be done next; look after the parties until then."""
        while True:
            try:
                return self._jobs.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                self.predictor.look()

    def _together(self, jobs: Sequence[Pending]) -> None:
        """Answer requests in as few exchanges as they fit into."""
        while jobs:
            some, n_rows = 0, 0
            for job in jobs:
                assert job.places is not None
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
        except Exception as error:
            if not isinstance(error, LessVFLError):
                log.exception("a request failed")
            for job in jobs:
                job.done.set_exception(error)
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.done.set_result(answer)

    def _predict(self, jobs: Sequence[Pending]) -> list[Answers]:
        sizes = [len(job.places) for job in jobs if job.places is not None]
        places = np.concatenate([job.places for job in jobs if job.places is not None])
        found = self.predictor.predict(places)
        self.counts["exchanges"] += 1
        parts = np.split(found.z, np.cumsum(sizes)[:-1])
        return [Answers(z, found.missing) for z in parts]

    def _align(self) -> list[int]:
        ids = None if self._read_ids is None else self._read_ids()
        return [self.predictor.align_again(ids)]


def application(worker: Worker, token: str) -> FastAPI:
    """Return the service as an ASGI application."""
    app = FastAPI(
        title="lessvfl",
        summary="Joint prediction with what several parties know of the same rows.",
        version=__version__,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
    )
    predictor, counts = worker.predictor, worker.counts

    def known(
        shown: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)],
    ) -> None:
        if shown is None or not hmac.compare_digest(
            shown.credentials.encode(), token.encode()
        ):
            counts["refused"] += 1
            raise HTTPException(
                401,
                "The header 'Authorization: Bearer TOKEN' must bring the service's "
                "token. Got another one, or none.",
                {"WWW-Authenticate": "Bearer"},
            )

    @app.exception_handler(LessVFLError)
    def failed(request: Request, error: LessVFLError) -> JSONResponse:
        counts["failed"] += 1
        kinds = (code for kind, code in STATUS if isinstance(error, kind))
        return JSONResponse({"detail": str(error)}, next(kinds, 500))

    @app.exception_handler(RequestValidationError)
    def unreadable(request: Request, error: RequestValidationError) -> JSONResponse:
        counts["failed"] += 1
        must = (
            "The request must be JSON ('Content-Type: application/json'): "
            '{"ids": [...]}, all texts or all whole numbers.'
        )
        first = error.errors()[0] if error.errors() else {}
        return JSONResponse({"detail": f"{must} Got this: {first.get('msg')}."}, 422)

    @app.post("/predict", dependencies=[Depends(known)])
    def predict(wanted: Wanted) -> Predictions:
        """Predict for rows that are aligned."""
        counts["requests"] += 1
        if not 1 <= len(wanted.ids) <= MOST_ROWS:
            counts["failed"] += 1
            raise HTTPException(
                413,
                f"A request must name 1 to {MOST_ROWS} ids. Got {len(wanted.ids)}.",
            )
        places, unknown = predictor.places(wanted.ids)
        if unknown:
            counts["failed"] += 1
            raise HTTPException(
                404,
                f"All ids must be of aligned rows. Got {len(unknown)} of "
                f"{len(wanted.ids)} that are not, as {wanted.ids[unknown[0]]!r}; new "
                "ones need another alignment (POST /align).",
            )
        answers: Answers = worker.ask(places)
        counts["rows"] += len(places)
        return Predictions(
            model=predictor.digest,
            seed=predictor.seed,
            partial=answers.partial,
            missing=list(answers.missing),
            predictions=_predictions(predictor, wanted.ids, answers),
        )

    @app.post("/align", dependencies=[Depends(known)])
    def align() -> dict[str, int]:
        """Align rows again, with the ids that the file of ids has now."""
        return {"rows": worker.ask(None)}

    @app.get("/health")
    def health() -> JSONResponse:
        """Tell who is connected."""
        connected = predictor.hub.connected
        parties = {party: party in connected for party in predictor.parties}
        whole = all(parties.values())
        words = {"status": "ok" if whole else "a party is away", "parties": parties}
        return JSONResponse(words, 200 if whole else 503)

    @app.get("/metrics", dependencies=[Depends(known)])
    def metrics() -> PlainTextResponse:
        """Count, for Prometheus."""
        lines = []
        for name in ("requests", "rows", "exchanges", "failed", "refused"):
            full = f"lessvfl_predict_{name}_total"
            lines += [f"# TYPE {full} counter", f"{full} {counts[name]}"]
        connected = predictor.hub.connected
        lines.append("# TYPE lessvfl_predict_party_connected gauge")
        for place, party in enumerate(predictor.parties):
            label = f'party="{place}"'
            state = int(party in connected)
            lines.append(f"lessvfl_predict_party_connected{{{label}}} {state}")
        return PlainTextResponse("\n".join(lines) + "\n")

    return app


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


class Service(uvicorn.Server):
    """The service, in the thread that starts it, until it is interrupted."""

    def __init__(self, worker: Worker, token: str) -> None:
        app = application(worker, token)
        super().__init__(uvicorn.Config(app, log_level="warning"))
