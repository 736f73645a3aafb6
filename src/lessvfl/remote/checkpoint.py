"""Checkpoints: a run between machines that goes on where it was, to the bit.

At every checkpoint all parties save their state first and the server last, each file
atomically: a state that the server has, every party has. After a break everybody goes
back to the server's last mark and repeats the steps since, with the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from lessvfl import __version__
from lessvfl.core.adam import Optimizer
from lessvfl.core.keeper import Keeper, below, numbered, under
from lessvfl.core.solve import fill_optimizer, optimizer_tensors
from lessvfl.data import Places, are_all
from lessvfl.errors import ConfigError, RecordError
from lessvfl.run.record import dumps, read_private, write_atomically
from lessvfl.run.recorder import Recorder
from lessvfl.terms import Stage
from lessvfl.wire.parties import Parties

FORMAT = 9


@dataclass(frozen=True)
class State:
    """Tensors by name, plain values, and a secret of whoever wrote it."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    secret: bytes = field(default=b"", repr=False)


def write_state(path: Path, state: State) -> None:
    """Write a state to a file atomically, readable by its owner only.

    A missing folder is made. The file has a checksum.
    """
    values = dumps({"format": FORMAT, "lessvfl": __version__, **state.values})
    tensors = {  # that share no memory, as the format wants
        name: t.detach().cpu().contiguous().clone() for name, t in state.tensors.items()
    }
    if state.secret:
        tensors["secret"] = torch.tensor(list(state.secret), dtype=torch.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"values": values, "checksum": _checksum(values, tensors)}
    write_atomically(path, safetensors.torch.save(tensors, about), mode=0o600)


