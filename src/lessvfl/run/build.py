"""The only wiring: settings and data become networks, parties and labels.

The simulator, the two processes of a run between machines, the estimators and the
benchmarks build what they need here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lessvfl import methods
from lessvfl.core.device import resolve_device
from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.lifted import Factory, Lifted, find_factory
from lessvfl.core.losses import Labels
from lessvfl.core.network import DTYPES, MLP, Network
from lessvfl.core.party_data import PartyData, cut_columns
from lessvfl.data import CellCounts, Encoding, Problem, Scratch, StoredTable
from lessvfl.errors import ConfigError, warn
from lessvfl.party import Party
from lessvfl.privacy.mechanisms import GRADIENT_DEFENCES, RandomisedResponse
from lessvfl.privacy.noise import ClippedNoise, GradientDefence
from lessvfl.run.profiles import Settings
from lessvfl.select.evidence import matches
from lessvfl.settings import known_as
from lessvfl.terms import Observer, PartyId, Task

PartyNets = Factory | nn.Module | Mapping[str, Factory | nn.Module]


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
    """Return the columns of a table on disk (N, columns) that are in use."""
    return torch.from_numpy(on.cut(X.numpy(), used.numpy()))


class Builder:
    """Builds everything of a run out of its settings, seed and device.

    A side's weights, its noise and its own random streams come from a `private` seed,
    the shared one unless given. Noise is as much as settings say:
    `accounting.with_noise` has put it in the place of an epsilon.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        device: str,
        networks: Networks | None = None,
        private: int | None = None,
    ) -> None:
        self.private = seed if private is None else private
        self.settings = settings
        self.seed = seed
        self.device = resolve_device(device)
        self.dtype = DTYPES[settings.net.dtype]
        self.networks = networks or Networks()

    def rows(self, table: NDArray[Any]) -> Tensor:
        """Return an array of rows as a tensor in the networks' number format."""
        return torch.as_tensor(table).to(self.device, self.dtype)

    def stored_rows(
        self, tables: Sequence[StoredTable], encoding: Encoding, on: Scratch
    ) -> tuple[list[Tensor], CellCounts]:
        """Return the encoded rows of tables on disk as tensors (N, columns)."""
        dtype = str(self.dtype).removeprefix("torch.")
        arrays, counts = encoding.apply_on_disk(tables, on, dtype)
        return [torch.from_numpy(rows) for rows in arrays], counts

    def labels(self, y: NDArray[Any], task: Task) -> Tensor:
        """Return labels: class numbers, or numbers of the networks' format."""
        labels = torch.as_tensor(y)
        dtype = labels.dtype if task == "multiclass" else self.dtype
        return labels.to(self.device, dtype)

    def server_labels(self, problem: Problem) -> Labels:
        """Return labels, weights and loss of a problem as the server trains on them."""
        given, flips, defence = self.settings.labels, 0.0, None
        if given.label_epsilon is not None:
            flips = RandomisedResponse(given.label_epsilon, problem.n_classes).flips
        kind = known_as(given.gradient_defence, GRADIENT_DEFENCES, "'gradient_defence'")
        if kind != "none":
            noise, clip = given.gradient_noise, given.gradient_clip
            defence = GradientDefence(kind, noise, clip)
        return Labels(
            self.labels(problem.y_train, problem.task),
            problem.task,
            self.seed,
            weight=None if problem.weight is None else self.rows(problem.weight),
            huber_delta=problem.huber_delta,
            blocks=self.blocks(problem.blocks),
            flips=flips,
            defence=defence,
            private=self.private,
        )

    def blocks(self, blocks: NDArray[Any] | None) -> Tensor | None:
        """Return the blocks of training rows as a tensor, None where there are none."""
        return None if blocks is None else torch.as_tensor(blocks).to(self.device)

    def party_network(self, name: PartyId, n_columns: int) -> Network:
        """Return a party's network for that many columns, its weights drawn."""
        net = self.settings.net
        given = self.networks.of(name) or net.party_net
        widths = net.party_widths(n_columns)
        return self._network(widths, given, name, net.input_scale)

    def fusion_network(self, n_components: int, n_outputs: int) -> Network:
        """Return the fusion network for all parties' components, its weights drawn."""
        net = self.settings.net
        given = self.networks.fusion or net.fusion_net
        widths = net.fusion_widths(n_components, n_outputs)
        return self._network(widths, given, "the server")

    def _network(
        self,
        widths: tuple[int, ...],
        given: Factory | nn.Module | str | None,
        name: str,
        input_scale: float = 1.0,
    ) -> Network:
        if given is None:
            return MLP.create(
                widths,
                self.settings.net.activation,
                seed=self.private,
                name=name,
                dtype=self.dtype,
                device=self.device,
                input_scale=input_scale,
            )
        return Lifted.create(
            find_factory(given) if isinstance(given, str) else given,
            widths[0],
            widths[-1],
            seed=self.private,
            name=name,
            dtype=self.dtype,
            device=self.device,
        )

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
        noise, at = self.embedding_noise, self.settings.data.noise_at
        guard = None
        if noise is not None:
            guard = EmbeddingGuard(noise, name, self.private, at == "first-layer")
        owner = torch.as_tensor(groups).to(self.device)
        must_keep = matches(config.pinned(), features)
        return Party(
            name,
            self.party_network(name, tables[0].shape[1]),
            PartyData(*tables, owner, must_keep, cut, blocks, alone, places),
            self.seed,
            empty=config.empty_party,
            observe=observe,
            private=self.private,
            protocol=methods.get(self.settings.method).protocol_of(config),
            guard=guard,
        )

    @property
    def embedding_noise(self) -> ClippedNoise | None:
        """Return what is added to all embeddings that leave a party."""
        given = self.settings.data
        assert given.embedding_epsilon is None, "noise is in its place"
        if given.embedding_noise == 0:
            return None
        return ClippedNoise(given.embedding_clip, given.embedding_noise)
