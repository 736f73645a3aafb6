"""One seed of a run at a party: its answers, its progress and its checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessvfl.core.plans import SECRET, QueryPlan, TrainPlan, stream
from lessvfl.core.state import split_state
from lessvfl.data import CellCounts, Encoding, Frame, Scratch, StoredTable, Table
from lessvfl.errors import RecordError
from lessvfl.party import PartyState
from lessvfl.remote.background import write_background
from lessvfl.remote.checkpoint import State, joined, read_state, write_state
from lessvfl.remote.requests import Prepared, SeedProgress
from lessvfl.remote.spent import RunBudget
from lessvfl.remote.tables import OwnTable
from lessvfl.run import verdicts
from lessvfl.run.build import Builder
from lessvfl.run.fitted import NETWORKS, FittedParty
from lessvfl.run.numbers import alone, bare_header, bill_of, party_numbers, privacy
from lessvfl.run.profiles import Settings
from lessvfl.run.ratings import ratings_of
from lessvfl.run.record import RunRecord
from lessvfl.status import Status
from lessvfl.terms import Event
from lessvfl.wire import control, messages
from lessvfl.wire.due import ENDS
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import bill_line

log = logging.getLogger(__name__)

VALUE_BYTES = 8  # of a component of a gradient, the most
SERVER = "server"  # what the other side is called, where it is shown


@dataclass
class SeedState:
    """All that changes in a seed at a party."""

    party: PartyState
    progress: SeedProgress
    ledger: Ledger
    rng: Tensor  # torch's own state


class SeedRun:
    """A seed from its start or from a checkpoint: ``handle(request) -> reply``.

    What leaves is charged to the `budget` and shown in the `status`.
    """

    def __init__(
        self, prepared: Prepared, budget: RunBudget, status: Status, tag: str | None
    ) -> None:
        self.prepared = prepared
        self._budget, self._status = budget, status
        self._name = prepared.checker.party
        self.party = prepared.build()
        self.progress, self._ledger = SeedProgress(), Ledger()
        self._mark = tag  # of the last checkpoint
        self._n_steps = self._n_per_epoch = 0  # of the stage of joint training at hand
        torch.manual_seed(prepared.rows.seed)
        if prepared.private >= SECRET:  # for dropout in a user's network
            torch.set_rng_state(stream(prepared.private, "torch").get_state())
        if tag is None:
            return
        path = self._path(tag)
        if not path.is_file():
            raise RecordError(
                f"Party '{self._name}' must have the checkpoint of {tag}. Got none in "
                f"'{path.parent}'."
            )
        state = joined(SeedState, read_state(path), path)
        self.party.resume(state.party)
        self.progress, self._ledger = state.progress, state.ledger
        torch.set_rng_state(state.rng)

    @property
    def stage_due(self) -> str | None:
        """Return the stage at hand, or the next one; None: all are over."""
        return self.prepared.stage_due(self.progress)

    @property
    def gradient_bytes(self) -> int:
        """Return the most bytes of a gradient: a batch of its embeddings."""
        sizes = [getattr(plan, "batch_size", 0) for plan in self.prepared.plans]
        n_rows = min(max(sizes, default=0), len(self.prepared.rows.train))
        return n_rows * self.party.net.n_outputs * VALUE_BYTES + ENDS

    @property
    def has_queries(self) -> bool:
        """Tell whether any stage has a protocol of its own."""
        return any(isinstance(plan, QueryPlan) for plan in self.prepared.plans)

    # ------------------------------------------------------------------------- requests

    def handle(self, message: Any) -> messages.Reply:
        """Answer a request, if it is one that may come now."""
        done, party = self.progress, self.party
        message = self.prepared.checked(message, party, done)
        rows = "train"
        if isinstance(message, messages.Embed):
            rows = message.rows
            if (message.stage, rows, message.part) == ("evaluate", "test", 0):
                mask = party.features_now().tolist()
                done.seen.append({"kept": [i for i, on in enumerate(mask) if on]})
        self._show(message)
        reply = party.handle(message)
        self._bill(message, reply)
        done.chain = _linked(done.chain, message)
        if isinstance(reply, messages.Embedding):
            n_rows, size = reply.block.values.shape
            n_values = size * n_rows / self.prepared.rows.counts[rows]
            is_asked = isinstance(message, messages.Embed)
            what = message if is_asked else "the next batch"
            self._count(message, what, n_values, sent=reply.block.values)
        elif isinstance(reply, messages.QueryReply):
            assert isinstance(message, messages.Query)
            done.n_answered = message.step + 1
            real = sum(a.numel() for a in reply.arrays if a.is_floating_point())
            if real:  # keys and shares are new every time, and tell nothing
                n_values = real / self.prepared.rows.counts["train"]
                self._count(message, message.step, n_values)
            if reply.n_scored:  # but the sum of shares, whatever the trees are
                self._count(message, "the scores", reply.n_scored)
        elif isinstance(reply, messages.Done):
            if isinstance(message, messages.Select):  # whether anything was kept
                self._count(message, "the selection", 0.0)
            if isinstance(message, messages.Query):
                self._count(message, message.step, 0.0)
            done.n_answered = 0
            all_over, next_one = len(self.prepared.plans), 1 + self.prepared.n_due(done)
            done.behind = all_over if reply.silent else next_one
        match message:
            case messages.Embed("embed"):
                done.sent.append(message.part)
            case messages.Embed("evaluate"):
                done.scored[rows] = message.bits
        return reply

    def _count(
        self,
        message: messages.Request,
        what: object,
        n_values: float,
        sent: Tensor | None = None,
    ) -> None:
        """Charge to the budget the `n_values` values about each row that a reply shows.

        `what` the message asks for, with the step, is their place in the run: the same
        network at the same place is charged once. With noise, it is another look if
        anything else is `sent`, and a look to score has its place in an epoch, whatever
        the bits of a value.
        """
        done = self.progress
        step, network = done.step, bytes.fromhex(done.chain)
        if self.prepared.noise is not None and sent is not None:
            if isinstance(message, messages.Embed) and message.stage == "evaluate":
                step, what = self._epoch(), (message.rows, message.part)
            network += sent.contiguous().numpy().tobytes()
        when = (done.behind, step, what)
        self._budget.spend_view(self.prepared.folder, network, when, n_values)

    def _epoch(self) -> int:
        """Return the epoch of the stage at hand, from 1; 0 between two stages."""
        done, prepared = self.progress, self.prepared
        place = prepared.n_due(done)
        plan = prepared.plans[place] if place < len(prepared.plans) else None
        if done.behind and not self.party.is_training:
            return 0
        if not isinstance(plan, TrainPlan):
            return 1
        batches = self.party.batches(plan)
        return max(1, math.ceil(done.step / batches.n_per_epoch))

    def _show(self, message: messages.Request) -> None:
        """Show the stage of a request, and in training the step."""
        status, done = self._status, self.progress
        match message:
            case messages.Begin(plan, n_done):
                batches = self.party.batches(plan)
                done.step, self._n_steps = n_done, batches.n_steps(plan.n_epochs)
                self._n_per_epoch = batches.n_per_epoch
                status.observe(Event(plan.stage, 0, self._n_steps / self._n_per_epoch))
            case messages.Descend(stage):
                done.step += 1
                status.stepped(stage, done.step, self._n_steps)
                if message.last:
                    epoch = done.step / self._n_per_epoch
                    status.observe(Event(stage, epoch, epoch))
            case messages.Select(_, plan):
                status.observe(Event(plan.stage, 0, 1))
            case messages.Query(stage, 0):
                status.observe(Event(stage, 0, 1))
            case messages.Embed("embed"):
                status.observe(Event("embed", 0, 1))

    def _bill(self, message: messages.Request, reply: messages.Reply) -> None:
        """Put a request and its reply on the party's own bill, as the server does."""
        if not messages.is_billed(message):
            return
        ledger, status = self._ledger, self._status
        ledger.bill_round(message.stage)
        for sent in (message, reply):
            line = bill_line(self._name, sent)
            if line is not None:
                ledger.bill(line)
                n_bytes = {line.direction: line.payload_bytes}
                status.carried(SERVER, **n_bytes, rounds=0, stage=line.stage)
        status.carried(SERVER, stage=message.stage)

    # --------------------------------------------------------------------------- states

    def _path(self, tag: str) -> Path:
        return self.prepared.folder / "checkpoints" / f"{tag}.safetensors"

    def save(self, tag: str) -> None:
        """Save the state under a mark, and delete all but this and the last one.

        The server may go back to the last one: it saves its own state after ours.
        """
        state = SeedState(
            self.party.state, self.progress, self._ledger, torch.get_rng_state()
        )
        write_state(self._path(tag), State(*split_state(state)))
        for path in self._path(tag).parent.glob("*.safetensors"):
            if path.stem not in (tag, self._mark):
                path.unlink(missing_ok=True)
        self._mark = tag
        self._budget.settle()

    # -------------------------------------------------------------------------- the end

    def finish(
        self, of_server: str, network: Path, party_net: str | None
    ) -> dict[str, Any]:
        """Write the network to a folder; return the numbers of this seed.

        `of_server` is a digest of the fusion network that this network goes with.
        """
        done, outcome = self.progress, self.party.outcome()
        prepared, noise = self.prepared, {}
        encoding, rows = prepared.encoding, prepared.rows
        if prepared.noise is not None:
            noise = {"noise": dataclasses.asdict(prepared.noise)}
        fitted = FittedParty.of(encoding, outcome, party_net)
        if done.scored:  # the server has the mean of these rows
            scored = "train" if "train" in done.scored else "test"
            write_background(network, fitted, self.party, scored)
        return {
            "seed": rows.seed,
            **party_numbers(encoding.features, outcome, rows.share),
            "ratings": ratings_of(encoding, outcome),
            "rows": rows.counts,
            "components": {"kept": fitted.n_components, "of": len(outcome.outputs)},
            "communication": bill_of(self._ledger),
            "bill": self._ledger.lines(),
            "models": {"server": of_server, self._name: fitted.save(network)},
            "seen": done.seen,
            "shown": {
                "values": self._budget.values(prepared.folder),
                "columns": len(encoding.groups),
                "scored": done.scored,
                **noise,
            },
            **privacy(None, {self._name: prepared.spend}, (), self._budget.spent()),
        }


