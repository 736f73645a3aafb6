"""Columns, slots, groups and features of a party, and what is kept of them."""

from __future__ import annotations

import torch
from torch import nn

from lessvfl.core.features import FeatureMap
from lessvfl.core.lifted import Lifted
from lessvfl.core.network import MLP

CPU = torch.device("cpu")


def a_net(n_columns):
    return MLP.create((n_columns, 3), "tanh", 0, "a", torch.float64, CPU)


def test_everything_is_kept_at_first():
    features = FeatureMap.of(a_net(4), torch.tensor([0, 1, 2, 3]))
    assert features.kept.shape == (4,)
    assert features.kept.all()
    assert not features.has_removed
    assert features.membership(torch.float64) is None  # every slot is its own group


def test_columns_of_one_feature_are_one_group():
    features = FeatureMap.of(a_net(5), torch.tensor([0, 0, 1, 2, 2]))
    assert features.n_groups == 3
    assert features.column_groups.tolist() == [0, 0, 1, 2, 2]
    membership = features.membership(torch.float64)
    assert membership is not None
    assert membership.sum(dim=0).tolist() == [2, 1, 2]
    assert features.groups_of([False, False, True]).tolist() == [False, False, True]


def test_features_that_share_a_slot_are_one_group():
    def channels(n_in, n_out):
        layers = nn.Unflatten(1, (2, 2)), nn.Conv1d(2, n_out, 2), nn.Flatten()
        return nn.Sequential(*layers)

    net = Lifted.create(channels, 4, 3, 0, "a", torch.float64, CPU)
    features = FeatureMap.of(net, torch.arange(4))
    assert features.feature_groups.tolist() == [0, 0, 1, 1]
    kept = features.keep(torch.tensor([False, True]))
    assert kept.kept.tolist() == [False, False, True, True]
    assert kept.slots.tolist() == [False, True]
    assert kept.columns.tolist() == [False, False, True, True]


def test_importance_is_the_norm_of_a_features_weights_before_and_after_a_cut():
    net = a_net(3)
    features = FeatureMap.of(net, torch.tensor([0, 1, 1]))
    w = net.input_weights.detach()
    expected = torch.stack([w[:, 0].norm(), w[:, 1:].norm()])
    assert torch.allclose(features.importance(net), expected)
    kept = features.keep(torch.tensor([False, True]))
    cut = net.narrow(slots=kept.slots)
    assert kept.has_removed
    assert torch.allclose(kept.importance(cut), expected * torch.tensor([0.0, 1.0]))
