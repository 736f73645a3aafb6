"""All parties in one process: data, networks, parties and a method become runs.

:func:`simulate` runs every seed (or every setting given as a replica) as one batch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lessvfl import data, methods
from lessvfl.core.device import resolve_device, threads_for
from lessvfl.core.keeper import Keeper
from lessvfl.core.network import Network
from lessvfl.core.party_data import Outcome
from lessvfl.data import Dataset, PartyTable, Problem
from lessvfl.errors import ConfigError
from lessvfl.party import Party
from lessvfl.run import accounting, numbers, profiles
from lessvfl.run.accounting import Extent
from lessvfl.run.build import (
    Builder,
    Networks,
    check_pinned,
    clamp_batch,
    n_outputs,
)
from lessvfl.run.fitted import FittedModel, FittedParty
from lessvfl.run.profiles import Settings
from lessvfl.run.ratings import ratings_of
from lessvfl.run.recorder import Recorder
from lessvfl.terms import Evaluation, Event, PartyId, Progress, Stage
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.messages import Transport
from lessvfl.wire.parties import Parties

Around = Callable[[Transport], Transport]


@dataclass(frozen=True)
class Replica:
    """One run of a batch: its seed, and settings of its own where they differ.

    Parameters
    ----------
    seed : int
        Seed of the split, the initial weights and the batches.
    lam_party, lam_server : float, optional
        Lambdas of this run alone; those of the job's settings unless given.
    """

    seed: int
    lam_party: float | None = None
    lam_server: float | None = None


@dataclass(frozen=True)
class Job:
    """What to run: data, how to split them, settings, and where to compute.

    Parameters
    ----------
    dataset : Dataset
        From `lessvfl.data.load` or `lessvfl.data.from_arrays`.
    settings : Settings
        From `lessvfl.resolve`.
    parties : int, sequence of int or dict, optional
        How many parties, their numbers of columns, or party name -> columns (names or
        globs); what the data set says unless given.
    spurious : float or sequence of float
        Planted noise as a share of a party's columns, for all or for each.
    groups : dict, optional
        Feature name -> columns of one party that are one feature.
    device : str
        ``cpu``, ``cuda`` or ``auto``.
    networks : Networks
        Networks of one's own.
    curve : bool
        Whether to score after every epoch.
    bundle : str, optional
        The bundle of defences that was chosen, which the record names.
    """

    dataset: Dataset
    settings: Settings
    parties: int | Sequence[int] | Mapping[str, Sequence[str]] | None = None
    spurious: float | Sequence[float] = 0.0
    groups: Mapping[str, Sequence[str]] | None = None
    device: str = "cpu"
    networks: Networks = Networks()
    curve: bool = True
    bundle: str | None = None

    @property
    def evaluation(self) -> Evaluation:
        """Return when test rows are scored.

        With noise on embeddings at the end alone, as between machines: every evaluation
        tells of the rows once more.
        """
        if not self.curve:
            return "nothing"
        return "end" if self.settings.data.has_noise else "epochs"

    def privacy(self, n_seeds: int, parties: Sequence[PartyId]) -> dict[str, Any]:
        """Return what so many seeds together spend, as an entry of a run's numbers.

        Every seed counts, each with all that it may send of a row: a simulation splits
        the same table anew for each, so that a row may be in all of them.
        """
        own, n_classes = self.settings, len(self.dataset.label_names)
        data.check_labels(self.dataset, own.labels)
        labels = accounting.of_labels(own, n_classes, len(parties), n_seeds)
        columns = accounting.of_columns(own, self.extent(n_seeds, len(parties)))
        of_each = dict.fromkeys(parties, columns)
        return numbers.privacy(labels, of_each, accounting.unpriced(own, n_classes))

    def extent(self, n_seeds: int, n_parties: int) -> Extent:
        """Return how often rows are in so many seeds."""
        n_rows = self.dataset.X.n_rows
        return Extent(n_parties, self.evaluation, n_seeds, n_rows=n_rows)

    def problem(self, seed: int) -> Problem:
        """Prepare the rows of one seed."""
        return data.prepare(
            self.dataset,
            self.settings.data,
            parties=self.parties,
            spurious=self.spurious,
            seed=seed,
            groups=self.groups,
            labels=self.settings.labels,
            in_order=self.settings.keeps_order,
        )


@dataclass(frozen=True)
class Run:
    """One finished run: its numbers (the JSON contract), its model and its bill.

    `ratings` are by party how it rated its own features, which between machines its own
    record has and no other (`docs/json.md`); empty with a method that rates none.
    `tested` is what the network says of the test rows, (n, outputs), if there are any.
    """

    numbers: dict[str, Any]
    model: FittedModel
    problem: Problem
    bill: list[dict[str, str | int]]
    ratings: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    tested: Tensor | None = field(default=None, repr=False)


def simulate(
    job: Job,
    seeds: Sequence[int | Replica],
    progress: Progress | None = None,
    done: Callable[[Run], None] = lambda run: None,
    around: Around = lambda transport: transport,
) -> list[Run]:
    """Run a method with all parties in this process.

    Parameters
    ----------
    job : Job
        What to run.
    seeds : sequence of int or Replica
        One run each. Runs whose tables have equal shapes share one batch.
    progress : Progress, optional
        Told how far the runs are.
    done : callable
        Given every run as soon as it is over: a later one may fail.
    around : callable
        Given the transport of every batch of runs; returns the one that is used. One
        that wraps it sees every message.

    Returns
    -------
    list of Run
        In the order of `seeds`.
    """
    replicas = [s if isinstance(s, Replica) else Replica(s) for s in seeds]
    if not replicas:
        raise ConfigError("At least one seed must be given. Got none.")
    problems = {seed: job.problem(seed) for seed in {r.seed: None for r in replicas}}
    batches: dict[Any, list[int]] = {}
    method = methods.get(job.settings.method)
    ends_alone = job.settings.config.schedule == "watched"  # each in its own time
    alone = ends_alone or method.one_by_one
    for index, replica in enumerate(replicas):
        key = (_signature(problems[replica.seed]), index if alone else None)
        batches.setdefault(key, []).append(index)
    parties = [table.name for table in problems[replicas[0].seed].parties]
    spent = job.privacy(len(replicas), parties)  # refused before the hours
    extent = job.extent(len(replicas), len(parties))
    noisy = accounting.with_noise(job.settings, extent)
    runs: dict[int, Run] = {}
    teller = _ProgressReporter(progress)
    for indices in batches.values():
        chosen = [replicas[index] for index in indices]
        if progress is not None and len(chosen) == 1:
            progress.begin_seed(chosen[0].seed, indices[0] + 1, len(replicas))
        own = [problems[r.seed] for r in chosen]
        batch = _Batch(job, noisy, chosen, own, teller, around)
        for index, run in zip(indices, batch.run(), strict=True):
            run.numbers.update(spent)
            runs[index] = run
            done(run)
    return [runs[index] for index in range(len(replicas))]


def _signature(problem: Problem) -> tuple[Any, ...]:
    """Return what must be equal for runs to share a batch."""
    tables = tuple(
        (p.name, p.X_train.shape, p.features, p.n_alone) for p in problem.parties
    )
    alone = problem.blocks is None
    return (*tables, problem.y_test.shape, problem.label_names, alone)


class _ProgressReporter(Keeper):
    """Tells how far runs are, some times a second: most steps cost it one look."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.ledgers: list[Ledger] = []  # of the runs so far
        self._told = 0.0

    def reached(self, stage: Stage, step: int, n_steps: int) -> None:
        """Tell of a step, unless another was told just now."""
        now = time.monotonic()
        if self.progress is None or (now - self._told < 0.2 and step < n_steps):
            return
        self._told = now
        self.progress.stepped(stage, step, n_steps)
        self._tell_bytes()

    def observe(self, event: Event) -> None:
        """Tell of an epoch."""
        if self.progress is not None:
            self.progress.observe(event)
            self._tell_bytes()

    def scored(self, value: float, name: str) -> None:
        """Tell the score of the first run of a batch."""
        if self.progress is not None:
            self.progress.scored(value, name)

    def _tell_bytes(self) -> None:
        assert self.progress is not None
        bills = [(one, r) for one in self.ledgers for r in range(one.n_replicas)]
        self.progress.sent(
            sum(ledger.direction_bytes(r, "up") for ledger, r in bills),
            sum(ledger.direction_bytes(r, "down") for ledger, r in bills),
            sum(ledger.n_rounds(r) for ledger, r in bills),
        )


