"""``lessvfl bench privacy``: attacks on the messages of runs, and defences."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lessvfl import data, methods
from lessvfl.data import PartyTable, Problem
from lessvfl.errors import ConfigError
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl.run.simulate import Job, Run
from lessvfl.wire.messages import Transport
from lessvfl_bench.privacy import labels, values
from lessvfl_bench.privacy.traffic import (
    AnyArray,
    LargerSteps,
    Recording,
    Shared,
    party_view,
    server_view,
)
from lessvfl_bench.study import NameList, NumberList, Study, check_options, mean, option

DATA = ("phishing", "credit", "rosmap", "activity_time265")
NOTHING = "none"
# Settings of a run by the name of a defence.
DEFENCES: dict[str, dict[str, Any]] = {
    NOTHING: {},
    "labels-8": {"label_epsilon": 8.0},
    "labels-3": {"label_epsilon": 3.0},
    "labels-1": {"label_epsilon": 1.0},
    "marvell": {"gradient_defence": "marvell", "gradient_noise": 4.0},
    "max-norm": {"gradient_defence": "max-norm"},
    "gradient-noise": {"gradient_defence": "gaussian", "gradient_noise": 1.0},
    "embedding-noise": {"embedding_noise": 1.0},
    "one-component": {"embedding_size": 1},
    "two-bits": {"bits": 2},
}
SPURIOUS = 0.5
FACTOR = 10.0  # of the steps of a party that completes its model actively
BETA = 0.5  # the weight of the main task in the Defence Capability Score, as VFLAIR's
PARTS = ("score", "control", "shuffled")

Attacked = dict[str, dict[str, float]]  # score, control and shuffled by attack


@dataclass(frozen=True)
class Privacy(Study):
    """Attacks on the messages of runs, beside what the attacker knows without them.

    Every run has 50 % planted noise. Attacks on labels are each party's, on the
    gradients that it is sent; attacks on columns are the server's, on embeddings. The
    leak is an attack's score less its control: the same attacker without the traffic.
    'shuffled' is the attack where labels or rows are in random order. Labels are scored
    by AUC, of several classes in the mean over classes, columns by R2; both are means
    over parties and seeds. DCS is the Defence Capability Score of VFLAIR.
    """

    data: NameList = option(DATA, "By name or file.")
    methods: NameList = option((methods.DEFAULT,), "See 'lessvfl methods'.")
    defences: NameList = option((NOTHING,), f"Some of {', '.join(DEFENCES)}.")
    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    smallest: ClassVar = {"data": ("breast-cancer",), "seeds": (0,)}

    def __post_init__(self) -> None:
        """Check the options."""
        lists: dict[str, Any] = {"data": self.data, "methods": self.methods}
        lists |= {"defences": self.defences, "seeds": self.seeds}
        check_options(lists, {"defences": (self.defences, tuple(DEFENCES))})

    def cases(self) -> list[tuple[str, str, str, int]]:
        """Return data set, method, defence and seed."""
        return [
            (name, method, defence, seed)
            for name in self.data
            for method in self.methods
            for defence in self.defences
            for seed in self.seeds
        ]

    def measure(self, case: tuple[str, str, str, int]) -> dict[str, Any]:
        """Run one, and attack it from every side."""
        name, method, defence, seed = case
        dataset = data.load(name, data_dir=self.data_dir)
        if dataset.task == "regression":
            raise ConfigError(
                "The attacks on labels are on classes: every data set must have some. "
                f"Got '{name}', whose labels are amounts."
            )
        settings = profiles.resolve(method, "default", dataset, DEFENCES[defence])
        job = Job(dataset, settings, spurious=SPURIOUS)
        y = true_labels(job, seed)
        run, recording = recorded(job, seed)
        numbers, problem = run.numbers, run.problem
        found = attacked(recording, problem, y, seed)
        active = active_completion(job, problem, y, seed)
        sent = numbers["communication"]["payload_bytes"]
        return {
            "balanced_accuracy": numbers["balanced_accuracy"]["final"],
            "noise": numbers["spurious"]["removed_share"],
            "real": numbers["spurious"]["real_kept_share"],
            "megabytes": sum(sent.values()) / 1e6,
            "n_classes": problem.n_classes,
            "attacks": found | {labels.ACTIVE: active},
        }

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a table of what runs are worth, and one of attacks."""
        runs = by_defence(found)
        yield from ("Runs:", "")
        heads = ["data", "method", "defence", "balanced accuracy", "noise removed"]
        heads += ["real kept", "MB both ways"]
        keys = ("balanced_accuracy", "noise", "real", "megabytes")
        rows = (
            [*key, *(f"{mean(some, what):.3f}" for what in keys)]
            for key, some in runs.items()
        )
        yield from markdown_table(heads, rows)
        yield from ("", "Attacks:", "")
        heads = ["data", "method", "defence", "attack", *PARTS, "leak"]
        heads += ["DCS", "DCS above chance"]
        yield from markdown_table(heads, attack_rows(runs))


