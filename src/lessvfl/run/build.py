"""The only wiring: settings and data become networks, parties and labels.

The simulator, the two processes of a run between machines, the estimators and the
benchmarks build what they need here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lessvfl import methods
from lessvfl.core.device import resolve_device
from lessvfl.core.evidence import matches
from lessvfl.core.lifted import Factory, Lifted, find_factory
from lessvfl.core.losses import Labels
from lessvfl.core.network import DTYPES, MLP, Network
from lessvfl.core.party_data import PartyData, cut_columns
from lessvfl.core.privacy import ClippedNoise, EmbeddingGuard, GradientDefence
from lessvfl.data import CellCounts, Encoding, Problem, Scratch, StoredTable
from lessvfl.errors import ConfigError, warn
from lessvfl.mechanisms import GRADIENT_DEFENCES, RandomisedResponse
from lessvfl.party import Party
from lessvfl.run.profiles import Settings
from lessvfl.settings import known_as
from lessvfl.terms import Observer, PartyId, Task

PartyNets = Factory | nn.Module | Mapping[str, Factory | nn.Module]
Tables = Sequence[np.ndarray[Any, Any]]  # one for each replica


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


def clamp_batch(config: Any, n_rows: int, aloud: bool = False) -> Any:
    """Return a method's settings with steps of no more rows than there are."""
    if config.batch_size <= n_rows:
        return config
    if aloud:
        warn(
            f"The 'batch_size' setting is {config.batch_size}, but of training rows "
            f"there are only {n_rows}: every step uses them all."
        )
    return dataclasses.replace(config, batch_size=n_rows)


def check_pinned(must_keep: str | None, features: Sequence[str], holder: str) -> None:
    """Refuse a feature that must stay and that its holder lacks."""
    for pattern in (must_keep or "").split(","):
        if pattern.strip() and not any(matches(pattern, features)):
            raise ConfigError(
                f"The 'must_keep' setting must name features of {holder}. Got "
                f"'{pattern.strip()}', which matches none."
            )


def n_outputs(task: Task, n_classes: int) -> int:
    """Return the width of the fusion network's output."""
    return n_classes if task == "multiclass" else 1


def cut_stored(on: Scratch, X: Tensor, used: Tensor) -> Tensor:
    """Return the columns of a table on disk (1, N, columns) that are in use."""
    return torch.from_numpy(on.cut(X[0].numpy(), used.numpy())).unsqueeze(0)


