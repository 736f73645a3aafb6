"""The server as a process of its own: takes parties in and runs a method with them.

The algorithm is the one the simulator runs (:mod:`lessvfl.algorithm`); here are who
takes part, which rows are common, checkpoints, and what to do when a party goes away:
everybody takes up the last checkpoint and goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
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
from torch import Tensor

from lessvfl import methods
from lessvfl.core.device import resolve_device
from lessvfl.core.lifted import Lifted, find_factory
from lessvfl.core.network import DTYPES, MLP, Network
from lessvfl.core.plans import Labels, TrainPlan
from lessvfl.data import Dataset, Problem, split_rows
from lessvfl.errors import ConfigError, PartyLostError, ProtocolError
from lessvfl.remote.align import Aligner, Ids
from lessvfl.remote.checkpoint import Checkpoints, State, read_state, write_state
from lessvfl.remote.config import ServerConfig
from lessvfl.remote.party import versions
from lessvfl.run import profiles
from lessvfl.run.record import write_atomically
from lessvfl.run.recorder import Recorder
from lessvfl.status import Status
from lessvfl.terms import Event, PartyId
from lessvfl.wire import codec
from lessvfl.wire.control import (
    Agreed,
    Align,
    Finish,
    Hello,
    Prepare,
    Restore,
    Save,
    Welcome,
)
from lessvfl.wire.flight import Hub
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.messages import (
    Begin,
    Block,
    Descend,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Select,
)
from lessvfl.wire.parties import Parties

MAX_TRIES = 100  # breaks by one party without a new checkpoint
STAY_SECONDS = 5.0  # after a run that was over before, for parties that dial

REPLIES: dict[type, tuple[type, ...]] = {
    Welcome: (Agreed,),
    Align: (Align, Agreed),
    Prepare: (Agreed,),
    Save: (Agreed,),
    Restore: (Agreed,),
    Finish: (Agreed,),
    Describe: (Description,),
    Begin: (Embedding,),
    Descend: (Embedding, Done),
    Embed: (Embedding,),
    Select: (Done,),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelTable:
    """What the label holder has: labels, and maybe which rows are for testing."""

    dataset: Dataset  # without columns
    is_test: NDArray[np.bool_] | None = None
    ids: NDArray[Any] | None = None  # whom its rows are about

    def take(self, rows: NDArray[np.int64]) -> LabelTable:
        """Return the table of these rows, in this order."""
        dataset = dataclasses.replace(
            self.dataset, X=self.dataset.X.take(rows), y=self.dataset.y[rows]
        )
        is_test = None if self.is_test is None else self.is_test[rows]
        return LabelTable(dataset, is_test)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(self.dataset.y)


class Host:
    """One run of the server's.

    Parameters
    ----------
    config : ServerConfig
        Who takes part, what is run.
    table : LabelTable
        The labels.
    hub : Hub
        Listens already.
    status : Status
        Told what happens.
    resume : bool
        Go on with the run that the run folder holds.
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
        self.folder = Path(config.out)
        self.device = resolve_device(config.device)
        dataset = table.dataset
        self.settings = profiles.resolve(
            config.method, config.profile, dataset, config.settings
        )
        self.resent = 0
        if self._path.is_file() and not resume:
            raise ConfigError(
                f"The run folder '{self.folder}' holds a run that began: --resume must "
                "be given to go on with it, or another 'out' to begin anew."
            )
        self.dtype = DTYPES[self.settings.net.dtype]
        hub.admit = self._objection
        hub.check = self._complaint
        self._server: Parties | None = None
        self._at: dict[PartyId, tuple[TrainPlan, int]] = {}  # step in a stage
        hub.came, hub.went = status.connect, status.lose
        hub.carried = self._carried
        hub.refused = lambda who, why: status.refused(why.split(".")[0][:80])

    # ------------------------------------------------------------------------ who joins

    def _objection(self, hello: Hello) -> str | None:
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

    def _complaint(self, party: PartyId, request: Any, reply: Any) -> str | None:
        """Return what is wrong with a reply to this request, before it is used."""
        allowed = REPLIES[type(request)]
        if not isinstance(reply, allowed):
            names = " or ".join(kind.__name__ for kind in allowed)
            return f"A reply must be {names}. Got {type(reply).__name__}."
        if isinstance(reply, Description):
            size = self.settings.net.embedding_size
            right = Description(party, len(self.problem.y_train), size)
            return None if reply == right else "A party must be described as it is."
        if not isinstance(reply, Embedding | Done):
            return None
        if reply.stage != request.stage:
            return f"A reply must be of stage {request.stage}. Got {reply.stage}."
        assert self._server is not None
        size = self._server.sizes[party]
        n_rows = self._rows_due(party, request)
        if isinstance(reply, Embedding):
            if n_rows is None or reply.ahead is isinstance(request, Embed):
                return "A stage must end when it is over. Got an embedding."
            if len(reply.stable or ()) != self._is_asked(party, request):
                return "A party must say whether it is stable when it is asked."
            misfit = self._misfit(reply.block, (1, n_rows, size), (size,))
            bits = self._bits_due(party, request)
            if misfit is None and reply.block.bits != bits:
                return f"A block must be in {bits} bits a value. Got another coding."
            return misfit
        if n_rows is not None:
            return "A stage must not end before it is over. Got its end."
        if len(reply.silent) != 1 or reply.silent[0] != (reply.constant is not None):
            return "A silent party must leave a constant. Got something else."
        if reply.constant is None:
            return None
        return self._misfit(reply.constant, (1, size), (size,))

    def _rows_due(self, party: PartyId, request: Any) -> int | None:
        """Return how many rows a reply must have; None: the end of the stage."""
        n_train = len(self.problem.y_train)
        match request:
            case Embed(_, rows, n_rows):
                if n_rows is not None:
                    return n_rows
                return n_train if rows == "train" else len(self.problem.y_test)
            case Begin(plan, done):
                self._at[party] = (plan, done)
            case Descend():
                plan, done = self._at[party]
                self._at[party] = (plan, done + 1)
                if request.last:
                    return None
            case _:
                return None
        plan, done = self._at[party]
        batches = plan.batches(n_train, (self.config.seed,))
        if done == batches.n_steps(plan.n_epochs):
            return None
        start = done % batches.n_per_epoch * batches.batch_size
        return min(batches.batch_size, n_train - start)

    def _is_asked(self, party: PartyId, request: Any) -> bool:
        """Tell whether a reply must say whether the party is stable."""
        if isinstance(request, Embed):
            return False
        plan, done = self._at[party]
        return plan.is_checked(done)

    def _bits_due(self, party: PartyId, request: Any) -> int:
        """Return in how many bits a reply's values must be."""
        bits = request.bits if isinstance(request, Embed) else self._at[party][0].bits
        return int(bits) if bits < 32 else 8 * self.dtype.itemsize

    def _misfit(
        self, block: Block, shape: tuple[int, ...], widths: tuple[int, ...]
    ) -> str | None:
        if (block.values.shape, block.values.dtype) == (shape, self.dtype):
            return None if block.widths == widths else "A block must have its widths."
        return (
            f"A block must be of shape {shape}, {self.dtype}. Got "
            f"{tuple(block.values.shape)}, {block.values.dtype}."
        )

    def _align(self, known: Mapping[str, bool]) -> None:
        """Find the common rows with every party, unless everybody knows them."""
        path = self.folder / "rows.safetensors"
        if path.is_file():
            strangers = [party for party, knows in known.items() if not knows]
            if not strangers:
                return
            if self._path.is_file():
                raise ConfigError(
                    f"Party '{strangers[0]}' must have its run folder of this run. Got "
                    "one without the common rows."
                )
        own = self.table.ids
        ids = None if own is None else Ids(own, self.config.id or "id")
        mode: Any = self.config.align
        aligner = Aligner(mode, ids, self.table.n_rows)
        offers: Any = self._ask_all(Align(aligner.hello()))
        for party, offer in offers.items():
            if not isinstance(offer, Align):
                self.hub.cut_off(party, "A party must make an offer. Got none.")
            try:
                aligner.take_offer(party, offer.data)
            except ProtocolError as error:
                self.hub.cut_off(party, str(error))
        finals = aligner.finish()
        self.hub.send({p: Align(data) for p, data in finals.items()})
        rows = np.ascontiguousarray(aligner.rows)
        write_state(path, State({"rows": torch.from_numpy(rows)}, {}))

    def _split(self, table: LabelTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return training and test rows, as places in the common order."""
        if table.is_test is not None:
            places = np.arange(table.n_rows, dtype=np.int64)
            return places[~table.is_test], places[table.is_test]
        return split_rows(table.dataset, self.settings.data, self.config.seed)

    def _problem(
        self,
        table: LabelTable,
        train: NDArray[np.int64],
        test: NDArray[np.int64],
    ) -> Problem:
        """Return the labels of the rows, without any party's table."""
        dataset = table.dataset
        y_train, y_test = dataset.y[train], dataset.y[test]
        shift, scale = 0.0, 1.0
        if dataset.task == "regression" and self.settings.data.scale_labels:
            shift, scale = float(y_train.mean()), float(y_train.std()) or 1.0
            y_train, y_test = (y_train - shift) / scale, (y_test - shift) / scale
        return Problem(
            dataset.name,
            dataset.task,
            (),
            y_train,
            y_test,
            dataset.label_names,
            0,
            label_shift=shift,
            label_scale=scale,
        )

    # -------------------------------------------------------------------------- running

    def run(self) -> dict[str, Any]:
        """Wait for the parties and run, however often one of them goes away.

        Returns the numbers, as they are in ``server.json``.
        """
        path = self.folder / "server.json"
        again = path.is_file()
        tries: Counter[Any] = Counter()  # how often a party was lost at a mark
        while not path.is_file():
            try:
                self.hub.wait(self.config.wait)
                text = json.dumps(self._run_once(), allow_nan=False)
                write_atomically(path, text.encode())
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
        self._finish()
        if again:  # some may dial just to hear that the run is over
            time.sleep(min(STAY_SECONDS, self.config.wait))
        numbers: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return numbers

    def _finish(self) -> None:
        """Have every party write its run folder; those who did are on a list."""
        path = self.folder / "finished.json"
        done: list[str] = json.loads(path.read_text()) if path.is_file() else []
        self.hub.run_id = self._run_id()
        end = time.monotonic() + self.config.wait
        while missing := [p for p in self.config.parties if p not in done]:
            for party in set(missing) & set(self.hub.connected):
                with contextlib.suppress(PartyLostError):
                    self._finish_one(party)
                    done.append(party)
                    write_atomically(path, json.dumps(done).encode())
            if time.monotonic() > end:
                raise PartyLostError(missing, "the run is over, but not for them")
            time.sleep(0.01)

    def _finish_one(self, party: PartyId) -> None:
        """Tell one party that the run is over; one that came anew learns of it all."""
        train, test = self._split(self._table())
        tag = read_state(self._path).values["tag"]
        for message in (self._welcome(), Prepare(train, test), Restore(tag), Finish()):
            self.hub.send({party: message})

    def _welcome(self) -> Welcome:
        config = self.config
        run = self.hub.run_id.hex()
        flat = self.settings.flat()
        return Welcome(run, (config.seed,), flat, config.parties, config.align)

    def _table(self) -> LabelTable:
        """Return the labels of the common rows, once these are known."""
        rows = read_state(self.folder / "rows.safetensors").tensors["rows"]
        return self.table.take(np.asarray(rows.numpy()))

    def _observe(self, event: Event) -> None:
        self.status.observe(event)

    def _carried(
        self, party: PartyId, request: Any, up: memoryview, down: bytes
    ) -> None:
        """Count what one exchange carried, on the wire and as payload."""
        self.status.carried(
            party,
            codec.n_body(up),
            codec.n_body(down),
            len(up),
            len(down),
            stage="evaluate" if _is_evaluation(request) else None,
        )

    def _ask_all(self, message: Any) -> dict[str, Agreed]:
        """Have every party do something around the run."""
        return self.hub.send(dict.fromkeys(self.config.parties, message))

    def _mark(self) -> str | None:
        """Return the mark of the last checkpoint, if there is one."""
        if not self._path.is_file():
            return None
        return str(read_state(self._path).values["tag"])

    @property
    def _path(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def _run_id(self) -> bytes:
        """Return the run's own number, the same after a restart."""
        path = self.folder / "run.safetensors"
        if not path.is_file():
            number = torch.tensor(list(uuid.uuid4().bytes), dtype=torch.uint8)
            write_state(path, State({"run": number}, {"config": _plain(self.config)}))
        state = read_state(path)
        if state.values["config"] != _plain(self.config):
            raise ConfigError(
                f"The run folder '{self.folder}' must be of the same config. Got that "
                "of another run; choose another 'out'."
            )
        return bytes(state.tensors["run"].tolist())

    def _run_once(self) -> dict[str, Any]:
        """Agree with everybody where to go on, and run to the end."""
        self.hub.run_id = self._run_id()
        config = self.config
        known = self._ask_all(self._welcome())
        self._align({p: bool(a.revealed.get("aligned")) for p, a in known.items()})
        table = self._table()
        train, test = self._split(table)
        self.problem = self._problem(table, train, test)
        self._ask_all(Prepare(train, test))
        saved = read_state(self._path) if self._path.is_file() else None
        server = Parties(self.hub, config.parties, Ledger(1))
        self._server = server
        fusion = self._fusion(sum(server.sizes.values()))  # as wide as at the start
        self._ask_all(Restore(None if saved is None else saved.values["tag"]))
        y_train, y_test = (
            self._labels(y) for y in (self.problem.y_train, self.problem.y_test)
        )
        if saved is not None:
            self.resent = max(self.resent, saved.values["resent"])
        recorder = Recorder([self.problem], y_train, y_test, self._observe, True)
        recorder.attach(server, ())
        torch.manual_seed(config.seed)
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
        labels = Labels(y_train, self.problem.task, (config.seed,))
        method = methods.get(config.method)
        try:
            method.run(server, fusion, labels, self._method_config(), recorder, keeper)
        except PartyLostError:
            kept = read_state(self._path) if self._path.is_file() else None
            self.resent += _undone(server.ledger, kept)
            raise
        return self._collect(server, recorder)

    def _save_parties(self, tag: str) -> None:
        self._ask_all(Save(tag))

    def _method_config(self) -> Any:
        config: Any = self.settings.config
        n_rows = len(self.problem.y_train)
        return dataclasses.replace(config, batch_size=min(config.batch_size, n_rows))

    def _labels(self, y: NDArray[Any]) -> Tensor:
        stacked = torch.as_tensor(y).unsqueeze(0)
        is_class = self.problem.task == "multiclass"
        return stacked.to(self.device, stacked.dtype if is_class else self.dtype)

    def _fusion(self, n_components: int) -> Network:
        net, problem = self.settings.net, self.problem
        n_outputs = problem.n_classes if problem.task == "multiclass" else 1
        widths = net.fusion_widths(n_components, n_outputs)
        seeds = (self.config.seed,)
        if net.fusion_net is None:
            return MLP.create(
                widths, net.activation, seeds, "the server", self.dtype, self.device
            )
        factory = find_factory(net.fusion_net)
        return Lifted.create(
            factory, widths[0], widths[-1], seeds, "the server", self.dtype, self.device
        )

    def _collect(self, server: Parties, recorder: Recorder) -> dict[str, Any]:
        """Return the numbers that the server has; the parties keep theirs."""
        ledger = server.ledger
        recorder.seconds["total"] = sum(recorder.seconds.values())
        size = self.settings.net.embedding_size
        return {
            "seed": self.config.seed,
            **recorder.summary(0),
            "components": {
                name: {"kept": kept[0], "of": size}
                for name, kept in server.component_counts().items()
            },
            "communication": {
                "payload_bytes": {
                    "up": ledger.direction_bytes(0, "up"),
                    "down": ledger.direction_bytes(0, "down"),
                },
                "wire_bytes": {
                    "up": sum(t.up for t in self.hub.traffic.values()),
                    "down": sum(t.down for t in self.hub.traffic.values()),
                },
                "resent_bytes": self.resent,
                "rounds": ledger.n_rounds(0),
                "paper_mib": ledger.paper_mib(0),
                "by_stage": ledger.by_stage(0),
            },
            "curve": recorder.curves[0],
            "bill": ledger.lines(0),
            "seconds": dict(recorder.seconds),
        }


def _is_evaluation(request: Any) -> bool:
    return isinstance(request, Embed) and request.stage == "evaluate"


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
    for name in ("listen", "status", "wait", "certificate", "key", "ca", "out"):
        values.pop(name)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
