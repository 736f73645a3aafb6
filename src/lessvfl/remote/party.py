"""A party as a process of its own: joins a run, answers requests, keeps its state.

What leaves this process are replies (``wire/messages.py``) and what the operator
allows to reveal. Features kept, networks and checkpoints stay in its run folder:
``record.jsonl`` once all seeds are over, with what they recommend, and for each of them
``networks/seed-<seed>/partyN/`` with the network, and ``seed-<seed>/`` with checkpoints
and ``numbers.json``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl import data, settings
from lessvfl.core.device import release_freed_memory, resolve_device
from lessvfl.core.lifted import find_factory
from lessvfl.core.plans import PART, SECRET, TrainPlan, are_alike, stream
from lessvfl.data import (
    CellCounts,
    Encoding,
    Finding,
    Frame,
    Places,
    Scratch,
    StoredTable,
    Table,
)
from lessvfl.errors import (
    ConfigError,
    LessVFLError,
    PolicyError,
    ProtocolError,
    RecordError,
)
from lessvfl.party import Party, cut_columns
from lessvfl.remote.align import Ids, PartyAligner
from lessvfl.remote.align.psi import POINT_BYTES
from lessvfl.remote.checkpoint import State, named_rows, read_state, write_state
from lessvfl.remote.config import PartyConfig
from lessvfl.remote.home import Home, facts_of, versions
from lessvfl.remote.policy import Judge, planned
from lessvfl.remote.spent import RunBudget
from lessvfl.run.build import Builder, check_pinned, clamp_batch, cut_stored
from lessvfl.run.fitted import NETWORKS, FittedParty
from lessvfl.run.numbers import alone, bare_header, bill_of, consensus, party_numbers
from lessvfl.run.profiles import Settings
from lessvfl.run.record import FILE_NAME, RunRecord, read_json, write_json
from lessvfl.status import Status
from lessvfl.terms import Event, plural
from lessvfl.wire import control, messages
from lessvfl.wire.coding import BITS
from lessvfl.wire.dial import Listener, Server, serve
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import bill_line

log = logging.getLogger(__name__)

SHOWS = "this run shows up to %d values about a row of %d encoded columns"

SERVER = "server"  # what the other side is called, where it is shown

# What the run depends on in a party's config; the rest may change on the way.
_LASTING = (
    *("columns", "groups", "as_is", "scale", "scale_range", "max_categories"),
    *("missing", "missing_values", "must_keep", "party_net", "align", "seed_private"),
)


@dataclass(frozen=True)
class Encoded:
    """A party's rows of one seed as it trains on them, and how they came about."""

    seed: int
    encoding: Encoding
    train: Tensor
    test: Tensor


@dataclass(frozen=True)
class SeedRows:
    """Which of its common rows a party trains and tests with, by their places."""

    seed: int
    train: Places
    test: Places
    blocks: Places | None  # of the training rows; None: every row is alone
    share: float | None = None  # of the rarer of two classes, where it is told


def open_table(config: PartyConfig) -> tuple[Table, NDArray[Any] | None]:
    """Open a party's own table, in memory or on disk, with its ids."""
    storage = config.storage
    if resolve_device(config.device).type != "cpu":
        if storage == "disk":
            raise ConfigError(
                "The 'storage' setting must be memory or auto with a GPU: rows on "
                "disk are computed with by the CPU. Got disk."
            )
        storage = "memory"
    return data.open_columns(Path(config.data), config.id, storage)