class Builder:
    """Builds everything of a run out of its settings, seeds and device.

    A side's weights, its noise and its own random streams come from `private` seeds,
    the shared ones unless given. Noise is as much as settings say:
    `accounting.with_noise` has put it in the place of an epsilon.
    """

    def __init__(
        self,
        settings: Settings,
        seeds: Sequence[int],
        device: str,
        networks: Networks | None = None,
        private: Sequence[int] | None = None,
    ) -> None:
        self.private = tuple(seeds if private is None else private)
        self.settings = settings
        self.seeds = tuple(seeds)
        self.device = resolve_device(device)
        self.dtype = DTYPES[settings.net.dtype]
        self.networks = networks or Networks()

    def rows(self, tables: Tables) -> Tensor:
        """Return an array a replica as a tensor (S, N, ...), shared where equal."""
        return self._stack(tables).to(self.device, self.dtype)

    def stored_rows(
        self, tables: Sequence[StoredTable], encoding: Encoding, on: Scratch
    ) -> tuple[list[Tensor], CellCounts]:
        """Return the encoded rows of tables on disk as tensors (1, N, columns)."""
        dtype = str(self.dtype).removeprefix("torch.")
        found, counts = on.encode(tables, encoding, dtype)
        return [torch.from_numpy(rows).unsqueeze(0) for rows in found], counts

    def labels(self, y: Tables, task: Task) -> Tensor:
        """Return labels (S, N): class numbers, or numbers of the networks' format."""
        stacked = self._stack(y)
        dtype = stacked.dtype if task == "multiclass" else self.dtype
        return stacked.to(self.device, dtype)

    def server_labels(self, problems: Sequence[Problem]) -> Labels:
        """Return what the server trains on, a problem for each replica.

        Where only some of them weigh rows or bend the loss, the others weigh all alike
        and bend it nowhere.
        """
        task = problems[0].task
        weight, delta = None, None
        if any(p.weight is not None for p in problems):
            alike = np.ones(len(problems[0].y_train))
            weight = self.rows(
                [alike if p.weight is None else p.weight for p in problems]
            )
        if any(p.huber_delta is not None for p in problems):
            deltas = [
                math.inf if p.huber_delta is None else p.huber_delta for p in problems
            ]
            delta = self.rows([np.array([value]) for value in deltas])
        y = self.labels([p.y_train for p in problems], task)
        blocks = self.blocks([p.blocks for p in problems])
        n_classes = problems[0].n_classes
        epsilon, flips = self.settings.labels.label_epsilon, 0.0
        if epsilon is not None:
            flips = RandomisedResponse(epsilon, n_classes).flips
        defence = self._gradient_defence()
        own = (weight, delta, blocks, flips, defence, self.private)
        return Labels(y, task, self.seeds, *own)

    def _gradient_defence(self) -> GradientDefence | None:
        own = self.settings.labels
        kind = known_as(own.gradient_defence, GRADIENT_DEFENCES, "'gradient_defence'")
        if kind == "none":
            return None
        return GradientDefence(kind, own.gradient_noise, own.gradient_clip)

    def blocks(self, of: Sequence[np.ndarray[Any, Any] | None]) -> Tensor | None:
        """Return the blocks of training rows (S, N), one array a replica or none.

        Where only some replicas have blocks, every row of the others is its own. Also
        where training rows are in a file.
        """
        given = [own for own in of if own is not None]
        if not given:
            return None
        alone = np.arange(len(given[0]))
        return self._stack([alone if own is None else own for own in of]).to(
            self.device
        )

    def _stack(self, tables: Tables) -> Tensor:
        if all(table is tables[0] for table in tables):
            tables = tables[:1]
        return torch.as_tensor(np.stack(tables))

    def party_network(self, name: PartyId, n_columns: int) -> Network:
        """Return a party's network for that many columns, its weights drawn."""
        net = self.settings.net
        given = self.networks.of(name) or net.party_net
        widths = net.party_widths(n_columns)
        return self._network(widths, given, self.private, name, net.input_scale)

    def fusion_network(self, n_components: int, n_outputs: int) -> Network:
        """Return the fusion network for all parties' components, its weights drawn."""
        net = self.settings.net
        given = self.networks.fusion or net.fusion_net
        widths = net.fusion_widths(n_components, n_outputs)
        return self._network(widths, given, self.private)

    def _network(
        self,
        widths: tuple[int, ...],
        given: Factory | nn.Module | str | None,
        seeds: tuple[int, ...],
        name: str = "the server",
        input_scale: float = 1.0,
    ) -> Network:
        where = (seeds, name, self.dtype, self.device)
        if given is None:
            activation = self.settings.net.activation
            return MLP.create(widths, activation, *where, input_scale)
        factory = find_factory(given) if isinstance(given, str) else given
        return Lifted.create(factory, widths[0], widths[-1], *where)

    def party(
        self,
        name: PartyId,
        tables: tuple[Tensor, Tensor],
        groups: np.ndarray[Any, Any],
        features: Sequence[str],
        observe: Observer = lambda event: None,
        cut: Callable[[Tensor, Tensor], Tensor] = cut_columns,
        blocks: Tensor | None = None,
        alone: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Party:
        """Return a fresh party on training and test rows, and those it has alone."""
        config: Any = self.settings.config
        owner = torch.as_tensor(groups).to(self.device)
        must_keep = matches(config.pinned(), features)
        return Party(
            name,
            self.party_network(name, tables[0].shape[2]),
            PartyData(*tables, owner, must_keep, cut, blocks, alone, places),
            self.seeds,
            config.empty_party,
            observe,
            self.private,
            methods.get(self.settings.method).protocol_of(config),
            self._guard(name),
        )

    def _guard(self, party: PartyId) -> EmbeddingGuard | None:
        noise, at = self.embedding_noise, self.settings.data.noise_at
        if noise is None:
            return None
        return EmbeddingGuard(noise, party, self.private, at == "first-layer")

    @property
    def embedding_noise(self) -> ClippedNoise | None:
        """Return what is added to all embeddings that leave a party."""
        own = self.settings.data
        assert own.embedding_epsilon is None, "noise is in its place"
        if own.embedding_noise == 0:
            return None
        return ClippedNoise(own.embedding_clip, own.embedding_noise)
