from collections.abc import Mapping

import pytest
import torch

from lessvfl.core.network import MLP
from lessvfl.core.plans import TrainPlan
from lessvfl.errors import ProtocolError
from lessvfl.party import Party
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.messages import (
    Begin,
    Block,
    Descend,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Traffic,
)
from lessvfl.wire.parties import Parties

CPU = torch.device("cpu")
PLAN = TrainPlan("train", 1, 4, False, "sgd", 0.1)


def make_party(name="a", n=10, R=1, size=3):
    seeds = tuple(range(R))
    net = MLP.create((5, 4, size), "tanh", seeds, name, torch.float32, CPU)
    X = torch.randn(1, n, 5, generator=torch.Generator().manual_seed(0))
    return Party(name, net, (X, X[:, :2]), torch.arange(5), seeds)


class Scripted:
    """A transport that replies as it was told, whatever is asked."""

    def __init__(self, *rounds):
        self.traffic: Mapping[str, Traffic] = {}
        self.rounds = list(rounds)

    def exchange(self, requests):
        return self.rounds.pop(0)

    def close(self):
        pass


def hello(name="a", n=10, version=1):
    return Description(name, n, 3, version)


def test_a_stage_of_t_steps_takes_t_plus_one_rounds():
    party = make_party()
    reply = party.handle(Begin(PLAN))
    sizes = []
    while isinstance(reply, Embedding):
        assert reply.ahead
        sizes.append(reply.block.values.shape[1])
        gradient = torch.zeros_like(reply.block.values)
        reply = party.handle(Descend("train", Block(gradient, (3,))))
    assert sizes == [4, 4, 2]
    assert isinstance(reply, Done)
    assert reply.silent == (False,)


def test_a_party_says_no_more_than_the_table_lists():
    party = make_party()
    description = party.handle(Describe())
    assert description == Description("a", 10, 3)
    everything = party.handle(Embed("embed", "train"))
    assert isinstance(everything, Embedding)
    assert everything.block.values.shape == (1, 10, 3)
    assert not everything.block.values.requires_grad
    assert not everything.ahead


def test_a_gradient_outside_of_training_is_refused():
    block = Block(torch.zeros(1, 4, 3), (3,))
    with pytest.raises(ProtocolError, match="Party 'a' must be asked"):
        make_party().handle(Descend("train", block))


def test_gradients_of_the_party_are_those_of_its_network():
    party = make_party()
    before = [p.detach().clone() for p in party.net.parameters()]
    reply = party.handle(Begin(PLAN))
    assert isinstance(reply, Embedding)
    x = party.X_train[:, :4]
    h = party.net(x)
    grads = torch.autograd.grad(h, party.net.parameters(), torch.ones_like(h))
    party.handle(Descend("train", Block(torch.ones_like(h), (3,))))
    for param, start, grad in zip(party.net.parameters(), before, grads, strict=True):
        assert torch.allclose(param, start - 0.1 * grad, atol=1e-6)


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"a": hello(version=2), "b": hello("b")}, "'a' must speak .*Got 2"),
        ({"a": hello(), "b": hello("b", n=11)}, "'b' must hold 10 .*Got 11"),
        ({"a": Done("train", (False,)), "b": hello("b")}, "'a' must speak.*Got Done"),
    ],
)
def test_a_handshake_that_does_not_fit_names_the_party(replies, words):
    with pytest.raises(ProtocolError, match=words):
        Parties(Scripted(replies), ["a", "b"], Ledger(1))


def test_a_reply_of_the_wrong_kind_names_the_party():
    greeting = {"a": hello(), "b": hello("b")}
    block = Block(torch.zeros(1, 4, 3), (3,))
    embedding, done = Embedding("train", block), Done("train", (False,))
    parties = Parties(Scripted(greeting, {"a": done, "b": done}), ["a", "b"], Ledger(1))
    with pytest.raises(ProtocolError, match="'a' must reply with an embedding"):
        parties.begin(PLAN)
    mixed = {"a": embedding, "b": done}
    parties = Parties(Scripted(greeting, mixed), ["a", "b"], Ledger(1))
    gradients = [block.values, block.values]
    with pytest.raises(ProtocolError, match="'a' must end the stage"):
        parties.descend(PLAN, 1, (0,), gradients)


def test_payload_counts_only_what_a_run_alone_would_send():
    """Two replicas, one with all 3 components and one with 1."""
    party = make_party(R=2)
    ledger = Ledger(2)
    parties = Parties(InProcess({"a": party.handle}), ["a"], ledger)
    kept = torch.tensor([[True, True, True], [False, True, False]])
    from lessvfl.core.plans import SelectPlan

    plan = SelectPlan("select_features", 1, 10, False, 0.01, (0.0,))
    parties.select_features(kept, plan)
    assert parties.component_counts() == {"a": (3, 1)}
    blocks = parties.embed("embed", "train")
    assert blocks[0].shape == (2, 10, 3)
    assert not blocks[0][1, :, [0, 2]].any()
    assert ledger.by_stage(0) == {
        "select_features": {"up": 0, "down": 12, "rounds": 1},
        "embed": {"up": 10 * 3 * 4, "down": 0, "rounds": 1},
    }
    assert ledger.by_stage(1)["select_features"]["down"] == 4
    assert ledger.by_stage(1)["embed"]["up"] == 10 * 1 * 4


def test_a_transport_is_closed():
    InProcess({}).close()
    assert Block(torch.zeros(2, 3), (3, 1)).n_values() == (3, 1)
