"""What the runs of a benchmark share: settings, rows as tensors, seeds, device.

Axes: parties P, seeds S, rows N, columns D (+ ALIGNED, the first of them a one).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessvfl import data, settings
from lessvfl.core.network import DTYPES
from lessvfl.core.plans import Batches, stream
from lessvfl.data import Dataset, Problem
from lessvfl.errors import ConfigError
from lessvfl.run import profiles
from lessvfl.run.build import Builder, clamp_batch, n_outputs
from lessvfl.run.profiles import Settings
from lessvfl.terms import Stage
from lessvfl_bench.paper.nets import ALIGNED

VALIDATION_SHARE = 0.2  # of the training rows, where settings are chosen on them


@dataclass(frozen=True, order=True)
class Spec:
    """One run of every seed: a method and the settings that the grid varies."""

    method: str
    lam_party: float = 0.0
    lam_server: float = 0.0  # less-vfl alone
    pretrain_epochs: int = 0  # less-vfl and local-lasso


class GridTables:
    """The rows of all parties and seeds (a problem each) as a few tensors."""

    def __init__(
        self, problems: Sequence[Problem], dtype: torch.dtype, device: torch.device
    ) -> None:
        first = problems[0]
        self.task = first.task
        self.n_classes = first.n_classes
        self.widths = [party.X_train.shape[1] for party in first.parties]
        self.names = [party.name for party in first.parties]
        D = -(-max(self.widths) // ALIGNED) * ALIGNED
        self._cells = np.float64 if dtype == torch.float64 else np.float32
        self.planted = np.zeros((len(self.widths), D), dtype=bool)
        self.present = np.zeros_like(self.planted)
        for p, party in enumerate(first.parties):
            self.planted[p, : self.widths[p]] = party.spurious
            self.present[p, : self.widths[p]] = True
        self.X = self._stack([[t.X_train for t in p.parties] for p in problems], D)
        self.X_test = self._stack([[t.X_test for t in p.parties] for p in problems], D)
        self.X, self.X_test = (x.to(device, dtype) for x in (self.X, self.X_test))
        y = np.stack([p.y_train for p in problems])
        y_test = np.stack([p.y_test for p in problems])
        self.classes = torch.as_tensor(y).to(device).long()
        self.classes_test = torch.as_tensor(y_test).to(device).long()
        is_binary = self.task == "binary"
        self.labels = self.classes.to(dtype) if is_binary else self.classes
        self.joint, self.joint_test = _side_by_side(self.X), _side_by_side(self.X_test)

    def _stack(
        self, tables: Sequence[Sequence[np.ndarray[Any, Any]]], n_columns: int
    ) -> Tensor:
        """Return (P, S, N, D + ALIGNED): columns, zeros a party lacks, a one."""
        shape = (len(self.widths), len(tables), len(tables[0][0]), n_columns + ALIGNED)
        X = np.zeros(shape, self._cells)
        X[..., n_columns] = 1.0
        for s, parties in enumerate(tables):
            for p, table in enumerate(parties):
                X[p, s, :, : table.shape[1]] = table
        return torch.as_tensor(X)

    @property
    def n_outputs(self) -> int:
        """Return the width of the fusion network's output."""
        return n_outputs(self.task, self.n_classes)


def _side_by_side(X: Tensor) -> Tensor:
    """Return the parties' columns beside each other, (S, N, P (D + ALIGNED))."""
    return X.permute(1, 2, 0, 3).flatten(2).contiguous()


@dataclass(frozen=True)
class Scene:
    """What all runs over one data set share: rows, settings, seeds, device."""

    dataset: Dataset  # a classification task whose features are numbers
    profile: str  # official-code or paper
    seeds: tuple[int, ...]  # one run of every setting each
    spurious: float | tuple[float, ...]  # planted noise
    device: str = "cpu"
    # In the place of the profile's settings; none may ask for what the grid cannot do.
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    holdout: bool = False  # the test rows are training rows held out
    problems: Sequence[Problem] = dataclasses.field(default=(), repr=False)
    tables: GridTables = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Prepare the rows of every seed."""
        if self.dataset.task == "regression":
            raise ConfigError(
                "The paper's benchmark needs a data set with classes. Got "
                f"'{self.dataset.name}', a regression."
            )
        if not self.problems:
            config, planted = self.settings("plain").data, self.spurious
            where: dict[str, Any] = {"spurious": planted}
            if isinstance(planted, tuple):
                where = {"spurious": list(planted), "parties": len(planted)}
            problems = [
                data.prepare(self.dataset, config, seed=seed, **where)
                for seed in self.seeds
            ]
            object.__setattr__(self, "problems", problems)
        for party in self.problem.parties:
            if len(party.features) != party.X_train.shape[1]:
                raise ConfigError(
                    "The paper's benchmark needs features of one column each. Got "
                    f"{len(party.features)} features in {party.X_train.shape[1]} "
                    f"columns at party '{party.name}' of '{self.dataset.name}'."
                )
        dtype = DTYPES[self.settings("plain").net.dtype]
        tables = GridTables(self.problems, dtype, torch.device(self.device))
        object.__setattr__(self, "tables", tables)

    @property
    def problem(self) -> Problem:
        """Return the problem of the first seed."""
        return self.problems[0]

    def held_out(self) -> Scene:
        """Return the scene whose test rows are a share of the training rows."""
        problems = []
        for problem, seed in zip(self.problems, self.seeds, strict=True):
            n_rows, y = len(problem.y_train), problem.y_train
            order = torch.randperm(n_rows, generator=stream(seed, "validation")).numpy()
            cut = int(n_rows * VALIDATION_SHARE)
            held, left = np.sort(order[:cut]), np.sort(order[cut:])
            parties = tuple(
                dataclasses.replace(t, X_train=t.X_train[left], X_test=t.X_train[held])
                for t in problem.parties
            )
            rows = {"parties": parties, "y_train": y[left], "y_test": y[held]}
            problems.append(dataclasses.replace(problem, **rows))
        return dataclasses.replace(self, holdout=True, problems=problems)

    def settings(self, method: str) -> Settings:
        """Return the settings of a method."""
        known = settings.fields_of(profiles.sections(method))
        own = {name: v for name, v in self.overrides.items() if name in known}
        return profiles.resolve(method, self.profile, self.dataset, own)

    def config(self, method: str) -> Any:
        """Return the method's own settings, its batches no larger than the table."""
        return clamp_batch(self.settings(method).config, self.tables.X.shape[2])

    def builders(self) -> list[Builder]:
        """Return what builds the networks of each seed."""
        settings = self.settings("plain")
        return [Builder(settings, seed, self.device) for seed in self.seeds]

    @property
    def n_components(self) -> int:
        """Return the components of a party's embedding."""
        return self.settings("plain").net.embedding_size

    def batches(self, config: Any, stage: Stage, *who: str) -> list[Batches]:
        """Return the mini-batches of a stage, of each seed."""
        n_rows, size, name = self.tables.X.shape[2], config.batch_size, (stage, *who)
        return [
            Batches(n_rows, size, seed, name, config.row_order) for seed in self.seeds
        ]
