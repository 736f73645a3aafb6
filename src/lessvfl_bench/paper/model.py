"""The joint model of many runs: party networks and fusion networks as one.

Axes: parties P, seeds S, settings G, columns D (+ ALIGNED), components E, classes C.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.network import MLP, Network
from lessvfl_bench.paper.nets import ALIGNED, Stack, leaf, side_by_side
from lessvfl_bench.paper.scene import Scene


@dataclass
class Model:
    """Party networks and fusion networks of all seeds and settings."""

    nets: Stack
    w: Tensor  # (S, G, C, P E)
    b: Tensor  # (S, G, C)
    features: Tensor | None = None  # (P, S, G, D), what is left; None: everything
    components: Tensor | None = None  # (P, S, G, E), likewise
    empty: Tensor | None = None  # (P, S, G): a party kept nothing, and contributes
    rest: Stack | None = None  # its pre-trained network, or
    constant: Tensor | None = None  # (P, S, G, E), what that gives for zeros
    columns: Tensor | None = None  # (P, S, G, D'), all that a compact model has
    _inputs: Tensor | None = None  # (P, S, G, 1, D'), 1 where a linear model looks
    _outputs: Tensor | None = None  # (P, S, G, 1, E), likewise
    _offset: Tensor | None = None

    @classmethod
    def create(cls, scene: Scene) -> Model:
        """Draw the networks of every seed, as ``lessvfl run`` does; G = 1."""
        tables, builders = scene.tables, scene.builders()
        parties = [
            [_drawn(build.party_network(name, width)) for build in builders]
            for name, width in zip(tables.names, tables.widths, strict=True)
        ]
        n_components = len(parties) * scene.n_components
        fusion = [
            _drawn(build.fusion_network(n_components, tables.n_outputs))
            for build in builders
        ]
        w = torch.stack([net.weights[0].detach() for net in fusion]).unsqueeze(1)
        b = torch.stack([net.biases[0].detach() for net in fusion]).unsqueeze(1)
        return cls(Stack.of(parties, tables.X.shape[3] - ALIGNED), w, b).copy()

    def copy(self) -> Model:
        """Return trainable copies of the networks."""
        return Model(self.nets.copy(), leaf(self.w), leaf(self.b))

    def parameters(self) -> list[Tensor]:
        """Return every parameter."""
        return [*self.nets.parameters(), self.w, self.b]

    def prepare(self) -> None:
        """Turn the masks of a linear model into factors and one offset."""
        if self.features is None or not self.nets.is_linear:
            return
        assert self.components is not None
        assert self.empty is not None
        used = self.features
        if self.columns is not None:
            used = used.gather(3, self.columns)
        dtype, empty = self.w.dtype, self.empty.unsqueeze(3)
        self._inputs = used.unsqueeze(3).to(dtype)
        self._outputs = (self.components & ~empty).unsqueeze(3).to(dtype)
        if not self.empty.any():
            return
        with torch.no_grad():
            if self.rest is not None:
                whole = side_by_side(*self.rest.collapse())
            else:
                assert self.constant is not None
                shape = (*self.constant.shape, self.features.shape[3] + ALIGNED)
                whole = self.constant.new_zeros(shape)
                whole[..., -ALIGNED] = self.constant
            self._offset = whole * (self.components & empty).unsqueeze(4).to(dtype)

    def compact(self) -> None:
        """Cut the first layers to as many columns as the one with most has left."""
        assert self.features is not None
        D = self.features.shape[3]
        most = int(self.features.sum(dim=3).max())
        width = min(D, -(-max(most, 1) // ALIGNED) * ALIGNED)
        # Kept columns first, then removed ones: no column twice.
        order = self.features.int().argsort(dim=3, descending=True, stable=True)
        self.columns = order[..., :width]
        first = self.nets.weights[0]
        index = self.columns.unsqueeze(3).expand(-1, -1, -1, first.shape[3], -1)
        self.nets.weights[0] = leaf(first.gather(4, index))

    def logits(self, rows: Tensor) -> Tensor:
        """Return (S, n, G, C) for rows (S, n, P (D + ALIGNED))."""
        S, G, C, _ = self.w.shape
        P = self.nets.weights[0].shape[0]
        if not self.nets.is_linear:
            h = self._embed(rows.view(S, -1, P, rows.shape[2] // P).permute(2, 0, 1, 3))
            H = h.permute(1, 2, 3, 0, 4).flatten(3)  # (S, G, n, P E)
            return (H @ self.w.mT + self.b.unsqueeze(2)).transpose(1, 2)
        w = self.w.view(S, G, C, P, -1).permute(3, 0, 1, 2, 4)
        head = w if self._outputs is None else w * self._outputs
        last, added = self.nets.last
        M, added = self.nets.collapse((head @ last, head @ added))  # (P, S, G, C, D')
        if self._inputs is not None:
            M = M * self._inputs
        if self.columns is not None:
            M = self._widen(M)
        M = side_by_side(M, added)
        if self._offset is not None:
            M = M + w @ self._offset
        M = M.permute(1, 2, 3, 0, 4).reshape(S, G * C, -1)
        z = torch.baddbmm(self.b.view(S, 1, G * C), rows, M.mT)
        return z.view(S, -1, G, C)

    def _widen(self, M: Tensor) -> Tensor:
        """Put the columns of a compact model back into their places."""
        assert self.columns is not None
        assert self.features is not None
        places = self.columns.unsqueeze(3).expand_as(M)
        return M.new_zeros(*M.shape[:4], self.features.shape[3]).scatter(4, places, M)

    def _embed(self, X: Tensor) -> Tensor:
        """Return embeddings (P, S, G, n, E), what an empty party contributes put in."""
        h = self.nets.embed(X, self.features)
        if self.features is None:
            return h
        assert self.components is not None
        assert self.empty is not None
        if self.rest is not None:
            with torch.no_grad():
                other = self.rest.embed(X)
        else:
            assert self.constant is not None
            other = self.constant.unsqueeze(3)
        h = torch.where(self.empty.view(*self.empty.shape, 1, 1), other, h)
        return h * self.components.unsqueeze(3)


def _drawn(net: Network) -> MLP:
    """Return a network that settings describe: no other is in the grid."""
    assert isinstance(net, MLP)
    return net
