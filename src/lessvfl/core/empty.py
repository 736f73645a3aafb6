"""What a party contributes where it kept no feature."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.plans import Rows, take

Empty = Literal["constant", "frozen"]


class Substitute:
    """Stands in for the embedding of a party that kept no feature.

    By `kind` it is a constant, or what the pre-trained network gives.
    """

    def __init__(self, kind: Empty, net: Network) -> None:
        self.kind = kind
        self.is_empty = False
        self.constant = net.input_weights.new_zeros(net.n_outputs).detach()
        self.pretrained: Network | None = None
        self._embeddings: dict[str, Tensor] = {}  # by the pre-trained network

    def freeze(self, net: Network, X_train: Tensor, X_test: Tensor) -> None:
        """Keep the pre-trained network and its embeddings, where they are wanted."""
        if self.kind == "frozen":
            self.pretrained = net.narrow()
            everything = slice(None)
            with torch.no_grad():
                self._embeddings = {
                    "train": net(take(X_train, everything)),
                    "test": net(take(X_test, everything)),
                }

    def follow(self, net: Network, kept: Tensor, X: Tensor) -> None:
        """Learn what a removal left: network, features (n_features,), columns."""
        self.is_empty = not bool(kept.any()) or not net.n_outputs
        if self.kind == "constant" and self.is_empty:
            with torch.no_grad():
                self.constant = net(X.new_zeros(1, X.shape[1])).squeeze(0)

    def into(self, h: Tensor, which: str, rows: Rows) -> Tensor:
        """Return the embedding (n, E) of some rows, or what stands in for it."""
        if not self.is_empty:
            return h
        if self.kind == "constant":
            return self.constant.expand_as(h)
        return h if self.pretrained is None else take(self._embeddings[which], rows)

    def without(self, gradient: Tensor) -> Tensor:
        """Return a gradient (n, E), zeros where it concerns the substitute."""
        return torch.zeros_like(gradient) if self.is_empty else gradient

    def at_the_end(
        self, net: Network, slots: Tensor
    ) -> tuple[Network, Tensor, Tensor | None]:
        """Return what the party predicts with: network, slots (slots,), constant."""
        if not self.is_empty:
            return net, slots, None
        if self.pretrained is not None:
            return self.pretrained, torch.ones_like(slots), None
        return net, slots, None if self.kind == "frozen" else self.constant

    @property
    def is_silent(self) -> bool:
        """Tell whether the party contributes a constant and is asked no more."""
        return self.is_empty and self.kind == "constant"
