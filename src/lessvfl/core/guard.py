"""Noise on what a party sends: where embeddings meet the mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.network import MLP, Network
from lessvfl.errors import ConfigError
from lessvfl.privacy.draws import block_draws, row_draws
from lessvfl.privacy.noise import ClippedNoise
from lessvfl.terms import PartyId


@dataclass
class EmbeddingGuard:
    """Noise on all embeddings that leave a party, or on what they are computed from.

    It is keyed by the party's own secret and by what it is added to: the same
    embeddings sent again have the same noise, and others at the same step, after a
    break, have noise of their own.
    """

    mechanism: ClippedNoise
    party: PartyId
    seed: int  # the party's own
    inside: bool = False  # on the first layer's output, in the place of embeddings

    def release(self, h: Tensor, *name: str | int) -> Tensor:
        """Return numbers of rows (n, width) as they may leave."""
        draw = block_draws(self.seed, "embeddings", self.party, *name)
        return self.mechanism.release(h, draw)

    def release_by_row(
        self, h: Tensor, *name: str | int, ids: Sequence[str] | None
    ) -> Tensor:
        """Return the same, no row's noise depending on which others are there."""
        draw = row_draws(self.seed, "embeddings by row", self.party, *name, ids=ids)
        return self.mechanism.release(h, draw)

    def back(self, gradient: Tensor, h: Tensor) -> Tensor:
        """Return the gradient by what was given to :meth:`release`."""
        return self.mechanism.back(gradient, h)

    def around(self, net: Network) -> Network:
        """Return a network as rows pass it whose embeddings leave."""
        if not self.inside:
            return net
        if not isinstance(net, MLP):
            raise ConfigError(
                "The 'noise_at' setting first-layer is of the networks that lessvfl "
                "makes itself. Got a network of your own."
            )
        return net.behind(self)

    def clear(self, h: Tensor, net: Network, X: Tensor) -> Tensor:
        """Return h (n, E), embeddings by `net` of rows X, as they are without noise."""
        if not self.inside:
            return self.mechanism.clipped(h)
        with torch.no_grad():
            return net(X)
