"""What a server or a party tries in a method's own protocol, and what comes of it.

The rivals' methods have such protocols, and an operator allowed one of them by name.
Tests under "what nothing stops" show what ``docs/threat-model.md`` says of them.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

import pytest
import torch
from tests.methods.test_vprf import LEAVES, STUMP, Asked, grown
from tests.remote.test_attacks import TEST, TRAIN, Server, a_party, skip_to, training
from torch import Tensor

import lessvfl
from lessvfl import data, methods
from lessvfl.core import sharing
from lessvfl.core.limits import N_LIMITS, split_rows
from lessvfl.core.sharing import KeyPair, Ring
from lessvfl.core.votes import VoteStep
from lessvfl.errors import PolicyError, ProtocolError
from lessvfl.methods import counting
from lessvfl.methods.counting import CountingParty
from lessvfl.methods.filters import FilterParty
from lessvfl.methods.tree_queries import TreeQuery
from lessvfl.party import Party
from lessvfl.remote.policy import Policy
from lessvfl.run import profiles
from lessvfl.run.build import Builder
from lessvfl.terms import Stage
from lessvfl.wire.messages import Done, Query, QueryReply, Select

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

STAGE: Stage = "select_features"
ASKING = [name for name, method in methods.METHODS.items() if method.protocol]
N, N_COLUMNS = 120, 4
RING = Ring.for_counts(N)


def a_server(out: Any, method: str, **values: Any) -> Server:
    """Return a server that a party in a process of its own lets run one method."""
    policy = Policy(methods=(method,), limits={"pretrain_epochs": 10})
    return Server(a_party(out, policy=policy), method=method, **values)


def a_side(method: str, name: str = "clinic", seed: int = 0, **values: Any) -> Party:
    """Return a party without a policy, on a table of its own."""
    X = torch.randn(N, N_COLUMNS, generator=torch.Generator().manual_seed(seed))
    dataset = data.from_arrays(X.numpy(), [0, 1] * (N // 2))
    own = profiles.resolve(method, "default", dataset, values)
    builder, groups = Builder(own, 0, "cpu"), torch.arange(N_COLUMNS).numpy()
    return builder.party(name, (X, X[:0]), groups, list("abcd"))


def ask(party: Any, step: int, *arrays: Tensor) -> Any:
    reply = party.handle(Query(STAGE, step, arrays))
    return reply.arrays if isinstance(reply, QueryReply) else reply


def bins_of(party: Party) -> Tensor:
    """Return which bins every row of a party in a stage is in, (N, bins)."""
    assert isinstance(party._queries._protocol, CountingParty)
    return party._queries._protocol.bins.indicators(torch.int64)


def sizes_of(n_bins: int, n_classes: int) -> Tensor:
    return torch.tensor([n_bins, n_classes], dtype=torch.int32)


class FalseDealer:
    """A server that hands a party a key of its own in place of the dealer's."""

    def __init__(self, party: Any, n_rows: int) -> None:
        self.party, self.key, self.n_rows = party, KeyPair(), n_rows
        self.bins = torch.zeros(0)  # of every row, as it reads them

    def ask(self, y: Tensor) -> Any:
        """Have classes (N, 1) of 0 and 1 counted; return how the party ends."""
        of_party, width = ask(self.party, 0)
        client, dealer = sharing.to_bytes(of_party), self.key.public
        own = sharing.from_bytes(dealer)
        ask(self.party, 1, own, sizes_of(1, 1))
        sizes = (self.n_rows, int(width), 1)
        seed, of_server = self.key.secret(client, client, dealer), b"my own"
        down = RING.pack(sharing.masked(RING, of_server, y))
        (rows,) = ask(self.party, 2, own, down)
        masked = RING.unpack(rows)
        self.bins = RING.reduce(masked + RING.draw(seed, "mask", *masked.shape))
        dealt = sharing.deal(RING, seed, of_server, *sizes)
        share = sharing.share_of_right(RING, dealt, masked, y)
        return ask(self.party, 3, RING.pack(share))


# -------------------------------------------------------------- what an operator allows


@pytest.mark.parametrize("method", ASKING)
def test_every_rival_has_its_own_leave(tmp_path: Any, method: str) -> None:
    for number, other in enumerate(methods.METHODS):
        party = a_party(tmp_path, policy=Policy(methods=(other,)), run=str(number))
        server = Server(party, method=method)
        if other != method:
            with pytest.raises(PolicyError, match=f"the methods {other} "):
                server.welcome()


