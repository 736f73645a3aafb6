"""The server as a process of its own: takes parties in and runs a method with them.

The algorithm is the one the simulator runs (:mod:`lessvfl.algorithm`); here are who
takes part, which rows are common, checkpoints, and what to do when a party goes away:
everybody takes up the last checkpoint and goes on. Several seeds are runs that follow
each other with the same parties and the same common rows.

Its run folder holds ``record.jsonl`` once all seeds are over, and for each of them
``networks/seed-<seed>/server/`` with the fusion network, and ``seed-<seed>/``: the
checkpoint, ``numbers.json`` of the run, and ``finished.json`` with what every party has
revealed of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl import data, methods
from lessvfl.core.device import release_freed_memory, resolve_device
from lessvfl.core.lifted import find_factory
from lessvfl.data import (
    Blocks,
    Dataset,
    Places,
    Problem,
    Scratch,
    are_in_order,
    split_rows,
)
from lessvfl.errors import ConfigError, DataError, PartyLostError, ProtocolError
from lessvfl.remote.align import Aligner, Ids
from lessvfl.remote.align.messages import most_offered
from lessvfl.remote.checkpoint import (
    Checkpoints,
    State,
    named_rows,
    read_state,
    write_state,
)
from lessvfl.remote.config import ServerConfig
from lessvfl.remote.home import Home, facts_of, versions
from lessvfl.run import profiles
from lessvfl.run.build import Builder, clamp_batch, n_outputs
from lessvfl.run.fitted import NETWORKS, FittedServer, digest_of
from lessvfl.run.numbers import (
    bare_header,
    class_share,
    consensus,
    header,
    server_numbers,
)
from lessvfl.run.profiles import Settings
from lessvfl.run.record import FILE_NAME, RunRecord, read_json, write_json
from lessvfl.run.recorder import Recorder
from lessvfl.status import Status
from lessvfl.terms import PartyId, plural
from lessvfl.wire import control, messages
from lessvfl.wire.hub import Hub, HubRules
from lessvfl.wire.ledger import BillLine, Ledger
from lessvfl.wire.parties import Parties
from lessvfl.wire.replies import ReplyRules, most_bytes, wrong_kind

CHECKPOINT = "checkpoint.safetensors"

# Settings of `lessvfl run` that a party decides on for itself.
NOT_THE_SERVERS = (
    *("scale", "max_categories", "missing", "missing_values"),
    *("must_keep", "party_net"),
)

MOST_OFFERS = 3  # different ones of a party, as after it lost its run folder
MAX_TRIES = 100  # breaks by one party without a new checkpoint
STAY_SECONDS = 5.0  # after a run that was over before, for parties that dial

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelTable:
    """What the label holder has: labels, and maybe which rows are for testing."""

    dataset: Dataset  # without columns
    is_test: NDArray[np.bool_] | None = None
    ids: NDArray[Any] | None = None  # whom its rows are about

    @classmethod
    def load(cls, config: ServerConfig) -> LabelTable:
        """Load the label holder's own table; many rows stay on disk."""
        where = (Path(config.data), config.label, config.id, config.sample_weight)
        dataset, ids, is_test = data.load_labels(
            *where, config.task, config.group_column
        )
        log.info("%s", data.task_sentence(dataset.task, dataset.task_reason))
        Path(config.out).mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(dataset, is_test, ids).kept(Scratch(Path(config.out)))

    def kept(self, on: Scratch) -> LabelTable:
        """Return the same table, what is large of it mapped from disk."""
        own = self.dataset
        weight, units = on.keep(own.weight), on.keep(own.units)
        y = on.keep(own.y)
        dataset = dataclasses.replace(own, y=y, weight=weight, units=units)
        return LabelTable(dataset, on.keep(self.is_test), on.keep(self.ids))

    def take(self, rows: NDArray[np.int64]) -> LabelTable:
        """Return the table of these rows, in this order."""
        is_test = None if self.is_test is None else self.is_test[rows]
        return LabelTable(self.dataset.take(rows), is_test)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(self.dataset.y)


