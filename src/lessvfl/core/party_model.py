"""A party's columns and network, cut to what is kept, and what stands in for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lessvfl.core.features import FeatureMap
from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.lifted import widen
from lessvfl.core.network import MLP, Network
from lessvfl.core.party_data import PartyData
from lessvfl.core.plans import Rows, take
from lessvfl.core.trees.votes import is_grown, party_net_of

Empty = Literal["constant", "frozen"]
RowsOf = Literal["train", "test"]


@dataclass
class ModelState:
    """All that changes of a party's network in a run, and of what it is fed."""

    net: dict[str, Tensor]  # as it is cut now
    pretrained: dict[str, Tensor] | None  # where it stands in for a network
    outputs: Tensor  # (E,), components left of those at the start
    groups: Tensor | None  # (n_groups,), those kept; None: nothing was removed
    constant: Tensor  # (E,), in the place of embeddings


class PartyModel:
    """What a party computes its embeddings with.

    A party that kept no feature has, by `empty`, a constant in their place, or what
    the pre-trained network gives. `guard` adds noise to whatever embeddings leave.
    """

    def __init__(
        self,
        net: Network,
        data: PartyData,
        empty: Empty = "constant",
        guard: EmbeddingGuard | None = None,
    ) -> None:
        self.net = self._whole = net
        self.X_train, self.X_test = data.X_train, data.X_test
        self.features = FeatureMap.of(net, data.groups)
        self.guard = guard
        self._data, self._empty = data, empty
        self._stand_in(net)

    def _stand_in(self, net: Network) -> None:
        """Forget what was cut: all outputs of `net` are in use, none is replaced."""
        like = net.input_weights
        self.outputs = torch.ones(net.n_outputs, dtype=torch.bool, device=like.device)
        self.constant = like.new_zeros(net.n_outputs).detach()
        self.is_empty = False  # no feature is kept
        self.pretrained: Network | None = None
        self._frozen: dict[RowsOf, Tensor] = {}  # embeddings by it

    @property
    def through(self) -> Network:
        """Return the network as rows pass it whose embeddings leave."""
        return self.net if self.guard is None else self.guard.around(self.net)

    @property
    def is_silent(self) -> bool:
        """Tell whether the party contributes a constant and is asked no more."""
        return self.is_empty and self._empty == "constant"

    # ------------------------------------------------------------------------ embedding

    def embed(self, of: RowsOf, rows: Rows, column_factors: Tensor | None) -> Tensor:
        """Return embeddings (n, E) of the training or test rows given by `rows`.

        Columns are multiplied by `column_factors` (columns,), where there are any.
        """
        X = take(self.X_train if of == "train" else self.X_test, rows)
        with torch.no_grad():
            h = self.through(X if column_factors is None else X * column_factors)
            return self.into(h, of, rows)

    def into(self, h: Tensor, of: RowsOf, rows: Rows) -> Tensor:
        """Return embeddings (n, E) of some rows, or what stands in for them."""
        if not self.is_empty:
            return h
        if self._empty == "constant":
            return self.constant.expand_as(h)
        return h if self.pretrained is None else take(self._frozen[of], rows)

    def released(self, h: Tensor, *name: str | int) -> Tensor:
        """Return embeddings (n, E) as they may leave."""
        if self.guard is None or self.guard.inside:
            return h
        return self.guard.release(h, *name)

    def noise_in(self, h: Tensor, sent: Tensor, rows: Rows) -> Tensor | None:
        """Return the noise in what was sent for embeddings h (n, E) of some rows."""
        if self.guard is None:
            return None
        return sent - self.guard.clear(h, self.net, take(self.X_train, rows))

    def gradient_of(self, gradient: Tensor, h: Tensor) -> Tensor:
        """Return the gradient by h of what was sent in its place, (n, E)."""
        if self.guard is None or self.guard.inside:
            return gradient
        return self.guard.back(gradient, h)

    # -------------------------------------------------------------------------- cutting

    def keep_components(self, components: tuple[int, ...]) -> None:
        """Cut the network to these of its outputs, numbered as they are now."""
        kept = torch.zeros_like(self.outputs)
        kept[self.outputs.nonzero().flatten()[list(components)]] = True
        self.net = self.net.narrow(outputs=kept[self.outputs])
        self.outputs = kept

    def freeze(self) -> None:
        """Remember network and embeddings as now, if a party left empty sends these."""
        if self._empty != "frozen":
            return
        self.pretrained, everything = self.net.narrow(), slice(None)
        with torch.no_grad():
            self._frozen = {
                "train": self.through(take(self.X_train, everything)),
                "test": self.through(take(self.X_test, everything)),
            }

    def remove(self, groups: Tensor) -> None:
        """Cut out of network and columns what is not among these (n_groups,)."""
        self.features = self.features.keep(groups)
        self.net = self.net.narrow(slots=self.features.slots)
        self._cut_columns(self.features.columns)

    def follow(self, groups: Tensor, net: Network | None) -> None:
        """Keep these groups (n_groups,), perhaps with another network of all columns.

        Without one the network is trained further, unless it is frozen.
        """
        if net is not None:
            left = self.features.keep(groups).columns[self.features.columns]
            self.replace(net.narrow(left), groups)
        elif not bool(groups.all()):
            self.freeze()
            self.remove(groups)

    def replace(self, net: Network, groups: Tensor) -> None:
        """Go on with `net`, already cut to the groups of the mask (n_groups,)."""
        before = self.features.columns
        self.features, self.net = self.features.keep(groups), net
        self._stand_in(net)
        self._cut_columns(self.features.columns[before])

    def _cut_columns(self, used: Tensor) -> None:
        """Cut columns where the mask `used` is False; note if no feature is left."""
        self.X_train = self._data.cut(self.X_train, used)
        self.X_test = self._data.cut(self.X_test, used)
        is_left = bool(self.features.kept.any()) and self.net.n_outputs > 0
        self.is_empty = not is_left
        if self.is_silent:
            with torch.no_grad():
                nothing = self.X_train.new_zeros(1, self.X_train.shape[1])
                self.constant = self.net(nothing).squeeze(0)

    def widen(self) -> None:
        """Put back all columns, those that were cut at weights of zero."""
        whole = self._whole.narrow(outputs=self.outputs)
        self.net = widen(self.net, whole, self.features.slots)
        self.X_train, self.X_test = self._data.X_train, self._data.X_test

    def ending(self) -> tuple[Network, Tensor, Tensor | None]:
        """Return what it predicts with: network, mask of slots, constant or None."""
        slots = self.features.slots
        if self.is_empty and self.pretrained is not None:
            return self.pretrained, torch.ones_like(slots), None
        return self.net, slots, self.constant if self.is_silent else None

    # ---------------------------------------------------------------------------- state

    @property
    def state(self) -> ModelState:
        """Return networks, masks and constant, which change in a run, as tensors."""
        return ModelState(
            net=self.net.state(),
            pretrained=None if self.pretrained is None else self.pretrained.state(),
            outputs=self.outputs,
            groups=self.features.groups if self.features.has_removed else None,
            constant=self.constant,
        )

    def resume(self, state: ModelState) -> None:
        """Go on from a saved state; this model must be a fresh one."""
        if is_grown(state.net):
            assert state.groups is not None
            self.replace(party_net_of(state.net), state.groups)
        else:
            self.outputs = state.outputs
            if not bool(self.outputs.all()):
                self.net = self.net.narrow(outputs=self.outputs)
            if state.pretrained is not None:
                self.net.load_state(state.pretrained)
                self.freeze()
            if state.groups is not None:
                self.remove(state.groups)
            if "pieces" in state.net and isinstance(self.net, MLP):
                self.net = self.net.curved(state.net["pieces"])
            self.net.load_state(state.net)
        self.constant = state.constant
