"""Networks forward and back, step by step, by autograd; parts of a network."""

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

    A share is how far a value has got through a piece of its column's range. `pieces`
    (in, k, 2) are each piece's start and one over its width, or 0 if it says nothing.
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


def gradients(
    output: Tensor, inputs: Sequence[Tensor], along: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the gradient of `output` by each input; zeros where it has no part.

    `along` is dL/d(output), of its shape, where the output is not a single number.
    """
    # Given to autograd, `along` would load PyTorch's symbolic shapes, 0.6 s.
    value = output if along is None else (output * along).sum()
    return torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)


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