@dataclass(frozen=True)
class SeedLabels:
    """Training and test rows of a seed, as places in the common order; their labels."""

    seed: int
    train: Places
    test: Places
    problem: Problem

    def message(self, tell_share: bool) -> control.Prepare:
        """Return what every party is told of them."""
        in_order = are_in_order(self.train) and are_in_order(self.test)
        rows = (self.seed, self.train, self.test, in_order)
        share = class_share(self.problem) if tell_share else None
        return control.Prepare.of(*rows, self.problem.blocks, share)


def resolve_settings(config: ServerConfig, dataset: Dataset) -> Settings:
    """Return the settings of a run with these labels, or refuse what is not its own."""
    for name in NOT_THE_SERVERS:
        if name in config.settings:
            raise ConfigError(
                f"The '{name}' setting is every party's own and stands in its "
                "config. Got it in the server's."
            )
    found = profiles.resolve(config.method, config.profile, dataset, config.settings)
    refuse_distinct(found)
    data.check_labels(dataset, found.labels)
    return found


def refuse_distinct(settings: Settings) -> None:
    """Refuse what needs whole rows, which no side sees."""
    if settings.data.equal_rows == "distinct":
        raise ConfigError(
            "Between machines the 'equal_rows' setting must be together or apart: no "
            "side sees whole rows, to tell which are equal. Got 'distinct'."
        )


