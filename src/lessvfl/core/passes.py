"""Networks forward and back, step by step: by hand, or by autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from lessvfl.core.pieces import with_pieces

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


class Passes(Protocol):
    """A network forward and back, step by step, as joint training asks for it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what a call returns, detached."""

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of the last output along dL/d(output).

        Of every parameter in order, and of the input last if that was asked for. They
        hold until the next call.
        """


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Put zeros into the last axis of (R, n, width) where a replica has nothing."""
    return values if mask is None else values * mask.unsqueeze(1)


def wide_mask(slot_mask: Tensor | None, pieces: Tensor | None) -> Tensor | None:
    """Return a mask of slots (R, in) for columns that have their shares beside them."""
    if slot_mask is None or pieces is None:
        return slot_mask
    return slot_mask.repeat_interleave(1 + pieces.shape[2], dim=1)


def linear_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return x w^T + b for every replica: (S, n, in), (R, out, in), (R, out)."""
    if x.shape[0] < w.shape[0]:  # one table for all replicas: one wide product
        n_replicas, n_out, n_in = w.shape
        wide = w.reshape(n_replicas * n_out, n_in)
        y = nn.functional.linear(x.squeeze(0), wide, b.reshape(-1))
        return y.view(x.shape[1], n_replicas, n_out).transpose(0, 1)
    return torch.baddbmm(b.unsqueeze(1), x, w.mT)


