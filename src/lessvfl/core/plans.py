"""What a stage is told: its plan, its mini-batches, its random streams."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from lessvfl.core.adam import Optimizer
from lessvfl.core.ending import ROUNDING, fewest_steps, most_looks
from lessvfl.terms import Stage, stream_seed

Rows = slice | Tensor  # a slice, or row numbers (b,)
RowOrder = Literal["shuffle", "blocks", "file"]
ROW_ORDERS: tuple[RowOrder, ...] = ("shuffle", "blocks", "file")

CHUNK = 1 << 14  # rows that stand together in a table and are read together
MANY_ROWS = 1 << 20  # from here on a few rows are drawn one by one
PART = 1 << 16  # rows that are embedded, sent and scored together, where all are

HELD_OUT = 0.1  # share of the rows by which the server sees when training is over
MOST_HELD_OUT, FEWEST_HELD_OUT = 1000, 100
SECRET = 1 << 256  # seeds from here on are secrets, see :func:`stream`
_WORDS = slice(24, 24 + 8 * 624)  # of the Mersenne Twister, in a generator's state


def stream(seed: int, *names: str | int) -> torch.Generator:
    """Return a random generator on the CPU, fixed by the seed and the names.

    Of a seed torch uses 32 bits, which whoever sees a network's output could try out. A
    secret seed, from `SECRET` on, fills the generator's whole state instead.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, *names))
    if seed < SECRET:
        return generator
    text = "/".join(map(str, (seed, *names)))
    words = hashlib.shake_256(text.encode()).digest(4 * 624)
    state = generator.get_state()
    wide = torch.frombuffer(bytearray(words), dtype=torch.int32).to(torch.int64)
    state[_WORDS] = (wide & 0xFFFFFFFF).view(torch.uint8)
    return generator.set_state(state)


def shuffled(
    n: int, seed: int, *name: str | int, device: torch.device | None = None
) -> Tensor:
    """Return a random order of n rows."""
    return torch.randperm(n, generator=stream(seed, *name)).to(device)


def sample_rows(n_samples: int, n_rows: int, seed: int) -> Tensor:
    """Return rows drawn without replacement, the same for everybody.

    Few of very many are drawn one by one, so that memory is that of the sample.
    """
    if n_samples < MANY_ROWS or 4 * n_rows > n_samples:
        return shuffled(n_samples, seed, "sample")[:n_rows]
    return _draw(n_samples, n_rows, stream(seed, "sample"))


def _draw(n_samples: int, n_rows: int, generator: torch.Generator) -> Tensor:
    """Return `n_rows` different row numbers below `n_samples`, in the order drawn."""
    drawn: dict[int, None] = {}
    while len(drawn) < n_rows:
        more = torch.randint(n_samples, (n_rows,), generator=generator)
        drawn.update(dict.fromkeys(more.tolist()))
    return torch.tensor(list(drawn)[:n_rows])