class _Batch:
    """Runs that share one batch of tensors."""

    def __init__(
        self,
        job: Job,
        settings: Settings,
        replicas: list[Replica],
        problems: list[Problem],
        teller: _ProgressReporter,
        around: Around,
    ) -> None:
        self.job = job
        self.around = around
        self.teller = teller
        self.replicas = replicas
        self.problems = problems
        first, seeds = problems[0], [replica.seed for replica in replicas]
        device = resolve_device(job.device, first.largest_table)
        self.build = Builder(settings, seeds, device.type, job.networks)
        self.labels = self.build.server_labels(problems)
        y_test = self.build.labels([p.y_test for p in problems], first.task)
        self._tested: dict[int, Tensor] = {}
        self.recorder = Recorder(
            problems,
            self.labels.y,
            y_test,
            teller.observe,
            job.evaluation,
            scored=teller.scored,
            tested=self._tested.__setitem__,
        )

    def run(self) -> Iterator[Run]:
        """Wire everything, run the method, and gather what it leaves."""
        config, first = self._config(), self.problems[0]
        features = [f for table in first.parties for f in table.features]
        check_pinned(config.pinned(), features, "the parties")
        parties = [self._party(index) for index in range(len(first.parties))]
        handlers = {party.name: party.handle for party in parties}
        transport = self.around(InProcess(handlers))
        names = [party.name for party in parties]
        ledger = Ledger(len(self.replicas))
        self.teller.ledgers.append(ledger)
        server = Parties(transport, names, ledger)
        self.recorder.attach(server, parties)
        fusion = self.build.fusion_network(
            sum(server.sizes.values()), n_outputs(first.task, first.n_classes)
        )
        method = methods.get(self.job.settings.method)
        params = [w for party in parties for w in party.net.parameters()]
        step = config.batch_size * sum(w.numel() for w in params)
        with threads_for(step), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.build.seeds[0])  # a user's dropout and the like
            fusion = method.run(
                server, fusion, self.labels, config, self.recorder, self.teller
            )
        for index in range(len(self.replicas)):
            yield self._collect(index, server, parties, fusion)

    def _config(self) -> Any:
        """Return the method's settings, lambdas spread over the replicas."""
        settings = self.job.settings
        n_rows = len(self.problems[0].y_train)
        config: Any = clamp_batch(settings.config, n_rows, aloud=self._batch_is_given())
        for name in ("lam_party", "lam_server"):
            own = [getattr(replica, name) for replica in self.replicas]
            if all(value is None for value in own):
                continue
            if not hasattr(config, name):
                raise ConfigError(
                    f"A replica's '{name}' must be left out with method "
                    f"{settings.method}, which does not read it. Got {own}."
                )
            shared = getattr(config, name)
            spread = tuple(shared if v is None else v for v in own)
            config = dataclasses.replace(config, **{name: spread})
        return config

    def _batch_is_given(self) -> bool:
        """Tell whether the rows of a step are other than where the profile starts."""
        own = self.job.settings
        usual = profiles.resolve(own.method, own.profile, self.job.dataset)
        return own.config.batch_size != usual.config.batch_size

    def _party(self, index: int) -> Party:
        tables = [problem.parties[index] for problem in self.problems]
        return self.build.party(
            tables[0].name,
            (
                self.build.rows([table.X_train for table in tables]),
                self.build.rows([table.X_test for table in tables]),
            ),
            tables[0].groups,
            tables[0].features,
            self.recorder,
            blocks=self.labels.blocks,
            alone=self._alone(tables),
            places=self.build.blocks([problem.places for problem in self.problems]),
        )

    def _alone(self, tables: Sequence[PartyTable]) -> Tensor | None:
        """Return the rows that a party has alone, where the method uses any."""
        given = [table.X_alone for table in tables if table.X_alone is not None]
        is_used = methods.get(self.job.settings.method).uses_alone
        return self.build.rows(given) if given and is_used else None

    # ----------------------------------------------------------------------- collecting

    def _collect(
        self, r: int, server: Parties, parties: list[Party], fusion: Network
    ) -> Run:
        problem = self.problems[r]
        outcomes = [party.outcome(r) for party in parties]
        share = numbers.class_share(problem)
        own = {
            table.name: numbers.party_numbers(table.features, outcome, share)
            for table, outcome in zip(problem.parties, outcomes, strict=True)
        }
        rated = {
            table.name: ratings_of(table.encoding, outcome)
            for table, outcome in zip(problem.parties, outcomes, strict=True)
        }
        seed = self.replicas[r].seed
        of_server = numbers.server_numbers(seed, r, server, self.recorder.recorded(r))
        net = fusion.replica(r)
        of_server |= numbers.trees_of(net, server)
        return Run(
            numbers.join_numbers(of_server, own, problem),
            self._model(net, problem, outcomes),
            problem,
            server.ledger.lines(r),
            {name: found for name, found in rated.items() if found is not None},
            self._tested.get(r),
        )

    def _model(
        self, fusion: Network, problem: Problem, outcomes: list[Outcome]
    ) -> FittedModel:
        net_config, networks = self.job.settings.net, self.job.networks
        parties, components = [], {}
        for table, outcome in zip(problem.parties, outcomes, strict=True):
            given = networks.of(table.name)
            source = net_config.party_net if given is None else "given"
            parties.append(FittedParty.of(table.encoding, outcome, source))
            components[table.name] = outcome.outputs
        planted = [
            name
            for table in problem.parties
            for name, is_planted in zip(table.features, table.spurious, strict=True)
            if is_planted
        ]
        return FittedModel.of(
            problem,
            fusion,
            net_config.fusion_net if networks.fusion is None else "given",
            components,
            feature_names=(*self.job.dataset.X.names, *planted),
            parties=tuple(parties),
        )
