"""Typed calls: handshakes, replies of the wrong kind, and who pays for what."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Mapping

import pytest
import torch

from lessvfl.core.network import MLP
from lessvfl.core.party_data import PartyData
from lessvfl.core.plans import SelectPlan, ShadowPlan, TrainPlan
from lessvfl.core.state import join_state, split_state
from lessvfl.errors import ProtocolError
from lessvfl.party import Party
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import BillLine, Ledger
from lessvfl.wire.messages import (
    Begin,
    Block,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Request,
    Select,
)
from lessvfl.wire.parties import Parties, PartiesState, bill_line, concatenate

CPU = torch.device("cpu")
PLAN = TrainPlan("train", 1, 4, "file", "sgd", 0.1)
SELECT = SelectPlan("select_features", 1, 10, "file", 0.01, 0.0)
EVERYTHING_GOES = dataclasses.replace(SELECT, lam=1e6)


def make_party(name="a", n=10, size=3, scale=1.0):
    net = MLP.create((5, 4, size), "tanh", 0, name, torch.float32, CPU, scale)
    X = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    return Party(name, net, PartyData(X, X[:2], torch.arange(5)), 0)


def both_parties(ledger, scale=1.0, watch=lambda line: None):
    """Return two parties; `scale` is that of the first layer of a."""
    made = (make_party("a", scale=scale), make_party("b"))
    handlers = {party.name: party.handle for party in made}
    return Parties(InProcess(handlers), ["a", "b"], ledger, watch)


def train(parties):
    """Run PLAN, an epoch of three steps, with gradients of ones."""
    h = parties.begin(PLAN)
    for step in (1, 2, 3):
        h = parties.descend(PLAN, step, 0, torch.ones_like(torch.cat(h, 1)))
    assert h == []


class Scripted:
    """A transport that replies as it was told, whatever is asked."""

    def __init__(self, *rounds):
        self.rounds = list(rounds)

        self.asked: list[Mapping[str, Request]] = []

    def exchange(self, requests):
        self.asked.append(requests)
        return self.rounds.pop(0)

    def close(self):
        pass


def hello(name="a", n=10, version=1):
    return Description(name, n, 3, version)


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"a": hello(version=2), "b": hello("b")}, "'a' must speak .*Got 2"),
        ({"a": hello(), "b": hello("b", n=11)}, "'b' must hold 10 .*Got 11"),
        ({"a": Done("train"), "b": hello("b")}, "'a' must speak.*Got Done"),
    ],
)
def test_a_handshake_that_does_not_fit_names_the_party(replies, words):
    with pytest.raises(ProtocolError, match=words):
        Parties(Scripted(replies), ["a", "b"], Ledger())


def test_a_reply_of_the_wrong_kind_names_the_party():
    greeting = {"a": hello(), "b": hello("b")}
    block = Block(torch.zeros(4, 3))
    embedding, done = Embedding("train", block), Done("train")
    parties = Parties(Scripted(greeting, {"a": done, "b": done}), ["a", "b"], Ledger())
    with pytest.raises(ProtocolError, match="'a' must reply with an embedding"):
        parties.begin(PLAN)
    mixed = {"a": embedding, "b": done}
    parties = Parties(Scripted(greeting, mixed), ["a", "b"], Ledger())
    with pytest.raises(ProtocolError, match="'a' must end the stage"):
        parties.descend(PLAN, 1, 0, torch.zeros(4, 6))
    parties = Parties(Scripted(greeting, mixed), ["a", "b"], Ledger())
    nothing = {"a": (), "b": ()}
    with pytest.raises(ProtocolError, match="'a' must answer a query"):
        parties.query("select_features", 0, nothing, nothing)


# ---------------------------------------------------------------------------- the bill


@pytest.mark.parametrize("kept", [(0, 1, 2), (1,)])
def test_payload_is_of_the_components_that_are_left(kept):
    party = make_party()
    ledger = Ledger()
    parties = Parties(InProcess({"a": party.handle}), ["a"], ledger)
    mask = torch.zeros(3, dtype=torch.bool)
    mask[list(kept)] = True
    parties.select_features(mask, SELECT)
    assert parties.sizes == {"a": len(kept)}
    (block,) = parties.embed("embed", "train")
    assert block.shape == (10, len(kept))
    assert ledger.by_stage() == {
        "select_features": {"up": 0, "down": 4 * len(kept), "rounds": 1},
        "embed": {"up": 10 * len(kept) * 4, "down": 0, "rounds": 1},
    }


@pytest.mark.parametrize("shape", [(3,), (7, 3), (7, 0)])
def test_a_block_costs_its_values(shape):
    line = bill_line("a", Embedding("train", Block(torch.zeros(shape))))
    n_values = math.prod(shape)
    assert line == BillLine("a", "up", "train", "embedding", 4 * n_values, n_values)


def test_messages_without_a_payload_cost_nothing():
    free = [
        Describe(),
        hello(),
        Begin(PLAN),
        Embed("embed", "train"),
        Select(None, SELECT),
        Done("train"),
    ]
    assert [bill_line("a", message) for message in free] == [None] * 6


def test_the_watch_sees_every_message_and_its_sum_is_the_bill():
    """Embeddings, gradients, the components of Select, and constants."""
    told: list[BillLine] = []
    ledger = Ledger()
    parties = both_parties(ledger, watch=told.append)
    assert told == []  # who is who costs nothing
    train(parties)
    kept = torch.tensor([True, True, False, False, True, False])
    parties.select_features(kept, EVERYTHING_GOES)
    up, down = (("up", "embedding"), ("down", "gradient"))
    each = [up, down, up, down, up, down, ("down", "components"), ("up", "constant")]
    expected = [(name, *message) for message in each for name in "ab"]
    assert [(line.party, line.direction, line.kind) for line in told] == expected
    assert sum(ledger.messages.values()) == len(told)
    for way in ("up", "down"):
        paid = sum(line.payload_bytes for line in told if line.direction == way)
        assert paid == ledger.direction_bytes(way)
    whole = sum(line.payload_bytes for line in told)
    assert whole == sum(int(line["payload_bytes"]) for line in ledger.lines())
    sent = [line for line in told if line.kind == "components"]
    assert [line.payload_bytes for line in sent] == [2 * 4, 1 * 4]


def test_a_silent_party_is_asked_nothing_and_its_constant_stands_for_every_row():
    told: list[BillLine] = []
    parties = both_parties(Ledger(), scale=1e-6, watch=told.append)
    parties.select_features(None, dataclasses.replace(SELECT, lam=1.0))
    assert list(parties.constants) == ["a"]
    told.clear()
    h = parties.embed("embed", "train")
    assert [line.party for line in told] == ["b"]
    assert [block.shape for block in h] == [(10, 3), (10, 3)]
    assert torch.equal(h[0], parties.constants["a"].expand(10, 3))
    assert len(h[1].unique(dim=0)) == 10


def test_only_parties_that_take_part_look_again():
    greeting = {"a": hello(), "b": hello("b")}
    constant = Block(torch.zeros(3))
    first = {
        "a": Done("select_features", True, constant),
        "b": Done("select_features"),
    }
    second = {"b": Done("select_again", True, constant)}
    transport = Scripted(greeting, first, second)
    ledger = Ledger()
    parties = Parties(transport, ["a", "b"], ledger)
    parties.select_features(None, SELECT)
    plan = ShadowPlan("select_again", 0.1)
    parties.select_features(None, plan)
    assert transport.asked[-1] == {"b": Select(None, plan)}
    assert parties.constants.keys() == {"a", "b"}
    assert ledger.by_stage()["select_again"] == {"up": 12, "down": 0, "rounds": 1}


def test_no_round_is_billed_where_all_parties_are_silent():
    ledger = Ledger()
    parties = both_parties(ledger)
    parties.select_features(None, EVERYTHING_GOES)
    before = copy.deepcopy(ledger)
    h = parties.embed("embed", "train")
    assert [block.shape for block in h] == [(1, 3), (1, 3)]
    assert ledger == before


def test_blocks_sent_again_after_a_break_are_on_the_bill_already():
    told: list[BillLine] = []
    ledger = Ledger()
    parties = both_parties(ledger)
    h = parties.begin(PLAN)
    h = parties.descend(PLAN, 1, 0, torch.ones_like(torch.cat(h, 1)))
    again = both_parties(copy.deepcopy(ledger), watch=told.append)
    for name, handler in again.transport.handlers.items():
        old = parties.transport.handlers[name].__self__
        handler.__self__.resume(copy.deepcopy(old.state))
    for mine, theirs in zip(again.begin(PLAN, done=1), h, strict=True):
        assert torch.equal(mine, theirs)
    assert told == []
    assert again.ledger == ledger


def test_a_pass_is_charged_at_the_widths_of_now():
    ledger = Ledger()
    parties = both_parties(ledger)
    kept = torch.tensor([True, True, False, False, True, False])
    parties.select_features(kept, SELECT)
    parties.charge_pass()
    assert ledger.paper_mib == 10 * 3 * 4 / 2**20
    assert ledger.payload_bytes == 3 * 4  # the components alone


def test_the_state_goes_through_json_and_back():
    parties = both_parties(Ledger(), scale=1e-6)
    kept = torch.tensor([True, True, False, False, True, False])
    parties.select_features(kept, dataclasses.replace(SELECT, lam=1.0))
    parties.embed("embed", "train")
    tensors, values = split_state(parties.state)
    other = both_parties(Ledger())
    written = json.loads(json.dumps(values))
    other.resume(join_state(PartiesState, tensors, written))
    assert split_state(other.state)[1] == values
    assert other.ledger == parties.ledger
    assert other.sizes == {"a": 2, "b": 1}
    other.transport = parties.transport
    for mine, theirs in zip(
        other.embed("embed", "train"), parties.embed("embed", "train"), strict=True
    ):
        assert torch.equal(mine, theirs)
    assert other.ledger == parties.ledger


def test_a_state_is_not_taken_up_by_parties_of_other_sizes():
    parties = both_parties(Ledger())
    parties.select_features(torch.tensor([True] * 3 + [False] * 3), SELECT)
    made = (make_party("a", size=2), make_party("b"))
    other = InProcess({party.name: party.handle for party in made})
    again = Parties(other, ["a", "b"], Ledger())
    with pytest.raises(ProtocolError, match=r"'a' must have 3 components, .*Got 2\."):
        again.resume(parties.state)


def test_blocks_are_joined_in_the_order_of_the_parties():
    one, other = torch.ones(4, 2), torch.zeros(4, 1)
    assert concatenate([one]) is one
    assert concatenate([one, other])[0].tolist() == [1, 1, 0]


# ------------------------------------------------------------------------- transports


def test_closing_in_this_process_ends_no_party():
    party = make_party()
    transport = InProcess({"a": party.handle})
    transport.close()
    assert transport.exchange({"a": Describe()}) == {"a": hello()}
