import copy
import pickle
from typing import Any

import pytest
import torch
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


def lift(factory, seeds=(0, 1), n_in=6, n_out=4):
    return Lifted.create(factory, n_in, n_out, seeds, "party 'a'", F64, CPU)


def default(seeds=(0, 1), widths=(6, 5, 4)):
    return MLP.create(widths, "tanh", seeds, "party 'a'", F64, CPU)


def rows(n=7, S=1, d=6):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(S, n, d, generator=generator, dtype=F64)


def curved(seeds=(0, 1)):
    net = default(seeds)
    own = [[-0.5, 1], [-1, 0.5], [0, 0]]  # at zero all of them say nothing
    pieces = torch.tensor(own, dtype=F64).expand(len(seeds), 6, 3, 2).clone()
    return net.curved(pieces).redrawn(seeds, "a")


NETWORKS: dict[str, Any] = {
    "default": default,
    "curved": curved,
    **{name: lambda seeds=(0, 1), f=f: lift(f, seeds) for name, f in FACTORIES.items()},
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("S", [1, 2])
def test_a_batch_of_replicas_computes_what_each_computes_alone(make, S):
    net, x = make(), rows(S=S)
    h = net(x)
    grads = torch.autograd.grad(h.square().sum(), net.parameters())
    for r in range(2):
        alone = make((r,))
        own = alone(x[min(r, S - 1)][None])
        assert torch.allclose(h[r], own[0], rtol=1e-10)
        own_grads = torch.autograd.grad(own.square().sum(), alone.parameters())
        for grad, own_grad in zip(grads, own_grads, strict=True):
            assert torch.allclose(grad[r], own_grad[0], rtol=1e-9, atol=1e-12)


def masked(net):
    """Narrow a network of two replicas so that each has inputs and outputs alone."""
    slots = torch.ones(2, net.input_weights.shape[2], dtype=torch.bool)
    outputs = torch.ones(2, net.n_outputs, dtype=torch.bool)
    slots[0, 1] = outputs[1, 2] = False
    return net.narrow(slots, outputs)


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("S", [1, 2])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_the_way_back_is_that_of_autograd(make, S, inputs):
    nets = [make((0,))] if S == 1 else [make(), masked(make())]
    if not inputs:
        nets.append(make())  # with S = 1 one table for two replicas
    for net in nets:
        passes, x = net.passes(inputs), rows(S=S)
        for _ in range(2):  # a second step finds nothing of the first
            x = (x + 1).detach().requires_grad_(inputs)
            h = net(x)
            g = torch.randn(h.shape, dtype=F64)
            wanted = [*net.parameters(), *([x] if inputs else [])]
            assert_close(passes.forward(x.detach()), h.detach())
            found = passes.back(g)
            expected = torch.autograd.grad(h, wanted, g)
            for own, theirs in zip(found, expected, strict=True):
                assert_close(own, theirs)
                assert not own.requires_grad


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_way_back_goes_through_every_activation(activation):
    net = MLP.create((6, 5, 5, 4), activation, (3,), "party 'a'", F64, CPU)
    passes, x = net.passes(), rows()
    h = net(x)
    g = torch.randn(h.shape, dtype=F64)
    assert_close(passes.forward(x), h.detach())
    expected = torch.autograd.grad(h, net.parameters(), g)
    for own, theirs in zip(passes.back(g), expected, strict=True):
        assert_close(own, theirs)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_narrowing_gives_what_zeros_give(make):
    """Replicas with different sets: cut what none keeps, mask the rest."""
    net, x = make(), rows()
    n_slots = net.input_weights.shape[2]
    slots = torch.ones(2, n_slots, dtype=torch.bool)
    slots[:, 0] = False
    slots[1, 1] = False
    outputs = torch.tensor([[True, False, True, False], [True, False, False, False]])
    columns = slots[:, net.column_slots]  # (R, columns)
    expected = net(x * columns.unsqueeze(1))
    narrow = net.narrow(slots, outputs)
    used = columns.any(dim=0)
    found = narrow(x[:, :, used])
    assert found.shape[2] == 2
    masked = expected[:, :, [0, 2]] * outputs[:, [0, 2]].unsqueeze(1)
    assert torch.allclose(found, masked, rtol=1e-10)
    assert torch.equal(narrow.output_mask, outputs[:, [0, 2]])
    for r in range(2):
        alone = narrow.replica(r)
        own = alone(x[:, :, columns[r]])
        assert torch.allclose(own[0], expected[r][:, outputs[r]], rtol=1e-10)
        assert alone.n_outputs == int(outputs[r].sum())


@pytest.mark.parametrize("name", ["mlp", "residual", "conv"])
def test_removed_slots_and_components_leave_the_matrices(name):
    net = lift(FACTORIES[name], (0,))
    n_slots = net.input_weights.shape[2]
    slots = torch.zeros(1, n_slots, dtype=torch.bool)
    slots[0, 1] = True
    narrow = net.narrow(slots, torch.tensor([[False, True, False, False]]))
    before = sum(p.numel() for p in net.parameters())
    after = sum(p.numel() for p in narrow.parameters())
    assert narrow.input_weights.shape[2] == 1
    assert after < before
    assert narrow.n_outputs == 1


def test_gradients_do_not_reach_what_a_replica_removed():
    net = default()
    slots = torch.ones(2, 6, dtype=torch.bool)
    slots[1, 2] = False
    narrow = net.narrow(slots)
    (grad,) = torch.autograd.grad(narrow(rows()).sum(), [narrow.input_weights])
    assert not grad[1, :, 2].any()
    assert grad[0, :, 2].any()


def test_shares_at_zero_change_nothing_and_full_scale_is_that_of_the_values():
    net, x = default(), rows()
    wide = net.curved(torch.ones(2, 6, 3, 2, dtype=F64))
    assert torch.equal(wide(x), net(x))
    assert wide.input_weights.shape == (2, 5, 6, 4)
    fresh = wide.redrawn((0, 1), "a").input_weights
    limit = (6 / (5 + 6 * 4)) ** 0.5
    assert limit < fresh[..., 0].abs().max() <= 2 * limit
    assert fresh[..., 1:].abs().max() <= limit


def test_a_convolution_has_one_slot_a_channel():
    net = lift(convolutional)
    assert net.column_slots.tolist() == [0, 0, 1, 1, 2, 2]
    assert net.input_weights.shape == (2, 5, 3, 2)


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


def test_vmap_serves_where_it_can_and_a_loop_where_it_cannot():
    assert lift(sequential)._mappable
    assert lift(convolutional)._mappable
    assert not lift(Unmappable)._mappable


def test_a_module_given_as_it_is_starts_as_it_is():
    module = sequential(6, 4)
    net = lift(module)
    assert torch.equal(net.input_weights[0], module[0].weight.double())
    assert torch.equal(net.input_weights[0], net.input_weights[1])


def test_a_factory_draws_by_the_seed_and_leaves_the_global_stream_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    net = lift(sequential, (0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert not torch.equal(net.input_weights[0], net.input_weights[1])
    assert torch.equal(lift(sequential, (1,)).input_weights[0], net.input_weights[1])


def test_dropout_acts_in_training_only():
    def factory(n_in, n_out):
        return nn.Sequential(nn.Linear(n_in, 50), nn.Dropout(0.5), nn.Linear(50, n_out))

    net = lift(factory, (0,))
    net.train(True)
    assert not torch.equal(net(rows()), net(rows()))
    net.train(False)
    assert torch.equal(net(rows()), net(rows()))


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_state_goes_out_and_in(make):
    net, other = make((0,)), make((1,))
    other.load_state(net.state())
    assert torch.equal(net(rows()), other(rows()))
    assert torch.equal(pickle.loads(pickle.dumps(net))(rows()), net(rows()))
    assert torch.equal(copy.deepcopy(net)(rows()), net(rows()))
    single = net.astype(torch.float32)
    assert single(rows().float()).dtype == torch.float32


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_a_module_alone_gives_what_its_network_gives(factory):
    net = lift(factory, (0,))
    slots = torch.ones(1, net.input_weights.shape[2], dtype=torch.bool)
    slots[0, 1] = False
    cut = net.narrow(slots, torch.tensor([[True, False, True, False]]))
    x = rows(d=len(cut.column_slots))
    assert_close(cut.module()(x[0]), cut(x)[0])


def test_glorot_weights_and_zero_biases():
    net = MLP.create((30, 64, 16), "tanh", (0,), "a", F64, CPU)
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
    """Slots that were cut away come back at zero, in every replica its own."""
    if factory is None:
        whole = MLP.create((5, 6, 3), "tanh", (0, 1), "a", F64, CPU)
    else:
        whole = lift(factory, (0, 1), 5, 3)
    slots = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 1, 1, 0]], dtype=torch.bool)
    cut = whole.narrow(slots=slots)
    used = slots.any(dim=0)
    X = torch.randn(1, 7, 5, dtype=F64)
    with torch.no_grad():
        for param in cut.parameters():
            param.add_(0.1)  # trained on
        cut.train(True)
        cut(X[:, :, used])
        cut.train(False)
        wide = widen(cut, whole, slots)
        wide.train(False)
        assert torch.allclose(wide(X), cut(X[:, :, used]))
    gone = ~slots.unsqueeze(1).expand_as(wide.input_weights)
    assert not wide.input_weights[gone].any()
