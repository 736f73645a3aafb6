"""The server that predicts: a session of aligned rows, and answers for some of them."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl import __version__, data
from lessvfl.core.hidden_paths import AnswerFormats, HiddenPaths, Inference, PathStep
from lessvfl.core.lifted import find_factory
from lessvfl.core.protocol import QueryArrays
from lessvfl.errors import (
    ConfigError,
    DataError,
    LessVFLError,
    PartyLostError,
    PolicyError,
    ProtocolError,
)
from lessvfl.remote.align import Aligner, Ids, keys
from lessvfl.remote.align.entries import Positions
from lessvfl.remote.align.messages import most_offered
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import ServerConfig, table_of
from lessvfl.remote.home import hold
from lessvfl.remote.predict.reasons import ask_why, parts_of, reasons_due
from lessvfl.remote.session import find_common_rows
from lessvfl.run.fitted import (
    MODEL_DIGITS,
    FittedServer,
    digest_of,
    digest_together,
)
from lessvfl.run.folder import load, model_seeds, part_of
from lessvfl.run.reasons import ServerReasons
from lessvfl.run.record import RunRecord
from lessvfl.terms import PartyId
from lessvfl.wire import control, messages
from lessvfl.wire.due import BlockShape, Bound, Due, answer, embedding, replies
from lessvfl.wire.hub import Hub
from lessvfl.wire.line import HubRules

LONGEST = 60.0  # seconds for a reply
MOST_RETURNS = 3  # of parties that come back in the middle of one request
MOST_ROWS = 10_000  # of one exchange; what is longer goes in several

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answers:
    """Predictions of some rows, and the parties that were missing."""

    z: NDArray[Any]  # (n, 1) or (n, C), the outputs of the fusion network
    missing: tuple[PartyId, ...] = ()

    @property
    def partial(self) -> bool:
        """Tell whether the mean of a missing party was used."""
        return bool(self.missing)


@dataclass(frozen=True)
class Session:
    """An alignment: its name, the server's ids, the places of the common ones."""

    name: str
    ids: Ids
    places: Mapping[str, int] = field(default_factory=dict)

    def with_rows(self, rows: Positions) -> Session:
        """Return the session with these of its ids as the common ones, in order."""
        items = self.ids.items
        log.info("%d of %d ids are common to all parties", len(rows), len(items))
        places = {items[row]: place for place, row in enumerate(rows.tolist())}
        return Session(self.name, self.ids, places)


