"""A party as a process of its own: joins a run, answers requests, keeps its state.

What leaves this process are replies (``wire/messages.py``) and what the operator
allows to reveal. Features kept, networks and checkpoints stay in its run folder:
``record.jsonl`` once all seeds are over, with what they recommend, and for each of them
``networks/seed-<seed>/partyN/`` with the network, and ``seed-<seed>/`` with checkpoints
and ``numbers.json``. ``over.json`` says that the server knows that it is over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl import data, methods
from lessvfl.core.device import release_freed_memory, resolve_device
from lessvfl.core.party_data import cut_columns
from lessvfl.core.plans import PART, TrainPlan
from lessvfl.data import Scratch, Table, are_all
from lessvfl.errors import PolicyError, ProtocolError
from lessvfl.remote.align import Ids, PartyAligner
from lessvfl.remote.align.messages import most_asked
from lessvfl.remote.align.psi import POINT_BYTES
from lessvfl.remote.checkpoint import State, named_rows, read_state, write_state
from lessvfl.remote.config import PartyConfig
from lessvfl.remote.home import Home, versions
from lessvfl.remote.policy import PolicyChecker, planned, widest
from lessvfl.remote.requests import Prepared, SeedRows, in_a_sentence
from lessvfl.remote.seed import SERVER, SeedRun, encode, party_record
from lessvfl.remote.session import (
    Aligned,
    Aligning,
    AlignmentFile,
    Connected,
    Waiting,
    answer_alignment,
)
from lessvfl.remote.spent import RunBudget, RunPlan
from lessvfl.remote.tables import OwnTable, open_table
from lessvfl.run.accounting import Extent, Spend, of_columns, with_noise
from lessvfl.run.build import Builder, check_pinned, clamp_batch, cut_stored
from lessvfl.run.fitted import NETWORKS
from lessvfl.run.profiles import Settings
from lessvfl.run.record import FILE_NAME, alike_words, read_json, write_json
from lessvfl.status import Status
from lessvfl.terms import plural
from lessvfl.wire import control, messages
from lessvfl.wire.dial import Listener, Server, serve
from lessvfl.wire.due import ENDS, Bound, Due, of_training, query, requests

log = logging.getLogger(__name__)

OVER = "over.json"  # the server knows that this party has finished
OFFERED = "offered.safetensors"  # rows of the table, where some are withheld
PREPARED_BYTES = 5  # for each common row: whether it is for testing, its block
SHOWS = "this run shows up to %d values about a row of %d encoded columns"


@dataclass(frozen=True)
class Agreement:
    """What is run: the server's message, and its settings, which the policy allows."""

    message: control.Welcome
    settings: Settings

    def digest(self) -> str:
        """Return a digest of all that the server says of the run."""
        text = json.dumps(dataclasses.asdict(self.message), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Serving(Aligned[Agreement, Table]):
    """A seed is being run on the common rows."""

    run: SeedRun


class PartyProcess:
    """A party's side of a run: ``handle(message) -> reply``.

    `table` has its rows in its own order, `ids` whom they are about; `status` is told
    how far the run is. The run folder stays locked until :meth:`close`.
    """

    def __init__(
        self,
        name: str,
        config: PartyConfig,
        table: Table,
        ids: NDArray[Any] | None = None,
        status: Status | None = None,
    ) -> None:
        self.name = name
        self.status = status or Status("", "", "", [SERVER], side=name)
        self.config = config
        self.table = OwnTable.of(name, config, table)
        facts = self.table.facts(table, ids)
        self.home = Home(Path(config.out), facts)
        self.folder = self.home.folder
        self.checker = PolicyChecker(name, config.policy)
        self._scratch = Scratch(self.folder)
        self.state: Waiting | Connected[Agreement] = Waiting()
        self._ready: dict[int, Prepared] = {}  # of one seed, which may come again
        self._run_told = ""  # the run that the log has announced
        self._is_checked = False  # for equal rows
        self._seed_shown = (0, 0)  # which of how many
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            kept: Any = self._scratch.keep(ids)
            self.ids = None if kept is None else Ids(kept, config.id or "id")
            self._offered: NDArray[np.int64] | None = None  # rows; none: all
            run = self.home.key("spent").hex()[:16]
            self.budget = RunBudget(self.folder, self.checker, self.ids, run)
            self._new_aligner()  # fails now if the ids cannot be aligned
            encoding = self.table.encoding(self.table.whole.look)
            self.flagged = encoding.flagged
            self._n_inputs = len(encoding.groups)
            check_pinned(config.must_keep, encoding.features, f"party '{name}'")
            on_error.pop_all()

    @classmethod
    def load(cls, name: str, config: PartyConfig, status: Status) -> PartyProcess:
        """Return a party on its own table, which is in memory or on disk."""
        return cls(name, config, *open_table(config), status)

    def serve(self, server: Server) -> None:
        """Answer the server until it says that the run is over."""
        serve(
            server,
            self.hello(),
            self.handle,
            patience=self.config.wait,
            is_over=lambda: self.has_finished,
            due=self.due,
            listener=self.listener(),
        )
        write_json(self.folder / OVER, {"over": True}, mode=0o600)

    def due(self) -> Due:
        """Return which messages a server may send now, each with its bounds."""
        at, policy, n_rows = self.state, self.config.policy, self.table.whole.n_rows
        is_first = not isinstance(at, Aligning)
        most_ids = policy.align_ids * n_rows
        n_bytes = most_asked(self.config.align, n_rows, most_ids, is_first)
        bounds = {
            control.Align: Bound(n_bytes),
            control.Prepare: Bound(PREPARED_BYTES * n_rows + ENDS),
        }
        match at:
            case Serving(run=run):
                bounds[messages.Descend] = Bound(run.gradient_bytes)
                if run.has_queries:
                    bounds[messages.Query] = query(n_rows, policy.memory)
                now = requests("in a seed", bounds)
            case Aligned():
                now = requests("between seeds", bounds)
            case Connected():
                now = requests("aligning a run", bounds)
            case _:
                now = requests("before a run", {})
        return of_training(now, self.config.server)

    def close(self) -> None:
        """Let go of the run folder."""
        self.home.close()

    @property
    def has_finished(self) -> bool:
        """Tell whether the run folder holds a run whose seeds are all over."""
        return (self.folder / FILE_NAME).is_file()

    @property
    def is_over(self) -> bool:
        """Tell whether the server knows that, too, and needs no word any more."""
        return self.has_finished and (self.folder / OVER).is_file()

    def hello(self) -> control.Hello:
        """Return how this party greets."""
        device = resolve_device(self.config.device).type
        return control.Hello(self.name, self.config.threads, device, versions())

    def listener(self) -> Listener:
        """Return callbacks that show the connection in the status."""
        status = self.status

        def carried(up: int, down: int) -> None:
            status.carried(SERVER, wire_up=up, wire_down=down, rounds=0)

        return Listener(
            lambda: status.connect(SERVER), lambda: status.lose(SERVER), carried
        )

    def handle(self, message: Any) -> Any:
        """Answer one message of the server's; every message costs a round."""
        self.budget.spend_round()
        self.status.allow(*self.budget.left())
        with in_a_sentence(self.name):
            return self._handle(message)

    def _handle(self, message: Any) -> control.Align | control.Agreed | messages.Reply:
        match message:
            case control.Welcome():
                return control.Agreed({"aligned": self._welcomed(message)})
            case control.Align(sent):
                return self._align(sent)
            case control.Prepare():
                self._prepare(message)
                return control.Agreed()
        at = self.state
        if not isinstance(at, Serving):
            raise self._too_early("its rows")
        match message:
            case control.Save(tag):
                at.run.save(tag)
                return control.Agreed()
            case control.Restore(tag):
                data.release_unused()
                release_freed_memory()  # of preparing, and the message that told rows
                run = SeedRun(at.run.prepared, self.budget, self.status, tag)
                self.state = dataclasses.replace(at, run=run)
                return control.Agreed()
            case control.Finish(model):
                return control.Agreed(self._finish(at, model))
        return at.run.handle(message)

    def _too_early(self, what: str) -> ProtocolError:
        sentence = (
            f"Party '{self.name}' must be told {what} first. Got a later message."
        )
        return ProtocolError.told(sentence)

    # ------------------------------------------------------------- who, and which rows

    def _welcomed(self, message: control.Welcome) -> bool:
        """Begin a session; return whether the run's common rows are known already."""
        self.state = Waiting()
        settings = self.checker.settings(message, self._n_inputs)
        agreed = Agreement(message, settings)
        plan, known = (
            self._plan(agreed, self.table.whole.n_rows),
            self._file(agreed).read(),
        )
        if not known.values["heard"]:
            self._choose_offered(plan)
        self._offered = self._offered_before()
        price = self.budget.plan(plan, self._offered, self.has_finished)
        if self._run_told != message.run:
            self._run_told = message.run
            log.info("takes part in a run of method %s", message.method)
            n_values = math.ceil(plan.amounts().values)
            log.info(SHOWS, n_values, self._n_inputs)
            if price is not None:
                self.status.do(price.words("row"))
                if doubt := price.doubt(self.table.whole.n_rows):
                    log.warning("%s", doubt)
        self.status.begin_run(message.method)
        is_over: bool = known.values["is_over"]
        if is_over:
            rows, whole = self._common(agreed), self.table.whole
            self.state = Aligned(agreed, whole if rows is None else whole.take(rows))
        else:
            self.state = Connected(agreed)
        return is_over

    def _common(self, agreed: Agreement) -> NDArray[np.int64] | None:
        """Return the common rows in their order; None: all, as they stand."""
        rows = self._file(agreed).read().tensors.get("rows")
        return None if rows is None else rows.numpy()

    def _choose_offered(self, plan: RunPlan) -> None:
        """Save which rows are offered, where those that are spent are withheld.

        Where too few would be left all are, and the run is refused.
        """
        path, n_rows = self.folder / OFFERED, self.table.whole.n_rows
        path.unlink(missing_ok=True)
        if self.config.policy.withhold_exhausted:
            rows = self.budget.spared(plan, n_rows)
            if len(rows) >= self.config.policy.min_rows:
                write_state(path, State(named_rows(rows, n_rows), {}))
                if n_withheld := n_rows - len(rows):
                    self.status.do(f"{plural(n_withheld, 'row')} withheld: spent")

    def _offered_before(self) -> NDArray[np.int64] | None:
        """Return the rows that are offered; None: all of them."""
        path = self.folder / OFFERED
        rows = read_state(path).tensors.get("rows") if path.is_file() else None
        return None if rows is None else rows.numpy()

    def _plan(self, agreed: Agreement, n_rows: int) -> RunPlan:
        """Return what the agreed run may tell of a row, with `n_rows` common rows."""
        settings, message = agreed.settings, agreed.message
        how = (len(message.parties), self.config.policy.evaluation)
        size = settings.net.components(self._n_inputs)
        n_values = planned(settings, size, *how, n_rows)
        spend = self._priced(agreed, n_rows)[1]
        return RunPlan(n_values, len(message.seeds), widest(settings, *how), spend)

    def _priced(self, agreed: Agreement, n_rows: int) -> tuple[Settings, Spend | None]:
        """Return its settings in a run with so many rows, and what that spends of each.

        The noise is as much as its epsilon asks for.
        """
        policy, welcome = self.config.policy, agreed.message
        sizes = (len(welcome.parties), policy.evaluation, len(welcome.seeds))
        extent = Extent(*sizes, policy.delta, n_rows)
        settings = with_noise(self.table.settings(agreed.settings), extent)
        return settings, of_columns(settings, extent)

    def _align(self, message: bytes) -> control.Align | control.Agreed:
        """Answer the label holder's messages; take the common order from the last.

        After a break the same messages get the same answers, and others get none.
        """
        at = self.state
        if isinstance(at, Waiting):
            raise self._too_early("what is run")
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
        whole, n_rows = self.table.whole, self.table.whole.n_rows
        if self._offered is not None:
            rows = self._offered[rows]
        n_common = plural(len(rows), "common row")
        self.status.do(f"alignment: {n_common} of your {n_rows:,}")
        self.home.begin()
        file = self._file(at.opening)
        file.write(file.read().values["heard"], named_rows(rows, n_rows), True)
        table = whole if are_all(rows, n_rows) else whole.take(rows)
        self.state = Aligned(at.opening, table)
        return control.Agreed()

    @contextlib.contextmanager
    def _guard(self, agreed: Agreement, n_heard: int, message: bytes) -> Iterator[None]:
        """Allow the messages of one alignment and no others."""
        if n_heard == 0:
            self.status.do("alignment: answering the server")
        file = self._file(agreed)
        heard: list[str] = file.read().values["heard"]
        digest = hashlib.sha256(message).hexdigest()
        if heard[n_heard : n_heard + 1] not in ([], [digest]):
            raise PolicyError(
                f"Party '{self.name}' aligns its rows once a run. Got another "
                "alignment."
            )
        is_new = n_heard == len(heard)
        if is_new and n_heard > 0:  # first: even a refusal tells something
            file.write([*heard, digest])
        yield
        if is_new and n_heard == 0:  # last: a bad hello is no alignment
            n_ids = len(message) // POINT_BYTES
            self.budget.all_runs.align(n_ids, self.table.whole.n_rows)
            file.write([digest])

    def _file(self, agreed: Agreement) -> AlignmentFile:
        path = self.folder / "rows.safetensors"
        return AlignmentFile(path, self.name, agreed.digest())

    def _new_aligner(self) -> PartyAligner:
        """Return the party's side of an alignment, the same one after a restart."""
        ids, n_rows = self.ids, self.table.whole.n_rows
        if self._offered is not None and ids is not None:
            ids, n_rows = ids.take(self._offered), len(self._offered)
        return PartyAligner(
            self.config.align,
            ids,
            n_rows,
            secret=self.home.key("align"),
            min_common=self.config.policy.min_rows,
            min_share=self.config.policy.min_share,
            tell=functools.partial(self.status.do, note=False),
        )

    # --------------------------------------------------------------------------- wiring

    def _prepare(self, message: control.Prepare) -> None:
        """Begin the run of one seed, on common rows alone, the same ones every time."""
        at = self.state
        seeds = () if isinstance(at, Waiting) else at.opening.message.seeds
        if message.seed not in seeds:
            raise self._too_early("all seeds")
        if not isinstance(at, Aligned):
            raise PolicyError(
                f"Party '{self.name}' aligns its rows before anything else. Got a run "
                "without it."
            )
        self.checker.rows(message, at.rows.n_rows)
        path = self._place(message.seed) / "rows.safetensors"
        digest = message.digest()
        if not path.is_file():
            write_state(path, State({}, {"rows": digest}))
        if read_state(path).values["rows"] != digest:
            raise PolicyError(
                f"Party '{self.name}' has one set of training and test rows a seed. "
                f"Got a second one for seed {message.seed}."
            )
        plan = self._plan(at.opening, at.rows.n_rows)
        self.budget.reserve(plan, self._common(at.opening), self.has_finished)
        collect = self._scratch.collect
        train = collect(message.places("train"), message.n_train)
        test = collect(message.places("test"), message.n_test)
        blocks = message.blocks
        if blocks is None and not self._is_checked:
            self._is_checked = True
            self.table.warn_of_copies(at.rows)
        units = None if blocks is None else blocks.astype(np.int64)
        rows = SeedRows(message.seed, train, test, units, message.share)
        shown = (seeds.index(message.seed) + 1, len(seeds))
        if self._seed_shown != shown:  # it comes again after a break
            self._seed_shown = shown
            self.status.begin_seed(message.seed, *shown)
        self.state = Aligned(at.opening, at.rows)
        if rows.seed not in self._ready:
            self._ready.clear()  # free the rows of another seed first
            self._ready[rows.seed] = self._prepared(at.opening, at.rows, rows)
        prepared = dataclasses.replace(self._ready[rows.seed], rows=rows)
        run = SeedRun(prepared, self.budget, self.status, None)
        self.state = Serving(at.opening, at.rows, run)

    def private_seed(self, seed: int) -> int:
        """Return the seed of its own streams, which nobody else can know."""
        if self.config.seed_private == "shared":
            return seed
        return self.home.seed("private", seed, self.name)

    def _prepared(self, agreed: Agreement, table: Table, rows: SeedRows) -> Prepared:
        """Prepare a seed as the simulator would build it."""
        whole, spend = self._priced(agreed, table.n_rows)
        config = clamp_batch(whole.config, len(rows.train))
        plans = config.plans(len(agreed.message.parties))
        private = self.private_seed(rows.seed)
        build = Builder(whole, rows.seed, self.config.device, private=private)
        train, test = table.take(rows.train), table.take(rows.test)
        encoding = self.table.encoding(train)
        n_rows = max(rows.counts.values())
        if config.empty_party != "frozen":  # the most that pass the network together
            steps = [getattr(plan, "batch_size", 0) for plan in plans]
            n_rows = min(n_rows, max(PART, *steps))
        self.checker.components(whole.net, len(encoding.groups))
        self.checker.memory(whole.net, len(encoding.groups), n_rows)
        blocks, common = build.blocks(rows.blocks), self._common(agreed)
        places = rows.train if common is None else common[rows.train]
        for plan in plans:
            if blocks is not None and isinstance(plan, TrainPlan):
                self.checker.looks(plan, blocks, rows.seed)
        on_disk = isinstance(table, data.StoredTable)
        if on_disk:
            self.status.do(f"encoding {plural(table.n_rows, 'row')} on disk")
        tables = (train, test, *self._rows_alone(agreed))
        x_train, x_test, *alone = encode(build, encoding, tables, self._scratch)
        party = functools.partial(
            build.party,
            self.name,
            (x_train, x_test),
            encoding.groups,
            encoding.features,
            self.status.observe,
            functools.partial(cut_stored, self._scratch) if on_disk else cut_columns,
            blocks,
            alone=alone[0] if alone else None,
            places=build.blocks(places),
        )
        return Prepared(
            self.checker,
            rows,
            encoding,
            plans,
            config.stored(),
            config.bits,
            party,
            private,
            self._place(rows.seed),
            build.embedding_noise,
            spend,
        )

    def _rows_alone(self, agreed: Agreement) -> list[Table]:
        """Return the table of the rows not in common, where the method uses them."""
        common = self._common(agreed)
        if common is None or not methods.get(agreed.settings.method).uses_alone:
            return []
        alone = np.setdiff1d(np.arange(self.table.whole.n_rows), common)
        return [self.table.whole.take(alone)] if len(alone) else []

    def _place(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.folder / f"seed-{seed}"

    # -------------------------------------------------------------------------- the end

    def _finish(self, at: Serving, of_server: str) -> dict[str, Any]:
        """Save the network and numbers of a seed; return what may be revealed of them.

        `of_server` is a digest of the fusion network that this network goes with.
        """
        if at.run.stage_due is not None:
            raise self._too_early("to train to the end")
        welcome, seed = at.opening.message, at.run.prepared.rows.seed
        place = f"party{welcome.parties.index(self.name)}"
        network = self.folder / NETWORKS / f"seed-{seed}" / place
        path = self._place(seed) / "numbers.json"
        before = read_json(path) if self.has_finished else {}
        numbers = before["numbers"] if before.get("run") == welcome.run else None
        if numbers is None or numbers["models"]["server"] != of_server:
            numbers = at.run.finish(of_server, network, self.config.party_net)
            write_json(path, {"run": welcome.run, "numbers": numbers}, mode=0o600)
        self.budget.settle()
        kept, removed = numbers["kept"], numbers["removed"]
        model = numbers["models"][self.name]
        counts = (len(kept), len(kept) + len(removed))
        names = ": " + ", ".join(kept) if kept else ""
        log.info("seed %d: kept %d of %d features%s", seed, *counts, names)
        paths = [self._place(seed) / "numbers.json" for seed in welcome.seeds]
        saved = [read_json(path) for path in paths if path.is_file()]
        runs = [file["numbers"] for file in saved if file["run"] == welcome.run]
        if len(runs) == len(welcome.seeds):
            self._conclude(at.opening, runs)
        match self.config.reveal:
            case "features":
                return {"model": model, "kept": kept, "removed": removed}
            case "counts":
                return {"model": model, "n_kept": len(kept), "n_removed": len(removed)}
        return {"model": model}

    def _conclude(self, agreed: Agreement, runs: list[dict[str, Any]]) -> None:
        """Write what all seeds recommend, for this party only."""
        record = party_record(self.table, agreed.settings, agreed.message, runs)
        if not self.has_finished:
            record.write(self.folder)
        self.budget.conclude()
        log.info("the run is over: results are in '%s'", self.folder)
        of_runs = [run["selection"] for run in runs]
        if words := alike_words("yours", of_runs):
            log.warning("%s", words)
        if len(runs) > 1:
            recommended = record.consensus[self.name]["recommended"]
            n_features = record.header["data"]["n_features"]
            counts = (len(recommended), n_features, len(runs))
            log.info("kept %d of %d features in at least half of %d runs", *counts)
