"""A fitted model: every party's pruned network and the server's, ready to predict.

On disk, a folder a seed: ``partyN/network.safetensors`` and ``partyN/party.json`` for
the N-th party, whatever its name (name, features, encoding, shape), and
``server/network.safetensors`` and ``server/server.json``. Between machines every side
has its own part of it; all in one process they lie side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.hidden_paths import HiddenPaths, Inference
from lessvfl.core.lifted import Factory
from lessvfl.core.metrics import decision_offsets
from lessvfl.core.network import Network
from lessvfl.core.party_data import Outcome
from lessvfl.data import Encoding, Frame, Problem, frame_of
from lessvfl.errors import ConfigError, DataError
from lessvfl.run import hidden, network_files
from lessvfl.run.decide.kept import KeptDecision
from lessvfl.run.network_files import EXTRAS, Shape, texts, whole
from lessvfl.terms import PartyId, Task

NETWORKS = "networks"  # the folder of all seeds, between machines
MODEL_DIGITS = 16  # of a digest that stand in a file of predictions
# Before a class in such a file: what it says, and what the network itself does.
PROBABILITY, UNCALIBRATED = "probability_", "uncalibrated_"
MOST_NAMES = 3  # of a party's features, where a model is printed


@dataclass(frozen=True)
class FittedParty:
    """One party's part of a fitted model."""

    name: PartyId
    kept: tuple[str, ...]
    removed: tuple[str, ...]
    encoding: Encoding  # of the columns that its network takes
    net: Network
    shape: Shape
    constant: Tensor | None  # (E_m,), what a party that kept nothing contributes

    @classmethod
    def of(
        cls, encoding: Encoding, outcome: Outcome, source: str | None
    ) -> FittedParty:
        """Return what a party ends with, its encoding cut to what its network takes."""
        marked = list(zip(encoding.features, outcome.kept, strict=True))
        kept = tuple(name for name, stays in marked if stays)
        return cls(
            encoding.party,
            kept,
            tuple(name for name, stays in marked if not stays),
            encoding if outcome.frozen else encoding.narrow(kept),
            outcome.net,
            Shape.of(outcome.net, source, outcome.slots, outcome.outputs),
            outcome.constant,
        )

    def __repr__(self) -> str:
        """Say who this is and what is kept."""
        return f"<FittedParty: {self.name}; features kept: {self.kept_text}>"

    @property
    def kept_text(self) -> str:
        """Say how many features are kept, and name the first ones."""
        text = f"{len(self.kept)} of {len(self.kept) + len(self.removed)}"
        if not self.kept:
            return text
        more = ", ..." * (len(self.kept) > MOST_NAMES)
        return f"{text} ({', '.join(self.kept[:MOST_NAMES])}{more})"

    def embed(self, frame: Frame) -> Tensor:
        """Return the embedding of a table's rows, (n, E_m), or of one for all."""
        if self.constant is not None:
            return self.constant.unsqueeze(0)
        with torch.no_grad():
            return self.net(self.encoded(frame))

    def encoded(self, frame: Frame) -> Tensor:
        """Return a table's rows as the network takes them, (n, columns)."""
        matrix, _ = self.encoding.apply(frame)
        weights = self.net.input_weights
        return torch.as_tensor(matrix, dtype=weights.dtype, device=weights.device)

    @property
    def n_columns(self) -> int:
        """Return how many encoded columns its network takes."""
        return len(self.encoding.groups)

    @property
    def n_components(self) -> int:
        """Return how many components it contributes."""
        return self.net.n_outputs if self.constant is None else len(self.constant)

    def save(self, folder: Path) -> str:
        """Write network, feature lists and encoding; return a digest of them."""
        about = {
            "name": self.name,
            "kept": self.kept,
            "removed": self.removed,
            "encoding": self.encoding.to_json(),
            "shape": vars(self.shape),
        }
        extra = {} if self.constant is None else {"constant": self.constant}
        return network_files.write(folder, "party.json", about, self.net, extra)