RunKey = tuple[str, str, str]  # data set, method and defence


def by_defence(found: Mapping[Any, Any]) -> dict[RunKey, list[dict[str, Any]]]:
    """Return the runs of all seeds together."""
    runs: dict[RunKey, list[dict[str, Any]]] = {}
    for (name, method, defence, _), one in found.items():
        runs.setdefault((name, method, defence), []).append(one)
    return runs


def attack_rows(runs: Mapping[RunKey, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Return a row for every attack: means over seeds, the leak and DCS."""
    rows = []
    for (name, method, defence), some in runs.items():
        best = runs.get((name, method, NOTHING), some)
        worth, undefended = (
            statistics.fmean(run["balanced_accuracy"] for run in own)
            for own in (some, best)
        )
        chance = 1 / some[0]["n_classes"]
        for attack in some[0]["attacks"]:
            means = [
                statistics.fmean(run["attacks"][attack][part] for run in some)
                for part in PARTS
            ]
            score, control, _ = means
            plain = capability(score, worth, undefended)
            above = capability(
                max(0.0, (score - control) / (1 - control)) if control < 1 else 0.0,
                (worth - chance) / (1 - chance),
                (undefended - chance) / (1 - chance),
            )
            row = [name, method, defence, attack, *(f"{v:.3f}" for v in means)]
            row += [f"{score - control:+.3f}", f"{plain:.3f}", f"{above:.3f}"]
            rows.append(row)
    return rows


def capability(attack: float, worth: float, undefended: float) -> float:
    """Return the Defence Capability Score (Zou et al., VFLAIR, 2023, Eq. 1).

    1 / (1 + D), D the distance to the ideal: an attack that finds nothing, and a main
    task as without any defence.
    """
    lost = undefended - worth
    return 1 / (1 + math.sqrt((1 - BETA) * attack**2 + BETA * lost**2))


def recorded(job: Job, seed: int, pushing: str | None = None) -> tuple[Run, Recording]:
    """Run one seed; return the run and its messages.

    The party `pushing` takes larger steps than it is told to.
    """
    recording = Recording()

    def around(transport: Transport) -> Transport:
        if pushing is not None:
            transport = LargerSteps(transport, pushing, FACTOR)
        return recording.around(transport)

    (run,) = simulate.simulate(job, [seed], around=around)
    return run, recording


def true_labels(job: Job, seed: int) -> AnyArray:
    """Return the labels of training rows as they are, whatever training is told."""
    dataset = job.dataset
    numbered = dataclasses.replace(
        dataset, weight=np.arange(1, 1 + len(dataset.y), dtype=np.float64)
    )
    weight = dataclasses.replace(job, dataset=numbered).problem(seed).sample_weight
    assert weight is not None
    labels: AnyArray = dataset.y[weight.astype(int) - 1]
    return labels


def attacked(
    recording: Recording, problem: Problem, y: AnyArray, seed: int
) -> Attacked:
    """Attack a run from every side; return means over parties.

    `y` are the true labels; the server has those that training is told.
    """
    shared, told = Shared.of(problem, seed), problem.y_train
    names = [table.name for table in problem.parties]
    server = server_view(recording, shared, names, told)
    each: list[Attacked] = []
    for table in problem.parties:
        view = party_view(recording, shared, table.name, table.X_train)
        found = labels.measure(view, y, problem.n_classes, seed)
        looks = server.embeddings[table.name]
        found |= values.measure(looks, real_columns(table), told, seed)
        each.append(found)
    return {
        attack: {
            part: statistics.fmean(found[attack][part] for found in each)
            for part in PARTS
        }
        for attack in each[0]
    }


def active_completion(
    job: Job, problem: Problem, y: AnyArray, seed: int
) -> dict[str, float]:
    """Run again with a first party that takes large steps; complete its model."""
    table = problem.parties[0]
    _, recording = recorded(job, seed, table.name)
    shared = Shared.of(problem, seed)
    view = party_view(recording, shared, table.name, table.X_train)
    return labels.completion(view, y, problem.n_classes, seed)


def real_columns(table: PartyTable) -> AnyArray:
    """Return a party's encoded columns without the planted ones."""
    planted = np.asarray(table.spurious)[table.groups]
    return table.X_train[:, ~planted]
