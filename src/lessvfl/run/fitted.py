"""A fitted model: every party's pruned network and the server's, ready to predict.

On disk, a folder a seed: ``partyN/network.safetensors`` and ``partyN/party.json`` for
the N-th party, whatever its name (name, features, encoding, shape), and
``server/network.safetensors`` and ``server/server.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.lifted import Factory, Lifted, find_factory
from lessvfl.core.metrics import decision_offsets
from lessvfl.core.network import DTYPES, MLP, Network
from lessvfl.data import Encoding, Frame, frame_of
from lessvfl.errors import ConfigError, DataError, RecordError
from lessvfl.run.record import write_atomically
from lessvfl.terms import PartyId, Task


@dataclass(frozen=True)
class Shape:
    """How to build a network again before its weights are put in."""

    widths: tuple[int, ...]  # of the default network; input and output of a module
    activation: str
    factory: str | None  # where a module comes from; "given" if from Python
    slots: tuple[bool, ...] | None  # kept slots and outputs of a module
    outputs: tuple[bool, ...] | None

    def build(
        self, name: str, dtype: torch.dtype, given: Factory | None, trust_code: bool
    ) -> Network:
        """Return a network of this shape with weights still to be put in.

        Code that the folder names is loaded only where `trust_code` says so.
        """
        cpu = torch.device("cpu")
        if self.factory is None:
            return MLP.create(self.widths, self.activation, (0,), name, dtype, cpu)
        if given is None and self.factory == "given":
            raise ConfigError(
                f"The network of {name} was given from Python: load must be given the "
                "same function again as 'party_net' or 'fusion_net'. Got none."
            )
        if given is None and not trust_code:
            raise ConfigError(
                f"The network of {name} is made by code that the run folder names, "
                f"'{self.factory}': load must be given trust_code=True to run it, or "
                "the function itself as 'party_net' or 'fusion_net'. Got neither."
            )
        factory = given or find_factory(self.factory)
        whole = Lifted.create(
            factory, self.widths[0], self.widths[-1], (0,), name, dtype, cpu
        )
        slots = None if self.slots is None else torch.tensor([self.slots])
        outputs = None if self.outputs is None else torch.tensor([self.outputs])
        return whole.narrow(slots, outputs)


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

    def embed(self, frame: Frame) -> Tensor:
        """Return the embedding of a table's rows, (1, n, E_m), or of one for all."""
        if self.constant is not None:
            return self.constant.expand(1, 1, -1)
        matrix, _ = self.encoding.apply(frame)
        weights = self.net.input_weights
        x = torch.as_tensor(matrix, dtype=weights.dtype, device=weights.device)
        with torch.no_grad():
            return self.net(x.unsqueeze(0))


