"""What a party contributes where it kept no feature."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.plans import Rows, take

Empty = Literal["constant", "frozen"]


class Substitute:
    """Stands in for the embedding of replicas that kept no feature.

    By `kind` it is a constant, or what the pre-trained network said.
    """

    def __init__(self, kind: Empty, net: Network) -> None:
        device = net.input_weights.device
        self.kind = kind
        self.is_empty = torch.zeros(net.n_replicas, dtype=torch.bool, device=device)
        self.constant = torch.zeros(net.n_replicas, net.n_outputs, device=device)
        self.pretrained: Network | None = None
        self._said: dict[str, Tensor] = {}  # by the pre-trained network
        self._any_empty = False

    def freeze(self, net: Network, X_train: Tensor, X_test: Tensor) -> None:
        """Keep the pre-trained network and what it says, where that is wanted."""
        if self.kind == "frozen":
            self.pretrained = net.narrow()
            everything = slice(None)
            with torch.no_grad():
                self._said = {
                    "train": net(take(X_train, everything)),
                    "test": net(take(X_test, everything)),
                }

    def follow(self, net: Network, kept: Tensor, X: Tensor) -> None:
        """Learn what a removal left: network, features (R, n_features), columns."""
        self.is_empty = ~kept.any(dim=1) | ~net.output_mask.any(dim=1)
        self._any_empty = bool(self.is_empty.any())
        if self.kind == "constant" and self._any_empty:
            nothing = X.new_zeros(1, 1, X.shape[2])
            with torch.no_grad():
                self.constant = net(nothing).squeeze(1)

    def into(self, h: Tensor, which: str, rows: Rows) -> Tensor:
        """Return the embedding (R, n, E) of some rows with the substitute in it."""
        if not self._any_empty:
            return h
        if self.kind == "constant":
            other = self.constant.unsqueeze(1)
        elif self.pretrained is not None:
            other = take(self._said[which], rows)
        else:
            return h
        return torch.where(self.is_empty.view(-1, 1, 1), other, h)

    def without(self, gradient: Tensor) -> Tensor:
        """Return a gradient (R, n, E) without what concerns the substitute."""
        if not self._any_empty:
            return gradient
        return gradient * ~self.is_empty.view(-1, 1, 1)

    def at_the_end(
        self, net: Network, slots: Tensor, replica: int
    ) -> tuple[Network, Tensor, Tensor | None]:
        """Return what one replica predicts with: network, slots (slots,), constant."""
        if not self.is_empty[replica]:
            return net, slots, None
        if self.pretrained is not None:
            return self.pretrained, torch.ones_like(slots), None
        if self.kind == "frozen":
            return net, slots, None
        return net, slots, self.constant[replica, net.output_mask[replica]]

    def silent(self) -> tuple[bool, ...]:
        """Tell which replicas contribute a constant and are asked no more."""
        if self.kind == "frozen":
            return (False,) * len(self.is_empty)
        return tuple(self.is_empty.tolist())
