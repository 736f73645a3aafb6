"""Checkpoints: a run between machines that goes on where it was, to the bit.

At every checkpoint all parties save their state first and the server last, each file
atomically: a state that the server has, every party has. After a break everybody goes
back to the server's last mark and repeats the steps since, with the same numbers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from lessvfl import __version__
from lessvfl.core.keeper import Keeper
from lessvfl.core.state import join_state, split_state
from lessvfl.data import Places, are_all
from lessvfl.errors import ConfigError, RecordError
from lessvfl.run.numbers import Recorded
from lessvfl.run.record import dumps, read_private, write_atomically
from lessvfl.run.recorder import Recorder
from lessvfl.terms import Stage
from lessvfl.wire.parties import Parties, PartiesState

FORMAT = 10
S = TypeVar("S")


@dataclass(frozen=True)
class State:
    """Tensors by name, plain values, and a secret of whoever wrote it."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    secret: bytes = field(default=b"", repr=False)


def write_state(path: Path, state: State) -> None:
    """Write a state (tensors, values, secret) to a file that only its owner may read.

    It is written whole or not at all, with a checksum. A missing folder is made.
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
        raise _unusable(path, error) from None
    if values.get("format") != FORMAT or values.get("lessvfl") != __version__:
        raise RecordError(
            f"'{path}' must be a checkpoint of lessvfl {__version__}. Got one of "
            f"{values.get('lessvfl')}, format {values.get('format')}."
        )
    secret = tensors.pop("secret", None)
    return State(tensors, values, b"" if secret is None else bytes(secret.tolist()))


def joined(kind: type[S], state: State, path: Path) -> S:
    """Return the state of a kind that the file at `path` holds in parts."""
    try:
        return join_state(kind, state.tensors, state.values)
    except (msgspec.ValidationError, LookupError) as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: Exception) -> RecordError:
    return RecordError(
        f"'{path}' must be a checkpoint of lessvfl. Got {type(error).__name__}: "
        f"{error}."
    )


def named_rows(rows: Places, n_rows: int) -> dict[str, Tensor]:
    """Return common rows for a state; nothing if they are all rows in order."""
    if are_all(rows, n_rows):
        return {}
    return {"rows": torch.from_numpy(np.ascontiguousarray(rows))}


@dataclass
class ServerState:
    """All that changes at the server in a run."""

    tag: str  # the mark of the checkpoint, at which parties saved theirs
    step: int  # steps done of the stage at hand, 0 between two stages
    stages: dict[Stage, Any]  # what every stage that began goes on with, or has made
    parties: PartiesState
    recorder: Recorded
    rng: Tensor  # torch's own state
    resent: int  # bytes that were sent again


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
    _left: dict[Stage, Any] = field(default_factory=dict)  # stages as they were saved
    _stages: dict[Stage, object] = field(default_factory=dict)  # those entered, or over
    _step: int = 0  # of the stage at hand when it was saved

    def __post_init__(self) -> None:
        """Go on with the state that an earlier process saved, where there is one."""
        if self.saved is None:
            return
        state = joined(ServerState, self.saved, self.path)
        self._left, self._step = state.stages, state.step
        self.server.resume(state.parties)
        self.recorder.state = state.recorder
        torch.set_rng_state(state.rng)

    def enter(self, stage: Stage, kind: type[S]) -> S | None:
        """Return the state that a stage was left in; None: it begins."""
        if self.saved is None or stage not in self._left:
            return None
        values = self._left.pop(stage)
        state = joined(kind, State(self.saved.tensors, values), self.path)
        self._stages[stage] = state
        return state

    def reached(
        self,
        stage: Stage,
        step: int,
        n_steps: int | None,
        state: Callable[[], object],
    ) -> None:
        """Save at both ends of a stage, and every few steps: the parties first."""
        if n_steps is not None:
            self.on_step(stage, step, n_steps)
        is_over = step == n_steps
        if 0 < step < self._step + self.every and not is_over:
            return
        self._step = 0 if is_over else step
        self._stages[stage] = copy.deepcopy(state()) if is_over else state()
        tag = f"{stage}-{step}"
        self.save_parties(tag)
        whole = ServerState(
            tag,
            self._step,
            stages=self._stages,
            parties=self.server.state,
            recorder=self.recorder.state,
            rng=torch.get_rng_state(),
            resent=self.resent(),
        )
        write_state(self.path, State(*split_state(whole)))
