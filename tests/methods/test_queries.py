"""What a party answers in a method's own protocol, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.conftest import decode

from lessvfl import data, methods
from lessvfl.errors import ProtocolError
from lessvfl.party import Party
from lessvfl.remote.policy import Policy
from lessvfl.run import profiles
from lessvfl.run.build import Builder
from lessvfl.wire import codec, messages

ASKING = [name for name, method in methods.METHODS.items() if method.protocol]
N_ROWS = 40


def a_party(method: str, **settings: Any) -> Party:
    dataset = data.from_arrays(torch.randn(N_ROWS, 4).numpy(), [0, 1] * (N_ROWS // 2))
    own = profiles.resolve(method, "default", dataset, settings)
    X = torch.randn(N_ROWS, 4)
    groups = torch.arange(4).numpy()
    return Builder(own, 0, "cpu").party("clinic", (X, X[:0]), groups, list("abcd"))


def ask(party: Party, step: int, *arrays: torch.Tensor) -> messages.Reply:
    query = messages.Query("select_features", step, arrays)
    frame = decode(codec.encode(codec.WireFrame(query, 1)))  # as it arrives
    return party.handle(frame.message)


@pytest.mark.parametrize("method", ASKING)
def test_a_stage_of_queries_begins_at_its_start(method: str) -> None:
    with pytest.raises(ProtocolError, match=r"from step 0 on. Got step 1"):
        ask(a_party(method), 1)


@pytest.mark.parametrize("method", ["less-vfl-auto", "plain"])
def test_who_has_no_protocol_answers_no_query(method: str) -> None:
    with pytest.raises(ProtocolError, match="outside of one"):
        ask(a_party(method), 0)


@pytest.mark.parametrize("method", [m for m in ASKING if m not in ("vflfs",)])
@pytest.mark.parametrize(
    "arrays",
    [
        (torch.ones(3, 2),),
        (torch.ones(2),),
        (torch.ones(1), torch.ones(1)),
    ],
    ids=["rows", "numbers", "arrays"],
)
def test_what_does_not_fit_is_one_sentence(method: str, arrays: Any) -> None:
    """In the clear step 0 has labels; under sharing what is dealt comes at step 1."""
    secret = {"secret": "none"} if method.endswith(("filter", "gates")) else {}
    with pytest.raises(ProtocolError, match=r"protocol has at step 0. Got "):
        ask(a_party(method, **secret), 0, *arrays)


@pytest.mark.parametrize(
    ("sizes", "wrong"), [([2**30, 1], "bins"), ([-1, 1], "bins"), ([40, 9999], "class")]
)
def test_a_dealer_refuses_sizes_beyond_reason(sizes: list[int], wrong: str) -> None:
    party = a_party("gini-filter")
    first = ask(party, 0)
    assert isinstance(first, messages.QueryReply)
    key, width = first.arrays
    assert width.tolist() == [40]
    with pytest.raises(ProtocolError, match=f"{wrong}.* of 0 to"):
        ask(party, 1, key, torch.tensor(sizes, dtype=torch.int32))


def test_classes_beyond_reason_are_refused() -> None:
    labels = torch.full((N_ROWS,), 2**31 - 1, dtype=torch.int32)
    with pytest.raises(ProtocolError, match=r"classes from .* of 0 to 1024"):
        ask(a_party("gini-filter", secret="none"), 0, labels)


@pytest.mark.parametrize("method", ["gini-filter", "dual-gates"])
def test_no_query_comes_after_the_last(method: str) -> None:
    """Unless rows are held out; then a limit comes after the largest score."""
    party = a_party(method)
    ask(party, 0)
    with pytest.raises(ProtocolError, match=r"step 4. Got a query beyond the last"):
        ask(party, 4, torch.ones(1))
    if method == "gini-filter":
        party = a_party(method, secret="none", how_many="held-out")
        reply = ask(party, 0, torch.tensor([0, 1] * 16, dtype=torch.int32))
        assert isinstance(reply, messages.QueryReply)
        with pytest.raises(ProtocolError, match=r"step 2. Got rows held out.* once"):
            ask(party, 2, torch.ones(1))
        ask(party, 1, torch.ones(1))
        with pytest.raises(ProtocolError, match=r"step 1. Got rows held out.* once"):
            ask(party, 1, torch.full((1,), 0.1))  # limits between the others
        with pytest.raises(ProtocolError, match="limit 99 of 0 to 11"):
            ask(party, 2, torch.full((1,), 99, dtype=torch.int32))


def test_a_party_runs_no_rival_unless_its_operator_allows_it_by_name() -> None:
    assert Policy().methods == (methods.DEFAULT,)
    assert not set(ASKING) & set(Policy().methods)
    assert Policy(methods=("mmvfl",)).methods == ("mmvfl",)