@pytest.mark.parametrize(
    ("method", "values", "sentence"),
    [
        ("dual-gates", {"gate_batch_size": 1}, "'gate_batch_size' from 32 on"),
        ("dual-gates", {"gate_rate": 1.0}, "'gate_rate' up to 0.05"),
        ("dual-gates", {"gate_epochs": 501}, "'gate_epochs' up to 500"),
        ("vflfs", {"own_epochs": 10**6}, "'own_epochs' up to 500"),
        ("vflfs", {"train_optimizer": "sgd"}, "any 'train_optimizer' but sgd"),
        ("iv-filter", {"copies": 10**7}, "'copies' up to 1000"),
        ("gini-filter", {"bins": 10**6}, "'bins' up to 100"),
        ("counterfactual", {"search_step_size": 9.0}, "'search_step_size' up to 1"),
        ("counterfactual", {"bits": 32}, "'bits' up to 8"),
    ],
)
def test_settings_of_rivals_have_bounds(
    tmp_path: Any, method: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PolicyError, match=sentence):
        a_server(tmp_path, method, **values).welcome()


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("mmvfl", {"most_rounds": 200}),
        ("counterfactual", {"search_steps": 2000, "pretrain_epochs": 1}),
    ],
)
def test_values_of_queries_are_planned(
    tmp_path: Any, method: str, values: dict[str, Any]
) -> None:
    with pytest.raises(PolicyError, match=r"2,000 values about a row.* Got a run of"):
        a_server(tmp_path, method, **values).welcome()


# ----------------------------------------------------------------------- masks and keys


def test_two_parties_that_deal_for_each_other_have_different_masks() -> None:
    """The server, which may choose who deals for whom, sees no difference of bins."""
    sides = [a_side("gini-filter", f"p{i}", i) for i in range(2)]
    keys = [ask(side, 0)[0] for side in sides]
    width = bins_of(sides[0]).shape[1]
    for side, key in zip(sides, reversed(keys), strict=True):
        ask(side, 1, key, sizes_of(width, 1))
    labels = torch.zeros(N, 1, dtype=torch.int64)
    found = [
        RING.unpack(ask(side, 2, key, labels)[0])
        for side, key in zip(sides, reversed(keys), strict=True)
    ]
    assert found[0].shape == found[1].shape == (N, width)
    gap = RING.reduce(found[0] - found[1])
    assert len(gap.unique()) > 0.9 * gap.numel()


def test_keys_and_masks_are_new_whenever_a_stage_begins_again() -> None:
    side, dealer = a_side("gini-filter"), sharing.from_bytes(KeyPair().public)
    labels, seen = torch.zeros(N, 1, dtype=torch.int64), []
    for _ in range(2):
        key, _ = ask(side, 0)
        seed, share = ask(side, 1, dealer, sizes_of(3, 1))
        seen.append((key, seed, share, ask(side, 2, dealer, labels)[0]))
    for one, other in zip(*seen, strict=True):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("key", [bytes(32), bytes([1, *bytes(31)])])
def test_a_key_by_which_everybody_has_the_secret_is_refused(key: bytes) -> None:
    side, weak = a_side("gini-filter"), sharing.from_bytes(key)
    ask(side, 0)
    with pytest.raises(ProtocolError, match="at step 1"):
        ask(side, 1, weak, sizes_of(3, 1))


# --------------------------------------------------------------------- sizes and shapes


def test_under_sharing_classes_beyond_reason_are_refused() -> None:
    side, dealer = a_side("gini-filter"), sharing.from_bytes(KeyPair().public)
    ask(side, 0)
    ask(side, 1, dealer, sizes_of(3, 1))
    with pytest.raises(ProtocolError, match=r"classes from 2000 to .* of 0 to 1024"):
        ask(side, 2, dealer, torch.zeros(N, 2000, dtype=torch.int64))


