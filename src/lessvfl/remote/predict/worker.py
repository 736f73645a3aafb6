"""The one thread of a service that talks to the parties.

Requests that come while it does are answered together by its next exchange.
"""

from __future__ import annotations

import functools
import itertools
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lessvfl.errors import DataError, LessVFLError, PartyLostError, PolicyError
from lessvfl.remote.align.holder import Positions
from lessvfl.remote.predict.server import MOST_ROWS, Answers, Predictor
from lessvfl.web import limits

BEAT_SECONDS = 5.0  # between two looks at who is there, while nobody asks
END_SECONDS = 5.0  # that the service waits for the parties when it ends

log = logging.getLogger(__name__)


class UnknownIdsError(DataError):
    """A request names rows that are not aligned."""


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
