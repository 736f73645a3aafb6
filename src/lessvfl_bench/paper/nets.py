"""Party networks of many runs as one stack of tensors.

Axes: parties P, seeds S, settings G. Every party has as many columns as the widest one,
rounded up (D): columns it lacks are zeros and stay zeros. Rows end in a one, padded
alike (:data:`ALIGNED`), so that products run at their best.

Networks without activations are linear maps: :meth:`Stack.collapse` multiplies their
layers together, so that a step of the `official-code` profile never forms the hidden
units of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lessvfl.core import linear
from lessvfl.core.linear import LinearMap
from lessvfl.core.network import MLP
from lessvfl.core.passes import ACTIVATIONS

ALIGNED = 8  # columns are padded to a multiple of this, and so is the one


class Stack:
    """Party networks: weights (P, S, G, out, in) and biases (P, S, G, out) by layer."""

    def __init__(
        self, weights: list[Tensor], biases: list[Tensor], activation: str
    ) -> None:
        self.weights = weights
        self.biases = biases
        self.activation = activation

    @classmethod
    def of(cls, parties: Sequence[Sequence[MLP]], n_columns: int) -> Stack:
        """Stack the networks of every party and seed; G = 1."""
        weights, biases = [], []
        for layer, like in enumerate(parties[0][0].weights):
            width = n_columns if layer == 0 else like.shape[1]
            padded = [
                [_widened(net.weights[layer].detach(), width) for net in seeds]
                for seeds in parties
            ]
            offsets = [[net.biases[layer].detach() for net in s] for s in parties]
            weights.append(stacked(padded).unsqueeze(2))
            biases.append(stacked(offsets).unsqueeze(2))
        return cls(weights, biases, parties[0][0].activation)

    @classmethod
    def join(cls, stacks: Sequence[Stack]) -> Stack:
        """Put stacks of equal networks side by side along the settings."""
        layers = zip(*(stack.parameters() for stack in stacks), strict=True)
        return stacks[0]._of_tensors([torch.cat(some, dim=2) for some in layers])

    def _of_tensors(self, tensors: list[Tensor]) -> Stack:
        """Return the stack with these parameters in the place of its own."""
        n_layers = len(self.weights)
        return Stack(tensors[:n_layers], tensors[n_layers:], self.activation)

    @property
    def is_linear(self) -> bool:
        """Tell whether the network is one linear map."""
        return ACTIVATIONS[self.activation] is None

    def parameters(self) -> list[Tensor]:
        """Return every parameter."""
        return [*self.weights, *self.biases]

    def take(self, index: Tensor) -> Stack:
        """Return trainable copies of the settings `index` (P, S, G) names."""
        return self._of_tensors([leaf(pick(p, index)) for p in self.parameters()])

    def copy(self) -> Stack:
        """Return trainable copies of all."""
        return self._of_tensors([leaf(p) for p in self.parameters()])

    @property
    def last(self) -> LinearMap:
        """Return the last layer."""
        return self.weights[-1], self.biases[-1].unsqueeze(-1)

    def collapse(self, last: LinearMap | None = None) -> LinearMap:
        """Return the one linear map of all layers, `last` as the last of them.

        The last layers are multiplied first: they are the narrow ones, and the fewer
        rows `last` has (P, S, G, rows, in), the less there is to multiply.
        """
        return linear.collapse(self.weights, self.biases, last)

    def embed(self, X: Tensor, features: Tensor | None = None) -> Tensor:
        """Map rows (P, S, n, D + ALIGNED) to embeddings (P, S, G, n, E).

        `features` (P, S, G, D) masks the first layer's weights.
        """
        act = ACTIVATIONS[self.activation]
        P, S, G, width, D = self.weights[0].shape
        first = self.weights[0]
        if features is not None:
            first = first * features.unsqueeze(3)
        flat = first.reshape(P * S, G * width, D)
        offset = self.biases[0].reshape(P * S, 1, G * width)
        rows = X[..., :D].reshape(P * S, -1, D)
        h = torch.baddbmm(offset, rows, flat.mT).view(P, S, -1, G, width)
        h = h.transpose(2, 3)
        for w, b in zip(self.weights[1:], self.biases[1:], strict=True):
            h = (h if act is None else act(h)) @ w.mT + b.unsqueeze(3)
        return h


def stacked(values: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return values of every party and seed as one tensor, (P, S, ...)."""
    return torch.stack([torch.stack(list(seeds)) for seeds in values])


def _widened(w: Tensor, width: int) -> Tensor:
    """Return weights (out, in) with zeros for columns that a party lacks."""
    return torch.nn.functional.pad(w, (0, width - w.shape[1]))


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Return values (P, S, G, ...) at `index` (P, S, G'), along the settings."""
    P, S = index.shape[:2]
    parties = torch.arange(P, device=index.device).view(-1, 1, 1)
    seeds = torch.arange(S, device=index.device).view(1, -1, 1)
    return values[parties, seeds, index]


def side_by_side(whole: Tensor, added: Tensor) -> Tensor:
    """Return a linear map as one tensor (..., out, D + ALIGNED), for rows with a one.

    The column after D is what the map adds; zeros follow.
    """
    added = torch.nn.functional.pad(added, (0, ALIGNED - 1))
    return torch.cat([whole, added], dim=-1)


def leaf(values: Tensor) -> Tensor:
    """Return a contiguous copy that takes gradients."""
    return values.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