def hold_out(
    order: Tensor, n_rows: int, blocks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split row numbers in random order, (N,), into those held out and the rest.

    About `n_rows` are held out. `blocks` (N,) is the block of every row: then whole
    blocks are, in random order as many as fit, or the smallest where none does.
    """
    if blocks is None:
        return order[:n_rows], order[n_rows:]
    _, block, sizes = torch.unique(
        blocks.to(order.device), return_inverse=True, return_counts=True
    )
    if len(sizes) == 1:  # nothing to keep apart
        return order[:n_rows], order[n_rows:]
    rows = torch.arange(len(order), device=order.device)
    places = torch.empty_like(order)
    places[order] = rows
    first = torch.full_like(sizes, len(order)).scatter_reduce(0, block, rows, "amin")
    turns = places[first].argsort()  # of blocks: as one row of each comes in the order
    fits = sizes[turns] <= n_rows
    chosen = turns[fits & ((sizes[turns] * fits).cumsum(0) <= n_rows)]
    if not len(chosen):
        chosen = sizes.argmin().view(1)
    is_held = torch.isin(block, chosen)[order]
    return order[is_held], order[~is_held]


def take(table: Tensor, rows: Rows) -> Tensor:
    """Return rows of a table (N, ...)."""
    return table[rows] if isinstance(rows, slice) else table.index_select(0, rows)


def parts(n_rows: int) -> list[slice]:
    """Return all rows in order, as many at a time as are embedded together."""
    starts = range(0, n_rows, PART)
    return [slice(start, min(start + PART, n_rows)) for start in starts]


@dataclass(frozen=True)
class Batches:
    """The mini-batches of a stage, the same wherever they are derived.

    Row order comes from the seed and a name, so it is never sent. Rows come in a new
    random order every epoch ("shuffle"); or blocks of rows that stand together do, and
    the rows of each ("blocks"), so that a table is read in long runs; or as they stand
    ("file"), in batches that are slices. The last batch may be smaller.
    """

    n_samples: int
    batch_size: int
    seed: int
    name: tuple[str, ...]  # of the random stream: the stage, and who acts alone
    row_order: RowOrder
    n_held_out: int = 0  # rows that no step uses: the first that a sample would have
    # Those that rows belong to, (N,): one is held out whole, or used whole.
    blocks: Tensor | None = field(default=None, compare=False)

    @property
    def n_used(self) -> int:
        """Return the number of rows of one epoch."""
        if self.blocks is None or not self.n_held_out:
            return self.n_samples - self.n_held_out
        return self.n_samples - len(self.held_out)

    @functools.cached_property
    def held_out(self) -> Tensor:
        """Return the rows that no step uses."""
        if self.blocks is None or not self.n_held_out:
            return sample_rows(self.n_samples, self.n_held_out, self.seed)
        order = shuffled(self.n_samples, self.seed, "sample")
        return hold_out(order, self.n_held_out, self.blocks.cpu())[0]

    @property
    def n_per_epoch(self) -> int:
        """Return the number of steps of one epoch."""
        return -(-self.n_used // self.batch_size)

    def n_steps(self, n_epochs: float) -> int:
        """Return the number of steps of a possibly fractional number of epochs."""
        if n_epochs == 0:
            return 0
        return max(1, round(n_epochs * self.n_per_epoch))

    def epoch(self, index: int, device: torch.device) -> Iterable[Rows]:
        """Return the mini-batches of epoch `index`, in order: slices or row numbers."""
        starts = range(0, self.n_used, self.batch_size)
        cuts = [slice(s, min(s + self.batch_size, self.n_used)) for s in starts]
        if self.row_order == "file" and not self.n_held_out:
            return list(cuts)
        if self.row_order == "blocks":
            return (self._used(some).to(device) for some in self._places(index))
        order = self.order(index, device)
        return [order[cut] for cut in cuts]

    def order(self, epoch: int, device: torch.device) -> Tensor:
        """Return the order of the rows in an epoch."""
        if self.row_order == "shuffle":
            order = shuffled(self.n_used, self.seed, *self.name, "rows", epoch)
        else:
            order = torch.arange(self.n_used)
        return self._used(order).to(device)

    def _used(self, places: Tensor) -> Tensor:
        """Return the rows at places among those used."""
        if not self.n_held_out:
            return places
        return places + torch.searchsorted(self._gaps, places, right=True)

    @functools.cached_property
    def _gaps(self) -> Tensor:
        """Return at which places rows are left out: before each, how many are used."""
        return self.held_out.sort().values - torch.arange(len(self.held_out))

    def _places(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of places in epoch `epoch`: shuffled chunks in random order.

        A place counts the rows that are used, from 0. The last batch may be smaller.
        """
        name: tuple[str | int, ...] = (*self.name, "rows", epoch)
        n_blocks = -(-self.n_used // CHUNK)
        ready = torch.zeros(0, dtype=torch.long)
        order = torch.randperm(n_blocks, generator=stream(self.seed, *name))
        for block in order.tolist():
            size = min(CHUNK, self.n_used - block * CHUNK)
            rows = torch.randperm(size, generator=stream(self.seed, *name, block))
            ready = torch.cat([ready, block * CHUNK + rows])
            while len(ready) >= self.batch_size:
                yield ready[: self.batch_size]
                ready = ready[self.batch_size :]
        if len(ready):
            yield ready

    def steps(
        self, n_epochs: float, device: torch.device
    ) -> Iterator[tuple[int, Rows]]:
        """Yield (epoch, rows of the mini-batch) for every step; epochs count from 0."""
        left = self.n_steps(n_epochs)
        for epoch in range(math.ceil(n_epochs)):
            for rows in itertools.islice(self.epoch(epoch, device), left):
                yield epoch, rows
            left = max(0, left - self.n_per_epoch)


@dataclass(frozen=True)
class TrainPlan:
    """How Algorithm 2 runs for a while; server and parties derive the same steps."""

    stage: Stage
    n_epochs: float
    batch_size: int
    row_order: RowOrder
    optimizer: str
    learning_rate: float
    lam: float | None = None  # group lasso weight of joint proximal steps
    schedule: Literal["constant", "cosine", "watched"] = "constant"
    bits: int = 32  # of a value on its way
    record: float = 0  # the last epochs whose gradients a party remembers
    decay: float = 0.0  # of weights, where rows are few (``core/solve.optimizer_of``)
    gates: tuple[float, float] | None = None  # sigma and lambda of gates on inputs

    @property
    def selects(self) -> bool:
        """Tell whether parties may be left without a feature when the stage is over."""
        return self.lam is not None or self.gates is not None

    def batches(
        self, n_samples: int, seed: int, blocks: Tensor | None = None
    ) -> Batches:
        """Return the mini-batches that server and parties share."""
        return Batches(
            n_samples,
            self.batch_size,
            seed,
            (self.stage,),
            self.row_order,
            self.n_held_out(n_samples),
            blocks,
        )

    def n_held_out(self, n_samples: int) -> int:
        """Return how many of `n_samples` rows the server watches and does not train on.

        0 where there are so few that their loss would say little, too few steps for the
        watch to end training early, or a schedule that is not "watched".
        """
        n_steps = self.n_epochs * n_samples / self.batch_size
        if self.schedule != "watched" or n_steps < fewest_steps():
            return 0
        n_rows = min(MOST_HELD_OUT, round(HELD_OUT * n_samples))
        return n_rows if n_rows >= FEWEST_HELD_OUT else 0

    def n_looks(self, n_samples: int) -> int:
        """Return how often the rows held out are looked at, at most."""
        if not self.n_held_out(n_samples):
            return 0
        n_steps = round(self.n_epochs * math.ceil(n_samples / self.batch_size))
        return most_looks(n_steps)

    def set_rate(
        self, optimizer: Optimizer, step: int, n_steps: int, watched: float = 1.0
    ) -> None:
        """Give an optimiser the learning rate of a step, counted from 0.

        `watched` is the share of the first rate that the server says, where it watches.
        """
        share = watched if self.schedule == "watched" else 1.0
        if self.schedule == "cosine":
            share = 0.5 * (1 + math.cos(math.pi * step / n_steps))
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate * share


@dataclass(frozen=True)
class SelectPlan:
    """How proximal SGD runs at the server (stage 2) or at a party (stage 3).

    One step size serves the gradient step and the threshold. A plateau is reached when
    `patience` epochs in a row improved the best objective by less than the share
    `tolerance`; 0 never stops early.
    """

    stage: Stage
    n_epochs: int
    batch_size: int
    row_order: RowOrder
    step_size: float
    lam: float  # the penalty's weight
    lam_scale: float = 1.0  # multiplies it (the released code's hidden factor)
    reduction: Literal["sum", "mean"] = "sum"  # of stage 3's loss over the components
    tolerance: float = 0.0
    patience: int = 5
    # A party without a significant component removes all its features at once, or only
    # as far as the proximal steps alone take it (the released code).
    stepwise_removal: bool = False
    adaptive: float = 0.0  # group weights 1 / norm^adaptive of the pre-trained network
    relative: bool = False  # lam is a share of the one that removes every feature

    def batches(self, n_samples: int, seed: int, *who: str) -> Batches:
        """Return the mini-batches of the server or of one party."""
        name = (self.stage, *who)
        return Batches(n_samples, self.batch_size, seed, name, self.row_order)

    def weight(self, like: Tensor) -> Tensor:
        """Return the acting weight of the penalty as a tensor without axes."""
        return like.new_tensor(self.lam) * self.lam_scale


@dataclass(frozen=True)
class FitPlan:
    """How a network is fitted alone, by AdamW, until held-out rows say stop."""

    n_epochs: int = 20
    rate: float = 0.01
    decay: float = 0.01
    batch_size: int = 256  # rows of a step, or more:
    most_steps: int = 20  # of an epoch
    most_rows: int = 20_000  # the latest
    held_out: float = 0.15  # share of the rows
    patience: int = 4  # epochs in a row without help for the rows held out

    def at_length(self) -> FitPlan:
        """Return a longer fit, for freshly drawn weights of a curved network."""
        return replace(
            self,
            n_epochs=10 * self.n_epochs,
            batch_size=self.batch_size // 8,
            most_steps=2 * self.most_steps,
            patience=5 * self.patience,
        )


@dataclass(frozen=True)
class PathPlan:
    """How the server selects components without a lambda (``core/head_path.py``).

    It takes the largest lambda whose loss on the rows held out is within `n_errors`
    standard errors of the best.
    """

    n_rows: int  # whose embeddings it asks for
    bits: int = 32
    n_errors: float = 1.0
    held_out: float = 0.25
    n_lambdas: int = 20
    n_steps: int = 80


@dataclass(frozen=True)
class ShadowPlan:
    """How a party selects features by its shadows (``select/evidence.py``).

    The stage ``select_again`` is a second pass. It removes features that say nothing
    beside the others where that loses at most the share `loss` of what is explained of
    rows held out.
    """

    stage: Stage
    q: float  # the largest share of shadows that may pass
    most: int | None = None  # features kept
    fdr: float = 0.2  # the largest estimated share of useless features among those kept
    pairs: bool = False  # keep features that act only together, too
    again: bool = False  # another pass will follow
    loss: float = 0.02
    noise: float = 0.05  # how often labels of pure noise may keep anything here
    n_copies: int = 100  # scrambled copies of every feature
    n_lambdas: int = 40
    refit_epochs: int = 20
    refit_share: float = 1.0  # of the way to the responses that a refit goes


@dataclass(frozen=True)
class QueryPlan:
    """A stage in which a method has a protocol of its own (``core/protocol.py``)."""

    stage: Stage
    n_queries: int  # the most
    n_values: float  # about a row, that a party shows at most
    n_passes: float = 0  # embeddings of a row that it shows besides
    scores: bool = False  # whether test rows are scored in it


PartyPlan = TrainPlan | SelectPlan | ShadowPlan | QueryPlan  # what a party is asked for


def are_alike(plan: PartyPlan, other: PartyPlan) -> bool:
    """Tell whether two plans are the same; floats may differ in their last digits.

    Two kinds of processors may derive them from the same settings.
    """

    def are_close(value: object, other: object) -> bool:
        if isinstance(value, tuple) and isinstance(other, tuple):
            return len(value) == len(other) and all(map(are_close, value, other))
        if isinstance(value, float) and isinstance(other, float):
            return math.isclose(value, other, rel_tol=ROUNDING)
        return value == other

    return type(plan) is type(other) and are_close(astuple(plan), astuple(other))