@dataclass(frozen=True)
class FittedModel:
    """All parties and the server, for one seed.

    Predicts for tables (pandas or polars frames by column name, or arrays in the column
    order of the training table) that hold at least the columns in use.

    A model that :func:`lessvfl.load` read knows the `consensus` of all seeds of its run
    folder: by party ``recommended``, the features kept in at least half of the runs,
    and ``share``, the share of runs that kept each feature. Elsewhere it is empty.
    """

    task: Task
    label_names: tuple[str, ...]
    feature_names: tuple[str, ...]  # columns of the table, in order
    parties: tuple[FittedParty, ...]
    fusion: Network
    fusion_shape: Shape
    label_shift: float = 0.0  # of regression: a number is z * label_scale + label_shift
    label_scale: float = 1.0
    # By class, what its probability is divided by before the largest is predicted.
    threshold: tuple[float, ...] | None = None
    consensus: Mapping[PartyId, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def features(self) -> dict[PartyId, tuple[str, ...]]:
        """Return the features every party kept."""
        return {party.name: party.kept for party in self.parties}

    @property
    def columns(self) -> frozenset[str]:
        """Return the columns in use, those that a table must have."""
        return frozenset(name for p in self.parties for name in p.encoding.names)

    def astype(self, dtype: torch.dtype) -> FittedModel:
        """Return the same model, computing in another number format."""
        parties = tuple(
            replace(
                party,
                net=party.net.astype(dtype),
                constant=None if party.constant is None else party.constant.to(dtype),
            )
            for party in self.parties
        )
        return replace(self, parties=parties, fusion=self.fusion.astype(dtype))

    def decide(self, X: Any) -> NDArray[Any]:
        """Return what the fusion network gives, (n, 1) or (n, C)."""
        frame = X if isinstance(X, Frame) else self._frame(X)
        blocks = [party.embed(frame) for party in self.parties]
        alike = all(party.constant is not None for party in self.parties)
        n_rows = 1 if alike else frame.n_rows
        H = torch.cat([block.expand(-1, n_rows, -1) for block in blocks], dim=2)
        with torch.no_grad():
            z = self.fusion(H).expand(-1, frame.n_rows, -1)
        return np.asarray(z[0].double().cpu().numpy())

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of every class, (n, C)."""
        if self.task == "regression":
            raise ConfigError(
                "Probabilities need a classification task. Got a regression model."
            )
        z = torch.as_tensor(self.decide(X))
        if self.task == "binary":
            positive = torch.sigmoid(z)
            return np.asarray(torch.cat([1 - positive, positive], dim=1).numpy())
        return np.asarray(torch.softmax(z, dim=1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """Return a label name, or a number for regression, for every row."""
        if self.task == "regression":
            z = self.decide(X)
            return np.asarray(z[:, 0] * self.label_scale + self.label_shift)
        z = self.score_classes(X)
        codes = (z[:, 0] > 0).astype(int) if self.task == "binary" else z.argmax(axis=1)
        return np.asarray(np.asarray(self.label_names)[codes])

    def score_classes(self, X: Any) -> NDArray[Any]:
        """Return what decides on a class: the sign of (n, 1), or the largest of (n, C).

        What the fusion network gives, moved by the threshold.
        """
        z = self.decide(X)
        return np.asarray(z + np.array(decision_offsets(self.threshold, z.shape[1])))

    def _frame(self, X: Any) -> Frame:
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

    def save(self, folder: Path) -> None:
        """Write networks, feature lists and encodings, each file atomically."""
        for index, party in enumerate(self.parties):
            about = {
                "name": party.name,
                "kept": party.kept,
                "removed": party.removed,
                "encoding": party.encoding.to_json(),
                "shape": vars(party.shape),
            }
            extra = {} if party.constant is None else {"constant": party.constant}
            _write(folder / f"party{index}", "party.json", about, party.net, extra)
        server: dict[str, Any] = {
            "task": self.task,
            "label_names": self.label_names,
            "label_shift": self.label_shift,
            "label_scale": self.label_scale,
            "threshold": self.threshold,
            "feature_names": self.feature_names,
            "parties": [party.name for party in self.parties],
            "shape": vars(self.fusion_shape),
        }
        _write(folder / "server", "server.json", server, self.fusion, {})


def _write(
    folder: Path, name: str, about: dict[str, Any], net: Network, extra: dict[str, Any]
) -> None:
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        key: value.detach().cpu().contiguous()
        for key, value in {**net.state(), **extra}.items()
    }
    write_atomically(folder / "network.safetensors", save(tensors))
    write_atomically(folder / name, json.dumps(about, indent=1).encode())


def load_model(
    folder: Path,
    party_net: Factory | None = None,
    fusion_net: Factory | None = None,
    trust_code: bool = False,
) -> FittedModel:
    """Read a model that :meth:`FittedModel.save` wrote."""
    server, fusion, fusion_shape, _ = _read(
        folder / "server", "server.json", "the server", fusion_net, trust_code
    )
    parties = []
    for index, name in enumerate(server["parties"]):
        who = f"party '{name}'"
        about, net, shape, extra = _read(
            folder / f"party{index}", "party.json", who, party_net, trust_code
        )
        parties.append(
            FittedParty(
                name,
                tuple(about["kept"]),
                tuple(about["removed"]),
                Encoding.from_json(about["encoding"]),
                net,
                shape,
                extra.get("constant"),
            )
        )
    return FittedModel(
        server["task"],
        tuple(server["label_names"]),
        tuple(server["feature_names"]),
        tuple(parties),
        fusion,
        fusion_shape,
        server["label_shift"],
        server["label_scale"],
        None if (found := server.get("threshold")) is None else tuple(found),
    )


def _read(
    folder: Path, name: str, owner: str, given: Factory | None, trust_code: bool
) -> tuple[dict[str, Any], Network, Shape, dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        about = json.loads((folder / name).read_text(encoding="utf-8"))
        state = load((folder / "network.safetensors").read_bytes())
        facts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in about["shape"].items()
        }
        shape = Shape(**facts)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise _damaged(folder, name, problem) from None
    constant = {key: state.pop(key) for key in ("constant",) if key in state}
    formats = {tensor.dtype for tensor in state.values()} & set(DTYPES.values())
    net = shape.build(owner, next(iter(formats), torch.float32), given, trust_code)
    try:
        net.load_state(state)
    except (KeyError, RuntimeError) as problem:
        raise _damaged(folder, name, problem) from None
    net.train(False)
    return about, net, shape, constant


def _damaged(folder: Path, name: str, problem: Exception) -> RecordError:
    return RecordError(
        f"'{folder}' must hold {name} and network.safetensors, as a finished run "
        f"writes them. Got {type(problem).__name__}: {problem}"
    )
