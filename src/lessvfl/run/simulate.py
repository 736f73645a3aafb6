"""All parties in one process: data, networks, parties and a method become runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lessvfl import data, methods
from lessvfl.core.device import resolve_device, threads_for
from lessvfl.core.keeper import Keeper
from lessvfl.core.network import Network
from lessvfl.core.party_data import Outcome
from lessvfl.data import Dataset, Problem
from lessvfl.errors import ConfigError, LessVFLWarning, warn
from lessvfl.run import accounting, numbers, profiles
from lessvfl.run.accounting import Extent
from lessvfl.run.build import Builder, Networks, check_pinned, clamp_batch
from lessvfl.run.fitted import FittedModel, FittedParty
from lessvfl.run.processes import processes
from lessvfl.run.profiles import Settings
from lessvfl.run.ratings import ratings_of
from lessvfl.run.recorder import Recorder
from lessvfl.run.session import run_seed
from lessvfl.terms import Evaluation, Event, PartyId, Progress, Stage
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.messages import Transport
from lessvfl.wire.parties import Parties

Around = Callable[[Transport], Transport]


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
        settings, n_classes = self.settings, len(self.dataset.label_names)
        data.check_labels(self.dataset, settings.labels)
        labels = accounting.of_labels(settings, n_classes, len(parties), n_seeds)
        columns = accounting.of_columns(settings, self.extent(n_seeds, len(parties)))
        unpriced = accounting.unpriced(settings, n_classes)
        return numbers.privacy(labels, dict.fromkeys(parties, columns), unpriced)

    def extent(self, n_seeds: int, n_parties: int) -> Extent:
        """Return how often rows are in so many seeds."""
        n_rows = self.dataset.X.n_rows
        return Extent(n_parties, self.evaluation, n_seeds, n_rows=n_rows)

    def problem(self, seed: int) -> Problem:
        """Prepare one seed's data: divided among parties, and in train and test."""
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
    seeds: Sequence[int],
    progress: Progress | None = None,
    done: Callable[[Run], None] = lambda run: None,
    around: Around = lambda transport: transport,
    n_jobs: int = 1,
) -> list[Run]:
    """Run a method with all parties in this process.

    Parameters
    ----------
    job : Job
        What to run.
    seeds : sequence of int
        One run each.
    progress : Progress, optional
        Told how far the runs are.
    done : callable
        Given every run as soon as it is over: a later one may fail.
    around : callable
        Given the transport of every run in this process; returns the one that is used.
        One that wraps it sees every message.
    n_jobs : int
        How many runs go on at a time; more than one are in processes of their own.

    Returns
    -------
    list of Run
        In the order of `seeds`.
    """
    if not seeds:
        raise ConfigError("At least one seed must be given. Got none.")
    problems = {seed: job.problem(seed) for seed in seeds}
    parties = [table.name for table in problems[seeds[0]].parties]
    spent = job.privacy(len(seeds), parties)  # refused before the hours
    noisy = accounting.with_noise(job.settings, job.extent(len(seeds), len(parties)))
    if n_jobs > 1 and len(seeds) > 1:
        finished = _run_in_processes(
            job, noisy, seeds, min(n_jobs, len(seeds)), progress
        )
    else:
        finished = _run_in_turn(job, noisy, problems, progress, around)
    runs: dict[int, Run] = {}
    for seed, run in finished:
        run.numbers.update(spent)
        runs[seed] = run
        done(run)
    return [runs[seed] for seed in seeds]


def _run_in_turn(
    job: Job,
    settings: Settings,
    problems: Mapping[int, Problem],
    progress: Progress | None,
    around: Around,
) -> Iterator[tuple[int, Run]]:
    """Yield the runs of seeds, one after the other."""
    reporter = _ProgressReporter(progress)
    for number, (seed, problem) in enumerate(problems.items(), start=1):
        if progress is not None:
            progress.begin_seed(seed, number, len(problems))
        yield seed, _run_seed(job, settings, seed, problem, reporter, around)


def _run_in_processes(
    job: Job,
    settings: Settings,
    seeds: Sequence[int],
    n_jobs: int,
    progress: Progress | None,
) -> Iterator[tuple[int, Run]]:
    """Yield each seed and its run as soon as it is over, `n_jobs` at a time."""
    with processes(n_jobs) as submit:
        pending = {
            submit(_run_alone, job, settings, s): s for s in dict.fromkeys(seeds)
        }
        for number, future in enumerate(as_completed(pending), start=1):
            run, warned = future.result()
            for sentence in warned:
                warn(sentence)
            if progress is not None:
                progress.begin_seed(pending[future], number, len(pending))
            yield pending[future], run