class ServerProcess:
    """The server's side of a run of every seed, over a hub that listens already.

    With `resume` it goes on with what the run folder holds.
    """

    def __init__(
        self,
        config: ServerConfig,
        table: LabelTable,
        hub: Hub,
        status: Status,
        resume: bool = False,
    ) -> None:
        self.config = config
        self.table = table
        self.hub = hub
        self.status = status
        self.settings = resolve_settings(config, table.dataset)
        self.device = resolve_device(config.device)
        self.header = bare_header(
            self.settings,
            table.dataset.name,
            config.device,
            {},
            parties=list(config.parties),
        )
        for name in NOT_THE_SERVERS:
            self.header["config"].pop(name, None)
        own = table.ids
        self._ids = None if own is None else Ids(own, config.id or "id")
        code = self.settings.net.fusion_net
        if code is not None:
            find_factory(code)
        lasting = {"label": config.label, "id": config.id}
        facts = facts_of(
            table.dataset.X,
            table.ids,
            lasting,
            code,
            labels=table.dataset.y,
            weights=table.dataset.weight,
            groups=table.dataset.units,
            **{"test rows": table.is_test},
        )
        self.home = Home(Path(config.out), facts)
        self.folder = self.home.folder
        self._scratch = Scratch(self.folder)
        self.seed = config.seeds[0]  # of the run at hand
        self.resent = 0
        self._settled = hub.by_part()  # what is on the bill of an earlier seed
        self._rows: SeedLabels | None = None  # of the seed at hand
        # Who greeted how and knows them, as long as the connection lasts.
        self._prepared: dict[PartyId, control.Hello] = {}
        self._n_offers: int | None = None  # of an alignment at hand
        if self._has_begun and not resume:
            self.close()
            raise ConfigError(
                f"The run folder '{self.folder}' holds a run that began: --resume must "
                "be given to go on with it, or another 'out' to begin anew."
            )
        self._new_aligner()  # what it lacks for that is said at the start
        mode: Any = config.align
        self._offer = most_offered(mode, table.n_rows, config.most_ids)
        hub.rules = HubRules(
            admit=self._objection,
            check=lambda party, request, reply: wrong_kind(request, reply),
            due=lambda party, request: most_bytes(request, self._offer),
            came=status.connect,
            went=status.lose,
            carried=self._carried,
            refused=lambda who, why: status.refused(why.split(".")[0][:80]),
        )

    def close(self) -> None:
        """Let go of the run folder."""
        self.home.close()

    # ------------------------------------------------------------------------ who joins

    def _objection(self, hello: control.Hello) -> str | None:
        """Return why a party cannot take part."""
        for what, mine, theirs in (
            ("versions", versions(), dict(hello.versions)),
            ("threads", self.config.threads, hello.threads),
            ("device", self.device.type, hello.device),
        ):
            if mine != theirs:
                return (
                    f"Server and party '{hello.party}' must have the same {what}. "
                    f"Got {mine} and {theirs}."
                )
        return None

    def _align(self, known: Mapping[str, bool]) -> None:
        """Find the common rows with every party, unless everybody knows them."""
        path = self.folder / "rows.safetensors"
        if path.is_file():
            strangers = [party for party, knows in known.items() if not knows]
            if not strangers:
                return
            if self._has_begun:
                raise ConfigError(
                    f"Party '{strangers[0]}' must have its run folder of this run. Got "
                    "one without the common rows."
                )
        aligner = self._new_aligner()
        n_rows, n_parties = self.table.n_rows, len(self.config.parties)
        who = plural(n_parties, "party", "parties")
        self.status.do(f"alignment: {plural(n_rows, 'row')} here, {who} asked")
        self._n_offers = 0
        replies = self._exchange(dict.fromkeys(self.config.parties, aligner.hello()))
        self._n_offers = None
        self._remember(replies)
        while replies:
            taken = {p: self._take(aligner, p, data) for p, data in replies.items()}
            said = {p: more for p, more in taken.items() if more is not None}
            replies = self._exchange(said) if said else {}
        finals = aligner.finish()
        self.hub.send({p: control.Align(data) for p, data in finals.items()})
        rows = aligner.rows
        self.status.do(
            f"alignment: {plural(len(rows), 'common row')} of your {n_rows:,}"
        )
        self.home.begin()
        write_state(path, State(named_rows(rows, n_rows), {}))
        self._rows = None

    def _exchange(self, said: Mapping[PartyId, bytes]) -> dict[PartyId, bytes]:
        """Exchange messages of the alignment, all but the last."""
        replies = self.hub.send({p: control.Align(data) for p, data in said.items()})
        for party, reply in replies.items():
            if not isinstance(reply, control.Align):
                self.hub.cut_off(party, "A party must make an offer. Got none.")
        return {party: reply.data for party, reply in replies.items()}

    def _take(self, aligner: Aligner, party: PartyId, message: bytes) -> bytes | None:
        """Take a party's message of the alignment; return the next one to it."""
        try:
            return aligner.take(party, message)
        except ProtocolError as error:
            self.hub.cut_off(party, str(error))

    def _remember(self, offers: Mapping[PartyId, bytes]) -> None:
        """Write down what parties offer, before they are told anything of it.

        Who breaks off and comes again with other ids could try them out on ours.
        """
        path = self.folder / "offers.safetensors"
        known: dict[str, list[str]] = {}
        if path.is_file():
            known = dict(read_state(path).values["offers"])
        for party, offer in offers.items():
            digest = hashlib.sha256(offer).hexdigest()
            known[party] = [*dict.fromkeys([*known.get(party, ()), digest])]
            if len(known[party]) > MOST_OFFERS:
                self.hub.cut_off(
                    party,
                    f"A party must offer its rows to a run, at most {MOST_OFFERS} "
                    "times in different ways. Got another offer; another run needs "
                    "another 'out'.",
                )
        write_state(path, State({}, {"offers": known}))

    def _new_aligner(self) -> Aligner:
        """Return the server's side of alignment, the same after a restart."""
        mode: Any = self.config.align
        secret = self.home.key("align")
        tell = functools.partial(self.status.do, note=False)
        return Aligner(mode, self._ids, self.table.n_rows, secret=secret, tell=tell)

    def _seed_labels(self) -> SeedLabels:
        """Return the rows of the seed at hand, once the common ones are known."""
        if self._rows is None or self._rows.seed != self.seed:
            table = self._table()
            blocks = data.find_blocks(table.dataset, self.settings.data)
            train, test = map(self._scratch.keep, self._split(table, blocks))
            problem = self._problem(table.dataset, train, test, blocks)
            self._rows = SeedLabels(self.seed, train, test, problem)
        return self._rows

    def _split(self, table: LabelTable, blocks: Blocks | None) -> tuple[Places, Places]:
        """Return training and test rows, as places in the common order."""
        if table.is_test is not None:
            if table.is_test.all():
                raise DataError(
                    "The rows that are marked for testing must leave a common row to "
                    f"train on. Got {plural(table.n_rows, 'common row')}, all of them "
                    "marked."
                )
            return np.flatnonzero(~table.is_test), np.flatnonzero(table.is_test)
        own = self.settings
        of_row = None if blocks is None else blocks.of_row
        how = (own.data, self.seed, own.keeps_order)
        return split_rows(table.dataset, *how, of_row)

    # -------------------------------------------------------------------------- running

    def run(self) -> RunRecord:
        """Wait for the parties and run every seed with them.

        Returns the record, as it is in the run folder.
        """
        seeds = self.config.seeds
        again = (self._place(seeds[-1]) / "numbers.json").is_file()
        is_over = (self.folder / FILE_NAME).is_file()
        for number, seed in enumerate(seeds, start=1):
            self.seed, self.resent = seed, 0
            self.status.begin_seed(seed, number, len(seeds))
            self._run_seed()
            self._finish()
            if not is_over:
                self._settle()
        if again:  # some may dial just to hear that all is over
            time.sleep(min(STAY_SECONDS, self.config.wait))
        if not is_over:
            self._record().write(self.folder)
        return RunRecord.read(self.folder)

    def _run_seed(self) -> None:
        """Run one seed, however often a party goes away, and write its numbers down."""
        path = self._place(self.seed) / "numbers.json"
        tries: Counter[Any] = Counter()  # how often a party was lost at a mark
        while not path.is_file():
            try:
                self.hub.wait(self.config.wait)
                write_json(path, self._run_once())
            except PartyLostError as lost:
                log.warning("%s", lost)
                self.hub.wait(self.config.wait)
                at = (*lost.parties, self._mark())
                tries[at] += 1
                if tries[at] == MAX_TRIES:
                    raise ProtocolError(
                        f"A run must get on with its parties. Got {MAX_TRIES} breaks "
                        f"at the same step, the last one: {lost}"
                    ) from None

    def _finish(self) -> None:
        """Have every party write its run down; those who did are on a list."""
        path = self._place(self.seed) / "finished.json"
        done: dict[str, Any] = read_json(path) if path.is_file() else {}
        self.hub.run_id = self._run_id()
        end = time.monotonic() + self.config.wait
        if len(done) < len(self.config.parties):
            prepare = self._seed_labels().message(self.config.tell_share)
        while missing := [p for p in self.config.parties if p not in done]:
            for party in set(missing) & set(self.hub.connected):
                with contextlib.suppress(PartyLostError):
                    done[party] = self._finish_one(party, prepare)
                    write_json(path, done)
            if time.monotonic() > end:
                raise PartyLostError(missing, "the run is over, but not for them")
            time.sleep(0.01)

    def _settle(self) -> None:
        """Put all bytes since the seed before, of whatever part, on this one's bill.

        Those of a process before this one are there already, if it came so far.
        """
        path = self._place(self.seed) / "numbers.json"
        numbers, now = read_json(path), self.hub.by_part()
        bill = numbers["communication"]
        wire = bill.setdefault("wire_bytes", {"up": 0, "down": 0})
        for (of, part, way), n_bytes in (now - self._settled).items():
            both = bill.setdefault(of, {}).setdefault(part, {"up": 0, "down": 0})
            both[way] += n_bytes
            wire[way] += n_bytes * (of == "frames")
        self._settled = now
        write_json(path, numbers)

    def _finish_one(self, party: PartyId, prepare: control.Prepare) -> dict[str, Any]:
        """Tell one party that the run is over; one that came anew learns of it all.

        Returns what it reveals.
        """
        tag = read_state(self._path).values["tag"]
        known = self._prepared.pop(party, None)
        greeted = None if known is None else {party: known}
        for message in (
            *((self._welcome(), prepare) if known is None else ()),
            control.Restore(tag),
            control.Finish(digest_of(self._network(self.seed))),
        ):
            reply = self.hub.send({party: message}, greeted)[party]
        return _known_form(reply.revealed)

    def _record(self) -> RunRecord:
        """Put the runs of all seeds together, with what the parties reveal of them."""
        config, runs = self.config, []
        for seed in config.seeds:
            numbers = read_json(self._place(seed) / "numbers.json")
            told = read_json(self._place(seed) / "finished.json")
            models = {p: one.pop("model", None) for p, one in told.items()}
            features = {p: told[p] if "kept" in told[p] else None for p in told}
            counts = {p: told[p] for p in told if "n_kept" in told[p]}
            runs.append(
                numbers | {"features": features, "counts": counts, "models": models}
            )
        known = [
            {p: names for p, names in run["features"].items() if names is not None}
            for run in runs
        ]
        problem = self._seed_labels().problem
        first_line = header(self.header, problem, len(config.parties)) | {
            "side": "server",
            "run": self._run_id().hex(),
            "networks": NETWORKS,
        }
        return RunRecord(first_line, runs, "complete", consensus=consensus(known))

    def _welcome(self) -> control.Welcome:
        config = self.config
        run = self.hub.run_id.hex()
        return control.Welcome(
            run,
            config.seeds,
            config.method,
            self.settings.shared(),
            config.parties,
            config.align,
        )

    def _table(self) -> LabelTable:
        """Return the labels of the common rows, once these are known."""
        rows = read_state(self.folder / "rows.safetensors").tensors.get("rows")
        if rows is None:  # all, as they stand
            return self.table
        return self.table.take(rows.numpy()).kept(self._scratch)

    def _problem(
        self, dataset: Dataset, train: Places, test: Places, blocks: Blocks | None
    ) -> Problem:
        """Return the labels of the run at hand."""
        own = self.settings
        rows = data.label_rows(dataset, train, test, blocks)
        found = data.labels_alone(dataset, rows, own.data, own.labels)
        keep = self._scratch.keep
        return dataclasses.replace(
            found, y_train=keep(found.y_train), y_test=keep(found.y_test)
        )

    def _billed(self, line: BillLine) -> None:
        """Show what was billed; the status counts no bytes of its own."""
        sent = {line.direction: line.payload_bytes[0]}
        self.status.carried(line.party, **sent, rounds=0, stage=line.stage)

    def _carried(self, party: PartyId, request: Any, n_up: int, n_down: int) -> None:
        """Show an exchange: its bytes on the wire, and a round if it is billed."""
        stage = request.stage if isinstance(request, messages.Embed) else None
        if isinstance(request, control.Align) and self._n_offers is not None:
            self._n_offers += 1
            of = len(self.config.parties)
            self.status.do(f"alignment: {self._n_offers} of {of} parties have answered")
        wire = {"wire_up": n_up, "wire_down": n_down}
        rounds = int(messages.is_billed(request))
        self.status.carried(party, **wire, rounds=rounds, stage=stage)

    def _ask_all(self, message: Any) -> dict[str, control.Agreed]:
        """Have every party do something around the run."""
        return self.hub.send(dict.fromkeys(self.config.parties, message))

    def _mark(self) -> str | None:
        """Return the mark of the last checkpoint, if there is one."""
        if not self._path.is_file():
            return None
        return str(read_state(self._path).values["tag"])

    def _place(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.folder / f"seed-{seed}"

    def _network(self, seed: int) -> Path:
        """Return the folder of the fusion network of one seed."""
        return self.folder / NETWORKS / f"seed-{seed}" / "server"

    @property
    def _path(self) -> Path:
        return self._place(self.seed) / CHECKPOINT

    @property
    def _has_begun(self) -> bool:
        """Tell whether the run folder holds a checkpoint, of whatever seed."""
        return any(self.folder.glob(f"seed-*/{CHECKPOINT}"))

    def _run_id(self) -> bytes:
        """Return the run's own number, the same after a restart.

        Until rows are aligned nothing has begun, and another config is another run.
        """
        path, config = self.folder / "run.safetensors", _plain(self.config)
        is_aligned = (self.folder / "rows.safetensors").is_file()
        known = read_state(path) if path.is_file() else None
        if known is None or (known.values["config"] != config and not is_aligned):
            number = torch.tensor(list(uuid.uuid4().bytes), dtype=torch.uint8)
            known = State({"run": number}, {"config": config})
            write_state(path, known)
        before = known.values["config"]
        if other := [name for name in config if before.get(name) != config[name]]:
            raise ConfigError(
                f"The run in '{self.folder}' must go on with the config it began with. "
                f"Got another '{other[0]}'; another run needs another 'out'."
            )
        return bytes(known.tensors["run"].tolist())

    def _run_once(self) -> dict[str, Any]:
        """Agree with everybody where to go on, and run to the end."""
        self.hub.run_id = self._run_id()
        config, seed = self.config, self.seed
        build = Builder(self.settings, [seed], config.device)
        self._prepared = self.hub.hellos
        known = self._ask_all(self._welcome())
        self._align({p: bool(a.revealed.get("aligned")) for p, a in known.items()})
        rows = self._seed_labels()
        problem = rows.problem
        self._ask_all(rows.message(self.config.tell_share))
        data.release_unused()
        release_freed_memory()
        saved = read_state(self._path) if self._path.is_file() else None
        size = self.settings.net.embedding_size
        counts = (len(rows.train), len(rows.test))
        labels = build.server_labels([problem])
        rules = ReplyRules(counts, size, build.dtype, seed, labels.blocks, self._offer)
        self.hub.rules = dataclasses.replace(
            self.hub.rules, check=rules.complaint, due=rules.most_bytes
        )
        ledger = Ledger(1, watch=self._billed)
        server = rules.server = Parties(self.hub, config.parties, ledger)
        fusion = build.fusion_network(  # as wide as at the start
            sum(server.sizes.values()), n_outputs(problem.task, problem.n_classes)
        )
        self._ask_all(control.Restore(None if saved is None else saved.values["tag"]))
        if saved is not None:
            self.resent = max(self.resent, saved.values["resent"])
        y_test = build.labels([problem.y_test], problem.task)
        recorder = Recorder(
            [problem],
            labels.y,
            y_test,
            self.status.observe,
            self.config.evaluation,
            self.settings.config.bits,
            self.status.scored,
        )
        recorder.attach(server, ())
        torch.manual_seed(seed)
        keeper = Checkpoints(
            self._path,
            config.save_every,
            server,
            recorder,
            self._save_parties,
            saved,
            on_step=self.status.stepped,
            resent=lambda: self.resent,
        )
        method = methods.get(config.method)
        settings = clamp_batch(self.settings.config, len(rows.train))
        try:
            fusion = method.run(server, fusion, labels, settings, recorder, keeper)
        except PartyLostError:
            kept = read_state(self._path) if self._path.is_file() else None
            self.resent += _undone(ledger, kept)
            raise
        FittedServer.of(
            problem,
            fusion.replica(0),
            self.settings.net.fusion_net,
            {name: own[0].tolist() for name, own in server.components.items()},
            constants={name: own[0] for name, own in server.constants().items()},
            means={
                name: own[0].to(build.dtype) for name, own in recorder.means.items()
            },
        ).save(self._network(seed))
        numbers = server_numbers(
            seed, 0, server, recorder.recorded(0), resent_bytes=self.resent
        )
        return numbers | {"bill": ledger.lines(0)}

    def _save_parties(self, tag: str) -> None:
        self._ask_all(control.Save(tag))


def _known_form(revealed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a party reveals of its selection; anything else is nothing.

    The digest of its network is there in any case.
    """
    model = revealed.get("model")
    if not isinstance(model, str) or not re.fullmatch("[0-9a-f]{64}", model):
        raise ProtocolError(
            "A party must name a digest of its network at the end. Got none."
        )
    revealed = {name: value for name, value in revealed.items() if name != "model"}
    kinds = {
        ("kept", "removed"): lambda v: (
            isinstance(v, list) and all(isinstance(name, str) for name in v)
        ),
        ("n_kept", "n_removed"): lambda v: type(v) is int and v >= 0,
    }
    for names, fits in kinds.items():
        if revealed.keys() == set(names) and all(map(fits, revealed.values())):
            return {"model": model, **revealed}
    return {"model": model}


def _undone(ledger: Ledger, kept: State | None) -> int:
    """Return the bytes sent since the checkpoint that is taken up again."""
    now = ledger.payload_bytes(0)
    if kept is None:
        return now
    then = Ledger(1)
    then.restore(kept.values["server"]["ledger"])
    return max(0, now - then.payload_bytes(0))


def _plain(config: ServerConfig) -> dict[str, Any]:
    """Return what a run depends on, for comparison."""
    values = dataclasses.asdict(config)
    elsewhere = ("listen", "status", "wait", "silence", "most_ids")
    for name in (*elsewhere, "certificate", "key", "ca", "out"):
        values.pop(name)
    plain: dict[str, Any] = json.loads(json.dumps(values))  # as it is read back
    return plain