class PartyProcess:
    """A party's side of a run: ``handle(message) -> reply``.

    `table` are its rows in its own order, `ids` whom the rows are about; `status` is
    told how far the run is. It holds its run folder until it is closed.
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
        look, self.findings = data.settle(table.look)
        self.whole = table.settled(look)
        self.table: Table | None = None  # of the common rows, in the common order
        where = f"party '{name}'"
        names = data.match_columns(table.names, config.columns, where)
        self._columns = data.usable(name, names, look)
        as_is = data.match_columns(names, config.as_is, where) if config.as_is else ()
        self._as_is = as_is
        self._marks = data.marks_of(look, config.missing_values)
        self._groups = data.features_of({name: names}, config.groups)
        self.device = resolve_device(config.device)
        if config.scale == "global" and config.scale_range is None:
            raise ConfigError(
                "The 'scale' setting must be auto, standardize or none where no "
                "'scale_range' is given. Got global."
            )
        if config.party_net is not None:
            find_factory(config.party_net)
        lasting = {key: getattr(config, key) for key in _LASTING}
        facts = facts_of(table, ids, lasting, config.party_net)
        self.home = Home(Path(config.out), facts)
        self.folder = self.home.folder
        self.judge = Judge(name, config.policy)
        about = facts["cells"] if ids is None else facts["ids"]
        run = self.home.key("spent").hex()[:16]
        self.budget = RunBudget(self.folder, self.judge, about, run)
        self.party: Party | None = None
        self._scratch = Scratch(self.folder)
        own: Any = self._scratch.keep(ids)
        self._ids = None if own is None else Ids(own, config.id or "id")
        self._encoded: Encoded | None = None  # of the seed at hand
        self.seen: list[dict[str, Any]] = []  # features in use at every evaluation
        self.ledger = Ledger(1)  # what it sent and was sent
        self._aligner: PartyAligner | None = None
        self._n_heard = 0  # messages of the alignment at hand
        self._welcome: control.Welcome | None = None
        self._settings: Settings | None = None  # as agreed
        self._rows: SeedRows | None = None
        self._is_checked = False  # for rows that equal each other
        self._plans: tuple[Any, ...] = ()  # that the server may send
        self._stored: tuple[int | None, int] | None = None  # rows and bits of stage 2
        self._n_behind = 0  # plans whose stages are over for this party
        self._sent: list[int] = []  # parts of the rows of stage 2
        self._scored: dict[str, int] = {}  # bits a value of train and test rows
        self._mark: str | None = None  # of the last checkpoint
        self._chain = b""  # a digest of all that moved its network in this seed
        self._shown = (0, 0)  # the seed of how many that is shown
        # Of the stage of joint training at hand.
        self._step = self._n_steps = self._n_per_epoch = 0
        self._new_aligner()  # what is wrong with ids or columns is said at the start
        encoding = self._encoding(look)
        self.flagged = encoding.flagged
        self._n_inputs = len(encoding.groups)
        check_pinned(config.must_keep, encoding.features, where)

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
            listener=self.listener(),
        )

    def changes(self) -> list[Finding]:
        """Return what was done to read its own columns, for its own eyes."""
        most = self.config.max_categories
        names = data.match_columns(self.whole.names, self.config.columns, self.name)
        return data.changes(self.whole.look, self.findings, names, most)

    def close(self) -> None:
        """Let go of the run folder."""
        self.home.close()

    @property
    def has_finished(self) -> bool:
        """Tell whether the run folder holds a run whose seeds are all over."""
        return (self.folder / FILE_NAME).is_file()

    def hello(self) -> control.Hello:
        """Return how this party greets."""
        return control.Hello(
            self.name,
            self.config.threads,
            self.device.type,
            versions(),
        )

    def listener(self) -> Listener:
        """Return what the connection to the server is to tell: it is shown."""
        status = self.status

        def carried(up: int, down: int) -> None:
            status.carried(SERVER, wire_up=up, wire_down=down, rounds=0)

        return Listener(
            lambda: status.connect(SERVER), lambda: status.lose(SERVER), carried
        )

    def handle(self, message: Any) -> Any:
        """Answer one message of the server's; whatever it is, it costs a round."""
        self.budget.spend_round()
        self.status.allow(*self.budget.left())
        try:
            return self._handle(message)
        except (LessVFLError, OSError):
            raise
        except Exception as error:  # a message that no honest server sends
            log.debug("a message cannot be answered", exc_info=True)
            raise ProtocolError(
                f"Party '{self.name}' cannot do what it was asked. Got "
                f"{type(error).__name__}: {error}"
            ) from error

    def _handle(self, message: Any) -> Any:
        match message:
            case control.Welcome():
                return control.Agreed({"aligned": self._welcomed(message)})
            case control.Align(data):
                return self._align(data)
            case control.Prepare():
                self._prepare(message)
                return control.Agreed()
            case control.Save(tag):
                self._save(tag)
                return control.Agreed()
            case control.Restore(tag):
                self._restore(tag)
                return control.Agreed()
            case control.Finish(model):
                return control.Agreed(self._finish(model))
        party = self._ready()
        message = self._checked(message, party)
        rows = "train"
        if isinstance(message, messages.Embed):
            rows = message.rows
            if message.stage == "evaluate" and message.part == 0:
                self._look(rows)
        self._show(message)
        reply = party.handle(message)
        self._bill(message, reply)
        self._chain = _linked(self._chain, message)
        if isinstance(reply, messages.Embedding):
            self._count(message, reply, rows)
        elif isinstance(reply, messages.Done):
            due = len(self._plans) if all(reply.silent) else 1 + self._n_due
            self._n_behind = due
        if isinstance(message, messages.Embed) and message.stage == "embed":
            self._sent.append(message.part)
        elif isinstance(message, messages.Embed) and message.stage == "evaluate":
            self._scored[rows] = message.bits
        return reply

    def _count(
        self, message: messages.Request, reply: messages.Embedding, rows: str
    ) -> None:
        """Take what leaves off the budget."""
        assert self._rows is not None
        seed = self._rows.seed
        asked = message if isinstance(message, messages.Embed) else "the next batch"
        when = (self._n_behind, self._step, asked)
        _, n_rows, size = reply.block.values.shape
        n_values, place = size * n_rows / self._n_rows(rows), self._place(seed)
        self.budget.spend_look(place, self._chain, when, n_values)

    def _show(self, message: messages.Request) -> None:
        """Show what is asked for: the stage, and in training the step."""
        status = self.status
        match message:
            case messages.Begin(plan, done):
                assert self._rows is not None
                blocks = self._ready().blocks
                where = (self._n_rows("train"), (self._rows.seed,))
                batches = plan.batches(*where, blocks)
                self._step, self._n_steps = done, batches.n_steps(plan.n_epochs)
                self._n_per_epoch = batches.n_per_epoch
                status.observe(Event(plan.stage, 0, self._n_steps / self._n_per_epoch))
            case messages.Descend(stage):
                self._step += 1
                status.stepped(stage, self._step, self._n_steps)
                if message.last:
                    epoch = self._step / self._n_per_epoch
                    status.observe(Event(stage, epoch, epoch))
            case messages.Select(_, plan):
                status.observe(Event(plan.stage, 0, 1))
            case messages.Embed("embed"):
                status.observe(Event("embed", 0, 1))

    def _bill(self, message: messages.Request, reply: messages.Reply) -> None:
        """Put an exchange on the party's own bill, as the server does on its."""
        if not messages.is_billed(message):
            return
        self.ledger.bill_round(message.stage, [True])
        for one in (message, reply):
            line = bill_line(self.name, one, (True,))
            if line is not None:
                self.ledger.bill(line)
                sent = {line.direction: line.payload_bytes[0]}
                self.status.carried(SERVER, **sent, rounds=0, stage=line.stage)
        self.status.carried(SERVER, stage=message.stage)

    def _n_rows(self, rows: str) -> int:
        assert self._rows is not None
        return len(self._rows.train if rows == "train" else self._rows.test)

    def _ready(self) -> Party:
        """Return the party, once it was told its rows."""
        if self.party is None:
            raise self._too_early("its rows")
        return self.party

    def _too_early(self, what: str) -> ProtocolError:
        sentence = (
            f"Party '{self.name}' must be told {what} first. Got another message."
        )
        return ProtocolError(sentence, public=sentence)

    def _checked(self, message: Any, party: Party) -> Any:
        """Return a request, its plan the party's own, or refuse it.

        What the agreed settings or the policy do not have is refused.
        """
        match message:
            case messages.Begin(plan) | messages.Select(_, plan):
                own = next((p for p in self._plans if are_alike(p, plan)), None)
                if own is None:
                    raise PolicyError(
                        f"Party '{self.name}' follows the plans of the settings that "
                        f"were agreed on. Got another one of stage '{plan.stage}'."
                    )
                self._check_turn(own)
                message = dataclasses.replace(message, plan=own)
        match message:
            case messages.Begin(_, 0) if party.is_training:
                raise self._misfit("the next step of a stage that has begun")
            case messages.Select(components):
                n_outputs = party.net.n_outputs
                if components is not None and not _are_places(components, n_outputs):
                    raise self._misfit("components that it has")
            case messages.Embed("evaluate", _, None):
                party.part_of(message)
                self._check_evaluation(message)
            case messages.Embed("embed", "train"):
                party.part_of(message)
                self._check_stored(message)
            case messages.Embed("train"):
                if not party.is_look(message):
                    raise self._misfit("the rows that training leaves out, when due")
            case messages.Embed():
                raise self._misfit("training rows, or all rows to score")
        if isinstance(message, messages.Embed):
            if message.bits not in BITS:
                raise self._misfit("4, 8, 16 or 32 bits a value")
            if message.n_rows is not None and message.part != 0:
                raise self._misfit("rows of a sample, or a part of all rows")
        return message

    def _misfit(self, what: str) -> ProtocolError:
        sentence = f"Party '{self.name}' must be asked for {what}. Got others."
        return ProtocolError(sentence, public=sentence)

    @property
    def _n_due(self) -> int:
        """Return the place of the plan that is due; one of no steps is left out."""
        for place in range(self._n_behind, len(self._plans)):
            plan = self._plans[place]
            if not isinstance(plan, TrainPlan) or plan.n_epochs > 0:
                return place
        return len(self._plans)

    def _stage_due(self) -> str | None:
        """Return the stage at hand, or the next one; None: all are over."""
        due = self._plans[self._n_due : self._n_due + 1]
        return due[0].stage if due else None

    def _check_turn(self, plan: Any) -> None:
        """Refuse a stage that is over, or whose turn has not come."""
        due = self._stage_due()
        if plan.stage != due:
            is_due = "none" if due is None else f"'{due}'"
            raise PolicyError(
                f"Party '{self.name}' follows the plans in their order, each once. Got "
                f"'{plan.stage}' where {is_due} is due."
            )

    def _check_stored(self, message: messages.Embed) -> None:
        """Refuse rows for stage 2 but those that were agreed on, after stage 1."""
        is_due = self._stored is not None and self._stage_due() == "select_features"
        if is_due and message.part not in self._sent:
            assert self._stored is not None
            n_rows, bits = self._stored
            most = self._n_rows("train")
            agreed = (None if n_rows is None else min(n_rows, most), bits)
            if (message.n_rows, message.bits) == agreed:
                return
        raise self._misfit("the rows of stage 2, once and when due")

    def _check_evaluation(self, asked: messages.Embed) -> None:
        allowed, key = self._evaluation, "evaluation"
        if allowed == "nothing":
            raise self.judge.refuse("no evaluation", key, "one")
        if allowed == "epochs":
            return
        if self._stage_due() is not None:
            raise self.judge.refuse("evaluation at the end alone", key, "one before it")
        if asked.rows == "train" and self._n_rows("test"):
            raise self.judge.refuse("evaluation by test rows", key, "training rows")
        bits = self._bits()
        if asked.bits != bits:
            allowed = f"evaluation at the run's {bits} bits a value"
            raise self.judge.refuse(allowed, key, asked.bits)

    @property
    def _evaluation(self) -> str:
        return self.config.policy.evaluation

    def _bits(self) -> int:
        """Return the bits of a value in joint training."""
        assert self._settings is not None
        bits: int = self._settings.config.bits
        return bits

    # ------------------------------------------------------------- who, and which rows

    def _welcomed(self, message: control.Welcome) -> bool:
        """Begin a session; tell whether the common rows of its run are known."""
        self._aligner = self.table = self.party = self._rows = None
        agreed = self._settings = self.judge.settings(message, self._n_inputs)
        size = agreed.net.components(self._n_inputs)
        shown = planned(agreed, size, len(message.parties), self._evaluation)
        self.budget.plan(shown, len(message.seeds))
        if self._welcome is None or self._welcome.run != message.run:
            log.info("takes part in a run of method %s", message.method)
            n_values, n_columns = math.ceil(shown * len(message.seeds)), self._n_inputs
            log.info(SHOWS, n_values, n_columns)
        self._welcome = message
        self.status.begin_run(message.method)
        known = self._aligned()
        if known is None or not known.values["is_over"]:
            return False
        rows = known.tensors.get("rows")
        self.table = self.whole if rows is None else self.whole.take(rows.numpy())
        return True

    @property
    def _aligned_path(self) -> Path:
        return self.folder / "rows.safetensors"

    def _aligned(self) -> State | None:
        """Return what is known of the alignment; another run than its is refused."""
        if not self._aligned_path.is_file():
            return None
        known = read_state(self._aligned_path)
        assert self._welcome is not None
        if known.values["agreed"] != _digest_of(self._welcome):
            raise PolicyError(
                f"Party '{self.name}' takes part in one run with its run folder, with "
                "the settings that it began with. Got another one, which needs another "
                "'out' in its config."
            )
        return known

    def _align(self, message: bytes) -> control.Align | control.Agreed:
        """Answer the label holder's messages, then take over the common order.

        The same ones get the same answers, after a break; others get none.
        """
        if self._welcome is None:
            raise self._too_early("what is run")
        known, digest = self._aligned(), hashlib.sha256(message).hexdigest()
        heard: list[str] = [] if known is None else known.values["heard"]
        if self._aligner is None:
            if self.config.align != self._welcome.align:
                sentence = (
                    f"Server and party '{self.name}' must align alike. Got "
                    f"{self._welcome.align} and {self.config.align}."
                )
                raise ConfigError(sentence, public=sentence)
            self.status.do("alignment: answering the server")
            self._aligner, self._n_heard = self._new_aligner(), 0
        aligner, n_heard = self._aligner, self._n_heard
        self._aligner = None  # a message that fails was the last
        if heard[n_heard : n_heard + 1] not in ([], [digest]):
            raise PolicyError(
                f"Party '{self.name}' aligns its rows once a run. Got another "
                "alignment."
            )
        is_new = n_heard == len(heard)
        if is_new and n_heard > 0:  # whether it is answered tells something, too
            self._write_rows(None, heard=[*heard, digest])
        answer = aligner.answer(message)
        if is_new and n_heard == 0:  # what is no hello is no alignment
            n_ids = len(message) // POINT_BYTES
            self.budget.all_runs.align(n_ids, self.whole.n_rows)
        if answer is not None:
            if is_new:
                self._write_rows(None, heard=[*heard, digest])
            self._aligner, self._n_heard = aligner, n_heard + 1
            return control.Align(answer)
        rows = aligner.rows
        found = plural(len(rows), "common row")
        self.status.do(f"alignment: {found} of your {self.whole.n_rows:,}")
        self.home.begin()
        self._write_rows(rows, heard=[*heard[:n_heard], digest])
        self.table = self.whole.take(rows)
        return control.Agreed()

    def _new_aligner(self) -> PartyAligner:
        mode: Any = self.config.align
        return PartyAligner(
            mode,
            self._ids,
            self.whole.n_rows,
            secret=self.home.key("align"),
            min_common=self.config.policy.min_rows,
            min_share=self.config.policy.min_share,
            tell=functools.partial(self.status.do, note=False),
        )

    def _write_rows(self, rows: Places | None, **values: Any) -> None:
        """Write down how far the alignment is, at its end with the common rows."""
        assert self._welcome is not None
        tensors = {} if rows is None else named_rows(rows, self.whole.n_rows)
        agreed, is_over = _digest_of(self._welcome), rows is not None
        state = State(tensors, {"agreed": agreed, "is_over": is_over, **values})
        write_state(self._aligned_path, state)

    # --------------------------------------------------------------------------- wiring

    def _prepare(self, message: control.Prepare) -> None:
        """Begin the run of one seed, on common rows alone, the same ones every time."""
        if self._welcome is None or message.seed not in self._welcome.seeds:
            raise self._too_early("all seeds")
        if self.table is None:
            raise PolicyError(
                f"Party '{self.name}' aligns its rows before anything else. Got a run "
                "without it."
            )
        self.judge.rows(message, self.table.n_rows)
        path = self._place(message.seed) / "rows.safetensors"
        told = {"rows": message.digest()}
        if not path.is_file():
            write_state(path, State({}, told))
        if read_state(path).values["rows"] != told["rows"]:
            raise PolicyError(
                f"Party '{self.name}' has one set of training and test rows a seed. "
                "Got another one."
            )
        collect = self._scratch.collect
        train = collect(message.places("train"), message.n_train)
        test = collect(message.places("test"), message.n_test)
        blocks = message.blocks
        own = None if blocks is None else blocks.astype(np.int64)
        self._rows = SeedRows(message.seed, train, test, own, message.share)
        if blocks is None and not self._is_checked:
            self._warn_of_copies()
        seeds = self._welcome.seeds
        number = seeds.index(message.seed) + 1
        if self._shown != (number, len(seeds)):  # it is told again after a break
            self._shown = (number, len(seeds))
            self.status.begin_seed(message.seed, *self._shown)
        self._begin_seed()

    def _warn_of_copies(self) -> None:
        """Say once that rows here equal each other, of which the server knows nothing.

        Of a table on disk, rows that tell what it holds are looked at.
        """
        self._is_checked = True
        assert self.table is not None
        copies = data.equal_rows(self.table.look.select(self._columns))
        if copies is not None:
            share = float((np.bincount(copies) > 1)[copies].mean())
            log.warning(
                "%.0f %% of the rows here equal another row: where they are of one "
                "person or the like, the label holder should name 'group_column'.",
                100 * share,
            )

    def _begin_seed(self) -> None:
        """Have a fresh party, as at the start of a seed."""
        assert self._rows is not None
        self.party = self._build()
        self._mark, self.seen = None, []
        self._n_behind, self._step, self._sent, self._scored = 0, 0, [], {}
        self._chain = b""
        self.ledger = Ledger(1)
        private = self._private_seed(self._rows.seed)
        torch.manual_seed(self._rows.seed)
        if private >= SECRET:  # a user's dropout and the like
            torch.set_rng_state(stream(private, "torch").get_state())

    def _private_seed(self, seed: int) -> int:
        """Return the seed of its own streams, which nobody else can know."""
        if self.config.seed_private == "shared":
            return seed
        key = self.home.key("private", seed, self.name)
        return SECRET + int.from_bytes(key, "big")

    def _build(self) -> Party:
        """Return a fresh party on its rows, as the simulator would build it."""
        rows, agreed, table = self._rows, self._settings, self.table
        if rows is None or agreed is None or table is None:
            raise self._too_early("its rows")
        whole = self._own(agreed)
        assert self._welcome is not None
        config = clamp_batch(whole.config, len(rows.train))
        self._plans = config.plans(len(self._welcome.parties))
        self._stored = config.stored()
        private = self._private_seed(rows.seed)
        build = Builder(whole, [rows.seed], self.config.device, private=[private])
        if self._encoded is None or self._encoded.seed != rows.seed:
            self._encoded = None  # let go of the rows of another seed first
            train, test = table.take(rows.train), table.take(rows.test)
            encoding = self._encoding(train)
            n_rows = self._rows_at_once(config.empty_party == "frozen")
            self.judge.components(whole.net, len(encoding.groups))
            self.judge.memory(whole.net, len(encoding.groups), n_rows)
            both, counts = self._encode(build, encoding, (train, test))
            for sentence in counts.sentences():
                log.info("%s", sentence)
            self._encoded = Encoded(rows.seed, encoding, *both)
        own = self._encoded
        on_disk = isinstance(table, StoredTable)
        cut = functools.partial(cut_stored, self._scratch) if on_disk else cut_columns
        return build.party(
            self.name,
            (own.train, own.test),
            own.encoding.groups,
            own.encoding.features,
            self.status.observe,
            cut,
            build.blocks([rows.blocks]),
        )

    def _rows_at_once(self, frozen: bool) -> int:
        """Return the most rows that pass the network together, whatever is asked."""
        n_rows = max(self._n_rows("train"), self._n_rows("test"))
        steps = [getattr(plan, "batch_size", 0) for plan in self._plans]
        return n_rows if frozen else min(n_rows, max(PART, *steps))

    def _encode(
        self, build: Builder, encoding: Encoding, tables: Sequence[Table]
    ) -> tuple[list[Tensor], CellCounts]:
        """Return encoded rows, in memory or on disk as the tables are."""
        stored = [table for table in tables if isinstance(table, StoredTable)]
        if stored:
            rows = plural(sum(table.n_rows for table in stored), "row")
            self.status.do(f"encoding {rows} on disk")
            return build.stored_rows(stored, encoding, self._scratch)
        found, counts = [], CellCounts()
        for frame in tables:
            assert isinstance(frame, Frame)
            cells, more = encoding.apply(frame)
            found.append(build.rows([cells]))
            counts += more
        return found, counts

    def _own(self, agreed: Settings) -> Settings:
        """Return what was agreed with what this party decides for itself."""
        net = dataclasses.replace(agreed.net, party_net=self.config.party_net)
        config: Any = agreed.config
        if self.config.must_keep is not None:
            if "must_keep" not in settings.fields_of([type(config)]):
                raise ConfigError(
                    f"The 'must_keep' setting is not read by method {agreed.method}. "
                    f"Got '{self.config.must_keep}'."
                )
            config = dataclasses.replace(config, must_keep=self.config.must_keep)
        return dataclasses.replace(agreed, net=net, config=config)

    def _encoding(self, train: Table) -> Encoding:
        """Learn from its training rows how to encode its columns."""
        own = self.config
        return Encoding.fit(
            self.name,
            train,
            self._columns,
            scale=own.scale,
            bounds=own.scale_range or (0.0, 1.0),
            max_categories=own.max_categories,
            missing=own.missing,
            marks=self._marks,
            groups=self._groups,
            as_is=self._as_is,
        )

    # --------------------------------------------------------------------------- states

    def _place(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.folder / f"seed-{seed}"

    def _path(self, tag: str) -> Path:
        assert self._rows is not None
        return self._place(self._rows.seed) / "checkpoints" / f"{tag}.safetensors"

    def _save(self, tag: str) -> None:
        """Write the state down; this mark and the one before it are kept.

        The server may go back to the one before: it writes its own state after ours.
        """
        tensors, values = self._ready().state()
        values |= {"seen": self.seen, "sent": self._sent, "scored": self._scored}
        values |= {"behind": self._n_behind, "step": self._step}
        values["chain"] = self._chain.hex()
        values["ledger"] = self.ledger.state()
        tensors["rng"] = torch.get_rng_state()
        write_state(self._path(tag), State(tensors, values))
        for path in self._path(tag).parent.glob("*.safetensors"):
            if path.stem not in (tag, self._mark):
                path.unlink(missing_ok=True)
        self._mark = tag
        self.budget.settle()

    def _restore(self, tag: str | None) -> None:
        if self._rows is None:
            raise self._too_early("its rows")
        data.release_unused()
        release_freed_memory()  # of the preparation, and the message that told the rows
        self._begin_seed()
        if tag is None:
            return
        path = self._path(tag)
        if not path.is_file():
            raise RecordError(
                f"Party '{self.name}' must have the checkpoint of {tag}. Got none in "
                f"'{path.parent}'."
            )
        state = read_state(path)
        self._ready().restore(state.tensors, state.values)
        self._mark = tag
        self.seen = list(state.values["seen"])
        self._sent = list(state.values["sent"])
        self._n_behind, self._step = state.values["behind"], state.values["step"]
        self._scored = dict(state.values["scored"])
        self._chain = bytes.fromhex(state.values["chain"])
        self.ledger.restore(state.values["ledger"])
        torch.set_rng_state(state.tensors["rng"])

    def _look(self, rows: str) -> None:
        """Remember which features are in use; once an evaluation."""
        assert self.party is not None
        if rows == "test":
            mask = self.party.features_now()[0].tolist()
            self.seen.append({"kept": [i for i, on in enumerate(mask) if on]})

    # -------------------------------------------------------------------------- the end

    def _finish(self, of_server: str) -> dict[str, Any]:
        """Write down the run of this seed; return what may be revealed.

        `of_server` is a digest of the fusion network that this network goes with.
        """
        party = self._ready()
        assert self._encoded is not None
        assert self._welcome is not None
        assert self._rows is not None
        if self._stage_due() is not None:
            raise self._too_early("to train to the end")
        seed, share, outcome = self._rows.seed, self._rows.share, party.outcome(0)
        encoding = self._encoded.encoding
        fitted = FittedParty.of(encoding, outcome, self.config.party_net)
        place = f"party{self._welcome.parties.index(self.name)}"
        model = fitted.save(self.folder / NETWORKS / f"seed-{seed}" / place)
        own = {
            "seed": seed,
            **party_numbers(encoding.features, outcome, share),
            "rows": {rows: self._n_rows(rows) for rows in ("train", "test")},
            "components": {
                "kept": fitted.n_components,
                "of": len(outcome.outputs),
            },
            "communication": bill_of(self.ledger, 0),
            "bill": self.ledger.lines(0),
            "models": {"server": of_server, self.name: model},
            "seen": self.seen,
            "shown": {
                "values": self.budget.values(self._place(seed)),
                "columns": len(encoding.groups),
                "scored": self._scored,
            },
        }
        numbers = {"run": self._welcome.run, "numbers": own}
        write_json(self._place(seed) / "numbers.json", numbers, mode=0o600)
        self.budget.settle()
        kept, removed = own["kept"], own["removed"]
        counts = (len(kept), len(kept) + len(removed))
        names = ": " + ", ".join(kept) if kept else ""
        log.info("seed %d: kept %d of %d features%s", seed, *counts, names)
        runs = [one["numbers"] for one in self._finished()]
        if len(runs) == len(self._welcome.seeds):
            self._conclude(runs)
        match self.config.reveal:
            case "features":
                return {"model": model, "kept": kept, "removed": removed}
            case "counts":
                return {"model": model, "n_kept": len(kept), "n_removed": len(removed)}
        return {"model": model}

    def _finished(self) -> list[dict[str, Any]]:
        """Return what was written down of the seeds of this run that are over."""
        assert self._welcome is not None
        paths = [self._place(s) / "numbers.json" for s in self._welcome.seeds]
        found = [read_json(path) for path in paths if path.is_file()]
        return [one for one in found if one["run"] == self._welcome.run]

    def _conclude(self, runs: list[dict[str, Any]]) -> None:
        """Write down what all seeds recommend; for the party's own eyes."""
        assert self._welcome is not None
        assert self._settings is not None
        name = self.name
        rows = runs[0]["rows"]
        n_features = len(runs[0]["kept"]) + len(runs[0]["removed"])
        first_line = bare_header(
            self._own(self._settings),
            Path(self.config.data).stem,
            self.config.device,
            {},
            side="party",
            party=name,
            parties=list(self._welcome.parties),
            networks=NETWORKS,
            run=self._welcome.run,
            reveal=self.config.reveal,
            align=self.config.align,
        ) | {"profile": None}
        first_line["data"] |= {
            "n_train": rows["train"],
            "n_test": rows["test"],
            "n_features": n_features,
            "n_parties": len(self._welcome.parties),
        }
        record = RunRecord(
            first_line,
            [alone(name, one) for one in runs],
            "complete",
            consensus=consensus([{name: one} for one in runs]),
        )
        record.write(self.folder)
        log.info("the run is over: results are in '%s'", self.folder)
        if len(runs) > 1:
            recommended = record.consensus[name]["recommended"]
            counts = (len(recommended), n_features, len(runs))
            log.info("kept %d of %d features in at least half of %d runs", *counts)


def _linked(chain: bytes, message: messages.Request) -> bytes:
    """Return a digest of what moved a network so far and this message."""
    match message:
        case messages.Begin(plan, 0):
            said = plan.stage.encode()
        case messages.Descend():
            values = message.gradient.values.contiguous().numpy()
            said = repr(message.rate).encode() + values.tobytes()
        case messages.Select(components, plan):
            said = repr((plan.stage, components)).encode()
        case _:
            return chain
    return hashlib.sha256(chain + said).digest()


def _digest_of(welcome: control.Welcome) -> str:
    """Return a digest of all that a server says of a run at its start."""
    text = json.dumps(dataclasses.asdict(welcome), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _are_places(components: Sequence[Sequence[int]], n_outputs: int) -> bool:
    """Tell whether these are different components of one network."""
    return len(components) == 1 and (
        len(set(components[0])) == len(components[0])
        and all(0 <= place < n_outputs for place in components[0])
    )
