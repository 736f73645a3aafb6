import copy
import pickle
from typing import Any

import pytest
import torch
from tests.core.stacks import stacked
from torch import nn
from torch.testing import assert_close

from lessvfl.core.lifted import Lifted, find_factory, widen
from lessvfl.core.network import MLP, NetConfig
from lessvfl.core.passes import ACTIVATIONS
from lessvfl.errors import ConfigError, NetworkError

CPU = torch.device("cpu")
F64 = torch.float64


class Residual(nn.Module):
    """A residual block behind the first layer: its input is used once."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.first = nn.Linear(n_in, 8)
        self.inner = nn.Linear(8, 8)
        self.last = nn.Linear(8, n_out)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = h + torch.tanh(self.inner(h))
        return self.last(h)


def sequential(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 6), nn.Tanh(), nn.Linear(6, n_out))


def convolutional(n_in, n_out):
    """Two columns a channel; a group is an input channel."""
    return nn.Sequential(
        nn.Unflatten(1, (n_in // 2, 2)),
        nn.Conv1d(n_in // 2, 5, kernel_size=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(5, n_out),
    )


class Reshaping(nn.Module):
    """A convolution that reshapes in forward, so its slots cannot be cut."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.conv = nn.Conv1d(n_in // 2, n_out, kernel_size=2)

    def forward(self, x):
        return torch.tanh(
            self.conv(x.view(len(x), -1, 2).reshape(len(x), 3, 2))[..., 0]
        )


