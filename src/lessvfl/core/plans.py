"""The small values that every room shares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from lessvfl.terms import Stage, Task, stream_seed

Tensor = torch.Tensor


def stream(seed: int, *names: str | int) -> torch.Generator:
    """Return the random stream of that name, on the CPU so that devices agree."""
    return torch.Generator().manual_seed(stream_seed(seed, *names))


Rows = slice | Tensor  # a slice, or indices (1, b) shared or (R, b) one a replica


@dataclass(frozen=True)
class Batches:
    """The mini-batches of a stage, the same wherever they are derived.

    Row order comes from the seeds and a name, so it is never sent. Without shuffling,
    batches are slices in file order; the last one may be smaller.

    Parameters
    ----------
    n_samples, batch_size : int
        Rows in all, rows a step.
    seeds : tuple of int
        One a replica; ignored without `shuffle`.
    name : tuple
        Name of the random stream (stage, and party where a party acts alone).
    shuffle : bool
        Reshuffle every epoch.
    """

    n_samples: int
    batch_size: int
    seeds: tuple[int, ...]
    name: tuple[str, ...]
    shuffle: bool

    @property
    def n_per_epoch(self) -> int:
        """Return the number of steps of one epoch."""
        return -(-self.n_samples // self.batch_size)

    def n_steps(self, n_epochs: float) -> int:
        """Return the number of steps of a possibly fractional number of epochs."""
        if n_epochs == 0:
            return 0
        return max(1, round(n_epochs * self.n_per_epoch))

    def epoch(self, index: int, device: torch.device) -> list[Rows]:
        """Return the batches of one epoch in order."""
        starts = range(0, self.n_samples, self.batch_size)
        cuts = [slice(s, min(s + self.batch_size, self.n_samples)) for s in starts]
        if not self.shuffle:
            return list(cuts)
        distinct = self.seeds[:1] if len(set(self.seeds)) == 1 else self.seeds
        order = torch.stack(
            [
                torch.randperm(
                    self.n_samples, generator=stream(seed, *self.name, "rows", index)
                )
                for seed in distinct
            ]
        ).to(device)
        return [order[:, cut] for cut in cuts]

    def steps(
        self, n_epochs: float, device: torch.device
    ) -> Iterator[tuple[int, Rows]]:
        """Yield (epoch, rows) for every step of `n_epochs`."""
        left = self.n_steps(n_epochs)
        for epoch in range(math.ceil(n_epochs)):
            for rows in self.epoch(epoch, device)[:left]:
                yield epoch, rows
            left -= self.n_per_epoch


def sample_rows(n_samples: int, n_rows: int, seeds: tuple[int, ...]) -> Tensor:
    """Return rows drawn without putting back, (R, n_rows), the same for everybody."""
    return torch.stack(
        [
            torch.randperm(n_samples, generator=stream(seed, "sample"))[:n_rows]
            for seed in seeds
        ]
    )


def take(table: Tensor, rows: Rows) -> Tensor:
    """Return rows of a table (S, N, ...), S = 1 (shared by all replicas) or S = R."""
    if isinstance(rows, slice):
        return table[:, rows]
    if rows.shape[0] == 1:
        return table.index_select(1, rows[0])
    if table.shape[0] == 1:
        return table[0][rows]
    replicas = torch.arange(table.shape[0], device=table.device).unsqueeze(1)
    return table[replicas, rows]


@dataclass(frozen=True)
class TrainPlan:
    """How Algorithm 2 runs for a while; server and parties derive the same steps.

    `lam` is None, or the group lasso weight of every replica (joint proximal training).
    Blocks travel in `bits` bits a value. Of the last `record` epochs a party remembers
    rows, embeddings and gradients, for its own selection. Every `check` steps each
    party tells whether its selection still changes; when none does, the stage ends.
    """

    stage: Stage
    n_epochs: float
    batch_size: int
    shuffle: bool
    optimizer: str
    learning_rate: float
    lam: tuple[float, ...] | None = None
    schedule: Literal["constant", "cosine"] = "constant"
    bits: int = 32
    record: float = 0
    check: int = 0

    def batches(self, n_samples: int, seeds: tuple[int, ...]) -> Batches:
        """Return the mini-batches that server and parties share."""
        return Batches(n_samples, self.batch_size, seeds, (self.stage,), self.shuffle)

    def is_checked(self, step: int) -> bool:
        """Tell whether parties say after so many steps whether they are stable."""
        return self.check > 0 and step > 0 and step % self.check == 0

    def set_rate(
        self, optimizer: torch.optim.Optimizer, step: int, n_steps: int
    ) -> None:
        """Give an optimiser the learning rate of a step, counted from 0."""
        if self.schedule == "cosine":
            share = 0.5 * (1 + math.cos(math.pi * step / n_steps))
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * share


@dataclass(frozen=True)
class SelectPlan:
    """How proximal SGD runs at the server (stage 2) or at a party (stage 3).

    One step size serves the gradient step and the threshold. `lam` is one weight a
    replica; `lam_scale` multiplies it (the released code's hidden factor). The loss has
    reached a plateau when `patience` epochs in a row improved the best objective by
    less than the share `tolerance`; 0 never stops early. A party without any
    significant component removes all its features at once, or, with `drain`, only as
    far as the proximal steps alone take it (the released code).
    """

    stage: Stage
    n_epochs: int
    batch_size: int
    shuffle: bool
    step_size: float
    lam: tuple[float, ...]
    lam_scale: float = 1.0
    reduction: Literal["sum", "mean"] = "sum"
    tolerance: float = 0.0
    patience: int = 5
    drain: bool = False

    def batches(self, n_samples: int, seeds: tuple[int, ...], *who: str) -> Batches:
        """Return the mini-batches of the server or of one party."""
        name = (self.stage, *who)
        return Batches(n_samples, self.batch_size, seeds, name, self.shuffle)

    def weights(self, like: Tensor) -> Tensor:
        """Return the acting weight of every replica, (R,) or (1,)."""
        return torch.tensor(self.lam, device=like.device, dtype=like.dtype) * (
            self.lam_scale
        )


@dataclass(frozen=True)
class FitPlan:
    """How a network is fitted alone, by AdamW, until held-out rows say stop.

    It ends after `n_epochs`, or when `patience` of them in a row did not help the
    `held_out` share of the rows.
    """

    n_epochs: int = 30
    rate: float = 0.003
    decay: float = 0.01
    batch_size: int = 64
    held_out: float = 0.15
    patience: int = 6


@dataclass(frozen=True)
class ShadowPlan:
    """How a party selects features by its shadows (:mod:`lessvfl.core.evidence`).

    At most a share `q` of the shadows may be kept, useless features may be at most an
    estimated share `fdr` of those kept, and these at most `most`. With `subsamples`
    features are kept by the votes of so many halves of the rows. Weights of the group
    lasso are 1 / norm^`adaptive` of a first fit. With `pairs` features are kept, too,
    that act only together. The network is then fitted to the responses for at most
    `refit_epochs`. With `again` another look will follow; the stage ``select_again`` is
    that look, which takes the smallest of its candidates that loses at most the share
    `loss` of what the best explains of rows held out.
    """

    stage: Stage
    q: float
    adaptive: float = 0.0
    most: int | None = None
    fdr: float = 0.2
    subsamples: int = 0
    pairs: bool = False
    again: bool = False
    loss: float = 0.02
    n_lambdas: int = 40
    refit_epochs: int = 30


Seeds = tuple[int, ...]


@dataclass(frozen=True)
class Labels:
    """What the server holds: labels (S, N), the task, and the seeds of the replicas."""

    y: Tensor
    task: Task
    seeds: Seeds
