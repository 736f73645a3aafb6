"""The only wiring: data, networks, parties and a method become runs.

:func:`simulate` runs all parties in this process, every seed (or every setting given as
a replica) as one batch.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lessvfl import data, methods
from lessvfl.core import metrics
from lessvfl.core.device import resolve_device
from lessvfl.core.evidence import matches, with_shadows
from lessvfl.core.keeper import Keeper
from lessvfl.core.lifted import Factory, Lifted, find_factory
from lessvfl.core.network import DTYPES, MLP, Network
from lessvfl.core.plans import Labels
from lessvfl.data import Dataset, Problem
from lessvfl.errors import ConfigError, LessVFLWarning
from lessvfl.party import Outcome, Party
from lessvfl.run import profiles
from lessvfl.run.fitted import FittedModel, FittedParty, Shape
from lessvfl.run.profiles import Settings
from lessvfl.run.recorder import Recorder
from lessvfl.terms import Observer, Task
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties

Progress = Observer
PartyNets = Factory | nn.Module | Mapping[str, Factory | nn.Module]


@dataclass(frozen=True)
class Replica:
    """One run of a batch: its seed, and settings of its own where they differ."""

    seed: int
    lam_party: float | None = None
    lam_server: float | None = None


@dataclass(frozen=True)
class Networks:
    """Networks given from Python instead of by settings."""

    party: PartyNets | None = None
    fusion: Factory | nn.Module | None = None

    def of(self, party: str) -> Factory | nn.Module | None:
        """Return what was given for one party."""
        if isinstance(self.party, Mapping):
            return self.party.get(party)
        return self.party


@dataclass(frozen=True)
class Job:
    """What to run: data, how to split them, settings, and where to compute."""

    dataset: Dataset
    settings: Settings
    parties: int | Sequence[int] | Mapping[str, Sequence[str]] | None = None
    spurious: float | Sequence[float] = 0.0
    groups: Mapping[str, Sequence[str]] | None = None
    device: str = "cpu"
    networks: Networks = Networks()
    curve: bool = True  # evaluate after every epoch


@dataclass(frozen=True)
class Run:
    """One finished run: its numbers (the JSON contract), its model and its bill."""

    numbers: dict[str, Any]
    model: FittedModel
    problem: Problem
    bill: list[dict[str, str | int]]


def simulate(
    job: Job, seeds: Sequence[int | Replica], progress: Progress = lambda event: None
) -> list[Run]:
    """Run a method with all parties in this process.

    Parameters
    ----------
    job : Job
        What to run.
    seeds : sequence of int or Replica
        One run each. Runs whose tables have equal shapes share one batch, unless each
        ends its pre-training by itself.
    progress : callable
        Told of every epoch.

    Returns
    -------
    list of Run
        In the order of `seeds`.
    """
    replicas = [s if isinstance(s, Replica) else Replica(s) for s in seeds]
    if not replicas:
        raise ConfigError("At least one seed must be given. Got none.")
    problems: dict[int, Problem] = {}
    for replica in replicas:
        if replica.seed not in problems:
            problems[replica.seed] = data.prepare(
                job.dataset,
                job.settings.data,
                parties=job.parties,
                spurious=job.spurious,
                seed=replica.seed,
                groups=job.groups,
            )
    batches: dict[Any, list[int]] = {}
    for index, replica in enumerate(replicas):
        shape = _signature(problems[replica.seed])
        alone = index if getattr(job.settings.config, "pretrain_check", 0) else None
        batches.setdefault((alone, shape), []).append(index)
    runs: dict[int, Run] = {}
    for indices in batches.values():
        chosen = [replicas[index] for index in indices]
        batch = _Batch(job, chosen, [problems[r.seed] for r in chosen], progress)
        runs |= dict(zip(indices, batch.run(), strict=True))
    return [runs[index] for index in range(len(replicas))]


def _signature(problem: Problem) -> tuple[Any, ...]:
    """Return what must be equal for runs to share a batch."""
    tables = tuple((p.name, p.X_train.shape, p.features) for p in problem.parties)
    return (*tables, problem.y_test.shape, problem.label_names)


class _Batch:
    """Runs that share one batch of tensors."""

    def __init__(
        self,
        job: Job,
        replicas: list[Replica],
        problems: list[Problem],
        progress: Progress,
    ) -> None:
        self.job = job
        self.replicas = replicas
        self.problems = problems
        self.task: Task = problems[0].task
        self.device = resolve_device(job.device)
        self.dtype = DTYPES[job.settings.net.dtype]
        self.seeds = tuple(replica.seed for replica in replicas)
        y_train = self._labels([problem.y_train for problem in problems])
        y_test = self._labels([problem.y_test for problem in problems])
        self.labels = Labels(y_train, self.task, self.seeds)
        self.recorder = Recorder(problems, y_train, y_test, progress, job.curve)

    def run(self) -> list[Run]:
        """Wire everything, run the method, and gather what it leaves."""
        config = self._config()
        self._check_names(getattr(config, "must_keep", None))
        parties = [
            self._party(index, config) for index in range(len(self.problems[0].parties))
        ]
        transport = InProcess({party.name: party.handle for party in parties})
        names = [party.name for party in parties]
        server = Parties(transport, names, Ledger(len(self.replicas)))
        self.recorder.attach(server, parties)
        fusion = self._fusion(sum(server.sizes.values()))
        method = methods.get(self.job.settings.method)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seeds[0])  # a user's dropout and the like
            fusion = method.run(
                server, fusion, self.labels, config, self.recorder, Keeper()
            )
        seconds = self.recorder.seconds
        seconds["total"] = sum(seconds.values())
        return [
            self._collect(index, server, parties, fusion)
            for index in range(len(self.replicas))
        ]

    # --------------------------------------------------------------------------- wiring

    def _config(self) -> Any:
        """Return the method's settings, lambdas spread over the replicas."""
        config: Any = self.job.settings.config
        n_samples = len(self.problems[0].y_train)
        if config.batch_size > n_samples:
            warnings.warn(
                f"The 'batch_size' setting is {config.batch_size}, but there are only "
                f"{n_samples} training rows: every step uses them all.",
                LessVFLWarning,
                stacklevel=2,
            )
            config = dataclasses.replace(config, batch_size=n_samples)
        for name in ("lam_party", "lam_server"):
            own = [getattr(replica, name) for replica in self.replicas]
            if any(value is not None for value in own):
                shared = getattr(config, name)
                spread = tuple(shared if v is None else v for v in own)
                config = dataclasses.replace(config, **{name: spread})
                selector = profiles.SELECTORS[name]  # a lambda by hand asks for it
                if hasattr(config, selector):
                    config = dataclasses.replace(config, **{selector: "network"})
        return config

    def _check_names(self, patterns: str | None) -> None:
        """Refuse a feature that must stay and that nobody holds."""
        held = [name for table in self.problems[0].parties for name in table.features]
        for pattern in (patterns or "").split(","):
            if pattern.strip() and not any(matches(pattern, held)):
                raise ConfigError(
                    "The 'must_keep' setting must name features of the parties. Got "
                    f"'{pattern.strip()}', which matches none."
                )

    def _stack(self, tables: Sequence[np.ndarray[Any, Any]]) -> Tensor:
        """Stack one table a replica, or share it where all hold the same."""
        if all(table is tables[0] for table in tables):
            tables = tables[:1]
        return torch.as_tensor(np.stack(tables))

    def _labels(self, y: Sequence[np.ndarray[Any, Any]]) -> Tensor:
        stacked = self._stack(y)
        dtype = stacked.dtype if self.task == "multiclass" else self.dtype
        return stacked.to(self.device, dtype)

    def _network(
        self,
        widths: tuple[int, ...],
        given: Factory | nn.Module | str | None,
        name: str,
    ) -> Network:
        if given is None:
            config = self.job.settings.net
            scale = 1.0 if name == "the server" else config.input_scale
            return MLP.create(
                widths,
                config.activation,
                self.seeds,
                name,
                self.dtype,
                self.device,
                scale,
            )
        factory = find_factory(given) if isinstance(given, str) else given
        return Lifted.create(
            factory, widths[0], widths[-1], self.seeds, name, self.dtype, self.device
        )

    def _party(self, index: int, config: Any) -> Party:
        tables = [problem.parties[index] for problem in self.problems]
        X_train, X_test = (
            self._stack(rows).to(self.device, self.dtype)
            for rows in ([t.X_train for t in tables], [t.X_test for t in tables])
        )
        net_config = self.job.settings.net
        name = tables[0].name
        given = self.job.networks.of(name) or net_config.party_net
        groups = torch.as_tensor(tables[0].groups).to(self.device)
        own, n_features = (X_train, X_test), len(tables[0].features)
        if getattr(config, "selector", "network") == "shadows":
            own, groups = with_shadows(own, groups, config.shadows, self.seeds, name)
        n_shadows = int(groups.max()) + 1 - n_features
        widths = net_config.party_widths(own[0].shape[2])
        net = self._network(widths, given, name)
        return Party(
            name,
            net,
            own,
            groups,
            self.seeds,
            config.empty_party,
            self.recorder,
            n_shadows=n_shadows,
            must_keep=matches(getattr(config, "must_keep", None), tables[0].features),
        )

    def _fusion(self, n_components: int) -> Network:
        n_classes = self.problems[0].n_classes
        n_outputs = n_classes if self.task == "multiclass" else 1
        widths = self.job.settings.net.fusion_widths(n_components, n_outputs)
        given = self.job.networks.fusion or self.job.settings.net.fusion_net
        return self._network(widths, given, "the server")

    # ----------------------------------------------------------------------- collecting

    def _collect(
        self, r: int, server: Parties, parties: list[Party], fusion: Network
    ) -> Run:
        problem, ledger = self.problems[r], server.ledger
        outcomes = [party.outcome(r) for party in parties]
        model = self._model(r, fusion, problem, outcomes)
        counts = server.component_counts()
        n_components = self.job.settings.net.embedding_size
        numbers: dict[str, Any] = {
            "seed": self.replicas[r].seed,
            **self.recorder.summary(r),
            "spurious": spurious(problem, [np.array(o.kept) for o in outcomes]),
            "truth": truth(problem, [np.array(o.kept) for o in outcomes]),
            "features": {
                party.name: {"kept": list(party.kept), "removed": list(party.removed)}
                for party in model.parties
            },
            "importance": {
                table.name: {
                    name: norm
                    for name, norm in zip(
                        table.features, outcome.importance, strict=True
                    )
                    if norm > 0
                }
                for table, outcome in zip(problem.parties, outcomes, strict=True)
            },
            "selection": selection(
                {
                    table.name: (table.features, outcome.selection)
                    for table, outcome in zip(problem.parties, outcomes, strict=True)
                }
            ),
            "components": {
                name: {"kept": kept[r], "of": n_components}
                for name, kept in counts.items()
            },
            "communication": {
                "payload_bytes": {
                    "up": ledger.direction_bytes(r, "up"),
                    "down": ledger.direction_bytes(r, "down"),
                },
                "rounds": ledger.n_rounds(r),
                "paper_mib": ledger.paper_mib(r),
                "by_stage": ledger.by_stage(r),
            },
            "curve": self.recorder.curves[r],
            "seconds": dict(self.recorder.seconds),
        }
        return Run(numbers, model, problem, ledger.lines(r))

    def _model(
        self, r: int, fusion: Network, problem: Problem, outcomes: list[Outcome]
    ) -> FittedModel:
        net_config = self.job.settings.net
        parties = []
        for table, outcome in zip(problem.parties, outcomes, strict=True):
            marked = list(zip(table.features, outcome.kept, strict=True))
            kept = tuple(name for name, stays in marked if stays)
            removed = tuple(name for name, stays in marked if not stays)
            used = table.features if outcome.frozen else kept
            given = self.job.networks.of(table.name)
            source = net_config.party_net if given is None else "given"
            ends = (table.X_train.shape[1], net_config.embedding_size)
            cut = (outcome.slots, outcome.outputs)
            shape = _shape(outcome.net, source, ends, cut)
            parties.append(
                FittedParty(
                    table.name,
                    kept,
                    removed,
                    table.encoding.narrow(used),
                    outcome.net,
                    shape,
                    outcome.constant,
                )
            )
        own = fusion.replica(r)
        given = self.job.networks.fusion
        source = net_config.fusion_net if given is None else "given"
        components = tuple(flag for o in outcomes for flag in o.outputs)
        ends = (len(components), own.n_outputs)
        shape = _shape(own, source, ends, (components, None))
        planted = [
            name
            for table in problem.parties
            for name, is_planted in zip(table.features, table.spurious, strict=True)
            if is_planted
        ]
        names = (*self.job.dataset.X.names, *planted)
        return FittedModel(
            self.task,
            problem.label_names,
            names,
            tuple(parties),
            own,
            shape,
            problem.label_shift,
            problem.label_scale,
        )


