"""A party that answers predictions: its pruned network, its rows, its policy."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl import data
from lessvfl.core.hidden_paths import Inference, PathParty, PathStep
from lessvfl.core.protocol import QueryArrays, expect
from lessvfl.core.trees.networks import HALF
from lessvfl.data import Frame
from lessvfl.data.id_kinds import rewritten
from lessvfl.errors import ConfigError, PolicyError, ProtocolError
from lessvfl.privacy.accounting import spent_by
from lessvfl.remote.accounts import BITS, Amounts, Most
from lessvfl.remote.align import Ids, PartyAligner, keys
from lessvfl.remote.align.messages import most_asked
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import PartyConfig, table_of
from lessvfl.remote.home import hold, versions
from lessvfl.remote.policy import PolicyChecker
from lessvfl.remote.predict import reasons
from lessvfl.remote.predict.journal import PREDICT, Journal, rows_lately
from lessvfl.remote.predict.models import (
    OpenModel,
    PartyModels,
    record_of,
    texts_in_training,
)
from lessvfl.remote.price import Price
from lessvfl.remote.requests import in_a_sentence
from lessvfl.remote.session import (
    Aligned,
    Aligning,
    Connected,
    Waiting,
    answer_alignment,
)
from lessvfl.remote.spent import AccountBudget, PredictionBudget
from lessvfl.run.record import JOURNAL, TOLD
from lessvfl.terms import MINUTE
from lessvfl.wire import codec, control, dial, messages
from lessvfl.wire.due import Bound, Due, NotDueError, of_predictions, query, requests

OPENS = 60  # times that a model is taken up in a minute, at most
PLACE_BYTES = 8  # of a row that is asked for
SLOPE_BYTES = 4  # of a component that is explained

log = logging.getLogger(__name__)


class PredictingParty:
    """A party's side of joint prediction: ``handle(message) -> reply``.

    `frame` is its current table, `ids` whom the rows are about. Every request is in
    ``predictions.jsonl`` of its run folder: when, how many rows, for which session.
    """

    def __init__(
        self,
        name: str,
        config: PartyConfig,
        frame: Frame,
        ids: NDArray[Any] | None = None,
    ) -> None:
        self.name, self.config = name, config
        self._declined = ""  # what was not due, until something is
        self._opens: deque[float] = deque(maxlen=OPENS)  # when a model was taken up
        self.folder = Path(config.out)
        self.record = record_of(name, config)
        files = contextlib.ExitStack()
        files.callback(os.close, hold(self.folder))
        self.close = weakref.finalize(self, files.close)
        try:
            self.checker = PolicyChecker(name, config.policy)
            self.frame, self._ids = _allowed(config, frame, ids)
            self.all_runs = AccountBudget(self.folder, self.checker, self._ids)
            lately = rows_lately(self.folder / JOURNAL, config.policy.predict_rate)
            path = self.folder / "predicted.safetensors"
            self.budget = PredictionBudget(path, self.checker, lately)
            files.callback(self.budget.settle)
            self._journal = Journal(self.folder / JOURNAL)
            files.callback(self._journal.close)
            self._new_aligner()
            self.models = PartyModels(name, config, self.record, self.frame, self._ids)
        except BaseException:
            self.close()
            raise
        self.state: Waiting | Connected[OpenModel] = Waiting()
        self._paths: PathParty | None = None  # of the batch that is predicted now

    @classmethod
    def load(
        cls, name: str, config: PartyConfig, table: Path | None
    ) -> PredictingParty:
        """Return a party on a table of today; none: that of its config."""
        texts = texts_in_training(config)
        path = table_of(config) if table is None else table
        return cls(name, config, *data.load_columns(path, config.id, texts))

    def lacks(self, ids: NDArray[Any]) -> str | None:
        """Say why it cannot answer for these ids; None: it has some, or no ids at all.

        Ids that are in its table in another writing are none of them.
        """
        if self._ids is None:
            return None
        asked = Ids(ids, self._ids.column)
        mine, others = (
            {item.partition(":")[2] for item in some.items}
            for some in (self._ids, asked)
        )
        if got := rewritten(others, mine):
            return got
        return "Got none" if mine.isdisjoint(others) else None

    def hello(self) -> control.Hello:
        """Return how this party greets."""
        return control.Hello(self.name, self.config.threads, "cpu", versions())

    def serve(self, server: dial.Server) -> None:
        """Answer the server until it ends the predictions."""
        dial.serve(
            server,
            self.hello(),
            self.handle,
            patience=self.config.wait,
            due=self.due,
            decline=self.decline,
        )

    def due(self) -> Due:
        """Return what a server may ask for now."""
        return of_predictions(self._due(), self.config.server)

    def _due(self) -> Due:
        at = self.state
        if isinstance(at, Waiting):
            return requests("before a model", {})
        if not isinstance(at, Aligned):
            return requests("aligning a model", {control.Align: self._alignment_due()})
        n_rows, width = len(at.rows), at.opening.h.shape[1]
        bounds = {
            control.Align: self._alignment_due(),
            control.Ask: Bound(PLACE_BYTES * n_rows),
            control.Explain: Bound((PLACE_BYTES + SLOPE_BYTES * width) * n_rows),
            # A step with hidden paths, where the policy has them.
            messages.Query: Bound(
                complaint=lambda fields, specs: str(self._not_allowed("fed-eini"))
            ),
        }
        if "fed-eini" in self.config.policy.predict_inference:
            bounds[messages.Query] = query(n_rows, self.config.policy.memory)
        return requests("predicting", bounds)

    def _alignment_due(self) -> Bound:
        """Return the bound of a message of an alignment, at first by the policy."""
        n_rows, most_ids = self.frame.n_rows, self.config.policy.predict_rows
        is_first = not isinstance(self.state, Aligning)
        most = most_asked(self.config.align, n_rows, most_ids, is_first)

        def complaint(fields: codec.Fields, specs: codec.Specs) -> str | None:
            if not is_first or codec.wire_bytes(specs) <= most:
                return None
            allowed = f"predictions of {most_ids} rows"
            more = "an alignment of more"
            return str(self.checker.refuse(allowed, "predict_rows", more))

        return Bound(most, complaint)

    def decline(self, error: NotDueError) -> control.Declined:
        """Decline what must not be asked for now."""
        if error.public != self._declined:  # it is told once, however often it comes
            log.warning("%s", error)
        self._declined = error.public
        self._note("declined", "what is not due")
        return control.Declined(error.public)

    def handle(self, message: Any) -> Any:
        """Return the reply to one message of the server's, or one that declines it."""
        self._declined = ""
        try:
            with in_a_sentence(self.name):
                return self._handle(message)
        except PolicyError as error:  # the next request may be answered
            log.warning("%s", error)
            self._note("declined", type(message).__name__.lower())
            return control.Declined(error.public)

    def _handle(self, message: Any) -> Any:
        match message:
            case control.Open():
                return self._open(message)
            case control.Align(data):
                return self._align(data)
            case control.Ask(rows):
                return self._answer(rows)
            case messages.Query(stage="predict"):
                return self._answer_hidden(message)
            case control.Explain():
                return self._explain(message)
        raise ProtocolError(
            f"Party '{self.name}' must be asked for predictions. Got "
            f"{type(message).__name__}."
        )

    # ------------------------------------------------------------------ model and table

    def _open(self, message: control.Open) -> control.Agreed:
        """Load the model of some seeds, if it belongs to the server's network.

        The whole table goes through its network, so this is not done at every request.
        """
        now = time.monotonic()
        if len(self._opens) == OPENS and self._opens[0] > now - MINUTE:
            raise PolicyError(
                f"Party '{self.name}' loads a model at most {OPENS} times a minute. "
                "Got one request more."
            )
        self._opens.append(now)
        digest = self.models.checked(message)
        at, secret, seeds = self.state, self.budget.secret, message.seeds
        if isinstance(at, Connected) and at.opening.message.seeds == seeds:
            model = dataclasses.replace(at.opening, message=message)  # as it is in use
        else:
            model = self.models.opened(message, secret)
        self.state = Connected(model)
        path = self._rows_path(model)
        if path.is_file():  # this session had begun, perhaps with another table
            known = read_state(path)
            if known.values["table"] == self._table():
                self.state = Aligned(model, known.tensors["rows"].numpy())
        self._note("asked", "open")
        one_or_more = f"seed {seeds[0]}"
        if len(seeds) > 1:
            one_or_more = f"{len(seeds)} seeds together"
        log.info("answers predictions of %s", one_or_more)
        is_aligned = isinstance(self.state, Aligned)
        return control.Agreed({"model": digest, "aligned": is_aligned})

    # ---------------------------------------------------------------------------- rows

    def _align(self, message: bytes) -> control.Align | control.Agreed:
        """Answer the server's messages; take the common rows from the last."""
        at = self.state
        if isinstance(at, Waiting):
            raise ProtocolError(
                f"Party '{self.name}' must be told which model first. Got an alignment."
            )
        self.state = Connected(at.opening)  # a message that fails ends the alignment
        rows = answer_alignment(
            self.name,
            self.config.align,
            at,
            message,
            new_aligner=self._new_aligner,
            guard=self._guard,
        )
        if isinstance(rows, tuple):
            self.state, answer = rows
            return answer
        self.state = Aligned(at.opening, rows)
        tensor = torch.from_numpy(np.ascontiguousarray(rows))
        path = self._rows_path(at.opening)
        write_state(path, State({"rows": tensor}, {"table": self._table()}))
        known = sorted(path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in known[:-2]:  # the last but one: this one may fail elsewhere
            path.unlink()
        log.info("%d rows in common with everybody", len(rows))
        return control.Agreed()

    def _new_aligner(self) -> PartyAligner:
        """Return its side of an alignment, by a secret of this table.

        The same hello has the same answer, which tells nobody more than the first time.
        """
        secret = keys.derive(self.budget.secret, "table", self._table().encode())
        return PartyAligner(
            self.config.align, self._ids, self.frame.n_rows, secret=secret
        )

    @contextlib.contextmanager
    def _guard(self, model: OpenModel, n_heard: int, message: bytes) -> Iterator[None]:
        """Charge for an alignment, and again if the server breaks its rules.

        A greeting that is the last one again costs nothing.
        """
        if n_heard == 0:
            about = self._table().encode() + b"\n" + message
            if self.budget.alignment(hashlib.sha256(about).hexdigest()):
                self._write_down(model, "align", 0)
            else:
                self._note("asked", "align")
        try:
            yield
        except ProtocolError:
            self.budget.forget()
            raise

    def _rows_path(self, model: OpenModel) -> Path:
        return self.folder / "sessions" / f"{model.message.session}.safetensors"

    def _table(self) -> str:
        """Return a fingerprint of whom the rows of the table are about."""
        if self._ids is None:
            return f"{self.frame.n_rows} rows without ids"
        return self._ids.fingerprint()

    # ------------------------------------------------------------------------- answers

    def _answer(self, places: NDArray[np.int64]) -> messages.Embedding:
        """Return the embeddings of rows, if the policy allows it."""
        model, rows = self._rows(places)
        if len(rows):  # none: the server checks who is there
            self._check_inference("clear")
            new = np.unique(rows[~model.sent[rows]])
            self._charge(model, rows, len(new))
            if len(new):
                self._pay_for(model, new)
            model.sent[rows] = True
        h = model.h[torch.from_numpy(rows)]
        return messages.Embedding("predict", messages.Block(h))

    def _answer_hidden(self, query: messages.Query) -> messages.QueryReply:
        """Take a step of a batch with hidden paths, if the policy allows it.

        The first step begins another batch, whatever became of the last.
        """
        self._check_inference("fed-eini")
        arrays = query.arrays
        try:
            if query.step == PathStep.KEYS:
                return self._begin_batch(arrays)
            if self._paths is None:  # this party has just been started
                raise PolicyError(
                    f"Party '{self.name}' must begin a batch before it goes on with "
                    "it. Got another step."
                )
            return messages.QueryReply(
                "predict", self._paths.answer(query.step, arrays)
            )
        except ConfigError as error:  # trees that are too small
            raise PolicyError(str(error)) from None
        except ValueError as error:
            sentence = (
                f"Party '{self.name}' must be sent what hidden paths have at step "
                f"{query.step}. Got {error}."
            )
            raise ProtocolError(sentence, public=sentence) from None

    def _begin_batch(self, arrays: QueryArrays) -> messages.QueryReply:
        """Begin a batch of rows; each sum that the server says there is has a price."""
        self._paths = None
        expect(arrays[:1], (-1,))
        model, rows = self._rows(arrays[0].long().numpy())
        if not model.has_splits:
            raise PolicyError(
                f"Party '{self.name}' hides paths in trees. Got a network."
            )
        # Every time: another sum may be of other weights than the last.
        self._charge(model, rows, len(rows))
        splits = model.h[torch.from_numpy(rows)].T > HALF
        paths = PathParty(self.name, splits.numpy())
        answer = paths.answer(PathStep.KEYS, arrays[1:])
        n_sums = paths.n_sums
        self._spend(rows, Amounts(n_sums, BITS * n_sums, predictions=1))
        self._paths = paths
        return messages.QueryReply("predict", answer)

    def _explain(self, asked: control.Explain) -> control.Explained | control.Agreed:
        """Split the party's share of rows among its features; tell, if it may."""
        model, rows = self._rows(asked.rows)
        telling, seeds = self.config.policy.reasons, model.message.seeds
        if telling == "none":
            raise self.checker.refuse("no reasons", "reasons", "a request for some")
        if not len(rows) or not model.sent[rows].all():
            raise PolicyError(
                f"Party '{self.name}' explains rows that it has been asked to predict "
                "since its start. Got others, or none."
            )
        if len(rows) > reasons.MOST_AT_ONCE:
            raise PolicyError(
                f"Party '{self.name}' explains {reasons.MOST_AT_ONCE:,} rows at a "
                f"time. Got {len(rows):,}."
            )
        parts = reasons.read_parts(self.models.parts(seeds))
        self.budget.reasons(len(rows))
        what = TOLD if telling == "features" else "reasons at home"
        self._write_down(model, what, len(rows))
        shares = reasons.split(parts, self.frame.take(rows), asked.slopes)
        whom = [str(row) for row in rows.tolist()]
        if self._ids is not None:  # a type stands before each, as in t:person-5
            whom = [self._ids.item(row).partition(":")[2] for row in rows.tolist()]
        reasons.keep(self.folder / reasons.home_file(seeds), whom, shares)
        reasons.draw(parts, self.folder, seeds, self.frame, asked.slopes)
        if telling == "home":
            return control.Agreed()
        answer = reasons.largest(shares, asked.most, self.config.reason_texts)
        n_values = answer.values.shape[1]
        self._spend(rows, Amounts(n_values, BITS * n_values))
        return answer

    def _check_inference(self, how: Inference) -> None:
        if how not in self.config.policy.predict_inference:
            raise self._not_allowed(how)

    def _not_allowed(self, how: Inference) -> PolicyError:
        some = f"predictions by {', '.join(self.config.policy.predict_inference)}"
        return self.checker.refuse(some, "predict_inference", f"'{how}'")

    def _rows(self, places: NDArray[np.int64]) -> tuple[OpenModel, NDArray[np.int64]]:
        """Return the model, and the rows of the table at places of the common ones."""
        at = self.state
        if not isinstance(at, Aligned):  # this party has just been started
            raise PolicyError(
                f"Party '{self.name}' must align its rows before it answers. Got a "
                "request without it."
            )
        common = at.rows
        if ((places < 0) | (places >= len(common))).any():
            raise PolicyError(
                f"Party '{self.name}' answers for common rows, numbered from 0 to "
                f"{len(common) - 1}. Got row {places.max()}."
            )
        return at.opening, common[places]

    def _charge(self, model: OpenModel, rows: NDArray[np.int64], n_new: int) -> None:
        """Charge for rows, of so many of which something new is sent.

        A row that several seeds predict counts for each of them.
        """
        n_seeds = len(model.message.seeds)
        self.budget.rows(n_seeds * len(rows), n_seeds * n_new)
        if n_new:
            self._write_down(model, PREDICT, len(rows))
        else:  # the same numbers again
            self._note("asked", "predict again")

    def _pay_for(self, model: OpenModel, rows: NDArray[np.int64]) -> None:
        """Charge for embeddings of rows; the same one of a row is charged once a model.

        Without ids all rows of this very table are one answer.
        """
        h = model.h.contiguous().numpy()
        n, bits = h.shape[1], 1 if model.has_splits else 8 * h.itemsize
        gaussian, _ = spent_by(() if model.spent is None else model.spent.releases)
        more = Amounts(n, bits * n, gaussian, predictions=1)
        about = model.message.model.encode()
        answers: Iterable[bytes] = (about + h[row].tobytes() for row in rows.tolist())
        if self._ids is None:
            answers = [about + hashlib.sha256(h.tobytes()).digest()]
        most = self._spend(rows, more, answers)
        price = Price.of(model.spent, most, self.config.policy)
        if price is not None and not model.sent.any():
            log.info(price.words("row", "these predictions spend"))

    def _spend(
        self,
        rows: NDArray[np.int64],
        more: Amounts,
        answers: Iterable[bytes] | None = None,
    ) -> Most:
        """Charge for what is told of rows, or refuse it."""
        charge = self.all_runs.of(rows, more, answers)
        return self.all_runs.charge(charge, "predictions")

    def _write_down(self, model: OpenModel, asked: str, n_rows: int) -> None:
        """Write a request to the operator's journal, before it is answered."""
        about = {"session": model.message.session, "seeds": [*model.message.seeds]}
        self._journal.write({**about, "asked": asked, "rows": n_rows})
        log.debug("rows asked for: %d", n_rows)

    def _note(self, how: str, what: str) -> None:
        """Write a request that costs nothing to the journal."""
        self._journal.count({how: what, "rows": 0})


def _allowed(
    config: PartyConfig, frame: Frame, ids: NDArray[Any] | None
) -> tuple[Frame, Ids | None]:
    """Return the rows that may be predicted, those in the policy's file of ids."""
    every = None if ids is None else Ids(ids, config.id or "id")
    if config.policy.predict_ids is None:
        return frame, every
    if every is None or config.id is None:
        raise ConfigError(
            "The policy's 'predict_ids' needs a column of ids: 'id' must name it. Got "
            "none."
        )
    named = set(Ids(data.load_ids(Path(config.policy.predict_ids), config.id)).items)
    rows = np.array([i for i, item in enumerate(every.items) if item in named])
    if len(rows) == 0:
        raise ConfigError(
            "The policy's 'predict_ids' must name rows of the table. Got none of them."
        )
    return frame.take(rows), every.take(rows)