@dataclass(frozen=True, kw_only=True)
class FittedServer:
    """The server's part for one seed: what it makes of the parties' embeddings."""

    task: Task
    label_names: tuple[str, ...]
    party_names: tuple[PartyId, ...]
    sizes: tuple[int, ...]  # components of every party
    fusion: Network
    fusion_shape: Shape
    label_shift: float = 0.0  # of regression: a number is z * label_scale + label_shift
    label_scale: float = 1.0
    # By class, what its probability is divided by before the largest is predicted.
    threshold: tuple[float, ...] | None = None
    positive: int = 1  # of two classes the one that the average precision is of
    # Columns of the table, in order, of a model of all sides; a server knows none.
    feature_names: tuple[str, ...] = ()
    decision: KeptDecision | None = None  # kept for predictions; in no other file
    # By party, its mean embedding over the training rows, where it was evaluated.
    means: Mapping[PartyId, Tensor] = field(default_factory=dict)
    # What parties that kept nothing contribute.
    constants: Mapping[PartyId, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        problem: Problem,
        fusion: Network,
        source: str | None,
        components: Mapping[PartyId, Sequence[bool]],
        **more: Any,
    ) -> Self:
        """Return what the server ends with; `components` are those kept, by party."""
        slots = tuple(flag for flags in components.values() for flag in flags)
        every = (True,) * fusion.n_outputs
        return cls(
            task=problem.task,
            label_names=problem.label_names,
            party_names=tuple(components),
            sizes=tuple(sum(flags) for flags in components.values()),
            fusion=fusion,
            fusion_shape=Shape.of(fusion, source, slots, every),
            label_shift=problem.label_shift,
            label_scale=problem.label_scale,
            threshold=problem.threshold,
            positive=problem.positive,
            **more,
        )

    def __repr__(self) -> str:
        """Say what is predicted, and with whom."""
        return f"<FittedServer: {self.task}; parties: {', '.join(self.party_names)}>"

    def fuse(self, blocks: Sequence[Tensor], n_rows: int) -> NDArray[Any]:
        """Return what the fusion network gives, (n, 1) or (n, C), of every block."""
        n = 1 if all(len(block) == 1 for block in blocks) else n_rows
        H = torch.cat([block.expand(n, -1) for block in blocks], dim=1)
        with torch.no_grad():
            z = self.fusion(H).expand(n_rows, -1)
        return np.asarray(z.double().cpu().numpy())

    def hidden_paths(self) -> HiddenPaths:
        """Return its trees as those that predict with hidden paths, or refuse."""
        sizes = dict(zip(self.party_names, self.sizes, strict=True))
        return HiddenPaths.of(self.fusion, sizes)

    def probabilities(self, z: NDArray[Any]) -> NDArray[Any]:
        """Return the probability of every class, (N, C), from network outputs `z`."""
        if self.task == "regression":
            raise ConfigError(
                "Probabilities need a classification task. Got a regression model."
            )
        z = self.recalibrated(z)
        if self.task == "binary":
            positive = torch.sigmoid(torch.as_tensor(z))
            return np.asarray(torch.cat([1 - positive, positive], dim=1).numpy())
        return np.asarray(torch.softmax(torch.as_tensor(z), dim=1).numpy())

    def shares(self, z: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return probabilities by what stands before a class in a table of them.

        Where they are recalibrated, those of the network itself are there, too.
        """
        shares = {PROBABILITY: self.probabilities(z)}
        if self.decision is not None and self.decision.recalibration is not None:
            plain = replace(self, decision=None)
            shares[UNCALIBRATED] = plain.probabilities(z)
        return shares

    def answers(self, z: NDArray[Any]) -> NDArray[Any]:
        """Return a label name, or a number for regression, for every row."""
        if self.task == "regression":
            return np.asarray(z[:, 0] * self.label_scale + self.label_shift)
        z = self.moved(z)
        codes = (z[:, 0] > 0).astype(int) if self.task == "binary" else z.argmax(axis=1)
        return np.asarray(np.asarray(self.label_names)[codes])

    def moved(self, z: NDArray[Any]) -> NDArray[Any]:
        """Return what decides on a class: the sign of (n, 1), or the largest of (n, C).

        It is what the network gives, moved by the threshold.
        """
        z = self.recalibrated(z)
        return np.asarray(z + np.array(decision_offsets(self.rule, z.shape[1])))

    def recalibrated(self, z: NDArray[Any]) -> NDArray[Any]:
        """Return what the network gives, by the recalibration that is kept, if any."""
        return z if self.decision is None else self.decision.recalibrated(z)

    @property
    def rule(self) -> tuple[float, ...] | None:
        """Return the threshold in use: that which is kept, or else the run's."""
        kept = None if self.decision is None else self.decision.threshold
        return kept or self.threshold

    def save(self, folder: Path) -> str:
        """Write the fusion network and what it takes to use it; return a digest."""
        about = {
            "task": self.task,
            "label_names": self.label_names,
            "label_shift": self.label_shift,
            "label_scale": self.label_scale,
            "threshold": self.threshold,
            "positive": self.positive,
            "feature_names": self.feature_names,
            "parties": self.party_names,
            "sizes": self.sizes,
            "shape": vars(self.fusion_shape),
        }
        extra = {
            f"{prefix}{place}": getattr(self, name)[party]
            for name, prefix in EXTRAS.items()
            for place, party in enumerate(self.party_names)
            if party in getattr(self, name)
        }
        return network_files.write(folder, "server.json", about, self.fusion, extra)


@dataclass(frozen=True, kw_only=True)
class FittedModel(FittedServer):
    """All parties and the server, for one seed.

    Predicts for tables (pandas or polars frames by column name, or arrays in the column
    order of the training table) that hold at least the columns in use.

    A model that :func:`lessvfl.load` read knows the `consensus` of all seeds of its run
    folder: by party ``recommended``, the features kept in at least half of the runs,
    and ``share``, the share of runs that kept each feature. Elsewhere it is empty.
    """

    parties: tuple[FittedParty, ...]
    consensus: Mapping[PartyId, Mapping[str, Any]] = field(default_factory=dict)
    inference: Inference = "clear"

    def __repr__(self) -> str:
        """Say what is predicted, and which features are kept."""
        kept = ", ".join(f"{party.name} {party.kept_text}" for party in self.parties)
        return f"<FittedModel: {self.task}; features kept: {kept}>"

    @property
    def features(self) -> dict[PartyId, tuple[str, ...]]:
        """Return the features every party kept."""
        return {party.name: party.kept for party in self.parties}

    @property
    def columns(self) -> frozenset[str]:
        """Return the columns in use, those that a table must have."""
        return frozenset(name for p in self.parties for name in p.encoding.names)

    @property
    def texts(self) -> frozenset[str]:
        """Return the columns in use that were texts in training, however read."""
        return frozenset(name for p in self.parties for name in p.encoding.texts)

    def astype(self, dtype: torch.dtype) -> FittedModel:
        """Return the same model, computing in another floating-point format."""
        parties = tuple(
            replace(
                party,
                net=party.net.astype(dtype),
                constant=None if party.constant is None else party.constant.to(dtype),
            )
            for party in self.parties
        )
        return replace(self, parties=parties, fusion=self.fusion.astype(dtype))

    def inferring(self, inference: Inference) -> FittedModel:
        """Return the same model that predicts in the clear, or with hidden paths.

        With ``fed-eini`` all sides of the protocol run in this process; trees that it
        cannot hide in are refused.
        """
        if inference == "fed-eini":
            self.hidden_paths()
        return replace(self, inference=inference)

    def decide(self, X: Any) -> NDArray[Any]:
        """Return the fusion network's outputs for the rows of `X`, (N, 1) or (N, C)."""
        frame = self.table(X)
        blocks = [party.embed(frame) for party in self.parties]
        if self.inference == "clear":
            return self.fuse(blocks, frame.n_rows)
        on_cpu = [block.cpu() for block in blocks]
        answers = dict(zip(self.party_names, on_cpu, strict=True))
        z = hidden.LocalParties(answers).predict(self.hidden_paths(), frame.n_rows)
        return np.asarray(z.double().cpu().numpy())

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of every class, (n, C)."""
        return self.probabilities(self.decide(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return a label name, or a number for regression, for every row."""
        return self.answers(self.decide(X))

    def table(self, X: Any) -> Frame:
        """Return the rows of `X`, in any form that `predict` takes, as a `Frame`."""
        if isinstance(X, Frame):
            return X
        if hasattr(X, "columns"):  # others may hold what no table of ours may
            in_use = self.columns
            used = [name for name in X.columns if str(name) in in_use]
            return frame_of(X[used]) if used else Frame((), np.empty((len(X), 0)))
        array = np.asarray(X)
        if array.ndim != 2 or array.shape[1] != len(self.feature_names):
            raise DataError(
                f"The table must have the {len(self.feature_names)} columns the model "
                f"was trained on, or name its columns. Got shape {array.shape}."
            )
        return frame_of(array, self.feature_names)

    def save(self, folder: Path) -> str:
        """Write every side's part, each file atomically; return the server's digest."""
        for index, party in enumerate(self.parties):
            party.save(folder / f"party{index}")
        return super().save(folder / "server")


def digest_together(digests: Sequence[str]) -> str:
    """Return the digest of one model, or of several that are one."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def digest_of(folder: Path) -> str:
    """Return the digest of one side's part, as its `save` returned it."""
    name = "party.json" if (folder / "party.json").is_file() else "server.json"
    files = ("network.safetensors", name)
    return network_files.digest((folder / file).read_bytes() for file in files)


def load_model(
    folder: Path,
    party_net: Factory | None = None,
    fusion_net: Factory | None = None,
    trust_code: bool = False,
) -> FittedModel:
    """Read a model that :meth:`FittedModel.save` wrote."""
    server = load_server(folder / "server", fusion_net, trust_code)
    parties = tuple(
        load_party(folder / f"party{index}", party_net, trust_code)
        for index in range(len(server.party_names))
    )
    of_server = {f.name: getattr(server, f.name) for f in fields(server)}
    return FittedModel(**of_server, parties=parties)


def load_party(
    folder: Path, party_net: Factory | None = None, trust_code: bool = False
) -> FittedParty:
    """Read one party's part."""
    about, net, shape, extra = network_files.read(
        folder, "party.json", party_net, trust_code
    )
    with whole(folder, "party.json"):
        return FittedParty(
            name=about["name"],
            kept=texts(about["kept"]),
            removed=texts(about["removed"]),
            encoding=Encoding.from_json(about["encoding"]),
            net=net,
            shape=shape,
            constant=extra.get("constant"),
        )


def load_server(
    folder: Path, fusion_net: Factory | None = None, trust_code: bool = False
) -> FittedServer:
    """Read the server's part."""
    about, fusion, shape, extra = network_files.read(
        folder, "server.json", fusion_net, trust_code
    )
    with whole(folder, "server.json"):
        names, threshold = texts(about["parties"]), about.get("threshold")
        beside: dict[str, Any] = {
            name: {
                party: extra[f"{prefix}{place}"]
                for place, party in enumerate(names)
                if f"{prefix}{place}" in extra
            }
            for name, prefix in EXTRAS.items()
        }
        return FittedServer(
            task=about["task"],
            label_names=texts(about["label_names"]),
            party_names=names,
            sizes=tuple(about["sizes"]),
            fusion=fusion,
            fusion_shape=shape,
            label_shift=about["label_shift"],
            label_scale=about["label_scale"],
            threshold=None if threshold is None else tuple(threshold),
            positive=about.get("positive", 1),
            feature_names=texts(about["feature_names"]),
            **beside,
        )
