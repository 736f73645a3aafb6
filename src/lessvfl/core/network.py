"""Networks: the default MLP, and what the algorithm asks of any network.

:class:`MLP` is made of Linear layers by hand; :class:`lessvfl.core.lifted.Lifted` is
any ``torch.nn.Module`` of the user's. Both show their input groups and can be narrowed:

- *columns* are what a network is fed, (n, columns);
- *slots* are the places of the input axis of the first layer's weights: a column of a
  Linear, an input channel of a Conv, which may take several columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lessvfl import settings
from lessvfl.core import linear
from lessvfl.core.chain_rule import ChainRule, FirstLayerGuard
from lessvfl.core.passes import (
    ACTIVATIONS,
    Graph,
    Passes,
    linear_layer,
    wide,
    with_pieces,
)
from lessvfl.core.plans import stream

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class NetConfig(settings.Section):
    """How party and fusion networks look."""

    embedding_size: int = settings.setting(
        settings.an_int(1), 16, "components of a party's embedding"
    )
    components_per_column: float | None = settings.setting(
        settings.or_none(settings.a_float(open_low=True)),
        None,
        "the most of them for each of a party's encoded columns, rounded down, at "
        "least 1 in all; none: a narrow party has as many as others",
    )
    hidden: int | tuple[int, ...] = settings.setting(
        settings.widths(), 64, "width of the hidden layers, or one width each: 64,32"
    )
    depth: int = settings.setting(
        settings.an_int(1), 3, "Linear layers of a party network (not with many widths)"
    )
    activation: str = settings.setting(
        settings.one_of(*ACTIVATIONS), "tanh", "between the layers of every network"
    )
    input_scale: float = settings.setting(
        settings.a_float(open_low=True),
        1.0,
        "factor on a party's first input weights; small: what never moved says so",
    )
    fusion_depth: int = settings.setting(
        settings.an_int(1), 1, "Linear layers of the fusion network; 1: the paper's"
    )
    fusion_hidden: int = settings.setting(
        settings.an_int(1), 64, "width of the fusion network's hidden layers"
    )
    party_net: str | None = settings.setting(
        settings.or_none(settings.a_text()),
        None,
        "FILE.py:FUNCTION or MODULE:FUNCTION, called with (n_inputs, n_outputs)",
    )
    fusion_net: str | None = settings.setting(
        settings.or_none(settings.a_text()), None, "the same for the fusion network"
    )
    dtype: str = settings.setting(
        settings.one_of(*DTYPES), "float32", "number format of weights and messages"
    )

    def party_widths(self, n_inputs: int) -> tuple[int, ...]:
        """Return the widths of the default party network, input to output."""
        if isinstance(self.hidden, int):
            inner = (self.hidden,) * (self.depth - 1)
        else:
            inner = tuple(self.hidden)
        return (n_inputs, *inner, self.components(n_inputs))

    def components(self, n_inputs: int) -> int:
        """Return the number of components of a party with `n_inputs` encoded columns.

        >>> NetConfig(embedding_size=4, components_per_column=0.25).components(11)
        2
        """
        if self.components_per_column is None:
            return self.embedding_size
        most = math.floor(self.components_per_column * n_inputs)
        return min(self.embedding_size, max(1, most))

    def fusion_widths(self, n_inputs: int, n_outputs: int) -> tuple[int, ...]:
        """Return the widths of the default fusion network, input to output."""
        return (n_inputs, *[self.fusion_hidden] * (self.fusion_depth - 1), n_outputs)


class Network(Protocol):
    """What the algorithm asks of a network, and what most of them answer alike."""

    @property
    def n_outputs(self) -> int:
        """Return the width of the output."""

    @property
    def input_weights(self) -> Tensor:
        """Return π(θ), the parameter (out, slots, ...)."""

    @property
    def column_slots(self) -> Tensor:
        """Return the slot of every column, (columns,): by default itself."""
        weights = self.input_weights
        return torch.arange(weights.shape[1], device=weights.device)

    def parameters(self) -> list[Tensor]:
        """Return every parameter."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, columns) to (n, n_outputs)."""

    def passes(self, inputs: bool = False) -> Passes:
        """Return this network forward and back, for as long as it is not narrowed.

        With `inputs` the way back also gives dL/dx, for x (n, columns).
        """

    def train(self, mode: bool) -> None:
        """Switch layers such as dropout between training and use: by default none."""
        return

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> Network:
        """Keep these slots (slots,) and outputs (n_outputs,), masks."""

    def redrawn(self, seed: int, name: str) -> Network | None:
        """Return a copy whose input weights are drawn anew, at their full scale.

        None: it starts at full scale, or has a scale of its own.
        """
        return None

    def astype(self, dtype: torch.dtype) -> Network:
        """Return a copy with parameters of that number format."""

    def state(self) -> dict[str, Tensor]:
        """Return the parameters by name."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over parameters as :meth:`state` gives them."""
        with torch.no_grad():
            for name, tensor in self.state().items():
                tensor.copy_(state[name])


def _leaf(values: Tensor) -> Tensor:
    return values.detach().clone().contiguous().requires_grad_()


