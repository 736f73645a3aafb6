"""``lessvfl bench privacy``: attacks on the messages of runs, and defences."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lessvfl import data, methods
from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.plans import SECRET
from lessvfl.data import PartyTable, Problem
from lessvfl.errors import ConfigError
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl.run.build import Builder
from lessvfl.run.bundles import BUNDLES
from lessvfl.run.simulate import Job, Run
from lessvfl.wire.messages import Transport
from lessvfl_bench.pages.privacy import build_privacy
from lessvfl_bench.privacy import counts, drawn, labels, noise, start, tables, values
from lessvfl_bench.privacy.tables import NOTHING, PARTS, SPURIOUS
from lessvfl_bench.privacy.traffic import (
    AnyArray,
    LargerSteps,
    Recording,
    ServerView,
    Shared,
    own_embeddings,
    party_view,
    server_view,
)
from lessvfl_bench.study import NameList, NumberList, Study, check_options, option

DATA = ("phishing", "credit", "rosmap", "activity_time265")
# Settings of a run by the name of a defence; what travels takes 4 bits anyway, 8 where
# rows are few.
_SINGLE: dict[str, dict[str, Any]] = {
    NOTHING: {},
    "labels-8": {"label_epsilon": 8.0},
    "labels-3": {"label_epsilon": 3.0},
    "labels-1": {"label_epsilon": 1.0},
    "marvell-1": {"gradient_defence": "marvell", "gradient_noise": 1.0},
    "marvell-4": {"gradient_defence": "marvell", "gradient_noise": 4.0},
    "max-norm": {"gradient_defence": "max-norm"},
    "gradient-noise-0.2": {"gradient_defence": "gaussian", "gradient_noise": 0.2},
    "gradient-noise-1": {"gradient_defence": "gaussian", "gradient_noise": 1.0},
    "deeper-head": {"fusion_depth": 3},
    "embedding-noise-0.3": {"embedding_noise": 0.3},
    "embedding-noise-1": {"embedding_noise": 1.0},
    "embedding-noise-3": {"embedding_noise": 3.0},
    "first-layer-noise-1": {"embedding_noise": 1.0, "noise_at": "first-layer"},
    "one-component": {"embedding_size": 1},
    "four-bits": {"bits": 4},
    "all-bits": {"bits": 32},
}
_TOGETHER = {name: dict(bundle.settings) for name, bundle in BUNDLES.items()}
DEFENCES = _SINGLE | {k: v for k, v in _TOGETHER.items() if v not in _SINGLE.values()}
FACTOR = 10.0  # of the steps of a party that completes its model actively

PrivacyCase = tuple[str, str, str, str, int]
Attacked = dict[str, dict[str, float]]  # score, control and shuffled by attack


@dataclass(frozen=True)
class Privacy(Study):
    """Attacks on the messages of runs, beside what the attacker knows without them.

    Every run has 50 % planted noise. Attacks on labels are each party's, on the rows
    that it is told and the gradients that it is sent; attacks on columns, and on
    embeddings with noise, are the server's, on what parties send. The leak is an
    attack's score less its control: the same attacker without the traffic. 'shuffled'
    is the attack where labels or rows are in random order. Labels are scored by AUC, of
    several classes in the mean over classes, columns and embeddings by R2; all are
    means over parties and seeds. 'label-bound' and 'strict' are those of --privacy,
    unless a single defence is the same. DCS is the Defence Capability Score of VFLAIR.
    """

    data: NameList = option(DATA, "By name or file.")
    methods: NameList = option((methods.DEFAULT,), "See 'lessvfl methods'.")
    defences: NameList = option(tuple(DEFENCES), "By name, some of them.")
    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    smallest: ClassVar = {
        "data": ("breast-cancer",),
        "defences": (NOTHING,),
        "seeds": (0,),
    }

    def __post_init__(self) -> None:
        """Check the options."""
        lists: dict[str, Any] = {"data": self.data, "methods": self.methods}
        lists |= {"defences": self.defences, "seeds": self.seeds}
        check_options(lists, {"defences": (self.defences, tuple(DEFENCES))})

    def cases(self) -> list[PrivacyCase]:
        """Return data set, method, defence, its settings in words, and seed."""
        return [
            (name, method, defence, _words(DEFENCES[defence]), seed)
            for name in self.data
            for method in self.methods
            for defence in self.defences
            for seed in self.seeds
        ]

    def measure(self, case: PrivacyCase) -> dict[str, Any]:
        """Run one, and attack it from every side; a defence may not be for it."""
        name, method, defence, _, seed = case
        dataset = data.load(name, data_dir=self.data_dir)
        if dataset.task == "regression":
            raise ConfigError(
                "The attacks on labels are on classes: every data set must have some. "
                f"Got '{name}', whose labels are amounts."
            )
        try:
            own = profiles.resolve(method, "default", dataset, DEFENCES[defence])
            job = Job(dataset, own, spurious=SPURIOUS)
            run, recording = recorded(job, seed)
        except ConfigError as error:
            if defence == NOTHING:
                raise
            return {"skipped": str(error)}
        y, numbers, problem = true_labels(job, seed), run.numbers, run.problem
        server = server_view(
            recording,
            Shared.of(problem, seed),
            [table.name for table in problem.parties],
        )
        found = attacked(recording, server, run, y, seed)
        sent = numbers["communication"]["payload_bytes"]
        return {
            "balanced_accuracy": numbers["balanced_accuracy"]["final"],
            "noise": numbers["spurious"]["removed_share"],
            "real": numbers["spurious"]["real_kept_share"],
            "megabytes": sum(sent.values()) / 1e6,
            "n_classes": problem.n_classes,
            "attacks": found
            | active_completion(job, y, seed, problem.parties[0].name)
            | before_training(job, problem, y, seed)
            | without_noise(job, run, seed),
            "parties": [
                counts.observed(server, numbers, table.name)
                for table in problem.parties
            ],
        }

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield tables of runs, of attacks, and of what counts and alignment tell."""
        for title, rows in tables.tables(found).items():
            yield from (f"{title}:", "")
            yield from markdown_table(rows[0], (row.values() for row in rows))
            yield ""
        yield from tables.skipped(found)

    def page(self, found: Mapping[Any, Any], out: Path) -> Path:
        """Write the page of all of it."""
        return build_privacy(found, out)