def _linked(chain: str, message: messages.Request) -> str:
    """Return a digest of everything that has changed the network, this included."""
    match message:
        case messages.Begin(plan, 0):
            what = plan.stage.encode()
        case messages.Descend():
            values = message.gradient.values.contiguous().numpy()
            what = repr(message.rate).encode() + values.tobytes()
        case messages.Select(components, plan):
            what = repr((plan.stage, components)).encode()
        case messages.Query(stage, step, arrays):
            what = repr((stage, step)).encode()
            what += b"".join(a.contiguous().numpy().tobytes() for a in arrays)
        case _:
            return chain
    return hashlib.sha256(bytes.fromhex(chain) + what).hexdigest()


def encode(
    build: Builder, encoding: Encoding, tables: Sequence[Table], on: Scratch
) -> list[Tensor]:
    """Return encoded rows, in memory or on disk as the tables are."""
    stored = [table for table in tables if isinstance(table, StoredTable)]
    if stored:
        rows, counts = build.stored_rows(stored, encoding, on)
    else:
        rows, counts = [], CellCounts()
    for frame in tables:
        if isinstance(frame, Frame):
            cells, more = encoding.apply(frame)
            rows.append(build.rows(cells))
            counts += more
    for sentence in counts.sentences():
        log.info("%s", sentence)
    return rows


def party_record(
    table: OwnTable, agreed: Settings, welcome: control.Welcome, runs: list[Any]
) -> RunRecord:
    """Return the record of all seeds at a party, with what they recommend to it."""
    party, config, rows = table.party, table.config, runs[0]["rows"]
    header = bare_header(
        table.settings(agreed),
        Path(config.data).stem,
        config.device,
        {},
        side="party",
        party=party,
        parties=list(welcome.parties),
        networks=NETWORKS,
        run=welcome.run,
        reveal=config.reveal,
        align=config.align,
    ) | {"profile": None}
    header["data"] |= {
        "n_train": rows["train"],
        "n_test": rows["test"],
        "n_features": len(runs[0]["kept"]) + len(runs[0]["removed"]),
        "n_parties": len(welcome.parties),
    }
    made = [alone(party, one) for one in runs]
    return RunRecord(header, made, "complete", consensus=verdicts.agreed(made))