class SkipAroundFirst(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.first = nn.Linear(n_in, n_out)
        self.skip = nn.Linear(n_in, n_out)

    def forward(self, x):
        return self.first(x) + self.skip(x)


class Unmappable(nn.Module):
    """Control flow on values: vmap cannot map it."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.first = nn.Linear(n_in, n_out)

    def forward(self, x):
        h = self.first(x)
        return h * 2 if float(h.detach().sum()) == 123.0 else h


FACTORIES = {
    "mlp": sequential,
    "residual": Residual,
    "conv": convolutional,
    "reshaping": Reshaping,
    "unmappable": Unmappable,
}


def lift(factory, seed=0, n_in=6, n_out=4):
    return Lifted.create(factory, n_in, n_out, seed, "party 'a'", F64, CPU)


def default(seed=0, widths=(6, 5, 4)):
    return MLP.create(widths, "tanh", seed, "party 'a'", F64, CPU)


def rows(*shape):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(*(shape or (7, 6)), generator=generator, dtype=F64)


def curved(seed=0):
    some = [[-0.5, 1], [-1, 0.5], [0, 0]]  # at zero all of them say nothing
    pieces = torch.tensor(some, dtype=F64).expand(6, 3, 2).clone()
    return default(seed).curved(pieces).redrawn(seed, "a")


NETWORKS: dict[str, Any] = {
    "default": default,
    "curved": curved,
    **{name: lambda seed=0, f=f: lift(f, seed) for name, f in FACTORIES.items()},
}


@pytest.mark.parametrize("shape", [(7, 6), (2, 7, 6), (3, 2, 7, 6)])
def test_a_stack_computes_what_each_network_computes_alone(shape):
    """Of one table for all, of one each, and of many for every network."""
    nets = [default(0), default(1)]
    net, x = stacked(*nets), rows(*shape)
    h = net(x)
    grads = torch.autograd.grad(h.sum(), net.parameters())
    for r, alone in enumerate(nets):
        table = x if x.dim() == 2 else x[..., r, :, :]
        expected = alone(table)
        assert_close(h[..., r, :, :], expected)
        each = torch.autograd.grad(expected.sum(), alone.parameters())
        for grad, expected_grad in zip(grads, each, strict=True):
            assert_close(grad[r], expected_grad)


def narrowed(net):
    """Narrow a network to a part of its inputs and outputs."""
    slots = torch.ones(net.input_weights.shape[1], dtype=torch.bool)
    outputs = torch.ones(net.n_outputs, dtype=torch.bool)
    slots[1] = outputs[2] = False
    return net.narrow(slots, outputs)


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_the_way_back_is_that_of_autograd(make, inputs):
    for net in (make(), narrowed(make())):
        passes, x = net.passes(inputs), rows(7, len(net.column_slots))
        for _ in range(2):  # a second step finds nothing of the first
            x = (x + 1).detach().requires_grad_(inputs)
            h = net(x)
            g = torch.randn(h.shape, dtype=F64)
            wanted = [*net.parameters(), *([x] if inputs else [])]
            assert_close(passes.forward(x.detach()), h.detach())
            grads = passes.back(g)
            expected = torch.autograd.grad(h, wanted, g)
            for ours, theirs in zip(grads, expected, strict=True):
                assert_close(ours, theirs)
                assert not ours.requires_grad


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_way_back_goes_through_every_activation(activation):
    net = MLP.create((6, 5, 5, 4), activation, 3, "party 'a'", F64, CPU)
    passes, x = net.passes(), rows()
    h = net(x)
    g = torch.randn(h.shape, dtype=F64)
    assert_close(passes.forward(x), h.detach())
    expected = torch.autograd.grad(h, net.parameters(), g)
    for ours, theirs in zip(passes.back(g), expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_narrowing_gives_what_zeros_give(make):
    net, x = make(), rows()
    slots = torch.ones(net.input_weights.shape[1], dtype=torch.bool)
    slots[0] = False
    outputs = torch.tensor([True, False, True, False])
    columns = slots[net.column_slots]
    expected = net(x * columns)
    narrow = net.narrow(slots, outputs)
    assert narrow.n_outputs == 2
    assert torch.allclose(narrow(x[:, columns]), expected[:, outputs], rtol=1e-10)


@pytest.mark.parametrize("name", ["mlp", "residual", "conv"])
def test_removed_slots_and_components_leave_the_matrices(name):
    net = lift(FACTORIES[name])
    slots = torch.zeros(net.input_weights.shape[1], dtype=torch.bool)
    slots[1] = True
    narrow = net.narrow(slots, torch.tensor([False, True, False, False]))
    before = sum(p.numel() for p in net.parameters())
    after = sum(p.numel() for p in narrow.parameters())
    assert narrow.input_weights.shape[1] == 1
    assert after < before
    assert narrow.n_outputs == 1


def test_shares_at_zero_change_nothing_and_full_scale_is_that_of_the_values():
    net, x = default(), rows()
    wide = net.curved(torch.ones(6, 3, 2, dtype=F64))
    assert torch.equal(wide(x), net(x))
    assert wide.input_weights.shape == (5, 6, 4)
    fresh = wide.redrawn(0, "a").input_weights
    limit = (6 / (5 + 6 * 4)) ** 0.5
    assert limit < fresh[..., 0].abs().max() <= 2 * limit
    assert fresh[..., 1:].abs().max() <= limit


def test_a_convolution_has_one_slot_a_channel():
    net = lift(convolutional)
    assert net.column_slots.tolist() == [0, 0, 1, 1, 2, 2]
    assert net.input_weights.shape == (5, 3, 2)


REFUSED = {
    "skip": (SkipAroundFirst, "raw input a second time"),
    "no layer": (lambda n, m: nn.Flatten(), "cannot be found"),
    "embedding first": (
        lambda n, m: nn.Sequential(nn.LayerNorm(n), nn.Linear(n, m)),
        "cannot be found.*LayerNorm",
    ),
    "changed input": (
        lambda n, m: nn.Sequential(nn.Tanh(), nn.Linear(n, m)),
        "unchanged",
    ),
    "grouped convolution": (
        lambda n, m: nn.Sequential(
            nn.Unflatten(1, (n, 1)), nn.Conv1d(n, n, 1, groups=n), nn.Flatten()
        ),
        "groups=1",
    ),
    "wrong width": (lambda n, m: nn.Linear(n + 1, m), r"batch of shape \(n, 6\)"),
    "wrong output": (lambda n, m: nn.Linear(n, m + 1), "4 components"),
    "three axes": (
        lambda n, m: nn.Sequential(nn.Linear(n, m), nn.Unflatten(1, (2, m // 2))),
        r"shape \(n, components\)",
    ),
    "no module": (lambda n, m: "net", "torch.nn.Module"),
}


@pytest.mark.parametrize(("factory", "words"), REFUSED.values(), ids=REFUSED)
def test_a_module_that_cannot_serve_is_refused_in_one_sentence(factory, words):
    with pytest.raises(NetworkError, match=words) as caught:
        lift(factory)
    assert "\n" not in str(caught.value)
    assert "party 'a'" in str(caught.value)


def test_a_module_given_as_it_is_starts_as_it_is():
    module = sequential(6, 4)
    weight = module[0].weight.detach().double()
    assert torch.equal(lift(module).input_weights, weight)
    assert torch.equal(lift(module, seed=1).input_weights, weight)


def test_a_factory_draws_by_the_seed_and_leaves_the_global_stream_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    net = lift(sequential, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(lift(sequential, seed=1).input_weights, net.input_weights)
    assert not torch.equal(lift(sequential, seed=0).input_weights, net.input_weights)


def test_dropout_acts_in_training_only():
    def factory(n_in, n_out):
        return nn.Sequential(nn.Linear(n_in, 50), nn.Dropout(0.5), nn.Linear(50, n_out))

    net = lift(factory)
    net.train(True)
    assert not torch.equal(net(rows()), net(rows()))
    net.train(False)
    assert torch.equal(net(rows()), net(rows()))


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_state_goes_out_and_in(make):
    net, other = make(0), make(1)
    other.load_state(net.state())
    assert torch.equal(net(rows()), other(rows()))
    assert torch.equal(pickle.loads(pickle.dumps(net))(rows()), net(rows()))
    assert torch.equal(copy.deepcopy(net)(rows()), net(rows()))
    single = net.astype(torch.float32)
    assert single(rows().float()).dtype == torch.float32


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_a_module_alone_gives_what_its_network_gives(factory):
    cut = narrowed(lift(factory))
    x = rows(7, len(cut.column_slots))
    assert_close(cut.module()(x), cut(x))


def test_glorot_weights_and_zero_biases():
    net = MLP.create((30, 64, 16), "tanh", 0, "a", F64, CPU)
    limit = (6 / 94) ** 0.5
    w = net.weights[0]
    assert w.abs().max() <= limit
    assert w.abs().max() > 0.95 * limit
    assert w.mean().abs() < 0.01
    assert not any(b.any() for b in net.biases)


def test_widths_of_the_default_network():
    assert NetConfig().party_widths(7) == (7, 64, 64, 16)
    assert NetConfig(depth=1).party_widths(7) == (7, 16)
    assert NetConfig(hidden=(32, 8), embedding_size=3).party_widths(7) == (7, 32, 8, 3)
    assert NetConfig().fusion_widths(48, 1) == (48, 1)
    deeper = NetConfig(fusion_depth=2, fusion_hidden=5)
    assert deeper.fusion_widths(48, 6) == (48, 5, 6)


def test_a_factory_is_found_in_a_file_and_in_a_module(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text("def make(n, m):\n    return (n, m)\nnumber = 3\n")
    assert str(find_factory(f"{path}:make")(1, 2)) == "(1, 2)"
    assert find_factory("torch.nn:Linear") is nn.Linear
    for wrong in (
        "make",
        f"{path}:other",
        f"{path}:number",
        f"{tmp_path}/none.py:make",
        "no.such.module:make",
    ):
        with pytest.raises(ConfigError, match=r"FILE\.py:FUNCTION"):
            find_factory(wrong)


def test_whatever_the_users_code_raises_becomes_one_sentence(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        find_factory(f"{path}:make")
    with pytest.raises(NetworkError, match=r"party 'a' must take .*TypeError"):
        lift(lambda n: nn.Linear(n, 4))


def buffered(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, n_out)
    )


@pytest.mark.parametrize("factory", [None, sequential, Residual, buffered])
def test_a_widened_network_does_what_the_cut_one_did(factory):
    """Slots that were cut away come back at zero."""
    if factory is None:
        whole = MLP.create((5, 6, 3), "tanh", 0, "a", F64, CPU)
    else:
        whole = lift(factory, 0, 5, 3)
    slots = torch.tensor([1, 0, 1, 0, 0], dtype=torch.bool)
    cut = whole.narrow(slots=slots)
    X = torch.randn(7, 5, dtype=F64)
    with torch.no_grad():
        for param in cut.parameters():
            param.add_(0.1)  # trained on
        cut.train(True)
        cut(X[:, slots])
        cut.train(False)
        wide = widen(cut, whole, slots)
        wide.train(False)
        assert torch.allclose(wide(X), cut(X[:, slots]))
    assert not wide.input_weights[:, ~slots].any()