@pytest.mark.parametrize("sizes", [(90, 1), (40, 90), (1, 90)])
def test_no_table_of_a_dealer_is_beyond_reason(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    """Neither rows x bins, nor rows x classes."""
    monkeypatch.setattr(counting, "MOST_CELLS", 80 * N)
    side, client = a_side("gini-filter"), sharing.from_bytes(KeyPair().public)
    ask(side, 0)
    with pytest.raises(ProtocolError, match="from 90 to 90, of 0 to 80"):
        ask(side, 1, client, sizes_of(*sizes))


def test_nor_are_bins_and_classes_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_CELLS", 200 * N)
    side, client = a_side("gini-filter"), sharing.from_bytes(KeyPair().public)
    ask(side, 0)
    with pytest.raises(ProtocolError, match="classes from 150 to 150, of 0 to 120"):
        ask(side, 1, client, sizes_of(200, 150))


def test_a_party_with_more_bins_than_can_be_dealt_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "MOST_CELLS", 30 * N)
    with pytest.raises(ProtocolError, match="bins from 40 to 40, of 0 to 30"):
        ask(a_side("gini-filter"), 0)


@pytest.mark.parametrize("method", ["gini-filter", "vflfs", "counterfactual"])
def test_arrays_where_none_belong_are_refused(method: str) -> None:
    with pytest.raises(ProtocolError, match=r"at step 0\. Got arrays of shapes"):
        ask(a_side(method), 0, torch.zeros(0, 5))


@pytest.mark.parametrize("width", [-5, 0, 2**31 - 1])
def test_a_party_whose_number_of_bins_cannot_be_is_named(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """It is not the dealer, which could only refuse, that the error is about."""
    answer = CountingParty.answer

    def lie(party: CountingParty, step: int, arrays: Any) -> Any:
        found = answer(party, step, arrays)
        if step == 0 and party.inputs.party == "party1":
            key, _ = found  # type: ignore[misc]
            return key, torch.tensor([width], dtype=torch.int32)
        return found

    monkeypatch.setattr(CountingParty, "answer", lie)
    with pytest.raises(ProtocolError, match=r"'party1' must have 1 to .* bins in all"):
        simulate("gini-filter")


def simulate(method: str, parties: int = 2, **more: Any) -> Any:
    options = {"n_samples": 200, "n_test": 40, "task": "binary"}
    dataset = data.load("synthetic", options=options)
    few = {"train_epochs": 1, "batch_size": 64}
    own = lessvfl.resolve(method, "default", dataset, few | more)
    (run,) = lessvfl.simulate(lessvfl.Job(dataset, own, parties=parties), [0])
    return run


@pytest.mark.parametrize("keep", [None, 1])
def test_counts_that_no_labels_have_are_refused(keep: int | None) -> None:
    """As of a dealer or a server that sends anything; they could fill the memory."""
    side, dealer = a_side("iv-filter", keep=keep), sharing.from_bytes(b"\7" * 32)
    _, width = ask(side, 0)
    ask(side, 1, dealer, sizes_of(3, 1))
    ask(side, 2, dealer, torch.zeros(N, 1, dtype=torch.int64))
    with pytest.raises(ProtocolError, match="more rows of a bin than it has"):
        ask(side, 3, torch.zeros(int(width), 1, dtype=torch.int64))


# ---------------------------------------------------------- again, and in another order


def test_labels_cannot_be_tried_one_after_the_other(tmp_path: Any) -> None:
    """Whether a party keeps anything tells of its columns: two ways a seed."""
    server = a_server(tmp_path, "gini-filter", secret="none").begin()
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (3, len(TRAIN)), generator=generator).int()
    for some in (labels[0], labels[0], labels[1], labels[0]):  # the same again is free
        assert isinstance(ask(server.party, 0, some), Done)
        server.prepare()
    with pytest.raises(PolicyError, match="a step goes 2 ways at most"):
        ask(server.party, 0, labels[2])


def test_nor_under_sharing_whose_stage_may_break_off(tmp_path: Any) -> None:
    server = a_server(tmp_path, "iv-filter", keep=2).begin()
    key = sharing.from_bytes(secrets.token_bytes(32))
    for n_bins in range(1, 6):
        ask(server.party, 0)
        ask(server.party, 1, key, sizes_of(n_bins, 1))
        server.prepare()
    y = torch.arange(len(TRAIN)).view(-1, 1)
    for ways in (2, 3):
        false = FalseDealer(server.party, len(TRAIN))
        assert isinstance(false.ask((y % ways == 0).long()), Done)
        server.prepare()
    with pytest.raises(PolicyError, match="a step goes 2 ways at most"):
        FalseDealer(server.party, len(TRAIN)).ask((y % 5 == 0).long())