def _shape(
    net: Network,
    source: str | None,
    ends: tuple[int, int],
    cut: tuple[tuple[bool, ...], tuple[bool, ...] | None],
) -> Shape:
    """Return how to build a network again: its widths, or its factory and its cut."""
    if isinstance(net, MLP):
        widths = (net.weights[0].shape[2], *(w.shape[1] for w in net.weights))
        return Shape(widths, net.activation, None, None, None)
    return Shape(ends, "none", source, *cut)


def selection(
    found: Mapping[str, tuple[Sequence[str], Mapping[str, Any] | None]],
) -> dict[str, Any] | None:
    """Return how every party selected by its shadows, features by name; or None."""
    return {
        party: {
            **how,
            **{
                kind: dict(zip(features, how[kind], strict=True))
                for kind in ("scores", "frequency")
                if how[kind] is not None
            },
            "pairs": [[features[a], features[b], v] for a, b, v in how["pairs"]],
        }
        for party, (features, how) in found.items()
        if how is not None
    } or None


Masks = Sequence[np.ndarray[Any, Any]]  # features kept, one mask a party


def spurious(problem: Problem, masks: Masks) -> dict[str, Any] | None:
    """Return how many planted features went and how many real ones stayed."""
    kept = np.concatenate(masks).astype(bool)
    planted = np.concatenate([table.spurious for table in problem.parties])
    if not planted.any():
        return None
    removed = int((planted & ~kept).sum())
    return {
        "planted": int(planted.sum()),
        "removed": removed,
        "removed_share": removed / int(planted.sum()),
        "real_kept_share": float((kept & ~planted).sum() / (~planted).sum()),
    }


def truth(problem: Problem, masks: Masks) -> dict[str, Any] | None:
    """Return how the support compares with the truth, where a data set knows it."""
    known = [table.significant for table in problem.parties]
    told = [mask for mask in known if mask is not None]
    if len(told) < len(known):
        return None
    significant = np.concatenate(told)
    kept = np.concatenate(masks).astype(bool)
    return {
        "significant": int(significant.sum()),
        "significant_kept": int((significant & kept).sum()),
        "other": int((~significant).sum()),
        "other_removed": int((~significant & ~kept).sum()),
        "f1": metrics.support_f1(kept.tolist(), significant.tolist()),
    }
