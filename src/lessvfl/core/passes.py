"""Networks forward and back, step by step: by hand, or by autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

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


def with_pieces(x: Tensor, pieces: Tensor | None) -> Tensor:
    """Return columns (n, in), each with its shares beside it, (n, in * (1 + k)).

    `pieces` (in, k, 2) are the start of every piece and one over its width, or 0 for a
    piece that says nothing.
    """
    if pieces is None:
        return x
    start, steepness = pieces.unbind(dim=-1)  # (in, k) each
    x = x.unsqueeze(-1)
    shares = ((x - start) * steepness).clamp(0, 1) - 0.5 * (steepness > 0)
    return torch.cat([x, shares], dim=-1).flatten(-2)


def wide(w: Tensor, pieces: Tensor | None) -> Tensor:
    """View first weights (out, in, 1 + k) as those of a column and its shares."""
    return w if pieces is None else w.flatten(-2)


def linear_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return x w^T + b, (..., n, out), for weights (..., out, in) and biases."""
    if w.dim() == 2:
        return nn.functional.linear(x, w, b)
    if x.dim() == 2 and w.dim() == 3:  # one table for a stack: one wide product
        y = nn.functional.linear(x, w.flatten(0, 1), b.flatten())
        return y.view(len(x), *b.shape).transpose(0, 1)
    if x.dim() == w.dim() == 3:
        return torch.baddbmm(b.unsqueeze(1), x, w.mT)
    return x @ w.mT + b.unsqueeze(-2)


def _weight_gradient(g: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Write dL/dw of :func:`linear_layer`, of dL/dy (..., n, out) and its x."""
    if g.dim() == 3 and x.dim() == 2:
        torch.mm(g.transpose(0, 1).flatten(1).mT, x, out=out.flatten(0, 1))
    else:
        torch.matmul(g.mT, x, out=out)
    return out


class Collapsed:
    """A linear MLP forward and back: rows meet the one map, its layers autograd."""

    def __init__(
        self, collapse: Callable[[], Tensor], params: list[Tensor], inputs: bool
    ) -> None:
        self._collapse = collapse  # returns the map, (..., out, in + 1)
        self._params = params
        self._inputs = inputs
        self._ends: list[Tensor] = []  # of the last pass: the map, then the input

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., n, in) to (..., n, out)."""
        A = self._collapse()
        self._ends = [A, x]
        return linear_layer(x, A.detach()[..., :-1], A.detach()[..., -1])

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x (..., n, in)."""
        A, x = self._ends
        along = torch.empty_like(A)
        w = torch.empty(along[..., :-1].shape, dtype=A.dtype, device=A.device)
        along[..., :-1] = _weight_gradient(gradient, x, w)
        along[..., -1] = gradient.sum(dim=-2)
        # A gradient along a tensor would load PyTorch's symbolic shapes, 0.6 s.
        grads = list(torch.autograd.grad((A * along).sum(), self._params))
        return [*grads, gradient @ A.detach()[..., :-1]] if self._inputs else grads


class FirstLayerGuard(Protocol):
    """What is done to the output of a first layer before anything else sees it."""

    def release(self, h: Tensor) -> Tensor:
        """Return an output (n, width) as it may be used."""

    def back(self, gradient: Tensor, h: Tensor) -> Tensor:
        """Return the gradient by what was given to :meth:`release`."""


class ChainRule:
    """An MLP forward and back: what autograd computes, without its graph.

    Parameters are read where they are, and gradients written to the same place at every
    step.
    """

    def __init__(
        self,
        params: list[Tensor],  # weights and biases, layer by layer
        activation: str,
        inputs: bool,
        guard: FirstLayerGuard | None = None,  # on the first layer's output
        pieces: Tensor | None = None,  # of columns whose effect is a curve
    ) -> None:
        self._pieces = pieces
        self._inputs = inputs
        self._guard, self._first = guard, torch.empty(0)
        self._activation = activation
        first, *rest = params[::2]
        self._grads = [torch.empty_like(p.detach()) for p in params]
        self._weights = [w.detach() for w in (wide(first, pieces), *rest)]
        self._biases = [b.detach() for b in params[1::2]]
        first, *rest = self._grads[::2]
        self._weight_grads = [wide(first, pieces), *rest]
        self._bias_grads = self._grads[1::2]
        self._ins: list[Tensor] = []  # what went into every layer
        self._sums: list[Tensor] = []  # what went into every activation

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., n, in) to (..., n, out)."""
        act = ACTIVATIONS[self._activation]
        x = with_pieces(x, self._pieces)
        self._ins, self._sums = [], []
        for layer, (w, b) in enumerate(zip(self._weights, self._biases, strict=True)):
            if layer and act is not None:
                self._sums.append(x)
                x = act(x)
            self._ins.append(x)
            x = linear_layer(x, w, b)
            if self._guard is not None and layer == 0:
                self._first = x
                x = self._guard.release(x)
        return x

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x (..., n, in)."""
        g = gradient
        for layer in reversed(range(1, len(self._weights))):
            self._keep(layer, g)
            g = self._through_activation(g @ self._weights[layer], layer - 1)
        if self._guard is not None:
            g = self._guard.back(g, self._first)
        self._keep(0, g)
        return [*self._grads, g @ self._weights[0]] if self._inputs else self._grads

    def _keep(self, layer: int, g: Tensor) -> None:
        """Write the gradients of a layer, of dL/dy (..., n, out)."""
        torch.sum(g, dim=-2, out=self._bias_grads[layer])
        _weight_gradient(g, self._ins[layer], self._weight_grads[layer])

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
        """Map (n, columns) to (n, n_outputs)."""
        if self._inputs:
            x = x.detach().requires_grad_()
        h = self._net(x)
        self._ends = [h, x] if self._inputs else [h]
        return h.detach()

    def back(self, gradient: Tensor) -> list[Tensor]:
        """Return the gradients of parameters, and with `inputs` of x."""
        h, *inputs = self._ends
        return list(gradients(h, [*self._params, *inputs], gradient))