def test_votes_leave_two_ways_at_most(tmp_path: Any) -> None:
    """By trees of its choice a server reads leaves off the votes of a row."""
    server = a_server(tmp_path, "vprf", trees=2, select_trees=0, leaves=4).begin()
    asked = Asked(server.party, len(TRAIN))
    for way in range(3):
        grown(asked, way)
        asked(5, TreeQuery.TREES, STUMP, LEAVES)
        for step in range(way):  # in another place each time
            asked(6 + step, TreeQuery.TREES, STUMP, LEAVES)
        own, _ = asked(6 + way, TreeQuery.VOTES, [VoteStep.KEYS]).arrays
        other = sharing.from_bytes(KeyPair().public)
        sent = torch.stack([other, own]), torch.zeros(32, dtype=torch.uint8)
        told = (7 + way, TreeQuery.VOTES, [VoteStep.VOTE], *sent)
        if way < 2:
            assert asked(*told).arrays[0].shape == (len(TEST), 1)
            continue
        with pytest.raises(PolicyError, match="a step goes 2 ways at most"):
            asked(*told)


def test_components_cannot_be_tried_one_after_the_other(tmp_path: Any) -> None:
    server = a_server(tmp_path, "less-vfl", embedding_size=4).begin()
    for number, places in enumerate(itertools.combinations(range(4), 2)):
        plan = skip_to(server, STAGE)
        if number == 2:
            with pytest.raises(PolicyError, match="a step goes 2 ways at most"):
                server.party.handle(Select(places, plan))
            return
        assert isinstance(server.party.handle(Select(places, plan)), Done)
        server.prepare()


def mmvfl_at_its_end(**values: Any) -> tuple[Party, Tensor]:
    """Return a party that has predicted rows held out, and what it was sent."""
    side = a_side("mmvfl", **values)
    held, used = split_rows(N, 0)
    Z = torch.randn(len(used), 2, generator=torch.Generator().manual_seed(1))
    ask(side, 0, Z)
    _, _, largest = ask(side, 1, Z)
    (found,) = ask(side, 2, largest)
    assert found.shape == (len(held), 2 * N_LIMITS)
    return side, Z


def test_rows_held_out_are_predicted_once() -> None:
    """Of limits that a server chose again, features would stand out one by one."""
    side, _ = mmvfl_at_its_end()
    with pytest.raises(ProtocolError, match=r"limit 0\.37.* of 0 to 11"):
        ask(side, 3, torch.tensor([0.37]))
    side, Z = mmvfl_at_its_end()
    with pytest.raises(ProtocolError, match="arrays of shapes"):
        ask(side, 3, Z)


@pytest.mark.parametrize("place", [-1, N_LIMITS, 2**31 - 1])
def test_a_limit_that_there_is_not_is_refused(place: int) -> None:
    side, _ = mmvfl_at_its_end()
    with pytest.raises(ProtocolError, match="of 0 to 11"):
        ask(side, 3, torch.tensor([place], dtype=torch.int32))


def test_rounds_are_of_one_number_of_classes_and_come_first() -> None:
    side, n = a_side("mmvfl"), len(split_rows(N, 0)[1])
    with pytest.raises(ProtocolError, match="arrays of shapes"):
        ask(side, 0, torch.ones(1))
    ask(side, 0, torch.randn(n, 2))
    with pytest.raises(ProtocolError, match="arrays of shapes"):
        ask(side, 1, torch.randn(n, 9))


def test_a_largest_slope_below_its_own_moves_no_row() -> None:
    """By a tiny one a server would move rows as far as it likes."""
    side = a_side("counterfactual")
    (h,) = ask(side, 0)
    (slopes,) = ask(side, 1, torch.ones_like(h))
    with pytest.raises(ProtocolError, match="a largest slope below its own"):
        ask(side, 2, slopes * 1e-6)


# ------------------------------------------------------------------ what nothing stops


def test_a_server_that_swaps_keys_reads_the_bins_of_every_row() -> None:
    side = a_side("gini-filter")
    false = FalseDealer(side, N)
    ask(side, 0)
    expected = bins_of(side)
    assert isinstance(false.ask(torch.arange(N).view(-1, 1) % 2), Done)
    assert torch.equal(false.bins, expected)


