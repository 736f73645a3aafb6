"""One party: what it answers to each request, what it refuses, what it remembers."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lessvfl.core import ending, plans, solve
from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.network import MLP
from lessvfl.core.party_data import PartyData
from lessvfl.core.plans import SelectPlan, ShadowPlan, TrainPlan, sample_rows, take
from lessvfl.core.prox import GroupLasso
from lessvfl.core.state import join_state, split_state
from lessvfl.errors import ProtocolError
from lessvfl.party import Party, PartyState
from lessvfl.privacy.noise import ClippedNoise
from lessvfl.select import evidence, shadows
from lessvfl.wire.messages import (
    Begin,
    Block,
    Descend,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Reply,
    Request,
    Select,
)

CPU = torch.device("cpu")
F64 = torch.float64
D, E = 5, 3
PLAN = TrainPlan("train", 1, 8, "file", "sgd", 0.1)  # steps of 8, 8 and 4 rows
SELECT = SelectPlan("select_features", 30, 10, "shuffle", 0.02, 1.5)
EVERYTHING_GOES = dataclasses.replace(SELECT, n_epochs=1, lam=1e6)
BOTH: tuple[Literal["train"], Literal["test"]] = ("train", "test")
LASSO = dataclasses.replace(PLAN, stage="joint_lasso", n_epochs=2, lam=0.6)


def rows(n: int = 20, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, D, generator=generator, dtype=F64)


def a_party(
    n: int = 20,
    groups: tuple[int, ...] = (0, 1, 2, 3, 4),
    must_keep: tuple[bool, ...] = (),
    input_scale: float = 1.0,
    **more: Any,
) -> Party:
    """Return a party of five columns."""
    net = MLP.create((D, 4, E), "tanh", 0, "a", F64, CPU)
    net.input_weights.data.mul_(input_scale)
    own = PartyData(rows(n), rows(6, seed=1), torch.tensor(groups), must_keep)
    return Party("a", net, own, 0, **more)


def embedding(party: Party, request: Request) -> Embedding:
    reply = party.handle(request)
    assert isinstance(reply, Embedding)
    return reply


def done(party: Party, request: Request) -> Done:
    reply = party.handle(request)
    assert isinstance(reply, Done)
    return reply


def ones(party: Party, reply: Embedding) -> Descend:
    """Return the gradient of the sum of all components."""
    return Descend(reply.stage, Block(torch.ones_like(reply.block.values)))


def train(party: Party, plan: TrainPlan) -> Done:
    """Have a party go through a whole stage."""
    reply = party.handle(Begin(plan))
    while isinstance(reply, Embedding):
        reply = party.handle(ones(party, reply))
    assert isinstance(reply, Done)
    return reply


def weights(party: Party) -> list[Tensor]:
    return [p.detach().clone() for p in party.net.parameters()]


# -------------------------------------------------------------------- what it answers


def test_it_describes_itself_by_name_rows_and_width():
    assert a_party().handle(Describe()) == Description("a", 20, E)


def test_the_first_batch_is_embedded_ahead_of_its_gradient():
    party = a_party()
    reply = embedding(party, Begin(PLAN))
    assert (reply.stage, reply.ahead) == ("train", True)
    assert reply.block.values.shape == (8, E)
    assert_close(reply.block.values, party.net(rows()[:8]).detach())
    assert not reply.block.values.requires_grad


def test_a_stage_of_t_steps_takes_t_plus_one_rounds():
    party = a_party()
    reply = party.handle(Begin(PLAN))
    sizes = []
    while isinstance(reply, Embedding):
        assert reply.ahead
        sizes.append(len(reply.block.values))
        reply = party.handle(ones(party, reply))
    assert sizes == [8, 8, 4]
    assert reply == Done("train")


def test_gradients_of_the_party_are_those_of_its_network():
    party = a_party()
    before = weights(party)
    reply = embedding(party, Begin(PLAN))
    h = party.net(rows()[:8])
    grads = torch.autograd.grad(h, party.net.parameters(), torch.ones_like(h))
    party.handle(ones(party, reply))
    for param, start, grad in zip(party.net.parameters(), before, grads, strict=True):
        assert torch.allclose(param, start - 0.1 * grad, rtol=1e-12)


def test_with_a_lambda_the_proximal_step_follows_and_ends_in_a_removal():
    party = a_party()
    before = weights(party)
    reply = embedding(party, Begin(LASSO))
    h = party.net(rows()[:8])
    grads = torch.autograd.grad(h, party.net.parameters(), torch.ones_like(h))
    party.handle(ones(party, reply))
    penalty = GroupLasso(torch.tensor(0.6, dtype=F64))
    expected = penalty.prox(before[0] - 0.1 * grads[0], 0.1)
    assert torch.allclose(party.net.input_weights, expected, rtol=1e-12)
    assert party.kept.all()  # until the stage ends
    strong = dataclasses.replace(LASSO, lam=2.0)
    party = a_party()
    reply = embedding(party, Begin(strong))
    last: Reply = reply
    while isinstance(last, Embedding):
        now = party.features_now()
        last = party.handle(ones(party, last))
    assert torch.equal(party.features_now(), party.kept)
    assert 0 < now.sum() <= D
    assert 0 < party.kept.sum() < D
    assert party.net.input_weights.shape[1] == int(party.kept.sum())
    assert party.model.X_train.shape[1] == int(party.kept.sum())


def test_all_rows_or_a_sample_of_them_are_embedded():
    party = a_party()
    whole = embedding(party, Embed("embed", "train"))
    assert not whole.ahead
    assert_close(whole.block.values, party.net(rows()).detach())
    test = embedding(party, Embed("evaluate", "test"))
    assert_close(test.block.values, party.net(rows(6, seed=1)).detach())
    some = embedding(party, Embed("embed", "train", n_rows=7))
    drawn = sample_rows(20, 7, 0)
    expected = take(party.net(rows()), drawn)
    assert torch.allclose(some.block.values, expected, rtol=1e-12)
    few = embedding(party, Embed("embed", "train", bits=8))
    assert few.block.bits == 8
    step = whole.block.values.max() - whole.block.values.min()
    gap = (few.block.values - whole.block.values).abs().max()
    assert 0 < gap <= 1.01 * step / 255


def test_an_embedding_between_two_steps_changes_nothing():
    calm, asked = a_party(), a_party()
    replies = []
    for party in (calm, asked):
        reply = embedding(party, Begin(PLAN))
        if party is asked:
            party.handle(Embed("evaluate", "test"))
        replies.append(embedding(party, ones(party, reply)).block.values)
    assert torch.equal(*replies)


@pytest.mark.parametrize("kept", [(0, 2), (2,)])
def test_components_that_do_not_matter_are_sent_no_more(kept):
    party = a_party()
    before = embedding(party, Embed("embed", "train")).block.values
    free = dataclasses.replace(SELECT, lam=0.0)
    assert party.handle(Select(kept, free)) == Done("select_features")
    after = embedding(party, Embed("embed", "train")).block.values
    assert after.shape == (20, len(kept))
    assert torch.allclose(after, before[:, list(kept)], rtol=1e-12)


def test_components_are_numbered_as_they_are_left():
    party = a_party()
    free = dataclasses.replace(SELECT, lam=0.0)
    before = embedding(party, Embed("embed", "train")).block.values
    wide = before.shape[1]
    party.handle(Select(tuple(range(1, wide)), free))
    party.handle(Select((wide - 2,), free))
    after = embedding(party, Embed("embed", "train")).block.values
    assert torch.allclose(after, before[:, -1:], rtol=1e-12)
    assert party.outcome().outputs == (False,) * (wide - 1) + (True,)


def test_selected_features_alone_enter_the_network():
    party = a_party()
    assert not done(party, Select(None, SELECT)).silent
    kept = party.kept
    assert 0 < kept.sum() < D
    value = embedding(party, Embed("embed", "train")).block.values
    assert_close(value, party.net(rows()[:, kept]).detach())
    outcome = party.outcome()
    assert outcome.kept == tuple(kept.tolist())
    norms = party.net.input_weights.norm(dim=0)
    assert torch.tensor(outcome.importance)[kept] == pytest.approx(norms.tolist())
    assert not torch.tensor(outcome.importance)[~kept].any()
    assert (outcome.constant, outcome.frozen, outcome.selection) == (None, False, None)


# ---------------------------------------------------------- a party that kept nothing


@pytest.mark.parametrize("components", [(0, 1), (2,)])
def test_a_party_that_kept_nothing_says_so_and_leaves_a_constant(components):
    party = a_party()
    with torch.no_grad():
        for number, param in enumerate(party.net.parameters()):
            param.add_(0.1 * (number + 1))  # biases start at zero
    reply = done(party, Select(components, EVERYTHING_GOES))
    assert reply.silent
    assert reply.constant is not None
    expected = party.net(torch.zeros(1, 0, dtype=F64))[0]
    assert expected.shape == (len(components),)
    assert_close(reply.constant.values, expected.detach())
    assert expected.any()
    outcome = party.outcome()
    assert outcome.kept == (False,) * D
    assert outcome.importance == (0.0,) * D
    assert outcome.outputs == tuple(k in components for k in range(E))
    assert outcome.constant is not None
    assert_close(outcome.constant, expected.detach())


def test_a_party_without_components_is_silent_whatever_its_features():
    party = a_party()
    reply = done(party, Select((), dataclasses.replace(SELECT, lam=0.0)))
    assert party.kept.all()
    assert reply.silent
    assert reply.constant is not None
    assert reply.constant.values.shape == (0,)


def test_or_its_pretrained_embedding_as_in_the_released_code():
    party = a_party(empty="frozen")
    train(party, PLAN)
    before = {
        which: embedding(party, Embed("evaluate", which)).block.values for which in BOTH
    }
    reply = done(party, Select((0, 2), EVERYTHING_GOES))
    assert (reply.silent, reply.constant) == (False, None)
    train(party, PLAN)
    for which, values in before.items():
        now = embedding(party, Embed("evaluate", which)).block.values
        assert torch.allclose(now, values[:, [0, 2]], rtol=1e-12)
    outcome = party.outcome()
    assert outcome.frozen
    assert outcome.constant is None
    assert outcome.slots == (True,) * D
    assert torch.allclose(outcome.net(rows()), before["train"][:, [0, 2]])


@pytest.mark.parametrize("inside", [False, True])
def test_behind_noise_its_pretrained_embedding_has_noise_too(inside):
    """Once, with noise on the first layer, a server that asked for it saw it clear."""
    guard = EmbeddingGuard(ClippedNoise(1.0, 5.0), "a", 0, inside)
    party = a_party(empty="frozen", guard=guard)
    clear = party.net(rows()).detach()
    done(party, Select(None, EVERYTHING_GOES))
    said = embedding(party, Embed("evaluate", "train")).block.values
    assert (said - clear).abs().mean() > 0.1
    again = a_party(empty="frozen", guard=guard)
    again.resume(copy.deepcopy(party.state))
    assert_close(embedding(again, Embed("evaluate", "train")).block.values, said)
    assert torch.allclose(party.outcome().net(rows()), clear)


# -------------------------------------------------------------------- a wrong order


def a_gradient(n: int = 8) -> Descend:
    return Descend("train", Block(torch.zeros(n, E, dtype=F64)))


def test_a_gradient_outside_of_training_is_refused():
    party = a_party()
    with pytest.raises(ProtocolError, match="Party 'a' must be asked for an embedding"):
        party.handle(a_gradient())
    train(party, PLAN)
    with pytest.raises(ProtocolError, match="Party 'a' must be asked for an embedding"):
        party.handle(a_gradient())


@pytest.mark.parametrize(
    "request_",
    [Begin(PLAN, 1), Begin(PLAN, 2), Begin(PLAN, 3), Begin(LASSO, 2)],
    ids=["earlier", "asked already", "later", "of another stage"],
)
def test_a_stage_goes_on_only_where_it_stands(request_):
    party = a_party()
    for _ in range(2):  # before the stage, and in it after two steps
        with pytest.raises(ProtocolError, match=f"must have {request_.done} steps"):
            party.handle(request_)
        reply = embedding(party, Begin(PLAN))
        for _ in range(2):
            reply = embedding(party, ones(party, reply))
    assert len(reply.block.values) == 4


def test_a_selection_by_shadows_needs_gradients():
    look = ShadowPlan("select_features", 0.1)
    party = a_party()
    train(party, PLAN)  # without a record
    with pytest.raises(ProtocolError, match="must have gradients of training"):
        party.handle(Select(None, look))
    train(party, dataclasses.replace(PLAN, record=1))
    party.handle(Select(None, look))
    with pytest.raises(ProtocolError, match="must have gradients of training"):
        party.handle(Select(None, look))  # they are forgotten


def test_a_second_look_needs_a_first():
    party = a_party()
    train(party, dataclasses.replace(PLAN, record=1))
    with pytest.raises(ProtocolError, match="must have looked once to look again"):
        party.handle(Select(None, ShadowPlan("select_again", 0.1)))


def test_a_selection_pass_and_a_refit_are_told_blocks_and_places_of_the_rows(
    monkeypatch,
):
    blocks = torch.arange(200) // 4
    X = rows(200)
    net = MLP.create((D, 4, E), "tanh", 0, "a", F64, CPU)
    places = 7 * torch.arange(200).flip(0)
    own = PartyData(X, X[:5], torch.arange(D), blocks=blocks, places=places)
    party = Party("a", net, own, 0)
    told: list[Any] = []
    fit, selection_pass = solve.fit_held_out, evidence.SelectionPass

    def refit(*given):
        told.append(given[-1])
        return fit(*given)

    def see(at, *more):
        told.append((at.rows, at.blocks, at.places))
        return selection_pass(at, *more)

    monkeypatch.setattr(shadows, "fit_held_out", refit)
    monkeypatch.setattr(evidence, "SelectionPass", see)
    reply = embedding(party, Begin(dataclasses.replace(PLAN, batch_size=200, record=1)))
    party.handle(towards(party, reply, X[:, :1]))
    party.handle(Select(None, ShadowPlan("select_features", 0.05)))
    (seen, in_blocks, in_file), of_refit = told
    assert torch.equal(in_blocks, seen // 4)
    assert torch.equal(in_file, 7 * (199 - seen))
    assert torch.equal(of_refit, seen // 4)


def test_the_rows_that_training_leaves_out_are_whole_blocks(monkeypatch):
    monkeypatch.setattr(plans, "FEWEST_HELD_OUT", 1)
    monkeypatch.setattr(ending, "LOOK_EVERY", 1)
    blocks = torch.arange(200) // 6
    X = rows(200)
    net = MLP.create((D, 4, E), "tanh", 0, "a", F64, CPU)
    party = Party("a", net, PartyData(X, X[:5], torch.arange(D), blocks=blocks), 0)
    plan = dataclasses.replace(PLAN, schedule="watched", n_epochs=50)
    embedding(party, Begin(plan))
    held = plan.batches(200, 0, blocks).held_out
    assert held.shape == (18,)
    reply = embedding(party, Embed("train", "train", 18, plan.bits))
    assert torch.allclose(reply.block.values, net(take(X, held)))


def test_a_rate_that_was_rounded_otherwise_is_that_of_the_plan():
    party = a_party()
    reply = embedding(party, Begin(PLAN))
    for rate in (0.999, math.nextafter(1.0, 0.0)):
        request = dataclasses.replace(ones(party, reply), rate=rate)
        if rate == 0.999:
            with pytest.raises(
                ProtocolError, match="must be sent the rate of its plan"
            ):
                party.handle(request)
        else:
            embedding(party, request)


# ----------------------------------------------------------------- state and restore


def towards(party: Party, reply: Embedding, seen: Tensor) -> Descend:
    """Return the gradient that asks for the first columns as embeddings."""
    h = reply.block.values
    return Descend(reply.stage, Block((h - seen) / len(h)))


FIRST = ShadowPlan("select_features", 0.1, again=True, refit_epochs=3)
AGAIN = ShadowPlan("select_again", 0.1)


def script(party: Party, *stages: TrainPlan | Request) -> Iterator[Reply]:
    """Ask one thing after another; gradients lead towards the first columns, about."""
    X = party._data.X_train
    wanted = X[:, :E] + 0.5 * rows(len(X), seed=2)[:, :E]
    wanted = wanted + X[:, [0]].square() * (len(X) > 100)  # enough for a curve
    for stage in stages:
        if not isinstance(stage, TrainPlan):
            yield party.handle(stage)
            continue
        reply, start = party.handle(Begin(stage)), 0
        while isinstance(reply, Embedding):
            yield reply
            n, width = reply.block.values.shape
            seen = wanted[start : start + n, :width]
            start = (start + n) % len(wanted)
            reply = party.handle(towards(party, reply, seen))
        yield reply


RECORDED = dataclasses.replace(PLAN, stage="pretrain", n_epochs=2, record=1)
LIVES: dict[str, tuple[dict[str, Any], list[TrainPlan | Request]]] = {
    "the paper": (
        {},
        [
            dataclasses.replace(PLAN, stage="pretrain", optimizer="adam"),
            Select((0, 2), dataclasses.replace(SELECT, lam=0.7)),
            dataclasses.replace(PLAN, optimizer="adam", schedule="cosine"),
        ],
    ),
    "joint lasso": ({}, [dataclasses.replace(LASSO, lam=2.0), PLAN]),
    "silent": ({}, [PLAN, Select((1,), EVERYTHING_GOES)]),
    "frozen": ({"empty": "frozen"}, [PLAN, Select((1,), EVERYTHING_GOES), PLAN]),
    "two looks": (
        {"n": 60, "must_keep": (False,) * 4 + (True,), "input_scale": 0.01},
        [
            RECORDED,
            Select((0, 1), FIRST),
            dataclasses.replace(PLAN, stage="train_first", record=1),
            Select(None, AGAIN),
            PLAN,
        ],
    ),
    "a curve": (
        {"n": 200, "input_scale": 0.01},
        [
            dataclasses.replace(RECORDED, batch_size=40),
            Select(None, dataclasses.replace(AGAIN, stage="select_features")),
            PLAN,
        ],
    ),
}


def same(mine: Reply, theirs: Reply) -> None:
    if not isinstance(mine, Embedding) or not isinstance(theirs, Embedding):
        assert str(mine) == str(theirs)
        return
    assert (mine.stage, mine.ahead) == (theirs.stage, theirs.ahead)
    assert torch.equal(mine.block.values, theirs.block.values)


@pytest.mark.parametrize("life", LIVES)
def test_a_fresh_party_with_the_state_gives_the_same_replies(life):
    """Whenever the state is taken: within a stage, between stages, at the end."""
    about, stages = LIVES[life]
    party, n_moments = a_party(**about), 0
    for reply in script(party, *stages):
        tensors, values = split_state(party.state)
        fresh = a_party(**about)
        fresh.resume(join_state(PartyState, tensors, json.loads(json.dumps(values))))
        if isinstance(reply, Embedding):
            training = party._training
            assert training is not None
            same(fresh.handle(Begin(training.plan, training.step)), reply)
        again, values_again = split_state(fresh.state)
        assert values_again == values
        assert again.keys() == tensors.keys()
        assert all(torch.equal(again[name], t) for name, t in tensors.items())
        for which in BOTH:
            same(*(p.handle(Embed("evaluate", which)) for p in (fresh, party)))
        assert torch.equal(fresh.features_now(), party.features_now())
        n_moments += 1
    assert n_moments >= 4
    assert bool(party.kept.any()) == (life not in ("silent", "frozen"))


@pytest.mark.parametrize("life", LIVES)
def test_a_run_that_changes_hands_at_every_boundary_ends_the_same(life):
    about, stages = LIVES[life]
    undisturbed, party = a_party(**about), a_party(**about)
    list(script(undisturbed, *stages))
    for stage in stages:
        list(script(party, stage))
        fresh = a_party(**about)
        fresh.resume(copy.deepcopy(party.state))
        party = fresh
    one, other = party.outcome(), undisturbed.outcome()
    assert one.kept == other.kept
    assert one.selection == other.selection
    assert one.net.state().keys() == other.net.state().keys()
    for name, tensor in one.net.state().items():
        assert torch.equal(tensor, other.net.state()[name])


def test_a_column_that_acts_by_a_curve_gets_pieces_after_the_last_look():
    about, stages = LIVES["a curve"]
    party = a_party(**about)
    list(script(party, *stages[:2]))
    assert isinstance(party.net, MLP)
    assert party.net.pieces is not None
    found = party.net.pieces.flatten(1).any(dim=1)
    assert found.tolist() == [True, False, False, False]
    more_to_come = a_party(**about)
    list(script(more_to_come, stages[0], Select(None, FIRST)))
    assert isinstance(more_to_come.net, MLP)
    assert more_to_come.net.pieces is None


def test_what_must_stay_stays_and_what_was_asked_for_is_found():
    about, stages = LIVES["two looks"]
    party = a_party(**about)
    list(script(party, *stages))
    assert party.kept.tolist() == [True, True, False, False, True]
    how = party.outcome().selection
    assert how is not None
    assert len(how["scores"]) == D
    assert [how["why"][i] for i in (0, 1, 4)] == ["strength", "strength", "must keep"]


def test_a_state_between_the_looks_has_what_the_first_saw():
    about, (pretrain, first, middle, again, _) = LIVES["two looks"]
    party = a_party(**about)
    list(script(party, pretrain))
    seen = copy.deepcopy(party.state.shadows.memory).take()
    list(script(party, first))
    before = party.state.shadows.before
    assert torch.equal(before[0], seen[0])
    for kept, whole in zip(before[1:], seen[1:], strict=True):
        assert torch.equal(kept, whole[:, [0, 1]])  # of the components in use
    list(script(party, middle))
    fresh = a_party(**about)
    fresh.resume(copy.deepcopy(party.state))
    for each in (party, fresh):
        list(script(each, again))
    assert fresh.outcome().selection == party.outcome().selection
    assert torch.equal(fresh.kept, party.kept)
    assert party.state.shadows.before == []


def test_a_row_seen_twice_counts_once():
    """Of two epochs that are remembered, the second."""
    twice = dataclasses.replace(PLAN, n_epochs=2, record=2)
    once = dataclasses.replace(PLAN, n_epochs=2, record=1)
    look = ShadowPlan("select_features", 0.1, refit_epochs=0)
    told = []
    for plan in (once, twice):
        party = a_party(n=60)
        list(script(party, plan, Select(None, look)))
        told.append(party.outcome().selection)
    assert told[0] == told[1]


def test_a_party_that_keeps_nothing_at_the_second_look_leaves_a_constant():
    party = a_party(n=60, input_scale=0.01)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, E, generator=generator, dtype=F64)

    def asked_for_noise(plan: TrainPlan) -> None:
        reply = embedding(party, Begin(plan))
        party.handle(towards(party, reply, noise))

    plan = dataclasses.replace(PLAN, batch_size=60, record=1)
    asked_for_noise(plan)
    assert not done(party, Select(None, FIRST)).silent
    assert party.kept.sum() == 1
    asked_for_noise(plan)
    reply = done(party, Select(None, AGAIN))
    assert reply.silent
    assert reply.constant is not None
    assert not party.kept.any()