def recorded(job: Job, seed: int, pushing: str | None = None) -> tuple[Run, Recording]:
    """Run one seed; return the run and its messages.

    The party `pushing` takes larger steps than it is told to.
    """
    recording = Recording(one_by_one=True)

    def around(transport: Transport) -> Transport:
        if pushing is not None:
            transport = LargerSteps(transport, pushing, FACTOR)
        return recording.around(transport)

    (run,) = simulate.simulate(job, [seed], around=around)
    return run, recording


def _words(settings: Mapping[str, Any]) -> str:
    """Write settings as on the command line."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


def told_rows(job: Job, seed: int) -> drawn.ToldRows:
    """Return the rows to train and to test with, as a party is told them."""
    dataset = job.dataset
    numbered = dataclasses.replace(
        dataset, weight=np.arange(1, 1 + len(dataset.y), dtype=np.float64)
    )
    weight = dataclasses.replace(job, dataset=numbered).problem(seed).sample_weight
    assert weight is not None
    train = weight.astype(int) - 1
    return drawn.ToldRows(seed, train, np.setdiff1d(np.arange(len(dataset.y)), train))


def true_labels(job: Job, seed: int) -> AnyArray:
    """Return the labels of training rows as they are, whatever training is told."""
    labels: AnyArray = job.dataset.y[told_rows(job, seed).train]
    return labels


def before_training(job: Job, problem: Problem, y: AnyArray, seed: int) -> Attacked:
    """Attack labels by what parties are told first: rows, and first gradients."""
    told = drawn.measure(told_rows(job, seed), job.dataset.y, seed)
    by_weights = start.measure(job, problem, y, seed)
    return {drawn.TOLD: told} | ({start.START: _mean(by_weights)} if by_weights else {})


def without_noise(job: Job, run: Run, seed: int) -> Attacked:
    """Take the noise off embeddings that a party's trained network may release.

    Of the first party that kept anything; nothing where they have no noise.
    """
    own = job.settings
    mechanism = Builder(own, seed, "cpu").embedding_noise
    tables_of = zip(run.problem.parties, run.model.parties, strict=True)
    learnt = (own_embeddings(table, model) for table, model in tables_of)
    rows = next((one for one in learnt if one is not None), None)
    if mechanism is None or own.data.noise_at == "first-layer" or rows is None:
        return {}
    guard = EmbeddingGuard(mechanism, "party", SECRET + seed)
    return noise.measure(rows, guard)


def attacked(
    recording: Recording, server: ServerView, run: Run, y: AnyArray, seed: int
) -> Attacked:
    """Attack a run from every side; return means over the parties that were attacked.

    `y` are the true labels, which the server has.
    """
    problem, shared = run.problem, Shared.of(run.problem, seed)
    each: dict[str, list[dict[str, float]]] = {}
    for table, model in zip(problem.parties, run.model.parties, strict=True):
        view = party_view(recording, shared, table, model)
        looks, X = server.embeddings[table.name], real_columns(table)
        of_labels = labels.measure(view, y, problem.n_classes, seed)
        of_columns = values.measure(looks, X, y, seed)
        for attack, one in (of_labels | of_columns).items():
            each.setdefault(attack, []).append(one)
    return {attack: _mean(some) for attack, some in each.items()}


def _mean(some: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of an attack over parties."""
    return {part: statistics.fmean(one[part] for one in some) for part in PARTS}


def active_completion(job: Job, y: AnyArray, seed: int, pushing: str) -> Attacked:
    """Run again with a first party that takes large steps; complete its model.

    `pushing` is its name. Nothing where it is sent no gradient.
    """
    run, recording = recorded(dataclasses.replace(job, curve=False), seed, pushing)
    problem = run.problem
    table, model = problem.parties[0], run.model.parties[0]
    view = party_view(recording, Shared.of(problem, seed), table, model)
    if not view.gradients:
        return {}
    return {labels.ACTIVE: labels.completion(view, y, problem.n_classes, seed)}


def real_columns(table: PartyTable) -> AnyArray:
    """Return a party's encoded columns without the planted ones."""
    planted = np.asarray(table.spurious)[table.groups]
    return table.X_train[:, ~planted]
