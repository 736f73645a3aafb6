"""Networks with a replica axis: the default MLP, and any module of the user's.

Every parameter carries a leading axis R. :class:`MLP` is made of stacked layers
(batched products); :class:`Lifted` stacks the state of a ``torch.nn.Module`` and maps
its forward pass with ``torch.func.vmap`` (R = 1 calls the module plainly; what vmap
cannot map runs replica by replica). Both show their input groups and can be narrowed:

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from lessvfl import settings
from lessvfl.core import linear
from lessvfl.core.plans import stream

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor] | None] = {
    "none": None,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": nn.functional.softplus,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "relu": torch.relu,
}

# dL/dx of every activation, of dL/da and a or x, as autograd computes it
_aten = torch.ops.aten
SLOPES_BY_OUTPUT: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": _aten.tanh_backward.default,
    "sigmoid": _aten.sigmoid_backward.default,
    "relu": lambda g, a: _aten.threshold_backward.default(g, a, 0),
}
SLOPES_BY_INPUT: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softplus": lambda g, x: _aten.softplus_backward.default(g, x, 1, 20),
    "gelu": _aten.gelu_backward.default,
    "silu": _aten.silu_backward.default,
}

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


class Passes(Protocol):
    """A network forward and back, step by step, as joint training asks for it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what a call returns, detached."""

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of the last output along dL/d(output).

        Of every parameter in order, and of the input last if that was asked for. They
        hold until the next call.
        """


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


def _union(mask: Tensor | None, n: int, device: torch.device) -> Tensor:
    """Return the indices that any replica keeps."""
    if mask is None:
        return torch.arange(n, device=device)
    return mask.any(dim=0).nonzero().squeeze(1)


def _left(old: Tensor | None, new: Tensor | None, union: Tensor) -> Tensor | None:
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

    Weights are (R, out, in), biases (R, out).
    """

    def __init__(
        self,
        weights: list[Tensor],
        biases: list[Tensor],
        activation: str,
        slot_mask: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> None:
        self.weights = weights
        self.biases = biases
        self.activation = activation
        self._slot_mask = slot_mask  # (R, in) or None
        self._output_mask = output_mask  # (R, out) or None

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
        return ACTIVATIONS[self.activation] is None and len(self.weights) > 1

    def collapse(self) -> Tensor:
        """Return the one map that linear layers make, (R, out, in + 1).

        The last column is what the map adds.
        """
        first = _masked(self.weights[0], self._slot_mask)
        whole, added = linear.collapse([first, *self.weights[1:]], self.biases)
        A = torch.cat([whole, added], dim=-1)
        return A if self._output_mask is None else A * self._output_mask.unsqueeze(2)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (S, n, in) to (R, n, out)."""
        if self.is_linear:
            A = self.collapse()
            return _linear(x, A[..., :-1], A[..., -1])
        act = ACTIVATIONS[self.activation]
        last = len(self.weights) - 1
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer == 0:
                w = _masked(w, self._slot_mask)
            x = _linear(x, w, b)
            if act is not None and layer < last:
                x = act(x)
        return _masked(x, self._output_mask)

    def passes(self, inputs: bool = False) -> Passes:
        """Return this network forward and back, rows without autograd."""
        return Collapsed(self, inputs) if self.is_linear else ChainRule(self, inputs)

    def narrow(self, slots: Tensor | None = None, outputs: Tensor | None = None) -> MLP:
        """Keep these inputs and outputs; weights keep their values."""
        device = self.weights[0].device
        ins = _union(slots, self.weights[0].shape[2], device)
        outs = _union(outputs, self.n_outputs, device)
        weights, biases = list(self.weights), list(self.biases)
        weights[0] = weights[0][:, :, ins]
        weights[-1] = weights[-1][:, outs]
        biases[-1] = biases[-1][:, outs]
        return MLP(
            [_leaf(w) for w in weights],
            [_leaf(b) for b in biases],
            self.activation,
            _left(self._slot_mask, slots, ins),
            _left(self._output_mask, outputs, outs),
        )

    def redrawn(self, seeds: tuple[int, ...], name: str) -> MLP:
        """Return a copy whose first layer is drawn anew for the inputs it has."""
        first = self.weights[0]
        _, n_out, n_in = first.shape
        fresh = _glorot(n_out, n_in, seeds, "redraw", name).to(first)
        return MLP(
            [_leaf(fresh), *(_leaf(w) for w in self.weights[1:])],
            [_leaf(b) for b in self.biases],
            self.activation,
            self._slot_mask,
            self._output_mask,
        )

    def replica(self, index: int) -> MLP:
        """Return one replica, cut to its own inputs and outputs."""
        pick = slice(index, index + 1)
        alone = MLP(
            [_leaf(w[pick]) for w in self.weights],
            [_leaf(b[pick]) for b in self.biases],
            self.activation,
        )
        return alone.narrow(
            None if self._slot_mask is None else self._slot_mask[pick],
            None if self._output_mask is None else self._output_mask[pick],
        )

    def astype(self, dtype: torch.dtype) -> MLP:
        """Return a copy with parameters of that number format."""
        return MLP(
            [_leaf(w.to(dtype)) for w in self.weights],
            [_leaf(b.to(dtype)) for b in self.biases],
            self.activation,
            self._slot_mask,
            self._output_mask,
        )

    def state(self) -> dict[str, Tensor]:
        """Return the parameters of the one replica."""
        assert self.n_replicas == 1
        named = {}
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"layer{layer}.weight"] = w.detach()[0]
            named[f"layer{layer}.bias"] = b.detach()[0]
        return named

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over parameters of the same shapes."""
        with torch.no_grad():
            for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
                w[0] = state[f"layer{layer}.weight"]
                b[0] = state[f"layer{layer}.bias"]


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


def _masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Put zeros into the last axis of (R, n, width) where a replica has nothing."""
    return values if mask is None else values * mask.unsqueeze(1)