def test_values_of_bins_are_not_counted(tmp_path: Any) -> None:
    server = a_server(tmp_path, "iv-filter", keep=2).begin()
    y = torch.arange(len(TRAIN)).view(-1, 1) % 2
    assert isinstance(FalseDealer(server.party, len(TRAIN)).ask(y), Done)
    assert server.party.budget.values(tmp_path / "run" / "seed-0") == 0


def test_a_party_with_bins_of_one_row_reads_every_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under sharing nobody else sees what a party's bins are."""
    found: list[Tensor] = []
    counted = FilterParty.counted

    def curious(party: FilterParty, counts: Tensor) -> Any:
        if party.inputs.party == "party0":
            found.append(counts[party.bins.codes[0]].argmax(dim=1))
        return counted(party, counts)

    monkeypatch.setattr(FilterParty, "counted", curious)
    run = simulate("gini-filter", bins=1000)
    assert found[0].tolist() == run.problem.y_train.astype(int).tolist()


def test_a_lying_server_of_mmvfl_reads_the_columns_up_to_a_mixture(
    tmp_path: Any,
) -> None:
    """One round of noise for labels spans the space of the columns.

    Who knows as many rows as there are columns then reads all others.
    """
    server = a_server(tmp_path, "mmvfl", zeta=1.0, beta=0.1)
    server.welcome(seeds=(0,))
    server.align()
    server.prepare()
    _, used = split_rows(len(TRAIN), 0)
    X = training(server.party).party.model.X_train[used]
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(len(X), X.shape[1], generator=generator)
    shown, _, _ = ask(server.party, 0, Z)
    mixed = 2 * shown - Z  # X W
    known, others = slice(0, X.shape[1]), slice(X.shape[1], None)
    back = torch.linalg.solve(mixed[known].double(), X[known].double())
    torch.testing.assert_close(
        mixed[others].double() @ back, X[others].double(), atol=0.05, rtol=0.05
    )


def test_predictions_at_neighbouring_limits_tell_single_columns() -> None:
    """To an honest server, too: a weight times the column, of rows held out."""
    side = a_side("mmvfl")
    held, used = split_rows(N, 0)
    X = side.model.X_train
    weights = torch.tensor([1.0, 0.4, 0.15, 0.06])  # of the columns, in the labels
    Z = (X[used] @ weights).view(-1, 1)
    ask(side, 0, Z)
    _, _, largest = ask(side, 1, Z)
    (found,) = ask(side, 2, largest)
    steps = found.diff(dim=1).T  # (limits - 1, rows held out)
    moved = steps[steps.abs().amax(dim=1) > 1e-4]
    alike = torch.corrcoef(torch.cat([moved, X[held].T]))[: len(moved), len(moved) :]
    rows, columns = (alike.abs() > 0.999).nonzero().T
    assert len(columns.unique()) == len(rows) >= 2


def test_one_of_two_parties_of_mmvfl_learns_what_the_other_predicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Z of the next round, less what it and the label holder put into it."""
    seen: dict[tuple[str, int], tuple[Any, Any]] = {}
    answer = Party.handle

    def watched(party: Party, request: Any) -> Any:
        reply = answer(party, request)
        if isinstance(request, Query) and isinstance(reply, QueryReply):
            seen[party.name, request.step] = (request.arrays[0], reply.arrays[0])
        return reply

    monkeypatch.setattr(Party, "handle", watched)
    simulate("mmvfl", zeta=10.0, tolerance=0.0, most_rounds=3)
    labels, own = seen["party0", 0]  # the first Z are the labels
    following, _ = seen["party0", 1]
    _, of_other = seen["party1", 0]
    torch.testing.assert_close(3 * following - labels - own, of_other)


def test_a_lying_server_of_counterfactual_sees_the_network_at_other_places() -> None:
    """What single features do to the embedding of a row, at full precision."""
    side = a_side("counterfactual", price=0.99, search_step_size=1.0)
    (before,) = ask(side, 0)
    gradient = torch.zeros_like(before)
    gradient[:, 0] = 1.0
    (slopes,) = ask(side, 1, gradient)
    (after,) = ask(side, 2, slopes)
    protocol: Any = side._queries._protocol
    moved = protocol.changes.delta != 0
    assert after.dtype == torch.float32
    assert (moved.sum(dim=1) == 1).float().mean() > 0.9
    assert ((after - before).abs().amax(dim=1) > 0).all()
