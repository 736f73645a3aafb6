"""The server as a process of its own: admits parties and runs a method with them.

The algorithm is the one the simulator runs (:mod:`lessvfl.algorithm`). This module
decides who takes part and which rows are common, keeps checkpoints, and after a party
was lost goes on from the last one with everybody. Several seeds are run one after the
other with the same parties and the same common rows.

Its run folder holds ``record.jsonl`` once all seeds are over, and for each of them
``networks/seed-<seed>/server/`` with the fusion network, and ``seed-<seed>/``: the
checkpoint, ``numbers.json`` of the run, and ``finished.json`` with what every party has
revealed of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lessvfl import data
from lessvfl.core.device import release_freed_memory, resolve_device
from lessvfl.core.lifted import find_factory
from lessvfl.core.state import join_state
from lessvfl.errors import ConfigError, PartyLostError, ProtocolError
from lessvfl.remote.align.keys import SECRET_BYTES
from lessvfl.remote.align.messages import most_offered
from lessvfl.remote.checkpoint import Checkpoints, State, read_state
from lessvfl.remote.config import ServerConfig
from lessvfl.remote.home import Home, versions
from lessvfl.remote.own_columns import training_party
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.price import LabelBudget
from lessvfl.remote.server_folder import (
    CHECKPOINT,
    SeedFiles,
    known_form,
    run_number,
)
from lessvfl.remote.server_rows import ServerRows
from lessvfl.remote.tables import (
    NOT_THE_SERVERS,
    LabelTable,
    SeedLabels,
    resolve_settings,
    tells_labels,
)
from lessvfl.run import ensemble, verdicts
from lessvfl.run.accounting import unpriced
from lessvfl.run.build import Builder
from lessvfl.run.fitted import NETWORKS, FittedServer, digest_of
from lessvfl.run.numbers import (
    bare_header,
    header,
    privacy,
)
from lessvfl.run.record import FILE_NAME, RunRecord, read_json, write_json
from lessvfl.run.recorder import Recorder
from lessvfl.run.session import run_seed
from lessvfl.status import Status
from lessvfl.terms import PartyId
from lessvfl.wire import control, messages
from lessvfl.wire.due import Bound, replies
from lessvfl.wire.hub import Hub, say_awaited
from lessvfl.wire.ledger import BillLine, Ledger
from lessvfl.wire.line import HubRules, LocalParty
from lessvfl.wire.parties import Parties
from lessvfl.wire.replies import ReplyRules

MAX_TRIES = 100  # times that one party may be lost without a new checkpoint
TELLS_COUNTS = (
    "Test rows are drawn class by class: which these are tells every party how many "
    "rows of each class are for testing and for training, and who knows most labels "
    "may work out others. With split=random they tell nothing."
)
STAY_SECONDS = 5.0  # to answer parties that dial after a run that was over already

log = logging.getLogger(__name__)


class ServerProcess:
    """The server's side of a run of every seed, over a hub that listens already.

    With `resume` it continues the run in its run folder.
    """

    def __init__(
        self,
        config: ServerConfig,
        table: LabelTable,
        hub: Hub,
        status: Status,
        resume: bool = False,
    ) -> None:
        self.config, self.parties = config, config.everyone
        self.hub = hub
        self.status = status
        self.settings = resolve_settings(config, table)
        self.seeds = data.fold_seeds(config.seeds, self.settings.data.folds)
        table = table.settled(self.settings, config.align)
        self.labels = LabelBudget(config, self.settings, table)
        randomised = self.labels.randomise()
        self.table = table = dataclasses.replace(table, dataset=randomised)
        for note in table.dataset.notes:
            log.info("%s", note)
        if tells_labels(table.dataset, self.settings):
            log.warning(TELLS_COUNTS)
        self.device = resolve_device(config.device)
        self.header = bare_header(
            self.settings,
            table.dataset.name,
            config.device,
            {},
            parties=list(config.everyone),
        )
        for name in NOT_THE_SERVERS:
            self.header["config"].pop(name, None)
        code = self.settings.net.fusion_net
        if code is not None:
            find_factory(code)
        self.home = Home(Path(config.out), table.facts(config, code))
        self.folder = self.home.folder
        self.rows = ServerRows(config, self.settings, table, self.home, status)
        self.resent = 0  # bytes of the seed at hand that were sent again
        self._settled = hub.bytes.by_part()  # billed to earlier seeds
        # The greeting of every party that was told its rows over this connection.
        self._prepared: dict[PartyId, control.Hello] = {}
        self.party_here: PartyProcess | None = None  # that its own columns are
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            if self._has_begun and not resume:
                raise ConfigError(
                    f"The run folder '{self.folder}' holds a run that began: --resume "
                    "must be given to go on with it, or another 'out' to begin anew."
                )
            self._goes_on = self.labels.has_charged(self.run_name)  # after a death
            price = self.labels.price(self.run_name)
            if price is not None:
                status.do(price.words("label"))
                if doubt := price.doubt(table.n_rows):
                    log.warning("%s", doubt)
            self.rows.new_aligner()  # fails now if the table cannot be aligned
            if config.columns is not None:
                about = (config.columns, self.settings, self.seeds)
                self.party_here = training_party(config, *about)
            on_error.pop_all()
        self._offer = most_offered(config.align, table.n_rows, config.most_ids)
        offer: dict[type, Bound] = {control.Align: Bound(self._offer)}
        rules = HubRules(
            admit=self._objection,
            due=lambda party, request: replies(request, offer),
            came=status.connect,
            went=status.lose,
            carried=self._carried,
            refused=lambda who, why: status.refused(why.split(".")[0][:80]),
        )
        hub.follow(rules)
        if self.party_here is not None:
            hub.join(
                LocalParty(
                    self.party_here.hello(), self.party_here.handle, self.party_here.due
                )
            )

    def close(self) -> None:
        """Let go of the run folder."""
        self.home.close()
        if self.party_here is not None:
            self.party_here.close()

    # ------------------------------------------------------------------------ who joins

    def _objection(self, hello: control.Hello) -> str | None:
        """Return why the party of this greeting cannot take part; None: it can."""
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

    # -------------------------------------------------------------------------- running

    def run(self) -> RunRecord:
        """Wait for the parties and run every seed with them.

        Returns the record, as it is in the run folder.
        """
        seeds = [SeedFiles(self.folder, seed) for seed in self.seeds]
        again = seeds[-1].numbers.is_file()
        is_over = (self.folder / FILE_NAME).is_file()
        for number, files in enumerate(seeds, start=1):
            self.resent = 0
            self.status.begin_seed(files.seed, number, len(seeds))
            self._run_seed(files)
            self._finish(files)
            if not is_over:
                before, self._settled = self._settled, self.hub.bytes.by_part()
                files.settle(self._settled - before)
        if again:  # some parties may dial only to learn that all is over
            time.sleep(min(STAY_SECONDS, self.config.wait))
        if not is_over:
            self._record(seeds).write(self.folder)
        return RunRecord.read(self.folder)

    def _run_seed(self, files: SeedFiles) -> None:
        """Run one seed, however often a party is lost, and write its numbers."""
        tries: Counter[Any] = Counter()  # how often a party was lost at a checkpoint
        if self._goes_on and not files.numbers.is_file():
            self._goes_on = False
            self._charge_again(files.seed)
        while not files.numbers.is_file():
            try:
                self.hub.wait(self.config.wait)
                write_json(files.numbers, self._run_once(files))
            except PartyLostError as lost:
                log.warning("%s", lost)
                self.hub.wait(self.config.wait)
                self._charge_again(files.seed)
                saved = files.saved()
                at = (*lost.parties, None if saved is None else saved.values["tag"])
                tries[at] += 1
                if tries[at] == MAX_TRIES:
                    raise ProtocolError(
                        f"A run must get on with its parties. Got {MAX_TRIES} breaks "
                        f"at the same step, the last one: {lost}"
                    ) from None

    def _charge_again(self, seed: int) -> None:
        """Pay for the steps since a checkpoint, which come again."""
        if not self.rows.are_known:  # they were being aligned: there was no step
            return
        n_train = len(self.rows.of_seed(seed).train)
        self.labels.charge_again(self.rows.common, n_train)

    def _finish(self, files: SeedFiles) -> None:
        """Have every party save a finished seed; write down which have done so."""
        path = files.finished
        done: dict[str, Any] = read_json(path) if path.is_file() else {}
        self.hub.run_id = self._run_id()
        end, awaited = time.monotonic() + self.config.wait, set[PartyId]()
        if len(done) < len(self.parties):
            prepare = self.rows.of_seed(files.seed).message(self.config.tell_share)
        while missing := [p for p in self.parties if p not in done]:
            for party in set(missing) & set(self.hub.connected):
                with contextlib.suppress(PartyLostError):
                    done[party] = self._finish_one(party, files, prepare)
                    write_json(path, done)
            if time.monotonic() > end:
                raise PartyLostError(missing, "the run is over, but not for them")
            away = set(missing) - done.keys() - {*self.hub.connected}
            if away - awaited:
                say_awaited(sorted(away), end - time.monotonic())
                awaited |= away
            time.sleep(0.01)

    def _finish_one(
        self, party: PartyId, files: SeedFiles, prepare: control.Prepare
    ) -> dict[str, Any]:
        """Tell one party that the run is over; return what it reveals.

        One that has reconnected is told everything again.
        """
        tag = read_state(files.checkpoint).values["tag"]
        known = self._prepared.pop(party, None)
        greeted = None if known is None else {party: known}
        for message in (
            *((self._welcome(), prepare) if known is None else ()),
            control.Restore(tag),
            control.Finish(digest_of(files.network)),
        ):
            reply = self.hub.send({party: message}, greeted)[party]
        return known_form(reply.revealed)

    def _record(self, seeds: Sequence[SeedFiles]) -> RunRecord:
        """Return the record of all seeds, with what the parties reveal of each."""
        runs = [files.whole_run() for files in seeds]
        problem = self.rows.of_seed(seeds[-1].seed).problem
        first_line = header(self.header, problem, len(self.parties)) | {
            "side": "server",
            "run": self._run_id().hex(),
            "networks": NETWORKS,
        }
        if self.config.columns is not None:
            first_line["own"] = self.config.columns.name
        together = None
        if self.settings.is_ensemble(self.seeds):
            outputs = [files.read_tested() for files in seeds]
            together = ensemble.scores(problem, self.seeds, outputs)
        agreed = verdicts.agreed(runs)
        return RunRecord(first_line, runs, "complete", "", agreed, together)

    def _welcome(self) -> control.Welcome:
        config = self.config
        run = self.hub.run_id.hex()
        return control.Welcome(
            run,
            tuple(self.seeds),
            config.method,
            self.settings.shared(),
            self.parties,
            config.align,
        )

    def _billed(self, line: BillLine) -> None:
        """Show what was billed; the status counts no bytes of its own."""
        sent = {line.direction: line.payload_bytes}
        self.status.carried(line.party, **sent, rounds=0, stage=line.stage)

    def _carried(self, party: PartyId, request: Any, n_up: int, n_down: int) -> None:
        """Show an exchange: its bytes on the wire, and a round if it is billed."""
        stage = request.stage if isinstance(request, messages.Embed) else None
        if isinstance(request, control.Align):
            self.rows.answered()
        wire = {"wire_up": n_up, "wire_down": n_down}
        rounds = int(messages.is_billed(request))
        self.status.carried(party, **wire, rounds=rounds, stage=stage)

    def _ask_all(self, message: Any) -> dict[str, control.Agreed]:
        """Send every party a message that is not part of the method."""
        return self.hub.send(dict.fromkeys(self.parties, message))

    @property
    def _has_begun(self) -> bool:
        """Tell whether the run folder holds a checkpoint, of whatever seed."""
        return any(self.folder.glob(f"seed-*/{CHECKPOINT}"))

    def _run_id(self) -> bytes:
        """Return the run's own number; before rows are aligned nothing has begun."""
        return run_number(self.folder, self.config, self.rows.are_known)

    @property
    def run_name(self) -> str:
        """Return what the run is called beside other runs of this label holder."""
        return self.home.key("run").hex()[:16]

    def private_seed(self, seed: int) -> int:
        """Return the seed of its network and its noise, which no party can know."""
        if self.config.seed_private == "shared":
            return seed
        return self.home.seed("private", seed)

    def _agree(self, seed: int) -> SeedLabels:
        """Tell every party what is run, and which rows are for what."""
        self.hub.run_id = self._run_id()
        self._prepared = self.hub.hellos
        known = self._ask_all(self._welcome())
        aligned = {p: bool(a.revealed.get("aligned")) for p, a in known.items()}
        self.rows.find(self.hub, aligned, self._has_begun)
        self.rows.check(self.seeds)  # before any of them is told
        rows = self.rows.of_seed(seed)
        self.labels.charge(self.run_name, self.rows.common)
        self._ask_all(rows.message(self.config.tell_share))
        data.release_unused()
        release_freed_memory()
        return rows

    def _describe(
        self, rows: SeedLabels, build: Builder, blocks: Tensor | None
    ) -> Parties:
        """Describe the parties, and check their replies by the rules of this seed."""
        counts = (len(rows.train), len(rows.test))
        size, seed = self.settings.net.embedding_size, rows.seed
        rules = ReplyRules(counts, size, build.dtype, seed, blocks, self._offer)
        self.hub.rules = dataclasses.replace(self.hub.rules, due=rules.due)
        rules.server = Parties(self.hub, self.parties, Ledger(), self._billed)
        return rules.server

    def _run_once(self, files: SeedFiles) -> dict[str, Any]:
        """Agree with every party where to go on, and run to the end."""
        config, settings, rows = self.config, self.settings, self._agree(files.seed)
        private = self.private_seed(files.seed)
        build = Builder(settings, files.seed, config.device, private=private)
        saved, problem = files.saved(), rows.problem
        labels = build.server_labels(problem)
        if labels.defence is not None:
            # Noise anew after a break, which is paid for: by the same one, gradients
            # that stay equal for other embeddings would tell labels.
            noise = self.home.seed("noise", secrets.token_hex(SECRET_BYTES))
            labels = dataclasses.replace(labels, private=noise)
        server = self._describe(rows, build, labels.blocks)
        self._ask_all(control.Restore(None if saved is None else saved.values["tag"]))
        if saved is not None:
            self.resent = max(self.resent, saved.values["resent"])
        recorder = Recorder(
            problem,
            labels.y,
            build.labels(problem.y_test, problem.task),
            self.status.observe,
            config.evaluation,
            server,
            bits=settings.config.bits,
            scored=self.status.scored,
            tested=files.keep_tested if settings.is_ensemble(self.seeds) else None,
        )

        def checkpoints() -> Checkpoints:
            return Checkpoints(
                files.checkpoint,
                config.save_every,
                server,
                recorder,
                lambda tag: self._ask_all(control.Save(tag)),
                saved,
                on_step=self.status.stepped,
                resent=lambda: self.resent,
            )

        try:
            fusion, numbers = run_seed(
                build, labels, recorder, checkpoints, resent_bytes=lambda: self.resent
            )
        except PartyLostError:
            self.resent += _undone(server.ledger, files.saved())
            raise
        means = recorder.state.means
        FittedServer.of(
            problem,
            fusion,
            settings.net.fusion_net,
            {name: kept.tolist() for name, kept in server.components.items()},
            constants=server.constants,
            means={n: mean.to(build.dtype) for n, mean in means.items()},
        ).save(files.network)
        all_runs = self.labels.spent(self.rows.common)
        n_classes = len(self.table.dataset.label_names)
        without = unpriced(settings, n_classes, config.tell_share)
        spent = privacy(self.labels.spend(), {}, without, all_runs)
        return numbers | {"bill": server.ledger.lines()} | spent


def _undone(ledger: Ledger, kept: State | None) -> int:
    """Return the bytes sent since the checkpoint that the run goes back to."""
    now = ledger.payload_bytes
    if kept is None:
        return now
    then = join_state(Ledger, kept.tensors, kept.values["parties"]["ledger"])
    return max(0, now - then.payload_bytes)
