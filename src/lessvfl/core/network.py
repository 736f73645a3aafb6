"""Networks with a replica axis: the default MLP, and any module of the user's.

Every parameter carries a leading axis R. :class:`MLP` is made of stacked layers
(batched products); :class:`Lifted` stacks the state of a ``torch.nn.Module`` and maps
its forward pass with ``torch.func.vmap`` (R = 1 calls the module plainly; what vmap
cannot map runs replica by replica). Layers are stacked by hand because that takes a
third of the time: forward and back of a 210-64-64-16 network at batch 32 take 0.76 ms
for R = 1 and 1.2 ms for R = 8 on two cores, ``vmap`` of the module 2.3 and 3.4 ms.
Both kinds show their input groups and can be narrowed:

- *columns* are what a network is fed, (S, n, columns), S = 1 (shared) or S = R;
- *slots* are the places of the input axis of the first layer's weights: a column of a
  Linear, an input channel of a Conv, which may take several columns.

Narrowing cuts what no replica keeps and masks the rest, so that replicas with different
sets share one batch; :meth:`replica` gives one of them back, cut to its own set.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lessvfl import settings
from lessvfl.core import linear
from lessvfl.core.passes import (
    ACTIVATIONS,
    ChainRule,
    Collapsed,
    Graph,
    OutputGuard,
    Passes,
    linear_layer,
    masked,
    wide_mask,
)
from lessvfl.core.pieces import with_pieces
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
        """Return the components of a party with that many encoded columns.

        >>> NetConfig(embedding_size=4, components_per_column=0.25).components(11)
        2
        """
        if self.components_per_column is None:
            return self.embedding_size
        own = math.floor(self.components_per_column * n_inputs)
        return min(self.embedding_size, max(1, own))

    def fusion_widths(self, n_inputs: int, n_outputs: int) -> tuple[int, ...]:
        """Return the widths of the default fusion network, input to output."""
        return (n_inputs, *[self.fusion_hidden] * (self.fusion_depth - 1), n_outputs)


class Network(Protocol):
    """What the algorithm asks of a network."""

    @property
    def n_replicas(self) -> int:
        """Return R."""

    @property
    def n_outputs(self) -> int:
        """Return the width of the output."""

    @property
    def column_slots(self) -> Tensor:
        """Return the slot of every column, (columns,)."""

    @property
    def input_weights(self) -> Tensor:
        """Return π(θ), the parameter (R, out, slots, ...)."""

    @property
    def output_mask(self) -> Tensor:
        """Return which outputs each replica has, (R, n_outputs)."""

    def parameters(self) -> list[Tensor]:
        """Return every parameter, (R, ...) each."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map (S, n, columns) to (R, n, n_outputs)."""

    def passes(self, inputs: bool = False) -> Passes:
        """Return this network forward and back, for as long as it is not narrowed.

        With `inputs` the way back also gives dL/dx, for x (R, n, columns).
        """

    def train(self, mode: bool) -> None:
        """Switch layers such as dropout between training and use."""

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> Network:
        """Keep these slots (R, slots) and outputs (R, n_outputs), masks."""

    def redrawn(self, seeds: tuple[int, ...], name: str) -> Network | None:
        """Return a copy whose input weights are drawn anew, at their full scale.

        None: it starts at full scale, and nothing would be gained.
        """

    def replica(self, index: int) -> Network:
        """Return one replica, R = 1, cut to its own slots and outputs."""

    def astype(self, dtype: torch.dtype) -> Network:
        """Return a copy with parameters of that number format."""

    def state(self) -> dict[str, Tensor]:
        """Return the parameters of a network with R = 1, without the axis."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over parameters as :meth:`state` gives them."""


def kept_by_any(mask: Tensor | None, n: int, device: torch.device) -> Tensor:
    """Return the indices that any replica keeps."""
    if mask is None:
        return torch.arange(n, device=device)
    return mask.any(dim=0).nonzero().squeeze(1)


def mask_left(old: Tensor | None, new: Tensor | None, union: Tensor) -> Tensor | None:
    """Combine masks on what is left; None where every replica keeps all of it."""
    if new is None:
        return old
    mask = new if old is None else new & old
    mask = mask[:, union]
    return None if bool(mask.all()) else mask


def _leaf(values: Tensor) -> Tensor:
    return values.detach().clone().contiguous().requires_grad_()


