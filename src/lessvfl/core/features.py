"""A party's features: which columns, inputs and groups are one, and which are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.prox import GroupLasso


@dataclass(frozen=True)
class FeatureMap:
    """How a party's features meet its network, and which of them are kept.

    A feature can take several slots (a one-hot category) and a slot several features (a
    channel of a convolution); both are then penalised and removed as one, a group.
    """

    column_slots: Tensor  # (columns,), the slot of every column
    slot_groups: Tensor  # (slots,), the group of every slot
    feature_groups: Tensor  # (n_features,), the group of every feature
    groups: Tensor  # (n_groups,), those kept
    has_removed: bool = False  # even if it removed nothing

    @classmethod
    def of(cls, net: Network, features: Tensor) -> FeatureMap:
        """Keep everything; `features` (columns,) is the feature of every column."""
        column_slots = net.column_slots
        slot_groups = _join_slots(column_slots, features)
        n_groups = int(slot_groups.max()) + 1 if len(slot_groups) else 0
        everything = torch.ones(n_groups, dtype=torch.bool)
        return cls(
            column_slots,
            slot_groups,
            _feature_groups(slot_groups[column_slots], features),
            everything.to(net.input_weights.device),
        )

    @property
    def n_groups(self) -> int:
        """Return the number of groups."""
        return len(self.groups)

    @property
    def column_groups(self) -> Tensor:
        """Return the group of every column, (columns,)."""
        return self.slot_groups[self.column_slots]

    @property
    def kept(self) -> Tensor:
        """Return which features are kept, (n_features,)."""
        return self.of_groups(self.groups)

    @property
    def slots(self) -> Tensor:
        """Return which slots are kept, (slots,)."""
        return self.groups[self.slot_groups]

    @property
    def columns(self) -> Tensor:
        """Return which columns are kept, (columns,)."""
        return self.slots[self.column_slots]

    def of_groups(self, groups: Tensor) -> Tensor:
        """Return values of groups (n_groups,) as values of features."""
        return groups[self.feature_groups]

    def groups_of(self, features: Sequence[bool]) -> Tensor:
        """Return a mask (n_groups,) of the groups that chosen features are in."""
        groups = torch.zeros_like(self.groups)
        chosen = [i for i, is_chosen in enumerate(features) if is_chosen]
        groups[self.feature_groups[chosen]] = True
        return groups

    def keep(self, groups: Tensor) -> FeatureMap:
        """Return the map with these groups kept, (n_groups,)."""
        return replace(self, groups=groups, has_removed=True)

    def membership(self, dtype: torch.dtype) -> Tensor | None:
        """Return 1 where a slot is in a group, (slots, n_groups); None: each alone."""
        if self.n_groups == len(self.slot_groups):
            return None
        one_hot = torch.nn.functional.one_hot(self.slot_groups, self.n_groups)
        return one_hot.to(dtype)

    def importance(self, net: Network) -> Tensor:
        """Return the norm of every feature's input weights, (n_features,)."""
        with torch.no_grad():
            norms = GroupLasso(torch.ones(())).norms(net.input_weights).double()
        slots = self.slots
        if len(norms) < len(slots):  # the network was cut to the slots in use
            whole = norms.new_zeros(len(slots))
            whole[slots] = norms
            norms = whole
        groups = norms.new_zeros(self.n_groups)
        groups.index_add_(0, self.slot_groups, (norms * slots).square())
        return groups.sqrt()[self.feature_groups]


def _feature_groups(column_groups: Tensor, features: Tensor) -> Tensor:
    """Return the group of every feature, given group and feature of each column."""
    known = dict(zip(features.tolist(), column_groups.tolist(), strict=True))
    groups = [known[feature] for feature in range(len(known))]
    return torch.tensor(groups, dtype=torch.long).to(features.device)


def _join_slots(column_slots: Tensor, features: Tensor) -> Tensor:
    """Return the group of every slot: slots that share a feature belong together."""
    n_slots = int(column_slots.max()) + 1 if len(column_slots) else 0
    parent = list(range(n_slots))

    def root(slot: int) -> int:
        while parent[slot] != slot:
            slot = parent[slot]
        return slot

    first: dict[int, int] = {}
    for slot, feature in zip(column_slots.tolist(), features.tolist(), strict=True):
        parent[root(slot)] = root(first.setdefault(feature, slot))
    roots = [root(slot) for slot in range(n_slots)]
    number = {r: i for i, r in enumerate(dict.fromkeys(roots))}
    groups = [number[r] for r in roots]
    return torch.tensor(groups, dtype=torch.long).to(features.device)