def _checksum(values: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum of the values, and the tensors' names, shapes and numbers."""
    checksum = xxhash.xxh3_128(values.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        checksum.update(tensor.numpy().reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


def read_state(path: Path) -> State:
    """Read a state; a file that cannot be used is named and left alone."""
    try:
        content = read_private(path, "state")  # once: the next one may replace it
        tensors = safetensors.torch.load(content)
        n_header = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + n_header])["__metadata__"]
        values = json.loads(about["values"])
        if about["checksum"] != _checksum(about["values"], tensors):
            raise ValueError("a wrong checksum: the file was changed")
    except ConfigError:
        raise  # about its mode
    except (
        *(OSError, ValueError, KeyError, RecursionError),
        safetensors.SafetensorError,
    ) as error:
        raise RecordError(
            f"'{path}' must be a checkpoint of lessvfl. Got {type(error).__name__}: "
            f"{error}."
        ) from None
    if values.get("format") != FORMAT or values.get("lessvfl") != __version__:
        raise RecordError(
            f"'{path}' must be a checkpoint of lessvfl {__version__}. Got one of "
            f"{values.get('lessvfl')}, format {values.get('format')}."
        )
    secret = tensors.pop("secret", None)
    return State(tensors, values, b"" if secret is None else bytes(secret.tolist()))


def named_rows(rows: Places, n_rows: int) -> dict[str, Tensor]:
    """Return common rows for a state; nothing if they are all rows in order."""
    if are_all(rows, n_rows):
        return {}
    return {"rows": torch.from_numpy(np.ascontiguousarray(rows))}


@dataclass
class Checkpoints(Keeper):
    """The server's keeper."""

    path: Path  # where the server's state goes
    every: int  # steps between two checkpoints
    server: Parties  # whose state and bill are saved
    recorder: Recorder  # whose curve and scores are saved
    save_parties: Callable[[str], object]  # has every party save its state at a mark
    saved: State | None = None  # where to go on
    on_step: Callable[[Stage, int, int], None] = lambda stage, step, n_steps: None
    resent: Callable[[], int] = lambda: 0  # the bytes that were sent again
    _behind: list[str] = field(default_factory=list)
    _found: dict[str, Tensor] = field(default_factory=dict)
    _made: dict[str, Tensor] = field(default_factory=dict)  # in the place of a network
    _n_asked: int = 0  # queries of the stage when it was saved
    _params: Sequence[Tensor] = ()
    _is_back: bool = True  # the network has the values of the checkpoint, or later
    _optimizer: Optimizer | None = None
    _more: Tensor | None = None  # of the stage: what changes beside the weights

    def __post_init__(self) -> None:
        """Restore what was saved."""
        if self.saved is None:
            return
        self._is_back = False
        tensors, values = self.saved.tensors, self.saved.values
        self._behind = list(values["behind"])
        self._found = below("found", tensors)
        self._made = below("made", tensors)
        self.server.restore(values["server"], below("constant", tensors))
        self.recorder.restore(values["recorder"])
        torch.set_rng_state(tensors["rng"])

    def enter(
        self,
        stage: Stage,
        n_steps: int,
        params: Sequence[Tensor],
        optimizer: Optimizer,
        more: Tensor | None = None,
    ) -> int:
        """Return how many steps of a stage are done, its values put in place."""
        self._optimizer, self._more = optimizer, more
        self.put_back(params)
        if stage in self._behind:
            return n_steps
        saved, self.saved = self.saved, None  # the run is ahead of it from here on
        if saved is None or saved.values["stage"] != stage:
            return 0
        fill_optimizer(optimizer, saved.tensors)
        if more is not None:
            known = saved.tensors.get("more")
            if known is None or known.shape != more.shape or bool(known.isnan().any()):
                raise RecordError(
                    f"'{self.path}' must say how far training is. Got a checkpoint "
                    "that does not."
                )
            more.copy_(known)
        step: int = saved.values["step"]
        return step

    def put_back(self, params: Sequence[Tensor]) -> None:
        """Put saved values into the server's network, where they fit its shape.

        They fit only once it is cut to the components of the checkpoint, which must
        happen before anything is saved again.
        """
        self._params = params
        if self.saved is None:
            return
        values = [self.saved.tensors[f"fusion.{i}"] for i in range(len(params))]
        with torch.no_grad():
            if all(v.shape == p.shape for v, p in zip(values, params, strict=True)):
                for param, value in zip(params, values, strict=True):
                    param.copy_(value)
                self._is_back = True

    def reached(self, stage: Stage, step: int, n_steps: int) -> None:
        """Save at the end of a stage, and every few steps."""
        self.on_step(stage, step, n_steps)
        if step == n_steps:
            self._behind.append(stage)
        if step == n_steps or step % self.every == 0:
            self._save(stage, step)

    def is_behind(self, stage: Stage) -> bool:
        """Tell whether a stage is over."""
        return stage in self._behind

    def recall(self, stage: Stage) -> Tensor | None:
        """Return what a stage that is over has found."""
        found = self._found.get(stage)
        return None if found is None else found.bool()

    def note(self, stage: Stage, found: Tensor, params: Sequence[Tensor]) -> None:
        """Save what a stage of the server's own has found."""
        self.saved = None
        self._found[stage] = found.to(torch.uint8)
        self._params, self._optimizer = params, None
        self._behind.append(stage)
        self._save(stage, 1)

    def store(self, stage: Stage, made: Mapping[str, Tensor]) -> None:
        """Save what a stage has made in the place of a network."""
        self.saved, self._is_back = None, True
        self._made, self._params, self._optimizer = dict(made), (), None
        self.reached(stage, 1, 1)

    def made_by(self, stage: Stage) -> Mapping[str, Tensor] | None:
        """Return what a stage that is over has made."""
        return self._made if stage in self._behind else None

    def grown(
        self, stage: Stage, step: int, made: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """Save every few queries what a stage of them has made so far."""
        if step - self._n_asked >= self.every:
            self._n_asked = step
            self._made = dict(made())
            self._save(stage, step)

    def left_off(self, stage: Stage) -> Mapping[str, Tensor] | None:
        """Return what a stage of queries had made when it broke off."""
        saved, self.saved = self.saved, None  # the run is ahead of it from here on
        if saved is None or saved.values["stage"] != stage or not self._made:
            return None
        self._n_asked = saved.values["step"]
        return self._made

    def _save(self, stage: Stage, step: int) -> None:
        if not self._is_back:
            raise RecordError(
                f"The fusion network of '{self.path}' must fit the run's. Got one of "
                "another shape."
            )
        tag = f"{stage}-{step}"
        self.save_parties(tag)
        tensors = numbered("fusion", self._params)
        tensors |= under("found", self._found)
        tensors |= under("made", self._made)
        tensors |= under("constant", self.server.constants)
        tensors["rng"] = torch.get_rng_state()
        is_over = stage in self._behind
        if self._optimizer is not None and not is_over:
            tensors |= optimizer_tensors(self._optimizer)
            if self._more is not None:
                tensors["more"] = self._more
        values = {
            "tag": tag,
            "stage": None if is_over else stage,
            "step": step,
            "behind": self._behind,
            "server": self.server.state(),
            "recorder": self.recorder.state(),
            "resent": self.resent(),
        }
        write_state(self.path, State(tensors, values))