def _run_alone(job: Job, settings: Settings, seed: int) -> tuple[Run, list[str]]:
    """Return the run of one seed, and the warnings that it gave, as texts."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LessVFLWarning)
        reporter = _ProgressReporter(None)
        run = _run_seed(
            job, settings, seed, job.problem(seed), reporter, around=lambda t: t
        )
    return run, [str(w.message) for w in caught if w.category is LessVFLWarning]


class _ProgressReporter(Keeper):
    """Tells how far runs are, some times a second: most steps cost it one look."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.ledgers: list[Ledger] = []  # of the runs so far
        self._last = 0.0  # when a step was reported

    def reached(
        self,
        stage: Stage,
        step: int,
        n_steps: int | None,
        state: Callable[[], object],
    ) -> None:
        """Tell of a step, unless another was reported just now."""
        if n_steps is None:
            return
        now = time.monotonic()
        if self.progress is None or (now - self._last < 0.2 and step < n_steps):
            return
        self._last = now
        self.progress.stepped(stage, step, n_steps)
        self._tell_bytes()

    def observe(self, event: Event) -> None:
        """Tell of an epoch."""
        if self.progress is not None:
            self.progress.observe(event)
            self._tell_bytes()

    def scored(self, value: float, name: str) -> None:
        """Tell the score of a run."""
        if self.progress is not None:
            self.progress.scored(value, name)

    def _tell_bytes(self) -> None:
        assert self.progress is not None
        self.progress.sent(
            sum(ledger.direction_bytes("up") for ledger in self.ledgers),
            sum(ledger.direction_bytes("down") for ledger in self.ledgers),
            sum(ledger.n_rounds for ledger in self.ledgers),
        )


def _run_seed(
    job: Job,
    settings: Settings,
    seed: int,
    problem: Problem,
    reporter: _ProgressReporter,
    around: Around,
) -> Run:
    """Wire everything, run the method, and gather what it leaves.

    `settings` are the job's, with noise in the place of an epsilon.
    """
    usual = profiles.resolve(settings.method, job.settings.profile, job.dataset)
    config: Any = clamp_batch(
        settings.config,
        len(problem.y_train),
        aloud=job.settings.config.batch_size != usual.config.batch_size,
    )
    features = [name for table in problem.parties for name in table.features]
    check_pinned(config.pinned(), features, "the parties")
    device = resolve_device(job.device, problem.largest_table)
    build = Builder(settings, seed, device.type, job.networks)
    labels = build.server_labels(problem)
    tested: list[Tensor] = []
    uses_alone = methods.get(settings.method).uses_alone
    parties = [
        build.party(
            table.name,
            (build.rows(table.X_train), build.rows(table.X_test)),
            table.groups,
            table.features,
            reporter.observe,
            blocks=labels.blocks,
            alone=build.rows(table.X_alone)
            if uses_alone and table.X_alone is not None
            else None,
            places=build.blocks(problem.places),
        )
        for table in problem.parties
    ]
    ledger = Ledger()
    reporter.ledgers.append(ledger)
    transport = around(InProcess({party.name: party.handle for party in parties}))
    server = Parties(transport, [party.name for party in parties], ledger)
    recorder = Recorder(
        problem,
        labels.y,
        build.labels(problem.y_test, problem.task),
        reporter.observe,
        job.evaluation,
        server,
        parties,
        scored=reporter.scored,
        tested=tested.append,
    )
    n_weights = sum(w.numel() for party in parties for w in party.net.parameters())
    with threads_for(config.batch_size * n_weights):
        fusion, of_server = run_seed(build, labels, recorder, lambda: reporter)
    outcomes = [party.outcome() for party in parties]
    bill = ledger.lines()
    tests = tested[-1] if tested else None
    return _left(job, problem, fusion, of_server, outcomes, bill=bill, tested=tests)


def _left(
    job: Job,
    problem: Problem,
    fusion: Network,
    of_server: dict[str, Any],
    outcomes: Sequence[Outcome],
    **more: Any,
) -> Run:
    """Return what a run leaves: the numbers of all sides, and the fitted model."""
    net_config, networks = job.settings.net, job.networks
    share = numbers.class_share(problem)
    of_parties, ratings, parties, components = {}, {}, [], {}
    for table, outcome in zip(problem.parties, outcomes, strict=True):
        name, given = table.name, networks.of(table.name)
        of_parties[name] = numbers.party_numbers(table.features, outcome, share)
        rating = ratings_of(table.encoding, outcome)
        if rating is not None:
            ratings[name] = rating
        source = net_config.party_net if given is None else "given"
        parties.append(FittedParty.of(table.encoding, outcome, source))
        components[name] = outcome.outputs
    planted = [
        name
        for table in problem.parties
        for name, is_planted in zip(table.features, table.spurious, strict=True)
        if is_planted
    ]
    model = FittedModel.of(
        problem,
        fusion,
        net_config.fusion_net if networks.fusion is None else "given",
        components,
        feature_names=(*job.dataset.X.names, *planted),
        parties=tuple(parties),
    )
    joined = numbers.join_numbers(of_server, of_parties, problem)
    return Run(joined, model, problem, ratings=ratings, **more)