class MLP:
    """The default network: Linear layers with one activation between them.

    Weights are (R, out, in), biases (R, out). With `pieces` the first layer sees shares
    beside every column (``core/pieces.py``), and its weights are (R, out, in, 1 + k).
    """

    def __init__(
        self,
        weights: list[Tensor],
        biases: list[Tensor],
        activation: str,
        slot_mask: Tensor | None = None,
        output_mask: Tensor | None = None,
        guard: OutputGuard | None = None,
        pieces: Tensor | None = None,
    ) -> None:
        self.weights = weights
        self.biases = biases
        self.activation = activation
        self._slot_mask = slot_mask  # (R, in) or None
        self._output_mask = output_mask  # (R, out) or None
        self._guard = guard  # on the first layer's output
        self.pieces = pieces  # (R, in, k, 2) or None

    @classmethod
    def create(
        cls,
        widths: tuple[int, ...],
        activation: str,
        seeds: tuple[int, ...],
        name: str,
        dtype: torch.dtype,
        device: torch.device,
        input_scale: float = 1.0,
    ) -> MLP:
        """Draw Glorot-uniform weights and zero biases, one stream a seed and layer.

        Those of the first layer are multiplied by `input_scale`.
        """
        weights, biases = [], []
        for layer, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
            w = _glorot(n_out, n_in, seeds, "init", name, layer)
            w = w * (input_scale if layer == 0 else 1)
            weights.append(_leaf(w.to(device, dtype)))
            biases.append(
                _leaf(torch.zeros(len(seeds), n_out, device=device, dtype=dtype))
            )
        return cls(weights, biases, activation)

    @property
    def n_replicas(self) -> int:
        """Return R."""
        return self.weights[0].shape[0]

    @property
    def n_outputs(self) -> int:
        """Return the width of the output."""
        return self.weights[-1].shape[1]

    @property
    def column_slots(self) -> Tensor:
        """Return the slot of every column: itself."""
        return torch.arange(self.weights[0].shape[2], device=self.weights[0].device)

    @property
    def input_weights(self) -> Tensor:
        """Return the first layer's weights, (R, out, in)."""
        return self.weights[0]

    @functools.cached_property
    def output_mask(self) -> Tensor:
        """Return which outputs each replica has, (R, n_outputs)."""
        if self._output_mask is not None:
            return self._output_mask
        size = (self.n_replicas, self.n_outputs)
        return torch.ones(size, dtype=torch.bool, device=self.weights[0].device)

    def parameters(self) -> list[Tensor]:
        """Return weights and biases, layer by layer."""
        return [
            tensor
            for pair in zip(self.weights, self.biases, strict=True)
            for tensor in pair
        ]

    def train(self, mode: bool) -> None:
        """Do nothing: no layer here changes between training and use."""

    @property
    def is_linear(self) -> bool:
        """Tell whether all layers are one linear map, and more than one layer."""
        is_linear = ACTIVATIONS[self.activation] is None and len(self.weights) > 1
        return is_linear and self._guard is None and self.pieces is None

    def collapse(self) -> Tensor:
        """Return the one map that linear layers make, (R, out, in + 1).

        The last column is what the map adds.
        """
        first = masked(self.weights[0], self._slot_mask)
        whole, added = linear.collapse([first, *self.weights[1:]], self.biases)
        A = torch.cat([whole, added], dim=-1)
        return A if self._output_mask is None else A * self._output_mask.unsqueeze(2)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (S, n, in) to (R, n, out)."""
        if self.is_linear:
            A = self.collapse()
            return linear_layer(x, A[..., :-1], A[..., -1])
        act = ACTIVATIONS[self.activation]
        last = len(self.weights) - 1
        x = with_pieces(x, self.pieces)
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer == 0:
                w = masked(w.flatten(2), wide_mask(self._slot_mask, self.pieces))
            x = linear_layer(x, w, b)
            if layer == 0 and self._guard is not None:
                x = self._guard.release(x)
            if act is not None and layer < last:
                x = act(x)
        return masked(x, self._output_mask)

    def passes(self, inputs: bool = False) -> Passes:
        """Return this network forward and back, rows without autograd."""
        if self.is_linear:
            return Collapsed(self.collapse, self.parameters(), inputs)
        if self.pieces is not None and inputs:
            return Graph(self, self.parameters(), inputs)
        masks = (self._slot_mask, self._output_mask)
        own = (self.parameters(), self.activation, *masks, inputs, self._guard)
        return ChainRule(*own, self.pieces)

    def behind(self, guard: OutputGuard) -> MLP:
        """Return this network, its weights the same, its first layer's output guarded.

        For as long as it is not narrowed.
        """
        own = (self.activation, self._slot_mask, self._output_mask, guard, self.pieces)
        return MLP(self.weights, self.biases, *own)

    def narrow(self, slots: Tensor | None = None, outputs: Tensor | None = None) -> MLP:
        """Keep these inputs and outputs; weights keep their values."""
        device = self.weights[0].device
        ins = kept_by_any(slots, self.weights[0].shape[2], device)
        outs = kept_by_any(outputs, self.n_outputs, device)
        weights, biases = list(self.weights), list(self.biases)
        weights[0] = weights[0][:, :, ins]
        weights[-1] = weights[-1][:, outs]
        biases[-1] = biases[-1][:, outs]
        masks = (
            mask_left(self._slot_mask, slots, ins),
            mask_left(self._output_mask, outputs, outs),
        )
        pieces = None if self.pieces is None else self.pieces[:, ins]
        return self._copy(weights, biases, *masks, pieces)

    def curved(self, pieces: Tensor) -> MLP:
        """Return a copy that sees shares by pieces (R, in, k, 2), weights at zero."""
        first = self.weights[0].unsqueeze(3)
        shares = first.new_zeros(*first.shape[:3], pieces.shape[2])
        weights = [torch.cat([first, shares], dim=3), *self.weights[1:]]
        masks = (self._slot_mask, self._output_mask)
        return self._copy(weights, self.biases, *masks, pieces)

    def _copy(
        self,
        weights: list[Tensor],
        biases: list[Tensor],
        slot_mask: Tensor | None = None,
        output_mask: Tensor | None = None,
        pieces: Tensor | None = None,
    ) -> MLP:
        """Return a network of this activation with values of its own."""
        leaves = ([_leaf(w) for w in weights], [_leaf(b) for b in biases])
        return MLP(*leaves, self.activation, slot_mask, output_mask, None, pieces)

    def redrawn(self, seeds: tuple[int, ...], name: str) -> MLP:
        """Return a copy whose first layer is drawn anew for the inputs it has."""
        first = self.weights[0]
        _, n_out, *ins = first.shape
        n_in = math.prod(ins)
        fresh = _glorot(n_out, n_in, seeds, "redraw", name).to(first).view_as(first)
        if self.pieces is not None:  # values weigh as much as if they stood alone
            fresh[..., 0] *= math.sqrt(ins[1])
        masks = (self._slot_mask, self._output_mask)
        weights = [fresh, *self.weights[1:]]
        return self._copy(weights, self.biases, *masks, self.pieces)

    def replica(self, index: int) -> MLP:
        """Return one replica, cut to its own inputs and outputs."""
        pick = slice(index, index + 1)
        weights, biases = ([t[pick] for t in ts] for ts in (self.weights, self.biases))
        pieces = None if self.pieces is None else self.pieces[pick]
        alone = self._copy(weights, biases, pieces=pieces)
        return alone.narrow(
            None if self._slot_mask is None else self._slot_mask[pick],
            None if self._output_mask is None else self._output_mask[pick],
        )

    def astype(self, dtype: torch.dtype) -> MLP:
        """Return a copy with parameters of that number format."""
        weights = [w.to(dtype) for w in self.weights]
        biases = [b.to(dtype) for b in self.biases]
        pieces = None if self.pieces is None else self.pieces.to(dtype)
        masks = (self._slot_mask, self._output_mask)
        return self._copy(weights, biases, *masks, pieces)

    def state(self) -> dict[str, Tensor]:
        """Return the parameters of the one replica."""
        assert self.n_replicas == 1
        named = {}
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"layer{layer}.weight"] = w.detach()[0]
            named[f"layer{layer}.bias"] = b.detach()[0]
        if self.pieces is not None:
            named["pieces"] = self.pieces[0]
        return named

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over parameters of the same shapes."""
        with torch.no_grad():
            for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
                w[0] = state[f"layer{layer}.weight"]
                b[0] = state[f"layer{layer}.bias"]
            if self.pieces is not None:
                self.pieces[0] = state["pieces"]


def _glorot(n_out: int, n_in: int, seeds: tuple[int, ...], *name: str | int) -> Tensor:
    """Draw Glorot-uniform weights (R, out, in), a stream for every seed."""
    limit = math.sqrt(6 / (n_in + n_out))
    draws = {
        seed: torch.rand(
            n_out, n_in, generator=stream(seed, *name), dtype=torch.float64
        )
        for seed in set(seeds)
    }
    return torch.stack([(2 * draws[seed] - 1) * limit for seed in seeds])
