"""A network on disk: its weights, and what it takes to build it again.

``network.safetensors`` has the weights; a JSON file beside it has the shape of the
network and what else its owner knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessvfl.core.lifted import Factory, Lifted, find_factory
from lessvfl.core.network import DTYPES, MLP, Network
from lessvfl.core.trees.networks import Splits, TreeSum
from lessvfl.core.trees.votes import Votes, VoteSum
from lessvfl.errors import ConfigError, LessVFLError, RecordError
from lessvfl.run.record import dumps, write_atomically

# Trees in the place of networks, at a party and at the server.
GROWN: dict[str, type[Splits | TreeSum | Votes | VoteSum]] = {
    "splits": Splits,
    "trees": TreeSum,
    "votes": Votes,
    "vote-sum": VoteSum,
}
# A party's mean embedding and constant, by its place, beside the fusion network.
EXTRAS = {"means": "~mean.", "constants": "~constant."}


@dataclass(frozen=True)
class Shape:
    """How to build a network again before its weights are put in."""

    widths: tuple[int, ...]  # of the default network; input and output of a module
    activation: str
    factory: str | None  # where a module comes from; "given" if from Python
    slots: tuple[bool, ...] | None  # kept slots and outputs of a module
    outputs: tuple[bool, ...] | None
    kind: str = "layers"  # or one of GROWN, whose weights say all
    pieces: int = 0  # of every column, beside its value (``select/pieces.py``)

    @classmethod
    def of(
        cls,
        net: Network,
        source: str | None = None,
        slots: tuple[bool, ...] = (),
        outputs: tuple[bool, ...] = (),
    ) -> Shape:
        """Return how to build a network again: its widths, or its source and its cut.

        `slots` and `outputs` are what is kept of the network it started as.
        """
        for kind, grown in GROWN.items():
            if isinstance(net, grown):
                ends = (net.input_weights.shape[1], net.n_outputs)
                return cls(ends, "none", None, None, None, kind)
        if isinstance(net, MLP):
            widths = (net.weights[0].shape[1], *(len(w) for w in net.weights))
            pieces = 0 if net.pieces is None else net.pieces.shape[1]
            return cls(widths, net.activation, None, None, None, pieces=pieces)
        return cls((len(slots), len(outputs)), "none", source, slots, outputs)

    def restore(
        self,
        state: Mapping[str, Tensor],
        owner: str,
        given: Factory | None,
        trust_code: bool,
    ) -> Network:
        """Return the network of this shape with these weights, or a ValueError.

        A module is made by the function that is `given`, or else by the code that its
        shape names, which is loaded only where `trust_code` says so.
        """
        if self.kind in GROWN:
            trees = GROWN[self.kind].of_state(state)
            if self.widths != (trees.input_weights.shape[1], trees.n_outputs):
                raise ValueError("widths that are not those of the trees")
            return trees
        formats = {tensor.dtype for tensor in state.values()} & set(DTYPES.values())
        dtype = next(iter(formats), torch.float32)
        if self.factory is None:
            return self._layers({name: t.to(dtype) for name, t in state.items()})
        if self.slots is None or self.outputs is None:
            raise ValueError("a module without its inputs and outputs")
        if self.widths != (len(self.slots), len(self.outputs)):
            raise ValueError("widths that are not those of the inputs and outputs")
        if given is None and self.factory == "given":
            raise ConfigError(
                f"The network of {owner} was given from Python: load must be given the "
                "same function again as 'party_net' or 'fusion_net'. Got none."
            )
        if given is None and not trust_code:
            raise ConfigError(
                f"The network of {owner} is made by code that the run folder names, "
                f"'{self.factory}': load must be given trust_code=True to run it, or "
                "the function itself as 'party_net' or 'fusion_net'. Got neither."
            )
        module = Lifted.create(
            given or find_factory(self.factory),
            n_columns=len(self.slots),
            n_outputs=len(self.outputs),
            seed=0,
            name=owner,
            dtype=dtype,
            device=torch.device("cpu"),
        )
        net = module.narrow(torch.tensor(self.slots), torch.tensor(self.outputs))
        net.load_state(state)
        net.train(False)
        return net

    def _layers(self, state: Mapping[str, Tensor]) -> MLP:
        """Return the perceptron of this shape with weights `state`; refuse others."""
        expected: dict[str, tuple[Any, ...]] = {}
        for layer, (n_in, n_out) in enumerate(itertools.pairwise(self.widths)):
            expected[f"layer{layer}.weight"] = (n_out, n_in)
            expected[f"layer{layer}.bias"] = (n_out,)
        if self.pieces:
            expected["layer0.weight"] += (1 + self.pieces,)
            expected["pieces"] = (self.widths[0], self.pieces, 2)
        if {name: tuple(t.shape) for name, t in state.items()} != expected:
            raise ValueError("widths that are not those of the weights")
        layers = range(len(self.widths) - 1)
        return MLP(
            [state[f"layer{layer}.weight"] for layer in layers],
            [state[f"layer{layer}.bias"] for layer in layers],
            self.activation,
            pieces=state.get("pieces"),
        )


def write(
    folder: Path, name: str, about: dict[str, Any], net: Network, extra: dict[str, Any]
) -> str:
    """Write a network and what else is known of it; return a digest of both."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "network.safetensors": tensor_file(net.state() | extra),
        name: dumps(about, indent=1).encode(),
    }
    for file, content in contents.items():
        write_atomically(folder / file, content)
    return digest(contents.values())


def tensor_file(
    tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> bytes:
    """Return tensors as a safetensors file."""
    from safetensors.torch import save

    plain = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
    return bytes(save(plain, metadata=metadata))


def digest(contents: Iterable[bytes]) -> str:
    """Return one digest of the contents of several files."""
    parts = [hashlib.sha256(content).digest() for content in contents]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def read(
    folder: Path, name: str, given: Factory | None, trust_code: bool
) -> tuple[dict[str, Any], Network, Shape, dict[str, Tensor]]:
    """Read what :func:`write` wrote: the facts, the network, its shape, the rest."""
    from safetensors.torch import load

    with whole(folder, name):
        about = json.loads((folder / name).read_text(encoding="utf-8"))
        state = load((folder / "network.safetensors").read_bytes())
        facts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in about["shape"].items()
        }
        shape = Shape(**facts)
        beside = tuple(EXTRAS.values())
        extra = {
            key: state.pop(key)
            for key in [*state]
            if key == "constant" or key.startswith(beside)
        }
        owner = "the server"
        if name == "party.json":
            owner = f"party '{texts([about['name']])[0]}'"
        net = shape.restore(state, owner, given, trust_code)
    return about, net, shape, extra


def texts(values: object) -> tuple[str, ...]:
    """Return names that a file lists, or refuse what is no list of texts."""
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise TypeError("names are a list of texts")
    return tuple(values)


@contextlib.contextmanager
def whole(folder: Path, name: str) -> Iterator[None]:
    """Say of what cannot be read or does not fit that it is damaged."""
    from safetensors import SafetensorError

    try:
        yield
    except LessVFLError:
        raise
    except (
        *(OSError, ValueError, LookupError, TypeError, AttributeError),
        *(RuntimeError, SafetensorError),  # a RecursionError is a RuntimeError
    ) as problem:
        raise RecordError(
            f"'{folder}' must hold {name} and network.safetensors, as a finished run "
            f"writes them. Got {type(problem).__name__}: {problem}"
        ) from None