def _linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return x w^T + b for every replica: (S, n, in), (R, out, in), (R, out)."""
    if x.shape[0] < w.shape[0]:  # one table for all replicas: one wide product
        n_replicas, n_out, n_in = w.shape
        wide = w.reshape(n_replicas * n_out, n_in)
        y = nn.functional.linear(x.squeeze(0), wide, b.reshape(-1))
        return y.view(x.shape[1], n_replicas, n_out).transpose(0, 1)
    return torch.baddbmm(b.unsqueeze(1), x, w.mT)


def _weight_gradient(g: Tensor, x: Tensor, found: Tensor) -> Tensor:
    """Write dL/dw of :func:`_linear`, of dL/dy (R, n, out) and x (S, n, in)."""
    if x.shape[0] < g.shape[0]:
        wide = g.transpose(0, 1).flatten(1)
        torch.mm(wide.mT, x.squeeze(0), out=found.flatten(0, 1))
    else:
        torch.bmm(g.mT, x, out=found)
    return found


class Collapsed:
    """A linear MLP forward and back: rows meet the one map, its layers autograd."""

    def __init__(self, net: MLP, inputs: bool) -> None:
        self._net = net
        self._inputs = inputs
        self._ends: list[Tensor] = []  # of the last pass: the map, then the input

    def forward(self, x: Tensor) -> Tensor:
        """Map (S, n, in) to (R, n, out)."""
        A = self._net.collapse()
        self._ends = [A, x]
        return _linear(x, A.detach()[..., :-1], A.detach()[..., -1])

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x (R, n, in)."""
        A, x = self._ends
        along = torch.empty_like(A)
        w = torch.empty(along[..., :-1].shape, dtype=A.dtype, device=A.device)
        along[..., :-1] = _weight_gradient(gradient, x, w)
        along[..., -1] = gradient.sum(dim=-2)
        # A gradient along a tensor would load PyTorch's symbolic shapes, 0.6 s.
        grads = list(torch.autograd.grad((A * along).sum(), self._net.parameters()))
        return [*grads, gradient @ A.detach()[..., :-1]] if self._inputs else grads


class ChainRule:
    """An MLP forward and back: what autograd computes, without its graph.

    Parameters are read where they are, and gradients written to the same place at every
    step. One replica alone goes through products of matrices, without the axis.
    """

    def __init__(self, net: MLP, inputs: bool) -> None:
        self._inputs = inputs
        self._activation = net.activation
        self._slot_mask, self._output_mask = net._slot_mask, net._output_mask
        self._alone = net.n_replicas == 1
        self._grads = [torch.empty_like(p.detach()) for p in net.parameters()]
        self._weights = self._views([w.detach() for w in net.weights])
        self._biases = self._views([b.detach() for b in net.biases])
        self._weight_grads = self._views(self._grads[::2])
        self._bias_grads = self._views(self._grads[1::2])
        self._ins: list[Tensor] = []  # what went into every layer
        self._sums: list[Tensor] = []  # what went into every activation

    def _views(self, tensors: list[Tensor]) -> list[Tensor]:
        return [t.squeeze(0) for t in tensors] if self._alone else tensors

    def forward(self, x: Tensor) -> Tensor:
        """Map (S, n, in) to (R, n, out)."""
        act = ACTIVATIONS[self._activation]
        linear = nn.functional.linear if self._alone else _linear
        x = x.squeeze(0) if self._alone else x
        self._ins, self._sums = [], []
        for layer, (w, b) in enumerate(zip(self._weights, self._biases, strict=True)):
            if layer == 0:
                w = _masked(w, self._slot_mask)
            elif act is not None:
                self._sums.append(x)
                x = act(x)
            self._ins.append(x)
            x = linear(x, w, b)
        return _masked(x.unsqueeze(0) if self._alone else x, self._output_mask)

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x (R, n, in)."""
        g = _masked(gradient, self._output_mask)
        g = g.squeeze(0) if self._alone else g
        for layer in reversed(range(1, len(self._weights))):
            self._keep(layer, g)
            g = self._through_activation(g @ self._weights[layer], layer - 1)
        self._keep(0, g)
        if self._slot_mask is not None:
            self._grads[0].mul_(self._slot_mask.unsqueeze(1))
        if not self._inputs:
            return self._grads
        g = g @ _masked(self._weights[0], self._slot_mask)
        return [*self._grads, g.unsqueeze(0) if self._alone else g]

    def _keep(self, layer: int, g: Tensor) -> None:
        """Write the gradients of a layer, of dL/dy (R, n, out)."""
        torch.sum(g, dim=-2, out=self._bias_grads[layer])
        x, found = self._ins[layer], self._weight_grads[layer]
        if self._alone:
            torch.mm(g.mT, x, out=found)
        else:
            _weight_gradient(g, x, found)

    def _through_activation(self, g: Tensor, layer: int) -> Tensor:
        """Return dL/dx of an activation, of dL/da."""
        name = self._activation
        if name in SLOPES_BY_OUTPUT:
            return SLOPES_BY_OUTPUT[name](g, self._ins[layer + 1])
        return SLOPES_BY_INPUT[name](g, self._sums[layer]) if name != "none" else g
