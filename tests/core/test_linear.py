"""Networks without activations: one map and moments give what layers and rows give."""

from __future__ import annotations

import pytest
import torch
from tests.core.stacks import stacked
from tests.run.jobs import a_job

from lessvfl import algorithm
from lessvfl.core.linear import BatchMoments
from lessvfl.core.network import MLP
from lessvfl.core.plans import SelectPlan
from lessvfl.run.simulate import simulate

CPU = torch.device("cpu")
F64 = torch.float64


@pytest.fixture
def by_layers(monkeypatch):
    """Return a switch after which linear networks run layer by layer, row by row."""

    def switch():
        monkeypatch.setattr(MLP, "is_linear", property(lambda net: False))

    return switch


def a_net(seed=0):
    net = MLP.create((6, 5, 5, 4), "none", seed, "party 'a'", F64, CPU)
    with torch.no_grad():
        for b in net.biases:
            b.add_(torch.linspace(-1, 1, len(b), dtype=F64))
    return net


def narrowed(net):
    slots = torch.tensor([True, False, True, False, True, True])
    outputs = torch.tensor([True, True, False, True])
    return net.narrow(slots, outputs)


def rows(*shape):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(*shape, generator=generator, dtype=F64)


@pytest.mark.parametrize("net", [a_net(), narrowed(a_net())])
@pytest.mark.parametrize("inputs", [False, True])
def test_one_map_is_all_layers(net, inputs, by_layers):
    x, g = rows(9, net.input_weights.shape[1]), rows(9, net.n_outputs)
    passes = net.passes(inputs)
    found = [net(x), passes.forward(x), *passes.back(g)]
    by_layers()
    passes = net.passes(inputs)
    expected = [net(x), passes.forward(x), *passes.back(g)]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 6), (2, 9, 6)])
def test_one_table_serves_all_networks_of_a_stack_or_each_has_its_own(shape, by_layers):
    net, x = stacked(a_net(0), a_net(1)), rows(*shape)
    found = net(x)
    by_layers()
    assert torch.allclose(found, net(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stack", [(), (2,)])
def test_moments_are_of_batches_with_rows_enough(stack):
    table = rows(*stack, 20, 8)
    moments, maps = BatchMoments(table), rows(*stack, 3, 8)
    assert moments.serve(slice(8, 12))
    assert not moments.serve(slice(8, 11))
    assert not moments.serve(torch.arange(8))
    for cut in (slice(0, 20), slice(0, 10), slice(10, 20), slice(0, 10)):
        h = table[..., cut, :] @ maps.mT
        expected = h.square().mean(dim=-2)
        assert torch.allclose(moments.squares(maps, cut), expected)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("batch", [slice(4, 20), slice(0, 2), torch.tensor([3, 1, 8])])
def test_the_matching_loss_is_that_of_rows(reduction, batch, by_layers):
    found = []
    for _ in range(2):
        net = narrowed(a_net())
        plan = SelectPlan(
            "select_features", 1, 8, "file", 0.1, 0.1, reduction=reduction
        )
        loss = algorithm.matching_loss(net, rows(20, 4), plan)
        with torch.no_grad():
            for param in net.parameters():
                param.mul_(1.1)
        value = loss(batch)
        found.append([value, *torch.autograd.grad(value, net.parameters())])
        by_layers()
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


QUICK = {
    "less-vfl": {"party_epochs": 30, "server_epochs": 10, "lam_party": 2.0},
    "group-lasso": {"joint_epochs": 60, "lam_party": 1.0},
}


@pytest.mark.parametrize("row_order", ["file", "shuffle"])
@pytest.mark.parametrize("method", QUICK)
def test_a_run_by_maps_and_moments_is_that_by_layers_and_rows(
    method, row_order, by_layers
):
    """In double precision: the same supports and scores, numbers to 1e-9."""
    options = {"row_order": row_order, "dtype": "float64", **QUICK[method]}
    job = a_job(method, "official-code", spurious=0.5, **options)
    ours = simulate(job, [0, 1])
    by_layers()
    theirs = simulate(job, [0, 1])
    found = [own for run in ours for own in run.numbers["features"].values()]
    assert any(own["removed"] for own in found)
    assert any(own["kept"] for own in found)
    for one, other in zip(ours, theirs, strict=True):
        for key in ("features", "components", "accuracy", "communication"):
            assert one.numbers[key] == other.numbers[key], key
        for party, importance in one.numbers["importance"].items():
            expected = other.numbers["importance"][party]
            assert importance == pytest.approx(expected, rel=1e-9, abs=1e-12)