def _weight_gradient(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Write dL/dw of :func:`linear_layer`, of dL/dy (R, n, out) and x (S, n, in)."""
    if x.shape[0] < g.shape[0]:
        wide = g.transpose(0, 1).flatten(1)
        torch.mm(wide.mT, x.squeeze(0), out=out.flatten(0, 1))
    else:
        torch.bmm(g.mT, x, out=out)
    return out


class Collapsed:
    """A linear MLP forward and back: rows meet the one map, its layers autograd."""

    def __init__(
        self, collapse: Callable[[], Tensor], params: list[Tensor], inputs: bool
    ) -> None:
        self._collapse = collapse  # returns the map, (R, out, in + 1)
        self._params = params
        self._inputs = inputs
        self._ends: list[Tensor] = []  # of the last pass: the map, then the input

    def forward(self, x: Tensor) -> Tensor:
        """Map (S, n, in) to (R, n, out)."""
        A = self._collapse()
        self._ends = [A, x]
        return linear_layer(x, A.detach()[..., :-1], A.detach()[..., -1])

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x (R, n, in)."""
        A, x = self._ends
        along = torch.empty_like(A)
        w = torch.empty(along[..., :-1].shape, dtype=A.dtype, device=A.device)
        along[..., :-1] = _weight_gradient(gradient, x, w)
        along[..., -1] = gradient.sum(dim=-2)
        # A gradient along a tensor would load PyTorch's symbolic shapes, 0.6 s.
        grads = list(torch.autograd.grad((A * along).sum(), self._params))
        return [*grads, gradient @ A.detach()[..., :-1]] if self._inputs else grads


class OutputGuard(Protocol):
    """What is done to the output of a first layer before anything else sees it."""

    def release(self, h: Tensor) -> Tensor:
        """Return an output (R, n, width) as it may be used."""

    def back(self, gradient: Tensor, h: Tensor) -> Tensor:
        """Return the gradient by what was given to :meth:`release`."""


class ChainRule:
    """An MLP forward and back: what autograd computes, without its graph.

    Parameters are read where they are, and gradients written to the same place at every
    step. One replica alone goes through products of matrices, without the axis.
    """

    def __init__(
        self,
        params: list[Tensor],  # weights and biases, layer by layer
        activation: str,
        slot_mask: Tensor | None,
        output_mask: Tensor | None,
        inputs: bool,
        guard: OutputGuard | None = None,  # on the first layer's output
        pieces: Tensor | None = None,  # of columns whose effect is a curve
    ) -> None:
        self._pieces = pieces
        self._inputs = inputs
        self._guard, self._first = guard, torch.empty(0)
        self._activation = activation
        self._slot_mask = wide_mask(slot_mask, pieces)
        self._output_mask = output_mask
        self._alone = params[0].shape[0] == 1
        self._grads = [torch.empty_like(p.detach()) for p in params]
        self._weights = self._views([w.detach().flatten(2) for w in params[::2]])
        self._biases = self._views([b.detach() for b in params[1::2]])
        self._weight_grads = self._views([g.flatten(2) for g in self._grads[::2]])
        self._bias_grads = self._views(self._grads[1::2])
        self._ins: list[Tensor] = []  # what went into every layer
        self._sums: list[Tensor] = []  # what went into every activation

    def _views(self, tensors: list[Tensor]) -> list[Tensor]:
        return [t.squeeze(0) for t in tensors] if self._alone else tensors

    def forward(self, x: Tensor) -> Tensor:
        """Map (S, n, in) to (R, n, out)."""
        act = ACTIVATIONS[self._activation]
        layer_of = nn.functional.linear if self._alone else linear_layer
        x = with_pieces(x, self._pieces)
        x = x.squeeze(0) if self._alone else x
        self._ins, self._sums = [], []
        for layer, (w, b) in enumerate(zip(self._weights, self._biases, strict=True)):
            if layer == 0:
                w = masked(w, self._slot_mask)
            elif act is not None:
                self._sums.append(x)
                x = act(x)
            self._ins.append(x)
            x = layer_of(x, w, b)
            if self._guard is not None and layer == 0:
                self._first = x.unsqueeze(0) if self._alone else x
                x = self._guard.release(self._first)
                x = x.squeeze(0) if self._alone else x
        return masked(x.unsqueeze(0) if self._alone else x, self._output_mask)

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x (R, n, in)."""
        g = masked(gradient, self._output_mask)
        g = g.squeeze(0) if self._alone else g
        for layer in reversed(range(1, len(self._weights))):
            self._keep(layer, g)
            g = self._through_activation(g @ self._weights[layer], layer - 1)
        if self._guard is not None:
            own = self._guard.back(g.unsqueeze(0) if self._alone else g, self._first)
            g = own.squeeze(0) if self._alone else own
        self._keep(0, g)
        if self._slot_mask is not None:
            self._weight_grads[0].mul_(self._slot_mask.unsqueeze(1))
        if not self._inputs:
            return self._grads
        g = g @ masked(self._weights[0], self._slot_mask)
        return [*self._grads, g.unsqueeze(0) if self._alone else g]

    def _keep(self, layer: int, g: Tensor) -> None:
        """Write the gradients of a layer, of dL/dy (R, n, out)."""
        torch.sum(g, dim=-2, out=self._bias_grads[layer])
        x, out = self._ins[layer], self._weight_grads[layer]
        if self._alone:
            torch.mm(g.mT, x, out=out)
        else:
            _weight_gradient(g, x, out)

    def _through_activation(self, g: Tensor, layer: int) -> Tensor:
        """Return dL/dx of an activation, of dL/da."""
        name = self._activation
        if name in SLOPES_BY_OUTPUT:
            return SLOPES_BY_OUTPUT[name](g, self._ins[layer + 1])
        return SLOPES_BY_INPUT[name](g, self._sums[layer]) if name != "none" else g


def gradients(
    output: Tensor, inputs: Sequence[Tensor], along: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the gradient of an output by each input; zeros where it has no part."""
    return torch.autograd.grad(
        output, inputs, along, allow_unused=True, materialize_grads=True
    )


class Graph:
    """A network forward and back by autograd."""

    def __init__(
        self, net: Callable[[Tensor], Tensor], params: list[Tensor], inputs: bool
    ) -> None:
        self._net = net
        self._params = params
        self._inputs = inputs
        self._ends: list[Tensor] = []  # of the last pass: the output, then the inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (S, n, columns) to (R, n, n_outputs)."""
        if self._inputs:
            x = x.detach().requires_grad_()
        h = self._net(x)
        self._ends = [h, x] if self._inputs else [h]
        return h.detach()

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x."""
        h, *inputs = self._ends
        return list(gradients(h, [*self._params, *inputs], gradient))
