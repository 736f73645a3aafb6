"""Networks side by side, as functions take them that accept leading axes."""

from __future__ import annotations

import torch

from lessvfl.core.network import MLP


def stacked(*nets: MLP) -> MLP:
    """Return default networks of one shape as a stack, with weights of its own."""
    weights, biases = (
        [
            torch.stack(layer).detach().requires_grad_()
            for layer in zip(*parts, strict=True)
        ]
        for parts in ([net.weights for net in nets], [net.biases for net in nets])
    )
    return MLP(weights, biases, nets[0].activation)
