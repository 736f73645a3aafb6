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

from lessvfl.core.network import ACTIVATIONS, MLP

ALIGNED = 8  # columns are padded to a multiple of this, and so is the one


class Stack:
    """Party networks: weights (P, S, G, out, in) and biases (P, S, G, out).

    Parameters
    ----------
    weights, biases : list of Tensor
        One of each a layer.
    activation : str
        A key of ``ACTIVATIONS``.
    """

    def __init__(
        self, weights: list[Tensor], biases: list[Tensor], activation: str
    ) -> None:
        self.weights = weights
        self.biases = biases
        self.activation = activation

    @classmethod
    def of(cls, nets: Sequence[MLP], n_columns: int) -> Stack:
        """Stack one network a party (R = S seeds each); G = 1."""
        weights, biases = [], []
        for layer in range(len(nets[0].weights)):
            width = n_columns if layer == 0 else nets[0].weights[layer].shape[2]
            parts = [net.weights[layer].detach() for net in nets]
            padded = [
                torch.nn.functional.pad(w, (0, width - w.shape[2])) for w in parts
            ]
            weights.append(torch.stack(padded).unsqueeze(2))
            offsets = [net.biases[layer].detach() for net in nets]
            biases.append(torch.stack(offsets).unsqueeze(2))
        return cls(weights, biases, nets[0].activation)

    @classmethod
    def join(cls, stacks: Sequence[Stack]) -> Stack:
        """Put stacks of equal networks side by side along the settings."""
        return cls(
            [
                torch.cat(ws, dim=2)
                for ws in zip(*(s.weights for s in stacks), strict=True)
            ],
            [
                torch.cat(bs, dim=2)
                for bs in zip(*(s.biases for s in stacks), strict=True)
            ],
            stacks[0].activation,
        )

    @property
    def is_linear(self) -> bool:
        """Tell whether the network is one linear map."""
        return ACTIVATIONS[self.activation] is None

    def parameters(self) -> list[Tensor]:
        """Return every parameter."""
        return [*self.weights, *self.biases]

    def take(self, index: Tensor) -> Stack:
        """Return trainable copies of the settings `index` (P, S, G) names."""
        return Stack(
            [leaf(pick(w, index)) for w in self.weights],
            [leaf(pick(b, index)) for b in self.biases],
            self.activation,
        )

    def copy(self) -> Stack:
        """Return trainable copies of all."""
        return Stack(
            [leaf(w) for w in self.weights],
            [leaf(b) for b in self.biases],
            self.activation,
        )

    def collapse(self) -> Tensor:
        """Return the one linear map that all layers make, (P, S, G, E, D + ALIGNED).

        The column after D is what the map adds; zeros follow.
        """
        whole, added = self.weights[-1], self.biases[-1].unsqueeze(-1)
        for w, b in zip(self.weights[-2::-1], self.biases[-2::-1], strict=True):
            added = whole @ b.unsqueeze(-1) + added
            whole = whole @ w  # the last layers first: they are the narrow ones
        added = torch.nn.functional.pad(added, (0, ALIGNED - 1))
        return torch.cat([whole, added], dim=-1)

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


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Return values (P, S, G, ...) at `index` (P, S, G'), along the settings."""
    P, S = index.shape[:2]
    parties = torch.arange(P, device=index.device).view(-1, 1, 1)
    seeds = torch.arange(S, device=index.device).view(1, -1, 1)
    return values[parties, seeds, index]


def leaf(values: Tensor) -> Tensor:
    """Return a contiguous copy that takes gradients."""
    return values.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
