"""What a server keeps in its run folder: the number of the run, files of each seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import ServerConfig
from lessvfl.run.fitted import NETWORKS
from lessvfl.run.record import read_json, write_json
from lessvfl.terms import PartyId

CHECKPOINT = "checkpoint.safetensors"
MOST_OFFERS = 3  # different ones of a party, as after it lost its run folder

# What may change in the config while a run goes on.
_ELSEWHERE = (
    *("listen", "status", "wait", "silence", "most_ids"),
    *("certificate", "key", "ca", "out"),
)


class SeedFiles:
    """The files of one seed in a server's run folder."""

    def __init__(self, run: Path, seed: int) -> None:
        self.seed, folder = seed, run / f"seed-{seed}"
        self.checkpoint = folder / CHECKPOINT  # the last one
        self.numbers = folder / "numbers.json"  # of the run, there once it is over
        self.finished = folder / "finished.json"  # what parties have revealed of it
        self.network = run / NETWORKS / folder.name / "server"  # of the fusion network
        # What it says of the test rows, where seeds are an ensemble.
        self.tested = folder / "tested.safetensors"

    def saved(self) -> State | None:
        """Return the last checkpoint, if there is one."""
        return read_state(self.checkpoint) if self.checkpoint.is_file() else None

    def keep_tested(self, z: Tensor) -> None:
        """Keep what the network says of the test rows, (n, outputs)."""
        write_state(self.tested, State({"z": z.cpu()}, {}))

    def read_tested(self) -> Tensor | None:
        """Return what the network says of the test rows, where they were scored."""
        return read_state(self.tested).tensors["z"] if self.tested.is_file() else None

    def settle(self, sent: Counter[tuple[str, str, str]]) -> None:
        """Add the bytes of all parts since the last seed to the bill.

        The bill may have those of an earlier process already.
        """
        numbers = read_json(self.numbers)
        bill = numbers["communication"]
        wire = bill.setdefault("wire_bytes", {"up": 0, "down": 0})
        for (of, part, way), n_bytes in sent.items():
            both = bill.setdefault(of, {}).setdefault(part, {"up": 0, "down": 0})
            both[way] += n_bytes
            wire[way] += n_bytes * (of == "frames")
        write_json(self.numbers, numbers)

    def whole_run(self) -> dict[str, Any]:
        """Return the numbers of the run, with what the parties reveal of it."""
        numbers, of_parties = read_json(self.numbers), read_json(self.finished)
        models = {p: revealed.pop("model", None) for p, revealed in of_parties.items()}
        return numbers | {
            "features": {p: r if "kept" in r else None for p, r in of_parties.items()},
            "counts": {p: r for p, r in of_parties.items() if "n_kept" in r},
            "models": models,
        }


def note_offers(
    folder: Path,
    offers: Mapping[PartyId, bytes],
    cut_off: Callable[[PartyId, str], NoReturn],
) -> None:
    """Save digests of what parties offer, before they are told anything about it.

    A party that breaks off and returns with other ids could try them out on ours.
    """
    path = folder / "offers.safetensors"
    known: dict[str, list[str]] = {}
    if path.is_file():
        known = dict(read_state(path).values["offers"])
    for party, offer in offers.items():
        digest = hashlib.sha256(offer).hexdigest()
        known[party] = [*dict.fromkeys([*known.get(party, ()), digest])]
        if len(known[party]) > MOST_OFFERS:
            cut_off(
                party,
                f"A party must offer its rows to a run, at most {MOST_OFFERS} times in "
                "different ways. Got another offer; another run needs another 'out'.",
            )
    write_state(path, State({}, {"offers": known}))


def run_number(folder: Path, config: ServerConfig, is_aligned: bool) -> bytes:
    """Return the run's own number, the same after a restart.

    Until rows are aligned nothing has begun, and a changed config is a new run.
    """
    path = folder / "run.safetensors"
    lasting = dataclasses.asdict(config)
    for name in _ELSEWHERE:
        lasting.pop(name)
    now: dict[str, Any] = json.loads(json.dumps(lasting))  # as it is read back
    known = read_state(path) if path.is_file() else None
    if known is None or (known.values["config"] != now and not is_aligned):
        number = torch.tensor(list(uuid.uuid4().bytes), dtype=torch.uint8)
        known = State({"run": number}, {"config": now})
        write_state(path, known)
    before = known.values["config"]
    if other := [name for name in now if before.get(name) != now[name]]:
        raise ConfigError(
            f"The run in '{folder}' must go on with the config it began with. Got "
            f"another '{other[0]}'; another run needs another 'out'."
        )
    return bytes(known.tensors["run"].tolist())


def known_form(revealed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a party reveals of its selection, in one of the known forms.

    Any other form counts as nothing revealed; the digest of its network is required.
    """
    model = revealed.get("model")
    if not isinstance(model, str) or not re.fullmatch("[0-9a-f]{64}", model):
        raise ProtocolError(
            "A party must name a digest of its network at the end. Got none."
        )
    revealed = {name: value for name, value in revealed.items() if name != "model"}
    kinds = {
        ("kept", "removed"): lambda v: (
            isinstance(v, list) and all(isinstance(name, str) for name in v)
        ),
        ("n_kept", "n_removed"): lambda v: type(v) is int and v >= 0,
    }
    for names, fits in kinds.items():
        if revealed.keys() == set(names) and all(map(fits, revealed.values())):
            return {"model": model, **revealed}
    return {"model": model}