def universe(
    config: ServerConfig, rows: Path | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ids to align, and those to predict.

    Rows that were trained without alignment have their places in the server's table;
    otherwise only the ids that are asked for are shown to anybody.
    """
    if config.id is None:
        raise ConfigError(
            "The 'id' setting must name the column of ids to predict with. Got none."
        )
    asked = data.load_ids(table_of(config) if rows is None else rows, config.id)
    if rows is not None and config.align == "none":
        return data.load_ids(table_of(config), config.id), asked
    return asked, asked


class Predictor:
    """The server's side of joint prediction, over a hub that listens already.

    `ids` are all that may be asked for. With `allow_missing` the mean embedding of a
    party that is away stands for it. With ``fed-eini`` trees predict while the path of
    a row stays hidden (``core/hidden_paths``), which takes all parties.
    """

    def __init__(
        self,
        config: ServerConfig,
        ids: NDArray[Any],
        hub: Hub,
        *,
        seed: int | None = None,
        allow_missing: bool = False,
        inference: Inference = "clear",
    ) -> None:
        self.config, self.hub, self.allow_missing = config, hub, allow_missing
        self.folder = Path(config.out)
        self.record = RunRecord.read(self.folder)
        if self.record.side != "server":
            raise ConfigError(
                f"The run folder '{self.folder}' must be the server's of a run that is "
                f"over. Got one of side {self.record.side!r}."
            )
        self.seeds = model_seeds(self.record, seed)
        code = config.settings.get("fusion_net")  # its own word, not the folder's
        factory = None if code is None else find_factory(code)
        self.model: FittedServer = load(self.folder, seed, fusion_net=factory)
        if self.model.decision is not None:
            log.info("applies %s, as kept", self.model.decision.words)
        if allow_missing and inference == "fed-eini":
            raise ConfigError(
                "Paths are hidden among all parties: 'allow_missing' must be false "
                "with fed-eini. Got true."
            )
        self._paths: HiddenPaths | None = None
        if inference == "fed-eini":
            self._paths = self.model.hidden_paths()
        parts = [part_of(self.record, self.folder, one) for one in self.seeds]
        self.digest = digest_together([digest_of(part) for part in parts])
        models = [
            run["models"] for run in self.record.runs if run["seed"] in self.seeds
        ]
        self._digests = {
            party: digest_together([digests[party] for digests in models])
            for party in self.model.party_names
        }
        self.parties = [
            p for p in self.model.party_names if p not in self.model.constants
        ]
        self._sizes = dict(zip(self.model.party_names, self.model.sizes, strict=True))
        self._session = Session("", Ids(ids, config.id or "row"))
        self._opened: set[PartyId] = set()  # parties that have joined the session
        self._wrong: dict[PartyId, str] = {}  # why a party cannot
        self._n_ids = len(ids)  # of the current alignment
        self.close = weakref.finalize(self, os.close, hold(self.folder))
        if not self._path.is_file():
            self._write(secrets.token_bytes(keys.SECRET_BYTES), self._session, {})
        hub.run_id = bytes.fromhex(self.record.header["run"])
        rules = HubRules(
            admit=self._objection,
            due=self._due,
            came=self._came,
            went=self._opened.discard,
            newest_stays=True,
            longest=LONGEST,
        )
        hub.follow(rules)

    def _came(self, party: PartyId) -> None:
        """Note that a party which has just dialled must join the session first."""
        self._opened.discard(party)
        log.info("party '%s' is connected", party)

    def _objection(self, hello: control.Hello) -> str | None:
        mine, theirs = __version__, hello.versions.get("lessvfl")
        if mine == theirs:
            return None
        return (
            f"Server and party '{hello.party}' must have the same version of lessvfl. "
            f"Got {mine} and {theirs}."
        )

    def _due(self, party: PartyId, request: Any) -> Due:
        """Return the bounds of what `party` may reply to `request`."""
        bounds: dict[type, Bound] = {}
        match request:
            case control.Ask(rows):
                shape = (len(rows), self._sizes[party])
                dtype = self.model.fusion.input_weights.dtype
                block = BlockShape(shape, dtype, 8 * dtype.itemsize)
                bounds[messages.Embedding] = embedding(block, "predict", False)
            case messages.Query(stage, expects=expects):
                bounds[messages.QueryReply] = answer(expects or (), stage)
                return Due({**bounds, control.Declined: Bound()})
            case control.Explain():
                bounds[control.Explained] = reasons_due(request)
            case control.Align():
                config = self.config
                most = most_offered(config.align, self._n_ids, config.most_ids)
                bounds[control.Align] = Bound(most)
        return replies(request, bounds)

    # ---------------------------------------------------------------------- the session

    def begin(self) -> int:
        """Wait for all parties and align rows; return how many are common.

        A party that is lost meanwhile is waited for again.
        """
        end = time.monotonic() + self.config.wait
        while True:
            try:
                return self._begin()
            except PartyLostError as lost:
                if time.monotonic() > end:
                    raise
                log.warning("%s", lost)

    def _begin(self) -> int:
        connected = self.hub.connected
        if missing := [p for p in self.parties if p not in connected]:
            self.hub.wait(self.config.wait, missing)
        known, ids = read_state(self._path), self._session.ids
        session = Session(known.values["session"], ids)
        same = known.values == {**known.values, **self._facts(ids)}
        if same and session.name and self._open_all(session):
            self._session = session.with_rows(known.tensors["rows"].numpy())
        else:
            self._session = self._begin_anew(ids)
        return len(self._session.places)

    def align_again(self, ids: NDArray[Any] | None) -> int:
        """Begin another session, perhaps with other ids; return how many are common."""
        if away := [p for p in self.parties if p not in self.hub.connected]:
            raise PartyLostError(away, "not connected")
        before = self._session.ids
        try:
            new = before if ids is None else Ids(ids, before.column)
            self._session = self._begin_anew(new)
        except BaseException:  # the old session goes on, if parties still know it
            self._opened.clear()
            raise
        return len(self._session.places)

    def _begin_anew(self, ids: Ids) -> Session:
        """Align these ids with all parties, and return and save the new session.

        An alignment that broke off is repeated as the same session with the same
        messages, even after a restart: its name derives from the last session.
        """
        known, facts = read_state(self._path), self._facts(ids)
        secret = known.secret
        about = f"{known.values['session']} {facts}".encode()
        session = Session(keys.derive(secret, "session", about)[:16].hex(), ids)
        self._opened.clear()
        self._open_all(session)
        self._n_ids = len(ids)
        aligner = Aligner(
            self.config.align,
            ids,
            len(ids),
            secret=keys.derive(secret, "ids", facts["ids"].encode()),
            min_common=1,
            min_share=0.0,
        )
        rows = np.arange(len(ids))
        if self.parties:
            send, cut_off, take = self._send, self.hub.cut_off, aligner.take
            rows = find_common_rows(aligner, self.parties, send, cut_off, take)
            self._opened.update(self.parties)
        named = {"rows": torch.from_numpy(np.ascontiguousarray(rows))}
        self._write(secret, session, named)
        return session.with_rows(rows)

    def _write(
        self, secret: bytes, session: Session, rows: Mapping[str, Tensor]
    ) -> None:
        values = {"session": session.name, **self._facts(session.ids)}
        write_state(self._path, State(rows, values, secret))

    @property
    def _path(self) -> Path:
        return self.folder / "predict.safetensors"

    def _facts(self, ids: Ids) -> dict[str, Any]:
        return {"seeds": [*self.seeds], "ids": ids.fingerprint()}

    def _open_all(self, session: Session) -> bool:
        """Have all parties join a session; tell whether all know its rows."""
        return all([self._open(party, session) for party in self.parties])

    def _open(self, party: PartyId, session: Session) -> bool:
        """Have a party join a session; return whether it knows the common rows."""
        message = control.Open(
            self.record.header["run"],
            self.seeds,
            session.name,
            self.digest,
            self.config.align,
        )
        reply = self._send({party: message})[party]
        if reply.revealed.get("model") != self._digests[party]:
            raise ProtocolError(
                f"Party '{party}' must have the network that it was trained with. Got "
                f"{str(reply.revealed.get('model'))[:80]!r}."
            )
        aligned = reply.revealed.get("aligned") is True
        self._wrong.pop(party, None)
        if aligned:
            self._opened.add(party)
        return aligned

    def _send(self, requests: Mapping[PartyId, Any]) -> dict[PartyId, Any]:
        """Exchange messages; raise an error with the sentence of one that declines."""
        replies = self.hub.send(requests)
        for party, reply in replies.items():
            if isinstance(reply, control.Declined):
                why = control.printable(reply.reason)
                raise PolicyError(f"Party '{party}' declines: {why}")
        return replies

    # ---------------------------------------------------------------------- the answers

    def places(self, ids: Sequence[Any]) -> tuple[Positions, list[int]]:
        """Return the places of ids, and which of them are not common to all.

        Repeated ones are refused.
        """
        asked = Ids(np.array(ids, dtype=object), self._session.ids.column)
        places = [self._session.places.get(item, -1) for item in asked.items]
        missing = [i for i, place in enumerate(places) if place < 0]
        return np.array([p for p in places if p >= 0], dtype=np.int64), missing

    def answer(
        self, ids: Sequence[Any], reasons: int = 0
    ) -> tuple[dict[str, list[Any]], Answers, list[int]]:
        """Return a table of predictions in the order of ids, and which have none.

        With so many reasons for each.
        """
        places, missing = self.places(ids)
        if not len(places):
            raise DataError(
                f"Some of the {len(ids)} ids must be known to every party. Got none."
            )
        why: dict[str, list[Any]] = {}
        if reasons:
            answers, why = self.explain(places, reasons)
        else:
            answers = self.predict(places)
        model, n_rows = self.model, len(places)
        columns = {"prediction": model.answers(answers.z)}
        if model.task != "regression":
            for prefix, shares in model.shares(answers.z).items():
                for place, name in enumerate(model.label_names):
                    columns[f"{prefix}{name}"] = shares[:, place]
        columns["partial"] = np.full(n_rows, answers.partial)
        columns["model"] = np.full(n_rows, self.digest[:MODEL_DIGITS])
        at = np.setdiff1d(np.arange(len(ids)), missing).tolist()
        table: dict[str, list[Any]] = {self._session.ids.column: [*ids]}
        lists = {name: values.tolist() for name, values in columns.items()}
        for name, cells in (lists | why).items():
            table[name] = [None] * len(ids)
            for place, value in zip(at, cells, strict=True):
                table[name][place] = value
        return table, answers, missing

    def predict(self, places: Positions) -> Answers:
        """Return predictions for the rows at these places in the common order."""
        if self._paths is not None:
            size = min(MOST_ROWS, self._paths.rows_at_once)
            batches = [
                self._batch_hidden(self._paths, places[start : start + size])
                for start in range(0, len(places), size)
            ]
            return Answers(np.concatenate(batches))
        parts, missing = [], set()
        for start in range(0, len(places), MOST_ROWS):
            some = places[start : start + MOST_ROWS]
            blocks, away = self._embed(some)
            parts.append(self.model.fuse(blocks, len(some)))
            missing |= set(away)
        return Answers(np.concatenate(parts), tuple(sorted(missing)))

    def explain(
        self, places: Positions, most: int
    ) -> tuple[Answers, dict[str, list[Any]]]:
        """Return what is predicted for rows, and why, as columns of a table.

        A party whose policy gives no reasons is one as a whole.
        """
        if self._paths is not None:
            raise ConfigError(
                "Reasons need the embeddings of rows: 'inference' must be clear. Got "
                "fed-eini."
            )
        means = {party: self._mean(party) for party in self.parties}
        parts, missing = [], set()
        columns: dict[str, list[Any]] = {}
        for start in range(0, len(places), MOST_ROWS):
            some = places[start : start + MOST_ROWS]
            blocks, away = self._embed(some)
            missing |= set(away)
            answers = ServerReasons.of(self.model, blocks, means, len(some))
            parts.append(answers.z)
            asked = parts_of(answers)
            present = [party for party in self.parties if party not in away]
            shares = ask_why(self.hub.send, present, asked, some, most)
            for part, by_party in zip(asked, shares, strict=True):
                for name, cells in part.explanation(by_party).columns(most).items():
                    columns.setdefault(name, []).extend(cells)
        return Answers(np.concatenate(parts), tuple(sorted(missing))), columns

    def _batch_hidden(self, paths: HiddenPaths, places: Positions) -> NDArray[Any]:
        """Predict a batch while the paths of its rows stay hidden.

        A party that is back meanwhile joins, and the batch begins anew.
        """
        rows = torch.from_numpy(np.ascontiguousarray(places))

        def take(
            step: PathStep,
            arrays: Mapping[PartyId, QueryArrays],
            expects: Mapping[PartyId, AnswerFormats],
        ) -> dict[PartyId, QueryArrays]:
            first = (rows,) if step is PathStep.KEYS else ()
            replies = self._send(
                {
                    party: messages.Query(
                        "predict", step, (*first, *some), tuple(expects[party])
                    )
                    for party, some in arrays.items()
                }
            )
            return {party: reply.arrays for party, reply in replies.items()}

        returns = 0
        while True:
            for party, why in self._away().items():
                raise PartyLostError([party], why)
            try:
                z = paths.predict(len(places), take)
                return np.asarray(z.double().numpy())
            except PolicyError:
                returns += 1
                if returns > MOST_RETURNS or self._opened.issuperset(self.parties):
                    raise

    def ping(self) -> None:
        """Find out who is still there, without asking for any row."""
        for party in set(self.hub.connected) & self._opened:
            with contextlib.suppress(LessVFLError):
                self.hub.send({party: control.Ask(np.empty(0, dtype=np.int64))})

    def _embed(self, places: Positions) -> tuple[list[Tensor], list[PartyId]]:
        """Return all embeddings, and the parties whose mean was used.

        A party that is lost stays so for this request, which therefore ends.
        """
        gone: dict[PartyId, str] = {}
        returns = 0
        while True:
            away = self._away() | gone
            if away and not self.allow_missing:
                party, why = next(iter(away.items()))
                raise PartyLostError([party], why)
            present = [party for party in self.parties if party not in away]
            try:
                replies = self._send(dict.fromkeys(present, control.Ask(places)))
                break
            except PolicyError:
                returns += 1
                if returns > MOST_RETURNS or self._opened.issuperset(present):
                    raise  # else a party is back, and has yet to join the session
            except (PartyLostError, ProtocolError) as error:
                if not self.allow_missing:
                    raise
                log.warning("%s", error)
                lost = getattr(error, "parties", ())
                now = set(self.hub.connected).difference(lost)
                gone |= dict.fromkeys(set(present) - now, str(error))
                returns += 1
                if returns > len(self.parties):
                    raise
        blocks = []
        for party in self.model.party_names:
            if party in replies:
                blocks.append(replies[party].block.values)
            elif party in self.model.constants:
                blocks.append(self.model.constants[party].view(1, -1))
            else:
                blocks.append(self._mean(party).view(1, -1))
        return blocks, list(away)

    def _away(self) -> dict[PartyId, str]:
        """Return who cannot be asked now, and why; those who are back join again."""
        connected, away = set(self.hub.connected), {}
        for party in self.parties:
            if party not in connected:
                away[party] = self._wrong.get(party, "not connected")
            elif party not in self._opened:
                try:
                    if not self._open(party, self._session):
                        away[party] = "it has lost the rows of this session"
                except LessVFLError as error:
                    log.warning("%s", error)
                    away[party] = self._wrong[party] = str(error)
        return away

    def _mean(self, party: PartyId) -> Tensor:
        if party not in self.model.means:
            raise ConfigError(
                f"The mean of party '{party}' is not known: the run must have been "
                "evaluated to predict without it. Got 'evaluation: nothing'."
            )
        return self.model.means[party]