class MLP(Network):
    """The default network: Linear layers with one activation between them.

    Weights are (out, in), biases (out,). With `pieces` the first layer sees shares
    beside every column (``select/pieces.py``), and its weights are (out, in, 1 + k).
    Weights of many networks may be stacked, (..., out, in), for calls.
    """

    def __init__(
        self,
        weights: list[Tensor],
        biases: list[Tensor],
        activation: str,
        guard: FirstLayerGuard | None = None,
        pieces: Tensor | None = None,
    ) -> None:
        self.weights = weights
        self.biases = biases
        self.activation = activation
        self._guard = guard  # on the first layer's output
        self.pieces = pieces  # (in, k, 2) or None

    @classmethod
    def create(
        cls,
        widths: tuple[int, ...],
        activation: str,
        seed: int,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
        input_scale: float = 1.0,
    ) -> MLP:
        """Return an MLP of these widths, input to output, drawn by `seed` and `name`.

        Weights are Glorot-uniform, the first layer's times `input_scale`; biases are 0.
        """
        weights, biases = [], []
        for layer, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
            w = _glorot(n_out, n_in, seed, "init", name, layer)
            w = w * (input_scale if layer == 0 else 1)
            weights.append(_leaf(w.to(device, dtype)))
            biases.append(_leaf(torch.zeros(n_out, device=device, dtype=dtype)))
        return cls(weights, biases, activation)

    @property
    def n_outputs(self) -> int:
        """Return the width of the output."""
        return self.biases[-1].shape[-1]

    @property
    def input_weights(self) -> Tensor:
        """Return the first layer's weights, (out, in)."""
        return self.weights[0]

    def parameters(self) -> list[Tensor]:
        """Return weights and biases, layer by layer."""
        return [
            tensor
            for pair in zip(self.weights, self.biases, strict=True)
            for tensor in pair
        ]

    @property
    def is_linear(self) -> bool:
        """Tell whether all layers are one linear map, and more than one layer."""
        is_linear = ACTIVATIONS[self.activation] is None and len(self.weights) > 1
        return is_linear and self._guard is None and self.pieces is None

    def collapse(self) -> Tensor:
        """Return the one map that linear layers make, (..., out, in + 1).

        The last column is what the map adds.
        """
        return torch.cat(linear.collapse(self.weights, self.biases), dim=-1)

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows (..., n, in) to outputs (..., n, out)."""
        if self.is_linear:
            A = self.collapse()
            return linear_layer(x, A[..., :-1], A[..., -1])
        act = ACTIVATIONS[self.activation]
        last = len(self.weights) - 1
        x = with_pieces(x, self.pieces)
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = linear_layer(x, wide(w, self.pieces) if layer == 0 else w, b)
            if layer == 0 and self._guard is not None:
                x = self._guard.release(x)
            if act is not None and layer < last:
                x = act(x)
        return x

    def passes(self, inputs: bool = False) -> Passes:
        """Return this network forward and back; linear layers are one for autograd."""
        if self.is_linear or (self.pieces is not None and inputs):
            return Graph(self, self.parameters(), inputs)
        return ChainRule(
            self.parameters(), self.activation, inputs, self._guard, self.pieces
        )

    def behind(self, guard: FirstLayerGuard) -> MLP:
        """Return this network, its weights the same, its first layer's output guarded.

        For as long as it is not narrowed.
        """
        return MLP(self.weights, self.biases, self.activation, guard, self.pieces)

    def narrow(self, slots: Tensor | None = None, outputs: Tensor | None = None) -> MLP:
        """Return a copy with the inputs and outputs where these masks are True."""
        weights, biases, pieces = list(self.weights), list(self.biases), self.pieces
        if slots is not None:
            weights[0] = weights[0][:, slots]
            pieces = None if pieces is None else pieces[slots]
        if outputs is not None:
            weights[-1] = weights[-1][outputs]
            biases[-1] = biases[-1][outputs]
        return self._copy(weights, biases, pieces)

    def curved(self, pieces: Tensor) -> MLP:
        """Return a copy that sees shares by pieces (in, k, 2), weights at zero."""
        first = self.weights[0].unsqueeze(2)
        shares = first.new_zeros(*first.shape[:2], pieces.shape[1])
        weights = [torch.cat([first, shares], dim=2), *self.weights[1:]]
        return self._copy(weights, self.biases, pieces)

    def _copy(
        self, weights: list[Tensor], biases: list[Tensor], pieces: Tensor | None
    ) -> MLP:
        """Return a network of this activation with copies of these values."""
        weights, biases = [_leaf(w) for w in weights], [_leaf(b) for b in biases]
        return MLP(weights, biases, self.activation, pieces=pieces)

    def redrawn(self, seed: int, name: str) -> MLP:
        """Return a copy with new first-layer weights, drawn by `seed` and `name`."""
        first = self.weights[0]
        n_out, *ins = first.shape
        fresh = _glorot(n_out, math.prod(ins), seed, "redraw", name)
        fresh = fresh.to(first).view_as(first)
        if self.pieces is not None:  # values weigh as much as if they stood alone
            fresh[..., 0] *= math.sqrt(ins[1])
        return self._copy([fresh, *self.weights[1:]], self.biases, self.pieces)

    def astype(self, dtype: torch.dtype) -> MLP:
        """Return a copy with parameters of that number format."""
        weights = [w.to(dtype) for w in self.weights]
        biases = [b.to(dtype) for b in self.biases]
        pieces = None if self.pieces is None else self.pieces.to(dtype)
        return self._copy(weights, biases, pieces)

    def state(self) -> dict[str, Tensor]:
        """Return weights and biases by name, like "layer0.weight", and pieces."""
        named = {}
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"layer{layer}.weight"] = w.detach()
            named[f"layer{layer}.bias"] = b.detach()
        if self.pieces is not None:
            named["pieces"] = self.pieces
        return named


def _glorot(n_out: int, n_in: int, seed: int, *name: str | int) -> Tensor:
    """Return Glorot-uniform weights (out, in), drawn by a seed and a name."""
    limit = math.sqrt(6 / (n_in + n_out))
    generator = stream(seed, *name)
    draws = torch.rand(n_out, n_in, generator=generator, dtype=torch.float64)
    return (2 * draws - 1) * limit
